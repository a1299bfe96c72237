# SPDX-License-Identifier: Apache-2.0
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

# ---- A pipeline: features of samples, in numpy or as a graph of operators that is compiled with the network.

DTYPES = ("float32", "int16")
SAMPLES, FEATURES = "samples", "features"


@dataclass(frozen=True)
class Pipeline:
    """A sequence of stages that computes features from samples.

    ``sample_rate``: samples per second. ``input_dtype``: ``float32`` or ``int16``. ``sample_scale``: factor of the
    samples, 0 for the default: 1 / 32768 for int16, which gives -1 to 1, and 1 for float32. ``channels``: channels of a
    sample, such as the axes of an accelerometer. Samples have shape (time,) or (time, channels), features (frames,
    numbers) or (frames, channels, numbers).
    """

    stages: Sequence[Stage]
    sample_rate: float = 16000.0
    input_dtype: str = "float32"
    channels: int = 1
    sample_scale: float = 0.0

    def __post_init__(self) -> None:
        stages = validation.as_tuple_of("stages", self.stages, Stage, "such as microc.features.Frames(480, 320)")
        object.__setattr__(self, "stages", stages)
        object.__setattr__(self, "sample_rate", validation.as_number("sample_rate", self.sample_rate, 1e-3, 1e9))
        object.__setattr__(self, "sample_scale", validation.as_number("sample_scale", self.sample_scale, 0.0, 1e9))
        object.__setattr__(self, "channels", validation.as_integer("channels", self.channels, 1, 1024))
        validation.as_known_value("input_dtype", self.input_dtype, DTYPES)
        if not stages:
            raise UsageError(
                "Pipeline: got no stages, expected one at least",
                hint="give stages, or start with microc.features.log_mel()",
            )

    def samples(self, frames: int) -> int:
        """Return the smallest number of samples that gives ``frames`` frames."""
        count = validation.as_integer("frames", frames, 1)
        for stage in reversed(self.stages):
            count = stage.needs(count)
        return max(count, 1)

    def write(self, net: GraphBuilder, samples: int) -> Signal:
        """Append an input of ``samples`` samples and the operators of all stages to a graph; return the features."""
        shape = (1, samples) if self.channels == 1 else (1, samples, self.channels)
        value = net.input(SAMPLES, shape, self.input_dtype)
        scale = 1.0 if self.input_dtype == "float32" else self.sample_scale or 1 / 32768
        signal = Signal(net, value, self.sample_rate, scale)
        if self.input_dtype == "float32" and self.sample_scale:
            signal = signal.multiply_by(self.sample_scale)
        for stage in self.stages:
            signal = stage.build(signal)
        if signal.dtype != "int16":
            return signal.to_float32()
        net.set_quant(signal.value, Quant((float(np.float32(signal.scale)),), (0,)))
        return signal

    def graph(self, samples: int) -> Graph:
        """Return the graph from (1, samples) or (1, samples, channels) to features.

        Integer features are int16 with a scale.
        """
        net = GraphBuilder(FEATURES)
        signal = self.write(net, validation.as_integer("samples", samples, 1))
        graph_ = net.graph(FEATURES, {FEATURES: signal.value})
        quant = net.type(signal.value).quant
        return replace(graph_, types={**graph_.types, FEATURES: replace(graph_.types[FEATURES], quant=quant)})

    def stored(self, samples: Any) -> tuple[Array, float]:
        """Compute features in numpy, in the dtype that the board computes; integers equal the board's exactly.

        Returns them with their scale, the value of one integer step (1.0 for float32).
        """
        x = np.asarray(samples)
        expected_shape = (x.shape[0],) if self.channels == 1 and x.ndim == 1 else (*x.shape[:1], self.channels)
        if x.dtype != self.input_dtype or x.shape != expected_shape or not x.size:
            shape = "(time,)" if self.channels == 1 else f"(time, {self.channels})"
            raise UsageError(
                f"samples: got {x.dtype} of shape {x.shape}, expected {self.input_dtype} of shape {shape}",
                hint=f"convert them: samples.astype(numpy.{self.input_dtype})",
            )
        graph = self.graph(len(x))
        ((features,), _) = evaluate(graph, {SAMPLES: x[None]})
        quant = graph.types[graph.outputs[0]].quant
        return np.asarray(features)[0], quant.scale[0] if quant is not None else 1.0

    def __call__(self, samples: Any) -> Array:
        """Compute the features of samples as float32."""
        features, scale = self.stored(samples)
        return features if features.dtype == np.float32 else (features * scale).astype(np.float32)


# ---- Presets for audio networks. The stages' docstrings name the corresponding arguments of librosa and TensorFlow.


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
    """Return the pipeline of spectra (frames, fft_length / 2 + 1): power spectra, or magnitudes if ``power`` is 1."""
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
    """Return the pipeline of log-mel spectra (frames, n_mels).

    The arguments are the fields of :class:`Frames`, :class:`Spectrogram`, :class:`Mel` and :class:`Log`."""
    stages = (
        Frames(frame_length, frame_step, center),
        Spectrogram(window, fft_length, power),
        Mel(n_mels, fmin, fmax, mel, triangles, norm),
        Log(log, log_offset, log_floor),
    )
    return Pipeline(stages, sample_rate, input_dtype)


def mfcc(*, n_mfcc: int = 13, lifter: int = 0, log: str = "db", **others: object) -> Pipeline:
    """Return the pipeline of cepstra (frames, n_mfcc), the DCT-II of log-mel spectra.

    ``others``: arguments of :func:`log_mel`."""
    front = log_mel(log=log, **others)  # type: ignore[arg-type]
    return Pipeline((*front.stages, Dct(n_mfcc, lifter)), front.sample_rate, front.input_dtype)
