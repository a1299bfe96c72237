"""Operators that only name others (``OpDef.expand``) give way to these.

Where a backend of external code is asked first (option ``whole``), they stay until regions have been taken.
"""

from __future__ import annotations

from microc.graph.ir import Graph
from microc.ops.expansion import expanded
from microc.transform.context import Pass, PassContext


def expand(graph: Graph, context: PassContext) -> Graph:
    """The graph without such operators, unless they stay."""
    return graph if context.options.get("whole") else expanded(graph)


PASS = Pass("expand", expand, 0, around=True)
