# SPDX-License-Identifier: Apache-2.0
"""Normalisation by known numbers, and per-channel energies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from microc.errors import UsageError
from microc.features import Frames, Log, Mel, MinMax, Normalise, Pcen, Pipeline, Spectrogram, log_mel
from tests.features.sounds import compared, int16, sound

signal: Any = pytest.importorskip("scipy.signal")


def test_by_numbers_of_training() -> None:
    x, logs = sound(0.1), log_mel()
    made = logs(x)
    mean, std = made.mean(0), made.std(0) + 0.1
    scaled = Pipeline((*logs.stages, Normalise(mean.tolist(), std.tolist())))
    np.testing.assert_allclose(scaled(x), (made - mean) / std, atol=1e-4)
    ranged = Pipeline((*logs.stages, MinMax(-10.0, 5.0)))
    np.testing.assert_allclose(ranged(x), (made + 10) / 15, atol=1e-5)


def test_a_scale_leaves_integers_as_they_are() -> None:
    logs = log_mel(input_dtype="int16")
    halved = Pipeline((*logs.stages, Normalise(0.0, 2.0)), input_dtype="int16")
    q = int16(sound(0.1))
    plain, scale = logs.stored(q)
    made, half = halved.stored(q)
    np.testing.assert_array_equal(made, plain)
    assert half == pytest.approx(scale / 2)


def test_per_channel_energies() -> None:
    x, stages = sound(0.3), (Frames(480, 160), Spectrogram(), Mel(20))
    energies = Pipeline(stages)(x).astype(np.float64)
    s = (np.sqrt(1 + 4 * 12.5**2) - 1) / (2 * 12.5**2)
    smooth = signal.lfilter([s], [1, s - 1], energies, axis=0)
    want = (energies / (1e-6 + smooth) ** 0.98 + 2) ** 0.5 - 2**0.5
    front = Pipeline((*stages, Pcen()))
    np.testing.assert_allclose(front(x), want, atol=1e-4)
    compared(front, x[:1600], 1e-3)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Normalise(0.0, 0.0),
        lambda: MinMax(1.0, 1.0),
        lambda: MinMax((0.0, 1.0), (2.0, 3.0, 4.0)),
        lambda: Pipeline((*log_mel().stages, Normalise((1.0, 2.0)))).graph(800),
        lambda: Pcen(power=0.0),
        lambda: Pipeline((Log(), Pcen())).graph(800),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any) -> None:
    with pytest.raises(UsageError):
        make()
