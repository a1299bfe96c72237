"""Which groups of a network can be streamed row by row, and what a chain of them would need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from microc.driver.stripes.kernel import Chain, Group, Streams, result_of
from microc.frozen import frozen
from microc.graph.ir import Graph
from microc.module import Module
from microc.ops.rows import companions, row_window
from microc.plan.liveness import demand, lifetimes, needs
from microc.plan.overlap import Overlaps
from microc.plan.room import Room, safe_distances
from microc.tir.stripes import Shape, timeline

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
