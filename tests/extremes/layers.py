# SPDX-License-Identifier: Apache-2.0
"""Recipes of layers: products with weights, windows, reductions over axes, softmax, cells with state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tests.extremes.draw import Draw, Recipe
from tests.frontend.tflite_model import Op, Tensor, constant

LAYERS = ("int8", "int8", "int4", "int16", "int16", "float32")


def _biased(draw: Draw, data: Tensor, weights: Tensor, units: int, dtype: str, shared: bool = True) -> str:
    """A bias of the layer, or none."""
    if draw.chance(0.15):
        return ""
    if dtype == "float32":
        draw.add(constant("b", draw.data((units,), "FLOAT32")))
    else:
        bias = draw.word("int64", "int64", "int32") if shared else "int64"  # TFLite Micro takes one of int32 for int64
        draw.bias("b", units, data, weights, bias if dtype == "int16" else "int32")
    return "b"


def _weights(draw: Draw, shape: tuple[int, ...], axis: int, dtype: str) -> Tensor:
    if dtype == "float32":
        return draw.add(constant("w", draw.rng.normal(size=shape).astype(np.float32)))  # padding times infinity is NaN
    return draw.weights("w", shape, axis, four_bits=dtype == "int4")


def _kinds(dtype: str) -> tuple[str, float]:
    """The dtype of data, and a usual scale of it."""
    return ("int8" if dtype == "int4" else dtype), 0.0005 if dtype == "int16" else 0.05


def fully_connected(draw: Draw) -> Op:
    dtype = draw.word(*LAYERS)
    kind, around = _kinds(dtype)
    rows, depth, units = draw.integer(1, 1, 2, 3), draw.integer(1, 4, 7, 16, 33), draw.integer(1, 2, 3, 5, 8)
    x = draw.tensor("x", (rows, depth) if not draw.chance(0.01) else (0, depth), kind, around)
    w = _weights(draw, (units, depth), 0, dtype)
    bias = _biased(draw, x, w, units, dtype)
    draw.tensor("y", (x.shape[0], units), kind, 2 * around)
    fields = {"FusedActivationFunction": draw.integer(0, 0, 1, 2, 3)}
    return Op("FULLY_CONNECTED", ("x", "w", bias), ("y",), "FullyConnectedOptions", fields)


def _result(extent: int, taps: int, stride: int, padding: int) -> int:
    """What a window leaves of an axis under SAME (0) or VALID (1)."""
    return -(-extent // stride) if padding == 0 else (extent - taps) // stride + 1


def conv(draw: Draw, depthwise: bool = False) -> Op:
    dtype = draw.word(*LAYERS)
    kind, around = _kinds(dtype)
    height, width, channels = draw.integer(1, 3, 4, 5), draw.integer(1, 3, 4, 6), draw.integer(1, 2, 3, 4, 8)
    taps = (draw.integer(1, 2, 3), draw.integer(1, 2, 3))
    stride, padding, multiplier = draw.integer(1, 1, 2), draw.integer(0, 0, 1), draw.integer(1, 1, 1, 2)
    if padding and (height < taps[0] or width < taps[1]):
        padding = 0
    outputs = channels * multiplier if depthwise else draw.integer(1, 2, 4, 5, 8)
    x = draw.tensor("x", (1, height, width, channels), kind, around)
    shape = (1, *taps, outputs) if depthwise else (outputs, *taps, channels)
    w = _weights(draw, shape, 3 if depthwise else 0, dtype)
    bias = _biased(draw, x, w, outputs, dtype, shared=not depthwise)
    out = (_result(height, taps[0], stride, padding), _result(width, taps[1], stride, padding))
    draw.tensor("y", (1, *out, outputs), kind, 2 * around)
    fields = {"StrideH": stride, "StrideW": stride, "Padding": padding, "DilationHFactor": 1, "DilationWFactor": 1}
    fields["FusedActivationFunction"] = draw.integer(0, 0, 1, 2, 3)
    if depthwise:
        fields["DepthMultiplier"] = multiplier
        return Op("DEPTHWISE_CONV_2D", ("x", "w", bias), ("y",), "DepthwiseConv2DOptions", fields)
    return Op("CONV_2D", ("x", "w", bias), ("y",), "Conv2DOptions", fields)


def transpose_conv(draw: Draw) -> Op:
    dtype = draw.word("int8", "int16", "int16", "float32")
    kind, around = _kinds(dtype)
    height, width, channels, outputs = (draw.integer(1, 2, 3, 4) for _ in range(4))
    draw.reals = tuple(real for real in draw.reals if np.isfinite(real))  # zeros between taps times infinity are NaN
    taps, stride = draw.integer(1, 2, 3), draw.integer(1, 2)
    taps = max(taps, stride)
    x = Tensor("x", (1, height, width, channels), kind.upper())
    shape = (1, (height - 1) * stride + taps, (width - 1) * stride + taps, outputs)
    draw.add(constant("n", np.array(shape, np.int32)))
    w = _weights(draw, (outputs, taps, taps, channels), 0, dtype)
    x = draw.tensor("x", x.shape, kind, around)
    bias = _biased(draw, x, w, outputs, dtype, shared=False)
    draw.tensor("y", shape, kind, 2 * around)
    fields = {"StrideH": stride, "StrideW": stride, "Padding": 1}
    return Op("TRANSPOSE_CONV", ("n", "w", "x", bias)[: 4 if bias else 3], ("y",), "TransposeConvOptions", fields)


def matmul(draw: Draw) -> Op:
    dtype = draw.word("int8", "int8", "int16", "float32")
    rows, depth, columns = draw.integer(1, 2, 3), draw.integer(1, 4, 9, 32), draw.integer(1, 2, 5)
    draw.tensor("a", (2, rows, depth), dtype)
    draw.tensor("b", (2, depth, columns), dtype)
    draw.tensor("y", (2, rows, columns), dtype, 0.2)
    return Op("BATCH_MATMUL", ("a", "b"), ("y",), "BatchMatMulOptions", {"AdjX": False, "AdjY": False})


def pool(code: str) -> Recipe:
    def recipe(draw: Draw) -> Op:
        dtype = draw.word("int8", "int16", "float32")
        if code == "MAX_POOL_2D":
            draw.reals = tuple(real for real in draw.reals if real == real)  # NaN alone in a window has no largest
        height, width, channels = draw.integer(1, 3, 4, 5), draw.integer(1, 3, 4), draw.integer(1, 3, 4)
        taps, stride = (draw.integer(1, 2, 3), draw.integer(1, 2, 3)), draw.integer(1, 2)
        x = draw.tensor("x", (1, height, width, channels), dtype)
        out = (_result(height, taps[0], stride, 0), _result(width, taps[1], stride, 0))
        draw.like("y", x, (1, *out, channels))
        fields = {"FilterHeight": taps[0], "FilterWidth": taps[1], "StrideH": stride, "StrideW": stride, "Padding": 0}
        fields["FusedActivationFunction"] = draw.integer(0, 0, 1, 2, 3)
        return Op(code, ("x",), ("y",), "Pool2DOptions", fields)

    return recipe


def reduction(code: str, *dtypes: str) -> Recipe:
    def recipe(draw: Draw) -> Op:
        dtype, extents = draw.word(*dtypes), (draw.integer(1, 2), draw.extent(), draw.extent(), draw.integer(1, 3, 8))
        axes = ((1, 2), (1,), (2,), (3,))[draw.integer(0, 0, 1, 2, 3)]
        x = draw.tensor("x", extents, dtype)
        draw.add(constant("n", np.array(axes, np.int32)))
        shape = tuple(1 if axis in axes else extent for axis, extent in enumerate(extents))
        if code.startswith("REDUCE"):
            draw.like("y", x, shape)
            draw.reals = tuple(real for real in draw.reals if real == real)  # NaN alone on an axis has no largest
        else:
            draw.tensor("y", shape, dtype)
        return Op(code, ("x", "n"), ("y",), "ReducerOptions", {"KeepDims": True})

    return recipe


def softmax(draw: Draw) -> Op:
    source, target = (("int8", "int8"), ("int8", "int16"), ("int16", "int16"), ("float32", "float32"))[
        draw.integer(0, 0, 1, 2, 3)
    ]
    shape = (draw.integer(1, 2, 3), draw.integer(1, 2, 5, 10, 33))
    draw.tensor("x", shape, source, 0.1 if source == "int8" else 0.0005)
    y = draw.tensor("y", shape, target)
    if target != "float32" and draw.chance(0.9):
        quant = ((1 / 256,), (-128,)) if target == "int8" else ((1 / 32768,), (0,))
        draw.tensors[-1] = replace(y, scale=quant[0], zero_point=quant[1])
    beta = (1.0, 0.1, 3.0, 2.0**-20, 2.0**20)[draw.integer(0, 0, 0, 0, 1, 2, 3, 4)]
    return Op("SOFTMAX", ("x",), ("y",), "SoftmaxOptions", {"Beta": beta})


def log_softmax(draw: Draw) -> Op:
    dtype, shape = draw.word("int8", "int8", "float32"), (draw.integer(1, 2, 3), draw.integer(1, 2, 5, 33))
    draw.tensor("x", shape, dtype)
    y = draw.tensor("y", shape, dtype)
    if dtype == "int8" and draw.chance(0.9):
        draw.tensors[-1] = replace(y, scale=(1 / 16,), zero_point=(127,))
    return Op("LOG_SOFTMAX", ("x",), ("y",), "LogSoftmaxOptions")


def l2_normalization(draw: Draw) -> Op:
    dtype, shape = draw.word("int8", "int8", "float32"), (draw.integer(1, 2, 3), draw.integer(1, 2, 5, 33))
    draw.tensor("x", shape, dtype)
    y = draw.tensor("y", shape, dtype)
    if dtype == "int8":
        draw.tensors[-1] = replace(y, scale=(1 / 128,), zero_point=(0,))
    return Op("L2_NORMALIZATION", ("x",), ("y",), "L2NormOptions")


def cumsum(draw: Draw) -> Op:
    dtype, shape = draw.word("int8", "int8", "float32"), (draw.extent(), draw.extent())
    draw.tensor("x", shape, dtype)
    draw.add(constant("n", np.array(draw.integer(0, 1), np.int32)))
    draw.tensor("y", shape, dtype)
    fields = {"Exclusive": draw.chance(0.5), "Reverse": draw.chance(0.5)}
    return Op("CUMSUM", ("x", "n"), ("y",), "CumsumOptions", fields)


def resize(draw: Draw) -> Op:
    dtype, shape = draw.word("int8", "float32"), (1, draw.integer(1, 2, 3), draw.integer(1, 3), draw.integer(1, 2))
    x = draw.tensor("x", shape, dtype)
    size = (draw.integer(1, 2, 5), draw.integer(1, 4, 6))
    draw.add(constant("n", np.array(size, np.int32)))
    draw.like("y", x, (1, *size, shape[3]))
    fields = {"AlignCorners": False, "HalfPixelCenters": draw.chance(0.5)}
    return Op("RESIZE_BILINEAR", ("x", "n"), ("y",), "ResizeBilinearOptions", fields)


def svdf(draw: Draw) -> Op:
    units, rank, depth, memory = draw.integer(1, 3, 4), draw.integer(1, 2), draw.integer(1, 5, 8), draw.integer(1, 3, 4)
    filters, kept = units * rank, draw.word("int16", "int8")
    most = 127 if kept == "int8" else draw.integer(2000, 32767)
    draw.tensor("x", (1, depth), "int8")
    w = draw.filled(np.int8, (filters, depth), -127, 127)
    draw.add(constant("w", w, scale=(draw.scale(0.02),), zero_point=(0,)))
    t = draw.filled(np.dtype(kept), (filters, memory), -most, most)
    draw.add(constant("t", t, scale=(draw.scale(0.01),), zero_point=(0,)))
    draw.bias("b", units, draw.tensors[-1], draw.tensors[-1], "int32")
    state = Tensor("s", (1, filters * memory), kept.upper(), scale=(draw.scale(0.01),), zero_point=(0,), variable=True)
    draw.add(state)
    draw.tensor("y", (1, units), "int8")
    fields = {"Rank": rank, "FusedActivationFunction": draw.integer(0, 1)}
    return Op("SVDF", ("x", "w", "t", "b", "s"), ("y",), "SVDFOptions", fields)


def lstm(draw: Draw) -> Op:
    dtype, units, depth, steps = draw.word("int8", "int16", "float32"), draw.integer(1, 3), 4, draw.integer(1, 3)
    real, wide = dtype == "float32", 256 if dtype == "int16" else 1
    draw.tensor("x", (1, steps, depth), dtype, 0.03 / wide)
    names = [""] * 24
    names[0], names[18], names[19] = "x", "hidden", "cell"
    for k in range(1, 9):
        shape, names[k] = (units, depth if k < 5 else units), f"w{k}"
        values = draw.data(shape, "FLOAT32") if real else draw.filled(np.int8, shape, -127, 127)
        quant = {} if real else {"scale": (draw.scale(0.01),), "zero_point": (0,)}
        draw.add(constant(names[k], values, **quant))
    for k in range(12, 16):
        kind, names[k] = np.dtype(np.int64 if dtype == "int16" else np.int32), f"b{k}"
        most = draw.integer(1000, 1000, 1 << 20, 1 << 31)
        values = draw.data((units,), "FLOAT32") if real else draw.filled(kind, (units,), -most, most - 1)
        draw.add(constant(names[k], values))
    y = draw.tensor("y", (1, steps, units), dtype, 0.008 / wide)
    draw.add(Tensor("hidden", (1, units), y.dtype, None, y.scale, y.zero_point, variable=True))
    if real:
        draw.add(Tensor("cell", (1, units), variable=True))
    else:
        power = 2.0 ** -draw.integer(11, 11, 15, 3)
        draw.add(Tensor("cell", (1, units), "INT16", None, (power,), (0,), variable=True))
    fields = {"FusedActivationFunction": 4, "CellClip": (0.0, 1.5)[draw.integer(0, 1)], "TimeMajor": False}
    options = "UnidirectionalSequenceLSTMOptions"
    return Op("UNIDIRECTIONAL_SEQUENCE_LSTM", tuple(names), ("y",), options, fields)


RECIPES: Mapping[str, Recipe] = {
    "AVERAGE_POOL_2D": pool("AVERAGE_POOL_2D"),
    "BATCH_MATMUL": matmul,
    "CONV_2D": conv,
    "CONV_2D again": conv,
    "CUMSUM": cumsum,
    "DEPTHWISE_CONV_2D": lambda draw: conv(draw, depthwise=True),
    "FULLY_CONNECTED": fully_connected,
    "FULLY_CONNECTED again": fully_connected,
    "L2_NORMALIZATION": l2_normalization,
    "LOG_SOFTMAX": log_softmax,
    "MAX_POOL_2D": pool("MAX_POOL_2D"),
    "MEAN": reduction("MEAN", "int8", "int8", "int16", "float32"),
    "REDUCE_MAX": reduction("REDUCE_MAX", "int8", "float32"),
    "RESIZE_BILINEAR": resize,
    "SOFTMAX": softmax,
    "SUM": reduction("SUM", "int8", "int16", "float32"),
    "SVDF": svdf,
    "TRANSPOSE_CONV": transpose_conv,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": lstm,
}
