"""Converters of TFLite's operators on images and volumes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from microc.base.dtypes import Array
from microc.frontend.tflite.builtin_options import Fields
from microc.frontend.tflite.context import (
    FLOAT,
    MOVABLE,
    QUANTISED,
    REAL,
    Converter,
    OpContext,
    activation_name,
    check_same_quantisation,
    explicit_padding,
    write_real_activation,
)
from microc.frontend.tflite.operators_layers import hybrid_quantisation_attrs, layer_bias, layer_weights
from microc.graph.ir import Attr

# ---- Converters of operators that change the size of images: transposed convolution and resizing.

_MOST = 1 << 15
"""Maximum height and width of a resized image, in pixels."""
_ONE = 1 << 10
"""The number 1.0 with 10 fractional bits, the fixed-point format in which TFLite resizes images of integers."""


def transpose_conv(application: OpContext) -> None:
    """Convert TRANSPOSE_CONV. Its operands are the output shape, weights OHWI, data and an optional bias.

    TFLite's padding scheme applies to the convolution in the opposite direction, from the output to the data."""
    fields = application.operator.options.fields("TransposeConvOptions", required=True)
    data = application.operand(2)
    batch, rows, columns, channels = application.rank(data, 4)
    weight = layer_weights(application, 1, channel_axis=0)
    out_channels, height, width, depth = application.rank(weight, 4)
    target = application.target()
    is_known = application.value(0) in application.builder.consts or target.unknown
    shape = application.integers(0) if is_known else target.type.shape
    if len(shape) != 4 or shape[0] != batch or shape[3] != out_channels or depth != channels or min(shape) < 1:
        expected = f"({batch}, height, width, {out_channels}) for data of {depth} channels"
        application.broken(f"output_shape: got {shape} for data {application.type(data).shape}, expected {expected}")
    strides = (fields.integer("StrideH", 1), fields.integer("StrideW", 1))
    top, left, _, _ = explicit_padding(
        application, fields.integer("Padding"), (shape[1], shape[2]), (height, width), strides
    )
    bottom = (rows - 1) * strides[0] + height - top - shape[1]
    right = (columns - 1) * strides[1] + width - left - shape[2]
    attrs: dict[str, Attr] = {"strides": strides, "padding": (top, left, bottom, right)}
    attrs["activation"] = activation_name(application, fields.integer("FusedActivationFunction"))
    attrs |= hybrid_quantisation_attrs(application, True)
    bias = layer_bias(application, 3, out_channels)
    application.result("conv2d_transpose", (data, weight, *bias), attrs)


def resize_nearest(application: OpContext) -> None:
    """Convert RESIZE_NEAREST_NEIGHBOR: every output pixel is a copy of one input pixel."""
    fields = application.operator.options.fields("ResizeNearestNeighborOptions")
    corners, centres = bool(fields.integer("AlignCorners")), bool(fields.integer("HalfPixelCenters"))
    data = application.unchanged_operand(0)
    check_same_quantisation(application, [0])
    sizes = _resized_image_size(application, data)
    tables = [
        _index_table(application, _nearest_indices(extent, size, corners, centres)[:, None])
        for extent, size in zip(application.type(data).shape[1:3], sizes, strict=True)
    ]
    application.result("resample", (data, *tables), {"axes": (1, 2)})


def resize_bilinear(application: OpContext) -> None:
    """Convert RESIZE_BILINEAR of float32, or of integers with weights of 10 fractional bits along each axis."""
    fields = application.operator.options.fields("ResizeBilinearOptions")
    corners, centres = bool(fields.integer("AlignCorners")), bool(fields.integer("HalfPixelCenters"))
    data = application.unchanged_operand(0)
    check_same_quantisation(application, [0])
    sizes = _resized_image_size(application, data)
    real = application.target().type.dtype == "float32"
    indices, weights = [], []
    for extent, size in zip(application.type(data).shape[1:3], sizes, strict=True):
        index, weight = (_linear_neighbours if real else _linear_neighbours_fixed_point)(extent, size, corners, centres)
        indices.append(_index_table(application, index))
        weights.append(application.new_constant("resize_weights", weight))
    attrs: Mapping[str, Attr] = {"axes": (1, 2), "shift": 0 if real else 20}
    application.result("resample", (data, *indices, *weights), attrs)


