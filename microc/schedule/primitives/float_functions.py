# SPDX-License-Identifier: Apache-2.0
"""The primitive ``select_functions``: erf, exp, expm1, tanh, log and log1p by arithmetic, for vector units without such
functions, and if floats may be fast.

Polynomials are computed by Horner's rule, with one rounding for each step where a core multiplies and adds at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from microc.numerics import TO_WHOLE
from microc.schedule.primitives.tree import map_values
from microc.tir import ir

#     erf(x)   ~  x P(x**2) / Q(x**2),    x within -3.75 .. 3.75, beyond which erf is less than 2**-23 from 1,
#     tanh(x)  ~  x P(x**2) / Q(x**2),    x within -9.01 .. 9.01, beyond which tanh is less than 2**-24 from 1,
#     exp(x)   ~  (2**n)**2 P(x - 2 n ln 2),    n = round(x / (2 ln 2)),    x within -104 .. 89, where exp is 0 and infinite,
#     expm1(x) ~  (2**n (P(r) - 1) + (2**n - 2**-n)) 2**n,    r = x - 2 n ln 2, P and n those of exp,
#     log(x)   =  n ln 2 + log(1 + f),    x = 2**n (1 + f),    1 + f within sqrt(1/2) .. sqrt(2),
#     log(1 + f)  ~  f - f**2 / 2 + f**3 P(f),
#     log1p(x) =  log(y) + (x - (y - 1)) / y,    y = 1 + x, rounded.
#
# The coefficients have the least relative error that weighted least squares find (Lawson, 1961, on Chebyshev's nodes): 3.1e-8,
# 1.3e-9, 1.2e-8 and 5.8e-9 before rounding. 2 n ln 2 is subtracted in two parts; the first is exact. Powers of two are
# built from the bits that adding 1.5 * 2**23 leaves. They are multiplied one after the other, so that subnormal and infinite
# results of exp are correct. log is also correct for zero, negative, infinite and subnormal operands. NaN stays NaN. Zeros keep
# their sign, except in expm1 and log1p.
#
# The largest errors of erf, tanh and exp were measured on a seventh of all floats from 2**-12 (2**-24 for exp) to the limits:
# relative to the result 3.2e-7, 3.5e-7 and 2.3e-7 with fused steps, :data:`ERRORS` without. With fused steps, log has 8.2e-8 on a
# seventh of all positive floats; expm1 and log1p have 2.6e-7 and 1.4e-7 on a thousandth of all floats. Results of erf and tanh
# may exceed 1 by as much. Subnormal results of exp differ by up to two of the smallest subnormal number.

ERRORS: Mapping[str, float] = MappingProxyType(
    {"erf": 3.8e-7, "tanh": 3.7e-7, "exp": 2.7e-7, "expm1": 3.2e-7, "log": 1.2e-7, "log1p": 1.8e-7}
)
"""Largest relative error without fused multiply-adds, by function."""
ERF = (
    3.75,
    (
        2.21193072746928e-08,
        -2.022567286985577e-06,
        1.3239930558484048e-04,
        3.141249530017376e-03,
        4.872777685523033e-02,
        1.8566012382507324e-01,
        1.1283791065216064,
    ),
    (
        8.329787524417043e-04,
        1.3176330365240574e-02,
        1.0914591699838638e-01,
        4.978693127632141e-01,
        1.0,
    ),
)
"""Limit of the argument, numerator and denominator of erf. Coefficients begin with the highest power."""
_TANH = (
    9.01,
    (
        -1.2224813175643057e-11,
        3.0613733770223917e-08,
        2.801937262120191e-05,
        3.8689174689352512e-03,
        1.3680385053157806e-01,
        1.0,
    ),
    (
        1.2881998827651842e-06,
        3.939671441912651e-04,
        2.7247997000813484e-02,
        4.7013717889785767e-01,
        1.0,
    ),
)
"""Limit of the argument, numerator and denominator of tanh. Coefficients begin with the highest power."""
_EXP_LIMITS = (-104.0, 89.0)
"""Argument of exp below which the result is 0, and argument above which it is infinite."""
_EXP = (
    1.9551708828657866e-04,
    1.411487115547061e-03,
    8.337056264281273e-03,
    4.166053980588913e-02,
    1.66665717959404e-01,
    5.000004768371582e-01,
    1.0,
    1.0,
)
"""Coefficients of the polynomial of exp, from the highest power to the constant."""
_INVERSE_TWICE_LN2 = 0.7213475204444817
"""1 / (2 ln 2)."""
_TWICE_LN2 = (1.38623046875, 6.389236659742892e-05)
"""2 ln 2 as a sum of two floats: the first has 14 bits, so that its products with n are exact; the second is the
remainder."""
_LOG = (
    -0.07634496688842773,
    0.1276157647371292,
    -0.13160182535648346,
    0.14201757311820984,
    -0.16623356938362122,
    0.20001226663589478,
    -0.2500081956386566,
    0.3333333134651184,
)
"""Coefficients of the polynomial P of log, from the highest power to the constant."""
_LN2 = (0.693359375, -2.1219444170128554e-4)
"""ln 2 as a sum of two floats: the first has 9 bits, so that its products with n are exact; the second is the
remainder."""
_EXPONENT_BITS, _ONE = 23, 127 << 23
"""Position of the exponent in the bits of a float32, and the bits of 1.0."""
LOGARITHMS = frozenset({"log", "log1p"})
"""Functions that are replaced only on request."""
_ROOT_OF_HALF = 0x3F3504F3
"""Bits of sqrt(1/2) as a float32."""
_NORMAL, _LARGEST = 2.0**-126, 3.4028234663852886e38
"""Least and largest normal float32."""


def select_functions(func: ir.PrimFunc, fused: bool, logarithms: bool = False) -> ir.PrimFunc:
    """Replace calls of ``erf``, ``exp``, ``expm1`` and ``tanh`` of float32 by arithmetic; also ``log`` and ``log1p`` if
    ``logarithms``.

    ``fused``: True if the core has a fused multiply-add."""

    def replace_function_call(expr: ir.Expr) -> ir.Expr:
        match expr:
            case ir.Call(name, (x,)) if (
                expr.dtype == "float32" and name in _FUNCTIONS and (logarithms or name not in LOGARITHMS)
            ):
                return _FUNCTIONS[name](x, _build_fused_multiply_add if fused else _build_multiply_then_add)
            case _:
                return expr

    return replace(func, body=map_values(func.body, replace_function_call))


MultiplyAdd = Callable[[ir.Expr, ir.Expr | float, float | ir.Expr], ir.Expr]
"""Function of (a, b, c) that builds the expression a * b + c."""


def _build_fused_multiply_add(a: ir.Expr, b: ir.Expr | float, c: ir.Expr | float) -> ir.Expr:
    """Build a * b + c with one rounding."""
    return ir.call("fma", a, _as_float_expr(b), _as_float_expr(c))


def _build_multiply_then_add(a: ir.Expr, b: ir.Expr | float, c: ir.Expr | float) -> ir.Expr:
    """Build a * b + c with two roundings."""
    return a * b + c


def _as_float_expr(x: ir.Expr | float) -> ir.Expr:
    """Convert a number to a float32 constant. An expression is returned unchanged."""
    return x if isinstance(x, ir.Expr) else ir.const(x, "float32")


def _clamp_keeping_nan(x: ir.Expr, low: float, high: float) -> ir.Expr:
    """Build the clamp of x to low..high. NaN stays NaN, because the limits are the first operands of ``max`` and
    ``min``, which return their second operand for NaN."""
    return ir.binary("min", ir.const(high, "float32"), ir.binary("max", ir.const(low, "float32"), x))


def _build_rational_function(
    limit: float, numerator: Sequence[float], denominator: Sequence[float], x: ir.Expr, multiply_add: MultiplyAdd
) -> ir.Expr:
    """Build the odd rational function x P(x**2) / Q(x**2), with x clamped to -limit..limit.

    ``numerator`` and ``denominator``: coefficients of P and Q, from the highest power to the constant."""
    within = _clamp_keeping_nan(x, -limit, limit)
    square = within * within
    return (
        within
        * _build_polynomial(numerator, square, multiply_add)
        / _build_polynomial(denominator, square, multiply_add)
    )


def _reduce_exp_argument(x: ir.Expr, multiply_add: MultiplyAdd) -> tuple[ir.Expr, ir.Expr]:
    """Build the reduced argument of exp, r = x - 2 n ln 2 in -ln 2 .. ln 2, and the bits of 2**n minus the bits of
    1.0."""
    within = _clamp_keeping_nan(x, *_EXP_LIMITS)
    # Adding 1.5 * 2**23 rounds, and leaves n in the low bits of the sum: shifted, these are an exponent.
    shifted = within * _INVERSE_TWICE_LN2 + TO_WHOLE
    n = shifted - TO_WHOLE
    rest = multiply_add(n, -_TWICE_LN2[1], multiply_add(n, -_TWICE_LN2[0], within))
    return rest, ir.reinterpret("uint32", shifted) << _EXPONENT_BITS


def _build_exp(x: ir.Expr, multiply_add: MultiplyAdd) -> ir.Expr:
    """Build exp(x) from arithmetic. The polynomial is multiplied by 2**n twice, because 2**(2 n) may exceed the
    range of float32."""
    rest, exponent = _reduce_exp_argument(x, multiply_add)
    power = ir.reinterpret("float32", exponent + _ONE)
    return _build_polynomial(_EXP, rest, multiply_add) * power * power


def _build_expm1(x: ir.Expr, multiply_add: MultiplyAdd) -> ir.Expr:
    """Build expm1(x) from arithmetic. For small x, n is 0, and 2**n - 2**-n is exactly 0. The polynomial has no
    constant term, so that the result keeps its relative precision near 0."""
    rest, exponent = _reduce_exp_argument(x, multiply_add)
    one = ir.const(_ONE, "uint32")
    power, inverse = ir.reinterpret("float32", exponent + one), ir.reinterpret("float32", one - exponent)
    less_one = multiply_add(_build_polynomial(_EXP[:-2], rest, multiply_add), rest * rest, rest)
    return multiply_add(less_one, power, power - inverse) * power


def _build_log1p(x: ir.Expr, multiply_add: MultiplyAdd) -> ir.Expr:
    """Build log(1 + x) from arithmetic: log(y) for the rounded y = 1 + x, corrected by the rounding error of y."""
    y = x + 1.0
    log = _build_log(y, multiply_add)
    return ir.select(y > 0.0, ir.select(y <= _LARGEST, log + (x - (y - 1.0)) / y, log), log)


def _build_log(x: ir.Expr, multiply_add: MultiplyAdd) -> ir.Expr:
    """Build log(x) from arithmetic. Subnormal numbers are scaled up first. The results for zero, negative numbers,
    infinity and NaN are selected at the end."""
    small = x < _NORMAL
    positive = _clamp_keeping_nan(ir.select(small, x * float(1 << _EXPONENT_BITS), x), _NORMAL, _LARGEST)
    bits = ir.reinterpret("int32", positive)
    exponent = (bits - _ROOT_OF_HALF) >> _EXPONENT_BITS
    f = ir.reinterpret("float32", bits - exponent * (1 << _EXPONENT_BITS)) - 1.0
    n = ir.cast("float32", ir.select(small, exponent - _EXPONENT_BITS, exponent))
    square = f * f
    low = multiply_add(n, _LN2[1], _build_polynomial(_LOG, f, multiply_add) * square * f)
    log = multiply_add(n, _LN2[0], multiply_add(square, -0.5, low) + f)
    # x - x is 0 for numbers: 0 / 0 is NaN, -1 / 0 is -infinity.
    outside = ir.select(x < 0.0, ir.const(0.0, "float32"), ir.const(-1.0, "float32")) / (x - x)
    return ir.select(x > 0.0, ir.select(x <= _LARGEST, log, x), outside)


def _build_polynomial(coefficients: Sequence[float], x: ir.Expr, multiply_add: MultiplyAdd) -> ir.Expr:
    """Build a polynomial of x by Horner's rule. ``coefficients`` begin with the highest power."""
    total: ir.Expr = ir.const(coefficients[0], "float32")
    for coefficient in coefficients[1:]:
        total = multiply_add(total, x, coefficient)
    return total


_FUNCTIONS: Mapping[str, Callable[[ir.Expr, MultiplyAdd], ir.Expr]] = MappingProxyType(
    {
        "erf": partial(_build_rational_function, *ERF),
        "exp": _build_exp,
        "expm1": _build_expm1,
        "log": _build_log,
        "log1p": _build_log1p,
        "tanh": partial(_build_rational_function, *_TANH),
    }
)
