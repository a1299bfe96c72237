# SPDX-License-Identifier: Apache-2.0
"""Noise is measured in front of a last function that saturates, where classes are compared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import microc
from microc.quantization.network_noise import measure_noise_of_changes
from microc.quantization.network_structure import MeasuredEnd, find_measured_ends
from tests.quantization.networks import Net, images


def network(*last: str) -> microc.Graph:
    net = Net((1, 12, 12, 3))
    x = net.dense(net.op("mean", net.conv(net.x, 4), axes=(1, 2), keepdims=False), 5)
    attrs: dict[str, dict[str, Any]] = {"softmax": {"axis": 1}, "reshape": {"shape": (5, 1)}, "argmax": {"axis": 1}}
    for op in last:
        x = net.op(op, x, **attrs.get(op, {}))
    return net.graph(x)


@pytest.mark.parametrize(
    ("last", "axis"),
    [
        ((), None),
        (("relu",), None),
        (("softmax",), 1),
        (("sigmoid", "reshape"), None),
        (("argmax",), 1),
        (("softmax", "argmax"), 1),
    ],
)
def test_the_end_is_in_front_of_what_saturates(last: tuple[str, ...], axis: int | None) -> None:
    graph = network(*last)
    (end,) = find_measured_ends(graph).values()
    saturates = axis is not None or "sigmoid" in last
    assert graph.producer()[end.value_name].op == "dense" if saturates else end.value_name == graph.outputs[0]
    assert end.mean_axis == axis


def test_what_all_classes_share_is_no_noise() -> None:
    """A number added to all logits changes no answer; one added to a class does."""
    graph = network("softmax")
    (end,) = find_measured_ends(graph).values()
    row = np.array([[1.0, 0.0, 0.0, 0.0, 0.0]])
    found = measure_noise_of_changes(
        graph,
        [(image,) for image in images(3)],
        {
            "all": lambda values: {end.value_name: values[end.value_name] + 3.0},
            "one": lambda values: {end.value_name: values[end.value_name] + row},
        },
    )
    assert found["all"] < 1e-9 < 1e-3 < found["one"]
    assert MeasuredEnd("x").measured_part(row).sum() == 1.0


def test_networks_of_a_last_function_in_floats() -> None:
    graph = network("softmax")
    for floats in (["y"], ["y", "dense"]):
        found = microc.quantize(graph, images(9), float_layers=floats)
        assert found.report["repairs"][0]["before"] > 20
