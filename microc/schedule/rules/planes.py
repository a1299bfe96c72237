"""The register-tiling template of depthwise convolutions: one channel at a time, rows of outputs in registers.

A channel's image is copied into a plane with its border; there neighbours lie side by side, several outputs share each row of
taps, and the channel's weights, bias and scale stay in registers or are loop invariant. A channel is read before it is written:
the output can lie over the input. What cores differ in is a :class:`Walk`; ``rules/depthwise.py`` says which one suits.
"""

from __future__ import annotations

from math import prod

from microc.frozen import frozen
from microc.isa.vocabulary.words import FARTHEST
from microc.schedule.placement import loop_extent, stored_buffer
from microc.schedule.rules.generic import double_sums, inline_elementwise, unroll_small
from microc.schedule.rules.lanes import vectorize_lanes
from microc.schedule.schedule import Schedule
from microc.schedule.tree import find_block
from microc.tir import ir
from microc.tir.affine import linear
from microc.tir.names import ACC, OUT, PADDED, STRIDED
from microc.tir.rewrite import walk_expr

_WHOLE = ((None,),) * 4


@frozen
class Walk:
    """A choice: rows run along axis ``run`` (1: y, 2: x) of the image, ``tile`` outputs at once.

    ``intrin``: the tensor intrinsic that takes ``taps`` of a row, empty where taps are multiplied one by one. ``plane``: its
    elements' dtype, empty as they are; ``words``: the channel's weights are copied as words beside it. ``unroll``: taps that are
    written out. ``lanes``: outputs in the lanes of vectors, as many as those have; ``abreast``: so many vectors from neighbouring
    rows at once, which share what they load.
    """

    run: int
    tile: int
    unroll: int
    taps: int = 1
    intrin: str = ""
    plane: str = ""
    words: bool = False
    lanes: bool = False
    abreast: int = 1


@frozen
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

    @property
    def dtypes(self) -> tuple[str, str, str]:
        """Those of data, weights and sums."""
        return self.data.dtype, self.weight.dtype, self.total.dtype


def depthwise_of(schedule: Schedule) -> Depthwise | None:
    """What ``acc`` computes, if it is a depthwise convolution by constant weights."""
    if not schedule.has(ACC):
        return None
    block = find_block(schedule.func.body, ACC)
    store = block.body
    if [i.kind for i in block.iters] != ["space"] * 4 + ["reduce"] * 2 or not isinstance(store, ir.Store):
        return None
    loads = [x for x in walk_expr(store.value) if isinstance(x, ir.Load) and x.buffer != store.buffer]
    if len(loads) != 2 or len(loads[0].indices) != 4 or len(loads[1].indices) != 3:
        return None
    data, weight = loads
    _, y, x, c, ky, kx = block.iters
    if (
        weight.buffer.scope != "const"
        or weight.indices != (ky.var, kx.var, c.var)
        or any(i.extent == 0 for i in block.iters)
    ):
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


