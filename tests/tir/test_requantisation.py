# SPDX-License-Identifier: Apache-2.0
"""Loops over vectors that requantise sums: which become calls, and what these compute."""

from __future__ import annotations

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.schedule.identities import intrinsic_functions
from microc.tir import ir
from microc.tir.interp import run
from microc.tir.lower.lanes import lower_lanes
from microc.tir.lower.unit_lowering import lower_requantisation
from microc.tir.rewrite import map_stmt, walk_all_exprs

COLUMN = ir.Var("o")
WIDTH = 32


def requantisation(
    columns: int, row_starts: tuple[int, ...], *, scope: str = "local", factor: int = 256, multiplier: int = 1
) -> ir.PrimFunc:
    """Rows of sums, which are copied to memory of their own first, and requantised. ``multiplier``: stride of multipliers."""
    x = ir.Buffer("x", (len(row_starts), WIDTH), "int32")
    sums = ir.Buffer("sums", x.shape, "int32", scope)
    addend, scale = ir.Buffer("addend", (WIDTH,), "int32", "const"), ir.Buffer("scale", (2 * WIDTH,), "int32", "const")
    out = ir.Buffer("out", (row_starts[-1] + WIDTH,), "int8")
    stores = []
    for row, start in enumerate(row_starts):
        operand = addend[COLUMN] + sums[row, COLUMN] * (factor + (row if factor != 256 else 0))
        high = ir.call("high_product", operand, scale[COLUMN * multiplier])
        rounded = ir.Call("saturate_i8", (((high >> 8) + 1) >> 1,), "int32")
        stores.append(ir.Store(out, (COLUMN + start,), ir.cast("int8", rounded)))
    vectors = ir.For(COLUMN, ir.const(columns, "int32"), ir.seq(*stores), "vectorized", (("lanes", 4),))
    r, c = ir.Var("r"), ir.Var("c")
    copy = ir.loops(((r, len(row_starts)), (c, WIDTH)), ir.Store(sums, (r, c), x[r, c]))
    body = lower_lanes(vectors)
    whole = ir.Alloc(sums, ir.seq(copy, body)) if scope == "local" else body
    params = (x if scope == "local" else sums, addend, scale, out)
    return ir.PrimFunc("requantised", params, whole)


def operands(func: ir.PrimFunc) -> list[Array]:
    dice = np.random.default_rng(3)
    x, addend, scale, out = func.params
    return [
        dice.integers(-2000, 2000, x.shape).astype(np.int32),
        dice.integers(-(1 << 20), 1 << 20, addend.shape).astype(np.int32),
        dice.integers(1 << 24, 1 << 28, scale.shape).astype(np.int32),
        np.zeros(out.shape, np.int8),
    ]


def calls(stmt: ir.Stmt) -> list[str]:
    return [e.name for e in walk_all_exprs(stmt) if isinstance(e, ir.Call) and e.name.startswith("requantize")]


def computed(func: ir.PrimFunc) -> Array:
    arrays = operands(func)
    run(func, arrays, intrinsic_functions())
    return arrays[-1]


@pytest.mark.parametrize("columns", [8, 12, 16, 22, 32])
@pytest.mark.parametrize("row_starts", [(3,), (0, 40), (1, 33, 65)])
def test_rows_become_one_call(row_starts: tuple[int, ...], columns: int) -> None:
    """An odd vector and single columns stay beside the call."""
    func = requantisation(columns, row_starts)
    body = lower_requantisation(func.body)
    assert calls(body) == [f"requantize_i8_rshr_9_{len(row_starts)}"]
    want = computed(func)
    assert len(np.unique(want)) > 5
    np.testing.assert_array_equal(computed(ir.PrimFunc("f", func.params, body)), want)


@pytest.mark.parametrize(
    "func",
    [
        requantisation(4, (0, 40)),  # a single vector
        requantisation(16, (0, 40, 90)),  # rows at two distances
        requantisation(16, (0, 40, 80, 120)),  # more rows than the intrinsic has
        requantisation(16, (0, 40), factor=3),  # factors that differ between rows
        requantisation(16, (0, 40), multiplier=2),  # every second multiplier
        requantisation(16, (0, 40), scope="global"),  # results might overwrite sums
    ],
    ids=["vector", "distances", "rows", "factors", "stride", "memory"],
)
def test_other_loops_stay(func: ir.PrimFunc) -> None:
    assert lower_requantisation(func.body) == func.body


def test_rows_of_different_buffers_stay() -> None:
    func = requantisation(16, (0, 40))
    other, seen = ir.Buffer("other", func.params[-1].shape, "int8"), list[ir.Expr]()

    def move_second_store(s: ir.Stmt) -> ir.Stmt:
        match s:
            case ir.Evaluate(ir.Call(name, (ir.AddressOf() as place, value), dtype)) if name.startswith("store"):
                seen.append(value)
                if len(seen) == 2:
                    moved = ir.AddressOf(other, place.indices, place.extent, writes=True)
                    return ir.Evaluate(ir.Call(name, (moved, value), dtype))
        return s

    body = map_stmt(func.body, move_second_store)
    assert len(seen) == 2 and lower_requantisation(body) == body
