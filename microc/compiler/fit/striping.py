"""Layers row by row, so that an arena keeps to its limit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from microc.base import dtypes
from microc.base.immutable import frozen
from microc.compiler.lowering.kernel_selection import schedule_group
from microc.errors import FitError, InternalError
from microc.graph.ir import Graph, Node
from microc.module import Module, Streamed
from microc.ops.lowering import LoweredGroup, Param, companions, macs_of, row_group, row_window
from microc.plan.liveness import Overlaps, Room, demand, lifetimes, needs, safe_distances
from microc.plan.placement import CHAINS, LOWERED
from microc.schedule.schedule import Schedule
from microc.target import Goal, Target
from microc.tir import ir
from microc.tir.striped_layers import Layer, Shape, Window, choose_blocks, stream, timeline
from microc.tir.verify import verify

# ---- A chain of groups becomes one kernel that works row by row (:mod:`microc.tir.striped_layers`).

Group = tuple[Node, ...]


@frozen
class Chain:
    """Groups, by name, to stream: the first reads rows of the value ``data``, every other one the result of the one before.

    ``height``: the most rows that a layer makes at a time.
    """

    data: str
    groups: tuple[str, ...]
    height: int = 1


@frozen
class LoweredStream:
    """The kernel of a chain before it is named.

    ``params`` are what its parameters are bound to, all but the result and workspaces; ``schedules`` are those of the layers,
    ``price`` what they cost.
    """

    chain: Chain
    func: ir.PrimFunc
    params: tuple[Param, ...]
    result: str
    schedules: tuple[Schedule, ...]
    price: Streamed


@frozen
class _Rows:
    """One layer, lowered for a block of rows."""

    group: LoweredGroup
    schedule: Schedule
    layer: Layer


def result_of(group: Group) -> str:
    """The value that a group makes."""
    return group[-1].outputs[0]


class Streams:
    """Lowers chains of a graph for a target; what has been lowered is kept. ``groups``: all groups by name."""

    def __init__(self, graph: Graph, groups: Mapping[str, Group], target: Target, goal: Goal) -> None:
        self.graph, self.groups, self.target, self.goal = graph, groups, target, goal
        self._streams: dict[Chain, LoweredStream] = {}
        self._rows: dict[tuple[str, Shape], _Rows] = {}

    def sources(self, chain: Chain) -> tuple[str, ...]:
        """The value that each group of a chain works on row by row."""
        return chain.data, *(result_of(self.groups[name]) for name in chain.groups[:-1])

    def shapes(self, chain: Chain) -> tuple[Shape, ...]:
        """What the layers of a chain hold and make at a time."""
        pairs = zip(chain.groups, self.sources(chain), strict=True)
        return choose_blocks([_shape(self.graph, self.groups[name], data) for name, data in pairs], chain.height)

    def price(self, chain: Chain) -> Streamed:
        """Rows that are computed outside the image, and rows that windows copy."""
        extra = moved = 0
        graph, shapes = self.graph, self.shapes(chain)
        for k, (name, data, shape) in enumerate(zip(chain.groups, self.sources(chain), shapes, strict=True)):
            if k or shape.window.padded:
                row = shape.window.width * dtypes.nbytes(graph.types[data].dtype)
                turns = shape.computed // shape.block
                moved += row * (turns * (shape.held - shape.step) + (0 if k else graph.types[data].shape[1]))
            macs = sum(macs_of(graph, node) for node in self.groups[name])
            extra += macs * (shape.computed - shape.rows) // shape.rows
        return Streamed(tuple(str(self.groups[name][0].loc) for name in chain.groups), extra, moved)

    def lower(self, chain: Chain) -> LoweredStream:
        """The kernel of a chain."""
        if chain not in self._streams:
            self._streams[chain] = self._lower(chain)
        return self._streams[chain]

    def _lower(self, chain: Chain) -> LoweredStream:
        triples = zip(chain.groups, self.sources(chain), self.shapes(chain), strict=True)
        found = [self._lower_rows(name, data, shape) for name, data, shape in triples]
        height = self.graph.types[chain.data].shape[1]
        made = stream("stream", [rows.layer for rows in found], height, words=self.target.has("unaligned"))
        params = tuple(_param(found[layer], serves) for layer, serves in made.origins[:-1])
        result, schedules = result_of(self.groups[chain.groups[-1]]), tuple(rows.schedule for rows in found)
        return LoweredStream(chain, made.func, params, result, schedules, self.price(chain))

    def blocks(self, chain: Chain) -> list[tuple[Graph, Group, Goal]]:
        """What is scheduled for a chain: :meth:`block` of every group."""
        triples = zip(chain.groups, self.sources(chain), self.shapes(chain), strict=True)
        return [self.block(name, data, shape) for name, data, shape in triples]

    def block(self, name: str, data: str, shape: Shape) -> tuple[Graph, Group, Goal]:
        """A group for a block of rows, as a graph of its own, and what its schedule is chosen for."""
        window = row_window(self.graph, self.groups[name], data)
        assert window is not None
        alone, nodes = row_group(self.graph, self.groups[name], data, window, shape.block)
        blocks = shape.computed // shape.block
        return alone, nodes, replace(self.goal, price=self.goal.price / blocks)  # of one inference, not of one block

    def _lower_rows(self, name: str, data: str, shape: Shape) -> _Rows:
        """A group, scheduled and lowered for a block of rows."""
        if (name, shape) in self._rows:
            return self._rows[name, shape]
        graph, group = self.graph, self.groups[name]
        alone, nodes, goal = self.block(name, data, shape)
        lowered, choice = schedule_group(alone, nodes, self.target, goal, "rows")
        func = choice.func
        if not choice.verified:
            verify(func, tables=lowered.tables)  # while it is known which of the constants these are
        bound = dict(zip((p.value for p in lowered.params if p.array is None), func.params, strict=False))
        by_row = tuple(bound[v] for v in companions(graph, group, data))
        layer = Layer(shape, func, bound[data], func.params[len(lowered.params)], by_row)
        self._rows[name, shape] = _Rows(lowered, choice.schedule, layer)
        return self._rows[name, shape]


def _shape(graph: Graph, group: Group, data: str) -> Shape:
    """What a group's rows need, before anything is lowered."""
    reads = row_window(graph, group, data)
    if reads is None:
        raise InternalError("a group that does not work row by row", where=str(group[0].loc))
    _, _, width, channels = graph.types[data].shape
    top, _, bottom, _ = reads.padding
    window = Window(reads.reach(0), reads.strides[0], width * channels, top, bottom, reads.pad_value or 0)
    return Shape(window, graph.types[result_of(group)].shape[1], whole=bool(companions(graph, group, data)))


