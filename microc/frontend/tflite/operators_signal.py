"""TFLite operators on signals: frames, spectra, filter banks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.frontend.graph_builder import GraphBuilder
from microc.frontend.tflite.context import FLOAT, Application, Spelling, check_alike
from microc.graph.ir import Attr, Graph, Node, TensorType, fresh_name
from microc.ops.attributes import Rounding

# ---- Spellings of TFLite Micro's custom operators for signals; their options are a flexbuffer map.

_RFFT_DTYPES = ("int16", "int32", "float32")


def number(application: Application, name: str, low: int = 0, high: int = (1 << 31) - 1) -> int:
    """An option, which must be there and within bounds."""
    value = application.operator.custom.get(name)
    if not isinstance(value, (int, bool)) or not low <= value <= high:
        application.broken(f"option {name} is {value!r}, not {low}..{high}")
    return int(value)


def window(application: Application) -> None:
    """SignalWindow: samples times a window, shifted to the right."""
    operands = (application.value(0), application.value(1))
    application.result("signal_window", operands, {"shift": number(application, "shift", 0, 30)})


def fft_auto_scale(application: Application) -> None:
    """SignalFftAutoScale: samples shifted to the left as far as they go, and how far."""
    application.results("fft_auto_scale", (application.value(0),), {})


def rfft(application: Application) -> None:
    """SignalRfft: the spectrum of rows, filled up with zeros."""
    length = number(application, "fft_length", 4, 1 << 16)
    application.result("rfft", (application.value(0),), {"fft_length": length})


def irfft(application: Application) -> None:
    """SignalIrfft: the rows of a spectrum."""
    length = number(application, "fft_length", 4, 1 << 16)
    application.result("irfft", (application.value(0),), {"fft_length": length})


def energy(application: Application) -> None:
    """SignalEnergy: squares of the spectrum's magnitudes."""
    attrs: dict[str, Attr] = {"start": number(application, "start_index"), "end": number(application, "end_index")}
    application.result("signal_energy", (application.value(0),), attrs)


def filter_bank(application: Application) -> None:
    """SignalFilterBank: energies summed by triangular channels that overlap."""
    operands = [application.value(position) for position in range(6)]
    sizes = [application.type(operand).size for operand in operands]
    frequencies, firsts, widths = (application.constant(position).astype(np.int64) for position in (3, 4, 5))
    for starts, size in ((frequencies, sizes[0]), (firsts, min(sizes[1:3]))):
        if len(starts) != len(widths) or min(starts, default=0) < 0 or max(starts + widths, default=0) > size:
            application.broken("a channel reaches beyond the spectrum or the weights")
    channels = number(application, "num_channels", 1, 1 << 15)
    application.result("filter_bank", operands, {"channels": channels})


def square_root(application: Application) -> None:
    """SignalFilterBankSquareRoot: roots, scaled down by a computed number of bits."""
    application.result("filter_bank_square_root", (application.value(0), application.value(1)), {})


def spectral_subtraction(application: Application) -> None:
    """SignalFilterBankSpectralSubtraction: the signal less the noise, whose estimate is state."""
    data = application.value(0)
    channels = application.rank(data, 1)[0]
    if number(application, "num_channels", 1) != channels:
        application.broken(f"num_channels differs from the signal's {channels}")
    names = ("smoothing", "one_minus_smoothing", "alternate_smoothing", "alternate_one_minus_smoothing")
    attrs: dict[str, Attr] = {name: number(application, name, 0, 1 << 16) for name in (*names, "min_signal_remaining")}
    attrs |= {name: number(application, name, 0, 31) for name in ("smoothing_bits", "spectral_subtraction_bits")}
    attrs["clamping"] = bool(number(application, "clamping", 0, 1))
    builder = application.builder
    name = builder.file.unique(f"{application.target().name}_noise")
    noise = builder.define_state(name, TensorType((channels,), "uint32"), None, application.where)
    application.results("spectral_subtraction", (data, noise), attrs)
    builder.updates[noise] = application.target(1).name


def pcan(application: Application) -> None:
    """SignalPCAN: gain control by the noise."""
    operands = [application.value(position) for position in range(3)]
    application.result("pcan", operands, {"snr_shift": number(application, "snr_shift", 0, 63)})


