"""What an array looks like: a picture, curves, bars or numbers, by its shape; plain data of a bounded size."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from microc.dtypes import Array

PIXELS, POINTS, BARS, NUMBERS = 160, 512, 64, 16
"""The most that is shown of an edge of a picture, of a curve, of scores and of a row of numbers."""
_EDGE, _CURVES = 8, 7
"""The least edge of a plane that is seen as a picture, and the most curves side by side."""


def view(tensor: Mapping[str, Any], array: Array, *, output: bool = False) -> dict[str, Any]:
    """``kind`` and what it is drawn from. Integers that stand for reals become these.

    ``picture``: ``pixels``, base64 of ``height`` x ``width`` x ``channels`` bytes. ``curves``: ``series``, lists of as many
    numbers. ``bars``: ``values``, the scores of an output. ``numbers``: ``values``. None stands for what is not finite.
    """
    named = {"name": tensor["label"] or tensor["name"], "dtype": tensor["dtype"], "shape": list(array.shape)}
    plane = _plane(array)
    if plane is not None and not output:
        return {**named, "kind": "picture", **_picture(tensor, plane)}
    reals = _reals(tensor, array)
    if output and 1 < array.size <= BARS:
        return {**named, "kind": "bars", "values": _numbers(reals.reshape(-1))}
    if array.size > NUMBERS:
        return {**named, "kind": "curves", "series": _curves(reals)}
    return {**named, "kind": "numbers", "values": _numbers(reals.reshape(-1))}


def _plane(array: Array) -> Array | None:
    """Rows, columns and channels of what is a picture; None of all else."""
    shape = array.shape
    while len(shape) > 2 and shape[0] == 1:
        shape = shape[1:]
    match shape:
        case (height, width, channels) if channels in (1, 3) and min(height, width) >= _EDGE:
            return array.reshape(height, width, channels)
        case (channels, height, width) if channels == 3 and min(height, width) >= _EDGE:
            return array.reshape(channels, height, width).transpose(1, 2, 0)
        case (height, width) if min(height, width) >= _EDGE:
            return array.reshape(height, width, 1)
    return None


def _picture(tensor: Mapping[str, Any], plane: Array) -> dict[str, Any]:
    """The pixels: those of 8 bits in their order, all others from the least to the largest of the picture."""
    height, width, channels = plane.shape
    step = math.ceil(max(height, width) / PIXELS)
    shown = plane[::step, ::step].astype(np.float64)
    if tensor["dtype"] in ("int8", "uint8"):
        low, high = (-128.0, 127.0) if tensor["dtype"] == "int8" else (0.0, 255.0)
    else:
        finite = shown[np.isfinite(shown)]
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    scaled = np.nan_to_num((shown - low) * (255 / ((high - low) or 1.0)), posinf=255.0, neginf=0.0)
    pixels = np.clip(np.rint(scaled), 0, 255).astype(np.uint8)
    return {
        "height": pixels.shape[0],
        "width": pixels.shape[1],
        "channels": channels,
        "pixels": base64.b64encode(pixels.tobytes()).decode("ascii"),
    }


def _curves(reals: Array) -> list[list[float | None]]:
    """One curve along time, or some side by side where the last axis is short."""
    wide = reals.ndim > 1 and 1 < reals.shape[-1] <= _CURVES
    series = reals.reshape(-1, reals.shape[-1]).T if wide else reals.reshape(1, -1)
    step = math.ceil(series.shape[1] / POINTS)
    return [_numbers(curve[::step]) for curve in series]


def _reals(tensor: Mapping[str, Any], array: Array) -> Array:
    found: Array = array.astype(np.float64)
    return found if tensor["scale"] is None else (found - tensor["zero_point"]) * tensor["scale"]


def _numbers(reals: Array) -> list[float | None]:
    return [float(f"{number:.6g}") if math.isfinite(number) else None for number in reals.tolist()]
