"""Conversion of ONNX matrix products, normalisations, Fourier transforms, Einsum and Det."""

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
from microc.frontend.onnx.operators_recurrent import convert_recurrent_layer
from microc.graph.ir import Attr, Graph

# ---- Converters of matrix products, normalisations and softmaxes.


def convert_gemm(context: OpContext) -> None:
    """Convert Gemm, alpha * A' * B' + beta * C.

    A' and B' are A and B, transposed if ``transA`` or ``transB`` is set. If B is constant, Gemm becomes a ``dense``
    layer; otherwise it becomes a ``matmul``."""
    attributes = context.operator.attributes
    alpha, beta = attributes.real("alpha", 1.0), attributes.real("beta", 1.0)
    a, b = context.operand(0), context.operand(1)
    if len(context.type(a).shape) != 2 or len(context.type(b).shape) != 2:
        shapes = f"{context.type(a).shape} and {context.type(b).shape}"
        context.broken(f"got matrices of shapes {shapes}, expected two axes each")
    if attributes.flag("transA"):
        a = context.emit("transpose", (a,), {"axes": (1, 0)})
    weight = context.builder.get_stored_constant(b)
    if weight is None or (alpha != 1.0 and weight.quant is not None):
        if attributes.flag("transB"):
            b = context.emit("transpose", (b,), {"axes": (1, 0)})
        product = multiply_by_number(context, context.emit("matmul", (a, b)), alpha)
        write_gemm_output(context, product, beta)
        return
    if not attributes.flag("transB"):
        weight = weight.transpose((1, 0))
    if alpha != 1.0:
        weight = StoredTensor((weight.data * np.float32(alpha)).astype(np.float32))
    bias = _get_gemm_bias(context, weight.data.shape[0], beta)
    operands = [a, context.add_stored_tensor(f"{context.output()}_weight", weight)]
    if bias is not None:
        context.result("dense", (*operands, context.add_stored_tensor(f"{context.output()}_bias", bias)))
    elif context.has_input(2):
        write_gemm_output(context, context.emit("dense", operands), beta)
    else:
        context.result("dense", operands)


def _get_gemm_bias(context: OpContext, unit_count: int, beta: float) -> StoredTensor | None:
    """Return beta * C as the bias of a ``dense`` layer with ``unit_count`` outputs.

    Return None if input C is absent, computed at run time, or not the same for all rows of the result."""
    if not context.has_input(2):
        return None
    stored = context.builder.get_stored_constant(context.operand(2))
    if stored is None or (stored.quant is not None and (beta != 1.0 or stored.data.size != unit_count)):
        return None
    shape = stored.data.shape
    if prod(shape[:-1]) != 1 or shape[-1:] not in ((), (1,), (unit_count,)):
        return None
    flat = stored.reshape((stored.data.size,))
    if flat is None or (flat.data.size == unit_count and beta == 1.0):
        return flat
    return StoredTensor(np.broadcast_to(flat.data * np.float32(beta), (unit_count,)).astype(np.float32))


def multiply_by_number(context: OpContext, value_name: str, factor: float) -> str:
    """Emit the product of ``value_name`` and the number ``factor``.

    Return the name of the product, or ``value_name`` itself if the factor is 1."""
    return (
        value_name
        if factor == 1.0
        else context.emit("mul", (value_name, context.scalar(factor, context.type(value_name).dtype)))
    )


def write_gemm_output(context: OpContext, product_name: str, beta: float) -> None:
    """Write the output of Gemm: ``product_name`` + beta * C, or ``product_name`` alone if input C is absent."""
    if not context.has_input(2):
        context.result_alias(product_name)
        return
    term = multiply_by_number(context, context.operand(2), beta)
    if len(context.type(term).shape) > 2:
        context.broken(f"C has shape {context.type(term).shape}, expected at most two axes")
    context.result("add", (product_name, term))


