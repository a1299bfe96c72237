"""Regions as large as they can be: connected layers of a kind, cut where another layer stands between two of them.

A layer's level is how often a path from the network's inputs to it changes between layers of the kind and others, at most. Layers
of the kind that are connected and of one level are a region. It is convex, since a path that leaves it meets another layer, and
from there on levels are higher; for the same reason all regions together have an order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from microc.external.backend import Region, Span
from microc.external.regions import part_of
from microc.graph.ir import Graph, Node
from microc.target import Target

ROUNDS = 8
"""How often a graph is looked through again, because a library leaves layers out."""
Spanned = tuple[tuple[Node, ...], Region]


def spanned(graph: Graph, span: Span, target: Target) -> tuple[list[Spanned], list[tuple[str, str]]]:
    """All regions of a span, the largest first; by place in the model, why other layers are in none."""
    why = {node.outputs[0]: refusal for node in graph.nodes if (refusal := span.refuses(graph, node))}
    regions = list[Spanned]()
    for _ in range(ROUNDS):
        regions = [(nodes, region_of(graph, nodes, target)) for nodes in connected(graph, why)]
        left = {name: said for _, region in regions for name, said in span.leaves(region).items()}
        if not left:
            break
        why |= left
    else:
        regions = []
    places = {node.outputs[0]: str(node.loc) for node in graph.nodes}
    return sorted(regions, key=lambda each: -len(each[0])), [(places[name], said) for name, said in why.items()]


def region_of(graph: Graph, nodes: tuple[Node, ...], target: Target) -> Region:
    return Region(part_of(graph, nodes), nodes[-1], {}, {}, target)


def connected(graph: Graph, others: Collection[str]) -> Iterator[tuple[Node, ...]]:
    """The regions of all nodes but ``others``, known by their first outputs."""
    made = {name: node for node in graph.nodes for name in node.outputs if name}
    level: dict[str, int] = {}
    group: dict[str, list[Node]] = {}
    for node in graph.nodes:
        key = node.outputs[0]
        kind = key not in others
        before = list(dict.fromkeys(made[name].outputs[0] for name in node.inputs if name in made))
        level[key] = max((level[each] + (kind is (each in others)) for each in before), default=int(kind))
        if kind:
            group[key] = [node]
            for each in before:
                if each in group and level[each] == level[key] and group[each] is not group[key]:
                    less, more = sorted((group[each], group[key]), key=len)
                    more += less
                    group |= {member.outputs[0]: more for member in less}
    order = {node.outputs[0]: k for k, node in enumerate(graph.nodes)}
    seen = {id(nodes): nodes for nodes in group.values()}
    for nodes in seen.values():
        yield tuple(sorted(nodes, key=lambda node: order[node.outputs[0]]))