def log(application: Application) -> None:
    """SignalFilterBankLog: scaled natural logarithms."""
    attrs: dict[str, Attr] = {
        "input_correction_bits": number(application, "input_correction_bits", 0, 31),
        "output_scale": number(application, "output_scale", 0, 1 << 16),
    }
    application.result("filter_bank_log", (application.value(0),), attrs)


SIGNAL_SPELLINGS: Mapping[str, Spelling] = {
    "CUSTOM:SignalEnergy": Spelling(energy, ("uint32",)),
    "CUSTOM:SignalFftAutoScale": Spelling(fft_auto_scale, ("int16",)),
    "CUSTOM:SignalFilterBank": Spelling(filter_bank, ("uint64",)),
    "CUSTOM:SignalFilterBankLog": Spelling(log, ("int16",)),
    "CUSTOM:SignalFilterBankSpectralSubtraction": Spelling(spectral_subtraction, ("uint32",)),
    "CUSTOM:SignalFilterBankSquareRoot": Spelling(square_root, ("uint32",)),
    "CUSTOM:SignalIrfft": Spelling(irfft, _RFFT_DTYPES),
    "CUSTOM:SignalPCAN": Spelling(pcan, ("uint32",)),
    "CUSTOM:SignalRfft": Spelling(rfft, _RFFT_DTYPES),
    "CUSTOM:SignalWindow": Spelling(window, ("int16",)),
}


# ---- Spellings of TFLite Micro's custom operators that cut signals into frames and join them again; what they
# remember is state.

_MOST = 1 << 20


def _rows(application: Application, data: str) -> tuple[int, int]:
    """The data's rows and their length."""
    shape = application.type(data).shape
    if not shape or 0 in shape:
        application.broken(f"data of shape {shape}")
    return application.type(data).size // shape[-1], shape[-1]


def _state(application: Application, stem: str, kind: TensorType, data: Array | None = None) -> str:
    name = application.builder.file.unique(f"{application.target().name}_{stem}")
    return application.builder.define_state(name, kind, data, application.where)


def _cut(application: Application, value: str, first: int, last: int) -> str:
    """Elements ``first`` to ``last`` along the last axis."""
    shape = application.type(value).shape
    lead = (0,) * (len(shape) - 1)
    attrs: Mapping[str, Attr] = {"begin": (*lead, first), "end": (*shape[:-1], last), "strides": (1,) * len(shape)}
    return application.emit("slice", (value,), attrs)


def _behind(application: Application, data: str, length: int) -> str:
    """Rows of data behind the ``length`` elements before them, which are state."""
    rows, size = _rows(application, data)
    flat = application.reshaped(data, (rows, size))
    if not length:
        return flat
    past = _state(application, "past", TensorType((rows, length), application.type(data).dtype))
    joined = application.emit("concat", (past, flat), {"axis": 1})
    application.builder.updates[past] = _cut(application, joined, size, size + length)
    return joined


def delay(application: Application) -> None:
    """SignalDelay: rows of samples, later by a number of them."""
    data = application.value(0)
    joined = _behind(application, data, number(application, "delay_length", 0, _MOST))
    shape = application.type(data).shape
    application.result_reshape(_cut(application, joined, 0, shape[-1]), shape)


