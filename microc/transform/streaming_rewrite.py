# SPDX-License-Identifier: Apache-2.0
"""Writer of the graph of one step of a stream: frames of each value per step, and the history of frames that is kept
between steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd, lcm, prod
from types import MappingProxyType
from typing import NoReturn

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import UnsupportedError
from microc.graph.ir import Attr, Graph, Loc, Node, Quant, TensorType, new_value
from microc.ops import registry
from microc.ops.attributes import Rounding

# ---- Arithmetic of the frames of a value in a step of a stream.
#
# A step takes some frames of the input. In a run over the whole sequence a value has ``whole_run_frames`` frames along its time
# axis. Step n of the stream computes frames n * frames_per_step - delay_frames + i of them, 0 <= i < frames_per_step. Frames
# with negative numbers, before the start of the sequence, are meaningless; they are masked if a window has padding there.


@frozen
class FrameTrack:
    """Dependency on time of a value that has new frames in each step.

    The whole run is the original network's run over the complete sequence. ``whole_run_frames``: number of
    frames in the whole run. ``delay_frames``: number of frames by which the stream is late.
    ``frames_before_padding``: number of frames of the whole run that do not depend on padding after the end of the
    sequence; ``padding_layer``: the layer that pads there. If ``delay_frames`` is negative, the first -delay_frames
    frames are never computed; they would contain ``front_padding_value``."""

    time_axis: int
    whole_run_frames: int
    frames_per_step: int
    delay_frames: int
    frames_before_padding: int
    front_padding_value: float | None = None
    padding_layer: str = ""

    def with_time_axis(self, axis: int) -> FrameTrack:
        """Return the same dependency along another time axis."""
        return replace(self, time_axis=axis)

    @property
    def is_complete(self) -> bool:
        """True if the stream computes every frame of the whole run."""
        return self.frames_before_padding >= self.whole_run_frames


@frozen
class WholeValueTrack:
    """Dependency on time of a value that each step computes completely from the last frames, such as a classification.

    ``delay_steps``: index of the step whose value equals the value that a run over the whole sequence computes."""

    delay_steps: int


Track = FrameTrack | WholeValueTrack
"""Dependency of a value on time. A value that does not depend on time has no track."""


class HopTooShortError(Exception):
    """Error for a stride that does not divide the number of frames of a step. A step needs ``factor`` times as many
    frames."""

    def __init__(self, factor: int, where: str) -> None:
        super().__init__(factor)
        self.factor, self.where = factor, where


@frozen
class FrameWindow:
    """Frames of an operand that a sliding window reads in one step: ``frame_count`` frames, followed by
    ``unread_newest_frames`` newer frames that it does not read.

    ``track``: dependency on time of the window's result."""

    track: FrameTrack
    frame_count: int
    unread_newest_frames: int

    @property
    def frames_before_end(self) -> int:
        """Number of frames from the first one that the window reads to the newest one of the operand."""
        return self.frame_count + self.unread_newest_frames


