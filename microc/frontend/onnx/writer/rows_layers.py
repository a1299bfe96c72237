# SPDX-License-Identifier: Apache-2.0
"""Export of convolutions, pools, matrix products, normalisations and quantisation to ONNX."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from string import ascii_letters
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.frontend.onnx.writer.context import QUANTISED, NodeContext, OpWriter
from microc.graph.ir import Quant

# ---- Convolutions. ONNX has channels first: data, weights and results with channels last are transposed.


def write_conv2d(context: NodeContext) -> None:
    """Write ``conv2d`` of float or quantised data as Conv."""
    _refuse_legalised_form(context)
    if context.attr("pad_value"):
        context.refuse(
            f"pad_value is {context.attr('pad_value')}, expected 0 as in ONNX's Conv",
            "export the graph before any compiler pass changes it",
        )
    if context.attr("layout") == "NHWC":
        context = context.with_channels_first()
    inputs = [context.operand_name(0), context.operand_name(1), *get_bias_names(context)]
    context.write_result(
        "Conv",
        *inputs,
        strides=context.attr("strides"),
        pads=context.attr("padding"),
        dilations=context.attr("dilation"),
        group=context.attr("groups"),
    )


def get_bias_names(context: NodeContext) -> tuple[str, ...]:
    """Return the ONNX name of the bias in a tuple, which is empty if the layer has no bias.

    The bias of a quantised layer is written as int32, with the scale of the data times that of the weights. TFLite's
    layers on 16-bit data have int64 biases; UnsupportedError is raised if such a bias exceeds 32 bits."""
    if not context.has_operand(2):
        return ()
    data, builder, type_ = context.get_constant_data(2), context.builder, context.operand_type(2)
    if data is None or not context.is_quantised:
        name = replace(context, is_channels_first=False).operand_name(2)
        return (
            name
            if len(type_.shape) == 1
            else context.emit("Reshape", name, context.share_int64_initializer(type_.size)),
        )
    scales, weights = context.operand_type(0).quant, context.operand_type(1).quant
    assert scales is not None and weights is not None
    scales_of_sums = tuple(scales.scale[0] * scale for scale in weights.scale)
    flat = data.reshape(-1)
    low, high = dtypes.int_range("int32")
    if flat.size and not low <= flat.min() <= flat.max() <= high:
        context.refuse(
            f"bias: got {flat.min()}..{flat.max()}, expected {low}..{high} as in ONNX's quantised layers",
            "save the network as .mcg instead",
        )
    name = builder.add_initializer(context.node.inputs[2], flat.astype(np.int32))
    quant = Quant(scales_of_sums, (0,) * len(scales_of_sums), None if weights.axis is None else 0)
    return (builder.emit_dequantize(name, "int32", quant, quant.axis, context.make_unique_name("bias")),)


def _refuse_legalised_form(context: NodeContext) -> None:
    """Raise UnsupportedError for a layer on integers without quantisation, which only compiler passes make."""
    if context.attr("open") or not (context.is_quantised or dtypes.is_float(context.operand_dtype())):
        context.refuse(
            f"{context.node.op}: got integers without quantisation, expected floats or quantised data",
            "export the graph before any compiler pass changes it",
        )


def write_conv2d_transpose(context: NodeContext) -> None:
    """Write ``conv2d_transpose`` as ConvTranspose.

    Negative padding at the end of an axis becomes ``output_padding``."""
    _refuse_legalised_form(context)
    top, left, bottom, right = context.attr("padding")
    strides, extra_padding = context.attr("strides"), (max(-bottom, 0), max(-right, 0))
    steps = map(max, strides, context.attr("dilation"))
    if any(extra >= step for extra, step in zip(extra_padding, steps, strict=True)):
        context.refuse(
            f"output_padding is {extra_padding}, expected less than stride or dilation",
            "save the network as .mcg instead",
        )
    context = context.with_channels_first()
    context.write_result(
        "ConvTranspose",
        context.operand_name(0),
        _write_transposed_weights(context),
        *get_bias_names(context),
        strides=strides,
        pads=(top, left, max(bottom, 0), max(right, 0)),
        dilations=context.attr("dilation"),
        output_padding=extra_padding,
        group=context.attr("groups"),
    )


def _write_transposed_weights(context: NodeContext) -> str:
    """Write the weights (O, H, W, C / groups) in the layout of ConvTranspose, (C, O / groups, H, W); return their name.

    Quantised weights with scales per channel and several groups are written dequantised, because their scales do not
    differ along a single axis of the new layout."""
    data, type_, groups = context.get_constant_data(1), context.operand_type(1), context.attr("groups")
    # data is None: the weights are computed by the network
    if data is None:
        if groups > 1:
            context.refuse(
                "the weights of a grouped convolution are computed at run time, expected constants",
                "make the weights constant",
            )
        last = replace(context, is_channels_first=False)
        return context.emit("Transpose", last.operand_name(1), perm=(3, 0, 1, 2))
    outputs, height, width, depth = data.shape

    def reorder_weights(weights: np.ndarray) -> np.ndarray:
        grouped = weights.reshape(groups, outputs // groups, height, width, depth)
        return grouped.transpose(0, 4, 1, 2, 3).reshape(groups * depth, outputs // groups, height, width)

    quant = type_.quant
    if not context.is_quantised or quant is None or not type_.is_quantised:
        return context.add_initializer(reorder_weights(data), "weight")
    if quant.axis is not None and groups > 1:
        shape = (outputs, 1, 1, 1)
        centred = data.astype(np.int64) - np.array(quant.zero_point).reshape(shape)
        return context.add_initializer(
            reorder_weights((centred * np.array(quant.scale).reshape(shape)).astype(np.float32)), "weight"
        )
    name = context.add_initializer(reorder_weights(data), "weight")
    axis = None if quant.axis is None else 1
    return context.builder.emit_dequantize(name, type_.dtype, quant, axis, context.make_unique_name("weight"))


def make_convolution_writer(onnx_op_type: str) -> OpWriter:
    """Make the function that writes a convolution over any number of axes as ``onnx_op_type``.

    ``onnx_op_type``: Conv or ConvTranspose. Channels are first in microc's operator and in ONNX's."""

    def write_convolution(context: NodeContext) -> None:
        context.require_real_operands()
        inputs = [context.operand_name(k) for k in range(len(context.node.inputs))]
        context.write_result(
            onnx_op_type,
            *inputs,
            strides=context.attr("strides"),
            pads=context.attr("padding"),
            dilations=context.attr("dilation"),
            group=context.attr("groups"),
        )

    return write_convolution


CONVOLUTION_WRITERS: Mapping[str, OpWriter] = {
    "conv2d": write_conv2d,
    "conv2d_transpose": write_conv2d_transpose,
    "convolution": make_convolution_writer("Conv"),
    "convolution_transpose": make_convolution_writer("ConvTranspose"),
}


# ---- Pools. ONNX's pools over two axes have channels first.


def write_max_pool(context: NodeContext) -> None:
    """Write ``max_pool2d`` as MaxPool over the rows and columns of images."""
    context = _make_pool_context(context)
    context.write_result("MaxPool", context.operand_name(), **_get_image_pool_attributes(context))


def write_average_pool(context: NodeContext) -> None:
    """Write ``avg_pool2d`` as AveragePool over the rows and columns of images."""
    context = _make_pool_context(context)
    context.require_real_operands()
    include_padding = int(context.attr("count_include_pad"))
    context.write_result(
        "AveragePool", context.operand_name(), **_get_image_pool_attributes(context), count_include_pad=include_padding
    )


def _make_pool_context(context: NodeContext) -> NodeContext:
    """Return the context for a pool with channels first, the only layout that ONNX's pools support."""
    return context.with_channels_first() if context.attr("layout") == "NHWC" else context


