"""The pipelines that most networks for sound take. What librosa and TensorFlow call arguments say the stages' docstrings."""

from __future__ import annotations

from microc.features.pipeline import Pipeline
from microc.features.spectral import Dct, Frames, Log, Mel, Spectrogram


def spectrogram(
    *,
    sample_rate: float = 16000.0,
    frame_length: int = 480,
    frame_step: int = 320,
    fft_length: int = 0,
    window: str = "hann",
    power: int = 2,
    center: bool = False,
    input_dtype: str = "float32",
) -> Pipeline:
    """Powers (or magnitudes) at fft_length / 2 + 1 frequencies: (frames, frequencies)."""
    stages = (Frames(frame_length, frame_step, center), Spectrogram(window, fft_length, power))
    return Pipeline(stages, sample_rate, input_dtype)


def log_mel(
    *,
    sample_rate: float = 16000.0,
    frame_length: int = 480,
    frame_step: int = 320,
    fft_length: int = 0,
    window: str = "hann",
    power: int = 2,
    center: bool = False,
    n_mels: int = 40,
    fmin: float = 20.0,
    fmax: float = 4000.0,
    mel: str = "htk",
    triangles: str = "hertz",
    norm: str = "none",
    log: str = "e",
    log_offset: float = 0.0,
    log_floor: float = 1e-10,
    input_dtype: str = "float32",
) -> Pipeline:
    """Logarithms of mel bands: (frames, n_mels)."""
    stages = (
        Frames(frame_length, frame_step, center),
        Spectrogram(window, fft_length, power),
        Mel(n_mels, fmin, fmax, mel, triangles, norm),
        Log(log, log_offset, log_floor),
    )
    return Pipeline(stages, sample_rate, input_dtype)


def mfcc(*, n_mfcc: int = 13, lifter: int = 0, log: str = "db", **others: object) -> Pipeline:
    """Cepstra, an orthonormal DCT-II of :func:`log_mel`, which takes the ``others``: (frames, n_mfcc)."""
    front = log_mel(log=log, **others)  # type: ignore[arg-type]
    return Pipeline((*front.stages, Dct(n_mfcc, lifter)), front.sample_rate, front.input_dtype)
