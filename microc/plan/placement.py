"""Placing units in the arena: first fit, priority orders, beam search."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from math import inf
from operator import itemgetter
from types import MappingProxyType

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.plan.liveness import Demand, Placement, Room, Unit, conflicts, lower_bound, pressures, size_of

# ---- Thousands of placed units in arrays, so that the gap for one more is found without a look at each of them in
# Python.

MANY = 1 << 8
"""Units from which arrays are faster than a list."""


class Shelf:
    """Placed units by rising offset. A row of ``spans`` each: offset, end, first call, last call, how many were placed before."""

    def __init__(self, placed: Mapping[Unit, int]) -> None:
        """With what is placed already."""
        self.placed, self.numbers = Placement(), dict[Unit, int]()
        self.spans = np.zeros((0, 5), np.int64)
        for unit, at in placed.items():
            self.put(unit, at)

    def put(self, unit: Unit, at: int) -> None:
        """One more."""
        self.placed[unit], self.numbers[unit] = at, len(self.numbers)
        row = int(np.searchsorted(self.spans[:, 0], at))
        self.spans = np.insert(self.spans, row, (at, at + unit.size, unit.first, unit.last, self.numbers[unit]), axis=0)

    def lowest_gap(self, unit: Unit, rooms: Mapping[Unit, Room]) -> int:
        """The lowest aligned offset for ``unit`` at an allowed distance from all that it conflicts with.

        Those that it may overlap, by ``rooms``, are looked at one by one; between the others there are gaps.
        """
        near = {other: room for other, room in rooms.items() if other in self.placed and other.conflicts(unit)}
        starts, ends = self._gaps(unit, [self.numbers[other] for other in near])
        offset, settled = 0, -1
        while offset != settled:
            settled = offset
            offset = max(offset, int(ends[np.searchsorted(starts, offset + unit.size)]))
            for other, room in near.items():
                below = self.placed[other]
                offset = below + room.next(offset - below)
                offset += -offset % unit.align
        return offset

    def _gaps(self, unit: Unit, without: list[int]) -> tuple[Array, Array]:
        """Where the gaps that hold ``unit`` end, and where it may begin in each; the last one is open."""
        at, end, first, last, number = self.spans.T
        beside = (first <= unit.last) & (unit.first <= last) & ~np.isin(number, without)
        begins = np.append(0, np.maximum.accumulate(end[beside]))
        begins += -begins % unit.align
        stops = np.append(at[beside], np.iinfo(np.int64).max)
        wide = stops - begins >= unit.size
        return stops[wide], begins[wide]


# ---- How much work the searches for memory may do. It is counted in steps of the search, never in seconds, so that a
# network is planned alike on every machine.
#
# What is below a bound is searched in full, as nearly all networks are; beyond it a search follows fewer ways, or ends with
# the best that it has. No search is needed for a plan to be right.

ORDERING = 1 << 17
"""Calls that are put behind a partial order (:mod:`microc.plan.plan`); every place in the order has an equal share."""
BEAM = 1 << 18
"""Neighbours that partial placements are held against, in each order of units (:mod:`microc.plan.placement`)."""
CLIMBING = 1 << 22
"""Pairs of units that conflict, over all placements of :func:`microc.plan.placement.hill_climbing`."""
EXACT = 1 << 16
"""Places that are looked for by :func:`microc.plan.placement.exact`."""
SPLITS = 1 << 12
"""Values that :func:`microc.plan.memories.split` puts into a memory to try, in its search; whole splits are few among them."""
PLACEMENTS = 1 << 1
"""Memories of whole splits that all planners try to place, after the quick ones. Those of few values, which are placed exactly,
do not count."""
PAIRS = 1 << 22
"""Pairs of values that quick planners look at for it: beyond, only what fits in any order is known to fit."""
BRANCHED = 1 << 8
"""Values up to which its search follows branches, one below the other: of more, so few steps would hardly leave the first."""
COPIES = 1 << 7
"""Constants, those that gain most by a byte, that are thought of as copies in a memory."""
HOT = 1 << 7
"""Kernels, those that gain most by a byte, that are thought of in a memory for code (:mod:`microc.plan.memories`)."""
MOVES = 1 << 9
"""Values that it moves, before that, into a better memory."""

CHAINS = 1 << 12
"""Chains of layers that :mod:`microc.compiler.fit.striping` appraises before it takes what it knows."""
LOWERED = 1 << 8
"""Chains that it lowers, to know their scratch."""


def affordable(wanted: Demand, effort: int, most: int) -> int:
    """How often, up to ``most`` times, all units can be held against their neighbours. A unit counts as one of its own."""
    return min(most, effort // max(conflicts(wanted) + len(wanted.units), 1))


# ---- Beam search: units settle one by one next to those that they may overlap; many partial placements are followed
# at once.
#
# First fit puts every unit as low as it can, which is wrong for a chain of kernels that each write a little below what they
# read: the chain drifts down and needs to start high. Here offsets may be negative, and what counts is the distance from the
# lowest to the highest byte in use.

WIDTH = 32
"""Partial placements that are kept."""


@frozen
class _Partial:
    """Units placed so far: the lowest and highest byte, offsets of those with neighbours to come, and the unit placed last."""

    low: int
    high: int
    near: dict[Unit, int]
    unit: Unit | None = None
    at: int = 0
    before: _Partial | None = None

    def ends(self, at: int, size: int) -> tuple[int, int]:
        """The lowest and highest byte with a block more."""
        return (at, at + size) if self.unit is None else (min(at, self.low), max(at + size, self.high))

    @property
    def key(self) -> tuple[int, ...]:
        """What the units to come can see of it."""
        return self.high - self.low, *[at - self.low for at in self.near.values()]


def beam_search(wanted: Demand) -> Placement | None:
    """The best of three orders: with time, against it, and from the largest unit on both ways. None where that is too much, or
    where nothing is below the limit."""
    width = affordable(wanted, BEAM, WIDTH)
    if not width:
        return None
    if not wanted.units:
        return {}
    start = min(wanted.units, key=lambda u: (-u.size, u.first, u.name))

    def away(unit: Unit) -> int:
        return max(unit.first - start.last, start.first - unit.last, 0)

    orders = (
        sorted(wanted.units, key=lambda u: (u.first, -u.size, u.name)),
        sorted(wanted.units, key=lambda u: (-u.last, -u.size, u.name)),
        sorted(wanted.units, key=lambda u: (away(u), -u.size, u.name)),
    )
    bound, best = lower_bound(wanted), None
    for order in orders:
        placement = settle(wanted, order, width)
        if placement is not None and size_of(placement) < wanted.limit:
            best, wanted = placement, replace(wanted, limit=size_of(placement))
        if wanted.limit <= bound:
            break
    return best


def settle(wanted: Demand, order: Sequence[Unit], width: int = WIDTH) -> Placement | None:
    """Place units in this order; it should bring units that conflict close together. None where all come to the limit: what is
    in use never shrinks, so that a partial placement that does is not followed."""
    states = [_Partial(0, 0, {})]
    last = {unit: max(k for k, other in enumerate(order) if other.conflicts(unit)) for unit in order}
    for k, unit in enumerate(order):
        rooms = wanted.rooms[unit]
        apart = [u for u in order[:k] if u not in rooms and u.conflicts(unit)]
        near = [(u, rooms[u], rooms[u].turned()) for u in order[:k] if u in rooms]
        waiting = [u for u in order[: k + 1] if last[u] > k]
        places: list[tuple[int, int, _Partial]] = []
        for state in states:
            taken = _merged((state.near[u] - unit.size, state.near[u] + u.size) for u in apart)
            for at in _places(state, unit, [(state.near[u], room, turned) for u, room, turned in near], taken):
                low, high = state.ends(at, unit.size)
                if high - low < wanted.limit:
                    places.append((high - low, at, state))
        states = _smallest(places, unit, waiting, width)
    return _offsets(states[0]) if states else None


def _smallest(
    places: list[tuple[int, int, _Partial]], unit: Unit, waiting: Sequence[Unit], width: int
) -> list[_Partial]:
    """``width`` different placements of a unit, of the fewest bytes: from (bytes in use, its offset, what there was before)."""
    found: dict[tuple[int, ...], _Partial] = {}
    for _, at, state in sorted(places, key=itemgetter(0)):
        near = {**state.near, unit: at}
        new = _Partial(*state.ends(at, unit.size), {u: near[u] for u in waiting}, unit, at, state)
        found.setdefault(new.key, new)
        if len(found) == width:
            break
    return list(found.values())


Near = list[tuple[int, Room, Room]]
"""Offsets of neighbours, with the allowed distances from them and to them."""


@frozen
class _Taken:
    """Rising stretches without their ends, which do not meet; no unit starts there."""

    lows: list[int]
    highs: list[int]

    def around(self, offset: int) -> tuple[int, int]:
        """The ends of the stretch that an offset lies in; twice the offset, if it lies in none."""
        k = bisect_left(self.lows, offset) - 1
        return (self.lows[k], self.highs[k]) if k >= 0 and offset < self.highs[k] else (offset, offset)


def _merged(stretches: Iterable[tuple[int, int]]) -> _Taken:
    lows, highs = list[int](), list[int]()
    for low, high in sorted(stretches):
        if highs and low < highs[-1]:
            highs[-1] = max(high, highs[-1])
        else:
            lows.append(low)
            highs.append(high)
    return _Taken(lows, highs)


def _places(state: _Partial, unit: Unit, near: Near, taken: _Taken) -> list[int]:
    """Offsets worth trying: at either end of what is in use and taken, and at the ends of every neighbour's allowed distances."""
    starts = {state.low, state.high - unit.size, *taken.lows, *taken.highs}
    for at, room, _ in near:
        starts |= {at - room.over, at + room.under, at, at + room.under - room.over}
        starts |= {at + span[k] for span in room.safe for k in (0, -1)}
    return sorted({_settled(start, unit, near, taken, up) for start in starts for up in (True, False)})