def _get_image_pool_attributes(context: NodeContext) -> Mapping[str, Any]:
    """Return kernel, strides and padding of a pool over two axes as attributes of the ONNX operator.

    Padding at the end is limited to what the windows cover, because runtimes reject padding of a kernel's extent or
    more."""
    kernel, strides, padding = (context.attr(name) for name in ("kernel", "strides", "padding"))
    first = 2 if context.attr("layout") == "NCHW" else 1
    extents = zip(
        context.operand_type().shape[first:], context.result_type.shape[first:], kernel, strides, padding, strict=False
    )
    after = [max((out - 1) * stride + taps - size - before, 0) for size, out, taps, stride, before in extents]
    return {"kernel_shape": kernel, "strides": strides, "pads": (*padding[:2], *after)}


def write_window_max(context: NodeContext) -> None:
    """Write ``window_max`` as MaxPool over any number of axes."""
    context.write_result("MaxPool", context.operand_name(), **_get_window_pool_attributes(context))


def write_window_sum(context: NodeContext) -> None:
    """Write ``window_sum`` as an AveragePool that includes padding, times the number of elements of the window."""
    context.require_real_operands()
    mean = context.emit(
        "AveragePool", context.operand_name(), **_get_window_pool_attributes(context), count_include_pad=1
    )
    context.write_result("Mul", mean, context.share_scalar_initializer(prod(context.attr("kernel"))))


