"""ONNX matrix products, normalisations, transforms, Einsum and Det."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array, is_float
from microc.frontend.graph_builder import GraphBuilder
from microc.frontend.onnx.context import FLOAT, Converter, OpContext, StoredTensor
from microc.frontend.onnx.operators_recurrent import recurrent
from microc.graph.ir import Attr, Graph

# ---- Converters of matrix products, normalisations and softmaxes.


def gemm(application: OpContext) -> None:
    """Gemm: alpha * A' * B' + beta * C. A constant B makes a ``dense`` layer, anything else a ``matmul``."""
    attributes = application.operator.attributes
    alpha, beta = attributes.real("alpha", 1.0), attributes.real("beta", 1.0)
    a, b = application.operand(0), application.operand(1)
    if len(application.type(a).shape) != 2 or len(application.type(b).shape) != 2:
        shapes = f"{application.type(a).shape} and {application.type(b).shape}"
        application.broken(f"got matrices of shapes {shapes}, expected two axes each")
    if attributes.flag("transA"):
        a = application.emit("transpose", (a,), {"axes": (1, 0)})
    weight = application.builder.stored_constant(b)
    if weight is None or (alpha != 1.0 and weight.quant is not None):
        if attributes.flag("transB"):
            b = application.emit("transpose", (b,), {"axes": (1, 0)})
        product = multiply_by_number(application, application.emit("matmul", (a, b)), alpha)
        write_sum_with_c(application, product, beta)
        return
    if not attributes.flag("transB"):
        weight = weight.transpose((1, 0))
    if alpha != 1.0:
        weight = StoredTensor((weight.data * np.float32(alpha)).astype(np.float32))
    bias = _gemm_bias(application, weight.data.shape[0], beta)
    operands = [a, application.store(f"{application.output()}_weight", weight)]
    if bias is not None:
        application.result("dense", (*operands, application.store(f"{application.output()}_bias", bias)))
    elif application.has(2):
        write_sum_with_c(application, application.emit("dense", operands), beta)
    else:
        application.result("dense", operands)


def _gemm_bias(application: OpContext, unit_count: int, beta: float) -> StoredTensor | None:
    """Return C as a bias of ``unit_count`` elements; None if it is not constant or differs between rows."""
    if not application.has(2):
        return None
    stored = application.builder.stored_constant(application.operand(2))
    if stored is None or (stored.quant is not None and (beta != 1.0 or stored.data.size != unit_count)):
        return None
    shape = stored.data.shape
    if prod(shape[:-1]) != 1 or shape[-1:] not in ((), (1,), (unit_count,)):
        return None
    flat = stored.reshape((stored.data.size,))
    if flat is None or (flat.data.size == unit_count and beta == 1.0):
        return flat
    return StoredTensor(np.broadcast_to(flat.data * np.float32(beta), (unit_count,)).astype(np.float32))


def multiply_by_number(application: OpContext, value_name: str, factor: float) -> str:
    """Return the value ``value_name`` times a number; the value itself if the number is one."""
    return (
        value_name
        if factor == 1.0
        else application.emit("mul", (value_name, application.scalar(factor, application.type(value_name).dtype)))
    )


def write_sum_with_c(application: OpContext, product_value: str, beta: float) -> None:
    """Write the output as ``product_value`` + beta * C; without an input C as ``product_value``."""
    if not application.has(2):
        application.result_alias(product_value)
        return
    term = multiply_by_number(application, application.operand(2), beta)
    if len(application.type(term).shape) > 2:
        application.broken(f"C has shape {application.type(term).shape}, expected at most two axes")
    application.result("add", (product_value, term))


def matmul(application: OpContext) -> None:
    """MatMul: numpy's product. A constant right side of two axes makes a ``dense`` layer over all rows."""
    a, b = application.operand(0), application.operand(1)
    left, right = application.type(a).shape, application.type(b).shape
    if not left or not right or left[-1] != right[max(len(right) - 2, 0)]:
        application.broken(f"got matrices of shapes {left} and {right}, expected equal inner extents")
    weight = application.builder.stored_constant(b)
    if weight is not None and len(right) == 2 and is_float(application.type(a).dtype):
        application.result_alias(write_dense(application, a, weight.transpose((1, 0)), None))
        return
    shape = (*application.broadcast(left[:-2], right[:-2]), *left[-2:-1], *right[-1:][: len(right) - 1])
    a = application.reshape(a, (1, left[0])) if len(left) == 1 else a
    b = application.reshape(b, (right[0], 1)) if len(right) == 1 else b
    application.result_alias(application.reshape(application.emit("matmul", (a, b)), shape))