def _settled(start: int, unit: Unit, near: Near, taken: _Taken, up: bool) -> int:
    """The nearest allowed offset at or above (or below) a start."""
    offset, settled = start - start % unit.align, None
    while offset != settled:
        settled = offset
        offset = taken.around(offset)[up]
        offset += -offset % unit.align if up else -(offset % unit.align)
        for at, room, turned in near:
            if up:
                offset = at + room.next(offset - at)
                offset += -offset % unit.align
            else:
                offset = at - turned.next(at - offset)
                offset -= offset % unit.align
    return offset


def _offsets(state: _Partial) -> Placement:
    """All offsets, moved so that the lowest (rounded down to the alignment) is 0."""
    found: Placement = {}
    link: _Partial | None = state
    while link is not None and link.unit is not None:
        found[link.unit] = link.at
        link = link.before
    base = state.low - state.low % max((unit.align for unit in found), default=1)
    return {unit: at - base for unit, at in found.items()}


# ---- Placing units in the arena. Every planner is a priority order given to one first-fit placement, or a search
# over orders.

Planner = Callable[[Demand], Placement | None]
"""None where there are too many units for it, or where it sees that it finds nothing below the limit."""

HILL_CLIMBING_STEPS = 400
EXACT_LIMIT = 9
"""Units up to which all orders that matter are searched."""


