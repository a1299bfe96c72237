"""TFLite operators on signals: frames, spectra, filter banks."""

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

# ---- Converters of TFLite Micro's custom operators on signals; their options are a flexbuffer map.

_RFFT_DTYPES = ("int16", "int32", "float32")


def integer_option(application: OpContext, option_name: str, minimum: int = 0, maximum: int = (1 << 31) - 1) -> int:
    """Return an integer option, which must be present and within bounds."""
    value = application.operator.custom.get(option_name)
    if not isinstance(value, (int, bool)) or not minimum <= value <= maximum:
        application.broken(f"option {option_name} is {value!r}, expected {minimum}..{maximum}")
    return int(value)


def window(application: OpContext) -> None:
    """SignalWindow: samples times a window, shifted right."""
    operands = (application.value(0), application.value(1))
    application.result("signal_window", operands, {"shift": integer_option(application, "shift", 0, 30)})


def fft_auto_scale(application: OpContext) -> None:
    """SignalFftAutoScale: samples shifted left as far as they fit, and that shift."""
    application.results("fft_auto_scale", (application.value(0),), {})


def rfft(application: OpContext) -> None:
    """SignalRfft: the spectrum of rows, padded with zeros."""
    length = integer_option(application, "fft_length", 4, 1 << 16)
    application.result("rfft", (application.value(0),), {"fft_length": length})


def irfft(application: OpContext) -> None:
    """SignalIrfft: the rows of a spectrum."""
    length = integer_option(application, "fft_length", 4, 1 << 16)
    application.result("irfft", (application.value(0),), {"fft_length": length})


def energy(application: OpContext) -> None:
    """SignalEnergy: squared magnitudes of the spectrum."""
    attrs: dict[str, Attr] = {
        "start": integer_option(application, "start_index"),
        "end": integer_option(application, "end_index"),
    }
    application.result("signal_energy", (application.value(0),), attrs)


def filter_bank(application: OpContext) -> None:
    """SignalFilterBank: energies summed by overlapping triangular channels."""
    operands = [application.value(position) for position in range(6)]
    sizes = [application.type(operand).size for operand in operands]
    frequencies, firsts, widths = (application.constant(position).astype(np.int64) for position in (3, 4, 5))
    for starts, size in ((frequencies, sizes[0]), (firsts, min(sizes[1:3]))):
        if len(starts) != len(widths) or min(starts, default=0) < 0 or max(starts + widths, default=0) > size:
            application.broken(
                f"a channel reaches beyond the spectrum or the weights: got starts {starts.tolist()} and widths "
                f"{widths.tolist()}, expected sums of at most {size}"
            )
    channels = integer_option(application, "num_channels", 1, 1 << 15)
    application.result("filter_bank", operands, {"channels": channels})


def square_root(application: OpContext) -> None:
    """SignalFilterBankSquareRoot: square roots, scaled down by a computed number of bits."""
    application.result("filter_bank_square_root", (application.value(0), application.value(1)), {})


def spectral_subtraction(application: OpContext) -> None:
    """SignalFilterBankSpectralSubtraction: the signal minus the noise, whose estimate is state."""
    data = application.value(0)
    channels = application.rank(data, 1)[0]
    if integer_option(application, "num_channels", 1) != channels:
        application.broken(
            f"num_channels differs from the signal's; got {application.operator.custom['num_channels']}, expected {channels}"
        )
    names = ("smoothing", "one_minus_smoothing", "alternate_smoothing", "alternate_one_minus_smoothing")
    attrs: dict[str, Attr] = {
        name: integer_option(application, name, 0, 1 << 16) for name in (*names, "min_signal_remaining")
    }
    attrs |= {
        name: integer_option(application, name, 0, 31) for name in ("smoothing_bits", "spectral_subtraction_bits")
    }
    attrs["clamping"] = bool(integer_option(application, "clamping", 0, 1))
    builder = application.builder
    name = builder.file.unique(f"{application.target().name}_noise")
    noise = builder.define_state(name, TensorType((channels,), "uint32"), None, application.where)
    application.results("spectral_subtraction", (data, noise), attrs)
    builder.updates[noise] = application.target(1).name


