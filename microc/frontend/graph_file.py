"""The reader of graph files (``.mcg``): what ``microc import`` wrote, checked as any file from outside is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.errors import InternalError, ModelError, UnsupportedError, UsageError
from microc.frontend.budget import check_shape, inferred
from microc.graph.file import from_bytes
from microc.graph.ir import Graph, Node, TensorType
from microc.graph.text import regions
from microc.graph.verify import verify
from microc.ops import registry
from microc.ops.attributes import Multiplier
from microc.ops.constants import largest_sum

_SENSELESS = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError, InternalError)
"""What inference stumbles over when attributes are missing or of the wrong kind: a reader would have refused them."""


def read(data: bytes, file_name: str, input_shapes: Mapping[str, tuple[int, ...]] = {}) -> Graph:
    """The network in ``data``, whose shapes are fixed: ``input_shapes`` may only repeat them.

    Raises ModelError where the file is damaged or the graph contradicts itself, UnsupportedError where it has operators that
    this microc does not know, UsageError where ``input_shapes`` asks for something else.
    """
    graph = from_bytes(data, file_name)
    whole = (graph, *regions(graph))
    unknown = sorted({node.op for each in whole for node in each.nodes} - set(registry.registry()))
    if unknown:
        raise UnsupportedError(
            "the graph uses operators that are not supported: " + ", ".join(unknown),
            where=file_name,
            hint="it was written by another version of microc, or with a plugin",
        )
    for each in whole:
        _check_graph(each, file_name)
    _check_shapes(graph, file_name, input_shapes)
    graph = _without_promises(_complete(graph), file_name)
    for each in (graph, *regions(graph)):
        _check_rewriting(each, file_name)
    return graph


def _check_graph(graph: Graph, file_name: str) -> None:
    for name, kind in graph.types.items():
        if dtypes.info(kind.dtype).lanes != 1:
            raise ModelError(f"{name!r} has an impossible type, {kind.dtype}{list(kind.shape)}", where=file_name)
        check_shape(kind.shape, kind.dtype, f"{file_name} {name!r}")
    try:
        verify(graph, _infer, constants=_constant_fault)
    except InternalError as error:
        raise ModelError(f"the graph contradicts itself: {error.what}", where=f"{file_name} {error.where}") from error


def _check_rewriting(graph: Graph, file_name: str) -> None:
    """Quantised operators are read by the rewriting to core operators, too, which takes readers at their word."""
    for node in graph.nodes:
        rewrite = registry.get(node.op).legalize
        try:
            if rewrite is not None:
                with np.errstate(all="ignore"):
                    rewrite(node, graph)
        except _SENSELESS as error:
            what = f"the operands or attributes make no sense ({type(error).__name__}: {error})"
            raise ModelError(what, where=f"{file_name} {node.loc}") from error
        except UnsupportedError:  # compiling says so, of all operators at once
            continue


def _complete(graph: Graph) -> Graph:
    """The graph with the attributes that the file leaves out (since then operators may have got more) at their defaults."""
    nodes = []
    for node in graph.nodes:
        given = {name: _complete(value) if isinstance(value, Graph) else value for name, value in node.attrs.items()}
        nodes.append(replace(node, attrs={**registry.get(node.op).defaults, **given}))
    return replace(graph, nodes=tuple(nodes))


def _constant_fault(node: Node, graph: Graph, producers: Mapping[str, Node]) -> str:
    """Return what is wrong with a node's constants; numbers that make no sense are the file's fault."""
    try:
        with np.errstate(all="ignore"):
            return registry.constant_fault(node, graph, producers)
    except _SENSELESS as error:
        return f"the constants make no sense ({type(error).__name__}: {error})"


def _without_promises(graph: Graph, file_name: str) -> Graph:
    """The graph without what a file says of numbers that are computed when the network runs, unless its constants prove it."""
    nodes, producers = [], graph.producer()
    for node in graph.nodes:
        inside = {k: _without_promises(v, file_name) for k, v in node.attrs.items() if isinstance(v, Graph)}
        attrs: dict[str, Any] = {**node.attrs, **inside}
        if "algorithm" in attrs:
            attrs["algorithm"] = ""  # the compiler chooses among those that it has proven valid
        if node.op == "requantize" and attrs["bound"] >= 0 and _largest(node, graph, producers) > attrs["bound"]:
            if attrs["rounding"] == Multiplier.WIDE and graph.types[node.inputs[0]].dtype == "int64":
                what = f"requantize: bound={attrs['bound']} does not follow from the constants before it"
                raise ModelError(what, where=f"{file_name} {node.loc}")
            attrs["bound"] = -1
        nodes.append(replace(node, attrs=attrs))
    return replace(graph, nodes=tuple(nodes))


def _largest(node: Node, graph: Graph, producers: Mapping[str, Node]) -> float:
    """Return the largest distance of a node's first operand from its zero point that constants and dtypes allow."""
    name, zero = node.inputs[0], int(node.attr("input_zero_point"))
    maker, (low, high) = producers.get(name), dtypes.int_range(graph.types[name].dtype)
    known = max(abs(low - zero), abs(high - zero))
    if maker is None or maker.op not in ("conv2d", "dense") or maker.inputs[1] not in graph.consts:
        return known
    application = registry.applied(maker, graph, producers)
    if application.quantised or not all(dtypes.is_integer(kind.dtype) for kind in application.types):
        return known
    return min(known, largest_sum(application, 0) + abs(zero))


def _infer(op: str, attrs: Mapping[str, Any], types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """Output types; attributes that make no sense are the file's fault."""
    try:
        return inferred(op, attrs, types, "")
    except _SENSELESS as error:
        raise ModelError(f"the operands or attributes make no sense ({type(error).__name__}: {error})") from error


def _check_shapes(graph: Graph, file_name: str, given: Mapping[str, tuple[int, ...]]) -> None:
    for name, shape in given.items():
        for found in graph.inputs if name == "*" else (name,):
            if found not in graph.inputs:
                raise UsageError(
                    f"the model has no input {found!r}",
                    where=file_name,
                    hint=f"its inputs are {', '.join(graph.inputs)}",
                )
            if graph.types[found].shape != tuple(shape):
                raise UsageError(
                    f"input {found!r} has shape {graph.types[found].shape}, not {tuple(shape)}",
                    where=file_name,
                    hint="a graph file has the shapes that it was imported with: import the model again",
                )