def convert_matmul(context: OpContext) -> None:
    """Convert MatMul, which multiplies matrices as ``numpy.matmul`` does.

    If the data are floats and the right operand is a constant matrix, MatMul becomes one ``dense`` layer over all
    rows."""
    a, b = context.operand(0), context.operand(1)
    left, right = context.type(a).shape, context.type(b).shape
    if not left or not right or left[-1] != right[max(len(right) - 2, 0)]:
        context.broken(f"got matrices of shapes {left} and {right}, expected equal inner extents")
    weight = context.builder.get_stored_constant(b)
    if weight is not None and len(right) == 2 and is_float(context.type(a).dtype):
        context.result_alias(emit_dense(context, a, weight.transpose((1, 0)), None))
        return
    shape = (*context.broadcast_shapes(left[:-2], right[:-2]), *left[-2:-1], *right[-1:][: len(right) - 1])
    a = context.reshape(a, (1, left[0])) if len(left) == 1 else a
    b = context.reshape(b, (right[0], 1)) if len(right) == 1 else b
    context.result_alias(context.reshape(context.emit("matmul", (a, b)), shape))


def emit_dense(context: OpContext, data_name: str, weight: StoredTensor, bias: StoredTensor | None) -> str:
    """Emit a dense layer over the last axis of ``data_name``; return the name of its result.

    ``data_name`` (..., inputs) may have any number of leading axes, which the result (..., units) keeps. ``weight`` has
    the shape (units, inputs)."""
    shape, (units, depth) = context.type(data_name).shape, weight.data.shape
    if not shape or shape[-1] != depth:
        context.broken(f"got data of shape {shape}, expected a last axis of {depth} for weights of {units} x {depth}")
    operands = [
        context.reshape(data_name, (prod(shape[:-1]), depth)),
        context.add_stored_tensor(f"{context.output()}_weight", weight),
    ]
    if bias is not None:
        operands.append(context.add_stored_tensor(f"{context.output()}_bias", bias))
    return context.reshape(context.emit("dense", operands), (*shape[:-1], units))


def convert_batch_normalization(context: OpContext) -> None:
    """Convert BatchNormalization for inference: x * f + (bias - mean * f) with f = scale / sqrt(variance + epsilon).

    Each channel has its own scale, bias, mean and variance. Before opset 9 with ``spatial`` = 0, each element of an
    image has its own."""
    attributes = context.operator.attributes
    context.refuse_extra_outputs()
    if attributes.flag("training_mode"):
        context.refuse("training_mode is 1, expected 0", "export the model for inference")
    data = context.operand(0)
    shape = context.type(data).shape
    if any(context.value(position) not in context.builder.consts for position in range(1, 5)):
        _convert_batch_norm_at_run_time(context, data)
        return
    scale, bias, mean, variance = (context.constant(position).astype(np.float64) for position in range(1, 5))
    parameter_shape = shape[1:2] if context.opset >= 9 or attributes.flag("spatial", True) else shape[1:]
    if len(shape) < 2 or any(array.shape != parameter_shape for array in (scale, bias, mean, variance)):
        shapes = ", ".join(str(array.shape) for array in (scale, bias, mean, variance))
        context.broken(f"scale, B, mean and var have shapes {shapes}, expected {parameter_shape}")
    if (variance < 0).any():
        context.broken(f"var: got {variance.min()}, expected no negative number")
    factor = scale / np.sqrt(variance + attributes.real("epsilon", 1e-5))
    scaled_data = context.emit("mul", (data, _add_channel_constant(context, factor, data)))
    context.result("add", (scaled_data, _add_channel_constant(context, bias - mean * factor, data)))


def _convert_batch_norm_at_run_time(context: OpContext, data_name: str) -> None:
    """Convert BatchNormalization whose scale, bias, mean or variance is computed at run time."""
    rank, kind = len(context.type(data_name).shape), context.type(data_name).dtype
    scale, bias, mean, variance = (_reshape_along_channels(context, position, rank) for position in range(1, 5))
    epsilon = context.scalar(context.operator.attributes.real("epsilon", 1e-5), kind)
    deviation = context.emit("sqrt", (context.emit("add", (variance, epsilon)),))
    factor = context.emit("div", (scale, deviation))
    scaled_data = context.emit("mul", (context.emit("sub", (data_name, mean)), factor))
    context.result("add", (scaled_data, bias))


def _reshape_along_channels(context: OpContext, input_index: int, target_rank: int) -> str:
    """Reshape an operand with one element for each channel, so that it broadcasts to data of rank ``target_rank``.

    ``input_index``: index of the operand. Channels are axis 1 of the data. Return the result's name."""
    return context.reshape(context.operand(input_index), (context.shape(input_index)[0], *[1] * (target_rank - 2)))


