# SPDX-License-Identifier: Apache-2.0
"""A U-Net of 16-bit activations and 8-bit weights (ONNX, QDQ) beside ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.run.comparison import WORD_QUANTA
from tests.frontend.onnx_model import node, proto

QUANTUM = 8 / 32767
"""Scale of all activations."""


class Writer:
    """Writes layers whose results are quantised to int16 and dequantised again."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(5)
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {"step": np.float32(QUANTUM), "zero": np.int16(0)}

    def constant(self, name: str, array: Any) -> str:
        self.constants[name] = array
        return name

    def words(self, x: str) -> str:
        """Quantise and dequantise ``x``."""
        self.nodes.append(node("QuantizeLinear", [x, "step", "zero"], [f"{x}_q"]))
        self.nodes.append(node("DequantizeLinear", [f"{x}_q", "step", "zero"], [f"{x}_d"]))
        return f"{x}_d"

    def layer(self, code: str, x: str, name: str, inputs: int, outputs: int, taps: int, **attrs: Any) -> str:
        """A convolution with int8 weights, a scale for each of its outputs, and an int32 bias."""
        transposed = code == "ConvTranspose"
        shape = (inputs, outputs, taps, taps) if transposed else (outputs, inputs, taps, taps)
        weight = self.constant(f"{name}_w", self.rng.integers(-127, 128, shape).astype(np.int8))
        scales = (self.rng.uniform(0.5, 1, outputs) * 0.02 / np.sqrt(inputs * taps)).astype(np.float32)
        scale, none = self.constant(f"{name}_s", scales), self.constant(f"{name}_z", np.zeros(outputs, np.int8))
        bias = self.constant(f"{name}_b", self.rng.integers(-90_000, 90_000, outputs).astype(np.int32))
        steps = self.constant(f"{name}_bs", scales * np.float32(QUANTUM))
        axis = 1 if transposed else 0
        self.nodes.append(node("DequantizeLinear", [weight, scale, none], [f"{name}_wd"], axis=axis))
        self.nodes.append(node("DequantizeLinear", [bias, steps], [f"{name}_bd"], axis=0))
        self.nodes.append(node(code, [x, f"{name}_wd", f"{name}_bd"], [name], kernel_shape=[taps, taps], **attrs))
        return self.words(name)

    def conv(self, x: str, name: str, inputs: int, outputs: int) -> str:
        y = self.layer("Conv", x, name, inputs, outputs, 3, pads=[1, 1, 1, 1])
        self.nodes.append(node("Relu", [y], [f"{name}_r"]))
        return self.words(f"{name}_r")

    def pool(self, x: str, name: str) -> str:
        self.nodes.append(node("MaxPool", [x], [name], kernel_shape=[2, 2], strides=[2, 2]))
        return self.words(name)

    def join(self, x: str, skipped: str, name: str, channels: int) -> str:
        """Double the sides of ``x`` and put it beside what an earlier layer gave."""
        grown = self.layer("ConvTranspose", x, f"{name}_up", channels, channels // 2, 2, strides=[2, 2])
        self.nodes.append(node("Concat", [grown, skipped], [name], axis=1))
        return self.words(name)


def unet() -> Any:
    """Two levels, 1 x 16 x 16 to 2 x 16 x 16."""
    write = Writer()
    first = write.conv(write.words("x"), "first", 1, 8)
    second = write.conv(write.pool(first, "half"), "second", 8, 16)
    lowest = write.conv(write.pool(second, "quarter"), "lowest", 16, 32)
    up = write.conv(write.join(lowest, second, "both", 32), "up", 32, 16)
    top = write.conv(write.join(up, first, "all", 16), "top", 16, 8)
    head = write.layer("Conv", top, "head", 8, 2, 1)
    write.nodes.append(node("Sigmoid", [head], ["y"]))
    output = write.words("y")
    return proto(write.nodes, {"x": (1, 1, 16, 16)}, write.constants, (output,), opset=21)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("words") / "unet.onnx"
    path.write_bytes(unet().SerializeToString())
    return path


def test_unet_of_words(model: Path) -> None:
    """Results near a tie differ by a quantum; layers pass that on, within the tolerance of 16 quanta."""
    pytest.importorskip("onnxruntime")
    data = np.random.default_rng(1).normal(size=(5, 1, 1, 16, 16)).astype(np.float32)
    found = microc.verify(model, "onnxruntime", data=data)
    assert found.agrees and found.first is None
    words = [layer for layer in found.layers if layer.dtype == "int16"]
    assert len(words) >= 8 and 0 < max(layer.largest for layer in words) <= WORD_QUANTA
    assert sum(layer.differing for layer in words) < 0.1 * sum(layer.elements for layer in words)


def test_products_of_words_are_integers_on_a_board(model: Path) -> None:
    layers = microc.compile(model, board="mps2-an386").report()["layers"]
    products = [layer["op"] for layer in layers if layer["macs"]]
    assert len(products) == 8 and all(op.startswith("conv2d+requantize") for op in products)
