"""Register-tiling templates of matrix products and depthwise convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from functools import lru_cache
from math import prod
from typing import TypeGuard

from microc.base.immutable import frozen
from microc.isa.vocabulary.scalar_words import FARTHEST
from microc.schedule.primitives.compute_at import loop_extent, stored_buffer
from microc.schedule.primitives.tree import find_block
from microc.schedule.rules.generic import copy_words, double_sums, inline_elementwise, unroll_small
from microc.schedule.rules.rule import MOSTLY, float_lanes, vectorize_lanes
from microc.schedule.schedule import Schedule
from microc.target import Target
from microc.tir import ir
from microc.tir.analysis.simplification import linear
from microc.tir.bit_fields import NEIGHBOURS
from microc.tir.names import (
    ACC,
    CHANNELS_FIRST,
    COLUMNS,
    GROUPED,
    OUT,
    PADDED,
    PART,
    PATCH,
    STRIDED,
    UNTILE,
    WEIGHT_BITS,
    WEIGHT_BLOCK,
    WEIGHT_TABLES,
)
from microc.tir.rewrite import walk_expr, walk_stmt

# ---- The register-tiling template of matrix products: rows p by columns o of sums in registers while k runs.
#
# Each loaded activation serves several columns and each loaded weight several rows. What cores and dtypes differ in is a
# :class:`Tile`: its size, how far k is unrolled, which instruction does how many products, whether the rows of a tile are copied
# first (and widened), how constant weights are stored. ``schedule/rules/matrix.py`` says which tiles are worth comparing where.
# The rows of a tile are read before its results are written, so that what is copied can be worked on in place.

WIDE, CROSSED, PAIRED, PACKED, BITS, SHARED, WORDS = "wide", "crossed", "paired", "packed", "bits", "shared", "words"
"""Ways to store weights: in 16 bits; every four as 0, 2, 1, 3; two columns in a word
(:mod:`microc.schedule.primitives.tensorize`); those of the tile's columns side by side, or the words of them that one
instruction multiplies; in a few bits (:mod:`microc.tir.bit_fields`); four columns of 4 bits in a number
(:mod:`microc.schedule.primitives.tensorize_bits`)."""

REMEMBERED = 64
"""Functions whose product is known: a dozen rules ask for it."""


HELD = f"{ACC}_register"
"""The block that puts sums in registers down."""


@frozen
class Tile:
    """A choice: ``rows`` by ``columns`` of sums, ``unroll`` steps of k in an iteration, ``step`` products in each, done by the
    tensor intrinsic ``intrin`` unless that is empty; ``copied``: the dtype in which a tile's rows are copied first, empty where
    they are read as they lie; ``weights``: how those are stored, empty as they are; ``lanes``: of vectors that hold the columns,
    0 where none do; ``block``: tiles of rows that the weights of a tile's columns serve before those of the next are loaded, 1
    where all weights serve a tile of rows first; ``apart``: what works on the sums does not do so in lanes, and reads them from
    an array."""

    rows: int
    columns: int
    unroll: int
    step: int = 1
    intrin: str = ""
    copied: str = ""
    weights: str = ""
    lanes: int = 0
    block: int = field(default=1, metadata=MOSTLY)
    apart: bool = field(default=False, metadata=MOSTLY)


@frozen
class Product:
    """The loops of ``acc``: rows ``p``, columns ``o``, terms ``k``, those ``around`` rows that stay there, and those
    ``inside``, which run within a tile of rows (of groups of columns that have rows of their own). ``data``, ``weight``: the
    factors. ``along``: both are widened loads that lie along k, so that an instruction may take several of each; ``turned``: the
    weight's lie along the columns. ``bits``: those of a weight that is to be packed, else 0; ``block``, ``tables``: as in
    :class:`~microc.tir.bit_fields.BitFields`."""

    p: str
    o: str
    k: str
    around: tuple[str, ...]
    inside: tuple[str, ...]
    rows: int
    columns: int
    depth: int
    data: ir.Buffer
    weight: ir.Buffer
    total: ir.Buffer
    along: bool
    turned: bool
    bits: int
    block: int
    tables: int

    @property
    def tile(self) -> str:
        """The loop in which the rows of a tile are read."""
        return self.inside[-1] if self.inside else f"{self.p}_0"

    @property
    def panels(self) -> bool:
        """Whether the weights are data that may be copied for the columns of a tile."""
        return self.weight.scope != "const" and not self.around and not self.inside and (self.along or self.turned)

    @property
    def dtypes(self) -> tuple[str, str, str]:
        """Those of data, weights and sums."""
        return self.data.dtype, self.weight.dtype, self.total.dtype


def known_product(schedule: Schedule) -> Product:
    """That of a function that a rule of products matched."""
    product = product_of(schedule)
    assert product is not None
    return product


def product_of(schedule: Schedule) -> Product | None:
    """What ``acc`` multiplies: a sum along one axis, for rows and columns at least, over the elements of two buffers, which
    ``out`` reads; None where that is not what it does, or a loop has no turn."""
    return _product_of(schedule.func)


@lru_cache(maxsize=REMEMBERED)
def _product_of(func: ir.PrimFunc) -> Product | None:
    schedule = Schedule(func)
    if not schedule.has(ACC) or not schedule.has(OUT) or schedule.has(UNTILE) or schedule.has(PART):
        return None
    block = find_block(func.body, ACC)
    kinds, loops = [i.kind for i in block.iters], schedule.loops_of(ACC)
    if len(kinds) < 3 or kinds != ["space"] * (len(kinds) - 1) + ["reduce"] or len(loops) != len(kinds):
        return None
    store = next((s for s in walk_stmt(block.body) if isinstance(s, ir.Store)), None)
    if store is None or any(i.extent == 0 for i in block.iters) or not any(map(multiplies, walk_expr(store.value))):
        return None
    scales = [x.b for x in walk_expr(store.value) if _opens(x)]
    loads = [
        x for x in walk_expr(store.value) if isinstance(x, ir.Load) and x.buffer != store.buffer and x not in scales
    ]
    buffers = [x.buffer for x in loads] if len(loads) == 2 else list(dict.fromkeys(x.buffer for x in loads))
    if len(buffers) != 2 or any(isinstance(x, ir.Load) for load in loads for i in load.indices for x in walk_expr(i)):
        return None
    *around, p, o, k = loops
    notes, inside = dict(block.annotations), tuple[str, ...]()
    if GROUPED in notes:
        p, inside = around.pop(), (p,)
    elif CHANNELS_FIRST in notes:
        p, o = o, p
    rows, columns, depth = (loop_extent(func, name) for name in (p, o, k))
    single, last = len(loads) == 2 and _widened(store), [i.var for i in block.iters[-2:]]
    along = single and all(x.indices[-1] == last[1] for x in loads)
    turned = single and loads[0].indices[-1] == last[1] and loads[1].indices == (last[1], last[0])
    form = (int(notes.get(note, 0)) for note in (WEIGHT_BITS, WEIGHT_BLOCK, WEIGHT_TABLES))
    data, weight = buffers
    return Product(
        p, o, k, tuple(around), inside, rows, columns, depth, data, weight, store.buffer, along, turned, *form
    )


def multiplies(expr: ir.Expr) -> bool:
    """Whether both factors are read from memory."""
    if not isinstance(expr, ir.Bin) or expr.op != "mul":
        return False
    return all(any(isinstance(x, ir.Load) for x in walk_expr(side)) for side in (expr.a, expr.b))


def _opens(expr: ir.Expr) -> TypeGuard[ir.Bin]:
    """Whether a byte becomes a weight: it is widened and multiplied by a scale of its block."""
    match expr:
        case ir.Bin("mul", ir.Cast("float32", ir.Load()), ir.Load(scale)):
            return scale.scope == "const"
        case _:
            return False


def _widened(store: ir.Store) -> bool:
    """Whether a sum's term is one product of loads, widened or not."""
    match store.value:
        case ir.Bin("add", ir.Load(), ir.Bin("mul", a, b)):
            sides = [x.a if _opens(x) else x for x in (a, b)]
            return all(isinstance(x.a if isinstance(x, ir.Cast) else x, ir.Load) for x in sides)
        case _:
            return False


