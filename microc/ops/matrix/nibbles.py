"""Products by weights of four bits, two of which share a byte: half the flash of bytes, for a few instructions more.

Weights (O, K) become int8 (O, K / 2): number 2 j of a row is the low half of byte j, number 2 j + 1 the high half, both in two's
complement. The sum takes two terms a step. Any constant weights within -8..7 suit, wherever they come from; the cost model says
where it pays.
"""

from __future__ import annotations

import numpy as np

from microc import dtypes, te
from microc.dtypes import Array
from microc.ops.registry import OpCall, Operand
from microc.tir import ir
from microc.tir.ir import Expr, Var
from microc.tir.names import ACC

LEAST, MOST = -8, 7


def suits_nibbles(call: OpCall) -> bool:
    """Whether constant weights of one group fit in four bits, and integers are summed in 32."""
    data, weight, _ = call.weighted
    integers = not dtypes.is_float(data.type.dtype) and call.attrs.get("out_dtype") == "int32"
    if weight.data is None or weight.data.dtype != np.int8 or not integers or call.attrs.get("groups", 1) > 1:
        return False
    return bool(weight.data.size) and int(weight.data.min()) >= LEAST and int(weight.data.max()) <= MOST


def even(depth: int) -> int:
    """Terms of a sum, with a zero behind an odd number of them."""
    return depth + depth % 2


def packed_nibbles(weights: Array) -> Array:
    """int8 weights (O, K), K even, as int8 (O, K / 2)."""
    halves = weights.astype(np.uint8).reshape(len(weights), -1, 2)
    return ((halves[..., 0] & 15) | (halves[..., 1] << 4)).view(np.int8)


def nibble_product(rows: te.Tensor, weight: Operand, depth: int, start: te.Tensor | None) -> te.Tensor:
    """``acc`` (P, O): rows (P, K), K even, times weights (O, ``depth``), plus what the sums ``start`` (O) from."""
    assert weight.data is not None
    units = weight.data.shape[0]
    flat = weight.data.reshape(units, depth)
    bytes_ = weight.packed(packed_nibbles(np.pad(flat, ((0, 0), (0, rows.shape[1] - depth)))))
    j = te.reduce_axis(rows.shape[1] // 2, "k")

    def element(p: Var, o: Var) -> Expr:
        pair = ir.cast("int32", bytes_[o, j.var])
        low, high = ((pair & 15) ^ 8) - 8, pair >> 4
        first, second = (ir.cast("int32", rows[p, j.var * 2 + half]) for half in (0, 1))
        init = ir.const(0, "int32") if start is None else start[o]
        return te.sum_reduce(first * low + second * high, j, init=init)

    return te.compute((rows.shape[0], units), element, ACC, ("p", "o"))
