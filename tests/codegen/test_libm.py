# SPDX-License-Identifier: Apache-2.0
"""Our own functions of ``<math.h>``, for C libraries that lack them: their errors above glibc here, above avr-libc in simavr.

By itself a few thousand arguments of each function; with ``MICROC_TESTS=all`` 1,000,000 here and 200,000 there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.codegen.c.c_statements import print_helper_functions
from microc.codegen.c.libm import MATH_HELPERS, ULP_BOUNDS
from microc.isa import FAMILIES
from microc.ops.registry import get
from microc.tir import ir
from tests.emulated.functions import emulated
from tests.emulated.machines import AVR
from tests.support.campaign import everything
from tests.support.native import UNDEFINED, Calls, build, call

COUNT = 1024
"""Arguments of a call."""
OTHERS: Mapping[str, float] = {"acos": 2.5, "atan": 2.0, "cbrt": 1.5, "fmod": 0.0, "hypot": 1.5, "sqrt": 0.5}
"""Bounds of functions that avr-libc 2.0.0 has, measured as ``ERRORS`` are."""
_WIDE: Mapping[str, Callable[..., Any]] = {
    "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh, "atan": np.arctan, "atan2": np.arctan2,
    "atanh": np.arctanh, "pow": np.power, "erf": np.vectorize(math.erf, [np.longdouble]),
}  # fmt: skip
_PAIRS = frozenset({"atan2", "fmod", "hypot", "pow"})
_SPECIAL = (
    0.0, 1e-45, 1.1754942e-38, 1.1754944e-38, 1e-4, 0.25, 0.4, 0.5, 0.59999996, 0.6, 0.70710677, 0.7853981, 0.9, 0.99999994,
    1.0, 1.0000001, 1.4142135, 1.5, 2.0, 2.5, 3.0, 4.0, 9.0, 87.3, 88.7, 88.72283, 88.72284, 89.41, 89.42, 90.0, 103.9, 104.0,
    126.0, 128.0, 149.5, 151.0, 8192.0, 8193.0, 4194303.5, 8388607.5, 8388608.0, 16777216.0, 4294967296.0, 3.4028235e38, np.inf,
)  # fmt: skip
"""Limits of branches and of results."""
SPECIAL = np.array([*_SPECIAL, *(-x for x in _SPECIAL), np.nan], np.float32)


def function(name: str) -> ir.PrimFunc:
    """``out[i] = name(x[i])``, or of x[i] and y[i]."""
    i, out = ir.Var("i"), ir.Buffer("out", (COUNT,), "float32")
    operands = [ir.Buffer(each, (COUNT,), "float32") for each in ("x", "y")[: 1 + (name in _PAIRS)]]
    value = ir.call(name, *(operand[i] for operand in operands))
    return ir.PrimFunc(name + "_all", (*operands, out), ir.For(i, ir.const(COUNT, "int32"), ir.Store(out, (i,), value)))


def answers(library: Any, func: ir.PrimFunc, *operands: Array) -> Array:
    """Answers of a function to any number of arguments."""
    size = -(-operands[0].size // COUNT) * COUNT
    padded = [np.pad(each, (0, size - each.size)) for each in operands]
    parts = [call(library, func, [*(x[k : k + COUNT] for x in padded), None])[-1] for k in range(0, size, COUNT)]
    return np.concatenate(parts)[: operands[0].size]


def arguments(name: str, count: int) -> list[Array]:
    """Arguments of all exponents, near zero and one, and where exp and its like have results; for two operands also all pairs of
    :data:`SPECIAL`."""
    dice = np.random.default_rng(len(name) + count)
    quarter = count // 4
    signs = dice.choice([-1, 1], (2, quarter))
    with np.errstate(all="ignore"):
        anything = dice.integers(0, 1 << 31, (2, quarter)).astype(np.uint32).view(np.float32)
        anything = np.where(np.isnan(anything), np.nan, anything * signs)
        small = signs * 2.0 ** dice.uniform(-15, 8, (2, quarter))
        near_one = 1 + signs * 2.0 ** dice.uniform(-24, 0, (2, quarter))
        if name not in _PAIRS:
            parts = [SPECIAL, anything[0], small[0], near_one[0], dice.uniform(-110, 130, quarter)]
            return [np.concatenate(parts).astype(np.float32)]
        chosen = SPECIAL if count > 10_000 else dice.choice(SPECIAL, 40)
        pairs = [each.reshape(-1) for each in np.meshgrid(chosen, SPECIAL)]
        parts = [np.stack(pairs), anything, small, near_one]
        if name == "pow":  # results of all exponents, of bases anywhere and near one, and of negative ones
            for base in (2.0 ** dice.uniform(-149, 128, quarter), np.abs(near_one[0])):
                base = base.astype(np.float32).astype(np.float64)
                parts.append(np.stack([base, dice.uniform(-150, 128, quarter) / np.log2(base)]))
            parts.append(np.stack([-(2.0 ** dice.uniform(-10, 10, quarter)), dice.integers(-40, 40, quarter)]))
        return list(np.concatenate(parts, 1).astype(np.float32))


def errors(name: str, found: Array, operands: list[Array]) -> Array:
    """Errors in units of the last place; infinity for another limit, sign of zero, or number instead of NaN."""
    with np.errstate(all="ignore"):
        exact = _WIDE.get(name, getattr(np, name, None))(*(x.astype(np.longdouble) for x in operands))  # type: ignore[misc]
        unit = np.ldexp(np.longdouble(1), np.maximum(np.frexp(exact)[1] - 24, -149))
        error = np.abs(found - exact) / unit
        rounded = exact.astype(np.float32)
    same = (found == rounded) | (np.isnan(found) & np.isnan(rounded))
    error = np.where(np.isfinite(found) & np.isfinite(exact), error, np.where(same, 0.0, np.inf))
    return np.where((exact == 0) & (np.signbit(found) != np.signbit(exact)), np.inf, error)


def assert_within(name: str, library: Any, bound: float, count: int) -> None:
    operands = arguments(name, count)
    found = errors(name, answers(library, function(name), *operands), operands)
    worst = int(np.argmax(found))
    assert found[worst] <= bound, f"{name}({', '.join(str(x[worst]) for x in operands)}): {found[worst]} ulp"


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The functions as AVR has them, above glibc."""
    return build([function(name) for name in ULP_BOUNDS], tmp_path_factory.mktemp("here"), "-O1", cpu="avr")


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    functions = [function(name) for name in (*ULP_BOUNDS, *OTHERS)]
    with emulated(functions, tmp_path_factory.mktemp("there"), "-Os", machine=AVR, compiler="gcc") as calls:
        yield calls


