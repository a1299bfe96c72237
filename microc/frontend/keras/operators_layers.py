# SPDX-License-Identifier: Apache-2.0
"""Converters of Keras layers that compute: dense layers, convolutions, pools, normalisations, activations, resizing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from microc.base.dtypes import Array
from microc.frontend.keras.context import Converter, LayerContext
from microc.graph.ir import Attr
from microc.ops.windows import compute_same_padding_of_axis

# ---- Converters of dense layers, convolutions, pools, normalisations by learned statistics, activations and Embedding.


def convert_dense(layer: LayerContext) -> str:
    """Convert Dense, over the last axis. An int8 kernel of Keras is dequantised: divided by the factor of each unit."""
    kernel, *others = layer.read_weight_arrays(1 + bool(layer.config["use_bias"]) + layer.has_int8_weights)
    if layer.has_int8_weights:
        kernel = kernel / others.pop()
    bias = others
    shape = layer.shape()
    rows = layer.reshape(layer.first_operand, (prod(shape[:-1]), shape[-1]))
    operands = [rows, layer.add_constant("kernel", kernel.T), *(layer.add_constant("bias", b) for b in bias)]
    return layer.emit_configured_activation(
        layer.reshape(layer.emit("dense", operands), (*shape[:-1], kernel.shape[1]))
    )


def _resolve_window_padding(
    layer: LayerContext, extents: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
) -> tuple[int, ...]:
    """Return the padding of a convolution or pool: numbers of elements before each axis, then after each axis."""
    match layer.config.get("padding", "valid"):
        case "valid":
            return (0,) * (2 * len(extents))
        case "causal":
            return (0, (kernel[-1] - 1) * dilation[-1], 0, 0)
        case "same":
            pairs = [
                compute_same_padding_of_axis(*numbers)
                for numbers in zip(extents, kernel, strides, dilation, strict=True)
            ]
            return (*(before for before, _ in pairs), *(after for _, after in pairs))
        case other:
            layer.refuse(f"padding: got {other!r}, expected 'valid', 'same' or 'causal'", "use valid or same")


def _reshape_to_image(layer: LayerContext, value: str) -> str:
    """Return a value (N, W, C) reshaped to (N, 1, W, C); a value of rank 4 unchanged."""
    shape = layer.shape(value)
    return value if len(shape) == 4 else layer.reshape(value, (shape[0], 1, *shape[1:]))


def _read_strides_and_dilations(layer: LayerContext) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the strides and the dilations of a convolution along rows and columns. For 1D data those of the rows are
    1."""
    count = len(layer.shape()) - 2
    settings = (layer.read_setting_per_axis("strides", count), layer.read_setting_per_axis("dilation_rate", count))
    return settings if count == 2 else ((1, *settings[0]), (1, *settings[1]))


def _emit_conv2d(
    layer: LayerContext, value: str, weight: Array, bias: Sequence[Array], groups: int, is_pointwise: bool = False
) -> str:
    """Emit a convolution with weights in the layout OHWI; 1D data are reshaped to images and back.

    ``is_pointwise``: ignore the layer's strides, dilation and padding, for the second part of a separable
    convolution."""
    rank, image = len(layer.shape(value)), _reshape_to_image(layer, value)
    strides, dilation = ((1, 1), (1, 1)) if is_pointwise else _read_strides_and_dilations(layer)
    extents = layer.shape(image)[1:3]
    padding = (
        (0, 0, 0, 0) if is_pointwise else _resolve_window_padding(layer, extents, weight.shape[1:3], strides, dilation)
    )
    operands = [image, layer.add_constant("kernel", weight), *(layer.add_constant("bias", b) for b in bias)]
    attrs: Mapping[str, Attr] = {
        "strides": strides, "dilation": dilation, "padding": padding, "groups": groups, "layout": "NHWC"
    }  # fmt: skip
    result = layer.emit("conv2d", operands, attrs)
    return result if rank == 4 else layer.reshape(result, (layer.shape(result)[0], *layer.shape(result)[2:]))


