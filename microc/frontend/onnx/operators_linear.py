"""Conversion of ONNX matrix products, normalisations, Fourier transforms, Einsum and Det to operators of microc's graph."""

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
    """Convert Gemm, alpha * A' * B' + beta * C, where A' and B' are A and B, transposed if ``transA`` or ``transB`` is set.

    If B is constant, Gemm becomes a ``dense`` layer; otherwise it becomes a ``matmul``."""
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
    """Return beta * C as the bias of a ``dense`` layer with ``unit_count`` outputs.

    Return None if input C is absent, is not constant, or differs between the rows of the result."""
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
    """Emit ``value_name`` times ``factor``; return the name of the product, or ``value_name`` itself if the factor is 1."""
    return (
        value_name
        if factor == 1.0
        else application.emit("mul", (value_name, application.scalar(factor, application.type(value_name).dtype)))
    )


def write_sum_with_c(application: OpContext, product_value: str, beta: float) -> None:
    """Write the output of Gemm: ``product_value`` + beta * C, or ``product_value`` alone if input C is absent."""
    if not application.has(2):
        application.result_alias(product_value)
        return
    term = multiply_by_number(application, application.operand(2), beta)
    if len(application.type(term).shape) > 2:
        application.broken(f"C has shape {application.type(term).shape}, expected at most two axes")
    application.result("add", (product_value, term))