def write_dense(application: OpContext, data: str, weight: StoredTensor, bias: StoredTensor | None) -> str:
    """Write a dense layer over the last axis of ``data``, with any axes before it; return the name of its result."""
    shape, (units, depth) = application.type(data).shape, weight.data.shape
    if not shape or shape[-1] != depth:
        application.broken(f"data of shape {shape}, expected a last axis of {depth} for weights of {units} x {depth}")
    operands = [
        application.reshape(data, (prod(shape[:-1]), depth)),
        application.store(f"{application.output()}_weight", weight),
    ]
    if bias is not None:
        operands.append(application.store(f"{application.output()}_bias", bias))
    return application.reshape(application.emit("dense", operands), (*shape[:-1], units))


def batch_normalization(application: OpContext) -> None:
    """BatchNormalization for inference: x * f + (bias - mean * f) with f = scale / sqrt(variance + epsilon).

    Parameters are per channel; before opset 9 without ``spatial``, per element of an image.
    """
    attributes = application.operator.attributes
    application.only_output()
    if attributes.flag("training_mode"):
        application.refuse("batch normalisation in training mode", "export the model for inference")
    data = application.operand(0)
    shape = application.type(data).shape
    if any(application.value(position) not in application.builder.consts for position in range(1, 5)):
        _batch_normalization_by_values(application, data)
        return
    scale, bias, mean, variance = (application.constant(position).astype(np.float64) for position in range(1, 5))
    parameter_shape = shape[1:2] if application.opset >= 9 or attributes.flag("spatial", True) else shape[1:]
    if len(shape) < 2 or any(array.shape != parameter_shape for array in (scale, bias, mean, variance)):
        shapes = ", ".join(str(array.shape) for array in (scale, bias, mean, variance))
        application.broken(f"scale, B, mean and var have shapes {shapes}, expected {parameter_shape}")
    if (variance < 0).any():
        application.broken(f"var: got {variance.min()}, expected no negative number")
    factor = scale / np.sqrt(variance + attributes.real("epsilon", 1e-5))
    scaled_data = application.emit("mul", (data, _add_channel_constant(application, factor, data)))
    application.result("add", (scaled_data, _add_channel_constant(application, bias - mean * factor, data)))


def _batch_normalization_by_values(application: OpContext, data: str) -> None:
    """Batch normalisation with parameters that are known only at run time."""
    rank, kind = len(application.type(data).shape), application.type(data).dtype
    scale, bias, mean, variance = (_along_channels(application, position, rank) for position in range(1, 5))
    epsilon = application.scalar(application.operator.attributes.real("epsilon", 1e-5), kind)
    deviation = application.emit("sqrt", (application.emit("add", (variance, epsilon)),))
    factor = application.emit("div", (scale, deviation))
    scaled_data = application.emit("mul", (application.emit("sub", (data, mean)), factor))
    application.result("add", (scaled_data, bias))


def _along_channels(application: OpContext, position: int, target_rank: int) -> str:
    """Return an operand with one element per channel, reshaped to broadcast along axis 1 of a tensor of ``target_rank``."""
    return application.reshape(
        application.operand(position), (application.shape(position)[0], *[1] * (target_rank - 2))
    )