def convert_convolution(layer: LayerContext) -> str:
    """Convert Conv1D and Conv2D, whose kernel is (H, W, input channels of a group, output channels)."""
    layer.require_channels_last()
    kernel, *bias = layer.read_weight_arrays(1 + bool(layer.config["use_bias"]))
    kernel = kernel[None] if kernel.ndim == 3 else kernel
    weight = kernel.transpose(3, 0, 1, 2)
    return layer.emit_configured_activation(
        _emit_conv2d(layer, layer.first_operand, weight, bias, int(layer.config.get("groups", 1)))
    )


def _depthwise_kernel_as_ohwi(kernel: Array) -> Array:
    """Convert a depthwise kernel (H, W, channels, multiplier) to the layout OHWI with one input channel."""
    kernel = kernel[None] if kernel.ndim == 3 else kernel
    moved: Array = kernel.transpose(2, 3, 0, 1)
    return moved.reshape(-1, *kernel.shape[:2], 1)


def convert_depthwise_convolution(layer: LayerContext) -> str:
    """Convert DepthwiseConv1D and DepthwiseConv2D."""
    layer.require_channels_last()
    kernel, *bias = layer.read_weight_arrays(1 + bool(layer.config["use_bias"]))
    return layer.emit_configured_activation(
        _emit_conv2d(layer, layer.first_operand, _depthwise_kernel_as_ohwi(kernel), bias, layer.shape()[-1])
    )


def convert_separable_convolution(layer: LayerContext) -> str:
    """Convert SeparableConv1D and SeparableConv2D: a depthwise convolution, then a pointwise convolution."""
    layer.require_channels_last()
    kernel, points, *bias = layer.read_weight_arrays(2 + bool(layer.config["use_bias"]))
    value = _emit_conv2d(layer, layer.first_operand, _depthwise_kernel_as_ohwi(kernel), (), layer.shape()[-1])
    points = points[None] if points.ndim == 3 else points
    return layer.emit_configured_activation(
        _emit_conv2d(layer, value, points.transpose(3, 0, 1, 2), bias, 1, is_pointwise=True)
    )