def pcan(application: OpContext) -> None:
    """SignalPCAN: per-channel gain control by the noise estimate."""
    operands = [application.value(position) for position in range(3)]
    application.result("pcan", operands, {"snr_shift": integer_option(application, "snr_shift", 0, 63)})


def log(application: OpContext) -> None:
    """SignalFilterBankLog: scaled natural logarithms."""
    attrs: dict[str, Attr] = {
        "input_correction_bits": integer_option(application, "input_correction_bits", 0, 31),
        "output_scale": integer_option(application, "output_scale", 0, 1 << 16),
    }
    application.result("filter_bank_log", (application.value(0),), attrs)


SIGNAL_CONVERTERS: Mapping[str, Converter] = {
    "CUSTOM:SignalEnergy": Converter(energy, ("uint32",)),
    "CUSTOM:SignalFftAutoScale": Converter(fft_auto_scale, ("int16",)),
    "CUSTOM:SignalFilterBank": Converter(filter_bank, ("uint64",)),
    "CUSTOM:SignalFilterBankLog": Converter(log, ("int16",)),
    "CUSTOM:SignalFilterBankSpectralSubtraction": Converter(spectral_subtraction, ("uint32",)),
    "CUSTOM:SignalFilterBankSquareRoot": Converter(square_root, ("uint32",)),
    "CUSTOM:SignalIrfft": Converter(irfft, _RFFT_DTYPES),
    "CUSTOM:SignalPCAN": Converter(pcan, ("uint32",)),
    "CUSTOM:SignalRfft": Converter(rfft, _RFFT_DTYPES),
    "CUSTOM:SignalWindow": Converter(window, ("int16",)),
}


# ---- Converters of TFLite Micro's custom operators that split signals into frames and join them; past samples are state.

_MOST = 1 << 20


def _rows_and_length(application: OpContext, data: str) -> tuple[int, int]:
    """Return the number of rows of the data and their length."""
    shape = application.type(data).shape
    if not shape or 0 in shape:
        application.broken(f"got data of shape {shape}, expected at least one axis and one element")
    return application.type(data).size // shape[-1], shape[-1]


def _define_named_state(application: OpContext, name_stem: str, type_: TensorType, data: Array | None = None) -> str:
    """Define a state of the graph whose name is made from the output's name and ``name_stem``."""
    name = application.builder.file.unique(f"{application.target().name}_{name_stem}")
    return application.builder.define_state(name, type_, data, application.where)


def _slice_last_axis(application: OpContext, value: str, begin: int, end: int) -> str:
    """Return elements ``begin`` .. ``end`` - 1 along the last axis."""
    shape = application.type(value).shape
    lead = (0,) * (len(shape) - 1)
    attrs: Mapping[str, Attr] = {"begin": (*lead, begin), "end": (*shape[:-1], end), "strides": (1,) * len(shape)}
    return application.emit("slice", (value,), attrs)


def _prepend_past(application: OpContext, data: str, past_length: int) -> str:
    """Return rows of data preceded by the last ``past_length`` elements of the previous call, which are state."""
    rows, size = _rows_and_length(application, data)
    flat = application.reshape(data, (rows, size))
    if not past_length:
        return flat
    past = _define_named_state(application, "past", TensorType((rows, past_length), application.type(data).dtype))
    joined = application.emit("concat", (past, flat), {"axis": 1})
    application.builder.updates[past] = _slice_last_axis(application, joined, size, size + past_length)
    return joined


def delay(application: OpContext) -> None:
    """SignalDelay: rows of samples delayed by a number of samples."""
    data = application.value(0)
    joined = _prepend_past(application, data, integer_option(application, "delay_length", 0, _MOST))
    shape = application.type(data).shape
    application.result_reshape(_slice_last_axis(application, joined, 0, shape[-1]), shape)


