"""Products and depthwise convolutions with neighbouring channels in strips: as many at once as the vectors of a machine hold,
which knows it when it runs (:mod:`microc.tir.strips`).

A strip goes through all terms of its sums. Weights lie by terms, those of all columns side by side, for no one knows how many a
strip takes. Of wide vectors a core has few: three rows beside the weights in vectors of eight registers, six in those of four,
where these are short; of floats less, for weights take as much as a sum, and once more while they are converted.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from types import MappingProxyType

from microc.isa.vocabulary.scalable import LEAST
from microc.schedule.placement import loop_extent
from microc.schedule.rules.generic import copy_words, inline_elementwise, pad_by_row, reduce_loops
from microc.schedule.rules.lanes import float_lanes, strips
from microc.schedule.rules.planes import depthwise_of
from microc.schedule.rules.product import Product, Tile, known_product, prepared, product_of, unrolled
from microc.schedule.rules.rule import Decisions
from microc.schedule.rules.vectors import MOST_TAPS, in_lanes
from microc.schedule.rules.windows import bordered, known_windows, windows_of
from microc.schedule.schedule import Schedule
from microc.schedule.tree import find_block
from microc.target import Goal, Target
from microc.tir.names import ACC, CHANNELS_FIRST, OUT, PADDED, PATCH

ROWS = MappingProxyType({("int32", 16): 6, ("int32", 32): 3, ("float32", 16): 5, ("float32", 32): 2})
"""Rows of a tile of sums by their dtype and the least lanes of a vector."""
PIXELS = MappingProxyType({("int32", 16): 4, ("int32", 32): 2, ("float32", 16): 4, ("float32", 32): 1})
"""The same of a depthwise convolution, which loads two vectors for each product."""
STEPS = (4, 2, 1)
"""Steps of a sum in an iteration."""
FEW = 8
"""Columns of which a strip is too short."""


def _suits(start: Schedule, product: Product | None, target: Target) -> bool:
    """Numbers of 32 bits by constants, in sums that vectors do all of."""
    if product is None or product.columns < FEW or not in_lanes(start, target) or product.bits:
        return False
    if CHANNELS_FIRST in dict(find_block(start.func.body, ACC).annotations):
        return False
    known = product.along and product.weight.scope == "const" and len(product.weight.shape) == 2
    return known and product.total.dtype in ("int32", "float32")


def suits_product(start: Schedule, target: Target) -> bool:
    """A product by constants."""
    return _suits(start, product_of(start), target)


def suits_windows(start: Schedule, target: Target) -> bool:
    """A convolution whose windows slide over rows, by constants."""
    return _suits(start, windows_of(start), target)


def product_tiles(start: Schedule, target: Target, goal: Goal) -> tuple[Tile, ...]:
    """Those of a product."""
    return _tiles(known_product(start))


def window_tiles(start: Schedule, target: Target, goal: Goal) -> tuple[Tile, ...]:
    """Those of a product of a row of outputs."""
    return _tiles(known_windows(start))


def _tiles(product: Product) -> tuple[Tile, ...]:
    """As many rows as registers hold, best a divisor, by a strip of columns."""
    unroll = next(n for n in STEPS if product.depth % n == 0)
    found = []
    for lanes in LEAST:
        most = min(ROWS[product.total.dtype, lanes], product.rows)
        rows = next((n for n in range(most, most // 2, -1) if product.rows % n == 0), most)
        found.append(Tile(rows, 1, unroll, lanes=lanes))
    return tuple(found)


def strip_product(start: Schedule, target: Target, decisions: Decisions) -> Schedule:
    """Rows of a tile by a strip of columns in registers, while k runs."""
    tile: Tile = decisions["tile"]
    schedule = prepared(start, target)
    product = known_product(schedule)
    p, o, k = product.p, product.o, product.k
    schedule = _by_terms(schedule, product).split(p, (None, tile.rows)).split(k, (None, tile.unroll))
    turn = (f"{p}_0", *product.inside, o)
    schedule = schedule.reorder(*turn, f"{k}_0", f"{k}_1", f"{p}_1").decompose_reduction(ACC, f"{k}_0")
    schedule = schedule.reverse_compute_at(OUT, o).set_scope(product.total.name, "register")
    if schedule.has(PATCH):
        schedule = copy_words(schedule.compute_at(PATCH, product.tile), PATCH, target)
    return strips(_written_out(schedule, (*turn, f"{k}_0"), tile), o, target, tile.lanes)


def strip_windows(start: Schedule, target: Target, decisions: Decisions) -> Schedule:
    """The same of a row of pixels, while the window's rows and their taps run."""
    tile: Tile = decisions["tile"]
    schedule = inline_elementwise(start)
    product = known_windows(schedule)
    (_, y), (ky,), x, o, k = product.around, product.inside, product.p, product.o, product.k
    schedule = _by_terms(schedule, product).split(x, (None, tile.rows)).split(k, (None, tile.unroll))
    turn = (f"{x}_0", o, ky)
    schedule = schedule.reorder(*turn, f"{k}_0", f"{k}_1", f"{x}_1").decompose_reduction(ACC, ky)
    schedule = schedule.reverse_compute_at(OUT, o).set_scope(product.total.name, "register")
    if schedule.has(PADDED):
        schedule = bordered(schedule.compute_at(PADDED, y), product.data.dtype, target)
    return strips(_written_out(schedule, (*turn, f"{k}_0"), tile), o, target, tile.lanes)


def _by_terms(schedule: Schedule, product: Product) -> Schedule:
    """The weights of a term side by side."""
    return schedule.transform_layout(product.weight.name, ((None,), (None,)), (1, 0))


def _written_out(schedule: Schedule, kept: tuple[str, ...], tile: Tile) -> Schedule:
    return unrolled(schedule, kept, replace(tile, lanes=0), 0)


def suits_depthwise(start: Schedule, target: Target) -> bool:
    """A depthwise convolution of several channels."""
    form = depthwise_of(start)
    if form is None or form.channels < FEW or not in_lanes(start, target):
        return False
    return form.total.dtype == "int32" or (form.total.dtype == "float32" and float_lanes(target) > 0)


def strip_depthwise(start: Schedule, target: Target, decisions: Decisions) -> Schedule:
    """Pixels of a row by a strip of channels in registers, while all taps run."""
    form = depthwise_of(start)
    assert form is not None
    lanes = decisions["lanes"]
    schedule = inline_elementwise(start)
    around, taps = schedule.loops_of(ACC), reduce_loops(schedule, ACC)
    x, channel = around[2], around[3]
    schedule = schedule.split(x, (None, min(loop_extent(schedule.func, x), PIXELS[form.total.dtype, lanes])))
    schedule = schedule.reorder(f"{x}_0", channel, *taps, f"{x}_1").decompose_reduction(ACC, taps[0])
    schedule = schedule.reverse_compute_at(OUT, channel).set_scope(form.total.name, "register")
    for tap in taps if prod(form.taps) <= MOST_TAPS else taps[-1:]:
        schedule = schedule.unroll(tap)
    for block in (f"{ACC}_init", ACC, OUT):
        around = schedule.loops_of(block)
        for loop in around[around.index(channel) + 1 :]:
            schedule = schedule if loop in taps else schedule.unroll(loop)
    return pad_by_row(strips(schedule, channel, target, lanes), target)