def _param(row: _Rows, serves: ir.Buffer) -> Param:
    """What a layer's parameter is bound to; constants as the schedule packs them."""
    position = row.layer.func.params.index(serves)
    param = row.group.params[position]
    if param.array is None:
        return param
    return Param(param.role, param.value, row.schedule.packed(row.group.func.params[position], param.array))


# ---- Which groups of a network can be streamed row by row, and what a chain of them would need.

MOVED = 8
"""Work of a byte that stays in a window, in multiply-accumulates: it moves, and is laid out for the kernel once more."""


@frozen
class Run:
    """Groups, by name, of which each but the first reads the result of the one before, which nothing else reads.

    ``sources``: what each of them works on, row by row.
    """

    groups: tuple[str, ...]
    sources: tuple[str, ...]

    def chain(self, start: int, stop: int, height: int) -> Chain:
        return Chain(self.sources[start], self.groups[start:stop], height)


def find_runs(graph: Graph, groups: Mapping[str, Group]) -> tuple[Run, ...]:
    """The longest runs of groups that work row by row, a group in one of them at most."""
    readers = {name: {node.group for node in nodes} for name, nodes in graph.consumers().items()}
    kept = {*graph.outputs, *graph.updates.values()}
    found: list[Run] = []
    taken: set[str] = set()
    for name, group in groups.items():
        data = next((v for v in _varying(graph, group) if row_window(graph, group, v)), None)
        if name in taken or data is None:
            continue
        run = Run((name,), (data,))
        while True:
            made = result_of(groups[run.groups[-1]])
            after = next(iter(readers.get(made, ())), "")
            alone = made not in kept and len(readers.get(made, ())) == 1
            if not alone or after not in groups or after in taken or not row_window(graph, groups[after], made):
                break
            run = Run((*run.groups, after), (*run.sources, made))
        taken |= set(run.groups)
        found.append(run)
    return tuple(run for run in found if len(run.groups) > 1)


def _varying(graph: Graph, group: Group) -> list[str]:
    made = {name for node in group for name in node.outputs}
    return [v for node in group for v in node.inputs if v and v not in made and v not in graph.consts]


@frozen
class Candidate:
    """A chain with the bytes that its kernel and what is alive beside it take, and the work it adds, in multiply-accumulates.

    ``exact``: scratch is counted, too, not just windows.
    """

    chain: Chain
    need: int
    work: int
    exact: bool = False


