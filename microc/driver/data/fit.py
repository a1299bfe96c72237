"""Arrays as the tensors of a network take them: in shape, and in dtype where the conversion is told."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from microc import dtypes
from microc.dtypes import Array
from microc.errors import UsageError
from microc.fixed import round_half_away

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
