# SPDX-License-Identifier: Apache-2.0
"""Depthwise and grouped convolutions: plane by plane (one channel's image at a time) if the core's instructions make
that pay, else row by row.

The walks over a plane (orders in which outputs are computed) are instances of
:mod:`microc.schedule.rules.templates`. The rule that computes rows of all channels loads every weight again for two
outputs, but its code is short."""

from __future__ import annotations

from math import prod

from microc.base import dtypes
from microc.isa import TENSOR
from microc.isa.vocabulary.matrix_products import correlation_name
from microc.schedule.primitives.compute_at import loop_extent, stored_buffer
from microc.schedule.primitives.tree import find_block
from microc.schedule.rules.generic import (
    compute_padding_by_row,
    inline_elementwise,
    reduction_loops,
    unroll_small_loops,
)
from microc.schedule.rules.rule import Decisions, vectorize_lanes
from microc.schedule.rules.templates import Depthwise, Walk, is_product_of_loads, match_depthwise, walk_planes
from microc.schedule.schedule import Schedule
from microc.target import Goal, Target
from microc.tir import ir
from microc.tir.names import ACC, OUT, PADDED
from microc.tir.rewrite import walk_expr

ALL_TAPS = 1 << 30
"""Unroll limit that unrolls all taps."""


def schedule_by_planes(start: Schedule, target: Target, decisions: Decisions) -> Schedule:
    """Schedule a depthwise convolution plane by plane, for rules whose only decision is the walk over a plane."""
    return walk_planes(start, decisions["walk"])


def require_depthwise(start: Schedule) -> Depthwise:
    """Return the depthwise convolution of a function. A rule must have tested before that the function contains one."""
    form = match_depthwise(start)
    assert form is not None
    return form


def _longer_image_axis(depthwise: Depthwise) -> int:
    """Return the image axis with more outputs (1: y, 2: x)."""
    return 2 if depthwise.outputs[1] >= depthwise.outputs[0] else 1


# ---------------------------------------------------------------- pairs of int16 (``dot2``)

MOST_TERMS = 128
"""Largest product of the number of taps and the bytes of a data element. pad_reduction multiplies undefined int16
data by doubled int8 weights, and more terms could overflow int32: 128 * 2^15 * 2^8 = 2^30."""
ABREAST = (2, 4, 6)
"""Numbers of outputs of a tile. Only tiles are tried whose last pair has at least one output in every row."""
LEAST_USE = 1.5
"""Number of products per element of a plane from which it pays to copy the plane."""
WEIGHT_REGISTERS = 9
"""Number of words of weights that stay in registers, or cost no more than if they did. More words are loaded for
every tile."""
MAX_SUMS = 4
"""Number of sums that stay in registers. Each further sum costs :data:`SPILL_COST` instructions."""
SPILL_COST = 6
"""Instructions of a spilt sum."""
PARTIAL_TILE_COST = 5
"""Instructions of a partial tile in addition to its share of a whole tile."""
LOOP_COST = 6
"""Instructions per tile of the loop over tiles, if a row has several tiles."""
EPILOGUE_COST = 5
"""Instructions that requantise, clamp and store a sum."""
ROW_COST = 10
"""Instructions of the loop control around a row of tiles."""
NEAR_FEWEST = 1.05
"""Ratio of the estimated instructions of walks to the fewest up to which the cost model compares the walks. In 26
layers of three networks on Cortex-M4 the cost model's choice of all walks is among them, but for one, which is 2 %
cheaper."""


def matches_plane_pairs(start: Schedule, target: Target) -> bool:
    """Match a depthwise convolution of int8, uint8 or int16 data by int8 or int16 weights, summed in int32.

    Copying the plane of a channel must be worthwhile, and a tensor intrinsic must exist."""
    form = match_depthwise(start)
    if form is None or prod(form.taps) * dtypes.nbytes(form.data.dtype) > MOST_TERMS or form.total.dtype != "int32":
        return False
    bytewise = form.data.dtype in ("int8", "uint8") and form.weight.dtype in ("int8", "int16")
    narrow = bytewise or (form.data.dtype, form.weight.dtype) == ("int16", "int8")
    return narrow and _is_plane_copy_worthwhile(form) and bool(correlation_costs_and_walks(form))


