# SPDX-License-Identifier: Apache-2.0
"""Products of rows of bytes by pairs of columns: which loops over them become one call, and what it computes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.schedule.identities import intrinsic_functions
from microc.tir import ir
from microc.tir.interp import run
from microc.tir.lower.matrix_intrinsics import lower_products
from microc.tir.names import PRODUCT
from microc.tir.rewrite import map_stmt, walk_all_exprs

TILE, ROW, COLUMN, TERM = (ir.Var(name) for name in ("tile", "row", "column", "term"))
NOTE = ((PRODUCT, 1),)


def product(rows: int, depth: int, tiles: int, *, weight_depth: int = 0, gap: int = 0) -> ir.PrimFunc:
    """Tiles of rows by two columns. ``weight_depth``: distance of columns; ``gap``: columns between tiles that are left out."""
    step, width = 2 + gap, weight_depth or depth
    a, b = ir.Buffer("a", (rows, depth + 3), "int8"), ir.Buffer("b", (tiles * step, width), "int8")
    sums = ir.Buffer("sums", (rows, tiles * step + 1), "int32")
    place = (ROW, TILE * step + COLUMN)
    term = a[ROW, TERM].astype("int32") * b[TILE * step + COLUMN, TERM].astype("int32")
    zero = ir.loops(((ROW, rows), (COLUMN, 2)), ir.Store(sums, place, ir.const(0, "int32")))
    update = ir.loops(((ROW, rows), (COLUMN, 2), (TERM, depth)), ir.Store(sums, place, ir.Load(sums, place) + term))

    def annotate(s: ir.Stmt) -> ir.Stmt:
        return replace(s, annotations=NOTE) if isinstance(s, ir.For) else s

    body = ir.For(TILE, ir.const(tiles, "int32"), ir.seq(map_stmt(zero, annotate), map_stmt(update, annotate)))
    return ir.PrimFunc("product", (a, b, sums), body)


def computed(func: ir.PrimFunc) -> Array:
    dice = np.random.default_rng(5)
    a, b, sums = func.params
    arrays = [dice.integers(-128, 128, x.shape).astype(np.int8) for x in (a, b)]
    arrays.append(np.full(sums.shape, -1, np.int32))
    run(func, arrays, intrinsic_functions())
    return arrays[-1]


def calls(stmt: ir.Stmt) -> set[str]:
    return {e.name for e in walk_all_exprs(stmt) if isinstance(e, ir.Call)}


@pytest.mark.parametrize("depth", [8, 16, 32])
@pytest.mark.parametrize("rows", [2, 3])
def test_short_rows_by_all_columns_are_one_call(rows: int, depth: int) -> None:
    func = product(rows, depth, 5)
    body = lower_products(func.body)
    assert calls(body) == {f"rows_i8_i8_{rows}_{depth}"}
    np.testing.assert_array_equal(computed(ir.PrimFunc("f", func.params, body)), computed(func))


@pytest.mark.parametrize(
    "func",
    [product(3, 64, 4), product(3, 15, 4), product(3, 16, 4, weight_depth=20), product(3, 16, 4, gap=1)],
    ids=["long", "odd", "apart", "gaps"],
)
def test_others_are_a_call_for_each_tile(func: ir.PrimFunc) -> None:
    body = lower_products(func.body)
    assert calls(body) == {"dot_i8_i8_3x2"}
    np.testing.assert_array_equal(computed(ir.PrimFunc("f", func.params, body)), computed(func))
