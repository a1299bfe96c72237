# SPDX-License-Identifier: Apache-2.0
"""Converters of Keras layers that compute: dense layers, convolutions, pools, normalisations, activations, resizing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Annotated, Literal

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.frontend.keras.context import Beta, Bias, ChannelsLast, Gamma, Int8Factors, LayerConverter, OpContext
from microc.frontend.operator_context import expand_to_axes
from microc.frontend.signature import Argument, Axes, ConverterTable, Ints, Only, Value
from microc.graph.ir import Attr
from microc.ops.windows import compute_same_padding_of_axis

CONVERTERS = ConverterTable(LayerConverter)
_NO_ATTRS: Mapping[str, Attr] = {}
Interpolation = Literal["nearest", "bilinear"]

# ---- Converters of dense layers, convolutions and pools.


def _emit_product(
    context: OpContext, op: str, x: Value, kernel: Array, bias: Array | None, attrs: Mapping[str, Attr] = _NO_ATTRS
) -> Value:
    """Emit a layer ``op`` with constant weights."""
    constants = [context.add_weight("kernel", kernel)] + ([] if bias is None else [context.add_weight("bias", bias)])
    return context.emit(op, (x, *constants), attrs)


@CONVERTERS.register("Dense")
def convert_dense(
    context: OpContext, x: Value, kernel: Array, bias: Bias, factors: Int8Factors, *, activation: Argument = None
) -> Value:
    """Convert Dense, over the last axis. An int8 kernel of Keras is dequantised: divided by the factor of each unit."""
    if factors is not None:
        kernel = kernel / factors
    rows = context.reshape(x, (prod(x.shape[:-1]), x.shape[-1]))
    result = context.reshape(_emit_product(context, "dense", rows, kernel.T, bias), (*x.shape[:-1], kernel.shape[1]))
    return context.emit_activation(result, activation)


@frozen
class ConvolutionSettings:
    """Settings of all convolutions."""

    padding: Literal["valid", "same", "causal"] = "valid"
    strides: Ints = (1,)
    dilation_rate: Ints = (1,)
    activation: Argument = None
    data_format: ChannelsLast = "channels_last"


@frozen
class PoolSettings:
    """Settings of all pools. Without strides a window follows the other."""

    pool_size: Ints
    strides: Ints | None = None
    padding: Literal["valid", "same"] = "valid"
    data_format: ChannelsLast = "channels_last"


def _resolve_window_padding(mode: str, extents: Sequence[int], kernel: Ints, strides: Ints, dilation: Ints) -> Ints:
    """Return the padding of a convolution or pool: numbers of elements before each axis, then after each axis."""
    if mode == "valid":
        return (0,) * (2 * len(extents))
    if mode == "causal":
        return (0, (kernel[-1] - 1) * dilation[-1], 0, 0)
    numbers = zip(extents, kernel, strides, dilation, strict=True)
    pairs = [compute_same_padding_of_axis(*numbers_of_axis) for numbers_of_axis in numbers]
    return (*(before for before, _ in pairs), *(after for _, after in pairs))


def _reshape_to_image(context: OpContext, x: Value) -> Value:
    """Return a value (N, W, C) reshaped to (N, 1, W, C); a value of rank 4 unchanged."""
    return x if x.rank == 4 else context.reshape(x, (x.shape[0], 1, *x.shape[1:]))


def _reshape_from_image(context: OpContext, result: Value, rank: int) -> Value:
    """Return a result (N, 1, W, C) reshaped to ``rank`` axes; unchanged if it has them."""
    return result if result.rank == rank else context.reshape(result, (result.shape[0], *result.shape[2:]))


def _expand_to_image_axes(setting: Ints, x: Value) -> Ints:
    """Return a setting with a number for the rows and the columns of an image. For 1D data that of the rows is 1."""
    numbers = expand_to_axes(setting, x.rank - 2)
    return numbers if x.rank == 4 else (1, *numbers)


def _reshape_to_2d_kernel(kernel: Array) -> Array:
    """Return a kernel with axes for rows and columns; that of a layer for 1D data has one row."""
    return kernel[None] if kernel.ndim == 3 else kernel


def _emit_conv2d(
    context: OpContext, x: Value, weight: Array, bias: Array | None, groups: int, settings: ConvolutionSettings
) -> Value:
    """Emit a convolution with weights in the layout OHWI; 1D data are reshaped to images and back."""
    image = _reshape_to_image(context, x)
    strides = _expand_to_image_axes(settings.strides, x)
    dilation = _expand_to_image_axes(settings.dilation_rate, x)
    padding = _resolve_window_padding(settings.padding, image.shape[1:3], weight.shape[1:3], strides, dilation)
    attrs: Mapping[str, Attr] = {
        "strides": strides, "dilation": dilation, "padding": padding, "groups": groups, "layout": "NHWC"
    }  # fmt: skip
    return _reshape_from_image(context, _emit_product(context, "conv2d", image, weight, bias, attrs), x.rank)


@CONVERTERS.register("Conv1D", "Conv2D")
def convert_convolution(
    context: OpContext, x: Value, kernel: Array, bias: Bias, *, groups: int = 1, settings: ConvolutionSettings
) -> Value:
    """Convert Conv1D and Conv2D, whose kernel is (H, W, input channels of a group, output channels)."""
    weight = _reshape_to_2d_kernel(kernel).transpose(3, 0, 1, 2)
    result = _emit_conv2d(context, x, weight, bias, groups, settings)
    return context.emit_activation(result, settings.activation)


def _depthwise_kernel_as_ohwi(kernel: Array) -> Array:
    """Convert a depthwise kernel (H, W, channels, multiplier) to the layout OHWI with one input channel."""
    kernel = _reshape_to_2d_kernel(kernel)
    moved: Array = kernel.transpose(2, 3, 0, 1)
    return moved.reshape(-1, *kernel.shape[:2], 1)


@CONVERTERS.register("DepthwiseConv1D", "DepthwiseConv2D")
def convert_depthwise_convolution(
    context: OpContext, x: Value, kernel: Array, bias: Bias, *, settings: ConvolutionSettings
) -> Value:
    """Convert DepthwiseConv1D and DepthwiseConv2D."""
    result = _emit_conv2d(context, x, _depthwise_kernel_as_ohwi(kernel), bias, x.shape[-1], settings)
    return context.emit_activation(result, settings.activation)


@CONVERTERS.register("SeparableConv1D", "SeparableConv2D")
def convert_separable_convolution(
    context: OpContext,
    x: Value,
    depthwise_kernel: Array,
    pointwise_kernel: Array,
    bias: Bias,
    *,
    settings: ConvolutionSettings,
) -> Value:
    """Convert SeparableConv1D and SeparableConv2D: a depthwise convolution, then a pointwise convolution."""
    value = _emit_conv2d(context, x, _depthwise_kernel_as_ohwi(depthwise_kernel), None, x.shape[-1], settings)
    weight = _reshape_to_2d_kernel(pointwise_kernel).transpose(3, 0, 1, 2)
    result = _emit_conv2d(context, value, weight, bias, 1, ConvolutionSettings())
    return context.emit_activation(result, settings.activation)


@CONVERTERS.register("Conv1DTranspose", "Conv2DTranspose")
def convert_convolution_transpose(
    context: OpContext,
    x: Value,
    kernel: Array,
    bias: Bias,
    *,
    output_padding: Annotated[Argument, Only(None, "leave output_padding at None")] = None,
    settings: ConvolutionSettings,
) -> Value:
    """Convert Conv1DTranspose and Conv2DTranspose, whose kernel is (H, W, output channels, input channels).

    With the padding ``same`` the result has extent * stride elements along each axis.
    """
    kernel = _reshape_to_2d_kernel(kernel)
    strides = _expand_to_image_axes(settings.strides, x)
    dilation = _expand_to_image_axes(settings.dilation_rate, x)
    before, after = [], []
    for extent, stride, d in zip(kernel.shape[:2], strides, dilation, strict=True):
        reach = (extent - 1) * d + 1
        total = reach - stride if settings.padding == "same" else min(reach - stride, 0)
        before.append(max(total, 0) // 2)
        after.append(total - before[-1])
    image, weight = _reshape_to_image(context, x), kernel.transpose(2, 0, 1, 3)
    attrs: Mapping[str, Attr] = {"strides": strides, "dilation": dilation, "padding": (*before, *after)}
    result = _emit_product(context, "conv2d_transpose", image, weight, bias, attrs)
    return context.emit_activation(_reshape_from_image(context, result, x.rank), settings.activation)


def make_pool_converter(op: str, op_attrs: Mapping[str, Attr]) -> Callable[..., Value]:
    """Return the converter of pools that become microc's operator ``op`` with ``op_attrs``."""

    def convert_pool(context: OpContext, x: Value, *, settings: PoolSettings) -> Value:
        kernel = _expand_to_image_axes(settings.pool_size, x)
        strides = _expand_to_image_axes(settings.strides or settings.pool_size, x)
        image = _reshape_to_image(context, x)
        padding = _resolve_window_padding(settings.padding, image.shape[1:3], kernel, strides, (1, 1))
        attrs: dict[str, Attr] = {"kernel": kernel, "strides": strides, "padding": padding, "layout": "NHWC"}
        return _reshape_from_image(context, context.emit(op, (image,), {**attrs, **op_attrs}), x.rank)

    return convert_pool


