"""Export of convolutions, pools, matrix products, normalisations and quantisation to ONNX.

A row is the function that writes one operator of microc's graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from string import ascii_letters
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.frontend.onnx.writer.context import QUANTISED, Application, Row, quantised_type
from microc.graph.ir import Quant

# ---- Convolutions. ONNX has channels first: data, weights and results with channels last are transposed.


def conv2d(application: Application) -> None:
    """Write ``conv2d`` of float or quantised data as Conv."""
    _refuse_legalised_form(application)
    if application.attr("pad_value"):
        application.refuse("padding that is not zero", "write the graph as it was read, before any pass")
    if application.attr("layout") == "NHWC":
        application = application.with_channels_first()
    inputs = [application.operand(0), application.operand(1), *bias_operand(application)]
    application.result(
        "Conv",
        *inputs,
        strides=application.attr("strides"),
        pads=application.attr("padding"),
        dilations=application.attr("dilation"),
        group=application.attr("groups"),
    )


def bias_operand(application: Application) -> tuple[str, ...]:
    """Return a tuple with the ONNX name of the bias; the tuple is empty if the layer has no bias.

    The bias of a quantised layer is written as int32, with the scale of the data times that of the weights. TFLite's layers on
    16-bit data have int64 biases. UnsupportedError is raised if such a bias exceeds 32 bits.
    """
    if not application.has(2):
        return ()
    data, builder, type_ = application.data(2), application.builder, application.type(2)
    if data is None or not application.quantised:
        name = replace(application, first=False).operand(2)
        return (name if len(type_.shape) == 1 else application.emit("Reshape", name, application.integers(type_.size)),)
    scales, weights = application.type(0).quant, application.type(1).quant
    assert scales is not None and weights is not None
    scales_of_sums = tuple(scales.scale[0] * scale for scale in weights.scale)
    flat = data.reshape(-1)
    low, high = dtypes.int_range("int32")
    if flat.size and not low <= flat.min() <= flat.max() <= high:
        application.refuse("a bias beyond 32 bits", "ONNX's quantised layers have biases of 32 bits")
    name = builder.constant(application.node.inputs[2], flat.astype(np.int32))
    quant = Quant(scales_of_sums, (0,) * len(scales_of_sums), None if weights.axis is None else 0)
    return (builder.dequantize(name, "int32", quant, quant.axis, application.fresh("bias")),)


def _refuse_legalised_form(application: Application) -> None:
    """Raise UnsupportedError for a layer on integers that do not represent reals; only compiler passes make such layers."""
    if application.attr("open") or not (application.quantised or dtypes.is_float(application.dtype())):
        application.refuse(
            f"{application.node.op} of plain integers", "write the graph as it was read, before any pass"
        )


def conv2d_transpose(application: Application) -> None:
    """Write ``conv2d_transpose`` as ConvTranspose.

    Negative padding at the end of an axis becomes ``output_padding``."""
    _refuse_legalised_form(application)
    top, left, bottom, right = application.attr("padding")
    strides, extra_padding = application.attr("strides"), (max(-bottom, 0), max(-right, 0))
    steps = map(max, strides, application.attr("dilation"))
    if any(extra >= step for extra, step in zip(extra_padding, steps, strict=True)):
        application.refuse(f"output_padding {extra_padding}", "ONNX's output_padding is less than stride or dilation")
    application = application.with_channels_first()
    application.result(
        "ConvTranspose",
        application.operand(0),
        _transposed_weights(application),
        *bias_operand(application),
        strides=strides,
        pads=(top, left, max(bottom, 0), max(right, 0)),
        dilations=application.attr("dilation"),
        output_padding=extra_padding,
        group=application.attr("groups"),
    )


def _transposed_weights(application: Application) -> str:
    """Return the ONNX name of the weights (O, H, W, C / groups) in the layout of ConvTranspose, (C, O / groups, H, W).

    Quantised weights with scales per channel and several groups are written dequantised, because their scales do not differ
    along a single axis of the new layout.
    """
    data, type_, groups = application.data(1), application.type(1), application.attr("groups")
    # data is None: the weights are computed by the network
    if data is None:
        if groups > 1:
            application.refuse("computed weights of a grouped convolution", "make them constants")
        last = replace(application, first=False)
        return application.emit("Transpose", last.operand(1), perm=(3, 0, 1, 2))
    outputs, height, width, depth = data.shape

    def reorder(weights: np.ndarray) -> np.ndarray:
        grouped = weights.reshape(groups, outputs // groups, height, width, depth)
        return grouped.transpose(0, 4, 1, 2, 3).reshape(groups * depth, outputs // groups, height, width)

    quant = type_.quant
    if not application.quantised or quant is None or not quantised_type(type_):
        return application.constant(reorder(data), "weight")
    if quant.axis is not None and groups > 1:
        shape = (outputs, 1, 1, 1)
        centred = data.astype(np.int64) - np.array(quant.zero_point).reshape(shape)
        return application.constant(
            reorder((centred * np.array(quant.scale).reshape(shape)).astype(np.float32)), "weight"
        )
    name = application.constant(reorder(data), "weight")
    axis = None if quant.axis is None else 1
    return application.builder.dequantize(name, type_.dtype, quant, axis, application.fresh("weight"))


def convolution(code: str) -> Row:
    """Make the function that writes a convolution over any number of axes as ONNX operator ``code``, Conv or ConvTranspose.

    Channels are first in microc's operator and in ONNX's."""

    def write(application: Application) -> None:
        application.only_floats()
        inputs = [application.operand(k) for k in range(len(application.node.inputs))]
        application.result(
            code,
            *inputs,
            strides=application.attr("strides"),
            pads=application.attr("padding"),
            dilations=application.attr("dilation"),
            group=application.attr("groups"),
        )

    return write


CONVOLUTION_ROWS: Mapping[str, Row] = {
    "conv2d": conv2d,
    "conv2d_transpose": conv2d_transpose,
    "convolution": convolution("Conv"),
    "convolution_transpose": convolution("ConvTranspose"),
}


# ---- Pools. ONNX's pools over two axes have channels first.


def max_pool(application: Application) -> None:
    """Write ``max_pool2d`` as MaxPool over the rows and columns of images."""
    application = _in_channels_first(application)
    application.result("MaxPool", application.operand(), **_pool_attributes(application))


def average_pool(application: Application) -> None:
    """Write ``avg_pool2d`` as AveragePool over the rows and columns of images."""
    application = _in_channels_first(application)
    application.only_floats()
    include_padding = int(application.attr("count_include_pad"))
    application.result(
        "AveragePool", application.operand(), **_pool_attributes(application), count_include_pad=include_padding
    )


def _in_channels_first(application: Application) -> Application:
    """Return the context for a pool with channels first, which is the only layout of ONNX's pools."""
    return application.with_channels_first() if application.attr("layout") == "NHWC" else application


