"""Neighbouring channels in lanes or strips of vectors, and windows."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from types import MappingProxyType

from microc.base import dtypes
from microc.isa import body_of
from microc.isa.vocabulary.vector_lanes import LEAST
from microc.schedule.primitives.compute_at import loop_extent, stored_buffer
from microc.schedule.primitives.tree import find_block
from microc.schedule.rules.generic import copy_words, inline_elementwise, pad_by_row, reduce_loops, without_border
from microc.schedule.rules.matrix import suits_opened
from microc.schedule.rules.rule import (
    NUMBERS,
    THREADS,
    Decisions,
    float_lanes,
    in_lanes_of,
    lanes_of,
    strips,
    vectorize_lanes,
)
from microc.schedule.rules.templates import (
    PACKED,
    WORDS,
    Product,
    Tile,
    depthwise_of,
    known_product,
    multiplied,
    prepared,
    product_of,
    side_by_side,
    unrolled,
)
from microc.schedule.schedule import Schedule
from microc.target import Goal, Target
from microc.tir import ir
from microc.tir.lower.lane_code import FLOAT_CALLS
from microc.tir.names import ACC, CHANNELS_FIRST, OUT, PADDED, PATCH, WINDOWS
from microc.tir.rewrite import walk_all_exprs, walk_expr

# ---- Products and depthwise convolutions with neighbouring channels in the lanes of vectors, for units with
# operations on whole vectors: computers, not microcontrollers, whose vectors add up across lanes
# (:mod:`microc.schedule.rules.matrix_mve`).
#
# A tile of sums fills the registers. In each step of a sum it loads one vector of weights for all its rows, and one number, which
# is repeated in all lanes, for all its columns.

ABREAST, TALLEST = 4, 14
"""Vectors of columns and rows at once."""
ALONE = 8
"""The same of a single row, which is what its sums have to fill a pipeline with."""
SHORT, SHORT_ROWS = 2, 8
"""The same of integers, each of whose sums is scaled by code of its own."""
BESIDE = 2
"""Registers for a repeated number and what is worked on."""
BYTES = MappingProxyType(
    {("int8", "int8"): ("dot4_i8", "dot4_int8_int8_word"), ("uint8", "int8"): ("dot4_u8", "dot4_uint8_int8_word")}
)
"""By the dtypes of data and weights: the word of vectors that multiplies four bytes in each lane, and its tensor intrinsic."""
LOADED = 0.5
"""What a load takes beside a multiply-add: there are as many units for them, which do not wait for each other."""
SHORT_SUM = 32
"""Terms of a sum that a core has under way beside those of the next one."""
PACKED_ROWS = 16
"""Rows from which on it pays to copy the weights of a tile's columns, where these are data."""
VECTORS_STEPS = (2, 1)
"""Steps of a sum in an iteration."""
VECTORS_PIXELS = 4
"""Pixels at once of a depthwise convolution: more share more loads, but are no faster for all their code."""
TAP = 2
"""Operations of a tap: a product and a sum."""
MOST_TAPS = 25
"""Taps that are written out; of more, a row of them."""


def suits_product(start: Schedule, target: Target) -> bool:
    """Floats by floats or by the levels of weights, or integers into 32 bits by constants, whose columns are neighbours and fill
    vectors."""
    product = product_of(start)
    if product is None or lanes_of(product.columns, target) == 0:
        return False
    if not in_lanes(start, target) and not _apart(product, target):
        return False
    if CHANNELS_FIRST in dict(find_block(start.func.body, ACC).annotations):
        return False
    if set(product.dtypes) == {"float32"} or (suits_opened(start, target) and not product.bits):
        return True
    if product.total.dtype != "int32" or not target.has("vectors") or product.bits:
        return False
    known = product.along and product.weight.scope == "const"
    return known or (_packs(product, target) and _word(product, lanes_of(product.columns, target), target)[0] > 1)


def _apart(product: Product, target: Target) -> bool:
    """Whether sums are worth to be made in lanes for an end that is not: vectors of floats, with scalars beside them."""
    return float_lanes(target) == NUMBERS and set(product.dtypes) == {"float32"}


