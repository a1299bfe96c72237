# SPDX-License-Identifier: Apache-2.0
"""Rules for numbers that depend on sizes, and one function from several."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from microc import te
from microc.schedule.schedule import Schedule, generalise_trace
from microc.tir import ir
from microc.tir.analysis.generalise import StructureMismatch, generalise, lower_with_hidden_sizes
from microc.tir.analysis.size_forms import FittedExtent, RuleFitter, evaluate_at_sizes, fit_strided_rules
from microc.tir.interp import execute
from microc.tir.lower import lower
from microc.tir.verify import verify

N, M = ir.Var("size_n"), ir.Var("size_m")
POINTS = ((19, 40), (26, 54), (33, 35), (40, 68), (47, 61), (54, 47))


def fitter(points: tuple[tuple[int, int], ...] = POINTS) -> RuleFitter:
    domain = [{"size_n": n, "size_m": m} for n in range(1, 60) for m in range(1, 70, 5)]
    return RuleFitter(
        [FittedExtent(N, tuple(n for n, _ in points)), FittedExtent(M, tuple(m for _, m in points))], domain
    )


@pytest.mark.parametrize(
    "rule", [lambda n, m: 7, lambda n, m: 3 * n - 2, lambda n, m: n * m * 8 + 4 * n, lambda n, m: n * n * m + 2 * m - 9]
)
def test_rules_hold_elsewhere(rule: object) -> None:
    assert callable(rule)
    found = fitter().fit_integer([rule(n, m) for n, m in POINTS])
    assert found is not None
    assert all(
        evaluate_at_sizes(found, {"size_n": n, "size_m": m}) == rule(n, m) for n, m in ((1, 1), (2, 9), (100, 3))
    )


def test_what_follows_no_rule() -> None:
    assert fitter().fit_integer([3, 1, 4, 1, 5, 9]) is None
    assert fitter().fit_float([0.3, 0.1, 0.4, 0.1, 0.5, 0.9], "float32") is None


def test_floats_are_equal_in_every_bit() -> None:
    wanted = [float(np.float32(1) / np.float32(n)) for n, _ in POINTS]
    assert fitter().fit_float(wanted, "float32") == ir.Bin("div", ir.const(1.0, "float32"), ir.Cast("float32", N))
    wanted[2] = float(np.nextafter(np.float32(wanted[2]), np.float32(1)))
    assert fitter().fit_float(wanted, "float32") is None


def test_divisions_are_exact_at_all_sizes() -> None:
    """Even at all points is not even at all sizes."""
    even = tuple((2 * n, m) for n, m in POINTS)
    assert fitter(even).fit_integer([n // 2 for n, _ in even]) is None
    assert fitter().fit_integer([4 * n * m // 2 for n, m in POINTS]) is not None
    assert not fitter(even).has_rule_divisible_by([n for n, _ in even], 2) and fitter().has_rule_divisible_by(
        [6 * n for n, _ in POINTS], 3
    )


def test_strided_extents_are_told_apart() -> None:
    pairs = {n: (n + 1) // 4 for n in range(1, 20)}
    assert next(numbers for _, numbers in fit_strided_rules(N, pairs)) == (1, 1, 4)


def product(rows: int, inner: int) -> ir.PrimFunc:
    """Sums of rows, and twice as much."""
    x = te.placeholder((rows, inner), "float32", "x")
    k = te.reduce_axis(inner, "k")
    total = te.compute((rows,), lambda p: te.sum_reduce(x[p, k.var], k), "acc", ("p",))
    return te.create_prim_func("sums", [x], [te.compute((rows,), lambda p: total[p] * 2.0, "out", ("p",))])


def test_one_function_of_several() -> None:
    funcs = [product(n, m) for n, m in POINTS]
    trace = Schedule(funcs[0]).split("p", (None, 4)).decompose_reduction("acc", "k").trace
    kept = generalise_trace(trace, funcs, lambda extents, factor: False)
    assert kept[0].args == ("p", (None, 1)) and kept[1:] == trace[1:]
    scheduled = [Schedule(func) for func in funcs]
    for step in kept:
        scheduled = [s.apply(step.primitive, *step.args) for s in scheduled]
    lowered = lower_with_hidden_sizes([s.func for s in scheduled], lower)
    general = generalise(lowered, fitter(), [], {"size_n": 60, "size_m": 70})
    assert general.func.scalars == (N, M) and general.func.params[0].shape == (4200,)
    for n, m in ((1, 1), (2, 9), (60, 70)):
        func = general.specialised_to({"size_n": n, "size_m": m})
        verify(func)
        x = np.arange(n * m, dtype=np.float32).reshape(n, m)
        scratch = [np.zeros(b.shape, np.float32) for b in func.params[2:]]
        made = execute(func, [x, np.zeros(n, np.float32), *scratch])
        assert np.array_equal(made[1], 2 * x.sum(1))


def test_what_is_unlike_is_refused() -> None:
    funcs = [lower(product(n, m)) for n, m in POINTS]
    funcs[-1] = replace(funcs[-1], body=ir.seq(funcs[-1].body, funcs[-1].body))
    with pytest.raises(StructureMismatch, match="differ from size to size"):
        generalise(funcs, fitter(), [], {"size_n": 60, "size_m": 70})
