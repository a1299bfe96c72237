# SPDX-License-Identifier: Apache-2.0
"""Rules and extents, numbers that depend on sizes, and one function for all sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from microc import te
from microc.schedule.primitives.tree import Step
from microc.schedule.schedule import generalise_trace, replay_trace
from microc.tir import ir
from microc.tir.analysis.linear_forms import scale
from microc.tir.analysis.size_forms import FittedExtent, RuleFitter, evaluate_at_sizes, fit_strided_rules
from microc.tir.extents import DependsOnSize, Extent, SizeDomain, is_at_most, is_less, largest, smallest
from microc.tir.interp import execute
from microc.tir.lower import lower
from microc.tir.symbolic import write_sizes
from microc.tir.text.print import format_expr
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


def test_divisions_are_exact_at_all_sizes() -> None:
    """Even at all points is not even at all sizes."""
    even = tuple((2 * n, m) for n, m in POINTS)
    assert fitter(even).fit_integer([n // 2 for n, _ in even]) is None
    assert fitter().fit_integer([4 * n * m // 2 for n, m in POINTS]) is not None


def test_strided_extents_are_told_apart() -> None:
    pairs = {n: (n + 1) // 4 for n in range(1, 20)}
    assert next(numbers for _, numbers in fit_strided_rules(N, pairs)) == (1, 1, 4)


ALLOWED = [{"size_n": n, "size_m": m} for n in range(1, 61) for m in range(2, 70, 4)]
DOMAIN = SizeDomain(ALLOWED, [{"size_n": 997, "size_m": 1010}, {"size_n": 1013, "size_m": 994}])
n, m = DOMAIN.extent_of(N), DOMAIN.extent_of(M)


@pytest.mark.parametrize(
    ("compute", "text"),
    [
        (lambda n, m: n * m * 4 // (m * 2) + m - m, "size_n * 2"),
        (lambda n, m: (n - 1) // 2 + 1, "(size_n + 1) // 2"),
        (lambda n, m: -((1 - n) // 2), "size_n // 2"),
        (lambda n, m: (3 - n * 4 - m) // 4, "0 - size_m // 4 - size_n"),
        (lambda n, m: ((n + 1) // 2 * m + m) // m, "(size_n + 1) // 2 + 1"),
        (lambda n, m: (n + 2) * (m - 1) * 6 // (m * 2 - 2) + n // (n + 70), "size_n * 3 + 6"),
        (lambda n, m: ((n + 1) // 2 + 1) // 2 + (n * 2 + 1) // 4, "(size_n + 3) // 4 + size_n // 2"),
        (lambda n, m: 7 - n * 3, "7 - size_n * 3"),
        (lambda n, m: (n * m + n) % (n - m + 99), "(size_m * size_n + size_n) % (size_n + 99 - size_m)"),
        (lambda n, m: smallest(n, 100) + largest(-n, 0) + smallest(n, 9), "T.min(size_n, 9) + size_n"),
        (lambda n, m: 7 % (n + 7) + abs(-n) * 0 + sum([n, n]), "size_n * 2 + 7"),
    ],
)
def test_arithmetic_of_extents(compute: Callable[[Any, Any], Any], text: str) -> None:
    """Every result is an expression with the values of the same arithmetic on integers."""
    made = compute(n, m)
    assert isinstance(made, int) and isinstance(made, Extent) and format_expr(made.expr) == text
    assert all(evaluate_at_sizes(made.expr, at) == compute(at["size_n"], at["size_m"]) for at in ALLOWED)


def test_extents_that_are_constant_are_numbers() -> None:
    assert type(n - n + 3) is int and type(n * 0) is int and type(m % 2) is int and n // n == 1 and n * 6 % 3 == 0


def test_comparisons_of_extents() -> None:
    """What holds for all sizes holds; else the general case is taken, and its exceptions are known; else none is."""
    assert (
        n > 0 and not n * m < 0 and n < 1 << 30 and n == n * 1 and n != m and n != 4 and n in (3, n) and {n: 1}[n + 0]
    )
    known = len(DOMAIN.exceptions)
    assert n > 4 and not is_less(4, n) and is_at_most(1, n) and len(DOMAIN.exceptions) == known + 1
    assert {"size_n": 4, "size_m": 66} in DOMAIN.exceptions.values()
    for decide in (lambda: n < m, lambda: range(n), lambda: float(n), lambda: n / 2, lambda: 5 % (n - 1)):
        with pytest.raises(DependsOnSize):
            decide()


def test_infinity_takes_the_sign_of_an_extent_at_all_sizes() -> None:
    """An extent that is 0 at large sizes, and negative at small ones, is not positive."""
    short, infinity = smallest(n, 8) - 8, float("inf")
    assert short * infinity == -infinity == infinity * short and -short * infinity == infinity
    assert scale((-infinity, 5), short) == (short * 5, infinity)


def test_one_function_for_all_sizes() -> None:
    """Sums of rows, and twice as much. A tile that need not divide the rows becomes one row."""
    x, k = te.placeholder((n, m), "float32", "x"), te.reduce_axis(m, "k")
    total = te.compute((n,), lambda p: te.sum_reduce(x[p, k.var], k), "acc", ("p",))
    out = te.compute((n,), lambda p: total[p] * 2.0 / m, "out", ("p",))
    func = te.create_prim_func("sums", [x], [out])
    trace = (
        Step("split", ("p", (None, 4))),
        Step("split", ("k", (None, 2))),
        Step("decompose_reduction", ("acc", "k_0")),
    )
    kept = generalise_trace(trace, func)
    assert kept[0].args == ("p", (None, 1)) and kept[1:] == trace[1:]
    general = write_sizes(lower(replay_trace(func, kept).func), [], {"size_n": 60, "size_m": 70})
    assert general.func.scalars == (N, M) and general.func.params[0].shape == (4200,)
    for rows, columns in ((1, 2), (2, 10), (60, 70)):
        made = general.specialised_to({"size_n": rows, "size_m": columns})
        verify(made)
        data = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
        scratch = [np.zeros(b.shape, np.float32) for b in made.params[2:]]
        results = execute(made, [data, np.zeros(rows, np.float32), *scratch])
        assert np.array_equal(results[1], 2 * data.sum(1) / np.float32(columns))
