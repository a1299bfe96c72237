"""Converters of TFLite's operators on images and volumes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from microc.base.dtypes import Array
from microc.frontend.tflite.builtin_options import OptionFields
from microc.frontend.tflite.context import (
    FLOAT,
    MOVABLE,
    QUANTISED,
    REAL,
    Converter,
    OpContext,
    activation_name,
    check_same_quantisation,
    emit_float32_activation_as_output,
    resolve_padding_scheme,
)
from microc.frontend.tflite.operators_layers import dynamic_quantisation_attrs, read_layer_bias, read_layer_weights
from microc.graph.ir import Attr

# ---- Converters of operators that change the size of images: transposed convolution and resizing.

_MOST = 1 << 15
"""Maximum height and width of a resized image, in pixels."""
_ONE = 1 << 10
"""The number 1.0 with 10 fractional bits, the fixed-point format in which TFLite resizes images of integers."""


def convert_transpose_conv(context: OpContext) -> None:
    """Convert TRANSPOSE_CONV. Its operands are the output shape, weights OHWI, data and an optional bias.

    TFLite's padding scheme applies to the convolution in the opposite direction, from the output to the data."""
    fields = context.operator.options.fields("TransposeConvOptions", required=True)
    data = context.operand(2)
    batch, rows, columns, channels = context.shape_of_rank(data, 4)
    weight = read_layer_weights(context, 1, channel_axis=0)
    out_channels, height, width, depth = context.shape_of_rank(weight, 4)
    target = context.output_tensor()
    is_known = context.value(0) in context.builder.consts or target.unknown_axes
    shape = context.integers(0) if is_known else target.type.shape
    if len(shape) != 4 or shape[0] != batch or shape[3] != out_channels or depth != channels or min(shape) < 1:
        expected = f"({batch}, height, width, {out_channels}) for data of {depth} channels"
        context.broken(f"output_shape: got {shape} for data {context.type(data).shape}, expected {expected}")
    strides = (fields.read_integer("StrideH", 1), fields.read_integer("StrideW", 1))
    top, left, _, _ = resolve_padding_scheme(
        context, fields.read_integer("Padding"), (shape[1], shape[2]), (height, width), strides
    )
    bottom = (rows - 1) * strides[0] + height - top - shape[1]
    right = (columns - 1) * strides[1] + width - left - shape[2]
    attrs: dict[str, Attr] = {"strides": strides, "padding": (top, left, bottom, right)}
    attrs["activation"] = activation_name(context, fields.read_integer("FusedActivationFunction"))
    attrs |= dynamic_quantisation_attrs(context, True)
    bias = read_layer_bias(context, 3, out_channels)
    context.result("conv2d_transpose", (data, weight, *bias), attrs)


def convert_resize_nearest_neighbor(context: OpContext) -> None:
    """Convert RESIZE_NEAREST_NEIGHBOR: every output pixel is a copy of one input pixel."""
    fields = context.operator.options.fields("ResizeNearestNeighborOptions")
    corners, centres = bool(fields.read_integer("AlignCorners")), bool(fields.read_integer("HalfPixelCenters"))
    data = context.unchanged_operand(0)
    check_same_quantisation(context, [0])
    sizes = _read_resized_height_and_width(context, data)
    tables = [
        _add_index_constant(context, _nearest_input_indices(extent, size, corners, centres)[:, None])
        for extent, size in zip(context.type(data).shape[1:3], sizes, strict=True)
    ]
    context.result("resample", (data, *tables), {"axes": (1, 2)})


def convert_resize_bilinear(context: OpContext) -> None:
    """Convert RESIZE_BILINEAR of float32, or of integers with weights of 10 fractional bits along each axis."""
    fields = context.operator.options.fields("ResizeBilinearOptions")
    corners, centres = bool(fields.read_integer("AlignCorners")), bool(fields.read_integer("HalfPixelCenters"))
    data = context.unchanged_operand(0)
    check_same_quantisation(context, [0])
    sizes = _read_resized_height_and_width(context, data)
    real = context.output_tensor().type.dtype == "float32"
    indices, weights = [], []
    for extent, size in zip(context.type(data).shape[1:3], sizes, strict=True):
        index, weight = (
            _linear_interpolation_indices_and_weights if real else _interpolation_indices_and_fixed_point_weights
        )(extent, size, corners, centres)
        indices.append(_add_index_constant(context, index))
        weights.append(context.new_constant("resize_weights", weight))
    attrs: Mapping[str, Attr] = {"axes": (1, 2), "shift": 0 if real else 20}
    context.result("resample", (data, *indices, *weights), attrs)


def _read_resized_height_and_width(context: OpContext, data_name: str) -> tuple[int, int]:
    """Return the constant height and width of the resized image."""
    context.shape_of_rank(data_name, 4)
    sizes = context.integers(1)
    if len(sizes) != 2 or min(sizes) < 1:
        context.broken(f"size: got {sizes}, expected two sides of 1..{_MOST} pixels")
    if max(sizes) > _MOST:
        context.refuse(f"size: got {sizes}, expected two sides of 1..{_MOST} pixels", "resize to fewer pixels")
    return sizes[0], sizes[1]


