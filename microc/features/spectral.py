# SPDX-License-Identifier: Apache-2.0
"""From samples to spectra: frames, windows, power spectra, mel bands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, log, log2, sqrt
from types import MappingProxyType

import numpy as np

from microc.base.dtypes import Array
from microc.errors import UsageError, known_names_hint
from microc.features.filters import Signal, Stage
from microc.ops.signal.filter_bank import FRACTION, MOST_SUBTRACTED
from microc.ops.signal.power_spectrum import LONGEST

# ---- Windows by name, as in ``scipy.signal.get_window`` and ``librosa``.
#
# A periodic window of N samples (the default, for spectra) is a symmetric window of N + 1 samples without the last.
# Source: Harris, *On the use of windows for harmonic analysis with the discrete Fourier transform*, 1978.

COSINES: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {
        "rectangular": (1.0,),
        "hann": (0.5, 0.5),
        "hamming": (0.54, 0.46),
        "blackman": (0.42, 0.5, 0.08),
        "nuttall": (0.3635819, 0.4891775, 0.1365995, 0.0106411),
        "blackmanharris": (0.35875, 0.48829, 0.14128, 0.01168),
        "flattop": (0.21557895, 0.41663158, 0.277263158, 0.083578947, 0.006947368),
    }
)
"""Coefficients a of sum_j (-1)**j a[j] cos(2 pi j n / N)."""


def make_window(window_name: str, length: int, periodic: bool = True) -> Array:
    """Return a window of ``length`` samples, float64. UsageError for a name that is not in :data:`COSINES`."""
    if window_name not in COSINES:
        raise UsageError(f"there is no window {window_name!r}", hint=known_names_hint(window_name, COSINES, "windows"))
    if length == 1:
        return np.ones(1)
    angle = 2 * np.pi * np.arange(length) / (length if periodic else length - 1)
    samples: Array = np.sum([(-1) ** j * a * np.cos(j * angle) for j, a in enumerate(COSINES[window_name])], axis=0)
    return samples


# ---- The mel scale, and filter banks of triangles on it.
#
# Two scales: ``htk``, 2595 log10(1 + f / 700), and ``slaney``, linear up to 1 kHz and logarithmic above (Slaney, *Auditory
# Toolbox*). Triangles are linear in ``hertz`` (librosa) or in ``mel`` (``tf.signal.linear_to_mel_weight_matrix``, HTK;
# frequency 0 then has weight 0). The norm ``slaney`` scales a triangle to an area of 1 in hertz.

SCALES = ("htk", "slaney")
TRIANGLES = ("hertz", "mel")
NORMS = ("none", "slaney")
_LINEAR, _KNEE, _STEP = 200 / 3, 1000.0, np.log(6.4) / 27


def hertz_to_mel(hertz: Array, mel_scale: str) -> Array:
    """Convert frequencies in hertz to a mel scale: ``htk`` or ``slaney``."""
    f = np.asarray(hertz, np.float64)
    if mel_scale == "htk":
        return np.asarray(2595 * np.log10(1 + f / 700))
    return np.where(f < _KNEE, f / _LINEAR, _KNEE / _LINEAR + np.log(np.maximum(f, _KNEE) / _KNEE) / _STEP)


def mel_to_hertz(mel: Array, mel_scale: str) -> Array:
    """Convert frequencies of a mel scale, ``htk`` or ``slaney``, to hertz."""
    m = np.asarray(mel, np.float64)
    if mel_scale == "htk":
        return np.asarray(700 * (10 ** (m / 2595) - 1))
    knee = _KNEE / _LINEAR
    return np.where(m < knee, m * _LINEAR, _KNEE * np.exp(_STEP * (np.maximum(m, knee) - knee)))


def compute_mel_weights(
    bin_count: int, sample_rate: float, band_count: int, fmin: float, fmax: float, scale: str, triangles: str, norm: str
) -> Array:
    """Compute the weights (``band_count``, ``bin_count``) of triangular mel filters, float64.

    The bins are frequencies from 0 to half of ``sample_rate`` in hertz. The filters extend from ``fmin`` to
    ``fmax``."""
    frequencies = np.linspace(0, sample_rate / 2, bin_count)
    first, last = (float(mel) for mel in hertz_to_mel(np.array([fmin, fmax]), scale))
    ends = np.linspace(first, last, band_count + 2)
    corners = mel_to_hertz(ends, scale)
    positions, edges = (frequencies, corners) if triangles == "hertz" else (hertz_to_mel(frequencies, scale), ends)
    rising = (positions - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - positions) / (edges[2:] - edges[1:-1])[:, None]
    weights: Array = np.maximum(0, np.minimum(rising, falling))
    if triangles == "mel":
        weights[:, 0] = 0
    if norm == "slaney":
        weights *= (2 / (corners[2:] - corners[:-2]))[:, None]
    return weights


def pack_nonzero_band_weights(weights: Array) -> tuple[Array, tuple[int, ...], tuple[int, ...]]:
    """Concatenate the non-zero spans of the rows of ``weights`` (bands, bins).

    Returns the packed weights, the first bin of each band, and the number of bins of each band."""
    starts, widths, parts = [], [], []
    for row in weights:
        (nonzero,) = np.nonzero(row)
        first, end = (int(nonzero[0]), int(nonzero[-1]) + 1) if nonzero.size else (0, 0)
        starts.append(first)
        widths.append(end - first)
        parts.append(row[first:end])
    return np.concatenate(parts), tuple(starts), tuple(widths)


def compute_rectangular_band_weights(bin_count: int, sample_rate: float, edges: Sequence[float]) -> Array:
    """Compute the weights (len(edges) - 1, ``bin_count``) of rectangular bands, float64.

    A weight is 1 if its bin's frequency f in hertz satisfies edges[k] <= f < edges[k + 1], else 0."""
    frequencies = np.linspace(0, sample_rate / 2, bin_count)
    return np.array([(frequencies >= low) & (frequencies < high) for low, high in pairwise(edges)], np.float64)


