# SPDX-License-Identifier: Apache-2.0
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
from microc.ops.signal.digital_filters import biquad_state_shape

# ---- Statistics of a frame or its spectrum, in floats: int16 samples become floats first.

EPSILON = 1e-12
"""Added to divisors, so that silence gives 0."""


def _reduce_frame_content(signal: Signal, op: str) -> Signal:
    """Apply the reduction operator ``op`` to the last axis, the content of each frame, which then has one element."""
    return signal.op(op, axes=(len(signal.shape) - 1,), keepdims=True)


def _subtract_frame_mean(frames: Signal) -> Signal:
    """Subtract the mean of each frame from its elements."""
    return frames.op("sub", _reduce_frame_content(frames, "mean").value)


def _square(frames: Signal) -> Signal:
    """Multiply each element by itself."""
    return frames.op("mul", frames.value)


def _compute_variance(frames: Signal) -> Signal:
    """Return the variance of the elements of each frame."""
    return _reduce_frame_content(_square(_subtract_frame_mean(frames)), "mean")


def _compute_standardised_moment(frames: Signal, order: int) -> Signal:
    """Return the standardised moment of ``order`` 3 (skewness) or 4 (kurtosis) of each frame."""
    deviation, variance = _subtract_frame_mean(frames), _compute_variance(frames)
    raised = _square(deviation) if order == 4 else deviation
    total = _reduce_frame_content(raised.op("mul", _square(deviation).value), "mean")
    norm = _square(variance) if order == 4 else variance.op("mul", variance.op("sqrt").value)
    return total.op("div", norm.add_number(EPSILON).value)


def _count_zero_crossings(frames: Signal) -> Signal:
    """Count sign changes between neighbouring samples; 0 is positive (``librosa.zero_crossings`` with pad=False)."""
    size = frames.shape[-1]
    if size < 2:
        raise UsageError(f"zero_crossings: got frames of {size} sample, expected 2 or more", hint="use longer frames")
    negative = frames.op("less", frames.declare_constant(0.0))
    changes = negative.slice_last_axis(1, size).op("not_equal", negative.slice_last_axis(0, size - 1).value)
    return _reduce_frame_content(changes.op("cast", dtype="float32"), "sum")


FRAME_STATISTICS: Mapping[str, Callable[[Signal], Signal]] = MappingProxyType(
    {
        "mean": lambda x: _reduce_frame_content(x, "mean"),
        "std": lambda x: _compute_variance(x).op("sqrt"),
        "variance": _compute_variance,
        "rms": lambda x: _reduce_frame_content(_square(x), "mean").op("sqrt"),
        "energy": lambda x: _reduce_frame_content(_square(x), "sum"),
        "min": lambda x: _reduce_frame_content(x, "min"),
        "max": lambda x: _reduce_frame_content(x, "max"),
        "peak_to_peak": lambda x: _reduce_frame_content(x, "max").op("sub", _reduce_frame_content(x, "min").value),
        "skewness": lambda x: _compute_standardised_moment(x, 3),
        "kurtosis": lambda x: _compute_standardised_moment(x, 4),
        "zero_crossings": _count_zero_crossings,
    }
)
"""Statistics of a frame's samples.

Moments divide by the number of samples (``ddof=0``); a normal distribution has kurtosis 3.
"""


def _bin_frequencies_in_hertz(spectrum: Signal) -> Any:
    """Return the frequencies of a spectrum's bins in hertz, from 0 to half the sample rate, as a float32 array."""
    return np.linspace(0, spectrum.rate / 2, spectrum.shape[-1], dtype=np.float32)


def _divide_with_epsilon(dividend: Signal, divisor: Signal) -> Signal:
    """Return dividend / (divisor + EPSILON), so that silence gives 0."""
    return dividend.op("div", divisor.add_number(EPSILON).value)


def _spectral_centroid(spectrum: Signal) -> Signal:
    """Return the mean of the frequencies in hertz, weighted by the spectrum."""
    return _divide_with_epsilon(
        _reduce_frame_content(spectrum.multiply_by(_bin_frequencies_in_hertz(spectrum)), "sum"),
        _reduce_frame_content(spectrum, "sum"),
    )


def _spectral_bandwidth(spectrum: Signal) -> Signal:
    """Return the standard deviation of the frequencies in hertz around the centroid, weighted by the spectrum."""
    distance = _square(
        _spectral_centroid(spectrum).op("sub", spectrum.declare_constant(_bin_frequencies_in_hertz(spectrum)))
    )
    return _divide_with_epsilon(
        _reduce_frame_content(spectrum.op("mul", distance.value), "sum"), _reduce_frame_content(spectrum, "sum")
    ).op("sqrt")


