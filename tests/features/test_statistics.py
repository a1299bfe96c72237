# SPDX-License-Identifier: Apache-2.0
"""Numbers of frames and spectra are numpy's and scipy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from microc.errors import UsageError
from microc.features import Frames, Pipeline, Spectral, Spectrogram, Statistics
from microc.features.statistics import FRAME_STATISTICS, SPECTRAL_STATISTICS
from tests.features.sounds import compared, int16, sound

stats: Any = pytest.importorskip("scipy.stats")


def test_of_samples() -> None:
    x = np.stack([sound(0.1), sound(0.1, seed=1)], axis=1)
    frames = np.array([x[n : n + 256].T for n in range(0, len(x) - 255, 128)]).astype(np.float64)
    want = {
        "mean": frames.mean(-1),
        "std": frames.std(-1),
        "variance": frames.var(-1),
        "rms": np.sqrt((frames**2).mean(-1)),
        "energy": (frames**2).sum(-1),
        "min": frames.min(-1),
        "max": frames.max(-1),
        "peak_to_peak": np.ptp(frames, axis=-1),
        "skewness": stats.skew(frames, axis=-1),
        "kurtosis": stats.kurtosis(frames, axis=-1, fisher=False),
        "zero_crossings": (np.diff(np.signbit(frames), axis=-1)).sum(-1),
    }
    assert list(want) == list(FRAME_STATISTICS)
    got = Pipeline((Frames(256, 128), Statistics(tuple(FRAME_STATISTICS))), channels=2)(x)
    np.testing.assert_allclose(got, np.stack(list(want.values()), axis=-1), rtol=1e-3, atol=1e-5)


def test_of_spectra() -> None:
    x = sound(0.2)
    front = (Frames(256, 128), Spectrogram(power=1))
    s, f = Pipeline(front)(x).astype(np.float64), np.linspace(0, 8000, 129)
    centroid = (s * f).sum(-1) / s.sum(-1)
    reached = s.cumsum(-1) >= 0.85 * s.sum(-1, keepdims=True)
    want = {
        "centroid": centroid,
        "bandwidth": np.sqrt((s * (f - centroid[:, None]) ** 2).sum(-1) / s.sum(-1)),
        "rolloff": f[reached.argmax(-1)],
        "flatness": np.exp(np.log(s).mean(-1)) / s.mean(-1),
        "peak": s.max(-1),
        "peak_frequency": f[s.argmax(-1)],
    }
    assert list(want) == list(SPECTRAL_STATISTICS)
    got = Pipeline((*front, Spectral(tuple(SPECTRAL_STATISTICS))))(x)
    np.testing.assert_allclose(got, np.stack(list(want.values()), axis=-1), rtol=1e-4)


def test_streams_equal_the_whole_run() -> None:
    compared(Pipeline((Frames(64, 32), Statistics()), input_dtype="int16"), int16(sound(0.03)), 1e-4)
    compared(Pipeline((Frames(64, 32), Spectrogram(), Spectral(("centroid", "peak")))), sound(0.03), 1e-3)


def test_silence_gives_numbers() -> None:
    stages: Any = ((Frames(64, 64), Statistics()), (Frames(64, 64), Spectrogram(), Spectral()))
    for each in stages:
        assert np.isfinite(Pipeline(each)(np.zeros(64, np.float32))).all()


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UsageError) as refused:
        Statistics(("kurtosi",))
    assert "kurtosis" in refused.value.hint
    with pytest.raises(UsageError):
        Spectral(())
