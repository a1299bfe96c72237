# SPDX-License-Identifier: Apache-2.0
"""Elements of a transposed operand: vectors along its rows, a workspace of results, and columns stored from it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from microc import te
from microc.schedule.rules import candidate_schedules
from microc.schedule.schedule import Schedule
from microc.target import SPEED, target_for
from microc.tir import ir
from microc.tir.interp import run
from microc.tir.lower import lower
from tests.schedule.functions import outputs, schedule_kernel
from tests.support.native import build, call

CORES = ("x86-64-v2", "x86-64-v3", "x86-64-v4-vnni", "aarch64", "wasm-simd128", "rv64gcv")


def quantize_transposed(batch: int, rows: int, columns: int) -> ir.PrimFunc:
    """out[b, r, c] = clamp((3 * data[b, c, r]) >> 2) in int8."""
    data = te.placeholder((batch, columns, rows), "int16", "data")
    moved = te.compute((batch, rows, columns), lambda b, r, c: data[b, c, r], "moved", ("b", "r", "c"))

    def clamped(b: ir.Var, r: ir.Var, c: ir.Var) -> ir.Expr:
        return ir.clamp((moved[b, r, c].astype("int32") * 3) >> 2, -128, 127).astype("int8")

    return te.create_prim_func(
        "quantize", [data], [te.compute((batch, rows, columns), clamped, "out", ("b", "r", "c"))]
    )


@pytest.mark.parametrize("cpu", CORES)
@pytest.mark.parametrize("shape", [(1, 128, 3), (2, 101, 3), (1, 21, 64), (3, 16, 2)], ids=str)
def test_columns_are_stored_from_vectors_along_rows(cpu: str, shape: tuple[int, int, int]) -> None:
    func = quantize_transposed(*shape)
    schedules = {schedule.rule: schedule for schedule in candidate_schedules(func, "transpose", target_for(cpu), SPEED)}
    schedule = schedules["transposed vectors"]
    np.testing.assert_array_equal(outputs(func, lowered=True, schedule=schedule), outputs(func, lowered=False))


@pytest.mark.parametrize("cpu", CORES)
def test_three_columns_are_stored_from_vectors_by_price(cpu: str) -> None:
    schedule = schedule_kernel(quantize_transposed(1, 128, 3), "transpose", target_for(cpu))
    assert schedule.rule == "transposed vectors"


def test_rows_too_long_for_a_workspace_are_scalar() -> None:
    """Sixteen elements of 2,000 columns would take 32,000 bytes."""
    schedule = schedule_kernel(quantize_transposed(1, 32, 2000), "transpose", target_for("x86-64-v4"))
    assert schedule.rule != "transposed vectors"


def test_the_compiled_function_gives_the_same_bytes(tmp_path: Path) -> None:
    func = quantize_transposed(2, 37, 5)
    schedule = schedule_kernel(func, "transpose", target_for("x86-64-v2"))
    lowered = lower(schedule.func)
    data = np.random.default_rng(0).integers(-400, 400, func.params[0].shape).astype(np.int16)
    want = np.zeros(func.params[1].shape, np.int8)
    run(Schedule(func).func, [data, want])
    arrays = [data, *[None] * (len(lowered.params) - 1)]  # the result, and the workspace
    np.testing.assert_array_equal(call(build([lowered], tmp_path), lowered, arrays)[1], want)
