# SPDX-License-Identifier: Apache-2.0
"""Converters of TFLite's operators on signals: frames, spectra, filter banks, CIRCULAR_BUFFER."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Annotated

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.frontend.graph_builder import GraphBuilder
from microc.frontend.signature import Ints, Range, Rank, ReadWith, Value
from microc.frontend.tflite.context import FLOAT, ConverterTable, Moved, Natural, OpContext, Positive, Real
from microc.graph.ir import Attr, Graph, Node, TensorType, fresh_name
from microc.ops.attributes import Rounding

CONVERTERS = ConverterTable()

# ---- Converters of TFLite Micro's custom operators on signals. Their options are a flexbuffer map.

_RFFT_DTYPES = ("int16", "int32", "float32")


_FftLength = Annotated[int, Range(4, 1 << 16)]
_ShiftOf32 = Annotated[int, Range(0, 31)]
_Fixed16 = Annotated[int, Range(0, 1 << 16)]
"""Option that is a factor with 16 fractional bits, of at most 1."""
_Row = Annotated[Value, Rank(1, 1, has_elements=True)]


@CONVERTERS.register("CUSTOM:SignalWindow", dtypes=("int16",))
def convert_signal_window(
    context: OpContext, samples: Value, window: Value, *, shift: Annotated[int, Range(0, 30)]
) -> None:
    """Convert SignalWindow: the product of samples and a window function, shifted right."""
    context.result("signal_window", (samples, window), {"shift": shift})


@CONVERTERS.register("CUSTOM:SignalFftAutoScale", dtypes=("int16",))
def convert_signal_fft_auto_scale(context: OpContext, samples: Value) -> None:
    """Convert SignalFftAutoScale: the samples shifted left by the largest number of bits without overflow, and this
    number."""
    context.results("fft_auto_scale", (samples,))


@CONVERTERS.register("CUSTOM:SignalRfft", dtypes=_RFFT_DTYPES)
def convert_signal_rfft(context: OpContext, samples: Value, *, fft_length: _FftLength) -> None:
    """Convert SignalRfft: the spectrum of each row of real samples, padded with zeros to ``fft_length``."""
    context.result("rfft", (samples,), {"fft_length": fft_length})


@CONVERTERS.register("CUSTOM:SignalIrfft", dtypes=_RFFT_DTYPES)
def convert_signal_irfft(context: OpContext, spectrum: Value, *, fft_length: _FftLength) -> None:
    """Convert SignalIrfft, the inverse of SignalRfft: rows of real samples from their spectrum."""
    context.result("irfft", (spectrum,), {"fft_length": fft_length})


@CONVERTERS.register("CUSTOM:SignalEnergy", dtypes=("uint32",))
def convert_signal_energy(context: OpContext, spectrum: Value, *, start_index: Natural, end_index: Natural) -> None:
    """Convert SignalEnergy: squared magnitudes of a range of frequencies of a spectrum."""
    context.result("signal_energy", (spectrum,), {"start": start_index, "end": end_index})


@CONVERTERS.register("CUSTOM:SignalFilterBank", dtypes=("uint64",))
def convert_signal_filter_bank(
    context: OpContext,
    energies: Value,
    weights: Value,
    unweights: Value,
    frequency_starts: Value,
    weight_starts: Value,
    widths: Value,
    *,
    num_channels: Annotated[int, Range(1, 1 << 15)],
) -> None:
    """Convert SignalFilterBank: weighted sums of energies over overlapping triangular channels."""
    counts = context.constant(5).astype(np.int64)
    for position, size in ((3, energies.size), (4, min(weights.size, unweights.size))):
        starts = context.constant(position).astype(np.int64)
        if len(starts) != len(counts) or min(starts, default=0) < 0 or max(starts + counts, default=0) > size:
            context.broken(
                f"a channel reaches beyond the spectrum or the weights: got starts {starts.tolist()} and widths "
                f"{counts.tolist()}, expected sums of at most {size}"
            )
    operands = (energies, weights, unweights, frequency_starts, weight_starts, widths)
    context.result("filter_bank", operands, {"channels": num_channels})


@CONVERTERS.register("CUSTOM:SignalFilterBankSquareRoot", dtypes=("uint32",))
def convert_filter_bank_square_root(context: OpContext, energies: Value, shift: Value) -> None:
    """Convert SignalFilterBankSquareRoot: square roots, shifted right by a number of bits that is an operand."""
    context.result("filter_bank_square_root", (energies, shift))


@frozen
class _SubtractionOptions:
    """Options of SignalFilterBankSpectralSubtraction that microc's operator has, too."""

    smoothing: _Fixed16
    one_minus_smoothing: _Fixed16
    alternate_smoothing: _Fixed16
    alternate_one_minus_smoothing: _Fixed16
    min_signal_remaining: _Fixed16
    smoothing_bits: _ShiftOf32
    spectral_subtraction_bits: _ShiftOf32


