# SPDX-License-Identifier: Apache-2.0
"""Convert arrays and pictures to the tensors of a network: reshape, quantise, scale."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.file_access import open_regular_file
from microc.base.immutable import frozen
from microc.errors import ToolError, UsageError
from microc.numerics import round_half_away

# ---- Arrays in the shape and dtype of a network's tensors. Every conversion of dtype is reported in a note.

FINITE = "leave out the samples with such numbers: array[numpy.isfinite(array).reshape(len(array), -1).all(axis=1)]"
"""Hint for samples with infinities or NaN."""


def reshape_samples(array: Array, tensor: Mapping[str, Any], path: Path) -> Array:
    """Reshape samples, counted by the first axis, to a tensor's shape.

    A sample may be a flat row. If the tensor's first axis has extent 1 (a batch of one), a sample may lack this axis. A
    tensor with ``sequences`` also accepts sequences of samples, with one more axis. ``path``: file of the samples, for
    errors. Raises UsageError for any other shape; its hint contains the ``reshape`` that is needed."""
    shape = tuple(tensor["shape"])
    if _is_batch_of(array, shape):
        return np.ascontiguousarray(array).reshape(len(array), *shape)
    if tensor.get("sequences") and len(array) and _is_batch_of(array[0], shape):
        return np.ascontiguousarray(array).reshape(*array.shape[:2], *shape)
    shape_text = "x".join(map(str, ("N", *shape)))
    raise UsageError(
        f"{tensor['name']} takes samples of shape {shape_text}; got {array.shape}", where=str(path),
        hint=_samples_shape_hint(array, shape),
    )  # fmt: skip


def _is_batch_of(array: Array, sample_shape: tuple[int, ...]) -> bool:
    """Test whether an array consists of samples of ``sample_shape`` along its first axis.

    Samples may also be flat rows; if the sample's first axis has extent 1 (a batch of one), they may lack that axis."""
    is_flat = array.ndim == 2 and array.shape[1] == prod(sample_shape)
    lacks_batch = sample_shape[:1] == (1,) and array.shape[1:] == sample_shape[1:]
    return array.ndim > 0 and (array.shape[1:] == sample_shape or lacks_batch or is_flat)


def reshape_expression(array_shape: tuple[int, ...], input_shape: tuple[int, ...]) -> str:
    """Return numpy code that transposes or reshapes ``array`` from ``array_shape`` to ``input_shape``.

    If the numbers of elements differ, the result is a hint in words instead of code."""
    if prod(array_shape) != prod(input_shape):
        return f"give {prod(input_shape)} elements of shape {input_shape}; there are {prod(array_shape)}"
    is_permutation = len(array_shape) == len(input_shape) and sorted(array_shape) == sorted(input_shape)
    needs_transpose = is_permutation and [e for e in array_shape if e > 1] != [e for e in input_shape if e > 1]
    return (
        f"numpy.transpose(array, {_axis_permutation(array_shape, input_shape)})"
        if needs_transpose
        else f"array.reshape({input_shape})"
    )


