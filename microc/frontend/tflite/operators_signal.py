"""Converters of TFLite's operators on signals: frames, spectra, filter banks, CIRCULAR_BUFFER."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.frontend.graph_builder import GraphBuilder
from microc.frontend.tflite.context import FLOAT, Converter, OpContext, check_same_quantisation
from microc.graph.ir import Attr, Graph, Node, TensorType, fresh_name
from microc.ops.attributes import Rounding

# ---- Converters of TFLite Micro's custom operators on signals. Their options are a flexbuffer map.

_RFFT_DTYPES = ("int16", "int32", "float32")


def read_integer_option(context: OpContext, option_name: str, minimum: int = 0, maximum: int = (1 << 31) - 1) -> int:
    """Return an integer option of a custom operator; ModelError if it is absent or not in ``minimum`` ..
    ``maximum``."""
    value = context.operator.custom.get(option_name)
    if not isinstance(value, (int, bool)) or not minimum <= value <= maximum:
        context.broken(f"option {option_name} is {value!r}, expected {minimum}..{maximum}")
    return int(value)


def convert_signal_window(context: OpContext) -> None:
    """Convert SignalWindow: the product of samples and a window function, shifted right."""
    operands = (context.value(0), context.value(1))
    context.result("signal_window", operands, {"shift": read_integer_option(context, "shift", 0, 30)})


def convert_signal_fft_auto_scale(context: OpContext) -> None:
    """Convert SignalFftAutoScale: the samples shifted left by the largest number of bits without overflow, and this
    number."""
    context.results("fft_auto_scale", (context.value(0),), {})


def convert_signal_rfft(context: OpContext) -> None:
    """Convert SignalRfft: the spectrum of each row of real samples, padded with zeros to the option ``fft_length``."""
    length = read_integer_option(context, "fft_length", 4, 1 << 16)
    context.result("rfft", (context.value(0),), {"fft_length": length})


def convert_signal_irfft(context: OpContext) -> None:
    """Convert SignalIrfft, the inverse of SignalRfft: rows of real samples from their spectrum."""
    length = read_integer_option(context, "fft_length", 4, 1 << 16)
    context.result("irfft", (context.value(0),), {"fft_length": length})


def convert_signal_energy(context: OpContext) -> None:
    """Convert SignalEnergy: squared magnitudes of a range of frequencies of a spectrum (options start_index and
    end_index)."""
    attrs: dict[str, Attr] = {
        "start": read_integer_option(context, "start_index"),
        "end": read_integer_option(context, "end_index"),
    }
    context.result("signal_energy", (context.value(0),), attrs)


def convert_signal_filter_bank(context: OpContext) -> None:
    """Convert SignalFilterBank: weighted sums of energies over overlapping triangular channels."""
    operands = [context.value(position) for position in range(6)]
    sizes = [context.type(operand).size for operand in operands]
    frequencies, firsts, widths = (context.constant(position).astype(np.int64) for position in (3, 4, 5))
    for starts, size in ((frequencies, sizes[0]), (firsts, min(sizes[1:3]))):
        if len(starts) != len(widths) or min(starts, default=0) < 0 or max(starts + widths, default=0) > size:
            context.broken(
                f"a channel reaches beyond the spectrum or the weights: got starts {starts.tolist()} and widths "
                f"{widths.tolist()}, expected sums of at most {size}"
            )
    channels = read_integer_option(context, "num_channels", 1, 1 << 15)
    context.result("filter_bank", operands, {"channels": channels})


def convert_filter_bank_square_root(context: OpContext) -> None:
    """Convert SignalFilterBankSquareRoot: square roots, shifted right by a number of bits that is an operand."""
    context.result("filter_bank_square_root", (context.value(0), context.value(1)), {})


def convert_filter_bank_spectral_subtraction(context: OpContext) -> None:
    """Convert SignalFilterBankSpectralSubtraction: the signal minus an estimate of the noise, which is a state of the
    graph."""
    data = context.value(0)
    channels = context.shape_of_rank(data, 1)[0]
    if read_integer_option(context, "num_channels", 1) != channels:
        context.broken(
            f"num_channels differs from the signal's; got {context.operator.custom['num_channels']}, expected "
            f"{channels}"
        )
    names = ("smoothing", "one_minus_smoothing", "alternate_smoothing", "alternate_one_minus_smoothing")
    attrs: dict[str, Attr] = {
        name: read_integer_option(context, name, 0, 1 << 16) for name in (*names, "min_signal_remaining")
    }
    attrs |= {
        name: read_integer_option(context, name, 0, 31) for name in ("smoothing_bits", "spectral_subtraction_bits")
    }
    attrs["clamping"] = bool(read_integer_option(context, "clamping", 0, 1))
    builder = context.builder
    name = builder.file.reserve_name(f"{context.output_tensor().name}_noise")
    noise = builder.define_state(name, TensorType((channels,), "uint32"), None, context.where)
    context.results("spectral_subtraction", (data, noise), attrs)
    builder.updates[noise] = context.output_tensor(1).name


def convert_signal_pcan(context: OpContext) -> None:
    """Convert SignalPCAN: automatic gain control of each channel by the noise estimate (per-channel amplitude
    normalisation)."""
    operands = [context.value(position) for position in range(3)]
    context.result("pcan", operands, {"snr_shift": read_integer_option(context, "snr_shift", 0, 63)})


def convert_filter_bank_log(context: OpContext) -> None:
    """Convert SignalFilterBankLog: scaled natural logarithms."""
    attrs: dict[str, Attr] = {
        "input_correction_bits": read_integer_option(context, "input_correction_bits", 0, 31),
        "output_scale": read_integer_option(context, "output_scale", 0, 1 << 16),
    }
    context.result("filter_bank_log", (context.value(0),), attrs)


SIGNAL_CONVERTERS: Mapping[str, Converter] = {
    "CUSTOM:SignalEnergy": Converter(convert_signal_energy, ("uint32",)),
    "CUSTOM:SignalFftAutoScale": Converter(convert_signal_fft_auto_scale, ("int16",)),
    "CUSTOM:SignalFilterBank": Converter(convert_signal_filter_bank, ("uint64",)),
    "CUSTOM:SignalFilterBankLog": Converter(convert_filter_bank_log, ("int16",)),
    "CUSTOM:SignalFilterBankSpectralSubtraction": Converter(convert_filter_bank_spectral_subtraction, ("uint32",)),
    "CUSTOM:SignalFilterBankSquareRoot": Converter(convert_filter_bank_square_root, ("uint32",)),
    "CUSTOM:SignalIrfft": Converter(convert_signal_irfft, _RFFT_DTYPES),
    "CUSTOM:SignalPCAN": Converter(convert_signal_pcan, ("uint32",)),
    "CUSTOM:SignalRfft": Converter(convert_signal_rfft, _RFFT_DTYPES),
    "CUSTOM:SignalWindow": Converter(convert_signal_window, ("int16",)),
}


# ---- Converters of TFLite Micro's custom operators that split signals into frames, or join frames. Samples of earlier calls
# are a state of the graph.

_MOST = 1 << 20


def _row_count_and_row_length(context: OpContext, data_name: str) -> tuple[int, int]:
    """Return the number of rows of the value ``data_name``, and the length of a row (the last axis)."""
    shape = context.type(data_name).shape
    if not shape or 0 in shape:
        context.broken(f"got data of shape {shape}, expected at least one axis and one element")
    return context.type(data_name).size // shape[-1], shape[-1]


def _define_named_state(context: OpContext, name_stem: str, type_: TensorType, data: Array | None = None) -> str:
    """Define a state of the graph; return its name, which is made from the output's name and ``name_stem``."""
    name = context.builder.file.reserve_name(f"{context.output_tensor().name}_{name_stem}")
    return context.builder.define_state(name, type_, data, context.where)


