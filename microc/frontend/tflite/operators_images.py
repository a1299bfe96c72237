# SPDX-License-Identifier: Apache-2.0
"""Converters of TFLite's operators on images and volumes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Annotated, Literal

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.frontend.signature import Ints, Rank, ReadWith, Value
from microc.frontend.tflite.context import (
    FLOAT,
    MOVABLE,
    QUANTISED,
    REAL,
    Activation,
    ConverterTable,
    Moved,
    Natural,
    OpContext,
    Operand,
    Positive,
    emit_float32_activation_as_output,
    resolve_padding_scheme,
)
from microc.frontend.tflite.operators_layers import (
    Bias,
    ConvolutionOptions,
    Filter,
    Image,
    emit_weights,
    flatten_bias,
    get_dynamic_attrs,
)
from microc.graph.ir import Attr
from microc.ops.windows import compute_same_padding_of_axis

CONVERTERS = ConverterTable()

# ---- Converters of operators that change the size of images: transposed convolution and resizing.

_MOST = 1 << 15
"""Maximum height and width of a resized image, in pixels."""
_ONE = 1 << 10
"""The number 1.0 with 10 fractional bits, the fixed-point format in which TFLite resizes images of integers."""


def _read_output_shape(context: OpContext, input_position: int) -> Ints:
    """Return the output's shape: an operand or, if the network computes this, the shape that the file declares."""
    target = context.output_tensor()
    is_known = context.value(input_position).constant is not None or target.unknown_axes
    return context.integers(input_position) if is_known else target.type.shape


@CONVERTERS.register("TRANSPOSE_CONV", options="TransposeConvOptions", dtypes=(*FLOAT, *QUANTISED))
def convert_transpose_conv(
    context: OpContext,
    output_shape: Annotated[Ints, ReadWith(_read_output_shape)],
    weights: Filter,
    data: Image,
    bias: Bias | None,
    *,
    options: ConvolutionOptions,
) -> None:
    """Convert TRANSPOSE_CONV with weights OHWI.

    TFLite's padding scheme applies to the convolution in the opposite direction, from the output to the data."""
    batch, rows, columns, channels = data.shape
    out_channels, height, width, depth = weights.shape
    shape, strides = output_shape, options.strides
    if len(shape) != 4 or shape[0] != batch or shape[3] != out_channels or depth != channels or min(shape) < 1:
        expected = f"({batch}, height, width, {out_channels}) for data of {depth} channels"
        context.broken(f"output_shape: got {shape} for data {data.shape}, expected {expected}")
    top, left, _, _ = resolve_padding_scheme(context, options.padding, (shape[1], shape[2]), (height, width), strides)
    bottom = (rows - 1) * strides[0] + height - top - shape[1]
    right = (columns - 1) * strides[1] + width - left - shape[2]
    attrs: dict[str, Attr] = {"strides": strides, "padding": (top, left, bottom, right)}
    attrs |= {"activation": options.fused_activation_function, **get_dynamic_attrs(context, weights, True)}
    kernel = emit_weights(context, weights, channel_axis=0)
    context.result("conv2d_transpose", (data, kernel, *flatten_bias(context, bias, out_channels)), attrs)


def _read_new_size(context: OpContext, input_position: int) -> Ints:
    """Return the constant height and width of the resized image."""
    sizes = context.integers(input_position)
    if len(sizes) != 2 or min(sizes) < 1:
        context.broken(f"size: got {sizes}, expected two sides of 1..{_MOST} pixels")
    if max(sizes) > _MOST:
        context.refuse(f"size: got {sizes}, expected two sides of 1..{_MOST} pixels", "resize to fewer pixels")
    return sizes


_MovedImage = Annotated[Moved, Rank(4, 4, has_elements=True)]
_NewSize = Annotated[Ints, ReadWith(_read_new_size)]


@CONVERTERS.register("RESIZE_NEAREST_NEIGHBOR", options="ResizeNearestNeighborOptions", dtypes=MOVABLE)
def convert_resize_nearest_neighbor(
    context: OpContext,
    data: _MovedImage,
    size: _NewSize,
    *,
    align_corners: bool = False,
    half_pixel_centers: bool = False,
) -> None:
    """Convert RESIZE_NEAREST_NEIGHBOR: every output pixel is a copy of one input pixel."""
    tables = [
        _add_index_constant(context, _nearest_input_indices(extent, side, align_corners, half_pixel_centers)[:, None])
        for extent, side in zip(data.shape[1:3], size, strict=True)
    ]
    context.result("resample", (data, *tables), {"axes": (1, 2)})


