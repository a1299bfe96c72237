# SPDX-License-Identifier: Apache-2.0
"""Recipes of ONNX's quantised operators, and of operators on floats between DequantizeLinear and QuantizeLinear."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.extremes.elements import shape
from tests.extremes.onnx_draw import MICROSOFT, Network, Recipe

_BYTES = ("int8", "uint8")
_APPROXIMATE = ("Sigmoid", "QLinearSigmoid", "Softmax")
"""Curves up to one that ONNX Runtime has polynomials for."""


def quantize(net: Network) -> None:
    extents, dtype = shape(net), net.word("int8", "uint8", "int16", "uint16")
    axis = net.integer(*range(len(extents)))
    count = extents[axis] if net.chance(0.4) else 0
    net.value("x", extents, "float32")
    net.result = dtype
    net.apply("QuantizeLinear", ("x", *net.quant("y", dtype, count=count)), axis=axis)


def dequantize(net: Network) -> None:
    extents, dtype = shape(net), net.word("int8", "uint8", "int16", "uint16", "int32")
    axis = net.integer(*range(len(extents)))
    count = extents[axis] if net.chance(0.4) else 0
    net.value("x", extents, dtype)
    net.result = "float32"
    net.apply("DequantizeLinear", ("x", *net.quant("x", dtype, count=count)), axis=axis)


def pair(code: str, domain: str) -> Recipe:
    """Two operands that broadcast, the second one perhaps constant: of com.microsoft, or between floats."""

    def recipe(net: Network) -> None:
        extents, dtype = shape(net), net.word(*_BYTES)
        other = extents if net.chance(0.6) else extents[-1:] if net.chance(0.7) else (1,)
        a, b = net.triple("a", extents, dtype), net.triple("b", other, dtype, net.chance(0.3))
        both = net.largest("a"), net.largest("b")
        net.reach = sum(both) if "Add" in code else 0.0
        if domain:
            net.result, net.converted = dtype, sum(both) if "Add" in code else both[0] * both[1]
            net.apply(code, (*a, *b, *net.quant("y", dtype, 0.1)), domain=domain)
        else:
            net.quantized(net.apply(code, (net.dequantized(a), net.dequantized(b)), "real"), dtype, 0.1)

    return recipe


def unary(code: str, domain: str = "", **attrs: Any) -> Recipe:
    """A function of one quantised value."""

    def recipe(net: Network) -> None:
        dtype = net.word(*_BYTES)
        x = net.triple("x", shape(net), dtype)
        net.reach = 1.0 if code in _APPROXIMATE else 0.0
        if domain:
            net.result = dtype
            net.apply(code, (*x, *net.quant("y", dtype)), domain=domain, **attrs)
        else:
            net.quantized(net.apply(code, (net.dequantized(x),), "real", **attrs), dtype)

    return recipe


def _window(net: Network) -> tuple[tuple[int, int], tuple[int, int], dict[str, Any]]:
    """Extents of an image, of a window that fits it, and the attributes of how it moves."""
    kernel = (net.integer(1, 1, 2, 3), net.integer(1, 2, 3))
    image = (kernel[0] + net.integer(0, 0, 1, 4), kernel[1] + net.integer(0, 1, 5))
    pads = [net.integer(*range(min(2, k))) for k in (*kernel, *kernel)]
    return image, kernel, {"pads": pads, "strides": [net.integer(1, 1, 2), net.integer(1, 2)]}


def _convolution(net: Network) -> tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    """The dtype of the data, the shapes of data and weights, and attributes."""
    image, kernel, attrs = _window(net)
    groups, each, out = net.integer(1, 1, 2, 3), net.integer(1, 1, 2, 5), net.integer(1, 2, 3)
    shapes = (net.integer(1, 1, 2), groups * each, *image), (groups * out, each, *kernel)
    return net.word(*_BYTES), *shapes, {**attrs, "group": groups}


def _weights(net: Network, extents: tuple[int, ...], data: str, constant: bool = True) -> tuple[str, str, str]:
    """Weights with one scale or one for each channel: of the second axis in matrices, else of the first."""
    dtype, axis = "int8" if data == "int8" else net.word("int8", "uint8"), 1 if len(extents) == 2 else 0
    count = extents[axis] if constant and net.chance(0.4) else 0
    found = net.triple("w", extents, dtype, constant, 0.02, count)
    if count and dtype == "int8":
        net.constants["w_z"][:] = 0
    elif count:
        net.constants["w_z"][:] = net.constants["w_z"][0]
    return found


def _bias(net: Network, count: int) -> str:
    most = net.integer(1 << 10, 1 << 20, 1 << 29)
    net.constants["b"] = net.filled(np.int32, (count,), -most, most - 1)
    return "b"


def _multiplied_scales(net: Network) -> float:
    """Any number is what ONNX Runtime converts where the product of the scales is no normal float32."""
    with np.errstate(all="ignore"):
        products = net.constants["x_s"] * net.constants["w_s"]
    normal = np.isfinite(products) & (np.abs(products) >= np.finfo(np.float32).tiny)
    return 0.0 if normal.all() else np.inf


def qlinear_conv(net: Network) -> None:
    dtype, data, weight, attrs = _convolution(net)
    operands = (*net.triple("x", data, dtype), *_weights(net, weight, dtype), *net.quant("y", dtype))
    net.result, net.converted = dtype, _multiplied_scales(net)
    bias = (_bias(net, weight[0]),) if net.chance(0.6) else ()
    net.apply("QLinearConv", (*operands, *bias), **attrs)


def conv_integer(net: Network) -> None:
    dtype, data, weight, attrs = _convolution(net)
    x = net.triple("x", data, dtype)
    w = net.triple("w", weight, "int8" if dtype == "int8" else net.word("int8", "uint8"), net.chance(0.7))
    net.result = "int32"
    net.apply("ConvInteger", (x[0], w[0], x[2], w[2]), **attrs)


def _matrices(net: Network) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    rows, depth, columns = net.extent(), net.integer(1, 1, 2, 3, 16, 33), net.integer(1, 2, 3, 8)
    batch = () if net.chance(0.6) else (net.integer(1, 2),)
    return net.word(*_BYTES), (*batch, rows, depth), (depth, columns) if net.chance(0.7) else (*batch, depth, columns)


def qlinear_matmul(net: Network) -> None:
    dtype, left, right = _matrices(net)
    constant = net.chance(0.6)
    operands = (*net.triple("x", left, dtype), *_weights(net, right, dtype, constant and len(right) == 2))
    net.result, net.converted = dtype, _multiplied_scales(net)
    net.apply("QLinearMatMul", (*operands, *net.quant("y", dtype)))


def matmul_integer(net: Network) -> None:
    dtype, left, right = _matrices(net)
    x, w = net.triple("x", left, dtype), net.triple("w", right, net.word(*_BYTES), net.chance(0.6))
    net.result = "int32"
    net.apply("MatMulInteger", (x[0], w[0], x[2], w[2]))


def conv(net: Network) -> None:
    """Conv between floats, its bias of int32 or of floats."""
    dtype, data, weight, attrs = _convolution(net)
    x = net.dequantized(net.triple("x", data, dtype))
    w = net.dequantized(_weights(net, weight, dtype), 0)
    net.reach = net.largest("x") * net.largest("w") * float(np.prod(weight[1:]))
    net.quantized(net.apply("Conv", (x, w), "real", **attrs), dtype)


def gemm(net: Network) -> None:
    """Gemm between floats, whose bias is quantised as the products are."""
    dtype, rows, depth, columns = net.word(*_BYTES), net.extent(), net.integer(1, 2, 16, 33), net.integer(1, 3, 8)
    x = net.dequantized(net.triple("x", (rows, depth), dtype))
    w = net.dequantized(_weights(net, (depth, columns), dtype))
    net.reach = net.largest("x") * net.largest("w") * depth
    operands: tuple[str, ...] = (x, w)
    if net.chance(0.6):
        with np.errstate(all="ignore"):
            scale = np.asarray(net.constants["x_s"] * net.constants["w_s"], np.float32)
        net.constants |= {"b_s": scale, "b_z": np.zeros(scale.shape, np.int32)}
        operands = (x, w, net.apply("DequantizeLinear", (_bias(net, columns), "b_s", "b_z"), "bias", axis=0))
        net.reach += float(np.nan_to_num(np.abs(scale)).max()) * float(1 << 29)
    net.quantized(net.apply("Gemm", operands, "real"), dtype)


def average(code: str, domain: str = "") -> Recipe:
    """Averages of windows, padded or not."""

    def recipe(net: Network) -> None:
        image, kernel, attrs = _window(net)
        dtype, attrs = net.word(*_BYTES), {**attrs, "kernel_shape": kernel, "count_include_pad": net.integer(0, 1)}
        x = net.triple("x", (1, net.integer(1, 2, 5), *image), dtype)
        if net.chance(0.4):
            y = (x[1], x[2])
            net.constants |= {"y_s": net.constants["x_s"], "y_z": net.constants["x_z"]}
        else:
            y = net.quant("y", dtype)
        net.reach, net.result = net.largest("x"), dtype
        if domain:
            net.converted = net.reach
            net.apply(code, (*x, *y), domain=domain, **attrs)
        else:
            net.apply("QuantizeLinear", (net.apply(code, (net.dequantized(x),), "real", **attrs), *y))

    return recipe


def whole_images(code: str, domain: str = "") -> Recipe:
    """Averages of all pixels."""

    def recipe(net: Network) -> None:
        dtype = net.word(*_BYTES)
        x = net.triple("x", (net.integer(1, 2), net.integer(1, 3, 8), net.extent(), net.extent()), dtype)
        net.reach, net.result = net.largest("x"), dtype
        if domain:
            net.converted = net.reach
            net.apply(code, (*x, *net.quant("y", dtype)), domain=domain, channels_last=0)
        else:
            net.quantized(net.apply(code, (net.dequantized(x),), "real"), dtype)

    return recipe


def means(net: Network) -> None:
    extents, dtype = shape(net), net.word(*_BYTES)
    axes = sorted({net.integer(*range(len(extents))) for _ in range(2)})
    net.constants["axes"] = np.array(axes, np.int64)
    x = net.dequantized(net.triple("x", extents, dtype))
    net.reach = net.largest("x")
    net.quantized(net.apply("ReduceMean", (x, "axes"), "real", keepdims=net.integer(0, 1)), dtype)


def max_pool(net: Network) -> None:
    image, kernel, attrs = _window(net)
    dtype = net.word(*_BYTES)
    x = net.dequantized(net.triple("x", (1, net.integer(1, 2, 5), *image), dtype))
    net.quantized(net.apply("MaxPool", (x,), "real", kernel_shape=kernel, **attrs), dtype)


RECIPES: dict[str, Recipe] = {
    "Add": pair("Add", ""),
    "AveragePool": average("AveragePool"),
    "Conv": conv,
    "ConvInteger": conv_integer,
    "DequantizeLinear": dequantize,
    "Gemm": gemm,
    "GlobalAveragePool": whole_images("GlobalAveragePool"),
    "LeakyRelu": unary("LeakyRelu", alpha=0.1),
    "MatMulInteger": matmul_integer,
    "MaxPool": max_pool,
    "Mul": pair("Mul", ""),
    "QLinearAdd": pair("QLinearAdd", MICROSOFT),
    "QLinearAveragePool": average("QLinearAveragePool", MICROSOFT),
    "QLinearConv": qlinear_conv,
    "QLinearConv again": qlinear_conv,
    "QLinearGlobalAveragePool": whole_images("QLinearGlobalAveragePool", MICROSOFT),
    "QLinearLeakyRelu": unary("QLinearLeakyRelu", MICROSOFT, alpha=0.1),
    "QLinearMatMul": qlinear_matmul,
    "QLinearMul": pair("QLinearMul", MICROSOFT),
    "QLinearSigmoid": unary("QLinearSigmoid", MICROSOFT),
    "QuantizeLinear": quantize,
    "ReduceMean": means,
    "Relu": unary("Relu"),
    "Sigmoid": unary("Sigmoid"),
    "Softmax": unary("Softmax"),
}