def _pool_attributes(application: Application) -> Mapping[str, Any]:
    """Return kernel, strides and padding of a pool over two axes as attributes of the ONNX operator.

    Padding at the end is limited to what the windows cover, because runtimes reject padding of a kernel's extent or more."""
    kernel, strides, padding = (application.attr(name) for name in ("kernel", "strides", "padding"))
    first = 2 if application.attr("layout") == "NCHW" else 1
    extents = zip(
        application.type().shape[first:], application.result_type.shape[first:], kernel, strides, padding, strict=False
    )
    after = [max((out - 1) * stride + taps - size - before, 0) for size, out, taps, stride, before in extents]
    return {"kernel_shape": kernel, "strides": strides, "pads": (*padding[:2], *after)}


def window_max(application: Application) -> None:
    """Write ``window_max`` as MaxPool over any number of axes."""
    application.result("MaxPool", application.operand(), **_general_pool_attributes(application))


def window_sum(application: Application) -> None:
    """Write ``window_sum`` as AveragePool, with padding included in the average, times the number of elements of the window."""
    application.only_floats()
    mean = application.emit(
        "AveragePool", application.operand(), **_general_pool_attributes(application), count_include_pad=1
    )
    application.result("Mul", mean, application.number(prod(application.attr("kernel"))))


