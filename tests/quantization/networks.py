# SPDX-License-Identifier: Apache-2.0
"""Small float networks with random weights, built in place, and data for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from microc import Graph, GraphBuilder
from microc.base.dtypes import Array
from microc.quantization.repairs import MIN_SAMPLES

SIDE, CHANNELS = 12, 3
UNREPAIRED = MIN_SAMPLES - 1
"""Samples of a network that is not repaired, which takes half of the time."""


def images(count: int, seed: int = 0) -> Array:
    """Smooth pictures (count, 1, 12, 12, 3)."""
    coarse = np.random.default_rng(seed).normal(size=(count, 1, 4, 4, CHANNELS))
    return np.repeat(np.repeat(coarse, 3, axis=2), 3, axis=3).astype(np.float32)


class Net:
    """A network under construction, of layers with random weights."""

    def __init__(self, shape: Sequence[int], seed: int = 1) -> None:
        self.builder, self.random = GraphBuilder(), np.random.default_rng(seed)
        self.x = self.builder.input("x", shape)

    def weight(self, *shape: int) -> str:
        data = self.random.normal(size=shape) / np.sqrt(np.prod(shape[1:]))
        return self.builder.new_constant("w", data.astype(np.float32))

    def bias(self, count: int) -> str:
        return self.builder.new_constant("b", self.random.normal(scale=0.1, size=count).astype(np.float32))

    def conv(self, x: str, outputs: int, kernel: int = 3, groups: int = 1, **attrs: Any) -> str:
        depth = self.builder.shape(x)[3] // groups
        pad = (kernel // 2,) * 4
        more: dict[str, Any] = {"padding": pad, "groups": groups, "layout": "NHWC", **attrs}
        return self.builder.op("conv2d", x, self.weight(outputs, kernel, kernel, depth), self.bias(outputs), **more)

    def dense(self, x: str, units: int) -> str:
        return self.builder.op("dense", x, self.weight(units, self.builder.shape(x)[-1]), self.bias(units))

    def op(self, op: str, *inputs: str, **attrs: Any) -> str:
        return self.builder.op(op, *inputs, **attrs)

    def graph(self, *outputs: str) -> Graph:
        return self.builder.graph("net", {f"y{k}" if k else "y": name for k, name in enumerate(outputs)})


def classifier() -> Graph:
    """Convolutions, one of them depthwise, a residual sum, a concatenation, pools, a dense layer, softmax."""
    net = Net((1, SIDE, SIDE, CHANNELS))
    x = net.op("relu", net.conv(net.x, 8))
    y = net.op("clip", net.conv(x, 8, groups=8), minimum=0.0, maximum=6.0)
    x = net.op("add", x, net.conv(y, 8, 1))
    x = net.op("concat", x, net.op("sigmoid", net.conv(x, 4, 1)), axis=3)
    x = net.op("max_pool2d", x, kernel=(2, 2), strides=(2, 2), padding=(0, 0, 0, 0), layout="NHWC")
    x = net.op("mean", x, axes=(1, 2), keepdims=False)
    x = net.dense(x, 5)
    return net.graph(net.op("softmax", x, axis=1))
