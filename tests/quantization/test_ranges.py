# SPDX-License-Identifier: Apache-2.0
"""Ranges of activations: what other samples will hold counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import microc
from microc.quantization.calibration_data import Statistics
from microc.quantization.decisions import AUTO, ESTIMATORS, choose_storage, expected_squared_excess
from tests.quantization.networks import classifier, images


def seen(samples: np.ndarray) -> Statistics:
    found, random = Statistics(), np.random.default_rng(0)
    for sample in samples:
        found.add(sample, 1 << 10, random)
    return found


def test_what_others_exceed_is_foretold() -> None:
    """Extremes of one exponential distribution tell of its tail; those that are all the same have none."""
    random = np.random.default_rng(1)
    extremes = random.exponential(2.0, 20000)
    for end in (8.0, 12.0):
        others = random.exponential(2.0, 1 << 20)
        expected = float(np.square(np.maximum(others - end, 0)).mean())
        assert abs(expected_squared_excess(extremes, end) / expected - 1) < 0.3
    assert expected_squared_excess(np.ones(100), 1.0) == 0


def test_16_bits_have_room_to_spare() -> None:
    """Beyond all that was seen; bounded values have none."""
    random = np.random.default_rng(2)
    samples = random.normal(size=(50, 1, 40))
    how, _ = choose_storage(seen(samples), "int16", AUTO)
    assert how.scale * 32767 > 1.2 * np.abs(samples).max()
    pixels = np.concatenate([np.ones((50, 1, 1)), random.uniform(0, 1, (50, 1, 40))], axis=2)
    how, _ = choose_storage(seen(pixels), "int8", AUTO)
    assert abs(255 * how.scale - 1) < 0.01


@pytest.mark.parametrize("method", [AUTO, *ESTIMATORS])
def test_no_range_is_beyond_what_a_function_reaches(method: str) -> None:
    samples = np.random.default_rng(3).beta(1, 8, (50, 1, 40))
    how, _ = choose_storage(replace(seen(samples), certain_bounds=(0.0, 1.0)), "int8", method)
    assert (-128 - how.zero_point) * how.scale >= -1e-6 and (127 - how.zero_point) * how.scale <= 1 + 1e-6


def test_networks_know_what_functions_reach() -> None:
    found = microc.quantize(classifier(), images(40))
    ends = {node.outputs[0] for node in found.float_graph.nodes if node.op == "softmax"}
    how = found.recipe.activations
    assert ends and all((127 - how[name].zero_point) * how[name].scale <= 1 + 1e-6 for name in ends)
