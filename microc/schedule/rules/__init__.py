"""Schedule rules: for every family of functions the loops that suit a core. Rules look at blocks and features, not at models.

A rule is ``(Schedule, Target) -> Schedule``. The blocks that operators make are their interface: ``patch`` (im2col rows),
``padded`` (input with its border), ``acc`` (the reduction), ``out`` (the elementwise end). Where several rules, or one rule with
several tiles, suit a function, all are candidates, and the cost model chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from microc.errors import ProgramError
from microc.schedule.choose import choose
from microc.schedule.rules.depthwise import schedule_depthwise
from microc.schedule.rules.depthwise_bytes import schedule_depthwise_bytes, suits_bytes
from microc.schedule.rules.depthwise_dsp import schedule_depthwise_dsp, suits_planes
from microc.schedule.rules.depthwise_float import schedule_depthwise_float, suits_float_planes
from microc.schedule.rules.depthwise_mve import schedule_depthwise_mve, suits_depthwise_mve
from microc.schedule.rules.elementwise import in_lanes, several
from microc.schedule.rules.generic import schedule_generic
from microc.schedule.rules.matrix import is_batched_matrix, is_matrix, schedule_matrix
from microc.schedule.rules.matrix_dsp import schedule_matrix_dsp, suits_dsp
from microc.schedule.rules.matrix_float import schedule_matrix_float, suits_float
from microc.schedule.rules.matrix_mve import schedule_matrix_mve, suits_mve
from microc.schedule.rules.matrix_pairs import is_paired, schedule_matrix_pairs
from microc.schedule.rules.matrix_quads import is_quad, schedule_matrix_quads
from microc.schedule.rules.matrix_rows import is_rows, schedule_matrix_rows
from microc.schedule.rules.moves import copied, picked
from microc.schedule.rules.rows import schedule_rows, suits_rows
from microc.schedule.rules.winograd import is_winograd, schedule_winograd, suits_winograd
from microc.schedule.schedule import Schedule
from microc.schedule.tree import find_block
from microc.sealed import Registry
from microc.target import SPEED, Goal, Target
from microc.tir import ir
from microc.tir.names import ACC


@dataclass(frozen=True, slots=True)
class ScheduleRule:
    """A rule of a user's own: what it makes of a function competes with what ours make, by the cost model and the goal.

    ``function(schedule, op, target)`` gives a schedule, several, or None where it has nothing to say; ``op`` is the first
    operator of the kernel. ``name`` is what reports show. ``alone``: what it makes is taken, whatever the model says.
    """

    name: str
    function: Callable[[Schedule, str, Target], Schedule | Sequence[Schedule] | None]
    alone: bool = False

    def schedules(self, func: ir.PrimFunc, op: str, target: Target) -> list[Schedule]:
        """What it makes; ProgramError where that are no schedules of the function."""
        made = self.function(Schedule(func), op, target)
        found = [] if made is None else [made] if isinstance(made, Schedule) else list(made)
        if any(not isinstance(each, Schedule) or each.start != func for each in found):
            raise ProgramError(
                f"schedule rule {self.name} gives no schedule of function {func.name}",
                hint="return what steps make of the schedule that it was given, or None",
            )
        return [each.named(self.name) for each in found]


RULES: Registry[ScheduleRule] = Registry("a schedule rule", {})
"""Those that the user adds for a compilation."""


def schedule_kernel(func: ir.PrimFunc, op: str, target: Target, goal: Goal = SPEED) -> Schedule:
    """The schedule for a lowered group whose anchor is ``op``; ``goal`` says what its flash may cost."""
    return choose(candidates(func, op, target, goal), target, goal).schedule


def candidates(func: ir.PrimFunc, op: str, target: Target, goal: Goal) -> tuple[Schedule, ...]:
    """The schedules to choose from, at least one; each carries the name that reports show. Users' own compete with ours."""
    own = [(rule, each) for rule in RULES.values() for each in rule.schedules(func, op, target)]
    alone = tuple(each for rule, each in own if rule.alone)
    found = alone or (*_loops(Schedule(func), op, target, goal), *(each for _, each in own))
    return tuple(_instructions(schedule, target) for schedule in found)


def as_written(func: ir.PrimFunc, target: Target) -> Schedule:
    """The loops as the operator wrote them."""
    return _instructions(Schedule(func), target).named("as written")


def _instructions(schedule: Schedule, target: Target) -> Schedule:
    """What the core does in one instruction, whatever the loops."""
    if not target.has("mve"):  # whose lanes know the form that the rounding has from the start
        schedule = schedule.select_rounding()
    if target.has("thumb1"):
        schedule = schedule.select_high_mul().select_clamp()
    if target.has("fma"):
        schedule = schedule.select_fma()
    if target.has("vcvtr"):
        schedule = schedule.select_conversion()
    return schedule.select_saturation() if target.has("sat") else schedule


def _loops(start: Schedule, op: str, target: Target, goal: Goal) -> tuple[Schedule, ...]:
    """What the rules make that suit an operator on a core. Loops without a turn have nothing to tile."""
    if start.has(ACC) and any(i.extent == 0 for i in find_block(start.func.body, ACC).iters):
        return (schedule_generic(start, target).named("generic"),)
    if is_rows(start):
        return tuple(schedule.named("matrix rows") for schedule in schedule_matrix_rows(start, target))
    if op in ("conv2d", "dense") and is_matrix(start) and suits_mve(start, target):
        return (schedule_matrix_mve(start).named("matrix mve"),)
    if is_paired(start):
        return (schedule_matrix_pairs(start, target).named("matrix pairs"),)
    if is_quad(start):
        return (schedule_matrix_quads(start, target).named("matrix quads"),)
    if op in ("conv2d", "convolution", "dense") and is_matrix(start):
        if suits_float(start, target):
            return (schedule_matrix_float(start, target).named("matrix float"),)
        if suits_dsp(start, target):
            return tuple(schedule.named("matrix dsp") for schedule in schedule_matrix_dsp(start, target, goal))
        return tuple(schedule.named("matrix") for schedule in schedule_matrix(start, target))
    if is_winograd(start):
        if suits_winograd(start, target):
            return (schedule_winograd(start, target).named("winograd"),)
        return (schedule_generic(start, target).named("generic"),)
    if op == "conv2d" and start.has(ACC):
        if suits_depthwise_mve(start, target):
            return (schedule_depthwise_mve(start).named("depthwise mve"),)
        if suits_planes(start, target):
            return (schedule_depthwise_dsp(start, target).named("depthwise dsp"),)
        if suits_float_planes(start, target):
            return (schedule_depthwise_float(start, target).named("depthwise float"),)
        if suits_bytes(start, target):
            return (schedule_depthwise_bytes(start, target).named("depthwise bytes"),)
        return (schedule_depthwise(start, target).named("depthwise"),)
    looped = schedule_generic(start, target).named("generic")
    unrolled = schedule_generic(start, target, unrolled=True).named("generic, unrolled")
    plain = (
        (looped, unrolled) if unrolled.func != looped.func else (looped, *(copied(looped, target) or several(start)))
    )
    plain = (*plain, *picked(start, target), *in_lanes(start, target))
    if suits_rows(start):
        by_row = (schedule_rows(start, target, unrolled=False), schedule_rows(start, target, unrolled=True))
        return (*plain, *(schedule.named("rows") for schedule in by_row))
    if op != "matmul" or not is_batched_matrix(start):
        return plain
    if suits_float(start, target):
        return (*plain, schedule_matrix_float(start, target).named("matrix float"))
    return (*plain, *(schedule.named("matrix") for schedule in schedule_matrix(start, target, words=False)))
