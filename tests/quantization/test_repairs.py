"""Repairs of a quantised network: the noise falls, and only what helps is kept."""

from __future__ import annotations

import numpy as np
import pytest

import microc
from microc.quantization import repairs
from tests.quantization.networks import classifier, images


@pytest.mark.parametrize("bits", [4, 2])
def test_networks_of_few_bits_are_repaired(bits: int) -> None:
    """The noise of the answers falls on other data, too."""
    graph, data, other = classifier(), images(64), images(40, seed=9)
    before, after = (
        microc.quantize(graph, data[:count], weights=bits, evaluate=other).report["outputs"][0]["decibels"]
        for count in (repairs.FEWEST - 1, 64)
    )
    assert after > before + 3


def test_only_what_helps_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A repair that makes answers worse is told, and dropped."""

    def spoilt(trial: repairs.Trial, samples: object, bits: int) -> repairs.Attempt:
        nodes = [node for node in trial.graph.nodes if node.op == "dense"]
        wrong = {node.outputs[0]: np.arange(5) * 10.0 for node in nodes}
        return repairs.Attempt(trial.attempt.recipe, wrong)

    monkeypatch.setattr(repairs, "REPAIRS", {"spoilt": (spoilt, 2)})
    plain = microc.quantize(classifier(), images(6))
    found = microc.quantize(classifier(), images(16))
    (line,) = found.report["repairs"]
    assert line["name"] == "spoilt" and not line["kept"] and line["after"] < line["before"]
    assert plain.report["repairs"] == []


def test_repairs_are_repeatable() -> None:
    first, second = (microc.quantize(classifier(), images(16), weights=4, seed=1) for _ in range(2))
    assert first.report == second.report
    for name, array in first.graph.consts.items():
        assert np.array_equal(array, second.graph.consts[name])