def _add_channel_constant(application: OpContext, channel_values: Array, data_value: str) -> str:
    """Add a constant that broadcasts along axis 1 of ``data_value``, or along that axis and all after it."""
    kind = application.type(data_value)
    shape = (*channel_values.shape, *[1] * (len(kind.shape) - 1 - channel_values.ndim))
    return application.new_constant(f"{application.output()}_factor", channel_values.astype(kind.dtype).reshape(shape))


def _normalize(
    application: OpContext, data: str, axes: tuple[int, ...], statistic_outputs: tuple[str, str] = ("", "")
) -> str:
    """Normalise ``data`` over ``axes``: (x - mean) / sqrt(variance + epsilon).

    ``statistic_outputs``: names for the mean and the inverse deviation if these are outputs, else empty."""
    over: Mapping[str, Attr] = {"axes": axes, "keepdims": True}
    mean = (
        application.write("mean", (data,), over, statistic_outputs[0])
        if statistic_outputs[0]
        else application.emit("mean", (data,), over)
    )
    centred = application.emit("sub", (data, mean))
    variance = application.emit("mean", (application.emit("mul", (centred, centred)),), over)
    kind = application.type(data).dtype
    epsilon = application.scalar(application.operator.attributes.real("epsilon", 1e-5), kind)
    deviation = application.emit("sqrt", (application.emit("add", (variance, epsilon)),))
    if statistic_outputs[1]:
        application.write("div", (application.scalar(1.0, kind), deviation), {}, statistic_outputs[1])
    return application.emit("div", (centred, deviation))


def layer_normalization(application: OpContext) -> None:
    """LayerNormalization over the last axes, scaled and shifted."""
    data = application.operand(0)
    rank = len(application.type(data).shape)
    first = application.axis(application.operator.attributes.integer("axis", -1), rank)
    normalized = _normalize(
        application, data, tuple(range(first, rank)), (application.output(1), application.output(2))
    )
    if application.has(2):
        normalized = application.emit("mul", (normalized, application.operand(1)))
        application.result("add", (normalized, application.operand(2)))
    else:
        application.result("mul", (normalized, application.operand(1)))


def instance_normalization(application: OpContext) -> None:
    """InstanceNormalization over the spatial axes of every image and channel, scaled and shifted per channel."""
    data = application.operand(0)
    rank = len(application.type(data).shape)
    if rank < 3:
        application.broken(f"data of shape {application.type(data).shape}, expected at least three axes")
    normalized = _normalize(application, data, tuple(range(2, rank)))
    scale, bias = (_along_channels(application, position, rank) for position in (1, 2))
    application.result("add", (application.emit("mul", (normalized, scale)), bias))


def softmax(write: Callable[[OpContext, str, int, str], None]) -> Converter:
    """Make a converter of a softmax along an axis; before opset 13, over that axis and all behind it together."""

    def convert(application: OpContext) -> None:
        data, old = application.operand(0), application.opset < 13
        shape = application.type(data).shape
        axis = application.axis(application.operator.attributes.integer("axis", 1 if old else -1), len(shape))
        if not old or axis == len(shape) - 1:
            write(application, data, axis, application.output())
            return
        flat = application.reshape(data, (prod(shape[:axis]), prod(shape[axis:])))
        name = application.builder.unique(f"{application.output()}_flat")
        write(application, flat, 1, name)
        application.result("reshape", (name,), {"shape": shape})

    return Converter(convert, stepwise=True)


def _write_softmax(application: OpContext, data: str, axis: int, output: str) -> None:
    """Write ``output`` as the softmax of ``data`` along an axis."""
    application.write("softmax", (data,), {"axis": axis, "beta": 1.0}, output)


def _write_log_softmax(application: OpContext, data: str, axis: int, output: str) -> None:
    """Write ``output`` as x - max - log(sum(exp(x - max))) along an axis."""
    over: Mapping[str, Attr] = {"axes": (axis,), "keepdims": True}
    centred = application.emit("sub", (data, application.emit("max", (data,), over)))
    total = application.emit("sum", (application.emit("exp", (centred,)),), over)
    application.write("sub", (centred, application.emit("log", (total,))), {}, output)


