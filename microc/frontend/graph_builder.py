# SPDX-License-Identifier: Apache-2.0
"""Build a graph node by node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.errors import ModelError, UsageError, known_names_hint
from microc.frontend.model_limits import MAX_STORED, check_shape, infer_types
from microc.graph.ir import Attr, Graph, Loc, Node, Quant, TensorType, fresh_name
from microc.ops import registry
from microc.ops.arithmetic import OperatorEmitter
from microc.tir import ir

# ---- A graph built node by node, with types: for formats whose layers are in order of execution, and for users.

_NO_ATTRS: Mapping[str, Attr] = {}


class Emitter(Protocol):
    """Interface of an object that appends operators to a graph under construction."""

    def emit(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr] = _NO_ATTRS) -> str:
        """Append a node; return the name of its result."""

    def new_constant(self, stem: str, data: Array) -> str:
        """Add a constant under a new name made from ``stem``."""

    def type(self, value: str) -> TensorType:
        """Return the type of a value."""


def make_operator_emitter(emitter: Emitter) -> OperatorEmitter:
    """Return a function ``append_operator(op, *operands, **attributes)``, which the formulas of
    :mod:`microc.ops.arithmetic` call.

    It appends the operator ``op`` to the graph of ``emitter`` and returns the name of the result. Numbers among the
    operands become constants."""

    def append_operator(op: str, *operands: str | float, **attrs: Attr) -> str:
        dtype = dtypes.to_numpy(emitter.type([o for o in operands if isinstance(o, str)][-1]).dtype)
        names = [o if isinstance(o, str) else emitter.new_constant("number", np.array(o, dtype)) for o in operands]
        return emitter.emit(op, names, attrs)

    return append_operator


class GraphBuilder:
    """Builder of a graph: it collects nodes, types and constants. Values are referred to by their names.

    ``loc`` is the location in the model file of the next nodes. The names of their results are made from it.

    ::

        net = microc.GraphBuilder()
        x = net.input("x", (1, 64))
        y = net.op("relu", net.op("dense", x, net.constant("weight", weight)))
        graph = net.graph("mine", {"y": y})     # microc.compile accepts the graph
    """

    def __init__(self, file: str = "") -> None:
        self.loc = Loc(file)
        self._inputs: list[str] = []
        self._stored = 0
        self._nodes: list[Node] = []
        self.types: dict[str, TensorType] = {}
        self.consts: dict[str, Array] = {}
        self._state: dict[str, Array] = {}
        self._updates: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"<GraphBuilder: {len(self._inputs)} inputs, {len(self._nodes)} operators>"

    @property
    def where(self) -> str:
        return str(self.loc)

    def at(self, index: int, name: str) -> None:
        """Set the location of the next nodes: operator or layer ``index`` of the model, named ``name``."""
        self.loc = Loc(self.loc.file, index, name)

    def type(self, value: str) -> TensorType:
        """Return the type of a value."""
        return self.types[value]

    def shape(self, value: str) -> tuple[int, ...]:
        """Return the extents of a value."""
        return self.types[value].shape

    def input(self, name: str, shape: Sequence[int], dtype: str = "float32", quant: Quant | None = None) -> str:
        """Add an input of the network; return its name, which is made unique from ``name``.

        Raise UsageError for an unknown dtype, or a shape that is no sequence of integers."""
        if not isinstance(shape, Sequence) or not all(isinstance(extent, int | np.integer) for extent in shape):
            hint = "give the number: a graph has fixed extents; te.var is an extent of te.placeholder"
            has_sizes = isinstance(shape, Sequence) and any(isinstance(extent, ir.Expr) for extent in shape)
            raise UsageError(
                f"input {name!r}: got shape {shape!r}, expected a tuple of integers such as (1, 64)",
                hint=hint if has_sizes else "",
            )
        if not dtypes.is_valid(dtype):
            raise UsageError(f"input {name!r}: unknown dtype; got {dtype!r}, expected one such as float32 or int8")
        name = fresh_name(self.types, name)
        check_shape(shape, dtype, f"{self.where} input {name!r}")
        self.types[name] = TensorType(tuple(shape), dtype, quant)
        self._inputs.append(name)
        return name

    def new_constant(self, stem: str, data: Array) -> str:
        """Add a constant; return its name, which is made unique from ``stem``.

        Raise ModelError if all constants together take more than MAX_STORED bytes."""
        name = fresh_name(self.types, stem)
        self._stored += data.nbytes
        if self._stored > MAX_STORED:
            raise ModelError(
                f"constants: got more than {MAX_STORED} bytes in total, expected at most {MAX_STORED}", where=self.where
            )
        self.types[name] = TensorType(data.shape, data.dtype.name)
        self.consts[name] = np.ascontiguousarray(data).reshape(data.shape)
        return name

    def state(self, name: str, start: Array) -> str:
        """Add a tensor that keeps its content between runs; ``start`` is its initial content.

        :meth:`update` sets the next content."""
        self.types[name] = TensorType(start.shape, start.dtype.name)
        self._state[name] = start
        return name

    def update(self, state: str, value: str) -> None:
        """Set the content of ``state`` after a run to ``value``. Both are names of values."""
        self._updates[state] = value

    def constant(self, name: str, array: object) -> str:
        """Add a constant; return its name, which is made unique from ``name``.

        Raise UsageError if microc does not support the dtype of ``array``."""
        data = np.asarray(array)
        if not dtypes.is_valid(data.dtype.name):
            raise UsageError(
                f"constant {name!r}: got dtype {data.dtype}, expected a float, integer or bool dtype of numpy",
                hint="convert it: array.astype(np.float32)",
            )
        return self.new_constant(name, data)

    def op(self, op: str, *inputs: str, name: str = "", **attrs: Attr) -> str:
        """Append a node of the operator ``op``; return the name of its result, which is made from ``name``.

        ``inputs`` are names of values. docs/operators.md lists the attributes of every operator. Raises UsageError for
        an unknown operator or operand, or for an operator of several results (:meth:`emit_all`), ModelError for invalid
        operands or attributes."""
        if op not in registry.registry():
            raise UsageError(
                f"there is no operator {op!r}", hint=known_names_hint(op, registry.registry(), "operators")
            )
        for value in filter(None, inputs):
            self._check_value(f"{op}: operand", value)
        self.at(len(self._nodes), name)
        names = self.emit_all(op, inputs, attrs)
        if len(names) != 1:
            raise UsageError(
                f"{op}: got an operator of {len(names)} results, expected one result",
                hint=f"write {', '.join(names)} = net.emit_all({op!r}, inputs, attributes)",
            )
        return names[0]

    def _check_value(self, role: str, value: object) -> None:
        """Raise UsageError unless ``value`` is the name of a value. ``role``: what the value is for, in the message."""
        if value not in self.types:
            latest = ", ".join(list(self.types)[-8:]) or "none"
            raise UsageError(
                f"{role} {value!r} is no value of the graph",
                hint=f"use a value that is defined before; the latest are {latest}",
            )

    def scalar(self, number: float) -> str:
        """Add a float32 constant of shape (); return its name."""
        return self.new_constant("number", np.array(number, np.float32))

    def emit(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr] = _NO_ATTRS) -> str:
        """Append a node of an operator with one result; return the result's name.

        Raise ModelError, with the node's location, if the operands are invalid."""
        (name,) = self.emit_all(op, inputs, attrs)
        return name

    def emit_all(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr] = _NO_ATTRS) -> tuple[str, ...]:
        """Append a node; return the names of all of its results."""
        definition = registry.get(op)
        attrs = {**definition.defaults, **attrs}
        types = infer_types(op, attrs, [self.types[name] for name in inputs if name], self.where)
        names = []
        for type_ in types:
            names.append(fresh_name(self.types, self.loc.name or op))
            self.types[names[-1]] = type_
        self._nodes.append(Node(op, tuple(map(str, inputs)), tuple(names), attrs, self.loc))
        return tuple(names)

    def set_quant(self, value: str, quant: Quant | None, dtype: str = "") -> str:
        """Set the quantisation of ``value``, and its dtype unless ``dtype`` is empty; return ``value``."""
        type_ = self.types[value]
        self.types[value] = replace(type_, quant=quant, dtype=dtype or type_.dtype)
        return value

    def reshape(self, value: str, shape: Sequence[int]) -> str:
        """Reshape ``value`` to ``shape``; return the name of the result, ``value`` itself if it already has this
        shape."""
        shape = tuple(int(extent) for extent in shape)
        return value if self.shape(value) == shape else self.emit("reshape", (value,), {"shape": shape})

    def graph(self, name: str, outputs: Mapping[str, str]) -> Graph:
        """Return the finished graph, named ``name``. ``outputs`` maps names of outputs to names of values."""
        names: dict[str, str] = {}
        for label, value in outputs.items():
            self._check_value(f"{name}: output {label}", value)
            names[label] = fresh_name({*self.types, *names.values()}, label)
            self.types[names[label]] = self.types[value]
            attrs: Mapping[str, Attr] = {"shape": self.shape(value)}
            self._nodes.append(Node("reshape", (str(value),), (names[label],), attrs, Loc(self.loc.file, -1, label)))
        inputs = tuple(self._inputs)
        state, updates = self._state, self._updates
        finished = Graph(name, inputs, tuple(names.values()), (), self.types, self.consts, state, updates)
        return finished.with_nodes(self._nodes)
