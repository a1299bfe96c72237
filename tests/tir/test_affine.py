# SPDX-License-Identifier: Apache-2.0
"""Index arithmetic: simplification keeps values, bounds hold, fused indices are recovered."""

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from microc import te
from microc.tir import ir
from microc.tir.analysis.simplification import bounds_of, linear, prove, simplify, simplify_stmt
from microc.tir.interp import execute
from microc.tir.ir import Bin, Const, Expr, Select, Un, Var, const, maximum, minimum, select
from microc.tir.rewrite import free_vars, walk_all_exprs, walk_stmt
from tests.support.campaign import examples
from tests.tir.strategies import INDEX_VARS, SOURCES, Overflow, data_exprs, evaluate, index_bounds, index_exprs

F, X, Y, A, B, K, J = (Var(name) for name in ("f", "x", "y", "a", "b", "i", "j"))
Bounds = dict[Var, tuple[int, int]]


@settings(max_examples=examples(600), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(index_exprs, index_bounds(), st.integers(0, 2**32))
def test_value_and_bounds(expr: Expr, bounds: Bounds, seed: int) -> None:
    simple = simplify(expr, bounds)
    reaches = [bounds_of(expr, bounds), bounds_of(simple, bounds)]
    draw = random.Random(seed)
    for _ in range(10):
        values: dict[Expr, int] = {var: draw.randint(*bounds.get(var, (-1000, 1000))) for var in INDEX_VARS}
        value = evaluate(expr, values)
        assert evaluate(simple, values) == value
        assert all(reach is None or reach[0] <= value <= reach[1] for reach in reaches)


@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(index_exprs, index_exprs, index_bounds())
def test_what_is_proven_holds(a: Expr, b: Expr, bounds: Bounds) -> None:
    for op in ("lt", "le", "eq"):
        if prove(Bin(op, a, b), bounds):
            values: dict[Expr, int] = {var: bounds.get(var, (7, 7))[0] for var in INDEX_VARS}
            assert evaluate(Bin(op, a, b), values)


@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(["int32", "int64", "uint32", "float32", "bool"]).flatmap(data_exprs), st.integers(0, 2**32))
def test_data_keeps_its_value(expr: Expr, seed: int) -> None:
    """Data of every dtype: bit-equal results wherever the original is defined."""
    simple = simplify(expr)
    assert simple.dtype == expr.dtype
    for env in _environments(seed):
        try:
            value = evaluate(expr, env)
        except Overflow:
            continue
        result = evaluate(simple, env)
        assert result == value or (value != value and result != result)
        if isinstance(value, np.floating):
            assert np.signbit(result) == np.signbit(value) or value != value


def _environments(seed: int) -> list[dict[Expr, Any]]:
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(4):
        env: dict[Expr, Any] = {}
        for dtype, buffer in SOURCES.items():
            for k in range(3):
                raw = rng.integers(0, 256, 8, dtype=np.uint8)
                item = (raw[:1] & 1).astype(bool)[0] if dtype == "bool" else raw.view(dtype)[0]
                env[buffer[k]] = item if dtype.startswith("float") else int(item)
        found.append(env)
    return found


