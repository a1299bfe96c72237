"""A chain of groups becomes one kernel that works row by row (:mod:`microc.tir.stream`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from microc import dtypes
from microc.driver.compile.kernel import schedule_group
from microc.errors import InternalError
from microc.frozen import frozen
from microc.graph.ir import Graph, Node
from microc.module import Streamed
from microc.ops.lowering import LoweredGroup, Param, macs_of
from microc.ops.rows import companions, row_group, row_window
from microc.schedule.schedule import Schedule
from microc.target import Goal, Target
from microc.tir import ir
from microc.tir.stream import Layer, stream
from microc.tir.stripes import Shape, Window, choose_blocks
from microc.tir.verify import verify

Group = tuple[Node, ...]


@frozen
class Chain:
    """Groups, by name, to stream: the first reads rows of the value ``data``, every other one the result of the one before.

    ``height``: the most rows that a layer makes at a time.
    """

    data: str
    groups: tuple[str, ...]
    height: int = 1


@frozen
class LoweredStream:
    """The kernel of a chain before it is named.

    ``params`` are what its parameters are bound to, all but the result and workspaces; ``schedules`` are those of the layers,
    ``price`` what they cost.
    """

    chain: Chain
    func: ir.PrimFunc
    params: tuple[Param, ...]
    result: str
    schedules: tuple[Schedule, ...]
    price: Streamed


@frozen
class _Rows:
    """One layer, lowered for a block of rows."""

    group: LoweredGroup
    schedule: Schedule
    layer: Layer


def result_of(group: Group) -> str:
    """The value that a group makes."""
    return group[-1].outputs[0]


class Streams:
    """Lowers chains of a graph for a target; what has been lowered is kept. ``groups``: all groups by name."""

    def __init__(self, graph: Graph, groups: Mapping[str, Group], target: Target, goal: Goal) -> None:
        self.graph, self.groups, self.target, self.goal = graph, groups, target, goal
        self._streams: dict[Chain, LoweredStream] = {}
        self._rows: dict[tuple[str, Shape], _Rows] = {}

    def sources(self, chain: Chain) -> tuple[str, ...]:
        """The value that each group of a chain works on row by row."""
        return chain.data, *(result_of(self.groups[name]) for name in chain.groups[:-1])

    def shapes(self, chain: Chain) -> tuple[Shape, ...]:
        """What the layers of a chain hold and make at a time."""
        pairs = zip(chain.groups, self.sources(chain), strict=True)
        return choose_blocks([_shape(self.graph, self.groups[name], data) for name, data in pairs], chain.height)

    def price(self, chain: Chain) -> Streamed:
        """Rows that are computed outside the image, and rows that windows copy."""
        extra = moved = 0
        graph, shapes = self.graph, self.shapes(chain)
        for k, (name, data, shape) in enumerate(zip(chain.groups, self.sources(chain), shapes, strict=True)):
            if k or shape.window.padded:
                row = shape.window.width * dtypes.nbytes(graph.types[data].dtype)
                turns = shape.computed // shape.block
                moved += row * (turns * (shape.held - shape.step) + (0 if k else graph.types[data].shape[1]))
            macs = sum(macs_of(graph, node) for node in self.groups[name])
            extra += macs * (shape.computed - shape.rows) // shape.rows
        return Streamed(tuple(str(self.groups[name][0].loc) for name in chain.groups), extra, moved)

    def lower(self, chain: Chain) -> LoweredStream:
        """The kernel of a chain."""
        if chain not in self._streams:
            self._streams[chain] = self._lower(chain)
        return self._streams[chain]

    def _lower(self, chain: Chain) -> LoweredStream:
        triples = zip(chain.groups, self.sources(chain), self.shapes(chain), strict=True)
        found = [self._lower_rows(name, data, shape) for name, data, shape in triples]
        height = self.graph.types[chain.data].shape[1]
        made = stream("stream", [rows.layer for rows in found], height, words=self.target.has("unaligned"))
        params = tuple(_param(found[layer], serves) for layer, serves in made.origins[:-1])
        result, schedules = result_of(self.groups[chain.groups[-1]]), tuple(rows.schedule for rows in found)
        return LoweredStream(chain, made.func, params, result, schedules, self.price(chain))

    def blocks(self, chain: Chain) -> list[tuple[Graph, Group, Goal]]:
        """What is scheduled for a chain: :meth:`block` of every group."""
        triples = zip(chain.groups, self.sources(chain), self.shapes(chain), strict=True)
        return [self.block(name, data, shape) for name, data, shape in triples]

    def block(self, name: str, data: str, shape: Shape) -> tuple[Graph, Group, Goal]:
        """A group for a block of rows, as a graph of its own, and what its schedule is chosen for."""
        window = row_window(self.graph, self.groups[name], data)
        assert window is not None
        alone, nodes = row_group(self.graph, self.groups[name], data, window, shape.block)
        blocks = shape.computed // shape.block
        return alone, nodes, replace(self.goal, price=self.goal.price / blocks)  # of one inference, not of one block

    def _lower_rows(self, name: str, data: str, shape: Shape) -> _Rows:
        """A group, scheduled and lowered for a block of rows."""
        if (name, shape) in self._rows:
            return self._rows[name, shape]
        graph, group = self.graph, self.groups[name]
        alone, nodes, goal = self.block(name, data, shape)
        lowered, choice = schedule_group(alone, nodes, self.target, goal, "rows")
        func = choice.func
        if not choice.verified:
            verify(func, tables=lowered.tables)  # while it is known which of the constants these are
        bound = dict(zip((p.value for p in lowered.params if p.array is None), func.params, strict=False))
        by_row = tuple(bound[v] for v in companions(graph, group, data))
        layer = Layer(shape, func, bound[data], func.params[len(lowered.params)], by_row)
        self._rows[name, shape] = _Rows(lowered, choice.schedule, layer)
        return self._rows[name, shape]


def _shape(graph: Graph, group: Group, data: str) -> Shape:
    """What a group's rows need, before anything is lowered."""
    reads = row_window(graph, group, data)
    if reads is None:
        raise InternalError("a group that does not work row by row", where=str(group[0].loc))
    _, _, width, channels = graph.types[data].shape
    top, _, bottom, _ = reads.padding
    window = Window(reads.reach(0), reads.strides[0], width * channels, top, bottom, reads.pad_value or 0)
    return Shape(window, graph.types[result_of(group)].shape[1], whole=bool(companions(graph, group, data)))


def _param(row: _Rows, serves: ir.Buffer) -> Param:
    """What a layer's parameter is bound to; constants as the schedule packs them."""
    position = row.layer.func.params.index(serves)
    param = row.group.params[position]
    if param.array is None:
        return param
    return Param(param.role, param.value, row.schedule.packed(row.group.func.params[position], param.array))
