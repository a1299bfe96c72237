# SPDX-License-Identifier: Apache-2.0
"""Pictures as inputs: sizes, channels, numbers, and folders of them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from microc.base.dtypes import Array
from microc.cli.project_context import pixel_range
from microc.errors import UsageError
from microc.run.data.pictures import PictureReader, add_channel_orders
from microc.run.data.samples import read_samples

PIXELS = np.arange(24, dtype=np.uint8).reshape(2, 4, 3) * 10
OUTPUT = {"name": "y", "label": "y", "dtype": "int8", "shape": (1, 2), "scale": 0.1, "zero_point": 0}


def tensor(dtype: str, shape: tuple[int, ...], scale: float | None = None, zero_point: int = 0) -> dict[str, Any]:
    return {"name": "x", "label": "x", "dtype": dtype, "shape": shape, "scale": scale, "zero_point": zero_point}


def picture(path: Path, pixels: Array = PIXELS) -> Path:
    Image.fromarray(pixels).save(path)
    return path


def test_orders_and_channels(tmp_path: Path) -> None:
    path = picture(tmp_path / "a.png")
    for shape in ((1, 2, 4, 3), (2, 4, 3)):
        assert np.array_equal(PictureReader(tensor("uint8", shape)).read(path), PIXELS.reshape(shape))
    first = PictureReader(tensor("uint8", (1, 3, 2, 4))).read(path)
    assert np.array_equal(first[0], PIXELS.transpose(2, 0, 1))
    grey = np.asarray(Image.fromarray(PIXELS).convert("L"))
    for one in ((2, 4), (1, 2, 4, 1), (1, 1, 2, 4)):
        assert np.array_equal(PictureReader(tensor("uint8", one)).read(path), grey.reshape(one))
    with pytest.raises(UsageError, match="shape 10 is no picture"):
        PictureReader(tensor("uint8", (10,))).read(path)


def test_orders_of_channels(tmp_path: Path) -> None:
    """As the options of a manifest say, of an input by name or of all; a grey picture has none."""
    path, inputs = picture(tmp_path / "a.png"), [tensor("uint8", (1, 2, 4, 3)), tensor("uint8", (1, 2, 4))]
    inputs[1]["name"] = "the other"
    for words, expected in {
        "": ["", ""],
        "*=bgr": ["bgr"] * 2,
        "*=gray x=bgr": ["bgr", "gray"],
        "the other=rgb": ["", "rgb"],
    }.items():
        assert [each["colour"] for each in add_channel_orders(inputs, {"input_colour": words})] == expected
    reversed_, grey = add_channel_orders(inputs, {"input_colour": "*=bgr"})
    assert (
        np.array_equal(PictureReader(reversed_).read(path)[0], PIXELS[..., ::-1])
        and "BGR" in PictureReader(reversed_).note()
    )
    assert np.array_equal(PictureReader(grey).read(path), PictureReader(inputs[1]).read(path))


def test_numbers(tmp_path: Path) -> None:
    """Eight bits take pixels in order; reals are 0 to 1 or what is asked for, quantised where the input is."""
    path, shape = picture(tmp_path / "a.png"), (1, 2, 4, 3)
    real = PIXELS.reshape(shape) / 255
    assert np.array_equal(
        PictureReader(tensor("int8", shape, 0.1, 5)).read(path), PIXELS.reshape(shape).astype(np.int16) - 128
    )
    assert np.allclose(PictureReader(tensor("float32", shape)).read(path), real, rtol=1e-6)
    assert np.allclose(PictureReader(tensor("float32", shape), (-1, 1)).read(path), real * 2 - 1, atol=1e-6)
    stored = PictureReader(tensor("int8", shape, 1 / 128, 0), (-1, 1)).read(path)
    assert np.array_equal(stored, np.clip(np.floor((real * 2 - 1) * 128 + 0.5), -128, 127))
    assert PictureReader(tensor("int16", shape, 1 / 32768, 0)).read(path).max() == round(230 / 255 * 32768)
    with pytest.raises(UsageError, match="without a scale"):
        PictureReader(tensor("int32", shape)).read(path)


def test_another_size(tmp_path: Path) -> None:
    plain = np.full((9, 7, 3), 77, np.uint8)
    assert np.unique(
        PictureReader(tensor("uint8", (1, 4, 5, 3))).read(picture(tmp_path / "a.png", plain))
    ).tolist() == [77]


def test_folders_by_class(tmp_path: Path) -> None:
    for name, count in (("cat", 1), ("dog", 2)):
        (tmp_path / name).mkdir()
        for k in range(count):
            picture(tmp_path / name / f"{k}.png")
    samples = read_samples([tensor("int8", (1, 2, 4, 3))], [OUTPUT], tmp_path)
    assert samples.labels is not None and samples.labels.tolist() == [0, 1, 1]
    assert samples.inputs[0].shape == (3, 1, 2, 4, 3)
    assert samples.notes == ("x: pictures in 4x2, RGB, pixels of 0 to 255 taken as -128 to 127",)
    (alone,) = read_samples([tensor("int8", (1, 2, 4, 3))], [OUTPUT], tmp_path / "cat" / "0.png").inputs[0]
    assert np.array_equal(alone, samples.inputs[0][0])
    with pytest.raises(UsageError, match="several inputs"):
        read_samples([tensor("int8", (1, 2, 4, 3))] * 2, [OUTPUT], tmp_path)


def test_what_is_no_picture(tmp_path: Path) -> None:
    shape = (1, 2, 4, 3)
    (tmp_path / "text.png").write_text("hello")
    whole = picture(
        tmp_path / "whole.png", np.random.default_rng(0).integers(0, 255, (40, 40, 3), np.uint8)
    ).read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    for name in ("text.png", "cut.png", "absent.png"):
        with pytest.raises(UsageError):
            PictureReader(tensor("uint8", shape)).read(tmp_path / name)


def test_pixels_speak_of_pictures(tmp_path: Path) -> None:
    array = tmp_path / "x.npy"
    np.save(array, np.zeros((1, 2)))
    for inputs, span, words in (
        ([picture(tmp_path / "a.png")], (math.nan, 1.0), "two finite numbers"),
        ([array], (-1.0, 1.0), "got none"),
    ):
        with pytest.raises(UsageError, match=words):
            pixel_range(span, inputs)
