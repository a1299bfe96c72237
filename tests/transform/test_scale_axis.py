# SPDX-License-Identifier: Apache-2.0
"""Factors and terms in front of layers of floats become part of these."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from microc.graph.ir import Graph
from microc.transform.pass_context import PassContext
from microc.transform.scale_axis import fold_scale_axis
from tests.transform.network import Network, check, evaluate, ops, random_inputs

IMAGE = (1, 6, 6, 4)


def folded(net: Network) -> list[str]:
    return ops(check(fold_scale_axis, net.graph(), 1e-5))


def untouched(net: Network, *outputs: str) -> bool:
    graph = net.graph(*outputs)
    return fold_scale_axis(graph, PassContext()) is graph


def scaled(net: Network, x: str, op: str = "mul", *shape: int, least: float = 0.5) -> str:
    """With a constant for each channel, or of a shape."""
    numbers = net.rng.uniform(least, 2, shape or net.types[x].shape[-1:]).astype(np.float32)
    return net.op(op, x, net.constant(numbers))


@pytest.mark.parametrize("op", ["mul", "div"])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_a_factor_becomes_part_of_the_weights(op: str, groups: int) -> None:
    net = Network(x=IMAGE)
    net.conv(scaled(net, net.op("exp", "x"), op, least=-2), 8, layout="NHWC", groups=groups)
    assert folded(net) == ["exp", "conv2d"]


@pytest.mark.parametrize("op", ["add", "sub"])
@pytest.mark.parametrize(("padding", "left"), [(0, ["conv2d"]), (1, ["add", "conv2d"])])
def test_a_term_becomes_part_of_the_bias_where_nothing_is_padded(op: str, padding: int, left: list[str]) -> None:
    net = Network(x=IMAGE)
    net.conv(scaled(net, "x", op), 8, padding=padding, layout="NHWC")
    assert folded(net) == [op if name == "add" else name for name in left]


def test_a_factor_goes_through_a_term_and_a_clamp() -> None:
    """A batch normalisation before an activation and a padded convolution."""
    net = Network(x=IMAGE)
    net.conv(net.op("relu", scaled(net, scaled(net, "x"), "add")), 8, layout="NHWC")
    assert folded(net) == ["add", "relu", "conv2d"]


@pytest.mark.parametrize(("op", "attrs"), [("max_pool2d", {}), ("avg_pool2d", {"padding": (1, 1, 1, 1)})], ids=str)
def test_a_factor_goes_through_pools(op: str, attrs: dict[str, Any]) -> None:
    net = Network(x=IMAGE)
    pooled = net.op(op, scaled(net, "x"), kernel=(2, 2), strides=(2, 2), **attrs)
    net.dense(net.flatten(net.op("pad", pooled, padding=((0, 0), (1, 0), (0, 0), (0, 0)), value=0.0)), 5)
    assert folded(net) == [op, "pad", "reshape", "dense"]


@pytest.mark.parametrize("op", ["relu", "max_pool2d"])
def test_factors_below_zero_stop_where_the_sign_counts(op: str) -> None:
    net = Network(x=IMAGE)
    attrs: dict[str, Any] = {} if op == "relu" else {"kernel": (2, 2), "strides": (1, 1)}
    negative = net.op("mul", "x", net.constant(np.array([1, 2, -1, 3], np.float32)))
    net.conv(net.op(op, negative, **attrs), 8, layout="NHWC")
    assert untouched(net)


@pytest.mark.parametrize("shape", [(1,), (6, 1, 4), (1, 6, 6, 1)])
def test_rows_take_constants_of_any_shape(shape: tuple[int, ...]) -> None:
    net = Network(x=IMAGE)
    net.dense(net.flatten(scaled(net, scaled(net, "x", "mul", *shape), "sub", *shape)), 5)
    assert folded(net) == ["reshape", "dense"]


def test_what_differs_within_a_channel_stays() -> None:
    net = Network(x=IMAGE)
    net.conv(scaled(net, "x", "mul", 6, 1, 1), 8, layout="NHWC")
    assert untouched(net)


def test_what_others_read_stays() -> None:
    net = Network(x=IMAGE)
    made = scaled(net, "x")
    assert untouched(net, net.conv(made, 8, layout="NHWC"), made)


def test_padding_with_a_number_and_reshapes_that_mix_channels_stop() -> None:
    net = Network(x=IMAGE)
    padded = net.op("pad", scaled(net, "x"), padding=((0, 0), (1, 1), (1, 1), (0, 0)), value=1.0)
    net.conv(padded, 8, padding=0, layout="NHWC")
    assert untouched(net)
    net = Network(x=IMAGE)
    net.conv(net.op("reshape", scaled(net, "x"), shape=(1, 12, 6, 2)), 8, layout="NHWC")
    assert untouched(net)


def test_weights_on_levels_and_weights_of_several_layers_stay() -> None:
    net = Network(x=(3, 64))
    levels = net.rng.integers(-127, 128, (8, 64)).astype(np.float32) * np.float32(0.01)
    net.op("dense", scaled(net, "x"), net.constant(levels))
    assert untouched(net)
    for copies in (1, 2):
        net = Network(x=(3, 8), y=(3, 8))
        array = net.rng.uniform(-1, 1, (4, 8)).astype(np.float32)
        weights = [net.constant(array) for _ in range(copies)]
        net.op("add", net.op("dense", scaled(net, "x"), weights[0]), net.op("dense", "y", weights[-1]))
        assert untouched(net)


@pytest.mark.parametrize(("units", "left"), [(4, ["dense"]), (5, ["sub", "dense"])])
def test_a_bias_that_was_not_there_has_to_cost_less(units: int, left: list[str]) -> None:
    net = Network(x=(3, 4))
    net.op("dense", scaled(net, "x", "sub"), net.random(units, 4))
    assert folded(net) == left


@pytest.mark.parametrize("number", [0.0, 1e-45, 1e-37])
def test_factors_that_leave_no_normal_numbers_stay(number: float) -> None:
    net = Network(x=(2, 4))
    factor = net.constant(np.full(4, number, np.float32))
    net.dense(net.op("relu", scaled(net, net.op("mul", "x", factor), "add")), 3)
    assert untouched(net)


def test_the_difference_is_within_the_bound_that_is_stated() -> None:
    net = Network(5, x=(64, 32))
    factors, terms = (net.rng.uniform(0.01, 100, 32).astype(np.float32) for _ in "st")
    before = net.op("add", net.op("mul", "x", net.constant(factors)), net.constant(terms))
    net.dense(net.op("relu", before), 16)
    graph: Graph = net.graph()
    after, inputs = fold_scale_axis(graph, PassContext()), random_inputs(graph)
    (plain,), (changed,) = evaluate(graph, inputs), evaluate(after, inputs)
    weights = np.abs(net.consts[graph.nodes[-1].inputs[1]].astype(np.float64))
    bound = 6 * 2.0**-24 * (np.abs(inputs["x"] * factors) + np.abs(terms)) @ weights.T
    assert len(after.nodes) == 3 and (np.abs(changed - plain) <= bound + 2.0**-23 * np.abs(plain)).all()
