# SPDX-License-Identifier: Apache-2.0
"""Channels that are constant, or that nobody reads, go; every value that is left stays what it was, borders
included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from microc.base.dtypes import Array
from microc.graph import ir
from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.transform.channel_relations import channel_count
from microc.transform.channel_removal import eliminate_dead_channels, fold_constant_channels, merge_duplicate_channels
from microc.transform.pass_context import PassContext
from microc.transform.quantised.integer_ranges import compute_value_ranges, tighten_bounds
from microc.transform.quantised.unary_functions import simplify_unary_functions
from tests.support.campaign import examples
from tests.transform.integer_network import IntegerNetwork, random_network
from tests.transform.network import apply, check, ops, random_inputs

PASSES = (fold_constant_channels, merge_duplicate_channels, eliminate_dead_channels, tighten_bounds)
MULTIPLIER = {"multiplier": 1 << 30, "shift": -5, "shift_range": (-5, -5)}


def narrowed(graph: Graph, context: PassContext) -> Graph:
    """All passes on channels, in order."""
    for function in PASSES:
        graph = function(graph, context)
    return graph


def run(net: IntegerNetwork, *outputs: str) -> Graph:
    return check(narrowed, net.graph(*outputs))


def macs(graph: Graph) -> int:
    """Weights that are left, as a measure of the work."""
    return sum(graph.consts[n.inputs[1]].size for n in graph.nodes if n.op in ("conv2d", "dense"))


def width(graph: Graph, number: int) -> int:
    """Channels that a node makes."""
    return channel_count(graph, graph.nodes[number].outputs[0])


def weights(live: int, dead: int, *shape: int) -> Array:
    """Different weights for ``live`` output channels, zeros for ``dead`` ones behind them."""
    array = np.zeros((live + dead, *shape), np.int8)
    array[:live] = 1
    array[:live, ..., 1] += np.arange(live, dtype=np.int8).reshape(-1, *[1] * (len(shape) - 1))
    return array


def network(live: int, dead: int, constant: int = -20, size: int = 4) -> tuple[IntegerNetwork, str]:
    """A pointwise layer of which ``dead`` channels hold ``constant``."""
    net = IntegerNetwork(x=TensorType((1, size, size, 3), "int8"))
    bias = net.constant(np.full(live + dead, constant * 64, np.int32))
    acc = net.op("conv2d", "x", net.constant(weights(live, dead, 1, 1, 3)), bias, out_dtype="int32")
    return net, requantized(net, acc)


def requantized(net: IntegerNetwork, acc: str, low: int = -128) -> str:
    attrs: dict[str, Any] = {**MULTIPLIER, "zero_point": 0, "minimum": low, "maximum": 127}
    return net.op("requantize", acc, rounding="double", out_dtype="int8", input_zero_point=0, bound=-1, **attrs)


# ---------------------------------------------------------------- random networks


@settings(max_examples=examples(120), deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_random_networks_keep_what_they_compute(seed: int) -> None:
    graph = random_network(seed).graph()
    result = run_all(graph)
    assert macs(result) <= macs(graph)


def run_all(graph: Graph) -> Graph:
    result = graph
    for function in (simplify_unary_functions, *PASSES):
        result = check(function, result)
    return result


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_values_lie_in_their_ranges(seed: int) -> None:
    graph = random_network(seed).graph()
    ranges = compute_value_ranges(graph)
    for k in range(2):
        for name, array in ir.run(graph, random_inputs(graph, k), apply).items():
            if name in ranges:
                rows = array.reshape(-1, array.shape[-1])
                assert (rows >= ranges[name].low).all() and (rows <= ranges[name].high).all()


@pytest.mark.parametrize(("shift", "reach"), [(-25, 64 * 20000 // 32768), (7, 32767)])
def test_scaling_that_may_drop_upper_bits_is_not_monotone(shift: int, reach: int) -> None:
    """An int32 times 2**7 starts anew from the other end, so that nothing but the clamp is known."""
    attrs: dict[str, Attr] = {
        "multiplier": 20000,
        "shift": shift,
        "shift_range": (shift, shift),
        "rounding": "wide",
        "zero_point": 0,
    }
    target: dict[str, Attr] = {
        "minimum": -32768,
        "maximum": 32767,
        "out_dtype": "int16",
        "bound": -1,
        "input_zero_point": 0,
    }
    types = {"x": TensorType((4,), "int32"), "y": TensorType((4,), "int16")}
    graph = Graph("g", ("x",), ("y",), (Node("requantize", ("x",), ("y",), {**attrs, **target}),), types)
    assert abs(int(compute_value_ranges(graph)["y"].high.max()) - reach) <= 1


def test_random_networks_do_lose_channels() -> None:
    """The tests above mean something."""
    graphs = [random_network(seed).graph() for seed in range(30)]
    assert sum(macs(run_all(graph)) for graph in graphs) < 0.7 * sum(macs(graph) for graph in graphs)


# ---------------------------------------------------------------- constant channels


def test_constant_channels_move_into_the_bias_of_the_next_layer() -> None:
    net, x = network(live=4, dead=12)
    net.layer(x, net.rng.integers(-9, 9, (5, 1, 1, 16)).astype(np.int8))
    graph = run(net)
    assert [graph.consts[n.inputs[1]].shape for n in graph.nodes if n.op == "conv2d"] == [(4, 1, 1, 3), (5, 1, 1, 4)]


@pytest.mark.parametrize(("pad_value", "left"), [(-20, 4), (0, 8)], ids=["padded alike", "padded with another number"])
def test_a_border_counts(pad_value: int, left: int) -> None:
    """Twelve channels that differ at the border are alike: one stands for all."""
    net, x = network(live=4, dead=12)
    net.layer(x, net.rng.integers(1, 9, (5, 3, 3, 16)).astype(np.int8), padding=(1, 1, 1, 1), pad_value=pad_value)
    assert width(run(net), 1) == left


def test_padding_that_no_tap_sees_does_not_count() -> None:
    net, x = network(live=4, dead=12, size=5)
    taps = net.rng.integers(1, 9, (5, 1, 1, 16)).astype(np.int8)
    net.layer(x, taps, padding=(0, 0, 1, 1), strides=(2, 2), pad_value=0)
    assert width(run(net), 1) == 4


@pytest.mark.parametrize(("low", "left"), [(-128, 8), (-60, 4)], ids=["differs at the border", "clamped to one number"])
def test_a_depthwise_layer_keeps_a_channel_that_differs_at_the_border(low: int, left: int) -> None:
    net, x = network(live=4, dead=12)
    taps = net.constant(np.full((16, 3, 3, 1), 64, np.int8))
    acc = net.op("conv2d", x, taps, groups=16, padding=(1, 1, 1, 1), out_dtype="int32")
    net.layer(requantized(net, acc, low), net.rng.integers(1, 9, (5, 1, 1, 16)).astype(np.int8))
    assert width(run(net), 3) == left


def test_a_clamp_makes_channels_constant() -> None:
    """A bias far below what the weights can add: relu hides the channel."""
    net = IntegerNetwork(x=TensorType((1, 3, 3, 2), "int8"))
    bias = net.constant(np.array([0, 0, 0, 0, -99999, -99999, 99999, -99999], np.int32))
    acc = net.op("conv2d", "x", net.constant(np.ones((8, 1, 1, 2), np.int8)), bias, out_dtype="int32")
    net.layer(requantized(net, acc, low=0), net.rng.integers(1, 9, (4, 1, 1, 8)).astype(np.int8))
    assert width(run(net), 0) == 4


def test_a_bias_that_would_overflow_keeps_its_channel() -> None:
    net, x = network(live=4, dead=12, constant=100)
    bias = net.constant(np.full(4, (1 << 31) - 1000, np.int32))
    net.layer(x, np.full((4, 1, 1, 16), 1, np.int8), bias)
    folded = fold_constant_channels(net.graph(), PassContext())
    assert [(folded.consts[n.inputs[1]] != 0).sum() for n in folded.nodes if n.op == "conv2d"] == [12, 64]


def test_a_vector_of_constants_is_a_constant() -> None:
    """Gates that are stuck: their layer goes altogether."""
    net = IntegerNetwork(x=TensorType((1, 4, 4, 3), "int8"))
    pooled = net.op("avg_pool2d", "x", kernel=(4, 4), strides=(1, 1))
    gates = net.layer(pooled, np.zeros((3, 1, 1, 3), np.int8))
    net.sum_of("x", gates)
    assert ops(run(net)) == ["qadd"]


def test_a_branch_that_is_constant_goes() -> None:
    """Its numbers stay in the sum, one for each channel."""
    net, x = network(live=4, dead=0)
    other = net.layer(x, np.ones((4, 3, 3, 1), np.int8), groups=4, padding=(1, 1, 1, 1))
    net.sum_of(x, net.layer(other, np.zeros((4, 1, 1, 4), np.int8)))
    graph = run(net)
    assert ops(graph) == ["conv2d", "requantize", "qadd"] and graph.types[graph.nodes[2].inputs[1]].shape == (
        1,
        1,
        1,
        4,
    )


# ---------------------------------------------------------------- duplicate channels


def test_equal_channels_are_computed_once() -> None:
    """Through depthwise layers and pools; the sum of their weights has to fit."""
    net = IntegerNetwork(x=TensorType((1, 5, 5, 3), "int8"))
    different = net.rng.integers(-9, 9, (8, 1, 1, 3)).astype(np.int8)
    acc = net.op("conv2d", "x", net.constant(np.tile(different, (2, 1, 1, 1))), out_dtype="int32")
    taps = net.constant(np.tile(net.rng.integers(-9, 9, (8, 3, 3, 1)).astype(np.int8), (2, 1, 1, 1)))
    x = net.op("conv2d", requantized(net, acc), taps, groups=16, padding=(1, 1, 1, 1), pad_value=9, out_dtype="int32")
    x = net.op("avg_pool2d", requantized(net, x), kernel=(2, 2), strides=(1, 1))
    weights = np.full((4, 3, 3, 16), 50, np.int8)
    weights[..., 4:8] = weights[..., 12:] = 80
    net.layer(x, weights, padding=(1, 1, 1, 1), pad_value=-7)
    graph = run(net)
    assert [width(graph, k) for k in (0, 2, 4)] == [12, 12, 12]


def test_channels_that_differ_in_one_constant_are_not_equal() -> None:
    net = IntegerNetwork(x=TensorType((1, 5, 5, 3), "int8"))
    acc = net.op("conv2d", "x", net.constant(np.ones((16, 1, 1, 3), np.int8)), out_dtype="int32")
    shifts = net.constant(np.repeat([-5, -6, -7, -8], 4).astype(np.int8))
    attrs: dict[str, Any] = {**MULTIPLIER, "shift": None, "zero_point": 0, "minimum": -128, "maximum": 127}
    x = net.op("requantize", acc, shifts, rounding="double", out_dtype="int8", input_zero_point=0, bound=-1, **attrs)
    net.layer(x, net.rng.integers(-9, 9, (4, 1, 1, 16)).astype(np.int8))
    assert width(run(net), 0) == 4


def test_equal_channels_of_a_flattened_value_stay_apart_by_position() -> None:
    net = IntegerNetwork(x=TensorType((1, 3, 3, 3), "int8"))
    acc = net.op("conv2d", "x", net.constant(np.ones((8, 1, 1, 3), np.int8)), out_dtype="int32")
    flat = net.flatten(requantized(net, acc))
    net.layer(flat, net.rng.integers(-9, 9, (4, 72)).astype(np.int8))
    graph = run(net)
    assert width(graph, 0) == 4 and graph.types[graph.nodes[3].inputs[0]].shape == (1, 36)


def test_joined_copies_are_read_once() -> None:
    net, x = network(live=8, dead=0)
    joined = net.op("concat", x, net.constant(np.zeros((1, 4, 4, 4), np.int8)), x, axis=3)
    net.layer(joined, net.rng.integers(-9, 9, (4, 1, 1, 20)).astype(np.int8))
    graph = run(net)
    assert graph.consts[graph.nodes[-2].inputs[1]].any(axis=(0, 1, 2)).sum() <= 8


# ---------------------------------------------------------------- dead channels


def test_what_nobody_reads_goes_through_chains() -> None:
    net, x = network(live=16, dead=0)
    taps = np.ones((16, 3, 3, 1), np.int8)
    x = requantized(net, net.op("conv2d", x, net.constant(taps), groups=16, out_dtype="int32"))
    x = net.op("max_pool2d", net.op("clip", x, minimum=-100, maximum=90, rounding=""), kernel=(2, 2), strides=(1, 1))
    taps = net.rng.integers(1, 9, (4, 1, 1, 16)).astype(np.int8)
    taps[..., ::2] = 0
    net.layer(x, taps)
    graph = run(net)
    assert {channel_count(graph, n.outputs[0]) for n in graph.nodes[:-2]} == {8}
    assert graph.nodes[2].attr("groups") == 8


def test_both_sides_of_a_sum_stay_together() -> None:
    net, x = network(live=8, dead=0)
    other = net.layer("x", np.ones((8, 1, 1, 3), np.int8))
    taps = np.ones((4, 1, 1, 8), np.int8)
    taps[..., :4] = 0
    net.layer(net.sum_of(x, other), taps)
    graph = run(net)
    assert [channel_count(graph, n.outputs[0]) for n in graph.nodes] == [4, 4, 4, 4, 4, 4, 4]


def test_what_another_layer_reads_stays() -> None:
    net, x = network(live=8, dead=0)
    taps = np.ones((4, 1, 1, 8), np.int8)
    taps[..., :4] = 0
    outputs = net.layer(x, taps), net.layer(x, taps[..., ::-1].copy())
    graph = run(net, *outputs)
    assert width(graph, 0) == 8


def test_flattened_channels_lose_every_position() -> None:
    net, x = network(live=8, dead=8, size=3)
    dense = net.rng.integers(-9, 9, (2, 9 * 16)).astype(np.int8)
    net.layer(net.flatten(x), dense)
    graph = run(net)
    assert [graph.types[n.outputs[0]].shape for n in graph.nodes][1:3] == [(1, 3, 3, 8), (1, 72)]


def test_a_flattened_channel_that_is_read_anywhere_stays() -> None:
    net, x = network(live=8, dead=0, size=3)
    dense = np.ones((2, 9 * 8), np.int8)
    dense[:, 4:] = 0
    net.layer(net.flatten(x), dense)
    graph = run(net)
    assert [graph.types[n.outputs[0]].shape for n in graph.nodes][1:3] == [(1, 3, 3, 4), (1, 36)]


def test_concatenated_channels_go_one_by_one() -> None:
    net, x = network(live=8, dead=4)
    given = net.constant(np.arange(64).reshape(1, 4, 4, 4).astype(np.int8))
    joined = net.op("concat", x, given, net.layer("x", np.ones((4, 1, 1, 3), np.int8)), axis=3)
    taps = np.ones((4, 1, 1, 20), np.int8)
    taps[..., :4] = taps[..., 14:16] = 0
    net.layer(joined, taps)
    graph = run(net)
    node = next(n for n in graph.nodes if n.op == "concat")
    assert [graph.types[name].shape[3] for name in node.inputs] == [4, 2, 4]
    assert graph.consts[node.inputs[1]].reshape(-1)[:4].tolist() == [0, 1, 4, 5]


def test_outputs_keep_all_channels_and_their_names() -> None:
    net, x = network(live=4, dead=4)
    graph = run(net, x)
    assert graph.types[x].shape == (1, 4, 4, 8) and ops(graph) == ["conv2d", "requantize"]


def test_narrowed_values_get_new_names() -> None:
    net, x = network(live=4, dead=4)
    net.layer(x, np.ones((4, 1, 1, 8), np.int8))
    graph = run(net)
    assert x not in graph.types and graph.outputs == net.graph().outputs


@pytest.mark.parametrize(("live", "left"), [(1, 4), (4, 4), (5, 8), (9, 10)])
def test_layers_are_filled_up_with_copies_of_live_channels(live: int, left: int) -> None:
    """Fillers neither widen the accumulator's bound nor the shifts."""
    net = IntegerNetwork(x=TensorType((1, 4, 4, 3), "int8"))
    bias = np.where(np.arange(10) < live, 5, 1 << 30).astype(np.int32)
    acc = net.op("conv2d", "x", net.constant(weights(live, 10 - live, 1, 1, 3)), net.constant(bias), out_dtype="int32")
    shifts = net.constant(np.where(np.arange(10) < live, -6, -31).astype(np.int8))
    attrs: dict[str, Any] = {"multiplier": 1 << 30, "shift": None, "shift_range": (-31, -6), "zero_point": 0}
    attrs |= {"minimum": -128, "maximum": 127, "out_dtype": "int8", "rounding": "double", "bound": -1}
    x = net.op("requantize", acc, shifts, input_zero_point=0, **attrs)
    net.layer(x, np.ones((4, 1, 1, 10), np.int8))
    graph = run(net)
    first = graph.nodes[1]
    assert width(graph, 1) == left
    assert (first.attr("bound"), first.attr("shift")) == (max(127 * (live + 2) + 5, 128 * (live + 2) - 5), -6)


def test_a_network_that_ignores_its_input_still_runs() -> None:
    net, x = network(live=4, dead=0)
    net.layer(x, np.zeros((2, 1, 1, 4), np.int8))
    run(net)


def test_float_channels_without_weights_go_too() -> None:
    net = IntegerNetwork(x=(1, 4, 4, 2))
    taps = net.rng.uniform(-1, 1, (4, 3, 3, 8)).astype(np.float32)
    taps[..., ::2] = 0
    net.op("conv2d", net.op("relu", net.conv("x", 8, layout="NHWC")), net.constant(taps))
    graph = check(narrowed, net.graph(), 1e-6)
    assert width(graph, 0) == 4