def _rolloff_frequency(spectrum: Signal) -> Signal:
    """Return the lowest frequency in hertz up to which the spectrum holds 85 % of its sum."""
    below = spectrum.op("cumsum", axis=len(spectrum.shape) - 1).op(
        "less", _reduce_frame_content(spectrum, "sum").multiply_by(0.85).value
    )
    count = _reduce_frame_content(below.op("cast", dtype="float32"), "sum")
    return count.multiply_by(spectrum.rate / 2 / (spectrum.shape[-1] - 1))


def _spectral_flatness(spectrum: Signal) -> Signal:
    """Return the geometric mean of the spectrum divided by its arithmetic mean."""
    floored = spectrum.op("maximum", spectrum.declare_constant(1e-10))
    return (
        _reduce_frame_content(floored.op("log"), "mean")
        .op("exp")
        .op("div", _reduce_frame_content(floored, "mean").value)
    )


def _peak_frequency(spectrum: Signal) -> Signal:
    """Return the frequency in hertz of the spectrum's largest bin."""
    bin_index = spectrum.op("argmax", axis=len(spectrum.shape) - 1, keepdims=True, out_dtype="int32")
    return bin_index.op("cast", dtype="float32").multiply_by(spectrum.rate / 2 / (spectrum.shape[-1] - 1))


SPECTRAL_STATISTICS: Mapping[str, Callable[[Signal], Signal]] = MappingProxyType(
    {
        "centroid": _spectral_centroid,
        "bandwidth": _spectral_bandwidth,
        "rolloff": _rolloff_frequency,
        "flatness": _spectral_flatness,
        "peak": lambda s: _reduce_frame_content(s, "max"),
        "peak_frequency": _peak_frequency,
    }
)
"""Statistics of a power or magnitude spectrum, as ``librosa.feature.spectral_...``; frequencies are in Hz."""


def _concat_statistics(signal: Signal, names: Sequence[str], functions: Mapping[str, Any]) -> Signal:
    """Compute the statistics ``names`` of each frame, and concatenate them along the last axis.

    ``functions``: maps a statistic's name to the function that computes it."""
    parts: list[Signal] = [functions[name](signal) for name in names]
    if len(parts) == 1:
        return parts[0]
    net = signal.net
    value = net.op("concat", *(part.value for part in parts), axis=len(signal.shape) - 1)
    return replace(signal, value=value)


def _check_and_store_statistic_names(stage: Statistics | Spectral, functions: Mapping[str, Any]) -> None:
    """Check and store the field ``names`` of a stage. UsageError for a name that is not a key of ``functions``."""
    names = stage.names
    if not isinstance(names, (list, tuple)) or not names or not all(isinstance(name, str) for name in names):
        raise stage.stage_error(
            f"names: got {names!r}, expected a list of texts", f"give a list of {', '.join(functions)}"
        )
    for name in names:
        if name not in functions:
            raise stage.stage_error(f"there is no statistic {name!r}", known_names_hint(name, functions, "choose from"))
    stage.store_field("names", tuple(names))


@dataclass(frozen=True)
class Statistics(Stage):
    """Statistics of the samples of each frame and channel.

    ``names``: keys of :data:`FRAME_STATISTICS`, in the order of the features."""

    names: Sequence[str] = ("mean", "std", "rms", "min", "max", "skewness", "kurtosis", "zero_crossings")

    def __post_init__(self) -> None:
        _check_and_store_statistic_names(self, FRAME_STATISTICS)

    def build(self, signal: Signal) -> Signal:
        self.require_frames(signal)
        return _concat_statistics(signal.to_float32(), self.names, FRAME_STATISTICS)


@dataclass(frozen=True)
class Spectral(Stage):
    """Statistics of the spectrum of each frame.

    ``names``: keys of :data:`SPECTRAL_STATISTICS`, in the order of the features."""

    names: Sequence[str] = ("centroid", "bandwidth", "rolloff", "flatness", "peak", "peak_frequency")

    def __post_init__(self) -> None:
        _check_and_store_statistic_names(self, SPECTRAL_STATISTICS)

    def build(self, signal: Signal) -> Signal:
        self.require_frames(signal, needs_spectra=True)
        return _concat_statistics(signal.to_float32(), self.names, SPECTRAL_STATISTICS)


# ---- Features normalised to the range of the training set.

Numbers = float | Sequence[float]