def _slice_last_axis(context: OpContext, value: str, begin: int, end: int) -> str:
    """Return elements ``begin`` .. ``end`` - 1 along the last axis."""
    shape = context.type(value).shape
    lead = (0,) * (len(shape) - 1)
    attrs: Mapping[str, Attr] = {"begin": (*lead, begin), "end": (*shape[:-1], end), "strides": (1,) * len(shape)}
    return context.emit("slice", (value,), attrs)


def _prepend_past_elements(context: OpContext, data_name: str, past_length: int) -> str:
    """Return the rows of the value ``data_name``, each preceded by the last ``past_length`` elements of earlier calls.

    These elements are stored in a state of the graph."""
    rows, size = _row_count_and_row_length(context, data_name)
    flat = context.reshape(data_name, (rows, size))
    if not past_length:
        return flat
    past = _define_named_state(context, "past", TensorType((rows, past_length), context.type(data_name).dtype))
    joined = context.emit("concat", (past, flat), {"axis": 1})
    context.builder.updates[past] = _slice_last_axis(context, joined, size, size + past_length)
    return joined


def convert_signal_delay(context: OpContext) -> None:
    """Convert SignalDelay: delay rows of samples by the option ``delay_length``, a number of samples."""
    data = context.value(0)
    joined = _prepend_past_elements(context, data, read_integer_option(context, "delay_length", 0, _MOST))
    shape = context.type(data).shape
    context.result_reshape(_slice_last_axis(context, joined, 0, shape[-1]), shape)


