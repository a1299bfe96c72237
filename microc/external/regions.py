"""Regions of a graph: whether one is convex, what it is alone, and the graph with one node in its place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from microc.graph.ir import Graph, Node
from microc.ops.external import EXTERNAL


def convex(graph: Graph, nodes: Iterable[Node]) -> bool:
    """Whether no path between nodes of a region goes through one that is not of it."""
    inside = {id(node) for node in nodes}
    made = {name for node in nodes for name in node.outputs if name}
    behind: set[str] = set()
    for node in graph.nodes:
        if id(node) in inside:
            if not behind.isdisjoint(node.inputs):
                return False
        elif not (made | behind).isdisjoint(node.inputs):
            behind.update(name for name in node.outputs if name)
    return True


def part_of(graph: Graph, chosen: Sequence[Node]) -> Graph:
    """Some nodes as a graph of their own."""
    own = {id(node) for node in chosen}
    nodes = [node for node in graph.nodes if id(node) in own]
    made = {name for node in nodes for name in node.outputs if name}
    read = dict.fromkeys(name for node in nodes for name in node.inputs if name and name not in made)
    inputs = tuple(name for name in read if name not in graph.consts)
    outside = {name for node in graph.nodes if id(node) not in own for name in node.inputs if name}
    wanted = outside | {*graph.outputs, *graph.updates.values()}
    outputs = tuple(name for node in nodes for name in node.outputs if name in wanted)
    return replace(graph, name="region", inputs=inputs, outputs=outputs, state={}, updates={}).with_nodes(nodes)


def contracted(graph: Graph, nodes: Sequence[Node], region: Graph, code: tuple[str, ...]) -> Graph:
    """The graph with one node in the place of a convex region's."""
    inside = {id(node) for node in nodes}
    node = Node(EXTERNAL, region.inputs, region.outputs, {"body": region, "code": code}, region.nodes[-1].loc)
    before: list[Node] = []
    after: list[Node] = []
    behind = set(region.outputs)
    for each in graph.nodes:
        if id(each) in inside:
            continue
        if behind.isdisjoint(each.inputs):
            before.append(each)
        else:
            behind.update(name for name in each.outputs if name)
            after.append(each)
    return graph.with_nodes((*before, node, *after))
