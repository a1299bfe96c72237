# SPDX-License-Identifier: Apache-2.0
"""Operators of floats that have an integer form, one by one between two layers, and what ONNX Runtime makes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

import microc
from microc.base.dtypes import Array
from tests.quantization.networks import Net, images
from tests.support.onnx_session import session

Form = Callable[[Net, str], str]


def linear(net: Net, x: str, size: int) -> str:
    """Pictures resized to other sides, corners aligned."""
    places = np.arange(size) * 11 / (size - 1)
    first = np.minimum(places.astype(int), 10)
    index = net.builder.new_constant("places", np.stack([first, first + 1], 1).astype(np.int16))
    shares = np.stack([first + 1 - places, places - first], 1).astype(np.float32)
    weights = net.builder.new_constant("shares", shares)
    return net.op("resample", x, index, index, weights, weights, axes=(1, 2))


def picked(net: Net, x: str) -> str:
    index = net.builder.new_constant("places", np.repeat(np.arange(12), 2)[:, None].astype(np.int16))
    return net.op("resample", x, index, index, axes=(1, 2))


def chosen(net: Net, x: str) -> str:
    rows = net.builder.new_constant("rows", np.array([[0, 3], [0, 7]], np.int32))
    return net.op("gather_nd", x, rows)


def slopes(net: Net, x: str) -> str:
    data = net.random.uniform(-0.1, 0.4, 8).astype(np.float32)
    return net.op("prelu", x, net.builder.constant("slopes", data))


FORMS: dict[str, tuple[Form, float]] = {
    "prelu": (slopes, 0.0),
    "bilinear": (lambda net, x: linear(net, x, 17), 2.0),
    "nearest": (picked, 0.0),
    "gather_nd": (chosen, 0.0),
    "cumsum": (lambda net, x: net.op("cumsum", x, axis=1), 0.5),
    "l2_normalize": (lambda net, x: net.op("l2_normalize", x), 0.5),
    "log_softmax": (lambda net, x: net.op("log_softmax", net.op("mean", x, axes=(1, 2), keepdims=False)), 0.5),
}
"""Each with the percentage of results in which ONNX Runtime, which resizes and scales by floats, may be a step off."""


def decibels(expected: Sequence[Array], found: Sequence[Array]) -> float:
    a, b = np.stack(expected), np.stack(found)
    return float(10 * np.log10(np.square(a).sum() / np.square(a - b).sum()))


@pytest.mark.parametrize("name", FORMS)
def test_integers_between_layers(name: str, tmp_path: Path) -> None:
    form, most = FORMS[name]
    net, data = Net((1, 12, 12, 3)), images(7)
    graph = net.graph(form(net, net.conv(net.x, 8)))
    found = microc.quantize(graph, data)
    assert not found.report["floats"]["operators"]
    real, mine = (microc.compile(each, check=False) for each in (graph, found.graph))
    runtime = session(found.save(tmp_path / "net.onnx"))
    answers = [np.asarray(mine(x)) for x in data]
    theirs = [runtime.run(None, {"x": x})[0] for x in data]
    assert decibels([np.asarray(real(x)) for x in data], answers) > 30
    steps = np.abs(np.stack(answers) - np.stack(theirs)) / found.recipe.activations["y"].scale
    assert steps.max() < 1.01 and 100 * (steps > 0.5).mean() <= most