def convert_signal_framer(context: OpContext) -> None:
    """Convert SignalFramer: split a stream of samples into overlapping frames.

    With the option ``prefill`` the stream is preceded by zeros. Without it the first frames are incomplete; the second
    output is true from the first call on that returns complete frames only.
    """
    data, size = context.value(0), read_integer_option(context, "frame_size", 1, _MOST)
    step, prefill = read_integer_option(context, "frame_step", 1, _MOST), read_integer_option(context, "prefill", 0, 1)
    shape = context.type(data).shape
    length = _row_count_and_row_length(context, data)[1]
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
    context.result_reshape(frames, (*shape[:-1], count, size))
    if prefill:
        context.builder.define_constant(context.output_tensor(1).name, np.array(True))
        return
    steps = _define_named_state(context, "steps", TensorType((), "int32"))
    missing, new_steps = (context.new_constant("steps", np.array(n, np.int32)) for n in (missing_steps, count))
    context.result("greater_equal", (steps, missing), {"rounding": Rounding.NONE}, 1)
    next_steps = context.emit("add", (steps, new_steps), {})
    context.builder.updates[steps] = context.emit("minimum", (next_steps, missing), {})


def convert_signal_stacker(context: OpContext) -> None:
    """Convert SignalStacker: concatenate a frame with its neighbours in time. Before the first frame it is repeated.

    The second output is true in the calls whose result is valid: one call in every ``stacker_step``.
    """
    data = context.value(0)
    left = read_integer_option(context, "stacker_left_context", 0, 1 << 10)
    right = read_integer_option(context, "stacker_right_context", 0, 1 << 10)
    step, channels = (
        read_integer_option(context, "stacker_step", 1, 1 << 10),
        read_integer_option(context, "num_channels", 1, _MOST),
    )
    if context.shape_of_rank(data, 1) != (channels,) or step > left + right + 1:
        got = f"num_channels {channels} and stacker_step {step} for data of shape {context.type(data).shape}"
        context.broken(f"got {got}, expected the data's channels and a step of at most {left + right + 1}")
    row = context.reshape(data, (1, channels))
    joined = row
    if left + right:
        past = _define_named_state(context, "past", TensorType((left + right, channels), context.type(data).dtype))
        has_begun = _define_named_state(context, "begun", TensorType((), "bool"))
        repeated = context.emit("broadcast_to", (row,), {"shape": (left + right, channels)})
        past_or_repeated = context.emit("where", (has_begun, past, repeated), {})
        joined = context.emit("concat", (past_or_repeated, row), {"axis": 0})
        end: Mapping[str, Attr] = {"begin": (1, 0), "end": (left + right + 1, channels), "strides": (1, 1)}
        context.builder.updates[past] = context.emit("slice", (joined,), end)
        true = context.new_constant("true", np.array(True))
        context.builder.updates[has_begun] = context.emit("logical_or", (has_begun, true), {})
    context.result_reshape(joined, ((left + right + 1) * channels,))
    phase = _define_named_state(context, "turn", TensorType((), "int32"))
    whole, one, last = (context.new_constant("turn", np.array(n, np.int32)) for n in (right, 1, right + step))
    context.result("equal", (phase, whole), {"rounding": Rounding.NONE}, 1)
    next_phase = context.emit("add", (phase, one), {})
    wraps = context.emit("equal", (next_phase, last), {"rounding": Rounding.NONE})
    context.builder.updates[phase] = context.emit("where", (wraps, whole, next_phase), {})


