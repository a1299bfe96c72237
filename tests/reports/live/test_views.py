# SPDX-License-Identifier: Apache-2.0
"""What arrays look like: pictures, curves, bars, numbers; never more data than a bound, whatever is in them."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest

from microc.reports.live import MAX_BARS, MAX_NUMBERS, MAX_PIXELS, MAX_POINTS, array_to_view_data


def tensor(dtype: str = "float32", scale: float | None = None, zero: int | None = None) -> dict[str, Any]:
    return {"name": "x", "label": "X", "dtype": dtype, "scale": scale, "zero_point": zero}


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        ((1, 96, 96, 3), "picture"),
        ((1, 3, 96, 96), "picture"),
        ((1, 49, 10), "picture"),
        ((8, 8), "picture"),
        ((1, 128, 3), "curves"),
        ((1, 640), "curves"),
        ((1, 16), "numbers"),
        ((), "numbers"),
        ((2, 8, 8, 1), "curves"),
        ((1, 0), "numbers"),
    ],
)
def test_inputs_by_shape(shape: tuple[int, ...], kind: str) -> None:
    found = array_to_view_data(tensor(), np.zeros(shape, np.float32))
    assert found["kind"] == kind and found["name"] == "X" and found["shape"] == list(shape)


def test_pixels_of_bytes_keep_their_order() -> None:
    array = np.arange(-128, 128, 4, dtype=np.int8).reshape(1, 8, 8, 1)
    found = array_to_view_data(tensor("int8", 0.1, 3), array)
    pixels = np.frombuffer(base64.b64decode(found["pixels"]), np.uint8)
    assert pixels.tolist() == list(range(0, 256, 4)) and (found["height"], found["width"], found["channels"]) == (
        8,
        8,
        1,
    )
    colour = array_to_view_data(tensor("uint8"), np.full((3, 9, 8), 200, np.uint8))
    assert base64.b64decode(colour["pixels"]) == bytes([200]) * 216 and colour["channels"] == 3


def test_integers_become_reals_and_outputs_bars() -> None:
    found = array_to_view_data(tensor("int8", 0.5, 2), np.array([[4, 2, -2]], np.int8), output=True)
    assert found["kind"] == "bars" and found["values"] == [1.0, 0.0, -2.0]
    assert array_to_view_data(tensor(), np.zeros((1, MAX_BARS + 1), np.float32), output=True)["kind"] == "curves"
    assert array_to_view_data(tensor(), np.zeros((1, 9, 9), np.float32), output=True)["kind"] == "curves"


def test_curves_side_by_side() -> None:
    array = np.stack([np.arange(100), -np.arange(100)], axis=1)[None].astype(np.float32)
    series = array_to_view_data(tensor(), array)["series"]
    assert [curve[3] for curve in series] == [3.0, -3.0] and len(series[0]) == 100


def test_sizes_are_bounded_and_nothing_is_beyond_json() -> None:
    rng = np.random.default_rng(0)
    for shape in ((1, 1000, 700, 3), (1, 100_000), (500_000, 4), (7, 9, 11, 13), (MAX_NUMBERS,)):
        array = rng.normal(size=shape).astype(np.float32)
        array.reshape(-1)[:3] = np.nan, np.inf, -np.inf
        text = json.dumps(array_to_view_data(tensor(), array), allow_nan=False)
        assert len(text) < 4 * MAX_PIXELS * MAX_PIXELS * 3 + 40 * MAX_POINTS * 8


def test_what_is_not_finite_has_no_number() -> None:
    assert array_to_view_data(tensor(), np.array([np.nan, 1, np.inf], np.float32))["values"] == [None, 1.0, None]
    flat = array_to_view_data(tensor(), np.full((8, 8), np.nan, np.float32))
    assert base64.b64decode(flat["pixels"]) == bytes(64)
