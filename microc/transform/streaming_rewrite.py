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
# A step takes some frames of the input. In a run over the whole sequence a value has ``length`` frames along its time axis. Step
# n of the stream computes frames n * count - delay + i of them, 0 <= i < count. Frames with negative numbers, before the start
# of the sequence, are meaningless; they are masked if a window has padding there.


@frozen
class FrameTrack:
    """Dependency on time of a value that has new frames in each step.

    The whole run is the original network's run over the complete sequence. ``axis``: time axis. ``length``: number of
    frames in the whole run. ``count``: number of frames per step. ``delay``: number of frames by which the stream is
    late. ``frames_before_padding``: number of frames of the whole run that do not depend on padding after the end of
    the sequence; ``padding_layer``: the layer that pads there. If ``delay`` is negative, the first -delay frames are
    never computed; they would contain ``fill``."""

    axis: int
    length: int
    count: int
    delay: int
    frames_before_padding: int
    fill: float | None = None
    padding_layer: str = ""

    def with_time_axis(self, axis: int) -> FrameTrack:
        """Return the same dependency along another time axis."""
        return replace(self, axis=axis)

    @property
    def is_complete(self) -> bool:
        """True if the stream computes every frame of the whole run."""
        return self.frames_before_padding >= self.length


@frozen
class WholeTrack:
    """Dependency on time of a value that each step computes completely from the last frames, such as a classification.

    ``delay``: index of the step whose value equals the value that a run over the whole sequence computes."""

    delay: int


Track = FrameTrack | WholeTrack
"""Dependency of a value on time. A value that does not depend on time has no track."""


class HopTooShortError(Exception):
    """Error for a stride that does not divide the number of frames of a step. A step needs ``factor`` times as many frames."""

    def __init__(self, factor: int, where: str) -> None:
        super().__init__(factor)
        self.factor, self.where = factor, where


@frozen
class FrameWindow:
    """Frames of an operand that a sliding window reads in one step: ``size`` frames, followed by ``newest`` newer
    frames that it does not read.

    ``track``: dependency on time of the window's result."""

    track: FrameTrack
    size: int
    newest: int

    @property
    def back(self) -> int:
        """Number of frames from the first one that the window reads to the newest one of the operand."""
        return self.size + self.newest


