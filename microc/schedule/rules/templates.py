# SPDX-License-Identifier: Apache-2.0
"""Register-tiling templates of matrix products and depthwise convolutions: descriptions of a tile or walk, and the
schedules built from them."""

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
from microc.schedule.rules.generic import (
    double_requantised_sums,
    inline_elementwise,
    unroll_small_loops,
    vectorize_copy,
)
from microc.schedule.rules.rule import MOSTLY, float_vector_level, vectorize_lanes
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

# ---- The register-tiling template of matrix products
#
#     for p_0, o_0:                       tiles of rows (p) and columns (o)
#         acc[rows][columns] = 0          sums stay in registers
#         for k_0, k_1:                   K, unrolled by `unroll`
#             acc += data[p, k] * weight[o, k]      `step` products in each instruction
#         out = epilogue(acc)             bias, requantisation, activation
#
# Each loaded activation serves several columns, each loaded weight several rows. Cores and dtypes differ in the :class:`Tile`
# alone; ``schedule/rules/matrix.py`` lists the tiles worth comparing on each. The rows of a tile are read before its results are
# written, so the result may overwrite the input.

# Layouts of stored weights (Tile.weights; "" keeps them as they are). The strings are part of recorded traces.
INT16_WEIGHTS = "wide"
"""Layout of weights that are widened to int16 when the network is compiled: twice the flash, no unpacking."""
SWIZZLED = "crossed"
"""Layout of weights in which every four weights are stored in the order 0, 2, 1, 3. The instruction that widens
bytes 0 and 2 of a word then yields neighbours."""
COLUMN_PAIRS = "paired"
"""Layout of weights in which the weights of two columns are packed into one int16, SWAR
(:mod:`microc.schedule.primitives.tensorize`)."""
PANELS = "packed"
"""Layout of weights in panels: for each k the weights of a tile's columns are side by side, so that one pointer
traverses all of them."""
BIT_PACKED = "bits"
"""Layout of weights that are packed into 1 to 4 bits (:mod:`microc.tir.bit_fields`)."""
BIT_COLUMNS = "shared"
"""Layout of 4-bit weights in which four columns are packed into one 16-bit number, SWAR
(:mod:`microc.schedule.primitives.tensorize_bits`)."""
VECTOR_PANELS = "words"
"""Layout of weights in panels whose elements are the words that one instruction multiplies."""

MEMO_SIZE = 64
"""Number of functions whose matched product is memoised, because a dozen rules match each function."""

STORE_BLOCK = f"{ACC}_register"
"""Name of the block that stores the sums from registers to an array, if :attr:`Tile.apart`."""


