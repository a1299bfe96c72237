"""Statistics of frames, and normalisation to a training set's range."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from types import MappingProxyType
from typing import Any

import numpy as np

from microc.base.dtypes import Array
from microc.errors import UsageError, known_names_hint
from microc.features.filters import Signal, Stage
from microc.ops.signal.biquads import biquad_state_shape

# ---- Statistics of a frame or its spectrum, in floats: int16 samples become floats first.

EPSILON = 1e-12
"""Added to divisors, so that silence gives 0."""


def _reduce_frame(signal: Signal, op: str) -> Signal:
    """Apply a reduction operator to the content of each frame, keeping an axis of one element."""
    return signal.op(op, axes=(len(signal.shape) - 1,), keepdims=True)


def _subtract_mean(x: Signal) -> Signal:
    """Subtract from each frame's content its mean."""
    return x.op("sub", _reduce_frame(x, "mean").value)


def _square_of(x: Signal) -> Signal:
    return x.op("mul", x.value)


def _variance(x: Signal) -> Signal:
    """Return the variance of each frame's content."""
    return _reduce_frame(_square_of(_subtract_mean(x)), "mean")


def _standardised_moment(x: Signal, power: int) -> Signal:
    """Return the standardised moment of ``power`` 3 (skewness) or 4 (kurtosis) of each frame."""
    deviation, variance = _subtract_mean(x), _variance(x)
    raised = _square_of(deviation) if power == 4 else deviation
    total = _reduce_frame(raised.op("mul", _square_of(deviation).value), "mean")
    norm = _square_of(variance) if power == 4 else variance.op("mul", variance.op("sqrt").value)
    return total.op("div", norm.plus(EPSILON).value)


def _zero_crossings(x: Signal) -> Signal:
    """Count sign changes between neighbouring samples; 0 is positive (``librosa.zero_crossings`` with pad=False)."""
    size = x.shape[-1]
    if size < 2:
        raise UsageError(f"zero_crossings: got frames of {size} sample, expected 2 or more", hint="use longer frames")
    negative = x.op("less", x.constant(0.0))
    changes = negative.last(1, size).op("not_equal", negative.last(0, size - 1).value)
    return _reduce_frame(changes.op("cast", dtype="float32"), "sum")


FRAME_STATISTICS: Mapping[str, Callable[[Signal], Signal]] = MappingProxyType(
    {
        "mean": lambda x: _reduce_frame(x, "mean"),
        "std": lambda x: _variance(x).op("sqrt"),
        "variance": _variance,
        "rms": lambda x: _reduce_frame(_square_of(x), "mean").op("sqrt"),
        "energy": lambda x: _reduce_frame(_square_of(x), "sum"),
        "min": lambda x: _reduce_frame(x, "min"),
        "max": lambda x: _reduce_frame(x, "max"),
        "peak_to_peak": lambda x: _reduce_frame(x, "max").op("sub", _reduce_frame(x, "min").value),
        "skewness": lambda x: _standardised_moment(x, 3),
        "kurtosis": lambda x: _standardised_moment(x, 4),
        "zero_crossings": _zero_crossings,
    }
)
"""Statistics of a frame's samples.

Moments divide by the number of samples (``ddof=0``); a normal distribution has kurtosis 3.
"""


def _bin_frequencies(s: Signal) -> Any:
    """Return the frequencies of a spectrum's bins in hertz."""
    return np.linspace(0, s.rate / 2, s.shape[-1], dtype=np.float32)


def _divide_by_sum(s: Signal, total: Signal) -> Signal:
    """Return s / (total + EPSILON), so that silence gives 0."""
    return s.op("div", total.plus(EPSILON).value)


def _spectral_centroid(s: Signal) -> Signal:
    """Return the mean of the frequencies in hertz, weighted by the spectrum."""
    return _divide_by_sum(_reduce_frame(s.times(_bin_frequencies(s)), "sum"), _reduce_frame(s, "sum"))


