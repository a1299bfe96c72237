"""Spellings of TFLite Micro's custom operators that cut signals into frames and join them again; what they remember is state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from microc.dtypes import Array
from microc.frontend.graph_builder import GraphBuilder
from microc.frontend.tflite.application import Application
from microc.frontend.tflite.signal import number
from microc.frontend.tflite.spelling import Spelling
from microc.graph.ir import Attr, Graph, TensorType
from microc.ops.rounding import Rounding

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


SPELLINGS: Mapping[str, Spelling] = {
    "CUSTOM:SignalDelay": Spelling(delay, ("int16",)),
    "CUSTOM:SignalFramer": Spelling(framer, ("int16",)),
    "CUSTOM:SignalOverlapAdd": Spelling(overlap_add, ("int16", "float32")),
    "CUSTOM:SignalStacker": Spelling(stacker, ("int16",)),
}