@frozen
class Tile:
    """A register tile of a matrix product: ``rows`` by ``columns`` sums in registers. An iteration over K has
    ``unroll`` steps; a step computes ``step`` products of each sum.

    - ``intrin``: tensor intrinsic that computes the products of a step; empty for scalar code.
    - ``copied``: dtype to which the tile's rows are copied before the product; empty if rows are read in place.
    - ``weights``: layout of the stored weights, one of the constants above; empty if it is unchanged.
    - ``lanes``: lanes of the vectors that contain the columns; 0 for scalars.
    - ``block``: number of row tiles that are multiplied by the weights of one tile of columns before the next columns
      follow. With 1 all columns come first.
    - ``apart``: True if sums are stored to an array before the epilogue, because the epilogue cannot be vectorised
      together with them."""

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
    """A match of the matrix product ``acc[p, o] += data[p, k] * weight[o, k]``: its loops and operands.

    - ``p``, ``o``, ``k``: names of the loops over rows, columns and terms; ``rows``, ``columns``, ``depth``: their trip
      counts.
    - ``outer_loops``: names of the loops outside of the rows that stay outermost (batch).
    - ``inner_loops``: names of the loops inside a tile of rows, for groups of columns that have their own rows (grouped
      convolution).
    - ``contiguous_along_k``: True if both operands are contiguous along K, so that an instruction can load several
      elements of each.
    - ``contiguous_along_columns``: True if the weight is contiguous along the columns instead.
    - ``data``, ``weight``, ``total``: buffers of the operands and of the sums.
    - ``bits``: bits of a weight if weights are to be bit-packed, else 0. ``block``, ``tables``: as in
      :class:`~microc.tir.bit_fields.BitFields`."""

    p: str
    o: str
    k: str
    outer_loops: tuple[str, ...]
    inner_loops: tuple[str, ...]
    rows: int
    columns: int
    depth: int
    data: ir.Buffer
    weight: ir.Buffer
    total: ir.Buffer
    contiguous_along_k: bool
    contiguous_along_columns: bool
    bits: int
    block: int
    tables: int

    @property
    def tile(self) -> str:
        """Name of the loop in which the rows of a tile are read: the innermost loop of ``inner_loops``, else the outer
        loop over rows."""
        return self.inner_loops[-1] if self.inner_loops else f"{self.p}_0"

    @property
    def panels(self) -> bool:
        """True if the weights are runtime data that can be packed in panels for the columns of a tile."""
        return (
            self.weight.scope != "const"
            and not self.outer_loops
            and not self.inner_loops
            and (self.contiguous_along_k or self.contiguous_along_columns)
        )

    @property
    def dtypes(self) -> tuple[str, str, str]:
        """Dtypes of data, weights and sums."""
        return self.data.dtype, self.weight.dtype, self.total.dtype


def require_product(schedule: Schedule) -> Product:
    """Return the matrix product of a function. A rule must have tested before that the function contains one."""
    product = match_product(schedule)
    assert product is not None
    return product


def match_product(schedule: Schedule) -> Product | None:
    """Match the block ``acc``, whose result ``out`` reads, as a matrix product: a sum of products of two buffers over
    one axis.

    Return None if it does not match, or if a loop has no iterations."""
    return _match_product_with_memo(schedule.func)


@lru_cache(maxsize=MEMO_SIZE)
def _match_product_with_memo(func: ir.PrimFunc) -> Product | None:
    """Match the matrix product of a function as :func:`match_product` does; memoised by the function."""
    schedule = Schedule(func)
    if not schedule.has(ACC) or not schedule.has(OUT) or schedule.has(UNTILE) or schedule.has(PART):
        return None
    block = find_block(func.body, ACC)
    # Two or more space loops, then one reduction.
    axis_kinds, loops = [axis.kind for axis in block.iters], schedule.loops_of(ACC)
    is_product_nest = axis_kinds == ["space"] * (len(axis_kinds) - 1) + ["reduce"] and len(axis_kinds) >= 3
    if not is_product_nest or len(loops) != len(axis_kinds):
        return None
    store = next((s for s in walk_stmt(block.body) if isinstance(s, ir.Store)), None)
    if store is None or any(axis.extent == 0 for axis in block.iters):
        return None
    if not any(map(is_product_of_loads, walk_expr(store.value))):
        return None
    # Operands: all loads but the sum itself and the scales of packed weights.
    scales = [x.b for x in walk_expr(store.value) if _is_dequantised_load(x)]
    loads = [
        x for x in walk_expr(store.value) if isinstance(x, ir.Load) and x.buffer != store.buffer and x not in scales
    ]
    # Two loads may read one buffer (a matrix times itself); of more loads, each buffer counts once.
    buffers = [x.buffer for x in loads] if len(loads) == 2 else list(dict.fromkeys(x.buffer for x in loads))
    has_gather = any(isinstance(x, ir.Load) for load in loads for i in load.indices for x in walk_expr(i))
    if len(buffers) != 2 or has_gather:
        return None
    *around, p, o, k = loops
    notes, inside = dict(block.annotations), tuple[str, ...]()
    if GROUPED in notes:  # the loops are rows, groups, columns of a group, terms
        p, inside = around.pop(), (p,)
    elif CHANNELS_FIRST in notes:
        p, o = o, p
    rows, columns, depth = (loop_extent(func, name) for name in (p, o, k))
    is_single = len(loads) == 2 and _is_single_product(store)
    column, term = (axis.var for axis in block.iters[-2:])
    along = is_single and all(x.indices[-1] == term for x in loads)
    # Panels of constant weights are packed at compile time, however the data are read.
    is_read_in_panels = is_single and (loads[0].indices[-1] == term or loads[1].buffer.scope == "const")
    turned = is_read_in_panels and loads[1].indices == (term, column)
    packing = (int(notes.get(note, 0)) for note in (WEIGHT_BITS, WEIGHT_BLOCK, WEIGHT_TABLES))
    data, weight = buffers
    return Product(
        p, o, k, tuple(around), inside, rows, columns, depth, data, weight, store.buffer, along, turned, *packing
    )


