# SPDX-License-Identifier: Apache-2.0
"""Spectra, mel bands, logarithms and cepstra are those of an independent numpy and scipy, in both dtypes, and in streams."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.errors import UsageError
from microc.features import Bands, Dct, Frames, Log, Mel, Pipeline, Spectrogram, log_mel, mfcc, spectrogram
from microc.features.spectral import COSINES, make_window
from tests.features.sounds import compared, int16, sound

fft: Any = pytest.importorskip("scipy.fft")
windows: Any = pytest.importorskip("scipy.signal.windows")


def powers(x: Array, length: int, step: int, size: int, name: str = "hann") -> Array:
    """|STFT|**2 in float64, one frame after the other."""
    by = windows.get_window(name, length)
    frames = [x[n : n + length].astype(np.float64) * by for n in range(0, len(x) - length + 1, step)]
    return np.array([np.abs(np.fft.rfft(frame, size)) ** 2 for frame in frames])


def htk(f: Any) -> Any:
    return 1127.0 * np.log(1 + np.asarray(f) / 700.0)


def tensorflow_bank(bins: int, rate: float, bands: int, low: float, high: float) -> Array:
    """``tf.signal.linear_to_mel_weight_matrix``, as its documentation says: (bins, bands)."""
    spectrum = htk(np.linspace(0, rate / 2, bins)[1:])[:, None]
    edges = np.linspace(htk(low), htk(high), bands + 2)
    lower, center, upper = edges[None, :-2], edges[None, 1:-1], edges[None, 2:]
    slopes = (spectrum - lower) / (center - lower), (upper - spectrum) / (upper - center)
    return np.pad(np.maximum(0.0, np.minimum(*slopes)), ((1, 0), (0, 0)))


def librosa_bank(bins: int, rate: float, bands: int, low: float, high: float) -> Array:
    """``librosa.filters.mel(htk=False, norm="slaney")``, as its documentation says: (bins, bands)."""

    def mel(f: float) -> float:
        return f * 3 / 200 if f < 1000 else 15 + 27 * np.log(f / 1000) / np.log(6.4)

    def hertz(m: float) -> float:
        return m * 200 / 3 if m < 15 else 1000 * np.exp(np.log(6.4) / 27 * (m - 15))

    corners = [hertz(m) for m in np.linspace(mel(low), mel(high), bands + 2)]
    bank = np.zeros((bins, bands))
    for band, (a, b, c) in enumerate(zip(corners, corners[1:], corners[2:], strict=False)):
        for k, f in enumerate(np.linspace(0, rate / 2, bins)):
            height = (f - a) / (b - a) if f <= b else (c - f) / (c - b)
            bank[k, band] = max(0.0, height) * 2 / (c - a)
    return bank


@pytest.mark.parametrize("name", COSINES)
def test_windows_are_scipys(name: str) -> None:
    scipys = {"rectangular": "boxcar"}.get(name, name)
    for length in (2, 9, 64):
        for periodic in (True, False):
            np.testing.assert_allclose(
                make_window(name, length, periodic), windows.get_window(scipys, length, periodic), atol=1e-9
            )


@pytest.mark.parametrize("power", [1, 2])
def test_spectrograms(power: int) -> None:
    x = sound()
    want = powers(x, 480, 320, 512, "hamming") ** (power / 2)
    np.testing.assert_allclose(spectrogram(window="hamming", power=power)(x), want, rtol=1e-4, atol=1e-4)
    q = int16(x)
    want = powers(q / 32768, 480, 320, 512, "hamming") ** (power / 2)
    got = spectrogram(window="hamming", power=power, input_dtype="int16")(q)
    np.testing.assert_allclose(np.sqrt(got), np.sqrt(want), atol=3e-3)


def test_centred_frames_and_short_windows() -> None:
    x, by = sound(0.2), np.pad(windows.get_window("hann", 400), 56)
    line = np.pad(x, 256)
    frames = np.array([line[n : n + 512] * by for n in range(0, len(x) + 1, 160)])
    stages = (Frames(512, 160, center=True), Spectrogram(window_length=400))
    np.testing.assert_allclose(Pipeline(stages)(x), np.abs(np.fft.rfft(frames)) ** 2, rtol=1e-4, atol=1e-4)
    compared(Pipeline((*stages, Mel(20), Log()), input_dtype="int16"), int16(x), stream_allow="lookahead")


def test_tensorflows_log_mel() -> None:
    """The bound of integers: half a step of the logarithm, and noise 70 dB below the quietest band."""
    x = sound()
    arguments: dict[str, Any] = {"triangles": "mel", "log_offset": 1e-6, "power": 1, "fmin": 80.0, "fmax": 7600.0}
    bank = tensorflow_bank(257, 16000, 40, 80.0, 7600.0)
    want = np.log(np.maximum(np.sqrt(powers(x, 480, 320, 512)) @ bank + 1e-6, 1e-10))
    np.testing.assert_allclose(log_mel(**arguments)(x), want, atol=2e-5)
    got = log_mel(**arguments, input_dtype="int16")(int16(x))
    np.testing.assert_allclose(got, log_mel(**arguments)(int16(x) / np.float32(32768)), atol=2e-3)


def test_librosas_log_mel() -> None:
    x = sound()
    arguments: dict[str, Any] = {"mel": "slaney", "norm": "slaney", "log": "db", "fmin": 0.0, "fmax": 8000.0}
    want = 10 * np.log10(np.maximum(powers(x, 480, 320, 512) @ librosa_bank(257, 16000, 40, 0.0, 8000.0), 1e-10))
    np.testing.assert_allclose(log_mel(**arguments)(x), want, atol=1e-4)
    got = log_mel(**arguments, input_dtype="int16")(int16(x))
    np.testing.assert_allclose(got, log_mel(**arguments)(int16(x) / np.float32(32768)), atol=2e-2)


@pytest.mark.parametrize("lifter", [0, 22])
def test_cepstra(lifter: int) -> None:
    x = sound()
    logs = log_mel(log="db")(x)
    n = np.arange(13)
    lift = 1 + lifter / 2 * np.sin(np.pi * (n + 1) / lifter) if lifter else 1.0
    want = fft.dct(logs.astype(np.float64), norm="ortho")[:, :13] * lift
    np.testing.assert_allclose(mfcc(lifter=lifter)(x), want, atol=1e-3)
    got = mfcc(lifter=lifter, input_dtype="int16")(int16(x))
    np.testing.assert_allclose(got, mfcc(lifter=lifter)(int16(x) / np.float32(32768)), atol=0.05 * (1 + lifter))


def test_bands_and_the_range_of_decibels() -> None:
    x = sound()
    want = powers(x, 480, 320, 512)
    f = np.linspace(0, 8000, 257)
    sums = np.stack([want[:, (f >= low) & (f < high)].sum(1) for low, high in ((0, 500), (500, 4000))], axis=1)
    front = Pipeline((Frames(480, 320), Spectrogram(), Bands((0, 500, 4000)), Log("db", range=5.0)))
    decibels = 10 * np.log10(sums)
    np.testing.assert_allclose(front(x), np.maximum(decibels, decibels.max() - 5), atol=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "int16"])
@pytest.mark.parametrize("make", [log_mel, mfcc])
def test_streams_equal_the_whole_run(make: Any, dtype: str) -> None:
    x = sound(0.2)
    front = make(input_dtype=dtype, frame_step=200)
    compared(front, int16(x) if dtype == "int16" else x, 2e-4 if dtype == "float32" else 0.0)


def test_silence_and_full_scale_are_no_matter() -> None:
    front = log_mel(input_dtype="int16")
    edges = np.tile(np.array([-32768, 32767, 32767, -32768], np.int16), 400)
    for q in (np.zeros(800, np.int16), edges, np.full(800, -32768, np.int16)):
        assert np.isfinite(front(q)).all()
        compared(front, q)
    np.testing.assert_allclose(front(np.zeros(800, np.int16)), np.log(1e-10), atol=0.3)


@pytest.mark.parametrize(
    ("make", "says", "hint"),
    [
        (lambda: Spectrogram("han"), "han", "hann"),
        (lambda: Spectrogram(fft_length=480), "480", "512"),
        (lambda: log_mel(fmax=9000.0).graph(800), "9000", "8000"),
        (lambda: log_mel(n_mels=200).graph(800), "without a frequency", "fewer bands"),
        (lambda: Pipeline((Mel(),)).graph(800), "expects frames", "Frames"),
        (lambda: mfcc(n_mfcc=41).graph(800), "expected 40 at most", "count"),
        (lambda: Bands((3, 2)), "edges", "sort"),
        (lambda: Log("ln"), "ln", "choose from"),
        (lambda: Pipeline((Frames(480, 320), Dct(2), Spectrogram(fft_length=4, window_length=9))).graph(800), "9", "2"),
        (lambda: Pipeline((Frames(64, 32), Frames(4, 2))).graph(800), "expects samples, got frames", "one Frames"),
        (lambda: Pipeline((Frames(64, 32), Frames(4, 2)), channels=2).graph(800), "expects samples", "one Frames"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, says: str, hint: str) -> None:
    with pytest.raises(UsageError, match=says) as refused:
        make()
    assert hint in refused.value.hint