def make_global_pool_converter(op: str) -> Callable[..., Value]:
    """Return the converter of a global pool: a reduction ``op`` over all spatial axes."""

    def convert_global_pool(
        context: OpContext, x: Value, *, keepdims: bool = False, data_format: ChannelsLast = "channels_last"
    ) -> Value:
        return context.emit(op, (x,), {"axes": tuple(range(1, x.rank - 1)), "keepdims": keepdims})

    return convert_global_pool


CONVERTERS.register("AveragePooling1D", "AveragePooling2D")(
    make_pool_converter("avg_pool2d", {"count_include_pad": False})
)
CONVERTERS.register("MaxPooling1D", "MaxPooling2D")(make_pool_converter("max_pool2d", {}))
for _name, _op in {"GlobalAveragePooling": "mean", "GlobalMaxPooling": "max"}.items():
    CONVERTERS.register(*(f"{_name}{rank}D" for rank in (1, 2, 3)))(make_global_pool_converter(_op))


# ---- Converters of normalisations.


def _require_last_axis(context: OpContext, axes: Ints, x: Value) -> None:
    """Refuse a normalisation over other axes than the last one."""
    if axes != (x.rank - 1,):
        context.refuse(f"axis: got {axes} of {x.rank} axes, expected the last axis", "normalise the last axis")


