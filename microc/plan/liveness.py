"""When every value in the arena is alive, which of them conflict, and how near to each other they may lie."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from types import MappingProxyType

import numpy as np

from microc.dtypes import Array
from microc.frozen import frozen
from microc.module import Module
from microc.plan.overlap import Overlaps, Rooms, rooms
from microc.plan.room import Room

BEFORE = -1
"""The time before the first call, when inputs are written."""


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """A value to place, alive from call ``first`` to call ``last``, both included."""

    name: str
    size: int
    align: int
    first: int
    last: int

    def conflicts(self, other: Unit) -> bool:
        """Whether some call needs both."""
        return self.first <= other.last and other.first <= self.last


def in_arena(module: Module, name: str, *, io_in_arena: bool) -> bool:
    """Whether a value (not a view) lives in the arena."""
    storage = module.values[name].storage
    return storage in ("intermediate", "workspace", "state") or (io_in_arena and storage in ("input", "output"))


def lifetimes(module: Module, *, io_in_arena: bool) -> dict[str, tuple[int, int]]:
    """First and last call of every value in the arena; a view counts as a use of its base."""
    end = len(module.calls)
    found: dict[str, tuple[int, int]] = {}

    def use(name: str, time: int) -> None:
        base, _ = module.base_of(name)
        if in_arena(module, base, io_in_arena=io_in_arena):
            first, last = found.get(base, (time, time))
            found[base] = min(first, time), max(last, time)

    for name in (*module.inputs, *module.state):
        use(name, BEFORE)
    for time, call in enumerate(module.calls):
        for name in (*call.reads, *call.writes, *call.workspace):
            use(name, time)
    for name in (*module.outputs, *module.state):
        use(name, end)
    return found


@frozen
class Demand:
    """Everything that wants a place.

    ``rooms``: by unit, the allowed distances to it from those that it conflicts with and may overlap. It keeps apart from all
    others that it conflicts with. ``limit``: placements of so many bytes or more are of no use.
    """

    units: tuple[Unit, ...]
    rooms: Mapping[Unit, Mapping[Unit, Room]]
    limit: float = inf


def demand_of(units: tuple[Unit, ...], overlapping: Rooms = MappingProxyType({})) -> Demand:
    """Units that conflict stay apart, but for pairs (of names, both ways) that may overlap."""
    named, found = {unit.name: unit for unit in units}, {unit: dict[Unit, Room]() for unit in units}
    for (other, name), room in overlapping.items():
        found[named[name]][named[other]] = room
    return Demand(units, found)


def pressures(wanted: Demand) -> dict[Unit, int]:
    """By unit, the bytes of all others that it conflicts with."""
    found = _beside(wanted, np.array([unit.size for unit in wanted.units], np.int64))
    return dict(zip(wanted.units, found.tolist(), strict=True))


def conflicts(wanted: Demand) -> int:
    """Pairs of units that some call needs both of."""
    return int(_beside(wanted, np.ones(len(wanted.units), np.int64)).sum()) // 2


def _beside(wanted: Demand, weights: Array) -> Array:
    """By unit, the sum over all others that it conflicts with: all that begin before it ends, less those that end before."""
    first, last = (
        np.array(times, np.int64) for times in ([u.first for u in wanted.units], [u.last for u in wanted.units])
    )
    begun, ended = (np.append(0, np.cumsum(weights[np.argsort(times)])) for times in (first, last))
    late, early = np.searchsorted(np.sort(first), last, side="right"), np.searchsorted(np.sort(last), first)
    return np.asarray(begun[late] - ended[early] - weights)


Placement = dict[Unit, int]


def size_of(placement: Placement) -> int:
    """Bytes that a placement needs."""
    return max((at + unit.size for unit, at in placement.items()), default=0)


def demand(module: Module, overlaps: Overlaps, *, io_in_arena: bool) -> Demand:
    """The things to place, and how they may lie to each other."""
    alive = lifetimes(module, io_in_arena=io_in_arena)
    values = module.values
    units = tuple(Unit(n, values[n].nbytes, values[n].align, first, last) for n, (first, last) in alive.items())
    return demand_of(units, rooms(module, overlaps, alive))


def lower_bound(wanted: Demand) -> int:
    """The largest need of one call: no placement is smaller."""
    return max(needs(wanted, max((unit.last for unit in wanted.units), default=BEFORE) + 1), default=0)


def needs(wanted: Demand, count: int) -> list[int]:
    """Bytes needed at least before the first call, and by each of the first ``count`` calls.

    What is alive together takes the sum of its sizes, less what pairs of them may share at most (a byte of more than two counts
    as shared more often than it saves, so nothing is missed).
    """

    def alive(sizes: Iterable[tuple[int, int, int]]) -> Array:
        """Sums by time of sizes that last from one time to another, both included."""
        steps = np.zeros(count + 3, np.int64)
        for first, last, size in sizes:
            steps[min(first, count) - BEFORE] += size
            steps[min(last, count) + 1 - BEFORE] -= size
        return np.asarray(np.cumsum(steps[: count + 1]))

    units = wanted.units
    pairs = ((a, b, room) for a, near in wanted.rooms.items() for b, room in near.items() if a.name < b.name)
    shared = alive((max(a.first, b.first), min(a.last, b.last), room.shared) for a, b, room in pairs)
    together = alive((u.first, u.last, u.size) for u in units) - shared
    before = alive((u.first + 1, u.last, u.size) for u in units if u.first < u.last)
    after = alive((u.first, u.last - 1, u.size) for u in units if u.first < u.last)
    return [int(need) for need in np.maximum(together, np.maximum(before, after))]
