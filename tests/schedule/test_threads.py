# SPDX-License-Identifier: Apache-2.0
"""Loops of kernels that are split among threads: which are, and that each thread has memory of its own."""

from __future__ import annotations

import numpy as np
import pytest

from microc import te
from microc.schedule.choose import Choice
from microc.schedule.rules import around_rules
from microc.schedule.schedule import Schedule
from microc.target import target_for
from microc.tir import ir
from microc.tir.analysis.cover import has_disjoint_iterations
from microc.tir.lower import lower
from microc.tir.rewrite import walk_stmt
from tests.schedule.functions import matmul, outputs, padded_rows, schedule_kernel

HOST = target_for("host")


def parallel(func: ir.PrimFunc) -> list[ir.For]:
    return [s for s in walk_stmt(func.body) if isinstance(s, ir.For) and s.kind == "parallel"]


def split(schedule: Schedule, count: int) -> Choice:
    return around_rules.split_across_threads(Choice(schedule, lower(schedule.func)), HOST, count)


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("func", [matmul(24, 8, 12), matmul(10, 5, 6), padded_rows(9, 8)], ids=["even", "odd", "rows"])
def test_the_meaning_is_kept(func: ir.PrimFunc, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(around_rules, "MIN_INSTRUCTIONS", 0)
    schedule = schedule_kernel(func, "dense", HOST)
    made = split(schedule, count).schedule
    assert parallel(made.func)
    wanted = outputs(func, lowered=False)
    assert np.array_equal(outputs(made.func, lowered=True, schedule=made), wanted)


def test_workspaces_are_one_for_each_thread() -> None:
    start = Schedule(matmul(8, 6, 4)).cache_read("acc", "x", "workspace").reverse_compute_at("out", "o")
    start = start.set_scope("acc", "register").split("p", (4, None)).compute_at("x_workspace", "p_1")
    (alone,) = (b for b in lower(start.func).params if b.name == "x_workspace")
    (shared,) = (b for b in lower(start.parallel("p_0", private=True).func).params if b.name == "x_workspace")
    assert shared.shape == (4, *alone.shape)


@pytest.mark.parametrize(
    ("extent", "count", "turns"),
    [(128, 2, 2), (128, 3, 8), (9, 2, 3), (12, 4, 4), (3, 2, 3), (2, 8, 2), (37, 2, 0), (1, 2, 0), (0, 2, 0)],
)
def test_turns_are_alike_and_few(extent: int, count: int, turns: int) -> None:
    assert around_rules._chunk_count(extent, count) == turns


def test_tiles_with_a_rest_stay_serial(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of seven rows in tiles of two is peeled off."""
    monkeypatch.setattr(around_rules, "MIN_INSTRUCTIONS", 0)
    start = Schedule(matmul(7, 6, 4)).reverse_compute_at("out", "o").set_scope("acc", "register").split("p", (None, 2))
    assert not parallel(split(start, 2).schedule.func)


def test_small_loops_and_one_thread_change_nothing() -> None:
    schedule = schedule_kernel(matmul(24, 8, 12), "dense", HOST)
    choice = Choice(schedule, lower(schedule.func))
    assert around_rules.split_across_threads(choice, HOST, 1) is choice
    assert around_rules.split_across_threads(choice, HOST, 2) is choice


def test_loops_whose_turns_need_each_other_stay_serial(monkeypatch: pytest.MonkeyPatch) -> None:
    """The only loop sums up."""
    monkeypatch.setattr(around_rules, "MIN_INSTRUCTIONS", 0)
    x, k = te.placeholder((64,), "int32", "x"), te.reduce_axis(64, "k")
    total = te.compute((1,), lambda _: te.sum_reduce(x[k.var], k), "out", ("o",))
    choice = split(Schedule(te.create_prim_func("total", [x], [total])), 2)
    assert not parallel(choice.func)


Y, TURN, INNER = ir.Buffer("y", (4, 6), "int32"), ir.Var("t"), ir.Var("i")


def turns(*indices: ir.Expr, extent: int = 3) -> ir.For:
    """Each of two turns stores where an inner loop of ``extent`` says."""
    inner = ir.For(INNER, ir.const(extent, "int32"), ir.Store(Y, indices, ir.const(0, "int32")))
    return ir.For(TURN, ir.const(2, "int32"), inner, "parallel")


@pytest.mark.parametrize(
    ("loop", "apart"),
    [
        (turns(TURN, INNER), True),
        (turns(ir.const(0, "int32"), TURN * 3 + INNER), True),
        (turns(ir.const(0, "int32"), TURN * 2 + INNER), False),
        (turns(INNER, TURN * 3), True),
        (turns(INNER, ir.const(0, "int32")), False),
        (turns(TURN * 2 + INNER, TURN, extent=2), True),
        (turns(TURN * TURN, INNER), False),
        (turns((TURN * 6 + INNER) // 6, (TURN * 6 + INNER) % 6, extent=6), True),
    ],
)
def test_turns_are_told_apart(loop: ir.For, apart: bool) -> None:
    assert has_disjoint_iterations(loop, Y) is apart