def _add_index_constant(context: OpContext, indices: Array) -> str:
    """Add a constant of indices, as int16 if all of them fit, else as int32; return its name."""
    dtype = np.int16 if indices.max() < 1 << 15 else np.int32
    return context.new_constant("resize_indices", indices.astype(dtype))


def _nearest_input_indices(in_extent: int, out_extent: int, align_corners: bool, half_pixel_centers: bool) -> Array:
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


def _linear_interpolation_indices_and_weights(
    in_extent: int, out_extent: int, align_corners: bool, half_pixel_centers: bool
) -> tuple[Array, Array]:
    """Return, for every output element along an axis, the indices and float32 weights of the two neighbouring input
    elements.

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


def _interpolation_indices_and_fixed_point_weights(
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
    "RESIZE_BILINEAR": Converter(convert_resize_bilinear, REAL),
    "RESIZE_NEAREST_NEIGHBOR": Converter(convert_resize_nearest_neighbor, MOVABLE),
    "TRANSPOSE_CONV": Converter(convert_transpose_conv, (*FLOAT, *QUANTISED)),
}


# ---- Converters of less common operators on windows: 3D convolution, local response normalisation, DILATE.

_CHANNELS_FIRST, _CHANNELS_LAST = (0, 4, 1, 2, 3), (0, 2, 3, 4, 1)


def convert_conv_3d(context: OpContext) -> None:
    """Convert CONV_3D of data (N, D, H, W, C) with weights (D, H, W, C / groups, O)."""
    fields, (weight, bias) = _read_conv_3d_options(context), _read_volume_weights_and_bias(context, (4, 3, 0, 1, 2))
    data, taps = _transpose_volume_to_channels_first(context, 0), weight.shape[2:]
    shape = context.type(data).shape
    strides, dilation = _read_option_per_axis(fields, "Stride{}"), _read_option_per_axis(fields, "Dilation{}Factor")
    if shape[1] % weight.shape[1]:
        context.broken(
            f"filter: got {weight.shape[1]} input channels, expected a divisor of {shape[1]}, the data's channels"
        )
    padding = _resolve_volume_padding(context, fields, shape[2:], taps, strides, dilation)
    attrs: Mapping[str, Attr] = {"strides": strides, "dilation": dilation, "padding": padding}
    name = context.new_constant("weights", weight)
    groups: Mapping[str, Attr] = {"groups": shape[1] // weight.shape[1]}
    _emit_channels_last_result(context, fields, context.emit("convolution", (data, name, *bias), {**attrs, **groups}))


def convert_conv_3d_transpose(context: OpContext) -> None:
    """Convert CONV_3D_TRANSPOSE. Its operands are the output shape, weights (D, H, W, O, C), data and an optional bias.

    TFLite's padding scheme applies to the convolution in the opposite direction, from the output to the data.
    """
    fields, (weight, bias) = _read_conv_3d_options(context), _read_volume_weights_and_bias(context, (4, 3, 0, 1, 2))
    data, taps, output_shape = _transpose_volume_to_channels_first(context, 2), weight.shape[2:], context.integers(0)
    shape = context.type(data).shape
    strides, dilation = _read_option_per_axis(fields, "Stride{}"), _read_option_per_axis(fields, "Dilation{}Factor")
    if len(output_shape) != 5 or min(output_shape) < 1 or weight.shape[0] != shape[1]:
        expected = f"five extents of at least 1, and {weight.shape[0]} channels of data"
        context.broken(f"output_shape: got {output_shape} for data of shape {shape}, expected {expected}")
    before = _resolve_volume_padding(context, fields, output_shape[1:4], taps, strides, dilation)[:3]
    rows = zip(shape[2:], taps, strides, dilation, before, output_shape[1:4], strict=True)
    after = tuple((e - 1) * s + (k - 1) * d + 1 - b - out for e, k, s, d, b, out in rows)
    attrs: Mapping[str, Attr] = {"strides": strides, "dilation": dilation, "padding": (*before, *after), "groups": 1}
    name = context.new_constant("weights", weight)
    _emit_channels_last_result(context, fields, context.emit("convolution_transpose", (data, name, *bias), attrs))


def _read_conv_3d_options(context: OpContext) -> OptionFields:
    """Return the fields of the operator's Conv3DOptions."""
    return context.operator.options.fields("Conv3DOptions", required=True)


def _read_option_per_axis(fields: OptionFields, field_name_pattern: str) -> tuple[int, int, int]:
    """Return an option that has a field for each spatial axis as (depth, height, width).

    ``field_name_pattern``: name of the fields, such as ``Stride{}``, where D, H or W replaces ``{}``."""
    depth, height, width = (fields.read_integer(field_name_pattern.format(axis), 1) for axis in "DHW")
    return depth, height, width


