"""The primitive select_erf: the error function by arithmetic, for cores whose vectors have no such function.

    erf(x)  ~  x P(x**2) / Q(x**2),    x within -3.8325 .. 3.8325, beyond which float32 has no more of it than 1,

with P of degree 6 and Q of degree 4, Horner's rule and one rounding for each step. Over all floats the largest error is 3.7e-7,
six units in the last place of 1, and 7e-7 of the result where that is a normal number; NaN stays, zeros keep their sign.

Source of the numbers: Eigen, ``GenericPacketMathFunctions.h``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from microc.tir import ir
from microc.tir.rewrite import map_expr, map_stmt

LIMIT = 3.832506856900711
NUMERATOR = (
    -2.72614225801306e-10,
    2.77068142495902e-08,
    -2.10102402082508e-06,
    -5.69250639462346e-05,
    -7.34990630326855e-04,
    -2.95459980854025e-03,
    -1.60960333262415e-02,
)
DENOMINATOR = (
    -1.45660718464996e-05,
    -2.13374055278905e-04,
    -1.68282697438203e-03,
    -7.37332916720468e-03,
    -1.42647390514189e-02,
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
