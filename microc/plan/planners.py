"""Placing units in the arena. Every planner is a priority order given to one first-fit placement, or a search over orders."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from microc.plan.liveness import Unit, lower_bound

Placement = dict[Unit, int]
Planner = Callable[[tuple[Unit, ...]], Placement]

HILL_CLIMBING_STEPS = 400
EXACT_LIMIT = 9
"""Units up to which all orders that matter are searched."""


def align_up(offset: int, align: int) -> int:
    return -(-offset // align) * align


def first_fit(order: Sequence[Unit]) -> Placement:
    """Place units one by one at the lowest offset where they disturb nobody placed before."""
    placed: Placement = {}
    for unit in order:
        placed[unit] = lowest_gap(unit, placed)
    return placed


def lowest_gap(unit: Unit, placed: Placement) -> int:
    """The lowest aligned offset at which ``unit`` overlaps no placed unit that it conflicts with."""
    taken = sorted((at, at + other.size) for other, at in placed.items() if unit.conflicts(other))
    offset = 0
    for start, end in taken:
        if offset + unit.size <= start:
            break
        offset = max(offset, align_up(end, unit.align))
    return offset


def size_of(placement: Placement) -> int:
    """Bytes that a placement needs."""
    return max((at + unit.size for unit, at in placement.items()), default=0)


def _by_name(unit: Unit) -> tuple[str, ...]:
    return unit.names


def greedy_by_size(found: tuple[Unit, ...]) -> Placement:
    """Largest first."""
    return first_fit(sorted(found, key=lambda u: (-u.size, u.first, _by_name(u))))


def greedy_by_conflicts(found: tuple[Unit, ...]) -> Placement:
    """Units that share their time with the most bytes first."""

    def pressure(unit: Unit) -> int:
        return sum(other.size for other in found if unit.conflicts(other))

    return first_fit(sorted(found, key=lambda u: (-pressure(u), -u.size, u.first, _by_name(u))))


def hill_climbing(found: tuple[Unit, ...]) -> Placement:
    """Start from largest first; swap two units of the order while that does not make the arena larger. Deterministic."""
    order = sorted(found, key=lambda u: (-u.size, u.first, _by_name(u)))
    best = first_fit(order)
    bound, dice = lower_bound(found), random.Random(0)
    for _ in range(HILL_CLIMBING_STEPS if len(order) > 1 else 0):
        if size_of(best) == bound:
            break
        top = max(best, key=lambda u: (best[u] + u.size, _by_name(u)))
        trial = list(order)
        i, j = trial.index(top), dice.randrange(len(trial))
        trial[i], trial[j] = trial[j], trial[i]
        placement = first_fit(trial)
        if size_of(placement) <= size_of(best):
            order, best = trial, placement
    return best


def exact(found: tuple[Unit, ...]) -> Placement:
    """Branch and bound over placement orders: optimal among first-fit placements, which contain an optimum.

    (Take any optimal placement, sort by offset, and let every unit sink as first fit does: nothing gets higher.)
    """
    bound = lower_bound(found)
    best = min((greedy_by_size(found), greedy_by_conflicts(found)), key=size_of)

    def search(placed: Placement, left: tuple[Unit, ...], limit: int) -> Placement | None:
        if not left:
            return dict(placed)
        result = None
        for unit in left:
            at = lowest_gap(unit, placed)
            if at + unit.size >= limit or (placed and at < max(placed.values())):
                continue  # only orders of rising offsets need a look
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
    return search({}, tuple(sorted(found, key=lambda u: (-u.size, _by_name(u)))), size_of(best)) or best


PLANNERS: tuple[tuple[str, Planner], ...] = (
    ("greedy by size", greedy_by_size),
    ("greedy by conflicts", greedy_by_conflicts),
    ("hill climbing", hill_climbing),
)
