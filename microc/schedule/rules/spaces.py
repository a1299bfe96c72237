"""What a search may try: domains of templates, sketches."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from microc.base.immutable import frozen
from microc.schedule.primitives.compute_at import loop_extent, stored_buffer
from microc.schedule.primitives.tensorize import can_pair
from microc.schedule.primitives.tree import find_block
from microc.schedule.rules import depthwise, matrix, vectors
from microc.schedule.rules.generic import blocks_of, inline_elementwise, is_extern, pad_by_row, reduce_loops
from microc.schedule.rules.rule import Decisions
from microc.schedule.rules.templates import CROSSED, PACKED, PAIRED, WIDE, Product, Tile, Walk, known_product
from microc.schedule.rules.vectors import known_windows
from microc.schedule.schedule import Schedule
from microc.target import Goal, Target
from microc.tir.analysis.context import buffers_read
from microc.tir.names import ACC

# ---- What a search may try of the templates: wider domains than those that the cost model compares by itself.
#
# A domain lists every combination that may make sense; which of them a schedule can have, steps and the verifier find out
# without a measurement. Loops are tiled by TVM's ``sample_perfect_tile`` where a remainder would need loops of its own, and by
# any size where a part of a tile has them.

ROWS, COLUMNS, ALONE = 6, 6, 12
"""Rows and columns of sums at once, and columns of a single row: more than any core has registers for."""
STEPS = 16
"""Terms of a sum that are written out in an iteration."""
WRITTEN = 256
"""Products that are written out in an iteration: more take the C compiler long, and no instruction cache holds them."""
OUTPUTS = 8
"""Outputs of a depthwise convolution at once."""


def perfect(extent: int, most: int) -> tuple[int, ...]:
    """The divisors of a loop up to some size: TVM's ``sample_perfect_tile`` of two levels."""
    return tuple(n for n in range(1, min(extent, most) + 1) if extent % n == 0)


def _written(tiles: Iterable[Tile]) -> Sequence[Tile]:
    """Those that are not too long."""
    return [tile for tile in tiles if tile.rows * tile.columns * tile.unroll * tile.step <= WRITTEN]


def _shapes(product: Product, rows: int = ROWS, columns: int = COLUMNS) -> Iterator[tuple[int, int]]:
    """Rows and columns of tiles."""
    across = ALONE if product.rows == 1 else columns
    return itertools.product(range(1, min(rows, product.rows) + 1), range(1, min(across, product.columns) + 1))