def _emit_scale_and_offset(context: OpContext, x: Value, gamma: Array | None, beta: Array | None) -> Value:
    """Emit x * ``gamma`` + ``beta``; an array that is None is left out."""
    if gamma is not None:
        x = context.emit("mul", (x, context.add_weight("gamma", gamma)))
    return x if beta is None else context.emit("add", (x, context.add_weight("beta", beta)))


def _emit_inverse_square_root(context: OpContext, mean_square: Value, epsilon: float) -> Value:
    """Emit 1 / sqrt(``mean_square`` + ``epsilon``)."""
    return context.emit("rsqrt", (context.emit("add", (mean_square, context.scalar(epsilon))),))


def _emit_standardisation(context: OpContext, x: Value, axes: Ints, epsilon: float) -> Value:
    """Emit (x - mean) / sqrt(variance + ``epsilon``) with mean and variance over ``axes``."""
    over: Mapping[str, Attr] = {"axes": axes, "keepdims": True}
    centred = context.emit("sub", (x, context.emit("mean", (x,), over)))
    variance = context.emit("mean", (context.emit("mul", (centred, centred)),), over)
    return context.emit("mul", (centred, _emit_inverse_square_root(context, variance, epsilon)))


@CONVERTERS.register("BatchNormalization")
def convert_batch_normalization(
    context: OpContext,
    x: Value,
    gamma: Gamma,
    beta: Beta,
    mean: Array,
    variance: Array,
    *,
    axis: Axes = (-1,),
    epsilon: float = 1e-3,
) -> Value:
    """Convert BatchNormalization: x * factor + offset for each channel. Both are computed in float64 at compile
    time."""
    _require_last_axis(context, axis, x)
    factor = (1.0 if gamma is None else gamma.astype(np.float64)) / np.sqrt(variance.astype(np.float64) + epsilon)
    offset = (0.0 if beta is None else beta.astype(np.float64)) - mean.astype(np.float64) * factor
    scaled = context.emit("mul", (x, context.add_weight("factor", factor)))
    return context.emit("add", (scaled, context.add_weight("offset", offset)))