def _spectral_bandwidth(s: Signal) -> Signal:
    """Return the standard deviation of the frequencies in hertz around the centroid, weighted by the spectrum."""
    distance = _square_of(_spectral_centroid(s).op("sub", s.constant(_bin_frequencies(s))))
    return _divide_by_sum(_reduce_frame(s.op("mul", distance.value), "sum"), _reduce_frame(s, "sum")).op("sqrt")


def _rolloff_frequency(s: Signal) -> Signal:
    """Return the lowest frequency in hertz up to which the spectrum holds 85 % of its sum."""
    below = s.op("cumsum", axis=len(s.shape) - 1).op("less", _reduce_frame(s, "sum").times(0.85).value)
    count = _reduce_frame(below.op("cast", dtype="float32"), "sum")
    return count.times(s.rate / 2 / (s.shape[-1] - 1))


def _spectral_flatness(s: Signal) -> Signal:
    """Return the geometric mean of the spectrum divided by its arithmetic mean."""
    floored = s.op("maximum", s.constant(1e-10))
    return _reduce_frame(floored.op("log"), "mean").op("exp").op("div", _reduce_frame(floored, "mean").value)


def _peak_frequency(s: Signal) -> Signal:
    """Return the frequency in hertz of the spectrum's largest bin."""
    bin_index = s.op("argmax", axis=len(s.shape) - 1, keepdims=True, out_dtype="int32")
    return bin_index.op("cast", dtype="float32").times(s.rate / 2 / (s.shape[-1] - 1))


SPECTRAL_STATISTICS: Mapping[str, Callable[[Signal], Signal]] = MappingProxyType(
    {
        "centroid": _spectral_centroid,
        "bandwidth": _spectral_bandwidth,
        "rolloff": _rolloff_frequency,
        "flatness": _spectral_flatness,
        "peak": lambda s: _reduce_frame(s, "max"),
        "peak_frequency": _peak_frequency,
    }
)
"""Statistics of a power or magnitude spectrum, as ``librosa.feature.spectral_...``; frequencies are in Hz."""


def _concat_statistics(signal: Signal, names: Sequence[str], functions: Mapping[str, Any]) -> Signal:
    """Concatenate several statistics of a frame."""
    parts: list[Signal] = [functions[name](signal) for name in names]
    if len(parts) == 1:
        return parts[0]
    net = signal.net
    value = net.op("concat", *(part.value for part in parts), axis=len(signal.shape) - 1)
    return replace(signal, value=value)


def _check_statistic_names(stage: Statistics | Spectral, functions: Mapping[str, Any]) -> None:
    """Check and store the names of a stage's statistics, each of which must be in ``functions``."""
    names = stage.names
    if not isinstance(names, (list, tuple)) or not names or not all(isinstance(name, str) for name in names):
        raise stage.refusal(f"has names {names!r}", f"a list of {', '.join(functions)}")
    for name in names:
        if name not in functions:
            raise stage.refusal(f"knows no {name!r}", known_names_hint(name, functions, "known"))
    stage.set("names", tuple(names))


@dataclass(frozen=True)
class Statistics(Stage):
    """Statistics of each frame's samples, for each channel: those of :data:`FRAME_STATISTICS` in ``names``, in this order."""

    names: Sequence[str] = ("mean", "std", "rms", "min", "max", "skewness", "kurtosis", "zero_crossings")

    def __post_init__(self) -> None:
        _check_statistic_names(self, FRAME_STATISTICS)

    def build(self, signal: Signal) -> Signal:
        self.wants_frames(signal)
        return _concat_statistics(signal.real(), self.names, FRAME_STATISTICS)


