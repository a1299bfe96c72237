"""What a stream keeps: for every value that is read later than it comes, its last frames as state of the graph.

Frames that lie side by side are kept in order: what is there moves up in each step, and the window is the state itself. Where
taps lie far apart, moving everything would cost more than the layer: then the frames stay where they are, in a ring, and the
taps are fetched from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import lcm, prod

import numpy as np

from microc import dtypes
from microc.dtypes import Array
from microc.frozen import frozen
from microc.graph.ir import Loc, Node, TensorType, new_value
from microc.ops.rounding import Rounding

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
