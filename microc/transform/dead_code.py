"""Nodes whose results nobody uses disappear."""

from __future__ import annotations

from microc.graph.ir import Graph
from microc.graph.rewriting import without_dead_nodes
from microc.transform.context import Pass, PassContext


def eliminate_dead_code(graph: Graph, context: PassContext) -> Graph:
    """Keep what graph outputs and state updates depend on, and the constants that is computed from."""
    alive = without_dead_nodes(graph)
    return alive.with_nodes(alive.nodes)


PASS = Pass("dead_code", eliminate_dead_code)