NEURAL_CONVERTERS: Mapping[str, Converter] = {
    "BatchNormalization": Converter(batch_normalization),
    "Gemm": Converter(gemm),
    "InstanceNormalization": Converter(instance_normalization),
    "LayerNormalization": Converter(layer_normalization),
    "LogSoftmax": softmax(_write_log_softmax),
    "MatMul": Converter(matmul, (*FLOAT, "int32", "int64")),
    "Softmax": softmax(_write_softmax),
}


# ---- Converters of Einsum and of transforms: DFT, STFT, MelWeightMatrix, Col2Im.


def einsum(application: OpContext) -> None:
    """Einsum: labels become numbers, the ellipsis negative numbers, one for each axis that it stands for."""
    equation = application.operator.attributes.text("equation", "").replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != application.count():
        application.broken(
            f"equation {equation!r} has {len(terms)} terms, expected {application.count()}, one for each operand"
        )
    ranks = [len(application.shape(k)) for k in range(len(terms))]
    hidden = max(
        (rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True) if "." in term), default=0
    )
    if not arrow:
        once = sorted(c for c in set(left) - set(",.") if left.count(c) == 1)
        right = ("..." if "..." in left else "") + "".join(once)

    def labels(term: str, rank: int) -> tuple[int, ...]:
        """Return the labels of a term's axes as numbers."""
        dots = rank - len(term.replace("...", ""))
        before, _, after = term.partition("...")
        middle = tuple(range(-dots, 0)) if "..." in term else ()
        return (*(ord(c) for c in before), *middle, *(ord(c) for c in after))

    inputs = tuple(labels(term, rank) for term, rank in zip(terms, ranks, strict=True))
    output = labels(right, len(right.replace("...", "")) + (hidden if "..." in right else 0))
    operands = [application.operand(k) for k in range(len(terms))]
    application.result("einsum", operands, {"inputs": inputs, "output": output})


def _fourier_waves(sample_count: int, row_count: int, inverse: bool) -> tuple[Array, Array]:
    """Return cosines and sines (length, rows) of a discrete Fourier transform."""
    # The product of indices is reduced modulo length first, so that large angles lose no precision.
    angle = 2 * np.pi * (np.outer(np.arange(sample_count), np.arange(row_count)) % sample_count) / sample_count
    scale = 1 / sample_count if inverse else 1.0
    return np.cos(angle) * scale, (np.sin(angle) if inverse else -np.sin(angle)) * scale


def dft_matrix(sample_count: int, bin_count: int, takes_complex: bool, inverse: bool, gives_real: bool) -> Array:
    """Return the matrix (samples, parts in, bins, parts out) of a discrete Fourier transform.

    A part is real or imaginary. ``gives_real``: the inverse to real numbers, from the lower half of a conjugate
    symmetric spectrum (``sample_count`` // 2 + 1 rows). Each row but those of frequency 0 and half the length counts
    twice, for its mirror image."""
    cosine, sine = _fourier_waves(sample_count, bin_count, inverse)
    if gives_real:
        half = sample_count // 2 + 1
        twice = np.full((half, 1), 2.0)
        twice[0] = 1
        if sample_count % 2 == 0:
            twice[-1] = 1
        return np.stack([cosine[:half] * twice, -sine[:half] * twice], 1)[..., None]
    real = np.stack([cosine, sine], -1)
    imaginary = np.stack([-sine, cosine], -1)
    return np.stack([real, imaginary], 1) if takes_complex else real[:, None]


