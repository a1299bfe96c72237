"""Operators on images: resizing, sampling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product, zip_longest
from typing import Any

import numpy as np

from microc import dtypes
from microc.dtypes import Array
from microc.frontend.onnx.resize import Axis, Rule, coordinates, table
from microc.frontend.onnx.writer.application import Application, Row
from microc.frontend.onnx.writer.build import TO_FIRST

_COORDINATES = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric")
_SINCE = {"half_pixel_symmetric": 19}
"""The version of the operator set that a way to find coordinates came with, where that is not the first."""
_PRECISION = 2.0**-22
_ROUNDINGS = ("round_prefer_floor", "floor", "ceil", "round_prefer_ceil")


def resample(application: Application) -> None:
    """Resize where a mode of it makes just these tables; else the elements that the tables name, weighted and summed."""
    axes, shift = application.attr("axes"), application.attr("shift")
    tables = [application.data(k) for k in range(1, len(application.node.inputs))]
    if any(data is None for data in tables):
        application.refuse("tables that are computed", "make them constants")
    known = [data for data in tables if data is not None]
    indices, weights = known[: len(axes)], known[len(axes) :]
    if any(not dtypes.is_float(data.dtype.name) for data in weights):
        application.refuse(f"{application.dtype()} weighted by integers of {shift} bits", "ONNX resizes floats")
    before, after = application.type().shape, application.result_type.shape
    if application.builder.is_first(application.node.inputs[0]):
        application, axes = application.with_channels_first(), [TO_FIRST.index(axis) for axis in axes]
        before, after = (tuple(shape[axis] for axis in TO_FIRST) for shape in (before, after))
    resized = [Axis(axis, before[axis], after[axis], after[axis] / before[axis], 0.0, 1.0) for axis in axes]
    value, mode = application.operand(), _resize_mode(resized, indices, weights)
    if mode is not None:
        application.builder.require(_SINCE.get(mode["coordinate_transformation_mode"], 0))
        application.result("Resize", value, "", "", application.integers(*after), **mode)
        return
    for k, axis in enumerate(axes):
        value = _along(application, value, axis, indices[k], weights[k] if weights else None)
    application.result("Identity", value)


def _resize_mode(axes: list[Axis], indices: list[Array], weights: list[Array]) -> Mapping[str, Any] | None:
    """The attributes of a Resize along ``axes`` that takes elements from the places that the tables name."""
    wanted = [_places(index, weight) for index, weight in zip_longest(indices, weights)]
    if any(places is None for places in wanted) or any(axis.size == 0 for axis in axes):
        return None
    for rule in _rules("linear" if weights else "nearest"):
        tables = [table(rule, axis, coordinates(rule, axis)) for axis in axes]
        found = [_places(index, weight if weights else None) for index, weight in tables]
        if all(_same(a, b, axis.extent) for a, b, axis in zip(found, wanted, axes, strict=True)):
            nearest = rule.rounding if rule.mode == "nearest" else None
            return {"mode": rule.mode, "coordinate_transformation_mode": rule.coordinates, "nearest_mode": nearest}
    return None


def _places(index: Array, weight: Array | None) -> Array | None:
    """Where between two neighbours the elements of a table lie; None where one is made of others."""
    if weight is None:
        return index[:, 0].astype(np.float64)
    used, real = weight != 0, index.astype(np.float64)
    first, last = (pick(np.where(used, real, other), axis=1) for pick, other in ((np.min, np.inf), (np.max, -np.inf)))
    whole = np.abs(weight.astype(np.float64).sum(1) - 1) <= _PRECISION
    return (real * weight).sum(1) if (whole & (last - first <= 1)).all() else None


def _same(a: Array | None, b: Array | None, extent: int) -> bool:
    """Whether places are the same but for the rounding of coordinates in float32."""
    return a is not None and b is not None and bool((np.abs(a - b) <= _PRECISION * extent).all())


def _rules(mode: str) -> Iterator[Rule]:
    for way, rounding in product(_COORDINATES, _ROUNDINGS if mode == "nearest" else _ROUNDINGS[:1]):
        yield Rule(mode, way, rounding, -0.75, antialias=False, exclude=False)


def _along(application: Application, value: str, axis: int, index: Array, weight: Array | None) -> str:
    """One axis: tap by tap, the elements times their weights."""
    behind = len(application.type().shape) - axis - 1
    total = ""
    for tap in range(index.shape[1]):
        places = application.constant(index[:, tap].astype(np.int64), "places")
        part = application.emit("Gather", value, places, axis=axis)
        if weight is not None:
            factors = weight[:, tap].reshape(-1, *(1,) * behind).astype(dtypes.to_numpy(application.dtype()))
            part = application.emit("Mul", part, application.constant(factors, "weights"))
        total = application.emit("Add", total, part) if total else part
    return total


def grid_sample(application: Application) -> None:
    """GridSample."""
    if application.attr("coordinates") == "elements":
        application.refuse("places that count elements", "ONNX has them from -1 to 1")
    shape, places = application.type().shape, application.type(1).shape
    if not 4 <= len(shape) == len(places):
        application.refuse(
            f"grid_sample of shape {shape} at places {places}", "ONNX has it of two spatial axes or more"
        )
    application.builder.require(20)
    application.result(
        "GridSample",
        application.operand(0),
        application.operand(1),
        mode=application.attr("mode"),
        padding_mode=_BORDERS[application.attr("border")],
        align_corners=int(application.attr("coordinates") == "corners"),
    )


_BORDERS = {"zeros": "zeros", "edge": "border", "reflection": "reflection"}


def roi_align(application: Application) -> None:
    """RoiAlign."""
    height, width = application.attr("size")
    images = application.operand(2)
    application.result(
        "RoiAlign",
        application.operand(0),
        application.operand(1),
        images if application.type(2).dtype == "int64" else application.cast(images, "int64"),
        mode=application.attr("mode"),
        output_height=height,
        output_width=width,
        sampling_ratio=application.attr("samples"),
        spatial_scale=application.attr("scale"),
        coordinate_transformation_mode="half_pixel" if application.attr("half_pixel") else "output_half_pixel",
    )


ROWS: Mapping[str, Row] = {"grid_sample": grid_sample, "resample": resample, "roi_align": roi_align}
