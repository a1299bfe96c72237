# SPDX-License-Identifier: Apache-2.0
"""Matrix products on units for many products at once: on tensor units, and on the vector unit of cores with MVE.

Tensor units: tiles are loaded into the unit's memories and multiplied there, and sums are stored for the processor. The
processor copies the rows of a convolution's patches, one strip (some rows of the product) at a time, and
requantises the sums. Weights stay in the unit's memory for the whole layer, or each tile of weights is loaded when
it is needed. The same choice exists for the inputs of a strip. Of all blockings that fit the memories twice (double
buffering), the rule chooses the one with the fewest cycles by the unit's cost rule. Loads overlap products, so that
only the longer of the two counts.

MVE: sums across lanes, then vectors of results. The sums of a tile of pixels by channels accumulate in core registers
(``dot_*`` intrinsics, which multiply 16 bytes in an instruction) and are stored to a small array on the stack. From
there four channels at a time are requantised, clamped and stored. The activations of a tile are copied before its
results are written, so that a pointwise layer can work in place."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from microc.base.immutable import frozen
from microc.isa.instruction_set import TensorUnit
from microc.isa.vocabulary.matrix_products import PRODUCT_SHAPES, ROW_DEPTHS
from microc.numerics import round_up_to_multiple
from microc.schedule.primitives.compute_at import loop_extent
from microc.schedule.primitives.tree import find_block
from microc.schedule.rules.generic import split_contiguous_runs, vectorize_copy
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
from microc.tir import ir
from microc.tir.bit_fields import LANES as LANES_OF_BYTES
from microc.tir.bit_fields import VECTOR, BitFields
from microc.tir.names import ACC, COLUMNS, OUT, PATCH, PRODUCT

STRIP, PATCHES = 4 * 1024, 8 * 1024
"""Most bytes of the sums that the processor requantises at once, and most bytes of a strip's patches, if these
exceed the unit's tile. Both are in the network's RAM."""
INPUT, WEIGHT, SUMS = ir.UNIT_SCOPES
TAIL = 0.05
"""Penalty for each kind of partial tile, as a fraction of the cycles, because a partial tile is code of its own."""


@frozen
class Blocking:
    """A decision of the rule: how a matrix product is split into tiles for a tensor unit.

    - ``rows``: rows of a strip; ``columns``, ``depth``: columns and terms of a tile.
    - ``resident``: True if the weights are loaded once, before all strips.
    - ``held``: True if the inputs of a strip are loaded once, before all its tiles.
    - ``late``: True if the processor waits for the sums of a whole strip. The sums of a tile are then stored while
      the next tile is multiplied."""

    rows: int
    columns: int
    depth: int
    resident: bool
    held: bool
    late: bool


def matches_unit_product(start: Schedule, target: Target) -> bool:
    """Match a product of int8 by int8, summed in int32, whose operands are contiguous along K. Grouped products and
    right operands that are runtime data are left to the processor."""
    product = match_product(start)
    if product is None or not product.contiguous_along_k or product.inner_loops or product.bits or start.has(COLUMNS):
        return False
    return product.dtypes == ("int8", "int8", "int32") and product.total not in start.func.params


def default_blockings(start: Schedule, target: Target, goal: Goal) -> Sequence[Blocking]:
    """Return the blocking with the fewest cycles by the unit's cost rule, as a sequence of one; empty if a row of
    the matrix exceeds the unit's memories."""
    unit, product = target.core.tensor_unit, require_product(start)
    assert unit is not None
    fitting = tuple(_fitting_blockings(unit, product, patches=start.has(PATCH)))
    return (min(fitting, key=lambda b: _rank_by_cycles(unit, product, b)),) if fitting else ()


def search_blockings(start: Schedule, target: Target, goal: Goal) -> Sequence[Blocking]:
    """Return all blockings that fit the unit's memories."""
    unit = target.core.tensor_unit
    assert unit is not None
    return tuple(_fitting_blockings(unit, require_product(start), patches=start.has(PATCH)))


def _fitting_blockings(unit: TensorUnit, product: Product, *, patches: bool) -> Iterator[Blocking]:
    """Iterate over the blockings that fit the unit's memories. Buffers that are loaded repeatedly must fit twice
    (double buffering)."""
    resides = product.columns * round_up_to_multiple(product.depth, unit.weight.align) <= unit.weight.nbytes
    for rows, columns in itertools.product(
        _candidate_tile_lengths(product.rows, unit.rows), _candidate_tile_lengths(product.columns, unit.columns)
    ):
        if 2 * rows * round_up_to_multiple(4 * columns, unit.sums.align) > unit.sums.nbytes:
            continue
        # Patches are gathered in the network's RAM; a strip of the unit's own rows is the least, whatever it takes.
        if patches and rows > unit.rows and rows * product.depth > PATCHES:
            continue
        # `late` needs several tiles of several rows; `depth` is a part of K only if that saves memory.
        for late, resident in itertools.product((True, False), (True, False) if resides else (False,)):
            # Sums that the processor requantises at once: of all columns if it waits for a whole strip.
            sums = 4 * rows * (product.columns if late else columns)
            if sums > max(STRIP, 4 * unit.rows * unit.columns) or (late and (rows == 1 or columns == product.columns)):
                continue
            for depth, held in itertools.product(_candidate_tile_lengths(product.depth, unit.depth), (True, False)):
                inputs = rows * round_up_to_multiple(product.depth if held else depth, unit.input.align)
                weights = 0 if resident else columns * round_up_to_multiple(depth, unit.weight.align)
                if 2 * inputs > unit.input.nbytes or 2 * weights > unit.weight.nbytes:
                    continue
                if depth == product.depth or not (resident and held):
                    yield Blocking(rows, columns, depth, resident, held, late)


