"""Primitives that tensorise: reductions, pairs of columns, pairs of taps."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import mul
from typing import NamedTuple

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import ScheduleError, suggestion
from microc.isa import TENSOR, TensorIntrin
from microc.isa.tensor_intrinsics import Part
from microc.isa.vocabulary.scalar_words import WIDENED
from microc.schedule.primitives.tensor_unit import LOOPS, tensorize_unit
from microc.schedule.primitives.tree import (
    extent_of,
    find_block,
    find_loop,
    fresh,
    has_block,
    loops_around,
    names_in,
    replace_stmt,
)
from microc.tir import ir
from microc.tir.analysis.simplification import linear, simplify
from microc.tir.lower.region import loop_bounds
from microc.tir.names import SMALLEST_WEIGHT, SUM_BOUND
from microc.tir.rewrite import free_vars, substitute

# ---- What primitives share that change how a tile multiplies by constant bytes: the product's parts, passes over its
# sums.

Point = Mapping[ir.Var, ir.Expr]
"""Values of loop variables."""


@frozen
class ByteProduct:
    """The parts of ``c[.., o] += a[.., k] * w[o, k]``."""

    block: ir.Block
    store: ir.Store
    data: ir.Load
    weight: ir.Load

    def first(self, point: Point) -> tuple[ir.IterVar, ...]:
        """The block's iterators where the loops of ``point`` stand there."""
        return tuple(replace(i, binding=simplify(substitute(i.binding, point))) for i in self.block.iters)

    def counts_space(self, loop: ir.For) -> bool:
        """Whether a loop counts places of sums."""
        return any(i.kind == "space" and loop.var in free_vars(i.binding) for i in self.block.iters)


def byte_product(block: ir.Block, refuse: Callable[[str], ScheduleError]) -> ByteProduct:
    """The parts of a block that adds products by constant bytes."""
    match block.body:
        case ir.Store(total, where, ir.Bin("add", ir.Load(b, i), ir.Bin("mul", ir.Cast(_, x), ir.Cast(_, w)))) if (
            b == total and i == where and isinstance(x, ir.Load) and isinstance(w, ir.Load)
        ):
            if len(w.indices) == 2 and w.buffer.scope == "const" and w.dtype == "int8":
                return ByteProduct(block, block.body, x, w)
        case _:
            pass
    raise refuse("the body is no product by constant bytes")


def over_tile(
    product: ByteProduct,
    tile: list[ir.For],
    first: Point,
    taken: set[str],
    what: str,
    change: Callable[[ir.Load], ir.Stmt],
    more: tuple[ir.IterVar, ...] = (),
) -> ir.Stmt:
    """A pass over the sums that the loops ``tile`` count, ``first`` the values of others: what ``change`` does to each, which may
    use the iterators ``more``."""
    block = product.block
    renamed = {x.var: ir.Var(fresh(taken, f"{x.var.name}_{what}")) for x in tile}
    values: dict[ir.Var, ir.Expr] = {}
    iters = list(more)
    for it in block.iters:
        if it.kind == "space":
            var = ir.Var(fresh(taken, f"{it.var.name}_{what}"))
            values[it.var] = var
            binding = simplify(substitute(substitute(it.binding, first), dict(renamed)))
            iters.append(replace(it, var=var, binding=binding))
    place = tuple(substitute(i, values) for i in product.store.indices)
    guard = None if block.predicate is None else substitute(block.predicate, dict(renamed))
    body = change(ir.Load(product.store.buffer, place))
    nest: ir.Stmt = ir.Block(f"{block.name}_{what}", tuple(iters), body, None, guard)
    for x in reversed(tile):
        nest = ir.For(renamed[x.var], x.extent, nest, "unrolled")
    return nest


# ---- tensorize: the innermost loops of a reduction become calls of an intrinsic.