def matmul(application: OpContext) -> None:
    """Convert MatMul, which multiplies matrices as ``numpy.matmul`` does.

    If the data are floats and the right operand is a constant matrix, MatMul becomes one ``dense`` layer over all rows."""
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
    """Emit a dense layer over the last axis of ``data``; return the name of its result.

    ``data`` (..., inputs) may have any number of leading axes, which the result (..., units) keeps. ``weight`` has the shape
    (units, inputs)."""
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
    """Convert BatchNormalization for inference: x * f + (bias - mean * f) with f = scale / sqrt(variance + epsilon).

    Each channel has its own scale, bias, mean and variance. Before opset 9 with ``spatial`` = 0, each element of an image
    has its own.
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
    """Convert BatchNormalization with a scale, bias, mean or variance that is known only at run time."""
    rank, kind = len(application.type(data).shape), application.type(data).dtype
    scale, bias, mean, variance = (_along_channels(application, position, rank) for position in range(1, 5))
    epsilon = application.scalar(application.operator.attributes.real("epsilon", 1e-5), kind)
    deviation = application.emit("sqrt", (application.emit("add", (variance, epsilon)),))
    factor = application.emit("div", (scale, deviation))
    scaled_data = application.emit("mul", (application.emit("sub", (data, mean)), factor))
    application.result("add", (scaled_data, bias))


def _along_channels(application: OpContext, position: int, target_rank: int) -> str:
    """Reshape operand ``position``, which has one element per channel, to broadcast to a tensor of rank ``target_rank``.

    Channels are axis 1 of that tensor."""
    return application.reshape(
        application.operand(position), (application.shape(position)[0], *[1] * (target_rank - 2))
    )


def _add_channel_constant(application: OpContext, channel_values: Array, data_value: str) -> str:
    """Add a constant of ``channel_values``, shaped to broadcast to ``data_value``; return its name.

    The values belong to axis 1 (one value per channel), or to axis 1 and all axes after it (one value per element)."""
    kind = application.type(data_value)
    shape = (*channel_values.shape, *[1] * (len(kind.shape) - 1 - channel_values.ndim))
    return application.new_constant(f"{application.output()}_factor", channel_values.astype(kind.dtype).reshape(shape))


def _normalize(
    application: OpContext, data: str, axes: tuple[int, ...], statistic_outputs: tuple[str, str] = ("", "")
) -> str:
    """Emit (x - mean) / sqrt(variance + epsilon) with mean and variance over ``axes`` of ``data``; return the result's name.

    ``statistic_outputs``: names under which the mean and 1 / sqrt(variance + epsilon) are written, if they are outputs of
    the ONNX operator; each is empty if the output is absent."""
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
    """Convert LayerNormalization, which normalises over attribute ``axis`` and all axes after it.

    The normalised data are multiplied by a scale and, if there is one, added to a bias."""
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
    """Convert InstanceNormalization: normalise each channel of each image over the spatial axes.

    The result is multiplied by a scale and added to a bias, both with one element per channel."""
    data = application.operand(0)
    rank = len(application.type(data).shape)
    if rank < 3:
        application.broken(f"data of shape {application.type(data).shape}, expected at least three axes")
    normalized = _normalize(application, data, tuple(range(2, rank)))
    scale, bias = (_along_channels(application, position, rank) for position in (1, 2))
    application.result("add", (application.emit("mul", (normalized, scale)), bias))


def softmax(write: Callable[[OpContext, str, int, str], None]) -> Converter:
    """Make a converter of Softmax or LogSoftmax; ``write`` emits the operator along one axis.

    Before opset 13 the operator normalises over attribute ``axis`` and all axes after it together. The converter then
    flattens these axes to one and restores the shape afterwards."""

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
    """Write the value ``output``, the softmax of ``data`` along ``axis``."""
    application.write("softmax", (data,), {"axis": axis, "beta": 1.0}, output)


def _write_log_softmax(application: OpContext, data: str, axis: int, output: str) -> None:
    """Write the value ``output``, the logarithm of the softmax of ``data``: x - max - log(sum(exp(x - max))) along ``axis``."""
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
    """Convert Einsum. In the graph the labels of axes are numbers instead of letters.

    A letter becomes its character code. An ellipsis becomes negative numbers, one for each axis that it covers."""
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
        """Return the label of each axis of an operand of rank ``rank`` as a number, from a term of the equation such as "ij"."""
        dots = rank - len(term.replace("...", ""))
        before, _, after = term.partition("...")
        middle = tuple(range(-dots, 0)) if "..." in term else ()
        return (*(ord(c) for c in before), *middle, *(ord(c) for c in after))

    inputs = tuple(labels(term, rank) for term, rank in zip(terms, ranks, strict=True))
    output = labels(right, len(right.replace("...", "")) + (hidden if "..." in right else 0))
    operands = [application.operand(k) for k in range(len(terms))]
    application.result("einsum", operands, {"inputs": inputs, "output": output})


def _fourier_waves(sample_count: int, row_count: int, inverse: bool) -> tuple[Array, Array]:
    """Return the real and the imaginary parts (``sample_count``, ``row_count``) of a discrete Fourier transform's factors.

    They are cosines and negated sines; for the inverse transform, cosines and sines divided by ``sample_count``."""
    # The product of indices is reduced modulo length first, so that large angles lose no precision.
    angle = 2 * np.pi * (np.outer(np.arange(sample_count), np.arange(row_count)) % sample_count) / sample_count
    scale = 1 / sample_count if inverse else 1.0
    return np.cos(angle) * scale, (np.sin(angle) if inverse else -np.sin(angle)) * scale


def dft_matrix(sample_count: int, bin_count: int, takes_complex: bool, inverse: bool, gives_real: bool) -> Array:
    """Return the matrix of a discrete Fourier transform, of shape (samples, input parts, bins, output parts).

    Parts are the real and the imaginary part of a number; the axis has one element where numbers are real.
    ``takes_complex``: the input is complex. ``gives_real``: the matrix is that of the inverse transform to real numbers, from
    the lower half (``sample_count`` // 2 + 1 rows) of a conjugate symmetric spectrum. Its rows are doubled to include the
    mirrored upper half. The row of frequency 0 is not, nor that of half the sampling rate, since they have no mirror image."""
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
    """Convert DFT, forward or inverse, along one axis of real or complex data, to an ``einsum`` with a constant matrix.

    With ``onesided`` the spectrum is only the lower half of the frequencies."""
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
    """Slice ``value``, or pad it with zeros at the end, to ``extent`` elements along ``axis``; return the result's name."""
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
    """Convert STFT: a ``gather`` extracts overlapping frames; one ``einsum`` multiplies them by the window and the DFT matrix."""
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
    """Convert MelWeightMatrix to a constant (spectrum bins, mel bands), computed at compile time."""
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
    """Convert Col2Im, which sums overlapping blocks to an image, to a transposed convolution.

    Each input channel holds one element of the blocks. Its kernel is 1 at the position of that element in the block and 0
    elsewhere."""
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
# Rows are not exchanged. Instead the row of each pivot is marked as used, and the sign of the determinant changes once for
# every unused row above the pivot's row, as if the pivot's row were exchanged with each of these rows in turn.
# Source: ONNX Det; Golub and Van Loan, Matrix Computations, 3.4.


def determinant(application: OpContext) -> None:
    """Convert Det, the determinants of matrices (..., N, N), to a loop of N elimination steps; the result has shape (...)."""
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
    """Build the loop body that eliminates one column of all matrices.

    With M = ``matrix_count`` and N = ``matrix_size``, the loop carries the matrices (M, N, N), flags of the rows that have
    not been used as pivot rows (M, N), and the signed product of the pivots so far (M, 1)."""
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
    """Convert DynamicQuantizeLSTM to an LSTM in float32 with weights dequantised at compile time.

    ONNX Runtime's operator also quantises data and state at every time step. The float32 LSTM does not, so its results are
    closer to those of the trained network.
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
    """Return the dequantised weights of DynamicQuantizeLSTM in the layout of LSTM, (directions, 4 * hidden, inputs).

    Input ``weight_position`` has the layout (directions, inputs, 4 * hidden). Input ``scale_position`` has one scale for each
    direction, or for each direction and each of the 4 * hidden columns; the next input has the zero points.
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
"""Converters of ONNX operators of the domain ``com.microsoft``, by operator name."""