def walk_planes(start: Schedule, walk: Walk) -> Schedule:
    """Channels outermost; for each the plane, then rows of tiles."""
    schedule = inline_elementwise(start)
    form = depthwise_of(schedule)
    assert form is not None
    names = schedule.loops_of(ACC)
    n, c, run, across = names[0], names[3], names[walk.run], names[3 - walk.run]
    beside = [f"{across}_1"] if walk.abreast > 1 else []
    if beside:
        schedule, across = schedule.split(across, (None, walk.abreast)), f"{across}_0"
    along, rows = names[3 + walk.run], names[6 - walk.run]
    channel: tuple[str, ...] = (c,)
    if form.times > 1:
        schedule, channel = schedule.split(c, (None, form.times)), (f"{c}_0", f"{c}_1")
    outer = (n, across, *channel) if form.channels == 1 and walk.intrin else (n, *channel, across)
    tile, taps = f"{run}_0", [rows, along]
    if walk.lanes:
        tile, taps = run, [along, rows]
        schedule = schedule.reorder(*outer, run, *taps, *beside)
    elif walk.intrin:
        taps = [rows, f"{along}_0"]
        schedule = schedule.split(run, (None, walk.tile)).split(along, (None, walk.taps))
        schedule = schedule.reorder(*outer, tile, *taps, f"{run}_1", f"{along}_1")
    else:
        schedule = schedule.split(run, (None, walk.tile)).reorder(*outer, tile, *taps, f"{run}_1")
    schedule = schedule.decompose_reduction(ACC, taps[0])
    plane, weights = PADDED, ""
    if not schedule.has(PADDED):
        schedule, plane = schedule.cache_read(ACC, form.data.name, "workspace"), f"{form.data.name}_workspace"
    if walk.words:
        schedule = schedule.cache_read(ACC, form.weight.name, "workspace")
        weights = f"{form.weight.name}_workspace"
    if walk.intrin:
        schedule = schedule.pad_reduction(ACC)
    schedule = schedule.reverse_compute_at(OUT, tile).set_scope(form.total.name, "register")
    schedule = _laid_out(schedule, form, plane, walk)
    if walk.intrin:
        if form.weight.dtype == "int8":
            schedule = double_sums(schedule, form.weight.name)
        schedule = schedule.tensorize(f"{run}_1" if walk.tile > 1 else f"{along}_1", walk.intrin)
    if weights:
        taken = stored_buffer(find_block(schedule.func.body, weights)).name
        schedule = schedule.set_dtype(taken, "int32").compute_at(weights, outer[1])
    schedule = _filled(schedule.compute_at(plane, outer[1]), form, plane, walk)
    if walk.lanes:
        ends = (schedule.loops_of(f"{ACC}_init")[-1], schedule.loops_of(OUT)[-1 - walk.run], *beside) if beside else ()
        for loop in ends:
            schedule = schedule.unroll(loop)
        return vectorize_lanes(unroll_small(schedule, ACC, taps, walk.unroll), run)
    schedule = unroll_small(schedule, ACC, taps, walk.unroll)
    if not walk.intrin:
        schedule = schedule.unroll(f"{run}_1")
    outputs = schedule.loops_of(OUT)[walk.run - 4] if walk.intrin else _last(schedule, walk.tile)
    return schedule.unroll(schedule.loops_of(f"{ACC}_init")[-1]).unroll(outputs)


def _last(schedule: Schedule, extent: int) -> str:
    """The innermost loop of the end with so many turns."""
    return next(name for name in reversed(schedule.loops_of(OUT)) if loop_extent(schedule.func, name) == extent)


def _laid_out(schedule: Schedule, form: Depthwise, plane: str, walk: Walk) -> Schedule:
    """Rows along the walk, by channel; weights in the same order. Those of an intrinsic are 16-bit numbers."""
    image = (1, 2) if walk.run == 2 else (2, 1)
    buffer = stored_buffer(find_block(schedule.func.body, plane)).name
    schedule = schedule.transform_layout(buffer, _WHOLE, (0, 3, *image))
    if walk.plane and walk.plane != form.data.dtype:
        schedule = schedule.set_dtype(buffer, walk.plane)
    if walk.intrin:
        schedule = schedule.storage_align(buffer, 3, 2)
    schedule = schedule.transform_layout(form.weight.name, _WHOLE[:3], (2, *(axis - 1 for axis in image)))
    return schedule.set_dtype(form.weight.name, "int16") if walk.intrin and form.weight.dtype != "int16" else schedule


def _filled(schedule: Schedule, form: Depthwise, plane: str, walk: Walk) -> Schedule:
    """The plane's copy, which runs as it lies: its border apart, by vectors where there are any."""
    inner = schedule.loops_of(plane)[-3:]
    schedule = schedule.reorder(*((inner[1], inner[0]) if walk.run == 1 else inner[:2]))
    store = find_block(schedule.func.body, plane).body
    if isinstance(store, ir.Store) and isinstance(store.value, ir.Select) and (form.channels > 1 or not walk.intrin):
        schedule = schedule.decompose_padding(plane)
        if walk.lanes:
            schedule = vectorize_lanes(schedule, schedule.loops_of(f"{plane}_fill")[-2])
    if walk.lanes:
        run = inner[walk.run - 1]
        return vectorize_lanes(schedule, run).annotate(run, STRIDED, FARTHEST)
    return schedule if walk.words else schedule.vectorize(inner[walk.run - 1])
