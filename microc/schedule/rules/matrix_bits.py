"""Products by weights of few bits: the tiles worth comparing.

What takes a weight out of its element is shared by the rows of a tile. Where one instruction multiplies pairs, the rows are
widened as they are copied, and a shift and a mask leave two weights; elsewhere two shifts leave one.
"""

from __future__ import annotations

from math import isqrt

from microc.schedule.bit_columns import COLUMNS, can_share
from microc.schedule.bit_pairs import TERMS, can_shift
from microc.schedule.rules.product import BITS, SHARED, Product, Tile, known_product, product_of
from microc.schedule.schedule import Schedule
from microc.schedule.tree import find_block
from microc.target import Goal, Target
from microc.tir.bit_fields import HALVES, NEIGHBOURS, BitFields
from microc.tir.names import ACC

SHAPES = ((3, 2), (2, 2))
"""Rows and columns of a tile of pairs: six sums leave registers for an activation, two words of weights and what leaves them."""
WIDTHS = (6, 4, 2, 3, 5, 1)
"""Columns of a single row at once."""
LONG = (16, 12, 8, 4)
"""Pairs of terms in an iteration where four columns share their words."""
WORDS = (2, 1)
"""Words of weights in an iteration."""


def suits_bits(start: Schedule, target: Target) -> bool:
    """A product by weights that are to be packed."""
    return _packed(start) is not None


def suits_bit_pairs(start: Schedule, target: Target) -> bool:
    """The same, whose sums leave room for a shift."""
    product = _packed(start)
    if product is None or product.tables or product.depth % BitFields(product.bits, HALVES).group:
        return False
    return can_shift(find_block(start.func.body, ACC), product.bits)


def _packed(start: Schedule) -> Product | None:
    product = product_of(start)
    return product if product is not None and product.bits and product.along else None


def pair_tiles(start: Schedule, target: Target, goal: Goal) -> tuple[Tile, ...]:
    """Tiles of sums of pairs."""
    product = known_product(start)
    if product.rows == 1 and can_share(find_block(start.func.body, ACC), product.columns):
        long = next(n for n in LONG if product.depth // TERMS % n == 0)
        return (Tile(1, COLUMNS, long, TERMS, copied="int16", weights=SHARED),)
    pairs = BitFields(product.bits, HALVES).group // TERMS
    unroll = product.block // TERMS or _unrolled(product.depth // TERMS, pairs)
    if product.rows == 1:
        width = next(n for n in WIDTHS if product.columns % n == 0)
        shapes: tuple[tuple[int, int], ...] = ((1, width),)
    else:
        shapes = tuple(dict.fromkeys((min(r, product.rows), min(c, product.columns)) for r, c in SHAPES))
    return tuple(Tile(tall, wide, unroll, TERMS, copied="int16", weights=BITS) for tall, wide in shapes)


def plain_tiles(start: Schedule, target: Target, goal: Goal) -> tuple[Tile, ...]:
    """Squares of sums as registers permit, as of any product; a single row takes twice as many columns."""
    product = known_product(start)
    unroll = _unrolled(product.depth, BitFields(product.bits, NEIGHBOURS).group)
    largest = max(2, isqrt(target.core.costs.registers - 1) - 1)
    shapes = dict.fromkeys(
        (min(n, product.rows), min(n if product.rows > 1 else 2 * n, product.columns)) for n in (2, largest)
    )
    return tuple(Tile(tall, wide, unroll, weights=BITS) for tall, wide in shapes)


def _unrolled(terms: int, element: int) -> int:
    """Steps of k in an iteration: those of two elements, or of one where that leaves some over."""
    return next(n * element for n in WORDS if terms % (n * element) == 0)