@CONVERTERS.register("LayerNormalization")
def convert_layer_normalization(
    context: OpContext, x: Value, gamma: Gamma, beta: Beta, *, axis: Axes = (-1,), epsilon: float = 1e-3
) -> Value:
    """Convert LayerNormalization over the last axis."""
    _require_last_axis(context, axis, x)
    return _emit_scale_and_offset(context, _emit_standardisation(context, x, axis, epsilon), gamma, beta)


@CONVERTERS.register("GroupNormalization")
def convert_group_normalization(
    context: OpContext, x: Value, gamma: Gamma, beta: Beta, *, groups: int, axis: Axes = (-1,), epsilon: float = 1e-3
) -> Value:
    """Convert GroupNormalization of channels last.

    Each group of channels is normalised over its channels and all axes except the batch. A group of -1 is a channel."""
    _require_last_axis(context, axis, x)
    channels = x.shape[-1]
    groups = groups if groups > 0 else channels
    if channels % groups:
        context.refuse(
            f"groups: got {groups}, expected a divisor of {channels}, the channels", "change the number of groups"
        )
    rows = context.reshape(x, (x.shape[0], prod(x.shape[1:-1]), groups, channels // groups))
    value = context.reshape(_emit_standardisation(context, rows, (1, 3), epsilon), x.shape)
    return _emit_scale_and_offset(context, value, gamma, beta)


@CONVERTERS.register("RMSNormalization")
def convert_rms_normalization(
    context: OpContext, x: Value, scale: Array, *, axis: Axes = (-1,), epsilon: float = 1e-6
) -> Value:
    """Convert RMSNormalization over the last axis: x / sqrt(mean(x ** 2) + epsilon) * scale."""
    _require_last_axis(context, axis, x)
    power = context.emit("mean", (context.emit("mul", (x, x)),), {"axes": axis, "keepdims": True})
    value = context.emit("mul", (x, _emit_inverse_square_root(context, power, epsilon)))
    return context.emit("mul", (value, context.add_weight("scale", scale)))


@CONVERTERS.register("UnitNormalization")
def convert_unit_normalization(context: OpContext, x: Value, *, axis: Axes = (-1,)) -> Value:
    """Convert UnitNormalization: x / sqrt(max(sum(x ** 2), 1e-12))."""
    over: Mapping[str, Attr] = {"axes": tuple(sorted(axis)), "keepdims": True}
    power = context.emit("sum", (context.emit("mul", (x, x)),), over)
    bounded = context.emit("maximum", (power, context.scalar(1e-12)))
    return context.emit("mul", (x, context.emit("rsqrt", (bounded,))))


@CONVERTERS.register("Normalization")
def convert_normalization(
    context: OpContext,
    x: Value,
    *,
    axis: Axes = (-1,),
    mean: Argument = None,
    variance: Argument = None,
    invert: bool = False,
) -> Value:
    """Convert Normalization: (x - mean) / sqrt(variance) for each position along ``axis``, or its inverse.

    Mean and variance are settings, or weights that Keras's ``adapt`` computed, which a count of elements follows."""
    statistics = context.weights.arrays()[:2] if mean is None else (mean, variance)
    if len(statistics) != 2:
        context.refuse("the file contains no mean and variance", "call adapt before you save the model")
    kept = tuple(x.shape[k] for k in sorted(axis))
    shape = tuple(x.shape[k] if k in axis else 1 for k in range(min(axis, default=x.rank), x.rank))
    centre, variances = (np.broadcast_to(_decode_numbers(data), kept).reshape(shape) for data in statistics)
    deviation = np.maximum(np.sqrt(variances), 1e-7)
    if invert:
        scaled = context.emit("mul", (x, context.add_weight("factor", deviation)))
        return context.emit("add", (scaled, context.add_weight("mean", centre)))
    centred = context.emit("sub", (x, context.add_weight("mean", centre)))
    return context.emit("mul", (centred, context.add_weight("factor", 1 / deviation)))


def _decode_numbers(data: Argument) -> Array:
    """Return numbers of a setting or a weight in float64. Keras stores an array of a setting as an object with its
    elements."""
    return np.asarray(data["config"]["value"] if isinstance(data, Mapping) else data, np.float64)


# ---- Converters of Embedding, activations and layers that wrap another one.


@CONVERTERS.register("Embedding")
def convert_embedding(
    context: OpContext,
    x: Value,
    embeddings: Array,
    factors: Int8Factors,
    *,
    mask_zero: Annotated[bool, Only(False, "set mask_zero=False")] = False,
) -> Value:
    """Convert Embedding: gather rows of a table. int8 rows of Keras are dequantised: divided by the factor of each
    row."""
    table = embeddings if factors is None else embeddings / factors.reshape(-1, 1)
    indices = x if x.dtype in ("int32", "int64") else context.cast(x, "int32")
    return context.emit("gather", (context.add_weight("table", table), indices), {"axis": 0})


@CONVERTERS.register("Activation")
def convert_activation(context: OpContext, x: Value, *, activation: Argument) -> Value:
    return context.emit_activation(x, activation)


@CONVERTERS.register("ELU")
def convert_elu(context: OpContext, x: Value, *, alpha: float = 1.0) -> Value:
    return context.emit("elu", (x,), {"alpha": alpha})


@CONVERTERS.register("LeakyReLU")
def convert_leaky_relu(
    context: OpContext, x: Value, *, negative_slope: float | None = None, alpha: float = 0.3
) -> Value:
    """Convert LeakyReLU, whose slope Keras 2 calls ``alpha``."""
    return context.emit("leaky_relu", (x,), {"alpha": alpha if negative_slope is None else negative_slope})


@CONVERTERS.register("ReLU")
def convert_relu(
    context: OpContext, x: Value, *, max_value: float | None = None, negative_slope: float = 0.0, threshold: float = 0.0
) -> Value:
    """Convert ReLU: min(x, ``max_value``) if x > ``threshold``, else (x - ``threshold``) * ``negative_slope``.

    ``threshold`` is at least 0."""
    bounds: Mapping[str, Attr] = {"minimum": 0.0, "maximum": math.inf if max_value is None else max_value}
    if not threshold and max_value is None:
        return (
            context.emit("leaky_relu", (x,), {"alpha": negative_slope})
            if negative_slope
            else context.emit("relu", (x,))
        )
    if not threshold and not negative_slope:
        return context.emit("clip", (x,), bounds)
    edge = context.scalar(threshold)
    below = context.emit("mul", (context.emit("sub", (x, edge)), context.scalar(negative_slope)))
    above = x if max_value is None else context.emit("clip", (x,), bounds)
    return context.emit("where", (context.emit("greater", (x, edge)), above, below))


@CONVERTERS.register("PReLU")
def convert_prelu(context: OpContext, x: Value, alpha: Array) -> Value:
    """Convert PReLU: max(x, 0) + alpha * min(x, 0)."""
    below = context.emit("minimum", (x, context.scalar(0.0)))
    scaled = (context.emit("relu", (x,)), context.emit("mul", (below, context.add_weight("alpha", alpha))))
    return context.emit("add", scaled)


@CONVERTERS.register("Softmax")
def convert_softmax(context: OpContext, x: Value, *, axis: Ints = (-1,)) -> Value:
    if len(axis) != 1:
        context.refuse(f"axis: got {axis}, expected one axis", "reshape the data, so that one axis is summed")
    return context.emit("softmax", (x,), {"axis": axis[0]})


@CONVERTERS.register("TimeDistributed")
def convert_time_distributed(context: OpContext, x: Value, *, layer: Argument) -> Value:
    """Convert TimeDistributed: apply the wrapped layer to all time steps at once, as rows of a larger batch."""
    rows = context.reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:]))
    result = context.convert_inner_layer(layer, context.weights.weights_of_inner_layer("layer"), rows)
    return context.reshape(result, (*x.shape[:2], *result.shape[1:]))


