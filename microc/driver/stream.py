"""A chain of groups becomes one kernel that works row by row (:mod:`microc.tir.stream`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from microc.errors import InternalError
from microc.graph.ir import Graph, Node
from microc.ops.lowering import LoweredGroup, Param, lower_group
from microc.ops.rows import RowGroup, row_group
from microc.schedule.choose import choose
from microc.schedule.rules import candidates
from microc.schedule.schedule import Schedule
from microc.target import Goal, Target
from microc.tir import ir
from microc.tir.stream import Layer, Window, stream

Group = tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Chain:
    """Groups, by name, to stream: the first reads rows of the value ``data``, every other one the result of the one before."""

    data: str
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LoweredStream:
    """A kernel before it is named. ``params`` are what its parameters are bound to, all but the result and workspaces;
    ``schedules`` are those of the layers."""

    func: ir.PrimFunc
    params: tuple[Param, ...]
    result: str
    schedules: tuple[Schedule, ...]


@dataclass(frozen=True, slots=True)
class LoweredRow:
    """One layer, lowered for one row."""

    rows: RowGroup
    group: LoweredGroup
    schedule: Schedule
    layer: Layer


def result_of(group: Group) -> str:
    """The value that a group makes."""
    return group[-1].outputs[0]


def lower_row(graph: Graph, group: Group, data: str, target: Target, goal: Goal) -> LoweredRow | None:
    """A group for one row, scheduled and lowered; None where :func:`row_group` says so."""
    rows = row_group(graph, group, data)
    if rows is None:
        return None
    lowered = lower_group(rows.graph, rows.nodes, target, "row")
    choice = choose(candidates(lowered.func, lowered.anchor.op, target, goal), target, goal)
    schedule, func = choice.schedule, choice.func
    bound = dict(zip((p.value for p in lowered.params if p.array is None), func.params, strict=False))
    _, _, width, channels = graph.types[data].shape
    top, left, bottom, right = rows.window.padding
    window = Window(
        reach=rows.window.reach,
        stride=rows.window.stride,
        width=width * channels,
        top=top,
        bottom=bottom,
        left=left * channels,
        right=right * channels,
        pad_value=rows.window.pad_value,
    )
    layer = Layer(
        func=func,
        window=window,
        data=bound[data],
        result=func.params[len(lowered.params)],
        rows=graph.types[result_of(group)].shape[1],
        by_row=tuple(bound[v] for v in rows.by_row),
    )
    return LoweredRow(rows, lowered, schedule, layer)


def lower_stream(graph: Graph, chain: Sequence[Group], data: str, target: Target, goal: Goal) -> LoweredStream:
    """The kernel of a chain, whose first group reads ``data`` and every other group the result of the one before."""
    found: list[LoweredRow] = []
    for group in chain:
        row = lower_row(graph, group, data, target, goal)
        if row is None:
            raise InternalError("a group that does not work row by row", where=str(group[0].loc))
        found.append(row)
        data = result_of(group)
    height = graph.types[found[0].rows.data].shape[1]
    made = stream("stream", [row.layer for row in found], height, words=target.has("unaligned"))
    params = [_param(found[layer], serves) for layer, serves in made.origins[:-1]]
    return LoweredStream(made.func, tuple(params), data, tuple(row.schedule for row in found))


def _param(row: LoweredRow, serves: ir.Buffer) -> Param:
    """What a layer's parameter is bound to; constants as the schedule packs them."""
    position = row.layer.func.params.index(serves)
    param = row.group.params[position]
    if param.array is None:
        return param
    return Param(param.role, param.value, row.schedule.packed(row.group.func.params[position], param.array))
