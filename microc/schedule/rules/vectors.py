# SPDX-License-Identifier: Apache-2.0
"""Rules for vector units: channels in the lanes of vectors of fixed length, convolutions by sliding windows, and
strips for vectors of any length."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from types import MappingProxyType

from microc.base import dtypes
from microc.isa import c_body_for_cost_model
from microc.isa.vocabulary.vector_lanes import LEAST
from microc.schedule.primitives.compute_at import loop_extent, stored_buffer
from microc.schedule.primitives.tree import find_block
from microc.schedule.rules.generic import (
    compute_padding_by_row,
    decompose_border_fill,
    inline_elementwise,
    reduction_loops,
    vectorize_copy,
)
from microc.schedule.rules.matrix import matches_float_by_int8
from microc.schedule.rules.rule import (
    NUMBERS,
    THREADS,
    Decisions,
    float_vector_level,
    largest_dividing_lane_count,
    vectorize_in_lanes,
    vectorize_lanes,
    vectorize_strips,
)
from microc.schedule.rules.templates import (
    PANELS,
    VECTOR_PANELS,
    Product,
    Tile,
    inline_and_pack_columns,
    match_depthwise,
    match_product,
    pack_weights,
    require_product,
    tensorize_products,
    unroll_and_vectorize,
)
from microc.schedule.schedule import Schedule
from microc.target import Goal, Target
from microc.tir import ir
from microc.tir.lower.lane_code import FLOAT_CALLS
from microc.tir.names import ACC, CHANNELS_FIRST, OUT, PADDED, PATCH, WINDOWS
from microc.tir.rewrite import walk_all_exprs, walk_expr

# ---- Products and depthwise convolutions with neighbouring channels in the lanes of vectors
#
# For SIMD units of computers (SSE, AVX, NEON). Microcontrollers with MVE sum across the lanes instead
# (:mod:`microc.schedule.rules.unit_rules`).
#
# A tile of sums fills the registers. Each step of K loads one vector of weights per vector of columns, which all rows share, and
# one activation per row, broadcast to all lanes, which all columns share.

MAX_TILE_VECTORS, MAX_TILE_ROWS = 4, 14
"""Most vectors of columns, and most rows, of a float tile."""
SINGLE_ROW_VECTORS = 8
"""Most vectors of columns of a tile with one row. Its sums alone must fill the pipeline."""
INT32_VECTORS, INT32_ROWS = 2, 8
"""Most vectors of columns, and most rows, of an int32 tile with several rows. They are fewer because the requantisation of
each sum is code of its own."""
SCRATCH_REGISTERS = 2
"""Number of vector registers for a broadcast activation and an intermediate result."""
DOT4_INTRINSICS = MappingProxyType(
    {("int8", "int8"): ("dot4_i8", "dot4_int8_int8_word"), ("uint8", "int8"): ("dot4_u8", "dot4_uint8_int8_word")}
)
"""(intrinsic that multiplies four bytes in each lane, tensor intrinsic), by the dtypes of data and weights."""
LOAD_COST = 0.5
"""Cost of a load in multiply-adds. A core has as many load units as multipliers, and neither waits for the other."""
SHORT_SUM = 32
"""Largest K for which a core executes the terms of a sum together with those of the next sum."""
MIN_PACKED_ROWS = 16
"""Number of rows from which copying the weights of a tile's columns pays, if the weights are runtime data."""
VECTORS_UNROLL = (2, 1)
"""Unroll factors of the loop over K, in order of preference."""
DEPTHWISE_PIXELS = 4
"""Number of pixels of a depthwise tile. Tiles with more pixels share more loads, but are larger and not faster."""
TAP_OPERATIONS = 2
"""Number of operations of a tap: a product and a sum."""
MOST_TAPS = 25
"""Largest number of taps that are unrolled completely. If there are more, one row of taps is unrolled."""


