# SPDX-License-Identifier: Apache-2.0
"""``microc.quantize``: what becomes integers, how near the answers are, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.base.dtypes import Array
from microc.errors import MicrocError, ModelError, UsageError
from tests.quantization.networks import UNREPAIRED, Net, classifier, images


def answers(graph: microc.Graph, data: Array) -> Array:
    network = microc.compile(graph, check=False)
    return np.stack([np.asarray(network(x)) for x in data])


@pytest.mark.parametrize(
    ("ranges", "most"),
    [("auto", 0.01), ("minmax", 0.01), ("percentile", 0.01), ("mse", 0.01), ("moving-average", 0.1), ("entropy", 0.1)],
)
def test_integers_answer_as_floats_do(ranges: str, most: float) -> None:
    """In six layers of 8 bits probabilities keep two digits; estimators that cut off what is rare are made for other data. Only
    the default is repaired, which takes half of the time."""
    graph, data = classifier(), images(40 if ranges == "auto" else UNREPAIRED)
    found = microc.quantize(graph, data, ranges=ranges)
    assert np.abs(answers(graph, data) - answers(found.graph, data)).max() < most
    assert found.report["outputs"][0]["decibels"] > (40 if most < 0.1 else 20)


def test_everything_runs_on_integers() -> None:
    """Floats are left at the ends only."""
    found = microc.quantize(classifier(), images(7))
    floats = [node.op for node in found.graph.nodes if found.graph.types[node.outputs[0]].dtype == "float32"]
    assert floats == ["dequantize"]
    assert found.graph.nodes[0].op == "quantize"
    assert {node.attrs["rounding"] for node in found.graph.nodes if node.op == "conv2d"} == {"single"}


def test_16_bits_are_nearer() -> None:
    """What is left is the noise of the weights."""
    graph, data = classifier(), images(UNREPAIRED)
    near, nearer = (microc.quantize(graph, data, activations=dtype) for dtype in ("int8", "int16"))
    assert nearer.report["outputs"][0]["decibels"] > near.report["outputs"][0]["decibels"] + 0.5


@pytest.mark.parametrize(("bits", "most"), [(4, 7), (2, 2)])
def test_weights_of_few_bits(bits: int, most: int) -> None:
    found = microc.quantize(classifier(), images(7), weights=bits)
    layers = [node for node in found.graph.nodes if node.op in ("conv2d", "dense") and node.attrs.get("groups", 1) == 1]
    assert max(int(np.abs(found.graph.consts[node.inputs[1]]).max()) for node in layers) == most


def test_runs_are_repeatable() -> None:
    graph, data = classifier(), images(7)
    first, second = (microc.quantize(graph, data, seed=3) for _ in range(2))
    assert first.recipe.activations == second.recipe.activations
    assert first.report == second.report


def test_saved_and_compiled_exactly(tmp_path: Path) -> None:
    data, found = images(7), microc.quantize(classifier(), images(7))
    again = microc.load(found.save(tmp_path / "net.mcg"))
    assert np.array_equal(answers(found.graph, data), answers(again, data))


def test_ways_to_give_data() -> None:
    """An array, by name, one by one, without the batch: the same."""
    graph, data = classifier(), images(6)
    ways: list[Any] = [data, {"x": data}, iter(list(data)), data[:, 0], [data]]
    recipes = [microc.quantize(graph, way).recipe.activations for way in ways]
    assert all(recipe == recipes[0] for recipe in recipes)


def test_own_score() -> None:
    data = images(6)
    found = microc.quantize(
        classifier(), data, evaluate=lambda network: float(np.mean([network(x).max() for x in data]))
    )
    assert found.report["score"] == pytest.approx(found.report["float_score"], abs=0.03)


def test_labels_are_counted(tmp_path: Path) -> None:
    graph, data = classifier(), images(30)
    truth = answers(graph, data).reshape(30, -1).argmax(axis=1)
    np.savez(tmp_path / "data.npz", x=data, truth=truth)
    report = microc.quantize(graph, tmp_path / "data.npz", labels="truth").report["classification"]
    assert report["float_accuracy"] == 1.0 and report["accuracy"] > 0.9
    assert report["changed_count"] == round(30 * (1 - report["accuracy"]))


@pytest.mark.parametrize("known", [False, True])
def test_calibration_data_need_no_labels(known: bool, tmp_path: Path) -> None:
    """Where there are others to evaluate on; if they have some, these are no input."""
    graph, data = classifier(), images(7)
    arrays: dict[str, Any] = {"x": data, "truth": np.zeros(7)}
    np.savez(tmp_path / "data.npz", **(arrays if known else {"x": data}))
    np.savez(tmp_path / "test.npz", x=data, truth=np.arange(7) % 5)
    found = microc.quantize(graph, tmp_path / "data.npz", evaluate=tmp_path / "test.npz", labels="truth")
    assert found.report["classification"]["samples"] == 7


def test_dead_channels_and_large_biases() -> None:
    """A channel without weights has a scale that its bias fits."""
    net = Net((1, 4))
    weight = np.array([[0, 0, 0, 0], [1e-30, 0, 0, 0], [1, -1, 1, -1]], np.float32)
    bias = np.array([5.0, 3.0, 0.5], np.float32)
    y = net.op("dense", net.x, net.builder.constant("w", weight), net.builder.constant("b", bias))
    data = np.random.default_rng(0).normal(size=(20, 1, 4)).astype(np.float32)
    found = microc.quantize(net.graph(y), data)
    expected = data @ weight.T + bias
    assert np.abs(answers(found.graph, data) - expected).max() < 0.1


REFUSED: dict[str, tuple[Any, type[MicrocError], str]] = {
    "none": (np.zeros((0, 1, 12, 12, 3), np.float32), UsageError, "no samples"),
    "constant": (np.full((4, 1, 12, 12, 3), 2.0, np.float32), UsageError, "every element of every sample is 2"),
    "NaN": (np.full((4, 1, 12, 12, 3), np.nan, np.float32), UsageError, "NaN"),
    "shape": (np.zeros((4, 1, 12, 12, 4), np.float32), UsageError, "samples of shape"),
    "empty generator": (iter(()), UsageError, "no samples"),
    "other names": ({"z": images(2)}, UsageError, "got arrays for z, expected x"),
    "another order": (np.zeros((4, 1, 3, 12, 12), np.float32), UsageError, "samples of shape"),
    "a number": (3, UsageError, "data: got 3"),
    "no file": ("nowhere.npz", UsageError, "cannot read"),
    "overflow": (np.float32(1e38) * images(2), ModelError, "got infinity or NaN"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_data_that_are_refused(name: str) -> None:
    data, error, words = REFUSED[name]
    with pytest.raises(error, match=words) as caught:
        microc.quantize(classifier(), data)
    assert caught.value.hint


def test_labels_that_are_refused(tmp_path: Path) -> None:
    """Before anything is observed."""
    np.savez(tmp_path / "data.npz", x=images(7), truth=np.arange(7))
    with pytest.raises(UsageError, match="label 6 is beyond the 5 classes") as caught:
        microc.quantize(classifier(), tmp_path / "data.npz", labels="truth")
    assert "number the classes" in caught.value.hint


def test_networks_that_are_refused() -> None:
    found = microc.quantize(classifier(), images(4))
    with pytest.raises(UsageError, match="quantised already"):
        microc.quantize(found.graph, images(4))


def test_tables_are_stored_as_their_elements_are() -> None:
    """An embedding takes a byte an element; rows that no sample read are in its range, too."""
    net = Net((1, 2))
    ids = net.builder.input("ids", (1, 6), "int32")
    table = net.random.normal(size=(20, 8)).astype(np.float32)
    table[19] *= 10
    rows = net.op("gather", net.builder.constant("table", table), ids, axis=0)
    y = net.op("add", net.dense(net.op("mean", rows, axes=(1,), keepdims=False), 4), net.dense(net.x, 4))
    graph, random = net.graph(y), np.random.default_rng(0)
    data = {
        "x": random.normal(size=(20, 1, 2)).astype(np.float32),
        "ids": random.integers(0, 19, (20, 1, 6)).astype(np.int32),
    }
    found = microc.quantize(graph, data)
    stored = next(found.graph.consts[node.inputs[0]] for node in found.graph.nodes if node.op == "gather")
    assert stored.dtype == np.int8 and np.abs(stored[19].astype(int)).max() >= 120
