"""The matrix product as a tensor expression, and what its operands look like: rows of weights, words of them, bounds of sums."""

from __future__ import annotations

import numpy as np

from microc import dtypes, te
from microc.dtypes import Array
from microc.graph.ir import TensorType
from microc.ops.multiples import WORD
from microc.ops.registry import OpCall, Operand
from microc.tir import ir
from microc.tir.ir import Expr, Var
from microc.tir.names import ACC, SMALLEST_WEIGHT, SUM_BOUND


def padded_depth(call: OpCall, depth: int, least: int = WORD) -> int:
    """The terms of a product's sum: ``depth``, and zeros up to whole words of constant weights where there are more than
    ``least``."""
    data, weight, _ = call.weighted
    as_it_lies = call.multiples.partly and len(data.type.shape) == 2
    if as_it_lies or weight.data is None or call.attrs.get("out_dtype") != "int32" or depth <= least:
        return depth
    return call.multiples.terms(depth, data.type.dtype, str(weight.data.dtype))


def padded_units(call: OpCall, units: int) -> int:
    """The columns of a product: ``units``, and some of zeros behind constant ones."""
    known = call.constant and call.weighted[1].data is not None
    return call.multiples.units(units) if known else units


def byte_weights(call: OpCall) -> Array | None:
    """Constant weights as int8 (O, K), of int8 data and with a bias that is constant too, summed in 32 bits; else None."""
    data, weight, _ = call.weighted
    dtypes = (data.type.dtype, weight.type.dtype, call.attrs.get("out_dtype"))
    if weight.data is None or not call.constant or dtypes != ("int8", "int8", "int32"):
        return None
    return weight.data.reshape(weight.data.shape[0], -1)


def fits_unsigned(call: OpCall) -> bool:
    """Whether sums of int8 data by constant bytes stay within int32 where the data is stored as uint8, 128 more."""
    weights, (_, _, bias) = byte_weights(call), call.weighted
    if weights is None:
        return False
    first = 0 if bias is None or bias.data is None else int(np.abs(bias.data.astype(np.int64)).max(initial=0))
    return first + 383 * int(np.abs(weights.astype(np.int64)).sum(1).max(initial=0)) < 1 << 31


def less_offset(weight: Operand, bias: Operand | None) -> Array:
    """The bias (O) less 128 times the weights, which data that is 128 too large adds."""
    assert weight.data is not None
    rows = weight.data.reshape(weight.data.shape[0], -1).astype(np.int64)
    given = (
        np.zeros(len(rows), np.int64) if bias is None or bias.data is None else bias.data.astype(np.int64).reshape(-1)
    )
    return np.asarray(given - 128 * rows.sum(1), np.int32)


def packed_bias(like: Operand, data: Array) -> Operand:
    """A bias (O) that was computed; ``like`` is what it is named after."""
    tensor = like.packed(data)
    return Operand(TensorType(data.shape, str(data.dtype)), data, lambda shape: tensor, like.packed)


def weight_rows(weight: Operand, rows: int, depth: int, padded: int, more: int = 0) -> te.Tensor:
    """Weights as a matrix (rows, depth); constant ones are packed, with zeros up to ``padded`` and ``more`` rows of these."""
    if weight.data is None:
        return weight.tensor((rows, depth))
    return weight.packed(np.pad(weight.data.reshape(rows, depth), ((0, more), (0, padded - depth))))


def start(bias: Operand | None, channel: Expr, dtype: str) -> Expr:
    """What a sum starts from: the channel's bias, or zero."""
    if bias is None:
        return ir.const(0, dtype)
    return ir.cast(dtype, bias.tensor((bias.type.size,))[channel])


Notes = tuple[tuple[str, int | str], ...]


def product_notes(data: Operand, weight: Operand, bias: Operand | None) -> Notes:
    """What a schedule may know of integers times constants: the largest \\|sum\\| with its bias, and the smallest weight."""
    if weight.data is None or dtypes.is_float(data.type.dtype) or (bias is not None and bias.data is None):
        return ()
    rows = weight.data.reshape(weight.data.shape[0], -1).astype(np.int64)
    first = (
        np.zeros(len(rows), np.int64) if bias is None or bias.data is None else bias.data.astype(np.int64).reshape(-1)
    )
    low, high = dtypes.int_range(data.type.dtype)
    ends = (
        first + np.minimum(rows * low, rows * high).sum(axis=1),
        first + np.maximum(rows * low, rows * high).sum(axis=1),
    )
    return (
        (SUM_BOUND, int(max(np.abs(end).max(initial=0) for end in ends))),
        (SMALLEST_WEIGHT, int(rows.min(initial=0))),
    )


def matrix_product(a: te.Tensor, b: te.Tensor, bias: Operand | None, dtype: str, notes: Notes = ()) -> te.Tensor:
    """``acc`` (P, O): sum over k of a[p, k] b[o, k], plus the bias."""
    k = te.reduce_axis(a.shape[1], "k")

    def element(p: Var, o: Var) -> Expr:
        product = ir.cast(dtype, a[p, k.var]) * ir.cast(dtype, b[o, k.var])
        return te.sum_reduce(product, k, init=start(bias, o, dtype))

    return te.compute((a.shape[0], b.shape[0]), element, ACC, ("p", "o"), notes)


def columns_bias(call: OpCall, more: int, *, unsigned: bool) -> Operand | None:
    """The bias of a product's columns and of ``more`` of zeros behind them, less what ``unsigned`` data is more than int8."""
    _, weight, bias = call.weighted
    if unsigned:
        return packed_bias(bias or weight, np.pad(less_offset(weight, bias), (0, more)))
    if not more or bias is None:
        return bias
    assert bias.data is not None
    return packed_bias(bias, np.pad(bias.data.reshape(-1), (0, more)))


def unit_product(call: OpCall, a: te.Tensor, units: int, depth: int, notes: Notes, more: int = 0) -> te.Tensor:
    """The product of rows (P, K) by the weights of ``units`` of ``depth`` terms, ``more`` units of zeros behind them, which are
    left out of the result. Rows of uint8 that are int8 data are 128 more than it."""
    data, weight, _ = call.weighted
    dtype = call.attrs.get("out_dtype") or data.type.dtype
    rows = weight_rows(weight, units, depth, a.shape[1], more)
    bias = columns_bias(call, more, unsigned=(a.dtype, data.type.dtype) == ("uint8", "int8"))
    total = matrix_product(a, rows, bias, dtype, notes)
    return te.compute((a.shape[0], units), lambda p, o: total[p, o], "wanted", ("p", "o")) if more else total
