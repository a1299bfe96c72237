"""Graphs inside ONNX's operators: read in place, or as graphs of their own whose captured values become inputs.

Names inside a graph hide nothing once they are read: those that are taken get fresh ones first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from microc.frontend.budget import inferred
from microc.frontend.onnx.application import Application
from microc.frontend.onnx.build import Builder
from microc.frontend.onnx.file import OnnxFile, decode_body
from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.ops import registry

_GRAPH = 5


def body_of(application: Application, name: str) -> OnnxFile:
    """The graph in an attribute, under names that nothing else has."""
    proto = type(application.operator.attributes.graph(name))()
    proto.CopyFrom(application.operator.attributes.graph(name))
    made = [value.name for value in (*proto.input, *proto.initializer)]
    made += [output for node in proto.node for output in node.output if output]
    unique = application.builder.unique
    _rename(proto, {old: unique(old) for old in dict.fromkeys(made)})
    return decode_body(proto, application.builder.file, application.where)


def _rename(proto: Any, names: Mapping[str, str]) -> None:
    """New names for values of a graph, wherever it and the graphs inside it speak of them."""
    for value in (*proto.input, *proto.output, *proto.initializer, *proto.value_info):
        value.name = names.get(value.name, value.name)
    for node in proto.node:
        for words in (node.input, node.output):
            words[:] = [names.get(word, word) for word in words]
        for attribute in node.attribute:
            if attribute.type == _GRAPH:
                _rename(attribute.g, names)


def read_here(application: Application, body: OnnxFile, given: Sequence[str]) -> list[str]:
    """The operators of a graph in the place of the one that holds it; ``given``: its inputs. The values it makes."""
    builder = application.builder
    if body.unreadable:
        application.refuse(
            f"constants of type {next(iter(body.unreadable.values()))}", "docs/operators.md lists the dtypes"
        )
    builder.alias.update((value.name, name) for value, name in zip(body.inputs, given, strict=True))
    for name, data in body.initializers.items():
        if name not in builder.alias:
            builder.constant(name, data)
    builder.translate(builder, body.operators)
    return [builder.value(name, application.where) for name in body.outputs]


class Inside:
    """A graph inside an operator under construction: nodes go there, and outputs are nodes' and distinct."""

    def __init__(self, application: Application, body: OnnxFile) -> None:
        outer = application.builder
        self.body = body
        self.builder = Builder(body, outer.translate, outer)
        self.application = Application(application.operator, self.builder, application.loc)
        self.inputs: list[str] = []
        self.outputs: list[str] = []

    def give(self, name: str, kind: TensorType) -> str:
        """An input."""
        self.builder.define(name, TensorType(kind.shape, kind.dtype), self.application.where)
        self.inputs.append(name)
        return name

    def read(self) -> list[str]:
        """All operators; the values of the body's outputs."""
        self.builder.translate(self.builder, self.body.operators)
        return [self.builder.value(name, self.application.where) for name in self.body.outputs]

    def put(self, value: str) -> TensorType:
        """An output: the value, or a copy of it where no operator makes it or it is one already. Its type."""
        made = any(value in node.outputs for node in self.builder.nodes)
        if not made or value in self.outputs:
            value = self.application.emit("reshape", (value,), {"shape": self.builder.types[value].shape})
        self.outputs.append(value)
        return self.builder.types[value]

    def graph(self, captured: Sequence[str]) -> Graph:
        """The finished graph. Its last inputs are the captured values."""
        builder = self.builder
        for name in captured:
            builder.capture(name)
        inputs = (*self.inputs, *captured)
        plain = {
            name: TensorType(builder.types[name].shape, builder.types[name].dtype) if name in inputs else kind
            for name, kind in builder.types.items()
        }
        name = self.body.graph_name or self.application.operator.code.lower()
        return Graph(name, inputs, tuple(self.outputs), (), plain, builder.consts).with_nodes(builder.nodes)


def append(
    application: Application, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr], outputs: Sequence[str]
) -> None:
    """A node of several results."""
    definition = registry.get(op)
    attrs = {**definition.defaults, **attrs}
    kinds = inferred(op, attrs, [application.type(name) for name in inputs], application.where)
    for name, kind in zip(outputs, kinds, strict=True):
        application.builder.define(name, kind, application.where)
    application.builder.nodes.append(Node(op, tuple(inputs), tuple(outputs), attrs, application.loc))


def scalar(application: Application, value: str) -> str:
    """A value of one element, without axes."""
    if application.type(value).size != 1:
        application.broken(f"{value!r} of shape {application.type(value).shape} is not one element")
    return application.reshaped(value, ())


def all_of(application: Application, conditions: Sequence[str]) -> str:
    """A bool scalar: whether all of some are true."""
    first, *rest = conditions
    for other in rest:
        first = application.emit("logical_and", (first, other))
    return first


def known(application: Application, value: str) -> np.generic | None:
    """The number in a constant of one element; None if it is computed."""
    data = application.builder.consts.get(value)
    if data is None:
        return None
    if data.size != 1:
        application.broken(f"{value!r} of shape {data.shape} is not one element")
    number: np.generic = data.reshape(-1)[0]
    return number
