"""The primitive tensorize_pairs: two columns of a product of bytes share their words of weights.

The weights of columns 2 i and 2 i + 1 are stored together, h[i, k] = w[2 i, k] + 256 w[2 i + 1, k], in 16 bits. One ``dot2`` by
a word of h adds both columns at once, ``evens`` of the same word leaves the even column alone, so that four products of
two columns take one load, one widening and two ``dot2``, where separate bytes take one more widening.

In the loop the odd sum is kept as t = c0 + 256 c1, modulo 2**32. Afterwards c1 = (t - c0) >> 8 (the shift keeps the sign),
exactly, if c1 lies within 24 bits. Two things must be known before: |c1| < 2**23 (``sum_bound``), and h must fit 16 bits,
-32768 <= w0 + 256 w1, which only a weight of -128 can break (``smallest_weight``). Both are annotations of the block.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from microc.dtypes import Array
from microc.errors import ScheduleError
from microc.isa.tensor import Part
from microc.isa.vocabulary.sums import WIDENED
from microc.schedule.tile_sums import ByteProduct, byte_product, over_tile
from microc.schedule.tree import extent_of, find_loop, loops_around, names_in, replace_stmt
from microc.tir import ir
from microc.tir.names import SMALLEST_WEIGHT, SUM_BOUND
from microc.tir.rewrite import free_vars

COLUMNS, TERMS = 2, 4
SUM_LIMIT = 1 << 23


def can_pair(block: ir.Block, columns: int) -> bool:
    """Whether the sums of ``block`` may be paired: what its annotations promise."""
    notes = dict(block.annotations)
    bound, smallest = notes.get(SUM_BOUND), notes.get(SMALLEST_WEIGHT)
    known = isinstance(bound, int) and isinstance(smallest, int)
    return known and columns % COLUMNS == 0 and int(bound or 0) < SUM_LIMIT and int(smallest or 0) > -128


def tensorize_pairs(func: ir.PrimFunc, weight: str, columns: str, reduction: str, dtype: str) -> ir.PrimFunc:
    """Replace the loop ``columns`` (of 2) and the loop of 4 terms inside it by ``dot2`` on paired weights.

    ``reduction`` is the outermost loop of the decomposed reduction: the sums are entangled before and separated behind it.
    ``dtype`` is that of the activations: bytes are taken apart crossed (0, 2 and 1, 3), and the weights lie accordingly.
    """
    loop, whole = find_loop(func.body, columns), find_loop(func.body, reduction)
    product = _paired_product(loop)
    if product.weight.buffer.name != weight or product.data.dtype != dtype:
        raise ScheduleError(f"tensorize_pairs {columns!r}: the factors are not {weight!r} and {dtype} activations")
    if not can_pair(product.block, COLUMNS):
        raise ScheduleError(f"tensorize_pairs {columns!r}: the sums or weights are not known to be small enough")
    old = product.weight.buffer
    rows, depth = old.shape
    pairs = replace(old, shape=(rows // COLUMNS, depth), dtype="int16")
    inner = loop.body
    assert isinstance(inner, ir.For)
    first: dict[ir.Var, ir.Expr] = {loop.var: ir.const(0, "int32"), inner.var: ir.const(0, "int32")}
    body = replace(product.block, iters=product.first(first), body=_steps(product, pairs))
    around = loops_around(func.body, product.block)
    tile = [x for x in around[around.index(whole) :] if x not in (loop, inner) and product.counts_space(x)]
    taken = names_in(func.body)
    start = over_tile(product, tile, first, taken, "pair", _entangled)
    end = over_tile(product, tile, first, taken, "part", _separated)
    changed = replace_stmt(whole, loop, body)
    new = replace_stmt(func.body, whole, ir.seq(start, changed, end))
    return replace(func, params=tuple(pairs if p == old else p for p in func.params), body=new)


def _paired_product(loop: ir.For) -> ByteProduct:
    def refuse(why: str) -> ScheduleError:
        return ScheduleError(f"tensorize_pairs {loop.var.name!r}: {why}")

    inner = loop.body
    block = inner.body if isinstance(inner, ir.For) else None
    if not isinstance(block, ir.Block) or not isinstance(inner, ir.For):
        raise refuse("it must hold the loop over terms, and that the block")
    if (extent_of(loop), extent_of(inner)) != (COLUMNS, TERMS) or block.init is not None:
        raise refuse(f"{COLUMNS} columns of {TERMS} terms, decomposed, are needed")
    if block.predicate is not None and {loop.var, inner.var} & free_vars(block.predicate):
        raise refuse("the loop has a guarded tail")
    return byte_product(block, refuse)


def _odd(even: ir.Load | ir.Store) -> ir.Load:
    """The odd column's sum beside the even one's."""
    return ir.Load(even.buffer, (*even.indices[:-1], even.indices[-1] + 1))


def _steps(product: ByteProduct, pairs: ir.Buffer) -> ir.Stmt:
    """The even sum, and both sums entangled."""
    store, column = product.store, product.weight.indices[0]
    start = ir.Load(pairs, (column // COLUMNS, product.weight.indices[1]))
    even, both = ir.Load(store.buffer, store.indices), _odd(store)
    sums: list[ir.Expr] = [even, both]
    for half in (0, 1):
        left = _activations(product.data.dtype, half).value(product.data)
        word = ("load_i16x2_aligned",)
        for output, names, name in ((0, (*word, "evens_i8"), "dot2"), (1, word, "dot2_wrapping")):
            right = Part(2 * half, names, 2).value(start)
            sums[output] = ir.Call(name, (left, right, sums[output]), "int32")
    return ir.seq(ir.Store(store.buffer, even.indices, sums[0]), ir.Store(store.buffer, both.indices, sums[1]))


def _activations(dtype: str, half: int) -> Part:
    """Two activations: bytes 0 and 2, or 1 and 3, of a word; or neighbours that are 16-bit numbers already."""
    if dtype == "int16":
        return Part(2 * half, ("load_i16x2_aligned",), 2)
    return Part(0, WIDENED[dtype][half], TERMS)


def _entangled(even: ir.Load) -> ir.Stmt:
    odd = _odd(even)
    value = (even.astype("int64") + odd.astype("int64") * 256).astype("int32")
    return ir.Store(odd.buffer, odd.indices, value)


def _separated(even: ir.Load) -> ir.Stmt:
    odd = _odd(even)
    value = (odd.astype("int64") - even.astype("int64")).astype("int32") >> 8
    return ir.Store(odd.buffer, odd.indices, value)


def paired(array: Array, dtype: str) -> Array:
    """Two rows of weights each as one of 16-bit numbers, (N, K) int8 -> (N / 2, K) int16, for activations of ``dtype``."""
    wide = array.astype(np.int32)
    pairs = wide[0::2] + 256 * wide[1::2]
    if dtype != "int16":
        pairs = pairs.reshape(len(pairs), -1, TERMS)[:, :, (0, 2, 1, 3)].reshape(len(pairs), -1)
    return pairs.astype(np.int16)
