"""The primitive tensorize_taps: pairs of taps of a depthwise convolution become words that ``dot2`` multiplies.

Vectors hold neighbouring channels, so that the terms of a sum lie far apart in memory: words of data are made of what was
loaded, one number in the lower half and one in the upper, and serve all outputs and taps that read both; words of constant
weights are stored. A tap that is left has a zero beside its weight, and its number is taken as it was widened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from microc import dtypes
from microc.dtypes import Array
from microc.errors import ScheduleError
from microc.schedule.tree import extent_of, find_block, loops_around, replace_stmt
from microc.tir import ir
from microc.tir.affine import simplify
from microc.tir.rewrite import substitute

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
