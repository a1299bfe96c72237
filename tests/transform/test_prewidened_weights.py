# SPDX-License-Identifier: Apache-2.0
"""Weights that are opened first: the same numbers from bytes, in front of the layer, only where they serve many rows."""

from __future__ import annotations

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.graph.ir import Graph
from microc.ops.matrix.gemm import NEAR
from microc.transform.loop_blocking import find_widenable_weights, prewiden_weights
from microc.transform.pass_context import PassContext
from tests.transform.network import Network, check

DICE = np.random.default_rng(5)


def levels(*shape: int, most: int = 127) -> Array:
    """Weights (O, ...) of whole numbers times a scale for each channel."""
    whole = DICE.integers(-most, most + 1, shape).astype(np.float32)
    return whole * DICE.uniform(0.01, 0.02, (shape[0], *(1 for _ in shape[1:]))).astype(np.float32)


def layers(most: int = 127, rows: int = 20) -> Graph:
    """A convolution and a dense layer."""
    net = Network(x=(1, 6, 6, 4), y=(rows, 12))
    image = net.op(
        "conv2d", "x", net.constant(levels(8, 3, 3, 4, most=most)), net.random(8), padding=(1,) * 4, layout="NHWC"
    )
    return net.graph(image, net.op("dense", "y", net.constant(levels(5, 12, most=most)), net.random(5)))


def test_numbers_are_the_same() -> None:
    graph = layers()
    changed = check(prewiden_weights, graph, tolerance=36 * 2 * 127 * 0.02 * 3 * NEAR)
    assert [node.op for node in changed.nodes] == ["cast", "mul", "conv2d", "cast", "mul", "dense"]
    assert sorted(str(array.dtype) for array in changed.consts.values() if array.ndim > 1 and array.size > 8) == 2 * [
        "int8"
    ]


def test_weights_of_two_layers_are_opened_once() -> None:
    net = Network(x=(9, 12), y=(20, 12))
    weight = net.constant(levels(5, 12))
    graph = net.graph(net.op("dense", "x", weight), net.op("dense", "y", weight))
    assert [node.op for node in prewiden_weights(graph, PassContext()).nodes] == ["cast", "mul", "dense", "dense"]


@pytest.mark.parametrize(
    "graph", [layers(most=7, rows=7), layers(rows=1)], ids=["few bits, or few rows", "a single row"]
)
def test_what_is_no_use_stays(graph: Graph) -> None:
    """Weights of few bits, which are packed, and those that serve few rows."""
    dense = next(node for node in graph.nodes if node.op == "dense")
    assert dense.inputs[1] not in find_widenable_weights(graph)


def test_floats_that_are_no_levels_stay() -> None:
    net = Network(x=(20, 12))
    graph = net.graph(net.dense("x", 5))
    assert prewiden_weights(graph, PassContext()) is graph