def _general_pool_attributes(application: Application) -> Mapping[str, Any]:
    """Return kernel, strides, padding and dilation of a pool over any number of axes as attributes of the ONNX operator."""
    dilation = application.attr("dilation")
    return {
        "kernel_shape": application.attr("kernel"),
        "strides": application.attr("strides"),
        "pads": application.attr("padding"),
        "dilations": dilation if set(dilation) != {1} else None,
    }


POOLING_ROWS: Mapping[str, Row] = {
    "avg_pool2d": average_pool,
    "max_pool2d": max_pool,
    "window_max": window_max,
    "window_sum": window_sum,
}


# ---- Products of matrices.

_BYTES = ("int8", "uint8")


def dense(application: Application) -> None:
    """Write ``dense``, with data (M, K) and weights (N, K), as Gemm.

    For integers that do not represent reals an integer matrix product and, if there is a bias, an Add are written."""
    if application.quantised or dtypes.is_float(application.dtype()):
        inputs = [application.operand(0), application.operand(1), *bias_operand(application)]
        application.result("Gemm", *inputs, transB=1)
        return
    weight = application.emit("Transpose", application.operand(1), perm=(1, 0))
    code, operands = _integer_product(application), (application.operand(0), weight)
    if application.has(2):
        application.result("Add", application.emit(code, *operands), *bias_operand(application))
    else:
        application.result(code, *operands)


def _integer_product(application: Application) -> str:
    """Return the name of the ONNX operator for a matrix product of integers that do not represent reals.

    It is MatMulInteger for 8-bit operands and int32 results, and MatMul for operands and results of the same dtype of 32 or 64
    bits."""
    operand_dtypes, sums = {application.dtype(0), application.dtype(1)}, application.result_type.dtype
    if operand_dtypes <= {*_BYTES} and sums == "int32":
        return "MatMulInteger"
    if operand_dtypes != {sums} or dtypes.nbytes(sums) < 4:
        application.refuse(
            f"{application.node.op} of {' and '.join(sorted(operand_dtypes))} to {sums}",
            "ONNX multiplies bytes to int32",
        )
    return "MatMul"


def matmul(application: Application) -> None:
    """Write ``matmul`` as MatMul, or as MatMulInteger (with zero points) for 8-bit integers that do not represent reals.

    Operands are transposed first if the attributes ``axes_a`` and ``axes_b`` require it."""
    sides = []
    for position, name in enumerate("ab"):
        axes = application.attr(f"axes_{name}")
        side = application.operand(position)
        sides.append(application.emit("Transpose", side, perm=axes) if axes else side)
    if application.quantised or dtypes.is_float(application.dtype()):
        application.result("MatMul", *sides)
        return
    code, zeros = _integer_product(application), [application.attr(f"zero_point_{name}") for name in "ab"]
    if not any(zeros):
        application.result(code, *sides)
        return
    if code == "MatMul":
        application.refuse(f"matmul of {application.dtype()} less zero points", "ONNX has zero points of bytes")
    points = [np.array(zero, dtypes.to_numpy(application.dtype(k))) for k, zero in enumerate(zeros)]
    application.result(code, *sides, *(application.constant(point, "zero_point") for point in points))