def dft(application: OpContext) -> None:
    """DFT along an axis, of real or complex numbers; the whole spectrum or its lower half."""
    attributes, data = application.operator.attributes, application.value(0)
    shape, kind = application.shape(0), application.type(data).dtype
    inverse, onesided = attributes.flag("inverse"), attributes.flag("onesided")
    axis = attributes.integer("axis", 1) if application.opset < 20 else -2
    if application.opset >= 20 and application.has(2):
        axis = int(application.constant(2).reshape(-1)[0])
    axis = application.axis(axis, len(shape))
    real_out = inverse and onesided
    length = 2 * (shape[axis] - 1) if real_out else shape[axis]
    if application.has(1):
        length = int(application.constant(1).reshape(-1)[0])
    input_length = length // 2 + 1 if real_out else length
    data = _fit_length(application, data, axis, input_length)
    bins = length // 2 + 1 if onesided and not inverse else length
    matrix = dft_matrix(length, bins, shape[-1] == 2, inverse, real_out)
    name = application.new_constant(f"{application.output()}_waves", matrix.astype(kind))
    labels = tuple(range(len(shape)))
    frequency_axis, part_axis = 100, 101
    output = tuple(frequency_axis if k == axis else part_axis if k == len(shape) - 1 else k for k in labels)
    attrs: Mapping[str, Attr] = {
        "inputs": (labels, (axis, len(shape) - 1, frequency_axis, part_axis)),
        "output": output,
    }
    application.result("einsum", (data, name), attrs)


def _fit_length(application: OpContext, value: str, axis: int, extent: int) -> str:
    """Cut ``value``, or pad it with zeros, to ``extent`` elements along ``axis``."""
    shape = application.type(value).shape
    if extent < shape[axis]:
        end = tuple(extent if k == axis else e for k, e in enumerate(shape))
        cut: Mapping[str, Attr] = {"begin": (0,) * len(shape), "end": end, "strides": (1,) * len(shape)}
        return application.emit("slice", (value,), cut)
    if extent > shape[axis]:
        padding = tuple((0, extent - e if k == axis else 0) for k, e in enumerate(shape))
        return application.emit("pad", (value,), {"padding": padding, "value": 0.0})
    return value


