# SPDX-License-Identifier: Apache-2.0
"""Memory of kernels whose loops two cores share: what they do at the same time has no order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from microc.errors import InternalError
from microc.module import Plan
from microc.plan.liveness import GRAIN
from microc.plan.plan_check import check_plan
from microc.schedule.schedule import Schedule
from microc.target import target_for
from microc.tir import ir
from microc.tir.lower import lower
from microc.tir.names import DISTRIBUTED
from microc.tir.rewrite import map_stmt, substitute_stmt
from tests.plan.kernels import kernel
from tests.plan.test_overlap import one_step, room_of, working
from tests.schedule.functions import matmul, padded_rows, schedule_kernel

M4 = target_for("cortex-m4")
FUNCTIONS: dict[str, Callable[[], Schedule | ir.PrimFunc]] = {
    "rows": lambda: Schedule(padded_rows(8, 8)).compute_at("padded", "y_acc").distribute("y_acc", 2),
    "an odd number": lambda: Schedule(padded_rows(7, 8)).compute_at("padded", "y_acc").distribute("y_acc", 2),
    "a tail": lambda: schedule_kernel(matmul(13, 8, 8), "dense", M4).distribute("p_0", 2),
    "inside": lambda: Schedule(padded_rows(3, 8)).compute_at("padded", "y_acc").distribute("c_1", 2),
}


def least_of_rows(halo: int) -> ir.PrimFunc:
    """Eight rows of four, four for each core: each is the minimum of an input row and the one ``halo`` rows behind it."""
    body = f"""
for core in T.parallel(2, annotations={{"cores": 2}}):
    for y in T.serial(4):
        for c in T.serial(4):
            out[core * 16 + y * 4 + c] = T.min(x[core * 16 + y * 4 + c], x[core * 16 + y * 4 + c + {4 * halo}])
"""
    return kernel(f"x: {32 + 4 * halo} int8, out: 32 int8", body)


FUNCTIONS |= {f"halo {n}": partial(least_of_rows, n) for n in (0, 1, 2)}


def other_first(func: ir.PrimFunc) -> ir.PrimFunc:
    """The function as one core runs it that does the other one's part first."""

    def swap(stmt: ir.Stmt) -> ir.Stmt:
        if isinstance(stmt, ir.For) and (DISTRIBUTED, 2) in stmt.annotations:
            return replace(stmt, body=substitute_stmt(stmt.body, {stmt.var: 1 - stmt.var}))
        return stmt

    swapped = replace(func, body=map_stmt(func.body, swap))
    assert swapped != func
    return swapped


@pytest.mark.parametrize("name", FUNCTIONS)
def test_safe_distances_work_in_both_orders(name: str) -> None:
    """And the checker, which shares no code with the analysis, lets pass those and none that does not work."""
    made = FUNCTIONS[name]()
    func = lower(made.func) if isinstance(made, Schedule) else made
    room, good = room_of(func), working(func) & working(other_first(func))
    module, source = one_step(func), func.params[0]
    rest = {p.name: 1000 + 1000 * k for k, p in enumerate(func.params) if p.scope == "workspace"}
    for distance in range(-room.second_bytes + GRAIN, room.first_bytes, GRAIN):
        try:
            check_plan(module.with_plan(Plan({source.name: 400, "out": 400 + distance, **rest}, 8000, 0, "by hand")))
        except InternalError as error:
            assert "overlaps" in str(error)
            assert room.next_allowed(distance) != distance
        else:
            assert distance in good


@pytest.mark.parametrize(("halo", "inner"), [(0, [0]), (1, [])])
def test_halves_overlap_in_place_only_without_a_halo(halo: int, inner: list[int]) -> None:
    """Core 0 reads the first row of core 1's half last, when core 1 may have written over it. In place means below, too, for one
    core, but a core's rows must not reach the other half's."""
    room = room_of(least_of_rows(halo))
    assert [d for d in range(-8, 9, GRAIN) if room.next_allowed(d) == d] == inner


@pytest.mark.parametrize(("index", "is_race"), [("core * 4 + i", False), ("core * 3 + i", True)])
def test_a_race_is_found_without_any_overlap(index: str, is_race: bool) -> None:
    body = f"""
for core in T.parallel(2, annotations={{"cores": 2}}):
    for i in T.serial(4):
        out[{index}] = x[{index}]
"""
    module = one_step(kernel("x: 8 int8, out: 8 int8", body))
    module = module.with_plan(Plan({"x": 0, "out": 8}, 16, 0, "by hand"))
    if is_race:
        with pytest.raises(InternalError, match="one core writes byte 3 of out while the other uses it"):
            check_plan(module)
    else:
        check_plan(module)
