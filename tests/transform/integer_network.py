# SPDX-License-Identifier: Apache-2.0
"""Random integer networks in core operators, rich in channels that are zero, constant, equal or unread."""

from __future__ import annotations

from typing import Any

import numpy as np

from microc.base.dtypes import Array
from microc.graph.ir import TensorType
from tests.transform.network import Network

REQUANTIZE: dict[str, Any] = {"rounding": "double", "out_dtype": "int8", "input_zero_point": 0, "bound": -1}


class IntegerNetwork(Network):
    """Layers with int8 weights on int8 values; every layer ends in a requantize to a random zero point and clamp."""

    def requantized(self, acc: str, scale: float = 0.01, **attrs: Any) -> str:
        """An accumulator scaled per channel."""
        count = self.types[acc].shape[-1]
        multiplier = self.constant(self.rng.integers(1 << 30, (1 << 31) - 1, count).astype(np.int32))
        shift = self.constant((int(np.log2(scale)) - self.rng.integers(0, 2, count)).astype(np.int8))
        zero = int(self.rng.integers(-128, 128))
        low = int(self.rng.choice(np.array([-128, zero, self.rng.integers(-128, 100)])))
        given: dict[str, Any] = {
            **REQUANTIZE,
            "zero_point": zero,
            "minimum": low,
            "maximum": int(self.rng.integers(low, 128)),
        }
        given |= {"multiplier": None, "shift": None, "shift_range": (-31, 30)}
        return self.op("requantize", acc, multiplier, shift, **{**given, **attrs})

    def weights(self, *shape: int) -> Array:
        """Random weights; some output channels and some input channels have none, some are alike."""
        weights = self.rng.integers(-30, 31, shape)
        weights[self.rng.random(shape[0]) < 0.3] = 0
        weights[..., self.rng.random(shape[-1]) < 0.2] = 0
        if shape[0] > 2 and self.rng.random() < 0.3:
            weights[-1] = weights[0]
        return weights.astype(np.int8)

    def bias(self, count: int) -> str:
        return self.constant(self.rng.choice([-40000, 0, 2000, 40000], count).astype(np.int32))

    def layer(self, x: str, weights: Array, bias: str = "", **attrs: Any) -> str:
        """A convolution (of weights with four axes) or a dense layer, with its requantisation."""
        op = "conv2d" if weights.ndim == 4 else "dense"
        operands = (x, self.constant(weights), bias or self.bias(len(weights)))
        return self.requantized(self.op(op, *operands, out_dtype="int32", **attrs))

    def random_layer(self, x: str) -> str:
        """Whatever may follow in a network."""
        _, height, width, count = self.types[x].shape
        kernel = int(self.rng.integers(1, min(3, height, width) + 1))
        padding = tuple(int(p) for p in self.rng.integers(0, 2, 4)) if self.rng.random() < 0.6 else (0, 0, 0, 0)
        strides = (int(self.rng.integers(1, 3)), 1)
        window: dict[str, Any] = {
            "strides": strides,
            "padding": padding,
            "pad_value": int(self.rng.choice([-128, 0, 5])),
        }
        match self.rng.choice(["conv", "depthwise", "pointwise", "add", "clip", "pool", "lookup", "concat", "slice"]):
            case "conv":
                return self.layer(x, self.weights(int(self.rng.integers(1, 9)), kernel, kernel, count), **window)
            case "depthwise":
                times = int(self.rng.integers(1, 3))
                weights = self.weights(count * times, kernel, kernel, 1)
                return self.layer(x, weights, groups=count, **window)
            case "add":
                return self.sum_of(x, self.layer(x, self.weights(count, 1, 1, count)))
            case "clip":
                return self.op("clip", x, minimum=-100, maximum=int(self.rng.integers(-100, 100)), rounding="")
            case "pool":
                op = str(self.rng.choice(["max_pool2d", "avg_pool2d"]))
                return self.op(op, x, kernel=(kernel, kernel), strides=strides)
            case "lookup":
                return self.op("lookup", x, self.constant(self.rng.integers(-128, 128, 256).astype(np.int8)))
            case "concat":
                other = self.layer(x, self.weights(3, 1, 1, count))
                return self.op("concat", x, other, self.constant(np.full((1, height, width, 2), 7, np.int8)), axis=3)
            case "slice" if count > 1:
                return self.op("slice", x, begin=(0, 0, 0, 1), end=(1, height, width, count), strides=(1,) * 4)
            case _:
                return self.layer(x, self.weights(int(self.rng.integers(1, 12)), 1, 1, count))

    def sum_of(self, a: str, b: str) -> str:
        attrs: dict[str, Any] = {"multiplier_a": 1 << 30, "shift_a": 0, "multiplier_b": 1500000000, "shift_b": -1}
        attrs |= {"zero_point": 3, "minimum": -90, "maximum": 127, "out_dtype": "int8", "rounding": "double"}
        attrs |= {"zero_point_a": 1, "zero_point_b": -5, "left_shift": 20, "multiplier": 1300000000, "shift": -18}
        return self.op("qadd", a, b, negate_b=bool(self.rng.random() < 0.5), **attrs)

    def classified(self, x: str) -> str:
        """A pool or a flattening, and two dense layers behind it."""
        _, height, width, _ = self.types[x].shape
        if self.rng.random() < 0.5:
            x = self.op("avg_pool2d", x, kernel=(height, width), strides=(1, 1))
        flat = self.flatten(x)
        hidden = self.layer(flat, self.weights(int(self.rng.integers(1, 9)), self.types[flat].shape[1]))
        return self.layer(hidden, self.weights(3, self.types[hidden].shape[1]))


def random_network(seed: int) -> IntegerNetwork:
    """A network of up to seven layers; what it computes last is its output."""
    rng = np.random.default_rng(seed)
    shape = (1, int(rng.integers(1, 7)), int(rng.integers(1, 7)), int(rng.integers(1, 5)))
    net = IntegerNetwork(seed, x=TensorType(shape, "int8"))
    x = "x"
    for _ in range(int(rng.integers(1, 7))):
        x = net.random_layer(x)
    net.classified(x)
    return net
