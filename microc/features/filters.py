"""Base of a pipeline's stages, and filters over samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import floor, gcd, log2

import numpy as np

from microc.base.dtypes import Array
from microc.compiler import validation
from microc.errors import UsageError, known_names_hint
from microc.frontend.graph_builder import GraphBuilder
from microc.graph.ir import Attr
from microc.ops.signal.biquads import COEFFICIENT_BITS, biquad_state_shape

# ---- Base of stages: the signal that passes through them, their interface, and checks of declared numbers.


@dataclass(frozen=True, slots=True)
class Signal:
    """A value of the graph under construction, passing through the stages.

    Axis 1 is time: samples, later frames; the last axis of frames is the content of one frame. An integer q represents
    ``scale`` * q. ``rate``: samples per second, before they became frames. ``framed``: the samples were cut into frames.
    """

    net: GraphBuilder
    value: str
    rate: float
    scale: float = 1.0
    framed: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return self.net.shape(self.value)

    @property
    def dtype(self) -> str:
        return self.net.type(self.value).dtype

    @property
    def is_float(self) -> bool:
        return self.dtype == "float32"

    def op(self, op: str, *others: str, **attrs: Attr) -> Signal:
        """Append an operator whose first operand is the signal; return its result as a signal."""
        self.net.at(len(self.net.types), op)
        return replace(self, value=self.net.emit(op, (self.value, *others), attrs))

    def constant(self, array: Array | float) -> str:
        """Return a constant in the signal's dtype; integer arrays keep theirs."""
        data: Array = np.asarray(array)
        return self.net.constant("constant", data.astype(np.float32) if data.dtype.kind == "f" else data)

    def times(self, factor: Array | float) -> Signal:
        """Return the signal multiplied by a float32 constant."""
        return self.op("mul", self.constant(np.asarray(factor, np.float32)))

    def plus(self, number: Array | float) -> Signal:
        """Return the signal with a float32 constant added."""
        return self.op("add", self.constant(np.asarray(number, np.float32)))

    def real(self) -> Signal:
        """Return the signal as float32, multiplied by its scale if it is of integers."""
        if self.is_float:
            return self
        cast = self.op("cast", dtype="float32")
        return replace(cast if self.scale == 1.0 else cast.times(self.scale), scale=1.0)

    def last(self, first: int, end: int) -> Signal:
        """Slice elements ``first`` to ``end`` (exclusive) of the last axis."""
        shape = self.shape
        begin = (*(0,) * (len(shape) - 1), first)
        return self.op("slice", begin=begin, end=(*shape[:-1], end), strides=(1,) * len(shape))


@dataclass(frozen=True)
class Stage:
    """A step of a pipeline; subclasses are declared by their fields and build themselves.

    :meth:`build` returns the signal behind the stage; :meth:`needs` the number of input samples for ``count`` results.
    """

    def build(self, signal: Signal) -> Signal:
        raise NotImplementedError(f"stage {type(self).__name__} must define build(signal)")

    def needs(self, count: int) -> int:
        return count

    def wants_frames(self, signal: Signal, needs_spectra: bool = False) -> None:
        """Raise UsageError unless the signal is cut into frames, which are spectra if ``needs_spectra``."""
        if len(signal.shape) < 3:
            raise self.refusal(
                f"expects frames, got samples of shape {list(signal.shape)}", "put Frames in front of it"
            )
        if needs_spectra and signal.shape[-1] < 3:
            raise self.refusal(
                f"expects spectra, got frames of {signal.shape[-1]} numbers", "put Spectrogram in front of it"
            )

    def refusal(self, problem: str, hint: str) -> UsageError:
        """Return a UsageError about this stage: the problem, and a hint what to do."""
        return UsageError(f"{type(self).__name__}: {problem}", hint=hint)

    def set(self, name: str, value: object) -> None:
        """Store a value, which has been checked, in a field of this frozen dataclass."""
        object.__setattr__(self, name, value)

    def number(self, name: str, least: float, most: float) -> None:
        """Check and store a field that is a number from ``least`` to ``most``."""
        self.set(name, float(validation.as_number(self._field_name(name), getattr(self, name), least, most)))

    def integer(self, name: str, least: int, most: int = 1 << 24) -> None:
        """Check and store a field that is an integer from ``least`` to ``most``."""
        self.set(name, validation.as_integer(self._field_name(name), getattr(self, name), least, most))

    def truth(self, name: str) -> None:
        """Check and store a field that is a boolean."""
        self.set(name, validation.as_boolean(self._field_name(name), getattr(self, name)))

    def choice(self, name: str, known: Sequence[str]) -> None:
        """Check a field that is one of the texts ``known``."""
        value = validation.as_text(self._field_name(name), getattr(self, name))
        if value not in known:
            raise UsageError(
                f"{self._field_name(name)} cannot be {value!r}", hint=known_names_hint(value, known, "choose from")
            )

    def array(self, name: str, dimensions: int) -> Array:
        """Check that a field is a finite array; return it as float64 and store it as nested tuples, or as a number."""
        try:
            array = np.asarray(getattr(self, name), np.float64)
        except (TypeError, ValueError):
            array = np.zeros(0)
        if array.ndim != dimensions or not array.size or not np.isfinite(array).all():
            raise UsageError(
                f"{self._field_name(name)}: got {validation.short_repr(getattr(self, name))}, "
                f"expected finite numbers in {dimensions} dimensions",
                hint="give a list of numbers" if dimensions == 1 else "give an array of numbers",
            )
        values = array.tolist()
        self.set(name, tuple(map(tuple, values)) if dimensions == 2 else tuple(values) if dimensions else values)
        return array

    def _field_name(self, name: str) -> str:
        return f"{type(self).__name__}.{name}"


