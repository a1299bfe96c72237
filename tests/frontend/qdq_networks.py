# SPDX-License-Identifier: Apache-2.0
"""Networks in QDQ form as onnxruntime's quantiser writes them, from float networks of random weights; inputs of all kinds."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from microc.base.dtypes import Array
from tests.frontend.onnx_model import node, onnx, proto

_UP: Mapping[str, Mapping[str, Any]] = {
    "nearest": {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    "linear": {"mode": "linear", "coordinate_transformation_mode": "half_pixel"},
    "align": {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
}


class Network:
    """A float network being written: every method adds operators and returns the name of what they make."""

    def __init__(self, seed: int = 0) -> None:
        self.nodes: list[Any] = []
        self.constants: dict[str, Array] = {}
        self.dice = np.random.default_rng(seed)

    def constant(self, array: Any) -> str:
        name = f"constant{len(self.constants)}"
        self.constants[name] = np.asarray(array)
        return name

    def weights(self, *shape: int, fan: int = 1) -> str:
        return self.constant(self.dice.normal(0, fan**-0.5, shape).astype(np.float32))

    def apply(self, code: str, *inputs: str, **attrs: Any) -> str:
        output = f"{code.lower()}{len(self.nodes)}"
        self.nodes.append(node(code, inputs, (output,), **attrs))
        return output

    def conv(self, x: str, depth: int, channels: int, kernel: int = 3, groups: int = 1, **attrs: Any) -> str:
        weight = self.weights(channels, depth // groups, kernel, kernel, fan=depth // groups * kernel**2)
        bias = self.weights(channels, fan=100)
        return self.apply("Conv", x, weight, bias, pads=[kernel // 2] * 4, group=groups, **attrs)

    def upsampled(self, x: str, depth: int, channels: int, how: str) -> str:
        """Twice as high and wide: by a transposed convolution, or resized ``how``."""
        if how == "transposed":
            weight = self.weights(depth, channels, 2, 2, fan=depth)
            return self.apply("ConvTranspose", x, weight, kernel_shape=[2, 2], strides=[2, 2])
        large = self.apply("Resize", x, "", self.constant(np.array([1, 1, 2, 2], np.float32)), **_UP[how])
        return self.apply("Relu", self.conv(large, depth, channels, 1))

    def model(self, shape: Sequence[int], output: str, opset: int = 17) -> Any:
        return onnx.shape_inference.infer_shapes(
            proto(self.nodes, {"x": shape}, self.constants, (output,), opset=opset)
        )


def unet(how: str, last: str = "Sigmoid", channels: int = 4, size: int = 16) -> Any:
    """Two levels down and up again, each joined with its like; ``how`` they go up."""
    net, n = Network(), channels
    first = net.apply("Relu", net.conv("x", 3, n))
    second = net.apply("Relu", net.conv(net.apply("MaxPool", first, kernel_shape=[2, 2], strides=[2, 2]), n, 2 * n))
    third = net.apply("Relu", net.conv(net.apply("MaxPool", second, kernel_shape=[2, 2], strides=[2, 2]), 2 * n, 4 * n))
    joined = net.apply("Concat", net.upsampled(third, 4 * n, 2 * n, how), second, axis=1)
    wide = net.apply("Relu", net.conv(joined, 4 * n, 2 * n))
    joined = net.apply("Concat", net.upsampled(wide, 2 * n, n, how), first, axis=1)
    done = net.conv(net.apply("Relu", net.conv(joined, 2 * n, n)), n, 3, 1)
    last_attrs = {"axis": 1} if last == "Softmax" else {}
    return net.model((1, 3, size, size), net.apply(last, done, **last_attrs))


def separable(function: str) -> Any:
    """Convolutions in depth with a sum, squeeze and excitation, an average over the image, a dense layer, softmax."""
    net = Network(1)
    x = net.apply(function, net.conv("x", 3, 8, strides=[2, 2]))
    inner = net.apply("Relu", net.conv(net.apply("Relu", net.conv(x, 8, 16, 1)), 16, 16, groups=16))
    x = net.apply("Add", x, net.conv(inner, 16, 8, 1))
    gate = net.conv(net.apply("Relu", net.conv(net.apply("GlobalAveragePool", x), 8, 4, 1)), 4, 8, 1)
    x = net.apply("Mul", x, net.apply("HardSigmoid", gate))
    flat = net.apply("Flatten", net.apply("GlobalAveragePool", x))
    return net.model((1, 3, 12, 12), net.apply("Softmax", net.apply("Gemm", flat, net.weights(8, 10)), axis=-1))


def encoder(opset: int, width: int = 16, heads: int = 2, steps: int = 6) -> Any:
    """A layer of a transformer."""
    net = Network(2)

    def dense(x: str, depth: int, units: int) -> str:
        return net.apply("Add", net.apply("MatMul", x, net.weights(depth, units, fan=depth)), net.weights(units))

    def parted(x: str, *axes: int) -> str:
        shape = net.constant(np.array([1, steps, heads, width // heads]))
        return net.apply("Transpose", net.apply("Reshape", x, shape), perm=axes)

    def normalised(x: str) -> str:
        return net.apply("LayerNormalization", x, net.weights(width), net.weights(width), axis=-1)

    query, key, value = (parted(dense("x", width, width), *axes) for axes in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)))
    scaled = net.apply("Div", net.apply("MatMul", query, key), net.constant(np.float32((width / heads) ** 0.5)))
    mixed = net.apply("MatMul", net.apply("Softmax", scaled, axis=-1), value)
    mixed = net.apply("Transpose", mixed, perm=[0, 2, 1, 3])
    mixed = net.apply("Reshape", mixed, net.constant(np.array([1, steps, width])))
    x = normalised(net.apply("Add", "x", dense(mixed, width, width)))
    hidden = dense(x, width, 2 * width)
    hidden = net.apply("Gelu" if opset >= 20 else "Sigmoid", hidden)
    return net.model((1, steps, width), normalised(net.apply("Add", x, dense(hidden, 2 * width, width))), opset)


def quantised(model: Any, data: str = "QUInt8", weight: str = "QInt8", per_channel: bool = False, **extra: Any) -> Any:
    """The model as onnxruntime quantises it with random data: quantize and dequantize around every operator."""
    quantization = pytest.importorskip("onnxruntime.quantization")
    with tempfile.TemporaryDirectory() as folder:
        source, target = (Path(folder) / name for name in ("float.onnx", "quantised.onnx"))
        onnx.save(model, str(source))
        quantization.quantize_static(
            str(source),
            str(target),
            _Calibration(model),
            quant_format=quantization.QuantFormat.QDQ,
            activation_type=quantization.QuantType[data],
            weight_type=quantization.QuantType[weight],
            per_channel=per_channel,
            extra_options=extra,
        )
        return onnx.load(str(target))


class _Calibration:
    """Three random inputs."""

    def __init__(self, model: Any) -> None:
        dice, shape = np.random.default_rng(1), shape_of(model)
        self.data: Iterator[Array] = iter([dice.normal(0, 1, shape).astype(np.float32) for _ in range(3)])

    def get_next(self) -> dict[str, Array] | None:
        found = next(self.data, None)
        return None if found is None else {"x": found}

    def __iter__(self) -> Iterator[dict[str, Array]]:
        return ({"x": array} for array in self.data)


def shape_of(model: Any) -> tuple[int, ...]:
    """The shape of the only input."""
    return tuple(axis.dim_value for axis in model.graph.input[0].type.tensor_type.shape.dim)


def kinds_of_data(shape: Sequence[int]) -> dict[str, Array]:
    """Random numbers, and inputs of the extreme kinds."""
    dice = np.random.default_rng(5)
    normal = dice.normal(0, 1, shape).astype(np.float32)
    outlier, nan, infinite = np.zeros(shape, np.float32), normal.copy(), normal.copy()
    outlier.flat[outlier.size // 2] = 1e4
    nan.flat[::7] = np.nan
    infinite.flat[::5], infinite.flat[1::5] = np.inf, -np.inf
    return {
        "random": normal,
        "wide": normal * 5,
        "zero": normal * 0,
        "constant": np.ones(shape, np.float32),
        "huge": np.sign(normal) * np.float32(1e38),
        "high": np.full(shape, 1e30, np.float32),
        "low": np.full(shape, -1e30, np.float32),
        "tiny": normal * np.float32(1e-30),
        "denormal": normal * np.float32(1e-41),
        "outlier": outlier,
        "nan": nan,
        "infinite": infinite,
    }