def _get_window_pool_attributes(context: NodeContext) -> Mapping[str, Any]:
    """Return kernel, strides, padding and dilation of a pool over any number of axes, as ONNX attributes."""
    dilation = context.attr("dilation")
    return {
        "kernel_shape": context.attr("kernel"),
        "strides": context.attr("strides"),
        "pads": context.attr("padding"),
        "dilations": dilation if set(dilation) != {1} else None,
    }


POOLING_WRITERS: Mapping[str, OpWriter] = {
    "avg_pool2d": write_average_pool,
    "max_pool2d": write_max_pool,
    "window_max": write_window_max,
    "window_sum": write_window_sum,
}


# ---- Products of matrices.

_BYTES = ("int8", "uint8")


def write_dense(context: NodeContext) -> None:
    """Write ``dense``, with data (M, K) and weights (N, K), as Gemm.

    Integers without quantisation (which do not represent reals) need an integer matrix product instead and, if there is
    a bias, an Add."""
    if context.is_quantised or dtypes.is_float(context.operand_dtype()):
        inputs = [context.operand_name(0), context.operand_name(1), *get_bias_names(context)]
        context.write_result("Gemm", *inputs, transB=1)
        return
    weight = context.emit("Transpose", context.operand_name(1), perm=(1, 0))
    code, operands = _get_integer_matmul_op_type(context), (context.operand_name(0), weight)
    if context.has_operand(2):
        context.write_result("Add", context.emit(code, *operands), *get_bias_names(context))
    else:
        context.write_result(code, *operands)


def _get_integer_matmul_op_type(context: NodeContext) -> str:
    """Return the ONNX operator type for a matrix product of integers without quantisation.

    It is MatMulInteger for 8-bit operands and int32 results, and MatMul for operands and results of the same dtype of
    32 or 64 bits."""
    operand_dtypes, sums = {context.operand_dtype(0), context.operand_dtype(1)}, context.result_type.dtype
    if operand_dtypes <= {*_BYTES} and sums == "int32":
        return "MatMulInteger"
    if operand_dtypes != {sums} or dtypes.nbytes(sums) < 4:
        got = f"operands of {' and '.join(sorted(operand_dtypes))} and a result of {sums}"
        context.refuse(
            f"{context.node.op}: got {got}, expected 8-bit operands and an int32 result, or one dtype of 32 or 64 bits for all",
            "cast the operands to int32 or float32",
        )
    return "MatMul"


def write_matmul(context: NodeContext) -> None:
    """Write ``matmul`` as MatMul, or as MatMulInteger for 8-bit integers that do not represent reals.

    Operands are transposed first if the attributes ``axes_a`` and ``axes_b`` require it."""
    sides = []
    for position, name in enumerate("ab"):
        axes = context.attr(f"axes_{name}")
        side = context.operand_name(position)
        sides.append(context.emit("Transpose", side, perm=axes) if axes else side)
    if context.is_quantised or dtypes.is_float(context.operand_dtype()):
        context.write_result("MatMul", *sides)
        return
    code, zeros = _get_integer_matmul_op_type(context), [context.attr(f"zero_point_{name}") for name in "ab"]
    if not any(zeros):
        context.write_result(code, *sides)
        return
    if code == "MatMul":
        context.refuse(
            f"matmul: got {context.operand_dtype()} operands with zero points, expected int8 or uint8",
            "subtract the zero points before the operator",
        )
    points = [np.array(zero, dtypes.to_numpy(context.operand_dtype(k))) for k, zero in enumerate(zeros)]
    context.write_result(code, *sides, *(context.add_initializer(point, "zero_point") for point in points))


