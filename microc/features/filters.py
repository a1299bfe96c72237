# SPDX-License-Identifier: Apache-2.0
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
from microc.ops.signal.digital_filters import COEFFICIENT_BITS, biquad_state_shape

# ---- Base of stages: the signal that passes through them, their interface, and checks of declared numbers.


@dataclass(frozen=True, slots=True)
class Signal:
    """A value of the graph under construction: the output of one stage of a pipeline and the input of the next.

    Axis 1 is time, in samples or frames. The last axis of frames is the content of one frame. ``net``: the builder of
    the graph; ``value``: the value's name in it. An integer q represents the real number ``scale`` * q. ``rate``:
    samples per second of the signal that was cut into frames. ``framed``: True after the stage that cuts samples into
    frames.
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

    def op(self, op: str, *other_inputs: str, **attrs: Attr) -> Signal:
        """Append the operator ``op`` with the signal as its first input; return its output as a signal.

        ``other_inputs``: names of its other inputs in the graph; ``attrs``: its attributes."""
        self.net.at(len(self.net.types), op)
        return replace(self, value=self.net.emit(op, (self.value, *other_inputs), attrs))

    def declare_constant(self, array: Array | float) -> str:
        """Add a constant to the graph and return its name. Floats are stored as float32, integers in their dtype."""
        data: Array = np.asarray(array)
        return self.net.constant("constant", data.astype(np.float32) if data.dtype.kind == "f" else data)

    def multiply_by(self, factor: Array | float) -> Signal:
        """Return the signal multiplied by a float32 constant."""
        return self.op("mul", self.declare_constant(np.asarray(factor, np.float32)))

    def add_number(self, number: Array | float) -> Signal:
        """Return the signal with a float32 constant added."""
        return self.op("add", self.declare_constant(np.asarray(number, np.float32)))

    def to_float32(self) -> Signal:
        """Return the signal as float32. Integers are multiplied by ``scale``."""
        if self.is_float:
            return self
        cast = self.op("cast", dtype="float32")
        return replace(cast if self.scale == 1.0 else cast.multiply_by(self.scale), scale=1.0)

    def slice_last_axis(self, first: int, end: int) -> Signal:
        """Slice elements ``first`` to ``end`` (exclusive) of the last axis."""
        shape = self.shape
        begin = (*(0,) * (len(shape) - 1), first)
        return self.op("slice", begin=begin, end=(*shape[:-1], end), strides=(1,) * len(shape))


@dataclass(frozen=True)
class Stage:
    """Base class of the stages of a pipeline, whose parameters are dataclass fields.

    :meth:`build` appends the stage's operators to the graph and returns their output signal. :meth:`needs` returns the
    number of inputs (samples or frames) that ``result_count`` results require.
    """

    def build(self, signal: Signal) -> Signal:
        raise NotImplementedError(f"stage {type(self).__name__} must define build(signal)")

    def needs(self, result_count: int) -> int:
        return result_count

    def require_frames(self, signal: Signal, needs_spectra: bool = False) -> None:
        """Raise UsageError if the signal is not cut into frames, or if ``needs_spectra`` and the frames are no
        spectra."""
        if len(signal.shape) < 3:
            raise self.stage_error(
                f"expects frames, got samples of shape {list(signal.shape)}", "put Frames in front of it"
            )
        if needs_spectra and signal.shape[-1] < 3:
            raise self.stage_error(
                f"expects spectra, got frames of {signal.shape[-1]} numbers", "put Spectrogram in front of it"
            )

    def stage_error(self, problem: str, hint: str) -> UsageError:
        """Return the UsageError that names this stage and the problem, with a hint."""
        return UsageError(f"{type(self).__name__}: {problem}", hint=hint)

    def store_field(self, name: str, value: object) -> None:
        """Store a value, which has been checked, in a field of this frozen dataclass."""
        object.__setattr__(self, name, value)

    def check_number(self, name: str, least: float, most: float) -> None:
        """Check that the field ``name`` is a number from ``least`` to ``most``, and store it as float. UsageError if
        not."""
        self.store_field(name, float(validation.as_number(self._field_name(name), getattr(self, name), least, most)))

    def check_integer(self, name: str, least: int, most: int = 1 << 24) -> None:
        """Check that the field ``name`` is an integer from ``least`` to ``most``, and store it as int."""
        self.store_field(name, validation.as_integer(self._field_name(name), getattr(self, name), least, most))

    def check_boolean(self, name: str) -> None:
        """Check that the field ``name`` is a boolean, and store it as bool."""
        self.store_field(name, validation.as_boolean(self._field_name(name), getattr(self, name)))

    def check_choice(self, name: str, known_names: Sequence[str]) -> None:
        """Check that the field ``name`` is one of ``known_names``."""
        value = validation.as_text(self._field_name(name), getattr(self, name))
        if value not in known_names:
            raise UsageError(
                f"{self._field_name(name)}: got {value!r}, expected one of {len(known_names)} names",
                hint=known_names_hint(value, known_names, "choose from"),
            )

    def check_array(self, name: str, dimensions: int) -> Array:
        """Check that the field ``name`` holds finite numbers in ``dimensions`` axes; return them as a float64 array.

        The field then holds nested tuples, or a number if ``dimensions`` is 0."""
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
        self.store_field(
            name, tuple(map(tuple, values)) if dimensions == 2 else tuple(values) if dimensions else values
        )
        return array

    def _field_name(self, name: str) -> str:
        """Return a field's name for errors, such as ``Fir.taps``."""
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