def test_every_function_has_a_bound() -> None:
    assert set(ULP_BOUNDS) == FAMILIES["avr"].own_math


@pytest.mark.parametrize("name", MATH_HELPERS)
def test_a_function_brings_the_functions_that_it_calls_alone(name: str) -> None:
    """An unused static function is an error in the tests' builds: ``acosh_f32`` ends like ``cosh_f32``."""
    texts = print_helper_functions([name], "avr")
    for needed in texts:
        callers = [
            other for other, lines in texts.items() if other != needed and needed in re.findall(r"\w+", str(lines))
        ]
        assert needed == name or callers


@pytest.mark.parametrize("name", ULP_BOUNDS)
def test_errors_above_glibc(name: str, here: Any) -> None:
    assert_within(name, here, ULP_BOUNDS[name], 1_000_000 if everything() else 20_000)


@pytest.mark.cross
@pytest.mark.emulator
@pytest.mark.parametrize("name", [*ULP_BOUNDS, *OTHERS])
def test_errors_above_avr_libc(name: str, there: Calls) -> None:
    assert_within(name, there, {**ULP_BOUNDS, **OTHERS}[name], 200_000 if everything() else 2_000)


def test_rint_is_exact(here: Any) -> None:
    x = np.concatenate([np.arange(-4.0, 4.0, 0.125), 2.0**22 + np.arange(0, 8, 0.5), -(2.0**22) - np.arange(0, 8, 0.5)])
    found = answers(here, function("rint"), x.astype(np.float32))
    np.testing.assert_array_equal(found, np.rint(x))
    np.testing.assert_array_equal(np.signbit(found), np.signbit(np.rint(x)))


def test_functions_are_free_of_undefined_behaviour(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    library = build([function(name) for name in ULP_BOUNDS], tmp_path, "-O0", UNDEFINED, cpu="avr")
    for name in ULP_BOUNDS:
        answers(library, function(name), *arguments(name, 400))
    assert "runtime error" not in capfd.readouterr().err


@pytest.mark.cross
@pytest.mark.emulator
def test_floor_of_quotients_where_double_is_a_float32(tmp_path: Path) -> None:
    """0.9 / 0.1 of float32 is 8.99999964, which a float32 holds as 9."""
    scalar = get("floor_div").scalar
    assert scalar is not None
    i, x, y, out = ir.Var("i"), *(ir.Buffer(name, (COUNT,), "float32") for name in ("x", "y", "out"))
    value = scalar({}, (x[i], y[i]))
    func = ir.PrimFunc("quotients", (x, y, out), ir.For(i, ir.const(COUNT, "int32"), ir.Store(out, (i,), value)))
    dice, count = np.random.default_rng(0), 3000 if everything() else 300
    tenths = [
        (dice.integers(-200, 200, count) / 10).astype(np.float32),
        (dice.integers(1, 60, count) / 10).astype(np.float32),
    ]
    products = dice.normal(size=count).astype(np.float32), dice.integers(-100_000, 100_000, count).astype(np.float32)
    special = SPECIAL[np.isnan(SPECIAL) | (np.abs(SPECIAL) < 2.0**24)]
    x_index, y_index = np.indices((special.size,) * 2).reshape(2, -1)
    paired = (x_index + y_index) % (1 if everything() else 4) == 0  # each with every fourth of the others, in turn
    a = np.concatenate([tenths[0], products[0] * products[1], special[x_index[paired]]])
    b = np.concatenate([tenths[1], products[0], special[y_index[paired]]])
    with np.errstate(all="ignore"):
        wanted = np.floor(a.astype(np.float64) / b.astype(np.float64)).astype(np.float32)
    with emulated([func], tmp_path, "-Os", machine=AVR, compiler="gcc") as calls:
        found = answers(calls, func, a, b)
    kept = ~(np.abs(wanted) > 2.0**24) | np.isinf(wanted)
    np.testing.assert_array_equal(found[kept], wanted[kept])
    np.testing.assert_array_equal(np.signbit(found[kept & (wanted == 0)]), np.signbit(wanted[kept & (wanted == 0)]))
    np.testing.assert_allclose(found[~kept], wanted[~kept], rtol=2.0**-22)
