# SPDX-License-Identifier: Apache-2.0
"""Matrix products on cores with MVE: sums across lanes, then vectors of results.

The sums of a tile of pixels by channels accumulate in core registers (``dot_*`` intrinsics, which multiply 16 bytes
in an instruction) and are stored to a small array on the stack. From there four channels at a time are requantised,
clamped and stored. The activations of a tile are copied before its results are written, so that a pointwise layer
can work in place."""

from __future__ import annotations

from collections.abc import Sequence

from microc.base.immutable import frozen
from microc.isa.vocabulary.matrix_products import PRODUCT_SHAPES, ROW_DEPTHS
from microc.schedule.primitives.compute_at import loop_extent
from microc.schedule.rules.generic import split_contiguous_runs
from microc.schedule.rules.rule import Decisions, vectorize_lanes
from microc.schedule.rules.templates import (
    Product,
    cache_im2col_rows,
    inline_and_pack_columns,
    match_product,
    require_product,
)
from microc.schedule.schedule import Schedule
from microc.target import Goal, Target
from microc.tir.bit_fields import LANES as LANES_OF_BYTES
from microc.tir.bit_fields import VECTOR, BitFields
from microc.tir.names import ACC, OUT, PATCH, PRODUCT

TALL, WIDE = 3, 2
"""Pixels and channels of one product: six sums from five loaded vectors."""
ROW = 4
"""Channels of one product of a single pixel."""
STRETCH, LONG = 32, 128
"""Number of channels whose sums are on the stack at once: for a tile of pixels, and for a single pixel."""
STRETCHES = (16, 24, 32, 40, 48, 64, 96, 128)
"""Numbers of channels on the stack that a search tries."""
WAITING = 128
"""Most sums on the stack: tasks of firmware have a stack of a kilobyte or two."""


@frozen
class Sums:
    """The decision of the rule. One product computes ``rows`` by ``columns`` sums; the sums of ``stretch``
    neighbouring channels are on the stack at once."""

    rows: int
    columns: int
    stretch: int


KNOWN = frozenset({("int8", "int8"), ("uint8", "int8"), ("int16", "int8"), ("int8", "int16"), ("int16", "int16")})
"""(dtype of data, dtype of weights) that one instruction multiplies."""


def matches_mve(start: Schedule, target: Target) -> bool:
    """Match a product of data by weights of 8 or 16 bits, or of int8 by bit-packed weights, summed in int32. Both
    operands are contiguous along K."""
    product = match_product(start)
    if product is None or not product.contiguous_along_k or product.total.dtype != "int32":
        return False
    if product.bits:
        return (
            not (product.block or product.tables)
            and product.data.dtype == "int8"
            and product.depth % BitFields(product.bits, VECTOR).group == 0
        )
    return (product.data.dtype, product.weight.dtype) in KNOWN and product.depth > 1


def default_sums(start: Schedule, target: Target, goal: Goal) -> Sequence[Sums]:
    """Return the sums that the cost model compares: for bytes six sums from five vectors, for a single row four
    sums. If a row stays in registers, also a product over a whole stretch of channels."""
    product = require_product(start)
    rows = min(product.rows, TALL if product.data.dtype == product.weight.dtype == "int8" else WIDE)
    columns = min(product.columns, WIDE if rows > 1 else ROW)
    stretch, columns = _stretch_and_product_channels(product.columns, columns, STRETCH if rows > 1 else LONG)
    default = Sums(rows, columns, stretch)
    return (
        (Sums(rows, stretch, stretch), default)
        if rows == 1 and _row_stays_in_registers(product, stretch)
        else (default,)
    )


def _row_stays_in_registers(product: Product, channel_count: int) -> bool:
    """Test whether a row of bytes is short enough to stay in vector registers while the weights of ``channel_count``
    channels, which must be contiguous, are loaded."""
    bytes_by_bytes = product.data.dtype == product.weight.dtype == "int8" and not product.bits
    even = channel_count % 2 == 0 and product.columns % channel_count == 0 and channel_count > ROW
    return bytes_by_bytes and even and product.depth in ROW_DEPTHS and product.weight.shape[-1] == product.depth