def stft(application: OpContext) -> None:
    """STFT: gathers frames, then windows and transforms them by one einsum."""
    data, kind = application.value(0), application.type(application.value(0)).dtype
    _, samples, parts = application.shape(0)
    step = int(application.constant(1).reshape(-1)[0])
    length = int(application.constant(3).reshape(-1)[0]) if application.has(3) else application.shape(2)[0]
    frames = (samples - length) // step + 1
    starts = np.arange(frames)[:, None] * step + np.arange(length)
    frame_indices = application.new_constant(f"{application.output()}_frames", starts.astype(np.int32))
    rows = application.emit("gather", (data, frame_indices), {"axis": 1})
    onesided = application.operator.attributes.flag("onesided", True)
    matrix = dft_matrix(length, length // 2 + 1 if onesided else length, parts == 2, False, False)
    name = application.new_constant(f"{application.output()}_waves", matrix.astype(kind))
    operands: list[str] = [rows, name]
    labels: list[tuple[int, ...]] = [(0, 1, 2, 3), (2, 3, 4, 5)]
    if application.has(2):
        operands.append(application.operand(2))
        labels.append((2,))
    application.result("einsum", operands, {"inputs": tuple(labels), "output": (0, 1, 4, 5)})


def mel_weight_matrix(application: OpContext) -> None:
    """MelWeightMatrix, computed at compile time."""
    bins, length, rate, low, high = (float(application.constant(k).reshape(-1)[0]) for k in range(5))
    count = int(length) // 2 + 1
    mel = [2595 * np.log10(1 + edge / 700) for edge in (low, high)]
    points = mel[0] + np.arange(int(bins) + 2) * ((mel[1] - mel[0]) / (bins + 2))
    edges = np.floor((int(length) + 1) * 700 * (10 ** (points / 2595) - 1) / rate).astype(np.int64)
    result = np.zeros((count, int(bins)))
    for k in range(int(bins)):
        first, centre, last = edges[k : k + 3]
        if first == centre:
            result[centre, k] = 1
        else:
            result[first : centre + 1, k] = (np.arange(first, centre + 1) - first) / (centre - first)
        if last > centre:
            result[centre:last, k] = (last - np.arange(centre, last)) / (last - centre)
    from microc.frontend.onnx.file import dtype_from_code

    kind = dtype_from_code(application.operator.attributes.integer("output_datatype", 1), application.where)
    application.result_constant(result.astype(kind))


def col2im(application: OpContext) -> None:
    """Col2Im: adds overlapping blocks, as a transposed convolution whose kernel has a single one for each tap."""
    attributes, shape = application.operator.attributes, application.shape(0)
    image, block = application.integers(1), application.integers(2)
    rank, taps = len(image), prod(block)
    strides, dilation = (attributes.integers(name, (1,) * rank) for name in ("strides", "dilations"))
    pads = attributes.integers("pads", (0,) * 2 * rank)
    counts = [
        (e + pads[k] + pads[rank + k] - (b - 1) * d - 1) // s + 1
        for k, (e, b, d, s) in enumerate(zip(image, block, dilation, strides, strict=True))
    ]
    channels = shape[1] // taps
    data = application.reshape(application.value(0), (shape[0] * channels, taps, *counts))
    grown = [(c - 1) * s + (b - 1) * d + 1 for c, s, b, d in zip(counts, strides, block, dilation, strict=True)]
    after = [g - pads[k] - e for k, (g, e) in enumerate(zip(grown, image, strict=True))]
    kind = application.type(data).dtype
    one = np.eye(taps).reshape(taps, 1, *block).astype(kind)
    weight = application.new_constant(f"{application.output()}_taps", one)
    attrs: Mapping[str, Attr] = {
        "strides": strides,
        "dilation": dilation,
        "padding": (*pads[:rank], *after),
        "groups": 1,
    }
    summed = application.emit("convolution_transpose", (data, weight), attrs)
    application.result_reshape(summed, (shape[0], channels, *image))


SIGNAL_CONVERTERS: Mapping[str, Converter] = {
    "Col2Im": Converter(col2im),
    "DFT": Converter(dft),
    "Einsum": Converter(einsum, (*FLOAT, "int32", "int64")),
    "MelWeightMatrix": Converter(mel_weight_matrix, ()),
    "STFT": Converter(stft),
}


# ---- Det: Gaussian elimination with partial pivoting, one column in each iteration of a loop.
#
# Rows are not exchanged: a pivot's row is marked as used instead, and the sign changes once for every unused row above it, as
# it would if the pivot's row moved to the top past each of them. Source: ONNX Det; Golub and Van Loan, Matrix Computations,
# 3.4.


def determinant(application: OpContext) -> None:
    """Det: matrices (..., N, N) to numbers (...)."""
    data, shape = application.value(0), application.shape(0)
    if len(shape) < 2 or shape[-1] != shape[-2]:
        application.broken(f"got matrices of shape {shape}, expected square ones")
    count, size, kind = prod(shape[:-2]), shape[-1], application.type(data).dtype
    matrices = application.reshape(data, (count, size, size))
    free = application.new_constant(f"{application.output()}_free", np.ones((count, size), np.bool_))
    one = application.new_constant(f"{application.output()}_one", np.ones((count, 1), dtypes.to_numpy(kind)))
    attrs: dict[str, Any] = {
        "body": _elimination_step(application, count, size, kind),
        "count": size,
        "carried": 3,
        "guarded": False,
    }
    results = [application.builder.unique(f"{application.output()}_{stem}") for stem in ("rest", "free", "product")]
    application.write_all("loop", (matrices, free, one), attrs, results)
    application.result_reshape(results[2], shape[:-2])


def _elimination_step(application: OpContext, matrix_count: int, matrix_size: int, element_dtype: str) -> Graph:
    """Return the loop body that eliminates one column of every matrix.

    It carries the matrices (M, N, N), flags of rows not yet used as pivots (M, N), and the product of pivots (M, 1)."""
    body = GraphBuilder(application.loc.file)
    body.at(application.loc.index, application.loc.name)

    def make(op: str, *operands: str, **attrs: Attr) -> str:
        return body.emit(op, operands, attrs)

    def number(value: float) -> str:
        return body.new_constant("number", np.array(value, dtypes.to_numpy(element_dtype)))

    iteration, rest = (
        body.input("turn", (), "int32"),
        body.input("rest", (matrix_count, matrix_size, matrix_size), element_dtype),
    )
    free, product = (
        body.input("free", (matrix_count, matrix_size), "bool"),
        body.input("product", (matrix_count, 1), element_dtype),
    )
    rows = body.new_constant("rows", np.arange(matrix_size, dtype=np.int64)[None])
    column = make("gather", rest, iteration, axis=2)
    magnitude = make("where", free, make("abs", column), number(-1.0))
    pivot_row = make("argmax", magnitude, axis=1, keepdims=True, last=False, out_dtype="int64")
    row = make("gather_nd", rest, pivot_row, batch_dims=1)
    pivot = make("gather_nd", column, pivot_row, batch_dims=1)
    pivot = body.reshape(pivot, (matrix_count, 1))
    still_free = make("logical_and", free, make("not_equal", rows, pivot_row))
    # A pivot of 0 makes the product 0; dividing by 1 instead keeps NaN out of the remaining columns.
    divisor = make("where", make("equal", pivot, number(0.0)), number(1.0), pivot)
    factor = make("where", still_free, make("div", column, divisor), number(0.0))
    step = make(
        "mul", body.reshape(factor, (matrix_count, matrix_size, 1)), body.reshape(row, (matrix_count, 1, matrix_size))
    )
    above = make("logical_and", free, make("less", rows, pivot_row))
    signs = make("prod", make("where", above, number(-1.0), number(1.0)), axes=(1,), keepdims=True)
    product = make("mul", product, make("mul", pivot, signs))
    results: Mapping[str, str] = {
        "next_rest": make("sub", rest, step),
        "next_free": still_free,
        "next_product": product,
    }
    return body.graph("column", results)


DETERMINANT_CONVERTERS: Mapping[str, Converter] = {"Det": Converter(determinant)}


# ---- ONNX Runtime's layers on quantised weights, which quantise their data at run time.


def dynamic_quantize_lstm(application: OpContext) -> None:
    """DynamicQuantizeLSTM: an LSTM on dequantised weights.

    It is closer to the trained network than the original, which also rounds data and state at every step.
    """
    weights = [
        application.new_constant(
            f"{application.output()}_weight", _dequantise_weights(application, position, 6 + 2 * position)
        )
        for position in (1, 2)
    ]
    inputs = application.operator.inputs
    operator = replace(application.operator, code="LSTM", domain="", inputs=(inputs[0], *weights, *inputs[3:8]))
    recurrent(OpContext(operator, application.builder, application.loc))


def _dequantise_weights(application: OpContext, weight_position: int, scale_position: int) -> Array:
    """Dequantise weights (directions, inputs, 4 * hidden) and order them as LSTM does, (directions, 4 * hidden, inputs).

    Scales are per direction, or per column of a direction.
    """
    data, factor = application.constant(weight_position).astype(np.float32), application.constant(scale_position)
    zero = application.constant(scale_position + 1) if application.has(scale_position + 1) else np.zeros_like(factor)
    if data.ndim != 3 or factor.shape not in (data.shape[:1], data.shape[::2]) or zero.shape != factor.shape:
        application.broken(
            f"weights of shape {data.shape} with scales {factor.shape} and zero points {zero.shape}, expected three axes "
            f"and one scale for each of {data.shape[:1]} or of {data.shape[::2]}"
        )
    shape = (data.shape[0], 1, factor.size // data.shape[0])
    real = (data - zero.astype(np.float32).reshape(shape)) * factor.reshape(shape)
    return np.ascontiguousarray(real.transpose(0, 2, 1))


DYNAMIC_CONVERTERS: Mapping[str, Converter] = {"DynamicQuantizeLSTM": Converter(dynamic_quantize_lstm, ("float32",))}
"""Converters of the domain ``com.microsoft``."""
