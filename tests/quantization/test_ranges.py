"""Ranges of activations: what other samples will hold counts."""

from __future__ import annotations

import numpy as np

from microc.quantization.observe import Statistics
from microc.quantization.ranges import AUTO, chosen, excess


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
        assert abs(excess(extremes, end) / expected - 1) < 0.3
    assert excess(np.ones(100), 1.0) == 0


def test_16_bits_have_room_to_spare() -> None:
    """Beyond all that was seen; bounded values have none."""
    random = np.random.default_rng(2)
    samples = random.normal(size=(50, 1, 40))
    how, _ = chosen(seen(samples), "int16", AUTO)
    assert how.scale * 32767 > 1.2 * np.abs(samples).max()
    pixels = np.concatenate([np.ones((50, 1, 1)), random.uniform(0, 1, (50, 1, 40))], axis=2)
    how, _ = chosen(seen(pixels), "int8", AUTO)
    assert abs(255 * how.scale - 1) < 0.01