@pytest.mark.parametrize(
    ("expr", "bounds", "expected"),
    [
        (X // 4 * 4 + X % 4, {}, X),
        ((F // 12) * 12 + (F // 4 % 3) * 4 + F % 4, {}, F),
        (((F // 144) * 9 + F // 16 % 9) * 16 + F % 16, {}, F),
        ((A * 8 + B) // 8, {}, B // 8 + A),
        ((A * 8 + B) % 8, {}, B % 8),
        ((A * 8 + B) // 8, {B: (0, 7)}, A),
        ((A * 8 + B) % 8, {B: (0, 7)}, B),
        (X * 2 + X * 3, {}, X * 5),
        (Y + X, {}, X + Y),
        (X - X // 4 * 4, {}, X % 4),
        (X % 12 // 4, {}, X // 4 % 3),
        (X % 12 // 4 * 4 + X % 4, {}, X % 12),
        ((K * 8 + J) // 16, {J: (0, 7)}, K // 2),
        ((K * 4 + J) % 12, {J: (0, 3)}, (K % 3) * 4 + J),
        (X // 3 // 5, {}, X // 15),
        (X // 1 + X % 1, {}, X),
        (X // 8, {X: (16, 23)}, const(2, "int32")),
        (X % 8, {X: (16, 23)}, X - 16),
        (minimum(X, 3), {X: (0, 3)}, X),
        (maximum(X, Y), {X: (0, 3), Y: (3, 5)}, Y),
        (minimum(const(4, "int32"), 10 - K * 4), {K: (0, 1)}, const(4, "int32")),
        (select(X < 4, X + 1, 0), {X: (0, 3)}, X + 1),
        (
            select(X >= 2, minimum(X, 2), 0),
            {},
            Select(Bin("ge", X, const(2, "int32")), const(2, "int32"), const(0, "int32")),
        ),
        (K * 4 < 12, {}, K < 3),
        (K * 4 + J < 12, {K: (0, 2), J: (0, 3)}, Const(1, "bool")),
        (K - 1 >= 0, {}, K >= 1),
        (K.eq(K + 1), {}, Const(0, "bool")),
        (Bin("and", X < 4, X < 8), {}, X < 4),
        (Un("not", X < 4), {}, X >= 4),
        (X + 0 - X, {}, const(0, "int32")),
        (X, {X: (5, 5)}, const(5, "int32")),
    ],
)
def test_forms(expr: Expr, bounds: Bounds, expected: Expr) -> None:
    assert simplify(expr, bounds) == expected


DATA = ir.Buffer("d", (8,), "int32")
BYTE = ir.Buffer("c", (8,), "int8")
REAL = ir.Buffer("r", (8,), "float32")


def test_data_sums_keep_their_order() -> None:
    """Reordering (d0 - d1) + d2 could overflow where the original does not."""
    expr = (DATA[0] - DATA[1]) + DATA[2]
    assert simplify(expr) == expr
    assert simplify((DATA[0] + 0) * 1) == DATA[0]
    assert simplify(DATA[0] * 0 + 1) == const(1, "int32")
    assert simplify(DATA[X // 4 * 4 + X % 4]) == DATA[X]


def test_floats_are_left_alone() -> None:
    for expr in (REAL[0] * 1.0, REAL[0] + 0.0, (REAL[0] + 1.0) + 2.0):
        assert simplify(expr) == expr
    assert simplify(const(1.5, "float32") * 2.0) == const(3.0, "float32")
    third = Bin("div", const(1, "float32"), const(3, "float32"))
    assert simplify(third) == third


def test_signed_overflow_is_not_folded() -> None:
    big = Const((1 << 31) - 1, "int32")
    assert simplify(Bin("add", Const((1 << 63) - 1, "int64"), Const(1, "int64"))).dtype == "int64"
    assert isinstance(simplify(Bin("add", Const((1 << 63) - 1, "int64"), Const(1, "int64"))), Bin)
    assert simplify(Bin("mul", big, X)) == Bin("mul", X, big)
    assert isinstance(simplify(Bin("mul", Bin("mul", X, big), big)), Bin)
    assert simplify(Bin("add", Const((1 << 32) - 1, "uint32"), Const(2, "uint32"))) == Const(1, "uint32")


def test_a_value_that_nothing_reads_any_more_is_dropped() -> None:
    byte, sign, out = ir.cast("int32", ir.Buffer("x", (1,), "int8")[0]), ir.Var("sign"), ir.Buffer("y", (1,), "int32")
    kept = ir.Store(out, (ir.const(0, "int32"),), sign + 1)
    gone = ir.Store(out, (ir.const(0, "int32"),), sign & 0)
    assert simplify_stmt(ir.Let(sign, byte, kept)) == ir.Let(sign, byte, kept)
    assert not isinstance(simplify_stmt(ir.Let(sign, byte, gone)), ir.Let)


def test_shifts_that_leave_one_number_are_that_number() -> None:
    """The sign of what cannot be negative is zero; what may be negative keeps it."""
    byte = ir.cast("int32", ir.Buffer("x", (1,), "int8")[0])
    assert simplify(((byte + 128) << 20) >> 31) == ir.const(0, "int32")
    assert simplify(byte >> 31) == byte >> 31
    assert simplify((byte - 128) >> 31) == ir.const(-1, "int32")


def test_bounds_of_data() -> None:
    wide = BYTE[0].astype("int32")
    assert bounds_of(BYTE[0]) == (-128, 127)
    assert bounds_of(wide * wide) == (-16256, 16384)
    assert bounds_of(DATA[0]) is None
    assert bounds_of(DATA[0].astype("int64") * 2) == (-(2**32), 2**32 - 2)
    assert bounds_of(minimum(maximum(DATA[0], -5), 9)) == (-5, 9)
    assert simplify(minimum(maximum(wide, -128), 127)) == wide
    assert bounds_of(maximum(wide * 3, wide * -3)) == (0, 384)
    assert bounds_of(X * 2 - Y, {X: (0, 3), Y: (1, 2)}) == (-2, 5)
    assert bounds_of(X) is None
    assert bounds_of((X * 4 + Y) // 2 - X * 2, {Y: (0, 5)}) == (0, 2)


def test_linear() -> None:
    assert linear((K + 2) * 4 + J - K) == ({K: 3, J: 1}, 8)
    assert linear(DATA[0] * 2 + 1) == ({DATA[0]: 2}, 1)
    assert linear(K // 4 + 1) == ({K // 4: 1}, 1)


# ---------------------------------------------------------------- statements

OUT = ir.Buffer("out", (64,), "int32")


def store(index: Expr, value: Expr | int = 1) -> ir.Stmt:
    return ir.Store(OUT, (index,), ir.as_expr(value, "int32"))


def test_loops_of_one_turn_vanish() -> None:
    body = ir.loops([(K, 1), (J, 4)], store(K * 4 + J))
    assert simplify_stmt(body) == ir.loops([(J, 4)], store(J))
    assert simplify_stmt(ir.loops([(K, 0)], store(K))) == ir.Seq(())


def test_dead_branches_vanish() -> None:
    inner = ir.If(K * 4 + J < 16, store(K), store(J))
    assert simplify_stmt(ir.loops([(K, 4), (J, 4)], inner)) == ir.loops([(K, 4), (J, 4)], store(K))
    assert simplify_stmt(ir.loops([(K, 4)], ir.If(K < 0, store(K)))) == ir.Seq(())
    assert simplify_stmt(ir.If(K < 2, ir.Seq(()), store(J))) == ir.If(K >= 2, store(J))
    nested = ir.If(K < 2, ir.If(K < 3, store(K)))
    assert simplify_stmt(nested) == ir.If(K < 2, store(K))


def test_conditions_on_overwritten_data_do_not_hold_on() -> None:
    condition = OUT[0] < 5
    body = ir.If(condition, ir.Seq((store(const(0, "int32"), 9), ir.If(condition, store(K)))))
    assert simplify_stmt(body) == body


def test_lets() -> None:
    v = Var("v")
    assert simplify_stmt(ir.Let(v, const(3, "int32"), store(v + 1))) == store(const(4, "int32"))
    data = ir.Let(v, DATA[0], store(K, (v - 5) + (v + 3)))
    assert simplify_stmt(data) == data
    bounded = ir.Let(v, K + 1, ir.If(v < 9, store(v)))
    assert simplify_stmt(ir.loops([(K, 8)], bounded)) == ir.loops([(K, 8)], ir.Let(v, K + 1, store(v)))


def test_tail_extents_bound_their_variable() -> None:
    extent = minimum(const(4, "int32"), 10 - K * 4)
    loop = ir.For(J, extent, ir.If(K * 4 + J < 10, store(K * 4 + J)))
    result = simplify_stmt(ir.loops([(K, 3)], loop))
    assert not any(isinstance(s, ir.If) for s in walk_stmt(result))


def test_blocks_keep_their_iterators() -> None:
    v = Var("v")
    block = ir.Block("b", (ir.IterVar(v, 1, "space", K),), store(v), None, K < 4)
    result = simplify_stmt(ir.loops([(K, 1)], block))
    assert result == ir.Block("b", (ir.IterVar(v, 1, "space", const(0, "int32")),), store(v))
    never = ir.Block("b", (ir.IterVar(v, 1, "space", K),), store(v), None, K < 0)
    assert simplify_stmt(ir.loops([(K, 4)], never)) == ir.Seq(())


def test_lowered_convolution_keeps_its_meaning() -> None:
    x, w = te.placeholder((1, 5, 5, 2), "int8", "x"), te.placeholder((3, 2), "int8", "w")
    k = te.reduce_axis(2, "k")
    padded = te.compute(
        (1, 7, 7, 2),
        lambda n, h, w, c: select(_inside(h, w), x[n, h - 1, w - 1, c], -3),
        "padded",
        ("n", "h", "w", "c"),
    )

    def point(n: Expr, h: Expr, v: Expr, c: Expr) -> Expr:
        return te.sum_reduce(padded[n, h, v, k.var].astype("int32") * w[c, k.var].astype("int32"), k)

    out = te.compute((1, 7, 7, 3), point, "out", ("n", "h", "v", "c"))
    func = te.create_prim_func("conv", [x], [out], [w])
    simple = ir.PrimFunc(func.name, func.params, simplify_stmt(func.body))
    rng = np.random.default_rng(1)
    arrays = [rng.integers(-128, 128, b.shape).astype(b.dtype) for b in func.params]
    assert np.array_equal(execute(func, arrays)[-1], execute(simple, arrays)[-1])
    assert all(Var("n") not in free_vars(e) for e in walk_all_exprs(simple.body))


def _inside(h: Expr, w: Expr) -> Expr:
    condition = ir.all_of([h >= 1, h < 6, w >= 1, w < 6])
    assert condition is not None
    return condition


@st.composite
def programs(draw: st.DrawFn, depth: int = 4) -> ir.Stmt:
    """Statements over the index variables that run without faults, when the variables are bound around them."""
    if depth == 0:
        index, value = draw(index_exprs), draw(index_exprs)
        return ir.Store(OUT, (index % 64,), OUT[index % 64] + value % 8)

    def below() -> ir.Stmt:
        return draw(programs(depth - 1))

    op = draw(st.sampled_from(sorted(ir.COMPARISONS)))
    match draw(st.sampled_from(["if", "seq", "for", "let", "block"])):
        case "if":
            return ir.If(
                Bin(op, draw(index_exprs), draw(index_exprs)), below(), below() if draw(st.booleans()) else None
            )
        case "seq":
            return ir.seq(below(), below())
        case "for":
            extent = draw(
                st.one_of(st.integers(0, 3).map(lambda n: const(n, "int32")), index_exprs.map(lambda e: e % 3))
            )
            return ir.For(Var(f"n{depth}"), extent, ir.Let(Var(f"v{depth}"), Var(f"n{depth}") * 2, below()))
        case "let":
            return ir.Let(Var(f"v{depth}"), draw(index_exprs), below())
        case _:
            binding = ir.IterVar(Var(f"w{depth}"), 5, "reduce", draw(index_exprs) % 5)
            predicate = Bin(op, draw(index_exprs), draw(index_exprs)) if draw(st.booleans()) else None
            return ir.Block("b", (binding,), below(), below(), predicate)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs(), st.lists(st.integers(1, 5), min_size=4, max_size=4))
def test_statements_keep_their_effect(stmt: ir.Stmt, extents: list[int]) -> None:
    body = ir.loops(list(zip(INDEX_VARS, extents, strict=True)), stmt)
    func = ir.PrimFunc("f", (OUT,), body)
    simple = ir.PrimFunc("f", (OUT,), simplify_stmt(body))
    start = [np.arange(64, dtype=np.int32)]
    assert np.array_equal(execute(func, start)[0], execute(simple, start)[0])


def test_speed_of_a_large_kernel() -> None:
    """A thousand stores of eight fused indices each stay well below a second (measured 0.15 s)."""
    index: Expr = const(0, "int32")
    for k in range(8):
        index = index + (F + k) // 4 * 4 + (F + k) % 4
    func = ir.Seq(tuple(store(index + n) for n in range(1000)))
    result = simplify_stmt(func)
    assert isinstance(result, ir.Seq) and result.body[1] == store(F * 8 + 29)
