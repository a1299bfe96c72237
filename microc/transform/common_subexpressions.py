"""Nodes that compute the same thing from the same inputs become one; equal constants become one."""

from __future__ import annotations

from dataclasses import replace

from microc.graph.ir import Graph, Node
from microc.transform.context import Pass, PassContext


def merge_common_subexpressions(graph: Graph, context: PassContext) -> Graph:
    """The first of equal nodes stays. Nodes that make graph outputs or state updates stay too: their names are promised."""
    promised = {*graph.outputs, *graph.updates.values()}
    instead = _equal_constants(graph, promised)
    seen: dict[object, Node] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        inputs = tuple(instead.get(name, name) for name in node.inputs)
        node = node if inputs == node.inputs else replace(node, inputs=inputs)
        key = (node.op, inputs, tuple(node.attrs.items()), tuple(graph.types[o] for o in node.outputs))
        first = seen.setdefault(key, node)
        if first is not node and not promised & set(node.outputs):
            instead.update(zip(node.outputs, first.outputs, strict=True))
            continue
        nodes.append(node)
    return graph.with_nodes(nodes)


def _equal_constants(graph: Graph, promised: set[str]) -> dict[str, str]:
    """Constants of equal type and data: all but the first of each kind, and what replaces them."""
    first: dict[object, str] = {}
    instead: dict[str, str] = {}
    for name, array in graph.consts.items():
        original = first.setdefault((graph.types[name], array.tobytes()), name)
        if original != name and name not in promised:
            instead[name] = original
    return instead


PASS = Pass("common_subexpressions", merge_common_subexpressions)
