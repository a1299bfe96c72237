# SPDX-License-Identifier: Apache-2.0
"""Warnings that teach: each where it applies, none where all is well."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import microc
from microc.base.dtypes import Array
from microc.quantization.quantised_report import ASKED, FORMLESS, advice
from tests.quantization.networks import Net, images


def network() -> microc.Graph:
    net = Net((1, 8))
    return net.graph(net.dense(net.op("relu", net.dense(net.x, 16)), 5))


def rows(count: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(count, 1, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def well(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """The report on a network and samples that are as they should be, labelled by what it answers."""
    path, graph, data = tmp_path_factory.mktemp("data") / "data.npz", network(), rows(60)
    answers = microc.compile(graph, check=False)
    np.savez(path, x=data, truth=np.array([np.asarray(answers(x)).argmax() for x in data]))
    return microc.quantize(graph, path, labels="truth").report


def test_all_is_well(well: Mapping[str, Any]) -> None:
    assert well["advice"] == [] and well["classification"]["accuracy"] > 0.9


def test_few_samples(well: Mapping[str, Any]) -> None:
    assert "3 samples are few" in advice({**well, "samples": 3})[0]


def test_data_of_another_kind() -> None:
    """Somewhat larger than those calibrated with."""
    found = microc.quantize(network(), rows(24), evaluate=1.5 * rows(5, 3)).report
    assert any("beyond its range" in line for line in found["advice"])


@pytest.mark.parametrize("factor", [255, 1 / 255])
def test_data_that_are_prepared_otherwise(factor: float, well: Mapping[str, Any]) -> None:
    (x,) = well["inputs"]
    scaled = {**x, "compared_low": factor * x["low"], "compared_high": factor * x["high"]}
    (line,) = advice({**well, "inputs": [scaled]})
    assert line.startswith("x spans") and "those compared on" in line


def test_inputs_that_are_constant() -> None:
    net = Net((1, 8))
    other = net.builder.input("other", (1, 8))
    graph = net.graph(net.dense(net.op("add", net.x, other), 5))
    found = microc.quantize(graph, {"x": rows(24), "other": np.full((24, 1, 8), 3.0, np.float32)}).report["advice"]
    assert any(line.startswith("other is 3 in all samples") for line in found)


@pytest.mark.parametrize("scaled", [False, True])
def test_pixels_as_they_are_stored(scaled: bool) -> None:
    """Unless the network begins with a factor."""
    net = Net((1, 8))
    x = net.op("reshape", net.x, shape=(1, 8))
    graph = net.graph(
        net.dense(net.op("mul", x, net.builder.constant("scale", np.float32(1 / 255))) if scaled else x, 5)
    )
    pixels = np.random.default_rng(0).integers(0, 256, (24, 1, 8)).astype(np.float32)
    assert any("--pixels" in line for line in microc.quantize(graph, pixels).report["advice"]) is not scaled


def test_a_network_that_the_data_do_not_reach() -> None:
    """Channels that are zero throughout, and an answer that is always the same."""
    net = Net((1, 8))
    bias = net.builder.constant("low", np.full(16, -100, np.float32))
    hidden = net.op("relu", net.op("dense", net.x, net.weight(16, 8), bias))
    found = microc.quantize(net.graph(net.dense(hidden, 5)), rows(24)).report["advice"]
    assert any("16 of 16 channels" in line for line in found) and any(
        "hardly depends on the data" in line for line in found
    )


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "one class": ({"confusion": [[0, 0], [30, 30]]}, "All labels are class 1"),
    "near guessing": ({"float_accuracy": 0.2, "accuracy": 0.2}, "near guessing"),
    "chance": ({"accuracy": 0.95, "lost": 3, "gained": 0}, "may be chance"),
    "loss": ({"accuracy": 0.8, "lost": 13, "gained": 1}, "13 of 60 answers became wrong and 1 right"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_answers(name: str, well: Mapping[str, Any]) -> None:
    change, words = CHANGES[name]
    lines = advice({**well, "classification": {**well["classification"], **change}})
    assert len(lines) == 1 and words in lines[0]


@pytest.mark.parametrize(
    ("bits", "activations", "words"), [(4, "int8", "--weights 8"), (8, "int8", "int16"), (8, "int16", "--float-layer")]
)
def test_what_is_finer(bits: int, activations: str, words: str, well: Mapping[str, Any]) -> None:
    loss = {**well["classification"], **CHANGES["loss"][0]}
    layers = [{**layer, "bits": [bits]} for layer in well["layers"]]
    report = {**well, "classification": loss, "layers": layers, "settings": {"activations": activations}}
    assert words in advice(report)[0]


@pytest.mark.parametrize(
    ("value", "weight", "bits", "words"),
    [
        (0.1, 0.01, 8, "give 16 bits to what reads it"),
        (0.0, 0.1, 2, "=8)"),
        (0.0, 0.1, 8, "leave it in floats"),
        (0.05, 0.05, 8, "many places"),
    ],
)
def test_noise(value: float, weight: float, bits: int, words: str, well: Mapping[str, Any]) -> None:
    """One value, the weights of one layer, or many places: each has its remedy."""
    values = [
        {**well["values"][0], "sensitivity": value},
        {**well["values"][0], "sensitivity": value * 0.9 if value == weight else 0.0},
    ]
    weights = [{**well["weights"][0], "sensitivity": weight, "bits": bits}]
    (line,) = advice({**well, "values": values, "weights": weights})
    assert words in line


@pytest.mark.parametrize(("reason", "count"), [(FORMLESS, 1), (ASKED, 0)])
def test_floats_that_nobody_asked_for(reason: str, count: int, well: Mapping[str, Any]) -> None:
    left = {"value": "y", "op": "prelu", "macs": 100, "reason": reason}
    assert len(advice({**well, "floats": {"operators": [left], "share": 0.3}})) == count


def test_a_layer_of_too_few_bits() -> None:
    """It is named, and what helps is said; following it does."""
    net = Net((1, 12, 12, 3))
    result = net.conv(net.x, 8)
    graph = net.graph(net.conv(net.op("relu", result), 4))
    before = microc.quantize(graph, images(24), bits={result: 2}).report
    assert any(f"--layer {result}=8" in line for line in before["advice"])
    weight = next(line for line in before["weights"] if line["layer"] == result)
    assert weight["sensitivity"] == pytest.approx(10 ** (-before["outputs"][0]["decibels"] / 10), rel=1)