def _read_volume_weights_and_bias(context: OpContext, axis_order: tuple[int, ...]) -> tuple[Array, tuple[str, ...]]:
    """Return the constant weights of a 3D convolution, transposed to ``axis_order``, and a tuple with the bias, if
    any."""
    weight = context.constant(1)
    if weight.ndim != 5 or weight.dtype != np.float32:
        context.refuse(
            f"filter: got {weight.dtype} of shape {weight.shape}, expected float32 of rank 5", "use float32 weights"
        )
    bias_at = 3 if context.operator.code == "CONV_3D_TRANSPOSE" else 2
    bias = (context.operand(bias_at),) if context.has_input(bias_at) else ()
    return np.ascontiguousarray(weight.transpose(axis_order)), bias


def _transpose_volume_to_channels_first(context: OpContext, input_position: int) -> str:
    """Return the operand ``input_position``, which is (N, D, H, W, C), transposed to (N, C, D, H, W)."""
    data = context.operand(input_position)
    context.shape_of_rank(data, 5)
    return context.emit("transpose", (data,), {"axes": _CHANNELS_FIRST})


def _resolve_volume_padding(
    context: OpContext,
    fields: OptionFields,
    data_extents: Sequence[int],
    window_extents: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int],
) -> tuple[int, ...]:
    """Return the padding of a 3D convolution by TFLite's scheme SAME or VALID (``padding.h``).

    Three numbers of elements before the data (depth, height, width), then three numbers after the data."""
    scheme = fields.read_integer("Padding", 0, 1)
    rows = zip(data_extents, window_extents, strides, dilation, strict=True)
    total = [0 if scheme else max((-(-e // s) - 1) * s + (k - 1) * d + 1 - e, 0) for e, k, s, d in rows]
    return (*(t // 2 for t in total), *(t - t // 2 for t in total))


def _emit_channels_last_result(context: OpContext, fields: OptionFields, channels_first_value: str) -> None:
    """Define the output: the value transposed from channels first to channels last, with the fused activation."""
    last = context.emit("transpose", (channels_first_value,), {"axes": _CHANNELS_LAST})
    code = fields.read_integer("FusedActivationFunction")
    emit_float32_activation_as_output(context, last, activation_name(context, code))


def convert_local_response_normalization(context: OpContext) -> None:
    """Convert LOCAL_RESPONSE_NORMALIZATION: x * (bias + alpha * s) ** -beta.

    s is the sum of the squares of 2 * radius + 1 neighbouring channels."""
    fields = context.operator.options.fields("LocalResponseNormalizationOptions", required=True)
    data = context.operand(0)
    shape = context.shape_of_rank(data, 4)
    rows, depth = prod(shape[:-1]), shape[-1]
    radius = min(fields.read_integer("Radius", 0), depth - 1)
    squares = context.reshape(context.emit("mul", (data, data), {}), (rows, 1, depth))
    attrs: Mapping[str, Attr] = {"kernel": (2 * radius + 1,), "padding": (radius, radius)}
    around = context.emit("window_sum", (squares,), {**attrs, "strides": (1,), "dilation": (1,)})
    value = context.reshape(around, shape)
    for op, name in (("mul", "Alpha"), ("add", "Bias")):
        value = context.emit(op, (value, context.scalar(fields.read_float(name))), {})
    power = context.emit("pow", (value, context.scalar(-fields.read_float("Beta"))), {})
    context.result("mul", (data, power), {})


def convert_dilate(context: OpContext) -> None:
    """Convert DILATE: insert copies of a constant between neighbouring elements along every axis."""
    data, factors, filler = context.unchanged_operand(0), context.integers(1), context.constant(2)
    check_same_quantisation(context, [0])
    shape = context.type(data).shape
    if len(factors) != len(shape) or min(factors, default=1) < 1 or filler.size != 1 or 0 in shape:
        context.broken(
            f"dilations: got {factors} for shape {shape}, expected {len(shape)} of at least 1, and one padding value"
        )
    for axis, factor in enumerate(factors):
        if factor == 1:
            continue
        extent = shape[axis]
        rows = context.reshape(data, (prod(shape[:axis]), extent, 1, prod(shape[axis + 1 :])))
        padding = ((0, 0), (0, 0), (0, factor - 1), (0, 0))
        padded = context.emit("pad", (rows,), {"padding": padding, "value": filler.reshape(-1)[0].item()})
        joined = context.reshape(padded, (prod(shape[:axis]), extent * factor, prod(shape[axis + 1 :])))
        end = (prod(shape[:axis]), (extent - 1) * factor + 1, prod(shape[axis + 1 :]))
        data = context.emit("slice", (joined,), {"begin": (0, 0, 0), "end": end, "strides": (1, 1, 1)})
        shape = (*shape[:axis], end[1], *shape[axis + 1 :])
        data = context.reshape(data, shape)
    context.result_reshape(data, shape)


VOLUMES_CONVERTERS: Mapping[str, Converter] = {
    "CONV_3D": Converter(convert_conv_3d, FLOAT),
    "CONV_3D_TRANSPOSE": Converter(convert_conv_3d_transpose, FLOAT),
    "DILATE": Converter(convert_dilate, MOVABLE),
    "LOCAL_RESPONSE_NORMALIZATION": Converter(convert_local_response_normalization, FLOAT),
}