def _axis_permutation(array_shape: tuple[int, ...], input_shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the permutation of axes that converts one shape to the other; axes of equal extent keep their order."""
    remaining = list(enumerate(array_shape))
    return tuple(
        remaining.pop(next(k for k, (_, extent) in enumerate(remaining) if extent == size))[0] for size in input_shape
    )


def _samples_shape_hint(array: Array, shape: tuple[int, ...]) -> str:
    """Return a hint how to convert an array to samples of a shape, derived from both shapes."""

    def list_extents_above_one(shape: tuple[int, ...]) -> list[int]:
        return [extent for extent in shape if extent != 1]

    samples = list_extents_above_one(array.shape[1:])
    if array.shape in (shape, shape[1:]) or (
        array.ndim > 1 and sorted(list_extents_above_one(array.shape)) == sorted(list_extents_above_one(shape))
    ):
        return "that is one sample: add an axis in front that counts samples, array[None]"
    if array.ndim > 1 and samples == list_extents_above_one(shape):
        wanted = ", ".join(map(str, (-1, *shape[shape[:1] == (1,) :])))
        return f"an axis of one element is missing or too many: array.reshape({wanted})"
    if array.ndim > 1 and sorted(samples) == sorted(list_extents_above_one(shape)):
        axes = (
            0,
            *(
                1 + axis
                for axis in _axis_permutation(array.shape[1:], shape[shape[:1] == (1,) and array.ndim == len(shape) :])
            ),
        )
        return f"reorder the axes as in the model: numpy.transpose(array, {axes})"
    return "count the samples along the first axis" + ("; a batch of one may be left out" if shape[:1] == (1,) else "")


def convert_samples(array: Array, tensor: Mapping[str, Any], path: Path) -> tuple[Array, str]:
    """Convert samples to a tensor's shape and dtype.

    Returns them with a note on the conversion of the dtype, empty if none was needed. ``path``: file of the samples,
    for errors. Raises UsageError for a shape or dtype that does not fit, infinities or NaN for integers, or numbers
    beyond the dtype."""
    array_in_shape, dtype = reshape_samples(array, tensor, path), dtypes.to_numpy(tensor["dtype"])
    name, given = tensor["name"], array_in_shape.dtype
    if given == dtype:
        return array_in_shape, ""
    if given.kind == "f" and dtype.kind in "iu" and not np.isfinite(array_in_shape).all():
        raise UsageError(
            f"{name}: infinities or NaN cannot be converted to {dtype}, expected finite numbers",
            where=str(path),
            hint=FINITE,
        )
    if dtype.kind == "f" and given.kind in "biuf":
        with np.errstate(over="ignore"):  # infinities are reported later, for all samples at once
            return array_in_shape.astype(dtype), f"{name}: {given} taken as {dtype}"
    if given.kind == "f" and tensor["scale"] is not None:
        return quantise_to_tensor(
            array_in_shape, tensor
        ), f"{name}: {given} quantised by {tensor['scale']:.9g}, {tensor['zero_point']}"
    if tensor["scale"] is None and dtype.kind in "iub" and given.kind in "biuf" and _fits_dtype(array_in_shape, dtype):
        return array_in_shape.astype(dtype), f"{name}: {given} taken as {dtype}"
    hint = f"give {dtype}"
    if tensor["scale"] is not None:
        hint += ", which stays unchanged, or floats, which are quantised"
    raise UsageError(f"{name}: got {given}, expected {dtype}", where=str(path), hint=hint)


def quantise_to_tensor(reals: Array, tensor: Mapping[str, Any]) -> Array:
    """Quantise real numbers to a tensor's integers, saturated.

    The result is round(x / scale) + zero_point, as TFLite computes it: the division is in float32, and ties are rounded
    away from zero."""
    low, high = dtypes.int_range(tensor["dtype"])
    steps = round_half_away(reals.astype(np.float32) / np.float32(tensor["scale"])).astype(np.float64)
    stored: Array = np.clip(steps + tensor["zero_point"], low, high).astype(dtypes.to_numpy(tensor["dtype"]))
    return stored


def dequantise(stored: Array, tensor: Mapping[str, Any]) -> Array:
    """Convert stored numbers to real numbers: dequantise integers that have a scale, leave other numbers unchanged."""
    real = stored.astype(np.float64)
    return real if tensor["scale"] is None else (real - tensor["zero_point"]) * tensor["scale"]


def _fits_dtype(array: Array, dtype: np.dtype[Any]) -> bool:
    """Test whether all elements are integers in the range of a dtype."""
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    whole = array.dtype.kind != "f" or bool(np.all(np.mod(array, 1) == 0))
    return not array.size or (whole and low <= int(array.min()) and int(array.max()) <= high)


# ---- Pictures: files that Pillow reads, converted to the size, channels and numbers of an input.

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".webp")
"""Suffixes of files that are treated as pictures."""
_MODES = {1: "L", 3: "RGB"}
"""Pillow's modes by the number of channels."""
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "WEBP")
"""Formats that Pillow may open, whatever a file is called. For some others it would run external programs."""


def is_picture(path: Path) -> bool:
    """Test whether a file is a picture, by its suffix."""
    return path.suffix.lower() in SUFFIXES


@frozen
class PictureLayout:
    """Layout of a picture in a tensor: height and width in pixels, 1 or 3 channels.

    ``first``: True if the channels are the first axis (CHW), False if they are the last (HWC)."""

    height: int
    width: int
    channels: int
    first: bool

    def transpose_pixels(self, pixels: Array) -> Array:
        """Transpose pixels (height, width, channels) to the tensor's layout."""
        return pixels.transpose(2, 0, 1) if self.first else pixels


def picture_layout_of(tensor: Mapping[str, Any]) -> PictureLayout:
    """Derive the layout of a picture from a tensor's shape: HxW, HxWxC or CxHxW, with or without a batch of one. Raises
    UsageError for any other shape."""
    shape = tuple(tensor["shape"])
    match shape[1:] if len(shape) in (3, 4) and shape[0] == 1 else shape:
        case (height, width, channels) if channels in _MODES:
            return PictureLayout(height, width, channels, False)
        case (channels, height, width) if channels in _MODES:
            return PictureLayout(height, width, channels, True)
        case (height, width):
            return PictureLayout(height, width, 1, False)
    raise UsageError(
        f"{tensor['name']} of shape {'x'.join(map(str, shape))} is no picture, expected HxW, HxWxC or CxHxW",
        where=str(tensor["name"]),
        hint="give a .npy file; pictures need an input with 1 or 3 channels",
    )