# ---- Converters of layers that resize or crop images.


@CONVERTERS.register("Resizing")
def convert_resizing(
    context: OpContext,
    x: Value,
    *,
    height: int,
    width: int,
    interpolation: Interpolation = "bilinear",
    antialias: Annotated[bool, Only(False, "resize without antialias")] = False,
    crop_to_aspect_ratio: Annotated[bool, Only(False, "crop with a layer of its own")] = False,
    pad_to_aspect_ratio: Annotated[bool, Only(False, "pad with a layer of its own")] = False,
    data_format: ChannelsLast = "channels_last",
) -> Value:
    """Convert Resizing of an image. Input and output positions are aligned by the centres of pixels."""
    if x.dtype != "float32":
        context.refuse(f"image: got {x.dtype}, expected float32", "give the model a float32 input")
    return _emit_resample(context, x, (height, width), interpolation)


@CONVERTERS.register("UpSampling1D", "UpSampling2D", "UpSampling3D")
def convert_upsampling(
    context: OpContext,
    x: Value,
    *,
    size: Ints,
    interpolation: Interpolation = "nearest",
    data_format: ChannelsLast = "channels_last",
) -> Value:
    """Convert UpSampling1D, 2D and 3D by integer factors: repeat elements, or interpolate bilinearly."""
    factors = expand_to_axes(size, x.rank - 2)
    extents = [extent * factor for extent, factor in zip(x.shape[1:-1], factors, strict=True)]
    return _emit_resample(context, x, extents, interpolation)


