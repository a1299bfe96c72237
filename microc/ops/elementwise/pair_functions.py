"""The functions of two numbers that elementwise operators apply: each said once for numpy, once in TIR.

NaN goes through ``maximum`` and ``minimum`` as ONNX wants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from microc import dtypes
from microc.dtypes import Array
from microc.frozen import frozen
from microc.ops.numbers import FLOAT, INTEGERS, NUMBERS, SIGNED, wrapping
from microc.tir import ir
from microc.tir.ir import Expr


@frozen
class Binary:
    """``name``: ``array`` over numpy float64 or int64, ``scalar`` over two TIR values of one dtype of 32 or 64 bits; ``edges``
    as in OpDef."""

    name: str
    array: Callable[[Array, Array], Array]
    scalar: Callable[[Expr, Expr], Expr]
    dtypes: tuple[str, ...] = NUMBERS
    tolerance: float = 0.0
    edges: str = ""


def _quotient(op: str, a: Expr, b: Expr) -> Expr:
    """An integer quotient: by zero it is zero, by -1 the negative, of which the lowest number has none but itself."""
    found: Expr = ir.binary(op, a, b)
    if dtypes.info(a.dtype).kind == "int":
        found = ir.select(b.eq(-1), wrapping("sub", ir.const(0, a.dtype), a), found)
    return ir.select(b.eq(0), ir.const(0, a.dtype), found)


def _remainder(op: str, a: Expr, b: Expr) -> Expr:
    """What an integer quotient leaves: nothing by zero and by -1."""
    none: Expr = b.eq(0)
    if dtypes.info(a.dtype).kind == "int":
        none = ir.Bin("or", none, b.eq(-1))
    return ir.select(none, ir.const(0, a.dtype), ir.binary(op, a, b))


def _divide(a: Expr, b: Expr) -> Expr:
    return a / b if dtypes.is_float(a.dtype) else _quotient("truncdiv", a, b)


def _divide_array(a: Array, b: Array) -> Array:
    """Quotients; of integers rounded to zero, exactly."""
    if a.dtype.kind == "f":
        return a / b
    by = np.where(b == 0, 1, b)
    down = a // by
    return np.where(b == 0, 0, down + ((a % by != 0) & ((a < 0) != (by < 0))))


def _larger(a: Expr, b: Expr) -> Expr:
    if not dtypes.is_float(a.dtype):
        return ir.maximum(a, b)
    return ir.select(b > a, b, ir.select(b.ne(b), b, a))


def _smaller(a: Expr, b: Expr) -> Expr:
    if not dtypes.is_float(a.dtype):
        return ir.minimum(a, b)
    return ir.select(b < a, b, ir.select(b.ne(b), b, a))


def _squared_difference(a: Expr, b: Expr) -> Expr:
    difference = wrapping("sub", a, b)
    return wrapping("mul", difference, difference)


def _power(a: Expr, b: Expr) -> Expr:
    """Squares and square roots, which networks ask for most, without ``pow``."""
    match b:
        case ir.Const(2.0):
            return a * a
        case ir.Const(0.5):  # the square root of -inf is NaN, that of -0.0 has its sign: powers of them are inf and 0.0
            return ir.select(a.eq(float("-inf")), ir.const(float("inf"), a.dtype), ir.call("sqrt", a + 0.0))
        case _:
            return ir.call("pow", a, b)


def _power_array(a: Array, b: Array) -> Array:
    """numpy takes square roots where all exponents are one half: those of -inf and -0.0 are no powers."""
    found = np.power(a, b)
    return np.asarray(np.where((b == 0.5) & ((a == 0) | np.isneginf(a)), np.abs(a), found))


def _floor_divide(a: Expr, b: Expr) -> Expr:
    """The quotient rounded down. In double it is exact: no quotient of two floats is so close to an integer as to round to it."""
    if not dtypes.is_float(a.dtype):
        return _quotient("floordiv", a, b)
    return ir.cast(a.dtype, ir.call("floor", ir.cast("float64", a) / ir.cast("float64", b)))


def _floor_mod(a: Expr, b: Expr) -> Expr:
    """What the quotient rounded down leaves: it has the divisor's sign, as a zero, too."""
    if not dtypes.is_float(a.dtype):
        return _remainder("floormod", a, b)
    rest = ir.call("fmod", a, b)
    apart = ir.Bin("and", rest.ne(0.0), ir.Bin("ne", b < 0.0, rest < 0.0))
    zero = ir.select(b < 0.0, ir.const(-0.0, b.dtype), 0.0)
    return ir.select(rest.eq(0.0), zero, ir.select(apart, rest + b, rest))