def slide_window_over_frames(
    track: FrameTrack, window_frames: int, stride: int, front_padding_frames: int, total_result_frames: int, where: str
) -> FrameWindow:
    """Return the window of ``window_frames`` frames that slides over a value by ``stride`` frames.

    ``front_padding_frames``: number of padding frames in front; it is negative if frames are left out.
    ``total_result_frames``: number of frames of the result in the whole run; if it is 1, ``stride`` has no meaning.
    Frame j of the result needs frames up to j * stride + window_frames - 1 - front_padding_frames. A step computes the
    frames whose operands exist. Raise HopTooShortError if ``stride`` does not divide the frames of a step."""
    stride = stride if total_result_frames > 1 else 1
    if track.frames_per_step % stride:
        raise HopTooShortError(stride // gcd(stride, track.frames_per_step), where)
    ahead = window_frames - 1 - front_padding_frames
    missing = ahead + track.delay_frames - stride + 1
    delay = max(0, -(-missing // stride))
    clean = min(total_result_frames, (track.frames_before_padding - 1 - ahead) // stride + 1)
    blame = track.padding_layer if clean >= total_result_frames or track.padding_layer else where
    count = track.frames_per_step // stride
    result = FrameTrack(track.time_axis, total_result_frames, count, delay, clean, None, blame)
    return FrameWindow(result, (count - 1) * stride + window_frames, delay * stride - missing)


def window_of_all_frames(track: FrameTrack, min_delay: int = 0) -> tuple[WholeValueTrack, FrameWindow]:
    """Return the track of a result that needs all frames of a value at once, and the window that reads these frames.

    ``min_delay``: least number of steps by which the result is delayed."""
    late = -(track.whole_run_frames + track.delay_frames) % track.frames_per_step
    while (track.whole_run_frames + track.delay_frames + late) // track.frames_per_step - 1 < min_delay:
        late += track.frames_per_step
    delay = (track.whole_run_frames + track.delay_frames + late) // track.frames_per_step - 1
    return WholeValueTrack(delay), FrameWindow(track, track.whole_run_frames, late)


# ---- History: the last frames of every value that later steps read, as state of the graph.
#
# Contiguous frames are kept in order: each step shifts them, and the state itself is the window. If the taps of a window are far
# apart, shifting all frames would cost more than the layer; then the frames are kept in a ring buffer, from which the taps are
# copied.

RING_COSTS = 100
"""Cost of a ring buffer's index computation and second kernel, as the number of bytes that can be copied in the same
time at one byte per instruction on a Cortex-M4."""
_APART = 4
"""Cost of copying a single element, relative to an element that is copied with its neighbours in whole words."""
_LONGEST_CYCLE = 1 << 30
"""Largest cycle of a step counter that rings share. With it the counter fits an int32."""


@frozen
class FrameRead:
    """Read of earlier frames of a value: ``frame_count`` frames, ``frame_step`` frames apart. The first is
    ``frames_before_end`` frames before the end."""

    result: str
    frames_before_end: int
    frame_step: int
    frame_count: int
    loc: Loc


@dataclass(slots=True)
class FrameHistory:
    """Value whose frames are kept between steps, and the reads of these frames. ``fill``: content of the frames before
    the first one."""

    value_name: str
    tensor_type: TensorType
    time_axis: int
    fill: float
    reads: list[FrameRead] = field(default_factory=list)

    @property
    def frames_per_step(self) -> int:
        """Number of frames that each step adds."""
        return self.tensor_type.shape[self.time_axis]

    @property
    def kept_frames(self) -> int:
        """Number of frames from the oldest one that is read to the newest one."""
        return max(read.frames_before_end for read in self.reads)

    @property
    def ring_slots(self) -> int:
        """Number of steps whose frames a ring buffer stores."""
        return -(-(self.kept_frames - self.frames_per_step) // self.frames_per_step)

    @property
    def uses_ring_buffer(self) -> bool:
        """True if a ring buffer copies fewer bytes per step than frames in order, by more than the ring's own cost."""
        frame = self.tensor_type.nbytes // self.frames_per_step
        is_outermost = prod(self.tensor_type.shape[: self.time_axis]) == 1
        n_fetched = sum(read.frame_count for read in self.reads)
        n_apart = sum(
            read.frame_count
            for read in self.reads
            if read.frame_step > 1 or not (is_outermost or self.needs_all_frames(read))
        )
        return frame * (self.kept_frames + _APART * n_apart - self.frames_per_step - n_fetched) > RING_COSTS

    def needs_all_frames(self, read: FrameRead) -> bool:
        """Test whether a read needs all frames of the history, in order."""
        return read.frame_step == 1 and read.frames_before_end == read.frame_count == self.kept_frames

    def shape(self, frames: int) -> tuple[int, ...]:
        """Return the shape of the value with another number of frames."""
        return (*self.tensor_type.shape[: self.time_axis], frames, *self.tensor_type.shape[self.time_axis + 1 :])


class StreamState:
    """State of a stream: the frames and counters that are kept between steps, and the nodes that update them."""

    def __init__(self, types: dict[str, TensorType], consts: dict[str, Array]) -> None:
        self.types, self.consts = types, consts
        self.histories: dict[tuple[str, float], FrameHistory] = {}
        self.state: dict[str, Array] = {}
        self.updates: dict[str, str] = {}
        self.renamed: dict[str, str] = {}
        self.cycles: dict[str, int] = {}

    def new_value(self, stem: str, tensor_type: TensorType) -> str:
        """Add a value of type ``tensor_type``; return its unique name, which begins with ``stem``."""
        return new_value(self.types, stem, tensor_type)

    def add_state(self, stem: str, tensor_type: TensorType, fill: float) -> str:
        """Add a state whose elements all start as ``fill``; return its name."""
        name = self.new_value(stem, tensor_type)
        self.state[name] = np.full(tensor_type.shape, fill, dtypes.to_numpy(tensor_type.dtype))
        return name

    def record_read(
        self, value: str, axis: int, fill: float, frames_before_end: int, frame_step: int, frame_count: int, loc: Loc
    ) -> FrameRead:
        """Record a read of ``frame_count`` earlier frames of a value. The result gets a new name; nodes are written by
        :meth:`replace_reads_by_nodes`."""
        kind = self.types[value]
        history = self.histories.setdefault((value, fill), FrameHistory(value, kind, axis, fill))
        shape = history.shape(frame_count)
        result = self.new_value(f"{value}.frames", TensorType(shape, kind.dtype, kind.quant, kind.layout))
        read = FrameRead(result, frames_before_end, frame_step, frame_count, loc)
        history.reads.append(read)
        return read

    def replace_reads_by_nodes(self, nodes: Sequence[Node | FrameRead]) -> list[Node]:
        """Replace all reads of histories by nodes, and append the nodes that update the state."""
        owners = {read.result: history for history in self.histories.values() for read in history.reads}
        stored: dict[int, str] = {}
        expanded: list[Node] = []
        at_end: list[Node] = []
        for node in nodes:
            if isinstance(node, Node):
                expanded.append(node)
                continue
            history = owners[node.result]
            if id(history) not in stored:
                stored[id(history)] = (
                    self._add_ring_buffer(history, node, at_end)
                    if history.uses_ring_buffer
                    else self._emit_shifted_history(history, node, expanded)
                )
            expanded += self._emit_nodes_of_read(history, node, stored[id(history)])
        expanded += [*at_end, *self._advance_counters()]
        return [
            Node(n.op, tuple(self.renamed.get(i, i) for i in n.inputs), n.outputs, n.attrs, n.loc, n.group)
            for n in expanded
        ]

    def _emit_shifted_history(self, history: FrameHistory, read: FrameRead, nodes: list[Node]) -> str:
        """Emit the node that shifts a history and appends the new frames; return the value of the history after this
        step."""
        kind = TensorType(
            history.shape(history.kept_frames),
            history.tensor_type.dtype,
            history.tensor_type.quant,
            history.tensor_type.layout,
        )
        state = self.add_state(f"{history.value_name}.history", kind, history.fill)
        line = self.new_value(f"{history.value_name}.line", kind)
        nodes.append(Node("shift_in", (state, history.value_name), (line,), {"axis": history.time_axis}, read.loc))
        self.updates[state] = line
        return line

    def _add_ring_buffer(self, history: FrameHistory, read: FrameRead, nodes_at_end_of_step: list[Node]) -> str:
        """Add a ring buffer for a history, and the node that stores the new frames in it; return the ring before this
        step.

        The node is appended to ``nodes_at_end_of_step``: it runs at the end of the step, after all reads."""
        frames = history.ring_slots * history.frames_per_step
        kind = TensorType(
            history.shape(frames), history.tensor_type.dtype, history.tensor_type.quant, history.tensor_type.layout
        )
        ring = self.add_state(f"{history.value_name}.ring", kind, history.fill)
        written = self.new_value(f"{history.value_name}.written", kind)
        inputs = (ring, self._find_or_add_step_counter(history.ring_slots), history.value_name)
        nodes_at_end_of_step.append(Node("ring_write", inputs, (written,), {"axis": history.time_axis}, read.loc))
        self.updates[ring] = written
        return ring

    def _find_or_add_step_counter(self, ring_slots: int) -> str:
        """Return the state that counts steps modulo a multiple of ``ring_slots``. Several rings share one counter,
        modulo the least common multiple of their slots."""
        for name, cycle in self.cycles.items():
            if lcm(cycle, ring_slots) <= _LONGEST_CYCLE:
                self.cycles[name] = lcm(cycle, ring_slots)
                return name
        name = self.add_state("position", TensorType((1,), "int32"), 0)
        self.cycles[name] = ring_slots
        return name

    def _emit_nodes_of_read(self, history: FrameHistory, read: FrameRead, kept_state: str) -> list[Node]:
        """Return the nodes that read frames from ``kept_state``, the state of the history."""
        axis = history.time_axis
        if history.uses_ring_buffer:
            attrs = {"axis": axis, "back": read.frames_before_end, "step": read.frame_step, "count": read.frame_count}
            inputs = (kept_state, self._find_or_add_step_counter(history.ring_slots), history.value_name)
            return [Node("ring_slice", inputs, (read.result,), attrs, read.loc)]
        if history.needs_all_frames(read):
            self.renamed[read.result] = kept_state
            return []
        shape = history.shape(history.kept_frames)
        begin, end, strides = [0] * len(shape), list(shape), [1] * len(shape)
        begin[axis] = history.kept_frames - read.frames_before_end
        end[axis], strides[axis] = begin[axis] + (read.frame_count - 1) * read.frame_step + 1, read.frame_step
        parts = {"begin": tuple(begin), "end": tuple(end), "strides": tuple(strides)}
        return [Node("slice", (kept_state,), (read.result,), parts, read.loc)]

    def _advance_counters(self) -> list[Node]:
        """Return the nodes that increment the step counters modulo their cycles."""
        nodes, plain_attrs = [], {"activation": "", "rounding": Rounding.DOUBLE}
        kind = TensorType((1,), "int32")
        for name, cycle in self.cycles.items():
            incremented, is_within, result = (
                self.new_value(f"{name}.{stem}", k)
                for stem, k in (("next", kind), ("inside", TensorType((1,), "bool")), ("result", kind))
            )
            one, end, zero = (self.add_constant(number, kind) for number in (1, cycle, 0))
            nodes += [
                Node("add", (name, one), (incremented,), plain_attrs),
                Node("less", (incremented, end), (is_within,), {"rounding": Rounding.DOUBLE}),
                Node("where", (is_within, incremented, zero), (result,)),
            ]
            self.updates[name] = result
        return nodes

    def add_constant(self, number: float, tensor_type: TensorType) -> str:
        """Add a constant that contains one number and broadcasts to ``tensor_type``; return its name."""
        name = self.new_value(
            "number", TensorType((1,) * max(len(tensor_type.shape), 1), tensor_type.dtype, tensor_type.quant)
        )
        self.consts[name] = np.full(self.types[name].shape, number, dtypes.to_numpy(tensor_type.dtype))
        return name


# ---- Writer of the graph of a step: it finds the frames of operands and adds nodes.

_PLAIN: Mapping[str, Attr] = MappingProxyType({"activation": "", "rounding": Rounding.DOUBLE})
WINDOW, LOOKAHEAD = "window", "lookahead"
_LOOKAHEAD_HINT = "pad in front only (causal), or not at all; or use stream_allow lookahead, which delays results"
_WINDOW_HINT = "use stream_allow window: every step computes it, and all behind it, again from the last {} frames"


class StepWriter:
    """Writer of the graph of one step. Values keep their names; ``tracks`` maps each value to its dependency on
    time."""

    def __init__(self, graph: Graph, tracks: Mapping[str, FrameTrack], allowed: frozenset[str]) -> None:
        self.graph, self.allowed = graph, allowed
        self.tracks: dict[str, Track] = dict(tracks)
        self.types: dict[str, TensorType] = dict(graph.types)
        self.consts: dict[str, Array] = dict(graph.consts)
        self.memory = StreamState(self.types, self.consts)
        self.nodes: list[Node | FrameRead] = []
        self.masked: dict[tuple[str, float], str] = {}
        self.ages: dict[tuple[int, int], str] = {}
        for name, track in tracks.items():
            self.types[name] = self.with_frames(graph.types[name], track)

    def with_frames(self, tensor_type: TensorType, track: FrameTrack) -> TensorType:
        """Return the type ``tensor_type`` with as many frames as the value has in one step."""
        shape = (
            *tensor_type.shape[: track.time_axis],
            track.frames_per_step,
            *tensor_type.shape[track.time_axis + 1 :],
        )
        return replace(tensor_type, shape=shape)

    def refuse(self, node: Node, reason: str, hint: str) -> NoReturn:
        """Raise UnsupportedError because a step cannot compute the node. ``reason`` follows the name of its
        operator."""
        raise UnsupportedError(f"{node.op} {reason}", where=str(node.loc), hint=hint)

    # ------------------------------------------------------------ operands

    def find_track(self, value: str) -> Track | None:
        """Return the dependency of a value on time, or None if the value does not depend on time."""
        return self.tracks.get(value) if value else None

    def find_frame_track(self, value: str) -> FrameTrack | None:
        """Return the dependency of a value on time if each step has new frames of it, else None."""
        track = self.find_track(value)
        return track if isinstance(track, FrameTrack) else None

    def find_frame_track_of_data(self, node: Node) -> FrameTrack | None:
        """Return the dependency of the first operand on time, or None if other operands depend on time, too, or the
        first does not."""
        return None if any(map(self.find_track, node.inputs[1:])) else self.find_frame_track(node.inputs[0])

    def zero_in_dtype_of(self, value: str) -> int:
        """Return the integer that represents zero in a value: the zero point of a quantised value, else 0."""
        quant = self.types[value].quant
        return quant.zero_point[0] if quant is not None and len(quant.zero_point) == 1 else 0

    def read_frames_of_window(
        self, node: Node, value: str, track: FrameTrack, window: FrameWindow, fill: float | None, stride: int = 1
    ) -> str:
        """Return the name of the value that holds the frames of ``value`` which a window reads in this step.

        With ``stride`` > 1 it holds only every ``stride``-th of these frames.

        ``fill``: content of the frames before the start of the sequence; None if it does not matter."""
        if fill is not None and track.delay_frames > 0:
            value = self.mask_before_start(node, value, track, fill)
        start = (
            fill
            if fill is not None
            else track.front_padding_value
            if track.front_padding_value is not None
            else float(self.zero_in_dtype_of(value))
        )
        count = window.frame_count if stride == 1 else (window.frame_count - 1) // stride + 1
        return self.read_frames(node, value, track.time_axis, start, window.frames_before_end, stride, count)

    def read_frames(
        self, node: Node, value: str, axis: int, fill: float, frames_before_end: int, frame_step: int, frame_count: int
    ) -> str:
        """Return the name of the value that holds ``frame_count`` frames of ``value``, ``frame_step`` frames apart.

        The first is ``frames_before_end`` frames before the end of this step. The result is ``value`` itself, a slice
        of it, or a read of its history."""
        fresh = self.types[value].shape[axis]
        if (frames_before_end, frame_step, frame_count) == (fresh, 1, fresh):
            return value
        if frames_before_end > fresh:
            read = self.memory.record_read(value, axis, fill, frames_before_end, frame_step, frame_count, node.loc)
            self.nodes.append(read)
            return read.result
        shape = self.types[value].shape
        begin, end, strides = [0] * len(shape), list(shape), [1] * len(shape)
        begin[axis] = fresh - frames_before_end
        end[axis], strides[axis] = begin[axis] + (frame_count - 1) * frame_step + 1, frame_step
        attrs: dict[str, Attr] = {"begin": tuple(begin), "end": tuple(end), "strides": tuple(strides)}
        return self.emit(node, "slice", (value,), attrs, self.types[value])

    def delay_frames_to(self, node: Node, value: str, delay_frames: int) -> tuple[str, FrameTrack]:
        """Delay a value that has new frames in each step to a delay of ``delay_frames`` frames, which is at least its
        own; return the delayed value and its track."""
        track = self.find_frame_track(value)
        assert track is not None
        fill = (
            track.front_padding_value if track.front_padding_value is not None else float(self.zero_in_dtype_of(value))
        )
        late = self.read_frames(
            node,
            value,
            track.time_axis,
            fill,
            track.frames_per_step + delay_frames - track.delay_frames,
            1,
            track.frames_per_step,
        )
        return late, replace(
            track,
            delay_frames=delay_frames,
            front_padding_value=None if delay_frames >= 0 else track.front_padding_value,
        )

    def mask_before_start(self, node: Node, value: str, track: FrameTrack, fill: float) -> str:
        """Replace the frames of a value before the start of the sequence by ``fill``, for a reader that pads in front;
        return the result."""
        if (value, fill) in self.masked:
            return self.masked[value, fill]
        kind, memory = self.types[value], self.memory
        shape = [1] * len(kind.shape)
        shape[track.time_axis] = track.frames_per_step
        offsets = memory.new_value("places", TensorType(tuple(shape), "int32"))
        self.consts[offsets] = np.arange(track.frames_per_step, dtype=np.int32).reshape(shape)
        delay = memory.add_constant(track.delay_frames, TensorType((1,), "int32"))
        position = self.emit(
            node,
            "add",
            (self.add_frame_counter_state(node, track.frames_per_step, track.delay_frames), offsets),
            _PLAIN,
        )
        inside = self.emit(node, "greater_equal", (position, delay), {"rounding": Rounding.DOUBLE})
        result = self.emit(node, "where", (inside, value, memory.add_constant(fill, kind)), {}, kind)
        self.masked[value, fill] = result
        return result

    def add_frame_counter_state(self, node: Node, frames_per_step: int, max_count: int) -> str:
        """Return the state that counts the frames before this step, up to ``max_count``."""
        if (frames_per_step, max_count) not in self.ages:
            memory, kind = self.memory, TensorType((1,), "int32")
            age = memory.add_state("age", kind, 0)
            older = self.emit(node, "add", (age, memory.add_constant(frames_per_step, kind)), _PLAIN)
            memory.updates[age] = self.emit(node, "minimum", (older, memory.add_constant(max_count, kind)), _PLAIN)
            self.ages[frames_per_step, max_count] = age
        return self.ages[frames_per_step, max_count]

    def read_all_frames(self, node: Node, value: str, min_delay: int) -> str:
        """Return all frames that a value has in the whole sequence, delayed by at least ``min_delay`` steps.

        Raise UnsupportedError if that needs an option that is not allowed."""
        track = self.tracks[value]
        if isinstance(track, WholeValueTrack):
            return self.delay_steps(node, value, min_delay - track.delay_steps)
        if not track.is_complete and LOOKAHEAD not in self.allowed:
            self.refuse_lookahead(node, track)
        _, window = window_of_all_frames(track, min_delay)
        if window.frames_before_end > track.frames_per_step and WINDOW not in self.allowed:
            frames = (
                f"all {track.whole_run_frames} frames of the sequence"
                if track.whole_run_frames > 1
                else "frames of different times"
            )
            self.refuse(node, f"needs {frames} at once", _WINDOW_HINT.format(window.frame_count))
        return self.read_frames_of_window(node, value, track, window, None)

    def refuse_lookahead(self, node: Node, track: FrameTrack) -> NoReturn:
        """Raise UnsupportedError because a result depends on padding after the end of the sequence."""
        what = "the layer pads behind the end of the sequence, and the result depends on it: a stream does not know its end"
        raise UnsupportedError(what, where=track.padding_layer or str(node.loc), hint=_LOOKAHEAD_HINT)

    def delay_steps(self, node: Node, value: str, steps: int) -> str:
        """Delay a value that each step computes once by ``steps`` steps; return the delayed value."""
        if not steps:
            return value
        kind = self.types[value]
        one = self.emit(
            node, "reshape", (value,), {"shape": (1, *kind.shape)}, replace(kind, quant=_per_tensor_quant(kind))
        )
        late = self.read_frames(node, one, 0, float(self.zero_in_dtype_of(value)), 1 + steps, 1, 1)
        return self.emit(node, "reshape", (late,), {"shape": kind.shape}, kind)

    # ------------------------------------------------------------ nodes

    def emit(
        self, node: Node, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr], like: TensorType | None = None
    ) -> str:
        """Add a new node that belongs to the old ``node``; return the name of its result. ``like``: dtype and
        quantisation of the result."""
        definition = registry.get(op)
        attrs = {**definition.defaults, **attrs}
        (kind,) = definition.infer(attrs, [self.types[name] for name in inputs])
        if like is not None:
            kind = replace(kind, dtype=like.dtype, quant=_per_tensor_quant(like), layout=like.layout)
        name = self.memory.new_value(f"{node.outputs[0]}.{op}", kind)
        self.nodes.append(Node(op, tuple(inputs), (name,), attrs, node.loc))
        return name

    def write_node(
        self, node: Node, inputs: Sequence[str], attrs: Mapping[str, Attr], tracks: Sequence[Track | None]
    ) -> None:
        """Write ``node`` itself, on other operands. Its results keep their names and get the given tracks."""
        kinds = registry.infer(node.op, attrs, [self.types[name] for name in inputs if name])
        for name, kind, track in zip(node.outputs, kinds, tracks, strict=True):
            if name:
                old = self.graph.types[name]
                self.types[name] = replace(old, shape=kind.shape)
                if track is not None:
                    self.tracks[name] = track
        self.nodes.append(replace(node, inputs=tuple(inputs), attrs=attrs))

    def write_on_whole_sequence(self, node: Node) -> None:
        """Write ``node`` unchanged, on all frames of its operands in the whole sequence."""
        least = 0
        for value in node.inputs:
            track = self.find_track(value)
            if isinstance(track, WholeValueTrack):
                least = max(least, track.delay_steps)
            elif track is not None:
                least = max(least, window_of_all_frames(track)[0].delay_steps)
        inputs = [
            self.read_all_frames(node, value, least) if self.find_track(value) is not None else value
            for value in node.inputs
        ]
        self.write_node(node, inputs, node.attrs, (WholeValueTrack(least),) * len(node.outputs))


def _per_tensor_quant(tensor_type: TensorType) -> Quant | None:
    """Return the quantisation of a type if it is per tensor, else None."""
    return tensor_type.quant if tensor_type.quant is not None and tensor_type.quant.axis is None else None
