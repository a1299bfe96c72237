# SPDX-License-Identifier: Apache-2.0
"""Repairs of a quantised network: the noise falls, and only what helps is kept."""

from __future__ import annotations

import numpy as np
import pytest

import microc
from microc.graph.ir import Graph
from microc.quantization import decisions, network_noise, repairs
from microc.quantization.network_structure import ChannelUnits, flatten_graph
from tests.quantization.networks import classifier, images
from tests.quantization.recurrent import network, sequences
from tests.support.campaign import in_campaign


@pytest.mark.parametrize("bits", [pytest.param(4, marks=in_campaign), 2])
def test_networks_of_few_bits_are_repaired(bits: int) -> None:
    """The noise of the answers falls on other data, too."""
    graph, data, other = classifier(), images(40), images(24, seed=9)
    before, after = (
        microc.quantize(graph, data[:count], weights=bits, evaluate=other).report["outputs"][0]["decibels"]
        for count in (repairs.MIN_SAMPLES - 1, 40)
    )
    assert after > before + 3


def test_layers_in_loops_are_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what all turns read: each result of theirs keeps its mean."""
    found = microc.quantize(network("gru"), sequences(7), weights=4)
    graph, recipe, rows = found.float_graph, found.recipe, [(x,) for x in sequences(12)]
    monkeypatch.setattr(network_noise, "_MAX_EVALUATION_MACS", 0)
    monkeypatch.setattr(network_noise, "_MIN_FITTING_SAMPLES", 10)
    bits = dict.fromkeys(recipe.weights, 4)
    attempt = repairs.round_weights_and_correct_biases(graph, repairs.Attempt(recipe), rows, bits, 0)
    inside = {node.outputs[0] for node in flatten_graph(graph).nodes if node.op == "dense"}
    assert inside == set(attempt.biases) and inside - {node.outputs[0] for node in graph.nodes}
    again = repairs.correct_biases(graph, attempt, rows, bits, 0)
    assert all(np.abs(again.biases[name] - attempt.biases[name]).max() < 0.1 for name in inside)


def test_only_what_helps_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A repair that makes answers worse is told, and dropped."""

    def spoilt(graph: Graph, attempt: repairs.Attempt, *others: object) -> repairs.Attempt:
        nodes = [node for node in graph.nodes if node.op == "dense"]
        wrong = {node.outputs[0]: np.arange(5) * 10.0 for node in nodes}
        return repairs.Attempt(attempt.recipe, wrong)

    monkeypatch.setattr(repairs, "REPAIRS", {"spoilt": spoilt})
    plain = microc.quantize(classifier(), images(6))
    found = microc.quantize(classifier(), images(16))
    equalising, line = found.report["repairs"]
    assert equalising["name"] == "cross-layer equalisation"
    assert line["name"] == "spoilt" and not line["kept"] and line["after"] < line["before"]
    assert plain.report["repairs"] == []


def test_units_that_do_not_help_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Channels in units of any size are the same function with more noise."""

    def worse(graph: Graph, *others: object) -> Graph:
        units = ChannelUnits(graph)
        sizes = 10 ** np.random.default_rng(0).uniform(-1.5, 1.5, units.count)
        return units.rescale_graph(np.where(units.free, sizes, 1.0))

    monkeypatch.setattr(decisions, "equalise_channels", worse)
    found = microc.quantize(classifier(), images(16))
    line = found.report["repairs"][0]
    assert line["name"] == "cross-layer equalisation" and not line["kept"] and line["after"] < line["before"]


def test_repairs_are_repeatable() -> None:
    first, second = (microc.quantize(classifier(), images(repairs.MIN_SAMPLES), weights=4, seed=1) for _ in range(2))
    assert first.report == second.report
    for name, array in first.graph.consts.items():
        assert np.array_equal(array, second.graph.consts[name])
