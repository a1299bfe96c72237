"""What is done to every function for a core, before the steps of any rule and behind them."""

from __future__ import annotations

from microc.schedule.rules.algorithms import FAST_MATH
from microc.schedule.rules.anchors import with_anchors
from microc.schedule.rules.lanes import float_lanes
from microc.schedule.schedule import Schedule
from microc.target import Target
from microc.tir import ir


def begun(func: ir.PrimFunc, target: Target) -> Schedule:
    """The loops as the operator wrote them, in forms that rules look for: functions of floats as vectors have them; high products
    to which twice a sum means nothing of the sum itself, before rules store weights doubled for them."""
    schedule = with_anchors(Schedule(func))
    if target.has(FAST_MATH) and target.has("fpu"):
        schedule = _changed(schedule, schedule.select_functions(target.has("fma"), True))
    elif float_lanes(target):
        schedule = _changed(schedule, schedule.select_functions(target.has("fma")))
    if target.has("lanes") or target.has("high_mul"):
        return schedule
    return _changed(schedule, schedule.select_high_mac())


def _changed(schedule: Schedule, selected: Schedule) -> Schedule:
    """Without a step that changes nothing."""
    return schedule if selected.func == schedule.func else selected


def with_instructions(schedule: Schedule, target: Target) -> Schedule:
    """What the core does in one instruction, whatever the loops."""
    if not target.has("lanes"):  # whose lanes know the form that the rounding has from the start
        schedule = schedule.select_rounding()
    if target.has("high_mul"):
        schedule = schedule.select_high_mul()
    if target.has("clamp8"):
        schedule = schedule.select_clamp()
    if target.has("fma"):
        schedule = schedule.select_fma()
    if target.has("mul_i8"):
        schedule = schedule.select_byte_products()
    if target.has("nearest_i32"):
        schedule = schedule.select_conversion()
    return schedule.select_saturation() if target.has("saturate_i8") else schedule