@CONVERTERS.register("RESIZE_BILINEAR", options="ResizeBilinearOptions", dtypes=REAL)
def convert_resize_bilinear(
    context: OpContext,
    data: _MovedImage,
    size: _NewSize,
    *,
    align_corners: bool = False,
    half_pixel_centers: bool = False,
) -> None:
    """Convert RESIZE_BILINEAR of float32, or of integers with weights of 10 fractional bits along each axis."""
    is_real = data.dtype == "float32"
    interpolate = (
        _linear_interpolation_indices_and_weights if is_real else _interpolation_indices_and_fixed_point_weights
    )
    indices, weights = [], []
    for extent, side in zip(data.shape[1:3], size, strict=True):
        index, weight = interpolate(extent, side, align_corners, half_pixel_centers)
        indices.append(_add_index_constant(context, index))
        weights.append(context.new_constant("resize_weights", weight))
    context.result("resample", (data, *indices, *weights), {"axes": (1, 2), "shift": 0 if is_real else 20})


def _add_index_constant(context: OpContext, indices: Array) -> Value:
    """Add a constant of indices, as int16 if all of them fit, else as int32."""
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


# ---- Converters of less common operators on windows: 3D convolution, local response normalisation, DILATE.

_CHANNELS_FIRST, _CHANNELS_LAST = (0, 4, 1, 2, 3), (0, 2, 3, 4, 1)


@frozen
class _VolumeOptions:
    """Options of CONV_3D and CONV_3D_TRANSPOSE."""

    padding: Literal[0, 1]
    stride_d: Positive
    stride_w: Positive
    stride_h: Positive
    fused_activation_function: Activation
    dilation_d_factor: Positive = 1
    dilation_w_factor: Positive = 1
    dilation_h_factor: Positive = 1

    @property
    def strides(self) -> tuple[int, int, int]:
        """Strides along depth, height and width."""
        return self.stride_d, self.stride_h, self.stride_w

    @property
    def dilation(self) -> tuple[int, int, int]:
        """Dilation along depth, height and width."""
        return self.dilation_d_factor, self.dilation_h_factor, self.dilation_w_factor


_Volume = Annotated[Operand, Rank(5, 5, has_elements=True)]
"""Operand (N, D, H, W, C)."""


def _read_volume_filter(context: OpContext, input_position: int) -> Array:
    """Return the constant weights of a 3D convolution with their last two axes, in reversed order, first."""
    weight = context.constant(input_position)
    if weight.ndim != 5 or weight.dtype != np.float32:
        context.refuse(
            f"filter: got {weight.dtype} of shape {weight.shape}, expected float32 of rank 5", "use float32 weights"
        )
    return np.ascontiguousarray(weight.transpose(4, 3, 0, 1, 2))


_VolumeFilter = Annotated[Array, ReadWith(_read_volume_filter)]


