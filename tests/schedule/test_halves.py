"""Products by halves equal the definition of the doubling high multiply."""

from __future__ import annotations

import numpy as np

from microc.fixed import NUMPY, doubling_high_mul
from microc.schedule.meaning import meanings
from microc.schedule.schedule import Schedule
from microc.tir import ir

EDGES = (0, 1, 2, 3, 32767, 32768, 32769, 65535, 65536, (1 << 30) - 1)
MANTISSAS = (0, 1, 32767, 65535, 65536, 1 << 30, (1 << 30) + 1, 0x7FFF0000, 0x7FFFFFFF)


def test_high_mul_is_exact() -> None:
    dice = np.random.default_rng(2)
    xs = sorted(
        {s * e for e in EDGES for s in (1, -1)} | {-(1 << 30)} | set(dice.integers(-(1 << 30), 1 << 30, 200).tolist())
    )
    ms = sorted({*MANTISSAS, *dice.integers(1 << 30, 1 << 31, 40).tolist()})
    high_mul = meanings()["high_mul"]
    for x in xs:
        for m in ms:
            assert high_mul([x, m]) == int(doubling_high_mul(x, m, NUMPY)), (x, m)


def test_selection_needs_the_shift() -> None:
    """Only the doubled operand says that there is room."""
    x, out, i = ir.Buffer("x", (4,), "int32"), ir.Buffer("out", (4,), "int32"), ir.Var("i")
    m = ir.const(1 << 30, "int32")

    def func(value: ir.Expr) -> ir.PrimFunc:
        return ir.PrimFunc("scale", (x, out), ir.loops([(i, 4)], ir.Store(out, (i,), value)))

    doubled = func(ir.call("smmlar", x[i] << 1, m, ir.const(7, "int32")))
    assert Schedule(doubled).select_high_mul().func == func(ir.call("high_mul", x[i], m) + 7)
    plain = func(ir.call("smmulr", x[i], m))
    assert Schedule(plain).select_high_mul().func == plain
