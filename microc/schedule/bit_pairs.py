"""The primitive tensorize_bits: products by weights of a few bits, two of which leave a word by one shift and one mask.

Weights are stored in ``halves`` (:mod:`microc.tir.bit_fields`): what a shift and a mask leave of a word are two weights times
2**s, s = 16 - bits, as the 16-bit numbers that ``dot2`` multiplies by two activations. The sums of a tile start times 2**s,
modulo 2**32, and are shifted back behind the loop, exactly if they lie within 32 - s bits, which the block's note ``sum_bound``
must say.
"""

from __future__ import annotations

from dataclasses import replace

from microc.errors import ScheduleError
from microc.isa.tensor import Part
from microc.schedule.tile_sums import ByteProduct, byte_product, over_tile
from microc.schedule.tree import extent_of, find_loop, loops_around, names_in, replace_stmt
from microc.tir import ir
from microc.tir.affine import simplify
from microc.tir.bit_fields import HALVES, BitFields
from microc.tir.names import SUM_BOUND, WEIGHT_BITS
from microc.tir.rewrite import free_vars

TERMS = 2


def can_shift(block: ir.Block, bits: int) -> bool:
    """Whether sums times 2**s are known to keep their upper bits."""
    bound = dict(block.annotations).get(SUM_BOUND)
    return isinstance(bound, int) and bound < 1 << (31 - BitFields(bits, HALVES).shift)


def tensorize_bits(func: ir.PrimFunc, weight: str, loop: str, reduction: str, bits: int) -> ir.PrimFunc:
    """Replace ``loop``, over 2 terms of 16-bit activations, by ``dot2`` on weights of ``bits`` bits.

    ``reduction`` is the outermost loop of the decomposed reduction: the sums are shifted before and behind it.
    """
    inner, whole = find_loop(func.body, loop), find_loop(func.body, reduction)
    product, form = _product(inner, bits), BitFields(bits, HALVES)
    old = product.weight.buffer
    if old.name != weight or product.data.dtype != "int16":
        raise ScheduleError(f"tensorize_bits {loop!r}: the factors are not {weight!r} and 16-bit activations")
    if old.shape[1] % form.group:
        raise ScheduleError(f"tensorize_bits {loop!r}: rows of {old.shape[1]} weights are no whole words")
    words = replace(old, shape=(old.shape[0], old.shape[1] // form.count), dtype=form.dtype)
    first: dict[ir.Var, ir.Expr] = {inner.var: ir.const(0, "int32")}
    block = replace(product.block, iters=product.first(first), body=_step(product, words, form))
    around = loops_around(func.body, product.block)
    tile = [x for x in around[around.index(whole) :] if x is not inner and product.counts_space(x)]
    taken = names_in(func.body)

    def shifted(up: bool) -> ir.Stmt:
        def change(total: ir.Load) -> ir.Stmt:
            value = (total.astype("uint32") << form.shift).astype("int32") if up else total >> form.shift
            return ir.Store(total.buffer, total.indices, value)

        return over_tile(product, tile, first, taken, "up" if up else "down", change)

    changed = ir.seq(shifted(True), replace_stmt(whole, inner, block), shifted(False))
    params = tuple(words if p == old else p for p in func.params)
    return replace(func, params=params, body=replace_stmt(func.body, whole, changed))


def _product(loop: ir.For, bits: int) -> ByteProduct:
    def refuse(why: str) -> ScheduleError:
        return ScheduleError(f"tensorize_bits {loop.var.name!r}: {why}")

    block = loop.body
    if not isinstance(block, ir.Block) or extent_of(loop) != TERMS or block.init is not None:
        raise refuse(f"a loop over {TERMS} terms that holds the decomposed block alone is needed")
    if block.predicate is not None and loop.var in free_vars(block.predicate):
        raise refuse("the loop has a guarded tail")
    if dict(block.annotations).get(WEIGHT_BITS, 8) != bits or not can_shift(block, bits):
        raise refuse("the weights or the sums are not known to be small enough")
    return byte_product(block, refuse)


def _step(product: ByteProduct, words: ir.Buffer, form: BitFields) -> ir.Stmt:
    """Two products more."""
    store, (row, k) = product.store, product.weight.indices
    word = ir.Load(words, (row, simplify(form.place(k)[0])))
    left = Part(0, ("load_i16x2_aligned",), TERMS).value(product.data)
    total = ir.Load(store.buffer, store.indices)
    return ir.Store(store.buffer, store.indices, ir.Call("dot2_wrapping", (left, form.pair(word, k), total), "int32"))
