"""Beam search: units settle one by one next to those that they may overlap; many partial placements are followed at once.

First fit puts every unit as low as it can, which is wrong for a chain of kernels that each write a little below what they
read: the chain drifts down and needs to start high. Here offsets may be negative, and what counts is the distance from the
lowest to the highest byte in use.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import itemgetter

from microc.frozen import frozen
from microc.plan.effort import BEAM, affordable
from microc.plan.liveness import Demand, Placement, Unit, lower_bound, size_of
from microc.plan.room import Room

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