def is_product_of_loads(expr: ir.Expr) -> bool:
    """Test whether an expression is a multiplication and both factors contain loads."""
    if not isinstance(expr, ir.Bin) or expr.op != "mul":
        return False
    return all(any(isinstance(x, ir.Load) for x in walk_expr(side)) for side in (expr.a, expr.b))


def _is_dequantised_load(expr: ir.Expr) -> TypeGuard[ir.Bin]:
    """Test whether an expression is an int8 weight that is widened to float32 and multiplied by a constant scale."""
    match expr:
        case ir.Bin("mul", ir.Cast("float32", ir.Load()), ir.Load(scale)):
            return scale.scope == "const"
        case _:
            return False


def _is_single_product(store: ir.Store) -> bool:
    """Test whether the stored value is ``sum + a * b`` and both factors are loads, with or without a cast or a
    dequantisation."""
    match store.value:
        case ir.Bin("add", ir.Load(), ir.Bin("mul", a, b)):
            factors = [x.a if _is_dequantised_load(x) else x for x in (a, b)]
            return all(isinstance(x.a if isinstance(x, ir.Cast) else x, ir.Load) for x in factors)
        case _:
            return False


def inline_and_pack_columns(schedule: Schedule, target: Target) -> Schedule:
    """Inline elementwise stages. If the right operand is runtime data, copy it once per batch, before the loop over
    rows."""
    if schedule.has(COLUMNS):
        batch = schedule.loops_of(ACC)[:-3]
        schedule = schedule.compute_at(COLUMNS, batch[-1]) if batch else schedule
        schedule = schedule if target.has("lanes") else vectorize_copy(schedule, COLUMNS, target)
    return inline_elementwise(schedule)


def cache_im2col_rows(schedule: Schedule, product: Product) -> tuple[Schedule, str]:
    """Return (schedule, name of the block that copies the rows of a tile). The block is the im2col patch of a
    convolution if there is one, else a new copy of the data."""
    if schedule.has(PATCH):
        return schedule, PATCH
    return schedule.cache_read(ACC, product.data.name, "workspace"), f"{product.data.name}_workspace"


