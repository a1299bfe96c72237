# SPDX-License-Identifier: Apache-2.0
"""Feature pipelines and presets, and the audio frontend of TFLite Micro, microWakeWord and ESPHome."""

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
from microc.graph.ir import Attr, Graph, Quant, fresh_name
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


# ---- The audio frontend of TFLite Micro, microWakeWord and ESPHome in fixed point, bit for bit:
# :class:`MicroFrontend`.
#
# A frame passes through a window, a 16-bit FFT scaled to its loudest sample, triangular mel filters, a square
# root, noise reduction, gain control by the noise (PCAN) and a logarithm. The noise estimate is state: the
# graph takes hops of samples by itself, and is compiled without ``stream``.
#
# Source: ``tensorflow/lite/experimental/microfrontend/lib`` (``window_util.c``, ``filterbank_util.c``,
# ``noise_reduction_util.c``, ``pcan_gain_control_util.c``), whose tables are computed in float32, as here;
# pymicro-features for the defaults.


SCALE = 0.0390625
"""Value of one step of an integer feature, as pymicro-features defines it."""
_WINDOW_BITS, _BANK_BITS, _NOISE_BITS, _SNR_BITS, _GAIN_BITS, _SMOOTHING_BITS = 12, 12, 14, 12, 21, 10
_STRENGTH, _OFFSET, _LOG_SHIFT = 0.95, 80.0, 6
_f = np.float32


def _hertz_to_mel(hertz: Any) -> Any:
    """Convert frequencies in hertz to the mel scale, in float32."""
    return _f(1127.0) * np.log1p(_f(hertz) / _f(700.0))


