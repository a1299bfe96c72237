"""When every value in the arena is alive, which of them conflict, and how near to each other they may lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

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


@dataclass(frozen=True, slots=True)
class Demand:
    """Everything that wants a place. ``near``: by unit, the allowed distances to it from every other that it conflicts with."""

    units: tuple[Unit, ...]
    near: Mapping[Unit, Mapping[Unit, Room]]


def demand_of(units: tuple[Unit, ...], overlapping: Rooms = MappingProxyType({})) -> Demand:
    """Units that conflict stay apart, but for pairs (of names, both ways) that may overlap."""
    near: dict[Unit, dict[Unit, Room]] = {unit: {} for unit in units}
    for unit in units:
        for other in units:
            if other is not unit and other.conflicts(unit):
                near[unit][other] = overlapping.get((other.name, unit.name)) or Room(other.size, unit.size)
    return Demand(units, near)


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
    """The largest need of one call: no placement is smaller.

    What is alive together takes the sum of its sizes, less what pairs of them may share at most (a byte of more than two counts
    as shared more often than it saves, so nothing is missed).
    """
    times = {t for unit in wanted.units for t in (unit.first, unit.last)}
    return max((need_at(wanted, t) for t in times), default=0)


def need_at(wanted: Demand, time: int) -> int:
    """Bytes that one call needs at least (see :func:`lower_bound`)."""
    here = [u for u in wanted.units if u.first <= time <= u.last]
    shared = sum(wanted.near[a][b].shared for k, a in enumerate(here) for b in here[:k] if wanted.near[a][b].safe)
    before, after = ([u.size for u in here if u.first < time], [u.size for u in here if u.last > time])
    return max(sum(u.size for u in here) - shared, sum(before), sum(after))