# ---- Frames, power spectra, mel bands, logarithms, cepstra.
#
# int16 samples stay integers: the spectrum has 32 bits, its squares and their sums are uint64, the logarithm is int16 with
# nine fractional bits (of log2), cepstra are int16. The input of a stage without an integer form becomes floats first.

SQUARES_SHIFT = 14
"""Right shift of squared integers: the remaining 47 bits, times 16 bits of weights, stay below 2**63 for any sum over
bins."""
MAX_WEIGHT = 65535


@dataclass(frozen=True)
class Frames(Stage):
    """Division of samples into frames of ``length`` samples every ``step`` samples, as ``tf.signal.frame``.

    Each channel has frames of its own. ``center``: add length // 2 zeros before and after the samples, as
    ``librosa.stft`` does. In a stream the zeros after the samples are a delay (``stream_allow="lookahead"``).
    """

    length: int
    step: int
    center: bool = False

    def __post_init__(self) -> None:
        self.check_integer("length", 1, LONGEST)
        self.check_integer("step", 1, LONGEST)
        self.check_boolean("center")

    def build(self, signal: Signal) -> Signal:
        if signal.framed:
            raise self.stage_error(
                f"expects samples, got frames of shape {list(signal.shape)}",
                "keep only one Frames stage in the pipeline",
            )
        half = self.length // 2
        if self.center:
            margin = ((0, 0), (half, half), *((0, 0),) * (len(signal.shape) - 2))
            signal = signal.op("pad", padding=margin, value=0)
        framed = signal.op("frame", axis=1, length=self.length, step=self.step)
        framed = framed if len(framed.shape) == 3 else framed.op("transpose", axes=(0, 1, 3, 2))
        return replace(framed, framed=True)

    def needs(self, count: int) -> int:
        return self.length + (count - 1) * self.step - (2 * (self.length // 2) if self.center else 0)


@dataclass(frozen=True)
class Spectrogram(Stage):
    """Spectrum |DFT(frame * window)| ** power of each frame, at fft_length / 2 + 1 frequencies.

    ``fft_length``: a power of two; 0: the smallest that is not less than a frame. Shorter frames are padded with zeros
    at the end, as in ``tf.signal.stft``. ``window_length``: samples of the window, 0 for the frame's length. A shorter
    window is centred in the frame, as ``win_length`` of ``librosa.stft``. ``power``: 2, or 1 for magnitudes.
    ``periodic``: use a periodic window, else a symmetric one.
    """

    window: str = "hann"
    fft_length: int = 0
    power: int = 2
    window_length: int = 0
    periodic: bool = True

    def __post_init__(self) -> None:
        self.check_choice("window", tuple(COSINES))
        self.check_integer("fft_length", 0, LONGEST)
        self.check_integer("power", 1, 2)
        self.check_integer("window_length", 0, LONGEST)
        self.check_boolean("periodic")
        if self.fft_length and (self.fft_length < 4 or self.fft_length & (self.fft_length - 1)):
            example = 1 << max(2, (self.fft_length - 1).bit_length())
            raise self.stage_error(
                f"got fft_length {self.fft_length}, expected a power of two from 4 on", f"use {example}, for one"
            )

    def build(self, signal: Signal) -> Signal:
        self.require_frames(signal)
        size = signal.shape[-1]
        length = self.fft_length or max(4, 1 << (size - 1).bit_length())
        if size > length or self.window_length > size:
            what = (
                f"frames of {size} samples: got fft_length {length} and window_length {self.window_length}, "
                f"expected {size} or more and {size} or less"
            )
            raise self.stage_error(what, f"use fft_length {size} or more, and window_length {size} or less")
        window_length = self.window_length or size
        front = (size - window_length) // 2
        padded_window = np.pad(
            make_window(self.window, window_length, self.periodic), (front, size - window_length - front)
        )
        if signal.is_float:
            spectrum = signal.op(
                "power_spectrum", signal.declare_constant(padded_window.astype(np.float32)), fft_length=length
            )
            return spectrum if self.power == 2 else spectrum.op("sqrt")
        shift = SQUARES_SHIFT if self.power == 2 else 0
        stored = signal.declare_constant(np.rint(padded_window * 32767).astype(np.int16))
        spectrum = signal.op("power_spectrum", stored, fft_length=length, shift=shift)
        unit = signal.scale * length / 32767
        if self.power == 2:
            return replace(spectrum, scale=unit**2 * 2**shift)
        root = spectrum.op("filter_bank_square_root", signal.declare_constant(np.array(0, np.int32)))
        return replace(root.op("cast", dtype="uint64"), scale=unit)


def _sum_bands(signal: Signal, weights: Array) -> Signal:
    """Sum the bins of a spectrum, weighted by ``weights`` (bands, bins).

    For an integer spectrum the weights are quantised to 16 bits."""
    flat, starts, widths = pack_nonzero_band_weights(weights)
    scale = float(flat.max(initial=0)) / MAX_WEIGHT or 1.0
    stored_weights = flat.astype(np.float32) if signal.is_float else np.rint(flat / scale).astype(np.uint16)
    sums = signal.op("band_sums", signal.declare_constant(stored_weights), starts=starts, widths=widths)
    return sums if signal.is_float else replace(sums, scale=signal.scale * scale)


@dataclass(frozen=True)
class Mel(Stage):
    """Mel spectrum: sums of a spectrum over ``bands`` triangular filters on the mel scale.

    ``fmin``, ``fmax``: range of the filters in hertz; ``fmax`` 0 stands for half the sample rate.
    ``librosa.filters.mel``: scale ``slaney`` (or ``htk``), triangles ``hertz``, norm ``slaney`` (or ``none``).
    ``tf.signal.linear_to_mel_weight_matrix``: scale ``htk``, triangles ``mel``, norm ``none``.
    """

    bands: int = 40
    fmin: float = 0.0
    fmax: float = 0.0
    scale: str = "htk"
    triangles: str = "hertz"
    norm: str = "none"

    def __post_init__(self) -> None:
        self.check_integer("bands", 1, 1024)
        self.check_number("fmin", 0.0, 1e6)
        self.check_number("fmax", 0.0, 1e6)
        self.check_choice("scale", SCALES)
        self.check_choice("triangles", TRIANGLES)
        self.check_choice("norm", NORMS)

    def build(self, signal: Signal) -> Signal:
        self.require_frames(signal, needs_spectra=True)
        most = signal.rate / 2
        high = self.fmax or most
        if not self.fmin < high <= most:
            raise self.stage_error(
                f"got {self.fmin:g} to {high:g} Hz, expected a range within 0 to {most:g} Hz, half the rate",
                f"set fmin and fmax within 0 to {most:g}",
            )
        bank = compute_mel_weights(
            signal.shape[-1], signal.rate, self.bands, self.fmin, high, self.scale, self.triangles, self.norm
        )
        empty = np.flatnonzero(~bank.any(axis=1))
        if empty.size:
            what = f"got {empty.size} bands without a frequency of the spectrum (the first is band {empty[0]}), expected none"
            raise self.stage_error(what, "use fewer bands, a larger fft_length, or a higher fmin")
        return _sum_bands(signal, bank)


@dataclass(frozen=True)
class Bands(Stage):
    """Sums of a spectrum over rectangular bands between neighbouring ``edges`` in hertz.

    A band includes its lower edge and excludes its upper edge.
    """

    edges: Sequence[float]

    def __post_init__(self) -> None:
        edges = self.check_array("edges", 1)
        if edges.size < 2 or (np.diff(edges) <= 0).any() or edges[0] < 0:
            raise self.stage_error(
                f"got edges {self.edges}, expected two or more from 0 on, in rising order", "sort the edges"
            )

    def build(self, signal: Signal) -> Signal:
        self.require_frames(signal, needs_spectra=True)
        bank = compute_rectangular_band_weights(signal.shape[-1], signal.rate, self.edges)
        if not bank.any(axis=1).all():
            raise self.stage_error(
                "got a band without a frequency of the spectrum, expected one frequency at least in each band",
                "use wider bands, or a larger fft_length",
            )
        return _sum_bands(signal, bank)


BASES = {"e": 1.0, "2": 1 / log(2), "10": 1 / log(10), "db": 10 / log(10)}
"""Factor that converts a natural logarithm to each base."""


@dataclass(frozen=True)
class Log(Stage):
    """Logarithm log(max(x + offset, floor)) to a base, relative to log(``reference``).

    ``base``: ``e``, ``2``, ``10``, or ``db`` for 10 log10. ``range``: limits results to this distance below the maximum
    of all frames, in float32 only; 0 for no limit. A stream cannot know that maximum. TensorFlow's tutorials use
    ``offset=1e-6``. ``librosa.power_to_db`` is ``base="db"`` with ``floor=1e-10``; its ``top_db`` is ``range``.
    """

    base: str = "e"
    offset: float = 0.0
    floor: float = 1e-10
    reference: float = 1.0
    range: float = 0.0

    def __post_init__(self) -> None:
        self.check_choice("base", tuple(BASES))
        self.check_number("offset", 0.0, 1e30)
        self.check_number("floor", 1e-37, 1e30)
        self.check_number("reference", 1e-37, 1e30)
        self.check_number("range", 0.0, 1e6)

    def build(self, signal: Signal) -> Signal:
        factor = BASES[self.base]
        reference_level = factor * log(max(self.reference, self.floor))
        if signal.dtype != "uint64" or self.range:
            signal = signal.to_float32()
            shifted = signal.add_number(self.offset) if self.offset else signal
            logarithm = shifted.op("maximum", signal.declare_constant(self.floor)).op("log")
            logarithm = logarithm if factor == 1.0 else logarithm.multiply_by(factor)
            logarithm = logarithm.add_number(-reference_level) if reference_level else logarithm
            if not self.range:
                return logarithm
            axes = tuple(range(len(logarithm.shape)))
            least = logarithm.op("max", axes=axes, keepdims=True).add_number(-self.range)
            return logarithm.op("maximum", least.value)
        steps = [min(round(number / signal.scale), (1 << 62)) for number in (self.offset, self.floor)]
        unit = factor * log(2) / (1 << FRACTION)
        subtract = round((reference_level - factor * log(signal.scale)) / unit)
        subtract = max(-MOST_SUBTRACTED, min(subtract, MOST_SUBTRACTED))
        made = signal.op("log2_fixed", offset=steps[0], least=max(steps[1], 1), subtract=subtract)
        return replace(made, scale=unit)


@dataclass(frozen=True)
class Dct(Stage):
    """Cepstra: the first ``count`` coefficients of the orthonormal DCT-II of each frame.

    It equals ``scipy.fft.dct(norm="ortho")``. ``lifter`` L multiplies coefficient n by 1 + L / 2 sin(pi (n + 1) / L),
    as ``librosa.feature.mfcc`` does; 0 for no lifter. int16 input gives int16 output.
    """

    count: int = 13
    lifter: int = 0

    def __post_init__(self) -> None:
        self.check_integer("count", 1, 1024)
        self.check_integer("lifter", 0, 1024)

    def build(self, signal: Signal) -> Signal:
        self.require_frames(signal)
        size = signal.shape[-1]
        if self.count > size:
            raise self.stage_error(
                f"count: got {self.count}, expected {size} at most, the numbers of a frame", "use a smaller count"
            )
        rows, k = np.arange(self.count)[:, None], np.arange(size)
        matrix = sqrt(2 / size) * np.cos(np.pi * rows * (2 * k + 1) / (2 * size))
        matrix[0] /= sqrt(2)
        if self.lifter:
            matrix *= 1 + self.lifter / 2 * np.sin(np.pi * (rows + 1) / self.lifter)
        if signal.dtype != "int16":
            signal = signal.to_float32()
            return signal.op("fir", signal.declare_constant(matrix.astype(np.float32)), axis=-1, down=size)
        bits = 14 - ceil(log2(np.abs(matrix).max()))
        headroom = max(0, ceil(log2(np.abs(matrix).sum(axis=1).max())))
        stored = np.rint(matrix * 2.0**bits).astype(np.int16)
        made = signal.op("fir", signal.declare_constant(stored), axis=-1, down=size, shift=bits + headroom)
        return replace(made, scale=signal.scale * 2**headroom)
