# SPDX-License-Identifier: Apache-2.0
"""Primitives that tensorise products with bit-packed weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from microc.base.dtypes import Array
from microc.errors import ScheduleError
from microc.isa.instruction_set import StepOperand
from microc.schedule.primitives.tensorize import ByteProduct, build_loops_over_tile, match_byte_product
from microc.schedule.primitives.tree import extent_of, find_loop, fresh_name, loops_around, names_in, replace_stmt
from microc.tir import ir
from microc.tir.analysis.simplification import simplify
from microc.tir.bit_fields import HALVES, BitFields
from microc.tir.names import SMALLEST_WEIGHT, SUM_BOUND, WEIGHT_BITS, WEIGHT_BLOCK
from microc.tir.rewrite import free_vars

# ---- The primitive tensorize_bits: products by weights of a few bits, unpacked two at a time by one shift and one mask
#
# Weights are stored in ``halves`` (:mod:`microc.tir.bit_fields`). A shift and a mask of a word give two weights times 2**s,
# s = 16 - bits, as the int16 pair that ``dot2`` multiplies by two activations. The sums of a tile are therefore shifted left
# by s before the loop, modulo 2**32, and shifted right after it. That is exact if the sums fit 32 - s bits, which the annotation
# ``sum_bound`` must promise.
#
# If groups of weights have multipliers, each iteration of the outermost loop computes the sum of one group separately, shifts it
# to the right, multiplies it and adds it to the total. A group has at most 32 products of bytes, as the annotation
# ``weight_block`` promises.

BIT_PAIRS_TERMS = 2
"""Number of terms that one ``dot2`` adds."""


def can_scale_sums(block: ir.Block, bits: int) -> bool:
    """Test whether the annotations of ``block`` promise that its sums, multiplied by 2**(16 - ``bits``), do not
    overflow. If groups of weights have multipliers, the sums of one group must not overflow."""
    notes, limit = dict(block.annotations), 1 << (31 - BitFields(bits, HALVES).shift)
    bound = notes.get(SUM_BOUND)
    return WEIGHT_BLOCK in notes or (isinstance(bound, int) and bound < limit)


def tensorize_bits(func: ir.PrimFunc, weight: str, loop: str, reduction: str, bits: int, block: int = 0) -> ir.PrimFunc:
    """Replace ``loop``, over 2 terms of int16 activations, by ``dot2`` on weights of ``bits`` bits.

    ``reduction``: outermost loop of the decomposed reduction. The sums are shifted before and after this loop.
    ``block``: if not 0, number of weights that share a multiplier; each iteration of ``reduction`` then processes
    one such group."""
    inner, whole = find_loop(func.body, loop), find_loop(func.body, reduction)
    product, form = _match_bit_pairs(inner, bits, block), BitFields(bits, HALVES, block)
    old = product.weight.buffer
    if old.name != weight or product.data.dtype != "int16":
        raise ScheduleError(
            f"tensorize_bits {loop!r}: wrong operands; got weights {old.name!r} and {product.data.dtype} activations, "
            f"expected weights {weight!r} and int16 activations"
        )
    if old.shape[1] % form.group:
        raise ScheduleError(
            f"tensorize_bits {loop!r}: rows of {weight!r} do not fill whole words; got {old.shape[1]} weights, expected a "
            f"multiple of {form.group}"
        )
    if block and extent_of(whole) * block != old.shape[1]:
        raise ScheduleError(
            f"tensorize_bits: iterations of {reduction!r} do not cover one block of weights each; got {extent_of(whole)} "
            f"iterations of {block} weights, expected {old.shape[1]} weights in all"
        )
    words = replace(old, shape=(old.shape[0], form.size(old.shape[1])), dtype=form.dtype)
    first: dict[ir.Var, ir.Expr] = {inner.var: ir.const(0, "int32")}
    sums = product.store.buffer
    taken = names_in(func.body) | {p.name for p in func.params}
    part = replace(sums, name=fresh_name(taken, f"{sums.name}_block")) if block else sums
    step = replace(
        product.block,
        iters=product.bind_iterators_at(first),
        body=_build_update_by_two_products(product, part, words, form),
    )
    around = loops_around(func.body, product.block)
    tile = [x for x in around[around.index(whole) :] if x is not inner and product.is_spatial_loop(x)]

    def build_shifts_of_sums(left: bool) -> ir.Stmt:
        def store_shifted(total: ir.Load) -> ir.Stmt:
            value = (total.astype("uint32") << form.shift).astype("int32") if left else total >> form.shift
            return ir.Store(total.buffer, total.indices, value)

        return build_loops_over_tile(product, tile, first, taken, "up" if left else "down", store_shifted)

    def clear_block_sum(total: ir.Load) -> ir.Stmt:
        return ir.Store(part, total.indices, ir.const(0, "int32"))

    def add_block_sum(total: ir.Load) -> ir.Stmt:
        row = total.indices[-1]  # a sum's column is its weights' row
        factor = form.load_multiplier(lambda n: ir.Load(words, (row, n)), old.shape[1], block_iter.var)
        return ir.Store(total.buffer, total.indices, total + (ir.Load(part, total.indices) >> form.shift) * factor)

    terms = replace_stmt(whole, inner, step)
    if block:
        assert isinstance(terms, ir.For)
        block_var = ir.Var(fresh_name(taken, f"v_{whole.var.name}_block"))
        block_iter = ir.IterVar(block_var, extent_of(whole), "reduce", whole.var)
        start = build_loops_over_tile(product, tile, first, taken, "start", clear_block_sum)
        end = build_loops_over_tile(product, tile, first, taken, "block", add_block_sum, (block_iter,))
        terms = replace(terms, body=ir.seq(start, terms.body, end))
    else:
        terms = ir.seq(build_shifts_of_sums(True), terms, build_shifts_of_sums(False))
    params = tuple(words if p == old else p for p in func.params)
    body = replace_stmt(func.body, whole, terms)
    return replace(func, params=params, body=ir.Alloc(part, body) if block else body)


def _match_bit_pairs(loop: ir.For, bits: int, block_weights: int) -> ByteProduct:
    """Match ``loop`` as 2 terms of a product by a constant int8 matrix whose elements fit ``bits`` bits. Raise
    ScheduleError if it does not match.

    ``block_weights``: number of weights that share a multiplier, or 0."""

    def bits_error(reason: str) -> ScheduleError:
        return ScheduleError(f"tensorize_bits {loop.var.name!r}: {reason}")

    block = loop.body
    if not isinstance(block, ir.Block) or extent_of(loop) != BIT_PAIRS_TERMS or block.init is not None:
        raise bits_error(
            f"wrong loop; got {extent_of(loop)} iterations, expected {BIT_PAIRS_TERMS}, and only the decomposed block in it"
        )
    if block.predicate is not None and loop.var in free_vars(block.predicate):
        raise bits_error("the loop has a guarded tail: split by a divisor, or pad_reduction")
    notes = dict(block.annotations)
    if (notes.get(WEIGHT_BITS), notes.get(WEIGHT_BLOCK, 0)) != (bits, block_weights) or not can_scale_sums(block, bits):
        raise bits_error(
            f"block {block.name!r} lacks annotations that promise weights of {bits} bits, blocks of "
            f"{block_weights} and small sums"
        )
    return match_byte_product(block, bits_error)


def _build_update_by_two_products(
    product: ByteProduct, sums: ir.Buffer, packed_words: ir.Buffer, packing: BitFields
) -> ir.Stmt:
    """Build the update of a sum in the buffer ``sums`` by two products. Their weights are bit fields of an element
    of ``packed_words``."""
    indices, (row, k) = product.store.indices, product.weight.indices
    word = ir.Load(packed_words, (row, simplify(packing.element_and_bit(k)[0])))
    left = StepOperand(0, ("load_i16x2_aligned",), BIT_PAIRS_TERMS).build_operand(product.data)
    total = ir.Load(sums, indices)
    return ir.Store(sums, indices, ir.Call("dot2_wrapping", (left, packing.unpack_pair(word, k), total), "int32"))


# ---- The primitive tensorize_bit_columns: products by weights of 4 bits, four columns of which share an int16 (SWAR)
#
# The weights of columns 4 i .. 4 i + 3 are stored together, h[i, k] = w0 + 16 w1 + 256 w2 + 4096 w3, two of them (k and k + 1)
# in a word. ``dot2`` by the word itself adds all columns at once; by its lower 12 bits, lower byte, lowest 4 bits it adds
# three, two, one. A shift and a mask extract the 12 and the 4 bits, times 16 and 4096. So eight weights take one load and three
# instructions to unpack the word; a word of one column takes four.
#
# In the loop the sums c0 .. c3 are kept, modulo 2**32, as
#
#     t0 = 4096 c0,    t1 = c0 + 16 c1,    t2 = 16 (t1 + 256 c2),    t3 = t1 + 256 c2 + 4096 c3,
#
# from which they are exact if |c| < 2**19 (``sum_bound``); h fits 16 bits if no weight is below -7 (``smallest_weight``).

COLUMNS, BIT_COLUMNS_TERMS, BITS = 4, 2, 4
"""Number of columns whose weights are packed into 16 bits, number of terms of one ``dot2``, and bits of a weight."""
SUM_LIMIT, LEAST_WEIGHT = 1 << 19, -7
"""Bound of the absolute value of sums, and the least permitted weight."""


def can_share_words(block: ir.Block, column_count: int) -> bool:
    """Test whether the 4-bit weights of four columns can be packed into 16 bits, half of a 32-bit word.

    The annotations of ``block`` must promise small sums and weights, and ``column_count`` must be a multiple of 4."""
    notes = dict(block.annotations)
    bound, smallest = notes.get(SUM_BOUND), notes.get(SMALLEST_WEIGHT)
    fits = isinstance(bound, int) and bound < SUM_LIMIT and isinstance(smallest, int) and smallest >= LEAST_WEIGHT
    return fits and (notes.get(WEIGHT_BITS), notes.get(WEIGHT_BLOCK)) == (BITS, None) and column_count % COLUMNS == 0


def tensorize_bit_columns(func: ir.PrimFunc, weight: str, columns: str, reduction: str) -> ir.PrimFunc:
    """Replace the loop ``columns`` (trip count 4) and the reduction loop inside it (trip count 2, int16 activations) by
    ``dot2`` on 32-bit words. A word contains the 4-bit weights of four columns and two terms.

    ``reduction``: outermost loop of the decomposed reduction. Before this loop the sums c0 .. c3 of four columns are
    transformed to the sums t0 .. t3 of the comment above, and after it they are transformed back."""
    loop, whole = find_loop(func.body, columns), find_loop(func.body, reduction)
    product, inner = _match_bit_columns(loop)
    old = product.weight.buffer
    if old.name != weight or product.data.dtype != "int16" or old.shape[1] % BIT_COLUMNS_TERMS:
        raise ScheduleError(
            f"tensorize_bit_columns {columns!r}: wrong operands; got weights {old.name!r} in rows of {old.shape[1]} and "
            f"{product.data.dtype} activations, expected weights {weight!r} in rows of a multiple of {BIT_COLUMNS_TERMS} and "
            "int16"
        )
    words = replace(old, shape=(old.shape[0] // COLUMNS, old.shape[1] // BIT_COLUMNS_TERMS), dtype="int32")
    first: dict[ir.Var, ir.Expr] = {loop.var: ir.const(0, "int32"), inner.var: ir.const(0, "int32")}
    body = replace(product.block, iters=product.bind_iterators_at(first), body=_build_column_updates(product, words))
    around = loops_around(func.body, product.block)
    tile = [x for x in around[around.index(whole) :] if x not in (loop, inner) and product.is_spatial_loop(x)]
    taken = names_in(func.body)
    start = build_loops_over_tile(product, tile, first, taken, "share", _build_sum_combination)
    end = build_loops_over_tile(product, tile, first, taken, "part", _build_sum_separation)
    changed = ir.seq(start, replace_stmt(whole, loop, body), end)
    params = tuple(words if p == old else p for p in func.params)
    return replace(func, params=params, body=replace_stmt(func.body, whole, changed))


def _match_bit_columns(loop: ir.For) -> tuple[ByteProduct, ir.For]:
    """Match ``loop`` as 4 columns of 2 terms. Return the product and the loop over terms. Raise ScheduleError if it
    does not match."""

    def columns_error(reason: str) -> ScheduleError:
        return ScheduleError(f"tensorize_bit_columns {loop.var.name!r}: {reason}")

    inner = loop.body
    block = inner.body if isinstance(inner, ir.For) else None
    if not isinstance(inner, ir.For) or not isinstance(block, ir.Block) or block.init is not None:
        raise columns_error(
            "the loop over columns must contain only the loop over terms, and this loop only the decomposed block"
        )
    if (extent_of(loop), extent_of(inner)) != (COLUMNS, BIT_COLUMNS_TERMS):
        raise columns_error(
            f"wrong loops; got {extent_of(loop)} columns of {extent_of(inner)} terms, expected {COLUMNS} of "
            f"{BIT_COLUMNS_TERMS}"
        )
    if block.predicate is not None and {loop.var, inner.var} & free_vars(block.predicate):
        raise columns_error("the loop has a guarded tail: split by a divisor, or pad_reduction")
    if not can_share_words(block, COLUMNS):
        raise columns_error(
            f"sums or weights of block {block.name!r} are not known to be small enough; expected annotations "
            f"{WEIGHT_BITS} {BITS}, {SUM_BOUND} below {SUM_LIMIT} and {SMALLEST_WEIGHT} of {LEAST_WEIGHT} or more"
        )
    return match_byte_product(block, columns_error), inner


def _load_column_sums(first_sum: ir.Load | ir.Store) -> list[ir.Load]:
    """Return the loads of the sums of four neighbouring columns, given the access to the first sum."""
    *rows, column = first_sum.indices
    return [ir.Load(first_sum.buffer, (*rows, column + n if n else column)) for n in range(COLUMNS)]


def _build_sum_stores(sums: list[ir.Load], values: list[ir.Expr]) -> ir.Stmt:
    """Store the sums of four columns, the last column first. The value of a column reads this column and earlier
    ones, which must not have been overwritten yet."""
    pairs = list(zip(sums, values, strict=True))
    return ir.seq(*(ir.Store(total.buffer, total.indices, value.astype("int32")) for total, value in reversed(pairs)))


def _build_column_updates(product: ByteProduct, packed_words: ir.Buffer) -> ir.Stmt:
    """Build the updates of the sums of four columns by two products each."""
    column, k = product.weight.indices
    word = ir.Load(packed_words, (simplify(column // COLUMNS), simplify(k // BIT_COLUMNS_TERMS)))
    activations = StepOperand(0, ("load_i16x2_aligned",), BIT_COLUMNS_TERMS).build_operand(product.data)
    unpacked = (_shift_and_mask(word, 12, 0xF000), ir.call("evens_i8", word), _shift_and_mask(word, 4, 0xFFF0), word)
    stores = []
    for total, weights in zip(_load_column_sums(product.store), unpacked, strict=True):
        value = ir.Call("dot2_wrapping", (activations, weights, total), "int32")
        stores.append(ir.Store(total.buffer, total.indices, value))
    return ir.seq(*stores)


def _shift_and_mask(word: ir.Expr, left_shift: int, mask: int) -> ir.Expr:
    """Build the shift of a word to the left, followed by a mask of both 16-bit halves. The intrinsic ``hold`` keeps
    the mask in a register."""
    held = ir.call("hold", ir.const(mask * 0x10001 - (1 << 32), "int32"))
    return ir.cast("int32", ir.cast("uint32", word) << left_shift) & held


def _build_sum_combination(first_sum: ir.Load) -> ir.Stmt:
    """Build the statement before the loop that combines the sums c0 .. c3 of four columns.

    t0 = 2**12 c0, t1 = c0 + 2**4 c1, t2 = 2**4 (t1 + 2**8 c2), t3 = t1 + 2**8 c2 + 2**12 c3, modulo 2**32."""
    sums = _load_column_sums(first_sum)
    c0, c1, c2, c3 = (x.astype("uint32") for x in sums)
    two = c0 + (c1 << 4)
    three = two + (c2 << 8)
    return _build_sum_stores(sums, [c0 << 12, two, three << 4, three + (c3 << 12)])


def _build_sum_separation(first_sum: ir.Load) -> ir.Stmt:
    """Build the statement after the loop that recovers the sums of four columns from t0 .. t3 of
    :func:`_build_sum_combination`."""
    sums = _load_column_sums(first_sum)
    t0, t1, t2, t3 = (x.astype("uint32") for x in sums)
    c0, c2 = t0.astype("int32") >> 12, (t2 - (t1 << 4)).astype("int32") >> 12
    c1 = (t1 - c0.astype("uint32")).astype("int32") >> 4
    c3 = (t3 - t1 - (c2.astype("uint32") << 8)).astype("int32") >> 12
    return _build_sum_stores(sums, [c0, c1, c2, c3])


def pack_bit_columns(array: Array) -> Array:
    """Pack rows of 4-bit weights (N, K), N a multiple of 4 and K of 2, into int32 words (N / 4, K / 2)."""
    rows, depth = array.shape
    quads = array.astype(np.int64).reshape(rows // COLUMNS, COLUMNS, depth)
    halves = (quads << (BITS * np.arange(COLUMNS)).reshape(1, COLUMNS, 1)).sum(1)
    words: Array = ((halves[:, 0::2] & 0xFFFF) | (halves[:, 1::2] << 16)).astype(np.int32)
    return words
