"""Features brought to the range that a network was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

import numpy as np

from microc.dtypes import Array
from microc.errors import UsageError
from microc.features.stage import Signal, Stage
from microc.ops.signal.biquads import state_shape

Numbers = float | Sequence[float]


def _field(stage: Stage, name: str) -> Array:
    """A number, or one for every feature; it is checked and kept."""
    value: Any = getattr(stage, name)
    return stage.array(name, 1 if isinstance(value, (list, tuple, np.ndarray)) else 0)


def _scaled(stage: Stage, signal: Signal, subtract: Any, divide: Any) -> Signal:
    """(x - subtract) / divide, of floats."""
    low, by = (np.asarray(each, np.float64) for each in (subtract, divide))
    for each in (low, by):
        if each.ndim and each.size != signal.shape[-1]:
            raise stage.refused(f"has {each.size} numbers for {signal.shape[-1]} features", "one, or one for each")
    if not low.any() and not by.ndim and not signal.is_float:
        return replace(signal, scale=signal.scale / float(by))
    real = signal.real()
    shifted = real.op("sub", real.constant(low.astype(np.float32))) if low.any() else real
    return shifted.times(1 / by)


@dataclass(frozen=True)
class Normalise(Stage):
    """(x - mean) / std, by numbers known from training: one for all features, or one for each. A mean of 0 and a single ``std``
    leave integers as they are; else they become floats."""

    mean: Numbers = 0.0
    std: Numbers = 1.0

    def __post_init__(self) -> None:
        _field(self, "mean")
        if not (_field(self, "std") > 0).all():
            raise UsageError(
                "Normalise.std has a number that is not above 0", hint="the standard deviation of a feature"
            )

    def build(self, signal: Signal) -> Signal:
        return _scaled(self, signal, self.mean, self.std)


@dataclass(frozen=True)
class MinMax(Stage):
    """(x - low) / (high - low): what lay in low .. high lies in 0 .. 1. Nothing is clipped."""

    low: Numbers = 0.0
    high: Numbers = 1.0

    def __post_init__(self) -> None:
        low, high = _field(self, "low"), _field(self, "high")
        if low.ndim and high.ndim and low.size != high.size:
            raise UsageError(f"MinMax has {low.size} lows and {high.size} highs", hint="one, or one for each feature")
        if not (high - low > 0).all():
            raise UsageError("MinMax.high is not above low", hint="the range of a feature in training")

    def build(self, signal: Signal) -> Signal:
        return _scaled(self, signal, self.low, np.asarray(self.high) - np.asarray(self.low))


@dataclass(frozen=True)
class Pcen(Stage):
    """Per-channel energy normalisation (Wang et al., *Trainable frontend for robust keyword spotting*, 2017), in floats:

        (x / (eps + M)**gain + bias)**power - bias**power,  M[t] = (1 - s) M[t - 1] + s x[t],  M[-1] = 0,

    s = (sqrt(1 + 4 T**2) - 1) / (2 T**2), T = ``time_constant`` frames: as ``librosa.pcen(zi=[0], time_constant=T hop / sr)``.
    """

    gain: float = 0.98
    bias: float = 2.0
    power: float = 0.5
    time_constant: float = 12.5
    eps: float = 1e-6

    def __post_init__(self) -> None:
        for name, least, most in (("gain", 0, 10), ("bias", 0, 1e6), ("power", 1e-3, 10), ("eps", 1e-30, 1e6)):
            self.number(name, least, most)
        self.number("time_constant", 1e-3, 1e6)

    def build(self, signal: Signal) -> Signal:
        self.wants_frames(signal)
        x, squared = signal.real(), self.time_constant**2
        s = (sqrt(1 + 4 * squared) - 1) / (2 * squared)
        start = np.zeros(state_shape(x.shape, 1, 1, "float32"), np.float32)
        rows = np.array([[s, 0, 0, s - 1, 0]], np.float32)
        names = (x.value, x.constant(rows), x.constant(start))
        x.net.at(len(x.net.types), "biquads")
        smooth = replace(x, value=x.net.emit_all("biquads", names, {"axis": 1})[0])
        gained = x.op("mul", smooth.plus(self.eps).op("pow", x.constant(-self.gain)).value)
        made = gained.plus(self.bias).op("pow", x.constant(self.power))
        return made.plus(-(self.bias**self.power)) if self.bias else made