def pair_walks(start: Schedule, target: Target, goal: Goal) -> tuple[Walk, ...]:
    """Return the walks over a plane whose estimated instructions for a channel are near the fewest. Of two walks along
    different image axes with the same estimate, the first is returned."""
    walks: dict[int, Walk] = {}
    for cost, walk in correlation_costs_and_walks(require_depthwise(start)):
        walks.setdefault(cost, walk)
    return tuple(walk for cost, walk in walks.items() if cost <= NEAR_FEWEST * min(walks))


def correlation_costs_and_walks(depthwise: Depthwise) -> list[tuple[int, Walk]]:
    """Return (instructions per channel, walk) of the walks over a plane for which a tensor intrinsic exists. Only
    the instructions in which walks differ are counted."""
    walks: list[tuple[int, Walk]] = []
    for axis in (1, 0) if depthwise.channels > 1 else (1,):
        length, lines = depthwise.outputs[axis], depthwise.outputs[1 - axis]
        # Dilated taps are not contiguous: each is a row of one tap.
        taps = depthwise.taps[axis] if depthwise.dilation[axis] == 1 else 1
        rows = depthwise.taps[1 - axis] * (depthwise.taps[axis] // taps)
        for tile in [n for n in ABREAST if n - 2 < length] if length > 1 else [1]:
            intrin = TENSOR.get(correlation_name(tile, taps, depthwise.strides[axis]))
            if intrin is None or (taps == 1 and depthwise.strides[axis] > 1):
                continue
            # A step of the intrinsic multiplies a word of data (left) by a word of weights (right); each word is loaded once.
            weights = rows * len({step.right for step in intrin.steps})
            loads = rows * len({step.left for step in intrin.steps}) + (weights if weights > WEIGHT_REGISTERS else 0)
            tile_cost = loads + rows * len(intrin.steps) + 3
            tiles, rest = divmod(length, tile)
            row_cost = tiles * (tile_cost + SPILL_COST * max(0, tile - MAX_SUMS) + (LOOP_COST if tiles > 1 else 0))
            rest_cost = tile_cost * rest / tile + PARTIAL_TILE_COST if rest else 0
            cost = round(lines * (ROW_COST + row_cost + rest_cost + length * EPILOGUE_COST))
            walks.append((cost, Walk(axis + 1, tile, ALL_TAPS, taps, intrin.name, plane="int16")))
    return walks


def _is_plane_copy_worthwhile(depthwise: Depthwise) -> bool:
    """Test whether it is worthwhile to copy the padded image of a channel (its plane), from which taps are then read.

    It is if the elements of the plane are used often enough and the plane is not larger than the input. A layer
    that works in place then needs a plane instead of its output, so that the memory does not grow."""
    height, width = (
        (n - 1) * stride + (taps - 1) * dilation + 1
        for n, stride, taps, dilation in zip(
            depthwise.outputs, depthwise.strides, depthwise.taps, depthwise.dilation, strict=True
        )
    )
    products = prod(depthwise.outputs) * prod(depthwise.taps) * depthwise.depth_multiplier
    if depthwise.channels == 1:  # only a stripe is copied, for every row of outputs, whose many channels share it
        return depthwise.taps[0] * width <= depthwise.outputs[1] * depthwise.depth_multiplier
    # The plane is int16: twice height * width bytes.
    return products >= LEAST_USE * height * width and 2 * height * width <= depthwise.pixels * depthwise.channels


# ---------------------------------------------------------------- one product at a time

FLOAT_TILES = (4, 5, 3, 2)
"""Numbers of outputs of a float tile in order of preference: the first number that divides all outputs is chosen."""
TILES = (2, 4)
"""Numbers of outputs of an integer tile that are worth comparing. Sums and weights share the registers."""
OTHER_REGISTERS = 6
"""Number of registers for addresses, a factor, and the multiplier and shift of requantisation."""
MOST_TAPS = 25
"""Largest number of taps whose weights stay in registers and are unrolled. More weights do not fit the registers,
and their code is too long."""
BYTE_TILE = 2
"""Number of outputs of a tile of bytes on Armv6-M."""
BYTE_TAPS = 16
"""Largest number of taps that are unrolled completely. If there are more, one row of taps is unrolled."""


def matches_single_products(start: Schedule, target: Target) -> bool:
    """Match a convolution with one output channel per input channel, and constant weights that stay in registers."""
    form = match_depthwise(start)
    if form is None or form.depth_multiplier > 1 or prod(form.taps) > MOST_TAPS:
        return False
    if set(form.dtypes) == {"float32"}:
        return target.has("fma")
    return form.total.dtype == "int32" and prod(form.taps) + TILES[0] + OTHER_REGISTERS <= target.core.costs.registers


def single_walks(start: Schedule, target: Target, goal: Goal) -> tuple[Walk, ...]:
    """Return the walks over a plane along the longer image axis whose weights and sums stay in registers."""
    form, run = require_depthwise(start), _longer_image_axis(require_depthwise(start))
    length, taps = max(form.outputs), prod(form.taps)
    if form.total.dtype == "float32":
        tile = next((t for t in FLOAT_TILES if length % t == 0), min(length, FLOAT_TILES[0]))
        return (Walk(run, tile, ALL_TAPS),)
    fits = (tile for tile in TILES if taps + tile + OTHER_REGISTERS <= target.core.costs.registers)
    return tuple(Walk(run, tile, ALL_TAPS) for tile in dict.fromkeys(min(tile, length) for tile in fits))


def matches_unsigned_bytes(start: Schedule, target: Target) -> bool:
    """Match a padded depthwise convolution of uint8 data by constant int8 weights, with one output channel per input
    channel (``ops/convolution/conv2d.py``)."""
    form = match_depthwise(start)
    return (
        form is not None
        and form.depth_multiplier == 1
        and start.has(PADDED)
        and form.dtypes == ("uint8", "int8", "int32")
    )


def byte_walks(start: Schedule, target: Target, goal: Goal) -> tuple[Walk, ...]:
    """Return the walk over a plane of bytes for Armv6-M, as a tuple of one. Weights are stored as words.

    Armv6-M can load a signed byte only at a register offset, but an unsigned byte or a word at a small immediate
    offset. A tap is then a load, a multiplication and an addition."""
    form = require_depthwise(start)
    taps = ALL_TAPS if prod(form.taps) <= BYTE_TAPS else form.taps[_longer_image_axis(form) - 1]
    return (Walk(_longer_image_axis(form), min(BYTE_TILE, max(form.outputs)), taps, words=True),)


# ---------------------------------------------------------------- vectors

LANES = 4
"""Number of int32 lanes of an MVE vector."""
LANE_TAPS = 32
"""Largest number of taps that are unrolled if outputs are in lanes."""
CHANNEL_TAPS = 5
"""Largest number of taps that are unrolled if channels are in lanes. gcc computes all products before it adds any,
and has eight vector registers for products, the sum and two operands."""


def matches_constant_weights(start: Schedule, target: Target) -> bool:
    """Match any depthwise convolution with constant weights."""
    return match_depthwise(start) is not None


CHANNELS = 0
"""Value of the decision ``axis`` that puts channels in lanes, instead of outputs along an image axis."""


def default_lane_axis(start: Schedule, target: Target, goal: Goal) -> tuple[int, ...]:
    """Return the image axis (1: y, 2: x) whose outputs need the fewest vectors, or :data:`CHANNELS` for images of one
    or two pixels; as a tuple of one.

    If both axes need the same number, rows are preferred: their pixels are closer in memory, so that pixels of up to
    17 channels are loaded at once."""
    form = require_depthwise(start)
    if max(form.outputs) < LANES - 1:
        return (CHANNELS,)
    return (min((2, 1), key=lambda axis: -(-form.outputs[axis - 1] // LANES) * form.outputs[2 - axis]),)


def schedule_in_mve_lanes(start: Schedule, target: Target, decisions: Decisions) -> Schedule | None:
    """Put four outputs along a row or column in the lanes of a vector, and compute ``abreast`` rows or columns at once.
    If the decision ``axis`` is :data:`CHANNELS`, put four channels in lanes, and compute ``abreast`` neighbouring
    pixels at once.

    Return None if the image is too small for the decisions."""
    form, run, abreast = require_depthwise(start), decisions["axis"], decisions["abreast"]
    if run == CHANNELS:
        return (
            schedule_channels_in_lanes(start, abreast)
            if abreast <= form.outputs[1] and (abreast == 1 or form.channels > 1)
            else None
        )
    if abreast > form.outputs[2 - run]:
        return None
    return walk_planes(start, Walk(run, LANES, decisions["taps"], lanes=True, abreast=abreast))


def schedule_channels_in_lanes(start: Schedule, pixel_count: int) -> Schedule:
    """Put channels in the lanes of a vector. ``pixel_count`` neighbouring pixels are computed at once and share the
    loaded weights."""
    schedule = inline_elementwise(start)
    x, channel = schedule.loops_of(ACC)[2:4]
    taps = reduction_loops(schedule, ACC)
    lanes, inner = channel, []
    if pixel_count > 1:
        schedule = schedule.split(x, (None, pixel_count)).split(channel, (None, LANES))
        channel, lanes, inner = f"{channel}_0", f"{channel}_1", [f"{x}_1"]
        schedule = schedule.reorder(f"{x}_0", channel, *taps, *inner, lanes)
    schedule = schedule.decompose_reduction(ACC, taps[0])
    schedule = schedule.reverse_compute_at(OUT, channel).set_scope(require_depthwise(start).total.name, "register")
    schedule = unroll_small_loops(schedule, ACC, taps, CHANNEL_TAPS)
    if not inner:
        return vectorize_lanes(schedule, channel)
    for block in (f"{ACC}_init", ACC, OUT):
        pixel, four = schedule.loops_of(block)[-2:]
        schedule = vectorize_lanes(schedule.unroll(pixel), four)
    return schedule


# ---------------------------------------------------------------- row by row

PIXELS = 2
"""Number of neighbouring outputs of a tile. They share the weights, and the input columns that both windows contain."""


def matches_window_sum(start: Schedule, target: Target) -> bool:
    """Match a sum of products over the windows of an image, in loops n, y, x and channel."""
    if not start.has(ACC):
        return False
    block = find_block(start.func.body, ACC)
    axis_kinds = [i.kind for i in block.iters]
    if (
        axis_kinds[:4] != ["space"] * 4
        or axis_kinds[4:] not in (["reduce"] * 2, ["reduce"] * 3)
        or len(start.loops_of(ACC)) != len(axis_kinds)
    ):
        return False
    store = block.body
    terms = walk_expr(store.value) if isinstance(store, ir.Store) else ()
    return start.has(OUT) and any(map(is_product_of_loads, terms)) and all(i.extent for i in block.iters)


def schedule_by_rows(start: Schedule, target: Target, _: Decisions) -> Schedule:
    """Keep the sums of neighbouring pixels in registers while the loops over taps run, channel by channel. Copy the
    padded input rows for one output row at a time."""
    schedule = inline_elementwise(start)
    around, reducing = schedule.loops_of(ACC), reduction_loops(schedule, ACC)
    x, channel, first = around[2], around[3], reducing[0]
    tiled = loop_extent(schedule.func, x) >= PIXELS
    if tiled:
        schedule = schedule.split(x, (None, PIXELS)).reorder(f"{x}_0", channel, *reducing, f"{x}_1")
    schedule = schedule.decompose_reduction(ACC, first)
    buffer = stored_buffer(find_block(schedule.func.body, ACC)).name
    schedule = schedule.reverse_compute_at(OUT, channel).set_scope(buffer, "register")
    schedule = unroll_small_loops(schedule, ACC, reducing)
    if tiled:
        out = schedule.loops_of(OUT)
        for loop in (f"{x}_1", f"{x}_1_init", next(n for n in out[-4:] if loop_extent(schedule.func, n) == PIXELS)):
            schedule = schedule.unroll(loop)
    return compute_padding_by_row(schedule, target)
