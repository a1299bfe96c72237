# SPDX-License-Identifier: Apache-2.0
"""Floats rounded to integers by one instruction that saturates: the same numbers as by clamping first, NaN included."""

from __future__ import annotations

import numpy as np
import pytest

from microc import te
from microc.base.dtypes import Array, int_range, to_numpy
from microc.numerics import round_half_even
from microc.ops.quantised.scaling import largest_float32_not_above, round_to_int32
from microc.target import target_for
from microc.tir import ir
from microc.tir.lower import lower
from microc.tir.rewrite import walk_all_exprs
from tests.codegen.machines import meant
from tests.schedule.functions import schedule_kernel

NUMBERS = np.array([0, 1, -1, 2, 3, 5, -5, 77, -300, 40000, -40000, 1 << 22, -(1 << 22), (1 << 31) - 1, -(1 << 31)])
FLOATS = np.array([np.nan, np.inf, -np.inf, 0.5, 1.5, -2.5, 126.5, 127.5, -128.5, 3e9, -3e9, 1e-40], np.float32)


def scaled(dtype: str, zero: int, low: int, high: int, source: str, notes: bool) -> ir.PrimFunc:
    """x times a scale in memory, rounded, shifted and clamped, as ``requantize_float`` does."""
    size = (NUMBERS if source == "int32" else FLOATS).size
    x, scale = te.placeholder((size,), source, "x"), te.placeholder((size,), "float32", "scale")

    def element(i: ir.Var) -> ir.Expr:
        rounded = round_to_int32(ir.cast("float32", x[i]) * scale[i], low - zero, high - zero, "even")
        return ir.cast(dtype, rounded + zero if zero else rounded)

    out = te.compute((size,), element, "out", ("i",), (("magnitude", 1),) if notes else ())
    return te.create_prim_func("scaled", [x], [out], [scale])


def wanted(x: Array, scale: Array, dtype: str, zero: int, low: int, high: int) -> Array:
    with np.errstate(invalid="ignore"):
        reals = x.astype(np.float32) * scale
    reals = np.clip(np.where(np.isnan(reals), low - zero, reals), low - zero, largest_float32_not_above(high - zero))
    return (round_half_even(reals.astype(np.float32)).astype(np.int64) + zero).astype(to_numpy(dtype))


@pytest.mark.parametrize(("source", "notes"), [("int32", True), ("int32", False), ("float32", True)])
@pytest.mark.parametrize(
    ("dtype", "zero", "limits"),
    [
        ("int8", 0, ()),
        ("int8", -7, ()),
        ("int8", 5, (5, 127)),
        ("uint8", 255, ()),
        ("uint8", 3, (3, 90)),
        ("int16", 9, ()),
    ],
)
def test_rounding_saturates(source: str, notes: bool, dtype: str, zero: int, limits: tuple[int, int]) -> None:
    low, high = limits or int_range(dtype)
    func = scaled(dtype, zero, low, high, source, notes)
    x = NUMBERS.astype(np.int32) if source == "int32" else FLOATS
    scale = np.resize(np.array([1.0, 0.5, 0.01], np.float32), x.size)
    made = schedule_kernel(func, "requantize_float", target_for("cortex-m4")).func
    parts = list(walk_all_exprs(made.body))
    assert any(isinstance(part, ir.Call) and part.name == "nearest_i32" for part in parts)
    clamps = [
        part for part in parts if isinstance(part, ir.Bin) and part.op in ("min", "max") and part.dtype == "float32"
    ]
    assert len(clamps) == (
        0 if source == "int32" and notes else 1
    )  # NaN is met where the factor is not known to be finite
    for function in (func, lower(made)):
        found = meant(function, [x, scale])
        np.testing.assert_array_equal(found, wanted(x, scale, dtype, zero, low, high))
