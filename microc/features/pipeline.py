"""A pipeline: samples in, features out, through stages; in numpy, and as a graph of operators compiled with the network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from microc.driver import accepted
from microc.dtypes import Array
from microc.errors import UsageError
from microc.features.stage import Signal, Stage
from microc.frontend.graph_builder import GraphBuilder
from microc.graph.ir import Graph, Quant
from microc.ops.meaning import evaluate

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
        stages = accepted.sequence_of("stages", self.stages, Stage, "such as microc.features.Frames(480, 320)")
        object.__setattr__(self, "stages", stages)
        object.__setattr__(self, "sample_rate", accepted.number("sample_rate", self.sample_rate, 1e-3, 1e9))
        object.__setattr__(self, "sample_scale", accepted.number("sample_scale", self.sample_scale, 0.0, 1e9))
        object.__setattr__(self, "channels", accepted.integer("channels", self.channels, 1, 1024))
        accepted.choice("input_dtype", self.input_dtype, DTYPES)
        if not stages:
            raise UsageError("a pipeline without stages", hint="microc.features.log_mel() is one with some")

    def samples(self, frames: int) -> int:
        """How many samples make so many frames, and no fewer."""
        count = accepted.integer("frames", frames, 1)
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
        signal = self.write(net, accepted.integer("samples", samples, 1))
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