# ---- Filters over samples: pre-emphasis, FIR, IIR, and resampling by a rational factor. All are causal and start from
# silence.
#
# int16 samples stay int16: taps have as many fractional bits as fit 16 bits, sums are exact and rounded once.

MAX_TAPS = 1 << 14
"""Maximum number of taps of a filter."""
KAISER_BETA, ZERO_CROSSINGS = 5.0, 10
"""Parameters of the resampler's default filter: the window's beta, and zero crossings on either side, as in
``scipy.signal.resample_poly``."""


def _apply_fir(signal: Signal, taps: Array, step: int, leading_zeros: int) -> Signal:
    """Apply an FIR filter of taps (phases, K), with a step of ``step`` samples.

    Its input is preceded by ``leading_zeros`` zeros."""
    margin = ((0, 0), (leading_zeros, 0), *((0, 0),) * (len(signal.shape) - 2))
    padded = signal.op("pad", padding=margin, value=0) if leading_zeros else signal
    if signal.is_float:
        return padded.op("fir", signal.constant(taps.astype(np.float32)), axis=1, down=step)
    bits = max(0, min(15, floor(log2(32767 / max(np.abs(taps).max(), 0.5)))))
    stored = np.rint(taps * (1 << bits)).astype(np.int16)
    return padded.op("fir", signal.constant(stored), axis=1, down=step, shift=bits)


@dataclass(frozen=True)
class Preemphasis(Stage):
    """y[n] = x[n] - coefficient x[n - 1], x[-1] = 0 (``librosa.effects.preemphasis`` with ``zi=[0]``)."""

    coefficient: float = 0.97

    def __post_init__(self) -> None:
        self.number("coefficient", -1.0, 1.0)

    def build(self, signal: Signal) -> Signal:
        return _apply_fir(signal, np.array([[-self.coefficient, 1.0]]), 1, 1)


@dataclass(frozen=True)
class Fir(Stage):
    """y[n] = sum_k taps[k] x[n - k] (``scipy.signal.lfilter(taps, 1, x)``); for int16 every tap is below 32768 in magnitude."""

    taps: Sequence[float]

    def __post_init__(self) -> None:
        if self.array("taps", 1).size > MAX_TAPS:
            raise self.refusal(f"got {len(self.taps)} taps, expected {MAX_TAPS} at most", "decimate first: Resample")

    def build(self, signal: Signal) -> Signal:
        taps = np.array(self.taps)
        if not signal.is_float and np.abs(taps).max() >= 2**15:
            raise self.refusal(
                "got taps of 32768 or more, expected less for int16 samples", "scale the taps: results would saturate"
            )
        return _apply_fir(signal, taps[None, ::-1], 1, taps.size - 1)


