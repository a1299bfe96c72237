# SPDX-License-Identifier: Apache-2.0
"""Converters of ATen's layers: convolutions, products, normalisations, quantisation, and recurrent layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.frontend.operator_context import expand_to_axes
from microc.frontend.signature import Argument, ConverterTable, Floats, Ints, Value
from microc.frontend.torch.context import OpContext
from microc.graph.ir import Attr
from microc.ops.attributes import Rounding

# ---- Converters of ATen's layers: convolutions, matrix products, attention, resizing, quantisation, normalisations.


CONVERTERS = ConverterTable()

# ---- Converters of convolutions.


@frozen
class ConvolutionAttributes:
    """Attributes of all convolutions. ``padding``: a number or numbers of elements, ``valid`` or ``same``."""

    stride: Ints = (1,)
    padding: Argument = 0
    dilation: Ints = (1,)
    groups: int = 1


@frozen
class _ConvolutionWindow:
    """Strides, padding (before each axis, then after each axis) and dilation of a convolution's spatial axes."""

    strides: Ints
    padding: Ints
    dilation: Ints


@CONVERTERS.register("conv1d", "conv2d", "conv3d")
def convert_convolution(
    context: OpContext, x: Value, weight: Value, bias: Argument = None, *, attributes: ConvolutionAttributes
) -> Value:
    """Convert conv1d, conv2d and conv3d."""
    x, weight, window = _prepare_convolution(context, x, weight, attributes)
    operands = (x, weight) if bias is None else (x, weight, context.convert_to_value(bias))
    attrs: Mapping[str, Attr] = {
        "strides": window.strides, "dilation": window.dilation, "padding": window.padding, "groups": attributes.groups
    }  # fmt: skip
    if weight.rank > 4:
        result = context.emit("convolution", operands, attrs)
    else:
        result = context.emit("conv2d", operands, {**attrs, "layout": "NCHW", "rounding": Rounding.EVEN})
    return context.reshape(result, context.result_shape())


