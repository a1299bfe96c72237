"""Nodes whose results nobody uses disappear."""

from __future__ import annotations

from microc.graph.ir import Graph, Node
from microc.transform.context import Pass, PassContext


def eliminate_dead_code(graph: Graph, context: PassContext) -> Graph:
    """Keep what graph outputs and state updates depend on."""
    needed = {*graph.outputs, *graph.updates.values()}
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if needed & set(node.outputs):
            kept.append(node)
            needed.update(node.inputs)
    return graph.with_nodes(reversed(kept))


PASS = Pass("dead_code", eliminate_dead_code)