def _resized_image_size(application: OpContext, data: str) -> tuple[int, int]:
    """Return the constant height and width of the resized image."""
    application.rank(data, 4)
    sizes = application.integers(1)
    if len(sizes) != 2 or min(sizes) < 1:
        application.broken(f"size: got {sizes}, expected two sides of 1..{_MOST} pixels")
    if max(sizes) > _MOST:
        application.refuse(f"size: got {sizes}, expected two sides of 1..{_MOST} pixels", "resize to fewer pixels")
    return sizes[0], sizes[1]


def _index_table(application: OpContext, indices: Array) -> str:
    """Add a constant of indices, as int16 if all of them fit, else as int32; return its name."""
    dtype = np.int16 if indices.max() < 1 << 15 else np.int32
    return application.new_constant("resize_indices", indices.astype(dtype))


def _nearest_indices(in_extent: int, out_extent: int, align_corners: bool, half_pixel_centers: bool) -> Array:
    """Return, for every output element along an axis, the index of the nearest input element.

    Computed in float32, as in TFLite's ``resize_nearest_neighbor.h`` (GetNearestNeighbor)."""
    aligns_corners = align_corners and out_extent > 1
    scale = (
        np.float32(in_extent - 1) / np.float32(out_extent - 1)
        if aligns_corners
        else np.float32(in_extent) / np.float32(out_extent)
    )
    positions = (np.arange(out_extent, dtype=np.float32) + np.float32(0.5 if half_pixel_centers else 0)) * scale
    indices: Array = np.floor(positions + np.float32(0.5)) if align_corners else np.floor(positions)
    return np.clip(indices.astype(np.int64), 0, in_extent - 1)


def _linear_neighbours(
    in_extent: int, out_extent: int, align_corners: bool, half_pixel_centers: bool
) -> tuple[Array, Array]:
    """Return, for every output element along an axis, the indices and float32 weights of the two neighbouring input elements.

    Both arrays have the shape (``out_extent``, 2). Source: TFLite, ComputeInterpolationValues."""
    aligns_corners = align_corners and out_extent > 1
    scale = (
        np.float32(in_extent - 1) / np.float32(out_extent - 1)
        if aligns_corners
        else np.float32(in_extent) / np.float32(out_extent)
    )
    half = np.float32(0.5 if half_pixel_centers else 0)
    positions = (np.arange(out_extent, dtype=np.float32) + half) * scale - half
    below = np.maximum(np.floor(positions), 0)
    above = np.minimum(np.ceil(positions), in_extent - 1)
    share = (positions - below).astype(np.float32)
    return np.stack([below, above], 1).astype(np.int64), np.stack([1 - share, share], 1).astype(np.float32)


