# SPDX-License-Identifier: Apache-2.0
"""Conversion of ONNX matrix products, normalisations, Fourier transforms, Einsum and Det."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Annotated, Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array, is_float
from microc.frontend.graph_builder import GraphBuilder
from microc.frontend.model_limits import MAX_BYTES, check_shape
from microc.frontend.onnx.builder import StoredTensor
from microc.frontend.onnx.context import FLOAT, ConverterTable, OpContext
from microc.frontend.onnx.operators.windows import check_spatial_attribute
from microc.frontend.signature import (
    AttributeBefore,
    Axis,
    DefaultBefore,
    Dtype,
    Ints,
    Matrix,
    Only,
    Rank,
    SameDtype,
    SameDtypeMarker,
    Value,
)
from microc.graph.ir import Attr, Graph
from microc.ops.signal.fft import compute_dft_matrix

CONVERTERS = ConverterTable()

_MAX_MEL_BINS = 1 << 16
"""Maximum bands of a MelWeightMatrix, which are computed one by one."""

# ---- Converters of matrix products.


@CONVERTERS.register("Gemm")
def convert_gemm(
    context: OpContext,
    a: Matrix,
    b: Annotated[SameDtype, Rank(2, 2)],
    c: Annotated[SameDtype, Rank(0, 2)] | None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: bool = False,
    transB: bool = False,
) -> None:
    """Convert Gemm, alpha * A' * B' + beta * C.

    A' and B' are A and B, transposed if ``transA`` or ``transB`` is set. If B is constant, Gemm becomes a ``dense``
    layer; otherwise it becomes a ``matmul``."""
    left: Value = context.emit("transpose", (a,), {"axes": (1, 0)}) if transA else a
    weight = context.find_stored_tensor(b)
    if weight is None or (alpha != 1.0 and weight.quant is not None):
        right: Value = context.emit("transpose", (b,), {"axes": (1, 0)}) if transB else b
        product = _multiply_by_number(context, context.emit("matmul", (left, right)), alpha)
        _write_gemm_output(context, product, c, beta)
        return
    if not transB:
        weight = weight.transpose((1, 0))
    if alpha != 1.0:
        weight = StoredTensor((weight.data * np.float32(alpha)).astype(np.float32))
    bias = None if c is None else _get_gemm_bias(context, c, weight.data.shape[0], beta)
    operands = [left, context.add_stored_tensor(f"{context.output()}_weight", weight)]
    if bias is not None:
        context.result("dense", (*operands, context.add_stored_tensor(f"{context.output()}_bias", bias)))
    elif c is not None:
        _write_gemm_output(context, context.emit("dense", operands), c, beta)
    else:
        context.result("dense", operands)


def _get_gemm_bias(context: OpContext, c: Value, unit_count: int, beta: float) -> StoredTensor | None:
    """Return beta * C as the bias of a ``dense`` layer with ``unit_count`` outputs.

    Return None if C is computed at run time, or not the same for all rows of the result."""
    stored = context.find_stored_tensor(c)
    if stored is None or (stored.quant is not None and (beta != 1.0 or stored.data.size != unit_count)):
        return None
    shape = stored.data.shape
    if prod(shape[:-1]) != 1 or shape[-1:] not in ((), (1,), (unit_count,)):
        return None
    flat = stored.reshape((stored.data.size,))
    if flat is None or (flat.data.size == unit_count and beta == 1.0):
        return flat
    return StoredTensor(np.broadcast_to(flat.data * np.float32(beta), (unit_count,)).astype(np.float32))


def _multiply_by_number(context: OpContext, value: Value, factor: float) -> Value:
    """Emit the product of ``value`` and the number ``factor``; return it, or ``value`` itself if the factor is 1."""
    return value if factor == 1.0 else context.emit("mul", (value, context.scalar(factor, value.dtype)))


def _write_gemm_output(context: OpContext, product: Value, c: Value | None, beta: float) -> None:
    """Write the output of Gemm: ``product`` + beta * C, or ``product`` alone if C is absent."""
    if c is None:
        context.result_alias(product)
    else:
        context.result("add", (product, _multiply_by_number(context, c, beta)))


@CONVERTERS.register("MatMul", dtypes=(*FLOAT, "int32", "int64"))
def convert_matmul(context: OpContext, a: Value, b: SameDtype) -> None:
    """Convert MatMul, which multiplies matrices as ``numpy.matmul`` does.

    If the data are floats and the right operand is a constant matrix, MatMul becomes one ``dense`` layer over all
    rows."""
    left, right = a.shape, b.shape
    if not left or not right or left[-1] != right[max(len(right) - 2, 0)]:
        context.broken(f"got matrices of shapes {left} and {right}, expected equal inner extents")
    weight = context.find_stored_tensor(b)
    if weight is not None and len(right) == 2 and is_float(a.dtype):
        context.result_alias(emit_dense(context, a, weight.transpose((1, 0)), None))
        return
    shape = (*context.broadcast_shapes(left[:-2], right[:-2]), *left[-2:-1], *right[-1:][: len(right) - 1])
    a = context.reshape(a, (1, left[0])) if len(left) == 1 else a
    b = context.reshape(b, (right[0], 1)) if len(right) == 1 else b
    context.result_alias(context.reshape(context.emit("matmul", (a, b)), shape))


def emit_dense(context: OpContext, data: Value, weight: StoredTensor, bias: StoredTensor | None) -> Value:
    """Emit a dense layer over the last axis of ``data``; return its result.

    ``data`` (..., inputs) may have any number of leading axes, which the result (..., units) keeps. ``weight`` has the
    shape (units, inputs)."""
    shape, (units, depth) = data.shape, weight.data.shape
    if not shape or shape[-1] != depth:
        context.broken(f"got data of shape {shape}, expected a last axis of {depth} for weights of {units} x {depth}")
    operands = [
        context.reshape(data, (prod(shape[:-1]), depth)),
        context.add_stored_tensor(f"{context.output()}_weight", weight),
    ]
    if bias is not None:
        operands.append(context.add_stored_tensor(f"{context.output()}_bias", bias))
    return context.reshape(context.emit("dense", operands), (*shape[:-1], units))


# ---- Converters of normalisations and softmaxes.


@CONVERTERS.register("BatchNormalization", outputs=1)
def convert_batch_normalization(
    context: OpContext,
    x: Value,
    scale: Value,
    bias: Value,
    mean: Value,
    variance: Value,
    *,
    epsilon: float = 1e-5,
    spatial: bool = True,
    training_mode: Annotated[bool, Only(False, "export the model for inference")] = False,
) -> None:
    """Convert BatchNormalization for inference: x * f + (bias - mean * f) with f = scale / sqrt(variance + epsilon).

    Each channel has its own scale, bias, mean and variance. Before opset 9 with ``spatial`` = 0, each element of an
    image has its own."""
    parameters = (scale, bias, mean, variance)
    if any(value.constant is None for value in parameters):
        _convert_batch_norm_at_run_time(context, x, epsilon)
        return
    parameter_shape = x.shape[1:2] if context.opset >= 9 or spatial else x.shape[1:]
    if x.rank < 2 or any(value.shape != parameter_shape for value in parameters):
        shapes = ", ".join(str(value.shape) for value in parameters)
        context.broken(f"scale, B, mean and var have shapes {shapes}, expected {parameter_shape}")
    scales, biases, means, variances = (context.constant(k).astype(np.float64) for k in range(1, 5))
    if (variances < 0).any():
        context.broken(f"var: got {variances.min()}, expected no negative number")
    factor = scales / np.sqrt(variances + epsilon)
    scaled = context.emit("mul", (x, _add_channel_constant(context, factor, x)))
    context.result("add", (scaled, _add_channel_constant(context, biases - means * factor, x)))


def _convert_batch_norm_at_run_time(context: OpContext, x: Value, epsilon: float) -> None:
    """Convert BatchNormalization whose scale, bias, mean or variance is computed at run time."""
    scale, bias, mean, variance = (_reshape_along_channels(context, context.operand(k), x.rank) for k in range(1, 5))
    shift = context.scalar(epsilon, x.dtype)
    deviation = context.emit("sqrt", (context.emit("add", (variance, shift)),))
    factor = context.emit("div", (scale, deviation))
    scaled = context.emit("mul", (context.emit("sub", (x, mean)), factor))
    context.result("add", (scaled, bias))


def _reshape_along_channels(context: OpContext, value: Value, target_rank: int) -> Value:
    """Reshape a value with one element for each channel, so that it broadcasts to data of rank ``target_rank``.

    Channels are axis 1 of the data."""
    if value.rank != 1:
        context.broken(f"{value!r}: got shape {value.shape}, expected one element for each channel")
    return context.reshape(value, (value.shape[0], *[1] * (target_rank - 2)))


def _add_channel_constant(context: OpContext, channel_values: Array, data: Value) -> Value:
    """Add a constant of ``channel_values``, shaped to broadcast to ``data``; return it.

    The values belong to axis 1 (one value per channel), or to axis 1 and all axes after it (one value per element)."""
    shape = (*channel_values.shape, *[1] * (data.rank - 1 - channel_values.ndim))
    return context.new_constant(f"{context.output()}_factor", channel_values.astype(data.dtype).reshape(shape))


def _emit_normalization(
    context: OpContext,
    data: Value,
    axes: tuple[int, ...],
    epsilon: float,
    statistic_output_names: tuple[str, str] = ("", ""),
) -> Value:
    """Emit (x - mean) / sqrt(variance + epsilon) with mean and variance over ``axes`` of ``data``; return the result.

    ``statistic_output_names``: names under which the mean and 1 / sqrt(variance + epsilon) are written, if they are
    outputs of the ONNX operator; each is empty if the output is absent."""
    over: Mapping[str, Attr] = {"axes": axes, "keepdims": True}
    mean = (
        context.write_node("mean", (data,), over, statistic_output_names[0])
        if statistic_output_names[0]
        else context.emit("mean", (data,), over)
    )
    centred = context.emit("sub", (data, mean))
    variance = context.emit("mean", (context.emit("mul", (centred, centred)),), over)
    shift = context.scalar(epsilon, data.dtype)
    deviation = context.emit("sqrt", (context.emit("add", (variance, shift)),))
    if statistic_output_names[1]:
        context.write_node("div", (context.scalar(1.0, data.dtype), deviation), {}, statistic_output_names[1])
    return context.emit("div", (centred, deviation))


@CONVERTERS.register("LayerNormalization")
def convert_layer_normalization(
    context: OpContext, x: Value, scale: SameDtype, bias: SameDtype | None, *, axis: Axis = -1, epsilon: float = 1e-5
) -> None:
    """Convert LayerNormalization, which normalises over attribute ``axis`` and all axes after it.

    The normalised data are multiplied by a scale and, if there is one, added to a bias."""
    statistics = (context.output(1), context.output(2))
    normalized = _emit_normalization(context, x, tuple(range(axis, x.rank)), epsilon, statistics)
    if bias is None:
        context.result("mul", (normalized, scale))
    else:
        context.result("add", (context.emit("mul", (normalized, scale)), bias))


@CONVERTERS.register("InstanceNormalization")
def convert_instance_normalization(
    context: OpContext, x: Annotated[Value, Rank(3, None)], scale: SameDtype, bias: SameDtype, *, epsilon: float = 1e-5
) -> None:
    """Convert InstanceNormalization: normalise each channel of each image over the spatial axes.

    The result is multiplied by a scale and added to a bias, both with one element per channel."""
    normalized = _emit_normalization(context, x, tuple(range(2, x.rank)), epsilon)
    scales, biases = (_reshape_along_channels(context, value, x.rank) for value in (scale, bias))
    context.result("add", (context.emit("mul", (normalized, scales)), biases))


@CONVERTERS.register("Softmax", expand_for_16_bit_floats=True)
def convert_softmax(context: OpContext, x: Value, *, axis: Annotated[Axis, DefaultBefore(13, 1)] = -1) -> None:
    """Convert Softmax."""
    write_softmax(context, x, axis, flattens=context.opset < 13)


@CONVERTERS.register("LogSoftmax", expand_for_16_bit_floats=True)
def convert_log_softmax(context: OpContext, x: Value, *, axis: Annotated[Axis, DefaultBefore(13, 1)] = -1) -> None:
    """Convert LogSoftmax."""
    _write_along_axis(context, x, axis, _write_log_softmax, flattens=context.opset < 13)


def write_softmax(context: OpContext, x: Value, axis: int, *, flattens: bool) -> None:
    """Write the output: the softmax of ``x`` along ``axis``, or over it and all axes after it if ``flattens``."""
    _write_along_axis(context, x, axis, _write_softmax, flattens=flattens)


def _write_along_axis(
    context: OpContext, x: Value, axis: int, write: Callable[[OpContext, Value, int, str], None], *, flattens: bool
) -> None:
    """Write the output by ``write``, which takes data, an axis and the name of the result.

    If ``flattens``, as before opset 13, the operator is over ``axis`` and all axes after it together. These axes are
    then flattened to one, and the shape is restored afterwards."""
    if not flattens or axis == x.rank - 1:
        write(context, x, axis, context.output())
        return
    flat = context.reshape(x, (prod(x.shape[:axis]), prod(x.shape[axis:])))
    name = context.builder.make_unique_name(f"{context.output()}_flat")
    write(context, flat, 1, name)
    context.result("reshape", (name,), {"shape": x.shape})


def _write_softmax(context: OpContext, data: Value, axis: int, output_name: str) -> None:
    """Write the value ``output_name``, the softmax of ``data`` along ``axis``."""
    context.write_node("softmax", (data,), {"axis": axis, "beta": 1.0}, output_name)


def _write_log_softmax(context: OpContext, data: Value, axis: int, output_name: str) -> None:
    """Write the value ``output_name``, the logarithm of the softmax of ``data`` along ``axis``.

    It is x - max - log(sum(exp(x - max)))."""
    over: Mapping[str, Attr] = {"axes": (axis,), "keepdims": True}
    centred = context.emit("sub", (data, context.emit("max", (data,), over)))
    total = context.emit("sum", (context.emit("exp", (centred,)),), over)
    context.write_node("sub", (centred, context.emit("log", (total,))), {}, output_name)


# ---- Converters of Einsum and of transforms: DFT, STFT, MelWeightMatrix, Col2Im.


@CONVERTERS.register("Einsum", dtypes=(*FLOAT, "int32", "int64"))
def convert_einsum(context: OpContext, *inputs: SameDtype, equation: str) -> None:
    """Convert Einsum to ``einsum``, in which axes have numbers as labels instead of letters.

    A letter becomes its character code. An ellipsis becomes negative numbers, one for each axis that it covers."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(inputs):
        context.broken(f"equation {equation!r} has {len(terms)} terms, expected {len(inputs)}, one for each operand")
    ranks = [value.rank for value in inputs]
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

    labels = tuple(convert_axis_labels_to_numbers(term, rank) for term, rank in zip(terms, ranks, strict=True))
    output = convert_axis_labels_to_numbers(right, len(right.replace("...", "")) + (hidden if "..." in right else 0))
    context.result("einsum", inputs, {"inputs": labels, "output": output})