def matches_vector_product(start: Schedule, target: Target) -> bool:
    """Match a product whose columns are contiguous and fill whole vectors.

    Operands: float32 by float32, float32 by int8 with scales, or integers by constants, summed in int32. An epilogue that does
    not exist for vectors is scalar code for each sum."""
    product = match_product(start)
    if product is None or largest_dividing_lane_count(product.columns, target) == 0:
        return False
    if CHANNELS_FIRST in dict(find_block(start.func.body, ACC).annotations):
        return False
    if product.total.dtype == "float32" and not float_vector_level(target):
        return False
    if set(product.dtypes) == {"float32"} or (matches_float_by_int8(start, target) and not product.bits):
        return True
    if product.total.dtype != "int32" or not target.has("vectors") or product.bits:
        return False
    is_constant = product.contiguous_along_k and product.weight.scope == "const"
    # Runtime weights are copied in panels anyway; that pays for integers only if one instruction then multiplies several.
    return is_constant or (
        _packs_weights(product, target)
        and _best_dot_product(product, largest_dividing_lane_count(product.columns, target), target)[0] > 1
    )


def is_wholly_vectorizable(start: Schedule, target: Target) -> bool:
    """Test whether vectors can compute the whole function: it has no 64-bit values, and all its float operations exist
    for vectors."""
    parts = list(walk_all_exprs(start.func.body))
    floats = [x for x in parts if x.dtype == "float32"]
    if any(x.dtype in ("int64", "uint64", "float64") for x in parts):
        return False
    if not float_vector_level(target):
        return not floats
    return all(x.name in (*FLOAT_CALLS, ir.REINTERPRET) for x in floats if isinstance(x, ir.Call))


def vector_product_tiles(start: Schedule, target: Target, goal: Goal) -> tuple[Tile, ...]:
    """Return the tiles that fill the vector registers. Each sum adds its terms in the order of K.

    For floats it is only the tile of least estimated time, so that only one is lowered. For integers it is the widest and the
    narrowest tile, because the code size of their epilogues also counts."""
    return tiles_in_vectors(start, require_product(start), target)


def tiles_in_vectors(start: Schedule, product: Product, target: Target) -> tuple[Tile, ...]:
    """Return the tiles of ``product`` that fill the vector registers, as :func:`vector_product_tiles` does."""
    lanes = largest_dividing_lane_count(product.columns, target)
    abreast = [n for n in range(_max_column_vectors(product, target), 0, -1) if product.columns % (lanes * n) == 0]
    if product.total.dtype == "int32":
        shapes = [(_preferred_rows(product, n, target), n) for n in sorted({abreast[0], abreast[-1]}, reverse=True)]
    else:
        candidates = [(rows, n) for n in abreast for rows in _row_candidates(start, product, n, target)]
        shapes = [min(candidates, key=lambda shape: _estimate_step_time(product, shape, target))]
    blocks = [_row_tiles_per_panel(start, product, rows, target) for rows, _ in shapes]
    tiles = [_build_vector_tile(product, rows, lanes * n, lanes, target) for rows, n in shapes]
    apart = not is_wholly_vectorizable(start, target)
    return tuple(replace(tile, block=block, apart=apart) for tile, block in zip(tiles, blocks, strict=True))