def _add_channel_constant(context: OpContext, channel_values: Array, data_name: str) -> str:
    """Add a constant of ``channel_values``, shaped to broadcast to ``data_name``; return its name.

    The values belong to axis 1 (one value per channel), or to axis 1 and all axes after it (one value per element)."""
    kind = context.type(data_name)
    shape = (*channel_values.shape, *[1] * (len(kind.shape) - 1 - channel_values.ndim))
    return context.new_constant(f"{context.output()}_factor", channel_values.astype(kind.dtype).reshape(shape))


def _emit_normalization(
    context: OpContext, data_name: str, axes: tuple[int, ...], statistic_output_names: tuple[str, str] = ("", "")
) -> str:
    """Emit (x - mean) / sqrt(variance + epsilon) with mean and variance over ``axes`` of ``data_name``.

    Return the result's name. ``statistic_output_names``: names under which the mean and 1 / sqrt(variance + epsilon)
    are written, if they are outputs of the ONNX operator; each is empty if the output is absent."""
    over: Mapping[str, Attr] = {"axes": axes, "keepdims": True}
    mean = (
        context.write_node("mean", (data_name,), over, statistic_output_names[0])
        if statistic_output_names[0]
        else context.emit("mean", (data_name,), over)
    )
    centred = context.emit("sub", (data_name, mean))
    variance = context.emit("mean", (context.emit("mul", (centred, centred)),), over)
    kind = context.type(data_name).dtype
    epsilon = context.scalar(context.operator.attributes.real("epsilon", 1e-5), kind)
    deviation = context.emit("sqrt", (context.emit("add", (variance, epsilon)),))
    if statistic_output_names[1]:
        context.write_node("div", (context.scalar(1.0, kind), deviation), {}, statistic_output_names[1])
    return context.emit("div", (centred, deviation))


def convert_layer_normalization(context: OpContext) -> None:
    """Convert LayerNormalization, which normalises over attribute ``axis`` and all axes after it.

    The normalised data are multiplied by a scale and, if there is one, added to a bias."""
    data = context.operand(0)
    rank = len(context.type(data).shape)
    first = context.axis(context.operator.attributes.integer("axis", -1), rank)
    normalized = _emit_normalization(context, data, tuple(range(first, rank)), (context.output(1), context.output(2)))
    if context.has_input(2):
        normalized = context.emit("mul", (normalized, context.operand(1)))
        context.result("add", (normalized, context.operand(2)))
    else:
        context.result("mul", (normalized, context.operand(1)))


def convert_instance_normalization(context: OpContext) -> None:
    """Convert InstanceNormalization: normalise each channel of each image over the spatial axes.

    The result is multiplied by a scale and added to a bias, both with one element per channel."""
    data = context.operand(0)
    rank = len(context.type(data).shape)
    if rank < 3:
        context.broken(f"got data of shape {context.type(data).shape}, expected at least three axes")
    normalized = _emit_normalization(context, data, tuple(range(2, rank)))
    scale, bias = (_reshape_along_channels(context, position, rank) for position in (1, 2))
    context.result("add", (context.emit("mul", (normalized, scale)), bias))


def make_softmax_converter(write_along_axis: Callable[[OpContext, str, int, str], None]) -> Converter:
    """Make a converter of Softmax or LogSoftmax; ``write_along_axis`` emits the operator along one axis.

    Before opset 13 the operator normalises over attribute ``axis`` and all axes after it together. The converter then
    flattens these axes to one and restores the shape afterwards."""

    def convert_softmax(context: OpContext) -> None:
        data, old = context.operand(0), context.opset < 13
        shape = context.type(data).shape
        axis = context.axis(context.operator.attributes.integer("axis", 1 if old else -1), len(shape))
        if not old or axis == len(shape) - 1:
            write_along_axis(context, data, axis, context.output())
            return
        flat = context.reshape(data, (prod(shape[:axis]), prod(shape[axis:])))
        name = context.builder.make_unique_name(f"{context.output()}_flat")
        write_along_axis(context, flat, 1, name)
        context.result("reshape", (name,), {"shape": shape})

    return Converter(convert_softmax, expand_for_16_bit_floats=True)


def _write_softmax(context: OpContext, data_name: str, axis: int, output_name: str) -> None:
    """Write the value ``output_name``, the softmax of ``data_name`` along ``axis``."""
    context.write_node("softmax", (data_name,), {"axis": axis, "beta": 1.0}, output_name)