def einsum(application: Application) -> None:
    """Write ``einsum`` as Einsum; numeric labels of axes become letters of the equation."""
    inputs, output = application.attr("inputs"), application.attr("output")
    numbers = dict.fromkeys(label for labels in inputs for label in labels)
    if len(numbers) > len(ascii_letters):
        application.refuse(f"einsum of {len(numbers)} labels", f"ONNX has letters for {len(ascii_letters)}")
    letters = dict(zip(numbers, ascii_letters, strict=False))
    terms = ",".join("".join(letters[label] for label in labels) for labels in inputs)
    equation = f"{terms}->{''.join(letters[label] for label in output)}"
    operands = [application.operand(k) for k in range(len(inputs))]
    application.result("Einsum", *operands, equation=equation)


MATRIX_ROWS: Mapping[str, Row] = {"dense": dense, "einsum": einsum, "matmul": matmul}


# ---- Softmax and normalisations along the last axis.

MIN_NORM = 1e-6
"""Minimum of the norm by which ``l2_normalize`` divides, which avoids division by zero."""


def softmax(application: Application) -> None:
    """Write ``softmax`` as Softmax of the data times ``beta``.

    A quantised softmax is followed by a Sum of one operand. It prevents ONNX Runtime from fusing the softmax to QLinearSoftmax,
    whose results are wrong by several quantisation steps if the scale of the data is large.
    """
    data, beta = application.operand(), float(application.attr("beta"))
    scaled_data = data if beta == 1.0 else application.emit("Mul", data, application.number(beta))
    if application.quantised:
        softmax_ = application.emit("Softmax", scaled_data, axis=application.attr("axis"))
        application.result("Sum", softmax_)
    else:
        application.result("Softmax", scaled_data, axis=application.attr("axis"))


def log_softmax(application: Application) -> None:
    """Write ``log_softmax`` as LogSoftmax over the last axis."""
    application.result("LogSoftmax", application.operand(), axis=-1)


def layer_norm(application: Application) -> None:
    """Write ``layer_norm`` as LayerNormalization with a scale of ones."""
    application.only_floats()
    ones = application.constant(np.ones(application.type().shape[-1:], np.float32), "scale")
    application.result("LayerNormalization", application.operand(), ones, epsilon=application.attr("epsilon"))


def l2_normalize(application: Application) -> None:
    """Write ``l2_normalize`` as x / max(norm, 1e-6), with the L2 norm over the last axis."""
    data = application.operand()
    norm = application.emit("ReduceL2", data, application.integers(-1), keepdims=1)
    application.result("Div", data, application.emit("Max", norm, application.number(MIN_NORM)))


NORMALISATION_ROWS: Mapping[str, Row] = {
    "l2_normalize": l2_normalize,
    "layer_norm": layer_norm,
    "log_softmax": log_softmax,
    "softmax": softmax,
}


# ---- Explicit quantize and dequantize nodes.


def quantize(application: Application) -> None:
    """Write ``quantize`` as QuantizeLinear; an operand that is already quantised is dequantised first."""
    node, builder, dtype = application.node, application.builder, application.attr("out_dtype")
    if dtype not in QUANTISED:
        application.refuse(f"quantisation to {dtype}", "ONNX quantises to 8 and 16 bits")
    quant = Quant(application.attr("scale"), application.attr("zero_point"), application.attr("axis"))
    first = quant.axis is None and application.in_layout_of_operands().first
    data = builder.name(node.inputs[0], quantised_type(application.type()), first)
    parameters = builder.quantization(quant, dtype, node.outputs[0])
    quantised_name = builder.own_name(node.outputs[0], first)
    builder.bind(
        node.outputs[0],
        builder.emit("QuantizeLinear", [data, *parameters], [quantised_name], axis=quant.axis),
        first=first,
    )


def dequantize(application: Application) -> None:
    """Record the operand and scales of ``dequantize``; DequantizeLinear is written when its result is first read."""
    quant = Quant(application.attr("scale"), application.attr("zero_point"), application.attr("axis"))
    application.builder.dequantised[application.node.outputs[0]] = (application.node.inputs[0], quant)


QUANTISED_ROWS: Mapping[str, Row] = {"dequantize": dequantize, "quantize": quantize}