def _operand(expr: ir.Expr) -> ir.Load | None:
    """The load under a widening cast."""
    return expr.a if isinstance(expr, ir.Cast) and expr.dtype == "int32" and isinstance(expr.a, ir.Load) else None


def _refuse(loop: str, intrin: TensorIntrin, why: str) -> ScheduleError:
    loops = " ".join(
        f"for {name} in {n}:" for name, n in zip("nk"[-len(intrin.extents) :], intrin.extents, strict=True)
    )
    return ScheduleError(
        f"tensorize {loop!r} with {intrin.name}: {why}",
        hint=f"it replaces '{loops} c += int32(a[.., k]) * int32(b[.., k])'"
        f" with {intrin.a} a and {intrin.b} b, its order in memory, the innermost loops of a decomposed reduction",
    )


def tensorize(func: ir.PrimFunc, loop: str, intrin: str) -> ir.PrimFunc:
    """Replace ``loop``, and what loops the intrinsic has inside it (around one block only), by the tensor intrinsic.

    Words of a tensor unit take loops of any extents (:mod:`microc.schedule.primitives.tensor_unit`). The name of a block that
    :func:`~microc.schedule.primitives.reductions.blockize` made says: the loops in it.
    """
    if intrin in LOOPS:
        return tensorize_unit(func, loop, intrin)
    if intrin not in TENSOR:
        names = (*TENSOR, *LOOPS)
        raise ScheduleError(f"there is no tensor intrinsic {intrin!r}", hint=suggestion(intrin, names, "intrinsics"))
    what = TENSOR[intrin]
    old = find_block(func.body, loop).body if has_block(func.body, loop) else find_loop(func.body, loop)
    if not isinstance(old, ir.For):
        raise _refuse(loop, what, "the block holds no loops")
    block, points = _nest(old, what)
    if block.init is not None:
        raise _refuse(loop, what, "the reduction is not decomposed")
    if block.predicate is not None and points[0].keys() & free_vars(block.predicate):
        raise _refuse(loop, what, "the loop has a guarded tail")
    store = block.body
    if not (isinstance(store, ir.Store) and isinstance(store.value, ir.Bin) and store.value.op == "add"):
        raise _refuse(loop, what, "the body is no sum")
    product = store.value.b
    if store.value.a != ir.Load(store.buffer, store.indices) or not isinstance(product, ir.Bin) or product.op != "mul":
        raise _refuse(loop, what, "the body is no sum of products")
    a, b = _operand(product.a), _operand(product.b)
    if a is None or b is None or (a.dtype, b.dtype) != (what.a, what.b):
        raise _refuse(loop, what, "the operands have other dtypes")
    bindings = {i.var: i.binding for i in block.iters}
    bounds = loop_bounds(loops_around(func.body, old))
    for load, order, aligned in ((a, what.order_a, what.aligned_a), (b, what.order_b, what.aligned_b)):
        steps = [_distance(load.indices, bindings, points[0], point) for point in points]
        strides = load.buffer.strides
        if [None if s is None else sum(map(mul, s, strides)) for s in steps] != list(order):
            raise _refuse(loop, what, f"{load.buffer.name!r} is not read in the order {order}")
        if aligned and not _aligned(load, bindings, points[0], bounds):
            raise _refuse(loop, what, f"{load.buffer.name!r} is not known to be read at whole words")
    iters = tuple(replace(i, binding=simplify(substitute(i.binding, points[0]))) for i in block.iters)
    places = _places(store, bindings, points, what.outputs)
    if places is None:
        raise _refuse(loop, what, f"{store.buffer.name!r} is not written at one place for each output")
    body = what.body(a, b, tuple(ir.Load(store.buffer, place) for place in places))
    return replace(func, body=replace_stmt(func.body, old, replace(block, iters=iters, body=body)))


