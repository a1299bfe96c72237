# SPDX-License-Identifier: Apache-2.0
"""Reference semantics of nodes in numpy, valid for the graph after any pass, and the expansion of composed
operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.graph import ir
from microc.graph.ir import Graph, Node
from microc.ops import registry
from microc.ops.attributes import Ties

# ---- Expansion of composed operators, which are defined by other operators (``OpDef.expand``).


def expand_composed_operator(graph: Graph) -> Graph:
    """Replace all composed operators by the operators that define them; return ``graph`` itself if it contains none.

    Raise UnsupportedError for a composed operator that cannot be expanded."""
    if all(registry.get(node.op).expand is None for node in graph.nodes):
        return graph
    nodes, types, consts = [], dict(graph.types), dict(graph.consts)
    for node in graph.nodes:
        expand = registry.get(node.op).expand
        if expand is None:
            nodes.append(node)
            continue
        new_nodes, new_types, new_consts = expand(node, graph)
        nodes += new_nodes
        types |= new_types
        consts |= new_consts
    return graph.with_nodes(nodes, types=types, consts=consts)


# ---- Evaluation of a node by its operator's reference, or by the references of the core operators to which it is rewritten.
#
# A surface operator on quantised tensors, or with an ``activation``, is evaluated by its legalisation (``OpDef.legalize``, or
# ``expand`` of a composed operator). The reason: rounding and saturation follow from the types of the operands, which the
# operator's ``reference`` function does not receive.
#
# Model files express an operator on integers as ``dequantize -> operator -> quantize``. Float32 would only approximate this
# operator: products by a scale and quotients are rounded, so that ties are lost. Sums, products and averages between such nodes
# are therefore computed in float64, in which ties are exact: a number at a tie is half an integer times a float32 scale, at most
# 24 + 17 bits.


def reference_node_function(graph: Graph) -> ir.Apply:
    """Return the function that applies nodes of ``graph`` in numpy, for :func:`microc.graph.ir.run`.

    Like the compiler, the function raises UnsupportedError for a node that cannot be legalised or expanded."""

    exact_values, wide = _values_computed_in_float64(graph), dict[str, Array]()

    def apply(node: Node, arrays: Sequence[Array]) -> Sequence[Array]:
        definition = registry.get(node.op)
        if node.outputs and node.outputs[0] in exact_values:
            names = [name for name in node.inputs if name]
            operands = [wide.get(name, array) for name, array in zip(names, arrays, strict=True)]
            if node.op == "quantize":
                return (_quantise_half_to_even(node, operands[0]),)
            wide[node.outputs[0]] = _apply_in_float64(node, operands)
            return (wide[node.outputs[0]].astype(np.float32),)
        rewrite = definition.expand or definition.legalize
        rewritten = rewrite(node, graph) if rewrite is not None else None
        if rewritten is None:
            return definition.reference({**definition.defaults, **node.attrs}, arrays)
        nodes, types, consts = rewritten
        inner = replace(graph, types={**graph.types, **types}, consts={**graph.consts, **consts})
        inputs = dict(zip((name for name in node.inputs if name), arrays, strict=True))
        part = Graph(graph.name, tuple(inputs), node.outputs, tuple(nodes), inner.types, consts)
        values = ir.run(part, inputs, reference_node_function(inner))
        return [values[name] if name else arrays[0] for name in node.outputs]

    return apply


_ARITHMETIC = frozenset(("add", "sub", "mul", "avg_pool2d", "mean", "sum"))
_CLAMPS = frozenset(("relu", "clip"))
_MOVES = frozenset(("reshape", "transpose"))


def _values_computed_in_float64(graph: Graph) -> frozenset[str]:
    """Return the names of the values that are computed in float64.

    They are the values between ``dequantize`` and ``quantize`` around one arithmetic node. Each has a single reader."""
    if all(node.op != "dequantize" for node in graph.nodes):
        return frozenset()
    writers = {name: node for node in graph.nodes for name in node.outputs}
    users, public, exact = graph.consumers(), {*graph.outputs, *graph.updates.values()}, set[str]()

    def has_single_reader(name: str) -> bool:
        return name not in public and len(users.get(name, ())) == 1

    for node in graph.nodes:
        if node.op != "quantize" or not _has_one_scale(node) or node.attr("rounding") != Ties.EVEN:
            continue
        chain, name = [node], node.inputs[0]
        while has_single_reader(name) and name in writers and writers[name].op in _CLAMPS | _MOVES:
            chain.append(writers[name])
            name = writers[name].inputs[0]
        middle = writers.get(name)
        if (
            middle is None
            or middle.op not in _ARITHMETIC
            or not has_single_reader(name)
            or middle.attrs.get("activation")
        ):
            continue
        data = middle.inputs[:1] if registry.get(middle.op).tables else middle.inputs
        operands = [_find_dequantising_nodes(graph, writers, operand) for operand in data if operand]
        if all(operand is not None for operand in operands) and any(operands):
            exact.update(each.outputs[0] for each in (*chain, middle))
            exact.update(each.outputs[0] for operand in operands for each in operand or ())
    return frozenset(exact)


def _find_dequantising_nodes(graph: Graph, writers: Mapping[str, Node], operand_name: str) -> list[Node] | None:
    """Return the nodes that compute the float operand ``operand_name`` from 8-bit integers: a ``dequantize`` node and
    the nodes behind it that only move elements.

    For a constant whose numbers are all equal, return only the nodes that move its elements, if there are any. Return
    None for any other operand."""
    chain: list[Node] = []
    while operand_name in writers and writers[operand_name].op in _MOVES:
        chain.append(writers[operand_name])
        operand_name = writers[operand_name].inputs[0]
    if operand_name in graph.consts:
        data = graph.consts[operand_name]
        return chain if data.size and (data == data.flat[0]).all() else None
    node = writers.get(operand_name)
    if node is None or node.op != "dequantize" or not _has_one_scale(node):
        return None
    return [*chain, node] if dtypes.nbytes(graph.types[node.inputs[0]].dtype) == 1 else None


def _has_one_scale(node: Node) -> bool:
    """Test whether a ``quantize`` or ``dequantize`` node has a single scale instead of one for each channel."""
    return node.attr("axis") is None and len(node.attr("scale")) == 1


def _apply_in_float64(node: Node, arrays: Sequence[Array]) -> Array:
    """Compute a node on ``arrays`` in float64; the node's result is one of :func:`_values_computed_in_float64`."""
    if node.op == "dequantize":
        scale = np.float64(np.float32(node.attr("scale")[0]))
        return np.asarray((arrays[0].astype(np.int64) - node.attr("zero_point")[0]) * scale)
    definition = registry.get(node.op)
    operands = [array.astype(np.float64) if array.dtype.kind == "f" else array for array in arrays]
    return np.asarray(definition.reference({**definition.defaults, **node.attrs}, operands)[0], np.float64)


def _quantise_half_to_even(node: Node, x: Array) -> Array:
    """Quantise the float64 numbers ``x`` by the scale, zero point and dtype of a ``quantize`` node, with ties to
    even."""
    low, high = dtypes.int_range(node.attr("out_dtype"))
    levels = np.rint(x / np.float64(np.float32(node.attr("scale")[0]))) + node.attr("zero_point")[0]
    return np.asarray(np.clip(levels, low, high).astype(dtypes.to_numpy(node.attr("out_dtype"))))


def evaluate(
    graph: Graph, inputs: Mapping[str, Array], state: Mapping[str, Array] | None = None
) -> tuple[list[Array], dict[str, Array]]:
    """Evaluate a graph in numpy with the reference semantics; return its outputs and its new state by name.

    ``state``: state before the evaluation (default: the graph's initial state)."""
    values = ir.run(graph, inputs, reference_node_function(graph), state)
    return [values[name] for name in graph.outputs], {name: values[value] for name, value in graph.updates.items()}
