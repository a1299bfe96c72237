# SPDX-License-Identifier: Apache-2.0
"""Reader of graph files (``.mcg``), which ``microc import`` writes.

Their content is checked like that of any other model file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.errors import InternalError, ModelError, UnsupportedError, UsageError
from microc.frontend.model_limits import check_shape, infer_types
from microc.graph.file import from_bytes
from microc.graph.ir import Graph, Node, TensorType, verify
from microc.graph.text import nested_graphs
from microc.ops import registry
from microc.ops.attributes import Multiplier
from microc.ops.constants import largest_partial_sum

INVALID_INPUT_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    InternalError,
)
"""Errors that inference raises for missing or invalid attributes, which a reader would have refused."""


def read_graph_file(data: bytes, file_name: str, input_shapes: Mapping[str, tuple[int, ...]] = {}) -> Graph:
    """Read the network in ``data``, the bytes of a graph file.

    A graph file has fixed shapes; ``input_shapes`` may only contain these shapes. Raises ModelError if the file is
    damaged or the graph is inconsistent, UnsupportedError for unknown operators, UsageError if ``input_shapes``
    contains other shapes."""
    graph = from_bytes(data, file_name)
    all_graphs = (graph, *nested_graphs(graph))
    unknown = sorted({node.op for subgraph in all_graphs for node in subgraph.nodes} - set(registry.registry()))
    if unknown:
        raise UnsupportedError(
            "the graph uses operators that are not supported: " + ", ".join(unknown),
            where=file_name,
            hint="read it with the microc version and the plugins that wrote it",
        )
    for subgraph in all_graphs:
        _check_types_and_structure(subgraph, file_name)
    _check_requested_shapes(graph, file_name, input_shapes)
    graph = _drop_unproven_bounds(_fill_default_attributes(graph), file_name)
    for subgraph in (graph, *nested_graphs(graph)):
        _check_legalisation(subgraph, file_name)
    return graph


def _check_types_and_structure(graph: Graph, file_name: str) -> None:
    """Raise ModelError if a type is unsupported or too large, or if the graph violates a rule of :func:`verify`."""
    for name, kind in graph.types.items():
        if dtypes.dtype_parts(kind.dtype).lanes != 1:
            raise ModelError(
                f"{name!r}: got type {kind.dtype}{list(kind.shape)}, expected a scalar dtype, not a vector of lanes",
                where=file_name,
            )
        check_shape(kind.shape, kind.dtype, f"{file_name} {name!r}")
        if kind.quant is not None and not kind.is_quantised:
            raise ModelError(f"{name!r}: got scales for dtype {kind.dtype}, expected an integer dtype", where=file_name)
    _verify_graph(graph, file_name)


def _verify_graph(graph: Graph, file_name: str) -> None:
    """Verify a graph; raise ModelError if it violates a rule of :func:`verify`."""
    try:
        verify(graph, _infer_output_types, constants=_describe_invalid_constants)
    except InternalError as error:
        raise ModelError(f"the graph is inconsistent: {error.what}", where=f"{file_name} {error.where}") from error


def _check_legalisation(graph: Graph, file_name: str) -> None:
    """Run the legalisation of every operator that has one; raise ModelError if it fails, or makes an invalid graph.

    Legalisation assumes valid operands and attributes, which a file may not have. It trusts the declared dtypes of quantised
    results, which verification allows it to choose."""
    nodes: list[Node] = []
    types, consts = dict(graph.types), dict(graph.consts)
    for node in graph.nodes:
        rewrite, legalized = registry.get(node.op).legalize, None
        try:
            if rewrite is not None:
                with np.errstate(all="ignore"):
                    legalized = rewrite(node, replace(graph, types=types, consts=consts))
        except INVALID_INPUT_ERRORS as error:
            what = f"the operands or attributes are invalid ({type(error).__name__}: {error})"
            raise ModelError(what, where=f"{file_name} {node.loc}") from error
        except UnsupportedError:  # compiling says so, of all operators at once
            pass
        new_nodes, new_types, new_consts = legalized or ((node,), {}, {})
        nodes.extend(new_nodes)
        types.update(new_types)
        consts.update(new_consts)
    _verify_graph(replace(graph, types=types, consts=consts).with_nodes(nodes), file_name)


def _fill_default_attributes(graph: Graph) -> Graph:
    """Return the graph with default values for attributes that the file does not contain.

    An older version of microc may have written the file, before the operator had these attributes."""
    nodes = []
    for node in graph.nodes:
        attrs = {
            name: _fill_default_attributes(value) if isinstance(value, Graph) else value
            for name, value in node.attrs.items()
        }
        nodes.append(replace(node, attrs={**registry.get(node.op).defaults, **attrs}))
    return replace(graph, nodes=tuple(nodes))


def _describe_invalid_constants(node: Node, graph: Graph, producers: Mapping[str, Node]) -> str:
    """Return a text that says why a node's constants are invalid; an empty one if they are valid.

    Constants that cannot be evaluated are invalid."""
    try:
        with np.errstate(all="ignore"):
            return registry.node_constant_error_message(node, graph, producers)
    except INVALID_INPUT_ERRORS as error:
        return f"the constants cannot be evaluated ({type(error).__name__}: {error})"


_NEED_BOUND = ("requantize_floor", "requantize_split", "requantize_split_away")
"""Operators whose sums overflow int32 if an operand exceeds their attribute ``bound``, or one of ``bounds``."""


def _drop_unproven_bounds(graph: Graph, file_name: str) -> Graph:
    """Return the graph without attributes that a file must not dictate.

    They are algorithms that an earlier compilation chose, and each attribute ``bound`` of a ``requantize`` that is
    smaller than the largest possible operand. Raise ModelError if such a bound belongs to an operator that cannot do
    without a bound: a ``requantize`` of a 64-bit operand, or one of :data:`_NEED_BOUND`."""
    nodes, producers = [], graph.producer()
    for node in graph.nodes:
        inside = {k: _drop_unproven_bounds(v, file_name) for k, v in node.attrs.items() if isinstance(v, Graph)}
        attrs: dict[str, Any] = {**node.attrs, **inside}
        if "algorithm" in attrs:
            attrs["algorithm"] = ""  # the compiler chooses among those that it has proven valid
        needs_bound, bound = node.op in _NEED_BOUND, -1
        if needs_bound or node.op == "requantize":
            bound = min(attrs["bounds"], default=-1) if "bounds" in attrs else attrs["bound"]
        if bound >= 0 and _bound_distance_from_zero_point(node, graph, producers) > bound:
            is_wide = attrs.get("rounding") == Multiplier.WIDE and graph.types[node.inputs[0]].dtype == "int64"
            if is_wide or needs_bound:
                what = f"{node.op}: got bound={bound}, expected a bound that the constants before it give"
                raise ModelError(what, where=f"{file_name} {node.loc}")
            attrs["bound"] = -1
        nodes.append(replace(node, attrs=attrs))
    return replace(graph, nodes=tuple(nodes))


def _bound_distance_from_zero_point(node: Node, graph: Graph, producers: Mapping[str, Node]) -> float:
    """Return an upper bound of abs(x - zero point) for the elements x of a node's first operand.

    The bound follows from the operand's dtype, or, for a convolution or dense layer with constant weights, from the
    weights."""
    name = node.inputs[0]
    zero = int(node.attr("input_zero_point")) if node.op == "requantize" else 0
    producer, (low, high) = producers.get(name), dtypes.int_range(graph.types[name].dtype)
    by_dtype = max(abs(low - zero), abs(high - zero))
    if producer is None or producer.op not in ("conv2d", "dense") or producer.inputs[1] not in graph.consts:
        return by_dtype
    checked_node = registry.as_checked_node(producer, graph, producers)
    if checked_node.quantised or not all(dtypes.is_integer(kind.dtype) for kind in checked_node.types):
        return by_dtype
    return min(by_dtype, largest_partial_sum(checked_node, 0) + abs(zero))


def _infer_output_types(
    op: str, attrs: Mapping[str, Any], types: Sequence[TensorType], declared: Sequence[TensorType | None]
) -> tuple[TensorType, ...]:
    """Infer the types of a node's results; raise ModelError if its operands or attributes are invalid."""
    try:
        return registry.keep_declared_dtypes(op, infer_types(op, attrs, types, ""), declared)
    except INVALID_INPUT_ERRORS as error:
        raise ModelError(f"the operands or attributes are invalid ({type(error).__name__}: {error})") from error


def _check_requested_shapes(graph: Graph, file_name: str, requested_shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise UsageError if ``requested_shapes`` differ from the input shapes in the file.

    Keys of ``requested_shapes`` are names of inputs, or ``*`` for all inputs."""
    for name, shape in requested_shapes.items():
        for input_name in graph.inputs if name == "*" else (name,):
            if input_name not in graph.inputs:
                raise UsageError(
                    f"the model has no input {input_name!r}",
                    where=file_name,
                    hint=f"use one of its inputs: {', '.join(graph.inputs)}",
                )
            if graph.types[input_name].shape != tuple(shape):
                raise UsageError(
                    f"input {input_name!r}: got shape {tuple(shape)}, expected {graph.types[input_name].shape}, the file's own",
                    where=file_name,
                    hint="import the original model again with this shape: a graph file has fixed shapes",
                )