@dataclass(frozen=True)
class MicroFrontend:
    """TFLite Micro's audio frontend: features of ``bands`` mel bands from int16 samples.

    A frame has ``window_ms`` milliseconds of samples, and a new frame begins every ``step_ms`` milliseconds. ``lower``,
    ``upper``: range of the bands in hertz. ``even_smoothing``, ``odd_smoothing``: smoothing of the noise estimate in
    even and odd bands. ``least_remaining``: least share of the signal that noise reduction leaves. ``pcan``: enable
    gain control.
    """

    sample_rate: int = 16000
    window_ms: int = 30
    step_ms: int = 10
    bands: int = 40
    lower: float = 125.0
    upper: float = 7500.0
    even_smoothing: float = 0.025
    odd_smoothing: float = 0.06
    least_remaining: float = 0.05
    pcan: bool = True

    def __post_init__(self) -> None:
        for name, least, most in (("sample_rate", 1000, 1 << 20), ("window_ms", 1, 1000), ("step_ms", 1, 1000)):
            validation.as_integer(name, getattr(self, name), least, most)
        validation.as_integer("bands", self.bands, 1, 256)
        validation.as_boolean("pcan", self.pcan)
        for name in ("even_smoothing", "odd_smoothing", "least_remaining"):
            validation.as_number(name, getattr(self, name), 0.0, 1.0)
        for name in ("lower", "upper"):
            validation.as_number(name, getattr(self, name), 0.0, self.sample_rate / 2)
        if not self.lower < self.upper or not 4 <= self.length <= 1 << 12 or not 1 <= self.step <= self.length:
            raise UsageError(
                f"MicroFrontend: got {self.lower:g} to {self.upper:g} Hz and frames of {self.length} samples every {self.step}, "
                "expected lower below upper and frames of 4 to 4096 samples",
                hint="change lower and upper, or window_ms and step_ms; the step is at most the window",
            )

    @property
    def length(self) -> int:
        """Number of samples of a frame."""
        return self.window_ms * self.sample_rate // 1000

    @property
    def step(self) -> int:
        """Number of samples from the start of one frame to the start of the next."""
        return self.step_ms * self.sample_rate // 1000

    @property
    def lead(self) -> int:
        """Number of frames at the start of a recording whose windows are not yet full of samples. Their features are
        zeros."""
        return -(-(self.length - self.step) // self.step)

    def samples(self, frames: int) -> int:
        """Return the number of samples that a run of ``frames`` frames takes."""
        return self.step * validation.as_integer("frames", frames, 1)

    def write(self, net: GraphBuilder, samples: int) -> Signal:
        """Append an input of ``samples`` new samples and the operators of a run to a graph.

        Returns the features as a signal of shape (1, frames, bands)."""
        frames = samples // self.step
        value = net.input(SAMPLES, (1, samples), "int16")
        history = self._append_state(net, "history", np.zeros((1, self.length - self.step + samples), np.int16))
        line = Signal(net, history, float(self.sample_rate), SCALE).op("shift_in", value, axis=1)
        net.update(history, line.value)
        age = self._append_state(net, "age", np.zeros(1, np.int32))
        older = net.op("add", age, net.constant("one", np.ones(1, np.int32)))
        net.update(age, net.op("minimum", older, net.constant("lead", np.array([self.lead], np.int32))))
        noise = first = self._append_state(net, "noise", np.zeros(self.bands, np.uint32))
        tables, rows = self._append_constant_tables(line), []
        for frame in range(frames):
            missing = -(-(self.lead - frame) // frames)
            row, noise = self._append_frame_operators(line, frame, tables, noise, age if missing > 0 else "", missing)
            rows.append(net.reshape(row, (1, 1, self.bands)))
        net.update(first, noise)
        features = rows[0] if frames == 1 else net.op("concat", *rows, axis=1)
        net.set_quant(features, Quant((SCALE,), (0,)))
        return replace(line, value=features)

    def _append_state(self, net: GraphBuilder, name: str, initial_content: Array) -> str:
        """Append a state with its initial content to the graph; return its name, which begins with ``frontend_``."""
        return net.state(fresh_name(net.types, f"frontend_{name}"), initial_content)

    def _append_frame_operators(
        self,
        samples: Signal,
        frame_index: int,
        tables: dict[str, str],
        noise_estimate: str,
        earlier_run_count: str,
        required_runs: int,
    ) -> tuple[str, str]:
        """Append the operators of one frame to the graph; return the names of its features and of the new noise
        estimate.

        ``frame_index``: position of the frame in the run. ``tables``: names of the constants of
        :meth:`_append_constant_tables`. ``noise_estimate``: name of the value that holds the noise estimate before the
        frame. ``earlier_run_count``: name of the value that holds the number of earlier runs; while this number is
        below ``required_runs``, the features are zeros. The name is empty if the frame is always complete."""
        net, begin = samples.net, frame_index * self.step
        frame_samples = samples.op("slice", begin=(0, begin), end=(1, begin + self.length), strides=(1, 1))
        windowed = replace(frame_samples, value=net.reshape(frame_samples.value, (self.length,)))
        windowed = windowed.op("signal_window", tables["window"], shift=_WINDOW_BITS)
        net.at(len(net.types), "fft_auto_scale")
        scaled, scale = net.emit_all("fft_auto_scale", (windowed.value,))
        spectrum = net.op("rfft", scaled, fft_length=self._fft_length, name="rfft")
        start, end = self._bin_range
        energy = net.op("signal_energy", spectrum, start=start, end=end, name="signal_energy")
        banks = [tables[name] for name in ("weights", "complements", "frequencies", "firsts", "widths")]
        sums = net.op("filter_bank", energy, *banks, channels=self.bands, name="filter_bank")
        signal = net.op("filter_bank_square_root", sums, scale, name="square_root")
        if earlier_run_count:
            is_complete = net.op(
                "greater_equal", earlier_run_count, net.constant("missing", np.array([required_runs], np.int32))
            )
            signal = net.op("where", is_complete, signal, net.constant("nothing", np.zeros(1, np.uint32)))
        shares = {"smoothing": self.even_smoothing, "alternate_smoothing": self.odd_smoothing}
        attrs: dict[str, Attr] = {"smoothing_bits": _SMOOTHING_BITS, "spectral_subtraction_bits": _NOISE_BITS}
        for name, share in shares.items():
            attrs[name] = int(_f(share) * _f(1 << _NOISE_BITS))
            complement = name.replace("smoothing", "one_minus_smoothing")
            attrs[complement] = (1 << _NOISE_BITS) - int(_f(share) * _f(1 << _NOISE_BITS))
        attrs["min_signal_remaining"] = int(_f(self.least_remaining) * _f(1 << _NOISE_BITS))
        net.at(len(net.types), "spectral_subtraction")
        signal, noise_estimate = net.emit_all(
            "spectral_subtraction", (signal, noise_estimate), {**attrs, "clamping": False}
        )
        correction = self._correction_bits
        if self.pcan:
            right = _GAIN_BITS - correction - _SNR_BITS
            signal = net.op("pcan", signal, noise_estimate, tables["gains"], snr_shift=right, name="pcan")
        attrs = {"output_scale": 1 << _LOG_SHIFT, "input_correction_bits": correction}
        net.at(len(net.types), "filter_bank_log")
        return net.emit("filter_bank_log", (signal,), attrs), noise_estimate

    @property
    def _fft_length(self) -> int:
        return 1 << (self.length - 1).bit_length()

    @property
    def _correction_bits(self) -> int:
        """log2 of the FFT's length minus half of the fractional bits of the filter bank's weights, 0 at least."""
        return max(0, self._fft_length.bit_length() - 1 - _BANK_BITS // 2)

    def _append_constant_tables(self, signal: Signal) -> dict[str, str]:
        """Add the tables of the window, the filter bank and the gains to the graph as constants.

        Returns the name in the graph of each table."""
        angle = _f(np.pi) * _f(2) / _f(self.length) * (np.arange(self.length, dtype=_f) + _f(0.5))
        window = np.floor((_f(0.5) - _f(0.5) * np.cos(angle)) * _f(1 << _WINDOW_BITS) + _f(0.5)).astype(np.int16)
        arrays = {"window": window, **self._compute_filter_bank_tables()}
        if self.pcan:
            arrays["gains"] = self._compute_gain_table()
        return {name: signal.net.constant(name, array) for name, array in arrays.items()}

    @property
    def _hertz_per_bin(self) -> Any:
        """Width of a frequency bin in hertz."""
        return _f(0.5) * _f(self.sample_rate) / _f(self._fft_length // 2)

    @property
    def _band_centers_in_mels(self) -> Array:
        """Centres of the bands and of one further band, on the mel scale."""
        low, high = _hertz_to_mel(self.lower), _hertz_to_mel(self.upper)
        return np.asarray(low + (high - low) / _f(self.bands + 1) * np.arange(1, self.bands + 2, dtype=_f))

    @property
    def _band_edge_bins(self) -> list[int]:
        """First frequency bin of the rising side of every band, and the end (exclusive) of the last band."""
        mels = _hertz_to_mel(np.arange(self._fft_length // 2 + 2, dtype=_f) * self._hertz_per_bin)
        edges = [int(_f(1.5) + _f(self.lower) / self._hertz_per_bin)]
        for center in self._band_centers_in_mels:
            above = np.flatnonzero(mels > center)
            edges.append(max(edges[-1], int(above[0]) if above.size else len(mels) - 1))
        return edges

    @property
    def _bin_range(self) -> tuple[int, int]:
        """First frequency bin of the filter bank, and the end (exclusive) of its last bin."""
        edges = self._band_edge_bins
        return edges[0], min(edges[-1], self._fft_length // 2 + 1)

    def _compute_filter_bank_tables(self) -> dict[str, Array]:
        """Compute the tables of the filter bank by name, as int16.

        A bin's weight applies to the falling side of one band, its complement to the rising side of the next band."""
        edges, centers, weight_parts = self._band_edge_bins, self._band_centers_in_mels, []
        for band, center in enumerate(centers):
            below = centers[band - 1] if band else _hertz_to_mel(self.lower)
            mels = _hertz_to_mel(np.arange(edges[band], edges[band + 1], dtype=_f) * self._hertz_per_bin)
            weight_parts.append((center - mels) / (center - below))
        weights, widths, one = np.concatenate(weight_parts), np.diff(edges), _f(1 << _BANK_BITS)
        return {
            "weights": np.floor(weights * one + _f(0.5)).astype(np.int16),
            "complements": np.floor((_f(1) - weights) * one + _f(0.5)).astype(np.int16),
            "frequencies": np.array(edges[:-1], np.int16),
            "firsts": (np.cumsum(widths) - widths).astype(np.int16),
            "widths": widths.astype(np.int16),
        }

    def _compute_gain_table(self) -> Array:
        """Compute the table of gains as int16: a parabola for every position of the noise's highest bit.

        A parabola is stored as its first value and two differences."""
        bits = _SMOOTHING_BITS - self._correction_bits

        def compute_gain_of_noise(noise: int) -> int:
            """Compute the fixed-point gain for a noise estimate, 32767 at most."""
            power = np.power(_f(noise) / _f(1 << bits) + _f(_OFFSET), _f(-_STRENGTH))
            scaled_gain = _f(1 << _GAIN_BITS) * power
            return 32767 if scaled_gain > 32767 else int(scaled_gain + _f(0.5))

        table = np.zeros(125, np.int64)
        table[0], table[1] = compute_gain_of_noise(0), compute_gain_of_noise(1)
        for highest in range(2, 33):
            x = 1 << highest - 1
            ends = (x, x + (x >> 1), 2 * x - 1 if highest == 32 else 2 * x)
            first, middle, last = (compute_gain_of_noise(point) for point in ends)
            slope = 4 * (middle - first) - (last - first)
            table[4 * highest - 6 : 4 * highest - 3] = first, slope, last - first - slope
        return table.astype(np.int16)

    def graph(self, samples: int) -> Graph:
        """Return the graph of a run over ``samples`` new samples, a multiple of :attr:`step`, with its state."""
        if validation.as_integer("samples", samples, 1) % self.step:
            raise UsageError(
                f"samples: got {samples}, expected a multiple of {self.step}",
                hint=f"give a multiple, such as {self.step}",
            )
        net = GraphBuilder(FEATURES)
        signal = self.write(net, samples)
        graph_ = net.graph(FEATURES, {FEATURES: signal.value})
        return replace(
            graph_, types={**graph_.types, FEATURES: replace(graph_.types[FEATURES], quant=Quant((SCALE,), (0,)))}
        )

    def stored(self, samples: Any) -> tuple[Array, float]:
        """Compute the integer features (frames, bands) of a recording in numpy.

        Returns them with the scale, the value of one integer step. They equal the board's features exactly."""
        x = np.asarray(samples)
        if x.dtype != np.int16 or x.ndim != 1 or len(x) < self.length:
            raise UsageError(
                f"samples: got {x.dtype} of shape {x.shape}, expected int16 of shape (time,), {self.length} at least",
                hint="give one channel as int16",
            )
        graph, state, rows = self.graph(self.step), None, []
        for at in range(0, len(x) - self.step + 1, self.step):
            (row,), state = evaluate(graph, {SAMPLES: x[None, at : at + self.step]}, state)
            rows.append(row[0, 0])
        return np.array(rows[self.lead :]), SCALE

    def __call__(self, samples: Any) -> Array:
        """Compute the features (frames, bands) of a recording as float32."""
        integers, scale = self.stored(samples)
        return (integers * scale).astype(np.float32)
