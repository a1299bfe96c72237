# SPDX-License-Identifier: Apache-2.0
"""Layers that share their input become one, exactly, where their parts of its result cost nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from microc.graph.ir import Graph, TensorType
from microc.transform.canonicalise import canonicalise
from microc.transform.fuse import fuse
from microc.transform.parallel_layers import join_parallel_layers, split_layers
from microc.transform.pass_context import PassContext
from microc.transform.quantised.integer_ranges import tighten_bounds
from tests.transform.integer_network import REQUANTIZE, IntegerNetwork
from tests.transform.network import Network, check, ops


def run(net: Network, *outputs: str) -> Graph:
    return check(join_parallel_layers, net.graph(*outputs), 1e-6)


def untouched(net: Network, *outputs: str) -> bool:
    graph = net.graph(*outputs)
    return join_parallel_layers(graph, PassContext()) is graph


def rows(net: Network, values: Sequence[str]) -> str:
    """What reads all of them, none element by element."""
    return net.op("concat", *(net.op("mean", value, axes=(-1,), keepdims=True) for value in values), axis=-1)


def test_dense_layers_of_one_row_are_parts_of_one() -> None:
    net = Network(x=(1, 8))
    rows(net, [net.op("relu", net.dense("x", units)) for units in (3, 5, 4)])
    graph = run(net)
    assert ops(graph) == ["dense", "relu", *["slice"] * 3, *["mean"] * 3, "concat"]
    assert graph.types[graph.nodes[0].outputs[0]].shape == (1, 12)
    assert [node.attr("begin")[1] for node in graph.nodes if node.op == "slice"] == [0, 3, 8]


def test_a_layer_without_bias_gets_zeros() -> None:
    net = Network(x=(1, 8))
    rows(net, [net.dense("x", 3), net.op("dense", "x", net.random(2, 8))])
    graph = run(net)
    assert ops(graph)[:1] == ["dense"] and not graph.consts[graph.nodes[0].inputs[2]][3:].any()


def test_layers_go_together_with_what_follows_them() -> None:
    """Three gates of one kind and one of another."""
    net = Network(x=(1, 8))
    rows(net, [net.op(op, net.dense("x", 4)) for op in ("sigmoid", "sigmoid", "tanh", "sigmoid")])
    graph = run(net)
    assert [op for op in ops(graph) if op in ("dense", "sigmoid", "tanh")] == ["dense", "sigmoid", "dense", "tanh"]


def test_numbers_of_one_layer_become_those_of_its_channels() -> None:
    net = Network(x=(1, 1, 1, 8))
    parts = [net.conv("x", units, 1, 0, "NHWC") for units in (3, 2)]
    scaled = [net.op("mul", part, c) for part, c in zip(parts, (net.random(1), net.random(2)), strict=True)]
    rows(net, [net.op("prelu", part, net.random(1, 1, units)) for part, units in zip(scaled, (3, 2), strict=True)])
    graph = run(net)
    assert ops(graph)[:5] == ["conv2d", "mul", "prelu", "slice", "slice"]
    assert [graph.consts[node.inputs[1]].shape for node in graph.nodes[1:3]] == [(5,), (5,)]


def pointwise(net: IntegerNetwork, x: str, units: int, most: int = 100) -> str:
    """An accumulator."""
    weights = net.rng.integers(-most, most, (units, 1, 1, net.types[x].shape[-1])).astype(np.int8)
    return net.op("conv2d", x, net.constant(weights), net.bias(units), out_dtype="int32")


def fixed(net: IntegerNetwork, acc: str, multiplier: int, shift: int, **attrs: Any) -> str:
    given = {**REQUANTIZE, "zero_point": 3, "minimum": -90, "maximum": 127, **attrs}
    return net.op("requantize", acc, multiplier=multiplier, shift=shift, shift_range=(shift, shift), **given)


def test_integers_are_scaled_by_channel() -> None:
    net = IntegerNetwork(1, x=TensorType((1, 1, 1, 8), "int8"))
    parts = [fixed(net, pointwise(net, "x", 4), 1 << 30, -5), fixed(net, pointwise(net, "x", 3), 1 << 30, -7)]
    graph = run(net, rows(net, parts))
    assert ops(graph)[:4] == ["conv2d", "requantize", "slice", "slice"]
    assert graph.nodes[1].attr("shift_range") == (-7, -5) and graph.nodes[1].attr("bound") == -1
    multiplier, shift = (graph.consts[name] for name in graph.nodes[1].inputs[1:])
    assert multiplier.shape == (7,) and shift.tolist() == [-5] * 4 + [-7] * 3
    assert tighten_bounds(graph, PassContext()).nodes[1].attr("multiplier") == 1 << 30


def test_the_bound_of_the_sums_is_the_largest() -> None:
    net = IntegerNetwork(1, x=TensorType((1, 1, 1, 8), "int8"))
    rows(net, [fixed(net, pointwise(net, "x", 4), 1 << 30, -5, bound=bound) for bound in (10**5, 10**6)])
    assert run(net).nodes[1].attr("bound") == 10**6


@pytest.mark.parametrize("other", [{"zero_point": 4}, {"minimum": -128}, {"rounding": "single"}], ids=str)
def test_what_all_channels_share_has_to_be_equal(other: dict[str, Any]) -> None:
    net = IntegerNetwork(1, x=TensorType((1, 1, 1, 8), "int8"))
    rows(net, [fixed(net, pointwise(net, "x", 4), 1 << 30, -5, **attrs) for attrs in ({}, other)])
    assert untouched(net)


def test_weights_of_few_bits_stay_such() -> None:
    net = IntegerNetwork(1, x=TensorType((1, 1, 1, 16), "int8"))
    rows(net, [fixed(net, pointwise(net, "x", 4, most), 1 << 30, -5) for most in (100, 2)])
    assert untouched(net)


def test_several_rows_would_be_copied() -> None:
    net = Network(x=(2, 8))
    rows(net, [net.dense("x", 3), net.dense("x", 3)])
    assert untouched(net)


def test_neighbours_in_a_concat_need_no_parts() -> None:
    net = Network(x=(1, 4, 4, 3))
    a, b, c = (net.op("relu", net.conv("x", units, layout="NHWC")) for units in (2, 5, 4))
    net.op("concat", a, net.op("max_pool2d", "x", kernel=(1, 1), strides=(1, 1)), c, b, axis=3)
    graph = run(net)
    assert ops(graph) == ["conv2d", "relu", "conv2d", "relu", "max_pool2d", "concat"]
    assert len(graph.nodes[-1].inputs) == 3 and graph.types[graph.nodes[-1].inputs[2]].shape[-1] == 9


def test_a_concat_of_all_is_the_joined_layer() -> None:
    net = Network(x=(1, 4, 4, 3))
    made = net.op("concat", net.conv("x", 2, layout="NHWC"), net.conv("x", 5, layout="NHWC"), axis=-1)
    net.op("relu", made)
    assert ops(canonicalise(run(net), PassContext())) == ["conv2d", "relu"]


def test_results_keep_their_kernels_ends() -> None:
    """A sum with something else is computed in the layer's kernel, which a part of another value has not."""
    net = Network(x=(1, 8), y=(1, 3))
    rows(net, [net.op("add", net.dense("x", 3), "y"), net.op("add", net.dense("x", 3), "y")])
    assert untouched(net)


