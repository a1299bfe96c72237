# SPDX-License-Identifier: Apache-2.0
"""Placement of units (values with a size and a lifetime) in the arena.

The planners are first fit in several priority orders, hill climbing over orders, beam search, and an exact search.
:func:`place_units` runs all planners and returns the smallest placement.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import count
from math import inf
from operator import itemgetter
from types import MappingProxyType

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.plan.liveness import (
    Demand,
    Placement,
    SafeOffsets,
    Unit,
    count_conflicting_bytes,
    count_conflicts,
    placement_byte_count,
    placement_lower_bound,
)

# ---- Interval index: placed units in numpy arrays, so that a gap among thousands of units is found without a Python loop.

INDEX_MIN_UNITS = 1 << 8
"""Number of units above which first fit uses the interval index, because arrays are faster then than a list."""


class IntervalIndex:
    """Index of placed units, sorted by offset, for finding gaps between them.

    ``spans`` has a row for each unit, with these columns: offset, end, first call, last call, and number of the unit in
    order of placement."""

    def __init__(self, placed: Mapping[Unit, int]) -> None:
        """Create the index of some placed units. ``placed``: the offset of each unit in bytes."""
        self.placed, self.numbers = Placement(), dict[Unit, int]()
        self.spans = np.zeros((0, 5), np.int64)
        for unit, at in placed.items():
            self.add(unit, at)

    def add(self, unit: Unit, offset: int) -> None:
        """Add a unit to the index. ``offset``: the offset in bytes at which the unit is placed."""
        self.placed[unit], self.numbers[unit] = offset, len(self.numbers)
        row = int(np.searchsorted(self.spans[:, 0], offset))
        span = offset, offset + unit.size, unit.first, unit.last, self.numbers[unit]
        self.spans = np.insert(self.spans, row, span, axis=0)

    def find_lowest_gap(self, unit: Unit, allowed_distances: Mapping[Unit, SafeOffsets]) -> int:
        """Return the lowest aligned offset for ``unit`` at an allowed distance from all units that it conflicts with.

        ``allowed_distances``: the allowed distances to ``unit`` from the units that it may overlap. These units are
        examined one by one. Between all others, ``unit`` must fit into a gap.
        """
        near = {
            other: room for other, room in allowed_distances.items() if other in self.placed and other.conflicts(unit)
        }
        starts, ends = self._find_gaps(unit, [self.numbers[other] for other in near])
        offset, settled = 0, -1
        # The offset only rises. Repeat until the gaps and all allowed distances leave it unchanged.
        while offset != settled:
            settled = offset
            offset = max(offset, int(ends[np.searchsorted(starts, offset + unit.size)]))
            for other, room in near.items():
                below = self.placed[other]
                offset = below + room.next_allowed(offset - below)
                offset += -offset % unit.align
        return offset

    def _find_gaps(self, unit: Unit, ignored_unit_numbers: list[int]) -> tuple[Array, Array]:
        """Return two arrays: the end of each gap that is large enough for ``unit``, and the lowest offset for it in
        each gap.

        Gaps are between units that conflict with ``unit``, except the units whose numbers are in
        ``ignored_unit_numbers``. The last gap has no end."""
        at, end, first, last, number = self.spans.T
        conflicting = (first <= unit.last) & (unit.first <= last) & ~np.isin(number, ignored_unit_numbers)
        begins = np.append(0, np.maximum.accumulate(end[conflicting]))
        begins += -begins % unit.align
        stops = np.append(at[conflicting], np.iinfo(np.int64).max)
        wide = stops - begins >= unit.size
        return stops[wide], begins[wide]


# ---- Effort limits of the searches, counted in steps, never in seconds, so that plans are the same on every machine.
#
# Nearly all networks stay below the limits and are searched in full. Beyond a limit, a search follows fewer branches or returns
# its best result so far. The correctness of a plan does not depend on any search.

ORDER_EFFORT = 1 << 17
"""Limit of the search for an order of calls (:mod:`microc.plan.plan`): number of calls appended to partial orders,
shared equally between the positions of the order."""
BEAM_EFFORT = 1 << 18
"""Limit of :func:`microc.plan.placement.beam_search`: number of comparisons of partial placements with neighbouring
units, for each order of units."""
CLIMB_EFFORT = 1 << 22
"""Limit of :func:`microc.plan.placement.hill_climbing`: number of pairs of conflicting units, summed over all
placements."""
EXACT_EFFORT = 1 << 16
"""Limit of :func:`microc.plan.placement.place_exactly`: number of searches for a gap."""
SPLIT_EFFORT = 1 << 12
"""Limit of branch and bound in :func:`microc.plan.memories.assign_memories`: number of tentative assignments of values
to memories."""
FULL_PLACEMENTS = 1 << 1
"""Most runs of all planners in one call of :func:`microc.plan.memories.assign_memories`, after the quick planners
failed.