@dataclass(frozen=True)
class Biquads(Stage):
    """A cascade of second-order sections (``scipy.signal.sosfilt``): rows b0 b1 b2 a0 a1 a2, as ``output="sos"`` returns
    them.

    For int16, coefficients have 28 fractional bits, so each must be below 8 in magnitude after division by a0. Signals
    between sections have twelve fractional bits and saturate at four times the range of int16.
    """

    sos: Sequence[Sequence[float]]

    def __post_init__(self) -> None:
        rows = self.array("sos", 2)
        if rows.shape[1] != 6 or not rows[:, 3].all() or len(rows) > 64:
            hint = 'compute them by scipy.signal.butter(..., output="sos")'
            what = f"got sections of shape {rows.shape}, expected (1 to 64, 6) and no a0 that is zero"
            raise self.refusal(what, hint)

    def build(self, signal: Signal) -> Signal:
        rows = np.array(self.sos)
        rows = (rows / rows[:, 3:4])[:, [0, 1, 2, 4, 5]]
        stored: Array = rows.astype(np.float32)
        if not signal.is_float:
            if np.abs(rows).max() >= 8:
                raise self.refusal(
                    f"got a coefficient of {np.abs(rows).max():g}, expected less than 8 for integers",
                    "spread the gain over the sections, or use floats",
                )
            stored = np.rint(rows * (1 << COEFFICIENT_BITS)).astype(np.int32)
        start = np.zeros(biquad_state_shape(signal.shape, 1, len(rows), signal.dtype), stored.dtype)
        net = signal.net
        net.at(len(net.types), "biquads")
        names = (signal.value, signal.constant(stored), signal.constant(start))
        return replace(signal, value=net.emit_all("biquads", names, {"axis": 1})[0])


@dataclass(frozen=True)
class Resample(Stage):
    """Resampling by the factor ``up`` / ``down``, by the polyphase form of an FIR filter at ``up`` times the rate.

    The filter is that of ``scipy.signal.resample_poly`` (2 * 10 * max(up, down) + 1 taps with a Kaiser window, beta 5), or
    ``taps``, multiplied by ``up``. It is causal: result n is ``scipy.signal.upfirdn(taps * up, x, up, down)[n]``.
    """

    up: int = 1
    down: int = 1
    taps: Sequence[float] = ()

    def __post_init__(self) -> None:
        self.integer("up", 1, 1024)
        self.integer("down", 1, 1024)
        if len(self.taps) and self.array("taps", 1).size > MAX_TAPS:
            raise self.refusal(f"needs more than {MAX_TAPS} taps for this ratio of rates", "resample in two steps")

    @property
    def ratio(self) -> tuple[int, int]:
        """``up`` and ``down`` without common factors."""
        common = gcd(self.up, self.down)
        return self.up // common, self.down // common

    def filter(self) -> Array:
        """Return the taps of the filter at ``up`` times the input's rate, multiplied by ``up``."""
        up, down = self.ratio
        if len(self.taps):
            return np.array(self.taps) * up
        factor = max(up, down)
        n = np.arange(-ZERO_CROSSINGS * factor, ZERO_CROSSINGS * factor + 1)
        taps = np.sinc(n / factor) * np.kaiser(n.size, KAISER_BETA)
        return np.asarray(taps / taps.sum() * up)

    def build(self, signal: Signal) -> Signal:
        up, down = self.ratio
        if (up, down) == (1, 1) and not len(self.taps):
            return signal
        taps = self.filter()
        taps_before, taps_after = (taps.size - 1) // up, (up - 1) * down // up
        phases = np.zeros((up, taps_before + 1 + taps_after))
        # Result ``up * n + phase`` reads inputs from ``down * n + offset`` back, so each phase has every up-th tap, shifted
        # by its offset.
        for phase in range(up):
            offset, first = divmod(phase * down, up)
            phase_taps = taps[first::up]
            phases[phase, taps_before + offset - np.arange(phase_taps.size)] = phase_taps
        return replace(_apply_fir(signal, phases, down, taps_before), rate=signal.rate * up / down)

    def needs(self, count: int) -> int:
        up, down = self.ratio
        return (-(-count // up) - 1) * down + 1 + (up - 1) * down // up
