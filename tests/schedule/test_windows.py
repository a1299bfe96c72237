# SPDX-License-Identifier: Apache-2.0
"""Windows that slide over rows: where the rule is chosen, and what is left of the border in its loops."""

from __future__ import annotations

import numpy as np
import pytest

from microc import te
from microc.compiler.options import make_options
from microc.compiler.pipeline import compile_network
from microc.errors import ScheduleError
from microc.schedule.schedule import Schedule
from microc.target import target_for
from microc.tir import ir
from microc.tir.interp import run
from microc.tir.text import to_text
from tests.golden.kernels import convolution


@pytest.mark.parametrize("cpu", ["x86-64-v4-vnni", "x86-64-v3", "aarch64", "rv64gcv"])
@pytest.mark.parametrize(("width", "rule"), [(12, "window"), (6, "matrix")])
def test_rows_of_enough_outputs_are_read_where_they_lie(cpu: str, width: int, rule: str) -> None:
    made = compile_network(convolution((4, width), 4, 16, 3, 1), target_for(cpu), make_options())
    (call,) = made.module.calls
    assert call.rule == f"{rule} {'strips' if target_for(cpu).has('scalable') else 'vectors'}"


def rows(below: int) -> ir.PrimFunc:
    """Sums of two rows of an image with a border."""
    x = te.placeholder((4, 5), "int8", "x")

    def border(y: ir.Var, i: ir.Var) -> ir.Expr:
        inside = ir.all_of([y >= 1, y < 5, i >= 2, i < 7])
        return ir.select(inside, x[y - 1, i - 2], 3) if inside is not None else ir.const(0, "int8")

    padded = te.compute((5 + below, 9), border, "padded", ("y", "i"))
    k = te.reduce_axis(2, "k")
    acc = te.compute((4, 9), lambda y, i: te.sum_reduce(padded[y + k.var, i].astype("int32"), k), "acc", ("y", "i"))
    out = te.compute((4, 9), lambda y, i: acc[y, i], "out", ("y", "i"))
    return te.create_prim_func("rows", [x], [out])


def test_a_border_beside_rows_is_filled_and_rows_beyond_the_image_are_tested() -> None:
    func = rows(1)
    schedule = Schedule(func).compute_at("padded", "y_acc")
    split = schedule.decompose_padding("padded")
    text = to_text(split.func)
    assert "padded_fill" in text and text.count("T.Select") == 1
    x = np.arange(20, dtype=np.int8).reshape(4, 5)
    wanted, found = np.zeros((4, 9), np.int32), np.zeros((4, 9), np.int32)
    run(func, [x, wanted])
    run(split.func, [x, found])
    np.testing.assert_array_equal(found, wanted)
    with pytest.raises(ScheduleError, match="not counted by one loop each"):
        schedule.split("i_1", (None, 3)).decompose_padding("padded")
