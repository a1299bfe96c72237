# SPDX-License-Identifier: Apache-2.0
"""Functions of the elementwise operators with one and two operands, each as a numpy function and as a TIR
expression."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import field
from math import log
from types import MappingProxyType
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.numerics import TO_WHOLE
from microc.ops.arithmetic import FLOAT, INTEGERS, NUMBERS, SIGNED, build_wrapping_binary, clip_bound_literal
from microc.ops.attributes import Attributes, number, real
from microc.ops.gradients.call import Value
from microc.tir import ir
from microc.tir.ir import Expr

# ---- exp of float32 numbers <= 0 in basic arithmetic, for softmax, without the library.
#
#     exp(x) = 2**n p(x - n ln 2),    n = round(x / ln 2),
#
# with a polynomial p of degree 5 on -ln 2 / 2 .. ln 2 / 2, one at zero, of the least relative error, 9.2e-8. The product n ln 2
# is rounded once, relative to x; since -x e**x is 1 / e at most, the error of exp stays below 2e-7 for every x. The power of two
# is built from the low bits of x / ln 2 + 1.5 * 2**23, without a conversion, which would be undefined for NaN; NaN propagates.

_LEAST = -87.0
"""Lower bound of the argument of exp: below it the result is zero, because the power of two would not be a normal
number."""
_POLYNOMIAL = (0.008290272, 0.04189816, 0.16667638, 0.49999148, 0.9999997, 1.0)
"""Coefficients of the polynomial p, the highest power first."""
_EXPONENT_BITS, _ONE = 23, 127 << 23
"""Position of the exponent in a float32, and the bits of 1.0. Shifting to this position drops the bits of 1.5 *
2**23."""


def build_exp_of_negative(x: Expr) -> Expr:
    """Build the expression of exp(x) for a float32 x that is <= 0 or NaN."""
    moved = x * (1 / log(2)) + TO_WHOLE
    rest = x - (moved - TO_WHOLE) * log(2)
    value: Expr = ir.const(_POLYNOMIAL[0], "float32")
    for coefficient in _POLYNOMIAL[1:]:
        value = value * rest + coefficient
    bits = (ir.reinterpret("uint32", moved) << _EXPONENT_BITS) + _ONE
    return ir.select(x < _LEAST, ir.const(0.0, "float32"), value * ir.reinterpret("float32", bits))


# ---- Mathematical functions of one number for elementwise operators: each has a numpy form and a TIR form.
#
# ``relu`` and ``clip`` propagate NaN as in ONNX; TFLite's do the same.
#
# Gradients at corners are PyTorch's: zero for ``relu`` at 0, ``clip`` at its bounds and ``abs`` at 0. They are selected, not
# multiplied by a mask, so that an infinite gradient does not become NaN.

UnaryGradient = Callable[[Mapping[str, Any], Value, Value, Value], Value | None]
"""Gradient of a function's operand, from its attributes, the gradient g of the result, the operand x and the result y.
None: the derivative is zero almost everywhere."""


@frozen
class UnaryFunction:
    """Elementwise function of one operand.

    ``evaluate_array`` computes it over numpy; it receives float64 (integers: int64). ``build_scalar`` builds its TIR
    expression from a value of 32 or 64 bits. ``domain``: range of the test data. ``tolerance``: largest permitted
    difference between the float results of both. ``edges``: see :class:`microc.ops.registry.OpDef`. ``gradient``: its
    gradient; None if it has none, being a function of integers."""

    name: str
    evaluate_array: Callable[[Mapping[str, Any], Array], Array]
    build_scalar: Callable[[Mapping[str, Any], Expr], Expr]
    dtypes: tuple[str, ...] = FLOAT
    attrs: Attributes = field(default_factory=dict)
    domain: tuple[float, float] = (-6.0, 6.0)
    tolerance: float = 2e-6
    edges: str = ""
    gradient: UnaryGradient | None = None


def _make_math_call(name: str) -> Callable[[Mapping[str, Any], Expr], Expr]:
    """Return a function that builds a call of the ``<math.h>`` function ``name``."""
    return lambda _, x: ir.call(name, x)


def _build_relu(attrs: Mapping[str, Any], x: Expr) -> Expr:
    return ir.select(x < 0, ir.const(0, x.dtype), x) if dtypes.is_float(x.dtype) else ir.maximum(x, 0)


def _build_clip(attrs: Mapping[str, Any], x: Expr) -> Expr:
    low, high = clip_bound_literal(attrs["minimum"], x.dtype), clip_bound_literal(attrs["maximum"], x.dtype)
    if dtypes.is_float(x.dtype):
        return ir.select(x < low, low, ir.select(x > high, high, x))
    return ir.clamp(x, low, high)


def _clip_in_numpy(attrs: Mapping[str, Any], x: Array) -> Array:
    low, high = attrs["minimum"], attrs["maximum"]
    if x.dtype.kind in "iu":  # floats hold the ends of 64-bit ranges only approximately
        low, high = (x.dtype.type(ir.int_value(clip_bound_literal(end, x.dtype.name)) or 0) for end in (low, high))
    return np.where(x < low, low, np.where(x > high, high, x))


def _build_abs(attrs: Mapping[str, Any], x: Expr) -> Expr:
    if x.dtype.startswith("uint"):
        return x
    return ir.call("fabs", x) if dtypes.is_float(x.dtype) else ir.select(x < 0, _build_negation({}, x), x)


def _build_negation(attrs: Mapping[str, Any], x: Expr) -> Expr:
    return -x if dtypes.is_float(x.dtype) else build_wrapping_binary("sub", ir.const(0, x.dtype), x)


def _build_sigmoid(attrs: Mapping[str, Any], x: Expr) -> Expr:
    return 1.0 / (ir.call("exp", -x) + 1.0)


def _build_softplus(attrs: Mapping[str, Any], x: Expr) -> Expr:
    """Build the expression log(1 + exp(x)) in a form that does not overflow."""
    return ir.maximum(x, 0.0) + ir.call("log1p", ir.call("exp", -ir.call("fabs", x)))


def _build_hard_swish(attrs: Mapping[str, Any], x: Expr) -> Expr:
    """Build the expression x * (relu6(x + 3) / 6). The factor is divided first, because x * relu6(x + 3) overflows for
    large x."""
    return x * (ir.clamp(x + 3.0, 0.0, 6.0) * (1.0 / 6.0))


def _build_elu(attrs: Mapping[str, Any], x: Expr) -> Expr:
    return ir.select(x < 0.0, ir.call("expm1", x) * float(attrs["alpha"]), x)


def _build_sign(attrs: Mapping[str, Any], x: Expr) -> Expr:
    one = ir.const(1, x.dtype)
    if dtypes.dtype_parts(x.dtype).kind == "uint":
        return ir.minimum(x, one)
    return ir.select(x > 0, one, ir.select(x < 0, -one, x + 0 if dtypes.is_float(x.dtype) else x))


def _find_numpy_function(math_h_name: str) -> Callable[[Mapping[str, Any], Array], Array]:
    """Return numpy's counterpart of a function of ``<math.h>``. Numpy names inverse functions ``arcsin`` where C has
    ``asin``."""
    function = getattr(np, f"arc{math_h_name[1:]}" if math_h_name.startswith("a") else math_h_name)
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
"""Functions of ``<math.h>`` and the domain on which they are tested."""

_TRANSCENDENTAL_GRADIENTS: Mapping[str, UnaryGradient] = MappingProxyType(
    {
        "tan": lambda _, g, x, y: g * (y * y + 1.0),
        "asin": lambda _, g, x, y: g / (1.0 - x * x).apply("sqrt"),
        "acos": lambda _, g, x, y: -g / (1.0 - x * x).apply("sqrt"),
        "atan": lambda _, g, x, y: g / (x * x + 1.0),
        "sinh": lambda _, g, x, y: g * x.apply("cosh"),
        "cosh": lambda _, g, x, y: g * x.apply("sinh"),
        "asinh": lambda _, g, x, y: g / (x * x + 1.0).apply("sqrt"),
        "acosh": lambda _, g, x, y: g / (x * x - 1.0).apply("sqrt"),
        "atanh": lambda _, g, x, y: g / (1.0 - x * x),
    }
)


def _zero_gradient(attrs: Mapping[str, Any], g: Value, x: Value, y: Value) -> Value | None:
    """Return None: the function is constant almost everywhere."""
    return None


_ERF = np.vectorize(math.erf, otypes=[np.float64])

_LOWEST = "The lowest integer is unchanged"

_BOUNDS: Attributes = {
    "minimum": number("lower limit of the result; for integers as stored", 0.0),
    "maximum": number("upper limit of the result", 6.0),
}
UNARY: tuple[UnaryFunction, ...] = (
    UnaryFunction(
        "relu",
        lambda _, x: np.where(x < 0, 0, x),
        _build_relu,
        NUMBERS,
        tolerance=0.0,
        gradient=lambda _, g, x, y: (y > 0.0).select(g, 0.0),
    ),
    UnaryFunction(
        "clip",
        _clip_in_numpy,
        _build_clip,
        NUMBERS,
        _BOUNDS,
        (-9.0, 9.0),
        0.0,
        gradient=lambda a, g, x, y: (x > a["minimum"]).select((x < a["maximum"]).select(g, 0.0), 0.0),
    ),
    UnaryFunction(
        "leaky_relu",
        lambda attrs, x: np.where(x < 0, x * np.float32(attrs["alpha"]), x),
        lambda attrs, x: ir.select(x < 0.0, x * float(attrs["alpha"]), x),
        attrs={"alpha": real("slope for negative numbers", 0.01)},
        gradient=lambda a, g, x, y: (x > 0.0).select(g, g * a["alpha"]),
    ),
    UnaryFunction(
        "elu",
        lambda attrs, x: np.where(x < 0, np.expm1(x) * np.float32(attrs["alpha"]), x),
        _build_elu,
        attrs={"alpha": real("magnitude of the limit far below 0", 1.0)},
        gradient=lambda a, g, x, y: (x > 0.0).select(g, g * (y + a["alpha"])),
    ),
    UnaryFunction(
        "softplus",
        lambda _, x: np.logaddexp(0, x),
        _build_softplus,
        domain=(-90.0, 90.0),
        gradient=lambda _, g, x, y: g * x.apply("sigmoid"),
    ),
    UnaryFunction(
        "tanh", lambda _, x: np.tanh(x), _make_math_call("tanh"), gradient=lambda _, g, x, y: g * (1.0 - y * y)
    ),
    UnaryFunction(
        "sigmoid",
        lambda _, x: 1 / (1 + np.exp(-x)),
        _build_sigmoid,
        domain=(-100.0, 100.0),
        gradient=lambda _, g, x, y: g * (y * (1.0 - y)),
    ),
    UnaryFunction(
        "exp",
        lambda _, x: np.exp(x),
        _make_math_call("exp"),
        domain=(-90.0, 80.0),
        gradient=lambda _, g, x, y: g * y,
    ),
    UnaryFunction(
        "log",
        lambda _, x: np.log(x),
        _make_math_call("log"),
        domain=(1e-6, 1e4),
        gradient=lambda _, g, x, y: g / x,
    ),
    UnaryFunction(
        "sqrt",
        lambda _, x: np.sqrt(x),
        _make_math_call("sqrt"),
        domain=(0.0, 1e4),
        tolerance=0.0,
        gradient=lambda _, g, x, y: g / (y * 2.0),
    ),
    UnaryFunction(
        "rsqrt",
        lambda _, x: 1 / np.sqrt(x),
        lambda _, x: 1.0 / ir.call("sqrt", x),
        domain=(1e-6, 1e4),
        gradient=lambda _, g, x, y: g * (y * y * y * -0.5),
    ),
    UnaryFunction(
        "abs",
        lambda _, x: np.abs(x),
        _build_abs,
        NUMBERS,
        tolerance=0.0,
        edges=_LOWEST,
        gradient=lambda _, g, x, y: g * x.apply("sign"),
    ),
    UnaryFunction(
        "neg",
        lambda _, x: -x,
        _build_negation,
        SIGNED,
        tolerance=0.0,
        edges=_LOWEST,
        gradient=lambda _, g, x, y: -g,
    ),
    *(
        UnaryFunction(
            name,
            _find_numpy_function(name),
            _make_math_call(name),
            domain=domain,
            tolerance=4e-6,
            gradient=_TRANSCENDENTAL_GRADIENTS[name],
        )
        for name, domain in TRANSCENDENTAL
    ),
    UnaryFunction("sign", lambda _, x: np.sign(x), _build_sign, NUMBERS, tolerance=0.0, gradient=_zero_gradient),
    UnaryFunction("bit_not", lambda _, x: ~x, lambda _, x: ir.Un("bitnot", x), INTEGERS),
    UnaryFunction(
        "sin", lambda _, x: np.sin(x), _make_math_call("sin"), gradient=lambda _, g, x, y: g * x.apply("cos")
    ),
    UnaryFunction(
        "cos", lambda _, x: np.cos(x), _make_math_call("cos"), gradient=lambda _, g, x, y: g * -x.apply("sin")
    ),
    UnaryFunction("floor", lambda _, x: np.floor(x), _make_math_call("floor"), tolerance=0.0, gradient=_zero_gradient),
    UnaryFunction("ceil", lambda _, x: np.ceil(x), _make_math_call("ceil"), tolerance=0.0, gradient=_zero_gradient),
    UnaryFunction("round", lambda _, x: np.rint(x), _make_math_call("rint"), tolerance=0.0, gradient=_zero_gradient),
    UnaryFunction(
        "erf",
        lambda _, x: np.asarray(_ERF(x)),
        _make_math_call("erf"),
        gradient=lambda _, g, x, y: g * ((-(x * x)).apply("exp") * (2.0 / math.sqrt(math.pi))),
    ),
    UnaryFunction(
        "hard_swish",
        lambda _, x: x * (np.clip(x + 3, 0, 6) / 6),
        _build_hard_swish,
        gradient=lambda _, g, x, y: (x > -3.0).select((x < 3.0).select(g * (x * (1 / 3) + 0.5), g), 0.0),
    ),
)
"""The functions of one operand."""

UNARY_BY_NAME: Mapping[str, UnaryFunction] = MappingProxyType({function.name: function for function in UNARY})
"""The functions of one operand by name."""


def apply_unary(function: UnaryFunction, attrs: Mapping[str, Any], x: Array) -> Array:
    """Apply ``function`` to an array in double precision (integers: in 64 bits), and round once to the array's
    dtype."""
    wide = x.astype(np.float64 if x.dtype.kind == "f" else x.dtype if x.dtype == np.uint64 else np.int64)
    with np.errstate(all="ignore"):
        return np.asarray(function.evaluate_array(attrs, wide)).astype(x.dtype)


# ---- Functions of two numbers for elementwise operators: each has a numpy form and a TIR form.
#
# ``maximum`` and ``minimum`` propagate NaN as in ONNX.


BinaryGradient = Callable[[Value, Value, Value, Value], Value | None]
"""Gradient of one operand, from the gradient g of the result, the operands a and b and the result y; of the result's
shape. None: the derivative is zero almost everywhere."""


@frozen
class BinaryFunction:
    """Elementwise function of two operands.

    ``evaluate_array`` computes it over numpy; it receives float64 or int64. ``build_scalar`` builds its TIR expression
    from two values of the same 32- or 64-bit dtype. ``edges``: see :class:`microc.ops.registry.OpDef`. ``gradients``:
    of both operands; None if the function has none, being one of integers."""

    name: str
    evaluate_array: Callable[[Array, Array], Array]
    build_scalar: Callable[[Expr, Expr], Expr]
    dtypes: tuple[str, ...] = NUMBERS
    tolerance: float = 0.0
    edges: str = ""
    gradients: tuple[BinaryGradient, BinaryGradient] | None = None


def _build_integer_quotient(division_op: str, a: Expr, b: Expr) -> Expr:
    """Build the integer quotient by the TIR operation ``division_op``.

    Division by zero gives zero. Division by -1 negates the dividend, and wraps around for the lowest number."""
    found: Expr = ir.binary(division_op, a, b)
    if dtypes.dtype_parts(a.dtype).kind == "int":
        found = ir.select(b.eq(-1), build_wrapping_binary("sub", ir.const(0, a.dtype), a), found)
    return ir.select(b.eq(0), ir.const(0, a.dtype), found)


def _build_integer_remainder(remainder_op: str, a: Expr, b: Expr) -> Expr:
    """Build the integer remainder by the TIR operation ``remainder_op``. Division by zero or by -1 leaves the remainder
    zero."""
    none: Expr = b.eq(0)
    if dtypes.dtype_parts(a.dtype).kind == "int":
        none = ir.Bin("or", none, b.eq(-1))
    return ir.select(none, ir.const(0, a.dtype), ir.binary(remainder_op, a, b))


def _build_quotient(a: Expr, b: Expr) -> Expr:
    return a / b if dtypes.is_float(a.dtype) else _build_integer_quotient("truncdiv", a, b)


def _divide_arrays(a: Array, b: Array) -> Array:
    """Divide numpy arrays. Integer quotients are exact and truncated toward zero."""
    if a.dtype.kind == "f":
        return a / b
    by = np.where(b == 0, 1, b)
    down = a // by
    return np.where(b == 0, 0, down + ((a % by != 0) & ((a < 0) != (by < 0))))


def _build_nan_propagating_maximum(a: Expr, b: Expr) -> Expr:
    if not dtypes.is_float(a.dtype):
        return ir.maximum(a, b)
    return ir.select(b > a, b, ir.select(b.ne(b), b, a))


def _build_nan_propagating_minimum(a: Expr, b: Expr) -> Expr:
    if not dtypes.is_float(a.dtype):
        return ir.minimum(a, b)
    return ir.select(b < a, b, ir.select(b.ne(b), b, a))


def _build_squared_difference(a: Expr, b: Expr) -> Expr:
    difference = build_wrapping_binary("sub", a, b)
    return build_wrapping_binary("mul", difference, difference)


def _build_power(a: Expr, b: Expr) -> Expr:
    """Build a to the power of b. Squares and square roots, the most frequent powers, do not call ``pow``."""
    match b:
        case ir.Const(2.0):
            return a * a
        case ir.Const(0.5):  # sqrt(-inf) is NaN and sqrt(-0.0) is -0.0, but their powers are inf and 0.0
            return ir.select(a.eq(float("-inf")), ir.const(float("inf"), a.dtype), ir.call("sqrt", a + 0.0))
        case _:
            return ir.call("pow", a, b)


def _raise_arrays(a: Array, b: Array) -> Array:
    """Raise numpy arrays to a power. Numpy uses sqrt if all exponents are one half, which is wrong for -inf and -0.0
    and corrected here."""
    found = np.power(a, b)
    return np.asarray(np.where((b == 0.5) & ((a == 0) | np.isneginf(a)), np.abs(a), found))


def _build_floor_quotient(a: Expr, b: Expr) -> Expr:
    """Build the quotient rounded down.

    The quotient of floats is computed in double precision, in which no quotient of two float32 numbers is rounded to an
    integer unless it is an integer."""
    if not dtypes.is_float(a.dtype):
        return _build_integer_quotient("floordiv", a, b)
    return ir.cast(a.dtype, ir.call("floor", ir.cast("float64", a) / ir.cast("float64", b)))


def _build_floor_remainder(a: Expr, b: Expr) -> Expr:
    """Build the remainder of the division that rounds down. It has the sign of the divisor, even if it is zero."""
    if not dtypes.is_float(a.dtype):
        return _build_integer_remainder("floormod", a, b)
    rest = ir.call("fmod", a, b)
    apart = ir.Bin("and", rest.ne(0.0), ir.Bin("ne", b < 0.0, rest < 0.0))
    zero = ir.select(b < 0.0, ir.const(-0.0, b.dtype), 0.0)
    return ir.select(rest.eq(0.0), zero, ir.select(apart, rest + b, rest))


def _build_shift(a: Expr, b: Expr, shift_op: str) -> Expr:
    """Build the shift ``shift_op``, which is ``shl`` or ``shr``.

    A shift by the number of bits or more, or by a negative number, gives zero, or -1 for the right shift of a negative
    number."""
    bits = dtypes.dtype_parts(a.dtype).bits
    if shift_op == "shr" and dtypes.dtype_parts(a.dtype).kind == "int":
        return a >> ir.select(ir.Bin("and", b >= 0, b < bits), b, bits - 1)
    wide = "uint64" if bits == 64 else "uint32"
    x, places = ir.cast(wide, a), ir.cast(wide, b)
    moved = ir.select(places < bits, ir.binary(shift_op, x, ir.minimum(places, bits - 1)), ir.const(0, wide))
    return ir.cast(a.dtype, moved)


def _shift_arrays_left(a: Array, b: Array) -> Array:
    return np.asarray(np.where((b >= 0) & (b < 64), a << (b & 63), 0))


def _shift_arrays_right(a: Array, b: Array) -> Array:
    signs = a >> 63 if a.dtype.kind == "i" else 0
    return np.asarray(np.where((b >= 0) & (b < 64), a >> (b & 63), signs))


_WRAPS = "Integers wrap around"
_QUOTIENT = "An integer divided by zero is 0; the lowest integer divided by -1 is itself"
_REMAINDER = "An integer modulo zero is 0"
_NAN = "NaN is passed on"
_PLACES = "By a negative number of bits, or by all bits and more: 0; a negative number shifted right gives -1"


def _share_gradient(g: Value, chosen: Value, other: Value, wins: Value) -> Value:
    """Return the gradient of an operand of ``maximum`` or ``minimum``: ``g`` where it wins, half of it in a tie, as in
    PyTorch."""
    return wins.select(g, chosen.equals(other).select(g * 0.5, 0.0))


def _power_base_gradient(g: Value, a: Value, b: Value, y: Value) -> Value:
    """Return g b a**(b - 1); zero for b = 0, also where a**-1 is infinite."""
    return b.equals(0.0).select(0.0, g * (b * a.apply("pow", b - 1.0)))


def _power_exponent_gradient(g: Value, a: Value, b: Value, y: Value) -> Value:
    """Return g y log(a); zero for a = 0, where y does not depend on a positive b."""
    return a.equals(0.0).select(0.0, g * (y * a.apply("log")))


BINARY: tuple[BinaryFunction, ...] = (
    BinaryFunction(
        "add",
        np.add,
        lambda a, b: build_wrapping_binary("add", a, b),
        edges=_WRAPS,
        gradients=(lambda g, a, b, y: g, lambda g, a, b, y: g),
    ),
    BinaryFunction(
        "sub",
        np.subtract,
        lambda a, b: build_wrapping_binary("sub", a, b),
        edges=_WRAPS,
        gradients=(lambda g, a, b, y: g, lambda g, a, b, y: -g),
    ),
    BinaryFunction(
        "mul",
        np.multiply,
        lambda a, b: build_wrapping_binary("mul", a, b),
        edges=_WRAPS,
        gradients=(lambda g, a, b, y: g * b, lambda g, a, b, y: g * a),
    ),
    BinaryFunction(
        "div",
        _divide_arrays,
        _build_quotient,
        edges=_QUOTIENT,
        gradients=(lambda g, a, b, y: g / b, lambda g, a, b, y: -(g * y) / b),
    ),
    BinaryFunction(
        "maximum",
        np.maximum,
        _build_nan_propagating_maximum,
        edges=_NAN,
        gradients=(
            lambda g, a, b, y: _share_gradient(g, a, b, a > b),
            lambda g, a, b, y: _share_gradient(g, b, a, b > a),
        ),
    ),
    BinaryFunction(
        "minimum",
        np.minimum,
        _build_nan_propagating_minimum,
        edges=_NAN,
        gradients=(
            lambda g, a, b, y: _share_gradient(g, a, b, a < b),
            lambda g, a, b, y: _share_gradient(g, b, a, b < a),
        ),
    ),
    BinaryFunction(
        "squared_difference",
        lambda a, b: (a - b) ** 2,
        _build_squared_difference,
        SIGNED,
        1e-6,
        _WRAPS,
        gradients=(lambda g, a, b, y: g * ((a - b) * 2.0), lambda g, a, b, y: g * ((b - a) * 2.0)),
    ),
    BinaryFunction(
        "floor_div",
        lambda a, b: np.floor(a / b) if a.dtype.kind == "f" else a // b,
        _build_floor_quotient,
        edges=_QUOTIENT,
        gradients=(lambda g, a, b, y: None, lambda g, a, b, y: None),
    ),
    BinaryFunction(
        "floor_mod",
        lambda a, b: np.mod(a, b),
        _build_floor_remainder,
        tolerance=1e-6,
        edges=_REMAINDER,
        gradients=(lambda g, a, b, y: g, lambda g, a, b, y: g * -(a / b).apply("floor")),
    ),
    BinaryFunction(
        "fmod",
        np.fmod,
        lambda a, b: ir.call("fmod", a, b) if dtypes.is_float(a.dtype) else _build_integer_remainder("truncmod", a, b),
        edges=_REMAINDER,
        gradients=(lambda g, a, b, y: g, lambda g, a, b, y: g * ((y - a) / b).apply("round")),
    ),
    BinaryFunction("bit_and", np.bitwise_and, lambda a, b: a & b, INTEGERS),
    BinaryFunction("bit_or", np.bitwise_or, lambda a, b: a | b, INTEGERS),
    BinaryFunction("bit_xor", np.bitwise_xor, lambda a, b: a ^ b, INTEGERS),
    BinaryFunction("shift_left", _shift_arrays_left, lambda a, b: _build_shift(a, b, "shl"), INTEGERS, edges=_PLACES),
    BinaryFunction("shift_right", _shift_arrays_right, lambda a, b: _build_shift(a, b, "shr"), INTEGERS, edges=_PLACES),
    BinaryFunction(
        "pow",
        _raise_arrays,
        _build_power,
        FLOAT,
        4e-6,
        gradients=(_power_base_gradient, _power_exponent_gradient),
    ),
    BinaryFunction(
        "atan2",
        np.arctan2,
        lambda a, b: ir.call("atan2", a, b),
        FLOAT,
        4e-6,
        gradients=(lambda g, a, b, y: g * (b / (a * a + b * b)), lambda g, a, b, y: -(g * (a / (a * a + b * b)))),
    ),
)
"""The functions of two operands."""

_BY_NAME = {function.name: function for function in BINARY}
SCATTERED: Mapping[str, BinaryFunction] = MappingProxyType(
    {"add": _BY_NAME["add"], "mul": _BY_NAME["mul"], "max": _BY_NAME["maximum"], "min": _BY_NAME["minimum"]}
)
"""Functions that combine updates with the data into which they are scattered, by value of the attribute ``reduction``.
Each numpy function is a ufunc."""
