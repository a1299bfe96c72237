# SPDX-License-Identifier: Apache-2.0
"""Cross-layer equalisation: the float network stays, and badly scaled channels cost nothing."""

from __future__ import annotations

import numpy as np
import pytest

import microc
from microc.graph.ir import Graph
from microc.quantization.calibration_data import observe_activations
from microc.quantization.network_structure import ChannelUnits
from microc.quantization.quantisation_points import find_quantisation_points
from microc.quantization.repairs import MIN_SAMPLES, equalise_channels
from tests.quantization.networks import Net, images
from tests.support.campaign import in_campaign


def residual(flat: bool) -> Graph:
    """Depthwise and other layers around a sum and a concatenation; ``flat``: all pixels go to the dense layer."""
    net = Net((1, 12, 12, 3))
    x = net.op("relu", net.conv(net.x, 8))
    y = net.op("relu", net.conv(x, 8, groups=8))
    x = net.op("relu", net.op("add", x, net.conv(y, 8, 1)))
    x = net.op("concat", x, net.op("relu", net.conv(x, 4, 1)), axis=3)
    x = net.op("max_pool2d", x, kernel=(4, 4), strides=(4, 4), padding=(0, 0, 0, 0), layout="NHWC")
    if flat:
        return net.graph(net.dense(net.op("reshape", x, shape=(1, 108)), 5))
    return net.graph(net.dense(net.op("mean", x, axes=(1, 2), keepdims=False), 5))


def rescaled(graph: Graph, seed: int = 5) -> Graph:
    """The same function with channels in units between 1/10 and 10."""
    units = ChannelUnits(graph)
    factors = np.where(units.free, 10.0 ** np.random.default_rng(seed).uniform(-1, 1, units.count), 1.0)
    return units.rescale_graph(factors)


@pytest.mark.parametrize("flat", [False, True])
def test_units_do_not_change_the_function(flat: bool) -> None:
    graph, data = residual(flat), images(5)
    other = rescaled(graph)
    before, after = (microc.compile(net, check=False) for net in (graph, other))
    assert not set(graph.consts) & set(other.consts)
    for x in data:
        expected = np.asarray(before(x))
        assert (
            np.abs(after(x) - expected).max() <= 1e-4 * np.abs(expected).max()
        )  # a few roundings of float32 in five layers


@pytest.mark.parametrize("flat", [pytest.param(False, marks=in_campaign), True])
def test_badly_scaled_channels_cost_nothing(flat: bool) -> None:
    """The same noise within a decibel, whatever the units were; without equalisation 10 dB more."""
    data = images(MIN_SAMPLES)
    well, badly = (
        microc.quantize(net, data).report["outputs"][0] for net in (residual(flat), rescaled(residual(flat)))
    )
    assert badly["decibels"] > well["decibels"] - 1
    assert well["decibels"] > 35


def test_what_is_in_good_units_stays() -> None:
    """Equalising twice changes nothing more, and inputs and outputs keep their units."""
    graph, data = residual(False), images(10)
    rows = [(x,) for x in data]
    once = equalise_channels(graph, observe_activations(graph, find_quantisation_points(graph).values, rows, 0))
    assert equalise_channels(once, observe_activations(once, find_quantisation_points(once).values, rows, 0)) is once
    units = ChannelUnits(graph)
    assert not units.free[units.units_of_channels("x")].any() and not units.free[units.units_of_channels("y")].any()


@pytest.mark.parametrize("op", ["sigmoid", "tanh", "exp"])
def test_functions_fix_the_unit(op: str) -> None:
    net = Net((1, 12, 12, 3))
    x = net.conv(net.x, 4)
    units = ChannelUnits(net.graph(net.conv(net.op(op, x), 2)))
    assert not units.free[units.units_of_channels(x)].any()