Runs on few values do not count, because few values are placed exactly.
"""
PAIR_EFFORT = 1 << 22
"""Limit of the quick planners in :func:`microc.plan.memories.assign_memories`: number of pairs of values. Beyond the
limit, values count as fitting only if they fit without sharing memory."""
MAX_BRANCH_VALUES = 1 << 8
"""Most values for branch and bound: with more values, :data:`SPLIT_EFFORT` steps would hardly leave the first
branch."""
MAX_COPIES = 1 << 7
"""Most constants that are considered for a copy in RAM: those that save the most cycles per byte."""
MAX_KNAPSACK_ITEMS = 1 << 7
"""Most kernels for which the choice of hot code, and most constants for which that of a flash region
(:mod:`microc.plan.code_and_constants`) is exact: those that save the most cycles per byte."""
MAX_MOVES = 1 << 9
"""Most moves of values into a faster memory that are tried before branch and bound."""

MAX_CHAINS = 1 << 12
"""Most chains of layers that :mod:`microc.compiler.fit.striping` estimates; then it chooses among the chains estimated
so far."""
MAX_LOWERED_CHAINS = 1 << 8
"""Most chains of layers that :mod:`microc.compiler.fit.striping` lowers to know the bytes of their scratch buffers."""


def count_affordable_repeats(demand: Demand, max_comparisons: int, max_repeats: int) -> int:
    """Return how often a search may compare every unit with all units that it conflicts with, in ``max_comparisons``
    comparisons of two units.

    The result is at most ``max_repeats``. A unit counts as conflicting with itself."""
    return min(max_repeats, max_comparisons // max(count_conflicts(demand) + len(demand.units), 1))


# ---- Beam search: units are placed one by one next to those that they may overlap, in many partial placements at once.
#
# First fit places every unit as low as possible. That is wrong for a chain of kernels that each write a little below their
# operand: the offsets fall along the chain, so the chain must start high. In the beam search offsets may be negative, and the
# size of a placement is the distance from the lowest to the highest byte in use.

BEAM_WIDTH = 32
"""Beam width: number of partial placements that are kept after each unit."""


@frozen
class _PartialPlacement:
    """A partial placement of units in memory: a state of the beam search, as a linked list from the last placed unit.

    ``low``, ``high``: the range of offsets in use. ``offsets_by_conflicting_unit``: offsets of the placed units that
    conflict with units that are not placed yet. ``unit``, ``unit_offset``: the last placed unit and its offset.
    ``previous_placement``: the placement of the units placed before it.
    """

    low: int
    high: int
    offsets_by_conflicting_unit: dict[Unit, int]
    unit: Unit | None = None
    unit_offset: int = 0
    previous_placement: _PartialPlacement | None = None

    def used_range_with(self, offset: int, byte_count: int) -> tuple[int, int]:
        """Return the range of offsets (low, high) in use after ``byte_count`` more bytes are placed at ``offset``."""
        if self.unit is None:
            return offset, offset + byte_count
        return min(offset, self.low), max(offset + byte_count, self.high)

    @property
    def key(self) -> tuple[int, ...]:
        """Key that is the same for partial placements that leave the same choices for all later units.

        It consists of the bytes in use, and of the relative offsets of the units that conflict with later units."""
        return self.high - self.low, *[
            unit_offset - self.low for unit_offset in self.offsets_by_conflicting_unit.values()
        ]


def beam_search(demand: Demand) -> Placement | None:
    """Return the smallest placement that beam search finds with three orders of the units.

    The units are ordered by their first call, by their last call backwards, and by distance in time from the largest
    unit. None if there are too many units for :data:`BEAM_EFFORT`, or if no placement is below the demand's limit."""
    width = count_affordable_repeats(demand, BEAM_EFFORT, BEAM_WIDTH)
    if not width:
        return None
    if not demand.units:
        return {}
    start = min(demand.units, key=lambda u: (-u.size, u.first, u.name))

    def calls_between_start_and(unit: Unit) -> int:
        return max(unit.first - start.last, start.first - unit.last, 0)

    orders = (
        sorted(demand.units, key=lambda u: (u.first, -u.size, u.name)),
        sorted(demand.units, key=lambda u: (-u.last, -u.size, u.name)),
        sorted(demand.units, key=lambda u: (calls_between_start_and(u), -u.size, u.name)),
    )
    bound, best = placement_lower_bound(demand), None
    for order in orders:
        placement = place_in_order(demand, order, width)
        if placement is not None and placement_byte_count(placement) < demand.limit:
            # Later orders only need to look for smaller placements.
            best, demand = placement, replace(demand, limit=placement_byte_count(placement))
        if demand.limit <= bound:
            break
    return best