def _apply_fir(signal: Signal, taps: Array, samples_per_result: int, leading_zero_count: int) -> Signal:
    """Apply an FIR filter every ``samples_per_result`` samples, to the signal with ``leading_zero_count`` zeros in
    front.

    ``taps``: coefficients (phases, K) of the filter.

    For int16 samples the taps are stored as int16 with as many fractional bits as fit."""
    margin = ((0, 0), (leading_zero_count, 0), *((0, 0),) * (len(signal.shape) - 2))
    padded = signal.op("pad", padding=margin, value=0) if leading_zero_count else signal
    if signal.is_float:
        return padded.op("fir", signal.declare_constant(taps.astype(np.float32)), axis=1, down=samples_per_result)
    bits = max(0, min(15, floor(log2(32767 / max(np.abs(taps).max(), 0.5)))))
    stored = np.rint(taps * (1 << bits)).astype(np.int16)
    return padded.op("fir", signal.declare_constant(stored), axis=1, down=samples_per_result, shift=bits)


@dataclass(frozen=True)
class Preemphasis(Stage):
    """Pre-emphasis filter y[n] = x[n] - coefficient * x[n - 1] with x[-1] = 0.

    It equals ``librosa.effects.preemphasis`` with ``zi=[0]``."""

    coefficient: float = 0.97

    def __post_init__(self) -> None:
        self.check_number("coefficient", -1.0, 1.0)

    def build(self, signal: Signal) -> Signal:
        return _apply_fir(signal, np.array([[-self.coefficient, 1.0]]), 1, 1)


@dataclass(frozen=True)
class Fir(Stage):
    """FIR filter y[n] = sum_k taps[k] * x[n - k], as ``scipy.signal.lfilter(taps, 1, x)``.

    For int16 samples every tap must be below 32768 in magnitude."""

    taps: Sequence[float]

    def __post_init__(self) -> None:
        if self.check_array("taps", 1).size > MAX_TAPS:
            raise self.stage_error(
                f"got {len(self.taps)} taps, expected {MAX_TAPS} at most", "decimate first: Resample"
            )

    def build(self, signal: Signal) -> Signal:
        taps = np.array(self.taps)
        if not signal.is_float and np.abs(taps).max() >= 2**15:
            raise self.stage_error(
                "got taps of 32768 or more, expected less for int16 samples", "scale the taps: results would saturate"
            )
        return _apply_fir(signal, taps[None, ::-1], 1, taps.size - 1)


@dataclass(frozen=True)
class Biquads(Stage):
    """IIR filter as a cascade of second-order sections (biquads), as ``scipy.signal.sosfilt``.

    ``sos``: a row b0 b1 b2 a0 a1 a2 for each section, as scipy's filter designs return with ``output="sos"``. For int16
    samples the coefficients have 28 fractional bits, so that each must be below 8 in magnitude after division by a0.
    Signals between sections have 12 fractional bits and saturate at four times the range of int16.
    """

    sos: Sequence[Sequence[float]]

    def __post_init__(self) -> None:
        rows = self.check_array("sos", 2)
        if rows.shape[1] != 6 or not rows[:, 3].all() or len(rows) > 64:
            hint = 'compute them by scipy.signal.butter(..., output="sos")'
            what = f"sos: got shape {rows.shape}, expected (1 to 64 sections, 6), and no a0 that is zero"
            raise self.stage_error(what, hint)

    def build(self, signal: Signal) -> Signal:
        rows = np.array(self.sos)
        rows = (rows / rows[:, 3:4])[:, [0, 1, 2, 4, 5]]
        stored: Array = rows.astype(np.float32)
        if not signal.is_float:
            if np.abs(rows).max() >= 8:
                raise self.stage_error(
                    f"got a coefficient of {np.abs(rows).max():g}, expected less than 8 for integers",
                    "spread the gain over the sections, or use floats",
                )
            stored = np.rint(rows * (1 << COEFFICIENT_BITS)).astype(np.int32)
        start = np.zeros(biquad_state_shape(signal.shape, 1, len(rows), signal.dtype), stored.dtype)
        net = signal.net
        net.at(len(net.types), "biquads")
        names = (signal.value, signal.declare_constant(stored), signal.declare_constant(start))
        return replace(signal, value=net.emit_all("biquads", names, {"axis": 1})[0])


@dataclass(frozen=True)
class Resample(Stage):
    """Resampling by the factor ``up`` / ``down`` with a polyphase FIR filter.

    ``taps``: the filter at ``up`` times the input's rate. The default is the filter of ``scipy.signal.resample_poly``:
    2 * 10 * max(up, down) + 1 taps with a Kaiser window of beta 5. Resampling is causal: result n is
    ``scipy.signal.upfirdn(taps * up, x, up, down)[n]``.
    """

    up: int = 1
    down: int = 1
    taps: Sequence[float] = ()

    def __post_init__(self) -> None:
        self.check_integer("up", 1, 1024)
        self.check_integer("down", 1, 1024)
        if len(self.taps) and self.check_array("taps", 1).size > MAX_TAPS:
            raise self.stage_error(f"got {len(self.taps)} taps, expected {MAX_TAPS} at most", "resample in two steps")

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

    def needs(self, result_count: int) -> int:
        up, down = self.ratio
        return (-(-result_count // up) - 1) * down + 1 + (up - 1) * down // up