def in_lanes(start: Schedule, target: Target) -> bool:
    """Whether vectors do all that is computed in floats, and no number has 64 bits: an end that has no form in lanes would be
    written out for every sum."""
    parts = list(walk_all_exprs(start.func.body))
    floats = [x for x in parts if x.dtype == "float32"]
    if any(x.dtype in ("int64", "uint64", "float64") for x in parts):
        return False
    if not float_lanes(target):
        return not floats
    return all(x.name in (*FLOAT_CALLS, ir.REINTERPRET) for x in floats if isinstance(x, ir.Call))


def product_tiles(start: Schedule, target: Target, goal: Goal) -> tuple[Tile, ...]:
    """As many sums as registers hold beside a row of weights; every sum runs along k in order. Of floats the tile that takes the
    least time, which need not be lowered to be counted; of integers two, the code of whose ends counts, too."""
    return tiles_of(start, known_product(start), target)


def tiles_of(start: Schedule, product: Product, target: Target) -> tuple[Tile, ...]:
    """Those of a product."""
    lanes = lanes_of(product.columns, target)
    abreast = [n for n in range(_abreast(product, target), 0, -1) if product.columns % (lanes * n) == 0]
    if product.total.dtype == "int32":
        shapes = [(_rows(product, n, target), n) for n in abreast]
    else:
        every = [(rows, n) for n in abreast for rows in _heights(start, product, n, target)]
        shapes = [min(every, key=lambda shape: _time(product, shape, target))]
    blocks = [_block(start, product, rows, target) for rows, _ in shapes]
    tiles = [_multiplied(product, rows, lanes * n, lanes, target) for rows, n in shapes]
    apart = not in_lanes(start, target)
    return tuple(replace(tile, block=block, apart=apart) for tile, block in zip(tiles, blocks, strict=True))


