# SPDX-License-Identifier: Apache-2.0
"""Products by halves equal the definition of the doubling high multiply."""

from __future__ import annotations

import numpy as np

from microc.numerics import NUMPY, doubling_high_mul
from microc.schedule.identities import THIRDS, intrinsic_functions
from microc.schedule.rules.around_rules import choose_identities
from microc.schedule.schedule import Schedule
from microc.target import target_for
from microc.tir import ir

BY_PARTS = choose_identities(target_for("cortex-m0"))
EDGES = (0, 1, 2, 3, 32767, 32768, 32769, 65535, 65536, (1 << 30) - 1)
MANTISSAS = (0, 1, 32767, 65535, 65536, 1 << 30, (1 << 30) + 1, 0x7FFF0000, 0x7FFFFFFF)


def test_high_mul_is_exact() -> None:
    dice = np.random.default_rng(2)
    xs = sorted(
        {s * e for e in EDGES for s in (1, -1)} | {-(1 << 30)} | set(dice.integers(-(1 << 30), 1 << 30, 200).tolist())
    )
    ms = sorted({*MANTISSAS, *dice.integers(1 << 30, 1 << 31, 40).tolist()})
    high_mul, product = intrinsic_functions()["high_mul"], intrinsic_functions()["product_2_31"]
    for x in xs:
        for m in ms:
            assert high_mul([x, m]) == int(doubling_high_mul(x, m, NUMPY)), (x, m)
            assert product([x, m]) == (x * m) >> 31, (x, m)


def test_thirds_are_exact_up_to_their_bound() -> None:
    """Rounded by one more bit they are the doubling high multiply."""
    dice = np.random.default_rng(3)
    xs = (
        sorted({s * e for e in (0, 1, 1023, 1024, THIRDS - 1, THIRDS) for s in (1, -1)})
        + dice.integers(-THIRDS, THIRDS, 200).tolist()
    )
    ms = sorted({*MANTISSAS, 1023, 1024, (1 << 20) - 1, 1 << 20, *dice.integers(1 << 30, 1 << 31, 40).tolist()})
    product = intrinsic_functions()["product_2_30"]
    for x in xs:
        for m in ms:
            assert product([x, m]) == (x * m) >> 30, (x, m)


def test_shifts_behind_thirds_are_joined() -> None:
    """Only in a block whose note bounds the sum; what is added between two shifts moves in front of them."""
    x, out, i, v = ir.Buffer("x", (4,), "int32"), ir.Buffer("out", (4,), "int32"), ir.Var("i"), ir.Var("v")
    m = ir.const(1 << 30, "int32")

    def func(value: ir.Expr, bound: int) -> ir.PrimFunc:
        iters = (ir.IterVar(v, 4, "space", i),)
        block = ir.Block("out", iters, ir.Store(out, (v,), value), annotations=(("bound", bound),))
        return ir.PrimFunc("scale", (x, out), ir.loops([(i, 4)], block))

    scaled, third = ir.call("high_mul_round", x[v] << 1, m), ir.call("product_2_30", x[v], m)
    selected = Schedule(func(scaled >> 3, THIRDS)).apply_identities(*BY_PARTS).func
    assert selected == func((third + 1) >> 4, THIRDS)
    selected = Schedule(func((scaled + 5) >> 3, THIRDS)).apply_identities(*BY_PARTS).func
    assert selected == func((third + 11) >> 4, THIRDS)
    selected = Schedule(func((scaled + 5) >> 31, THIRDS)).apply_identities(*BY_PARTS).func
    assert selected == func((third + 11) >> 31, THIRDS)  # only the sign is left, as by the 32 that C has not
    wide = Schedule(func(scaled >> 3, THIRDS + 1)).apply_identities(*BY_PARTS).func
    assert wide == func(ir.call("high_mul", x[v], m) >> 3, THIRDS + 1)
    for shifted in (x[v] << 18, x[v] * (1 << 18)):  # a multiplier above one: the note speaks of the sum, not of this
        selected = Schedule(func(ir.call("high_mul_round", shifted << 1, m), THIRDS)).apply_identities(*BY_PARTS).func
        assert selected == func(ir.call("high_mul", shifted, m), THIRDS)