def prepared(schedule: Schedule, target: Target) -> Schedule:
    """The function with its elementwise stages joined, and the copy of a right side that is data before its rows."""
    if schedule.has(COLUMNS):
        around = schedule.loops_of(ACC)[:-3]
        schedule = schedule.compute_at(COLUMNS, around[-1]) if around else schedule
        schedule = schedule if target.has("lanes") else copy_words(schedule, COLUMNS, target)
    return inline_elementwise(schedule)


def copied_rows(schedule: Schedule, product: Product) -> tuple[Schedule, str]:
    """The block that copies the rows of a tile: a convolution's ``patch``, or one made for it."""
    if schedule.has(PATCH):
        return schedule, PATCH
    return schedule.cache_read(ACC, product.data.name, "workspace"), f"{product.data.name}_workspace"


def tile_product(start: Schedule, target: Target, tile: Tile) -> Schedule:
    """p and o tiled into registers, k innermost, the elementwise end behind every tile. Loops around p stay around it."""
    schedule = prepared(start, target)
    product = known_product(schedule)
    p, o, k = product.p, product.o, product.k
    rows = PATCH if schedule.has(PATCH) else ""
    if tile.copied:
        schedule, rows = copied_rows(schedule, product)
    weight, panel = product.weight.name, tile.weights in (PACKED, WORDS) and product.weight.scope != "const"
    if panel:
        schedule, weight = schedule.cache_read(ACC, weight, "workspace"), f"{weight}_workspace"
    else:
        schedule = side_by_side(schedule, weight, product, tile)
    together = tile.lanes or {PAIRED: 2, SHARED: 4}.get(tile.weights, tile.columns)
    columns = (tile.columns // together, together) if together < tile.columns or tile.lanes else (tile.columns,)
    schedule = schedule.cache_write(ACC, "register") if tile.apart else schedule
    tall = (None, tile.block, tile.rows) if tile.block > 1 else (None, tile.rows)
    schedule = schedule.split(p, tall).split(o, (None, *columns)).split(k, (None, tile.unroll, tile.step))
    *tiles, row = [f"{p}_{n}" for n in range(len(tall))]
    inner = [f"{o}_{n + 1}" for n in range(len(columns))]
    turn = (tiles[0], *product.inside, f"{o}_0", *tiles[1:])
    schedule = schedule.reorder(*turn, f"{k}_0", f"{k}_1", row, *inner, f"{k}_2")
    schedule = schedule.decompose_reduction(ACC, f"{k}_0")
    schedule = schedule.reverse_compute_at(HELD, turn[-1]) if tile.apart else schedule
    schedule = schedule.reverse_compute_at(OUT, turn[-1])
    schedule = schedule.set_scope(product.total.name, "local" if tile.apart else "register")
    if rows:
        schedule = schedule.compute_at(rows, product.tile)
        if tile.copied and tile.copied != product.data.dtype:
            schedule = schedule.set_dtype(rows, tile.copied)
        schedule = copy_words(schedule, rows, target)
    if panel:
        schedule = side_by_side(schedule.compute_at(weight, f"{o}_0"), weight, product, tile)
    schedule = multiplied(schedule, product, tile, inner[-1])
    return unrolled(schedule, (*turn, f"{k}_0"), tile, float_lanes(target))


def side_by_side(schedule: Schedule, weight: str, product: Product, tile: Tile) -> Schedule:
    """The weights of a tile's columns, or the words of them that one instruction multiplies, side by side."""
    column, word = (None, tile.columns), (None, tile.step)
    if tile.weights == PACKED and product.turned:
        return schedule.transform_layout(weight, ((None,), column), (1, 0, 2))
    if tile.weights == PACKED:
        return schedule.transform_layout(weight, (column, (None,)), (0, 2, 1))
    if tile.weights != WORDS:
        return schedule
    schedule = schedule.set_dtype(weight, tile.copied or product.weight.dtype)
    if product.turned:
        return schedule.transform_layout(weight, (word, column), (2, 0, 3, 1))
    return schedule.transform_layout(weight, (column, word), (0, 2, 1, 3))


def multiplied(schedule: Schedule, product: Product, tile: Tile, pair: str) -> Schedule:
    """The innermost loops by the tile's instruction, the weights as it reads them."""
    weight, k = product.weight.name, product.k
    match tile.weights:
        case "paired":
            return schedule.tensorize_pairs(weight, pair, f"{k}_0", tile.copied or product.data.dtype)
        case "wide":
            schedule = schedule.set_dtype(weight, "int16").tensorize(f"{k}_2", tile.intrin)
            return double_sums(schedule, weight)
        case "crossed":
            schedule = schedule.transform_layout(weight, ((None,), (None, 2, 2)), (0, 1, 3, 2))
        case "shared":
            return schedule.tensorize_bit_columns(weight, pair, f"{k}_0")
        case "bits" if tile.step > 1:
            return schedule.tensorize_bits(weight, f"{k}_2", f"{k}_0", product.bits, product.block)
        case "bits":
            return schedule.pack_bits(weight, product.bits, NEIGHBOURS, product.block, product.tables)
    schedule = schedule.tensorize(f"{k}_2", tile.intrin) if tile.intrin else schedule
    widened = tile.weights == WORDS and not tile.lanes and product.weight.scope == "const"
    return double_sums(schedule, weight) if widened else schedule


def unrolled(schedule: Schedule, kept: Sequence[str], tile: Tile, floats: int) -> Schedule:
    """Scalars for every sum, or vectors of them, within the loops that are kept."""
    lanes, end = tile.lanes, HELD if tile.apart else OUT
    for block in (f"{ACC}_init", ACC, end):
        around = schedule.loops_of(block)
        inner = [loop for loop in around[around.index(kept[0]) + 1 :] if loop not in kept]
        whole = [loop for loop in inner if block == end or (lanes and loop_extent(schedule.func, loop) % lanes == 0)]
        across = whole[-1:] if lanes else []
        for loop in inner:
            schedule = vectorize_lanes(schedule, loop, lanes, floats) if loop in across else schedule.unroll(loop)
    return schedule


# ---- The register-tiling template of depthwise convolutions: one channel at a time, rows of outputs in registers.
#
# A channel's image is copied into a plane with its border; there neighbours lie side by side, several outputs share each row of
# taps, and the channel's weights, bias and scale stay in registers or are loop invariant. A channel is read before it is written:
# the output can lie over the input. What cores differ in is a :class:`Walk`; ``schedule/rules/depthwise.py`` says which one
# suits.

_WHOLE = ((None,),) * 4


@frozen
class Walk:
    """A choice: rows run along axis ``run`` (1: y, 2: x) of the image, ``tile`` outputs at once.

    ``intrin``: the tensor intrinsic that takes ``taps`` of a row, empty where taps are multiplied one by one. ``plane``: its
    elements' dtype, empty as they are; ``words``: the channel's weights are copied as words beside it. ``unroll``: taps that are
    written out. ``lanes``: outputs in the lanes of vectors, as many as those have; ``abreast``: so many vectors from neighbouring
    rows at once, which share what they load.
    """

    run: int
    tile: int
    unroll: int
    taps: int = 1
    intrin: str = ""
    plane: str = ""
    words: bool = False
    lanes: bool = False
    abreast: int = 1


@frozen
class Depthwise:
    """The parts of ``acc``: factors, sum, and by axis (y, x): outputs, taps, stride, dilation; pixels and channels that the
    factor ``data`` has, outputs per channel."""

    data: ir.Buffer
    weight: ir.Buffer
    total: ir.Buffer
    outputs: tuple[int, int]
    taps: tuple[int, int]
    strides: tuple[int, int]
    dilation: tuple[int, int]
    pixels: int
    channels: int
    times: int

    @property
    def dtypes(self) -> tuple[str, str, str]:
        """Those of data, weights and sums."""
        return self.data.dtype, self.weight.dtype, self.total.dtype


def depthwise_of(schedule: Schedule) -> Depthwise | None:
    """What ``acc`` computes, if it is a depthwise convolution by constant weights."""
    if not schedule.has(ACC):
        return None
    block = find_block(schedule.func.body, ACC)
    store = block.body
    if [i.kind for i in block.iters] != ["space"] * 4 + ["reduce"] * 2 or not isinstance(store, ir.Store):
        return None
    loads = [x for x in walk_expr(store.value) if isinstance(x, ir.Load) and x.buffer != store.buffer]
    if len(loads) != 2 or len(loads[0].indices) != 4 or len(loads[1].indices) != 3:
        return None
    data, weight = loads
    _, y, x, c, ky, kx = block.iters
    if (
        weight.buffer.scope != "const"
        or weight.indices != (ky.var, kx.var, c.var)
        or any(i.extent == 0 for i in block.iters)
    ):
        return None
    pitch = [linear(index)[0] for index in data.indices[1:3]]
    return Depthwise(
        data.buffer,
        weight.buffer,
        store.buffer,
        (y.extent, x.extent),
        (ky.extent, kx.extent),
        (pitch[0].get(y.var, 1), pitch[1].get(x.var, 1)),
        (pitch[0].get(ky.var, 1), pitch[1].get(kx.var, 1)),
        prod(data.buffer.shape[1:3]),
        data.buffer.shape[3],
        c.extent // data.buffer.shape[3],
    )


def walk_planes(start: Schedule, walk: Walk) -> Schedule:
    """Channels outermost; for each the plane, then rows of tiles."""
    schedule = inline_elementwise(start)
    form = depthwise_of(schedule)
    assert form is not None
    names = schedule.loops_of(ACC)
    n, c, run, across = names[0], names[3], names[walk.run], names[3 - walk.run]
    beside = [f"{across}_1"] if walk.abreast > 1 else []
    if beside:
        schedule, across = schedule.split(across, (None, walk.abreast)), f"{across}_0"
    along, rows = names[3 + walk.run], names[6 - walk.run]
    channel: tuple[str, ...] = (c,)
    if form.times > 1:
        schedule, channel = schedule.split(c, (None, form.times)), (f"{c}_0", f"{c}_1")
    outer = (n, across, *channel) if form.channels == 1 and walk.intrin else (n, *channel, across)
    tile, taps = f"{run}_0", [rows, along]
    if walk.lanes:
        tile, taps = run, [along, rows]
        schedule = schedule.reorder(*outer, run, *taps, *beside)
    elif walk.intrin:
        taps = [rows, f"{along}_0"]
        schedule = schedule.split(run, (None, walk.tile)).split(along, (None, walk.taps))
        schedule = schedule.reorder(*outer, tile, *taps, f"{run}_1", f"{along}_1")
    else:
        schedule = schedule.split(run, (None, walk.tile)).reorder(*outer, tile, *taps, f"{run}_1")
    schedule = schedule.decompose_reduction(ACC, taps[0])
    plane, weights = PADDED, ""
    if not schedule.has(PADDED):
        schedule, plane = schedule.cache_read(ACC, form.data.name, "workspace"), f"{form.data.name}_workspace"
    if walk.words:
        schedule = schedule.cache_read(ACC, form.weight.name, "workspace")
        weights = f"{form.weight.name}_workspace"
    if walk.intrin:
        schedule = schedule.pad_reduction(ACC)
    schedule = schedule.reverse_compute_at(OUT, tile).set_scope(form.total.name, "register")
    schedule = _laid_out(schedule, form, plane, walk)
    if walk.intrin:
        if form.weight.dtype == "int8":
            schedule = double_sums(schedule, form.weight.name)
        schedule = schedule.tensorize(f"{run}_1" if walk.tile > 1 else f"{along}_1", walk.intrin)
    if weights:
        taken = stored_buffer(find_block(schedule.func.body, weights)).name
        schedule = schedule.set_dtype(taken, "int32").compute_at(weights, outer[1])
    schedule = _filled(schedule.compute_at(plane, outer[1]), form, plane, walk)
    if walk.lanes:
        ends = (schedule.loops_of(f"{ACC}_init")[-1], schedule.loops_of(OUT)[-1 - walk.run], *beside) if beside else ()
        for loop in ends:
            schedule = schedule.unroll(loop)
        return vectorize_lanes(unroll_small(schedule, ACC, taps, walk.unroll), run)
    schedule = unroll_small(schedule, ACC, taps, walk.unroll)
    if not walk.intrin:
        schedule = schedule.unroll(f"{run}_1")
    outputs = schedule.loops_of(OUT)[walk.run - 4] if walk.intrin else _last(schedule, walk.tile)
    return schedule.unroll(schedule.loops_of(f"{ACC}_init")[-1]).unroll(outputs)


def _last(schedule: Schedule, extent: int) -> str:
    """The innermost loop of the end with so many turns."""
    return next(name for name in reversed(schedule.loops_of(OUT)) if loop_extent(schedule.func, name) == extent)


def _laid_out(schedule: Schedule, form: Depthwise, plane: str, walk: Walk) -> Schedule:
    """Rows along the walk, by channel; weights in the same order. Those of an intrinsic are 16-bit numbers."""
    image = (1, 2) if walk.run == 2 else (2, 1)
    buffer = stored_buffer(find_block(schedule.func.body, plane)).name
    schedule = schedule.transform_layout(buffer, _WHOLE, (0, 3, *image))
    if walk.plane and walk.plane != form.data.dtype:
        schedule = schedule.set_dtype(buffer, walk.plane)
    if walk.intrin:
        schedule = schedule.storage_align(buffer, 3, 2)
    schedule = schedule.transform_layout(form.weight.name, _WHOLE[:3], (2, *(axis - 1 for axis in image)))
    return schedule.set_dtype(form.weight.name, "int16") if walk.intrin and form.weight.dtype != "int16" else schedule


def _filled(schedule: Schedule, form: Depthwise, plane: str, walk: Walk) -> Schedule:
    """The plane's copy, which runs as it lies: its border apart, by vectors where there are any."""
    inner = schedule.loops_of(plane)[-3:]
    schedule = schedule.reorder(*((inner[1], inner[0]) if walk.run == 1 else inner[:2]))
    store = find_block(schedule.func.body, plane).body
    if isinstance(store, ir.Store) and isinstance(store.value, ir.Select) and (form.channels > 1 or not walk.intrin):
        schedule = schedule.decompose_padding(plane)
        if walk.lanes:
            schedule = vectorize_lanes(schedule, schedule.loops_of(f"{plane}_fill")[-2])
    if walk.lanes:
        run = inner[walk.run - 1]
        return vectorize_lanes(schedule, run).annotate(run, STRIDED, FARTHEST)
    return schedule if walk.words else schedule.vectorize(inner[walk.run - 1])
