"""Depthwise convolutions of bytes on cores with MVE.

One channel at a time: its image is gathered into a plane with its border, where neighbours lie side by side; four outputs along
a row (or column) are sums of loaded vectors times the channel's weights (``mac_n``, the weights in core registers),
and are scaled by numbers and scattered to the channel's places. A channel is read before it is written: the output can lie over
the input. Images of one or two pixels take four channels at a time instead.
"""

from __future__ import annotations

from microc.schedule.placement import stored_buffer
from microc.schedule.rules.depthwise_dsp import Depthwise, depthwise_form
from microc.schedule.rules.generic import inline_elementwise, reduce_loops, unroll_small
from microc.schedule.rules.matrix_mve import vectorize_lanes
from microc.schedule.schedule import Schedule
from microc.schedule.tree import find_block
from microc.target import Target
from microc.tir import ir
from microc.tir.names import ACC, OUT, PADDED

LANES = 4
UNROLL = 32
"""Taps that are unrolled."""


def suits_depthwise_mve(schedule: Schedule, target: Target) -> bool:
    """A depthwise convolution of bytes by constant weights."""
    return target.has("mve") and depthwise_form(schedule) is not None


def schedule_depthwise_mve(schedule: Schedule) -> Schedule:
    """By planes where a row or column of the image fills most of a vector, else by channels."""
    schedule = inline_elementwise(schedule)
    form = depthwise_form(schedule)
    assert form is not None
    return _planes(schedule, form) if max(form.outputs) >= LANES - 1 else _channels(schedule, form)


def _planes(schedule: Schedule, form: Depthwise) -> Schedule:
    """Channels outermost; for each the plane, then rows of vectors."""
    names = schedule.loops_of(ACC)
    along = min((1, 2), key=lambda axis: -(-form.outputs[axis - 1] // LANES) * form.outputs[2 - axis])
    n, c, run, across = names[0], names[3], names[along], names[3 - along]
    channel: tuple[str, ...] = (c,)
    if form.times > 1:
        schedule, channel = schedule.split(c, (None, form.times)), (f"{c}_0", f"{c}_1")
    taps = reduce_loops(schedule, ACC)
    schedule = schedule.reorder(n, *channel, across, run, *taps).decompose_reduction(ACC, taps[0])
    plane = "padded"
    if not schedule.has(PADDED):
        schedule = schedule.cache_read(ACC, form.data.name, "workspace")
        plane = f"{form.data.name}_workspace"
    schedule = schedule.reverse_compute_at(OUT, run).set_scope(form.total.name, "register")
    buffer, image = stored_buffer(find_block(schedule.func.body, plane)).name, (1, 2) if along == 2 else (2, 1)
    whole = ((None,),) * 4
    schedule = schedule.transform_layout(buffer, whole, (0, 3, *image))
    schedule = schedule.transform_layout(form.weight.name, whole[:3], (2, *(axis - 1 for axis in image)))
    schedule = schedule.compute_at(plane, channel[0])
    inner = schedule.loops_of(plane)[-3:]
    schedule = schedule.reorder(*((inner[1], inner[0]) if along == 1 else inner[:2]))
    store = find_block(schedule.func.body, plane).body
    if isinstance(store, ir.Store) and isinstance(store.value, ir.Select):
        schedule = schedule.decompose_padding(plane)
        schedule = vectorize_lanes(schedule, schedule.loops_of(f"{plane}_fill")[-2])
    schedule = vectorize_lanes(schedule, inner[along - 1])
    return vectorize_lanes(unroll_small(schedule, ACC, taps, UNROLL), run)


def _channels(schedule: Schedule, form: Depthwise) -> Schedule:
    """Four channels at a time, pixel by pixel."""
    *_, channel, _, _ = schedule.loops_of(ACC)
    taps = reduce_loops(schedule, ACC)
    schedule = schedule.decompose_reduction(ACC, taps[0])
    schedule = schedule.reverse_compute_at(OUT, channel).set_scope(form.total.name, "register")
    return vectorize_lanes(unroll_small(schedule, ACC, taps, UNROLL), channel)