def _abreast(product: Product, target: Target) -> int:
    """Vectors of columns at once, at most."""
    if product.total.dtype == "int32":
        return SHORT
    return min(ALONE, target.core.vectors // 2) if product.rows == 1 else ABREAST


def _time(product: Product, shape: tuple[int, int], target: Target) -> float:
    """For a step of the sums of a vector of columns in all rows: multiply-adds, or as many as a pipeline could have begun while
    those of a small tile wait for their sums, and loads, of a tile's vectors of weights and of its rows' numbers. Short sums do
    not wait: the next tile's begin meanwhile."""
    count, (rows, abreast) = product.rows, shape
    tiles = [rows] * (count // rows) + [count % rows] * (count % rows > 0)
    pipelined = target.core.pipelined if product.depth > SHORT_SUM else 0
    begun = sum(max(tall * abreast, pipelined) for tall in tiles)
    return begun / abreast + LOADED * (len(tiles) + count / abreast)


def _rows(product: Product, abreast: int, target: Target) -> int:
    """Rows at once: as many as registers leave room for, best a divisor."""
    most = _tallest(product, abreast, target)
    return next((n for n in range(most, most // 2, -1) if product.rows % n == 0), most)


def _heights(start: Schedule, product: Product, abreast: int, target: Target) -> tuple[int, ...]:
    """Rows worth comparing: the last tile may be a part of one, but not where threads share the tiles, for they have no columns
    for themselves, nor where few columns use a patch, which is copied best in whole parts of an image's row."""
    whole, most = _rows(product, abreast, target), _tallest(product, abreast, target)
    shared = target.has(THREADS) and (start.has(PATCH) or not _columns_first(product, target))
    few = start.has(PATCH) and product.columns <= abreast * lanes_of(product.columns, target)
    return (whole,) if shared or few or not target.core.pipelined else (whole, most)


def _tallest(product: Product, abreast: int, target: Target) -> int:
    """The most rows that registers leave room for."""
    floats = product.total.dtype == "float32"
    beside = 0 if floats and float_lanes(target) == NUMBERS else BESIDE
    room = (target.core.vectors - abreast - beside) // abreast
    return max(1, min(room, product.rows, TALLEST if floats else SHORT_ROWS))


def _columns_first(product: Product, target: Target) -> bool:
    """Whether weights of floats do not fit the cache that they would pass through once for every tile of rows."""
    floats, cache = product.total.dtype == "float32", target.core.cache
    return floats and bool(cache) and not product.inside and 4 * product.columns * product.depth > cache // 2


def _block(start: Schedule, product: Product, rows: int, target: Target) -> int:
    """Tiles of rows that a tile's columns serve before the next: one where all weights stay in a cache, else all, for larger
    caches stream rows as fast as they are multiplied, and so that data is copied once for a tile's columns; of rows that are
    copied as many as the cache holds, in equal parts."""
    tiles = -(-product.rows // rows)
    if start.has(PATCH) and _columns_first(product, target):
        most = target.core.cache // (4 * product.depth * rows)
        return next((n for n in range(min(most, tiles), 1, -1) if tiles % n == 0), 1)
    data = product.weight.scope != "const" and _packs(product, target)
    return tiles if data or _columns_first(product, target) else 1


def _multiplied(product: Product, rows: int, columns: int, lanes: int, target: Target) -> Tile:
    """As many products at a time as the words that lanes are hold."""
    packs = _packs(product, target)
    step, intrin, copied = _word(product, lanes, target) if packs and product.total.dtype == "int32" else (1, "", "")
    steps = next(n for n in VECTORS_STEPS if product.depth // step % n == 0)
    weights = WORDS if intrin else PACKED if packs else ""
    return Tile(rows, columns, steps, step, intrin, copied, weights, lanes)


def _packs(product: Product, target: Target) -> bool:
    """Whether weights are stored for the tile: constants are, and data for enough rows where its columns would be read one by
    one, or beyond a cache."""
    if product.weight.scope == "const":
        return len(product.weight.shape) == 2
    wanted = product.along or product.total.dtype == "int32" or _columns_first(product, target)
    return wanted and product.panels and product.rows >= PACKED_ROWS and target.core.cache > 0


def _word(product: Product, lanes: int, target: Target) -> tuple[int, str, str]:
    """Integers of a word, the tensor intrinsic of their products and the dtype in which rows are copied for it: four bytes where
    vectors multiply such, else two numbers of 16 bits, else one."""
    word, intrin = BYTES.get(product.dtypes[:2], ("", ""))
    if word and product.depth % 4 == 0 and target.has(f"{word}_i32x{lanes}"):
        return 4, intrin, ""
    short = all(dtypes.nbytes(kind) <= 2 for kind in product.dtypes[:2])
    pairs = short and product.depth % 2 == 0 and target.has(f"dot2_i32x{lanes}")
    return (2, "dot2_int16_int16", "int16") if pairs else (1, "", "")


def suits_depthwise(start: Schedule, target: Target) -> bool:
    """A depthwise convolution whose channels fill vectors."""
    form = depthwise_of(start)
    if form is None or not (float_lanes(target) or in_lanes(start, target)):
        return False
    known = form.total.dtype == "float32" or (form.total.dtype == "int32" and target.has("vectors"))
    return known and lanes_of(form.channels, target) > 0


def known_pairs(start: Schedule, target: Target, goal: Goal) -> tuple[bool, ...]:
    """Whether pairs of taps are multiplied: where a word of vectors does that in fewer operations than one tap takes."""
    form = depthwise_of(start)
    assert form is not None
    word = f"dot2_i32x{lanes_of(form.channels, target)}"
    body = body_of(word, target.cpu) if target.has(word) else None
    short = form.total.dtype == "int32" and all(dtypes.holds("int16", kind) for kind in form.dtypes[:2])
    plain = form.times == 1 and prod(form.taps) <= MOST_TAPS
    return (short and plain and body is not None and sum(body.counts().values()) < TAP,)


def all_pairs(start: Schedule, target: Target, goal: Goal) -> tuple[bool, ...]:
    """Both, where pairs pay: their weights are larger."""
    return tuple(dict.fromkeys((*known_pairs(start, target, goal), False)))


def depthwise_vectors(start: Schedule, target: Target, decisions: Decisions) -> Schedule:
    """A row of ``pixels`` by a vector of channels in registers, while all taps run."""
    form = depthwise_of(start)
    assert form is not None
    lanes = lanes_of(form.channels, target)
    schedule = inline_elementwise(start)
    if decisions["pairs"]:
        schedule = schedule.tensorize_taps(ACC, form.weight.name, 0 if form.taps[0] > 1 else 1)
    around, taps = schedule.loops_of(ACC), reduce_loops(schedule, ACC)
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
        schedule = vectorize_lanes(schedule.unroll(inner[0]), inner[1], lanes, float_lanes(target))
    return pad_by_row(schedule, target)


# ---- Convolutions on vectors whose windows slide over the rows of an image: pixels are read where they lie, none are
# gathered.
#
# A window's row of taps is one run of memory, so a sum is one along rows and one along that run (algorithm ``windows``,
# :func:`microc.ops.convolution.conv2d_algorithms.window_product`). A tile is pixels of one row of outputs by vectors of
# channels; the rows of the image that a row of outputs reads are copied with their border, once, where there is one.


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


# ---- Products and depthwise convolutions with neighbouring channels in strips: as many at once as the vectors of a
# machine hold, which knows it when it runs (:mod:`microc.tir.symbolic`).
#
# A strip goes through all terms of its sums. Weights lie by terms, those of all columns side by side, for no one knows how many a
# strip takes. Of wide vectors a core has few: three rows beside the weights in vectors of eight registers, six in those of four,
# where these are short; of floats less, for weights take as much as a sum, and once more while they are converted.

ROWS = MappingProxyType({("int32", 16): 6, ("int32", 32): 3, ("float32", 16): 5, ("float32", 32): 2})
"""Rows of a tile of sums by their dtype and the least lanes of a vector."""
STRIPS_PIXELS = MappingProxyType({("int32", 16): 4, ("int32", 32): 2, ("float32", 16): 4, ("float32", 32): 1})
"""The same of a depthwise convolution, which loads two vectors for each product."""
STRIPS_STEPS = (4, 2, 1)
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


def suits_strip_product(start: Schedule, target: Target) -> bool:
    """A product by constants."""
    return _suits(start, product_of(start), target)


def suits_strip_windows(start: Schedule, target: Target) -> bool:
    """A convolution whose windows slide over rows, by constants."""
    return _suits(start, windows_of(start), target)


def strip_product_tiles(start: Schedule, target: Target, goal: Goal) -> tuple[Tile, ...]:
    """Those of a product."""
    return _tiles(known_product(start))


def strip_window_tiles(start: Schedule, target: Target, goal: Goal) -> tuple[Tile, ...]:
    """Those of a product of a row of outputs."""
    return _tiles(known_windows(start))


def _tiles(product: Product) -> tuple[Tile, ...]:
    """As many rows as registers hold, best a divisor, by a strip of columns."""
    unroll = next(n for n in STRIPS_STEPS if product.depth % n == 0)
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


def suits_strip_depthwise(start: Schedule, target: Target) -> bool:
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
    schedule = schedule.split(x, (None, min(loop_extent(schedule.func, x), STRIPS_PIXELS[form.total.dtype, lanes])))
    schedule = schedule.reorder(f"{x}_0", channel, *taps, f"{x}_1").decompose_reduction(ACC, taps[0])
    schedule = schedule.reverse_compute_at(OUT, channel).set_scope(form.total.name, "register")
    for tap in taps if prod(form.taps) <= MOST_TAPS else taps[-1:]:
        schedule = schedule.unroll(tap)
    for block in (f"{ACC}_init", ACC, OUT):
        around = schedule.loops_of(block)
        for loop in around[around.index(channel) + 1 :]:
            schedule = schedule if loop in taps else schedule.unroll(loop)
    return pad_by_row(strips(schedule, channel, target, lanes), target)
