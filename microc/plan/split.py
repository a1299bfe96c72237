"""Which of a board's memories every value lies in: the split that waits least, of those whose parts fit.

Values are decided one by one, those first that gain most by a byte of fast memory and a call; a branch ends where what is
decided, with all others where they wait least, is no better than the best split so far, or where some call needs more of a
memory than there is. That is exact (up to the placements that the planners find) while it takes no more than
:data:`~microc.plan.effort.SPLITS` steps, of up to :data:`~microc.plan.effort.BRANCHED` values. A first fit in the same order,
from which single values are then moved in and others out, is there before it begins, so that large networks have a good split,
too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from math import inf

from microc.plan.effort import BRANCHED, MOVES, PAIRS, PLACEMENTS, SPLITS
from microc.plan.liveness import Demand, Unit, lower_bound, size_of
from microc.plan.planners import EXACT_LIMIT, greedy_by_conflicts, greedy_by_size, placed
from microc.target import Memory

Waits = Mapping[Unit, tuple[float, ...]]
"""Cycles of a run that a unit's accesses wait, in each memory; infinite where it may not lie."""
Homes = dict[Unit, int]
"""The number of each unit's memory."""


def split(wanted: Demand, waits: Waits, memories: Sequence[Memory]) -> Homes:
    """The memory of every unit. Where no split is found that fits, what is left goes into the first memory, beyond its end."""
    search = _Search(wanted, waits, memories)
    search.first_fit()
    search.improve()
    search.branch()
    return search.best


def part(wanted: Demand, units: Iterable[Unit]) -> Demand:
    """Some of the units, and how they may lie to each other."""
    chosen = set(units)
    kept = tuple(unit for unit in wanted.units if unit in chosen)
    return Demand(kept, {u: {o: r for o, r in wanted.rooms[u].items() if o in chosen} for u in kept})


def fits(size: int, wanted: Demand) -> bool:
    """Whether so many bytes hold all units, as quick planners place them."""
    return fits_anyhow(size, wanted) or _fits_placed(size, wanted)


def fits_anyhow(size: int, wanted: Demand) -> bool:
    """Whether so many bytes hold all units side by side."""
    return sum(unit.size + unit.align for unit in wanted.units) <= size


def _fits_placed(size: int, wanted: Demand) -> bool:
    return lower_bound(wanted) <= size and any(
        size_of(planner(wanted)) <= size for planner in (greedy_by_size, greedy_by_conflicts)
    )


