# SPDX-License-Identifier: Apache-2.0
"""Winograd's F(2 x 2, 3 x 3), for floats also F(4 x 4, 3 x 3), in the stages of
``ops/convolution/conv2d_algorithms.py``.

Integers, on cores with DSP instructions: some tiles of a row of tiles are computed at a time. Their padded input is
copied and transformed by pairs of channels (``add_i16x2``, ``sub_i16x2``) into int16, in the channel order 0, 2, 1, 3
that ``evens`` yields. For a pair of tiles and a pair of output channels ``dot2`` accumulates the 16 products one after
the other in four registers. Then the outputs of every tile are computed from its 16 sums. The workspace contains the
transformed inputs of these tiles, and 64 sums. Opened weights are transformed in the same way, for a pair of output channels
before their products with all tiles of a row or of two rows, and once more for the next.

Floats, on cores with a fused multiply-add: the 16 or 36 products are computed one after the other, each as a matrix
product. Its rows are as many tiles of a row as fit the registers, its columns some output channels."""

from __future__ import annotations

import itertools

from microc.base.immutable import frozen
from microc.ops.convolution.conv2d_algorithms import OPENED_SHARE
from microc.schedule.primitives.tree import find_buffer
from microc.schedule.rules.generic import vectorize_copy
from microc.schedule.rules.rule import Decisions, float_vector_level, largest_dividing_lane_count, vectorize_lanes
from microc.schedule.rules.vectors import LOAD_COST
from microc.schedule.schedule import Schedule
from microc.target import Goal, Target
from microc.tir.names import ACC, FILTER, OUT, PADDED, PEEL, ROWS, TILE, UNTILE

SCRATCH = 2048
"""Most bytes of transformed inputs at once, unless a single pair of tiles needs more."""
PAIR = 2
"""Number of tiles, and number of output channels, that are multiplied at once."""
STEP = 4
"""Number of products in one call of a dot4 intrinsic, and number of channels that are transformed at once."""
UNROLL, MAX_UNROLL = 4, 16
"""Largest unroll factor of the loop over K for the least code, and most steps of all unrolled loops of integers. With 16 steps,
layers of 16 to 64 channels take 0.85 to 0.96 of the instructions on Cortex-M4 (measured)."""
UNROLLED_POINTS = (4, 2, 1)
"""Unroll factors of the loop over the 16 points of the transform, largest first."""
TALLEST = 8
"""Most tiles, and most vectors of output channels, of a square."""
_UNSPLIT = (None,)
_CROSSED = (None, 2, 2)
"""Factors of ``transform_layout`` that split channels into fours, whose order then becomes 0, 2, 1, 3."""


@frozen
class Square:
    """A decision of the rule: a register tile of sums, for ``tiles`` tiles by ``columns`` vectors of output
    channels."""

    tiles: int
    columns: int


@frozen
class Unroll:
    """A decision of the rule for integers: unroll factors of the loop over K, in ``steps``, and of the loop over the
    ``points`` of the transform."""

    steps: int
    points: int


def is_winograd(schedule: Schedule) -> bool:
    """Test whether the function consists of the stages of Winograd's algorithm."""
    return all(schedule.has(block) for block in ("tile", "acc", "rows"))


def matches_int16_winograd(start: Schedule, target: Target) -> bool:
    """Match Winograd's algorithm on int16 tiles whose number of channels is a multiple of :data:`STEP`."""
    if not is_winograd(start):
        return False
    tile = find_buffer(start.func, TILE)
    return tile.dtype == "int16" and tile.shape[-1] % STEP == 0


def matches_float_winograd(start: Schedule, target: Target) -> bool:
    """Match Winograd's algorithm on floats. On cores with vectors the channels must fill whole vectors."""
    if not is_winograd(start) or find_buffer(start.func, TILE).dtype != "float32":
        return False
    return not target.has("vectors") or all(
        largest_dividing_lane_count(find_buffer(start.func, name).shape[-1], target) for name in (TILE, ACC)
    )


def _row_tiles_and_input_channels(start: Schedule) -> tuple[int, int]:
    """Return (number of tiles in a row, which is even; number of input channels)."""
    *_, columns, channels = find_buffer(start.func, TILE).shape
    return columns, channels