def add_channel_orders(tensors: Iterable[Mapping[str, Any]], options: Mapping[str, str]) -> list[dict[str, Any]]:
    """Copy the inputs of a manifest and add the order of their colour channels as ``colour``: ``rgb``, ``bgr`` or
    empty.

    The manifest's ``options`` give it as ``input_colour``: ``NAME=bgr`` for one input, ``*=rgb`` for all others."""
    colours = options.get("input_colour", "")

    def channel_order_of(name: str) -> str:
        match = re.search(rf"(?:^| ){re.escape(name)}=(\w+)(?: |$)", colours)
        return match[1] if match else ""

    return [{**tensor, "colour": channel_order_of(tensor["name"]) or channel_order_of("*")} for tensor in tensors]


@frozen
class PictureReader:
    """Reader of picture files for one input of a network.

    ``tensor``: the input, whose ``colour`` is the order of channels. ``pixel_range``: the real numbers for pixel values
    0 and 255. If it is None, an 8-bit input takes pixel values, shifted so that 0 becomes its lowest integer, and other
    inputs take numbers from 0 to 1."""

    tensor: Mapping[str, Any]
    pixel_range: tuple[float, float] | None = None

    def read(self, path: Path) -> Array:
        """Read a picture file as an array in the tensor's shape and dtype; raise UsageError if it is no picture."""
        layout = picture_layout_of(self.tensor)
        pixels = _read_pixels(path, layout)
        if self._is_bgr:
            pixels = pixels[:, :, ::-1]
        return self._convert_pixels(layout.transpose_pixels(pixels)).reshape(self.tensor["shape"])

    def note(self) -> str:
        """Describe how pictures are converted for the input: size, channels, range of numbers."""
        layout, name = picture_layout_of(self.tensor), self.tensor["name"]
        mode = "BGR" if self._is_bgr and layout.channels == 3 else _MODES[layout.channels]
        conversion = f"{name}: pictures in {layout.width}x{layout.height}, {mode}, pixels of 0 to 255 taken as"
        if self._takes_raw_pixels:
            lowest, highest = dtypes.int_range(self.tensor["dtype"])
            return f"{conversion} {lowest} to {highest}"
        low, high = self.pixel_range or (0.0, 1.0)
        return f"{conversion} {low:g} to {high:g}"

    @property
    def _is_bgr(self) -> bool:
        return self.tensor.get("colour") == "bgr"

    @property
    def _takes_raw_pixels(self) -> bool:
        return self.pixel_range is None and self.tensor["dtype"] in ("int8", "uint8")

    def _convert_pixels(self, pixels: Array) -> Array:
        """Convert pixels (0 to 255) to the range of numbers and the dtype of the input.

        Raises UsageError if the input holds integers without a scale, unless it takes 8-bit pixels unchanged."""
        dtype = dtypes.to_numpy(self.tensor["dtype"])
        if self._takes_raw_pixels:
            return (pixels.astype(np.int16) + dtypes.int_range(self.tensor["dtype"])[0]).astype(dtype)
        low, high = self.pixel_range or (0.0, 1.0)
        reals = (low + pixels.astype(np.float64) * ((high - low) / 255)).astype(np.float32)
        if dtype.kind == "f":
            return reals.astype(dtype)
        if self.tensor["scale"] is not None:
            return quantise_to_tensor(reals, self.tensor)
        raise UsageError(
            f"{self.tensor['name']}: pixels cannot be converted to integers without a scale; "
            f"got {self.tensor['dtype']}, expected floats or an input with a scale",
            where=str(self.tensor["name"]),
            hint=f"give a .npy file of {self.tensor['dtype']}",
        )


def _read_pixels(path: Path, layout: PictureLayout) -> Array:
    """Read the pixels of a picture file as uint8 (height, width, channels), resized to the layout if necessary.

    Raises ToolError if Pillow is not installed, UsageError for anything but a picture."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise ToolError(
            "pictures need Pillow, which is not installed", hint='install it: pip install "microc[pictures]"'
        ) from error
    try:
        with open_regular_file(path) as file, Image.open(file, formats=_FORMATS) as picture:
            converted = picture.convert(_MODES[layout.channels])
    except (UnidentifiedImageError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise UsageError(
            f"cannot read {path} as a picture",
            where=str(path),
            hint=f"convert it to one of {', '.join(SUFFIXES)}",
        ) from error
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(
            f"cannot read {path}: {reason}",
            where=str(path),
            hint="check that the file exists and is an image that a viewer opens",
        ) from error
    if converted.size != (layout.width, layout.height):
        converted = converted.resize((layout.width, layout.height), resample=Image.Resampling.BILINEAR)
    return np.asarray(converted, np.uint8).reshape(layout.height, layout.width, layout.channels)
