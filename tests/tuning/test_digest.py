# SPDX-License-Identifier: Apache-2.0
"""What is said of an output by one word, as the interpreter runs the kernels that say it."""

from __future__ import annotations

import numpy as np
import pytest

from microc.base.dtypes import Array, to_numpy
from microc.tir.interp import execute
from microc.tir.verify import verify
from microc.tuning.candidate_image import digest_of_array, make_digest_func, make_overwrite_func

DTYPES = ("bool", "int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64")


def digest(values: Array) -> int:
    func = make_digest_func(str(values.dtype), values.size)
    verify(func)
    return int(execute(func, [values, np.zeros(1, np.uint32)])[1][0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_element_and_its_place_count(dtype: str) -> None:
    values = np.arange(6).astype(to_numpy(dtype))
    others = [np.roll(values, 1)]
    for place in range(values.size):
        others.append(values.copy())
        others[-1][place] = 1 - values[place] if dtype == "bool" else values[place] + 7
    found = digest(values)
    assert found == digest(values.copy()) and found not in {digest(other) for other in others}


@pytest.mark.parametrize("dtype", DTYPES)
def test_this_computer_digests_as_a_board_does(dtype: str) -> None:
    values = (np.random.default_rng(0).normal(0, 100, 37) if dtype != "bool" else np.arange(37) % 3).astype(
        to_numpy(dtype)
    )
    assert digest_of_array(values) == digest(values)


def test_the_upper_half_of_wide_integers_counts() -> None:
    assert digest(np.array([5], np.int64)) != digest(np.array([5 + (1 << 40)], np.int64))


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_stays_of_what_is_wiped(dtype: str) -> None:
    func = make_overwrite_func(dtype, 5)
    verify(func)
    (found,) = execute(func, [np.zeros(5, to_numpy(dtype))])
    assert found.all()
