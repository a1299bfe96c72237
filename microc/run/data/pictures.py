"""Pictures as inputs, and arrays as tensors take them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.file_access import open_regular
from microc.base.immutable import frozen
from microc.errors import ToolError, UsageError
from microc.numerics import round_half_away

# ---- Arrays as the tensors of a network take them: in shape, and in dtype where the conversion is told.

FINITE = "leave these samples out: array[numpy.isfinite(array).reshape(len(array), -1).all(axis=1)]"
"""What to do about numbers that are none."""


def shaped(array: Array, tensor: Mapping[str, Any], path: Path) -> Array:
    """The samples in the tensor's shape; the axis of a batch of one may be absent, and rows may be flat. Of a tensor with
    ``sequences`` they may be sequences of samples, along one axis more."""
    shape = tuple(tensor["shape"])
    if _holds(array, shape):
        return np.ascontiguousarray(array).reshape(len(array), *shape)
    if tensor.get("sequences") and len(array) and _holds(array[0], shape):
        return np.ascontiguousarray(array).reshape(*array.shape[:2], *shape)
    wanted = "x".join(map(str, ("N", *shape)))
    raise UsageError(
        f"{tensor['name']} takes samples of shape {wanted}, {array.shape} was given", where=str(path),
        hint=_reshaping(array, shape),
    )  # fmt: skip


def _holds(array: Array, shape: tuple[int, ...]) -> bool:
    """Whether the first axis counts samples of a shape."""
    flat = array.ndim == 2 and array.shape[1] == prod(shape)
    alone = shape[:1] == (1,) and array.shape[1:] == shape[1:]
    return array.ndim > 0 and (array.shape[1:] == shape or alone or flat)


def one_shaped(given: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    """What makes the array of an input of one in another shape, as far as the shape tells."""
    if prod(given) != prod(wanted):
        return f"give {prod(wanted)} elements of shape {wanted}; there are {prod(given)}"
    alike = len(given) == len(wanted) and sorted(given) == sorted(wanted)
    moved = alike and [e for e in given if e > 1] != [e for e in wanted if e > 1]
    return f"numpy.transpose(array, {_moved(given, wanted)})" if moved else f"array.reshape({wanted})"


def _moved(given: tuple[int, ...], wanted: tuple[int, ...]) -> tuple[int, ...]:
    """Which axis of an array becomes which of another order; of equal extents in turn."""
    left = list(enumerate(given))
    return tuple(left.pop(next(k for k, (_, extent) in enumerate(left) if extent == each))[0] for each in wanted)


def _reshaping(array: Array, shape: tuple[int, ...]) -> str:
    """What makes samples of an array, as far as its shape tells."""

    def extents(of: tuple[int, ...]) -> list[int]:
        return [extent for extent in of if extent != 1]

    samples = extents(array.shape[1:])
    if array.shape in (shape, shape[1:]) or (array.ndim > 1 and sorted(extents(array.shape)) == sorted(extents(shape))):
        return "that is one sample: put an axis in front, which counts them (array[None])"
    if array.ndim > 1 and samples == extents(shape):
        wanted = ", ".join(map(str, (-1, *shape[shape[:1] == (1,) :])))
        return f"an axis of one element is missing or too many: array.reshape({wanted})"
    if array.ndim > 1 and sorted(samples) == sorted(extents(shape)):
        moved = (
            0,
            *(1 + axis for axis in _moved(array.shape[1:], shape[shape[:1] == (1,) and array.ndim == len(shape) :])),
        )
        return f"the axes are those of the model in another order: numpy.transpose(array, {moved})"
    return "the first axis counts the samples" + ("; a batch of one may be left out" if shape[:1] == (1,) else "")


def fit(array: Array, tensor: Mapping[str, Any], path: Path) -> tuple[Array, str]:
    """The samples in the tensor's shape and dtype, and a note on what was converted."""
    found, dtype = shaped(array, tensor, path), dtypes.to_numpy(tensor["dtype"])
    name, given = tensor["name"], found.dtype
    if given == dtype:
        return found, ""
    if given.kind == "f" and dtype.kind in "iu" and not np.isfinite(found).all():
        raise UsageError(
            f"the samples for {name} hold infinities or NaN, which have no integer",
            where=str(path),
            hint=FINITE,
        )
    if dtype.kind == "f" and given.kind in "biuf":
        with np.errstate(over="ignore"):  # infinities are told of where all samples are looked at
            return found.astype(dtype), f"{name}: {given} taken as {dtype}"
    if given.kind == "f" and tensor["scale"] is not None:
        return quantise(found, tensor), f"{name}: {given} quantised by {tensor['scale']:.9g}, {tensor['zero_point']}"
    if tensor["scale"] is None and dtype.kind in "iub" and given.kind in "biuf" and _within(found, dtype):
        return found.astype(dtype), f"{name}: {given} taken as {dtype}"
    hint = f"give {dtype}"
    if tensor["scale"] is not None:
        hint += ", which are taken as they are, or floats, which are quantised"
    raise UsageError(f"{name} holds {dtype}, {given} was given", where=str(path), hint=hint)


def quantise(real: Array, tensor: Mapping[str, Any]) -> Array:
    """Reals as the stored integers of a tensor: round(x / scale) + zero point in single precision, as TFLite does; saturated."""
    low, high = dtypes.int_range(tensor["dtype"])
    steps = round_half_away(real.astype(np.float32) / np.float32(tensor["scale"])).astype(np.float64)
    stored: Array = np.clip(steps + tensor["zero_point"], low, high).astype(dtypes.to_numpy(tensor["dtype"]))
    return stored


