# SPDX-License-Identifier: Apache-2.0
"""Fixed-point functions against real ones."""

from __future__ import annotations

import numpy as np
import pytest

from microc import numerics
from microc.numerics import INT32_MAX, NUMPY, rounding_shift_right

ONE = 1 << 31


def test_shift_right_half_up_is_the_rounding_shift_of_non_negative_numbers() -> None:
    x = np.array([0, 1, 2, 3, 2047, 2048, 2049, 6143, 6144, INT32_MAX - 1, INT32_MAX], np.int64)
    for exponent in (1, 2, 12, 30):
        np.testing.assert_array_equal(
            numerics.shift_right_half_up(x, exponent), rounding_shift_right(x, exponent, NUMPY)
        )


def test_saturating_double() -> None:
    x = np.array([0, 5, (1 << 30) - 1, 1 << 30, (1 << 30) + 9, INT32_MAX], np.int64)
    assert numerics.saturating_double(x).tolist() == [0, 10, INT32_MAX - 1, INT32_MAX, INT32_MAX, INT32_MAX]


@pytest.mark.parametrize("integer_bits", [0, 3, 5])
def test_exp(integer_bits: int) -> None:
    fraction = 31 - integer_bits
    a = -np.linspace(0, (1 << 31) - 1, 4001).astype(np.int64)
    got = numerics.exp_on_negative_values(a, integer_bits) / ONE
    np.testing.assert_allclose(got, np.exp(a / (1 << fraction)), atol=3e-7)
    assert numerics.exp_on_negative_values(np.array([0]), integer_bits) == INT32_MAX


def test_reciprocal() -> None:
    half = np.linspace(1 << 30, INT32_MAX, 1001).astype(np.int64)
    got = numerics.fixed_point_reciprocal(half, NUMPY) / (1 << 29)
    np.testing.assert_allclose(got, 1 / (half / ONE), rtol=2e-8)


def test_logistic_and_tanh() -> None:
    a = np.linspace(-(1 << 31) + 1, (1 << 31) - 1, 4001).astype(np.int64)
    real = a / (1 << 27)
    np.testing.assert_allclose(numerics.logistic(a, 4) / ONE, 1 / (1 + np.exp(-real)), atol=5e-7)
    np.testing.assert_allclose(numerics.tanh(a, 4) / ONE, np.tanh(real), atol=1e-6)
    assert numerics.logistic(np.array([0]), 4) == 1 << 30
    assert numerics.tanh(np.array([0]), 4) == 0