def slide_window(
    track: FrameTrack, window_frames: int, stride: int, padding_before: int, result_frames: int, where: str
) -> FrameWindow:
    """Return the window of ``window_frames`` frames that slides over a value by ``stride`` frames.

    ``padding_before``: number of padding frames in front; it is negative if frames are left out. ``result_frames``:
    number of frames of the result in the whole run; if it is 1, ``stride`` has no meaning. Frame j of the result needs
    frames up to j * stride + window_frames - 1 - padding_before. A step computes the frames whose operands exist. Raise
    HopTooShortError if ``stride`` does not divide the frames of a step."""
    stride = stride if result_frames > 1 else 1
    if track.count % stride:
        raise HopTooShortError(stride // gcd(stride, track.count), where)
    ahead = window_frames - 1 - padding_before
    missing = ahead + track.delay - stride + 1
    delay = max(0, -(-missing // stride))
    clean = min(result_frames, (track.frames_before_padding - 1 - ahead) // stride + 1)
    blame = track.padding_layer if clean >= result_frames or track.padding_layer else where
    count = track.count // stride
    result = FrameTrack(track.axis, result_frames, count, delay, clean, None, blame)
    return FrameWindow(result, (count - 1) * stride + window_frames, delay * stride - missing)


def window_of_all_frames(track: FrameTrack, min_delay: int = 0) -> tuple[WholeTrack, FrameWindow]:
    """Return the track of a result that needs all frames of a value at once, and the window that reads these frames.

    ``min_delay``: least number of steps by which the result is delayed."""
    late = -(track.length + track.delay) % track.count
    while (track.length + track.delay + late) // track.count - 1 < min_delay:
        late += track.count
    delay = (track.length + track.delay + late) // track.count - 1
    return WholeTrack(delay), FrameWindow(track, track.length, late)


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
    """Read of earlier frames of a value: ``count`` frames, ``step`` frames apart. The first is ``back`` frames before
    the end."""

    result: str
    back: int
    step: int
    count: int
    loc: Loc


@dataclass(slots=True)
class FrameHistory:
    """Value whose frames are kept between steps, and the reads of these frames. ``fill``: content of the frames before
    the first one."""

    value: str
    kind: TensorType
    axis: int
    fill: float
    reads: list[FrameRead] = field(default_factory=list)

    @property
    def frames_per_step(self) -> int:
        """Number of frames that each step adds."""
        return self.kind.shape[self.axis]

    @property
    def size(self) -> int:
        """Number of frames from the oldest one that is read to the newest one."""
        return max(read.back for read in self.reads)

    @property
    def slots(self) -> int:
        """Number of steps whose frames a ring buffer stores."""
        return -(-(self.size - self.frames_per_step) // self.frames_per_step)

    @property
    def uses_ring(self) -> bool:
        """True if a ring buffer copies fewer bytes per step than frames in order, by more than the ring's own cost."""
        frame = self.kind.nbytes // self.frames_per_step
        is_outermost = prod(self.kind.shape[: self.axis]) == 1
        n_fetched = sum(read.count for read in self.reads)
        n_apart = sum(
            read.count for read in self.reads if read.step > 1 or not (is_outermost or self.needs_all_frames(read))
        )
        return frame * (self.size + _APART * n_apart - self.frames_per_step - n_fetched) > RING_COSTS

    def needs_all_frames(self, read: FrameRead) -> bool:
        """Test whether a read needs all frames of the history, in order."""
        return read.step == 1 and read.back == read.count == self.size

    def shape(self, frames: int) -> tuple[int, ...]:
        """Return the shape of the value with another number of frames."""
        return (*self.kind.shape[: self.axis], frames, *self.kind.shape[self.axis + 1 :])


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
                    self._keep_in_ring(history, node, at_end)
                    if history.uses_ring
                    else self._keep_in_order(history, node, expanded)
                )
            expanded += self._emit_read(history, node, stored[id(history)])
        expanded += [*at_end, *self._advance_counters()]
        return [
            Node(n.op, tuple(self.renamed.get(i, i) for i in n.inputs), n.outputs, n.attrs, n.loc, n.group)
            for n in expanded
        ]

    def _keep_in_order(self, history: FrameHistory, read: FrameRead, nodes: list[Node]) -> str:
        """Emit the node that shifts a history and appends the new frames; return the value of the history after this step."""
        kind = TensorType(history.shape(history.size), history.kind.dtype, history.kind.quant, history.kind.layout)
        state = self.add_state(f"{history.value}.history", kind, history.fill)
        line = self.new_value(f"{history.value}.line", kind)
        nodes.append(Node("shift_in", (state, history.value), (line,), {"axis": history.axis}, read.loc))
        self.updates[state] = line
        return line

    def _keep_in_ring(self, history: FrameHistory, read: FrameRead, last: list[Node]) -> str:
        """Add a ring buffer for a history, and the node that stores the new frames in it; return the ring before this step.

        The node is appended to ``last``: it runs at the end of the step, after all reads."""
        frames = history.slots * history.frames_per_step
        kind = TensorType(history.shape(frames), history.kind.dtype, history.kind.quant, history.kind.layout)
        ring = self.add_state(f"{history.value}.ring", kind, history.fill)
        written = self.new_value(f"{history.value}.written", kind)
        inputs = (ring, self._step_counter(history.slots), history.value)
        last.append(Node("ring_write", inputs, (written,), {"axis": history.axis}, read.loc))
        self.updates[ring] = written
        return ring

    def _step_counter(self, slots: int) -> str:
        """Return the state that counts steps modulo a multiple of ``slots``. Several rings share one counter, modulo
        the least common multiple of their slots."""
        for name, cycle in self.cycles.items():
            if lcm(cycle, slots) <= _LONGEST_CYCLE:
                self.cycles[name] = lcm(cycle, slots)
                return name
        name = self.add_state("position", TensorType((1,), "int32"), 0)
        self.cycles[name] = slots
        return name

    def _emit_read(self, history: FrameHistory, read: FrameRead, kept: str) -> list[Node]:
        """Return the nodes that read frames from ``kept``, the state of the history."""
        axis = history.axis
        if history.uses_ring:
            attrs = {"axis": axis, "back": read.back, "step": read.step, "count": read.count}
            inputs = (kept, self._step_counter(history.slots), history.value)
            return [Node("ring_slice", inputs, (read.result,), attrs, read.loc)]
        if history.needs_all_frames(read):
            self.renamed[read.result] = kept
            return []
        shape = history.shape(history.size)
        begin, end, strides = [0] * len(shape), list(shape), [1] * len(shape)
        begin[axis] = history.size - read.back
        end[axis], strides[axis] = begin[axis] + (read.count - 1) * read.step + 1, read.step
        parts = {"begin": tuple(begin), "end": tuple(end), "strides": tuple(strides)}
        return [Node("slice", (kept,), (read.result,), parts, read.loc)]

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
    """Writer of the graph of one step. Values keep their names; ``tracks`` maps each value to its dependency on time."""

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
        shape = (*tensor_type.shape[: track.axis], track.count, *tensor_type.shape[track.axis + 1 :])
        return replace(tensor_type, shape=shape)

    def refuse(self, node: Node, reason: str, hint: str) -> NoReturn:
        """Raise UnsupportedError because a step cannot compute the node. ``reason`` follows the name of its operator."""
        raise UnsupportedError(f"{node.op} {reason}", where=str(node.loc), hint=hint)

    # ------------------------------------------------------------ operands

    def track(self, value: str) -> Track | None:
        """Return the dependency of a value on time, or None if the value does not depend on time."""
        return self.tracks.get(value) if value else None

    def frames(self, value: str) -> FrameTrack | None:
        """Return the dependency of a value on time if each step has new frames of it, else None."""
        track = self.track(value)
        return track if isinstance(track, FrameTrack) else None

    def data_frames(self, node: Node) -> FrameTrack | None:
        """Return the dependency of the first operand on time, or None if other operands depend on time, too, or the
        first does not."""
        return None if any(map(self.track, node.inputs[1:])) else self.frames(node.inputs[0])

    def stored_zero(self, value: str) -> int:
        """Return the integer that represents zero in a value: the zero point of a quantised value, else 0."""
        quant = self.types[value].quant
        return quant.zero_point[0] if quant is not None and len(quant.zero_point) == 1 else 0

    def read_window(
        self, node: Node, value: str, track: FrameTrack, window: FrameWindow, fill: float | None, step: int = 1
    ) -> str:
        """Return the name of the frames of a value that a window reads in this step. With ``step`` > 1 these are only
        every ``step``-th frame.

        ``fill``: content of the frames before the start of the sequence; None if it does not matter."""
        if fill is not None and track.delay > 0:
            value = self.mask_before_start(node, value, track, fill)
        start = fill if fill is not None else track.fill if track.fill is not None else float(self.stored_zero(value))
        count = window.size if step == 1 else (window.size - 1) // step + 1
        return self.read_frames(node, value, track.axis, start, window.back, step, count)

    def read_frames(
        self, node: Node, value: str, axis: int, fill: float, frames_before_end: int, frame_step: int, frame_count: int
    ) -> str:
        """Return the name of ``frame_count`` frames of a value, ``frame_step`` frames apart. The first is
        ``frames_before_end`` frames before the end.

        It is the value itself, a slice of this step's frames, or a read of the value's history."""
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

    def delay_to(self, node: Node, value: str, delay: int) -> tuple[str, FrameTrack]:
        """Delay a value that has new frames in each step to a delay of ``delay`` frames, which is at least its own;
        return the delayed value and its track."""
        track = self.frames(value)
        assert track is not None
        fill = track.fill if track.fill is not None else float(self.stored_zero(value))
        late = self.read_frames(node, value, track.axis, fill, track.count + delay - track.delay, 1, track.count)
        return late, replace(track, delay=delay, fill=None if delay >= 0 else track.fill)

    def mask_before_start(self, node: Node, value: str, track: FrameTrack, fill: float) -> str:
        """Replace the frames of a value before the start of the sequence by ``fill``, for a reader that pads in front;
        return the result."""
        if (value, fill) in self.masked:
            return self.masked[value, fill]
        kind, memory = self.types[value], self.memory
        shape = [1] * len(kind.shape)
        shape[track.axis] = track.count
        offsets = memory.new_value("places", TensorType(tuple(shape), "int32"))
        self.consts[offsets] = np.arange(track.count, dtype=np.int32).reshape(shape)
        delay = memory.add_constant(track.delay, TensorType((1,), "int32"))
        position = self.emit(node, "add", (self.frame_counter_state(node, track.count, track.delay), offsets), _PLAIN)
        inside = self.emit(node, "greater_equal", (position, delay), {"rounding": Rounding.DOUBLE})
        result = self.emit(node, "where", (inside, value, memory.add_constant(fill, kind)), {}, kind)
        self.masked[value, fill] = result
        return result

    def frame_counter_state(self, node: Node, count: int, delay: int) -> str:
        """Return the state that counts the frames before this step, up to ``delay``."""
        if (count, delay) not in self.ages:
            memory, kind = self.memory, TensorType((1,), "int32")
            age = memory.add_state("age", kind, 0)
            older = self.emit(node, "add", (age, memory.add_constant(count, kind)), _PLAIN)
            memory.updates[age] = self.emit(node, "minimum", (older, memory.add_constant(delay, kind)), _PLAIN)
            self.ages[count, delay] = age
        return self.ages[count, delay]

    def read_all_frames(self, node: Node, value: str, min_delay: int) -> str:
        """Return all frames that a value has in the whole sequence, delayed by at least ``min_delay`` steps.

        Raise UnsupportedError if that needs an option that is not allowed."""
        track = self.tracks[value]
        if isinstance(track, WholeTrack):
            return self.delay_steps(node, value, min_delay - track.delay)
        if not track.is_complete and LOOKAHEAD not in self.allowed:
            self.refuse_lookahead(node, track)
        _, window = window_of_all_frames(track, min_delay)
        if window.back > track.count and WINDOW not in self.allowed:
            frames = f"all {track.length} frames of the sequence" if track.length > 1 else "frames of different times"
            self.refuse(node, f"needs {frames} at once", _WINDOW_HINT.format(window.size))
        return self.read_window(node, value, track, window, None)

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
        late = self.read_frames(node, one, 0, float(self.stored_zero(value)), 1 + steps, 1, 1)
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

    def write_whole(self, node: Node) -> None:
        """Write ``node`` unchanged, on all frames of its operands in the whole sequence."""
        least = 0
        for value in node.inputs:
            track = self.track(value)
            if isinstance(track, WholeTrack):
                least = max(least, track.delay)
            elif track is not None:
                least = max(least, window_of_all_frames(track)[0].delay)
        inputs = [
            self.read_all_frames(node, value, least) if self.track(value) is not None else value
            for value in node.inputs
        ]
        self.write_node(node, inputs, node.attrs, (WholeTrack(least),) * len(node.outputs))


def _per_tensor_quant(tensor_type: TensorType) -> Quant | None:
    """Return the quantisation of a type if it is per tensor, else None."""
    return tensor_type.quant if tensor_type.quant is not None and tensor_type.quant.axis is None else None