def write_einsum(context: NodeContext) -> None:
    """Write ``einsum`` as Einsum; numeric labels of axes become letters of the equation."""
    inputs, output = context.attr("inputs"), context.attr("output")
    numbers = dict.fromkeys(label for labels in inputs for label in labels)
    if len(numbers) > len(ascii_letters):
        context.refuse(
            f"einsum: got {len(numbers)} labels, expected at most {len(ascii_letters)} (letters)",
            "save the network as .mcg instead",
        )
    letters = dict(zip(numbers, ascii_letters, strict=False))
    terms = ",".join("".join(letters[label] for label in labels) for labels in inputs)
    equation = f"{terms}->{''.join(letters[label] for label in output)}"
    operands = [context.operand_name(k) for k in range(len(inputs))]
    context.write_result("Einsum", *operands, equation=equation)


MATRIX_WRITERS: Mapping[str, OpWriter] = {"dense": write_dense, "einsum": write_einsum, "matmul": write_matmul}


# ---- Softmax and normalisations along the last axis.

MIN_NORM = 1e-6
"""Minimum of the norm by which ``l2_normalize`` divides, which avoids division by zero."""


def write_softmax(context: NodeContext) -> None:
    """Write ``softmax`` as Softmax of the data times ``beta``.

    A quantised softmax is followed by a Sum of one operand. It prevents ONNX Runtime from fusing the softmax to
    QLinearSoftmax, whose results are wrong by several quantisation steps if the scale of the data is large."""
    data, beta = context.operand_name(), float(context.attr("beta"))
    scaled_data = data if beta == 1.0 else context.emit("Mul", data, context.share_scalar_initializer(beta))
    if context.is_quantised:
        softmax_ = context.emit("Softmax", scaled_data, axis=context.attr("axis"))
        context.write_result("Sum", softmax_)
    else:
        context.write_result("Softmax", scaled_data, axis=context.attr("axis"))


def write_log_softmax(context: NodeContext) -> None:
    """Write ``log_softmax`` as LogSoftmax over the last axis."""
    context.write_result("LogSoftmax", context.operand_name(), axis=-1)


def write_layer_norm(context: NodeContext) -> None:
    """Write ``layer_norm`` as LayerNormalization with a scale of ones."""
    context.require_real_operands()
    ones = context.add_initializer(np.ones(context.operand_type().shape[-1:], np.float32), "scale")
    context.write_result("LayerNormalization", context.operand_name(), ones, epsilon=context.attr("epsilon"))


def write_l2_normalize(context: NodeContext) -> None:
    """Write ``l2_normalize`` as x / max(norm, 1e-6), with the L2 norm over the last axis."""
    data = context.operand_name()
    norm = context.emit("ReduceL2", data, context.share_int64_initializer(-1), keepdims=1)
    context.write_result("Div", data, context.emit("Max", norm, context.share_scalar_initializer(MIN_NORM)))


NORMALISATION_WRITERS: Mapping[str, OpWriter] = {
    "l2_normalize": write_l2_normalize,
    "layer_norm": write_layer_norm,
    "log_softmax": write_log_softmax,
    "softmax": write_softmax,
}


# ---- Explicit quantize and dequantize nodes.


def write_quantize(context: NodeContext) -> None:
    """Write ``quantize`` as QuantizeLinear; an operand that is already quantised is dequantised first."""
    node, builder, dtype = context.node, context.builder, context.attr("out_dtype")
    if dtype not in QUANTISED:
        context.refuse(
            f"quantize: got out_dtype {dtype}, expected {', '.join(QUANTISED)}", "quantise the network to 8 or 16 bits"
        )
    quant = Quant(context.attr("scale"), context.attr("zero_point"), context.attr("axis"))
    first = quant.axis is None and context.in_layout_of_operands().is_channels_first
    data = builder.get_onnx_name(node.inputs[0], context.operand_type().is_quantised, first)
    parameters = builder.share_scale_and_zero_point(quant, dtype, node.outputs[0])
    quantised_name = builder.make_onnx_name(node.outputs[0], first)
    builder.record_onnx_name(
        node.outputs[0],
        builder.emit("QuantizeLinear", [data, *parameters], [quantised_name], axis=quant.axis),
        is_channels_first=first,
    )


def write_dequantize(context: NodeContext) -> None:
    """Record the operand and scales of ``dequantize``; DequantizeLinear is written where its result is first read."""
    quant = Quant(context.attr("scale"), context.attr("zero_point"), context.attr("axis"))
    context.builder.dequantised_sources[context.node.outputs[0]] = (context.node.inputs[0], quant)


QUANTISED_WRITERS: Mapping[str, OpWriter] = {"dequantize": write_dequantize, "quantize": write_quantize}
