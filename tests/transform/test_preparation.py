# SPDX-License-Identifier: Apache-2.0
"""Raw numbers at an input: frames are cropped, resized, brought to the network's channels and normalised, as numpy says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import microc
from microc.base.dtypes import Array
from microc.errors import UsageError
from microc.graph.ir import Graph, Node, Quant, TensorType
from tests.support import digits

MEAN, STD = (120.0, 111.0, 103.5), (58.0, 57.0, 57.5)
PIXELS = np.random.default_rng(0)


def network(shape: tuple[int, ...], dtype: str = "float32", quant: Quant | None = None) -> Graph:
    """What is prepared comes out as it is."""
    kind = TensorType(shape, dtype, quant)
    return Graph("net", ("x",), ("y",), (Node("reshape", ("x",), ("y",), {"shape": shape}),), {"x": kind, "y": kind})


def prepared(graph: Graph, x: Array, **options: Any) -> Array:
    result = microc.compile(graph, **options)(x)
    assert isinstance(result, np.ndarray)
    return result


def pixels(*shape: int) -> Array:
    return PIXELS.integers(0, 256, shape).astype(np.uint8)


def bilinear(image: Array, size: tuple[int, int]) -> Array:
    """(rows, columns, channels) in another size, in double precision, between centres of pixels."""
    for axis, count in enumerate(size):
        extent = image.shape[axis]
        places = np.clip((np.arange(count) + 0.5) * extent / count - 0.5, 0, extent - 1)
        below = np.floor(places).astype(int)
        share = (places - below).reshape(-1, *(1,) * (2 - axis))
        above = np.take(image, np.minimum(below + 1, extent - 1), axis)
        image = np.take(image, below, axis) * (1 - share) + above * share
    return image


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32"])
def test_numbers_are_normalised_by_channel(dtype: str) -> None:
    x = pixels(1, 5, 3).astype(dtype)
    got = prepared(network((1, 5, 3)), x, input_normalize=(MEAN, STD), input_dtype=dtype)
    np.testing.assert_allclose(
        got, (x.astype(np.float32) - np.array(MEAN, np.float32)) / np.array(STD, np.float32), rtol=3e-7
    )


def test_a_quantised_input_takes_what_is_nearest() -> None:
    quant = Quant((0.0078125,), (-3,))
    x = np.arange(256, dtype=np.uint8).reshape(1, 256)
    for mean, std in ((127.5, 128.0), (0.0, 255.0), (131.0, 128.0)):
        got = prepared(network((1, 256), "int8", quant), x, input_normalize=(mean, std))
        wanted = np.clip(np.rint((x - mean) / std / quant.scale[0]) - 3, -128, 127)
        np.testing.assert_array_equal(got, wanted.astype(np.int8))


@pytest.mark.parametrize(("frame", "crop"), [((13, 17), None), ((13, 17), (10, 11)), ((4, 3), None), ((6, 9), (6, 9))])
def test_frames_are_resized_within_a_step(frame: tuple[int, int], crop: tuple[int, int] | None) -> None:
    x = pixels(1, *frame, 3)
    options: dict[str, Any] = {"input_frame": frame} | ({"input_crop": crop} if crop else {})
    height, width = crop or frame
    top, left = (frame[0] - height) // 2, (frame[1] - width) // 2
    part = x[0, top : top + height, left : left + width]
    got = prepared(network((1, 6, 8, 3)), x, **options)[0]
    assert np.abs(got - bilinear(part.astype(np.float64), (6, 8))).max() <= 0.5 + 255 / 2048
    nearest = prepared(network((1, 6, 8, 3)), x, **options, input_resize="nearest")[0]
    rows, columns = (
        (2 * np.arange(n) + 1) * extent // (2 * n) for n, extent in zip((6, 8), (height, width), strict=True)
    )
    np.testing.assert_array_equal(nearest, part[rows][:, columns])


def test_a_crop_of_the_network_s_size_moves_pixels() -> None:
    x = pixels(1, 9, 12, 1)
    got = prepared(network((1, 4, 6, 1)), x, input_frame=(9, 12), input_crop=(4, 6))
    np.testing.assert_array_equal(got, x[:, 2:6, 3:9])


def test_colours() -> None:
    x = pixels(1, 2, 3, 3)
    colour, gray = network((1, 2, 3, 3)), network((1, 2, 3, 1))
    np.testing.assert_array_equal(prepared(colour, x, input_colour="rgb"), x)
    np.testing.assert_array_equal(prepared(colour, x, input_colour="bgr"), x[..., ::-1])
    np.testing.assert_array_equal(prepared(colour, x[..., :1], input_colour="gray"), np.repeat(x[..., :1], 3, -1))
    np.testing.assert_array_equal(prepared(gray, x[..., :1], input_colour="gray"), x[..., :1])
    luma = x @ np.array([0.299, 0.587, 0.114])
    for order, step in (("rgb", 1), ("bgr", -1)):
        got = prepared(gray, x[..., ::step], input_colour=order)[..., 0]
        assert np.abs(got - luma).max() <= 0.5 + 255 * 0.0021
        real = prepared(gray, x[..., ::step].astype(np.float32), input_colour=order, input_dtype="float32")[..., 0]
        assert np.abs(real - luma).max() <= 255 * 0.0021


@pytest.mark.parametrize("model", [digits.FLOAT, digits.INT8])
def test_networks_take_frames_in_channels_last(model: Any) -> None:
    """The float network has channels first, the integers stand for pixels by a scale of their own."""
    frame = pixels(1, 10, 14, 3)
    library = microc.compile(
        model, input_frame=(10, 14), input_colour="bgr", input_normalize=(0, 255), input_crop=(8, 8)
    )
    assert library.inputs[0]["dtype"] == "uint8" and library.inputs[0]["shape"] == [1, 10, 14, 3]
    assert library.inputs[0]["scale"] is None
    part = frame[:, 1:9, 3:11, ::-1].astype(np.int64)
    gray = (part @ np.array([77, 150, 29]) + 128) >> 8
    name = microc.load(model).inputs[0]
    kind = microc.load(model).types[name]
    real = (gray / 255).astype(np.float32).reshape(kind.shape)
    if kind.quant is not None:
        real = np.clip(np.rint(real / np.float32(kind.quant.scale[0])) + kind.quant.zero_point[0], -128, 127)
    want = microc.compile(model)(real.astype(kind.dtype))
    np.testing.assert_allclose(library(frame), want, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"input_normalize": (0, 0)}, "divides by zero"),
        ({"input_normalize": ((1, 2), 1)}, "got 2 numbers, expected 1 or 3"),
        ({"input_normalize": 3}, "cannot be 3"),
        ({"input_normalize": (1, float("nan"))}, "cannot be nan"),
        ({"input_normalize": {"z": (1, 2)}}, "no input 'z'"),
        ({"input_frame": (8, 8), "input_crop": (9, 4)}, "a crop of 9x4"),
        ({"input_frame": (0, 8)}, "cannot be 0"),
        ({"input_crop": (4, 4)}, "unknown size"),
        ({"input_colour": "cmyk"}, "cannot be 'cmyk'"),
        ({"input_frame": (8, 8), "input_dtype": "int64"}, "cannot be an image"),
    ],
)
def test_refusals(options: dict[str, Any], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        microc.load(network((1, 4, 4, 3)), **options)


def test_what_is_no_picture_and_what_stands_for_no_reals_is_refused() -> None:
    with pytest.raises(UsageError, match="no image; got 2 axes"):
        microc.load(network((1, 4)), input_colour="bgr")
    with pytest.raises(UsageError, match="5 channels"):
        microc.load(network((1, 4, 4, 5)), input_frame=(8, 8))
    with pytest.raises(UsageError, match="cannot be normalised"):
        microc.load(network((1, 4), "int32"), input_normalize=(1, 2))


def test_of_several_inputs_one_is_named() -> None:
    kind = TensorType((1, 4), "float32")
    graph = Graph("net", ("a", "b"), ("y",), (Node("add", ("a", "b"), ("y",)),), dict.fromkeys("aby", kind))
    with pytest.raises(UsageError, match="the option names no input"):
        microc.load(graph, input_normalize=(1, 2))
    library = microc.compile(graph, input_normalize={"b": (1, 2)})
    assert [tensor["dtype"] for tensor in library.inputs] == ["float32", "uint8"]
    got = library(np.ones((1, 4), np.float32), np.full((1, 4), 9, np.uint8))
    np.testing.assert_array_equal(got, np.full((1, 4), 5, np.float32))
