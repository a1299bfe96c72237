"""The primitive select_functions: erf, exp, expm1, tanh, log and log1p by arithmetic, for cores whose vectors have no such
functions, and where floats may be fast.

    erf(x)   ~  x P(x**2) / Q(x**2),    x within -3.75 .. 3.75, beyond which erf is less than 2**-23 from 1,
    tanh(x)  ~  x P(x**2) / Q(x**2),    x within -9.01 .. 9.01, beyond which tanh is less than 2**-24 from 1,
    exp(x)   ~  (2**n)**2 P(x - 2 n ln 2),    n = round(x / (2 ln 2)),    x within -104 .. 89, where exp is 0 and infinite,
    expm1(x) ~  (2**n (P(r) - 1) + (2**n - 2**-n)) 2**n,    r = x - 2 n ln 2, P and n those of exp,
    log(x)   =  n ln 2 + log(1 + f),    x = 2**n (1 + f),    1 + f within sqrt(1/2) .. sqrt(2),
    log(1 + f)  ~  f - f**2 / 2 + f**3 P(f),
    log1p(x) =  log(y) + (x - (y - 1)) / y,    y = 1 + x, rounded.

Polynomials are computed by Horner's rule, with one rounding for each step where a core multiplies and adds at once. The
coefficients have the least relative error that weighted least squares find (Lawson, 1961, on Chebyshev's nodes): 3.1e-8, 1.3e-9,
1.2e-8 and 5.8e-9 before rounding. 2 n ln 2 is subtracted in two parts, the first of which is exact; powers of two are made of the
bits that adding 1.5 * 2**23 leaves, and are multiplied one after the other, so that results below the normal numbers and above
the largest one are what they are. So is log of what is zero, negative, infinite or below the normal numbers. NaN stays, zeros
keep their sign, but in expm1 and log1p.

The largest errors were counted on a seventh of all floats from 2**-12 (2**-24 for exp) to the limits: relative to the result
3.2e-7, 3.5e-7 and 2.3e-7 with fused steps, :data:`ERRORS` without; of log on a seventh of all positive ones 8.2e-8 with
them; of expm1 and log1p on a thousandth of all 2.6e-7 and 1.4e-7. Results of erf and tanh may exceed 1 by as much; those of exp
below the normal numbers are off by two of the smallest one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from microc.fixed import TO_WHOLE
from microc.tir import ir
from microc.tir.rewrite import map_expr, map_stmt

ERRORS: Mapping[str, float] = MappingProxyType(
    {"erf": 3.8e-7, "tanh": 3.7e-7, "exp": 2.7e-7, "expm1": 3.2e-7, "log": 1.2e-7, "log1p": 1.8e-7}
)
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
"""Limits of the argument, numerators and denominators, the highest power first."""
_EXP_LIMITS = (-104.0, 89.0)
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
_HALVED = 0.7213475204444817
"""1 / (2 ln 2)."""
_TWICE_LN2 = (1.38623046875, 6.389236659742892e-05)
"""2 ln 2 in two parts: of 14 bits, whose products with n are exact, and the rest."""
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
_LN2 = (0.693359375, -2.1219444170128554e-4)
"""ln 2 in two parts: of 9 bits, whose products with n are exact, and the rest."""
_EXPONENT_BITS, _ONE = 23, 127 << 23
"""Where a float32 keeps its exponent, and the bits of 1.0."""
LOGARITHMS = frozenset({"log", "log1p"})
_ROOT_OF_HALF = 0x3F3504F3
"""The bits of sqrt(1/2)."""
_NORMAL, _LARGEST = 2.0**-126, 3.4028234663852886e38


def select_functions(func: ir.PrimFunc, fused: bool, logarithms: bool = False) -> ir.PrimFunc:
    """``erf``, ``exp``, ``expm1`` and ``tanh`` of float32 become sums, products and a quotient, ``log`` and ``log1p`` where
    that is asked for; ``fused``: a core multiplies and adds at once."""

    def on_expr(e: ir.Expr) -> ir.Expr:
        match e:
            case ir.Call(name, (x,)) if (
                e.dtype == "float32" and name in _FUNCTIONS and (logarithms or name not in LOGARITHMS)
            ):
                return _FUNCTIONS[name](x, _fused if fused else _apart)
            case _:
                return e

    return replace(func, body=map_stmt(func.body, lambda s: s, lambda x: map_expr(x, on_expr)))


MultiplyAdd = Callable[[ir.Expr, ir.Expr | float, float | ir.Expr], ir.Expr]
"""a b + c."""


def _fused(a: ir.Expr, b: ir.Expr | float, c: ir.Expr | float) -> ir.Expr:
    return ir.call("fma", a, _number(b), _number(c))


def _apart(a: ir.Expr, b: ir.Expr | float, c: ir.Expr | float) -> ir.Expr:
    return a * b + c


def _number(x: ir.Expr | float) -> ir.Expr:
    return x if isinstance(x, ir.Expr) else ir.const(x, "float32")


def _within(x: ir.Expr, low: float, high: float) -> ir.Expr:
    """The limits come first in ``max`` and ``min``, which so hand NaN on."""
    return ir.binary("min", ir.const(high, "float32"), ir.binary("max", ir.const(low, "float32"), x))


def _quotient(
    limit: float, numerator: Sequence[float], denominator: Sequence[float], x: ir.Expr, multiply_add: MultiplyAdd
) -> ir.Expr:
    """An odd function."""
    within = _within(x, -limit, limit)
    square = within * within
    return within * _polynomial(numerator, square, multiply_add) / _polynomial(denominator, square, multiply_add)


def _reduced(x: ir.Expr, multiply_add: MultiplyAdd) -> tuple[ir.Expr, ir.Expr]:
    """What is left of x, within -ln 2 .. ln 2, beside a whole multiple n of 2 ln 2; the bits of 2**n less those of 1."""
    within = _within(x, *_EXP_LIMITS)
    moved = within * _HALVED + TO_WHOLE
    whole = moved - TO_WHOLE
    rest = multiply_add(whole, -_TWICE_LN2[1], multiply_add(whole, -_TWICE_LN2[0], within))
    return rest, ir.reinterpret("uint32", moved) << _EXPONENT_BITS


def _exp(x: ir.Expr, multiply_add: MultiplyAdd) -> ir.Expr:
    rest, exponent = _reduced(x, multiply_add)
    power = ir.reinterpret("float32", exponent + _ONE)
    return _polynomial(_EXP, rest, multiply_add) * power * power


def _expm1(x: ir.Expr, multiply_add: MultiplyAdd) -> ir.Expr:
    """Where n is 0 nothing is added to what the polynomial gives, which has no constant term and so is near 0 where x is."""
    rest, exponent = _reduced(x, multiply_add)
    one = ir.const(_ONE, "uint32")
    power, inverse = ir.reinterpret("float32", exponent + one), ir.reinterpret("float32", one - exponent)
    less_one = multiply_add(_polynomial(_EXP[:-2], rest, multiply_add), rest * rest, rest)
    return multiply_add(less_one, power, power - inverse) * power


def _log1p(x: ir.Expr, multiply_add: MultiplyAdd) -> ir.Expr:
    """With what rounding 1 + x has lost."""
    y = x + 1.0
    found = _log(y, multiply_add)
    return ir.select(y > 0.0, ir.select(y <= _LARGEST, found + (x - (y - 1.0)) / y, found), found)


def _log(x: ir.Expr, multiply_add: MultiplyAdd) -> ir.Expr:
    """Numbers below the normal ones are made larger first; zero, negative and infinite ones, and NaN, are put in at the end."""
    small = x < _NORMAL
    positive = _within(ir.select(small, x * float(1 << _EXPONENT_BITS), x), _NORMAL, _LARGEST)
    bits = ir.reinterpret("int32", positive)
    exponent = (bits - _ROOT_OF_HALF) >> _EXPONENT_BITS
    f = ir.reinterpret("float32", bits - exponent * (1 << _EXPONENT_BITS)) - 1.0
    n = ir.cast("float32", ir.select(small, exponent - _EXPONENT_BITS, exponent))
    square = f * f
    low = multiply_add(n, _LN2[1], _polynomial(_LOG, f, multiply_add) * square * f)
    found = multiply_add(n, _LN2[0], multiply_add(square, -0.5, low) + f)
    outside = ir.select(x < 0.0, ir.const(0.0, "float32"), ir.const(-1.0, "float32")) / (x - x)
    return ir.select(x > 0.0, ir.select(x <= _LARGEST, found, x), outside)


def _polynomial(coefficients: Sequence[float], x: ir.Expr, multiply_add: MultiplyAdd) -> ir.Expr:
    """By Horner's rule."""
    total: ir.Expr = ir.const(coefficients[0], "float32")
    for each in coefficients[1:]:
        total = multiply_add(total, x, each)
    return total


_FUNCTIONS: Mapping[str, Callable[[ir.Expr, MultiplyAdd], ir.Expr]] = MappingProxyType(
    {
        "erf": partial(_quotient, *ERF),
        "exp": _exp,
        "expm1": _expm1,
        "log": _log,
        "log1p": _log1p,
        "tanh": partial(_quotient, *_TANH),
    }
)
