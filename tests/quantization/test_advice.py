"""Warnings that teach: each where it applies, none where all is well."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import microc
from tests.quantization.networks import Net, classifier, images


def test_all_is_well() -> None:
    assert microc.quantize(classifier(), images(24)).report["advice"] == []


def test_few_samples() -> None:
    assert "3 samples are few" in microc.quantize(classifier(), images(3)).report["advice"][0]


def test_data_of_another_kind() -> None:
    found = microc.quantize(classifier(), images(24), evaluate=4 * images(5, 3))
    assert any("beyond its range" in line for line in found.report["advice"])


def test_labels_of_something_else(tmp_path: Path) -> None:
    graph, data = classifier(), images(24)
    network = microc.compile(graph, check=False)
    wrong = np.array([(np.asarray(network(x)).argmax() + 1) % 5 for x in data])
    np.savez(tmp_path / "data.npz", x=data, truth=wrong)
    advice = microc.quantize(graph, tmp_path / "data.npz", labels="truth").report["advice"]
    assert any("near guessing" in line for line in advice)


def test_a_layer_of_too_few_bits() -> None:
    """It is named, and what helps is said; following it does."""
    net = Net((1, 12, 12, 3))
    result = net.conv(net.x, 8)
    graph = net.graph(net.conv(net.op("relu", result), 4))
    before = microc.quantize(graph, images(24), bits={result: 2}).report
    assert any(f"--layer {result}=8" in line for line in before["advice"])
    weight = next(line for line in before["weights"] if line["layer"] == result)
    assert weight["sensitivity"] == pytest.approx(10 ** (-before["outputs"][0]["decibels"] / 10), rel=1)
