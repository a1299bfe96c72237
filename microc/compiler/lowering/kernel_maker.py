"""Functions of a graph: groups scheduled, equal kernels merged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from types import MappingProxyType

import numpy as np

from microc import te
from microc.base.immutable import frozen
from microc.compiler.fit.striping import Chain
from microc.compiler.lowering.control_flow import LoweredControl, goal_inside, place_control
from microc.compiler.lowering.kernel_selection import algorithms_of, alias_of, chosen, key_of, replayed, stored
from microc.errors import MicrocError
from microc.external.partition import Taken
from microc.graph.ir import Graph, Node
from microc.module import Call, Kernel, Module, Size, Value
from microc.ops.lowering import LoweredGroup, Param
from microc.ops.registry import Alias
from microc.schedule.choose import Choice, workspace_bytes
from microc.schedule.primitives.tree import Step
from microc.schedule.rules.around_rules import across_threads
from microc.target import Goal, Target
from microc.tir import ir
from microc.tir.rewrite import map_children, map_stmt
from microc.tir.verify import constants_of, verify

# ---- What makes the functions of a graph: its groups scheduled, its control flow placed, its copies.


@frozen
class Group:
    """Nodes that are one kernel, of control flow perhaps; ``uses``, ``in_place`` as in :meth:`Maker.group`."""

    nodes: tuple[Node, ...]
    uses: int = 1
    in_place: bool = False


@frozen
class Copy:
    """A copy of a whole value; ``constant``: of one that lies in flash."""

    value: str
    constant: bool


@frozen
class TunedSchedule:
    """A measured schedule: the algorithm by name, the rule, its steps."""

    algorithm: str
    rule: str
    trace: tuple[Step, ...]


TAKEN = ", tuned"
"""What the names of rules end with whose schedules were measured."""
Tuned = Mapping[str, TunedSchedule]
"""By :func:`key_of`."""
Workspaces = Mapping[str, int]
"""Bytes that kernels may take beside their operands, by :func:`key_of`; others any number."""
Goals = Mapping[str, Goal]
"""Of groups and nodes of control flow whose goal is another than the network's, by their last result."""
External = Mapping[tuple[str, ...], Taken]
"""Regions that somebody else's code computes, by the attribute ``code`` of their nodes."""
Origin = Group | Copy | Chain
"""What a call was made from."""


def lower_copy(graph: Graph, copy: Copy) -> LoweredGroup:
    """A copy, element by element."""
    value, constant = copy.value, copy.constant
    kind = graph.types[value]
    x = te.placeholder((kind.size,), kind.dtype, "x")
    out = te.compute((kind.size,), lambda i: x[i], "out", ("i",))
    func = te.create_prim_func("copy", [] if constant else [x], [out], [x] if constant else [])
    param, node = Param("x", value, graph.consts.get(value) if constant else None), Node("copy", (value,), ("out",))
    return LoweredGroup(func, (param,), ("out",), node, 0, (out,), (x,) if constant else ())


