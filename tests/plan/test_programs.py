# SPDX-License-Identifier: Apache-2.0
"""Random loop nests: whatever analysis or checker let overlap computes the same as apart."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from microc.base.dtypes import Array, to_numpy
from microc.errors import InternalError
from microc.module import Plan
from microc.plan.liveness import GRAIN
from microc.plan.plan_check import check_plan
from microc.tir import ir
from microc.tir.interp import compile_func
from tests.plan.test_overlap import one_step, room_of
from tests.support.campaign import examples

SIZE = 24
X = ir.Buffer("x", (SIZE,), "int8")
OUT = ir.Buffer("out", (4, SIZE // 4), "int8")
WORK = ir.Buffer("work", (8,), "int8", "workspace")


class _Program:
    """Draws statements; variables in scope have bounds, so that indices stay inside."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.count = 0

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def choice(self, *kinds: str) -> str:
        return self.draw(st.sampled_from(kinds))

    def index(self, size: int, scope: tuple[ir.Var, ...]) -> ir.Expr:
        """A sum of variables, wrapped around or held at the ends."""
        total: ir.Expr = ir.const(self.number(0, size - 1), "int32")
        for var in scope:
            total = total + var * self.number(-4, 6)
        if self.draw(st.booleans()):
            return total % size
        return ir.clamp(total, 0, size - 1)

    def value(self, scope: tuple[ir.Var, ...]) -> ir.Expr:
        parts = [X[self.index(SIZE, scope)], WORK[self.index(WORK.size, scope)]]
        loaded: ir.Expr = self.draw(st.sampled_from(parts))
        if self.choice("plain", "plain", "select") == "select":
            loaded = ir.select(self.condition(scope), loaded, X[self.index(SIZE, scope)])
        return ((loaded.astype("int32") * 3 + self.number(1, 9)) & 0x7F).astype("int8")

    def condition(self, scope: tuple[ir.Var, ...]) -> ir.Expr:
        left = ir.Bin("lt", self.index(SIZE, scope), ir.const(self.number(0, SIZE), "int32"))
        if self.draw(st.booleans()):
            data = X[self.index(SIZE, scope)].astype("int32") > self.number(-90, 90)
            return ir.Bin(self.choice("and", "or"), left, data)
        return left

    def store(self, scope: tuple[ir.Var, ...]) -> ir.Stmt:
        if self.choice("out", "out", "work") == "work":
            return ir.Store(WORK, (self.index(WORK.size, scope),), self.value(scope))
        return ir.Store(OUT, tuple(self.index(n, scope) for n in OUT.shape), self.value(scope))

    def statement(self, depth: int, scope: tuple[ir.Var, ...]) -> ir.Stmt:
        kind = self.choice("store", "loop", "loop", "row", "if", "let") if depth else "store"
        self.count += 1
        name = f"v{self.count}"
        match kind:
            case "loop":
                var, extent = ir.Var(name), self.number(1, 6)
                bound: ir.Expr = ir.const(extent, "int32")
                if len(scope) > 0 and self.draw(st.booleans()):
                    bound = ir.minimum(bound, scope[-1] + 1)
                return ir.For(var, bound, self.statement(depth - 1, (*scope, var)))
            case "row":
                return ir.seq(*(self.statement(depth - 1, scope) for _ in range(self.number(2, 3))))
            case "if":
                other = self.statement(depth - 1, scope) if self.draw(st.booleans()) else None
                return ir.If(self.condition(scope), self.statement(depth - 1, scope), other)
            case "let" if self.draw(st.booleans()):
                return ir.Let(ir.Var(name), self.index(SIZE, scope), self.statement(depth - 1, (*scope, ir.Var(name))))
            case "let":
                byte = ir.Var(name, "int8")
                stored = ir.Store(OUT, tuple(self.index(n, scope) for n in OUT.shape), byte)
                return ir.Let(byte, X[self.index(SIZE, scope)], ir.seq(self.statement(depth - 1, scope), stored))
            case _:
                return self.store(scope)


@st.composite
def programs(draw: st.DrawFn) -> ir.PrimFunc:
    program = _Program(draw)
    i = ir.Var("i")
    first = ir.For(i, ir.const(draw(st.integers(2, 8)), "int32"), program.statement(4, (i,)))
    return ir.PrimFunc("program", (X, OUT, WORK), ir.seq(first, program.statement(2, ())))


def working(func: ir.PrimFunc) -> set[int]:
    """Distances at which all bytes that the function writes come out as in memory of their own."""
    compiled = compile_func(func)
    data = np.random.default_rng(0).integers(-128, 128, SIZE).astype(np.int8)

    def run(x: Array, out: Array) -> Array:
        compiled([x, out.reshape(OUT.shape), np.zeros(WORK.shape, to_numpy(WORK.dtype))], {})
        return out.copy()

    fills = [run(data.copy(), np.full(SIZE, fill, np.int8)) for fill in (-1, -2)]
    written = fills[0] == fills[1]
    good = set()
    for distance in range(-SIZE, SIZE + GRAIN, GRAIN):
        arena = np.zeros(3 * SIZE, np.int8)
        x = arena[SIZE : 2 * SIZE]
        x[:] = data
        got = run(x, arena[SIZE + distance :][:SIZE])
        if np.array_equal(got[written], fills[0][written]):
            good.add(distance)
    return good


@given(programs())
@settings(max_examples=examples(120), deadline=None)
def test_random_programs(func: ir.PrimFunc) -> None:
    good = working(func)
    room, module = room_of(func), one_step(func)
    for distance in range(-SIZE + GRAIN, SIZE, GRAIN):
        if room.next_allowed(distance) == distance:
            assert distance in good
        plan = Plan({"x": SIZE, "out": SIZE + distance, "work": 400}, 500, 0, "by hand")
        try:
            check_plan(module.with_plan(plan))
        except InternalError:
            assert room.next_allowed(distance) != distance  # the planner takes nothing that the checker refuses
        else:
            assert distance in good