def place_in_order(demand: Demand, order: Sequence[Unit], beam_width: int = BEAM_WIDTH) -> Placement | None:
    """Place units in the order ``order`` by beam search. Units that conflict should be close together in the order.

    The bytes in use never shrink, so a partial placement that reaches the demand's limit is dropped. None if all
    placements reach the limit."""
    states = [_PartialPlacement(0, 0, {})]
    last = {unit: max(k for k, other in enumerate(order) if other.conflicts(unit)) for unit in order}
    for k, unit in enumerate(order):
        # `disjoint` units must not overlap this one, `near` ones may; `unfinished` units conflict with later ones.
        rooms = demand.allowed_distances[unit]
        disjoint = [u for u in order[:k] if u not in rooms and u.conflicts(unit)]
        near = [(u, rooms[u], rooms[u].reverse()) for u in order[:k] if u in rooms]
        unfinished = [u for u in order[: k + 1] if last[u] > k]
        extensions: list[tuple[int, int, _PartialPlacement]] = []
        for state in states:
            forbidden = _merge_intervals(
                (state.offsets_by_conflicting_unit[u] - unit.size, state.offsets_by_conflicting_unit[u] + u.size)
                for u in disjoint
            )
            for at in _list_offset_candidates(
                state,
                unit,
                [(state.offsets_by_conflicting_unit[u], room, reverse_room) for u, room, reverse_room in near],
                forbidden,
            ):
                low, high = state.used_range_with(at, unit.size)
                if high - low < demand.limit:
                    extensions.append((high - low, at, state))
        states = _keep_smallest(extensions, unit, unfinished, beam_width)
    return _shift_to_zero(states[0]) if states else None


def _keep_smallest(
    extensions: list[tuple[int, int, _PartialPlacement]], unit: Unit, unfinished: Sequence[Unit], beam_width: int
) -> list[_PartialPlacement]:
    """Return the ``beam_width`` smallest partial placements with different keys, after ``unit`` is placed.

    ``extensions``: triples (bytes in use, offset of ``unit``, partial placement before ``unit``). ``unfinished``: units
    that conflict with later units."""
    partials: dict[tuple[int, ...], _PartialPlacement] = {}
    for _, at, state in sorted(extensions, key=itemgetter(0)):
        near = {**state.offsets_by_conflicting_unit, unit: at}
        new = _PartialPlacement(
            *state.used_range_with(at, unit.size), {u: near[u] for u in unfinished}, unit, at, state
        )
        partials.setdefault(new.key, new)
        if len(partials) == beam_width:
            break
    return list(partials.values())


Near = list[tuple[int, SafeOffsets, SafeOffsets]]
"""For each placed unit that may be overlapped: its offset, and the allowed distances from it and to it."""