@CONVERTERS.register("CONV_3D", options="Conv3DOptions", dtypes=FLOAT)
def convert_conv_3d(
    context: OpContext, data: _Volume, weights: _VolumeFilter, bias: Operand | None, *, options: _VolumeOptions
) -> None:
    """Convert CONV_3D of data (N, D, H, W, C) with weights (D, H, W, C / groups, O)."""
    planes = context.emit("transpose", (data,), {"axes": _CHANNELS_FIRST})
    shape = planes.shape
    if shape[1] % weights.shape[1]:
        context.broken(
            f"filter: got {weights.shape[1]} input channels, expected a divisor of {shape[1]}, the data's channels"
        )
    padding = _resolve_volume_padding(options, shape[2:], weights.shape[2:])
    attrs: Mapping[str, Attr] = {"strides": options.strides, "dilation": options.dilation, "padding": padding}
    operands = (planes, context.new_constant("weights", weights), *(() if bias is None else (bias,)))
    result = context.emit("convolution", operands, {**attrs, "groups": shape[1] // weights.shape[1]})
    _emit_channels_last_result(context, result, options)


@CONVERTERS.register("CONV_3D_TRANSPOSE", options="Conv3DOptions", dtypes=FLOAT)
def convert_conv_3d_transpose(
    context: OpContext,
    output_shape: Ints,
    weights: _VolumeFilter,
    data: _Volume,
    bias: Operand | None,
    *,
    options: _VolumeOptions,
) -> None:
    """Convert CONV_3D_TRANSPOSE with weights (D, H, W, O, C).

    TFLite's padding scheme applies to the convolution in the opposite direction, from the output to the data.
    """
    planes = context.emit("transpose", (data,), {"axes": _CHANNELS_FIRST})
    shape, taps, strides, dilation = planes.shape, weights.shape[2:], options.strides, options.dilation
    if len(output_shape) != 5 or min(output_shape) < 1 or weights.shape[0] != shape[1]:
        expected = f"five extents of at least 1, and {weights.shape[0]} channels of data"
        context.broken(f"output_shape: got {output_shape} for data of shape {shape}, expected {expected}")
    before = _resolve_volume_padding(options, output_shape[1:4], taps)[:3]
    rows = zip(shape[2:], taps, strides, dilation, before, output_shape[1:4], strict=True)
    after = tuple((e - 1) * s + (k - 1) * d + 1 - b - out for e, k, s, d, b, out in rows)
    attrs: Mapping[str, Attr] = {"strides": strides, "dilation": dilation, "padding": (*before, *after), "groups": 1}
    operands = (planes, context.new_constant("weights", weights), *(() if bias is None else (bias,)))
    _emit_channels_last_result(context, context.emit("convolution_transpose", operands, attrs), options)


def _resolve_volume_padding(
    options: _VolumeOptions, data_extents: Sequence[int], window_extents: Sequence[int]
) -> tuple[int, ...]:
    """Return the padding of a 3D convolution by TFLite's scheme SAME or VALID (``padding.h``).

    Three numbers of elements before the data (depth, height, width), then three numbers after the data."""
    rows = zip(data_extents, window_extents, options.strides, options.dilation, strict=True)
    pairs = [(0, 0) if options.padding else compute_same_padding_of_axis(*row) for row in rows]
    return (*(before for before, _ in pairs), *(after for _, after in pairs))


def _emit_channels_last_result(context: OpContext, planes: Value, options: _VolumeOptions) -> None:
    """Define the output: the value transposed from channels first to channels last, with the fused activation."""
    last = context.emit("transpose", (planes,), {"axes": _CHANNELS_LAST})
    emit_float32_activation_as_output(context, last, options.fused_activation_function)


@CONVERTERS.register("LOCAL_RESPONSE_NORMALIZATION", options="LocalResponseNormalizationOptions", dtypes=FLOAT)
def convert_local_response_normalization(
    context: OpContext, data: Image, *, radius: Natural, bias: float, alpha: float, beta: float
) -> None:
    """Convert LOCAL_RESPONSE_NORMALIZATION: x * (bias + alpha * s) ** -beta.

    s is the sum of the squares of 2 * radius + 1 neighbouring channels."""
    rows, depth = prod(data.shape[:-1]), data.shape[-1]
    radius = min(radius, depth - 1)
    squares = context.reshape(context.emit("mul", (data, data)), (rows, 1, depth))
    attrs: Mapping[str, Attr] = {"kernel": (2 * radius + 1,), "padding": (radius, radius)}
    around = context.emit("window_sum", (squares,), {**attrs, "strides": (1,), "dilation": (1,)})
    scaled = context.emit("mul", (context.reshape(around, data.shape), context.scalar(alpha)))
    total = context.emit("add", (scaled, context.scalar(bias)))
    power = context.emit("pow", (total, context.scalar(-beta)))
    context.result("mul", (data, power))


@CONVERTERS.register("DILATE", dtypes=MOVABLE)
def convert_dilate(context: OpContext, data: Moved, factors: Ints, filler: Array) -> None:
    """Convert DILATE: insert copies of a constant between neighbouring elements along every axis."""
    shape = data.shape
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
        spread = (extent - 1) * factor + 1
        data = context.slice_axis(joined, 1, 0, spread)
        shape = (*shape[:axis], spread, *shape[axis + 1 :])
        data = context.reshape(data, shape)
    context.result_reshape(data, shape)
