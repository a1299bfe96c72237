"""A chain of groups becomes one kernel that works row by row (:mod:`microc.tir.stream`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from microc.errors import InternalError
from microc.graph.ir import Graph, Node
from microc.ops.lowering import LoweredGroup, Param, lower_group
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
    ``schedules`` are those of the layers."""

    func: ir.PrimFunc
    params: tuple[Param, ...]
    result: str
    schedules: tuple[Schedule, ...]


@dataclass(frozen=True, slots=True)
class _Rows:
    """One layer, lowered for a block of rows."""

    group: LoweredGroup
    schedule: Schedule
    layer: Layer


def result_of(group: Group) -> str:
    """The value that a group makes."""
    return group[-1].outputs[0]


def lower_stream(graph: Graph, chain: Chain, groups: Mapping[str, Group], target: Target, goal: Goal) -> LoweredStream:
    """The kernel of a chain. ``groups``: all groups by name."""
    members = [groups[name] for name in chain.groups]
    sources = [chain.data, *(result_of(group) for group in members)]
    shapes = [_shape(graph, group, data) for group, data in zip(members, sources, strict=False)]
    found = [
        _lower_rows(graph, group, data, shape, target, goal)
        for group, data, shape in zip(members, sources, choose_blocks(shapes, chain.height), strict=False)
    ]
    height = graph.types[chain.data].shape[1]
    made = stream("stream", [rows.layer for rows in found], height, words=target.has("unaligned"))
    params = tuple(_param(found[layer], serves) for layer, serves in made.origins[:-1])
    return LoweredStream(made.func, params, sources[-1], tuple(rows.schedule for rows in found))


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