def test_products_that_are_rounded_down_join_the_shift() -> None:
    """As a sum with what rounds, and where that is added between two shifts; elsewhere than behind a bound by halves."""
    x, out, i, v, s = (
        ir.Buffer("x", (4,), "int32"),
        ir.Buffer("out", (4,), "int32"),
        ir.Var("i"),
        ir.Var("v"),
        ir.Var("s"),
    )
    m = ir.const(1 << 30, "int32")

    def func(value: ir.Expr, bound: int) -> ir.PrimFunc:
        iters = (ir.IterVar(v, 4, "space", i),)
        block = ir.Block("out", iters, ir.Store(out, (v,), value), annotations=(("bound", bound),))
        return ir.PrimFunc("scale", (x, out), ir.loops([(i, 4)], block))

    third, half = ir.call("product_2_30", x[v], m), ir.call("product_2_31", x[v], m)
    once = ir.call("high_mac", x[v] << 1, m, ir.const(5, "int32")) >> 3
    split = ((ir.call("high_product", x[v] << 1, m) >> s) + 7) >> 1
    assert Schedule(func(once, THIRDS)).apply_identities(*BY_PARTS).func == func((third + 10) >> 4, THIRDS)
    assert Schedule(func(once, THIRDS + 1)).apply_identities(*BY_PARTS).func == func((half + 5) >> 3, THIRDS + 1)
    assert Schedule(func(split, THIRDS)).apply_identities(*BY_PARTS).func == func(((third >> (s + 1)) + 7) >> 1, THIRDS)
    assert Schedule(func(split, THIRDS + 1)).apply_identities(*BY_PARTS).func == func(
        ((half >> s) + 7) >> 1, THIRDS + 1
    )


def test_doubled_operands_are_taken_back_where_nobody_wants_them() -> None:
    """Not where what is added is odd, nor of more than twice x."""
    x, out, i, s = (
        ir.Buffer("x", (4,), "int32"),
        ir.Buffer("out", (4,), "int32"),
        ir.Var("i"),
        ir.Buffer("s", (4,), "int32"),
    )
    m, one = ir.const(1 << 30, "int32"), ir.const(1, "int32")

    def func(operand: ir.Expr, added: ir.Expr, shift: ir.Expr | int) -> ir.PrimFunc:
        value = ir.call("high_mac", operand, m, added) >> shift
        return ir.PrimFunc("scale", (x, s, out), ir.loops([(i, 4)], ir.Store(out, (i,), value)))

    def selected(start: ir.PrimFunc) -> ir.PrimFunc:
        return Schedule(start).apply_identities("halved_operand", "halved_operand_by_data").func

    assert selected(func(x[i] << 1, ir.const(8, "int32"), 4)) == func(x[i], ir.const(4, "int32"), 3)
    found = selected(func(x[i] << 1, (one << (s[i] - 1)) * -255, s[i]))
    assert found == func(x[i], (one << (s[i] - 2)) * -255, s[i] - 1)
    for kept in (
        func(x[i] << 1, one, 1),
        func(x[i] << 2, ir.const(8, "int32"), 4),
        func(x[i], ir.const(8, "int32"), 4),
    ):
        assert selected(kept) == kept


def test_selection_needs_the_shift() -> None:
    """Only the doubled operand says that there is room."""
    x, out, i = ir.Buffer("x", (4,), "int32"), ir.Buffer("out", (4,), "int32"), ir.Var("i")
    m = ir.const(1 << 30, "int32")

    def func(value: ir.Expr) -> ir.PrimFunc:
        return ir.PrimFunc("scale", (x, out), ir.loops([(i, 4)], ir.Store(out, (i,), value)))

    doubled = func(ir.call("high_mac_round", x[i] << 1, m, ir.const(7, "int32")))
    assert Schedule(doubled).apply_identities(*BY_PARTS).func == func(ir.call("high_mul", x[i], m) + 7)
    plain = func(ir.call("high_mul_round", x[i], m))
    assert Schedule(plain).apply_identities(*BY_PARTS).func == plain


def test_clamps_to_bytes_are_chosen() -> None:
    x, out, i = ir.Buffer("x", (4,), "int32"), ir.Buffer("out", (4,), "int8"), ir.Var("i")

    def func(value: ir.Expr) -> ir.PrimFunc:
        return ir.PrimFunc("clamp", (x, out), ir.loops([(i, 4)], ir.Store(out, (i,), ir.cast("int8", value))))

    clamped = Schedule(func(ir.clamp(x[i], -128, 127)))
    assert clamped.select_intrinsics("clamp8").func == func(ir.call("clamp8", x[i]))
    narrow = func(ir.clamp(x[i], -128, 126))
    assert Schedule(narrow).select_intrinsics("clamp8").func == narrow
