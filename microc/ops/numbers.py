"""What operators on numbers share: dtypes that they take, the dtype they compute in, arithmetic that wraps, order with NaN."""

from __future__ import annotations

import math

import numpy as np

from microc import dtypes
from microc.dtypes import Array
from microc.tir import ir
from microc.tir.ir import Expr

FLOAT = ("float32", "float64")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
NUMBERS = (*FLOAT, *INTEGERS)
SIGNED = (*FLOAT, "int8", "int16", "int32", "int64")


def compute_dtype(dtype: str) -> str:
    """The dtype that arithmetic on ``dtype`` happens in: narrow integers are widened to int32, narrow floats to float32."""
    kind, bits, _ = dtypes.info(dtype)
    return dtype if bits >= 32 else "float32" if kind == "float" else "int32"


def wrapping(op: str, a: Expr, b: Expr) -> Expr:
    """A binary operator; ``add``, ``sub`` and ``mul`` of integers of 32 and 64 bits are modulo 2**bits, as in numpy: C gives
    overflow no meaning. What has been widened from 16 bits or less does not overflow."""
    if a.dtype not in ("int32", "int64") or op not in ("add", "sub", "mul") or (_narrow(a) and _narrow(b)):
        return ir.binary(op, a, b)
    wide = f"u{a.dtype}"
    return ir.cast(a.dtype, ir.binary(op, ir.cast(wide, a), ir.cast(wide, b)))


def _narrow(x: Expr) -> bool:
    """Whether a number certainly fits 16 bits, with or without a sign."""
    match x:
        case ir.Const(int() as value):
            return -(1 << 15) <= value < 1 << 15
        case ir.Cast(_, a):
            return dtypes.info(a.dtype).kind != "float" and dtypes.info(a.dtype).bits <= 16 and a.dtype != "uint16"
        case _:
            return False


def beats(op: str, a: Expr, b: Expr) -> Expr:
    """Whether ``a`` compares so, ``gt`` or ``lt``, with the best so far, ``b``; NaN is larger than any number."""
    wins = ir.binary(op, a, b)
    if not dtypes.is_float(a.dtype):
        return wins
    larger, smaller = (a, b) if op == "gt" else (b, a)
    return ir.Bin("or", wins, ir.Bin("and", larger.ne(larger), smaller.eq(smaller)))


def contestants(x: Array, largest: bool) -> Array:
    """Numbers of which ``argmax`` (or ``argmin``) finds the best that is no NaN: NaN behind all others, -inf (or inf) just before
    the largest that is finite."""
    if x.dtype.kind != "f":
        return x
    wide, most = x.astype(np.float64), np.finfo(np.float64).max
    return np.where(np.isnan(wide), -np.inf, np.maximum(wide, -most)) if largest else -contestants(-x, True)


def bound(value: float, dtype: str) -> Expr:
    """A clipping bound as a literal; beyond the range of an integer dtype it is that range's end."""
    if dtypes.is_float(dtype):
        return ir.const(value, dtype)
    low, high = dtypes.int_range(dtype)
    if math.isinf(value):
        return ir.const(low if value < 0 else high, dtype)
    return ir.const(min(max(math.ceil(value), low), high), dtype)