class Maker:
    """Makes the functions of a graph, whose large loops are split among ``threads``. ``tuned``: schedules of kernels that were
    measured, ``taken``: the keys of those that kernels have; ``shipped``: those that come with the compiler are taken;
    ``workspaces``: what is chosen keeps within these; ``goals`` of kernels for which the network's is not theirs. ``external``:
    regions with code of others; without, they are lowered as control flow is. ``origins``: what every call was made from, by the
    values that it writes."""

    sizes: tuple[Size, ...] = ()
    """Sizes that are told when the network runs."""

    def __init__(
        self,
        graph: Graph,
        target: Target,
        goal: Goal,
        threads: int = 1,
        tuned: Tuned = MappingProxyType({}),
        external: External = MappingProxyType({}),
        *,
        shipped: bool = False,
        workspaces: Workspaces = MappingProxyType({}),
        goals: Goals = MappingProxyType({}),
    ) -> None:
        self.graph, self.target, self.goal, self.threads = graph, target, goal, threads
        self.tuned, self.shipped, self.external, self.workspaces = tuned, shipped, external, workspaces
        self.goals = goals
        self.origins: dict[tuple[str, ...], Origin] = {}
        self.taken: set[str] = set()

    def group(self, nodes: Sequence[Node], uses: int, *, in_place: bool = False) -> tuple[LoweredGroup, Choice]:
        """A group, and its schedule; ``uses``: how many groups are alike, ``in_place`` as in :func:`schedule_group`."""
        lowered = algorithms_of(self.graph, nodes, self.target, "kernel", in_place=in_place)
        goal = self.goal_of(nodes)
        number, choice = self.scheduled(lowered, goal, uses)
        choice = stored(lowered[number], choice, self.target, goal, uses)
        return lowered[number], across_threads(choice, self.target, self.threads)

    def scheduled(self, lowered: Sequence[LoweredGroup], goal: Goal, uses: int) -> tuple[int, Choice]:
        """The algorithm of a group, by number, and the schedule for it: as measured, as shipped, or as the rules choose."""
        limit = self._workspace(lowered)
        return self._tuned(lowered) or chosen(lowered, self.target, goal, uses, shipped=self.shipped, workspace=limit)

    def goal_of(self, nodes: Sequence[Node]) -> Goal:
        """What is to be least of a group, or of a node of control flow."""
        return self.goals.get(nodes[-1].outputs[0], self.goal)

    def room(self, lowered: Sequence[LoweredGroup], goal: Goal, uses: int) -> float:
        """Bytes of workspace that a group's kernel is kept within: any number where it would keep within them by itself."""
        limit = self._workspace(lowered)
        if limit == inf:
            return inf
        _, choice = chosen(lowered, self.target, goal, uses, shipped=self.shipped)
        return limit if workspace_bytes(choice.func) > limit else inf

    def _workspace(self, lowered: Sequence[LoweredGroup]) -> float:
        return self.workspaces.get(key_of(lowered, self.target), inf) if self.workspaces else inf

    def inside(self, lowered: Sequence[LoweredGroup], goal: Goal) -> tuple[int, Choice]:
        """The same for a group inside of control flow; ``goal`` as in :func:`goal_inside`."""
        return self._tuned(lowered) or chosen(lowered, self.target, goal)

    def _tuned(self, lowered: Sequence[LoweredGroup]) -> tuple[int, Choice] | None:
        """What was measured to be best."""
        if not self.tuned or (found := self.tuned.get(key := key_of(lowered, self.target))) is None:
            return None
        try:
            number = next(k for k, group in enumerate(lowered) if group.algorithm == found.algorithm)
            choice = replayed(lowered[number], found.trace, found.rule + TAKEN)
        except (StopIteration, MicrocError):  # what constants promise is less here than in the layer that was measured
            return None
        self.taken.add(key)
        return number, choice

    def control(self, node: Node) -> LoweredControl:
        """A node of control flow."""

        def schedule(inner: Graph, nodes: Sequence[Node], turns: int) -> tuple[LoweredGroup, Choice]:
            lowered, goal = (
                algorithms_of(inner, nodes, self.target, "kernel"),
                goal_inside(self.goal_of((node,)), turns),
            )
            number, choice = self.inside(lowered, goal)
            return lowered[number], stored(lowered[number], choice, self.target, goal)

        return place_control(self.graph, node, schedule, self.target)

    def copy(self, copy: Copy) -> ir.PrimFunc:
        """A copy of a whole value, as fast as the core moves its elements."""
        choice = chosen((lower_copy(self.graph, copy),), self.target, self.goal)[1]
        return across_threads(choice, self.target, self.threads).func

    def alias(self, node: Node) -> Alias | None:
        """How a node is done by placing tensors, if it can be."""
        return alias_of(self.graph, node)

    def extents(self, value: str) -> tuple[ir.Expr, ...]:
        """The shape of a value where it depends on sizes."""
        return ()


@frozen
class Compiled:
    """A module, and what made its functions."""

    module: Module
    make: Maker


