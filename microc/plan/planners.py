"""Placing units in the arena. Every planner is a priority order given to one first-fit placement, or a search over orders."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from microc.plan.beam import beam_search
from microc.plan.liveness import Demand, Placement, Unit, lower_bound, size_of

Planner = Callable[[Demand], Placement]

HILL_CLIMBING_STEPS = 400
EXACT_LIMIT = 9
"""Units up to which all orders that matter are searched."""


def align_up(offset: int, align: int) -> int:
    return -(-offset // align) * align


def first_fit(wanted: Demand, order: Sequence[Unit]) -> Placement:
    """Place units one by one at the lowest offset that every unit placed before allows."""
    placed: Placement = {}
    for unit in order:
        placed[unit] = lowest_gap(wanted, unit, placed)
    return placed


def lowest_gap(wanted: Demand, unit: Unit, placed: Placement) -> int:
    """The lowest aligned offset for ``unit`` at an allowed distance from all placed units that it conflicts with."""
    near = [(placed[other], room) for other, room in wanted.near[unit].items() if other in placed]
    near.sort(key=lambda pair: pair[0])
    offset, settled = 0, -1
    while offset != settled:
        settled = offset
        for at, room in near:
            offset = align_up(at + room.next(offset - at), unit.align)
    return offset


def _by_size(unit: Unit) -> tuple[int, int, str]:
    return -unit.size, unit.first, unit.name


def greedy_by_size(wanted: Demand) -> Placement:
    """Largest first."""
    return first_fit(wanted, sorted(wanted.units, key=_by_size))


def greedy_by_conflicts(wanted: Demand) -> Placement:
    """Units that share their time with the most bytes first."""

    def pressure(unit: Unit) -> int:
        return sum(other.size for other in wanted.near[unit])

    return first_fit(wanted, sorted(wanted.units, key=lambda u: (-pressure(u), *_by_size(u))))


def hill_climbing(wanted: Demand) -> Placement:
    """Start from the best greedy order; swap two units while that does not make the arena larger. Deterministic."""
    best = min((greedy_by_size(wanted), greedy_by_conflicts(wanted)), key=size_of)
    order = list(best)
    bound, dice = lower_bound(wanted), random.Random(0)
    for _ in range(HILL_CLIMBING_STEPS if len(order) > 1 else 0):
        if size_of(best) == bound:
            break
        top = max(best, key=lambda u: (best[u] + u.size, u.name))
        trial = list(order)
        i, j = trial.index(top), dice.randrange(len(trial))
        trial[i], trial[j] = trial[j], trial[i]
        placement = first_fit(wanted, trial)
        if size_of(placement) <= size_of(best):
            order, best = trial, placement
    return best


def exact(wanted: Demand) -> Placement:
    """Branch and bound over placement orders: the best first-fit placement.

    Without rooms that is an optimum, and orders of rising offsets suffice. (Take any optimal placement, sort by offset, and
    let every unit sink as first fit does: nothing gets higher.)
    """
    bound = lower_bound(wanted)
    best = min((greedy_by_size(wanted), greedy_by_conflicts(wanted)), key=size_of)

    def search(placed: Placement, left: tuple[Unit, ...], limit: int) -> Placement | None:
        if not left:
            return dict(placed)
        result = None
        for unit in left:
            at = lowest_gap(wanted, unit, placed)
            if at + unit.size >= limit or (placed and at < max(placed.values())):
                continue
            placed[unit] = at
            deeper = search(placed, tuple(u for u in left if u is not unit), limit)
            del placed[unit]
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
