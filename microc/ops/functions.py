"""The mathematical functions of one or two real numbers that elementwise operators apply: each said once for numpy, once in TIR.

NaN goes through ``relu``, ``clip``, ``maximum`` and ``minimum`` as ONNX wants; TFLite's relu and clip do the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from microc import dtypes
from microc.dtypes import Array
from microc.graph.ir import Attr
from microc.tir import ir
from microc.tir.ir import Expr

FLOAT = ("float32", "float64")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
NUMBERS = (*FLOAT, *INTEGERS)
SIGNED = (*FLOAT, "int8", "int16", "int32", "int64")


@dataclass(frozen=True, slots=True)
class Unary:
    """``name``: ``array`` over numpy float64 (integers: int64), ``scalar`` over one TIR value of 32 or 64 bits.

    ``domain`` bounds the test data; ``tolerance`` is the float error allowed between the two.
    """

    name: str
    array: Callable[[Mapping[str, Any], Array], Array]
    scalar: Callable[[Mapping[str, Any], Expr], Expr]
    dtypes: tuple[str, ...] = FLOAT
    defaults: Mapping[str, Attr] = field(default_factory=dict)
    domain: tuple[float, float] = (-6.0, 6.0)
    tolerance: float = 2e-6


@dataclass(frozen=True, slots=True)
class Binary:
    """``name``: ``array`` over numpy float64 or int64, ``scalar`` over two TIR values of one dtype of 32 or 64 bits."""

    name: str
    array: Callable[[Array, Array], Array]
    scalar: Callable[[Expr, Expr], Expr]
    dtypes: tuple[str, ...] = NUMBERS
    tolerance: float = 0.0


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
    """Whether ``a`` compares so with the best so far, ``b``; any number beats NaN, and NaN beats nothing."""
    wins = ir.binary(op, a, b)
    return ir.Bin("or", wins, ir.Bin("and", b.ne(b), a.eq(a))) if dtypes.is_float(a.dtype) else wins


def contestants(x: Array, largest: bool) -> Array:
    """The numbers as :func:`beats` compares them: NaN behind all others, -inf (or inf) just before the largest that is finite."""
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


def _zero(x: Expr) -> Expr:
    return ir.const(0, x.dtype)


def _call(name: str) -> Callable[[Mapping[str, Any], Expr], Expr]:
    return lambda _, x: ir.call(name, x)


def _relu(_: Mapping[str, Any], x: Expr) -> Expr:
    return ir.select(x < 0, _zero(x), x) if dtypes.is_float(x.dtype) else ir.maximum(x, 0)


def _clip(attrs: Mapping[str, Any], x: Expr) -> Expr:
    low, high = bound(attrs["minimum"], x.dtype), bound(attrs["maximum"], x.dtype)
    if dtypes.is_float(x.dtype):
        return ir.select(x < low, low, ir.select(x > high, high, x))
    return ir.clamp(x, low, high)


def _clip_array(attrs: Mapping[str, Any], x: Array) -> Array:
    low, high = attrs["minimum"], attrs["maximum"]
    return np.where(x < low, low, np.where(x > high, high, x))


def _abs(_: Mapping[str, Any], x: Expr) -> Expr:
    return ir.call("fabs", x) if dtypes.is_float(x.dtype) else ir.select(x < 0, _negative({}, x), x)


def _negative(_: Mapping[str, Any], x: Expr) -> Expr:
    return -x if dtypes.is_float(x.dtype) else wrapping("sub", ir.const(0, x.dtype), x)


def _sigmoid(_: Mapping[str, Any], x: Expr) -> Expr:
    return 1.0 / (ir.call("exp", -x) + 1.0)


def _softplus(_: Mapping[str, Any], x: Expr) -> Expr:
    """log(1 + exp(x)) without overflow."""
    return ir.maximum(x, 0.0) + ir.call("log1p", ir.call("exp", -ir.call("fabs", x)))


def _hard_swish(_: Mapping[str, Any], x: Expr) -> Expr:
    return x * ir.clamp(x + 3.0, 0.0, 6.0) * (1.0 / 6.0)


def _elu(attrs: Mapping[str, Any], x: Expr) -> Expr:
    return ir.select(x < 0.0, ir.call("expm1", x) * float(attrs["alpha"]), x)


def _sign(_: Mapping[str, Any], x: Expr) -> Expr:
    one = ir.const(1, x.dtype)
    if dtypes.info(x.dtype).kind == "uint":
        return ir.minimum(x, one)
    return ir.select(x > 0, one, ir.select(x < 0, -one, x))


def _numpy(name: str) -> Callable[[Mapping[str, Any], Array], Array]:
    """numpy spells inverse functions out: ``arcsin`` for ``asin``."""
    function = getattr(np, f"arc{name[1:]}" if name.startswith("a") else name)
    return lambda _, x: np.asarray(function(x))


TRANSCENDENTAL = (
    ("tan", (-1.5, 1.5)),
    ("asin", (-1.0, 1.0)),
    ("acos", (-1.0, 1.0)),
    ("atan", (-6.0, 6.0)),
    ("sinh", (-6.0, 6.0)),
    ("cosh", (-6.0, 6.0)),
    ("asinh", (-6.0, 6.0)),
    ("acosh", (1.0, 9.0)),
    ("atanh", (-0.99, 0.99)),
)
"""Functions of ``<math.h>`` and the domain that they are tested on."""

_ERF = np.vectorize(math.erf, otypes=[np.float64])

UNARY: tuple[Unary, ...] = (
    Unary("relu", lambda _, x: np.where(x < 0, 0, x), _relu, NUMBERS, tolerance=0.0),
    Unary("clip", _clip_array, _clip, NUMBERS, {"minimum": 0.0, "maximum": 6.0}, (-9.0, 9.0), 0.0),
    Unary(
        "leaky_relu",
        lambda attrs, x: np.where(x < 0, x * np.float32(attrs["alpha"]), x),
        lambda attrs, x: ir.select(x < 0.0, x * float(attrs["alpha"]), x),
        defaults={"alpha": 0.01},
    ),
    Unary(
        "elu",
        lambda attrs, x: np.where(x < 0, np.expm1(x) * np.float32(attrs["alpha"]), x),
        _elu,
        defaults={"alpha": 1.0},
    ),
    Unary("softplus", lambda _, x: np.logaddexp(0, x), _softplus, domain=(-90.0, 90.0)),
    Unary("tanh", lambda _, x: np.tanh(x), _call("tanh")),
    Unary("sigmoid", lambda _, x: 1 / (1 + np.exp(-x)), _sigmoid, domain=(-100.0, 100.0)),
    Unary("exp", lambda _, x: np.exp(x), _call("exp"), domain=(-90.0, 80.0)),
    Unary("log", lambda _, x: np.log(x), _call("log"), domain=(1e-6, 1e4)),
    Unary("sqrt", lambda _, x: np.sqrt(x), _call("sqrt"), domain=(0.0, 1e4), tolerance=0.0),
    Unary("rsqrt", lambda _, x: 1 / np.sqrt(x), lambda _, x: 1.0 / ir.call("sqrt", x), domain=(1e-6, 1e4)),
    Unary("abs", lambda _, x: np.abs(x), _abs, SIGNED, tolerance=0.0),
    Unary("neg", lambda _, x: -x, _negative, SIGNED, tolerance=0.0),
    *(Unary(name, _numpy(name), _call(name), domain=domain, tolerance=4e-6) for name, domain in TRANSCENDENTAL),
    Unary("sign", lambda _, x: np.sign(x), _sign, NUMBERS, tolerance=0.0),
    Unary("bit_not", lambda _, x: ~x, lambda _, x: ir.Un("bitnot", x), INTEGERS),
    Unary("sin", lambda _, x: np.sin(x), _call("sin")),
    Unary("cos", lambda _, x: np.cos(x), _call("cos")),
    Unary("floor", lambda _, x: np.floor(x), _call("floor"), tolerance=0.0),
    Unary("ceil", lambda _, x: np.ceil(x), _call("ceil"), tolerance=0.0),
    Unary("round", lambda _, x: np.rint(x), _call("rint"), tolerance=0.0),
    Unary("erf", lambda _, x: np.asarray(_ERF(x)), _call("erf")),
    Unary("hard_swish", lambda _, x: x * np.clip(x + 3, 0, 6) / 6, _hard_swish),
)


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
        case ir.Const(0.5):
            return ir.call("sqrt", a)
        case _:
            return ir.call("pow", a, b)


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


BINARY: tuple[Binary, ...] = (
    Binary("add", np.add, lambda a, b: wrapping("add", a, b)),
    Binary("sub", np.subtract, lambda a, b: wrapping("sub", a, b)),
    Binary("mul", np.multiply, lambda a, b: wrapping("mul", a, b)),
    Binary("div", _divide_array, _divide),
    Binary("maximum", np.maximum, _larger),
    Binary("minimum", np.minimum, _smaller),
    Binary("squared_difference", lambda a, b: (a - b) ** 2, _squared_difference, SIGNED, 1e-6),
    Binary("floor_div", lambda a, b: np.floor(a / b) if a.dtype.kind == "f" else a // b, _floor_divide),
    Binary("floor_mod", lambda a, b: np.mod(a, b), _floor_mod, tolerance=1e-6),
    Binary(
        "fmod",
        np.fmod,
        lambda a, b: ir.call("fmod", a, b) if dtypes.is_float(a.dtype) else _remainder("truncmod", a, b),
    ),
    Binary("bit_and", np.bitwise_and, lambda a, b: a & b, INTEGERS),
    Binary("bit_or", np.bitwise_or, lambda a, b: a | b, INTEGERS),
    Binary("bit_xor", np.bitwise_xor, lambda a, b: a ^ b, INTEGERS),
    Binary("shift_left", _shift_left_array, lambda a, b: _shift(a, b, "shl"), INTEGERS),
    Binary("shift_right", _shift_right_array, lambda a, b: _shift(a, b, "shr"), INTEGERS),
    Binary("pow", np.power, _power, FLOAT, 4e-6),
    Binary("atan2", np.arctan2, lambda a, b: ir.call("atan2", a, b), FLOAT, 4e-6),
)

UNARY_BY_NAME: Mapping[str, Unary] = MappingProxyType({function.name: function for function in UNARY})


def apply(function: Unary, attrs: Mapping[str, Any], x: Array) -> Array:
    """``function`` of an array, rounded once from double (exact in int64), in the array's dtype."""
    wide = x.astype(np.float64 if x.dtype.kind == "f" else x.dtype if x.dtype == np.uint64 else np.int64)
    with np.errstate(all="ignore"):
        return np.asarray(function.array(attrs, wide)).astype(x.dtype)
