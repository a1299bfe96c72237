# SPDX-License-Identifier: Apache-2.0
"""Search spaces of the tuner: wide domains for the decisions of rules, and a generic sketch for any reduction."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from microc.base.immutable import frozen
from microc.schedule.primitives.compute_at import loop_extent, stored_buffer
from microc.schedule.primitives.tensorize import can_pair_columns
from microc.schedule.primitives.tree import find_block
from microc.schedule.rules import depthwise, matrix, vectors
from microc.schedule.rules.generic import (
    blocks_of,
    compute_padding_by_row,
    inline_elementwise,
    is_operator_scheduled,
    reduction_loops,
)
from microc.schedule.rules.rule import Decisions
from microc.schedule.rules.templates import (
    COLUMN_PAIRS,
    INT16_WEIGHTS,
    PANELS,
    SWIZZLED,
    Product,
    Tile,
    Walk,
    require_product,
)
from microc.schedule.rules.vectors import require_windowed_product
from microc.schedule.schedule import Schedule
from microc.target import Goal, Target
from microc.tir.analysis.context import buffers_read
from microc.tir.names import ACC

# ---- Search domains of the templates, wider than those that the cost model compares
#
# A domain lists every combination that may make sense. Primitives and the verifier reject invalid ones without a measurement.
# Loops are tiled as by TVM's ``sample_perfect_tile`` where a remainder would need loops of its own, and by any size where the
# template has partial tiles.

ROWS, COLUMNS, SINGLE_ROW_COLUMNS = 6, 6, 12
"""Most rows of a tile, most columns of a tile, and most columns of a tile with one row. They exceed the registers of
every core."""
MAX_UNROLL = 16
"""Largest unroll factor of the loop over K."""
MAX_PRODUCTS = 256
"""Most products in an unrolled iteration. A C compiler needs long for more, and no instruction cache can contain
them."""
OUTPUTS = 8
"""Most outputs of a depthwise tile."""


def perfect_tiles(extent: int, max_divisor: int) -> tuple[int, ...]:
    """Return the divisors of an extent up to ``max_divisor``, as TVM's ``sample_perfect_tile`` for two levels."""
    return tuple(n for n in range(1, min(extent, max_divisor) + 1) if extent % n == 0)


def _limit_products(tiles: Iterable[Tile]) -> Sequence[Tile]:
    """Return the tiles whose unrolled iteration has at most :data:`MAX_PRODUCTS` products."""
    return [tile for tile in tiles if tile.rows * tile.columns * tile.unroll * tile.step <= MAX_PRODUCTS]


def _tile_shapes(product: Product, max_rows: int = ROWS, max_columns: int = COLUMNS) -> Iterator[tuple[int, int]]:
    """Iterate over (rows, columns) of tiles, up to these limits and to the shape of the product. A tile with a
    single row may have more columns."""
    most = SINGLE_ROW_COLUMNS if product.rows == 1 else max_columns
    return itertools.product(range(1, min(max_rows, product.rows) + 1), range(1, min(most, product.columns) + 1))