@frozen
class _Intervals:
    """Disjoint open intervals of forbidden offsets, in rising order: no unit may start inside of an interval."""

    lows: list[int]
    highs: list[int]

    def find_interval_ends(self, offset: int) -> tuple[int, int]:
        """Return both ends of the forbidden interval that contains an offset; if there is none, return the offset
        twice."""
        k = bisect_left(self.lows, offset) - 1
        return (self.lows[k], self.highs[k]) if k >= 0 and offset < self.highs[k] else (offset, offset)


def _merge_intervals(overlapping: Iterable[tuple[int, int]]) -> _Intervals:
    """Merge intervals that may overlap into disjoint intervals in rising order."""
    lows, highs = list[int](), list[int]()
    for low, high in sorted(overlapping):
        if highs and low < highs[-1]:
            highs[-1] = max(high, highs[-1])
        else:
            lows.append(low)
            highs.append(high)
    return _Intervals(lows, highs)


def _list_offset_candidates(state: _PartialPlacement, unit: Unit, neighbours: Near, forbidden: _Intervals) -> list[int]:
    """Return the offsets in bytes at which beam search tries to place a unit in a partial placement.

    The candidates are next to both ends of the bytes in use, of the ``forbidden`` intervals, and of the allowed
    distances from the units ``neighbours`` that may be overlapped."""
    starts = {state.low, state.high - unit.size, *forbidden.lows, *forbidden.highs}
    for at, room, _ in neighbours:
        starts |= {at - room.second_bytes, at + room.first_bytes, at, at + room.first_bytes - room.second_bytes}
        starts |= {at + span[k] for span in room.overlapping_distances for k in (0, -1)}
    candidates = set[int]()
    for start in {start - start % unit.align for start in starts}:
        above = _find_nearest_offset(start, unit, neighbours, forbidden, True)
        candidates.add(above)
        if above != start:  # else the start itself is allowed
            candidates.add(_find_nearest_offset(start, unit, neighbours, forbidden, False))
    return sorted(candidates)


def _find_nearest_offset(start: int, unit: Unit, neighbours: Near, forbidden: _Intervals, upwards: bool) -> int:
    """Return the allowed offset of a unit that is nearest to ``start``, which is aligned.

    The search goes up from ``start`` if ``upwards`` is True, else down."""
    offset, previous = start, None
    while offset != previous:
        previous = offset
        offset = forbidden.find_interval_ends(offset)[upwards]
        offset += -offset % unit.align if upwards else -(offset % unit.align)
        for at, room, reverse_room in neighbours:
            if upwards:
                offset = at + room.next_allowed(offset - at)
                offset += -offset % unit.align
            else:
                offset = at - reverse_room.next_allowed(at - offset)
                offset -= offset % unit.align
    return offset


def _shift_to_zero(state: _PartialPlacement) -> Placement:
    """Return the placement of all units of a partial placement, shifted so that the lowest offset becomes 0.

    The lowest offset is rounded down to the largest alignment first."""
    offsets: Placement = {}
    link: _PartialPlacement | None = state
    while link is not None and link.unit is not None:
        offsets[link.unit] = link.unit_offset
        link = link.previous_placement
    base = state.low - state.low % max((unit.align for unit in offsets), default=1)
    return {unit: at - base for unit, at in offsets.items()}


# ---- Planners: a priority order for first fit, or a search over orders.

Planner = Callable[[Demand], Placement | None]
"""A function that returns a placement; None if there are too many units for it, or if no placement is below the
limit."""

HILL_CLIMBING_STEPS = 400  # most swaps of two units in the order
EXACT_LIMIT = 9
"""Most units that the exact search places."""


def first_fit(
    demand: Demand,
    order: Sequence[Unit],
    limit: float = inf,
    before: Mapping[Unit, int] = MappingProxyType({}),
    conflicting_units: Mapping[Unit, Sequence[Unit]] | None = None,
) -> Placement:
    """Place units one by one, each at the lowest offset that all earlier units allow; stop once ``limit`` is exceeded.

    ``before``: offsets of the first units of the order, which are not placed again. ``conflicting_units``: for each
    unit, the units that it conflicts with, if known; this only saves time.
    """
    if len(order) > INDEX_MIN_UNITS:
        return _first_fit_by_index(demand, order, limit, before)
    placed = dict(before)
    for unit in order[len(before) :]:
        if conflicting_units is None:
            placed[unit] = find_lowest_gap(demand, unit, placed)
        else:
            beside = [(placed[other], other) for other in conflicting_units[unit] if other in placed]
            placed[unit] = _find_gap_between(demand, unit, beside)
        if placed[unit] + unit.size > limit:
            break
    return placed


