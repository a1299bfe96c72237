"""Depthwise convolutions of bytes on cores without SIMD: one channel at a time, in unsigned bytes.

Armv6-M loads a signed byte at a register's offset only, and unsigned ones at any small offset. A channel's image becomes a
plane of unsigned bytes with its border (``unsigned`` in ``ops/convolution/conv2d.py``), and its weights words beside it: then a
tap is a load, a multiplication and an addition. The border is filled once. A channel is read before it is written: the output
can lie over the input.
"""

from __future__ import annotations

from math import prod

from microc.schedule.placement import loop_extent, stored_buffer
from microc.schedule.rules.depthwise_dsp import depthwise_form
from microc.schedule.rules.generic import inline_elementwise
from microc.schedule.schedule import Schedule
from microc.schedule.tree import find_block
from microc.target import Target
from microc.tir import ir
from microc.tir.names import ACC, OUT, PADDED

TILE = 2
"""Neighbouring outputs at once: they share weights and columns of the plane."""
MOST_TAPS = 16
"""Taps that are unrolled; more of them are a loop."""


def suits_bytes(schedule: Schedule, target: Target) -> bool:
    """Whether :func:`schedule_depthwise_bytes` applies: unsigned data, constant weights, one output for each input channel."""
    form = depthwise_form(schedule)
    if form is None or not target.has("thumb1") or form.times != 1 or form.total.dtype != "int32":
        return False
    return schedule.has(PADDED) and form.data.dtype == "uint8" and form.weight.dtype == "int8"


def schedule_depthwise_bytes(schedule: Schedule, target: Target) -> Schedule:
    """Channels outermost; for each the plane and the weights, then rows of tiles."""
    schedule = inline_elementwise(schedule)
    form = depthwise_form(schedule)
    assert form is not None
    n, y, x, c, *taps = schedule.loops_of(ACC)
    run, across = (x, y) if form.outputs[1] >= form.outputs[0] else (y, x)
    tile = min(TILE, loop_extent(schedule.func, run))
    schedule = schedule.split(run, (None, tile)).reorder(n, c, across, f"{run}_0", *taps, f"{run}_1")
    schedule = schedule.decompose_reduction(ACC, taps[0])
    schedule = schedule.cache_read(ACC, form.weight.name, "workspace")
    weights = f"{form.weight.name}_workspace"
    schedule = schedule.reverse_compute_at(OUT, f"{run}_0").set_scope(form.total.name, "register")
    block = find_block(schedule.func.body, PADDED)
    image = (1, 2) if run == x else (2, 1)
    whole = ((None,),) * 4
    schedule = schedule.transform_layout(form.data.name, whole, (0, 3, *image))
    schedule = schedule.transform_layout(form.weight.name, whole[:3], (2, 0, 1))
    taken = stored_buffer(find_block(schedule.func.body, weights)).name
    schedule = schedule.set_dtype(taken, "int32").compute_at(PADDED, c).compute_at(weights, c)
    inner = schedule.loops_of(PADDED)[-3:]
    schedule = schedule.reorder(*((inner[1], inner[0]) if run == y else inner[:2]))
    if isinstance(block.body, ir.Store) and isinstance(block.body.value, ir.Select):
        schedule = schedule.decompose_padding(PADDED)
    if prod(form.taps) <= MOST_TAPS:
        schedule = schedule.unroll(taps[0])
    for loop in (taps[1], f"{run}_1"):
        schedule = schedule.unroll(loop)
    outputs = next(name for name in reversed(schedule.loops_of(OUT)) if loop_extent(schedule.func, name) == tile)
    return schedule.unroll(schedule.loops_of("acc_init")[-1]).unroll(outputs)