def convert_signal_overlap_add(context: OpContext) -> None:
    """Convert SignalOverlapAdd: join overlapping frames to a signal by adding them. int16 sums saturate."""
    data, step = context.value(0), read_integer_option(context, "frame_step", 1, _MOST)
    shape, dtype = context.type(data).shape, context.type(data).dtype
    if len(shape) < 2 or 0 in shape or step > shape[-1]:
        context.broken(
            f"got frames of shape {shape} and frame_step {step}, expected at least two axes and a step of at "
            "most the last"
        )
    frames, size = shape[-2:]
    rows = context.type(data).size // (frames * size)
    flat = context.reshape(data, (rows, frames, size))
    buffer = _define_named_state(context, "buffer", TensorType((rows, size), dtype))
    body = _make_overlap_add_body(context, (rows, frames, size), dtype, step)
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
        body.input("turn", (), "int32"),
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


FRAME_CONVERTERS: Mapping[str, Converter] = {
    "CUSTOM:SignalDelay": Converter(convert_signal_delay, ("int16",)),
    "CUSTOM:SignalFramer": Converter(convert_signal_framer, ("int16",)),
    "CUSTOM:SignalOverlapAdd": Converter(convert_signal_overlap_add, ("int16", "float32")),
    "CUSTOM:SignalStacker": Converter(convert_signal_stacker, ("int16",)),
}


# ---- Converters of RFFT2D, and of REAL, IMAG and COMPLEX_ABS, which read its complex result.
#
# The graph contains a complex tensor as a float value with an additional last axis of real and imaginary parts. Only these
# operators and reshapes accept complex tensors.

_MOST_ROWS = 1 << 10
"""Maximum number of rows of an RFFT2D, because the transform over the rows is a product with a matrix of rows x rows
complex numbers."""


def convert_rfft2d(context: OpContext) -> None:
    """Convert RFFT2D of real images, cropped or zero-padded to the constant ``fft_length``.

    The last axis of the result contains only the non-negative frequencies."""
    data, lengths = context.operand(0, "float32"), context.integers(1)
    shape = context.type(data).shape
    if len(lengths) != 2 or len(shape) < 2 or 0 in shape:
        context.broken(
            f"got data of shape {shape} and fft_length {lengths}, expected at least two axes and two lengths"
        )
    rows, columns = lengths
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


def _crop_or_pad_image(context: OpContext, data_name: str, row_count: int, column_count: int) -> str:
    """Crop or zero-pad the last two axes of the value ``data_name`` to ``row_count`` and ``column_count``; return the
    result."""
    shape = context.type(data_name).shape
    *lead, height, width = shape
    cropped_shape = (*lead, min(height, row_count), min(width, column_count))
    if cropped_shape != shape:
        crop: Mapping[str, Attr] = {"begin": (0,) * len(shape), "end": cropped_shape, "strides": (1,) * len(shape)}
        data_name = context.emit("slice", (data_name,), crop)
    if cropped_shape[-2:] != (row_count, column_count):
        padding = ((0, 0),) * len(lead) + ((0, row_count - cropped_shape[-2]), (0, column_count - cropped_shape[-1]))
        data_name = context.emit("pad", (data_name,), {"padding": padding, "value": 0.0})
    return data_name


def _find_complex_operand(context: OpContext) -> str:
    """Return the float value that contains the real and imaginary parts of the complex operand, along its last axis."""
    name = context.input_tensor(0).name
    if name not in context.builder.complex_values:
        context.refuse(
            f"input {name!r}: got {context.input_tensor(0).type.dtype}, expected an output of RFFT2D",
            "apply it to RFFT2D's output",
        )
    return context.builder.complex_values[name]