def _within(array: Array, dtype: np.dtype[Any]) -> bool:
    """Whether all elements are whole numbers of a dtype."""
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    whole = array.dtype.kind != "f" or bool(np.all(np.mod(array, 1) == 0))
    return not array.size or (whole and low <= int(array.min()) and int(array.max()) <= high)


# ---- Pictures as inputs: files that Pillow reads, in the size, the channels and the numbers that an input takes.

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".webp")
"""Of files that are taken for pictures."""
_MODES = {1: "L", 3: "RGB"}
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "WEBP")
"""What is looked for in them: Pillow runs a program for some others, whatever the file is called."""


def is_picture(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


@frozen
class Geometry:
    """How a picture lies in a tensor: extents in pixels, 1 or 3 channels, and whether these come before the rows."""

    height: int
    width: int
    channels: int
    first: bool

    def placed(self, pixels: Array) -> Array:
        """Pixels (height, width, channels) in the tensor's order."""
        return pixels.transpose(2, 0, 1) if self.first else pixels


def geometry(tensor: Mapping[str, Any]) -> Geometry:
    """That of a tensor of shape HxW, HxWxC or CxHxW, with a batch of one before it or without; UsageError for any other."""
    shape = tuple(tensor["shape"])
    match shape[1:] if len(shape) in (3, 4) and shape[0] == 1 else shape:
        case (height, width, channels) if channels in _MODES:
            return Geometry(height, width, channels, False)
        case (channels, height, width) if channels in _MODES:
            return Geometry(height, width, channels, True)
        case (height, width):
            return Geometry(height, width, 1, False)
    raise UsageError(
        f"{tensor['name']} of shape {'x'.join(map(str, shape))} is no picture",
        where=str(tensor["name"]),
        hint="pictures go to inputs of shape HxW, HxWxC or CxHxW with 1 or 3 channels; give a .npy file",
    )


def with_colours(tensors: Iterable[Mapping[str, Any]], options: Mapping[str, str]) -> list[dict[str, Any]]:
    """Inputs of a manifest with the ``colour`` that its ``options`` say each has: ``NAME=bgr``, of all others ``*=rgb``."""
    said = options.get("input_colour", "")

    def colour(name: str) -> str:
        found = re.search(rf"(?:^| ){re.escape(name)}=(\w+)(?: |$)", said)
        return found[1] if found else ""

    return [{**tensor, "colour": colour(tensor["name"]) or colour("*")} for tensor in tensors]


@frozen
class Reader:
    """Reads pictures for an input, in the order of channels of its ``colour``. ``span``: the reals that pixels of 0 and of 255
    stand for; None: integers of 8 bits take pixels in order (0 is their lowest), all else takes 0 to 1."""

    tensor: Mapping[str, Any]
    span: tuple[float, float] | None = None

    def read(self, path: Path) -> Array:
        """The picture in the tensor's shape and dtype; UsageError for a file that is none."""
        place = geometry(self.tensor)
        pixels = _pixels(path, place)
        if self._reversed:
            pixels = pixels[:, :, ::-1]
        return self._numbers(place.placed(pixels)).reshape(self.tensor["shape"])

    def note(self) -> str:
        """What pictures become."""
        place, name = geometry(self.tensor), self.tensor["name"]
        mode = "BGR" if self._reversed and place.channels == 3 else _MODES[place.channels]
        what = f"{name}: pictures in {place.width}x{place.height}, {mode}, pixels of 0 to 255 taken as"
        if self._stored:
            lowest, highest = dtypes.int_range(self.tensor["dtype"])
            return f"{what} {lowest} to {highest}"
        low, high = self.span or (0.0, 1.0)
        return f"{what} {low:g} to {high:g}"

    @property
    def _reversed(self) -> bool:
        return self.tensor.get("colour") == "bgr"

    @property
    def _stored(self) -> bool:
        return self.span is None and self.tensor["dtype"] in ("int8", "uint8")

    def _numbers(self, pixels: Array) -> Array:
        dtype = dtypes.to_numpy(self.tensor["dtype"])
        if self._stored:
            return (pixels.astype(np.int16) + dtypes.int_range(self.tensor["dtype"])[0]).astype(dtype)
        low, high = self.span or (0.0, 1.0)
        reals = (low + pixels.astype(np.float64) * ((high - low) / 255)).astype(np.float32)
        if dtype.kind == "f":
            return reals.astype(dtype)
        if self.tensor["scale"] is not None:
            return quantise(reals, self.tensor)
        raise UsageError(
            f"{self.tensor['name']} holds {self.tensor['dtype']}, which stand for no reals",
            where=str(self.tensor["name"]),
            hint="give a .npy file of what the input takes",
        )


def _pixels(path: Path, place: Geometry) -> Array:
    """(height, width, channels), scaled where the picture has another size."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise ToolError("Pillow reads pictures and is not installed", hint="pip install microc[pictures]") from error
    try:
        with open_regular(path) as file, Image.open(file, formats=_FORMATS) as picture:
            fitting = picture.convert(_MODES[place.channels])
    except (UnidentifiedImageError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise UsageError(f"{path} is no picture", where=str(path), hint=f"known: {', '.join(SUFFIXES)}") from error
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(
            f"cannot read {path}: {reason}", where=str(path), hint="is it there, and does a viewer show it?"
        ) from error
    if fitting.size != (place.width, place.height):
        fitting = fitting.resize((place.width, place.height), resample=Image.Resampling.BILINEAR)
    return np.asarray(fitting, np.uint8).reshape(place.height, place.width, place.channels)