def framer(application: Application) -> None:
    """SignalFramer: frames that overlap; without a prefill of zeros the second output says when all are whole."""
    data, size = application.value(0), number(application, "frame_size", 1, _MOST)
    step, prefill = number(application, "frame_step", 1, _MOST), number(application, "prefill", 0, 1)
    shape = application.type(data).shape
    length = _rows(application, data)[1]
    if length % step or size < step:
        application.broken(f"frames of {size} every {step} of {length} samples")
    late, count = -(-size // step) - 1, length // step
    if count * size > _MOST:
        application.refuse(
            f"{count} frames of {size} samples in a call", f"give fewer at once; at most {_MOST} samples"
        )
    joined = _behind(application, data, size - step if prefill else late * step)
    places = (np.arange(count)[:, None] * step + np.arange(size)).astype(np.int32)
    frames = application.emit("gather", (joined, application.new_constant("frames", places)), {"axis": 1})
    application.result_reshape(frames, (*shape[:-1], count, size))
    if prefill:
        application.builder.constant(application.target(1).name, np.array(True))
        return
    steps = _state(application, "steps", TensorType((), "int32"))
    number_of, more = (application.new_constant("steps", np.array(n, np.int32)) for n in (late, count))
    application.result("greater_equal", (steps, number_of), {"rounding": Rounding.NONE}, 1)
    following = application.emit("add", (steps, more), {})
    application.builder.updates[steps] = application.emit("minimum", (following, number_of), {})


def stacker(application: Application) -> None:
    """SignalStacker: a frame with those around it, the first one repeated before the beginning; the second output says when."""
    data = application.value(0)
    left = number(application, "stacker_left_context", 0, 1 << 10)
    right = number(application, "stacker_right_context", 0, 1 << 10)
    step, channels = number(application, "stacker_step", 1, 1 << 10), number(application, "num_channels", 1, _MOST)
    if application.rank(data, 1) != (channels,) or step > left + right + 1:
        application.broken(f"{channels} channels, a step of {step}, data of shape {application.type(data).shape}")
    row = application.reshaped(data, (1, channels))
    joined = row
    if left + right:
        past = _state(application, "past", TensorType((left + right, channels), application.type(data).dtype))
        begun = _state(application, "begun", TensorType((), "bool"))
        spread = application.emit("broadcast_to", (row,), {"shape": (left + right, channels)})
        before = application.emit("where", (begun, past, spread), {})
        joined = application.emit("concat", (before, row), {"axis": 0})
        end: Mapping[str, Attr] = {"begin": (1, 0), "end": (left + right + 1, channels), "strides": (1, 1)}
        application.builder.updates[past] = application.emit("slice", (joined,), end)
        true = application.new_constant("true", np.array(True))
        application.builder.updates[begun] = application.emit("logical_or", (begun, true), {})
    application.result_reshape(joined, ((left + right + 1) * channels,))
    turn = _state(application, "turn", TensorType((), "int32"))
    whole, one, last = (application.new_constant("turn", np.array(n, np.int32)) for n in (right, 1, right + step))
    application.result("equal", (turn, whole), {"rounding": Rounding.NONE}, 1)
    following = application.emit("add", (turn, one), {})
    wraps = application.emit("equal", (following, last), {"rounding": Rounding.NONE})
    application.builder.updates[turn] = application.emit("where", (wraps, whole, following), {})


def overlap_add(application: Application) -> None:
    """SignalOverlapAdd: frames added where they overlap; int16 sums are saturated."""
    data, step = application.value(0), number(application, "frame_step", 1, _MOST)
    shape, dtype = application.type(data).shape, application.type(data).dtype
    if len(shape) < 2 or 0 in shape or step > shape[-1]:
        application.broken(f"frames of shape {shape} every {step}")
    frames, size = shape[-2:]
    rows = application.type(data).size // (frames * size)
    flat = application.reshaped(data, (rows, frames, size))
    buffer = _state(application, "buffer", TensorType((rows, size), dtype))
    body = _added_frame(application, (rows, frames, size), dtype, step)
    attrs: Mapping[str, Attr] = {"body": body, "count": frames, "carried": 1, "guarded": False}
    names = [application.builder.file.unique(f"{application.target().name}_{stem}") for stem in ("rest", "made")]
    application.append("loop", (buffer, flat), attrs, names, (None, None))
    application.builder.updates[buffer] = names[0]
    rowwise = application.emit("transpose", (names[1],), {"axes": (1, 0, 2)}) if rows > 1 else names[1]
    application.result_reshape(rowwise, (*shape[:-2], frames * step))


def _added_frame(application: Application, shape: Sequence[int], dtype: str, step: int) -> Graph:
    """One turn: the buffer and all frames; the buffer moved on, and the samples that are done."""
    rows, _, size = shape
    body = GraphBuilder(application.loc.file)
    body.at(application.loc.index, application.loc.name)
    turn, buffer, data = (
        body.input("turn", (), "int32"),
        body.input("buffer", (rows, size), dtype),
        body.input("data", shape, dtype),
    )
    terms = [buffer, body.emit("gather", (data, turn), {"axis": 1})]
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


FRAMES_SPELLINGS: Mapping[str, Spelling] = {
    "CUSTOM:SignalDelay": Spelling(delay, ("int16",)),
    "CUSTOM:SignalFramer": Spelling(framer, ("int16",)),
    "CUSTOM:SignalOverlapAdd": Spelling(overlap_add, ("int16", "float32")),
    "CUSTOM:SignalStacker": Spelling(stacker, ("int16",)),
}


# ---- Spellings of TFLite's RFFT2D, and of REAL, IMAG and COMPLEX_ABS, which read what it makes.
#
# A complex tensor is one of floats with an axis more, of real and imaginary parts; only these operators know of it.

_MOST_ROWS = 1 << 10
"""The longest transform over rows, which is a product by a matrix."""


def rfft2d(application: Application) -> None:
    """RFFT2D: real images, cut or continued with zeros to constant lengths; the lower half of the columns' frequencies."""
    data, lengths = application.operand(0, "float32"), application.integers(1)
    shape = application.type(data).shape
    if len(lengths) != 2 or len(shape) < 2 or 0 in shape:
        application.broken(f"a transform of shape {shape} by lengths {lengths}")
    rows, columns = lengths
    if columns < 4 or columns & columns - 1 or not 1 <= rows <= _MOST_ROWS:
        application.refuse(
            f"a transform of {rows} by {columns}", "rows of a power of two from 4 on, at most 1024 of them"
        )
    data = _fitted(application, data, rows, columns)
    lead, half = shape[:-2], columns // 2 + 1
    flat = application.emit("rfft", (data,), {"fft_length": columns})
    made = application.reshaped(flat, (*lead, rows, half, 2))
    if rows > 1:
        turns = np.exp(-2j * np.pi * np.outer(np.arange(rows), np.arange(rows)) / rows)
        matrix = np.stack([np.stack([turns.real, turns.imag], -1), np.stack([-turns.imag, turns.real], -1)], 1)
        waves = application.new_constant("waves", matrix.astype(np.float32))
        axes = tuple(range(len(lead)))
        row, column, part, over, parts = range(10, 15)
        labels = ((*axes, row, column, part), (row, part, over, parts))
        attrs: Mapping[str, Attr] = {"inputs": labels, "output": (*axes, over, column, parts)}
        made = application.emit("einsum", (made, waves), attrs)
    application.builder.complexes[application.target().name] = made


def _fitted(application: Application, data: str, rows: int, columns: int) -> str:
    """The image cut, or continued with zeros, to its last two extents."""
    shape = application.type(data).shape
    *lead, height, width = shape
    kept = (*lead, min(height, rows), min(width, columns))
    if kept != shape:
        cut: Mapping[str, Attr] = {"begin": (0,) * len(shape), "end": kept, "strides": (1,) * len(shape)}
        data = application.emit("slice", (data,), cut)
    if kept[-2:] != (rows, columns):
        padding = ((0, 0),) * len(lead) + ((0, rows - kept[-2]), (0, columns - kept[-1]))
        data = application.emit("pad", (data,), {"padding": padding, "value": 0.0})
    return data


def _parts(application: Application) -> str:
    """The complex operand as floats."""
    name = application.source(0).name
    if name not in application.builder.complexes:
        application.refuse(f"{name!r} of {application.source(0).type.dtype}", "only what RFFT2D makes may be complex")
    return application.builder.complexes[name]


def part(number: int) -> Spelling:
    """REAL and IMAG."""

    def spell(application: Application) -> None:
        value = _parts(application)
        shape = application.type(value).shape
        begin = (0,) * (len(shape) - 1)
        cut: Mapping[str, Attr] = {
            "begin": (*begin, number),
            "end": (*shape[:-1], number + 1),
            "strides": (1,) * len(shape),
        }
        application.result_reshape(application.emit("slice", (value,), cut), shape[:-1])

    return Spelling(spell, FLOAT)


def magnitude(application: Application) -> None:
    """COMPLEX_ABS: the root of the sum of both squares."""
    value = _parts(application)
    squares = application.emit("mul", (value, value), {})
    axes: Mapping[str, Attr] = {
        "axes": (len(application.type(value).shape) - 1,),
        "keepdims": False,
        "rounding": Rounding.NONE,
    }
    application.result("sqrt", (application.emit("sum", (squares,), axes),), {})


SPECTRA_SPELLINGS: Mapping[str, Spelling] = {
    "COMPLEX_ABS": Spelling(magnitude, FLOAT),
    "IMAG": part(1),
    "REAL": part(0),
    "RFFT2D": Spelling(rfft2d, ("complex64",)),
}


# ---- TFLite Micro's CIRCULAR_BUFFER: the last rows of a stream, and what runs behind it only once in so many calls.
#
# A buffer whose period is longer than one ends a call early until the period is over: what the operators behind it make, outputs
# and state, stays as it was. So these operators become one side of a ``branch`` (:func:`gated`), whose other side hands on what
# was. Until their first period is over, outputs hold real zero. Source: TFLite Micro ``circular_buffer.cc``.


def circular_buffer(application: Application) -> None:
    """CIRCULAR_BUFFER: rows (N, 1, W, C) behind those that a buffer (N, rows, W, C) holds; int8 in TFLite Micro."""
    data, target = application.moved(0), application.target()
    check_alike(application, [0])
    shape, kept = application.rank(data, 4), target.type.shape
    if len(kept) != 4 or shape[1] != 1 or (shape[0], *shape[2:]) != (kept[0], *kept[2:]):
        application.broken(f"rows of shape {shape} in a buffer of shape {kept}")
    if "cycles_max" not in application.operator.custom:
        application.refuse(
            "a buffer without cycles_max", "write the option: how many calls there are to one run behind it"
        )
    period = number(application, "cycles_max", 1, _MOST)
    name = application.builder.file.unique(f"{target.name}_rows")
    state = application.builder.define_state(name, target.type, None, application.where)
    rest: Mapping[str, Attr] = {"begin": (0, 1, 0, 0), "end": kept, "strides": (1,) * 4}
    parts = [application.emit("slice", (state,), rest), data] if kept[1] > 1 else [data]
    application.builder.updates[state] = application.result("concat", parts, {"axis": 1})
    if period > 1:
        _period(application, period)


def _period(application: Application, period: int) -> None:
    """Counts calls; what follows runs in every ``period``-th."""
    builder = application.builder
    count = builder.file.unique(f"{application.loc.name}_calls")
    builder.define_state(count, TensorType((), "int32"), np.array(0, np.int32), application.where)
    one, last, none = (application.new_constant("calls", np.array(n, np.int32)) for n in (1, period, 0))
    following = application.emit("add", (count, one), {})
    over = application.emit("equal", (following, last), {"rounding": Rounding.NONE})
    builder.updates[count] = application.emit("where", (over, none, following), {})
    builder.gates.append((len(builder.nodes), over))


def gated(graph: Graph, gates: Sequence[tuple[int, str]]) -> Graph:
    """The graph whose nodes from a place on run only where a condition is true, for every (place, condition)."""
    for place, condition in reversed(gates):
        if place < len(graph.nodes):
            graph = _gated(_with_last_outputs(graph, place), place, condition)
    return graph


def _with_last_outputs(graph: Graph, place: int) -> Graph:
    """The graph that keeps every output that is made behind ``place`` as state, too."""
    made = {name for node in graph.nodes[place:] for name in node.outputs}
    types, state, updates = dict(graph.types), dict(graph.state), dict(graph.updates)
    for name in graph.outputs:
        if name not in made or name in updates.values():
            continue
        last, kind = fresh_name(types, f"{name}_last"), types[name]
        zero = kind.quant.zero_point[0] if kind.quant else 0
        types[last], updates[last] = kind, name
        state[last] = np.full(kind.shape, zero, kind.dtype)
    return replace(graph, types=types, state=state, updates=updates)


@frozen
class _Held:
    """A value made behind a gate that is seen outside, and the state that holds what it was."""

    value: str
    state: str


def _gated(graph: Graph, place: int, condition: str) -> Graph:
    behind = graph.nodes[place:]
    made = {name for node in behind for name in node.outputs}
    held = {value: _Held(value, state) for state, value in graph.updates.items() if value in made}
    read = dict.fromkeys(name for node in behind for name in node.inputs if name and name not in made)
    fixed = [name for name in (*read, *(h.state for h in held.values())) if name not in graph.consts]
    fixed = list(dict.fromkeys(fixed))
    inside = replace(graph, name="period", inputs=tuple(fixed), outputs=tuple(held), nodes=(), state={}, updates={})
    same = [_copy(graph, entry) for entry in held.values()]
    otherwise = replace(inside, name="between", consts={}).with_nodes(same)
    attrs: Mapping[str, Attr] = {"then": inside.with_nodes(behind), "otherwise": otherwise}
    node = Node("branch", (condition, *fixed), tuple(held), attrs, behind[0].loc)
    return graph.with_nodes((*graph.nodes[:place], node))


def _copy(graph: Graph, held: _Held) -> Node:
    return Node("reshape", (held.state,), (held.value,), {"shape": graph.types[held.value].shape})


PERIODS_SPELLINGS: Mapping[str, Spelling] = {
    "CUSTOM:CIRCULAR_BUFFER": Spelling(circular_buffer, ("int8", "int16", "float32"))
}