def framer(application: OpContext) -> None:
    """SignalFramer: overlapping frames.

    Without prefill (zeros before the first call) the second output tells when all frames are complete.
    """
    data, size = application.value(0), integer_option(application, "frame_size", 1, _MOST)
    step, prefill = integer_option(application, "frame_step", 1, _MOST), integer_option(application, "prefill", 0, 1)
    shape = application.type(data).shape
    length = _rows_and_length(application, data)[1]
    if length % step or size < step:
        application.broken(
            f"got frame_size {size} and frame_step {step}, expected a step of at most the size that divides {length} samples"
        )
    missing_steps, count = -(-size // step) - 1, length // step
    if count * size > _MOST:
        application.refuse(
            f"{count} frames of {size} samples in a call", f"give fewer at once; at most {_MOST} samples"
        )
    joined = _prepend_past(application, data, size - step if prefill else missing_steps * step)
    indices = (np.arange(count)[:, None] * step + np.arange(size)).astype(np.int32)
    frames = application.emit("gather", (joined, application.new_constant("frames", indices)), {"axis": 1})
    application.result_reshape(frames, (*shape[:-1], count, size))
    if prefill:
        application.builder.constant(application.target(1).name, np.array(True))
        return
    steps = _define_named_state(application, "steps", TensorType((), "int32"))
    missing, new_steps = (application.new_constant("steps", np.array(n, np.int32)) for n in (missing_steps, count))
    application.result("greater_equal", (steps, missing), {"rounding": Rounding.NONE}, 1)
    next_steps = application.emit("add", (steps, new_steps), {})
    application.builder.updates[steps] = application.emit("minimum", (next_steps, missing), {})


def stacker(application: OpContext) -> None:
    """SignalStacker: a frame with its neighbours; before the beginning the first frame is repeated.

    The second output tells when the result counts.
    """
    data = application.value(0)
    left = integer_option(application, "stacker_left_context", 0, 1 << 10)
    right = integer_option(application, "stacker_right_context", 0, 1 << 10)
    step, channels = (
        integer_option(application, "stacker_step", 1, 1 << 10),
        integer_option(application, "num_channels", 1, _MOST),
    )
    if application.rank(data, 1) != (channels,) or step > left + right + 1:
        got = f"num_channels {channels} and stacker_step {step} for data of shape {application.type(data).shape}"
        application.broken(f"got {got}, expected the data's channels and a step of at most {left + right + 1}")
    row = application.reshape(data, (1, channels))
    joined = row
    if left + right:
        past = _define_named_state(
            application, "past", TensorType((left + right, channels), application.type(data).dtype)
        )
        has_begun = _define_named_state(application, "begun", TensorType((), "bool"))
        repeated = application.emit("broadcast_to", (row,), {"shape": (left + right, channels)})
        past_or_repeated = application.emit("where", (has_begun, past, repeated), {})
        joined = application.emit("concat", (past_or_repeated, row), {"axis": 0})
        end: Mapping[str, Attr] = {"begin": (1, 0), "end": (left + right + 1, channels), "strides": (1, 1)}
        application.builder.updates[past] = application.emit("slice", (joined,), end)
        true = application.new_constant("true", np.array(True))
        application.builder.updates[has_begun] = application.emit("logical_or", (has_begun, true), {})
    application.result_reshape(joined, ((left + right + 1) * channels,))
    phase = _define_named_state(application, "turn", TensorType((), "int32"))
    whole, one, last = (application.new_constant("turn", np.array(n, np.int32)) for n in (right, 1, right + step))
    application.result("equal", (phase, whole), {"rounding": Rounding.NONE}, 1)
    next_phase = application.emit("add", (phase, one), {})
    wraps = application.emit("equal", (next_phase, last), {"rounding": Rounding.NONE})
    application.builder.updates[phase] = application.emit("where", (wraps, whole, next_phase), {})


def overlap_add(application: OpContext) -> None:
    """SignalOverlapAdd: frames added where they overlap; int16 sums saturate."""
    data, step = application.value(0), integer_option(application, "frame_step", 1, _MOST)
    shape, dtype = application.type(data).shape, application.type(data).dtype
    if len(shape) < 2 or 0 in shape or step > shape[-1]:
        application.broken(
            f"got frames of shape {shape} and frame_step {step}, expected at least two axes and a step of at most the last"
        )
    frames, size = shape[-2:]
    rows = application.type(data).size // (frames * size)
    flat = application.reshape(data, (rows, frames, size))
    buffer = _define_named_state(application, "buffer", TensorType((rows, size), dtype))
    body = _overlap_add_body(application, (rows, frames, size), dtype, step)
    attrs: Mapping[str, Attr] = {"body": body, "count": frames, "carried": 1, "guarded": False}
    names = [application.builder.file.unique(f"{application.target().name}_{stem}") for stem in ("rest", "made")]
    application.append("loop", (buffer, flat), attrs, names, (None, None))
    application.builder.updates[buffer] = names[0]
    rows_first = application.emit("transpose", (names[1],), {"axes": (1, 0, 2)}) if rows > 1 else names[1]
    application.result_reshape(rows_first, (*shape[:-2], frames * step))


def _overlap_add_body(application: OpContext, shape: Sequence[int], dtype: str, step: int) -> Graph:
    """Return the loop's body: from the buffer and all frames, the shifted buffer and the finished samples."""
    rows, _, size = shape
    body = GraphBuilder(application.loc.file)
    body.at(application.loc.index, application.loc.name)
    iteration, buffer, data = (
        body.input("turn", (), "int32"),
        body.input("buffer", (rows, size), dtype),
        body.input("data", shape, dtype),
    )
    terms = [buffer, body.emit("gather", (data, iteration), {"axis": 1})]
    if dtype == "int16":
        wide = [body.emit("cast", (term,), {"dtype": "int32"}) for term in terms]
        bounds: Mapping[str, Attr] = {"minimum": -32768.0, "maximum": 32767.0, "rounding": Rounding.NONE}
        total = body.emit("clip", (body.emit("add", wide, {"rounding": Rounding.NONE}),), bounds)
        total = body.emit("cast", (total,), {"dtype": "int16"})
    else:
        total = body.emit("add", terms, {"rounding": Rounding.NONE})
    done = body.emit("slice", (total,), {"begin": (0, 0), "end": (rows, step), "strides": (1, 1)})
    padded = body.emit("pad", (total,), {"padding": ((0, 0), (0, step)), "value": 0})
    rest = body.emit("slice", (padded,), {"begin": (0, step), "end": (rows, size + step), "strides": (1, 1)})
    return body.graph("overlap_add", {"rest": rest, "done": done})


FRAME_CONVERTERS: Mapping[str, Converter] = {
    "CUSTOM:SignalDelay": Converter(delay, ("int16",)),
    "CUSTOM:SignalFramer": Converter(framer, ("int16",)),
    "CUSTOM:SignalOverlapAdd": Converter(overlap_add, ("int16", "float32")),
    "CUSTOM:SignalStacker": Converter(stacker, ("int16",)),
}


# ---- Converters of RFFT2D, and of REAL, IMAG and COMPLEX_ABS, which read its result.
#
# A complex tensor is a float tensor with one more axis, of real and imaginary parts. Only these operators and reshapes accept it.

_MOST_ROWS = 1 << 10
"""Longest transform over rows, which is a product with a matrix."""


def rfft2d(application: OpContext) -> None:
    """RFFT2D: real images, cropped or zero-padded to constant lengths; the non-negative frequencies of the columns."""
    data, lengths = application.operand(0, "float32"), application.integers(1)
    shape = application.type(data).shape
    if len(lengths) != 2 or len(shape) < 2 or 0 in shape:
        application.broken(
            f"got data of shape {shape} and fft_length {lengths}, expected at least two axes and two lengths"
        )
    rows, columns = lengths
    if columns < 4 or columns & columns - 1 or not 1 <= rows <= _MOST_ROWS:
        application.refuse(
            f"a transform of {rows} by {columns}", f"pad to 1..{_MOST_ROWS} rows and to a power of two from 4 on"
        )
    data = _fit_image(application, data, rows, columns)
    lead, half = shape[:-2], columns // 2 + 1
    flat = application.emit("rfft", (data,), {"fft_length": columns})
    spectrum = application.reshape(flat, (*lead, rows, half, 2))
    if rows > 1:
        roots = np.exp(-2j * np.pi * np.outer(np.arange(rows), np.arange(rows)) / rows)
        matrix = np.stack([np.stack([roots.real, roots.imag], -1), np.stack([-roots.imag, roots.real], -1)], 1)
        waves = application.new_constant("waves", matrix.astype(np.float32))
        axes = tuple(range(len(lead)))
        row, column, part, over, parts = range(10, 15)
        labels = ((*axes, row, column, part), (row, part, over, parts))
        attrs: Mapping[str, Attr] = {"inputs": labels, "output": (*axes, over, column, parts)}
        spectrum = application.emit("einsum", (spectrum, waves), attrs)
    application.builder.complexes[application.target().name] = spectrum


def _fit_image(application: OpContext, data: str, rows: int, columns: int) -> str:
    """Crop or zero-pad the last two axes of an image."""
    shape = application.type(data).shape
    *lead, height, width = shape
    cropped_shape = (*lead, min(height, rows), min(width, columns))
    if cropped_shape != shape:
        crop: Mapping[str, Attr] = {"begin": (0,) * len(shape), "end": cropped_shape, "strides": (1,) * len(shape)}
        data = application.emit("slice", (data,), crop)
    if cropped_shape[-2:] != (rows, columns):
        padding = ((0, 0),) * len(lead) + ((0, rows - cropped_shape[-2]), (0, columns - cropped_shape[-1]))
        data = application.emit("pad", (data,), {"padding": padding, "value": 0.0})
    return data


def _complex_operand(application: OpContext) -> str:
    """Return the complex operand as floats with an axis of real and imaginary parts."""
    name = application.source(0).name
    if name not in application.builder.complexes:
        application.refuse(
            f"{name!r} of {application.source(0).type.dtype}", "use complex numbers for the output of RFFT2D only"
        )
    return application.builder.complexes[name]


def complex_part(part_index: int) -> Converter:
    """Return the converter of REAL (0) or IMAG (1)."""

    def convert(application: OpContext) -> None:
        value = _complex_operand(application)
        shape = application.type(value).shape
        begin = (0,) * (len(shape) - 1)
        cut: Mapping[str, Attr] = {
            "begin": (*begin, part_index),
            "end": (*shape[:-1], part_index + 1),
            "strides": (1,) * len(shape),
        }
        application.result_reshape(application.emit("slice", (value,), cut), shape[:-1])

    return Converter(convert, FLOAT)


def magnitude(application: OpContext) -> None:
    """COMPLEX_ABS: the square root of the sum of both squares."""
    value = _complex_operand(application)
    squares = application.emit("mul", (value, value), {})
    axes: Mapping[str, Attr] = {
        "axes": (len(application.type(value).shape) - 1,),
        "keepdims": False,
        "rounding": Rounding.NONE,
    }
    application.result("sqrt", (application.emit("sum", (squares,), axes),), {})


SPECTRUM_CONVERTERS: Mapping[str, Converter] = {
    "COMPLEX_ABS": Converter(magnitude, FLOAT),
    "IMAG": complex_part(1),
    "REAL": complex_part(0),
    "RFFT2D": Converter(rfft2d, ("complex64",)),
}


# ---- TFLite Micro's CIRCULAR_BUFFER: the last rows of a stream; operators after it run only in every n-th call.
#
# A buffer with a period above 1 ends the call early until the period is complete: results of the operators after it, outputs and
# state, keep their values. So these operators become one side of a ``branch`` (:func:`apply_gates`), whose other side returns the
# last values. Until the first period is complete, outputs hold real zero. Source: TFLite Micro ``circular_buffer.cc``.


def circular_buffer(application: OpContext) -> None:
    """CIRCULAR_BUFFER: append a row (N, 1, W, C) to a buffer (N, rows, W, C) and drop the oldest; int8 in TFLite Micro."""
    data, target = application.unchanged_operand(0), application.target()
    check_same_quantisation(application, [0])
    shape, buffer_shape = application.rank(data, 4), target.type.shape
    if len(buffer_shape) != 4 or shape[1] != 1 or (shape[0], *shape[2:]) != (buffer_shape[0], *buffer_shape[2:]):
        application.broken(
            f"got data of shape {shape} for a buffer of shape {buffer_shape}, expected (N, 1, W, C) and (N, rows, W, C)"
        )
    if "cycles_max" not in application.operator.custom:
        application.refuse(
            "the buffer has no option cycles_max",
            "set the option cycles_max: the number of calls to one run of the operators behind the buffer",
        )
    period = integer_option(application, "cycles_max", 1, _MOST)
    name = application.builder.file.unique(f"{target.name}_rows")
    state = application.builder.define_state(name, target.type, None, application.where)
    rest: Mapping[str, Attr] = {"begin": (0, 1, 0, 0), "end": buffer_shape, "strides": (1,) * 4}
    parts = [application.emit("slice", (state,), rest), data] if buffer_shape[1] > 1 else [data]
    application.builder.updates[state] = application.result("concat", parts, {"axis": 1})
    if period > 1:
        _emit_call_counter(application, period)


def _emit_call_counter(application: OpContext, calls_per_run: int) -> None:
    """Count calls, and gate the following nodes: they run in every call whose number is a multiple of ``calls_per_run``."""
    builder = application.builder
    count = builder.file.unique(f"{application.loc.name}_calls")
    builder.define_state(count, TensorType((), "int32"), np.array(0, np.int32), application.where)
    one, last, none = (application.new_constant("calls", np.array(n, np.int32)) for n in (1, calls_per_run, 0))
    next_count = application.emit("add", (count, one), {})
    is_complete = application.emit("equal", (next_count, last), {"rounding": Rounding.NONE})
    builder.updates[count] = application.emit("where", (is_complete, none, next_count), {})
    builder.gates.append((len(builder.nodes), is_complete))


def apply_gates(graph: Graph, gates: Sequence[tuple[int, str]]) -> Graph:
    """Return the graph in which the nodes from each gate's index on run only if its condition holds; ``gates``: (index,
    condition)."""
    for index, condition in reversed(gates):
        if index < len(graph.nodes):
            graph = _apply_gate(_with_last_outputs(graph, index), index, condition)
    return graph


def _with_last_outputs(graph: Graph, first_node: int) -> Graph:
    """Return the graph with outputs that keep their last values between runs of the gated nodes.

    Every output that is computed from node ``first_node`` on becomes a state."""
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
    """A gated value that is used outside of the gate, and the state that holds its last value."""

    value: str
    state: str


def _apply_gate(graph: Graph, first_node: int, condition: str) -> Graph:
    """Move the nodes from ``first_node`` on into a ``branch``, whose other side returns the values of the last run."""
    gated_nodes = graph.nodes[first_node:]
    gated_names = {name for node in gated_nodes for name in node.outputs}
    gated_values = {value: _GatedValue(value, state) for state, value in graph.updates.items() if value in gated_names}
    outer_values = dict.fromkeys(
        name for node in gated_nodes for name in node.inputs if name and name not in gated_names
    )
    fixed = [name for name in (*outer_values, *(h.state for h in gated_values.values())) if name not in graph.consts]
    fixed = list(dict.fromkeys(fixed))
    inside = replace(
        graph, name="period", inputs=tuple(fixed), outputs=tuple(gated_values), nodes=(), state={}, updates={}
    )
    copies = [_copy_state(graph, entry) for entry in gated_values.values()]
    otherwise = replace(inside, name="between", consts={}).with_nodes(copies)
    attrs: Mapping[str, Attr] = {"then": inside.with_nodes(gated_nodes), "otherwise": otherwise}
    node = Node("branch", (condition, *fixed), tuple(gated_values), attrs, gated_nodes[0].loc)
    return graph.with_nodes((*graph.nodes[:first_node], node))


def _copy_state(graph: Graph, gated_value: _GatedValue) -> Node:
    """Return the node that returns a gated value's last value."""
    return Node("reshape", (gated_value.state,), (gated_value.value,), {"shape": graph.types[gated_value.value].shape})


PERIOD_CONVERTERS: Mapping[str, Converter] = {
    "CUSTOM:CIRCULAR_BUFFER": Converter(circular_buffer, ("int8", "int16", "float32"))
}