def _write_log_softmax(context: OpContext, data_name: str, axis: int, output_name: str) -> None:
    """Write the value ``output_name``, the logarithm of the softmax of ``data_name`` along ``axis``.

    It is x - max - log(sum(exp(x - max)))."""
    over: Mapping[str, Attr] = {"axes": (axis,), "keepdims": True}
    centred = context.emit("sub", (data_name, context.emit("max", (data_name,), over)))
    total = context.emit("sum", (context.emit("exp", (centred,)),), over)
    context.write_node("sub", (centred, context.emit("log", (total,))), {}, output_name)


NEURAL_CONVERTERS: Mapping[str, Converter] = {
    "BatchNormalization": Converter(convert_batch_normalization),
    "Gemm": Converter(convert_gemm),
    "InstanceNormalization": Converter(convert_instance_normalization),
    "LayerNormalization": Converter(convert_layer_normalization),
    "LogSoftmax": make_softmax_converter(_write_log_softmax),
    "MatMul": Converter(convert_matmul, (*FLOAT, "int32", "int64")),
    "Softmax": make_softmax_converter(_write_softmax),
}


# ---- Converters of Einsum and of transforms: DFT, STFT, MelWeightMatrix, Col2Im.


def convert_einsum(context: OpContext) -> None:
    """Convert Einsum to ``einsum``, in which axes have numbers as labels instead of letters.

    A letter becomes its character code. An ellipsis becomes negative numbers, one for each axis that it covers."""
    equation = context.operator.attributes.text("equation", "").replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != context.input_count():
        context.broken(
            f"equation {equation!r} has {len(terms)} terms, expected {context.input_count()}, one for each operand"
        )
    ranks = [len(context.shape(k)) for k in range(len(terms))]
    hidden = max(
        (rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True) if "." in term), default=0
    )
    if not arrow:
        once = sorted(c for c in set(left) - set(",.") if left.count(c) == 1)
        right = ("..." if "..." in left else "") + "".join(once)

    def convert_axis_labels_to_numbers(term: str, rank: int) -> tuple[int, ...]:
        """Return a number for each axis of an operand of rank ``rank``, from its term of the equation, such as "ij"."""
        dots = rank - len(term.replace("...", ""))
        before, _, after = term.partition("...")
        middle = tuple(range(-dots, 0)) if "..." in term else ()
        return (*(ord(c) for c in before), *middle, *(ord(c) for c in after))

    inputs = tuple(convert_axis_labels_to_numbers(term, rank) for term, rank in zip(terms, ranks, strict=True))
    output = convert_axis_labels_to_numbers(right, len(right.replace("...", "")) + (hidden if "..." in right else 0))
    operands = [context.operand(k) for k in range(len(terms))]
    context.result("einsum", operands, {"inputs": inputs, "output": output})


def _compute_dft_factors(sample_count: int, frequency_count: int, is_inverse: bool) -> tuple[Array, Array]:
    """Return the real and the imaginary parts of the factors of a discrete Fourier transform.

    Both have shape (``sample_count``, ``frequency_count``). They are cosines and negated sines; for the inverse
    transform, cosines and sines divided by ``sample_count``."""
    # The product of indices is reduced modulo length first, so that large angles lose no precision.
    angle = 2 * np.pi * (np.outer(np.arange(sample_count), np.arange(frequency_count)) % sample_count) / sample_count
    scale = 1 / sample_count if is_inverse else 1.0
    return np.cos(angle) * scale, (np.sin(angle) if is_inverse else -np.sin(angle)) * scale


def compute_dft_matrix(
    sample_count: int, bin_count: int, is_input_complex: bool, is_inverse: bool, is_output_real: bool
) -> Array:
    """Return the matrix of a discrete Fourier transform, of shape (samples, input parts, bins, output parts).

    Parts are the real and the imaginary part of a number; the axis has one element where numbers are real.
    ``is_input_complex``: the input is complex. ``is_output_real``: the matrix is that of the inverse transform to real
    numbers, from the lower half (``sample_count`` // 2 + 1 rows) of a conjugate symmetric spectrum. Its rows are
    doubled to include the mirrored upper half. The row of frequency 0 is not, nor that of half the sampling rate, since
    they have no mirror image."""
    cosine, sine = _compute_dft_factors(sample_count, bin_count, is_inverse)
    if is_output_real:
        half = sample_count // 2 + 1
        twice = np.full((half, 1), 2.0)
        twice[0] = 1
        if sample_count % 2 == 0:
            twice[-1] = 1
        return np.stack([cosine[:half] * twice, -sine[:half] * twice], 1)[..., None]
    real = np.stack([cosine, sine], -1)
    imaginary = np.stack([-sine, cosine], -1)
    return np.stack([real, imaginary], 1) if is_input_complex else real[:, None]


