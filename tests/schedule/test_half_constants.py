# SPDX-License-Identifier: Apache-2.0
"""Constants of floats in 16 bits: every form gives back every number, whatever the schedule."""

from __future__ import annotations

import numpy as np
import pytest

from microc.base import dtypes
from microc.errors import ScheduleError
from microc.schedule.identities import intrinsic_functions
from microc.schedule.primitives.padding import FORMATS_16_BIT, WORDS
from microc.schedule.primitives.tree import find_buffer
from microc.schedule.schedule import Schedule, replay_trace
from microc.target import target_for
from microc.tir.interp import run
from microc.tir.lower import lower
from tests.schedule.functions import schedule_kernel
from tests.schedule.test_float import product

ROWS, DEPTH, COLUMNS = 2, 12, 8


def packed(schedule: Schedule, weight: dtypes.Array) -> dtypes.Array:
    return schedule.packed(find_buffer(schedule.start, "weight"), weight)


def result(schedule: Schedule, weight: dtypes.Array, *, lowered: bool) -> dtypes.Array:
    func = lower(schedule.func) if lowered else schedule.func
    x = np.random.default_rng(1).normal(size=(ROWS, DEPTH)).astype(np.float32)
    stored = packed(schedule, weight)
    arrays = {"x": x, "weight": stored, "bias": np.zeros(COLUMNS, np.float32), "out": np.zeros((ROWS, COLUMNS), "f4")}
    run(func, [arrays[p.name] for p in func.params], intrinsic_functions())
    return arrays["out"]


@pytest.mark.parametrize("cpu", ["host", "cortex-m4", "cortex-m55", "x86-64-v3"])
@pytest.mark.parametrize("form", FORMATS_16_BIT)
def test_forms_hold_the_numbers(form: str, cpu: str) -> None:
    weight = np.random.default_rng(0).integers(-9, 9, (COLUMNS, DEPTH)).astype(np.float32) / 8
    wide = schedule_kernel(product(ROWS, DEPTH, COLUMNS), "dense", target_for(cpu))
    narrow = wide.set_dtype("weight", form)
    assert narrow.packs_bits and not wide.packs_bits
    assert packed(narrow, weight).nbytes == weight.nbytes // 2
    for lowered in (False, True):
        want = result(wide, weight, lowered=lowered)
        np.testing.assert_array_equal(result(narrow, weight, lowered=lowered), want)
    assert replay_trace(narrow.start, narrow.trace).func == narrow.func


def test_every_half_is_widened() -> None:
    """All bits but NaN's, subnormals and both zeros among them."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    for dtype in dtypes.HALF:
        numbers = bits.view(dtypes.to_numpy(dtype)).astype(np.float32)
        numbers = numbers[~np.isnan(numbers)]
        assert dtypes.is_exact_in(numbers, dtype)
        assert not dtypes.is_exact_in(np.nextafter(numbers[100:200], np.float32(1)), dtype)
    assert not dtypes.is_exact_in(np.array([65520], np.float32), "float16") and not dtypes.is_exact_in(
        np.array([np.nan], np.float32), "float16"
    )


def test_words_by_their_meaning() -> None:
    numbers = np.array([1.5, -0.0, 6e-8, 65504, -2, 3], np.float16)
    words = numbers.view(np.uint16).astype(np.int64)
    low, high = intrinsic_functions()["float16_low"], intrinsic_functions()["float16_high"]
    for first, second in zip(words[::2], words[1::2], strict=True):
        word = float(np.uint32(first | second << 16).view(np.float32))
        found = np.array([low([word]), high([word])], np.float32)
        np.testing.assert_array_equal(
            found.view("u4"), np.array([first, second], np.uint16).view("f2").astype("f4").view("u4")
        )


@pytest.mark.parametrize(
    ("name", "form"), [("x", "float16"), ("weight", "float64"), ("weight", "int16"), ("out", "bfloat16")]
)
def test_refusals(name: str, form: str) -> None:
    with pytest.raises(ScheduleError):
        Schedule(product(ROWS, DEPTH, COLUMNS)).set_dtype(name, form)


def test_odd_rows_have_no_words() -> None:
    with pytest.raises(ScheduleError, match="odd"):
        Schedule(product(2, 3, 4)).set_dtype("weight", WORDS)


def test_numbers_that_do_not_fit_are_refused() -> None:
    schedule = Schedule(product(ROWS, DEPTH, COLUMNS)).set_dtype("weight", "float16")
    with pytest.raises(ScheduleError, match="cannot represent"):
        packed(schedule, np.full((COLUMNS, DEPTH), 0.1, np.float32))