def first_fit(
    wanted: Demand,
    order: Sequence[Unit],
    limit: float = inf,
    before: Mapping[Unit, int] = MappingProxyType({}),
    near: Mapping[Unit, Sequence[Unit]] | None = None,
) -> Placement:
    """Place units one by one at the lowest offset that every unit placed before allows, up to one that exceeds ``limit``.

    ``before``: where the first ones of the order are placed; they are not placed again. ``near``: by unit, those that it
    conflicts with, where that is known.
    """
    if len(order) > MANY:
        return _of_many(wanted, order, limit, before)
    placed = dict(before)
    for unit in order[len(before) :]:
        beside = placed if near is None else {other: placed[other] for other in near[unit] if other in placed}
        placed[unit] = lowest_gap(wanted, unit, beside)
        if placed[unit] + unit.size > limit:
            break
    return placed


def _of_many(wanted: Demand, order: Sequence[Unit], limit: float, before: Mapping[Unit, int]) -> Placement:
    """The same placement, found faster."""
    shelf = Shelf(before)
    for unit in order[len(before) :]:
        at = shelf.lowest_gap(unit, wanted.rooms[unit])
        shelf.put(unit, at)
        if at + unit.size > limit:
            break
    return shelf.placed


def lowest_gap(wanted: Demand, unit: Unit, placed: Placement) -> int:
    """The lowest aligned offset for ``unit`` at an allowed distance from all placed units that it conflicts with."""
    rooms, size, align, first, last = wanted.rooms[unit], unit.size, unit.align, unit.first, unit.last
    beside = [(at, other) for other, at in placed.items() if other.first <= last and first <= other.last]
    beside.sort(key=itemgetter(0))
    offset, settled = 0, -1
    while offset != settled:
        settled = offset
        for at, other in beside:
            if at >= offset + size:
                break
            if at + other.size <= offset:
                continue
            offset = at + (rooms[other].next(offset - at) if other in rooms else other.size)
            offset += -offset % align
    return offset


