# SPDX-License-Identifier: Apache-2.0
"""Loops in which operators copy memory: which are found, and that moving them competes with leaving them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from microc import te
from microc.schedule.choose import choose_schedule
from microc.schedule.rules import candidate_schedules
from microc.schedule.rules.movement import find_copy_loops_and_dtypes
from microc.target import SPEED, target_for
from microc.tir import ir
from microc.tir.ir import Buffer, Stmt, Var

Write = Callable[[Buffer, Buffer], Stmt]
N, K = Var("n"), Var("k")


def written(loops: Write, rows: int, length: int) -> ir.PrimFunc:
    """A function in which an operator goes through rows of bytes by its own loops."""
    data = te.placeholder((rows, length), "int8", "data")

    def build(operands: tuple[Buffer, ...], results: tuple[Buffer, ...]) -> Stmt:
        return loops(operands[0], results[0])

    made = te.extern("written", (data,), (("out", (rows, length), "int8"),), build)
    return te.create_prim_func("written", [data], list(made))


def rows_backwards(rows: int, length: int) -> ir.PrimFunc:
    """Rows in another order, so that they make no one run."""
    return written(
        lambda x, out: ir.loops([(N, rows), (K, length)], ir.Store(out, (N, K), x[rows - 1 - N, K])), rows, length
    )


@pytest.mark.parametrize(
    ("loops", "found"),
    [
        (lambda x, out: ir.loops([(N, 3), (K, 8)], ir.Store(out, (N, K), x[N, K])), ["k"]),
        (lambda x, out: ir.loops([(N, 3), (K, 8)], ir.Store(out, (N, K), x[N, 7 - K])), []),
        (lambda x, out: ir.loops([(N, 3), (K, 8)], ir.Store(out, (N, K), x[N, K] + x[N, K])), []),
        (lambda x, out: ir.loops([(N, 2), (K, 8)], ir.Store(out, (N + 1, K), out[N, K])), []),
        (lambda x, out: ir.loops([(K, 3), (N, 8)], ir.Store(out, (K, N), x[K, N])), ["n"]),
    ],
    ids=["a run", "backwards", "computed", "within one buffer", "other names"],
)
def test_what_is_a_copy(loops: Write, found: list[str]) -> None:
    assert [name for name, _ in find_copy_loops_and_dtypes(written(loops, 3, 8))] == found


def test_a_loop_whose_name_another_has_is_left() -> None:
    """Steps would take the first one of that name."""

    def loops(x: Buffer, out: Buffer) -> Stmt:
        first, second = ir.const(0, "int32"), ir.const(1, "int32")
        doubled = ir.loops([(K, 8)], ir.Store(out, (first, K), x[first, K] + x[first, K]))
        return ir.seq(doubled, ir.loops([(K, 8)], ir.Store(out, (second, K), x[second, K])))

    assert not list(find_copy_loops_and_dtypes(written(loops, 2, 8)))


@pytest.mark.parametrize(
    ("cpu", "moved"),
    [("cortex-m4", "load_i8x4"), ("cortex-m55", "copy_i8"), ("rv32imc", "move_i8"), ("cortex-m0", "move_i8")],
)
def test_long_runs_are_moved_as_the_core_moves_memory(cpu: str, moved: str) -> None:
    target = target_for(cpu)
    choice = choose_schedule(candidate_schedules(rows_backwards(5, 64), "reverse", target, SPEED), target, SPEED)
    assert choice.schedule.rule == "runs" and moved in str(choice.func.body)


def test_short_runs_are_copied_by_words() -> None:
    """Two bytes are a halfword: ``copy_i8`` of a known number of bytes is a memcpy up to some words, which compilers inline."""
    target = target_for("cortex-m55")
    choice = choose_schedule(candidate_schedules(rows_backwards(5, 2), "reverse", target, SPEED), target, SPEED)
    assert choice.schedule.rule == "runs" and "copy_i8" in str(choice.func.body)


def test_without_copies_there_is_nothing_to_compare() -> None:
    func = written(lambda x, out: ir.loops([(N, 3), (K, 8)], ir.Store(out, (N, K), x[N, 7 - K])), 3, 8)
    assert "runs" not in {s.rule for s in candidate_schedules(func, "reverse", target_for("cortex-m4"), SPEED)}