def _shift(a: Expr, b: Expr, op: str) -> Expr:
    """Shifts; by as many places as there are bits, or more, nothing is left but the sign of what goes to the right."""
    bits = dtypes.info(a.dtype).bits
    if op == "shr" and dtypes.info(a.dtype).kind == "int":
        return a >> ir.select(ir.Bin("and", b >= 0, b < bits), b, bits - 1)
    wide = "uint64" if bits == 64 else "uint32"
    x, places = ir.cast(wide, a), ir.cast(wide, b)
    moved = ir.select(places < bits, ir.binary(op, x, ir.minimum(places, bits - 1)), ir.const(0, wide))
    return ir.cast(a.dtype, moved)


def _shift_left_array(a: Array, b: Array) -> Array:
    return np.asarray(np.where((b >= 0) & (b < 64), a << (b & 63), 0))


def _shift_right_array(a: Array, b: Array) -> Array:
    signs = a >> 63 if a.dtype.kind == "i" else 0
    return np.asarray(np.where((b >= 0) & (b < 64), a >> (b & 63), signs))


_WRAPS = "Integers wrap around"
_QUOTIENT = "An integer by zero is 0, the lowest by -1 itself"
_REMAINDER = "An integer by zero leaves 0"
_NAN = "NaN goes through"
_PLACES = (
    "By as many places as there are bits, or more, or fewer than none, only the sign of what goes to the right is left"
)

BINARY: tuple[Binary, ...] = (
    Binary("add", np.add, lambda a, b: wrapping("add", a, b), edges=_WRAPS),
    Binary("sub", np.subtract, lambda a, b: wrapping("sub", a, b), edges=_WRAPS),
    Binary("mul", np.multiply, lambda a, b: wrapping("mul", a, b), edges=_WRAPS),
    Binary("div", _divide_array, _divide, edges=_QUOTIENT),
    Binary("maximum", np.maximum, _larger, edges=_NAN),
    Binary("minimum", np.minimum, _smaller, edges=_NAN),
    Binary("squared_difference", lambda a, b: (a - b) ** 2, _squared_difference, SIGNED, 1e-6, _WRAPS),
    Binary(
        "floor_div", lambda a, b: np.floor(a / b) if a.dtype.kind == "f" else a // b, _floor_divide, edges=_QUOTIENT
    ),
    Binary("floor_mod", lambda a, b: np.mod(a, b), _floor_mod, tolerance=1e-6, edges=_REMAINDER),
    Binary(
        "fmod",
        np.fmod,
        lambda a, b: ir.call("fmod", a, b) if dtypes.is_float(a.dtype) else _remainder("truncmod", a, b),
        edges=_REMAINDER,
    ),
    Binary("bit_and", np.bitwise_and, lambda a, b: a & b, INTEGERS),
    Binary("bit_or", np.bitwise_or, lambda a, b: a | b, INTEGERS),
    Binary("bit_xor", np.bitwise_xor, lambda a, b: a ^ b, INTEGERS),
    Binary("shift_left", _shift_left_array, lambda a, b: _shift(a, b, "shl"), INTEGERS, edges=_PLACES),
    Binary("shift_right", _shift_right_array, lambda a, b: _shift(a, b, "shr"), INTEGERS, edges=_PLACES),
    Binary("pow", _power_array, _power, FLOAT, 4e-6),
    Binary("atan2", np.arctan2, lambda a, b: ir.call("atan2", a, b), FLOAT, 4e-6),
)

_BY_NAME = {function.name: function for function in BINARY}
SCATTERED: Mapping[str, Binary] = MappingProxyType(
    {"add": _BY_NAME["add"], "mul": _BY_NAME["mul"], "max": _BY_NAME["maximum"], "min": _BY_NAME["minimum"]}
)
"""What combines updates with the data that they are scattered into; of numpy's functions it is a ufunc."""