def plain_tiles(start: Schedule, target: Target, goal: Goal) -> Sequence[Tile]:
    """Any core: tiles and steps; weights as they lie, or side by side for the tile."""
    product, known = known_product(start), matrix.matrix_plain_tiles(start, target, goal)
    step, intrin = known[0].step, known[0].intrin
    packs = product.weight.scope == "const" and len(product.weight.shape) == 2
    found = []
    for (rows, columns), unroll in itertools.product(_shapes(product), perfect(product.depth // step, STEPS)):
        ways = ("", PACKED) if packs and columns > 1 and product.columns % columns == 0 else ("",)
        found += [Tile(rows, columns, unroll, step, intrin, weights=way) for way in ways]
    return _written(found)


def pair_tiles(start: Schedule, target: Target, goal: Goal) -> Sequence[Tile]:
    """Pairs of 16-bit numbers: tiles, steps, and every way to store the weights or to leave a single row where it lies."""
    product, known = known_product(start), matrix.matrix_pair_tiles(start, target, goal)
    step, data = known[0].step, product.data.dtype
    ways = [replace(tile, rows=1, columns=1, unroll=1) for tile in known]
    if known[0].weights:
        ways += [
            Tile(1, 1, 1, step, "dot4_int16_int16", "int16", WIDE),
            Tile(1, 1, 1, step, "dot4_int16_crossed_int8", "int16", CROSSED),
            Tile(1, 1, 1, step, f"dot4_{data}_int8"),
        ]
        if can_pair(find_block(start.func.body, ACC), product.columns):
            ways += [Tile(1, 1, 1, step, "", "int16", PAIRED), Tile(1, 1, 1, step, weights=PAIRED)]
    return _written(
        replace(way, rows=rows, columns=columns, unroll=unroll)
        for way in dict.fromkeys(ways)
        for rows, columns in _shapes(product)
        for unroll in perfect(product.depth // step, STEPS // 2)
    )


def float_tiles(start: Schedule, target: Target, goal: Goal) -> Sequence[Tile]:
    """Fused multiply-adds: tiles whose sums, weights and an activation stay in registers, and a little beyond."""
    product = known_product(start)
    packs = product.weight.scope == "const" and len(product.weight.shape) == 2
    found = []
    for (rows, columns), unroll in itertools.product(_shapes(product, 8, 8), perfect(product.depth, STEPS)):
        if rows * columns + columns > matrix.REGISTERS + 2:
            continue
        ways = ("", PACKED) if packs and columns > 1 and product.columns % columns == 0 else ("",)
        found += [Tile(rows, columns, unroll, weights=way) for way in ways]
    return _written(found)


def vector_tiles(start: Schedule, target: Target, goal: Goal) -> Sequence[Tile]:
    """Whole vectors: rows, vectors of columns and steps, with the products at a time that the default has; columns first or
    rows."""
    return _vector_tiles(start, known_product(start), target)


def window_tiles(start: Schedule, target: Target, goal: Goal) -> Sequence[Tile]:
    """The same of a row of windows."""
    return _vector_tiles(start, known_windows(start), target)


def _vector_tiles(start: Schedule, product: Product, target: Target) -> Sequence[Tile]:
    one = vectors.tiles_of(start, product, target)[0]
    lanes = one.lanes
    return [
        replace(one, rows=rows, columns=abreast * lanes, unroll=unroll, block=block)
        for abreast in range(1, 2 * vectors.ABREAST + 1)
        if product.columns % (abreast * lanes) == 0
        for rows in range(1, min(product.rows, vectors.TALLEST) + 1)
        if rows * abreast + abreast <= target.core.vectors
        for unroll in perfect(product.depth // one.step, 8)
        for block in {1, 1 if product.inside else -(-product.rows // rows)}
    ]


def pair_walks(start: Schedule, target: Target, goal: Goal) -> Sequence[Walk]:
    """Every correlation that there is an intrinsic for."""
    return [walk for _, walk in depthwise.correlations(depthwise.known(start))]


def single_walks(start: Schedule, target: Target, goal: Goal) -> Sequence[Walk]:
    """Rows along either axis; taps all written out, or a row of them."""
    known = _default_walk(start, target, goal)
    return [known] + [
        Walk(run, tile, unroll, words=known.words)
        for run in (1, 2)
        for tile in range(2, min(OUTPUTS, depthwise.known(start).outputs[run - 1]) + 1)
        for unroll in (depthwise.ALL_TAPS, depthwise.known(start).taps[run - 1])
    ]


def lane_taps(start: Schedule, target: Target, goal: Goal) -> Sequence[int]:
    """Taps that are written out: as many as ever, or a row of them."""
    return tuple(dict.fromkeys((depthwise.LANE_TAPS, *depthwise.known(start).taps)))


def _default_walk(start: Schedule, target: Target, goal: Goal) -> Walk:
    walks = depthwise.byte_walks if depthwise.suits_bytes(start, target) else depthwise.single_walks
    return walks(start, target, goal)[0]


# ---- A sketch for any function with one reduction: two levels of loops, a square of sums in registers (multi-level
# tiling, Ansor).
#
# What it computes does not matter, so it serves operators that no rule knows, those of plugins too. The two innermost loops
# beside the reduction are tiled without a rest; the reduction runs outside of the square, some of its steps written out; what
# reads the sums, and stages of its inputs that a row needs, are joined. There is no default: it is for a search.

SIDE = 8
"""Iterations of a side of the square at most."""


@frozen
class Square:
    """A choice: iterations of the last two loops beside the reduction at once, and steps of it that are written out."""

    rows: int
    columns: int
    steps: int


def suits_sketch(start: Schedule, target: Target) -> bool:
    """One reduction, that another stage reads, within loops of its own."""
    return _parts(start) is not None


def _parts(start: Schedule) -> tuple[Schedule, str, str] | None:
    """The function with its stages joined, the block that reduces, and the one that reads what it makes."""
    schedule = inline_elementwise(start)
    blocks = blocks_of(schedule)
    sums = [block for block in blocks if block.init is not None]
    if len(sums) != 1 or any(map(is_extern, blocks)):
        return None
    total = stored_buffer(sums[0])
    readers = [block.name for block in blocks if block is not sums[0] and total in buffers_read(block.body)]
    spatial = [i for i in sums[0].iters if i.kind == "space"]
    if len(readers) != 1 or total in start.func.params or len(spatial) < 2 or len(spatial) == len(sums[0].iters):
        return None
    return schedule, sums[0].name, readers[0]


def squares(start: Schedule, target: Target, goal: Goal) -> Sequence[Square]:
    """Perfect tiles; nothing that is written out is long."""
    parts = _parts(start)
    assert parts is not None
    schedule, block, _ = parts
    reducing = reduce_loops(schedule, block)
    rows, columns = [loop for loop in schedule.loops_of(block) if loop not in reducing][-2:]
    extents = [loop_extent(schedule.func, loop) for loop in (rows, columns, reducing[-1])]
    return [
        Square(r, c, steps)
        for r in perfect(extents[0], SIDE)
        for c in perfect(extents[1], SIDE)
        for steps in perfect(extents[2], STEPS)
        if r * c * steps <= WRITTEN
    ]


def schedule_sketch(start: Schedule, target: Target, decisions: Decisions) -> Schedule | None:
    """Loops beside the reduction, then that, then the square."""
    parts, square = _parts(start), decisions["square"]
    if parts is None:
        return None
    schedule, block, reader = parts
    reducing = reduce_loops(schedule, block)
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
    return pad_by_row(schedule, target)
