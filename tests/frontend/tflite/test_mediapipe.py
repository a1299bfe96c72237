# SPDX-License-Identifier: Apache-2.0
"""MediaPipe's custom operators: what they are spelled as computes what a loop over MediaPipe's definition computes."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.errors import ModelError, UnsupportedError
from microc.frontend.tflite import reader as tflite
from tests.frontend.run import library
from tests.frontend.tflite_model import Op, Tensor, constant, model

RNG = np.random.default_rng(8)
SAME, VALID = 1, 2


def normal(*shape: int) -> Array:
    return RNG.normal(size=shape).astype(np.float32)


def made(
    code: str,
    given: Mapping[str, Array],
    wanted: Mapping[str, tuple[int, ...]],
    known: Sequence[str] = (),
    words: Sequence[int] = (),
    fields: Mapping[str, Any] | None = None,
) -> list[Array]:
    """What a network of one operator makes on this computer; ``known`` operands are constants."""
    inputs = [name for name in given if name not in known]
    tensors = [constant(name, x) if name in known else Tensor(name, x.shape) for name, x in given.items()]
    raw = struct.pack(f"<{len(words)}i", *words)
    op = Op("CUSTOM", tuple(given), tuple(wanted), custom=code, custom_options=raw, custom_fields=fields or {})
    data = model((*tensors, *(Tensor(n, shape) for n, shape in wanted.items())), (op,), inputs, tuple(wanted))
    found = library(tflite.read_tflite(data, "custom.tflite"))(*(given[name] for name in inputs))
    return list(found) if isinstance(found, tuple | list) else [found]


@pytest.mark.parametrize("scheme", [SAME, VALID])
@pytest.mark.parametrize(
    ("extent", "window", "strides"),
    [((3, 4), (2, 2), (2, 2)), ((4, 3), (3, 4), (2, 2)), ((3, 3), (3, 3), (2, 1)), ((2, 5), (1, 2), (3, 2))],
)
def test_transposed_convolution(
    scheme: int, extent: tuple[int, int], window: tuple[int, int], strides: tuple[int, int]
) -> None:
    x, w, b = normal(1, *extent, 3), normal(5, *window, 3), normal(5)
    off = [
        max(0, k - (n - 1) % s - 1) if scheme == SAME else 0 for n, k, s in zip(extent, window, strides, strict=True)
    ]
    size = [s * (n - 1) + k - p for n, k, s, p in zip(extent, window, strides, off, strict=True)]
    wanted = np.tile(b, (1, *size, 1)).astype(np.float64)
    for y, column, i, j in np.ndindex(*extent, *window):
        at = (y * strides[0] - off[0] // 2 + i, column * strides[1] - off[1] // 2 + j)
        if all(0 <= place < n for place, n in zip(at, size, strict=True)):
            wanted[0, at[0], at[1]] += w[:, i, j] @ x[0, y, column]
    words = (scheme, strides[1], strides[0])
    (found,) = made("Convolution2DTransposeBias", {"x": x, "w": w, "b": b}, {"y": wanted.shape}, ("w", "b"), words)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def pooled(x: Array, scheme: int, window: tuple[int, int], strides: tuple[int, int]) -> tuple[Array, Array]:
    _, *extent, channels = x.shape
    if scheme == SAME:
        size = [-(-n // s) for n, s in zip(extent, strides, strict=True)]
    else:
        size = [(n - k) // s + 1 for n, k, s in zip(extent, window, strides, strict=True)]
    rows = zip(size, strides, window, extent, strict=True)
    before = [max((m - 1) * s + k - n, 0) // 2 if scheme == SAME else 0 for m, s, k, n in rows]
    values, numbers = (np.zeros((1, *size, channels), np.float32) for _ in range(2))
    for y, column, c in np.ndindex(*size, channels):
        first = (y * strides[0] - before[0], column * strides[1] - before[1])
        inside = [
            (x[0, first[0] + i, first[1] + j, c], -(i * window[1] + j))
            for i, j in np.ndindex(*window)
            if 0 <= first[0] + i < extent[0] and 0 <= first[1] + j < extent[1]
        ]
        values[0, y, column, c], number = max(inside)
        numbers[0, y, column, c] = np.float32(-number) + np.float32(0.1)
    return values, numbers


@pytest.mark.parametrize("scheme", [SAME, VALID])
@pytest.mark.parametrize(("window", "strides"), [((2, 2), (2, 2)), ((3, 2), (2, 1)), ((2, 3), (1, 2))])
def test_pool_with_places(scheme: int, window: tuple[int, int], strides: tuple[int, int]) -> None:
    x = RNG.integers(-9, 9, (1, 6, 5, 3)).astype(np.float32)
    wanted = pooled(x, scheme, window, strides)
    words = (scheme, strides[1], strides[0], window[1], window[0], 0, 0, 0, 0, 0)
    shapes = {"y": wanted[0].shape, "n": wanted[1].shape}
    found = made("MaxPoolingWithArgmax2D", {"x": x}, shapes, words=words)
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_pool_and_back() -> None:
    x = normal(1, 6, 4, 3)
    values, numbers = pooled(x, VALID, (2, 2), (2, 2))
    words = (VALID, 2, 2, 2, 2, 0)
    (found,) = made("MaxUnpooling2D", {"v": values, "n": numbers}, {"y": x.shape}, words=words)
    kept = np.repeat(np.repeat(values, 2, 1), 2, 2) == x
    np.testing.assert_array_equal(found, np.where(kept, x, 0))


def test_windows_that_overlap_have_no_way_back() -> None:
    v = normal(1, 3, 3, 2)
    with pytest.raises(UnsupportedError, match="strides of 1 x 1"):
        made("MaxUnpooling2D", {"v": v, "n": v}, {"y": (1, 6, 6, 2)}, words=(VALID, 1, 1, 2, 2, 0))


def read_at(x: Array, row: float, column: float) -> Array:
    """One image (H, W, C) between pixels; zero beyond it."""
    total = np.zeros(x.shape[2])
    for i, j in np.ndindex(2, 2):
        at = (math.floor(row) + i, math.floor(column) + j)
        if 0 <= at[0] < x.shape[0] and 0 <= at[1] < x.shape[1]:
            total += x[at] * (1 - abs(row - at[0])) * (1 - abs(column - at[1]))
    return total


def test_resampler() -> None:
    x, places = normal(2, 4, 5, 3), RNG.uniform(-1.5, 5.5, (2, 4, 5, 2)).astype(np.float32)
    wanted = np.zeros(x.shape)
    for n, i, j in np.ndindex(2, 4, 5):
        wanted[n, i, j] = read_at(x[n], places[n, i, j, 1], places[n, i, j, 0])
    (found,) = made("Resampler", {"x": x, "p": places}, {"y": x.shape})
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("second", [False, True])
def test_image_through_a_matrix(second: bool) -> None:
    x, matrix = normal(1, 6, 7, 2), np.eye(4, dtype=np.float32)[None]
    matrix[0, :2] = [[1.1, 0.4, 9, -0.8], [-0.3, 0.9, 9, 1.3]]
    corner, size = 0.5 if second else 0.0, (5, 8)
    wanted = np.zeros((1, *size, 2))
    for i, j in np.ndindex(*size):
        column, row = matrix[0, :2] @ [j + corner, i + corner, 0, 1] - corner
        if 0 <= column <= 6 and 0 <= row <= 5:
            wanted[0, i, j] = read_at(x[0], row, column)
    assert (wanted == 0).any() and (wanted != 0).any()
    fields = {"output_height": 5, "output_width": 8} if second else {"mode": "bilinear", "output_size": [5, 8]}
    code = "TransformTensorBilinear" if second else "TransformTensor"
    (found,) = made(code, {"x": x, "m": matrix}, {"y": wanted.shape}, fields=fields)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("shape", "axes", "scale"),
    [((1, 4, 3), 3, 1.0), ((1, 5, 2), 2, 1.0), ((1, 1, 1, 12), 3, 0.5), ((1, 1, 2, 4), 2, 2.0)],
)
def test_landmarks_through_a_matrix(shape: tuple[int, ...], axes: int, scale: float) -> None:
    x, matrix = normal(*shape), normal(1, 4, 4)
    wanted = x.reshape(-1, axes).copy()
    wanted[:, :2] = wanted[:, :2] @ matrix[0, :2, :2].T + matrix[0, :2, 3] * scale
    fields = {"dimensions": axes, "scale": scale} if len(shape) == 4 else {}
    (found,) = made("TransformLandmarks", {"x": x, "m": matrix}, {"y": shape}, fields=fields)
    np.testing.assert_allclose(found, wanted.reshape(shape), rtol=1e-5, atol=1e-5)


def turned(angle: float) -> Array:
    return np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]])


def shifted(x: float, y: float) -> Array:
    return np.array([[1, 0, x], [0, 1, y], [0, 0, 1]])


def box(points: Array, angle: float) -> tuple[Array, Array]:
    """Size and centre (turned back) of the box around turned points (N, 2)."""
    moved = points @ turned(angle)[:2, :2].T
    middle = (moved.max(0) + moved.min(0)) / 2
    return moved.max(0) - moved.min(0), turned(-angle)[:2, :2] @ middle


def matrix_of(plane: Array) -> Array:
    """A matrix of 3 x 3 with a third axis that stays."""
    wanted = np.eye(4)
    wanted[:2, :2], wanted[:2, 3] = plane[:2, :2], plane[:2, 2]
    return wanted[None]


def test_matrix_of_landmarks() -> None:
    x = RNG.uniform(10, 90, (1, 6, 3)).astype(np.float32)
    points, subset = x[0, :, :2].astype(np.float64), [0, 2, 3, 5, 4]
    fields = {
        "subset_idxs": subset, "left_rotation_idx": 1, "right_rotation_idx": 4, "target_rotation_radians": 0.3,
        "output_height": 8, "output_width": 12, "scale_x": 1.5, "scale_y": 1.25,
    }  # fmt: skip
    across, down = points[4] - points[1]
    angle = 0.3 - math.atan2(down, across)
    size, middle = box(points[subset], angle)
    scale = np.diag([1.5 * size[0] / 12, 1.25 * size[1] / 8, 1])
    wanted = matrix_of(shifted(*middle) @ turned(-angle) @ scale @ shifted(-6, -4))
    (found,) = made("Landmarks2TransformMatrix", {"x": x}, {"y": (1, 4, 4)}, fields=fields)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_matrix_of_landmarks_as_the_first_version_has_it() -> None:
    x = RNG.uniform(10, 90, (1, 1, 1, 18)).astype(np.float32)
    points, subset = x.reshape(6, 3)[:, :2].astype(np.float64), [0, 2, 3, 5]
    fields = {
        "subset": subset, "left_rotation_idx": 4, "right_rotation_idx": 1, "dimensions": 3, "landmarks_range": 96,
        "bbox_size_multiplier": 1.5, "input_hw": [48, 64], "output_hw": [8, 12],
    }  # fmt: skip
    across, down = points[1] - points[4]
    angle = -math.atan(down / across)
    size, middle = box(points[subset], angle)
    relative = np.array([[2 / 11, 0, -1], [0, 2 / 7, -1], [0, 0, 1]])
    scale = np.diag([1.5 * size[0] / 96, 1.5 * size[1] / 96, 1])
    centre = shifted(*(middle / 96 * 2 - 1))
    absolute = np.array([[63 / 2, 0, 63 / 2], [0, 47 / 2, 47 / 2], [0, 0, 1]])
    wanted = matrix_of(absolute @ centre @ turned(-angle) @ scale @ relative)
    (found,) = made("Landmarks2TransformMatrix", {"x": x}, {"y": (1, 4, 4)}, fields=fields)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("Convolution2DTransposeBias", (SAME, 2)),
        ("Convolution2DTransposeBias", (3, 2, 2)),
        ("Convolution2DTransposeBias", (SAME, 0, 2)),
        ("Convolution2DTransposeBias", (SAME, 1 << 30, 2)),
    ],
)
def test_broken_options_are_refused(code: str, words: Sequence[int]) -> None:
    given = {"x": normal(1, 3, 3, 2), "w": normal(2, 2, 2, 2), "b": normal(2)}
    with pytest.raises(ModelError, match="options"):
        made(code, given, {"y": (1, 6, 6, 2)}, ("w", "b"), words)


@pytest.mark.parametrize(
    "changed",
    [
        {"subset_idxs": []},
        {"subset_idxs": [0, 99]},
        {"left_rotation_idx": -1},
        {"output_width": 0},
        {"scale_x": "wide"},
    ],
)
def test_broken_landmarks_are_refused(changed: Mapping[str, Any]) -> None:
    fields = {
        "subset_idxs": [0, 1], "left_rotation_idx": 0, "right_rotation_idx": 1, "target_rotation_radians": 0.0,
        "output_height": 8, "output_width": 8, "scale_x": 1.0, "scale_y": 1.0, **changed,
    }  # fmt: skip
    with pytest.raises(ModelError):
        made("Landmarks2TransformMatrix", {"x": normal(1, 6, 3)}, {"y": (1, 4, 4)}, fields=fields)
