"""Which parts of a network a backend gets: regions that its patterns find, the largest first, each convex.

A region is convex if no path leaves it and comes back: everything that it reads is there before it runs. Regions are taken one by
one out of the graph as those before have left it, so that all of them together have an order, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from microc.external.backend import Backend, Code, Entry, Region
from microc.graph.ir import Graph, Node
from microc.graph.match import Match, Scope, matches
from microc.ops.external import EXTERNAL
from microc.target import Target


@dataclass(frozen=True, slots=True)
class Taken:
    """A region that has become a node: whose it is, by which pattern, its code, and where it is from."""

    backend: Backend
    entry: Entry
    region: Region
    code: Code

    @property
    def key(self) -> str:
        """What the region is known by: the value that its root makes."""
        return self.region.root.outputs[0]


@dataclass(frozen=True, slots=True)
class Partition:
    """A graph with its regions as nodes of operator ``external``, by the number in their attribute ``code``. ``refused``: by
    place in the model, why a pattern's region is not for its backend."""

    graph: Graph
    taken: tuple[Taken, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()


def partition(graph: Graph, backends: Sequence[Backend], target: Target, without: Collection[str] = ()) -> Partition:
    """The graph with all regions taken that ``backends`` have code for; those whose root makes a value of ``without`` stay."""
    found = [each for each in _candidates(graph, backends) if each.match.root.outputs[0] not in without]
    taken: list[Taken] = []
    refused: list[tuple[str, str]] = []
    for each in sorted(found, key=lambda each: -len(each.nodes)):
        left = {id(node) for node in graph.nodes}
        if not all(id(node) in left for node in each.nodes) or not convex(graph, each.nodes):
            continue
        region = _region(graph, each, target)
        if why := each.entry.check(region):
            refused.append((str(region.root.loc), f"{each.backend.name} {each.entry.name}: {why}"))
            continue
        taken.append(Taken(each.backend, each.entry, region, each.entry.code(region)))
        graph = contracted(graph, each.nodes, region.graph, (each.backend.name, str(len(taken) - 1)))
    return Partition(graph, tuple(taken), tuple(refused))


@dataclass(frozen=True, slots=True)
class _Candidate:
    backend: Backend
    entry: Entry
    match: Match

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self.match.whole


def _candidates(graph: Graph, backends: Sequence[Backend]) -> Iterator[_Candidate]:
    """What patterns find, once for every pattern and root."""
    scope = Scope(graph)
    scope.producers.update({name: node for node in graph.nodes for name in node.outputs if name})
    for node in graph.nodes:
        for backend in backends:
            for entry in backend.entries:
                match = next(matches(entry.pattern, node, scope), None)
                if match is not None:
                    yield _Candidate(backend, entry, match)


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


def _region(graph: Graph, found: _Candidate, target: Target) -> Region:
    """The nodes of a candidate as a graph of their own."""
    own = {id(node) for node in found.nodes}
    nodes = [node for node in graph.nodes if id(node) in own]
    made = {name for node in nodes for name in node.outputs if name}
    read = dict.fromkeys(name for node in nodes for name in node.inputs if name and name not in made)
    inputs = tuple(name for name in read if name not in graph.consts)
    outside = {name for node in graph.nodes if id(node) not in own for name in node.inputs if name}
    wanted = outside | {*graph.outputs, *graph.updates.values()}
    outputs = tuple(name for node in nodes for name in node.outputs if name in wanted)
    part = replace(graph, name="region", inputs=inputs, outputs=outputs, state={}, updates={}).with_nodes(nodes)
    return Region(part, found.match.root, found.match.nodes, found.match.values, target)


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
