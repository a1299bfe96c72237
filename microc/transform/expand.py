"""Operators that only name others (``OpDef.expand``) give way to these.

Where a backend of external code is asked first (option ``whole``), they stay until regions have been taken.
"""

from __future__ import annotations

from microc.graph.ir import Graph
from microc.ops import registry
from microc.transform.context import Pass, PassContext


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


def expand(graph: Graph, context: PassContext) -> Graph:
    """The same, unless they stay."""
    return graph if context.options.get("whole") else expanded(graph)


PASS = Pass("expand", expand, 0, around=True)
