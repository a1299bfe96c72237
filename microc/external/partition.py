"""Regions of a graph that a backend gets, and their kernels."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import ProgramError
from microc.external.backend import Backend, Code, Entry, Region, Span
from microc.graph.ir import Graph, Node, TensorType
from microc.graph.match import Match, Op, Scope, matches
from microc.module import External
from microc.ops.external_region import EXTERNAL
from microc.ops.meaning import expanded
from microc.target import Target
from microc.tir import ir

# ---- Regions of a graph: whether one is convex, what it is alone, and the graph with one node in its place.


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


# ---- Regions as large as they can be: connected layers of a kind, cut where another layer stands between two of
# them.
#
# A layer's level is how often a path from the network's inputs to it changes between layers of the kind and others, at most.
# Layers of the kind that are connected and of one level are a region. It is convex, since a path that leaves it meets another
# layer, and from there on levels are higher; for the same reason all regions together have an order.

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


# ---- Which parts of a network a backend gets: regions that its patterns find, the largest first, each convex. Spans,
# which are as large as they can be, come before all others.
#
# A region is convex if no path leaves it and comes back: everything that it reads is there before it runs. Regions are taken
# one by one out of the graph as those before have left it, so that all of them together have an order, too.


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


# ---- A region's code as a kernel of ours: its parameters, and a body that says what it reads and writes.
#
# For the planner and its checker the body is one call that is given all of every operand: it writes its results and its workspace
# before it is done with its operands, so that nothing may share memory. What is printed is the backend's text.

SCRATCH = "scratch"
_NAME = re.compile("[a-z][a-z0-9_]*")
_INCLUDE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_\-+./]*")


def function(taken: Taken) -> tuple[ir.PrimFunc, External]:
    """The function of a region, whose parameters are its inputs, its constants, its outputs and its workspace, in this order."""
    code, region = taken.code, taken.region
    _check(taken)
    reads = [_buffer(f"in_{k}", kind) for k, kind in enumerate(region.input_types)]
    consts = [ir.Buffer(name, (array.size,), str(array.dtype), "const") for name, array in code.data.items()]
    writes = [_buffer(f"out_{k}", kind) for k, kind in enumerate(region.output_types)]
    scratch = [ir.Buffer(SCRATCH, (code.workspace,), "uint8", "workspace")] if code.workspace else []
    buffers = (*reads, *consts, *writes, *scratch)
    start, written = ir.const(0, "int32"), {*writes, *scratch}
    pointers = tuple(ir.AddressOf(b, (start,), b.size, b in written) for b in buffers)
    name = hashlib.sha256("\n".join((taken.backend.name, *code.lines)).encode()).hexdigest()[:16]
    body = ir.Evaluate(ir.Call(f"external_{name}", pointers, "int32"))
    backend = taken.backend
    instructions = round(code.instructions)
    external = External(
        backend.name,
        code.lines,
        backend.headers,
        instructions,
        code.code_bytes,
        backend.bound,
        fails=code.fails,
        differs=code.differs,
    )
    return ir.PrimFunc("external", buffers, body), external


def _buffer(name: str, kind: TensorType) -> ir.Buffer:
    return ir.Buffer(name, (kind.size,), kind.dtype)


def _check(taken: Taken) -> None:
    """ProgramError where a backend's code is not whole."""
    code, where = taken.code, f"{taken.backend.name}, pattern {taken.entry.name}"
    data: Mapping[str, Array] = code.data
    for name in data:
        if not _NAME.fullmatch(name) or name == SCRATCH or re.fullmatch(r"(in|out)_\d+", name):
            raise ProgramError(f"a constant cannot be called {name!r}", where=where, hint="a name of C in lower case")
    for header in taken.backend.headers:
        if not _INCLUDE.fullmatch(header) or ".." in header:
            raise ProgramError(f"{header!r} is no header", where=where, hint="a relative path")
    if not code.lines or code.workspace < 0 or code.instructions < 0:
        raise ProgramError("code is statements of C, and costs what is no less than nothing", where=where)
    if code.align < 4 or code.align & (code.align - 1):
        raise ProgramError(f"nothing is aligned to {code.align} bytes", where=where, hint="a power of two, 4 or more")
