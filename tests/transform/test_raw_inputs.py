# SPDX-License-Identifier: Apache-2.0
"""Normalisation and reversed channels become part of the first layer's weights and bias, and the same is computed."""

from __future__ import annotations

import numpy as np
import pytest

from microc.graph.ir import Graph, TensorType
from microc.transform.pass_context import PassContext
from microc.transform.scale_axis import fold_scales, fold_shifts
from tests.transform.network import Network, check, ops

PIXELS = TensorType((1, 6, 5, 4), "uint8")


def folded(graph: Graph) -> Graph:
    return check(fold_shifts, check(fold_scales, graph, 1e-4), 1e-4)


def normalised(net: Network, x: str, channels: int = 4, reverse: bool = False) -> str:
    if reverse:
        x = net.op("reverse", x, axes=(len(net.types[x].shape) - 1,))
    if net.types[x].dtype != "float32":
        x = net.op("cast", x, dtype="float32")
    centred = net.op("sub", x, net.constant(np.linspace(1, 2, channels, dtype=np.float32)))
    return net.op("mul", centred, net.constant(np.linspace(0.01, 0.02, channels, dtype=np.float32)))


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_a_convolution_takes_factors_and_without_padding_means(groups: int) -> None:
    for padding in (0, 1):
        net = Network(x=PIXELS)
        net.conv(normalised(net, "x"), 8, padding=padding, layout="NHWC", groups=groups)
        wanted = ["cast", "sub", "conv2d"] if padding else ["cast", "conv2d"]
        assert ops(folded(net.graph())) == wanted


def test_reversed_channels_are_those_of_the_weights() -> None:
    net = Network(x=PIXELS)
    net.conv(normalised(net, "x", reverse=True), 8, padding=1, layout="NHWC")
    assert ops(folded(net.graph())) == ["cast", "sub", "conv2d"]
    net = Network(x=PIXELS)
    net.conv(normalised(net, "x", reverse=True), 8, padding=1, layout="NHWC", groups=2)
    assert ops(folded(net.graph()))[0] == "reverse", "groups would meet others"


def test_rows_of_an_image() -> None:
    net = Network(x=PIXELS)
    net.dense(net.flatten(normalised(net, "x")), 3)
    assert ops(folded(net.graph())) == ["cast", "reshape", "dense"]


def test_floats_at_an_input_are_raw_and_what_a_layer_made_is_not() -> None:
    net = Network(x=(1, 6, 5, 4))
    first = net.conv(normalised(net, "x"), 4, padding=0, layout="NHWC")
    net.conv(normalised(net, first), 4, padding=0, layout="NHWC")
    assert ops(folded(net.graph())) == ["conv2d", "sub", "mul", "conv2d"]


def test_what_others_read_stays() -> None:
    net = Network(x=PIXELS)
    made = normalised(net, "x", reverse=True)
    net.conv(made, 8, padding=0, layout="NHWC")
    graph = net.graph(net.nodes[-1].outputs[0], made)
    assert fold_shifts(fold_scales(graph, PassContext()), PassContext()) is graph


def test_integers_are_reversed_in_their_weights_exactly() -> None:
    net = Network(x=TensorType((1, 4), "int8"))
    weights = net.constant(net.rng.integers(-128, 128, (3, 4)).astype(np.int8))
    table = net.constant(net.rng.integers(-128, 128, 256).astype(np.int8))
    net.op("dense", net.op("lookup", net.op("reverse", "x", axes=(1,)), table), weights, out_dtype="int32")
    assert ops(check(fold_scales, net.graph())) == ["lookup", "dense"]
