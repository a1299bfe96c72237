"""Walking a graph and writing it anew for a step of a stream: operands with their tracks, and the nodes that come of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NoReturn

import numpy as np

from microc.dtypes import Array
from microc.errors import UnsupportedError
from microc.graph.ir import Attr, Graph, Node, Quant, TensorType
from microc.ops import registry
from microc.ops.rounding import Rounding
from microc.transform.streaming.history import Memory, Read
from microc.transform.streaming.track import Frames, Track, Whole, Window, gathered

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
