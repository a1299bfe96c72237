"""Choosing between schedules without measuring: each is lowered, counted by the cost model, and weighed by the goal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isinf

from microc.schedule.cost import Cost, estimate
from microc.schedule.schedule import Schedule
from microc.target import Goal, Target
from microc.tir import ir
from microc.tir.lower import lower

ALIKE = 1.02
"""Schedules whose instructions differ by less are told apart by cycles: the model does not see such differences."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The schedule that won, and its lowered function."""

    schedule: Schedule
    func: ir.PrimFunc


def choose(candidates: Sequence[Schedule], target: Target, goal: Goal, uses: int = 1) -> Choice:
    """The best of at least one schedule: the fewest instructions for speed, the fewest bytes of code and constants for size, in
    between the least sum at the goal's price. ``uses``: kernels of the network that are alike and share their code."""
    lowered = [Choice(schedule, lower(schedule.func)) for schedule in candidates]
    if len(lowered) == 1:
        return lowered[0]
    costs = [estimate(choice.func, target) for choice in lowered]
    weights = [weight(c, constant_bytes(s), goal, uses) for s, c in zip(candidates, costs, strict=True)]
    best = min(weights)
    if isinf(goal.price):
        return lowered[weights.index(best)]
    rivals = [k for k, w in enumerate(weights) if w[0] <= ALIKE * best[0]]
    return lowered[min(rivals, key=lambda k: costs[k].cycles)]


def weight(cost: Cost, constants: int, goal: Goal, uses: int) -> tuple[float, float]:
    """What a goal makes least, and what decides between equals. Alike kernels share code, but not constants (in bytes)."""
    flash, instructions = cost.code_bytes + uses * constants, uses * cost.instructions
    return (flash, instructions) if isinf(goal.price) else (instructions + goal.price * flash, flash)


def constant_bytes(schedule: Schedule) -> int:
    """Constants that a kernel reads, in the form that the schedule stores them in."""
    return sum(p.nbytes for p in schedule.func.params if p.scope == "const")
