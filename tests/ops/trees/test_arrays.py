# SPDX-License-Identifier: Apache-2.0
"""Thresholds in the dtype of the data: any number of it goes the way that exact arithmetic leads it."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.graph.ir import TensorType
from microc.ops.registry import get
from microc.ops.trees.tree_arrays import EQUAL, GREATER, LESS, UNORDERED, Tree, flatten_trees

DTYPES = ("float32", "float16", "bfloat16", "float64", "int8", "uint8", "int16", "uint16", "int32")
DOUBLES = st.floats(allow_nan=False)


def goes_left(x: float, threshold: float, mode: int) -> bool:
    """The definition: ``x`` and ``threshold`` as real numbers."""
    if math.isnan(x):
        return bool(mode & UNORDERED)
    if math.isinf(x) or math.isinf(threshold):
        return bool(mode & (LESS if x < threshold else EQUAL if x == threshold else GREATER))
    difference = Fraction(x) - Fraction(threshold)
    return bool(mode & (LESS if difference < 0 else GREATER if difference > 0 else EQUAL))


def neighbours(threshold: float, dtype: str) -> Array:
    """Numbers of ``dtype`` beside ``threshold``, and those at which a dtype ends."""
    real = dtypes.to_numpy(dtype).type
    if dtypes.is_integer(dtype):
        low, high = dtypes.int_range(dtype)
        near = math.floor(min(max(threshold, low), high))
        found = {low, high, *(min(max(near + k, low), high) for k in (-1, 0, 1))}
        return np.array(sorted(found), real)
    with np.errstate(over="ignore"):
        near = real(threshold)
        ends = [real(end) for end in (-math.inf, math.inf)]
        around = [near, *(np.nextafter(near, end) for end in ends), *(np.nextafter(-end, end) for end in ends)]
        around += [np.nextafter(real(0), end) for end in ends]
    return np.array([*around, *ends, real(0.0), real(-0.0), real(math.nan)], real)


def decisions(threshold: float, mode: int, x: Array) -> list[bool]:
    """What a tree of one split does with each number, by the operator's reference."""
    none = np.full(3, -1)
    left, right = none.copy(), none.copy()
    left[0], right[0] = 1, 2
    values = np.array([[0], [1], [2]], np.float32)
    tree = Tree(left, right, np.zeros(3, np.int64), np.full(3, threshold), np.full(3, mode), values)
    arrays = flatten_trees((tree,), x.dtype.name)
    attrs: dict[str, Any] = {"combine": "sum", "targets": 1, **arrays.attrs()}
    operator, operands = get("tree_ensemble"), arrays.operands()
    operator.infer(
        attrs, [TensorType((len(x), 1), x.dtype.name), *(TensorType(a.shape, a.dtype.name) for a in operands)]
    )
    assert operator.reference is not None
    (found,) = operator.reference(attrs, [x.reshape(-1, 1), *operands])
    return [value == 1 for value in found[:, 0].tolist()]


def check(threshold: float, mode: int, dtype: str) -> None:
    x = neighbours(threshold, dtype)
    wanted = [goes_left(float(value), threshold, mode) for value in x]
    assert decisions(threshold, mode, x) == wanted, (threshold, mode, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=60, database=None, derandomize=True, deadline=None)
@given(threshold=DOUBLES, mode=st.integers(0, 15))
def test_any_threshold(dtype: str, threshold: float, mode: int) -> None:
    check(threshold, mode, dtype)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if dtypes.is_float(d) and d != "float64"])
@settings(max_examples=60, database=None, derandomize=True, deadline=None)
@given(data=st.data(), mode=st.integers(0, 15), share=st.sampled_from([2, 4, 64, 2**20]), low=st.booleans())
def test_between_two_numbers(dtype: str, data: st.DataObject, mode: int, share: int, low: bool) -> None:
    """Thresholds of trees lie in the middle of two features, or next to one, where fewer bits round to one of the two."""
    real = dtypes.to_numpy(dtype).type
    with np.errstate(over="ignore"):
        number = real(
            data.draw(st.floats(width=16 if dtype == "float16" else 32, allow_nan=False, allow_infinity=False))
        )
        other = np.nextafter(number, real(math.inf))
    if math.isinf(float(number)) or math.isinf(float(other)):
        return
    a, b = float(number), float(other)
    check(a + (b - a) / share if low else b - (b - a) / share, mode, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_ends(dtype: str) -> None:
    """Thresholds at which dtypes and doubles end: zeros of both signs, denormals, the largest numbers, infinities."""
    small, large = 5e-324, 1.7976931348623157e308
    ends = [
        0.0,
        small,
        2.0**-150,
        2.0**-149,
        2.0**-25,
        1.0000000001,
        65519.99,
        65520.0,
        3.4028235e38,
        3.5e38,
        large,
        math.inf,
    ]
    ends += [127.0, 127.5, 255.0, 32767.5, 65535.0, 2147483647.0, 2147483647.5]
    for threshold in (*ends, *(-end for end in ends)):
        for mode in range(16):
            check(threshold, mode, dtype)