@CONVERTERS.register("CUSTOM:SignalFilterBankSpectralSubtraction", dtypes=("uint32",))
def convert_filter_bank_spectral_subtraction(
    context: OpContext,
    signal: _Row,
    *,
    num_channels: Positive,
    options: _SubtractionOptions,
    clamping: Annotated[int, Range(0, 1)],
) -> None:
    """Convert SignalFilterBankSpectralSubtraction: the signal minus an estimate of the noise, which is a state of the
    graph."""
    if signal.shape != (num_channels,):
        context.broken(f"num_channels differs from the signal's; got {num_channels}, expected {signal.shape[0]}")
    attrs: dict[str, Attr] = {field.name: getattr(options, field.name) for field in fields(options)}
    attrs["clamping"] = bool(clamping)
    noise = _define_named_state(context, "noise", TensorType(signal.shape, "uint32"))
    context.results("spectral_subtraction", (signal, noise), attrs)
    context.builder.updates[noise] = context.output_tensor(1).name


@CONVERTERS.register("CUSTOM:SignalPCAN", dtypes=("uint32",))
def convert_signal_pcan(
    context: OpContext, signal: Value, noise: Value, table: Value, *, snr_shift: Annotated[int, Range(0, 63)]
) -> None:
    """Convert SignalPCAN: automatic gain control of each channel by the noise estimate (per-channel amplitude
    normalisation)."""
    context.result("pcan", (signal, noise, table), {"snr_shift": snr_shift})


@CONVERTERS.register("CUSTOM:SignalFilterBankLog", dtypes=("int16",))
def convert_filter_bank_log(
    context: OpContext, signal: Value, *, input_correction_bits: _ShiftOf32, output_scale: _Fixed16
) -> None:
    """Convert SignalFilterBankLog: scaled natural logarithms."""
    attrs: dict[str, Attr] = {"input_correction_bits": input_correction_bits, "output_scale": output_scale}
    context.result("filter_bank_log", (signal,), attrs)


# ---- Converters of TFLite Micro's custom operators that split signals into frames, or join frames. Samples of earlier calls
# are a state of the graph.

_MOST = 1 << 20


_SampleCount = Annotated[int, Range(1, _MOST)]
_Samples = Annotated[Value, Rank(1, None, has_elements=True)]
"""Operand whose last axis is time."""


def _define_named_state(context: OpContext, name_stem: str, type_: TensorType, data: Array | None = None) -> str:
    """Define a state of the graph; return its name, which is made from the output's name and ``name_stem``."""
    name = context.builder.file.reserve_name(f"{context.output_tensor().name}_{name_stem}")
    return context.builder.define_state(name, type_, data, context.where)


