"""The primitive tensorize_bits: products by weights of a few bits, two of which leave a word by one shift and one mask.

Weights are stored in ``halves`` (:mod:`microc.tir.bit_fields`): what a shift and a mask leave of a word are two weights times
2**s, s = 16 - bits, as the 16-bit numbers that ``dot2`` multiplies by two activations. The sums of a tile start times 2**s,
modulo 2**32, and are shifted back behind the loop, exactly if they lie within 32 - s bits, which the block's note ``sum_bound``
must say.

Where blocks of inputs have multipliers, a block's sums are kept apart in an iteration of the outermost loop, shifted back and
added times the multiplier: sums of 32 products of bytes at most, as the note ``weight_block`` promises.
"""

from __future__ import annotations

from dataclasses import replace

from microc.errors import ScheduleError
from microc.isa.tensor import Part
from microc.schedule.tile_sums import ByteProduct, byte_product, over_tile
from microc.schedule.tree import extent_of, find_loop, fresh, loops_around, names_in, replace_stmt
from microc.tir import ir
from microc.tir.affine import simplify
from microc.tir.bit_fields import HALVES, BitFields
from microc.tir.names import SUM_BOUND, WEIGHT_BITS, WEIGHT_BLOCK
from microc.tir.rewrite import free_vars

TERMS = 2


def can_shift(block: ir.Block, bits: int) -> bool:
    """Whether sums times 2**s, or those of blocks, are known to keep their upper bits."""
    notes, limit = dict(block.annotations), 1 << (31 - BitFields(bits, HALVES).shift)
    bound = notes.get(SUM_BOUND)
    return WEIGHT_BLOCK in notes or (isinstance(bound, int) and bound < limit)


def tensorize_bits(func: ir.PrimFunc, weight: str, loop: str, reduction: str, bits: int, block: int = 0) -> ir.PrimFunc:
    """Replace ``loop``, over 2 terms of 16-bit activations, by ``dot2`` on weights of ``bits`` bits.

    ``reduction`` is the outermost loop of the decomposed reduction: the sums are shifted before and behind it. With multipliers
    its turns are blocks.
    """
    inner, whole = find_loop(func.body, loop), find_loop(func.body, reduction)
    product, form = _product(inner, bits, block), BitFields(bits, HALVES, block)
    old = product.weight.buffer
    if old.name != weight or product.data.dtype != "int16":
        raise ScheduleError(f"tensorize_bits {loop!r}: the factors are not {weight!r} and 16-bit activations")
    if old.shape[1] % form.group:
        raise ScheduleError(f"tensorize_bits {loop!r}: rows of {old.shape[1]} weights are no whole words")
    if block and extent_of(whole) * block != old.shape[1]:
        raise ScheduleError(f"tensorize_bits {reduction!r}: its turns are no blocks of {block} weights")
    words = replace(old, shape=(old.shape[0], form.size(old.shape[1])), dtype=form.dtype)
    first: dict[ir.Var, ir.Expr] = {inner.var: ir.const(0, "int32")}
    sums = product.store.buffer
    taken = names_in(func.body) | {p.name for p in func.params}
    part = replace(sums, name=fresh(taken, f"{sums.name}_block")) if block else sums
    step = replace(product.block, iters=product.first(first), body=_step(product, part, words, form))
    around = loops_around(func.body, product.block)
    tile = [x for x in around[around.index(whole) :] if x is not inner and product.counts_space(x)]

    def shifted(up: bool) -> ir.Stmt:
        def change(total: ir.Load) -> ir.Stmt:
            value = (total.astype("uint32") << form.shift).astype("int32") if up else total >> form.shift
            return ir.Store(total.buffer, total.indices, value)

        return over_tile(product, tile, first, taken, "up" if up else "down", change)

    def cleared(total: ir.Load) -> ir.Stmt:
        return ir.Store(part, total.indices, ir.const(0, "int32"))

    def added(total: ir.Load) -> ir.Stmt:
        row = total.indices[-1]  # a sum's column is its weights' row
        factor = form.multiplier(lambda n: ir.Load(words, (row, n)), old.shape[1], turn.var)
        return ir.Store(total.buffer, total.indices, total + (ir.Load(part, total.indices) >> form.shift) * factor)

    terms = replace_stmt(whole, inner, step)
    if block:
        assert isinstance(terms, ir.For)
        turn = ir.IterVar(ir.Var(fresh(taken, f"v_{whole.var.name}_block")), extent_of(whole), "reduce", whole.var)
        start = over_tile(product, tile, first, taken, "start", cleared)
        end = over_tile(product, tile, first, taken, "block", added, (turn,))
        terms = replace(terms, body=ir.seq(start, terms.body, end))
    else:
        terms = ir.seq(shifted(True), terms, shifted(False))
    params = tuple(words if p == old else p for p in func.params)
    body = replace_stmt(func.body, whole, terms)
    return replace(func, params=params, body=ir.Alloc(part, body) if block else body)


def _product(loop: ir.For, bits: int, shared: int) -> ByteProduct:
    def refuse(why: str) -> ScheduleError:
        return ScheduleError(f"tensorize_bits {loop.var.name!r}: {why}")

    block = loop.body
    if not isinstance(block, ir.Block) or extent_of(loop) != TERMS or block.init is not None:
        raise refuse(f"a loop over {TERMS} terms that holds the decomposed block alone is needed")
    if block.predicate is not None and loop.var in free_vars(block.predicate):
        raise refuse("the loop has a guarded tail")
    notes = dict(block.annotations)
    if (notes.get(WEIGHT_BITS), notes.get(WEIGHT_BLOCK, 0)) != (bits, shared) or not can_shift(block, bits):
        raise refuse("the weights or the sums are not known to be small enough")
    return byte_product(block, refuse)


def _step(product: ByteProduct, sums: ir.Buffer, words: ir.Buffer, form: BitFields) -> ir.Stmt:
    """Two products more."""
    indices, (row, k) = product.store.indices, product.weight.indices
    word = ir.Load(words, (row, simplify(form.place(k)[0])))
    left = Part(0, ("load_i16x2_aligned",), TERMS).value(product.data)
    total = ir.Load(sums, indices)
    return ir.Store(sums, indices, ir.Call("dot2_wrapping", (left, form.pair(word, k), total), "int32"))
