"""Schedule rules: for every family of functions the loops that suit a core. Rules look at blocks and features, not at models.

A rule is ``(Schedule, Target) -> Schedule``. The blocks that operators make are their interface: ``patch`` (im2col rows),
``padded`` (input with its border), ``acc`` (the reduction), ``out`` (the elementwise end).
"""

from __future__ import annotations

from microc.schedule.rules.depthwise import schedule_depthwise
from microc.schedule.rules.depthwise_dsp import schedule_depthwise_dsp, suits_planes
from microc.schedule.rules.depthwise_mve import schedule_depthwise_mve, suits_depthwise_mve
from microc.schedule.rules.generic import schedule_generic
from microc.schedule.rules.matrix import is_matrix, schedule_matrix
from microc.schedule.rules.matrix_dsp import schedule_matrix_dsp, suits_dsp
from microc.schedule.rules.matrix_mve import schedule_matrix_mve, suits_mve
from microc.schedule.schedule import Schedule
from microc.target import SPEED, Goal, Target
from microc.tir import ir


def schedule_kernel(func: ir.PrimFunc, op: str, target: Target, goal: Goal = SPEED) -> Schedule:
    """The schedule for a lowered group whose anchor is ``op``; ``goal`` says what its flash may cost."""
    schedule = _loops(Schedule(func), op, target)
    return schedule.select_saturation() if target.has("sat") else schedule


def _loops(start: Schedule, op: str, target: Target) -> Schedule:
    """The rule that suits an operator on a core."""
    if op in ("conv2d", "dense") and is_matrix(start) and suits_mve(start, target):
        return schedule_matrix_mve(start)
    if op in ("conv2d", "dense") and is_matrix(start):
        return schedule_matrix_dsp(start, target) if suits_dsp(start, target) else schedule_matrix(start, target)
    if op == "conv2d" and start.has("acc"):
        if suits_depthwise_mve(start, target):
            return schedule_depthwise_mve(start)
        if suits_planes(start, target):
            return schedule_depthwise_dsp(start, target)
        return schedule_depthwise(start, target)
    return schedule_generic(start, target)
