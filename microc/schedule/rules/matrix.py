"""Dense layers, convolutions as matrix products, products of matrices: the tiles worth comparing, by what a core can do.

Each is an instance of :mod:`microc.schedule.rules.product`. Where one instruction multiplies several numbers, or a fused
multiply-add has registers of its own, the tiles of other rules only lose: they load as much for fewer products.
"""

from __future__ import annotations

from dataclasses import replace
from math import isqrt

from microc.isa import word_product
from microc.schedule.pairing import can_pair
from microc.schedule.rules.product import (
    BITS,
    CROSSED,
    PACKED,
    PAIRED,
    WIDE,
    WORDS,
    Product,
    Tile,
    known_product,
    product_of,
    tile_product,
)
from microc.schedule.rules.rule import Decisions
from microc.schedule.schedule import Schedule
from microc.schedule.tree import find_block
from microc.target import Goal, Target
from microc.tir.names import ACC, COLUMNS, PATCH


def by_tile(start: Schedule, target: Target, decisions: Decisions) -> Schedule:
    """The template, for rules whose one decision is the tile."""
    return tile_product(start, target, decisions["tile"])


def suits_any(start: Schedule, target: Target) -> bool:
    """Any product."""
    return product_of(start) is not None


# ---------------------------------------------------------------- any core

UNROLL = (4, 3, 2, 1)
"""Steps of k in an iteration: the largest that leaves none over."""
UPRIGHT, STEPS = (4, 2), (8, *UNROLL)
"""Rows and columns where an instruction adds a product to its sum, so that eight sums, two weights and an activation are all
that registers hold beside addresses; steps of that."""


