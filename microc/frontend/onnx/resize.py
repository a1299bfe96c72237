"""Resize by any factor, of any mode: every element along an axis is a weighted sum of a few, told by tables.

Source: ONNX Resize (its definition's formulas for coordinates, coefficients and antialiasing).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from microc.dtypes import Array, is_float
from microc.frontend.onnx.application import Application
from microc.frozen import frozen
from microc.graph.ir import Attr

MODES = ("nearest", "linear", "cubic")
_COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
)
_ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


@frozen
class Axis:
    """One axis that is resized: extents before and after, the factor, and the part of it that is shown (0 to 1: all)."""

    axis: int
    extent: int
    size: int
    scale: float
    first: float
    last: float


@frozen
class Rule:
    """How places and weights are found."""

    mode: str
    coordinates: str
    rounding: str
    sharpness: float
    antialias: bool
    exclude: bool

    @property
    def plain(self) -> bool:
        """Whether every element is weighted from the two that it lies between."""
        return self.mode == "linear" and not self.antialias and not self.exclude


def resample(application: Application, axes: Sequence[Axis]) -> None:
    """Write the operator's output: input 0 resized along ``axes``."""
    attributes, data = application.operator.attributes, application.value(0)
    old = application.opset < 11
    rule = Rule(
        attributes.text("mode", "nearest"),
        "asymmetric" if old else attributes.text("coordinate_transformation_mode", "half_pixel"),
        "floor" if old else attributes.text("nearest_mode", "round_prefer_floor"),
        attributes.real("cubic_coeff_a", -0.75),
        attributes.flag("antialias"),
        attributes.flag("exclude_outside"),
    )
    if rule.mode not in MODES or rule.coordinates not in _COORDINATES or rule.rounding not in _ROUNDINGS:
        application.broken(f"mode {rule.mode!r}, coordinates {rule.coordinates!r}, rounding {rule.rounding!r}")
    kind = application.type(data)
    if rule.mode != "nearest" and not is_float(kind.dtype):
        application.refuse(f"resizing {kind.dtype} in mode {rule.mode!r}", "use mode nearest")
    places = [coordinates(rule, axis) for axis in axes]
    tables = [table(rule, axis, place) for axis, place in zip(axes, places, strict=True)]
    attrs: Mapping[str, Attr] = {"axes": tuple(axis.axis for axis in axes)}
    name = application.output()
    operands = [application.new_constant(f"{name}_indices", index) for index, _ in tables]
    if rule.mode != "nearest":
        operands += [application.new_constant(f"{name}_weights", w.astype(kind.dtype)) for _, w in tables]
    made = application.emit("resample", (data, *operands), attrs) if axes else data
    if rule.coordinates == "tf_crop_and_resize":
        made = _filled(application, made, axes, places)
    application.result_alias(made)


def _filled(application: Application, value: str, axes: Sequence[Axis], places: Sequence[Array]) -> str:
    """``value`` with what lies outside of the data replaced by the value for that."""
    for axis, place in zip(axes, places, strict=True):
        outside = (place < 0) | (place > axis.extent - 1)
        if outside.any():
            kind = application.type(value)
            mask = outside.reshape(-1, *[1] * (len(kind.shape) - axis.axis - 1))
            fill = application.scalar(application.operator.attributes.real("extrapolation_value", 0.0), kind.dtype)
            name = application.new_constant(f"{application.output()}_outside", mask)
            value = application.emit("where", (name, fill, value))
    return value


def coordinates(rule: Rule, axis: Axis) -> Array:
    """Where every element of the result lies in the data, as real numbers.

    They are float32 throughout, as ONNX Runtime finds them: the nearest element, and results that are quantised, hang on
    the last bit. (Cubic and antialiased weights are of doubles.)
    """
    dtype = np.float32 if rule.plain or rule.mode == "nearest" else np.float64

    def real(number: float) -> Array:
        return np.asarray(number, dtype)

    y, half, scale, last = np.arange(axis.size).astype(dtype), real(0.5), real(axis.scale), real(axis.extent - 1)
    width, first = scale * real(axis.extent), real(axis.first) * last
    match rule.coordinates:
        case "align_corners":
            return np.asarray(y * last / (width - 1) if width != 1 else y * 0)
        case "asymmetric":
            return np.asarray(y / scale)
        case "tf_crop_and_resize":
            span = real(axis.last - axis.first) * last
            return np.asarray(first + (y * 0 + span * half if width == 1 else y * span / (width - 1)))
        case "pytorch_half_pixel" if axis.size == 1:
            return y
        case "half_pixel_symmetric":
            centre = real(axis.extent) * half * (1 - axis.size / width)
            return np.asarray(centre + (y + half) / scale - half)
        case _:
            return np.asarray((y + half) / scale - half)


