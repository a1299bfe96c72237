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


# ---- Rows by one factor, rounded twice

VECTOR = "int32x4"


def twice_rounded(
    vectors: int,
    *,
    away: bool = False,
    shift: int = -8,
    clamps: bool = False,
    scope: str = "local",
    high_end: int = 127,
) -> ir.PrimFunc:
    """Vectors of sums, which are copied to memory of their own first, requantised by a high product and a shift.

    ``clamps``: results are clamped before they are stored, up to ``high_end``."""
    x, out = ir.Buffer("x", (WIDTH,), "int32"), ir.Buffer("out", (WIDTH,), "int8")
    sums = ir.Buffer("sums", x.shape, "int32", scope)
    zero_point, low, high = (ir.Var(name, VECTOR) for name in ("zero_point", "low", "high"))

    def call(name: str, *args: ir.Expr) -> ir.Call:
        return ir.Call(f"{name}_i32x4", args, VECTOR)

    def number(value: int) -> ir.Expr:
        return ir.const(value, "int32")

    load = call("load_i32", ir.AddressOf(sums, (COLUMN * 4,), 4))
    product = call("doubling_high_mul_n", load, number(1638001719))
    product = call("add", product, call("shl_n", load, number(-31))) if away else product
    value = call("add", call("shift_round_n", product, number(shift)), zero_point)
    value = call("min", call("max", value, low), high) if clamps else value
    store = ir.Call(
        f"store{'' if clamps else '_saturated'}_i8_i32x4", (ir.AddressOf(out, (COLUMN * 4,), 4, True), value), "int32"
    )
    body: ir.Stmt = ir.For(COLUMN, number(vectors), ir.Evaluate(store))
    for var, n in ((zero_point, 7), (low, -128), (high, high_end)):
        body = ir.Let(var, call("dup", number(n)), body)
    c = ir.Var("c")
    copy = ir.loops(((c, WIDTH),), ir.Store(sums, (c,), x[c]))
    whole = ir.Alloc(sums, ir.seq(copy, body)) if scope == "local" else body
    return ir.PrimFunc("twice", (x if scope == "local" else sums, out), whole)


@pytest.mark.parametrize("clamps", [False, True])
@pytest.mark.parametrize("away", [False, True])
@pytest.mark.parametrize("vectors", [4, 7, 8])
def test_row_of_one_factor_becomes_one_call(vectors: int, away: bool, clamps: bool) -> None:
    """Vectors beyond whole iterations stay in a loop."""
    func = twice_rounded(vectors, away=away, clamps=clamps)
    body = lower_requantisation(func.body)
    assert calls(body) == [f"requantize_i8_twice{'_away' if away else ''}"]
    x = np.random.default_rng(1).integers(-40000, 40000, WIDTH).astype(np.int32)
    x[:4] = -168, 168, -503, 503  # ties of the shift
    results: list[Array] = []
    for f in (func, ir.PrimFunc("f", func.params, body)):
        results.append(np.zeros(WIDTH, np.int8))
        run(f, [x, results[-1]], intrinsic_functions())
    assert len(np.unique(results[0])) > 5
    np.testing.assert_array_equal(results[1], results[0])


@pytest.mark.parametrize(
    "func",
    [
        twice_rounded(3),  # fewer columns than an iteration has
        twice_rounded(8, shift=1),  # a shift to the left may wrap around
        twice_rounded(8, clamps=True, high_end=100),  # another end than that of the dtype
        twice_rounded(8, scope="global"),  # results might overwrite sums
    ],
    ids=["vectors", "left", "end", "memory"],
)
def test_other_rows_of_one_factor_stay(func: ir.PrimFunc) -> None:
    assert lower_requantisation(func.body) == func.body
