"""Statistics of frames, and normalisation to a training set's range."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from types import MappingProxyType
from typing import Any

import numpy as np

from microc.base.dtypes import Array
from microc.errors import UsageError, suggestion
from microc.features.filters import Signal, Stage
from microc.ops.signal.biquads import state_shape

# ---- Numbers that describe a frame or its spectrum, in floats: int16 samples become floats first.

_TINY = 1e-12
"""Added to what is divided by, so that silence gives 0."""


def _last(signal: Signal) -> tuple[int, ...]:
    return (len(signal.shape) - 1,)


def _reduced(signal: Signal, op: str) -> Signal:
    """Over what a frame holds, an axis of one element staying."""
    return signal.op(op, axes=_last(signal), keepdims=True)


def _centred(x: Signal) -> Signal:
    return x.op("sub", _reduced(x, "mean").value)


def _square(x: Signal) -> Signal:
    return x.op("mul", x.value)


def _variance(x: Signal) -> Signal:
    return _reduced(_square(_centred(x)), "mean")


def _moment(x: Signal, power: int) -> Signal:
    """The standardised moment."""
    centred, variance = _centred(x), _variance(x)
    raised = _square(centred) if power == 4 else centred
    total = _reduced(raised.op("mul", _square(centred).value), "mean")
    norm = _square(variance) if power == 4 else variance.op("mul", variance.op("sqrt").value)
    return total.op("div", norm.plus(_TINY).value)


def _crossings(x: Signal) -> Signal:
    """How often the sign changes from one sample to the next; 0 is positive (``librosa.zero_crossings`` with pad=False)."""
    size = x.shape[-1]
    if size < 2:
        raise UsageError("zero_crossings of frames of one sample", hint="longer frames")
    negative = x.op("less", x.constant(0.0))
    changes = negative.last(1, size).op("not_equal", negative.last(0, size - 1).value)
    return _reduced(changes.op("cast", dtype="float32"), "sum")


STATISTICS: Mapping[str, Callable[[Signal], Signal]] = MappingProxyType(
    {
        "mean": lambda x: _reduced(x, "mean"),
        "std": lambda x: _variance(x).op("sqrt"),
        "variance": _variance,
        "rms": lambda x: _reduced(_square(x), "mean").op("sqrt"),
        "energy": lambda x: _reduced(_square(x), "sum"),
        "min": lambda x: _reduced(x, "min"),
        "max": lambda x: _reduced(x, "max"),
        "peak_to_peak": lambda x: _reduced(x, "max").op("sub", _reduced(x, "min").value),
        "skewness": lambda x: _moment(x, 3),
        "kurtosis": lambda x: _moment(x, 4),
        "zero_crossings": _crossings,
    }
)
"""Of the samples of a frame. Moments are those of the whole (``ddof=0``); the kurtosis of a normal distribution is 3."""


def _frequencies(s: Signal) -> Any:
    return np.linspace(0, s.rate / 2, s.shape[-1], dtype=np.float32)


def _share(s: Signal, total: Signal) -> Signal:
    return s.op("div", total.plus(_TINY).value)


def _centroid(s: Signal) -> Signal:
    return _share(_reduced(s.times(_frequencies(s)), "sum"), _reduced(s, "sum"))


def _bandwidth(s: Signal) -> Signal:
    distance = _square(_centroid(s).op("sub", s.constant(_frequencies(s))))
    return _share(_reduced(s.op("mul", distance.value), "sum"), _reduced(s, "sum")).op("sqrt")


def _rolloff(s: Signal) -> Signal:
    """The first frequency up to which there is 85 % of all."""
    below = s.op("cumsum", axis=len(s.shape) - 1).op("less", _reduced(s, "sum").times(0.85).value)
    count = _reduced(below.op("cast", dtype="float32"), "sum")
    return count.times(s.rate / 2 / (s.shape[-1] - 1))


def _flatness(s: Signal) -> Signal:
    floored = s.op("maximum", s.constant(1e-10))
    return _reduced(floored.op("log"), "mean").op("exp").op("div", _reduced(floored, "mean").value)


def _peak_frequency(s: Signal) -> Signal:
    place = s.op("argmax", axis=len(s.shape) - 1, keepdims=True, out_dtype="int32")
    return place.op("cast", dtype="float32").times(s.rate / 2 / (s.shape[-1] - 1))


SPECTRAL: Mapping[str, Callable[[Signal], Signal]] = MappingProxyType(
    {
        "centroid": _centroid,
        "bandwidth": _bandwidth,
        "rolloff": _rolloff,
        "flatness": _flatness,
        "peak": lambda s: _reduced(s, "max"),
        "peak_frequency": _peak_frequency,
    }
)
"""Of a spectrum as it comes, powers or magnitudes; frequencies are in Hz. Those of ``librosa.feature.spectral_...``."""


def _together(signal: Signal, names: Sequence[str], known: Mapping[str, Any]) -> Signal:
    """Several numbers of a frame side by side."""
    parts: list[Signal] = [known[name](signal) for name in names]
    if len(parts) == 1:
        return parts[0]
    net = signal.net
    value = net.op("concat", *(part.value for part in parts), axis=len(signal.shape) - 1)
    return replace(signal, value=value)


def _checked(stage: Statistics | Spectral, known: Mapping[str, Any]) -> None:
    names = stage.names
    if not isinstance(names, (list, tuple)) or not names or not all(isinstance(name, str) for name in names):
        raise stage.refused(f"has names {names!r}", f"a list of {', '.join(known)}")
    for name in names:
        if name not in known:
            raise stage.refused(f"knows no {name!r}", suggestion(name, known, "known"))
    stage.set("names", tuple(names))


@dataclass(frozen=True)
class Statistics(Stage):
    """Numbers of each frame's samples, of each channel: those of :data:`STATISTICS` that are named, in this order."""

    names: Sequence[str] = ("mean", "std", "rms", "min", "max", "skewness", "kurtosis", "zero_crossings")

    def __post_init__(self) -> None:
        _checked(self, STATISTICS)

    def build(self, signal: Signal) -> Signal:
        self.wants_frames(signal)
        return _together(signal.real(), self.names, STATISTICS)


@dataclass(frozen=True)
class Spectral(Stage):
    """Numbers of each frame's spectrum: those of :data:`SPECTRAL` that are named, in this order."""

    names: Sequence[str] = ("centroid", "bandwidth", "rolloff", "flatness", "peak", "peak_frequency")

    def __post_init__(self) -> None:
        _checked(self, SPECTRAL)

    def build(self, signal: Signal) -> Signal:
        self.wants_frames(signal, spectrum=True)
        return _together(signal.real(), self.names, SPECTRAL)


# ---- Features brought to the range that a network was trained on.

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
