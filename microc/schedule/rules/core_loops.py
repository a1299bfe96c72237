# SPDX-License-Identifier: Apache-2.0
"""Distribution of large loops among the cores of a board, in any schedule, after it was chosen.

A loop is worth a fork and a join from ``Target.min_fork_instructions`` instructions on, a fact of the board's port. The
outermost loop is distributed. If it has few iterations, so that the larger half is much more than a half, the loops inside of it
may be distributed instead: then each of its iterations forks. The plan with the shortest path is taken; the path is what the
slower core runs, and all that one core runs alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from microc.base.immutable import frozen
from microc.errors import ScheduleError
from microc.schedule.choose import Choice
from microc.schedule.cost.cost_model import estimate
from microc.schedule.primitives.tree import find_loop
from microc.schedule.rules.around_rules import (
    are_iterations_independent,
    count_block_instances,
    has_partial_iteration,
    iterate_outermost_loops,
)
from microc.schedule.schedule import Schedule
from microc.target import Target
from microc.tir import ir
from microc.tir.lower import lower
from microc.tir.verify import constant_names, explain_fault

FORK_SHARE = 10
"""A fork and a join cost this part of the least work that is worth them (``Target.min_fork_instructions``): measured as 49 of 500
instructions on Cortex-M33."""


@frozen
class _Plan:
    """Loops to distribute, and the instructions of the path through them."""

    path: float
    loops: tuple[str, ...] = ()


def distribute_among_cores(choice: Choice, target: Target) -> Choice:
    """Distribute the large loops of a chosen schedule among the cores that the target uses.

    Loops whose iterations depend on each other stay serial. The result is the same choice if no loop is worth a fork."""
    if target.cores == 1:
        return choice
    total, start = estimate(choice.func, target).instructions, choice.schedule
    work = {loop.var.name: count_block_instances(loop) for loop in iterate_outermost_loops(start.func.body)}
    for name, instances in work.items():
        # A loop's share of the instructions is its share of all instances of blocks.
        instructions = total * instances / sum(work.values()) if instances else 0.0
        for plan in _list_plans(start, find_loop(start.func.body, name), instructions, target.min_fork_instructions):
            distributed = _distribute_loops(choice, plan.loops)
            if distributed is not None:
                choice = distributed
                break
    return choice


def _list_plans(schedule: Schedule, loop: ir.For, instructions: float, least: int) -> list[_Plan]:
    """List the plans for a loop that runs ``instructions`` instructions, in the order of their paths. Plans that gain nothing are
    left out.

    ``least``: instructions of a loop that is worth a fork."""
    if instructions < least:
        return []
    plans = (
        *_distribute_itself(schedule, loop, instructions, least),
        *_distribute_inside(schedule, loop, instructions, least),
    )
    return sorted((plan for plan in plans if plan.path < instructions), key=lambda plan: (plan.path, len(plan.loops)))


def _distribute_itself(schedule: Schedule, loop: ir.For, instructions: float, least: int) -> Iterator[_Plan]:
    """Yield the plan that distributes the loop itself, if its iterations are independent."""
    count = ir.int_value(loop.extent) or 0
    tail = has_partial_iteration(loop)
    full = count - tail
    if full >= 2 and _is_distributable(schedule, loop):
        slower = max(full - full // 2, full // 2 + tail)
        yield _Plan(instructions * slower / count + least / FORK_SHARE, (loop.var.name,))


def _distribute_inside(schedule: Schedule, loop: ir.For, instructions: float, least: int) -> Iterator[_Plan]:
    """Yield the plan that distributes loops inside of the loop, each by the best plan for itself alone."""
    count, instances = ir.int_value(loop.extent) or 0, count_block_instances(loop)
    if not count or not instances or loop.kind != "serial":
        return
    path, names = 0.0, tuple[str, ...]()
    for inner in iterate_outermost_loops(loop.body):
        share = instructions * count_block_instances(inner) / instances / count
        best = next(iter(_list_plans(schedule, inner, share, least)), _Plan(share))
        path, names = path + best.path, names + best.loops
    if names:
        yield _Plan(count * path, names)


def _is_distributable(schedule: Schedule, loop: ir.For) -> bool:
    """Test whether the iterations of a loop can be divided among cores: they are independent, and sum nothing up."""
    try:
        schedule.distribute(loop.var.name, 2)
    except ScheduleError:
        return False
    return loop.kind == "serial" and are_iterations_independent(schedule.func, loop)


def _distribute_loops(choice: Choice, names: tuple[str, ...]) -> Choice | None:
    """Distribute the loops ``names`` of a chosen schedule. None if the verifier cannot prove that the function stays within
    buffers."""
    schedule = choice.schedule
    for name in names:
        schedule = schedule.distribute(name, 2)
    lowered = lower(schedule.func)
    if explain_fault(lowered, tables=constant_names(lowered)):
        return None
    return replace(choice, schedule=schedule, func=lowered)
