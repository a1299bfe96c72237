"""A graph rewritten for a step of a stream, and what the stream keeps."""

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

# ---- Which frames of a sequence a value holds in a step of a stream: pure arithmetic.
#
# A step takes some frames of the input. Value v of the whole run has ``length`` frames along its time axis; in step n the stream
# gives its frames n * count - delay + i, 0 <= i < count. Frames before the first (negative ones) are meaningless, unless a
# window pads: then they are masked.


@frozen
class Frames:
    """A value that comes some frames in each step.

    ``clean``: how many frames of the whole run owe nothing to padding behind its end, and ``blame`` the layer that padded there.
    Where ``delay`` is negative, the first -delay frames never come; they hold ``fill``.
    """

    axis: int
    length: int
    count: int
    delay: int
    clean: int
    fill: float | None = None
    blame: str = ""

    def along(self, axis: int) -> Frames:
        """The same with another time axis."""
        return replace(self, axis=axis)

    @property
    def complete(self) -> bool:
        """Whether every frame of the whole run comes in the stream."""
        return self.clean >= self.length


@frozen
class Whole:
    """A value computed as a whole in each step, from the last frames; step ``delay`` gives what the whole run gives."""

    delay: int


Track = Frames | Whole
"""How a value depends on time; values that do not have no track."""


class HopTooShortError(Exception):
    """A step has to take ``factor`` times as many frames: a stride does not divide what comes in a step."""

    def __init__(self, factor: int, where: str) -> None:
        super().__init__(factor)
        self.factor, self.where = factor, where


@frozen
class Window:
    """How a window reads its operand in a step: ``size`` frames that end ``newest`` frames before the last. ``track`` is that of
    what the windows make."""

    track: Frames
    size: int
    newest: int

    @property
    def back(self) -> int:
        """How far before the end of the operand's frames the window begins."""
        return self.size + self.newest


