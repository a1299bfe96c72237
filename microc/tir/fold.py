"""Constant folding: what an operator makes of literals, exactly as the generated C would."""

from __future__ import annotations

import math
from fractions import Fraction

from microc import dtypes
from microc.tir.ir import COMPARISONS, LOGICAL, Const
from microc.tir.operators import ARITHMETIC, BINARY

TRUE = Const(1, "bool")
FALSE = Const(0, "bool")


def boolean(value: bool) -> Const:
    return TRUE if value else FALSE


_EXACT = frozenset(("add", "sub", "mul", "div"))
"""What is exact of floats, where the result fits."""


def fits(value: int, dtype: str) -> bool:
    low, high = dtypes.int_range(dtype)
    return low <= value <= high


def _integer(value: int, dtype: str) -> Const | None:
    """A literal; unsigned values wrap, a signed overflow is left for the program to meet."""
    kind, bits, _ = dtypes.info(dtype)
    if kind == "uint":
        value &= (1 << bits) - 1
    return Const(value, dtype) if fits(value, dtype) else None


def _float(op: str, a: float, b: float, dtype: str) -> Const | None:
    """A float result that is exact in the dtype; anything rounded, infinite or undefined is left to the program."""
    if op not in _EXACT or not (math.isfinite(a) and math.isfinite(b)) or (op == "div" and b == 0):
        return None
    exact = BINARY[op].value(Fraction(a), Fraction(b))
    kind = dtypes.to_numpy(dtype).type
    if exact == 0:
        return Const(0.0, dtype) if math.copysign(1, a) > 0 and math.copysign(1, b) > 0 and op != "sub" else None
    if exact.denominator & (exact.denominator - 1) or abs(exact) > 1e300 or abs(exact) < 1e-300:
        return None
    value = float(kind(float(exact))) if abs(exact) < 1e38 or dtype == "float64" else math.inf
    return Const(value, dtype) if math.isfinite(value) and Fraction(value) == exact else None


def binary(op: str, a: Const, b: Const) -> Const | None:
    """``a op b`` as a literal, or None where it must not be folded (overflow, division by zero, inexact floats)."""
    x, y = a.value, b.value
    if op in COMPARISONS:
        return boolean(BINARY[op].value(x, y))
    if op in LOGICAL:
        return boolean(bool(x and y) if op == "and" else bool(x or y))
    if dtypes.is_float(a.dtype):
        return _float(op, x, y, a.dtype)
    if op not in ARITHMETIC or op == "div" or not (isinstance(x, int) and isinstance(y, int)):
        return None
    if op in ("floordiv", "floormod", "truncdiv", "truncmod") and y == 0:
        return None
    if op in ("shl", "shr") and not 0 <= y < dtypes.info(a.dtype).bits:
        return None
    return _integer(ARITHMETIC[op].value(x, y), a.dtype)


def unary(op: str, a: Const) -> Const | None:
    """``op a`` as a literal, or None."""
    if op == "not":
        return boolean(not a.value)
    if op == "neg":
        return Const(-a.value, a.dtype) if isinstance(a.value, float) else _integer(-a.value, a.dtype)
    if op == "bitnot" and isinstance(a.value, int):
        return _integer(~a.value, a.dtype)
    return None


def cast(dtype: str, a: Const) -> Const | None:
    """``a`` converted, where C defines the result and it is exact; integers wrap."""
    kind, bits, lanes = dtypes.info(dtype)
    if lanes > 1 or dtypes.info(a.dtype).lanes > 1:
        return None
    if kind == "bool":
        return boolean(bool(a.value))
    if kind == "float":
        if isinstance(a.value, float) and not math.isfinite(a.value):
            return Const(a.value, dtype)
        if abs(a.value) > 3e38 and bits == 32:
            return None
        value = float(dtypes.to_numpy(dtype).type(a.value))
        return Const(value, dtype) if value == a.value else None
    if isinstance(a.value, float):
        if not math.isfinite(a.value) or not fits(int(a.value), dtype):
            return None
        return Const(int(a.value), dtype)
    value_bits = a.value & ((1 << bits) - 1)
    if kind == "int" and value_bits >> (bits - 1):
        value_bits -= 1 << bits
    return Const(value_bits, dtype)