def tile_product(start: Schedule, target: Target, tile: Tile) -> Schedule:
    """Apply the register-tiling template of matrix products: tile rows and columns, keep the sums in registers, move
    K innermost, and compute the epilogue after each tile."""
    schedule = inline_and_pack_columns(start, target)
    product = require_product(schedule)
    p, o, k = product.p, product.o, product.k
    # 1. Copies: rows (im2col patch or widened rows) and weights (panels). Constant weights are packed at compile time.
    rows = PATCH if schedule.has(PATCH) else ""
    if tile.copied:
        schedule, rows = cache_im2col_rows(schedule, product)
    weight = product.weight.name
    packs_at_runtime = tile.weights in (PANELS, VECTOR_PANELS) and product.weight.scope != "const"
    if packs_at_runtime:
        schedule, weight = schedule.cache_read(ACC, weight, "workspace"), f"{weight}_workspace"
    else:
        schedule = pack_weights(schedule, weight, product, tile)
    # 2. Tiling. Columns split once more where one instruction handles several: vector lanes, SWAR pairs or quads.
    together = tile.lanes or {COLUMN_PAIRS: 2, BIT_COLUMNS: 4}.get(tile.weights, tile.columns)
    columns = (tile.columns // together, together) if together < tile.columns or tile.lanes else (tile.columns,)
    schedule = schedule.cache_write(ACC, "register") if tile.apart else schedule
    row_split = (None, tile.block, tile.rows) if tile.block > 1 else (None, tile.rows)
    schedule = schedule.split(p, row_split).split(o, (None, *columns)).split(k, (None, tile.unroll, tile.step))
    *tiles, row = [f"{p}_{n}" for n in range(len(row_split))]
    inner = [f"{o}_{n + 1}" for n in range(len(columns))]
    outer = (tiles[0], *product.inner_loops, f"{o}_0", *tiles[1:])
    schedule = schedule.reorder(*outer, f"{k}_0", f"{k}_1", row, *inner, f"{k}_2")
    # 3. Initialisation before the K loop, epilogue behind it, sums in registers (C locals).
    schedule = schedule.decompose_reduction(ACC, f"{k}_0")
    schedule = schedule.reverse_compute_at(STORE_BLOCK, outer[-1]) if tile.apart else schedule
    schedule = schedule.reverse_compute_at(OUT, outer[-1])
    schedule = schedule.set_scope(product.total.name, "local" if tile.apart else "register")
    # 4. Place the copies: rows once per tile of rows, runtime panels once per tile of columns.
    if rows:
        schedule = schedule.compute_at(rows, product.tile)
        if tile.copied and tile.copied != product.data.dtype:
            schedule = schedule.set_dtype(rows, tile.copied)
        schedule = vectorize_copy(schedule, rows, target)
    if packs_at_runtime:
        schedule = pack_weights(schedule.compute_at(weight, f"{o}_0"), weight, product, tile)
    # 5. Instructions, then unrolling: what is left inside of K becomes straight-line code.
    schedule = tensorize_products(schedule, product, tile, inner[-1], _count_woven_pairs(product, tile, target))
    return unroll_and_vectorize(schedule, (*outer, f"{k}_0"), tile, float_vector_level(target))


def pack_weights(schedule: Schedule, weight_name: str, product: Product, tile: Tile) -> Schedule:
    """Change the layout of weights to panels of the tile's columns, [o][k] -> [o/columns][k][columns], if the tile
    uses panels. Other layouts are left to :func:`tensorize_products`."""
    column, word = (None, tile.columns), (None, tile.step)
    if tile.weights == PANELS and product.contiguous_along_columns:
        return schedule.transform_layout(weight_name, ((None,), column), (1, 0, 2))
    if tile.weights == PANELS:
        return schedule.transform_layout(weight_name, (column, (None,)), (0, 2, 1))
    if tile.weights != VECTOR_PANELS:
        return schedule
    schedule = schedule.set_dtype(weight_name, tile.copied or product.weight.dtype)
    if product.contiguous_along_columns:
        return schedule.transform_layout(weight_name, (word, column), (2, 0, 3, 1))
    return schedule.transform_layout(weight_name, (column, word), (0, 2, 1, 3))


def _count_woven_pairs(product: Product, tile: Tile, target: Target) -> int:
    """Return the number of pairs of columns whose weights alternate in memory: all of a tile, if the weights of its last
    pair are beyond the reach of a load of two words from those of the first."""
    pairs, row_bytes = tile.columns // 2, 2 * product.depth
    is_far = 0 < target.core.costs.pair < (pairs - 1) * row_bytes
    return pairs if is_far and pairs > 1 and product.columns % tile.columns == 0 else 1


def tensorize_products(schedule: Schedule, product: Product, tile: Tile, pair_loop: str, woven: int = 1) -> Schedule:
    """Replace the innermost loops of a tiled product by the tile's instruction, and change the weights to the layout
    that the instruction reads.

    ``pair_loop``: name of the loop over the columns whose weights are packed into one int16. ``woven``: as for
    :func:`.tensorize.tensorize_pairs`."""
    weight, k = product.weight.name, product.k
    match tile.weights:
        case "paired":  # two columns in a word
            return schedule.tensorize_pairs(weight, pair_loop, f"{k}_0", tile.copied or product.data.dtype, woven)
        case "wide":  # int16
            schedule = schedule.set_dtype(weight, "int16").tensorize(f"{k}_2", tile.intrin)
            return double_requantised_sums(schedule, weight)
        case "crossed":  # 0, 2, 1, 3
            schedule = schedule.transform_layout(weight, ((None,), (None, 2, 2)), (0, 1, 3, 2))
        case "shared":  # four columns in a number
            return schedule.tensorize_bit_columns(weight, pair_loop, f"{k}_0")
        case "bits" if tile.step > 1:  # bit-packed, multiplied by a SIMD instruction
            return schedule.tensorize_bits(weight, f"{k}_2", f"{k}_0", product.bits, product.block)
        case "bits":  # bit-packed, unpacked one by one
            return schedule.pack_bits(weight, product.bits, NEIGHBOURS, product.block, product.tables)
    schedule = schedule.tensorize(f"{k}_2", tile.intrin) if tile.intrin else schedule
    is_widened = tile.weights == VECTOR_PANELS and not tile.lanes and product.weight.scope == "const"
    # int8 weights in 16 bits have room to be doubled, which saves the epilogue a shift per output.
    return double_requantised_sums(schedule, weight) if is_widened else schedule


def unroll_and_vectorize(schedule: Schedule, kept_loops: Sequence[str], tile: Tile, float_level: int) -> Schedule:
    """Unroll all loops inside of ``kept_loops[0]`` that are not in ``kept_loops``, so that each sum is a scalar. If the
    tile has lanes, vectorise the last of the unrolled loops instead.

    ``float_level``: value of the annotation FLOATS, as for :func:`vectorize_lanes`."""
    lanes, epilogue = tile.lanes, STORE_BLOCK if tile.apart else OUT
    for block in (f"{ACC}_init", ACC, epilogue):
        loops = schedule.loops_of(block)
        inner = [loop for loop in loops[loops.index(kept_loops[0]) + 1 :] if loop not in kept_loops]
        # Sums need whole vectors; the epilogue takes any loop.
        candidates = [
            loop for loop in inner if block == epilogue or (lanes and loop_extent(schedule.func, loop) % lanes == 0)
        ]
        vectorized = candidates[-1:] if lanes else []
        for loop in inner:
            in_lanes = loop in vectorized
            schedule = vectorize_lanes(schedule, loop, lanes, float_level) if in_lanes else schedule.unroll(loop)
    return schedule


# ---- The register-tiling template of depthwise convolutions
#
#     for c:                              one channel at a time
#         plane = channel of the image, with its border       contiguous along the walk
#         for rows, tiles of `tile` outputs along y or x:
#             acc[tile] = 0               sums stay in registers
#             for ky, kx:                 taps, `taps` in each instruction
#                 acc += plane * weight
#             out = epilogue(acc)
#
# In the plane neighbours are contiguous, several outputs share each row of taps, and the channel's weights, bias and scale stay
# in registers or are loop invariant. A channel is read before it is written, so the output may overwrite the input. Cores differ
# in the :class:`Walk` alone; ``schedule/rules/depthwise.py`` lists the walks worth comparing on each.

_UNSPLIT = ((None,),) * 4
"""Argument of ``transform_layout`` for four axes that are not split."""


@frozen
class Walk:
    """A walk over a channel's plane: the order in which outputs are computed, in tiles of ``tile`` outputs along image
    axis ``run`` (1: y, 2: x).

    - ``intrin``: tensor intrinsic that multiplies ``taps`` taps of a row; empty for scalar code.
    - ``plane``: dtype of the plane's elements; empty if it is the dtype of the data.
    - ``words``: True if the channel's weights are copied to words in a workspace.
    - ``unroll``: number of taps that are unrolled.
    - ``lanes``: True if the outputs of a tile are the lanes of a vector.
    - ``abreast``: number of neighbouring rows or columns that are computed at once, one vector each; they share
      loads."""

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
    """A match of a depthwise convolution: its operands and shape. ``outputs``, ``taps``, ``strides`` and ``dilation``
    are (y, x).

    ``pixels``, ``channels``: numbers of pixels and channels of ``data``. ``depth_multiplier``: number of output channels per
    input channel (the depth multiplier)."""

    data: ir.Buffer
    weight: ir.Buffer
    total: ir.Buffer
    outputs: tuple[int, int]
    taps: tuple[int, int]
    strides: tuple[int, int]
    dilation: tuple[int, int]
    pixels: int
    channels: int
    depth_multiplier: int

    @property
    def dtypes(self) -> tuple[str, str, str]:
        """Dtypes of data, weights and sums."""
        return self.data.dtype, self.weight.dtype, self.total.dtype


def match_depthwise(schedule: Schedule) -> Depthwise | None:
    """Match the block ``acc`` as a depthwise convolution by constant weights. Return None if it does not match, or
    if a loop has no iterations."""
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
    # An index y * stride + ky * dilation: both factors are coefficients of its linear form. A loop of one iteration has none.
    coefficients = [linear(index)[0] for index in data.indices[1:3]]
    return Depthwise(
        data.buffer,
        weight.buffer,
        store.buffer,
        (y.extent, x.extent),
        (ky.extent, kx.extent),
        (coefficients[0].get(y.var, 1), coefficients[1].get(x.var, 1)),
        (coefficients[0].get(ky.var, 1), coefficients[1].get(kx.var, 1)),
        prod(data.buffer.shape[1:3]),
        data.buffer.shape[3],
        c.extent // data.buffer.shape[3],
    )


def walk_planes(start: Schedule, walk: Walk) -> Schedule:
    """Apply the template of depthwise convolutions: the loop over channels is outermost; for each channel its plane
    is copied, then rows of tiles are computed."""
    schedule = inline_elementwise(start)
    form = match_depthwise(schedule)
    assert form is not None
    # 1. Loop order. The loops of acc are n, y, x, c, ky, kx; `run` is y (1) or x (2), `across` the other one.
    names = schedule.loops_of(ACC)
    n, c, run, across = names[0], names[3], names[walk.run], names[3 - walk.run]
    beside = [f"{across}_1"] if walk.abreast > 1 else []
    if beside:
        schedule, across = schedule.split(across, (None, walk.abreast)), f"{across}_0"
    along, rows = names[3 + walk.run], names[6 - walk.run]
    channel: tuple[str, ...] = (c,)
    if form.depth_multiplier > 1:
        schedule, channel = schedule.split(c, (None, form.depth_multiplier)), (f"{c}_0", f"{c}_1")
    # The plane is computed at outer[1]: per channel, or, of a single input channel, only the rows that one line of outputs reads.
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
    # 2. Copies: the plane (the operator's padded image, or a new copy) and the channel's weights.
    plane, weights = PADDED, ""
    if not schedule.has(PADDED):
        schedule, plane = schedule.cache_read(ACC, form.data.name, "workspace"), f"{form.data.name}_workspace"
    if walk.words:
        schedule = schedule.cache_read(ACC, form.weight.name, "workspace")
        weights = f"{form.weight.name}_workspace"
    # 3. Epilogue behind a tile, sums in registers, plane and weights contiguous along the walk, instructions.
    if walk.intrin:
        schedule = schedule.pad_reduction(ACC)  # a row's last taps are computed with the rest, without a guard
    schedule = schedule.reverse_compute_at(OUT, tile).set_scope(form.total.name, "register")
    schedule = _set_depthwise_layouts(schedule, form, plane, walk)
    if walk.intrin:
        if form.weight.dtype == "int8":
            schedule = double_requantised_sums(schedule, form.weight.name)
        schedule = schedule.tensorize(f"{run}_1" if walk.tile > 1 else f"{along}_1", walk.intrin)
    # 4. Place the copies, one per channel.
    if weights:
        words = stored_buffer(find_block(schedule.func.body, weights)).name
        schedule = schedule.set_dtype(words, "int32").compute_at(weights, outer[1])
    schedule = _schedule_plane_copy(schedule.compute_at(plane, outer[1]), form, plane, walk)
    # 5. Unrolling: what is left inside of the taps becomes straight-line code.
    if walk.lanes:
        if beside:
            for loop in (schedule.loops_of(f"{ACC}_init")[-1], schedule.loops_of(OUT)[-1 - walk.run], *beside):
                schedule = schedule.unroll(loop)
        return vectorize_lanes(unroll_small_loops(schedule, ACC, taps, walk.unroll), run)
    schedule = unroll_small_loops(schedule, ACC, taps, walk.unroll)
    if not walk.intrin:
        schedule = schedule.unroll(f"{run}_1")
    outputs = schedule.loops_of(OUT)[walk.run - 4] if walk.intrin else _innermost_epilogue_loop(schedule, walk.tile)
    return schedule.unroll(schedule.loops_of(f"{ACC}_init")[-1]).unroll(outputs)


def _innermost_epilogue_loop(schedule: Schedule, trip_count: int) -> str:
    """Return the name of the innermost loop of the epilogue that has ``trip_count`` iterations."""
    return next(name for name in reversed(schedule.loops_of(OUT)) if loop_extent(schedule.func, name) == trip_count)


def _set_depthwise_layouts(schedule: Schedule, depthwise: Depthwise, plane_name: str, walk: Walk) -> Schedule:
    """Change the layouts of the plane and the weights such that both are contiguous along the walk, one channel
    after the other. Weights of an intrinsic become int16."""
    image = (1, 2) if walk.run == 2 else (2, 1)
    buffer = stored_buffer(find_block(schedule.func.body, plane_name)).name
    schedule = schedule.transform_layout(buffer, _UNSPLIT, (0, 3, *image))
    if walk.plane and walk.plane != depthwise.data.dtype:
        schedule = schedule.set_dtype(buffer, walk.plane)
    if walk.intrin:  # rows of an even length: a load of two 16-bit elements stays aligned
        schedule = schedule.storage_align(buffer, 3, 2)
    schedule = schedule.transform_layout(depthwise.weight.name, _UNSPLIT[:3], (2, *(axis - 1 for axis in image)))
    return (
        schedule.set_dtype(depthwise.weight.name, "int16")
        if walk.intrin and depthwise.weight.dtype != "int16"
        else schedule
    )


def _schedule_plane_copy(schedule: Schedule, depthwise: Depthwise, plane_name: str, walk: Walk) -> Schedule:
    """Schedule the copy of the plane in the order of its memory. The border is filled separately, and the copy is
    vectorised if the walk is."""
    inner = schedule.loops_of(plane_name)[-3:]
    schedule = schedule.reorder(*((inner[1], inner[0]) if walk.run == 1 else inner[:2]))
    store = find_block(schedule.func.body, plane_name).body
    # A select between the image and the padding: the border is filled once, so that the copy needs no test.
    if (
        isinstance(store, ir.Store)
        and isinstance(store.value, ir.Select)
        and (depthwise.channels > 1 or not walk.intrin)
    ):
        schedule = schedule.decompose_padding(plane_name)
        if walk.lanes:
            schedule = vectorize_lanes(schedule, schedule.loops_of(f"{plane_name}_fill")[-2])
    if walk.lanes:
        run = inner[walk.run - 1]
        return vectorize_lanes(schedule, run).annotate(run, STRIDED, FARTHEST)
    return schedule if walk.words else schedule.vectorize(inner[walk.run - 1])