class Appraiser:
    """What chains of a network would need. ``module``: the network without any, its calls in their final order."""

    def __init__(self, streams: Streams, module: Module, *, io_in_arena: bool) -> None:
        self.streams, self.module = streams, module
        self.graph, self.groups = streams.graph, streams.groups
        self.alive = lifetimes(module, io_in_arena=io_in_arena)
        wanted = demand(module, Overlaps(module), io_in_arena=io_in_arena)
        self.needs = needs(wanted, len(module.calls))[1:]
        self.names = {v.label: v.name for v in module.values.values() if v.storage not in ("const", "workspace")}
        writer = {name: time for time, call in enumerate(module.calls) for name in call.writes}
        times = {name: writer.get(self.names.get(result_of(group), "")) for name, group in self.groups.items()}
        self.times = {name: time for name, time in times.items() if time is not None}

    def appraise(self, chain: Chain) -> Candidate:
        """The chain, its need but for scratch."""
        shapes = self.streams.shapes(chain)
        windows = [
            shape.held * shape.window.width * self._width(data)
            for shape, data in zip(shapes, self.streams.sources(chain), strict=True)
        ]
        if not shapes[0].window.padded:
            del windows[0]
        need = self._beside(chain) - self._shared(chain, shapes) + sum(map(_words, windows))
        price = self.streams.price(chain)
        return Candidate(chain, need, price.extra_macs + MOVED * price.moved)

    def measured(self, found: Candidate) -> Candidate:
        """The candidate with its scratch."""
        shapes, func = self.streams.shapes(found.chain), self.streams.lower(found.chain).func
        scratch = [p for p in func.params if p.scope == "workspace"][len(shapes) - (not shapes[0].window.padded) :]
        return replace(found, need=found.need + sum(_words(p.nbytes) for p in scratch), exact=True)

    def name(self, chain: Chain) -> str:
        """The first and the last layer."""
        return f"{self.groups[chain.groups[0]][0].loc} to {self.groups[chain.groups[-1]][0].loc}, row by row"

    def _width(self, value: str) -> int:
        kind = self.graph.types[value]
        return kind.nbytes // kind.size

    def _base(self, value: str) -> str:
        return self.module.base_of(self.names[value])[0]

    def _beside(self, chain: Chain) -> int:
        """Bytes of the source, the result, and everything else that is alive then."""
        now = self.times[chain.groups[-1]]
        inner = {self._base(result_of(self.groups[name])) for name in chain.groups[:-1]}
        late = {self._base(v) for name in chain.groups for v in _varying(self.graph, self.groups[name])}
        here = {
            name
            for name, (first, last) in self.alive.items()
            if first <= now and (last >= now or name in late) and name not in inner
        }
        values = [self.module.values[name] for name in here]
        return sum(_words(v.nbytes) for v in values if v.storage != "workspace")

    def _shared(self, chain: Chain, shapes: tuple[Shape, ...]) -> int:
        """Bytes of the source that the result may take as its rows are done with."""
        source, result = self._base(chain.data), self._base(result_of(self.groups[chain.groups[-1]]))
        last = max(self.times[name] for name in chain.groups)
        sizes = [self.module.values[name].nbytes for name in (source, result)]
        whole = [self.graph.types[v].nbytes for v in (chain.data, result_of(self.groups[chain.groups[-1]]))]
        if sizes != whole or any(name not in self.alive for name in (source, result)) or self.alive[source][1] > last:
            return 0
        pairs = zip(chain.groups, self.streams.sources(chain), strict=True)
        beside = {k for k, (name, v) in enumerate(pairs) if chain.data in companions(self.graph, self.groups[name], v)}
        read, written = timeline(shapes, self.graph.types[chain.data].shape[1], beside)
        source_bytes, result_bytes = sizes
        last_touch = np.repeat(np.array(read), source_bytes // len(read))
        first_write = np.repeat(np.array(written), result_bytes // len(written))
        return Room(source_bytes, result_bytes, safe_distances(first_write, last_touch)).shared


def _words(nbytes: int) -> int:
    return -(-nbytes // 4) * 4


# ---- An arena within a limit: chains of layers are streamed where a call needs too much, as little additional work
# as will do.

LONGEST = 8
"""Layers of a chain. Each more takes a window, and what is in the way is a tensor or two."""
HEIGHTS = (1, 2, 4, 8)
ROUNDS = 4
"""Plans that are tried: a plan may take a little more than the neediest call."""
NEVER = sys.maxsize
"""The need of a chain that there is no work left to measure."""
CLOSER = 64
"""The smallest arena is looked for in steps of this part of it."""

Build = Callable[[tuple[Chain, ...]], Module]


class Search:
    """Covers the calls that need too much by chains that need less. ``module``: without chains, calls in their final order."""

    def __init__(self, streams: Streams, module: Module, *, io_in_arena: bool) -> None:
        self.appraiser = Appraiser(streams, module, io_in_arena=io_in_arena)
        self.runs = find_runs(streams.graph, streams.groups)
        self.known: dict[Chain, Candidate] = {}
        self.lowered = 0

    def cover(self, limit: int) -> tuple[Candidate, ...] | None:
        """Chains so that no call needs more than ``limit`` bytes; None if there are none. Their exact needs are known then."""
        while True:
            found = self._cheapest(limit)
            rough = [c for c in found or () if not c.exact]
            if not rough:
                return found
            for candidate in rough:
                affordable, self.lowered = self.lowered < LOWERED, self.lowered + 1
                exact = self.appraiser.measured(candidate) if affordable else replace(candidate, need=NEVER, exact=True)
                self.known[candidate.chain] = exact

    def smallest(self) -> tuple[Candidate, ...]:
        """The chains of the smallest peak, within one part in :data:`CLOSER`."""
        found: tuple[Candidate, ...] = ()
        while True:
            peak = self.peak(found)
            closer = self.cover(peak - max(peak // CLOSER, 4))
            if closer is None:
                return found
            found = closer

    def peak(self, chosen: tuple[Candidate, ...]) -> int:
        """The largest need of a call, with these chains."""
        return max([*self._plain(chosen).values(), *(c.need for c in chosen)], default=0)

    def neediest(self, chosen: tuple[Candidate, ...]) -> str:
        """The layer, or chain of layers, that no other chain relieves."""
        peak = self.peak(chosen)
        for time, need in self._plain(chosen).items():
            if need == peak:
                return self.appraiser.module.calls[time].layer
        return next(self.appraiser.name(c.chain) for c in chosen if c.need == peak)

    def _plain(self, chosen: tuple[Candidate, ...]) -> dict[int, int]:
        """Needs of the calls that are in no chain, by time."""
        times = self.appraiser.times
        gone = {times[name] for c in chosen for name in c.chain.groups}
        return {time: need for time, need in enumerate(self.appraiser.needs) if time not in gone}

    def _cheapest(self, limit: int) -> tuple[Candidate, ...] | None:
        found: list[Candidate] = []
        large = {time for time, need in enumerate(self.appraiser.needs) if need > limit}
        for run in self.runs:
            times = [self.appraiser.times[name] for name in run.groups]
            chains = self._partition(run, [time in large for time in times], limit)
            if chains is None:
                return None
            found += chains
            large -= set(times)
        return None if large else tuple(found)

    def _partition(self, run: Run, large: list[bool], limit: int) -> list[Candidate] | None:
        """Chains within a run that hold every ``large`` group, of the least work: dynamic programming over where they end."""
        best: list[tuple[int, list[Candidate]] | None] = [(0, [])]
        for stop in range(1, len(run.groups) + 1):
            here = best[stop - 1] if not large[stop - 1] else None
            for start in range(max(0, stop - LONGEST), stop - 1):
                before = best[start]
                if before is None or not any(large[start:stop]):
                    continue
                for candidate in self._candidates(run, start, stop, limit):
                    work = before[0] + candidate.work
                    if here is None or work < here[0]:
                        here = work, [*before[1], candidate]
            best.append(here)
        return best[-1][1] if best[-1] is not None else None

    def _candidates(self, run: Run, start: int, stop: int, limit: int) -> list[Candidate]:
        chains = [run.chain(start, stop, height) for height in HEIGHTS]
        for chain in chains:
            if chain not in self.known and len(self.known) < CHAINS:
                self.known[chain] = self.appraiser.appraise(chain)
        return [found for chain in chains if (found := self.known.get(chain)) is not None and found.need <= limit]


def stream_within(limit: int, plain: Module, search: Search, build: Build) -> Module:
    """A planned module whose arena is at most ``limit`` bytes, or the smallest that is found. ``plain``: without chains."""
    best, goal = plain, limit
    for _ in range(ROUNDS):
        found = search.cover(goal)
        if found is None:
            break
        best = _smaller(best, build(tuple(c.chain for c in found)))
        if arena(best) <= limit:
            return best
        goal = min(goal, search.peak(found)) - 4
    return _smaller(best, build(tuple(c.chain for c in search.smallest())))


def arena(module: Module) -> int:
    """Bytes of a planned module's arena, of several that of the memory with the stack."""
    assert module.plan is not None
    return module.plan.main


def _smaller(a: Module, b: Module) -> Module:
    return b if arena(b) < arena(a) else a


def ram_refusal(limit: int, best: Module, search: Search) -> FitError:
    """The error for an arena that cannot be had."""
    closest = search.smallest()
    assert best.plan is not None
    ends = max(best.values[name].nbytes for name in (*best.inputs, *best.outputs))
    more = f"raise it to --ram {arena(best)}"
    apart = f"keep inputs and outputs (one has {ends} bytes) outside with --io caller, "
    return FitError(
        f"an arena of {limit} bytes cannot hold the network; the smallest found takes {arena(best)}",
        where=best.source or best.name,
        hint=f"{more}, {apart if best.plan.io_in_arena and 2 * ends > limit else ''}or shrink what needs "
        f"{search.peak(closest)} of it: {search.neediest(closest)}",
    )