def _first_fit_by_index(demand: Demand, order: Sequence[Unit], limit: float, before: Mapping[Unit, int]) -> Placement:
    """Return the placement of :func:`first_fit`, computed with the interval index, which is faster for many units."""
    index = IntervalIndex(before)
    for unit in order[len(before) :]:
        at = index.find_lowest_gap(unit, demand.allowed_distances[unit])
        index.add(unit, at)
        if at + unit.size > limit:
            break
    return index.placed


def find_lowest_gap(demand: Demand, unit: Unit, placed: Placement) -> int:
    """Return the lowest aligned offset for ``unit`` at an allowed distance from all placed units that it conflicts
    with."""
    first, last = unit.first, unit.last
    conflicting = [(at, other) for other, at in placed.items() if other.first <= last and first <= other.last]
    return _find_gap_between(demand, unit, conflicting)


def _find_gap_between(demand: Demand, unit: Unit, conflicting: list[tuple[int, Unit]]) -> int:
    """Return the result of :func:`find_lowest_gap`, given pairs (offset, unit) of the placed units that conflict with
    ``unit``."""
    rooms, size, align = demand.allowed_distances[unit], unit.size, unit.align
    conflicting.sort(key=itemgetter(0))
    offset, settled = 0, -1
    # Repeated, since a higher offset changes the distance to units that were compared before, and may be forbidden for them.
    while offset != settled:
        settled = offset
        for at, other in conflicting:
            if at >= offset + size:
                break
            if at + other.size <= offset:
                continue
            offset = at + (rooms[other].next_allowed(offset - at) if other in rooms else other.size)
            offset += -offset % align
    return offset


def _largest_first_key(unit: Unit) -> tuple[int, int, str]:
    """Return a sort key that orders units by size, the largest first."""
    return -unit.size, unit.first, unit.name


def greedy_by_size(demand: Demand) -> Placement:
    """Return the first-fit placement of the units in order of their size, the largest first."""
    return first_fit(demand, sorted(demand.units, key=_largest_first_key))


def greedy_by_conflicts(demand: Demand) -> Placement:
    """Return the first-fit placement in which the units that are alive together with the most bytes are placed
    first."""
    pressure = count_conflicting_bytes(demand)
    return first_fit(demand, sorted(demand.units, key=lambda u: (-pressure[u], *_largest_first_key(u))))


def hill_climbing(demand: Demand) -> Placement:
    """Return the placement that hill climbing over first-fit orders finds.

    It starts from the better greedy order and swaps two units of the order at a time. A swap is kept if the arena does
    not grow. The pseudo-random choice of units is deterministic."""
    best = min((greedy_by_size(demand), greedy_by_conflicts(demand)), key=placement_byte_count)
    order = list(best)
    size, bound, dice = placement_byte_count(best), placement_lower_bound(demand), random.Random(0)
    steps = count_affordable_repeats(demand, CLIMB_EFFORT, HILL_CLIMBING_STEPS) if len(order) > 1 else 0
    near = {unit: [other for other in order if other.conflicts(unit)] for unit in order} if steps else None
    for _ in range(steps):
        if size == bound:
            break
        # The arena shrinks only if the unit at its top gets lower, so one of the two swapped units is the unit at the top.
        top = max(best, key=lambda u: (best[u] + u.size, u.name))
        trial = list(order)
        i, j = trial.index(top), dice.randrange(len(trial))
        trial[i], trial[j] = trial[j], trial[i]
        # Units before both swapped units in the order keep their offsets.
        placement = first_fit(demand, trial, size, {unit: best[unit] for unit in order[: min(i, j)]}, near)
        if (trial_size := placement_byte_count(placement)) <= size:
            order, best, size = trial, placement, trial_size
    return best