def _check_and_store_numbers(stage: Stage, name: str) -> Array:
    """Check that the field ``name`` holds a number, or one number for each feature; store it and return it as an
    array."""
    value: Any = getattr(stage, name)
    return stage.check_array(name, 1 if isinstance(value, (list, tuple, np.ndarray)) else 0)


def _normalise(stage: Stage, signal: Signal, offset: Any, divisor: Any) -> Signal:
    """Return (signal - offset) / divisor as float32.

    ``offset``, ``divisor``: one number, or one for each feature. If the offset is 0 and the divisor one number, an
    integer signal stays integer, and only its scale changes."""
    low, by = (np.asarray(numbers, np.float64) for numbers in (offset, divisor))
    for numbers in (low, by):
        if numbers.ndim and numbers.size != signal.shape[-1]:
            raise stage.stage_error(
                f"got {numbers.size} numbers for {signal.shape[-1]} features, expected 1 or {signal.shape[-1]}",
                "give one number, or one for each feature",
            )
    if not low.any() and not by.ndim and not signal.is_float:
        return replace(signal, scale=signal.scale / float(by))
    real = signal.to_float32()
    shifted = real.op("sub", real.declare_constant(low.astype(np.float32))) if low.any() else real
    return shifted.multiply_by(1 / by)


@dataclass(frozen=True)
class Normalise(Stage):
    """Normalisation (x - mean) / std by the mean and standard deviation of the training set.

    ``mean``, ``std``: one number for all features, or one for each. If ``mean`` is 0 and ``std`` is one number, integer
    features stay integers, and only their scale changes. Otherwise they become float32.
    """

    mean: Numbers = 0.0
    std: Numbers = 1.0

    def __post_init__(self) -> None:
        _check_and_store_numbers(self, "mean")
        if not (_check_and_store_numbers(self, "std") > 0).all():
            raise UsageError(
                f"Normalise.std: got {np.min(self.std):g}, expected numbers above 0",
                hint="give the standard deviation of each feature, 1 if it is constant",
            )

    def build(self, signal: Signal) -> Signal:
        return _normalise(self, signal, self.mean, self.std)


@dataclass(frozen=True)
class MinMax(Stage):
    """Normalisation (x - low) / (high - low), which maps the range from ``low`` to ``high`` to 0 to 1 without clipping.

    ``low``, ``high``: one number for all features, or one for each."""

    low: Numbers = 0.0
    high: Numbers = 1.0

    def __post_init__(self) -> None:
        low, high = _check_and_store_numbers(self, "low"), _check_and_store_numbers(self, "high")
        if low.ndim and high.ndim and low.size != high.size:
            raise UsageError(
                f"MinMax: got {low.size} numbers for low and {high.size} for high, expected as many of both",
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
    """Per-channel energy normalisation (PCEN) in float32 (Wang et al., *Trainable frontend for robust keyword
    spotting*, 2017):

        (x / (eps + M)**gain + bias)**power - bias**power,  M[t] = (1 - s) M[t - 1] + s x[t],  M[-1] = 0,

    with s = (sqrt(1 + 4 T**2) - 1) / (2 T**2) and T = ``time_constant`` in frames. It equals
    ``librosa.pcen(zi=[0], time_constant=T * hop / sr)``.
    """

    gain: float = 0.98
    bias: float = 2.0
    power: float = 0.5
    time_constant: float = 12.5
    eps: float = 1e-6

    def __post_init__(self) -> None:
        for name, least, most in (("gain", 0, 10), ("bias", 0, 1e6), ("power", 1e-3, 10), ("eps", 1e-30, 1e6)):
            self.check_number(name, least, most)
        self.check_number("time_constant", 1e-3, 1e6)

    def build(self, signal: Signal) -> Signal:
        self.require_frames(signal)
        x, squared = signal.to_float32(), self.time_constant**2
        s = (sqrt(1 + 4 * squared) - 1) / (2 * squared)
        start = np.zeros(biquad_state_shape(x.shape, 1, 1, "float32"), np.float32)
        rows = np.array([[s, 0, 0, s - 1, 0]], np.float32)
        names = (x.value, x.declare_constant(rows), x.declare_constant(start))
        x.net.at(len(x.net.types), "biquads")
        smooth = replace(x, value=x.net.emit_all("biquads", names, {"axis": 1})[0])
        gained = x.op("mul", smooth.add_number(self.eps).op("pow", x.declare_constant(-self.gain)).value)
        powered = gained.add_number(self.bias).op("pow", x.declare_constant(self.power))
        return powered.add_number(-(self.bias**self.power)) if self.bias else powered
