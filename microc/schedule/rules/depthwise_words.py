"""Depthwise convolutions of bytes on cores without SIMD: one channel at a time, in words.

Armv6-M loads a signed byte at a register's offset only, and words at any small one. A channel's image is widened into a plane of
words with its border, and its weights beside it: then a tap is a load, a multiplication and an addition. The border is filled
once. A channel is read before it is written: the output can lie over the input.
"""

from __future__ import annotations

from math import prod

from microc.schedule.placement import loop_extent, stored_buffer
from microc.schedule.rules.depthwise_dsp import Depthwise, depthwise_form
from microc.schedule.rules.generic import inline_elementwise
from microc.schedule.schedule import Schedule
from microc.schedule.tree import find_block
from microc.target import Target
from microc.tir import ir

TILE = 2
"""Neighbouring outputs at once: they share weights and columns of the plane."""
MOST_TAPS = 16
"""Taps that are unrolled; more of them are a loop."""
WORD = 4


def suits_words(schedule: Schedule, target: Target) -> bool:
    """Whether :func:`schedule_depthwise_words` applies: constant weights, one output for each input channel, and a plane that is
    no larger than the input."""
    form = depthwise_form(schedule)
    if form is None or not target.has("thumb1") or form.times != 1 or form.total.dtype != "int32":
        return False
    return form.data.dtype == "int8" and form.weight.dtype == "int8" and _plane_bytes(form) <= form.pixels * form.channels


def _plane_bytes(form: Depthwise) -> int:
    """Bytes of a plane."""
    sizes = zip(form.outputs, form.strides, form.taps, form.dilation, strict=True)
    return WORD * prod((n - 1) * stride + (taps - 1) * apart + 1 for n, stride, taps, apart in sizes)


def schedule_depthwise_words(schedule: Schedule, target: Target) -> Schedule:
    """Channels outermost; for each the plane and the weights, then rows of tiles."""
    schedule = inline_elementwise(schedule)
    form = depthwise_form(schedule)
    assert form is not None
    n, y, x, c, *taps = schedule.loops_of("acc")
    run, across = (x, y) if form.outputs[1] >= form.outputs[0] else (y, x)
    tile = min(TILE, loop_extent(schedule.func, run))
    schedule = schedule.split(run, (None, tile)).reorder(n, c, across, f"{run}_0", *taps, f"{run}_1")
    schedule = schedule.decompose_reduction("acc", taps[0])
    plane = "padded"
    if not schedule.has("padded"):
        schedule = schedule.cache_read("acc", form.data.name, "workspace")
        plane = f"{form.data.name}_workspace"
    schedule = schedule.cache_read("acc", form.weight.name, "workspace")
    weights = f"{form.weight.name}_workspace"
    schedule = schedule.reverse_compute_at("out", f"{run}_0").set_scope(form.total.name, "register")
    block = find_block(schedule.func.body, plane)
    image = (1, 2) if run == x else (2, 1)
    whole = ((None,),) * 4
    buffer = stored_buffer(block).name
    schedule = schedule.transform_layout(buffer, whole, (0, 3, *image)).set_dtype(buffer, "int32")
    schedule = schedule.transform_layout(form.weight.name, whole[:3], (2, 0, 1))
    taken = stored_buffer(find_block(schedule.func.body, weights)).name
    schedule = schedule.set_dtype(taken, "int32").compute_at(plane, c).compute_at(weights, c)
    inner = schedule.loops_of(plane)[-3:]
    schedule = schedule.reorder(*((inner[1], inner[0]) if run == y else inner[:2]))
    if isinstance(block.body, ir.Store) and isinstance(block.body.value, ir.Select):
        schedule = schedule.decompose_padding(plane)
    if prod(form.taps) <= MOST_TAPS:
        schedule = schedule.unroll(taps[0])
    for loop in (taps[1], f"{run}_1"):
        schedule = schedule.unroll(loop)
    outputs = next(name for name in reversed(schedule.loops_of("out")) if loop_extent(schedule.func, name) == tile)
    return schedule.unroll(schedule.loops_of("acc_init")[-1]).unroll(outputs)