def make_complex_part_converter(part_index: int) -> Converter:
    """Return the converter of REAL (0) or IMAG (1)."""

    def convert_complex_part(context: OpContext) -> None:
        value = _find_complex_operand(context)
        shape = context.type(value).shape
        begin = (0,) * (len(shape) - 1)
        cut: Mapping[str, Attr] = {
            "begin": (*begin, part_index),
            "end": (*shape[:-1], part_index + 1),
            "strides": (1,) * len(shape),
        }
        context.result_reshape(context.emit("slice", (value,), cut), shape[:-1])

    return Converter(convert_complex_part, FLOAT)


def convert_complex_abs(context: OpContext) -> None:
    """Convert COMPLEX_ABS: the square root of the sum of the squares of real and imaginary part."""
    value = _find_complex_operand(context)
    squares = context.emit("mul", (value, value), {})
    axes: Mapping[str, Attr] = {
        "axes": (len(context.type(value).shape) - 1,),
        "keepdims": False,
        "rounding": Rounding.NONE,
    }
    context.result("sqrt", (context.emit("sum", (squares,), axes),), {})


SPECTRUM_CONVERTERS: Mapping[str, Converter] = {
    "COMPLEX_ABS": Converter(convert_complex_abs, FLOAT),
    "IMAG": make_complex_part_converter(1),
    "REAL": make_complex_part_converter(0),
    "RFFT2D": Converter(convert_rfft2d, ("complex64",)),
}


# ---- Converter of TFLite Micro's CIRCULAR_BUFFER, which returns the last rows of a stream.
#
# With the option ``cycles_max`` = n, TFLite Micro runs the operators after the buffer in every n-th call only. In other calls
# it returns before them, and their outputs and states keep their values. Therefore the nodes after the buffer become one side
# of a ``branch`` (:func:`make_gated_nodes_conditional`), whose other side returns the values of the last run. Before the first
# run, outputs contain the real number 0. Source: TFLite Micro ``circular_buffer.cc``.


def convert_circular_buffer(context: OpContext) -> None:
    """Convert CIRCULAR_BUFFER: append a row (N, 1, W, C) to a buffer (N, rows, W, C), and drop the oldest row.

    TFLite Micro supports int8 only."""
    data, target = context.unchanged_operand(0), context.output_tensor()
    check_same_quantisation(context, [0])
    shape, buffer_shape = context.shape_of_rank(data, 4), target.type.shape
    if len(buffer_shape) != 4 or shape[1] != 1 or (shape[0], *shape[2:]) != (buffer_shape[0], *buffer_shape[2:]):
        context.broken(
            f"got data of shape {shape} for a buffer of shape {buffer_shape}, expected (N, 1, W, C) and (N, rows, W, C)"
        )
    if "cycles_max" not in context.operator.custom:
        context.refuse(
            "the buffer has no option cycles_max",
            "set the option cycles_max to the number of calls between two runs of the operators after the buffer",
        )
    period = read_integer_option(context, "cycles_max", 1, _MOST)
    name = context.builder.file.reserve_name(f"{target.name}_rows")
    state = context.builder.define_state(name, target.type, None, context.where)
    rest: Mapping[str, Attr] = {"begin": (0, 1, 0, 0), "end": buffer_shape, "strides": (1,) * 4}
    parts = [context.emit("slice", (state,), rest), data] if buffer_shape[1] > 1 else [data]
    context.builder.updates[state] = context.result("concat", parts, {"axis": 1})
    if period > 1:
        _emit_call_counter(context, period)


def _emit_call_counter(context: OpContext, calls_per_run: int) -> None:
    """Append nodes that count calls, and record a gate: later nodes run only in every ``calls_per_run``-th call."""
    builder = context.builder
    count = builder.file.reserve_name(f"{context.loc.name}_calls")
    builder.define_state(count, TensorType((), "int32"), np.array(0, np.int32), context.where)
    one, last, none = (context.new_constant("calls", np.array(n, np.int32)) for n in (1, calls_per_run, 0))
    next_count = context.emit("add", (count, one), {})
    is_complete = context.emit("equal", (next_count, last), {"rounding": Rounding.NONE})
    builder.updates[count] = context.emit("where", (is_complete, none, next_count), {})
    builder.gates.append((len(builder.nodes), is_complete))


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


PERIOD_CONVERTERS: Mapping[str, Converter] = {
    "CUSTOM:CIRCULAR_BUFFER": Converter(convert_circular_buffer, ("int8", "int16", "float32"))
}