def _by_size(unit: Unit) -> tuple[int, int, str]:
    return -unit.size, unit.first, unit.name


def greedy_by_size(wanted: Demand) -> Placement:
    """Largest first."""
    return first_fit(wanted, sorted(wanted.units, key=_by_size))


def greedy_by_conflicts(wanted: Demand) -> Placement:
    """Units that share their time with the most bytes first."""
    pressure = pressures(wanted)
    return first_fit(wanted, sorted(wanted.units, key=lambda u: (-pressure[u], *_by_size(u))))


def hill_climbing(wanted: Demand) -> Placement:
    """Start from the best greedy order; swap two units while that does not make the arena larger. Deterministic."""
    best = min((greedy_by_size(wanted), greedy_by_conflicts(wanted)), key=size_of)
    order = list(best)
    bound, dice = lower_bound(wanted), random.Random(0)
    steps = affordable(wanted, CLIMBING, HILL_CLIMBING_STEPS) if len(order) > 1 else 0
    near = {unit: [other for other in order if other.conflicts(unit)] for unit in order} if steps else None
    for _ in range(steps):
        if size_of(best) == bound:
            break
        top = max(best, key=lambda u: (best[u] + u.size, u.name))
        trial = list(order)
        i, j = trial.index(top), dice.randrange(len(trial))
        trial[i], trial[j] = trial[j], trial[i]
        placement = first_fit(wanted, trial, size_of(best), {unit: best[unit] for unit in order[: min(i, j)]}, near)
        if size_of(placement) <= size_of(best):
            order, best = trial, placement
    return best


def exact(wanted: Demand) -> Placement:
    """Branch and bound over placement orders: the best first-fit placement.

    Without rooms that is an optimum, and orders of rising offsets suffice. (Take any optimal placement, sort by offset, and
    let every unit sink as first fit does: nothing gets higher.) Beyond :data:`EXACT` looks the best so far is taken.
    """
    bound = lower_bound(wanted)
    best = min((greedy_by_size(wanted), greedy_by_conflicts(wanted)), key=size_of)
    looks = count()

    def search(rising: Placement, left: tuple[Unit, ...], limit: int, lowest: float = -inf) -> Placement | None:
        if not left:
            return rising
        result = None
        for unit in left:
            if next(looks) >= EXACT:
                break
            at = lowest_gap(wanted, unit, rising)
            if at + unit.size >= limit or at < lowest:
                continue
            deeper = search({**rising, unit: at}, tuple(u for u in left if u is not unit), limit, at)
            if deeper is not None:
                result, limit = deeper, size_of(deeper)
                if limit == bound:
                    return result
        return result

    if size_of(best) == bound:
        return best
    return search({}, tuple(sorted(wanted.units, key=_by_size)), size_of(best)) or best


PLANNERS: tuple[tuple[str, Planner], ...] = (
    ("greedy by size", greedy_by_size),
    ("greedy by conflicts", greedy_by_conflicts),
    ("hill climbing", hill_climbing),
    ("beam search", beam_search),
)


def placed(wanted: Demand) -> tuple[str, Placement]:
    """The smallest placement that any planner finds, and the name of that one: the first of those that are equal."""
    planners = PLANNERS + ((("exact", exact),) if len(wanted.units) <= EXACT_LIMIT else ())
    bound, name, best = lower_bound(wanted), "", Placement()
    for tried, planner in planners:
        placement = planner(wanted)
        if placement is not None and size_of(placement) < wanted.limit:
            name, best = tried, placement
            wanted = replace(wanted, limit=size_of(placement))
        if wanted.limit == bound:
            break
    assert name
    return name, best