@CONVERTERS.register("convolution")
def convert_general_convolution(
    context: OpContext,
    x: Value,
    weight: Value,
    bias: Argument,
    *,
    transposed: bool,
    output_padding: Ints,
    attributes: ConvolutionAttributes,
) -> Value:
    """Convert ``convolution``. Transposed convolutions may have one or two spatial axes.

    microc's ``conv2d_transpose`` is channels last. Therefore data and weights (I, O / groups, H, W) are transposed
    before it, the weights to OHWI, and the result is transposed back."""
    if not transposed:
        return convert_convolution(context, x, weight, bias, attributes=attributes)
    rank, groups = weight.rank - 2, attributes.groups
    if rank > 2:
        context.refuse(
            f"transposed convolution: got {rank} spatial axes, expected 1 or 2", "use one or two spatial axes"
        )
    x, weight, window = _prepare_convolution(context, x, weight, attributes)
    biases = () if bias is None else (context.convert_to_value(bias),)
    end_padding = (0,) * (2 - rank) + expand_to_axes(output_padding, rank)
    inputs, outputs_per_group, *kernel = weight.shape
    grouped = context.reshape(weight, (groups, inputs // groups, outputs_per_group, *kernel))
    permuted = context.emit("transpose", (grouped,), {"axes": (0, 2, 3, 4, 1)})
    weight = context.reshape(permuted, (groups * outputs_per_group, *kernel, inputs // groups))
    data = context.emit("transpose", (x,), {"axes": (0, 2, 3, 1)})
    before, after = window.padding[:2], window.padding[2:]
    attrs: Mapping[str, Attr] = {
        "strides": window.strides,
        "padding": (*before, after[0] - end_padding[0], after[1] - end_padding[1]),
        "dilation": window.dilation,
        "groups": groups,
    }
    result = context.emit("conv2d_transpose", (data, weight, *biases), attrs)
    return context.reshape(context.emit("transpose", (result,), {"axes": (0, 3, 1, 2)}), context.result_shape())


def _prepare_convolution(
    context: OpContext, x: Value, weight: Value, attributes: ConvolutionAttributes
) -> tuple[Value, Value, _ConvolutionWindow]:
    """Return the data with a batch axis, the weights and the window of a convolution. A convolution over one axis
    becomes one over two axes, the first of extent 1."""
    rank = weight.rank - 2
    strides, dilation = expand_to_axes(attributes.stride, rank), expand_to_axes(attributes.dilation, rank)
    padding = _resolve_convolution_padding(attributes.padding, weight.shape[2:], dilation)
    if x.rank == weight.rank - 1:
        x = context.reshape(x, (1, *x.shape))
    if rank != 1:
        return x, weight, _ConvolutionWindow(strides, padding, dilation)
    x = context.reshape(x, (*x.shape[:2], 1, x.shape[2]))
    if weight.constant is not None:
        weight = context.new_constant("weight", weight.constant[:, :, None])
    else:
        weight = context.reshape(weight, (*weight.shape[:2], 1, weight.shape[2]))
    return x, weight, _ConvolutionWindow((1, *strides), (0, padding[0], 0, padding[1]), (1, *dilation))


def _resolve_convolution_padding(padding: Argument, kernel: Ints, dilation: Ints) -> Ints:
    """Return the padding of a convolution: numbers of elements before each spatial axis, then after each spatial
    axis."""
    if padding == "same":
        total = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        return (*(w // 2 for w in total), *(w - w // 2 for w in total))
    if padding == "valid":
        padding = 0
    numbers = (int(padding),) if isinstance(padding, int) else tuple(int(n) for n in padding)
    return expand_to_axes(numbers, len(kernel)) * 2


# ---- Converters of matrix products and attention.


@CONVERTERS.register("linear")
def convert_linear(context: OpContext, x: Value, weight: Value, bias: Value | None = None) -> Value:
    """Convert linear, a dense layer over the last axis."""
    rows = context.reshape(x, (math.prod(x.shape[:-1]), x.shape[-1]))
    operands = (rows, weight) if bias is None else (rows, weight, bias)
    return context.reshape(context.emit("dense", operands, {"rounding": Rounding.EVEN}), context.result_shape())


@CONVERTERS.register("addmm")
def convert_addmm(
    context: OpContext, x: Argument, mat1: Value, mat2: Argument, *, beta: float = 1.0, alpha: float = 1.0
) -> Value:
    """Convert addmm: beta * self + alpha * mat1 mat2."""
    product = _emit_matmul(context, mat1, mat2)
    if alpha != 1:
        product = context.emit("mul", (product, context.convert_to_value(alpha)))
    summand = context.convert_to_value(x)
    if beta != 1:
        summand = context.emit("mul", (summand, context.convert_to_value(beta)))
    return context.emit("add", (product, summand))


@CONVERTERS.register("bmm", "mm")
def convert_matrix_product(context: OpContext, x: Value, mat2: Argument) -> Value:
    """Convert mm and bmm, the product of matrices."""
    return _emit_matmul(context, x, mat2)


@CONVERTERS.register("_int_mm")
def convert_integer_matrix_product(context: OpContext, x: Value, mat2: Value) -> Value:
    """Convert _int_mm, the product of int8 matrices with int32 results."""
    return context.emit("matmul", (x, mat2), {"out_dtype": "int32"})


@CONVERTERS.register("matmul")
def convert_matmul(context: OpContext, x: Value, other: Argument) -> Value:
    """Convert matmul. A vector operand counts as a matrix of one row or one column."""
    rank = len(context.shape(other) if isinstance(other, str) else other.shape)
    if x.rank > 1 and rank > 1:
        return _emit_matmul(context, x, other)
    row = context.reshape(x, (1, *x.shape)) if x.rank == 1 else x
    right = context.convert_to_value(other)
    column = context.reshape(right, (*right.shape, 1)) if rank == 1 else right
    return context.reshape(context.emit("matmul", (row, column)), context.result_shape())


def _emit_matmul(context: OpContext, x: Value, y: Argument) -> Value:
    """Emit the matrix product x y. It becomes a dense layer if y is a matrix that is known at compile time."""
    if isinstance(y, context.torch.Tensor) and y.dim() == 2 and x.rank == 2:
        weight = context.new_constant("weight", np.ascontiguousarray(context.to_numpy_array(y).T))
        return context.emit("dense", (x, weight), {"rounding": Rounding.EVEN})
    return context.emit("matmul", (x, context.convert_to_value(y)))


@CONVERTERS.register("scaled_dot_product_attention")
def convert_scaled_dot_product_attention(
    context: OpContext,
    query: Value,
    key: Value,
    value: Value,
    attn_mask: Value | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    """Convert scaled_dot_product_attention: softmax(q k' scale + mask) v, where k' is k transposed."""
    if enable_gqa:
        key, value = (_repeat_shared_heads(context, x, query.shape[-3]) for x in (key, value))
    rank = key.rank
    transposed_key = context.emit("transpose", (key,), {"axes": (*range(rank - 2), rank - 1, rank - 2)})
    factor = context.convert_to_value(1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    scores = context.emit("matmul", (context.emit("mul", (query, factor)), transposed_key))
    if is_causal:
        causal_mask = context.new_constant("causal", np.tril(np.ones(scores.shape[-2:], bool)))
        scores = context.emit("where", (causal_mask, scores, context.convert_to_value(float("-inf"))))
    if attn_mask is not None and attn_mask.dtype == "bool":
        scores = context.emit("where", (attn_mask, scores, context.convert_to_value(float("-inf"))))
    elif attn_mask is not None:
        scores = context.emit("add", (scores, attn_mask))
    return context.emit("matmul", (context.emit("softmax", (scores,), {"axis": -1}), value))


def _repeat_shared_heads(context: OpContext, x: Value, query_heads: int) -> Value:
    """Repeat each of the G heads of keys or values (..., G, S, E) for the ``query_heads`` / G heads of queries that
    share it.

    The result is (..., query_heads, S, E)."""
    *front, groups, rows, width = x.shape
    if groups == query_heads:
        return x
    one = context.reshape(x, (*front, groups, 1, rows, width))
    wide = context.emit("broadcast_to", (one,), {"shape": (*front, groups, query_heads // groups, rows, width)})
    return context.reshape(wide, (*front, query_heads, rows, width))


# ---- Converters of resizing.


@CONVERTERS.register("upsample_nearest1d", "upsample_nearest2d")
def convert_upsample_nearest(context: OpContext, x: Value) -> Value:
    """Convert upsample_nearest1d and upsample_nearest2d: a gather along each axis that is resized."""
    for axis, extent in enumerate(context.result_shape()):
        current = x.shape[axis]
        if extent != current:
            indices = (np.arange(extent) * current // extent).astype(np.int32)
            x = context.emit("gather", (x, context.new_constant("places", indices)), {"axis": axis})
    return x


@CONVERTERS.register("upsample_bilinear2d")
def convert_upsample_bilinear(
    context: OpContext, x: Value, *, align_corners: bool, scale_factors: Floats = ()
) -> Value:
    """Convert upsample_bilinear2d: the weighted sum of two neighbours along each spatial axis."""
    result_shape = context.result_shape()
    tables = [
        _linear_interpolation_indices_and_weights(
            x.shape[axis], result_shape[axis], align_corners, scale_factors[axis - 2] if scale_factors else None
        )
        for axis in (2, 3)
    ]
    names = [context.new_constant("places", indices) for indices, _ in tables]
    names += [context.new_constant("shares", weights) for _, weights in tables]
    return context.emit("resample", (x, *names), {"axes": (2, 3)})


def _linear_interpolation_indices_and_weights(
    in_extent: int, out_extent: int, aligns_corners: bool, scale_factor: float | None
) -> tuple[Array, Array]:
    """Return, for every output element along an axis, the indices and weights of the two neighbouring input elements.

    Both arrays have the shape (``out_extent``, 2). ``scale_factor``: the scale factor that the program gives, or
    None."""
    if aligns_corners:
        source = np.arange(out_extent) * ((in_extent - 1) / max(out_extent - 1, 1))
    else:
        step = 1 / scale_factor if scale_factor else in_extent / out_extent
        source = np.maximum((np.arange(out_extent) + 0.5) * step - 0.5, 0)
    first = np.minimum(np.floor(source).astype(np.int64), in_extent - 1)
    weight = source - first
    indices = np.stack([first, np.minimum(first + 1, in_extent - 1)], axis=1).astype(np.int32)
    return indices, np.stack([1 - weight, weight], axis=1).astype(np.float32)


# ---- Converters of quantisation.


@CONVERTERS.register("quantize_per_tensor")
def convert_quantize_per_tensor(
    context: OpContext,
    x: Value,
    scale: Argument,
    zero_point: Argument,
    *,
    quant_min: int,
    quant_max: int,
    dtype: Argument,
) -> Value:
    """Convert quantize_per_tensor, with one scale and one zero point."""
    scales, zero_points = (_to_number(scale),), (int(_to_number(zero_point)),)
    return _emit_quantize(context, x, scales, zero_points, None, dtype, quant_min, quant_max)


@CONVERTERS.register("quantize_per_channel")
def convert_quantize_per_channel(
    context: OpContext,
    x: Value,
    scales: Array,
    zero_points: Array,
    *,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: Argument,
) -> Value:
    """Convert quantize_per_channel, with a scale and a zero point for each channel."""
    return _emit_quantize(context, x, _to_floats(scales), _to_integers(zero_points), axis, dtype, quant_min, quant_max)


def _emit_quantize(
    context: OpContext,
    x: Value,
    scales: Floats,
    zero_points: Ints,
    axis: int | None,
    dtype: Argument,
    quant_min: int,
    quant_max: int,
) -> Value:
    """Emit the quantisation of ``x``; refuse it unless ``quant_min`` and ``quant_max`` are the limits of ``dtype``."""
    out_dtype = str(dtype).removeprefix("torch.")
    info = np.iinfo(out_dtype)
    if (quant_min, quant_max) != (info.min, info.max):
        context.refuse(
            f"quant_min, quant_max: got {quant_min}..{quant_max}, expected {info.min}..{info.max} for {out_dtype}",
            "quantise to the whole range of the dtype",
        )
    attrs: Mapping[str, Attr] = {
        "scale": scales, "zero_point": zero_points, "axis": axis, "out_dtype": out_dtype, "rounding": Rounding.EVEN
    }  # fmt: skip
    return context.emit("quantize", (x,), attrs)


@CONVERTERS.register("dequantize_per_tensor")
def convert_dequantize_per_tensor(context: OpContext, x: Value, scale: Argument, zero_point: Argument) -> Value:
    """Convert dequantize_per_tensor, with one scale and one zero point."""
    attrs: Mapping[str, Attr] = {
        "scale": (_to_number(scale),), "zero_point": (int(_to_number(zero_point)),), "axis": None
    }  # fmt: skip
    return context.emit("dequantize", (x,), attrs)


@CONVERTERS.register("dequantize_per_channel")
def convert_dequantize_per_channel(
    context: OpContext, x: Value, scales: Array, zero_points: Array | None, *, axis: int
) -> Value:
    """Convert dequantize_per_channel, with a scale and a zero point for each channel; absent zero points are 0."""
    scale = _to_floats(scales)
    zero_point = (0,) * len(scale) if zero_points is None else _to_integers(zero_points)
    return context.emit("dequantize", (x,), {"scale": scale, "zero_point": zero_point, "axis": axis})


@CONVERTERS.register("dequantize_affine")
def convert_dequantize_affine(
    context: OpContext,
    input: Argument,
    scale: Argument,
    zero_point: Argument = None,
    *,
    block_size: Ints,
    output_dtype: Argument = None,
) -> Value:
    """Convert torchao's dequantize_affine, (input - zero_point) * scale with a scale for each block of ``block_size`` elements.

    Constant integers with constant scales remain integers, if the blocks are rows, whole or in groups of neighbours."""
    x = context.convert_to_value(input)
    if output_dtype is not None and str(output_dtype) != "torch.float32":
        context.refuse(f"output_dtype: got {output_dtype}, expected torch.float32", "dequantise to float32")
    if len(block_size) != x.rank or any(
        block < 1 or extent % block for extent, block in zip(x.shape, block_size, strict=True)
    ):
        context.broken(f"block_size: got {block_size} for data of shape {x.shape}, expected divisors of the extents")
    counts = tuple(extent // block for extent, block in zip(x.shape, block_size, strict=True))
    for name, parameter in (("scale", scale), ("zero_point", zero_point)):
        if parameter is not None:
            shape = tuple(context.shape(parameter) if isinstance(parameter, str) else parameter.shape)
            if math.prod(shape) != math.prod(counts):
                context.broken(
                    f"{name}: got shape {shape}, expected {math.prod(counts)} numbers for block_size {block_size}"
                )
    split_axes = [axis for axis, count in enumerate(counts) if count > 1]
    last = split_axes[-1] if split_axes else -1
    # Groups are contiguous if the axes before the last split one have blocks of one element, and those behind it one block.
    is_grouped = all(block == 1 for block in block_size[: max(last, 0)])
    are_constant = not isinstance(scale, str) and not isinstance(zero_point, str)
    # A zero point may be a float between two integers.
    if are_constant and is_grouped and (zero_point is None or bool((zero_point == zero_point.round()).all())):
        scales = _to_floats(scale.flatten())
        zero_points = () if zero_point is None else _to_integers(zero_point.flatten())
        attrs: Mapping[str, Attr] = {"scale": scales, "zero_point": zero_points or (0,) * len(scales)}
        if len(scales) == 1 or (len(split_axes) == 1 and block_size[last] == 1):
            axis = None if len(scales) == 1 else last
            return context.emit("dequantize", (x,), {**attrs, "axis": axis})
        groups = context.reshape(x, (len(scales), math.prod(x.shape) // len(scales)))
        return context.reshape(context.emit("dequantize", (groups,), {**attrs, "axis": 0}), x.shape)
    if any(block not in (1, extent) for block, extent in zip(block_size, x.shape, strict=True)):
        context.refuse(
            f"block_size: got {block_size} for data of shape {x.shape}, expected one block or single elements along each axis",
            "use PerGroup for weights, and PerToken, PerRow or PerTensor for data",
        )
    integers = context.cast(x, "float32")
    if zero_point is not None:
        zeros = context.reshape(context.cast(context.convert_to_value(zero_point), "float32"), counts)
        integers = context.emit("sub", (integers, context.broadcast_to(zeros, x.shape)))
    factors = context.reshape(context.convert_to_value(scale), counts)
    return context.emit("mul", (integers, context.broadcast_to(factors, x.shape)))


def _to_number(argument: Argument) -> float:
    """Return a number, or the only element of a tensor that is known at compile time."""
    return float(argument.item() if hasattr(argument, "item") else argument)


def _to_floats(scales: Array) -> Floats:
    """Return scales, rounded to float32."""
    return tuple(float(np.float32(scale)) for scale in scales.tolist())


def _to_integers(zero_points: Array) -> Ints:
    """Return zero points as integers."""
    return tuple(int(zero_point) for zero_point in zero_points.tolist())


# ---- Converters of normalisations.
#
# Some ATen operators return the normalised tensor and two statistics. The statistics are used only in training; they become "".


@CONVERTERS.register("_native_batch_norm_legit_no_training")
def convert_batch_norm(
    context: OpContext,
    x: Value,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    *,
    eps: float,
) -> tuple[str, str, str]:
    """Convert batch_norm in evaluation mode: multiply each channel by a factor and add an offset."""
    factor = 1 / np.sqrt(running_var.astype(np.float64) + eps)
    factor = factor if weight is None else factor * weight
    offset = (0 if bias is None else bias) - running_mean * factor
    return _emit_channel_scale_and_offset(context, x, factor, offset), "", ""


@CONVERTERS.register("_native_batch_norm_legit")
def convert_instance_norm(
    context: OpContext, x: Value, weight: Array | None, bias: Array | None, *, eps: float
) -> tuple[str, str, str]:
    """Convert _native_batch_norm_legit without running statistics: normalise every channel by its own mean and
    variance."""
    normalised = _emit_normalisation_over_axes(context, x, (0, *range(2, x.rank)), eps)
    return _emit_weight_and_bias(context, normalised, weight, bias), "", ""


@CONVERTERS.register("native_group_norm")
def convert_group_norm(
    context: OpContext, x: Value, weight: Array | None, bias: Array | None, *, group: int, eps: float
) -> tuple[str, str, str]:
    """Convert native_group_norm: normalise every group of channels, then multiply each channel by a factor and add an
    offset."""
    rows = context.reshape(x, (x.shape[0] * group, math.prod(x.shape[1:]) // group))
    normalised = context.reshape(_emit_normalisation_over_axes(context, rows, (1,), eps), x.shape)
    return _emit_weight_and_bias(context, normalised, weight, bias), "", ""


def _emit_weight_and_bias(context: OpContext, x: Value, weight: Array | None, bias: Array | None) -> Value:
    """Emit x * weight + bias, with one weight and one bias for each channel; ``x`` itself if there is neither."""
    if weight is None and bias is None:
        return x
    ones = np.ones(x.shape[1])
    return _emit_channel_scale_and_offset(
        context, x, ones if weight is None else weight, 0 * ones if bias is None else bias
    )


def _emit_channel_scale_and_offset(context: OpContext, x: Value, factor: Array, offset: Array) -> Value:
    """Emit x * factor + offset, with one factor and one offset for each channel (axis 1)."""
    shape = (-1, *(1,) * (x.rank - 2))
    names = [
        context.new_constant(stem, numbers.astype(np.float32).reshape(shape))
        for stem, numbers in (("factor", factor), ("offset", np.asarray(offset)))
    ]
    return context.emit("add", (context.emit("mul", (x, names[0])), names[1]))


@CONVERTERS.register("layer_norm")
def convert_layer_norm(
    context: OpContext,
    x: Value,
    weight: Argument = None,
    bias: Argument = None,
    *,
    normalized_shape: Ints,
    eps: float = 1e-5,
) -> Value:
    """Convert layer_norm over the last axes: (x - mean) / sqrt(var + eps) * weight + bias."""
    axes = tuple(range(x.rank - len(normalized_shape), x.rank))
    normalised = _emit_normalisation_over_axes(context, x, axes, eps)
    for op, operand in (("mul", weight), ("add", bias)):
        if operand is not None:
            normalised = context.emit(op, (normalised, context.convert_to_value(operand)))
    return normalised


@CONVERTERS.register("native_layer_norm")
def convert_native_layer_norm(
    context: OpContext, x: Value, weight: Argument, bias: Argument, *, normalized_shape: Ints, eps: float
) -> tuple[str, str, str]:
    """Convert native_layer_norm, which returns statistics, too."""
    return convert_layer_norm(context, x, weight, bias, normalized_shape=normalized_shape, eps=eps), "", ""


def _emit_normalisation_over_axes(context: OpContext, x: Value, axes: Ints, eps: float) -> Value:
    """Emit (x - mean) / sqrt(var + eps), with mean and variance over ``axes``."""
    over: Mapping[str, Attr] = {"axes": axes, "keepdims": True}
    centred = context.emit("sub", (x, context.emit("mean", (x,), over)))
    spread = context.emit("mean", (context.emit("mul", (centred, centred)),), over)
    scale = context.emit("rsqrt", (context.emit("add", (spread, context.convert_to_value(eps))),))
    return context.emit("mul", (centred, scale))


# ---- Converters of ATen's recurrent layers (``lstm``, ``gru``, ``rnn_tanh``, ``rnn_relu``). Several layers and both
# directions are supported.
#
# A weight matrix contains the rows of all gates, in the order input, forget, cell, output for LSTM, and reset,
# update, new for GRU.


@frozen
class RecurrentAttributes:
    """Attributes of all recurrent layers. The overload for packed sequences has no ``batch_first``."""

    has_biases: bool
    num_layers: int
    dropout: float
    train: bool
    bidirectional: bool
    batch_first: bool = False


def _make_recurrent_converter(op: str, cell_attrs: Mapping[str, Attr]) -> Callable[..., tuple[str, ...]]:
    """Return the converter of recurrent layers that become microc's operator ``op`` with ``cell_attrs``."""

    def convert_recurrent(
        context: OpContext,
        x: Value | None,
        batch_sizes: Argument | None,
        hx: Argument,
        params: Argument,
        *,
        attributes: RecurrentAttributes,
    ) -> tuple[str, ...]:
        if x is None or batch_sizes is not None:
            context.refuse("packed sequences are not supported", "export the model with padded sequences")
        if attributes.train and attributes.dropout:
            context.refuse("dropout in training mode is not supported", "export the model in eval mode")
        directions = 2 if attributes.bidirectional else 1
        weights = _read_direction_weights(context, params, attributes.num_layers * directions, attributes.has_biases)
        data: str = _swap_batch_and_time(context, x) if attributes.batch_first else x
        stacked_states = [context.convert_to_value(value) for value in (hx if op == "lstm" else (hx,))]
        last_states: list[tuple[str, ...]] = []
        for first in range(0, len(weights), directions):
            rows = []
            for k in range(first, first + directions):
                backwards = k % directions == 1
                states = [_slice_direction(context, value, k) for value in stacked_states]
                attrs = {**cell_attrs, "time_major": True, "backwards": backwards}
                result, *last = _emit_direction(context, op, data, weights[k], states, attrs)
                rows.append(context.emit("reverse", (result,), {"axes": (0,)}) if backwards else result)
                last_states.append(tuple(last))
            data = rows[0] if directions == 1 else context.emit("concat", rows, {"axis": 2})
        last_stacked = [_stack_states(context, values) for values in zip(*last_states, strict=True)]
        return (_swap_batch_and_time(context, data) if attributes.batch_first else data, *last_stacked)

    return convert_recurrent


def _read_direction_weights(
    context: OpContext, params: Sequence[Any], direction_count: int, has_biases: bool
) -> list[Sequence[Array]]:
    """Return the weights of every direction of every layer: layer by layer, in each layer the forward direction first.

    They are the weights of the data and of the state, then the bias of each if there are some, then the projection of an
    LSTM that has one."""
    if any(isinstance(x, str) and x not in context.builder.consts for x in params):
        context.refuse("params: got computed weights, expected constants", "make them parameters of the module")
    arrays = [context.builder.consts[x] if isinstance(x, str) else context.to_numpy_array(x) for x in params]
    count = len(arrays) // direction_count
    if len(arrays) % direction_count or count - (4 if has_biases else 2) not in (0, 1):
        context.refuse(
            f"params: got {len(arrays)} arrays, expected weights for each of {direction_count} layers and directions",
            "export the module again with torch.export.export",
        )
    return [arrays[k : k + count] for k in range(0, len(arrays), count)]


def _emit_direction(
    context: OpContext,
    op: str,
    data: str,
    weights: Sequence[Array],
    states: Sequence[str],
    attrs: Mapping[str, Attr],
) -> tuple[str, ...]:
    """Emit one direction of one layer over ``data`` (T, N, C); return the rows and the last states."""
    matrices, rest = list(weights[:2]), list(weights[2:])
    projection = [rest.pop()] if len(rest) % 2 else []
    # A GRU multiplies the bias of the state's product by the reset gate; all others only add both biases.
    biases = rest if op == "gru" or not rest else [rest[0] + rest[1]]
    names = ["bias", "recurrent_bias"][: len(biases)] + ["projection"] * len(projection)
    constants = [context.new_constant("weight", array) for array in matrices]
    optional = [context.new_constant("weight", array) for array in (*biases, *projection)]
    attrs = {**attrs, "optional": tuple(names)}
    return context.builder.emit_all(op, (data, *constants, *states, *optional), attrs)


def _swap_batch_and_time(context: OpContext, value: str) -> Value:
    """Swap the first two axes, batch and time, of ``value`` (A, B, C)."""
    first, second, width = context.shape(value)
    if min(first, second) == 1:
        return context.reshape(value, (second, first, width))
    return context.emit("transpose", (value,), {"axes": (1, 0, 2)})


def _slice_direction(context: OpContext, stacked_states: Value, direction_index: int) -> Value:
    """Return the initial state (N, U) of one direction of one layer.

    ``stacked_states``: states of all directions of all layers, (layers * directions, N, U)."""
    if stacked_states.constant is not None:
        return context.new_constant("state", stacked_states.constant[direction_index])
    own = context.slice_axis(stacked_states, 0, direction_index, direction_index + 1)
    return context.reshape(own, stacked_states.shape[1:])


def _stack_states(context: OpContext, values: Sequence[str]) -> Value:
    """Stack states (N, U) along a new first axis; return the stacked value."""
    unsqueezed = [context.reshape(value, (1, *context.shape(value))) for value in values]
    return unsqueezed[0] if len(unsqueezed) == 1 else context.emit("concat", unsqueezed, {"axis": 0})


RECURRENT_CELLS: Mapping[str, tuple[str, Mapping[str, Attr]]] = {
    "gru": ("gru", {"gates": "rzn", "linear_before_reset": True}),
    "lstm": ("lstm", {}),
    "rnn_relu": ("rnn", {"activations": ("relu",)}),
    "rnn_tanh": ("rnn", {}),
}
"""microc's operator and its attributes, by ATen's operator."""

for _name, (_op, _cell_attrs) in RECURRENT_CELLS.items():
    CONVERTERS.register(_name)(_make_recurrent_converter(_op, _cell_attrs))
