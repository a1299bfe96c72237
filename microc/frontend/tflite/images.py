"""Spellings of TFLite's operators that change the size of images: transposed convolution and resizing."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from microc.dtypes import Array
from microc.frontend.tflite.application import Application
from microc.frontend.tflite.neural import hybrid_data, layer_bias, layer_weights
from microc.frontend.tflite.spelling import (
    FLOAT,
    MOVABLE,
    QUANTISED,
    REAL,
    Spelling,
    activation,
    check_alike,
    explicit_padding,
)
from microc.graph.ir import Attr

_MOST = 1 << 15
_ONE = 1 << 10
"""One in the fixed point that TFLite resizes integers with."""


def transpose_conv(application: Application) -> None:
    """TRANSPOSE_CONV: output shape, weights OHWI, data; the padding is that of a convolution of the output."""
    fields = application.operator.options.fields("TransposeConvOptions", required=True)
    data = application.operand(2)
    batch, rows, columns, channels = application.rank(data, 4)
    weight = layer_weights(application, 1, axis=0)
    out_channels, height, width, depth = application.rank(weight, 4)
    target = application.target()
    given = application.value(0) in application.builder.consts or target.unknown
    shape = application.integers(0) if given else target.type.shape
    if len(shape) != 4 or shape[0] != batch or shape[3] != out_channels or depth != channels or min(shape) < 1:
        application.broken(f"output shape {shape} of data {application.type(data).shape} and {out_channels} channels")
    strides = (fields.integer("StrideH", 1), fields.integer("StrideW", 1))
    top, left, _, _ = explicit_padding(
        application, fields.integer("Padding"), (shape[1], shape[2]), (height, width), strides
    )
    bottom = (rows - 1) * strides[0] + height - top - shape[1]
    right = (columns - 1) * strides[1] + width - left - shape[2]
    attrs: dict[str, Attr] = {"strides": strides, "padding": (top, left, bottom, right)}
    attrs["activation"] = activation(application, fields.integer("FusedActivationFunction"))
    attrs |= hybrid_data(application, True)
    bias = layer_bias(application, 3, out_channels)
    application.result("conv2d_transpose", (data, weight, *bias), attrs)


def resize_nearest(application: Application) -> None:
    """RESIZE_NEAREST_NEIGHBOR: every pixel is one of the data's."""
    fields = application.operator.options.fields("ResizeNearestNeighborOptions")
    corners, centres = bool(fields.integer("AlignCorners")), bool(fields.integer("HalfPixelCenters"))
    data = application.moved(0)
    check_alike(application, [0])
    sizes = _sizes(application, data)
    tables = [
        _index_table(application, _nearest(extent, size, corners, centres)[:, None])
        for extent, size in zip(application.type(data).shape[1:3], sizes, strict=True)
    ]
    application.result("resample", (data, *tables), {"axes": (1, 2)})


def resize_bilinear(application: Application) -> None:
    """RESIZE_BILINEAR: integers in fixed point of ten bits along each axis."""
    fields = application.operator.options.fields("ResizeBilinearOptions")
    corners, centres = bool(fields.integer("AlignCorners")), bool(fields.integer("HalfPixelCenters"))
    data = application.moved(0)
    check_alike(application, [0])
    sizes = _sizes(application, data)
    real = application.target().type.dtype == "float32"
    indices, weights = [], []
    for extent, size in zip(application.type(data).shape[1:3], sizes, strict=True):
        index, weight = (_linear if real else _linear_integer)(extent, size, corners, centres)
        indices.append(_index_table(application, index))
        weights.append(application.new_constant("resize_weights", weight))
    attrs: Mapping[str, Attr] = {"axes": (1, 2), "shift": 0 if real else 20}
    application.result("resample", (data, *indices, *weights), attrs)


def _sizes(application: Application, data: str) -> tuple[int, int]:
    application.rank(data, 4)
    sizes = application.integers(1)
    if len(sizes) != 2 or min(sizes) < 1:
        application.broken(f"resizing to {sizes}; sides have 1..{_MOST} pixels")
    if max(sizes) > _MOST:
        application.refuse(f"resizing to {sizes}; sides have 1..{_MOST} pixels", "resize to fewer pixels")
    return sizes[0], sizes[1]


def _index_table(application: Application, index: Array) -> str:
    dtype = np.int16 if index.max() < 1 << 15 else np.int32
    return application.new_constant("resize_indices", index.astype(dtype))


def _nearest(extent: int, size: int, corners: bool, centres: bool) -> Array:
    """The index of every element, in float32 (``resize_nearest_neighbor.h``, GetNearestNeighbor)."""
    aligned = corners and size > 1
    scale = np.float32(extent - 1) / np.float32(size - 1) if aligned else np.float32(extent) / np.float32(size)
    places = (np.arange(size, dtype=np.float32) + np.float32(0.5 if centres else 0)) * scale
    found: Array = np.floor(places + np.float32(0.5)) if corners else np.floor(places)
    return np.clip(found.astype(np.int64), 0, extent - 1)


def _linear(extent: int, size: int, corners: bool, centres: bool) -> tuple[Array, Array]:
    """The two elements around every place and their weights, in float32 (ComputeInterpolationValues)."""
    aligned = corners and size > 1
    scale = np.float32(extent - 1) / np.float32(size - 1) if aligned else np.float32(extent) / np.float32(size)
    half = np.float32(0.5 if centres else 0)
    places = (np.arange(size, dtype=np.float32) + half) * scale - half
    below = np.maximum(np.floor(places), 0)
    above = np.minimum(np.ceil(places), extent - 1)
    share = (places - below).astype(np.float32)
    return np.stack([below, above], 1).astype(np.int64), np.stack([1 - share, share], 1).astype(np.float32)


def _linear_integer(extent: int, size: int, corners: bool, centres: bool) -> tuple[Array, Array]:
    """The same in fixed point of ten bits (ComputeInterpolationValuesInteger)."""
    span, steps = (extent - 1, size - 1) if corners and size > 1 else (extent, size)
    scale = (_ONE * span + steps // 2) // steps
    places = np.arange(size) * scale + (scale // 2 - _ONE // 2 if centres else 0)
    below = np.minimum(np.maximum(places, 0) // _ONE, extent - 1)
    above = np.minimum(np.maximum(places + _ONE - 1, 0) // _ONE, extent - 1)
    share = places - below * _ONE
    return np.stack([below, above], 1), np.stack([_ONE - share, share], 1).astype(np.int16)


SPELLINGS: Mapping[str, Spelling] = {
    "RESIZE_BILINEAR": Spelling(resize_bilinear, REAL),
    "RESIZE_NEAREST_NEIGHBOR": Spelling(resize_nearest, MOVABLE),
    "TRANSPOSE_CONV": Spelling(transpose_conv, (*FLOAT, *QUANTISED)),
}
