# SPDX-License-Identifier: Apache-2.0
"""Element numbers that show rows: the same numbers, in literals that every compiler multiplies without overflow."""

from __future__ import annotations

import random

import pytest

from microc.codegen.c.c_expressions import MAX_INT16, MAX_INT32, ExprPrinter, flat_index
from microc.tir import ir
from microc.tir.analysis.simplification import simplify
from microc.tir.rewrite import substitute, walk_expr

Y, X, C = (ir.Var(name) for name in "yxc")
DATA = ir.Buffer("data", (25, 5, 64), "int8")
LARGE = ir.Buffer("data", (300, 200, 64), "int8")


@pytest.mark.parametrize(
    ("indices", "shown"),
    [
        ((Y * 8 + 2, X, C), "data[y * (8 * 320) + x * 64 + c + 2 * 320]"),
        ((Y + 1, X + 3, C + 5), "data[y * 320 + x * 64 + c + (320 + 3 * 64 + 5)]"),
        ((Y - 4, X + 1, C), "data[y * 320 + x * 64 + c - (4 * 320 - 64)]"),
        ((ir.const(2, "int32"), ir.const(1, "int32"), ir.const(0, "int32")), "data[2 * 320 + 64]"),
        ((Y, X, C), "data[y * 320 + x * 64 + c]"),
    ],
)
def test_rows_are_shown(indices: tuple[ir.Expr, ...], shown: str) -> None:
    assert ExprPrinter()(ir.Load(DATA, indices)) == shown


def test_numbers_stay() -> None:
    rng = random.Random(5)
    for _ in range(300):
        where = tuple(
            v * rng.choice((1, 2, 8)) + rng.randint(-9, 9) if rng.random() < 0.8 else v - 3 for v in (Y, X, C)
        )
        values = {v: ir.const(rng.randint(0, 99), "int32") for v in (Y, X, C)}
        for buffer in (DATA, LARGE):
            number = flat_index(buffer, where, rng.choice((MAX_INT16, MAX_INT32)))
            told = ir.const(0, "int32") + 0
            for index, stride in zip(where, buffer.strides, strict=True):
                told = told + index * stride
            total = ir.int_value(simplify(substitute(told, values)))
            assert ir.int_value(simplify(substitute(number, values))) == total


def test_literals_fit_an_int_of_16_bits() -> None:
    """A product of literals is an ``int``, whatever it is added to; a literal that does not fit is a ``long`` by itself."""
    where = (Y * 8 + 7, X * 4, C)
    for expr in walk_expr(flat_index(LARGE, where, MAX_INT16)):
        if isinstance(expr, ir.Bin) and isinstance(expr.a, ir.Const) and isinstance(expr.b, ir.Const):
            assert (ir.int_value(simplify(expr)) or 0) <= MAX_INT16
    assert "8 * 12800" in ExprPrinter(MAX_INT32)(ir.Load(LARGE, where))