def _nest(loop: ir.For, intrin: TensorIntrin) -> tuple[ir.Block, list[Point]]:
    """The block inside the intrinsic's loops, and the values of their variables, in order."""
    variables: list[ir.Var] = []
    inner: ir.Stmt = loop
    for extent in intrin.extents:
        if not isinstance(inner, ir.For) or extent_of(inner) != extent:
            raise _refuse(loop.var.name, intrin, "the loops have other extents")
        variables.append(inner.var)
        inner = inner.body
    if not isinstance(inner, ir.Block):
        raise _refuse(loop.var.name, intrin, "the loops are not innermost")
    numbers = itertools.product(*(range(extent) for extent in intrin.extents))
    return inner, [dict(zip(variables, (ir.const(n, "int32") for n in row), strict=True)) for row in numbers]


def _distance(
    indices: tuple[ir.Expr, ...], bindings: Mapping[ir.Var, ir.Expr], first: Point, point: Point
) -> tuple[int, ...] | None:
    """How far along every axis the element at ``point`` lies behind that at ``first``; None where that varies."""
    found = []
    for index in indices:
        bound = substitute(index, bindings)
        difference = ir.int_value(simplify(substitute(bound, point) - substitute(bound, first)))
        if difference is None:
            return None
        found.append(difference)
    return tuple(found)


def _places(
    store: ir.Store, bindings: Mapping[ir.Var, ir.Expr], points: list[Point], outputs: int
) -> list[tuple[ir.Expr, ...]] | None:
    """The indices at which every output is kept; None if they vary while its terms are added."""
    terms = len(points) // outputs
    moves = [_distance(store.indices, bindings, points[0], point) for point in points]
    found = []
    for n in range(outputs):
        move = moves[n * terms]
        if move is None or any(other != move for other in moves[n * terms : (n + 1) * terms]):
            return None
        found.append(tuple(i + d if d else i for i, d in zip(store.indices, move, strict=True)))
    return found


def _aligned(
    load: ir.Load, bindings: Mapping[ir.Var, ir.Expr], first: Point, bounds: Mapping[ir.Var, tuple[int, int]]
) -> bool:
    """Whether the first element lies at a multiple of four bytes, given that the buffer starts at one."""
    elements = 4 // dtypes.nbytes(load.dtype)
    for index, stride in zip(load.indices, load.buffer.strides, strict=True):
        terms, offset = linear(simplify(substitute(substitute(index, bindings), first), bounds))
        if any(factor * stride % elements for factor in (*terms.values(), offset)):
            return False
    return True


# ---- The primitive tensorize_pairs: two columns of a product of bytes share their words of weights.
#
# The weights of columns 2 i and 2 i + 1 are stored together, h[i, k] = w[2 i, k] + 256 w[2 i + 1, k], in 16 bits. One ``dot2`` by
# a word of h adds both columns at once, ``evens`` of the same word leaves the even column alone, so that four products of
# two columns take one load, one widening and two ``dot2``, where separate bytes take one more widening.
#
# In the loop the odd sum is kept as t = c0 + 256 c1, modulo 2**32. Afterwards c1 = (t - c0) >> 8 (the shift keeps the sign),
# exactly, if c1 lies within 24 bits. Two things must be known before: |c1| < 2**23 (``sum_bound``), and h must fit 16 bits,
# -32768 <= w0 + 256 w1, which only a weight of -128 can break (``smallest_weight``). Both are annotations of the block.

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


# ---- The primitive tensorize_taps: pairs of taps of a depthwise convolution become words that ``dot2`` multiplies.
#
# Vectors hold neighbouring channels, so that the terms of a sum lie far apart in memory: words of data are made of what was
# loaded, one number in the lower half and one in the upper, and serve all outputs and taps that read both; words of constant
# weights are stored. A tap that is left has a zero beside its weight, and its number is taken as it was widened.

PAIR = 2
_SHORT = "int16"


class _Sum(NamedTuple):
    """``total += data * weight``, and the iterator of the taps that are paired."""

    store: ir.Store
    data: ir.Load
    weight: ir.Load
    taps: ir.IterVar