def convert_convolution_transpose(layer: LayerContext) -> str:
    """Convert Conv1DTranspose and Conv2DTranspose, whose kernel is (H, W, output channels, input channels).

    With the padding ``same`` the result has extent * stride elements along each axis.
    """
    layer.require_channels_last()
    if layer.config.get("output_padding") is not None:
        layer.refuse("output_padding is not supported", "leave output_padding at None")
    kernel, *bias = layer.read_weight_arrays(1 + bool(layer.config["use_bias"]))
    rank, kernel = len(layer.shape()), kernel[None] if kernel.ndim == 3 else kernel
    strides, dilation = _read_strides_and_dilations(layer)
    before, after = [], []
    for extent, stride, d in zip(kernel.shape[:2], strides, dilation, strict=True):
        reach = (extent - 1) * d + 1
        total = reach - stride if layer.config["padding"] == "same" else min(reach - stride, 0)
        before.append(max(total, 0) // 2)
        after.append(total - before[-1])
    operands = [
        _reshape_to_image(layer, layer.first_operand),
        layer.add_constant("kernel", kernel.transpose(2, 0, 1, 3)),
    ]
    operands += [layer.add_constant("bias", b) for b in bias]
    attrs: Mapping[str, Attr] = {"strides": strides, "dilation": dilation, "padding": (*before, *after)}
    result = layer.emit("conv2d_transpose", operands, attrs)
    shape = layer.shape(result)
    return layer.emit_configured_activation(result if rank == 4 else layer.reshape(result, (shape[0], *shape[2:])))


def make_pool_converter(op: str) -> Converter:
    """Return the converter of a pool. The average of a window does not count padding."""

    def convert_pool(layer: LayerContext) -> str:
        layer.require_channels_last()
        count = len(layer.shape()) - 2
        kernel = layer.read_setting_per_axis("pool_size", count)
        strides = layer.read_setting_per_axis("strides", count) if layer.config.get("strides") else kernel
        if count == 1:
            kernel, strides = (1, *kernel), (1, *strides)
        image = _reshape_to_image(layer, layer.first_operand)
        padding = _resolve_window_padding(layer, layer.shape(image)[1:3], kernel, strides, (1, 1))
        attrs: dict[str, Attr] = {"kernel": kernel, "strides": strides, "padding": padding, "layout": "NHWC"}
        if op == "avg_pool2d":
            attrs["count_include_pad"] = False
        result = layer.emit(op, (image,), attrs)
        shape = layer.shape(result)
        return result if count == 2 else layer.reshape(result, (shape[0], *shape[2:]))

    return convert_pool


def make_global_pool_converter(op: str) -> Converter:
    """Return the converter of a global pool: a reduction ``op`` over all spatial axes."""

    def convert_global_pool(layer: LayerContext) -> str:
        layer.require_channels_last()
        axes = tuple(range(1, len(layer.shape()) - 1))
        return layer.emit(
            op, (layer.first_operand,), {"axes": axes, "keepdims": bool(layer.config.get("keepdims", False))}
        )

    return convert_global_pool


def _require_last_axis(layer: LayerContext) -> None:
    """Refuse a normalisation over other axes than the last one."""
    axis, rank = layer.config.get("axis", -1), len(layer.shape())
    axes = [axis] if isinstance(axis, int) else list(axis)
    if [a % rank for a in axes] != [rank - 1]:
        layer.refuse(f"axis: got {axis}, expected the last axis", "normalise the last axis")


def convert_batch_normalization(layer: LayerContext) -> str:
    """Convert BatchNormalization: x * factor + offset for each channel. Both are computed in float64 at compile
    time."""
    _require_last_axis(layer)
    scale, centre = bool(layer.config["scale"]), bool(layer.config["center"])
    arrays = [a.astype(np.float64) for a in layer.read_weight_arrays(2 + scale + centre)]
    gamma = arrays.pop(0) if scale else np.ones(1)
    beta = arrays.pop(0) if centre else np.zeros(1)
    mean, variance = arrays
    factor = gamma / np.sqrt(variance + float(layer.config["epsilon"]))
    scaled = layer.emit("mul", (layer.first_operand, layer.add_constant("factor", factor)))
    return layer.emit("add", (scaled, layer.add_constant("offset", beta - mean * factor)))


def convert_layer_normalization(layer: LayerContext) -> str:
    _require_last_axis(layer)
    scale, centre = bool(layer.config.get("scale", True)), bool(layer.config.get("center", True))
    arrays = list(layer.read_weight_arrays(scale + centre))
    over: Mapping[str, Attr] = {"axes": (len(layer.shape()) - 1,), "keepdims": True}
    centred = layer.emit("sub", (layer.first_operand, layer.emit("mean", (layer.first_operand,), over)))
    spread = layer.emit("mean", (layer.emit("mul", (centred, centred)),), over)
    deviation = layer.emit("rsqrt", (layer.emit("add", (spread, layer.scalar(float(layer.config["epsilon"])))),))
    value = layer.emit("mul", (centred, deviation))
    if scale:
        value = layer.emit("mul", (value, layer.add_constant("gamma", arrays.pop(0))))
    return layer.emit("add", (value, layer.add_constant("beta", arrays.pop(0)))) if centre else value


def convert_normalization(layer: LayerContext) -> str:
    """Convert Normalization: (x - mean) / sqrt(variance). Mean and variance are constants that Keras's ``adapt``
    computed."""
    mean, variance = (a.astype(np.float64) for a in layer.weights.arrays()[:2])
    centred = layer.emit("sub", (layer.first_operand, layer.add_constant("mean", mean)))
    return layer.emit("mul", (centred, layer.add_constant("factor", 1 / np.maximum(np.sqrt(variance), 1e-7))))


def convert_embedding(layer: LayerContext) -> str:
    """Convert Embedding: gather rows of a table. int8 rows of Keras are dequantised: divided by the factor of each
    row."""
    if layer.config.get("mask_zero"):
        layer.refuse("mask_zero=True is not supported", "set mask_zero=False")
    (table, *factors), indices = layer.read_weight_arrays(1 + layer.has_int8_weights), layer.first_operand
    if factors:
        table = table / factors[0].reshape(-1, 1)
    if layer.builder.type(indices).dtype not in ("int32", "int64"):
        indices = layer.emit("cast", (indices,), {"dtype": "int32"})
    return layer.emit("gather", (layer.add_constant("table", table), indices), {"axis": 0})


def convert_relu(layer: LayerContext) -> str:
    """Convert ReLU: min(x, ``max_value``) if x > ``threshold``, else (x - ``threshold``) * ``negative_slope``.

    ``threshold`` is at least 0."""
    slope, most = float(layer.config.get("negative_slope") or 0), layer.config.get("max_value")
    threshold = float(layer.config.get("threshold") or 0)
    bounds: Mapping[str, Attr] = {"minimum": 0.0, "maximum": math.inf if most is None else float(most)}
    if not threshold and most is None:
        return (
            layer.emit("leaky_relu", (layer.first_operand,), {"alpha": slope})
            if slope
            else layer.emit("relu", (layer.first_operand,))
        )
    if not threshold and not slope:
        return layer.emit("clip", (layer.first_operand,), bounds)
    edge = layer.scalar(threshold)
    below = layer.emit("mul", (layer.emit("sub", (layer.first_operand, edge)), layer.scalar(slope)))
    above = layer.first_operand if most is None else layer.emit("clip", (layer.first_operand,), bounds)
    return layer.emit("where", (layer.emit("greater", (layer.first_operand, edge)), above, below))


def convert_prelu(layer: LayerContext) -> str:
    """Convert PReLU: max(x, 0) + alpha * min(x, 0)."""
    (alpha,) = layer.read_weight_arrays(1)
    below = layer.emit("minimum", (layer.first_operand, layer.scalar(0.0)))
    return layer.emit(
        "add",
        (layer.emit("relu", (layer.first_operand,)), layer.emit("mul", (below, layer.add_constant("alpha", alpha)))),
    )


def convert_softmax(layer: LayerContext) -> str:
    axis = layer.config.get("axis", -1)
    return layer.emit("softmax", (layer.first_operand,), {"axis": int(axis if isinstance(axis, int) else axis[0])})


def convert_time_distributed(layer: LayerContext) -> str:
    """Convert TimeDistributed: apply the wrapped layer to all time steps at once, as rows of a larger batch."""
    inner = layer.config["layer"]
    converter = layer.converters.get(inner["class_name"])
    if converter is None:
        layer.refuse(f"layer: {inner['class_name']} is not supported", "use a layer that `microc operators` lists")
    shape = layer.shape()
    rows = layer.reshape(layer.first_operand, (shape[0] * shape[1], *shape[2:]))
    weights = layer.weights.weights_of_inner_layer("layer")
    result = converter(
        replace(layer, class_name=inner["class_name"], config=inner["config"], operands=(rows,), weights=weights)
    )
    if not isinstance(result, str):
        layer.refuse("a wrapped layer with several results is not supported", "wrap a layer with one result")
    return layer.reshape(result, (*shape[:2], *layer.shape(result)[1:]))


LAYER_CONVERTERS: Mapping[str, Converter] = {
    "Activation": lambda layer: layer.emit_configured_activation(layer.first_operand),
    "AveragePooling1D": make_pool_converter("avg_pool2d"),
    "AveragePooling2D": make_pool_converter("avg_pool2d"),
    "BatchNormalization": convert_batch_normalization,
    "Conv1D": convert_convolution,
    "Conv1DTranspose": convert_convolution_transpose,
    "Conv2D": convert_convolution,
    "Conv2DTranspose": convert_convolution_transpose,
    "Dense": convert_dense,
    "DepthwiseConv1D": convert_depthwise_convolution,
    "DepthwiseConv2D": convert_depthwise_convolution,
    "ELU": lambda layer: layer.emit("elu", (layer.first_operand,), {"alpha": float(layer.config.get("alpha", 1.0))}),
    "Embedding": convert_embedding,
    "GlobalAveragePooling1D": make_global_pool_converter("mean"),
    "GlobalAveragePooling2D": make_global_pool_converter("mean"),
    "GlobalAveragePooling3D": make_global_pool_converter("mean"),
    "GlobalMaxPooling1D": make_global_pool_converter("max"),
    "GlobalMaxPooling2D": make_global_pool_converter("max"),
    "GlobalMaxPooling3D": make_global_pool_converter("max"),
    "LayerNormalization": convert_layer_normalization,
    "LeakyReLU": lambda layer: layer.emit(
        "leaky_relu",
        (layer.first_operand,),
        {"alpha": float(layer.config.get("negative_slope", layer.config.get("alpha", 0.3)))},
    ),
    "MaxPooling1D": make_pool_converter("max_pool2d"),
    "MaxPooling2D": make_pool_converter("max_pool2d"),
    "Normalization": convert_normalization,
    "PReLU": convert_prelu,
    "ReLU": convert_relu,
    "SeparableConv1D": convert_separable_convolution,
    "SeparableConv2D": convert_separable_convolution,
    "Softmax": convert_softmax,
    "TimeDistributed": convert_time_distributed,
}


# ---- Converters of layers that normalise by statistics of their input, and of layers that resize or crop images.


def convert_group_normalization(layer: LayerContext) -> str:
    """Convert GroupNormalization of channels last.

    Each group of channels is normalised over its channels and all axes except the batch."""
    layer.require_channels_last()
    config, shape = layer.config, layer.shape()
    channels = shape[-1]
    if int(config.get("axis", -1)) % len(shape) != len(shape) - 1:
        layer.refuse(f"axis: got {config['axis']}, expected the last axis", "normalise the last axis")
    groups = int(config["groups"]) if int(config["groups"]) > 0 else channels
    if channels % groups:
        layer.refuse(
            f"groups: got {groups}, expected a divisor of {channels}, the channels", "change the number of groups"
        )
    scale, centre = bool(config.get("scale", True)), bool(config.get("center", True))
    arrays = list(layer.read_weight_arrays(scale + centre))
    rows = layer.reshape(layer.first_operand, (shape[0], prod(shape[1:-1]), groups, channels // groups))
    over: Mapping[str, Attr] = {"axes": (1, 3), "keepdims": True}
    centred = layer.emit("sub", (rows, layer.emit("mean", (rows,), over)))
    spread = layer.emit("mean", (layer.emit("mul", (centred, centred)),), over)
    value = layer.reshape(layer.emit("mul", (centred, _emit_inverse_square_root(layer, spread))), shape)
    if scale:
        value = layer.emit("mul", (value, layer.add_constant("gamma", arrays.pop(0))))
    return layer.emit("add", (value, layer.add_constant("beta", arrays.pop(0)))) if centre else value


def convert_rms_normalization(layer: LayerContext) -> str:
    """Convert RMSNormalization over the last axis: x / sqrt(mean(x ** 2) + epsilon) * scale."""
    axes, rank = layer.config.get("axis", -1), len(layer.shape())
    if [axis % rank for axis in (axes if isinstance(axes, (list, tuple)) else [axes])] != [rank - 1]:
        layer.refuse(f"axis: got {axes}, expected the last axis", "normalise the last axis")
    (scale,) = layer.read_weight_arrays(1)
    over: Mapping[str, Attr] = {"axes": (rank - 1,), "keepdims": True}
    power = layer.emit("mean", (layer.emit("mul", (layer.first_operand, layer.first_operand)),), over)
    value = layer.emit("mul", (layer.first_operand, _emit_inverse_square_root(layer, power)))
    return layer.emit("mul", (value, layer.add_constant("scale", scale)))


def convert_unit_normalization(layer: LayerContext) -> str:
    """Convert UnitNormalization: x / sqrt(max(sum(x ** 2), 1e-12))."""
    axes = layer.config.get("axis", -1)
    rank, axes = len(layer.shape()), axes if isinstance(axes, (list, tuple)) else [axes]
    over: Mapping[str, Attr] = {"axes": tuple(sorted(int(axis) % rank for axis in axes)), "keepdims": True}
    power = layer.emit("sum", (layer.emit("mul", (layer.first_operand, layer.first_operand)),), over)
    bounded = layer.emit("maximum", (power, layer.scalar(1e-12)))
    return layer.emit("mul", (layer.first_operand, layer.emit("rsqrt", (bounded,))))


def _emit_inverse_square_root(layer: LayerContext, mean_square: str) -> str:
    """Emit 1 / sqrt(``mean_square`` + epsilon), with the layer's epsilon."""
    epsilon = layer.scalar(float(layer.config.get("epsilon", 1e-3)))
    return layer.emit("rsqrt", (layer.emit("add", (mean_square, epsilon)),))


def convert_resizing(layer: LayerContext) -> str:
    """Convert Resizing of an image. Input and output positions are aligned by the centres of pixels."""
    layer.require_channels_last()
    config = layer.config
    interpolation = config.get("interpolation", "bilinear")
    if interpolation not in ("nearest", "bilinear") or config.get("antialias"):
        layer.refuse(
            "antialias=True is not supported"
            if config.get("antialias")
            else f"interpolation: got {interpolation!r}, expected 'nearest' or 'bilinear'",
            "use nearest or bilinear, without antialias",
        )
    if config.get("crop_to_aspect_ratio") or config.get("pad_to_aspect_ratio"):
        layer.refuse(
            "crop_to_aspect_ratio and pad_to_aspect_ratio are not supported", "crop or pad with layers of their own"
        )
    if layer.builder.type(layer.first_operand).dtype != "float32":
        layer.refuse(
            f"image: got {layer.builder.type(layer.first_operand).dtype}, expected float32",
            "give the model a float32 input",
        )
    return emit_resample(layer, (int(config["height"]), int(config["width"])), is_bilinear=interpolation == "bilinear")


def emit_resample(layer: LayerContext, result_extents: Sequence[int], *, is_bilinear: bool) -> str:
    """Emit the resampling of the spatial axes, which begin with axis 1, to ``result_extents``.

    An element of the result is the nearest input element, or, if ``is_bilinear``, the weighted sum of two neighbours
    along each axis."""
    indices, weights = [], []
    for extent, size in zip(layer.shape()[1:-1], result_extents, strict=True):
        source = (np.arange(size) + 0.5) * (extent / size)
        source = np.clip(source - 0.5, 0, extent - 1) if is_bilinear else np.minimum(np.floor(source), extent - 1)
        first = np.floor(source).astype(np.int64)
        pair = np.stack([first, np.minimum(first + 1, extent - 1)], axis=1).astype(np.int32)
        indices.append(layer.builder.new_constant("places", pair if is_bilinear else pair[:, :1]))
        weights.append(layer.add_constant("shares", np.stack([1 - (source - first), source - first], axis=1)))
    tables = indices + weights if is_bilinear else indices
    return layer.emit("resample", (layer.first_operand, *tables), {"axes": tuple(range(1, 1 + len(indices)))})


def convert_center_crop(layer: LayerContext) -> str:
    """Convert CenterCrop: crop an image to its middle. Refuse an image that is smaller than the crop."""
    layer.require_channels_last()
    shape, sizes = layer.shape(), (int(layer.config["height"]), int(layer.config["width"]))
    rows = len(shape) - 3
    if any(extent < size for extent, size in zip(shape[rows:], sizes, strict=False)):
        layer.refuse(f"image: got {shape[rows : rows + 2]}, expected at least {sizes}", "give it a larger image")
    begin, end = [0] * len(shape), list(shape)
    for axis, size in enumerate(sizes, rows):
        begin[axis] = (shape[axis] - size) // 2
        end[axis] = begin[axis] + size
    return layer.emit(
        "slice", (layer.first_operand,), {"begin": tuple(begin), "end": tuple(end), "strides": (1,) * len(shape)}
    )


NORMALISATION_CONVERTERS: Mapping[str, Converter] = {
    "CenterCrop": convert_center_crop,
    "GroupNormalization": convert_group_normalization,
    "RMSNormalization": convert_rms_normalization,
    "Resizing": convert_resizing,
    "UnitNormalization": convert_unit_normalization,
}
