"""Pictures as inputs: files that Pillow reads, in the size, the channels and the numbers that an input takes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from microc import dtypes
from microc.driver.data.fit import quantise
from microc.dtypes import Array
from microc.errors import ToolError, UsageError
from microc.frozen import frozen
from microc.reading import open_regular

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