def place_exactly(demand: Demand) -> Placement:
    """Return the smallest first-fit placement, by branch and bound over the orders of units.

    If no units may overlap, the result is optimal, and only orders in which the offsets rise need to be searched.
    Proof: sort any optimal placement by offset and place its units by first fit in this order; no unit gets higher.
    After :data:`EXACT_EFFORT` searches for a gap, the best placement so far is returned.
    """
    bound = placement_lower_bound(demand)
    best = min((greedy_by_size(demand), greedy_by_conflicts(demand)), key=placement_byte_count)
    gaps = count()

    def place_remaining(
        placed: Placement, remaining: tuple[Unit, ...], limit: int, min_offset: float = -inf
    ) -> Placement | None:
        if not remaining:
            return placed
        result = None
        for unit in remaining:
            if next(gaps) >= EXACT_EFFORT:
                break
            at = find_lowest_gap(demand, unit, placed)
            if at + unit.size >= limit or at < min_offset:
                continue
            completed = place_remaining({**placed, unit: at}, tuple(u for u in remaining if u is not unit), limit, at)
            if completed is not None:
                result, limit = completed, placement_byte_count(completed)
                if limit == bound:
                    return result
        return result

    if placement_byte_count(best) == bound:
        return best
    return place_remaining({}, tuple(sorted(demand.units, key=_largest_first_key)), placement_byte_count(best)) or best


PLANNERS: tuple[tuple[str, Planner], ...] = (
    ("greedy by size", greedy_by_size),
    ("greedy by conflicts", greedy_by_conflicts),
    ("hill climbing", hill_climbing),
    ("beam search", beam_search),
)


CACHED_PLACEMENTS = 128
"""Number of placements in the cache. Quantisation, tuning and the search for a fit plan equal networks many times."""


def place_units(demand: Demand) -> tuple[str, Placement]:
    """Return the name of the planner that finds the smallest placement, and this placement.

    If several placements are equally small, the first planner of :data:`PLANNERS` is preferred."""
    numbers = {unit: number for number, unit in enumerate(demand.units)}
    distances = tuple(
        (numbers[unit], numbers[other], room)
        for unit, others in demand.allowed_distances.items()
        for other, room in others.items()
    )
    values = tuple((unit.name, unit.size, unit.align, unit.first, unit.last) for unit in demand.units)
    name, offsets = _place_values(values, distances, demand.limit)
    return name, {demand.units[number]: at for number, at in offsets.items()}


@lru_cache(maxsize=CACHED_PLACEMENTS)
def _place_values(
    values: tuple[tuple[str, int, int, int, int], ...],
    distances: tuple[tuple[int, int, SafeOffsets], ...],
    limit: float,
) -> tuple[str, Mapping[int, int]]:
    """Return the result of :func:`place_units` for a demand in hashable form, so that results can be cached.

    Units are numbered: offsets are returned by number. ``values``: the fields of each :class:`Unit`. ``distances``:
    triples (number of a unit, number of another unit, allowed distances from the other unit to the unit)."""
    units = tuple(Unit(*fields) for fields in values)
    distances_to: dict[Unit, dict[Unit, SafeOffsets]] = {unit: {} for unit in units}
    for number, other, room in distances:
        distances_to[units[number]][units[other]] = room
    name, placement = _find_smallest_placement(Demand(units, distances_to, limit))
    numbers = {unit: number for number, unit in enumerate(units)}
    return name, {numbers[unit]: at for unit, at in placement.items()}


def _find_smallest_placement(demand: Demand) -> tuple[str, Placement]:
    """Run the planners one after another; return the name of the planner that finds the smallest placement, and this
    placement.

    If several placements are equally small, the first planner is preferred. Results are not cached here."""
    planners = PLANNERS + ((("exact", place_exactly),) if len(demand.units) <= EXACT_LIMIT else ())
    bound, name, best = placement_lower_bound(demand), "", Placement()
    for tried, planner in planners:
        placement = planner(demand)
        if placement is not None and placement_byte_count(placement) < demand.limit:
            name, best = tried, placement
            demand = replace(demand, limit=placement_byte_count(placement))
        if demand.limit == bound:
            break
    assert name
    return name, best
