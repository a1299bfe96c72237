# SPDX-License-Identifier: Apache-2.0
"""Recipes of operators on elements: functions of one number, of two, and between scales."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tests.extremes.draw import Draw, Recipe
from tests.frontend.tflite_model import Op, constant

QUANTISED = ("int8", "int8", "int16", "uint8")
_LUT = 0.05
"""A usual scale of activations."""


def shape(draw: Draw) -> tuple[int, ...]:
    rank = draw.integer(1, 2, 2, 3, 4)
    last = draw.integer(1, 3, 16, 17, 40) if draw.extent() else 0
    return (*(draw.extent() for _ in range(rank - 1)), last)


def unary(code: str, *dtypes: str, out: float = _LUT, options: str = "", **fields: object) -> Recipe:
    """A function of one tensor; ``out``: a usual scale of the result."""

    def recipe(draw: Draw) -> Op:
        dtype, extents = draw.word(*dtypes), shape(draw)
        wide = 256 if dtype == "int16" else 1
        draw.tensor("x", extents, dtype, _LUT / wide)
        draw.tensor("y", extents, dtype, out / wide)
        return Op(code, ("x",), ("y",), options, fields)

    return recipe


def fixed_result(code: str, *dtypes: str, scale: float, zero: int, options: str = "") -> Recipe:
    """A function whose result has the scale that TFLite Micro takes it to have, whatever the file says."""

    def recipe(draw: Draw) -> Op:
        dtype, extents = draw.word(*dtypes), shape(draw)
        wide = 256 if dtype == "int16" else 1
        draw.tensor("x", extents, dtype, _LUT / wide)
        result = draw.tensor("y", extents, dtype, scale / wide)
        if dtype != "float32":
            quant = ((scale / wide,), (0 if dtype == "int16" else zero,))
            draw.tensors[-1] = replace(result, scale=quant[0], zero_point=quant[1])
        return Op(code, ("x",), ("y",), options)

    return recipe


def leaky_relu(draw: Draw) -> Op:
    alpha = (0.1, 0.0, -0.5, 1.0, 3.0, 2.0**-20, 2.0**20)[draw.integer(0, 0, 0, 1, 2, 3, 4, 5, 6)]
    extents, dtype = shape(draw), draw.word("int8", "int16", "float32")
    draw.tensor("x", extents, dtype)
    draw.tensor("y", extents, dtype)
    return Op("LEAKY_RELU", ("x",), ("y",), "LeakyReluOptions", {"Alpha": alpha})


def clamp(code: str) -> Recipe:
    def recipe(draw: Draw) -> Op:
        extents, dtype = shape(draw), draw.word("int8", "int16", "uint8", "float32")
        x = draw.tensor("x", extents, dtype)
        y = draw.like("y", x)
        if code == "RELU6":  # TFLite Micro takes the result to be scaled as the data are
            draw.tensors[-1] = replace(y, scale=x.scale, zero_point=x.zero_point)
        return Op(code, ("x",), ("y",))

    return recipe


def prelu(draw: Draw) -> Op:
    extents, dtype = shape(draw), draw.word("int8", "int8", "int16", "float32")
    draw.tensor("x", extents, dtype)
    slopes = draw.data(extents[-1:], "FLOAT32" if dtype == "float32" else "INT8")
    quant = {} if dtype == "float32" else {"scale": (draw.scale(0.01),), "zero_point": (draw.zero("int8"),)}
    draw.add(constant("a", slopes, **quant))
    draw.tensor("y", extents, dtype)
    return Op("PRELU", ("x", "a"), ("y",))


def binary(code: str, *dtypes: str, options: str = "", out: float = 0.1, result: str = "") -> Recipe:
    """Two tensors that broadcast, or a tensor and a constant."""

    def recipe(draw: Draw) -> Op:
        dtype, extents = draw.word(*dtypes), shape(draw)
        if code in ("MAXIMUM", "MINIMUM"):
            draw.reals = tuple(real for real in draw.reals if real == real)  # of NaN TFLite keeps the second operand
        other = extents if draw.chance(0.6) else extents[-1:] if draw.chance(0.7) else (1,)
        a = draw.tensor("a", extents, dtype)
        if dtype in ("int8", "int16", "uint8") and draw.chance(0.3):
            values = draw.data(other, dtype.upper())
            draw.add(constant("b", values, scale=(draw.scale(),), zero_point=(draw.zero(dtype),)))
        elif code in ("MAXIMUM", "MINIMUM"):
            draw.like("b", a, other)
        else:
            draw.tensor("b", other, dtype)
        if code in ("MAXIMUM", "MINIMUM"):
            draw.like("y", a)
        else:
            draw.tensor("y", extents, result or dtype, out)
        fused = options and options not in ("MaximumMinimumOptions", "SquaredDifferenceOptions")
        fields = {"FusedActivationFunction": draw.integer(0, 0, 1, 2, 3)} if fused else {}
        return Op(code, ("a", "b"), ("y",), options, fields)

    return recipe


def add_n(draw: Draw) -> Op:
    extents, dtype = shape(draw), draw.word("int8", "float32")
    first = draw.tensor("a", extents, dtype)
    names = ("a", "b", "c", "d")[: draw.integer(2, 3, 4)]
    for name in names[1:]:
        draw.like(name, first)
    draw.tensor("y", extents, dtype)
    return Op("ADD_N", names, ("y",))


def quantize(draw: Draw) -> Op:
    extents = shape(draw)
    source = draw.word("float32", "float32", "int8", "int16", "uint8", "int32")
    target = draw.word("int8", "int8", "int16", "uint8", "int32")
    for name, dtype in (("x", source), ("y", target)):
        made = draw.tensor(name, extents, dtype)
        if dtype == "int32":
            zero = draw.integer(0, 0, 5, -(1 << 31), (1 << 31) - 1)
            draw.tensors[-1] = replace(made, scale=(draw.scale(),), zero_point=(zero,))
    return Op("QUANTIZE", ("x",), ("y",), "QuantizeOptions")


def dequantize(draw: Draw) -> Op:
    extents = shape(draw)
    draw.tensor("x", extents, draw.word("int8", "int16", "uint8"))
    draw.tensor("y", extents, "float32")
    return Op("DEQUANTIZE", ("x",), ("y",), "DequantizeOptions")


def concatenation(draw: Draw) -> Op:
    extents, dtype = shape(draw), draw.word("int8", "int16", "uint8", "float32")
    a = draw.tensor("a", extents, dtype)
    draw.like("b", a)
    draw.like("y", a, (*extents[:-1], 2 * extents[-1]))
    return Op("CONCATENATION", ("a", "b"), ("y",), "ConcatenationOptions", {"Axis": -1})


def pad(draw: Draw) -> Op:
    extents, dtype = tuple(draw.extent() for _ in range(draw.integer(2, 3, 4))), draw.word("int8", "int16", "float32")
    x = draw.tensor("x", extents, dtype)
    margins = draw.rng.integers(0, 3, (len(extents), 2)).astype(np.int32)
    draw.add(constant("n", margins))
    draw.like("y", x, tuple(int(e + m.sum()) for e, m in zip(extents, margins, strict=True)))
    return Op("PAD", ("x", "n"), ("y",), "PadOptions")


_TWO = ("int8", "int8", "int16", "float32")
RECIPES: Mapping[str, Recipe] = {
    "ABS": unary("ABS", "int8", "int16", "float32", options="AbsOptions"),
    "ADD": binary("ADD", "int8", "int8", "int16", "int16", "int32", "float32", options="AddOptions"),
    "ADD_N": add_n,
    "CONCATENATION": concatenation,
    "DEQUANTIZE": dequantize,
    "DIV": binary("DIV", "int8", "float32", options="DivOptions", out=1.0),
    "ELU": unary("ELU", "int8", "float32"),
    "EQUAL": binary("EQUAL", "int8", "int32", "float32", result="bool"),
    "EXP": unary("EXP", "int8", "int16", "float32", options="ExpOptions"),
    "GREATER": binary("GREATER", "int8", "int64", "float32", result="bool"),
    "HARD_SWISH": unary("HARD_SWISH", "int8", "int8", "float32", options="HardSwishOptions"),
    "LEAKY_RELU": leaky_relu,
    "LESS_EQUAL": binary("LESS_EQUAL", "int8", "int32", "float32", result="bool"),
    "LOG": unary("LOG", "int8", "int16", "float32"),
    "LOGISTIC": fixed_result("LOGISTIC", "int8", "int16", "float32", scale=1 / 256, zero=-128),
    "MAXIMUM": binary("MAXIMUM", *_TWO, "int32", options="MaximumMinimumOptions"),
    "MINIMUM": binary("MINIMUM", *_TWO, "int64", options="MaximumMinimumOptions"),
    "MUL": binary("MUL", "int8", "int8", "int16", "int16", "int32", "float32", options="MulOptions"),
    "PAD": pad,
    "PRELU": prelu,
    "QUANTIZE": quantize,
    "RELU": clamp("RELU"),
    "RELU6": clamp("RELU6"),
    "RSQRT": unary("RSQRT", "int8", "int16", "float32", out=0.02),
    "SQRT": unary("SQRT", "int8", "int16", "float32"),
    "SQUARED_DIFFERENCE": binary("SQUARED_DIFFERENCE", *_TWO, "int32", options="SquaredDifferenceOptions"),
    "SUB": binary("SUB", "int8", "int8", "int16", "int16", "int32", "float32", options="SubOptions"),
    "TANH": fixed_result("TANH", "int8", "int16", "float32", scale=1 / 128, zero=0),
}
