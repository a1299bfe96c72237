"""Depthwise and grouped convolutions in NHWC: taps unrolled, sums in registers, one padded stripe of rows at a time."""

from __future__ import annotations

from microc.schedule.placement import loop_extent, stored_buffer
from microc.schedule.rules.generic import inline_elementwise, pad_by_row, reduce_loops, unroll_small
from microc.schedule.schedule import Schedule
from microc.schedule.tree import find_block
from microc.target import Target
from microc.tir.names import ACC, OUT

PIXELS = 2
"""Neighbouring outputs computed at once: they share the weights and the columns of input between them."""


def schedule_depthwise(schedule: Schedule, target: Target) -> Schedule:
    """Loops n, y, x, channel; inside them the taps, and innermost the pixels of the tile."""
    schedule = inline_elementwise(schedule)
    around, reducing = schedule.loops_of(ACC), reduce_loops(schedule, ACC)
    x, channel = around[2], around[3]
    tiled = loop_extent(schedule.func, x) >= PIXELS
    start = reducing[0]
    if tiled:
        schedule = schedule.split(x, (None, PIXELS)).reorder(f"{x}_0", channel, *reducing, f"{x}_1")
    schedule = schedule.decompose_reduction(ACC, start)
    buffer = stored_buffer(find_block(schedule.func.body, ACC)).name
    schedule = schedule.reverse_compute_at(OUT, channel).set_scope(buffer, "register")
    schedule = unroll_small(schedule, ACC, reducing)
    if tiled:
        out = schedule.loops_of(OUT)
        for loop in (f"{x}_1", f"{x}_1_init", next(n for n in out[-4:] if loop_extent(schedule.func, n) == PIXELS)):
            schedule = schedule.unroll(loop)
    return pad_by_row(schedule, target)