@dataclass(frozen=True)
class Spectral(Stage):
    """Statistics of each frame's spectrum: those of :data:`SPECTRAL_STATISTICS` in ``names``, in this order."""

    names: Sequence[str] = ("centroid", "bandwidth", "rolloff", "flatness", "peak", "peak_frequency")

    def __post_init__(self) -> None:
        _check_statistic_names(self, SPECTRAL_STATISTICS)

    def build(self, signal: Signal) -> Signal:
        self.wants_frames(signal, needs_spectra=True)
        return _concat_statistics(signal.real(), self.names, SPECTRAL_STATISTICS)


# ---- Features normalised to the range of the training set.

Numbers = float | Sequence[float]


def _check_numbers_field(stage: Stage, name: str) -> Array:
    """Check and store a field that is a number, or one number for every feature."""
    value: Any = getattr(stage, name)
    return stage.array(name, 1 if isinstance(value, (list, tuple, np.ndarray)) else 0)


def _normalise(stage: Stage, signal: Signal, offset: Any, divisor: Any) -> Signal:
    """Return (signal - offset) / divisor in float32.

    A signal of integers stays integer, and only its scale changes, if the offset is 0 and the divisor a single number."""
    low, by = (np.asarray(numbers, np.float64) for numbers in (offset, divisor))
    for numbers in (low, by):
        if numbers.ndim and numbers.size != signal.shape[-1]:
            raise stage.refusal(f"has {numbers.size} numbers for {signal.shape[-1]} features", "one, or one for each")
    if not low.any() and not by.ndim and not signal.is_float:
        return replace(signal, scale=signal.scale / float(by))
    real = signal.real()
    shifted = real.op("sub", real.constant(low.astype(np.float32))) if low.any() else real
    return shifted.times(1 / by)


@dataclass(frozen=True)
class Normalise(Stage):
    """(x - mean) / std, by numbers from training: one for all features, or one for each.

    A mean of 0 and a single ``std`` only change the scale of integers; otherwise they become floats.
    """

    mean: Numbers = 0.0
    std: Numbers = 1.0

    def __post_init__(self) -> None:
        _check_numbers_field(self, "mean")
        if not (_check_numbers_field(self, "std") > 0).all():
            raise UsageError(
                f"Normalise.std: got {np.min(self.std):g}, expected numbers above 0",
                hint="give the standard deviation of each feature, 1 if it is constant",
            )

    def build(self, signal: Signal) -> Signal:
        return _normalise(self, signal, self.mean, self.std)


@dataclass(frozen=True)
class MinMax(Stage):
    """(x - low) / (high - low): the range low .. high becomes 0 .. 1. Nothing is clipped."""

    low: Numbers = 0.0
    high: Numbers = 1.0

    def __post_init__(self) -> None:
        low, high = _check_numbers_field(self, "low"), _check_numbers_field(self, "high")
        if low.ndim and high.ndim and low.size != high.size:
            raise UsageError(
                f"MinMax: got {low.size} lows and {high.size} highs, expected as many of both",
                hint="give one of each, or one for each feature",
            )
        if not (high - low > 0).all():
            raise UsageError(
                f"MinMax: got low {self.low} and high {self.high}, expected high above low",
                hint="give the range of each feature in training",
            )

    def build(self, signal: Signal) -> Signal:
        return _normalise(self, signal, self.low, np.asarray(self.high) - np.asarray(self.low))


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
        start = np.zeros(biquad_state_shape(x.shape, 1, 1, "float32"), np.float32)
        rows = np.array([[s, 0, 0, s - 1, 0]], np.float32)
        names = (x.value, x.constant(rows), x.constant(start))
        x.net.at(len(x.net.types), "biquads")
        smooth = replace(x, value=x.net.emit_all("biquads", names, {"axis": 1})[0])
        gained = x.op("mul", smooth.plus(self.eps).op("pow", x.constant(-self.gain)).value)
        powered = gained.plus(self.bias).op("pow", x.constant(self.power))
        return powered.plus(-(self.bias**self.power)) if self.bias else powered