class _Search:
    def __init__(self, wanted: Demand, waits: Waits, memories: Sequence[Memory]) -> None:
        self.wanted, self.waits, self.memories = wanted, waits, memories
        self.numbers = range(len(memories))
        self.units = sorted(wanted.units, key=lambda u: (-self._gain(u), u.size, u.name))
        self.ways = {u: self._ways(u) for u in self.units}
        self.best: Homes = {}
        self.cost = inf
        self._placements = count()
        self._pairs = 0
        self._fits: dict[tuple[int, frozenset[str], bool], bool] = {}

    def _ways(self, unit: Unit) -> list[int]:
        """The memories that are large enough for a unit, the one where it waits least first."""
        large = (m for m in self.numbers if unit.size <= self.memories[m].size and self.waits[unit][m] < inf)
        return sorted(large, key=lambda m: (self.waits[unit][m], m))

    def _least(self, unit: Unit) -> float:
        return min((self.waits[unit][m] for m in self.ways[unit]), default=inf)

    def _gain(self, unit: Unit) -> float:
        """Cycles that the best memory saves over the worst, by byte and call."""
        waits = [cycles for cycles in self.waits[unit] if cycles < inf]
        return (max(waits) - min(waits)) / (max(unit.size, 1) * (unit.last - unit.first + 1))

    def total(self, homes: Homes) -> float:
        """Cycles that a split waits."""
        return sum(self.waits[unit][home] for unit, home in homes.items())

    def fits(self, memory: int, units: Iterable[Unit], *, fully: bool) -> bool:
        """Whether a memory holds some units: by quick planners, or by all."""
        chosen = frozenset(units)
        key = memory, frozenset(unit.name for unit in chosen), fully
        if key not in self._fits:
            self._fits[key] = self._found(self.memories[memory].size, part(self.wanted, chosen), fully=fully)
        return self._fits[key]

    def _found(self, size: int, wanted: Demand, *, fully: bool) -> bool:
        if fits_anyhow(size, wanted):
            return True
        self._pairs += len(wanted.units) ** 2
        if self._pairs > PAIRS:
            return False
        if _fits_placed(size, wanted):
            return True
        if not fully or lower_bound(wanted) > size:
            return False
        small = len(wanted.units) <= EXACT_LIMIT
        return (small or next(self._placements) < PLACEMENTS) and size_of(placed(wanted)[1]) <= size

    def first_fit(self) -> None:
        """Every unit into the memory that waits least of those that still hold it."""
        homes: Homes = {}
        fitting = True
        for unit in self.units:
            home = self._home(unit, homes)
            fitting = fitting and home is not None
            homes[unit] = home or 0
        self.best, self.cost = homes, self.total(homes) if fitting else inf

    def _home(self, unit: Unit, homes: Homes, *, but: int = -1) -> int | None:
        for memory in self.ways[unit]:
            inside = [other for other, home in homes.items() if home == memory]
            if memory != but and self.fits(memory, [*inside, unit], fully=False):
                return memory
        return None

    def improve(self) -> None:
        """Move a unit into a better memory, and out of it what gains least there until it fits, while that waits less."""
        moves = iter(range(MOVES))
        moved = self.cost < inf
        while moved:
            moved = False
            for unit in sorted(self.units, key=lambda u: self._least(u) - self.waits[u][self.best[u]]):
                for memory in self.ways[unit]:
                    if self.waits[unit][memory] >= self.waits[unit][self.best[unit]]:
                        break
                    if next(moves, None) is None:
                        return
                    homes = self._moved(unit, memory)
                    if homes is not None and self.total(homes) < self.cost:
                        self.best, self.cost, moved = homes, self.total(homes), True
                        break

    def _moved(self, unit: Unit, memory: int) -> Homes | None:
        """The best split so far with a unit in a memory, and others out of it; None if these find no place."""
        homes = {**self.best, unit: memory}
        out: list[Unit] = []
        inside = [u for u, home in homes.items() if home == memory]
        for other in reversed(self.units):
            if other is unit or homes[other] != memory or not other.conflicts(unit):
                continue
            if self.fits(memory, inside, fully=False):
                break
            inside.remove(other)
            out.append(other)
            del homes[other]
        for other in reversed(out):
            home = self._home(other, homes)
            if home is None:
                return None
            homes[other] = home
        return homes if self.fits(memory, [u for u, home in homes.items() if home == memory], fully=False) else None

    def branch(self) -> None:
        """Branch and bound over all splits, of few enough values."""
        if len(self.units) > BRANCHED:
            return
        least = [0.0]
        for unit in reversed(self.units):
            least.append(least[-1] + self._least(unit))
        least.reverse()  # what the units from a number on wait at least
        steps, homes = count(), dict[Unit, int]()
        parts: list[list[Unit]] = [[] for _ in self.memories]

        def search(number: int, cost: float) -> None:
            if cost + least[number] >= self.cost:
                return
            if number == len(self.units):
                if all(self.fits(m, parts[m], fully=True) for m in self.numbers):
                    self.best, self.cost = dict(homes), cost
                return
            unit = self.units[number]
            for memory in self.ways[unit]:
                if next(steps) >= SPLITS:
                    return
                parts[memory].append(unit)
                if lower_bound(part(self.wanted, parts[memory])) <= self.memories[memory].size:
                    homes[unit] = memory
                    search(number + 1, cost + self.waits[unit][memory])
                    del homes[unit]
                parts[memory].pop()

        search(0, 0.0)
