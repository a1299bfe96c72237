"""A chain of groups becomes one kernel that works row by row (:mod:`microc.tir.stream`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from microc import dtypes
from microc.errors import InternalError
from microc.graph.ir import Graph, Node
from microc.module import Streamed
from microc.ops.lowering import LoweredGroup, Param, lower_group, macs_of
from microc.ops.rows import companions, row_group, row_window
from microc.schedule.choose import choose
from microc.schedule.rules import candidates
from microc.schedule.schedule import Schedule
from microc.target import Goal, Target
from microc.tir import ir
from microc.tir.stream import Layer, stream
from microc.tir.stripes import Shape, Window, choose_blocks

Group = tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Chain:
    """Groups, by name, to stream: the first reads rows of the value ``data``, every other one the result of the one before.

    ``height``: the most rows that a layer makes at a time.
    """

    data: str
    groups: tuple[str, ...]
    height: int = 1


@dataclass(frozen=True, slots=True)
class LoweredStream:
    """A kernel before it is named. ``params`` are what its parameters are bound to, all but the result and workspaces;
    ``schedules`` are those of the layers, ``price`` what they cost."""

    func: ir.PrimFunc
    params: tuple[Param, ...]
    result: str
    schedules: tuple[Schedule, ...]
    price: Streamed


@dataclass(frozen=True, slots=True)
class _Rows:
    """One layer, lowered for a block of rows."""

    group: LoweredGroup
    schedule: Schedule
    layer: Layer


def result_of(group: Group) -> str:
    """The value that a group makes."""
    return group[-1].outputs[0]


def sources_of(chain: Chain, groups: Mapping[str, Group]) -> tuple[str, ...]:
    """The value that each group of a chain works on row by row."""
    return chain.data, *(result_of(groups[name]) for name in chain.groups[:-1])


def shapes_of(graph: Graph, chain: Chain, groups: Mapping[str, Group]) -> tuple[Shape, ...]:
    """What the layers of a chain hold and make at a time."""
    pairs = zip(chain.groups, sources_of(chain, groups), strict=True)
    return choose_blocks([_shape(graph, groups[name], data) for name, data in pairs], chain.height)


def price_of(graph: Graph, chain: Chain, groups: Mapping[str, Group], shapes: Sequence[Shape]) -> Streamed:
    """Rows that are computed outside the image, and rows that windows copy."""
    extra = moved = 0
    for k, (name, data, shape) in enumerate(zip(chain.groups, sources_of(chain, groups), shapes, strict=True)):
        if k or shape.window.padded:
            row = shape.window.width * dtypes.nbytes(graph.types[data].dtype)
            turns = shape.computed // shape.block
            moved += row * (turns * (shape.held - shape.step) + (0 if k else graph.types[data].shape[1]))
        extra += sum(macs_of(graph, node) for node in groups[name]) * (shape.computed - shape.rows) // shape.rows
    return Streamed(tuple(str(groups[name][0].loc) for name in chain.groups), extra, moved)


def lower_stream(graph: Graph, chain: Chain, groups: Mapping[str, Group], target: Target, goal: Goal) -> LoweredStream:
    """The kernel of a chain. ``groups``: all groups by name."""
    members, sources = [groups[name] for name in chain.groups], sources_of(chain, groups)
    shapes = shapes_of(graph, chain, groups)
    found = [
        _lower_rows(graph, group, data, shape, target, goal)
        for group, data, shape in zip(members, sources, shapes, strict=True)
    ]
    height = graph.types[chain.data].shape[1]
    made = stream("stream", [rows.layer for rows in found], height, words=target.has("unaligned"))
    params = tuple(_param(found[layer], serves) for layer, serves in made.origins[:-1])
    return LoweredStream(
        made.func,
        params,
        result_of(members[-1]),
        tuple(rows.schedule for rows in found),
        price_of(graph, chain, groups, shapes),
    )


def _shape(graph: Graph, group: Group, data: str) -> Shape:
    """What a group's rows need, before anything is lowered."""
    reads = row_window(graph, group, data)
    if reads is None:
        raise InternalError("a group that does not work row by row", where=str(group[0].loc))
    _, _, width, channels = graph.types[data].shape
    top, _, bottom, _ = reads.padding
    window = Window(reads.reach, reads.stride, width * channels, top, bottom, reads.pad_value)
    return Shape(window, graph.types[result_of(group)].shape[1], whole=bool(companions(graph, group, data)))


def _lower_rows(graph: Graph, group: Group, data: str, shape: Shape, target: Target, goal: Goal) -> _Rows:
    """A group, scheduled and lowered for a block of rows."""
    window = row_window(graph, group, data)
    assert window is not None
    alone, nodes = row_group(graph, group, data, window, shape.block)
    lowered = lower_group(alone, nodes, target, "rows")
    choice = choose(candidates(lowered.func, lowered.anchor.op, target, goal), target, goal)
    schedule, func = choice.schedule, choice.func
    bound = dict(zip((p.value for p in lowered.params if p.array is None), func.params, strict=False))
    by_row = tuple(bound[v] for v in companions(graph, group, data))
    return _Rows(lowered, schedule, Layer(shape, func, bound[data], func.params[len(lowered.params)], by_row))


def _param(row: _Rows, serves: ir.Buffer) -> Param:
    """What a layer's parameter is bound to; constants as the schedule packs them."""
    position = row.layer.func.params.index(serves)
    param = row.group.params[position]
    if param.array is None:
        return param
    return Param(param.role, param.value, row.schedule.packed(row.group.func.params[position], param.array))
