"""Depthwise and grouped convolutions: by planes of a channel where a core has what pays for them, else row by row.

A plane's walks are instances of :mod:`microc.schedule.rules.templates`. Where one suits, rows of all channels only lose: they
load every weight again for two outputs.
"""

from __future__ import annotations

from math import prod

from microc.base import dtypes
from microc.isa import TENSOR
from microc.isa.vocabulary.matrix_products import correlation
from microc.schedule.primitives.compute_at import loop_extent, stored_buffer
from microc.schedule.primitives.tree import find_block
from microc.schedule.rules.generic import inline_elementwise, pad_by_row, reduce_loops, unroll_small
from microc.schedule.rules.rule import Decisions, vectorize_lanes
from microc.schedule.rules.templates import Depthwise, Walk, depthwise_of, multiplies, walk_planes
from microc.schedule.schedule import Schedule
from microc.target import Goal, Target
from microc.tir import ir
from microc.tir.names import ACC, OUT, PADDED
from microc.tir.rewrite import walk_expr

ALL_TAPS = 1 << 30
"""Every tap is written out."""


def by_planes(start: Schedule, target: Target, decisions: Decisions) -> Schedule:
    """The template, for rules whose one decision is the walk."""
    return walk_planes(start, decisions["walk"])


def known(start: Schedule) -> Depthwise:
    """What a function computes that is known to be a depthwise convolution."""
    form = depthwise_of(start)
    assert form is not None
    return form


def _longer(form: Depthwise) -> int:
    """The axis with more outputs."""
    return 2 if form.outputs[1] >= form.outputs[0] else 1


# ---------------------------------------------------------------- pairs of 16-bit numbers

MOST_TERMS = 128
"""Sums of more products, by bytes of data in each, could overflow on undefined 16-bit numbers times doubled bytes."""
ABREAST = (2, 4, 6)
"""Outputs at once, none of which is for nothing in every row."""
LEAST_USE = 1.5
"""A plane pays where its elements are multiplied that often on average."""
REGISTERS = 9
"""Words of weights that stay in registers or cost as much as if; more are loaded for every tile."""
SUMS = 4
"""Sums that stay in registers; each further one costs :data:`SPILL` instructions more."""
SPILL = 6
PART = 5
"""Instructions of a part of a tile beside its share."""
TURN = 6
"""Instructions of a loop over tiles, for each, where a row has several."""
END = 5
"""Instructions that scale, clamp and store a sum."""
ROW = 10
"""Instructions around a row of tiles."""


def suits_pairs(start: Schedule, target: Target) -> bool:
    """Bytes, or 16-bit numbers by bytes, into 32 bits, in planes that pay."""
    form = depthwise_of(start)
    if form is None or prod(form.taps) * dtypes.nbytes(form.data.dtype) > MOST_TERMS or form.total.dtype != "int32":
        return False
    bytewise = form.data.dtype in ("int8", "uint8") and form.weight.dtype in ("int8", "int16")
    narrow = bytewise or (form.data.dtype, form.weight.dtype) == ("int16", "int8")
    return narrow and _plane_pays(form) and bool(correlations(form))


def pair_walks(start: Schedule, target: Target, goal: Goal) -> tuple[Walk, ...]:
    """The one with the fewest instructions for a channel, as far as they differ."""
    return (min(correlations(known(start)), key=lambda x: x[0])[1],)


