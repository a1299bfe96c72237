"""Depthwise and grouped convolutions in NHWC: taps unrolled, the sum in a register, one padded stripe of rows at a time."""

from __future__ import annotations

from microc.schedule.rules.generic import finish_reduction, inline_elementwise, pad_by_row, unroll_small
from microc.schedule.schedule import Schedule
from microc.target import Target


def schedule_depthwise(schedule: Schedule, target: Target) -> Schedule:
    """Loops n, y, x, c; the kernel's taps innermost."""
    schedule = inline_elementwise(schedule)
    schedule = finish_reduction(schedule, "acc")
    schedule = unroll_small(schedule, "acc")
    return pad_by_row(schedule)
