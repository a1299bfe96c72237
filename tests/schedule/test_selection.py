"""Instructions that clamp: what compilers do not know of them is not left to them."""

from __future__ import annotations

import numpy as np
import pytest

from microc.schedule.intrinsic_meanings import intrinsic_functions
from microc.schedule.primitives.selection import select_saturation
from microc.tir import ir
from microc.tir.interp import execute
from microc.tir.rewrite import walk_all_exprs

INDEX = ir.Var("i")
X, OUT = ir.Buffer("x", (9,), "int32"), ir.Buffer("out", (9,), "int32")
ENDS = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767)}


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("dtype", ENDS)
@pytest.mark.parametrize("held", ENDS)
def test_a_clamped_number_needs_no_cast_to_its_dtype_and_back(held: str, dtype: str, half: bool) -> None:
    low, high = ENDS[held]
    value = X[INDEX] >> 1 if half else X[INDEX]
    clamped = ir.binary("min", ir.binary("max", value, ir.const(low, "int32")), ir.const(high, "int32"))
    body = ir.Store(OUT, (INDEX,), clamped.astype(dtype).astype("int32") + 1)
    func = ir.PrimFunc("f", (X, OUT), ir.For(INDEX, ir.const(9, "int32"), body))
    selected = select_saturation(func)
    assert any(isinstance(x, ir.Cast) for x in walk_all_exprs(selected.body)) == (held != dtype)
    numbers = np.array([-(1 << 31), (1 << 31) - 1, -40000, 40000, -300, 300, -7, 0, 7], np.int32)
    after, before = (execute(f, [numbers, np.zeros(9, np.int32)], intrinsic_functions())[-1] for f in (selected, func))
    np.testing.assert_array_equal(after, before)
