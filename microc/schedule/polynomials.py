"""The primitive select_erf: the error function by arithmetic, for cores whose vectors have no such function.

    erf(x)  ~  x P(x**2) / Q(x**2),    x within -3.75 .. 3.75, beyond which erf is less than 2**-23 from 1,

with P of degree 6 and Q of degree 4, Horner's rule and one rounding for each step. The coefficients have the least relative error
that weighted least squares find (Lawson, 1961, on Chebyshev's nodes): 3.1e-8 before rounding. The largest error, counted on a
third of all floats from 0.25 to 4 and a ninth of those above 2**-12, is 3.2e-7, of the result as well: three units in the last
place of 1, which may be exceeded by one. NaN stays, zeros keep their sign.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from microc.tir import ir
from microc.tir.rewrite import map_expr, map_stmt

LIMIT = 3.75
NUMERATOR = (
    2.21193072746928e-08,
    -2.022567286985577e-06,
    1.3239930558484048e-04,
    3.141249530017376e-03,
    4.872777685523033e-02,
    1.8566012382507324e-01,
    1.1283791065216064,
)
DENOMINATOR = (
    8.329787524417043e-04,
    1.3176330365240574e-02,
    1.0914591699838638e-01,
    4.978693127632141e-01,
    1.0,
)
"""Coefficients of the highest power first."""


def select_erf(func: ir.PrimFunc) -> ir.PrimFunc:
    """``erf`` of float32 becomes sums, products and a quotient."""

    def on_expr(e: ir.Expr) -> ir.Expr:
        match e:
            case ir.Call("erf", (x,)) if e.dtype == "float32":
                return erf(x)
            case _:
                return e

    return replace(func, body=map_stmt(func.body, lambda s: s, lambda x: map_expr(x, on_expr)))


def erf(x: ir.Expr) -> ir.Expr:
    """The error function of a float32, by arithmetic; the limits come first in ``max`` and ``min``, which so hand NaN on."""
    within = ir.binary("min", ir.const(LIMIT, "float32"), ir.binary("max", ir.const(-LIMIT, "float32"), x))
    square = within * within
    return within * _polynomial(NUMERATOR, square) / _polynomial(DENOMINATOR, square)


def _polynomial(coefficients: Sequence[float], x: ir.Expr) -> ir.Expr:
    """By Horner's rule."""
    total: ir.Expr = ir.const(coefficients[0], "float32")
    for each in coefficients[1:]:
        total = ir.call("fma", total, x, ir.const(each, "float32"))
    return total