def slide(track: Frames, reach: int, stride: int, before: int, length: int, where: str) -> Window:
    """A window of ``reach`` frames over a value padded with ``before`` in front (negative: as many are left out).

    Frame j of the result needs frames up to j * stride + reach - 1 - before. A step gives those for which everything is there.
    ``length``: frames of the result in the whole run; if there is one only, its stride means nothing.
    """
    stride = stride if length > 1 else 1
    if track.count % stride:
        raise HopTooShortError(stride // gcd(stride, track.count), where)
    ahead = reach - 1 - before
    missing = ahead + track.delay - stride + 1
    delay = max(0, -(-missing // stride))
    clean = min(length, (track.clean - 1 - ahead) // stride + 1)
    blame = track.blame if clean >= length or track.blame else where
    count = track.count // stride
    result = Frames(track.axis, length, count, delay, clean, None, blame)
    return Window(result, (count - 1) * stride + reach, delay * stride - missing)


def gathered(track: Frames, least: int = 0) -> tuple[Whole, Window]:
    """All frames of the whole run, the first of them at the start of a step, ``least`` steps late or more."""
    late = -(track.length + track.delay) % track.count
    while (track.length + track.delay + late) // track.count - 1 < least:
        late += track.count
    steps = (track.length + track.delay + late) // track.count - 1
    return Whole(steps), Window(track, track.length, late)


# ---- What a stream keeps: for every value that is read later than it comes, its last frames as state of the graph.
#
# Frames that lie side by side are kept in order: what is there moves up in each step, and the window is the state itself. Where
# taps lie far apart, moving everything would cost more than the layer: then the frames stay where they are, in a ring, and the
# taps are fetched from it.

RING_COSTS = 100
"""Bytes that are moved in the time that a ring's indices and its second kernel take: one an instruction, on a Cortex-M4."""
_APART = 4
"""How much longer an element takes that does not move beside its neighbours, by words."""
_LONGEST_CYCLE = 1 << 30


@frozen
class Read:
    """Frames of a value wanted in a step: ``count`` of them, ``step`` apart, the first ``back`` before the end."""

    result: str
    back: int
    step: int
    count: int
    loc: Loc


@dataclass(slots=True)
class History:
    """A value of which frames are kept, and who reads them. ``fill``: what the frames before the first hold."""

    value: str
    kind: TensorType
    axis: int
    fill: float
    reads: list[Read] = field(default_factory=list)

    @property
    def fresh(self) -> int:
        """Frames that come in a step."""
        return self.kind.shape[self.axis]

    @property
    def size(self) -> int:
        """Frames from the oldest that is read to the newest."""
        return max(read.back for read in self.reads)

    @property
    def slots(self) -> int:
        """Steps whose frames a ring holds."""
        return -(-(self.size - self.fresh) // self.fresh)

    @property
    def in_ring(self) -> bool:
        """Whether a ring moves fewer bytes than keeping the frames in order, by more than it costs itself."""
        frame = self.kind.nbytes // self.fresh
        whole = prod(self.kind.shape[: self.axis]) == 1
        fetched = sum(read.count for read in self.reads)
        cut = sum(read.count for read in self.reads if read.step > 1 or not (whole or self.is_all(read)))
        return frame * (self.size + _APART * cut - self.fresh - fetched) > RING_COSTS

    def is_all(self, read: Read) -> bool:
        """Whether a read wants everything, in order."""
        return read.step == 1 and read.back == read.count == self.size

    def shape(self, frames: int) -> tuple[int, ...]:
        return (*self.kind.shape[: self.axis], frames, *self.kind.shape[self.axis + 1 :])


class Memory:
    """The state of a stream and the nodes that keep it."""

    def __init__(self, types: dict[str, TensorType], consts: dict[str, Array]) -> None:
        self.types, self.consts = types, consts
        self.histories: dict[tuple[str, float], History] = {}
        self.state: dict[str, Array] = {}
        self.updates: dict[str, str] = {}
        self.renamed: dict[str, str] = {}
        self.cycles: dict[str, int] = {}

    def name(self, stem: str, kind: TensorType) -> str:
        return new_value(self.types, stem, kind)

    def define(self, stem: str, kind: TensorType, fill: float) -> str:
        """A state that starts with one number everywhere."""
        name = self.name(stem, kind)
        self.state[name] = np.full(kind.shape, fill, dtypes.to_numpy(kind.dtype))
        return name

    def read(self, value: str, axis: int, fill: float, back: int, step: int, count: int, loc: Loc) -> Read:
        """Frames of a value, and their name."""
        kind = self.types[value]
        history = self.histories.setdefault((value, fill), History(value, kind, axis, fill))
        shape = history.shape(count)
        result = self.name(f"{value}.frames", TensorType(shape, kind.dtype, kind.quant, kind.layout))
        read = Read(result, back, step, count, loc)
        history.reads.append(read)
        return read

    def finished(self, nodes: Sequence[Node | Read]) -> list[Node]:
        """The nodes with reads spelled out, followed by those that bring the state up to date."""
        owners = {read.result: history for history in self.histories.values() for read in history.reads}
        kept: dict[int, str] = {}
        found: list[Node] = []
        last: list[Node] = []
        for node in nodes:
            if isinstance(node, Node):
                found.append(node)
                continue
            history = owners[node.result]
            if id(history) not in kept:
                kept[id(history)] = (
                    self._ring(history, node, last) if history.in_ring else self._line(history, node, found)
                )
            found += self._fetched(history, node, kept[id(history)])
        found += [*last, *self._counted()]
        return [Node(n.op, tuple(self._named(i) for i in n.inputs), n.outputs, n.attrs, n.loc, n.group) for n in found]

    def _named(self, value: str) -> str:
        return self.renamed.get(value, value)

    def _line(self, history: History, read: Read, nodes: list[Node]) -> str:
        """The frames in order, the new ones at the end, as they are after this step."""
        kind = TensorType(history.shape(history.size), history.kind.dtype, history.kind.quant, history.kind.layout)
        state = self.define(f"{history.value}.history", kind, history.fill)
        line = self.name(f"{history.value}.line", kind)
        nodes.append(Node("shift_in", (state, history.value), (line,), {"axis": history.axis}, read.loc))
        self.updates[state] = line
        return line

    def _ring(self, history: History, read: Read, last: list[Node]) -> str:
        """The ring as it is before this step; at the end of the step the new frames are put in."""
        frames = history.slots * history.fresh
        kind = TensorType(history.shape(frames), history.kind.dtype, history.kind.quant, history.kind.layout)
        ring = self.define(f"{history.value}.ring", kind, history.fill)
        written = self.name(f"{history.value}.written", kind)
        inputs = (ring, self._position(history.slots), history.value)
        last.append(Node("ring_write", inputs, (written,), {"axis": history.axis}, read.loc))
        self.updates[ring] = written
        return ring

    def _position(self, slots: int) -> str:
        """A count of steps that a ring of so many can use: one serves many rings."""
        for name, cycle in self.cycles.items():
            if lcm(cycle, slots) <= _LONGEST_CYCLE:
                self.cycles[name] = lcm(cycle, slots)
                return name
        name = self.define("position", TensorType((1,), "int32"), 0)
        self.cycles[name] = slots
        return name

    def _fetched(self, history: History, read: Read, kept: str) -> list[Node]:
        """The frames that a read wants, from what is kept."""
        axis = history.axis
        if history.in_ring:
            attrs = {"axis": axis, "back": read.back, "step": read.step, "count": read.count}
            inputs = (kept, self._position(history.slots), history.value)
            return [Node("ring_slice", inputs, (read.result,), attrs, read.loc)]
        if history.is_all(read):
            self.renamed[read.result] = kept
            return []
        shape = history.shape(history.size)
        begin, end, strides = [0] * len(shape), list(shape), [1] * len(shape)
        begin[axis] = history.size - read.back
        end[axis], strides[axis] = begin[axis] + (read.count - 1) * read.step + 1, read.step
        parts = {"begin": tuple(begin), "end": tuple(end), "strides": tuple(strides)}
        return [Node("slice", (kept,), (read.result,), parts, read.loc)]

    def _counted(self) -> list[Node]:
        """The counts of steps, one more, or from the beginning of their cycles."""
        nodes, plain = [], {"activation": "", "rounding": Rounding.DOUBLE}
        kind = TensorType((1,), "int32")
        for name, cycle in self.cycles.items():
            following, inside, result = (
                self.name(f"{name}.{stem}", k)
                for stem, k in (("next", kind), ("inside", TensorType((1,), "bool")), ("result", kind))
            )
            one, end, zero = (self.constant(number, kind) for number in (1, cycle, 0))
            nodes += [
                Node("add", (name, one), (following,), plain),
                Node("less", (following, end), (inside,), {"rounding": Rounding.DOUBLE}),
                Node("where", (inside, following, zero), (result,)),
            ]
            self.updates[name] = result
        return nodes

    def constant(self, number: float, kind: TensorType) -> str:
        """A constant of one number."""
        name = self.name("number", TensorType((1,) * max(len(kind.shape), 1), kind.dtype, kind.quant))
        self.consts[name] = np.full(self.types[name].shape, number, dtypes.to_numpy(kind.dtype))
        return name


# ---- Walking a graph and writing it anew for a step of a stream: operands with their tracks, and the nodes that come
# of them.

_PLAIN: Mapping[str, Attr] = MappingProxyType({"activation": "", "rounding": Rounding.DOUBLE})
WINDOW, LOOKAHEAD = "window", "lookahead"
_LOOKAHEAD_HINT = (
    "pad in front only (causal), or not at all; stream_allow lookahead takes it as a delay, as if the sequence went on"
)
_WINDOW_HINT = "stream_allow window computes it, and all behind it, anew in every step from the last {} frames"


class Writer:
    """The graph of a step, being written. Values keep their names; ``tracks`` says how they depend on time."""

    def __init__(self, graph: Graph, tracks: Mapping[str, Frames], allowed: frozenset[str]) -> None:
        self.graph, self.allowed = graph, allowed
        self.tracks: dict[str, Track] = dict(tracks)
        self.types: dict[str, TensorType] = dict(graph.types)
        self.consts: dict[str, Array] = dict(graph.consts)
        self.memory = Memory(self.types, self.consts)
        self.nodes: list[Node | Read] = []
        self.masked: dict[tuple[str, float], str] = {}
        self.ages: dict[tuple[int, int], str] = {}
        for name, track in tracks.items():
            self.types[name] = self.framed(graph.types[name], track)

    def framed(self, kind: TensorType, track: Frames) -> TensorType:
        """A type with as many frames as a step has."""
        shape = (*kind.shape[: track.axis], track.count, *kind.shape[track.axis + 1 :])
        return replace(kind, shape=shape)

    def refuse(self, node: Node, what: str, hint: str) -> NoReturn:
        raise UnsupportedError(f"{node.op} {what}", where=str(node.loc), hint=hint)

    # ------------------------------------------------------------ operands

    def track(self, value: str) -> Track | None:
        return self.tracks.get(value) if value else None

    def frames(self, value: str) -> Frames | None:
        track = self.track(value)
        return track if isinstance(track, Frames) else None

    def data_frames(self, node: Node) -> Frames | None:
        """The track of the first operand, if no other depends on time."""
        return None if any(map(self.track, node.inputs[1:])) else self.frames(node.inputs[0])

    def zero(self, value: str) -> int:
        """What stands for nothing in a value: its zero point, or 0."""
        quant = self.types[value].quant
        return quant.zero_point[0] if quant is not None and len(quant.zero_point) == 1 else 0

    def window(self, node: Node, value: str, track: Frames, window: Window, fill: float | None, step: int = 1) -> str:
        """The frames that a window reads of a value; with ``step`` only the taps that lie so far apart.

        ``fill``: what frames before the first hold, None if they do not matter.
        """
        if fill is not None and track.delay > 0:
            value = self.mask(node, value, track, fill)
        start = fill if fill is not None else track.fill if track.fill is not None else float(self.zero(value))
        count = window.size if step == 1 else (window.size - 1) // step + 1
        return self.fetch(node, value, track.axis, start, window.back, step, count)

    def fetch(self, node: Node, value: str, axis: int, fill: float, back: int, step: int, count: int) -> str:
        """Frames of a value: itself, a part of what comes in this step, or older ones that are kept."""
        fresh = self.types[value].shape[axis]
        if (back, step, count) == (fresh, 1, fresh):
            return value
        if back > fresh:
            read = self.memory.read(value, axis, fill, back, step, count, node.loc)
            self.nodes.append(read)
            return read.result
        shape = self.types[value].shape
        begin, end, strides = [0] * len(shape), list(shape), [1] * len(shape)
        begin[axis] = fresh - back
        end[axis], strides[axis] = begin[axis] + (count - 1) * step + 1, step
        attrs: dict[str, Attr] = {"begin": tuple(begin), "end": tuple(end), "strides": tuple(strides)}
        return self.add(node, "slice", (value,), attrs, self.types[value])

    def settled(self, node: Node, value: str, delay: int) -> tuple[str, Frames]:
        """A value that comes ``delay`` frames late, its own delay being no larger."""
        track = self.frames(value)
        assert track is not None
        fill = track.fill if track.fill is not None else float(self.zero(value))
        late = self.fetch(node, value, track.axis, fill, track.count + delay - track.delay, 1, track.count)
        return late, replace(track, delay=delay, fill=None if delay >= 0 else track.fill)

    def mask(self, node: Node, value: str, track: Frames, fill: float) -> str:
        """A value whose frames before the first hold ``fill``: for whoever pads in front of it."""
        if (value, fill) in self.masked:
            return self.masked[value, fill]
        kind, memory = self.types[value], self.memory
        line = [1] * len(kind.shape)
        line[track.axis] = track.count
        places = memory.name("places", TensorType(tuple(line), "int32"))
        self.consts[places] = np.arange(track.count, dtype=np.int32).reshape(line)
        delay = memory.constant(track.delay, TensorType((1,), "int32"))
        place = self.add(node, "add", (self.age(node, track.count, track.delay), places), _PLAIN)
        inside = self.add(node, "greater_equal", (place, delay), {"rounding": Rounding.DOUBLE})
        result = self.add(node, "where", (inside, value, memory.constant(fill, kind)), {}, kind)
        self.masked[value, fill] = result
        return result

    def age(self, node: Node, count: int, delay: int) -> str:
        """How many frames came before this step, or ``delay`` if it is more."""
        if (count, delay) not in self.ages:
            memory, kind = self.memory, TensorType((1,), "int32")
            age = memory.define("age", kind, 0)
            older = self.add(node, "add", (age, memory.constant(count, kind)), _PLAIN)
            memory.updates[age] = self.add(node, "minimum", (older, memory.constant(delay, kind)), _PLAIN)
            self.ages[count, delay] = age
        return self.ages[count, delay]

    def whole(self, node: Node, value: str, least: int) -> str:
        """All frames that the whole run has of a value, ``least`` steps late."""
        track = self.tracks[value]
        if isinstance(track, Whole):
            return self.postponed(node, value, least - track.delay)
        if not track.complete and LOOKAHEAD not in self.allowed:
            self.looked_ahead(node, track)
        _, window = gathered(track, least)
        if window.back > track.count and WINDOW not in self.allowed:
            frames = f"all {track.length} frames of the sequence" if track.length > 1 else "frames of different times"
            self.refuse(node, f"needs {frames} at once", _WINDOW_HINT.format(window.size))
        return self.window(node, value, track, window, None)

    def looked_ahead(self, node: Node, track: Frames) -> NoReturn:
        what = (
            "the layer pads behind the end of the sequence, and that reaches the result: a stream does not know its end"
        )
        raise UnsupportedError(what, where=track.blame or str(node.loc), hint=_LOOKAHEAD_HINT)

    def postponed(self, node: Node, value: str, steps: int) -> str:
        """A value of a step, so many steps later."""
        if not steps:
            return value
        kind = self.types[value]
        one = self.add(node, "reshape", (value,), {"shape": (1, *kind.shape)}, replace(kind, quant=_plain(kind)))
        late = self.fetch(node, one, 0, float(self.zero(value)), 1 + steps, 1, 1)
        return self.add(node, "reshape", (late,), {"shape": kind.shape}, kind)

    # ------------------------------------------------------------ nodes

    def add(
        self, node: Node, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr], like: TensorType | None = None
    ) -> str:
        """A node of our own; its result is quantised as ``like``."""
        definition = registry.get(op)
        attrs = {**definition.defaults, **attrs}
        (kind,) = definition.infer(attrs, [self.types[name] for name in inputs])
        if like is not None:
            kind = replace(kind, dtype=like.dtype, quant=_plain(like), layout=like.layout)
        name = self.memory.name(f"{node.outputs[0]}.{op}", kind)
        self.nodes.append(Node(op, tuple(inputs), (name,), attrs, node.loc))
        return name

    def write(
        self, node: Node, inputs: Sequence[str], attrs: Mapping[str, Attr], tracks: Sequence[Track | None]
    ) -> None:
        """The node itself, on other operands: its results keep their names."""
        kinds = registry.infer(node.op, attrs, [self.types[name] for name in inputs if name])
        for name, kind, track in zip(node.outputs, kinds, tracks, strict=True):
            if name:
                old = self.graph.types[name]
                self.types[name] = replace(old, shape=kind.shape)
                if track is not None:
                    self.tracks[name] = track
        self.nodes.append(replace(node, inputs=tuple(inputs), attrs=attrs))

    def write_whole(self, node: Node) -> None:
        """The node as it is, on all frames of its operands."""
        least = 0
        for value in node.inputs:
            track = self.track(value)
            if isinstance(track, Whole):
                least = max(least, track.delay)
            elif track is not None:
                least = max(least, gathered(track)[0].delay)
        inputs = [self.whole(node, value, least) if self.track(value) is not None else value for value in node.inputs]
        self.write(node, inputs, node.attrs, (Whole(least),) * len(node.outputs))


def _plain(kind: TensorType) -> Quant | None:
    """A type's quantisation if it is the same everywhere."""
    return kind.quant if kind.quant is not None and kind.quant.axis is None else None