def plain_tiles(start: Schedule, target: Target, goal: Goal) -> Sequence[Tile]:
    """Return the tiles that a search tries on any core: all shapes and unroll factors of K, with weights unchanged
    or in panels."""
    product, defaults = require_product(start), matrix.scalar_tiles(start, target, goal)
    step, intrin = defaults[0].step, defaults[0].intrin
    packs = product.weight.scope == "const" and len(product.weight.shape) == 2
    tiles = []
    for (rows, columns), unroll in itertools.product(
        _tile_shapes(product), perfect_tiles(product.depth // step, MAX_UNROLL)
    ):
        layouts = ("", PANELS) if packs and columns > 1 and product.columns % columns == 0 else ("",)
        tiles += [Tile(rows, columns, unroll, step, intrin, weights=layout) for layout in layouts]
    return _limit_products(tiles)


def pair_tiles(start: Schedule, target: Target, goal: Goal) -> Sequence[Tile]:
    """Return the tiles of int16 dot products that a search tries: all shapes and unroll factors of K, every layout
    of weights, and single rows that are copied or read in place."""
    product, defaults = require_product(start), matrix.int16_dot_tiles(start, target, goal)
    step, data = defaults[0].step, product.data.dtype
    variants = [replace(tile, rows=1, columns=1, unroll=1) for tile in defaults]
    if defaults[0].weights:
        variants += [
            Tile(1, 1, 1, step, "dot4_int16_int16", "int16", INT16_WEIGHTS),
            Tile(1, 1, 1, step, "dot4_int16_crossed_int8", "int16", SWIZZLED),
            Tile(1, 1, 1, step, f"dot4_{data}_int8"),
        ]
        if can_pair_columns(find_block(start.func.body, ACC), product.columns):
            variants += [Tile(1, 1, 1, step, "", "int16", COLUMN_PAIRS), Tile(1, 1, 1, step, weights=COLUMN_PAIRS)]
    return _limit_products(
        replace(variant, rows=rows, columns=columns, unroll=unroll)
        for variant in dict.fromkeys(variants)
        for rows, columns in _tile_shapes(product)
        for unroll in perfect_tiles(product.depth // step, MAX_UNROLL // 2)
    )


def float_tiles(start: Schedule, target: Target, goal: Goal) -> Sequence[Tile]:
    """Return the tiles of fused multiply-adds that a search tries: their sums and weights fit the registers, or
    exceed them by little."""
    product = require_product(start)
    packs = product.weight.scope == "const" and len(product.weight.shape) == 2
    tiles = []
    for (rows, columns), unroll in itertools.product(
        _tile_shapes(product, 8, 8), perfect_tiles(product.depth, MAX_UNROLL)
    ):
        if rows * columns + columns > target.core.costs.float_registers + 2:
            continue
        layouts = ("", PANELS) if packs and columns > 1 and product.columns % columns == 0 else ("",)
        tiles += [Tile(rows, columns, unroll, weights=layout) for layout in layouts]
    return _limit_products(tiles)


def vector_tiles(start: Schedule, target: Target, goal: Goal) -> Sequence[Tile]:
    """Return the tiles of whole vectors that a search tries, with the instruction of the default tile: all numbers
    of rows and of vectors of columns, unroll factors of K, and both orders of the outer loops."""
    return _tiles_of_vectors(start, require_product(start), target)


def window_tiles(start: Schedule, target: Target, goal: Goal) -> Sequence[Tile]:
    """Return the tiles of a windowed convolution that a search tries, as :func:`vector_tiles` does for matrix
    products."""
    return _tiles_of_vectors(start, require_windowed_product(start), target)


def _tiles_of_vectors(start: Schedule, product: Product, target: Target) -> Sequence[Tile]:
    """Return the tiles of whole vectors for a matrix product or a windowed convolution, derived from its default
    tile."""
    default = vectors.tiles_in_vectors(start, product, target)[0]
    lanes = default.lanes
    return [
        replace(default, rows=rows, columns=abreast * lanes, unroll=unroll, block=block)
        for abreast in range(1, 2 * vectors.MAX_TILE_VECTORS + 1)
        if product.columns % (abreast * lanes) == 0
        for rows in range(1, min(product.rows, vectors.MAX_TILE_ROWS) + 1)
        if rows * abreast + abreast <= target.core.vectors
        for unroll in perfect_tiles(product.depth // default.step, 8)
        for block in {1, 1 if product.inner_loops else -(-product.rows // rows)}
    ]


def pair_walks(start: Schedule, target: Target, goal: Goal) -> Sequence[Walk]:
    """Return all walks (orders of outputs) over a depthwise plane for which a tensor intrinsic exists."""
    return [walk for _, walk in depthwise.correlation_costs_and_walks(depthwise.require_depthwise(start))]


def single_walks(start: Schedule, target: Target, goal: Goal) -> Sequence[Walk]:
    """Return the walks (orders of outputs) over a depthwise plane, along either image axis, that unroll all taps or
    one row of taps."""
    default = _default_walk(start, target, goal)
    return [default] + [
        Walk(run, tile, unroll, words=default.words)
        for run in (1, 2)
        for tile in range(2, min(OUTPUTS, depthwise.require_depthwise(start).outputs[run - 1]) + 1)
        for unroll in (depthwise.ALL_TAPS, depthwise.require_depthwise(start).taps[run - 1])
    ]


def lane_taps(start: Schedule, target: Target, goal: Goal) -> Sequence[int]:
    """Return the limits of unrolled taps that a search tries: the default limit, and one row of taps along either
    axis."""
    return tuple(dict.fromkeys((depthwise.LANE_TAPS, *depthwise.require_depthwise(start).taps)))


def _default_walk(start: Schedule, target: Target, goal: Goal) -> Walk:
    """Return the walk over a depthwise plane that the rule lists first for the cost model."""
    walks = depthwise.byte_walks if depthwise.matches_unsigned_bytes(start, target) else depthwise.single_walks
    return walks(start, target, goal)[0]


# ---- A sketch for any function with one reduction: multi-level tiling, as in Ansor
#
# The sketch does not depend on what the function computes. It suits operators for which there is no rule, including those of
# plugins. The two innermost spatial loops are tiled without remainder, so that a square of sums stays in registers. The loops of
# the reduction are outside of the square and partly unrolled. The stage that reads the sums is computed after each square, and
# padding once per row. There is no default: the sketch is for a search only.

SIDE = 8
"""Most iterations along a side of the square."""


@frozen
class Square:
    """A decision of the sketch: a register tile of ``rows`` by ``columns`` sums, over the last two spatial loops,
    and the unroll factor ``steps`` of the reduction."""

    rows: int
    columns: int
    steps: int


def matches_sketch(start: Schedule, target: Target) -> bool:
    """Match a function with one reduction in at least two spatial loops, whose result exactly one other stage reads."""
    return _inline_and_find_reduction_and_reader(start) is not None


def _inline_and_find_reduction_and_reader(start: Schedule) -> tuple[Schedule, str, str] | None:
    """Inline elementwise stages. Return (schedule, block that reduces, block that reads the sums); None if there are
    no such blocks."""
    schedule = inline_elementwise(start)
    blocks = blocks_of(schedule)
    sums = [block for block in blocks if block.init is not None]
    if len(sums) != 1 or any(map(is_operator_scheduled, blocks)):
        return None
    total = stored_buffer(sums[0])
    readers = [block.name for block in blocks if block is not sums[0] and total in buffers_read(block.body)]
    spatial = [i for i in sums[0].iters if i.kind == "space"]
    if len(readers) != 1 or total in start.func.params or len(spatial) < 2 or len(spatial) == len(sums[0].iters):
        return None
    return schedule, sums[0].name, readers[0]


def sketch_squares(start: Schedule, target: Target, goal: Goal) -> Sequence[Square]:
    """Return the squares whose sides and unroll factor divide the loops, with at most :data:`MAX_PRODUCTS` unrolled
    products."""
    parts = _inline_and_find_reduction_and_reader(start)
    assert parts is not None
    schedule, block, _ = parts
    reducing = reduction_loops(schedule, block)
    rows, columns = [loop for loop in schedule.loops_of(block) if loop not in reducing][-2:]
    extents = [loop_extent(schedule.func, loop) for loop in (rows, columns, reducing[-1])]
    return [
        Square(r, c, steps)
        for r in perfect_tiles(extents[0], SIDE)
        for c in perfect_tiles(extents[1], SIDE)
        for steps in perfect_tiles(extents[2], MAX_UNROLL)
        if r * c * steps <= MAX_PRODUCTS
    ]


def schedule_sketch(start: Schedule, target: Target, decisions: Decisions) -> Schedule | None:
    """Nest the outer spatial loops, inside them the reduction, and inside it the unrolled square of sums. Return
    None if the function does not match."""
    parts, square = _inline_and_find_reduction_and_reader(start), decisions["square"]
    if parts is None:
        return None
    schedule, block, reader = parts
    reducing = reduction_loops(schedule, block)
    *outer, rows, columns = [loop for loop in schedule.loops_of(block) if loop not in reducing]
    steps = reducing[-1]
    schedule = schedule.split(rows, (None, square.rows)).split(columns, (None, square.columns))
    schedule = schedule.split(steps, (None, square.steps))
    order = [*outer, f"{rows}_0", f"{columns}_0", *reducing[:-1], f"{steps}_0", f"{steps}_1"]
    schedule = schedule.reorder(*order, f"{rows}_1", f"{columns}_1")
    schedule = schedule.decompose_reduction(block, (*reducing[:-1], f"{steps}_0")[0])
    schedule = schedule.reverse_compute_at(reader, f"{columns}_0")
    schedule = schedule.set_scope(stored_buffer(find_block(schedule.func.body, block)).name, "register")
    for name in (f"{block}_init", block, reader):
        around = schedule.loops_of(name)
        for loop in around[around.index(f"{columns}_0") + 1 :]:
            schedule = schedule if loop in reducing[:-1] or loop == f"{steps}_0" else schedule.unroll(loop)
    return compute_padding_by_row(schedule, target)