def correlations(form: Depthwise) -> list[tuple[int, Walk]]:
    """Walks by the intrinsics that there are, with the instructions that each takes for a channel, as far as they differ."""
    found: list[tuple[int, Walk]] = []
    for axis in (1, 0) if form.channels > 1 else (1,):
        length, lines = form.outputs[axis], form.outputs[1 - axis]
        taps = form.taps[axis] if form.dilation[axis] == 1 else 1
        rows = form.taps[1 - axis] * (form.taps[axis] // taps)
        for tile in [n for n in ABREAST if n - 2 < length] if length > 1 else [1]:
            intrin = TENSOR.get(correlation(tile, taps, form.strides[axis]))
            if intrin is None or (taps == 1 and form.strides[axis] > 1):
                continue
            weights = rows * len({step.right for step in intrin.steps})
            loads = rows * len({step.left for step in intrin.steps}) + (weights if weights > REGISTERS else 0)
            each = loads + rows * len(intrin.steps) + 3
            turns, rest = divmod(length, tile)
            tiles = turns * (each + SPILL * max(0, tile - SUMS) + (TURN if turns > 1 else 0))
            cost = round(lines * (ROW + tiles + (each * rest / tile + PART if rest else 0) + length * END))
            found.append((cost, Walk(axis + 1, tile, ALL_TAPS, taps, intrin.name, plane="int16")))
    return found


def _plane_pays(form: Depthwise) -> bool:
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


# ---------------------------------------------------------------- one product at a time

FLOAT_TILES = (4, 5, 3, 2)
"""Outputs at once, the best first."""
TILES = (2, 4)
"""Outputs at once that are worth comparing where weights take the same registers."""
BESIDE = 6
"""Registers for addresses, a factor and what scales a sum."""
MOST_TAPS = 25
"""More weights than this are no use in registers, and unrolling them is no use in flash."""
BYTE_TILE = 2
BYTE_TAPS = 16
"""Taps that are unrolled; of more, the rows of them are a loop."""


def suits_single(start: Schedule, target: Target) -> bool:
    """Constant weights that stay in registers, one input channel for each output."""
    form = depthwise_of(start)
    if form is None or form.times > 1 or prod(form.taps) > MOST_TAPS:
        return False
    if set(form.dtypes) == {"float32"}:
        return target.has("fma")
    return form.total.dtype == "int32" and prod(form.taps) + TILES[0] + BESIDE <= target.core.costs.registers


def single_walks(start: Schedule, target: Target, goal: Goal) -> tuple[Walk, ...]:
    """The weights and several sums stay in registers."""
    form, run = known(start), _longer(known(start))
    length, taps = max(form.outputs), prod(form.taps)
    if form.total.dtype == "float32":
        tile = next((t for t in FLOAT_TILES if length % t == 0), min(length, FLOAT_TILES[0]))
        return (Walk(run, tile, ALL_TAPS),)
    fits = (tile for tile in TILES if taps + tile + BESIDE <= target.core.costs.registers)
    return tuple(Walk(run, tile, ALL_TAPS) for tile in dict.fromkeys(min(tile, length) for tile in fits))


def suits_bytes(start: Schedule, target: Target) -> bool:
    """Unsigned data (``ops/convolution/conv2d.py``), constant weights, one output for each input channel."""
    form = depthwise_of(start)
    return form is not None and form.times == 1 and start.has(PADDED) and form.dtypes == ("uint8", "int8", "int32")


def byte_walks(start: Schedule, target: Target, goal: Goal) -> tuple[Walk, ...]:
    """Armv6-M loads a signed byte at a register's offset only, and unsigned ones at any small offset: with the weights as words
    beside the plane, a tap is a load, a multiplication and an addition."""
    form = known(start)
    taps = ALL_TAPS if prod(form.taps) <= BYTE_TAPS else form.taps[_longer(form) - 1]
    return (Walk(_longer(form), min(BYTE_TILE, max(form.outputs)), taps, words=True),)


# ---------------------------------------------------------------- vectors

LANES = 4
LANE_TAPS = 32
CHANNEL_TAPS = 5
"""Taps of four channels that are written out: gcc multiplies all of them before it adds any, and has eight vectors for products,
the sum and two operands."""


def suits_lanes(start: Schedule, target: Target) -> bool:
    """A depthwise convolution by constant weights."""
    return depthwise_of(start) is not None


CHANNELS = 0
"""Channels in lanes, not outputs along an axis of the image."""


def known_axis(start: Schedule, target: Target, goal: Goal) -> tuple[int, ...]:
    """By planes where a row or column of the image fills most of a vector; images of one or two pixels take four channels at a
    time instead. Of equals rows are better: their pixels lie closer (16 of up to 17 channels are loaded at once)."""
    form = known(start)
    if max(form.outputs) < LANES - 1:
        return (CHANNELS,)
    return (min((2, 1), key=lambda axis: -(-form.outputs[axis - 1] // LANES) * form.outputs[2 - axis]),)


def in_lanes(start: Schedule, target: Target, decisions: Decisions) -> Schedule | None:
    """Four outputs along a row or column are sums of loaded vectors times the channel's weights, some rows ``abreast``; or four
    channels of so many neighbouring pixels."""
    form, run, abreast = known(start), decisions["axis"], decisions["abreast"]
    if run == CHANNELS:
        return (
            by_channels(start, abreast) if abreast <= form.outputs[1] and (abreast == 1 or form.channels > 1) else None
        )
    if abreast > form.outputs[2 - run]:
        return None
    return walk_planes(start, Walk(run, LANES, decisions["taps"], lanes=True, abreast=abreast))


def by_channels(start: Schedule, pixels: int) -> Schedule:
    """Taps within vectors of channels, whose weights ``pixels`` neighbours share."""
    schedule = inline_elementwise(start)
    x, channel = schedule.loops_of(ACC)[2:4]
    taps = reduce_loops(schedule, ACC)
    lanes, inner = channel, []
    if pixels > 1:
        schedule = schedule.split(x, (None, pixels)).split(channel, (None, LANES))
        channel, lanes, inner = f"{channel}_0", f"{channel}_1", [f"{x}_1"]
        schedule = schedule.reorder(f"{x}_0", channel, *taps, *inner, lanes)
    schedule = schedule.decompose_reduction(ACC, taps[0])
    schedule = schedule.reverse_compute_at(OUT, channel).set_scope(known(start).total.name, "register")
    schedule = unroll_small(schedule, ACC, taps, CHANNEL_TAPS)
    if not inner:
        return vectorize_lanes(schedule, channel)
    for block in (f"{ACC}_init", ACC, OUT):
        pixel, four = schedule.loops_of(block)[-2:]
        schedule = vectorize_lanes(schedule.unroll(pixel), four)
    return schedule


# ---------------------------------------------------------------- row by row

PIXELS = 2
"""Neighbouring outputs computed at once: they share the weights and the columns of input between them."""


def suits_window(start: Schedule, target: Target) -> bool:
    """Sums of products over the windows of an image, for n, y, x and channels."""
    if not start.has(ACC):
        return False
    block = find_block(start.func.body, ACC)
    kinds = [i.kind for i in block.iters]
    if (
        kinds[:4] != ["space"] * 4
        or kinds[4:] not in (["reduce"] * 2, ["reduce"] * 3)
        or len(start.loops_of(ACC)) != len(kinds)
    ):
        return False
    store = block.body
    terms = walk_expr(store.value) if isinstance(store, ir.Store) else ()
    return start.has(OUT) and any(map(multiplies, terms)) and all(i.extent for i in block.iters)


def by_rows(start: Schedule, target: Target, _: Decisions) -> Schedule:
    """Loops n, y, x, channel; inside them the taps, and innermost the pixels of the tile; one padded stripe of rows at a time."""
    schedule = inline_elementwise(start)
    around, reducing = schedule.loops_of(ACC), reduce_loops(schedule, ACC)
    x, channel, first = around[2], around[3], reducing[0]
    tiled = loop_extent(schedule.func, x) >= PIXELS
    if tiled:
        schedule = schedule.split(x, (None, PIXELS)).reorder(f"{x}_0", channel, *reducing, f"{x}_1")
    schedule = schedule.decompose_reduction(ACC, first)
    buffer = stored_buffer(find_block(schedule.func.body, ACC)).name
    schedule = schedule.reverse_compute_at(OUT, channel).set_scope(buffer, "register")
    schedule = unroll_small(schedule, ACC, reducing)
    if tiled:
        out = schedule.loops_of(OUT)
        for loop in (f"{x}_1", f"{x}_1_init", next(n for n in out[-4:] if loop_extent(schedule.func, n) == PIXELS)):
            schedule = schedule.unroll(loop)
    return pad_by_row(schedule, target)