def convert_dft(context: OpContext) -> None:
    """Convert DFT, forward or inverse, along one axis of real or complex data, to an ``einsum`` with a constant matrix.

    With ``onesided`` the spectrum is only the lower half of the frequencies."""
    attributes, data = context.operator.attributes, context.value(0)
    shape, kind = context.shape(0), context.type(data).dtype
    inverse, onesided = attributes.flag("inverse"), attributes.flag("onesided")
    axis = attributes.integer("axis", 1) if context.opset < 20 else -2
    if context.opset >= 20 and context.has_input(2):
        axis = int(context.constant(2).reshape(-1)[0])
    axis = context.axis(axis, len(shape))
    real_out = inverse and onesided
    length = 2 * (shape[axis] - 1) if real_out else shape[axis]
    if context.has_input(1):
        length = int(context.constant(1).reshape(-1)[0])
    input_length = length // 2 + 1 if real_out else length
    data = _slice_or_pad_axis(context, data, axis, input_length)
    bins = length // 2 + 1 if onesided and not inverse else length
    matrix = compute_dft_matrix(length, bins, shape[-1] == 2, inverse, real_out)
    name = context.new_constant(f"{context.output()}_waves", matrix.astype(kind))
    labels = tuple(range(len(shape)))
    frequency_axis, part_axis = 100, 101
    output = tuple(frequency_axis if k == axis else part_axis if k == len(shape) - 1 else k for k in labels)
    attrs: Mapping[str, Attr] = {
        "inputs": (labels, (axis, len(shape) - 1, frequency_axis, part_axis)),
        "output": output,
    }
    context.result("einsum", (data, name), attrs)


def _slice_or_pad_axis(context: OpContext, value_name: str, axis: int, target_extent: int) -> str:
    """Slice ``value_name``, or pad it with zeros at the end, to ``target_extent`` elements along ``axis``.

    Return the result's name."""
    shape = context.type(value_name).shape
    if target_extent < shape[axis]:
        end = tuple(target_extent if k == axis else e for k, e in enumerate(shape))
        cut: Mapping[str, Attr] = {"begin": (0,) * len(shape), "end": end, "strides": (1,) * len(shape)}
        return context.emit("slice", (value_name,), cut)
    if target_extent > shape[axis]:
        padding = tuple((0, target_extent - e if k == axis else 0) for k, e in enumerate(shape))
        return context.emit("pad", (value_name,), {"padding": padding, "value": 0.0})
    return value_name


