"""Depthwise convolutions of float32 on cores that multiply and add in one instruction: one channel at a time.

A channel's image is gathered into a plane with its border, where neighbours lie side by side; the weights and several sums
stay in registers. A channel is read before it is written: the output can lie over the input.
"""

from __future__ import annotations

from microc.schedule.placement import loop_extent, stored_buffer
from microc.schedule.rules.depthwise_dsp import depthwise_form
from microc.schedule.rules.generic import inline_elementwise
from microc.schedule.schedule import Schedule
from microc.schedule.tree import find_block
from microc.target import Target
from microc.tir import ir
from microc.tir.names import ACC, OUT, PADDED

TILES = (4, 5, 3, 2)
"""Outputs at once, the best first."""
MOST_TAPS = 25
"""More weights than this are no use in registers, and unrolling them is no use in flash."""


def suits_float_planes(schedule: Schedule, target: Target) -> bool:
    """Whether :func:`schedule_depthwise_float` applies: constant weights, one input channel for each output."""
    form = depthwise_form(schedule)
    if form is None or not target.has("fma") or form.times != 1:
        return False
    dtypes = {form.data.dtype, form.weight.dtype, form.total.dtype}
    return dtypes == {"float32"} and form.taps[0] * form.taps[1] <= MOST_TAPS


def schedule_depthwise_float(schedule: Schedule, target: Target) -> Schedule:
    """Channels outermost; for each the plane, then rows of tiles."""
    schedule = inline_elementwise(schedule)
    form = depthwise_form(schedule)
    assert form is not None
    n, y, x, c, *taps = schedule.loops_of(ACC)
    run, across = (x, y) if form.outputs[1] >= form.outputs[0] else (y, x)
    length = loop_extent(schedule.func, run)
    tile = next((t for t in TILES if length % t == 0), min(length, TILES[0]))
    schedule = schedule.split(run, (None, tile)).reorder(n, c, across, f"{run}_0", *taps, f"{run}_1")
    schedule = schedule.decompose_reduction(ACC, taps[0])
    plane = "padded"
    if not schedule.has(PADDED):
        schedule = schedule.cache_read(ACC, form.data.name, "workspace")
        plane = f"{form.data.name}_workspace"
    schedule = schedule.reverse_compute_at(OUT, f"{run}_0").set_scope(form.total.name, "register")
    block = find_block(schedule.func.body, plane)
    image = (1, 2) if run == x else (2, 1)
    whole = ((None,),) * 4
    schedule = schedule.transform_layout(stored_buffer(block).name, whole, (0, 3, *image))
    schedule = schedule.transform_layout(form.weight.name, whole[:3], (2, 0, 1)).compute_at(plane, c)
    inner = schedule.loops_of(plane)[-3:]
    schedule = schedule.reorder(*((inner[1], inner[0]) if run == y else inner[:2]))
    if isinstance(block.body, ir.Store) and isinstance(block.body.value, ir.Select):
        schedule = schedule.decompose_padding(plane)
    schedule = schedule.vectorize(inner[1] if run == x else inner[0])
    for loop in (*taps, f"{run}_1"):
        schedule = schedule.unroll(loop)
    outputs = next(name for name in reversed(schedule.loops_of(OUT)) if loop_extent(schedule.func, name) == tile)
    return schedule.unroll(schedule.loops_of("acc_init")[-1]).unroll(outputs)
