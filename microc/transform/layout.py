"""Provisional."""

from __future__ import annotations

from microc.graph.ir import Graph
from microc.transform.context import Pass, PassContext


def run(graph: Graph, context: PassContext) -> Graph:
    return graph


PASS = Pass("layout", run)
