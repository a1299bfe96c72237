"""What a node computes at any stage, and the expansion of composed operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.graph import interp
from microc.graph.ir import Graph, Node
from microc.ops import registry
from microc.ops.attributes import Ties

# ---- Graphs without operators that only name others (``OpDef.expand``).


def expanded(graph: Graph) -> Graph:
    """The graph without such operators; the same object where there are none. UnsupportedError for one that cannot be so."""
    if all(registry.get(node.op).expand is None for node in graph.nodes):
        return graph
    nodes, types, consts = [], dict(graph.types), dict(graph.consts)
    for node in graph.nodes:
        expand = registry.get(node.op).expand
        if expand is None:
            nodes.append(node)
            continue
        made, new_types, new_consts = expand(node, graph)
        nodes += made
        types |= new_types
        consts |= new_consts
    return graph.with_nodes(nodes, types=types, consts=consts)


# ---- What a node computes, at any stage of the passes: its operator's reference, or that of the core operators that
# it stands for.
#
# A surface operator on quantised tensors, or with an ``activation``, means what ``OpDef.legalize`` makes of it (or ``expand``, of
# one that names others): how it rounds, and where it saturates, is in the types of its operands, which a reference is not given.
#
# ``dequantize -> operator -> quantize`` is how files write an operator on integers. Float32 would only approximate it: products
# by a scale and quotients round, and move ties. Between such nodes sums, products and averages are computed in float64, whose
# ties are exact: what ends at a tie is half an integer times a float32 scale, 24 + 17 bits at most.


def meaning(graph: Graph) -> interp.Apply:
    """How nodes of ``graph`` are applied, for :func:`microc.graph.interp.run`.

    A node that no compiled network can have is refused as compiling it would be (UnsupportedError).
    """

    precise, wide = _precise(graph), dict[str, Array]()

    def apply(node: Node, arrays: Sequence[Array]) -> Sequence[Array]:
        definition = registry.get(node.op)
        if node.outputs and node.outputs[0] in precise:
            names = [name for name in node.inputs if name]
            operands = [wide.get(name, array) for name, array in zip(names, arrays, strict=True)]
            if node.op == "quantize":
                return (_quantised(node, operands[0]),)
            wide[node.outputs[0]] = _in_float64(node, operands)
            return (wide[node.outputs[0]].astype(np.float32),)
        made_of = definition.expand or definition.legalize
        found = made_of(node, graph) if made_of is not None else None
        if found is None:
            return definition.reference({**definition.defaults, **node.attrs}, arrays)
        nodes, types, consts = found
        inner = replace(graph, types={**graph.types, **types}, consts={**graph.consts, **consts})
        given = dict(zip((name for name in node.inputs if name), arrays, strict=True))
        part = Graph(graph.name, tuple(given), node.outputs, tuple(nodes), inner.types, consts)
        values = interp.run(part, given, meaning(inner))
        return [values[name] if name else arrays[0] for name in node.outputs]

    return apply


_ARITHMETIC = frozenset(("add", "sub", "mul", "avg_pool2d", "mean", "sum"))
_CLAMPS = frozenset(("relu", "clip"))
_MOVES = frozenset(("reshape", "transpose"))


def _precise(graph: Graph) -> frozenset[str]:
    """The results of nodes from ``dequantize`` to ``quantize`` with one arithmetic operator between, read by nobody else."""
    if all(node.op != "dequantize" for node in graph.nodes):
        return frozenset()
    writers = {name: node for node in graph.nodes for name in node.outputs}
    users, kept, found = graph.consumers(), {*graph.outputs, *graph.updates.values()}, set[str]()

    def is_private(name: str) -> bool:
        return name not in kept and len(users.get(name, ())) == 1

    for node in graph.nodes:
        if node.op != "quantize" or not _is_one_scale(node) or node.attr("rounding") != Ties.EVEN:
            continue
        chain, name = [node], node.inputs[0]
        while is_private(name) and name in writers and writers[name].op in _CLAMPS | _MOVES:
            chain.append(writers[name])
            name = writers[name].inputs[0]
        middle = writers.get(name)
        if middle is None or middle.op not in _ARITHMETIC or not is_private(name) or middle.attrs.get("activation"):
            continue
        data = middle.inputs[:1] if registry.get(middle.op).tables else middle.inputs
        operands = [_dequantised(graph, writers, operand) for operand in data if operand]
        if all(operand is not None for operand in operands) and any(operands):
            found.update(each.outputs[0] for each in (*chain, middle))
            found.update(each.outputs[0] for operand in operands for each in operand or ())
    return frozenset(found)


def _dequantised(graph: Graph, writers: Mapping[str, Node], name: str) -> list[Node] | None:
    """The nodes that make a float operand of stored integers; none make a constant that is one number. None of any other."""
    chain: list[Node] = []
    while name in writers and writers[name].op in _MOVES:
        chain.append(writers[name])
        name = writers[name].inputs[0]
    if name in graph.consts:
        data = graph.consts[name]
        return chain if data.size and (data == data.flat[0]).all() else None
    node = writers.get(name)
    if node is None or node.op != "dequantize" or not _is_one_scale(node):
        return None
    return [*chain, node] if dtypes.nbytes(graph.types[node.inputs[0]].dtype) == 1 else None


def _is_one_scale(node: Node) -> bool:
    return node.attr("axis") is None and len(node.attr("scale")) == 1


def _in_float64(node: Node, arrays: Sequence[Array]) -> Array:
    """The result of a node of :func:`_precise`."""
    if node.op == "dequantize":
        scale = np.float64(np.float32(node.attr("scale")[0]))
        return np.asarray((arrays[0].astype(np.int64) - node.attr("zero_point")[0]) * scale)
    definition = registry.get(node.op)
    operands = [array.astype(np.float64) if array.dtype.kind == "f" else array for array in arrays]
    return np.asarray(definition.reference({**definition.defaults, **node.attrs}, operands)[0], np.float64)


def _quantised(node: Node, x: Array) -> Array:
    low, high = dtypes.int_range(node.attr("out_dtype"))
    levels = np.rint(x / np.float64(np.float32(node.attr("scale")[0]))) + node.attr("zero_point")[0]
    return np.asarray(np.clip(levels, low, high).astype(dtypes.to_numpy(node.attr("out_dtype"))))


def evaluate(
    graph: Graph, inputs: Mapping[str, Array], state: Mapping[str, Array] | None = None
) -> tuple[list[Array], dict[str, Array]]:
    """The outputs of a graph and its state afterwards; ``state`` is the one before (the initial one unless given)."""
    values = interp.run(graph, inputs, meaning(graph), state)
    return [values[name] for name in graph.outputs], {name: values[value] for name, value in graph.updates.items()}