def tensorize_taps(func: ir.PrimFunc, block: str, weight: str, axis: int) -> ir.PrimFunc:
    """Multiply pairs of taps along an axis of the constant weights in ``block``, where the loop over them is written out."""
    summing = find_block(func.body, block)
    found = _sum_of(summing, weight, axis)
    if found is None:
        raise ScheduleError(
            f"tensorize_taps: block {block!r} sums no products by {weight!r} along its axis {axis}",
            hint="factors are numbers of 16 bits or fewer, the weights constants",
        )
    extent = found.taps.extent
    loop = next((x for x in loops_around(func.body, summing) if x.var == found.taps.binding), None)
    if loop is None or extent_of(loop) != extent or summing.predicate is not None:
        raise ScheduleError(
            f"tensorize_taps: no loop counts axis {axis} of {weight!r} alone", hint="do it before split"
        )
    old = found.weight.buffer
    words = replace(old, shape=tuple(-(-n // PAIR) if k == axis else n for k, n in enumerate(old.shape)), dtype="int32")
    total: ir.Expr = ir.Load(found.store.buffer, found.store.indices)
    for first in range(0, extent, PAIR):
        numbers = [_tap(found.data, found.taps.var, n) for n in range(first, min(first + PAIR, extent))]
        factor = _tap(ir.Load(words, found.weight.indices), found.taps.var, first // PAIR)
        total = ir.Call("dot2", (_word(numbers), factor, total), "int32")
    iters = tuple(i for i in summing.iters if i != found.taps)
    changed = replace(summing, iters=iters, body=replace(found.store, value=total))
    params = tuple(words if p == old else p for p in func.params)
    body = replace_stmt(func.body, loop, replace_stmt(loop.body, summing, changed))
    return replace(func, params=params, body=body)


def _sum_of(block: ir.Block, weight: str, axis: int) -> _Sum | None:
    """The parts of a block that adds products of short numbers."""
    match block.body:
        case ir.Store(total, where, ir.Bin("add", ir.Load(b, i), ir.Bin("mul", ir.Cast(_, x), ir.Cast(_, w)))) if (
            b == total and i == where and total.dtype == "int32" and isinstance(x, ir.Load) and isinstance(w, ir.Load)
        ):
            known = w.buffer.name == weight and w.buffer.scope == "const" and 0 <= axis < len(w.indices)
            short = dtypes.holds(_SHORT, x.dtype) and dtypes.holds(_SHORT, w.dtype)
            taps = [i for i in block.iters if known and short and i.kind == "reduce" and i.var == w.indices[axis]]
            return _Sum(block.body, x, w, taps[0]) if taps else None
        case _:
            return None


def _tap(load: ir.Load, tap: ir.Var, number: int) -> ir.Load:
    """What is read for a tap."""
    place: dict[ir.Var, ir.Expr] = {tap: ir.const(number, "int32")}
    return ir.Load(load.buffer, tuple(simplify(substitute(i, place)) for i in load.indices))


def _word(numbers: Sequence[ir.Load]) -> ir.Expr:
    """Two numbers as a word; one as it is, since what stands in the upper half of it meets a zero."""
    low, *high = (x.astype("int32") for x in numbers)
    if not high:
        return low
    upper = (high[0].astype("uint32") << 16).astype("int32")
    return (low & 0xFFFF if dtypes.int_range(numbers[0].dtype)[0] < 0 else low) | upper


def words_of(array: Array, axis: int) -> Array:
    """Weights with pairs along an axis in words of int32, the first one in the lower half."""
    taps = np.moveaxis(array.astype(np.int64), axis, 0)
    filled = np.pad(taps, [(0, len(taps) % PAIR), *[(0, 0)] * (taps.ndim - 1)])
    words = (filled[0::PAIR] & 0xFFFF) | (filled[1::PAIR] << 16)
    found: Array = np.moveaxis(words.astype(np.int32), 0, axis)
    return found