def _candidate_tile_lengths(axis_length: int, unit_tile_length: int) -> list[int]:
    """Return the sizes of a tile along an axis that are worth comparing: multiples of the unit's tile, divisors of
    the extent, and the whole extent."""
    whole = [unit_tile_length * n for n in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32) if unit_tile_length * n < axis_length]
    even = [
        n for n in range(unit_tile_length // 2, 4 * unit_tile_length + 1) if n < axis_length and axis_length % n == 0
    ]
    return sorted({*whole, *even, axis_length})


def _rank_by_cycles(unit: TensorUnit, product: Product, blocking: Blocking) -> tuple[float, int, int]:
    """Return the rank of a blocking, the lowest first: (estimated cycles of a layer with a penalty for partial tiles,
    number of tiles, rows of a strip)."""
    # Strips, tiles of columns, and tiles of K.
    p, o, k = (
        -(-product.rows // blocking.rows),
        -(-product.columns // blocking.columns),
        -(-product.depth // blocking.depth),
    )
    data = unit.cycles("unit_load_input", (blocking.rows, product.depth if blocking.held else blocking.depth))
    weights = unit.cycles("unit_load_weight", (blocking.columns, blocking.depth))
    begin, end = (
        unit.cycles(word, (blocking.rows, blocking.columns, 0, 0)) for word in ("unit_load_sums", "unit_store_sums")
    )
    load = (0 if blocking.held else data) + (0 if blocking.resident else weights)
    multiply = unit.cycles("unit_matmul", (blocking.rows, blocking.columns, blocking.depth))
    # Loads overlap products. The first load, or the last product, of a tile has nothing to overlap with.
    overlapped = max(k * load, begin + k * multiply)
    tile = overlapped + min(load, multiply)
    # `late` overlaps storing the sums of a tile with the next tile; else the processor waits for every tile.
    tiles = tile + (o - 1) * max(overlapped, end) + end if blocking.late else o * (tile + end)
    once = unit.cycles("unit_load_weight", (product.columns, product.depth)) if blocking.resident else 0
    extents = zip(
        (product.rows, product.columns, product.depth), (blocking.rows, blocking.columns, blocking.depth), strict=True
    )
    tails = sum(extent % size > 0 for extent, size in extents)
    return (once + p * ((data if blocking.held else 0) + tiles)) * (1 + TAIL * tails), p * o * k, blocking.rows


def schedule_on_unit(start: Schedule, target: Target, decisions: Decisions) -> Schedule:
    """Schedule strips of rows, tiles of columns and tiles of K on the unit, and the epilogue on the processor after
    them."""
    unit, b = target.core.tensor_unit, decisions["blocking"]
    assert unit is not None
    schedule = inline_and_pack_columns(start, target)
    product = require_product(schedule)
    p, o, k = product.p, product.o, product.k
    data, weight, total = product.data.name, product.weight.name, product.total.name
    schedule = _defer_unloadable_init(schedule)
    schedule = schedule.split(p, (None, b.rows)).split(o, (None, b.columns)).split(k, (None, b.depth))
    schedule = schedule.reorder(f"{p}_0", f"{o}_0", f"{k}_0", f"{p}_1", f"{o}_1", f"{k}_1")
    schedule = schedule.decompose_reduction(ACC, f"{k}_0")
    schedule = schedule.cache_read(ACC, weight, WEIGHT)
    schedule = schedule if b.resident else schedule.compute_at(f"{weight}_{WEIGHT}", f"{k}_0")
    input_loop = f"{p}_0" if b.held else f"{k}_0"
    schedule = schedule.cache_read(ACC, data, INPUT).compute_at(f"{data}_{INPUT}", input_loop)
    schedule = schedule.set_scope(total, SUMS).cache_read(OUT, total, "workspace")
    schedule = schedule.reverse_compute_at(f"{total}_workspace", f"{o}_0")
    schedule = schedule.reverse_compute_at(OUT, f"{p}_0" if b.late else f"{o}_0")
    if schedule.has(PATCH):
        schedule = vectorize_copy(schedule.compute_at(PATCH, f"{p}_0"), PATCH, target)
    begin = find_block(schedule.func.body, f"{ACC}_init").body
    is_constant = isinstance(begin, ir.Store) and isinstance(begin.value, ir.Const)
    for block, word in (
        (f"{weight}_{WEIGHT}", "unit_load_weight"),
        (f"{data}_{INPUT}", "unit_load_input"),
        (f"{ACC}_init", "unit_set" if is_constant else "unit_load_sums"),
        (ACC, "unit_matmul"),
        (f"{total}_workspace", "unit_store_sums"),
    ):
        loops = schedule.loops_of(block)
        schedule = schedule.tensorize(loops[-3 if block == ACC else -2], word)
    for name, memory, loop in (
        (f"{weight}_{WEIGHT}", unit.weight, "" if b.resident else f"{k}_0"),
        (f"{data}_{INPUT}", unit.input, input_loop),
        (total, unit.sums, f"{o}_0"),
    ):
        schedule = schedule.align_rows(name, memory.align)
        schedule = schedule.double_buffer(name, loop) if loop else schedule
    return schedule


def _defer_unloadable_init(schedule: Schedule) -> Schedule:
    """Let the processor add the initial value of the sums, unless the unit can load it, because it is a row of int32
    in memory."""
    match find_block(schedule.func.body, ACC).init:
        case ir.Store(_, (*_, column), ir.Load(source, (index,))) if index == column and source.dtype == "int32":
            return schedule
        case _:
            return schedule.defer_init(ACC)


# ---- Cores with MVE.

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
