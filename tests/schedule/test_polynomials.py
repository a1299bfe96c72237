# SPDX-License-Identifier: Apache-2.0
"""Functions of floats by arithmetic: how near they are, and what becomes of NaN, infinities and zeros."""

from __future__ import annotations

import math

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.schedule.primitives.float_functions import ERRORS, LOGARITHMS, select_functions
from microc.schedule.rules.around_rules import canonicalise_for_target
from microc.schedule.rules.rule import FAST_MATH
from microc.target import target_for
from microc.tir import ir
from tests.codegen.machines import meant

BOTH = pytest.mark.parametrize("fused", [True, False])


def _by_arithmetic(name: str, x: Array, fused: bool) -> Array:
    i, data, out = ir.Var("i"), ir.Buffer("x", x.shape, "float32"), ir.Buffer("out", x.shape, "float32")
    body = ir.For(i, ir.const(len(x), "int32"), ir.Store(out, (i,), ir.call(name, data[i])))
    func = select_functions(ir.PrimFunc("function", (data, out), body), fused, name in LOGARITHMS)
    assert f"'{name}'" not in str(func)
    return meant(func, (x,))


@BOTH
@pytest.mark.parametrize(("name", "reach"), [("erf", 5.0), ("tanh", 11.0), ("exp", 87.0), ("expm1", 87.0)])
def test_functions_are_near(name: str, reach: float, fused: bool) -> None:
    x = np.concatenate([np.linspace(-reach, reach, 2001), np.geomspace(1e-30, 1, 200)]).astype(np.float32)
    wanted = np.array([getattr(math, name)(each) for each in x])
    found = _by_arithmetic(name, x, fused)
    assert (np.abs(found - wanted) <= ERRORS[name] * np.abs(wanted)).all()


@BOTH
@pytest.mark.parametrize("name", ["erf", "tanh"])
def test_odd_functions_of_what_is_no_number(name: str, fused: bool) -> None:
    found = _by_arithmetic(name, np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], np.float32), fused)
    assert np.isnan(found[0]) and np.abs(found[1:3] - [1, -1]).max() <= ERRORS[name]
    assert list(np.signbit(found[3:])) == [False, True]


@BOTH
def test_exp_of_what_is_no_number_and_beyond_the_normal_ones(fused: bool) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 88.7, 88.8, -95.0, -104.5], np.float32)
    with np.errstate(over="ignore"):
        found = _by_arithmetic("exp", x, fused)
    assert np.isnan(found[0])
    np.testing.assert_array_equal(found[[1, 2, 3, 4, 6, 8]], np.array([np.inf, 0, 1, 1, np.inf, 0], np.float32))
    assert abs(found[5] - math.exp(x[5])) <= ERRORS["exp"] * math.exp(x[5])
    assert abs(found[7] - math.exp(-95)) <= 2 * np.finfo(np.float32).smallest_subnormal


@BOTH
def test_expm1_of_what_is_no_number_and_beyond_the_normal_ones(fused: bool) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 88.7, 88.8, -104.5, 1e-45], np.float32)
    with np.errstate(over="ignore"):
        found = _by_arithmetic("expm1", x, fused)
    assert np.isnan(found[0])
    np.testing.assert_array_equal(
        found[[1, 2, 3, 4, 6, 7, 8]], np.array([np.inf, -1, 0, 0, np.inf, -1, 1e-45], np.float32)
    )
    assert abs(found[5] - math.expm1(x[5])) <= ERRORS["expm1"] * math.expm1(x[5])


@BOTH
def test_logarithms_of_one_and_more(fused: bool) -> None:
    some = np.concatenate([np.geomspace(1e-45, 3e38, 1001), -np.geomspace(1e-45, 0.999, 1001)]).astype(np.float32)
    wanted = np.log1p(some.astype(np.float64))
    assert (np.abs(_by_arithmetic("log1p", some, fused) - wanted) <= ERRORS["log1p"] * np.abs(wanted)).all()
    with np.errstate(divide="ignore", invalid="ignore"):
        found = _by_arithmetic("log1p", np.array([np.nan, np.inf, 0.0, -1.0, -1.5, -np.inf], np.float32), fused)
    assert np.isnan(found[[0, 4, 5]]).all()
    assert list(found[1:4]) == [np.inf, 0.0, -np.inf]


@BOTH
def test_logarithms_are_near(fused: bool) -> None:
    near_one = 1 + np.linspace(-1e-3, 1e-3, 401)
    x = np.concatenate([np.geomspace(1e-45, 3e38, 2001), near_one]).astype(np.float32)
    wanted = np.log(x.astype(np.float64))
    found = _by_arithmetic("log", x, fused)
    assert (np.abs(found - wanted) <= ERRORS["log"] * np.abs(wanted)).all()


@BOTH
def test_logarithms_of_what_has_none(fused: bool) -> None:
    x = np.array([np.nan, np.inf, 1.0, 0.0, -0.0, -1.0, -np.inf], np.float32)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = _by_arithmetic("log", x, fused)
    assert np.isnan(found[[0, 5, 6]]).all()
    assert list(found[1:5]) == [np.inf, 0.0, -np.inf, -np.inf]


@pytest.mark.parametrize(
    ("cpu", "calls"),
    [
        ("cortex-m4", {"log", "log1p"}),
        ("rv32imafc", {"log", "log1p"}),
        ("host", {"erf", "exp", "expm1", "tanh", "log", "log1p"}),
        ("cortex-m3", {"erf", "exp", "expm1", "tanh", "log", "log1p"}),
    ],
)
@pytest.mark.parametrize("name", ["erf", "exp", "expm1", "tanh", "log", "log1p"])
def test_calls_of_the_library(name: str, cpu: str, calls: set[str]) -> None:
    """Exact floats call the library for logarithms, and for all functions on cores without an FPU or without fused
    multiply-adds. Fast floats call it only without an FPU, where an operation is a call as dear as the function's."""
    i, data, out = ir.Var("i"), ir.Buffer("x", (64,), "float32"), ir.Buffer("out", (64,), "float32")
    body = ir.For(i, ir.const(64, "int32"), ir.Store(out, (i,), ir.call(name, data[i])))
    func = ir.PrimFunc("function", (data, out), body)
    target = target_for(cpu)
    assert (f"'{name}'" in str(canonicalise_for_target(func, target).func)) == (name in calls)
    fast = canonicalise_for_target(func, target.with_features(FAST_MATH))
    assert (f"'{name}'" in str(fast.func)) == (cpu == "cortex-m3")