def _emit_resample(context: OpContext, x: Value, result_extents: Sequence[int], interpolation: str) -> Value:
    """Emit the resampling of the spatial axes, which begin with axis 1, to ``result_extents``.

    An element of the result is the nearest input element, or, if ``interpolation`` is bilinear, the weighted sum of two
    neighbours along each axis."""
    is_bilinear = interpolation == "bilinear"
    indices, weights = [], []
    for extent, size in zip(x.shape[1:-1], result_extents, strict=True):
        source = (np.arange(size) + 0.5) * (extent / size)
        source = np.clip(source - 0.5, 0, extent - 1) if is_bilinear else np.minimum(np.floor(source), extent - 1)
        first = np.floor(source).astype(np.int64)
        pair = np.stack([first, np.minimum(first + 1, extent - 1)], axis=1).astype(np.int32)
        indices.append(context.new_constant("places", pair if is_bilinear else pair[:, :1]))
        weights.append(context.add_weight("shares", np.stack([1 - (source - first), source - first], axis=1)))
    tables = indices + weights if is_bilinear else indices
    return context.emit("resample", (x, *tables), {"axes": tuple(range(1, 1 + len(indices)))})


@CONVERTERS.register("CenterCrop")
def convert_center_crop(
    context: OpContext, x: Value, *, height: int, width: int, data_format: ChannelsLast = "channels_last"
) -> Value:
    """Convert CenterCrop: crop an image to its middle. Refuse an image that is smaller than the crop."""
    rows = x.rank - 3
    if x.shape[rows] < height or x.shape[rows + 1] < width:
        context.refuse(
            f"image: got {x.shape[rows : rows + 2]}, expected at least {(height, width)}", "give it a larger image"
        )
    begin, end = [0] * x.rank, list(x.shape)
    for axis, size in enumerate((height, width), rows):
        begin[axis] = (x.shape[axis] - size) // 2
        end[axis] = begin[axis] + size
    return context.slice(x, begin, end)