@CONVERTERS.register("DFT")
def convert_dft(
    context: OpContext,
    x: Value,
    dft_length: int | None,
    axis: Annotated[int, AttributeBefore(20), DefaultBefore(20, 1)] = -2,
    *,
    inverse: bool = False,
    onesided: bool = False,
) -> None:
    """Convert DFT, forward or inverse, along one axis of real or complex data, to an ``einsum`` with a constant matrix.

    With ``onesided`` the spectrum is only the lower half of the frequencies."""
    axis = context.axis(axis, x.rank)
    real_out = inverse and onesided
    length = dft_length
    if length is None:
        length = 2 * (x.shape[axis] - 1) if real_out else x.shape[axis]
    if length < 1:
        context.broken(f"dft_length: got {length}, expected at least 1")
    if real_out and x.shape[-1] != 2:
        context.broken(
            f"inverse and onesided: got data of shape {x.shape}, expected 2 parts of a number along the last axis"
        )
    data = _slice_or_pad_axis(context, x, axis, length // 2 + 1 if real_out else length)
    bins = length // 2 + 1 if onesided and not inverse else length
    waves = _write_dft_matrix(context, length, bins, x, inverse, real_out)
    labels = tuple(range(x.rank))
    frequency_axis, part_axis = 100, 101
    output = tuple(frequency_axis if k == axis else part_axis if k == x.rank - 1 else k for k in labels)
    attrs: Mapping[str, Attr] = {"inputs": (labels, (axis, x.rank - 1, frequency_axis, part_axis)), "output": output}
    context.result("einsum", (data, waves), attrs)


def _write_dft_matrix(
    context: OpContext, length: int, bins: int, data: Value, inverse: bool = False, real_out: bool = False
) -> Value:
    """Write the constant matrix of a transform of ``data``, whose last axis holds the parts of numbers; return it."""
    if data.shape[-1] not in (1, 2):
        context.broken(f"got data of shape {data.shape}, expected 1 or 2 parts of a number along the last axis")
    check_shape((length, data.shape[-1], bins, 2), "float64", context.where)  # as it is computed
    matrix = compute_dft_matrix(length, bins, data.shape[-1] == 2, inverse, real_out)
    return context.new_constant(f"{context.output()}_waves", matrix.astype(data.dtype))


def _slice_or_pad_axis(context: OpContext, value: Value, axis: int, target_extent: int) -> Value:
    """Slice ``value``, or pad it with zeros at the end, to ``target_extent`` elements along ``axis``; return the
    result."""
    shape = value.shape
    if target_extent < shape[axis]:
        return context.slice_axis(value, axis, 0, target_extent)
    if target_extent > shape[axis]:
        padding = tuple((0, target_extent - e if k == axis else 0) for k, e in enumerate(shape))
        return context.emit("pad", (value,), {"padding": padding, "value": 0.0})
    return value


@CONVERTERS.register("STFT")
def convert_stft(
    context: OpContext,
    signal: Annotated[Value, Rank(3, 3)],
    frame_step: int,
    window: Annotated[Value, SameDtypeMarker(), Rank(1, 1)] | None,
    frame_length: int | None,
    *,
    onesided: bool = True,
) -> None:
    """Convert STFT to a ``gather`` of overlapping frames and an ``einsum`` with the window and the DFT matrix."""
    samples = signal.shape[1]
    length = frame_length if frame_length is not None or window is None else window.shape[0]
    if length is None or frame_step < 1 or not 1 <= length <= samples:
        context.broken(
            f"got a frame_step of {frame_step} and frames of {length} for {samples} samples, "
            "expected a step of at least 1, and a window or frame_length within the samples"
        )
    frames = (samples - length) // frame_step + 1
    check_shape((frames, length), "float64", context.where)
    starts = np.arange(frames)[:, None] * frame_step + np.arange(length)
    frame_indices = context.new_constant(f"{context.output()}_frames", starts.astype(np.int32))
    rows = context.emit("gather", (signal, frame_indices), {"axis": 1})
    operands = [rows, _write_dft_matrix(context, length, length // 2 + 1 if onesided else length, signal)]
    labels: list[Ints] = [(0, 1, 2, 3), (2, 3, 4, 5)]
    if window is not None:
        operands.append(window)
        labels.append((2,))
    context.result("einsum", operands, {"inputs": tuple(labels), "output": (0, 1, 4, 5)})


@CONVERTERS.register("MelWeightMatrix", dtypes=())
def convert_mel_weight_matrix(
    context: OpContext,
    num_mel_bins: Array,
    dft_length: Array,
    sample_rate: Array,
    lower_edge_hertz: Array,
    upper_edge_hertz: Array,
    *,
    output_datatype: Dtype = "float32",
) -> None:
    """Convert MelWeightMatrix to a constant (spectrum bins, mel bands), computed at compile time."""
    bins, length, rate, low, high = (
        float(number.reshape(-1)[0])
        for number in (num_mel_bins, dft_length, sample_rate, lower_edge_hertz, upper_edge_hertz)
    )
    if not (1 <= bins <= _MAX_MEL_BINS and 1 <= length <= MAX_BYTES and rate > 0 and 0 <= low <= high < np.inf):
        context.broken(
            f"got {bins:g} bins, a dft_length of {length:g}, a sample_rate of {rate:g} and edges of {low:g} and {high:g} Hz, "
            f"expected 1..{_MAX_MEL_BINS} bins, a length and a rate above 0, and edges in order"
        )
    count = int(length) // 2 + 1
    check_shape((count, int(bins)), "float64", context.where)
    mel = [2595 * np.log10(1 + edge / 700) for edge in (low, high)]
    points = mel[0] + np.arange(int(bins) + 2) * ((mel[1] - mel[0]) / (bins + 2))
    edges = np.floor((int(length) + 1) * 700 * (10 ** (points / 2595) - 1) / rate)
    if edges[-1] > count or edges[-2] == count:
        context.broken(f"upper_edge_hertz is {high:g}, expected at most half the sample_rate of {rate:g}")
    edges = edges.astype(np.int64)
    result = np.zeros((count, int(bins)))
    for k in range(int(bins)):
        first, centre, last = edges[k : k + 3]
        if first == centre:
            result[centre, k] = 1
        else:
            result[first : centre + 1, k] = (np.arange(first, centre + 1) - first) / (centre - first)
        if last > centre:
            result[centre:last, k] = (last - np.arange(centre, last)) / (last - centre)
    context.result_constant(result.astype(dtypes.to_numpy(output_datatype)))


@CONVERTERS.register("Col2Im")
def convert_col2im(
    context: OpContext,
    x: Annotated[Value, Rank(3, 3)],
    image_shape: Ints,
    block_shape: Ints,
    *,
    dilations: Ints = (),
    pads: Ints = (),
    strides: Ints = (),
) -> None:
    """Convert Col2Im, which sums overlapping blocks to an image, to a transposed convolution.

    Each input channel holds one element of the blocks. Its kernel is 1 at the position of that element in the block and
    0 elsewhere."""
    rank, taps = len(image_shape), prod(block_shape)
    if not rank or min((*image_shape, *block_shape)) < 1 or x.shape[1] % taps:
        context.broken(
            f"got image_shape {image_shape} and block_shape {block_shape} for {x.shape[1]} channels, "
            "expected extents of at least 1, and a block whose elements divide the channels"
        )
    check_spatial_attribute(context, "block_shape", block_shape, (1,) * rank, 1)
    strides = check_spatial_attribute(context, "strides", strides, (1,) * rank, 1)
    dilations = check_spatial_attribute(context, "dilations", dilations, (1,) * rank, 1)
    pads = check_spatial_attribute(context, "pads", pads, (0,) * 2 * rank, 0)
    check_shape((taps, taps), "float64", context.where)
    counts = [
        (e + pads[k] + pads[rank + k] - (b - 1) * d - 1) // s + 1
        for k, (e, b, d, s) in enumerate(zip(image_shape, block_shape, dilations, strides, strict=True))
    ]
    if min(counts) < 1 or prod(counts) != x.shape[2]:
        context.broken(f"got {x.shape[2]} blocks, expected {counts} along the axes of the image")
    channels = x.shape[1] // taps
    data = context.reshape(x, (x.shape[0] * channels, taps, *counts))
    grown = [(c - 1) * s + (b - 1) * d + 1 for c, s, b, d in zip(counts, strides, block_shape, dilations, strict=True)]
    after = [g - pads[k] - e for k, (g, e) in enumerate(zip(grown, image_shape, strict=True))]
    one = np.eye(taps).reshape(taps, 1, *block_shape).astype(x.dtype)
    weight = context.new_constant(f"{context.output()}_taps", one)
    attrs: Mapping[str, Attr] = {
        "strides": strides,
        "dilation": dilations,
        "padding": (*pads[:rank], *after),
        "groups": 1,
    }
    summed = context.emit("convolution_transpose", (data, weight), attrs)
    context.result_reshape(summed, (x.shape[0], channels, *image_shape))


# ---- Det: Gaussian elimination with partial pivoting, one column in each iteration of a loop.
#
# Rows are not exchanged. Instead the row of each pivot is marked as used, and the sign of the determinant changes once for
# every unused row above the pivot's row, as if the pivot's row were exchanged with each of these rows in turn.
# Source: ONNX Det; Golub and Van Loan, Matrix Computations, 3.4.


@CONVERTERS.register("Det")
def convert_det(context: OpContext, x: Value) -> None:
    """Convert Det, the determinants of matrices (..., N, N), to a loop of N elimination steps.

    The result has shape (...)."""
    shape = x.shape
    if x.rank < 2 or shape[-1] != shape[-2]:
        context.broken(f"got matrices of shape {shape}, expected two equal last extents")
    count, size = prod(shape[:-2]), shape[-1]
    matrices = context.reshape(x, (count, size, size))
    free = context.new_constant(f"{context.output()}_free", np.ones((count, size), np.bool_))
    one = context.new_constant(f"{context.output()}_one", np.ones((count, 1), dtypes.to_numpy(x.dtype)))
    attrs: dict[str, Any] = {
        "body": _build_elimination_step(context, count, size, x.dtype),
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
        body.input("iteration", (), "int32"),
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
