# SPDX-License-Identifier: Apache-2.0
"""Stages of rows, one row after the other: the same numbers, and no memory for all rows."""

from __future__ import annotations

import numpy as np
import pytest

from microc import te
from microc.schedule.identities import intrinsic_functions
from microc.schedule.rules.generic import matches_rows, schedule_rows
from microc.schedule.schedule import Schedule
from microc.target import target_for
from microc.tir import ir
from microc.tir.interp import execute
from microc.tir.lower import lower
from microc.tir.rewrite import walk_stmt
from tests.codegen.machines import meant


def shares(rows: int, width: int, *, other: bool = False) -> ir.PrimFunc:
    """out = (x - largest) * total of every row; ``other``: of the row after."""
    x = te.placeholder((rows, width), "int8", "x")
    k, j = te.reduce_axis(width, "k"), te.reduce_axis(width, "j")
    largest = te.compute((rows,), lambda n: te.max_reduce(x[n, k.var].astype("int32"), k, init=-128), "largest", ("n",))
    gap = te.compute((rows, width), lambda n, c: largest[n] - x[n, c].astype("int32"), "gap", ("n", "c"))
    total = te.compute((rows,), lambda n: te.sum_reduce(gap[n, j.var], j), "total", ("n",))
    out = te.compute((rows, width), lambda n, c: gap[n, c] * total[(n + 1) % rows if other else n], "out", ("n", "c"))
    return te.create_prim_func("shares", [x], [out])


@pytest.mark.parametrize("core", ["cortex-m4", "cortex-m55"])
@pytest.mark.parametrize("unrolled", [False, True])
def test_a_row_is_finished_before_the_next(core: str, unrolled: bool) -> None:
    func = shares(5, 11)
    assert matches_rows(Schedule(func), target_for(core))
    made = lower(schedule_rows(Schedule(func), target_for(core), {"unrolled": unrolled}).func)
    kept = {s.buffer.name: s.buffer.size for s in walk_stmt(made.body) if isinstance(s, ir.Alloc)}
    assert kept == {"largest": 1, "total": 1}
    assert {p.name: p.size for p in made.params if p.scope == "workspace"} == {"gap": 11}
    x = np.random.default_rng(2).integers(-128, 128, (5, 11)).astype(np.int8)
    arrays = [x if p.name == "x" else np.zeros(p.shape, np.int32) for p in made.params]
    found = dict(zip((p.name for p in made.params), execute(made, arrays, intrinsic_functions()), strict=True))["out"]
    np.testing.assert_array_equal(found, meant(func, [x]))


def test_what_needs_other_rows_is_left_alone() -> None:
    assert not matches_rows(Schedule(shares(5, 11, other=True)), target_for("cortex-m4"))
