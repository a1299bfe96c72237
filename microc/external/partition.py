"""Which parts of a network a backend gets: regions that its patterns find, the largest first, each convex. Spans, which are as
large as they can be, come before all others.

A region is convex if no path leaves it and comes back: everything that it reads is there before it runs. Regions are taken one by
one out of the graph as those before have left it, so that all of them together have an order, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from microc.external.backend import Backend, Code, Entry, Region, Span
from microc.external.regions import contracted, convex, part_of
from microc.external.spans import spanned
from microc.frozen import frozen
from microc.graph.ir import Graph, Node
from microc.graph.match import Match, Op, Scope, matches
from microc.ops.expansion import expanded
from microc.target import Target


@frozen
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


@frozen
class Partition:
    """A graph with its regions as nodes of operator ``external``, by the number in their attribute ``code``. ``refused``: by
    place in the model, why a pattern's region is not for its backend."""

    graph: Graph
    taken: tuple[Taken, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()


def partition(graph: Graph, backends: Sequence[Backend], target: Target, without: Collection[str] = ()) -> Partition:
    """The graph with all regions taken that ``backends`` have code for; those whose root makes a value of ``without`` stay.
    From here on no operator names others, but in the regions that backends are given."""
    taken: list[Taken] = []
    refused: list[tuple[str, str]] = []

    def take(backend: Backend, entry: Entry, region: Region, nodes: Sequence[Node]) -> None:
        nonlocal graph
        if why := entry.check(region):
            refused.append((str(region.root.loc), f"{backend.name} {entry.name}: {why}"))
            return
        taken.append(Taken(backend, entry, region, entry.code(region)))
        graph = contracted(graph, nodes, expanded(region.graph), (backend.name, str(len(taken) - 1)))

    for backend, entry, span in _spans(backends):
        regions, left = spanned(graph, span, target)
        refused += [(place, f"{backend.name} {entry.name}: {why}") for place, why in left]
        for nodes, region in regions:
            if region.root.outputs[0] not in without:
                take(backend, entry, region, nodes)
    found = [each for each in _candidates(graph, backends) if each.match.root.outputs[0] not in without]
    for each in sorted(found, key=lambda each: -len(each.nodes)):
        here = {id(node) for node in graph.nodes}
        if all(id(node) in here for node in each.nodes) and convex(graph, each.nodes):
            match = each.match
            region = Region(part_of(graph, each.nodes), match.root, match.nodes, match.values, target)
            take(each.backend, each.entry, region, each.nodes)
    return Partition(expanded(graph), tuple(taken), tuple(refused))


@frozen
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
                match = next(matches(entry.pattern, node, scope), None) if isinstance(entry.pattern, Op) else None
                if match is not None:
                    yield _Candidate(backend, entry, match)


def _spans(backends: Sequence[Backend]) -> Iterator[tuple[Backend, Entry, Span]]:
    for backend in backends:
        for entry in backend.entries:
            if isinstance(entry.pattern, Span):
                yield backend, entry, entry.pattern
