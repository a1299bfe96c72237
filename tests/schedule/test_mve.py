"""Schedules for cores with vectors (MVE): the same integers as the reference, and everything that repeats in lanes."""

from __future__ import annotations

import numpy as np
import pytest

from microc.schedule.meaning import meanings
from microc.schedule.rules import schedule_kernel
from microc.target import target_for
from microc.tir import ir
from microc.tir.interp import run
from microc.tir.lower import lower
from microc.tir.lower.lane_patterns import rounding_shift
from microc.tir.rewrite import walk_all_exprs
from microc.tir.verify import verify
from tests.schedule.test_depthwise import LAYERS, arguments, reference

M55 = target_for("cortex-m55")
SCALAR_SCALING = ("smmulr", "smmlar", "ssat8")


@pytest.mark.parametrize("name", LAYERS)
def test_depthwise_in_lanes_is_exact(name: str) -> None:
    graph, group = LAYERS[name].group()
    schedule = schedule_kernel(group.func, "conv2d", M55)
    func = lower(schedule.func)
    verify(func, trust_data=True)
    calls = {e.name for e in walk_all_exprs(func.body) if isinstance(e, ir.Call)}
    assert any(call.startswith("qrdmulh") for call in calls) and not calls & set(SCALAR_SCALING)
    x = LAYERS[name].input()
    arrays = arguments(group, schedule, func, x)
    run(func, arrays, meanings())
    result = arrays[len(group.params)]
    np.testing.assert_array_equal(result, reference(graph, x).reshape(result.shape))


def test_rounding_added_by_the_multiplication_is_recognised() -> None:
    """With a zero point, with what else is added, by a distance that is data or a number; not what rounds otherwise."""
    x, m, s = ir.Var("x"), ir.Var("m"), ir.Var("s")
    one, product = ir.const(1, "int32"), ir.call("smmulr", x << 1, m)
    half = one << (s - 1)

    def rounded(added: ir.Expr, distance: ir.Expr | int) -> ir.Expr:
        return ir.call("smmlar", x << 1, m, added) >> distance

    assert rounding_shift(rounded(half, s)) == (product, s, 0)
    assert rounding_shift(rounded(half * -255, s)) == (product, s, -128)
    assert rounding_shift(rounded((x >> 31) + half * 7, s)) == (product + (x >> 31), s, 3)
    number = rounding_shift(rounded((x >> 31) + (16 + 3 * 32), 5))
    assert number == (product + (x >> 31), ir.const(5, "int32"), 3)
    assert rounding_shift(rounded(half * 2, s)) is None
    assert rounding_shift(rounded(half + 1, s)) is None
    assert rounding_shift(rounded(one << s, s)) is None
    assert rounding_shift(rounded(ir.const(15, "int32"), 5)) is None
