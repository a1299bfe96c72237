# SPDX-License-Identifier: Apache-2.0
"""A small network that learns, and samples for it."""

from __future__ import annotations

import numpy as np

import microc
from microc.base.dtypes import Array
from microc.graph.ir import Graph

RNG = np.random.default_rng(2)
STEPS, RATE = 10, 0.1


def two_layers(classes: int = 3, generator: np.random.Generator = RNG) -> Graph:
    """Two dense layers with a relu between, and a softmax."""
    net = microc.GraphBuilder()

    def draw(*shape: int) -> Array:
        return np.asarray(generator.normal(size=shape) * 0.5, np.float32)

    x = net.input("x", (1, 5))
    h = net.op("dense", x, net.constant("w1", draw(4, 5)), net.constant("b1", draw(4)), activation="relu")
    y = net.op("dense", h, net.constant("w2", draw(classes, 4)), net.constant("b2", draw(classes)))
    return net.graph("two", {"y": net.op("softmax", y)})


def samples(count: int, classes: int = 3) -> list[tuple[Array, int]]:
    return [(RNG.normal(size=(1, 5)).astype(np.float32), int(RNG.integers(classes))) for _ in range(count)]
