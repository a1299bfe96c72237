"""Placing units in the arena. Every planner is a priority order given to one first-fit placement, or a search over orders."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from math import inf
from operator import itemgetter
from types import MappingProxyType

from microc.plan.beam import beam_search
from microc.plan.effort import CLIMBING, EXACT, affordable
from microc.plan.liveness import Demand, Placement, Unit, lower_bound, pressures, size_of
from microc.plan.shelf import MANY, Shelf

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