def convert_stft(context: OpContext) -> None:
    """Convert STFT to a ``gather`` of overlapping frames and an ``einsum`` with the window and the DFT matrix."""
    data, kind = context.value(0), context.type(context.value(0)).dtype
    _, samples, parts = context.shape(0)
    step = int(context.constant(1).reshape(-1)[0])
    length = int(context.constant(3).reshape(-1)[0]) if context.has_input(3) else context.shape(2)[0]
    frames = (samples - length) // step + 1
    starts = np.arange(frames)[:, None] * step + np.arange(length)
    frame_indices = context.new_constant(f"{context.output()}_frames", starts.astype(np.int32))
    rows = context.emit("gather", (data, frame_indices), {"axis": 1})
    onesided = context.operator.attributes.flag("onesided", True)
    matrix = compute_dft_matrix(length, length // 2 + 1 if onesided else length, parts == 2, False, False)
    name = context.new_constant(f"{context.output()}_waves", matrix.astype(kind))
    operands: list[str] = [rows, name]
    labels: list[tuple[int, ...]] = [(0, 1, 2, 3), (2, 3, 4, 5)]
    if context.has_input(2):
        operands.append(context.operand(2))
        labels.append((2,))
    context.result("einsum", operands, {"inputs": tuple(labels), "output": (0, 1, 4, 5)})


def convert_mel_weight_matrix(context: OpContext) -> None:
    """Convert MelWeightMatrix to a constant (spectrum bins, mel bands), computed at compile time."""
    bins, length, rate, low, high = (float(context.constant(k).reshape(-1)[0]) for k in range(5))
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

    kind = dtype_from_code(context.operator.attributes.integer("output_datatype", 1), context.where)
    context.result_constant(result.astype(kind))


def convert_col2im(context: OpContext) -> None:
    """Convert Col2Im, which sums overlapping blocks to an image, to a transposed convolution.

    Each input channel holds one element of the blocks. Its kernel is 1 at the position of that element in the block and
    0 elsewhere."""
    attributes, shape = context.operator.attributes, context.shape(0)
    image, block = context.integers(1), context.integers(2)
    rank, taps = len(image), prod(block)
    strides, dilation = (attributes.integers(name, (1,) * rank) for name in ("strides", "dilations"))
    pads = attributes.integers("pads", (0,) * 2 * rank)
    counts = [
        (e + pads[k] + pads[rank + k] - (b - 1) * d - 1) // s + 1
        for k, (e, b, d, s) in enumerate(zip(image, block, dilation, strides, strict=True))
    ]
    channels = shape[1] // taps
    data = context.reshape(context.value(0), (shape[0] * channels, taps, *counts))
    grown = [(c - 1) * s + (b - 1) * d + 1 for c, s, b, d in zip(counts, strides, block, dilation, strict=True)]
    after = [g - pads[k] - e for k, (g, e) in enumerate(zip(grown, image, strict=True))]
    kind = context.type(data).dtype
    one = np.eye(taps).reshape(taps, 1, *block).astype(kind)
    weight = context.new_constant(f"{context.output()}_taps", one)
    attrs: Mapping[str, Attr] = {
        "strides": strides,
        "dilation": dilation,
        "padding": (*pads[:rank], *after),
        "groups": 1,
    }
    summed = context.emit("convolution_transpose", (data, weight), attrs)
    context.result_reshape(summed, (shape[0], channels, *image))


SIGNAL_CONVERTERS: Mapping[str, Converter] = {
    "Col2Im": Converter(convert_col2im),
    "DFT": Converter(convert_dft),
    "Einsum": Converter(convert_einsum, (*FLOAT, "int32", "int64")),
    "MelWeightMatrix": Converter(convert_mel_weight_matrix, ()),
    "STFT": Converter(convert_stft),
}


# ---- Det: Gaussian elimination with partial pivoting, one column in each iteration of a loop.
#
# Rows are not exchanged. Instead the row of each pivot is marked as used, and the sign of the determinant changes once for
# every unused row above the pivot's row, as if the pivot's row were exchanged with each of these rows in turn.
# Source: ONNX Det; Golub and Van Loan, Matrix Computations, 3.4.


def convert_det(context: OpContext) -> None:
    """Convert Det, the determinants of matrices (..., N, N), to a loop of N elimination steps.

    The result has shape (...)."""
    data, shape = context.value(0), context.shape(0)
    if len(shape) < 2 or shape[-1] != shape[-2]:
        context.broken(f"got matrices of shape {shape}, expected two equal last extents")
    count, size, kind = prod(shape[:-2]), shape[-1], context.type(data).dtype
    matrices = context.reshape(data, (count, size, size))
    free = context.new_constant(f"{context.output()}_free", np.ones((count, size), np.bool_))
    one = context.new_constant(f"{context.output()}_one", np.ones((count, 1), dtypes.to_numpy(kind)))
    attrs: dict[str, Any] = {
        "body": _build_elimination_step(context, count, size, kind),
        "count": size,
        "carried": 3,
        "guarded": False,
    }
    results = [context.builder.make_unique_name(f"{context.output()}_{stem}") for stem in ("rest", "free", "product")]
    context.write_node_with_outputs("loop", (matrices, free, one), attrs, results)
    context.result_reshape(results[2], shape[:-2])


def _build_elimination_step(context: OpContext, matrix_count: int, matrix_size: int, element_dtype: str) -> Graph:
    """Build the loop body for Det that eliminates one column of all matrices (Gaussian elimination with pivoting).

    With M = ``matrix_count`` and N = ``matrix_size``, the loop carries the matrices (M, N, N), flags of the rows that
    have not been used as pivot rows (M, N), and the signed product of the pivots so far (M, 1)."""
    body = GraphBuilder(context.loc.file)
    body.at(context.loc.index, context.loc.name)

    def emit_in_body(op: str, *operand_names: str, **attrs: Attr) -> str:
        return body.emit(op, operand_names, attrs)

    def add_scalar_constant(value: float) -> str:
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
    column = emit_in_body("gather", rest, iteration, axis=2)
    magnitude = emit_in_body("where", free, emit_in_body("abs", column), add_scalar_constant(-1.0))
    pivot_row = emit_in_body("argmax", magnitude, axis=1, keepdims=True, last=False, out_dtype="int64")
    row = emit_in_body("gather_nd", rest, pivot_row, batch_dims=1)
    pivot = emit_in_body("gather_nd", column, pivot_row, batch_dims=1)
    pivot = body.reshape(pivot, (matrix_count, 1))
    still_free = emit_in_body("logical_and", free, emit_in_body("not_equal", rows, pivot_row))
    # A pivot of 0 makes the product 0; dividing by 1 instead keeps NaN out of the remaining columns.
    divisor = emit_in_body(
        "where", emit_in_body("equal", pivot, add_scalar_constant(0.0)), add_scalar_constant(1.0), pivot
    )
    factor = emit_in_body("where", still_free, emit_in_body("div", column, divisor), add_scalar_constant(0.0))
    step = emit_in_body(
        "mul", body.reshape(factor, (matrix_count, matrix_size, 1)), body.reshape(row, (matrix_count, 1, matrix_size))
    )
    above = emit_in_body("logical_and", free, emit_in_body("less", rows, pivot_row))
    signs = emit_in_body(
        "prod",
        emit_in_body("where", above, add_scalar_constant(-1.0), add_scalar_constant(1.0)),
        axes=(1,),
        keepdims=True,
    )
    product = emit_in_body("mul", product, emit_in_body("mul", pivot, signs))
    results: Mapping[str, str] = {
        "next_rest": emit_in_body("sub", rest, step),
        "next_free": still_free,
        "next_product": product,
    }
    return body.graph("column", results)


DETERMINANT_CONVERTERS: Mapping[str, Converter] = {"Det": Converter(convert_det)}


# ---- ONNX Runtime's layers on quantised weights, which quantise their data at run time.


def convert_dynamic_quantize_lstm(context: OpContext) -> None:
    """Convert DynamicQuantizeLSTM to an LSTM in float32 with weights dequantised at compile time.

    ONNX Runtime's operator also quantises data and state at every time step. The float32 LSTM does not, so its results
    are closer to those of the trained network."""
    weights = [
        context.new_constant(
            f"{context.output()}_weight", _dequantise_lstm_weights(context, position, 6 + 2 * position)
        )
        for position in (1, 2)
    ]
    inputs = context.operator.inputs
    operator = replace(context.operator, op_type="LSTM", domain="", inputs=(inputs[0], *weights, *inputs[3:8]))
    convert_recurrent_layer(OpContext(operator, context.builder, context.loc))


def _dequantise_lstm_weights(context: OpContext, weight_input_index: int, scale_input_index: int) -> Array:
    """Return the dequantised weights of DynamicQuantizeLSTM in the layout of LSTM, (directions, 4 * hidden, inputs).

    Input ``weight_input_index`` has the layout (directions, inputs, 4 * hidden). Input ``scale_input_index`` has one
    scale for each direction, or for each direction and each of the 4 * hidden columns; the next input has the zero
    points."""
    data, factor = context.constant(weight_input_index).astype(np.float32), context.constant(scale_input_index)
    zero = (
        context.constant(scale_input_index + 1) if context.has_input(scale_input_index + 1) else np.zeros_like(factor)
    )
    if data.ndim != 3 or factor.shape not in (data.shape[:1], data.shape[::2]) or zero.shape != factor.shape:
        context.broken(
            f"got weights of shape {data.shape} with scales {factor.shape} and zero points {zero.shape}, expected three axes "
            f"and one scale for each of {data.shape[:1]} or of {data.shape[::2]}"
        )
    shape = (data.shape[0], 1, factor.size // data.shape[0])
    real = (data - zero.astype(np.float32).reshape(shape)) * factor.reshape(shape)
    return np.ascontiguousarray(real.transpose(0, 2, 1))


DYNAMIC_CONVERTERS: Mapping[str, Converter] = {
    "DynamicQuantizeLSTM": Converter(convert_dynamic_quantize_lstm, ("float32",))
}
"""Converters of ONNX operators of the domain ``com.microsoft``, by operator name."""