def search_sums(start: Schedule, target: Target, goal: Goal) -> Sequence[Sums]:
    """Return the sums that a search tries: every product for which an intrinsic exists, in stretches of whole
    products that divide all channels."""
    product = require_product(start)
    weights = f"int{product.bits}" if product.bits else product.weight.dtype
    stretches = [n for n in (*STRETCHES, product.columns) if product.columns % n == 0 and n <= STRETCHES[-1]]
    sums = [
        Sums(rows, columns, stretch)
        for a, b, rows, columns in PRODUCT_SHAPES
        for stretch in dict.fromkeys(stretches)
        if (a, b) == (product.data.dtype, weights)
        and rows <= product.rows
        and stretch % columns == 0
        and rows * stretch <= WAITING
    ]
    return tuple(dict.fromkeys((*default_sums(start, target, goal), *sums)))


def schedule_matrix_mve(start: Schedule, target: Target, decisions: Decisions) -> Schedule:
    """Tile the loops over pixels, inside them split the channels into stretches, and inside these compute products
    over the whole K. Lowering replaces the products by intrinsics."""
    schedule, sums = inline_and_pack_columns(start, target), decisions["sums"]
    product = require_product(schedule)
    p, o, k = product.p, product.o, product.k
    rows, columns, stretch = sums.rows, sums.columns, sums.stretch
    patch = ""  # a single row is read in place
    if product.rows > 1 or schedule.has(PATCH):
        schedule, patch = cache_im2col_rows(schedule, product)
    schedule = schedule.split(p, (None, rows)).split(o, (None, stretch))
    terms: tuple[str, ...] = (k,)
    if product.bits:
        form = BitFields(product.bits, VECTOR)
        schedule = schedule.pack_bits(product.weight.name, form.bits, VECTOR).split(
            k, (None, form.count, LANES_OF_BYTES)
        )
        terms = tuple(f"{k}_{n}" for n in range(3))
    schedule = schedule.reorder(f"{p}_0", *product.inner_loops, f"{o}_0", f"{p}_1", f"{o}_1", *terms)
    if rows > 1:  # sums start from zero; the epilogue adds the bias to vectors of them
        schedule = schedule.defer_init(ACC)
    schedule = schedule.reverse_compute_at(OUT, f"{o}_0").set_scope(product.total.name, "local")
    schedule = schedule.split(f"{o}_1", (None, columns)).reorder(f"{o}_1_0", f"{p}_1", f"{o}_1_1")
    schedule = schedule.decompose_reduction(ACC, f"{p}_1")
    for loop in (f"{p}_1", f"{o}_1_1", *terms, *schedule.loops_of(f"{ACC}_init")[-2:]):
        schedule = schedule.annotate(loop, PRODUCT, 1)
    if patch:
        schedule = vectorize_gather(schedule.compute_at(patch, product.tile), patch)
    row, column = schedule.loops_of(OUT)[-2:]
    return vectorize_lanes(schedule.reorder(column, row).unroll(row), column)


def _stretch_and_product_channels(
    total_channels: int, product_channels: int, max_stretch_channels: int
) -> tuple[int, int]:
    """Return (channels of a stretch, channels of a product). A stretch has at most ``max_stretch_channels`` channels.

    The stretch is preferably a multiple of ``product_channels``, the channels of a product, that divides all channels
    (``total_channels``). If only a small number divides them, the last stretch is shorter, and products have one channel,
    because a product of several channels would cross the end of the stretch."""
    if total_channels <= max_stretch_channels:
        return total_channels, product_channels
    divisors = [n for n in range(max_stretch_channels, max_stretch_channels // 4, -1) if total_channels % n == 0]
    if not divisors:
        return max_stretch_channels, 1
    return next((n for n in divisors if n % product_channels == 0), divisors[0]), product_channels


def vectorize_gather(schedule: Schedule, block: str) -> Schedule:
    """Copy contiguous elements of the source of a gathering block by vectors."""
    schedule = split_contiguous_runs(schedule, block)
    inner = schedule.loops_of(block)[-1]
    return vectorize_lanes(schedule, inner) if loop_extent(schedule.func, inner) > 1 else schedule
