"""Numbers that describe a frame or its spectrum, in floats: int16 samples become floats first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from microc.errors import UsageError, suggestion
from microc.features.stage import Signal, Stage

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