def test_outputs_stay() -> None:
    net = Network(x=(1, 8))
    assert untouched(net, net.dense("x", 3), net.dense("x", 3))


@pytest.mark.parametrize("attrs", [{"kernel": 1, "padding": 0}, {"strides": (2, 2)}, {"dilation": (2, 2)}], ids=str)
def test_other_windows_stay_apart(attrs: dict[str, Any]) -> None:
    net = Network(x=(1, 5, 5, 2))
    net.op("concat", *(net.op("mean", net.conv("x", 2, layout="NHWC", **a), axes=(1, 2)) for a in ({}, attrs)), axis=-1)
    assert untouched(net)


def split(net: Network, result: str, step: int) -> Graph:
    """The network with the layer that computes ``result`` in parts of ``step`` channels."""
    return check(lambda graph, context: split_layers(fuse(graph, context), {result: step}), net.graph(), 1e-6)


def test_a_layer_is_split_with_all_that_follows_it_by_channel() -> None:
    """Weights, bias, multipliers and shifts are of a part's channels; what all channels share is left."""
    net = IntegerNetwork(1, x=TensorType((1, 5, 4, 6), "int8"))
    result = net.layer("x", net.weights(10, 3, 3, 6), padding=(1, 1, 1, 1))
    graph = split(net, result, 4)
    assert ops(graph) == ["conv2d", "requantize"] * 3 + ["concat"]
    assert len({node.group for node in graph.nodes}) == 4
    parts = [node for node in graph.nodes if node.op == "requantize"]
    assert [graph.consts[node.inputs[1]].shape for node in parts] == [(4,), (4,), (2,)]
    assert [graph.types[node.outputs[0]].shape for node in parts] == [(1, 5, 4, 4), (1, 5, 4, 4), (1, 5, 4, 2)]
    floats = Network(x=(1, 8))
    assert ops(split(floats, floats.op("relu", floats.dense("x", 7)), 6)) == ["dense", "relu"] * 2 + ["concat"]


def test_a_part_can_be_split_again() -> None:
    net = Network(x=(1, 8))
    result = net.op("relu", net.dense("x", 8))
    graph = split(net, result, 4)
    again = check(lambda graph, _: split_layers(graph, {graph.nodes[1].outputs[0]: 3}), graph, 1e-6)
    assert ops(again) == ["dense", "relu", "dense", "relu", "concat", "dense", "relu", "concat"]


def test_layers_with_other_operands_stay_whole() -> None:
    net = Network(x=(1, 8), y=(1, 6))
    result = net.op("add", net.dense("x", 6), "y")
    assert "concat" not in ops(split(net, result, 2))
    assert "concat" not in ops(split(net, net.op("relu", result), 0))