# ---- Kernels that differ in a few literals become one C function that reads them from a table of constants.
#
# Layers of one shape differ in their multipliers, shifts and zero points. One body for all of them costs a load or two per
# tile and saves hundreds of bytes of code per layer.

TABLE = "constants"
MOST = 8
"""A table of more entries would cost more loads than the merged code is worth."""


@frozen
class _Skeleton:
    """A function without its int32 literals, and the literals in order of appearance."""

    func: ir.PrimFunc
    literals: tuple[int, ...]


def merge_kernels(module: Module) -> Module:
    """``module`` with the kernels merged that are equal but for at most :data:`MOST` literals."""
    alike: dict[object, list[tuple[Kernel, _Skeleton]]] = {}
    for kernel in module.kernels:
        skeleton = _skeleton(kernel.func)
        alike.setdefault((skeleton.func.params, skeleton.func.body), []).append((kernel, skeleton))
    for family in alike.values():
        if len(family) > 1:
            module = _merge(module, family)
    return module


def _visit(func: ir.PrimFunc, on_literal: Callable[[int], ir.Expr]) -> ir.PrimFunc:
    """The function with its int32 literals mapped: those that are computed with, not those that index memory."""

    def go(expr: ir.Expr) -> ir.Expr:
        match expr:
            case ir.Const(int() as value, "int32"):
                return on_literal(value)
            case ir.Load() | ir.AddressOf():
                return expr
            case _:
                return map_children(expr, go)

    def on_stmt(s: ir.Stmt) -> ir.Stmt:
        match s:
            case ir.Store(buffer, indices, value):
                return ir.Store(buffer, indices, go(value))
            case ir.Let(var, value, body):
                return ir.Let(var, go(value), body)
            case ir.Evaluate(value):
                return ir.Evaluate(go(value))
            case _:
                return s

    return replace(func, name="", body=map_stmt(func.body, on_stmt))


def _skeleton(func: ir.PrimFunc) -> _Skeleton:
    literals: list[int] = []

    def collect(value: int) -> ir.Expr:
        literals.append(value)
        return ir.const(0, "int32")

    return _Skeleton(_visit(func, collect), tuple(literals))


def _merge(module: Module, family: list[tuple[Kernel, _Skeleton]]) -> Module:
    """One kernel for the family, a table for each member, and calls that pass it."""
    columns = list(zip(*(skeleton.literals for _, skeleton in family), strict=True))
    slots: dict[tuple[int, ...], int] = {}
    for column in columns:
        if len(set(column)) > 1:
            slots.setdefault(column, len(slots))
    if not 0 < len(slots) <= MOST:
        return module
    first = family[0][0]
    table = ir.Buffer(TABLE, (len(slots),), "int32", "const")
    place = iter(columns)

    def load(value: int) -> ir.Expr:
        column = next(place)
        return table[slots[column]] if column in slots else ir.const(value, "int32")

    body = _visit(first.func, load).body
    func = ir.PrimFunc(first.name, (*first.func.params, table), body, first.func.annotations)
    verify(func, tables=constants_of(func))  # the table has literals of members, each of which was verified with them
    values, tables = dict(module.values), {}
    for member, (kernel, _) in enumerate(family):
        name = f"{kernel.name}_{TABLE}"
        data = np.array([column[member] for column in slots], np.int32)
        values[name] = Value(name, data.shape, "int32", "const", data, label=name)
        tables[kernel.name] = name
    alike = tuple(block for block in first.blocks if all(block in kernel.blocks for kernel, _ in family))
    merged = replace(first, func=func, blocks=alike)
    gone = {kernel.name for kernel, _ in family[1:]}
    kernels = tuple(merged if k is first else k for k in module.kernels if k.name not in gone)
    calls = tuple(_through(call, first.name, tables) for call in module.calls)
    return replace(module, kernels=kernels, calls=calls, values=values)


def _through(call: Call, kernel: str, tables: dict[str, str]) -> Call:
    """The call by way of the merged kernel, if it was one of the family's."""
    if call.kernel not in tables:
        return call
    return replace(call, kernel=kernel, args=(*call.args, tables[call.kernel]))
