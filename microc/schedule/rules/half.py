"""Matrix products in float16 on cores with vectors of eight halves.

A tile of rows by vectors of columns has its sums in float32 on the stack, to which one word (``half_product_*``) adds all terms.
A tile's rows are rounded to float16 before, once for all columns.
"""

from __future__ import annotations

from microc.isa.vocabulary.half_products import HALF_SHAPES, LANES
from microc.schedule.placement import loop_extent, stored_buffer
from microc.schedule.rules.algorithms import HALF_FLOATS
from microc.schedule.rules.generic import inline_elementwise, split_runs
from microc.schedule.rules.lanes import WORDS, float_lanes, vectorize_lanes
from microc.schedule.rules.rule import Decisions
from microc.schedule.schedule import Schedule
from microc.schedule.tree import find_block
from microc.target import Target
from microc.tir.facts import buffers_read
from microc.tir.names import ACC, HALVES, OUT, PADDED, PATCH, PRODUCT, WINDOW

NARROWED = 3
"""Vectors of floats are stored as float16."""


def suits_half(start: Schedule, target: Target) -> bool:
    """Sums in float16 of whole vectors of columns."""
    return start.has(HALVES) and start.has(ACC) and start.has(OUT) and target.has(HALF_FLOATS)


def schedule_half(start: Schedule, target: Target, decisions: Decisions) -> Schedule:
    """Loops p, o over tiles; in a tile the lanes outermost, which stand for the intrinsic."""
    schedule = inline_elementwise(start)
    p, o, run = schedule.loops_of(ACC)
    rows, vectors = tile_of(loop_extent(schedule.func, p), loop_extent(schedule.func, o))
    weight = next(b for b in buffers_read(find_block(schedule.func.body, HALVES)) if b.scope == "const")
    schedule = schedule.transform_layout(weight.name, ((None, vectors, 2, 4), (None,)), (0, 4, 1, 3, 2))
    schedule = schedule.split(p, (None, rows)).split(o, (None, vectors, 2, 4))
    inside = (f"{o}_3", f"{p}_1", f"{o}_1", f"{o}_2")
    schedule = schedule.reorder(f"{p}_0", f"{o}_0", *inside, run)
    schedule = schedule.decompose_reduction(ACC, inside[0]).compute_at(HALVES, run)
    schedule = schedule.decompose_reduction(HALVES, schedule.loops_of(HALVES)[-1])
    for block, scope in ((HALVES, "register"), (ACC, "local")):
        schedule = schedule.set_scope(stored_buffer(find_block(schedule.func.body, block)).name, scope)
    schedule = split_runs(schedule.compute_at(PATCH, f"{p}_0"), PATCH)
    schedule = schedule.reverse_compute_at(OUT, f"{o}_0").annotate(inside[0], PRODUCT, 1)
    if loop_extent(schedule.func, copied := schedule.loops_of(PATCH)[-1]) > 1:
        schedule = vectorize_lanes(schedule, copied, WORDS[0], NARROWED)
    lane, row, *columns = schedule.loops_of(f"{ACC}_init")[-len(inside) :]
    for order in ((*columns, lane, row), schedule.loops_of(OUT)[-1:-3:-1]):
        schedule = schedule.reorder(*order).unroll(order[-1])
        schedule = vectorize_lanes(schedule, order[-2], WORDS[0], float_lanes(target))
    return schedule


PIXELS = 4
"""Pixels of a window's word at most."""


def suits_windows(start: Schedule, target: Target) -> bool:
    """Sums in float16 of windows that slide over pixels of whole vectors of channels."""
    return start.has(HALVES) and not start.has(ACC) and start.has(OUT) and target.has(HALF_FLOATS)


def schedule_windows(start: Schedule, target: Target, decisions: Decisions) -> Schedule:
    """A row of pixels by a vector of channels: the lanes outermost, which stand for the intrinsic."""
    schedule = inline_elementwise(start)
    _, y, x, c, *taps = schedule.loops_of(HALVES)
    pixels = min(PIXELS, loop_extent(schedule.func, x))
    schedule = schedule.split(x, (None, pixels)).split(c, (None, LANES))
    schedule = schedule.reorder(f"{x}_0", f"{c}_0", f"{c}_1", f"{x}_1", *taps)
    schedule = schedule.decompose_reduction(HALVES, taps[0])
    schedule = schedule.set_scope(stored_buffer(find_block(schedule.func.body, HALVES)).name, "local")
    schedule = split_runs(schedule.compute_at(PADDED, y), PADDED)
    schedule = schedule.reverse_compute_at(OUT, f"{c}_0").annotate(f"{c}_1", WINDOW, 1)
    schedule = vectorize_lanes(schedule, schedule.loops_of(PADDED)[-1], WORDS[0], NARROWED)
    pixel, lane = schedule.loops_of(OUT)[-2:]
    return vectorize_lanes(schedule.reorder(lane, pixel).unroll(pixel), lane, WORDS[0], float_lanes(target))


def tile_of(rows: int, columns: int) -> tuple[int, int]:
    """Rows and vectors of columns: of those that leave no column over the ones with the fewest loads for a product; rows best
    leave none over."""
    known = [(r, v) for r, v in HALF_SHAPES if r <= rows and columns // LANES % v == 0]
    even = [(r, v) for r, v in known if rows % r == 0]
    return min(even + known, key=lambda shape: ((shape[0] + shape[1]) / (shape[0] * shape[1]), shape not in even))