def _linear_neighbours_fixed_point(
    in_extent: int, out_extent: int, align_corners: bool, half_pixel_centers: bool
) -> tuple[Array, Array]:
    """Return, for every output element along an axis, the indices and weights of the two neighbouring input elements.

    The weights are int16 with 10 fractional bits. Both arrays have the shape (``out_extent``, 2). Source: TFLite,
    ComputeInterpolationValuesInteger."""
    span, steps = (in_extent - 1, out_extent - 1) if align_corners and out_extent > 1 else (in_extent, out_extent)
    scale = (_ONE * span + steps // 2) // steps
    positions = np.arange(out_extent) * scale + (scale // 2 - _ONE // 2 if half_pixel_centers else 0)
    below = np.minimum(np.maximum(positions, 0) // _ONE, in_extent - 1)
    above = np.minimum(np.maximum(positions + _ONE - 1, 0) // _ONE, in_extent - 1)
    share = positions - below * _ONE
    return np.stack([below, above], 1), np.stack([_ONE - share, share], 1).astype(np.int16)


IMAGES_CONVERTERS: Mapping[str, Converter] = {
    "RESIZE_BILINEAR": Converter(resize_bilinear, REAL),
    "RESIZE_NEAREST_NEIGHBOR": Converter(resize_nearest, MOVABLE),
    "TRANSPOSE_CONV": Converter(transpose_conv, (*FLOAT, *QUANTISED)),
}


# ---- Converters of less common operators on windows: 3D convolution, local response normalisation, DILATE.

_CHANNELS_FIRST, _CHANNELS_LAST = (0, 4, 1, 2, 3), (0, 2, 3, 4, 1)


def conv_3d(application: OpContext) -> None:
    """Convert CONV_3D of data (N, D, H, W, C) with weights (D, H, W, C / groups, O)."""
    fields, (weight, bias) = _conv_3d_options(application), _volume_weights(application, (4, 3, 0, 1, 2))
    data, taps = _volume_channels_first(application, 0), weight.shape[2:]
    shape = application.type(data).shape
    strides, dilation = _option_per_axis(fields, "Stride{}"), _option_per_axis(fields, "Dilation{}Factor")
    if shape[1] % weight.shape[1]:
        application.broken(
            f"weights of {weight.shape[1]} channels, expected a divisor of {shape[1]}, the input channels"
        )
    padding = _volume_padding(application, fields, shape[2:], taps, strides, dilation)
    attrs: Mapping[str, Attr] = {"strides": strides, "dilation": dilation, "padding": padding}
    name = application.new_constant("weights", weight)
    groups: Mapping[str, Attr] = {"groups": shape[1] // weight.shape[1]}
    _write_volume(application, fields, application.emit("convolution", (data, name, *bias), {**attrs, **groups}))


def conv_3d_transpose(application: OpContext) -> None:
    """Convert CONV_3D_TRANSPOSE. Its operands are the output shape, weights (D, H, W, O, C), data and an optional bias.

    TFLite's padding scheme applies to the convolution in the opposite direction, from the output to the data.
    """
    fields, (weight, bias) = _conv_3d_options(application), _volume_weights(application, (4, 3, 0, 1, 2))
    data, taps, output_shape = _volume_channels_first(application, 2), weight.shape[2:], application.integers(0)
    shape = application.type(data).shape
    strides, dilation = _option_per_axis(fields, "Stride{}"), _option_per_axis(fields, "Dilation{}Factor")
    if len(output_shape) != 5 or min(output_shape) < 1 or weight.shape[0] != shape[1]:
        expected = f"five extents of at least 1, and {weight.shape[0]} channels of data"
        application.broken(f"output_shape: got {output_shape} for data of shape {shape}, expected {expected}")
    before = _volume_padding(application, fields, output_shape[1:4], taps, strides, dilation)[:3]
    rows = zip(shape[2:], taps, strides, dilation, before, output_shape[1:4], strict=True)
    after = tuple((e - 1) * s + (k - 1) * d + 1 - b - out for e, k, s, d, b, out in rows)
    attrs: Mapping[str, Attr] = {"strides": strides, "dilation": dilation, "padding": (*before, *after), "groups": 1}
    name = application.new_constant("weights", weight)
    _write_volume(application, fields, application.emit("convolution_transpose", (data, name, *bias), attrs))


def _conv_3d_options(application: OpContext) -> Fields:
    """Return the fields of the operator's Conv3DOptions."""
    return application.operator.options.fields("Conv3DOptions", required=True)


def _option_per_axis(fields: Fields, field_pattern: str) -> tuple[int, int, int]:
    """Return an option that has a field for each spatial axis as (depth, height, width).

    ``field_pattern``: name of the fields, such as ``Stride{}``, where D, H or W replaces ``{}``."""
    depth, height, width = (fields.integer(field_pattern.format(axis), 1) for axis in "DHW")
    return depth, height, width


def _volume_weights(application: OpContext, axis_order: tuple[int, ...]) -> tuple[Array, tuple[str, ...]]:
    """Return the constant weights of a 3D convolution, transposed to ``axis_order``, and a tuple with the bias, if any."""
    weight = application.constant(1)
    if weight.ndim != 5 or weight.dtype != np.float32:
        application.refuse(f"weights of {weight.dtype} {weight.shape}", "give float32 weights of five axes")
    bias_at = 3 if application.operator.code == "CONV_3D_TRANSPOSE" else 2
    bias = (application.operand(bias_at),) if application.has(bias_at) else ()
    return np.ascontiguousarray(weight.transpose(axis_order)), bias


def _volume_channels_first(application: OpContext, position: int) -> str:
    """Return the operand ``position``, which is (N, D, H, W, C), transposed to (N, C, D, H, W)."""
    data = application.operand(position)
    application.rank(data, 5)
    return application.emit("transpose", (data,), {"axes": _CHANNELS_FIRST})


def _volume_padding(
    application: OpContext,
    fields: Fields,
    extents: Sequence[int],
    taps: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int],
) -> tuple[int, ...]:
    """Return the padding of a 3D convolution by TFLite's scheme SAME or VALID (``padding.h``).

    Three numbers of elements before the data (depth, height, width), then three numbers after the data."""
    scheme = fields.integer("Padding", 0, 1)
    rows = zip(extents, taps, strides, dilation, strict=True)
    total = [0 if scheme else max((-(-e // s) - 1) * s + (k - 1) * d + 1 - e, 0) for e, k, s, d in rows]
    return (*(t // 2 for t in total), *(t - t // 2 for t in total))


def _write_volume(application: OpContext, fields: Fields, channels_first_value: str) -> None:
    """Define the output: the value transposed from channels first to channels last, with the fused activation."""
    last = application.emit("transpose", (channels_first_value,), {"axes": _CHANNELS_LAST})
    code = fields.integer("FusedActivationFunction")
    write_real_activation(application, last, activation_name(application, code))


def local_response_normalization(application: OpContext) -> None:
    """Convert LOCAL_RESPONSE_NORMALIZATION: x * (bias + alpha * s) ** -beta.

    s is the sum of the squares of 2 * radius + 1 neighbouring channels."""
    fields = application.operator.options.fields("LocalResponseNormalizationOptions", required=True)
    data = application.operand(0)
    shape = application.rank(data, 4)
    rows, depth = prod(shape[:-1]), shape[-1]
    radius = min(fields.integer("Radius", 0), depth - 1)
    squares = application.reshape(application.emit("mul", (data, data), {}), (rows, 1, depth))
    attrs: Mapping[str, Attr] = {"kernel": (2 * radius + 1,), "padding": (radius, radius)}
    around = application.emit("window_sum", (squares,), {**attrs, "strides": (1,), "dilation": (1,)})
    value = application.reshape(around, shape)
    for op, name in (("mul", "Alpha"), ("add", "Bias")):
        value = application.emit(op, (value, application.scalar(fields.real(name))), {})
    power = application.emit("pow", (value, application.scalar(-fields.real("Beta"))), {})
    application.result("mul", (data, power), {})


def dilate(application: OpContext) -> None:
    """Convert DILATE: insert copies of a constant between neighbouring elements along every axis."""
    data, factors, filler = application.unchanged_operand(0), application.integers(1), application.constant(2)
    check_same_quantisation(application, [0])
    shape = application.type(data).shape
    if len(factors) != len(shape) or min(factors, default=1) < 1 or filler.size != 1 or 0 in shape:
        application.broken(
            f"dilations {factors} for data of shape {shape}, expected {len(shape)} of at least 1, and one padding value"
        )
    for axis, factor in enumerate(factors):
        if factor == 1:
            continue
        extent = shape[axis]
        rows = application.reshape(data, (prod(shape[:axis]), extent, 1, prod(shape[axis + 1 :])))
        padding = ((0, 0), (0, 0), (0, factor - 1), (0, 0))
        padded = application.emit("pad", (rows,), {"padding": padding, "value": filler.reshape(-1)[0].item()})
        joined = application.reshape(padded, (prod(shape[:axis]), extent * factor, prod(shape[axis + 1 :])))
        end = (prod(shape[:axis]), (extent - 1) * factor + 1, prod(shape[axis + 1 :]))
        data = application.emit("slice", (joined,), {"begin": (0, 0, 0), "end": end, "strides": (1, 1, 1)})
        shape = (*shape[:axis], end[1], *shape[axis + 1 :])
        data = application.reshape(data, shape)
    application.result_reshape(data, shape)


VOLUMES_CONVERTERS: Mapping[str, Converter] = {
    "CONV_3D": Converter(conv_3d, FLOAT),
    "CONV_3D_TRANSPOSE": Converter(conv_3d_transpose, FLOAT),
    "DILATE": Converter(dilate, MOVABLE),
    "LOCAL_RESPONSE_NORMALIZATION": Converter(local_response_normalization, FLOAT),
}
