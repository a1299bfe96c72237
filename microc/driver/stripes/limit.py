"""An arena within a limit: chains of layers are streamed where a call needs too much, as little additional work as will do."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

from microc.driver.stripes.chains import Appraiser, Candidate, Run, find_runs
from microc.driver.stripes.kernel import Chain, Streams
from microc.errors import FitError
from microc.module import Module
from microc.plan.effort import CHAINS, LOWERED

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
