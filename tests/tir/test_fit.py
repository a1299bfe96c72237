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
from microc.tir.analysis.size_forms import evaluate_at_sizes, express_integer
from microc.tir.extents import DependsOnSize, Extent, SizeDomain, is_at_most, is_less, largest, smallest
from microc.tir.interp import execute
from microc.tir.lower import lower
from microc.tir.symbolic import write_sizes
from microc.tir.text.print import format_expr
from microc.tir.verify import verify

N, M = ir.Var("size_n"), ir.Var("size_m")
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


POINTS = ((19, 40), (26, 54), (33, 35), (40, 68), (47, 61), (54, 47))
HALF = (n + 1) // 2
AT_POINTS = {tuple(at[k] for at in POINTS): extent for k, extent in enumerate((n, m))}
KNOWN = {**AT_POINTS, tuple((at[0] + 1) // 2 for at in POINTS): HALF}


@pytest.mark.parametrize(
    ("compute", "strides"),
    [
        (lambda n, m: n * 3 - 2, ()),
        (lambda n, m: n * m * 8, ()),
        (lambda n, m: (n + 1) // 2 * m * -7, ()),
        (lambda n, m: n * m * m + 5, ()),
        (lambda n, m: n * m * 4 // 2, ()),
        (lambda n, m: n // 3, ()),
        (lambda n, m: 2 * ((n + 1) // 2) - n + 1, (2, 2)),
        (lambda n, m: (3 * ((m + 2) // 3) - m + 2) // 2, (2, 3)),
    ],
)
def test_integers_are_expressed_by_extents(compute: Callable[[Any, Any], Any], strides: tuple[int, ...]) -> None:
    found = express_integer(tuple(compute(*at) for at in POINTS), AT_POINTS, KNOWN, strides)
    assert found == compute(n, m)


def test_integers_that_extents_do_not_determine() -> None:
    assert express_integer((3, 1, 4, 1, 5, 9), AT_POINTS, KNOWN) is None
    even = {tuple(n * 2 for n, _ in POINTS): n}
    assert express_integer(tuple(n for n, _ in POINTS), even, even) is None, (
        "even at all points is not even at all sizes"
    )
    tens = ((10, 40), (20, 54), (30, 35), (40, 68))
    assert express_integer(tuple(n // 7 for n, _ in tens), {tuple(n for n, _ in tens): n}, {}) is None


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
