"""Convolutions on vectors whose windows slide over the rows of an image: pixels are read where they lie, none are gathered.

A window's row of taps is one run of memory, so a sum is one along rows and one along that run (algorithm ``windows``,
:func:`microc.ops.convolution.windows.window_product`). A tile is pixels of one row of outputs by vectors of channels; the rows
of the image that a row of outputs reads are copied with their border, once, where there is one.
"""

from __future__ import annotations

from microc.schedule.placement import loop_extent, stored_buffer
from microc.schedule.rules.generic import inline_elementwise, without_border
from microc.schedule.rules.lanes import float_lanes, in_lanes_of, lanes_of
from microc.schedule.rules.product import Product, Tile, multiplied, side_by_side, unrolled
from microc.schedule.rules.rule import Decisions
from microc.schedule.rules.vectors import in_lanes, tiles_of
from microc.schedule.schedule import Schedule
from microc.schedule.tree import find_block
from microc.target import Goal, Target
from microc.tir import ir
from microc.tir.names import ACC, OUT, PADDED, WINDOWS
from microc.tir.rewrite import walk_expr


def windows_of(schedule: Schedule) -> Product | None:
    """The product of one row of outputs by one row of taps; None where ``acc`` is no such convolution."""
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


def known_windows(schedule: Schedule) -> Product:
    """That of a function that the rule matched."""
    product = windows_of(schedule)
    assert product is not None
    return product


def suits_windows(start: Schedule, target: Target) -> bool:
    """Columns that fill vectors; data that is widened must be copied, and only a border is."""
    product = windows_of(start)
    if product is None or lanes_of(product.columns, target) == 0 or not in_lanes(start, target):
        return False
    return start.has(PADDED) or not tiles_of(start, product, target)[0].copied


def window_tiles(start: Schedule, target: Target, goal: Goal) -> tuple[Tile, ...]:
    """Those of a product of a row of outputs."""
    return tiles_of(start, known_windows(start), target)


def schedule_windows(start: Schedule, target: Target, decisions: Decisions) -> Schedule:
    """A tile of pixels by channels in registers, while the window's rows and their taps run."""
    tile: Tile = decisions["tile"]
    schedule = inline_elementwise(start)
    product = known_windows(schedule)
    (_, y), (ky,), x, o, k = product.around, product.inside, product.p, product.o, product.k
    schedule = side_by_side(schedule, product.weight.name, product, tile)
    schedule = schedule.split(x, (None, tile.rows)).split(o, (None, tile.columns // tile.lanes, tile.lanes))
    schedule = schedule.split(k, (None, tile.unroll, tile.step))
    inner = (f"{k}_0", f"{k}_1", f"{x}_1", f"{o}_1", f"{o}_2", f"{k}_2")
    schedule = schedule.reorder(f"{x}_0", f"{o}_0", ky, *inner).decompose_reduction(ACC, ky)
    schedule = schedule.reverse_compute_at(OUT, f"{o}_0").set_scope(product.total.name, "register")
    if schedule.has(PADDED):
        schedule = bordered(schedule.compute_at(PADDED, y), tile.copied or product.data.dtype, target)
    schedule = multiplied(schedule, product, tile, f"{o}_2")
    return unrolled(schedule, (f"{x}_0", f"{o}_0", ky, f"{k}_0"), tile, float_lanes(target))


def bordered(schedule: Schedule, dtype: str, target: Target) -> Schedule:
    """The rows under a row of windows: filled as a border is, then copied in the lanes of vectors."""
    schedule = without_border(schedule)
    stored = stored_buffer(find_block(schedule.func.body, PADDED))
    schedule = schedule if stored.dtype == dtype else schedule.set_dtype(PADDED, dtype)
    return in_lanes_of(schedule, schedule.loops_of(PADDED)[-1], target)