def table(rule: Rule, axis: Axis, places: Array) -> tuple[Array, Array]:
    """Indices and weights, both (size, taps), of the elements that every place is made of."""
    if rule.plain:
        return _between(axis, places)
    left = np.ceil(places).astype(np.int64) - 1  # a place on an element is that element's right end
    ratio = places - left
    if rule.mode == "nearest":
        steps = {
            "round_prefer_floor": ratio > 0.5,
            "round_prefer_ceil": ratio >= 0.5,
            "floor": ratio == 1,
            "ceil": ratio > 0,
        }[rule.rounding]
        indices, weights = (left + steps)[:, None], np.ones((axis.size, 1))
    else:
        scale = min(axis.scale, 1.0) if rule.antialias else 1.0
        reach = 2 if rule.mode == "cubic" else 1
        first = math.floor(-reach / scale) + 1
        offsets = np.arange(first, 2 - first)
        indices = left[:, None] + offsets
        weights = _kernel(rule, np.abs((offsets - ratio[:, None]) * scale))
        weights = weights / weights.sum(1, keepdims=True)
    if rule.exclude:
        weights = np.where((indices >= 0) & (indices < axis.extent), weights, 0)
        weights = weights / weights.sum(1, keepdims=True)
    return _indices(axis, indices), weights


def _between(axis: Axis, places: Array) -> tuple[Array, Array]:
    """The two elements that a place lies between, weighted by its distance from the other; from the last on, halves of it."""
    inside = np.clip(places, 0, axis.extent - 1)
    left = np.floor(inside).astype(np.int64)
    right = np.minimum(left + 1, axis.extent - 1)
    weights = np.stack([right - inside, inside - left], 1).astype(places.dtype)
    weights[left == right] = 0.5
    return _indices(axis, np.stack([left, right], 1)), weights


def _indices(axis: Axis, indices: Array) -> Array:
    """Indices within the data, in the smallest dtype that holds them."""
    return np.clip(indices, 0, axis.extent - 1).astype(np.int16 if axis.extent < 1 << 15 else np.int32)


def _kernel(rule: Rule, x: Array) -> Array:
    """Weights of elements at distance ``x``: the triangle, or Keys' cubic."""
    if rule.mode == "linear":
        return np.asarray(np.clip(1 - x, 0, 1))
    a = rule.sharpness
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.asarray(np.where(x <= 1, near, np.where(x < 2, far, 0)))


def resized_axes(application: Application) -> tuple[Axis, ...]:
    """The axes whose extent or part changes, from scales or sizes, for all axes or those that ``axes`` names."""
    attributes, shape = application.operator.attributes, application.shape(0)
    axes = application.axes(attributes.integers("axes", tuple(range(len(shape)))), len(shape))
    position = 1 if application.opset < 11 or application.operator.code == "Upsample" else 2
    extents = [shape[axis] for axis in axes]
    if application.opset < 9 and application.operator.code == "Upsample":
        scales, sizes = list(attributes.reals("scales")), None
    elif application.has(position) and application.constant(position).size:
        scales, sizes = [float(s) for s in application.constant(position).reshape(-1)], None
    else:
        sizes = [int(s) for s in application.constant(3).reshape(-1)]
        scales = [size / extent for size, extent in zip(sizes, extents, strict=False)]
        policy = attributes.text("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            common = min(scales) if policy == "not_larger" else max(scales)
            scales = [common] * len(scales)
            sizes = [math.floor(common * extent + 0.5) for extent in extents]
    if {len(scales), len(sizes or scales)} != {len(axes)} or any(not 0 < s < 1 << 12 for s in scales):
        application.broken(f"{len(sizes or scales)} sizes, scales {tuple(scales)} for shape {shape}")
    found = sizes or [math.floor(s * e) for s, e in zip(scales, extents, strict=True)]
    crops = attributes.text("coordinate_transformation_mode", "") == "tf_crop_and_resize"
    roi = [float(r) for r in application.constant(1).reshape(-1)] if crops else [0.0] * len(axes) + [1.0] * len(axes)
    if len(roi) != 2 * len(axes) or min(found) < 1:
        application.broken(f"sizes {tuple(found)}, part {tuple(roi)} for shape {shape}")
    made = [
        Axis(axis, extent, size, scale, roi[k], roi[len(axes) + k])
        for k, (axis, extent, size, scale) in enumerate(zip(axes, extents, found, scales, strict=True))
    ]
    changed = (a for a in made if (a.size, a.scale, a.first, a.last) != (a.extent, 1.0, 0.0, 1.0))
    return tuple(sorted(changed, key=lambda a: a.axis))