def _prepend_past_elements(context: OpContext, data: Value, past_length: int) -> Value:
    """Return the rows of ``data``, each preceded by the last ``past_length`` elements of earlier calls.

    These elements are stored in a state of the graph."""
    size = data.shape[-1]
    flat = context.reshape(data, (data.size // size, size))
    if not past_length:
        return flat
    past = _define_named_state(context, "past", TensorType((flat.shape[0], past_length), data.dtype))
    joined = context.emit("concat", (past, flat), {"axis": 1})
    context.builder.updates[past] = context.slice_axis(joined, -1, size, size + past_length)
    return joined


@CONVERTERS.register("CUSTOM:SignalDelay", dtypes=("int16",))
def convert_signal_delay(context: OpContext, data: _Samples, *, delay_length: Annotated[int, Range(0, _MOST)]) -> None:
    """Convert SignalDelay: delay rows of samples by ``delay_length``, a number of samples."""
    joined = _prepend_past_elements(context, data, delay_length)
    context.result_reshape(context.slice_axis(joined, -1, 0, data.shape[-1]), data.shape)


@CONVERTERS.register("CUSTOM:SignalFramer", dtypes=("int16",))
def convert_signal_framer(
    context: OpContext,
    data: _Samples,
    *,
    frame_size: _SampleCount,
    frame_step: _SampleCount,
    prefill: Annotated[int, Range(0, 1)],
) -> None:
    """Convert SignalFramer: split a stream of samples into overlapping frames.

    With ``prefill`` the stream is preceded by zeros. Without it the first frames are incomplete; the second output is true
    from the first call on that returns complete frames only.
    """
    size, step, length = frame_size, frame_step, data.shape[-1]
    if length % step or size < step:
        context.broken(
            f"got frame_size {size} and frame_step {step}, expected a step of at most the size that divides "
            f"{length} samples"
        )
    missing_steps, count = -(-size // step) - 1, length // step
    if count * size > _MOST:
        context.refuse(
            f"got {count * size} samples in {count} frames, expected at most {_MOST}", "pass fewer samples in a call"
        )
    joined = _prepend_past_elements(context, data, size - step if prefill else missing_steps * step)
    indices = (np.arange(count)[:, None] * step + np.arange(size)).astype(np.int32)
    frames = context.emit("gather", (joined, context.new_constant("frames", indices)), {"axis": 1})
    context.result_reshape(frames, (*data.shape[:-1], count, size))
    if prefill:
        context.builder.define_constant(context.output_tensor(1).name, np.array(True))
        return
    steps = _define_named_state(context, "steps", TensorType((), "int32"))
    missing, new_steps = (context.new_constant("steps", np.array(n, np.int32)) for n in (missing_steps, count))
    context.result("greater_equal", (steps, missing), {"rounding": Rounding.NONE}, 1)
    next_steps = context.emit("add", (steps, new_steps))
    context.builder.updates[steps] = context.emit("minimum", (next_steps, missing))


@CONVERTERS.register("CUSTOM:SignalStacker", dtypes=("int16",))
def convert_signal_stacker(
    context: OpContext,
    data: _Row,
    *,
    num_channels: _SampleCount,
    stacker_left_context: Annotated[int, Range(0, 1 << 10)],
    stacker_right_context: Annotated[int, Range(0, 1 << 10)],
    stacker_step: Annotated[int, Range(1, 1 << 10)],
) -> None:
    """Convert SignalStacker: concatenate a frame with its neighbours in time. Before the first frame it is repeated.

    The second output is true in the calls whose result is valid: one call in every ``stacker_step``.
    """
    left, right, step, channels = stacker_left_context, stacker_right_context, stacker_step, num_channels
    if data.shape != (channels,) or step > left + right + 1:
        got = f"num_channels {channels} and stacker_step {step} for data of shape {data.shape}"
        context.broken(f"got {got}, expected the data's channels and a step of at most {left + right + 1}")
    row = context.reshape(data, (1, channels))
    joined = row
    if left + right:
        past = _define_named_state(context, "past", TensorType((left + right, channels), data.dtype))
        has_begun = _define_named_state(context, "begun", TensorType((), "bool"))
        repeated = context.emit("broadcast_to", (row,), {"shape": (left + right, channels)})
        past_or_repeated = context.emit("where", (has_begun, past, repeated))
        joined = context.emit("concat", (past_or_repeated, row), {"axis": 0})
        end: Mapping[str, Attr] = {"begin": (1, 0), "end": (left + right + 1, channels), "strides": (1, 1)}
        context.builder.updates[past] = context.emit("slice", (joined,), end)
        true = context.new_constant("true", np.array(True))
        context.builder.updates[has_begun] = context.emit("logical_or", (has_begun, true))
    context.result_reshape(joined, ((left + right + 1) * channels,))
    phase = _define_named_state(context, "iteration", TensorType((), "int32"))
    whole, one, last = (context.new_constant("iteration", np.array(n, np.int32)) for n in (right, 1, right + step))
    context.result("equal", (phase, whole), {"rounding": Rounding.NONE}, 1)
    next_phase = context.emit("add", (phase, one))
    wraps = context.emit("equal", (next_phase, last), {"rounding": Rounding.NONE})
    context.builder.updates[phase] = context.emit("where", (wraps, whole, next_phase))


@CONVERTERS.register("CUSTOM:SignalOverlapAdd", dtypes=("int16", "float32"))
def convert_signal_overlap_add(
    context: OpContext, data: Annotated[Value, Rank(2, None, has_elements=True)], *, frame_step: _SampleCount
) -> None:
    """Convert SignalOverlapAdd: join overlapping frames to a signal by adding them. int16 sums saturate."""
    shape, step = data.shape, frame_step
    if step > shape[-1]:
        context.broken(f"got frames of shape {shape} and frame_step {step}, expected a step of at most the last extent")
    frames, size = shape[-2:]
    rows = data.size // (frames * size)
    flat = context.reshape(data, (rows, frames, size))
    buffer = _define_named_state(context, "buffer", TensorType((rows, size), data.dtype))
    body = _make_overlap_add_body(context, (rows, frames, size), data.dtype, step)
    attrs: Mapping[str, Attr] = {"body": body, "count": frames, "carried": 1, "guarded": False}
    names = [context.builder.file.reserve_name(f"{context.output_tensor().name}_{stem}") for stem in ("rest", "made")]
    context.write_node_with_outputs("loop", (buffer, flat), attrs, names, (None, None))
    context.builder.updates[buffer] = names[0]
    rows_first = context.emit("transpose", (names[1],), {"axes": (1, 0, 2)}) if rows > 1 else names[1]
    context.result_reshape(rows_first, (*shape[:-2], frames * step))


def _make_overlap_add_body(context: OpContext, frames_shape: Sequence[int], dtype: str, frame_step: int) -> Graph:
    """Return the body of SignalOverlapAdd's loop over frames.

    Its inputs are the iteration's number, a buffer of partial sums, and all frames. Its outputs are the buffer shifted
    by ``frame_step`` samples, and the ``frame_step`` samples that no later frame overlaps. ``frames_shape``: (rows,
    frames, samples of a frame)."""
    rows, _, size = frames_shape
    body = GraphBuilder(context.loc.file)
    body.at(context.loc.index, context.loc.name)
    iteration, buffer, data = (
        body.input("iteration", (), "int32"),
        body.input("buffer", (rows, size), dtype),
        body.input("data", frames_shape, dtype),
    )
    terms = [buffer, body.emit("gather", (data, iteration), {"axis": 1})]
    if dtype == "int16":
        wide = [body.emit("cast", (term,), {"dtype": "int32"}) for term in terms]
        bounds: Mapping[str, Attr] = {"minimum": -32768.0, "maximum": 32767.0, "rounding": Rounding.NONE}
        total = body.emit("clip", (body.emit("add", wide, {"rounding": Rounding.NONE}),), bounds)
        total = body.emit("cast", (total,), {"dtype": "int16"})
    else:
        total = body.emit("add", terms, {"rounding": Rounding.NONE})
    done = body.emit("slice", (total,), {"begin": (0, 0), "end": (rows, frame_step), "strides": (1, 1)})
    padded = body.emit("pad", (total,), {"padding": ((0, 0), (0, frame_step)), "value": 0})
    rest = body.emit(
        "slice", (padded,), {"begin": (0, frame_step), "end": (rows, size + frame_step), "strides": (1, 1)}
    )
    return body.graph("overlap_add", {"rest": rest, "done": done})


# ---- Converters of RFFT2D, and of REAL, IMAG and COMPLEX_ABS, which read its complex result.
#
# The graph contains a complex tensor as a float value with an additional last axis of real and imaginary parts. Only these
# operators and reshapes accept complex tensors.

_MOST_ROWS = 1 << 10
"""Maximum number of rows of an RFFT2D, because the transform over the rows is a product with a matrix of rows x rows
complex numbers."""


@CONVERTERS.register("RFFT2D", dtypes=("complex64",))
def convert_rfft2d(context: OpContext, data: Real, fft_length: Ints) -> None:
    """Convert RFFT2D of real images, cropped or zero-padded to the constant ``fft_length``.

    The last axis of the result contains only the non-negative frequencies."""
    shape = data.shape
    if len(fft_length) != 2 or len(shape) < 2 or 0 in shape:
        context.broken(
            f"got data of shape {shape} and fft_length {fft_length}, expected at least two axes and two lengths"
        )
    rows, columns = fft_length
    if columns < 4 or columns & columns - 1 or not 1 <= rows <= _MOST_ROWS:
        context.refuse(
            f"fft_length: got {rows} x {columns}",
            f"pad to 1..{_MOST_ROWS} rows and a power of two of at least 4 columns",
        )
    data = _crop_or_pad_image(context, data, rows, columns)
    lead, half = shape[:-2], columns // 2 + 1
    flat = context.emit("rfft", (data,), {"fft_length": columns})
    spectrum = context.reshape(flat, (*lead, rows, half, 2))
    if rows > 1:
        roots = np.exp(-2j * np.pi * np.outer(np.arange(rows), np.arange(rows)) / rows)
        matrix = np.stack([np.stack([roots.real, roots.imag], -1), np.stack([-roots.imag, roots.real], -1)], 1)
        waves = context.new_constant("waves", matrix.astype(np.float32))
        axes = tuple(range(len(lead)))
        row, column, part, over, parts = range(10, 15)
        labels = ((*axes, row, column, part), (row, part, over, parts))
        attrs: Mapping[str, Attr] = {"inputs": labels, "output": (*axes, over, column, parts)}
        spectrum = context.emit("einsum", (spectrum, waves), attrs)
    context.builder.complex_values[context.output_tensor().name] = spectrum


def _crop_or_pad_image(context: OpContext, data: Value, row_count: int, column_count: int) -> Value:
    """Crop or zero-pad the last two axes of ``data`` to ``row_count`` and ``column_count``; return the result."""
    shape = data.shape
    *lead, height, width = shape
    cropped_shape = (*lead, min(height, row_count), min(width, column_count))
    data = context.slice(data, (0,) * len(shape), cropped_shape)
    if cropped_shape[-2:] != (row_count, column_count):
        padding = ((0, 0),) * len(lead) + ((0, row_count - cropped_shape[-2]), (0, column_count - cropped_shape[-1]))
        data = context.emit("pad", (data,), {"padding": padding, "value": 0.0})
    return data


def _read_complex(context: OpContext, input_position: int) -> Value:
    """Return the float value that contains the real and imaginary parts of a complex operand, along its last axis."""
    source = context.input_tensor(input_position)
    if source.name not in context.builder.complex_values:
        context.refuse(
            f"input {source.name!r}: got {source.type.dtype}, expected an output of RFFT2D",
            "apply it to RFFT2D's output",
        )
    return context.look_up(context.builder.complex_values[source.name])


_Complex = Annotated[Value, ReadWith(_read_complex)]


def _make_complex_part_converter(part_index: int) -> Callable[..., None]:
    """Make a converter of REAL (0) or IMAG (1)."""

    def convert_complex_part(context: OpContext, value: _Complex) -> None:
        part = context.slice_axis(value, -1, part_index, part_index + 1)
        context.result_reshape(part, value.shape[:-1])

    return convert_complex_part


for _code, _part_index in (("REAL", 0), ("IMAG", 1)):
    CONVERTERS.register(_code, dtypes=FLOAT)(_make_complex_part_converter(_part_index))


@CONVERTERS.register("COMPLEX_ABS", dtypes=FLOAT)
def convert_complex_abs(context: OpContext, value: _Complex) -> None:
    """Convert COMPLEX_ABS: the square root of the sum of the squares of real and imaginary part."""
    squares = context.emit("mul", (value, value))
    axes: Mapping[str, Attr] = {
        "axes": (value.rank - 1,),
        "keepdims": False,
        "rounding": Rounding.NONE,
    }
    context.result("sqrt", (context.emit("sum", (squares,), axes),))


# ---- Converter of TFLite Micro's CIRCULAR_BUFFER, which returns the last rows of a stream.
#
# With the option ``cycles_max`` = n, TFLite Micro runs the operators after the buffer in every n-th call only. In other calls
# it returns before them, and their outputs and states keep their values. Therefore the nodes after the buffer become one side
# of a ``branch`` (:func:`make_gated_nodes_conditional`), whose other side returns the values of the last run. Before the first
# run, outputs contain the real number 0. Source: TFLite Micro ``circular_buffer.cc``.


@CONVERTERS.register("CUSTOM:CIRCULAR_BUFFER", dtypes=("int8", "int16", "float32"))
def convert_circular_buffer(
    context: OpContext,
    data: Annotated[Moved, Rank(4, 4, has_elements=True)],
    *,
    cycles_max: _SampleCount | None = None,
) -> None:
    """Convert CIRCULAR_BUFFER: append a row (N, 1, W, C) to a buffer (N, rows, W, C), and drop the oldest row.

    TFLite Micro supports int8 only."""
    target = context.output_tensor()
    shape, buffer_shape = data.shape, target.type.shape
    if len(buffer_shape) != 4 or shape[1] != 1 or (shape[0], *shape[2:]) != (buffer_shape[0], *buffer_shape[2:]):
        context.broken(
            f"got data of shape {shape} for a buffer of shape {buffer_shape}, expected (N, 1, W, C) and (N, rows, W, C)"
        )
    if cycles_max is None:
        context.refuse(
            "the buffer has no option cycles_max",
            "set the option cycles_max to the number of calls between two runs of the operators after the buffer",
        )
    name = context.builder.file.reserve_name(f"{target.name}_rows")
    state = context.builder.define_state(name, target.type, None, context.where)
    rest: Mapping[str, Attr] = {"begin": (0, 1, 0, 0), "end": buffer_shape, "strides": (1,) * 4}
    parts = [context.emit("slice", (state,), rest), data] if buffer_shape[1] > 1 else [data]
    context.builder.updates[state] = context.result("concat", parts, {"axis": 1})
    if cycles_max > 1:
        _emit_call_counter(context, cycles_max)


def _emit_call_counter(context: OpContext, calls_per_run: int) -> None:
    """Append nodes that count calls, and record a gate: later nodes run only in every ``calls_per_run``-th call."""
    builder = context.builder
    count = builder.file.reserve_name(f"{context.loc.name}_calls")
    builder.define_state(count, TensorType((), "int32"), np.array(0, np.int32), context.where)
    one, last, none = (context.new_constant("calls", np.array(n, np.int32)) for n in (1, calls_per_run, 0))
    next_count = context.emit("add", (count, one))
    is_complete = context.emit("equal", (next_count, last), {"rounding": Rounding.NONE})
    builder.updates[count] = context.emit("where", (is_complete, none, next_count))
    builder.gates.append((len(builder.nodes), str(is_complete)))


def make_gated_nodes_conditional(graph: Graph, gates: Sequence[tuple[int, str]]) -> Graph:
    """Return the graph with the nodes of every gate moved into a ``branch``. A gate is a pair (index of a node, name of
    a bool value).

    The node with this index and all later nodes run only if the value is true. Otherwise their outputs and states keep
    their values."""
    for index, condition in reversed(gates):
        if index < len(graph.nodes):
            graph = _move_nodes_into_branch(_add_states_of_last_outputs(graph, index), index, condition)
    return graph


def _add_states_of_last_outputs(graph: Graph, first_node: int) -> Graph:
    """Return the graph with additional states, which contain the last values of gated outputs.

    A gated output is computed by node ``first_node`` or a later one."""
    gated_values = {name for node in graph.nodes[first_node:] for name in node.outputs}
    types, state, updates = dict(graph.types), dict(graph.state), dict(graph.updates)
    for name in graph.outputs:
        if name not in gated_values or name in updates.values():
            continue
        last_value, type_ = fresh_name(types, f"{name}_last"), types[name]
        zero = type_.quant.zero_point[0] if type_.quant else 0
        types[last_value], updates[last_value] = type_, name
        state[last_value] = np.full(type_.shape, zero, type_.dtype)
    return replace(graph, types=types, state=state, updates=updates)


@frozen
class _GatedValue:
    """A gated value (result of a node that does not run in every call), and the state that contains its value after the
    last run."""

    value_name: str
    state_name: str


def _move_nodes_into_branch(graph: Graph, first_node: int, condition: str) -> Graph:
    """Return the graph with node ``first_node`` and all later nodes moved into a ``branch`` on ``condition``.

    The other side of the branch returns the values of the last run."""
    gated_nodes = graph.nodes[first_node:]
    gated_names = {name for node in gated_nodes for name in node.outputs}
    gated_values = {value: _GatedValue(value, state) for state, value in graph.updates.items() if value in gated_names}
    outer_values = dict.fromkeys(
        name for node in gated_nodes for name in node.inputs if name and name not in gated_names
    )
    fixed = [
        name for name in (*outer_values, *(h.state_name for h in gated_values.values())) if name not in graph.consts
    ]
    fixed = list(dict.fromkeys(fixed))
    inside = replace(
        graph, name="period", inputs=tuple(fixed), outputs=tuple(gated_values), nodes=(), state={}, updates={}
    )
    copies = [_make_state_copy_node(graph, entry) for entry in gated_values.values()]
    otherwise = replace(inside, name="between", consts={}).with_nodes(copies)
    attrs: Mapping[str, Attr] = {"then": inside.with_nodes(gated_nodes), "otherwise": otherwise}
    node = Node("branch", (condition, *fixed), tuple(gated_values), attrs, gated_nodes[0].loc)
    return graph.with_nodes((*graph.nodes[:first_node], node))


def _make_state_copy_node(graph: Graph, gated: _GatedValue) -> Node:
    """Return a node that computes a gated value as a copy of its last value."""
    return Node("reshape", (gated.state_name,), (gated.value_name,), {"shape": graph.types[gated.value_name].shape})
