"""Graphs without operators that only name others (``OpDef.expand``)."""

from __future__ import annotations

from microc.graph.ir import Graph
from microc.ops import registry


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
