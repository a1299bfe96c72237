"""Feature pipelines: composition and presets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from microc.base.dtypes import Array
from microc.compiler import validation
from microc.errors import UsageError
from microc.features.filters import Signal, Stage
from microc.features.spectral import Dct, Frames, Log, Mel, Spectrogram
from microc.frontend.graph_builder import GraphBuilder
from microc.graph.ir import Graph, Quant
from microc.ops.meaning import evaluate

# ---- A pipeline: samples in, features out, through stages; in numpy, and as a graph of operators compiled with the
# network.

DTYPES = ("float32", "int16")
SAMPLES, FEATURES = "samples", "features"


@dataclass(frozen=True)
class Pipeline:
    """Stages over samples at ``sample_rate`` a second.

    ``input_dtype``: ``float32``, or ``int16``, which stand for ``sample_scale`` times themselves (0: 1 / 32768, so that they are
    within -1 .. 1). ``channels``: of an accelerometer, say; samples are (time,) or (time, channels), and features (frames,
    numbers of a frame) or (frames, channels, numbers).
    """

    stages: Sequence[Stage]
    sample_rate: float = 16000.0
    input_dtype: str = "float32"
    channels: int = 1
    sample_scale: float = 0.0

    def __post_init__(self) -> None:
        stages = validation.sequence_of("stages", self.stages, Stage, "such as microc.features.Frames(480, 320)")
        object.__setattr__(self, "stages", stages)
        object.__setattr__(self, "sample_rate", validation.number("sample_rate", self.sample_rate, 1e-3, 1e9))
        object.__setattr__(self, "sample_scale", validation.number("sample_scale", self.sample_scale, 0.0, 1e9))
        object.__setattr__(self, "channels", validation.integer("channels", self.channels, 1, 1024))
        validation.choice("input_dtype", self.input_dtype, DTYPES)
        if not stages:
            raise UsageError("a pipeline without stages", hint="microc.features.log_mel() is one with some")

    def samples(self, frames: int) -> int:
        """How many samples make so many frames, and no fewer."""
        count = validation.integer("frames", frames, 1)
        for stage in reversed(self.stages):
            count = stage.needs(count)
        return max(count, 1)

    def write(self, net: GraphBuilder, samples: int) -> Signal:
        """The stages, written behind a new input of so many samples."""
        shape = (1, samples) if self.channels == 1 else (1, samples, self.channels)
        value = net.input(SAMPLES, shape, self.input_dtype)
        scale = 1.0 if self.input_dtype == "float32" else self.sample_scale or 1 / 32768
        signal = Signal(net, value, self.sample_rate, scale)
        if self.input_dtype == "float32" and self.sample_scale:
            signal = signal.times(self.sample_scale)
        for stage in self.stages:
            signal = stage.build(signal)
        if signal.dtype != "int16":
            return signal.real()
        net.set_quant(signal.value, Quant((float(np.float32(signal.scale)),), (0,)))
        return signal

    def graph(self, samples: int) -> Graph:
        """The graph that makes features of (1, samples) or (1, samples, channels). Those of integers are int16 with a scale."""
        net = GraphBuilder(FEATURES)
        signal = self.write(net, validation.integer("samples", samples, 1))
        made = net.graph(FEATURES, {FEATURES: signal.value})
        quant = net.type(signal.value).quant
        return replace(made, types={**made.types, FEATURES: replace(made.types[FEATURES], quant=quant)})

    def stored(self, samples: Any) -> tuple[Array, float]:
        """The features as the board has them, and what one of their integers stands for (1.0 of floats); numpy, exact for
        integers."""
        x = np.asarray(samples)
        wanted = (x.shape[0],) if self.channels == 1 and x.ndim == 1 else (*x.shape[:1], self.channels)
        if x.dtype != self.input_dtype or x.shape != wanted or not x.size:
            shape = "(time,)" if self.channels == 1 else f"(time, {self.channels})"
            what = f"samples are {x.dtype} of shape {x.shape}"
            raise UsageError(
                what, hint=f"{self.input_dtype} of shape {shape}: samples.astype(numpy.{self.input_dtype})"
            )
        graph = self.graph(len(x))
        ((made,), _) = evaluate(graph, {SAMPLES: x[None]})
        quant = graph.types[graph.outputs[0]].quant
        return np.asarray(made)[0], quant.scale[0] if quant is not None else 1.0

    def __call__(self, samples: Any) -> Array:
        """The features of samples, as float32: what they stand for."""
        made, scale = self.stored(samples)
        return made if made.dtype == np.float32 else (made * scale).astype(np.float32)


# ---- The pipelines that most networks for sound take. What librosa and TensorFlow call arguments say the stages'
# docstrings.


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
