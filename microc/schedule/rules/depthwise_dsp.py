"""Depthwise convolutions of bytes, or of 16-bit numbers by bytes, on cores with DSP instructions: one channel at a time.

A channel's image is copied into a plane of 16-bit numbers with its border; there neighbours lie side by side, and rows of taps
are multiplied by ``dot2``, two or four outputs at once. The weights, the bias and the scale stay in registers or are loop
invariant. A channel is read before it is written: the output can lie over the input.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from microc import dtypes
from microc.schedule.intrinsics import TENSOR
from microc.schedule.intrinsics.correlation import correlation
from microc.schedule.placement import stored_buffer
from microc.schedule.rules.generic import double_sums, inline_elementwise
from microc.schedule.schedule import Schedule
from microc.schedule.tree import find_block
from microc.target import Target
from microc.tir import ir
from microc.tir.affine import linear
from microc.tir.names import ACC, OUT, PADDED
from microc.tir.rewrite import walk_expr

MOST_TERMS = 128
"""Sums of more products, by bytes of data in each, could overflow on undefined 16-bit numbers times doubled bytes."""
LEAST_USE = 1.5
"""A plane pays where its elements are multiplied that often on average."""
REGISTERS = 9
"""Words of weights that stay in registers or cost as much as if; more are loaded for every tile."""
SUMS = 4
"""Sums that stay in registers; each further one costs :data:`SPILL` instructions more."""
SPILL = 2
END = 5
"""Instructions that scale, clamp and store a sum."""
ROW = 10
"""Instructions around a row of tiles."""


@dataclass(frozen=True, slots=True)
class Walk:
    """Rows run along axis ``run`` (1: y, 2: x) of the image; ``tile`` outputs at once by the tensor intrinsic ``intrin``,
    which takes ``taps`` of a row."""

    run: int
    tile: int
    taps: int
    intrin: str


@dataclass(frozen=True, slots=True)
class Depthwise:
    """The parts of ``acc``: factors, sum, and by axis (y, x): outputs, taps, stride, dilation; pixels and channels that the
    factor ``data`` has, outputs per channel."""

    data: ir.Buffer
    weight: ir.Buffer
    total: ir.Buffer
    outputs: tuple[int, int]
    taps: tuple[int, int]
    strides: tuple[int, int]
    dilation: tuple[int, int]
    pixels: int
    channels: int
    times: int


def depthwise_form(schedule: Schedule) -> Depthwise | None:
    """What ``acc`` computes, if it is a depthwise convolution by constant weights."""
    block = find_block(schedule.func.body, ACC)
    store = block.body
    if [i.kind for i in block.iters] != ["space"] * 4 + ["reduce"] * 2 or not isinstance(store, ir.Store):
        return None
    loads = [x for x in walk_expr(store.value) if isinstance(x, ir.Load) and x.buffer != store.buffer]
    if len(loads) != 2 or len(loads[0].indices) != 4 or len(loads[1].indices) != 3:
        return None
    data, weight = loads
    _, y, x, c, ky, kx = block.iters
    if weight.buffer.scope != "const" or weight.indices != (ky.var, kx.var, c.var):
        return None
    pitch = [linear(index)[0] for index in data.indices[1:3]]
    return Depthwise(
        data.buffer,
        weight.buffer,
        store.buffer,
        (y.extent, x.extent),
        (ky.extent, kx.extent),
        (pitch[0].get(y.var, 1), pitch[1].get(x.var, 1)),
        (pitch[0].get(ky.var, 1), pitch[1].get(kx.var, 1)),
        prod(data.buffer.shape[1:3]),
        data.buffer.shape[3],
        c.extent // data.buffer.shape[3],
    )


def choose_walk(form: Depthwise) -> Walk | None:
    """The walk with the fewest instructions for a channel, as far as they differ; None if none is possible."""
    found: list[tuple[int, Walk]] = []
    for axis in (1, 0) if form.channels > 1 else (1,):
        length, lines = form.outputs[axis], form.outputs[1 - axis]
        taps = form.taps[axis] if form.dilation[axis] == 1 else 1
        rows = form.taps[1 - axis] * (form.taps[axis] // taps)
        for tile in (2, 4, 6) if length > 1 else (1,):
            intrin = TENSOR.get(correlation(tile, taps, form.strides[axis]))
            if intrin is None or (taps == 1 and form.strides[axis] > 1):
                continue
            weights = rows * len({step.right for step in intrin.steps})
            loads = rows * len({step.left for step in intrin.steps}) + (weights if weights > REGISTERS else 0)
            each = loads + rows * len(intrin.steps) + SPILL * max(0, tile - SUMS) + 3
            cost = lines * (ROW + -(-length // tile) * each + length * END)
            found.append((cost, Walk(axis + 1, tile, taps, intrin.name)))
    return min(found, key=lambda x: x[0])[1] if found else None


def plane_pays(form: Depthwise) -> bool:
    """Whether a plane's elements are used often enough, and the plane is no larger than the input.

    A layer that works in place needs a plane instead of its output, so that even then no more memory is used.
    """
    height, width = (
        (n - 1) * stride + (taps - 1) * apart + 1
        for n, stride, taps, apart in zip(form.outputs, form.strides, form.taps, form.dilation, strict=True)
    )
    products = prod(form.outputs) * prod(form.taps) * form.times
    if form.channels == 1:  # a stripe for every row of outputs, which has many channels
        return form.taps[0] * width <= form.outputs[1] * form.times
    return products >= LEAST_USE * height * width and 2 * height * width <= form.pixels * form.channels


def suits_planes(schedule: Schedule, target: Target) -> bool:
    """Whether :func:`schedule_depthwise_dsp` applies."""
    if not target.has("dsp"):
        return False
    form = depthwise_form(schedule)
    if form is None or prod(form.taps) * dtypes.nbytes(form.data.dtype) > MOST_TERMS or form.total.dtype != "int32":
        return False
    bytewise = form.data.dtype in ("int8", "uint8") and form.weight.dtype in ("int8", "int16")
    narrow = bytewise or (form.data.dtype, form.weight.dtype) == ("int16", "int8")
    return narrow and plane_pays(form) and choose_walk(form) is not None


def schedule_depthwise_dsp(schedule: Schedule, target: Target) -> Schedule:
    """Channels outermost; for each the plane, then rows of tiles."""
    schedule = inline_elementwise(schedule)
    form = depthwise_form(schedule)
    walk = choose_walk(form) if form is not None else None
    assert form is not None and walk is not None
    names = schedule.loops_of(ACC)
    n, c, run, across = names[0], names[3], names[walk.run], names[3 - walk.run]
    taps, rows = names[3 + walk.run], names[6 - walk.run]
    channel: tuple[str, ...] = (c,)
    if form.times > 1:
        schedule, channel = schedule.split(c, (None, form.times)), (f"{c}_0", f"{c}_1")
    schedule = schedule.split(run, (None, walk.tile)).split(taps, (None, walk.taps))
    outer = (n, across, *channel) if form.channels == 1 else (n, *channel, across)
    schedule = schedule.reorder(*outer, f"{run}_0", rows, f"{taps}_0", f"{run}_1", f"{taps}_1")
    schedule = schedule.decompose_reduction(ACC, rows)
    plane = "padded"
    if not schedule.has(PADDED):
        schedule = schedule.cache_read(ACC, form.data.name, "workspace")
        plane = f"{form.data.name}_workspace"
    schedule = schedule.pad_reduction(ACC).reverse_compute_at(OUT, f"{run}_0")
    schedule = schedule.set_scope(form.total.name, "register")
    schedule = _widened(schedule, form, plane, walk)
    if form.weight.dtype == "int8":
        schedule = double_sums(schedule, form.weight.name)
    place = f"{run}_1" if walk.tile > 1 else f"{taps}_1"
    schedule = schedule.tensorize(place, walk.intrin).compute_at(plane, outer[1])
    padded = isinstance(_body(schedule, plane).value, ir.Select)
    inner = schedule.loops_of(plane)[-3:]
    schedule = schedule.reorder(*((inner[1], inner[0]) if walk.run == 1 else inner[:2]))
    if padded and form.channels > 1:
        schedule = schedule.decompose_padding(plane)
    schedule = schedule.vectorize(inner[walk.run - 1]).unroll(rows).unroll(f"{taps}_0")
    outputs = schedule.loops_of(OUT)[walk.run - 4]
    return schedule.unroll(schedule.loops_of("acc_init")[-1]).unroll(outputs)


def _body(schedule: Schedule, block: str) -> ir.Store:
    store = find_block(schedule.func.body, block).body
    assert isinstance(store, ir.Store)
    return store


def _widened(schedule: Schedule, form: Depthwise, plane: str, walk: Walk) -> Schedule:
    """Rows of 16-bit numbers along the walk, by channel; weights in the same order."""
    image = (1, 2) if walk.run == 2 else (2, 1)
    buffer = stored_buffer(find_block(schedule.func.body, plane)).name
    whole = ((None,),) * 4
    schedule = schedule.transform_layout(buffer, whole, (0, 3, *image))
    if form.data.dtype != "int16":
        schedule = schedule.set_dtype(buffer, "int16")
    schedule = schedule.storage_align(buffer, 3, 2)
    taps = tuple(axis - 1 for axis in image)
    schedule = schedule.transform_layout(form.weight.name, whole[:3], (2, *taps))
    return schedule.set_dtype(form.weight.name, "int16") if form.weight.dtype != "int16" else schedule