def default_tile_counts(start: Schedule, target: Target, goal: Goal) -> tuple[int, ...]:
    """Return the number of tiles of a row that are transformed at once, as a tuple of one: the most that fit in
    :data:`SCRATCH`."""
    if start.has(FILTER):
        return search_tile_counts(start, target, goal)
    most = max(PAIR, SCRATCH // (2 * 16 * _row_tiles_and_input_channels(start)[1]))
    return (max(n for n in search_tile_counts(start, target, goal) if n <= most),)


def search_tile_counts(start: Schedule, target: Target, goal: Goal) -> tuple[int, ...]:
    """Return the numbers of tiles that a search transforms at once: all even divisors of the tiles of a row. All tiles
    of a row share opened weights, or all of two rows, if the share of their workspace permits it."""
    columns, _ = _row_tiles_and_input_channels(start)
    if start.has(FILTER):
        rows, outputs = find_buffer(start.func, TILE).shape[-3], find_buffer(start.func, ACC).shape[-1]
        two = rows % 2 == 0 and OPENED_SHARE * (2 * columns + PAIR) <= outputs
        return (columns, 2 * columns) if two else (columns,)
    return tuple(n for n in range(PAIR, columns + 1, PAIR) if columns % n == 0)


def default_point_unrolls(start: Schedule, target: Target, goal: Goal) -> tuple[Unroll, ...]:
    """Return the unroll factors for integers that the cost model compares: those of the least code, and the largest that leave
    no tail. Where a run of products (:mod:`microc.isa.straight_line`) fills a pipeline once an iteration, also twice as many
    steps as the first."""
    steps, few = _step_count(start), search_unrolls(start, target, goal)[0]
    many = next(n for n in range(MAX_UNROLL, 0, -1) if steps % n == 0)
    is_run = target.core.pipeline is not None and steps % (2 * few) == 0
    points = next(n for n in UNROLLED_POINTS if n * many <= MAX_UNROLL) if many == steps else 1
    return tuple(dict.fromkeys((Unroll(few, 1), *((Unroll(2 * few, 1),) if is_run else ()), Unroll(many, points))))


def search_point_unrolls(start: Schedule, target: Target, goal: Goal) -> tuple[Unroll, ...]:
    """Return all unroll factors for integers that leave no tail and do not exceed :data:`MAX_UNROLL` steps together."""
    steps = _step_count(start)
    factors = (Unroll(n, points) for n in range(MAX_UNROLL, 0, -1) if steps % n == 0 for points in UNROLLED_POINTS)
    return tuple(unroll for unroll in factors if unroll.steps * unroll.points <= MAX_UNROLL)


def default_unroll(start: Schedule, target: Target, goal: Goal) -> tuple[int, ...]:
    """Return the largest unroll factor of K for floats that leaves no tail; also twice as much, where a run of products
    (:mod:`microc.isa.straight_line`) fills a pipeline once an iteration."""
    largest = search_unrolls(start, target, goal)[0]
    is_run = target.core.pipeline is not None and _step_count(start) % (2 * largest) == 0
    return (largest, 2 * largest) if is_run else (largest,)


def search_unrolls(start: Schedule, target: Target, goal: Goal) -> tuple[int, ...]:
    """Return the unroll factors of K that leave no tail, largest first. A step has :data:`STEP` terms of integers,
    or one term of floats."""
    steps = _step_count(start)
    return tuple(n for n in range(UNROLL, 0, -1) if steps % n == 0)


def _step_count(start: Schedule) -> int:
    """Return the number of steps along K."""
    tile = find_buffer(start.func, TILE)
    return tile.shape[-1] // (STEP if tile.dtype == "int16" else 1)


def schedule_winograd(start: Schedule, target: Target, decisions: Decisions) -> Schedule:
    """Schedule Winograd's algorithm on int16: every stage is computed just before the outputs of a pair of tiles and
    a pair of channels need it."""
    schedule, end, weight = _inline_output_transform(start)
    outputs = find_buffer(schedule.func, ACC).shape[-1]
    held, columns = decisions["held"], _row_tiles_and_input_channels(start)[0]
    rows = max(1, held // columns)
    *_, y, x, o = schedule.loops_of(end)
    pair = PAIR if outputs % PAIR == 0 else 1
    schedule = schedule.split(y, (None, rows, 2) if rows > 1 else (None, 2))
    schedule = schedule.split(x, (None, held // rows // PAIR, PAIR, 2)).split(o, (None, pair))
    between, last = ((f"{y}_1",), f"{y}_2") if rows > 1 else ((), f"{y}_1")
    schedule = schedule.reorder(f"{y}_0", f"{x}_0", f"{o}_0", *between, f"{x}_1", f"{o}_1", f"{x}_2", last, f"{x}_3")
    schedule = schedule.cache_write(ACC, "register").compute_at(ROWS, f"{x}_2").set_scope(ROWS, "register")
    schedule = schedule.compute_at("acc_register", f"{x}_1")
    unroll, point = decisions["unroll"], schedule.loops_of("acc_register")[-5]
    if unroll.points > 1:
        schedule, point = schedule.split(point, (None, unroll.points)), f"{point}_1"
    schedule = schedule.compute_at(ACC, point).compute_at(TILE, f"{x}_0")
    schedule = schedule.unroll(point) if unroll.points > 1 else schedule
    column = schedule.loops_of(TILE)[-2]
    if schedule.has(PADDED) and rows == 1:
        schedule = vectorize_copy(schedule.compute_at(PADDED, f"{x}_0"), PADDED, target)
    schedule = _transform_inputs(schedule)
    if schedule.has(PADDED) and rows > 1:
        # Each tile is padded alone: that copies half of the pixels twice, but takes the memory of one tile.
        schedule = vectorize_copy(schedule.compute_at(PADDED, column), PADDED, target)
    if schedule.has(FILTER):
        schedule = _open_weights(schedule.compute_at(FILTER, f"{o}_0"), pair)
    else:
        schedule = schedule.transform_layout(weight, (_UNSPLIT, (None, pair), _CROSSED), (1, 0, 2, 3, 5, 4))
    schedule = _schedule_int16_products(schedule, unroll.steps)
    for loop in (f"{y}_0", f"{x}_0", *between, f"{x}_1", f"{x}_2"):
        schedule = schedule.annotate(loop, PEEL, 0)
    for loop in (*schedule.loops_of("acc_register")[-2:], *schedule.loops_of(ROWS)[-6:-4], last, f"{x}_3"):
        schedule = schedule.unroll(loop)
    return schedule


def _inline_output_transform(start: Schedule) -> tuple[Schedule, str, str]:
    """Inline the output transform into the epilogue. Return (schedule, block that stores outputs, name of the
    transformed weights)."""
    points, *_, channels = find_buffer(start.func, TILE).shape
    outputs = find_buffer(start.func, ACC).shape[-1]
    transformed = [b.name for b in start.func.params if b.shape == (points, outputs, channels)]
    weight = FILTER if start.has(FILTER) else transformed[0]
    return (start.compute_inline(UNTILE), OUT, weight) if start.has(OUT) else (start, UNTILE, weight)


def _transform_inputs(schedule: Schedule) -> Schedule:
    """Schedule the input transform: four channels at once, all points of a tile one after the other."""
    schedule = schedule.transform_layout(TILE, (_UNSPLIT,) * 3 + ((None, PAIR), _CROSSED), (1, 2, 3, 0, 4, 5, 7, 6))
    s, n, y, x, c = schedule.loops_of(TILE)[-5:]
    schedule = schedule.split(c, (None, STEP)).reorder(n, y, x, f"{c}_0", f"{c}_1", s)
    return schedule.unroll(s).vectorize(f"{c}_1")


def _open_weights(schedule: Schedule, pair: int) -> Schedule:
    """Schedule the transform of opened weights as that of inputs: four channels at once, all points one after the other."""
    schedule = schedule.transform_layout(FILTER, (_UNSPLIT, (None, pair), _CROSSED), (1, 0, 2, 3, 5, 4))
    s, o, c = schedule.loops_of(FILTER)[-3:]
    schedule = schedule.split(c, (None, STEP)).reorder(o, f"{c}_0", f"{c}_1", s)
    return schedule.unroll(s).vectorize(f"{c}_1")


def _schedule_int16_products(schedule: Schedule, unroll: int) -> Schedule:
    """Schedule the int16 products at a point of the transform: K innermost, two by two sums in registers."""
    *_, x, o, k = schedule.loops_of(ACC)
    schedule = schedule.split(k, (None, unroll, STEP)).reorder(f"{k}_0", f"{k}_1", x, o, f"{k}_2")
    schedule = schedule.decompose_reduction(ACC, f"{k}_0").tensorize(f"{k}_2", "dot4_crossed_int16_int16")
    for loop in (*schedule.loops_of("acc_init")[-2:], f"{k}_1", x, o):
        schedule = schedule.unroll(loop)
    return schedule


def schedule_float_winograd(start: Schedule, target: Target, decisions: Decisions) -> Schedule:
    """Schedule Winograd's algorithm on floats: copy and transform the padded input of some tiles of a row, then
    compute sums and outputs for some output channels at a time."""
    outputs = find_buffer(start.func, ROWS).shape[1]
    schedule, end, weight = _inline_output_transform(start)
    inner, lanes = _input_and_output_lanes(start, target)
    tiles, columns = decisions["square"].tiles, decisions["square"].columns
    *_, y, x, o = schedule.loops_of(end)
    schedule = schedule.split(y, (None, outputs)).split(x, (None, tiles, outputs)).split(o, (None, columns, lanes))
    schedule = schedule.reorder(f"{y}_0", f"{x}_0", f"{o}_0", f"{x}_1", f"{o}_1", f"{y}_1", f"{x}_2", f"{o}_2")
    schedule = schedule.cache_write(ACC, "register").compute_at(ROWS, f"{o}_1").set_scope(ROWS, "register")
    schedule = schedule.compute_at("acc_register", f"{o}_0")
    schedule = schedule.compute_at(ACC, schedule.loops_of("acc_register")[-5]).compute_at(TILE, f"{x}_0")
    if schedule.has(PADDED):
        schedule = vectorize_copy(schedule.compute_at(PADDED, f"{x}_0"), PADDED, target)
    for loop in (f"{y}_0", f"{x}_0", f"{o}_0", f"{x}_1", f"{o}_1"):
        schedule = schedule.annotate(loop, PEEL, 0)
    schedule = _schedule_float_products(schedule, weight, columns, lanes, decisions["unroll"])
    s, *_, tile, c = schedule.loops_of(TILE)[-5:]
    schedule = schedule.split(c, (None, inner)).reorder(tile, f"{c}_0", s, f"{c}_1").unroll(s)
    for block, loops in (("acc_init", 3), (ACC, 4), ("acc_register", 3), (ROWS, 6), (end, 3)):
        for loop in schedule.loops_of(block)[-loops:-1]:
            schedule = schedule.unroll(loop)
    for block in (TILE, "acc_init", ACC, "acc_register", ROWS, end) if target.has("vectors") else ():
        count = inner if block == TILE else lanes
        schedule = vectorize_lanes(schedule, schedule.loops_of(block)[-1], count, float_vector_level(target))
    return schedule


def _schedule_float_products(
    schedule: Schedule, weight_name: str, vector_count: int, lanes: int, unroll: int
) -> Schedule:
    """Schedule the float products at a point of the transform: the loop over columns is innermost, and the weights
    of its columns are contiguous."""
    schedule = schedule.transform_layout(weight_name, (_UNSPLIT, (None, vector_count * lanes), _UNSPLIT), (0, 1, 3, 2))
    *_, tile, column, k = schedule.loops_of(ACC)
    schedule = schedule.split(column, (vector_count, lanes)).split(k, (None, unroll))
    schedule = schedule.reorder(f"{k}_0", f"{k}_1", tile, f"{column}_0", f"{column}_1")
    schedule = schedule.decompose_reduction(ACC, f"{k}_0")
    return schedule.split(schedule.loops_of("acc_register")[-1], (vector_count, lanes))


def _input_and_output_lanes(start: Schedule, target: Target) -> tuple[int, int]:
    """Return (lanes of input channels, lanes of output channels); both are 1 on cores without vectors."""
    channels, outputs = (find_buffer(start.func, name).shape[-1] for name in (TILE, ACC))
    return (
        (largest_dividing_lane_count(channels, target), largest_dividing_lane_count(outputs, target))
        if target.has("vectors")
        else (1, 1)
    )


def default_square(start: Schedule, target: Target, goal: Goal) -> tuple[Square, ...]:
    """Return the square with the least estimated time per product, as a tuple of one. The estimate counts waits for
    previous sums, and loads."""

    def time_per_product(square: Square) -> tuple[float, int, int]:
        # Per product: its issue slot, or more if the pipeline is deeper than the square has sums; and its share of the loads.
        slots = max(1.0, target.core.pipelined / (square.tiles * square.columns))
        return slots + LOAD_COST * (1 / square.tiles + 1 / square.columns), square.tiles, square.columns

    return (min(search_squares(start, target, goal), key=time_per_product),)


def search_squares(start: Schedule, target: Target, goal: Goal) -> tuple[Square, ...]:
    """Return the squares that divide tiles and channels, and whose sums, weights and broadcast inputs fit the
    registers."""
    scalars = target.core.costs.float_registers + 2  # the costs leave out two
    registers = target.core.vectors if target.has("vectors") else scalars
    tiles, columns = (
        _row_tiles_and_input_channels(start)[0],
        find_buffer(start.func, ACC).shape[-1] // _input_and_output_lanes(start, target)[1],
    )
    pairs = itertools.product(range(1, TALLEST + 1), repeat=2)
    # tiles * columns sums + columns weights + 2 for a broadcast input and an intermediate result
    return tuple(Square(t, c) for t, c in pairs if tiles % t == 0 and columns % c == 0 and t * c + c + 2 <= registers)