def _max_column_vectors(product: Product, target: Target) -> int:
    """Return the most vectors of columns of a tile."""
    if product.rows == 1:
        return min(SINGLE_ROW_VECTORS, target.core.vectors // 2)
    return INT32_VECTORS if product.total.dtype == "int32" else MAX_TILE_VECTORS


def _estimate_step_time(product: Product, rows_and_vectors: tuple[int, int], target: Target) -> float:
    """Estimate the time of one step of K for one vector of columns and all rows, in multiply-adds.

    ``rows_and_vectors``: (rows, vectors of columns) of a tile."""
    count, (rows, abreast) = product.rows, rows_and_vectors
    tiles = [rows] * (count // rows) + [count % rows] * (count % rows > 0)
    # Each multiply-add waits for the previous sum. A tile of fewer sums than the pipeline is deep leaves issue slots empty. Short
    # sums do not wait: the core executes the next tile's meanwhile.
    pipelined = target.core.pipelined if product.depth > SHORT_SUM else 0
    issue_slots = sum(max(height * abreast, pipelined) for height in tiles)
    # Loads per vector of columns: one vector of weights per tile, one activation per row, shared by `abreast` vectors.
    return issue_slots / abreast + LOAD_COST * (len(tiles) + count / abreast)


def _preferred_rows(product: Product, column_vectors: int, target: Target) -> int:
    """Return the number of rows of a tile: the most for which the registers suffice, or a divisor of all rows if one is
    above half of the most.

    ``column_vectors``: number of vectors of columns in the tile."""
    most = _max_rows_in_registers(product, column_vectors, target)
    return next((n for n in range(most, most // 2, -1) if product.rows % n == 0), most)


def _row_candidates(start: Schedule, product: Product, column_vectors: int, target: Target) -> tuple[int, ...]:
    """Return the numbers of rows of a tile that are worth comparing: a divisor of all rows, and the most for which
    the registers suffice."""
    even, most = (
        _preferred_rows(product, column_vectors, target),
        _max_rows_in_registers(product, column_vectors, target),
    )
    # A partial last tile cannot be split among threads, and they have no columns of their own to split instead.
    is_shared = target.has(THREADS) and (start.has(PATCH) or not _exceeds_cache(product, target))
    # If all columns are one tile, copying the patch dominates, and that is fastest in whole parts of an image row.
    is_narrow = start.has(PATCH) and product.columns <= column_vectors * largest_dividing_lane_count(
        product.columns, target
    )
    return (even,) if is_shared or is_narrow or not target.core.pipelined else (even, most)


def _max_rows_in_registers(product: Product, column_vectors: int, target: Target) -> int:
    """Return the most rows of a tile whose sums fit the vector registers.

    ``column_vectors``: number of vectors of columns in the tile."""
    floats = product.total.dtype == "float32"
    # A unit that multiplies vectors by scalars needs no register for a broadcast activation.
    scratch = 0 if floats and float_vector_level(target) == NUMBERS else SCRATCH_REGISTERS
    # rows * abreast sums + abreast weights + scratch <= registers
    most = (target.core.vectors - column_vectors - scratch) // column_vectors
    return max(1, min(most, product.rows, MAX_TILE_ROWS if floats else INT32_ROWS))


def _exceeds_cache(product: Product, target: Target) -> bool:
    """Test whether float weights are larger than half of the cache, so that every tile of rows would load all
    weights from memory."""
    floats, cache = product.total.dtype == "float32", target.core.cache
    return floats and bool(cache) and not product.inner_loops and 4 * product.columns * product.depth > cache // 2


def _row_tiles_per_panel(start: Schedule, product: Product, rows: int, target: Target) -> int:
    """Return the number of row tiles that are multiplied by one panel of weights before the next panel
    (:attr:`Tile.block`).

    It is one if all weights stay in the cache. Else it is all tiles: larger caches stream rows as fast as they are
    multiplied."""
    tiles = -(-product.rows // rows)
    if start.has(PATCH) and _exceeds_cache(product, target):
        # The copied rows are read again for every tile of columns: as many tiles as the cache holds, in equal parts.
        most = target.core.cache // (4 * product.depth * rows)
        return next((n for n in range(min(most, tiles), 1, -1) if tiles % n == 0), 1)
    copies_panels = product.weight.scope != "const" and _packs_weights(product, target)  # then once per tile of columns
    return tiles if copies_panels or _exceeds_cache(product, target) else 1


def _build_vector_tile(product: Product, rows: int, columns: int, lanes: int, target: Target) -> Tile:
    """Build a tile of ``rows`` by ``columns`` with the best instruction for the dtypes, and with the layout of
    weights that this instruction reads."""
    packs = _packs_weights(product, target)
    step, intrin, copied = (
        _best_dot_product(product, lanes, target) if packs and product.total.dtype == "int32" else (1, "", "")
    )
    unroll = next(n for n in VECTORS_UNROLL if product.depth // step % n == 0)
    weights = VECTOR_PANELS if intrin else PANELS if packs else ""
    return Tile(rows, columns, unroll, step, intrin, copied, weights, lanes)


def _packs_weights(product: Product, target: Target) -> bool:
    """Test whether weights are packed in panels: constant matrices always, runtime data if enough rows share the
    copy."""
    if product.weight.scope == "const":
        return len(product.weight.shape) == 2
    # Unpacked, the lanes would be loaded one by one (along K), or the weights exceed the cache.
    pays = product.contiguous_along_k or product.total.dtype == "int32" or _exceeds_cache(product, target)
    return pays and product.panels and product.rows >= MIN_PACKED_ROWS and target.core.cache > 0


def _best_dot_product(product: Product, lanes: int, target: Target) -> tuple[int, str, str]:
    """Return (products that an instruction adds in each lane, tensor intrinsic, dtype to which rows are copied for it).

    The instruction multiplies four bytes (VNNI, SDOT) if the core can, else two int16 (PMADDWD), else one element."""
    word, intrin = DOT4_INTRINSICS.get(product.dtypes[:2], ("", ""))
    if word and product.depth % 4 == 0 and target.has(f"{word}_i32x{lanes}"):
        return 4, intrin, ""
    short = all(dtypes.nbytes(dtype) <= 2 for dtype in product.dtypes[:2])
    pairs = short and product.depth % 2 == 0 and target.has(f"dot2_i32x{lanes}")
    return (2, "dot2_int16_int16", "int16") if pairs else (1, "", "")


def matches_vector_depthwise(start: Schedule, target: Target) -> bool:
    """Match a depthwise convolution, summed in float32 or int32, whose channels fill whole vectors."""
    form = match_depthwise(start)
    if form is None or not (float_vector_level(target) or is_wholly_vectorizable(start, target)):
        return False
    is_supported = form.total.dtype == "float32" or (form.total.dtype == "int32" and target.has("vectors"))
    return is_supported and largest_dividing_lane_count(form.channels, target) > 0


def default_tap_pairs(start: Schedule, target: Target, goal: Goal) -> tuple[bool, ...]:
    """Return the default of the decision whether one instruction multiplies a pair of taps, as a tuple of one.

    It is True if the instruction for a pair (dot2) replaces more operations than it costs."""
    form = match_depthwise(start)
    assert form is not None
    word = f"dot2_i32x{largest_dividing_lane_count(form.channels, target)}"
    body = c_body_for_cost_model(word, target.cpu) if target.has(word) else None
    short = form.total.dtype == "int32" and all(dtypes.contains_range_of("int16", dtype) for dtype in form.dtypes[:2])
    plain = form.depth_multiplier == 1 and prod(form.taps) <= MOST_TAPS
    return (short and plain and body is not None and sum(body.counts().values()) < TAP_OPERATIONS,)


def search_tap_pairs(start: Schedule, target: Target, goal: Goal) -> tuple[bool, ...]:
    """Return the values that a search tries for the decision whether one instruction multiplies a pair of taps.

    They are True and False if pairs are the default, because the weights of pairs are larger; else only False."""
    return tuple(dict.fromkeys((*default_tap_pairs(start, target, goal), False)))


def schedule_vector_depthwise(start: Schedule, target: Target, decisions: Decisions) -> Schedule:
    """Keep a tile of ``pixels`` neighbouring pixels by a vector of channels in registers while the loops over all
    taps run."""
    form = match_depthwise(start)
    assert form is not None
    lanes = largest_dividing_lane_count(form.channels, target)
    schedule = inline_elementwise(start)
    if decisions["pairs"]:
        schedule = schedule.tensorize_taps(ACC, form.weight.name, 0 if form.taps[0] > 1 else 1)
    around, taps = schedule.loops_of(ACC), reduction_loops(schedule, ACC)
    x, channel = around[2], around[3]
    pixels = min(loop_extent(schedule.func, x), decisions["pixels"])
    schedule = schedule.split(x, (None, pixels)).split(channel, (None, lanes))
    schedule = schedule.reorder(f"{x}_0", f"{channel}_0", *taps, f"{x}_1", f"{channel}_1")
    schedule = schedule.decompose_reduction(ACC, taps[0])
    schedule = schedule.reverse_compute_at(OUT, f"{channel}_0").set_scope(form.total.name, "register")
    for tap in taps if prod(form.taps) <= MOST_TAPS else taps[-1:]:
        schedule = schedule.unroll(tap)
    for block in (f"{ACC}_init", ACC, OUT):
        inner = schedule.loops_of(block)[-2:]
        schedule = vectorize_lanes(schedule.unroll(inner[0]), inner[1], lanes, float_vector_level(target))
    return compute_padding_by_row(schedule, target)


# ---- Convolutions on vectors without im2col: windows slide over the image, and pixels are read in place
#
# In NHWC a window's row of taps is contiguous, so the sum is two loops: rows of taps, and that run of memory (algorithm
# ``windows``, :func:`microc.ops.convolution.conv2d_algorithms.build_sliding_window_product`). A tile is pixels of one output row
# by vectors of channels. If the convolution is padded, the image rows that a row of outputs reads are copied once, with their
# border.


def match_windowed_product(schedule: Schedule) -> Product | None:
    """Match ``acc`` as a windowed convolution: the product of one row of outputs by one row of taps. Return None if
    it does not match."""
    if not schedule.has(ACC) or not schedule.has(OUT):
        return None
    block = find_block(schedule.func.body, ACC)
    store = block.body
    if WINDOWS not in dict(block.annotations) or not isinstance(store, ir.Store):
        return None
    data, weight = (x.buffer for x in walk_expr(store.value) if isinstance(x, ir.Load) and x.buffer != store.buffer)
    n, y, x, o, ky, k = schedule.loops_of(ACC)
    rows, columns, depth = (loop_extent(schedule.func, name) for name in (x, o, k))
    return Product(x, o, k, (n, y), (ky,), rows, columns, depth, data, weight, store.buffer, True, False, 0, 0, 0)


def require_windowed_product(schedule: Schedule) -> Product:
    """Return the windowed convolution of a function. A rule must have tested before that the function contains one."""
    product = match_windowed_product(schedule)
    assert product is not None
    return product


def matches_windows(start: Schedule, target: Target) -> bool:
    """Match a windowed convolution whose columns fill whole vectors.

    If the tile widens the data, they must be copied. Only padded rows are copied."""
    product = match_windowed_product(start)
    if (
        product is None
        or largest_dividing_lane_count(product.columns, target) == 0
        or not is_wholly_vectorizable(start, target)
    ):
        return False
    return start.has(PADDED) or not tiles_in_vectors(start, product, target)[0].copied


def window_tiles(start: Schedule, target: Target, goal: Goal) -> tuple[Tile, ...]:
    """Return the tiles of a windowed convolution that the cost model compares, as :func:`vector_product_tiles` does
    for matrix products."""
    return tiles_in_vectors(start, require_windowed_product(start), target)


def schedule_windows(start: Schedule, target: Target, decisions: Decisions) -> Schedule:
    """Keep a tile of pixels by channels in registers while the loops over rows of the window and their taps run."""
    tile: Tile = decisions["tile"]
    schedule = inline_elementwise(start)
    product = require_windowed_product(schedule)
    (_, y), (ky,), x, o, k = product.outer_loops, product.inner_loops, product.p, product.o, product.k
    schedule = pack_weights(schedule, product.weight.name, product, tile)
    schedule = schedule.split(x, (None, tile.rows)).split(o, (None, tile.columns // tile.lanes, tile.lanes))
    schedule = schedule.split(k, (None, tile.unroll, tile.step))
    inner = (f"{k}_0", f"{k}_1", f"{x}_1", f"{o}_1", f"{o}_2", f"{k}_2")
    schedule = schedule.reorder(f"{x}_0", f"{o}_0", ky, *inner).decompose_reduction(ACC, ky)
    schedule = schedule.reverse_compute_at(OUT, f"{o}_0").set_scope(product.total.name, "register")
    if schedule.has(PADDED):
        schedule = copy_padded_rows(schedule.compute_at(PADDED, y), tile.copied or product.data.dtype, target)
    schedule = tensorize_products(schedule, product, tile, f"{o}_2")
    return unroll_and_vectorize(schedule, (f"{x}_0", f"{o}_0", ky, f"{k}_0"), tile, float_vector_level(target))


def copy_padded_rows(schedule: Schedule, dtype: str, target: Target) -> Schedule:
    """Schedule the copy of the padded image rows that one row of outputs reads: the border is filled separately,
    then the rows are copied by vectors and converted to ``dtype``."""
    schedule = decompose_border_fill(schedule)
    padded = stored_buffer(find_block(schedule.func.body, PADDED))
    schedule = schedule if padded.dtype == dtype else schedule.set_dtype(PADDED, dtype)
    return vectorize_in_lanes(schedule, schedule.loops_of(PADDED)[-1], target)


# ---- Products and depthwise convolutions in strips: vectors whose length is known at run time only (RVV)
#
# A strip is as many neighbouring channels as a vector holds (:mod:`microc.tir.symbolic`); it runs through all of K. Weights are
# stored as [k][o], all columns side by side, since the number of columns in a strip is unknown. RVV groups registers into wide
# vectors (LMUL), so there are few of these: an int32 tile of vectors of 8 registers has 3 rows beside its weights, one of 4
# registers has 6. A float tile has fewer: its weights are as wide as its sums, and need a second vector during conversion.

ROWS = MappingProxyType({("int32", 16): 6, ("int32", 32): 3, ("float32", 16): 5, ("float32", 32): 2})
"""Rows of a tile, by dtype of its sums and least number of lanes of a vector."""
STRIPS_PIXELS = MappingProxyType({("int32", 16): 4, ("int32", 32): 2, ("float32", 16): 4, ("float32", 32): 1})
"""Pixels of a depthwise tile, by dtype of its sums and least number of lanes of a vector. They are fewer than ROWS
because each product loads two vectors."""
STRIPS_UNROLL = (4, 2, 1)
"""Unroll factors of the loop over K, in order of preference."""
MIN_COLUMNS = 8
"""Number of columns from which a strip is long enough to pay."""


def _is_computable_in_strips(start: Schedule, product: Product | None, target: Target) -> bool:
    """Test whether a product by constants, summed in int32 or float32, has enough columns for strips, and whether
    vectors of any length can compute the whole function."""
    if product is None or product.columns < MIN_COLUMNS or not is_wholly_vectorizable(start, target) or product.bits:
        return False
    if CHANNELS_FIRST in dict(find_block(start.func.body, ACC).annotations):
        return False
    is_constant = product.contiguous_along_k and product.weight.scope == "const" and len(product.weight.shape) == 2
    return is_constant and product.total.dtype in ("int32", "float32")


def matches_strip_product(start: Schedule, target: Target) -> bool:
    """Match a matrix product by constants that can be computed in strips of columns."""
    return _is_computable_in_strips(start, match_product(start), target)


def matches_strip_windows(start: Schedule, target: Target) -> bool:
    """Match a windowed convolution by constants that can be computed in strips of columns."""
    return _is_computable_in_strips(start, match_windowed_product(start), target)


def strip_product_tiles(start: Schedule, target: Target, goal: Goal) -> tuple[Tile, ...]:
    """Return the tiles of a matrix product in strips of columns."""
    return _strip_tiles(require_product(start))


def strip_window_tiles(start: Schedule, target: Target, goal: Goal) -> tuple[Tile, ...]:
    """Return the tiles of a windowed convolution in strips of columns."""
    return _strip_tiles(require_windowed_product(start))


def _strip_tiles(product: Product) -> tuple[Tile, ...]:
    """Return one tile for each vector width: some rows by a strip of columns.

    The number of rows is the largest for which the registers suffice, or a divisor of all rows if one is above half of
    that."""
    unroll = next(n for n in STRIPS_UNROLL if product.depth % n == 0)
    tiles = []
    for lanes in LEAST:
        most = min(ROWS[product.total.dtype, lanes], product.rows)
        rows = next((n for n in range(most, most // 2, -1) if product.rows % n == 0), most)
        tiles.append(Tile(rows, 1, unroll, lanes=lanes))
    return tuple(tiles)


def schedule_strip_product(start: Schedule, target: Target, decisions: Decisions) -> Schedule:
    """Keep the rows of a tile by a strip of columns in registers while the loop over K runs."""
    tile: Tile = decisions["tile"]
    schedule = inline_and_pack_columns(start, target)
    product = require_product(schedule)
    p, o, k = product.p, product.o, product.k
    schedule = _transpose_weights(schedule, product).split(p, (None, tile.rows)).split(k, (None, tile.unroll))
    outer = (f"{p}_0", *product.inner_loops, o)
    schedule = schedule.reorder(*outer, f"{k}_0", f"{k}_1", f"{p}_1").decompose_reduction(ACC, f"{k}_0")
    schedule = schedule.reverse_compute_at(OUT, o).set_scope(product.total.name, "register")
    if schedule.has(PATCH):
        schedule = vectorize_copy(schedule.compute_at(PATCH, product.tile), PATCH, target)
    return vectorize_strips(_unroll_except(schedule, (*outer, f"{k}_0"), tile), o, target, tile.lanes)


def schedule_strip_windows(start: Schedule, target: Target, decisions: Decisions) -> Schedule:
    """Keep neighbouring pixels by a strip of columns in registers while the loops over rows of the window and their
    taps run."""
    tile: Tile = decisions["tile"]
    schedule = inline_elementwise(start)
    product = require_windowed_product(schedule)
    (_, y), (ky,), x, o, k = product.outer_loops, product.inner_loops, product.p, product.o, product.k
    schedule = _transpose_weights(schedule, product).split(x, (None, tile.rows)).split(k, (None, tile.unroll))
    outer = (f"{x}_0", o, ky)
    schedule = schedule.reorder(*outer, f"{k}_0", f"{k}_1", f"{x}_1").decompose_reduction(ACC, ky)
    schedule = schedule.reverse_compute_at(OUT, o).set_scope(product.total.name, "register")
    if schedule.has(PADDED):
        schedule = copy_padded_rows(schedule.compute_at(PADDED, y), product.data.dtype, target)
    return vectorize_strips(_unroll_except(schedule, (*outer, f"{k}_0"), tile), o, target, tile.lanes)


def _transpose_weights(schedule: Schedule, product: Product) -> Schedule:
    """Store the weights as [k][o], so that the weights of a term are contiguous."""
    return schedule.transform_layout(product.weight.name, ((None,), (None,)), (1, 0))


def _unroll_except(schedule: Schedule, kept_loops: tuple[str, ...], tile: Tile) -> Schedule:
    """Unroll all loops inside of ``kept_loops``. The loop over the strip is one of ``kept_loops``, and is
    vectorised later."""
    return unroll_and_vectorize(schedule, kept_loops, replace(tile, lanes=0), 0)


def matches_strip_depthwise(start: Schedule, target: Target) -> bool:
    """Match a depthwise convolution, summed in int32 or float32, with enough channels for a strip."""
    form = match_depthwise(start)
    if form is None or form.channels < MIN_COLUMNS or not is_wholly_vectorizable(start, target):
        return False
    return form.total.dtype == "int32" or (form.total.dtype == "float32" and float_vector_level(target) > 0)


def schedule_strip_depthwise(start: Schedule, target: Target, decisions: Decisions) -> Schedule:
    """Keep neighbouring pixels by a strip of channels in registers while the loops over all taps run."""
    form = match_depthwise(start)
    assert form is not None
    lanes = decisions["lanes"]
    schedule = inline_elementwise(start)
    around, taps = schedule.loops_of(ACC), reduction_loops(schedule, ACC)
    x, channel = around[2], around[3]
    schedule = schedule.split(x, (None, min(loop_extent(schedule.func, x), STRIPS_PIXELS[form.total.dtype, lanes])))
    schedule = schedule.reorder(f"{x}_0", channel, *taps, f"{x}_1").decompose_reduction(ACC, taps[0])
    schedule = schedule.reverse_compute_at(OUT, channel).set_scope(form.total.name, "register")
    for tap in taps if prod(form.taps) <= MOST_TAPS else taps[-1:]:
        schedule = schedule.unroll(tap)
    for block in (f"{ACC}_init", ACC, OUT):
        around = schedule.loops_of(block)
        for loop in around[around.index(channel) + 1 :]:
            schedule = schedule if loop in taps else schedule.unroll(loop)
    return compute_padding_by_row(vectorize_strips(schedule, channel, target, lanes), target)