def plain_tiles(start: Schedule, target: Target, goal: Goal) -> tuple[Tile, ...]:
    """One product at a time, or four where a core adds those of bytes at once.

    Two by two keeps four sums, four operands and four pointers in the registers of an Armv7-M core; four by two loads less for a
    product, where nothing multiplies several at once. Cores with more registers may hold a larger square of 32-bit sums: these,
    both sides' operands, and two addresses. A single row takes twice as many columns as that has. What is left of rows and
    columns is a part of a tile.
    """
    product = known_product(start)
    whole = product.along and product.depth % STEP == 0 and product.total.dtype == "int32"
    found = word_product(product.data.dtype, product.weight.dtype, target.cpu) if whole else None
    step, intrin = (STEP, found.name) if found else (1, "")
    unroll = _steps(product.depth // step, (4, 2, 1) if step > 1 else UNROLL)
    largest = max(2, isqrt(target.core.costs.registers - 1) - 1) if product.total.dtype == "int32" else 2
    shapes = dict.fromkeys(
        (min(n, product.rows), _dividing(n if product.rows > 1 else 2 * n, product.columns)) for n in (2, largest)
    )
    tiles = tuple(Tile(tall, wide, unroll, step, intrin) for tall, wide in shapes)
    accumulates = target.has("one_product") and target.core.costs.has("accumulated") and not found
    tall, wide = UPRIGHT
    if accumulates and product.total.dtype == "int32" and product.rows >= tall and product.columns >= wide:
        return *tiles, Tile(tall, wide, _steps(product.depth, STEPS))
    return tiles


def _steps(depth: int, most: tuple[int, ...]) -> int:
    return next(n for n in most if depth % n == 0)


def _dividing(most: int, columns: int) -> int:
    """Columns at once: as many as divide all of them where half of the most do, for a part of a tile costs code."""
    even = next((n for n in range(most, most // 2 - 1, -1) if n > 1 and columns % n == 0), 0)
    return even or min(most, columns)


# ---------------------------------------------------------------- pairs of 16-bit numbers

STEP = 4
"""Products that a tensor intrinsic does at once."""
TALL, ACROSS = 3, 2
"""Rows and columns of a tile: six sums, four weights and two activations in registers, 0.94 instructions a product with k
unrolled by 16, 0.85 where two columns share their words."""
ROW_WIDTHS = (6, 4, 2)
"""Columns of a single row at once: as many as divide them where they are even."""
WHOLE, LOW = 7, 2
"""Steps of k, and no more, that are written out all where that is worth its code, and rows of a tile for that: a first layer of
3 x 3 taps and 3 channels has so many."""
MANY, WIDENED, DEEP = 4096, 256, 16
"""Products of a single row from which on more is compared, terms up to which it may be widened in memory of its own, and the most
steps of k that may be written out then."""
PAIRED_DEPTH = 20
"""Terms of a sum from which on pairing saves more than entangling and separating the sums costs."""
SAVED, SAVED_PAIRS = 0.5 / TALL, 0.25 / TALL
"""Instructions that a weight saves for every row when it is stored as 16-bit number: two widenings in four weights, shared by
a tile; one where columns are paired."""


def suits_pairs(start: Schedule, target: Target) -> bool:
    """Numbers of 8 or 16 bits times constant bytes, or copies of two matrices, into 32 bits, whole words of them."""
    product = product_of(start)
    if product is None or not product.along or product.total.dtype != "int32" or product.depth % STEP:
        return False
    if start.has(COLUMNS):
        return True
    constant = product.weight.scope == "const" and product.weight.dtype == "int8"
    return constant and product.data.dtype in ("int8", "uint8", "int16")


def pair_tiles(start: Schedule, target: Target, goal: Goal) -> tuple[Tile, ...]:
    """Rows are widened as they are copied, weights stored as 16-bit numbers where that is worth twice the flash. Of a single
    row, whose weights serve once, both ways are to be compared (:func:`_single`)."""
    product = known_product(start)
    rows, columns = product.rows, product.columns
    unroll = _steps(product.depth // STEP, (4, 3, 2, 5, 1))
    copied = "dot4_int16_int16"
    if start.has(COLUMNS):
        return (Tile(min(rows, TALL), min(columns, ACROSS), unroll, STEP, copied, "int16"),)
    pairs = can_pair(find_block(start.func.body, ACC), columns) and product.depth >= PAIRED_DEPTH
    tall, width = min(rows, TALL), _row_width(columns) if rows == 1 else min(columns, ACROSS)
    wide = Tile(tall, width, unroll, STEP, copied, "int16", WIDE)
    tight = (
        Tile(tall, width, unroll, STEP, "", "int16", PAIRED)
        if pairs
        else Tile(tall, width, unroll, STEP, "dot4_int16_crossed_int8", "int16", CROSSED)
    )
    if rows == 1:
        if target.has("dot4_i16_aligned") and columns % width == 0:
            wide = replace(wide, intrin="dot4_int16_int16_loaded", weights=WORDS)
        return _single(product, wide, tight, pairs=pairs, reads=not start.has(PATCH))
    tile = wide if rows * (SAVED_PAIRS if pairs else SAVED) >= goal.price else tight
    if product.depth == WHOLE * STEP and rows >= LOW:
        return tile, replace(tile, rows=LOW, unroll=WHOLE)
    return (tile,)


def _single(product: Product, wide: Tile, tight: Tile, *, pairs: bool, reads: bool) -> tuple[Tile, ...]:
    """Tiles of a single row. Where nothing copies it anyway (``reads``) it is read as it lies, or widened first where that
    takes little memory and its weights are in pairs; where they are many, more steps may be worth writing out."""
    data, many = product.data.dtype, product.depth * product.columns >= MANY
    if data == "int16" or not reads:
        ways: tuple[Tile, ...] = (wide, tight)
    elif pairs:
        narrow = replace(tight, copied="")
        ways = (narrow, tight, wide) if many and product.depth <= WIDENED else (narrow,)
    else:
        ways = (replace(tight, intrin=f"dot4_{data}_int8", copied="", weights=""),)
    deep = next(n for n in range(DEEP, 0, -1) if product.depth // STEP % n == 0)
    if not many or deep <= tight.unroll:
        return ways
    return *ways, *(replace(tile, unroll=deep) for tile in ways)


def _row_width(columns: int) -> int:
    """Columns of a single row at once. Of an odd number: the fewest tiles, the last of which may be a part of one, in the least
    code."""
    even = next((n for n in ROW_WIDTHS if columns % n == 0), 0)
    odd = range(1, min(columns, ROW_WIDTHS[0]) + 1)
    return even or min(odd, key=lambda n: (-(-columns // n), n + columns % n))


# ---------------------------------------------------------------- float32, fused

REGISTERS = 30
"""Registers for sums, weights and an activation; two are left for the elementwise end and the C compiler."""
ABREAST = (4, 5, 6, 3, 2)
"""Columns at once, the best first: rows and columns of like number share most."""
ROW_ABREAST = (16, 14, 12, 10, 8, 15, 13, 11, 9, 7, 6, 5, 4, 3, 2)
"""Columns at once for a single row, where each weight serves one product and only the activation is shared."""
FEW_COLUMNS = 4
"""The same of weights of few bits, each of which has an address of its own."""


def suits_float(start: Schedule, target: Target) -> bool:
    """Floats by floats, one product of two loads each."""
    product = product_of(start)
    return product is not None and set(product.dtypes) == {"float32"}


def suits_opened(start: Schedule, target: Target) -> bool:
    """Floats by bytes, the levels of weights."""
    product = product_of(start)
    return product is not None and product.along and product.dtypes == ("float32", "int8", "float32")


def opened_tiles(start: Schedule, target: Target, goal: Goal) -> tuple[Tile, ...]:
    """Those of floats; what opens a weight is shared by the rows of a tile. Levels of few bits lie along k, of few columns at
    once, whose elements are kept in registers."""
    product = known_product(start)
    fused, unroll = target.has("fma"), _steps(product.depth, UNROLL)
    shapes = (
        float_shapes(product.rows, product.columns) if fused else ((min(2, product.rows), min(2, product.columns)),)
    )
    if product.bits:
        tall, wide = shapes[0]
        return (Tile(tall, min(wide, FEW_COLUMNS), unroll, weights=BITS),)
    packs = fused and product.columns % shapes[0][1] == 0
    return tuple(Tile(tall, wide, unroll, weights=PACKED if packs else "") for tall, wide in shapes)


def float_shapes(rows: int, columns: int) -> tuple[tuple[int, int], ...]:
    """Rows and columns at once: rows that come out even, and as many as registers hold, for a part of a tile costs code. Columns
    divide evenly where possible, so that their weights can be packed."""
    if rows == 1:
        return ((1, next((n for n in ROW_ABREAST if columns % n == 0), min(columns, ROW_ABREAST[0]))),)
    wide = next((n for n in ABREAST if columns % n == 0), min(columns, ABREAST[0]))
    most = min(rows, (REGISTERS - wide - 1) // wide, 8)
    even = next((n for n in range(most, most // 2, -1) if rows % n == 0), most)
    return tuple((tall, wide) for tall in dict.fromkeys((even, most)))


def float_tiles(start: Schedule, target: Target, goal: Goal) -> tuple[Tile, ...]:
    """Sums beside the weights of one k and one activation: (rows + columns) loads for rows * columns products. Every sum runs
    along k in order."""
    product = known_product(start)
    shapes = float_shapes(product.rows, product.columns)
    whole = product.columns % shapes[0][1] == 0
    packs = product.weight.scope == "const" and len(product.weight.shape) == 2 and whole
    unroll = _steps(product.depth, UNROLL)
    return tuple(Tile(tall, wide, unroll, weights=PACKED if packs else "") for tall, wide in shapes)
