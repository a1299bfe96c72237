"""Build the functions of a graph, and merge kernels that differ in literals."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field, replace
from math import inf

import numpy as np

from microc import te
from microc.base.immutable import frozen
from microc.compiler.fit.striping import Chain
from microc.compiler.lowering.control_flow import LoweredControl, goal_inside, lower_control_flow
from microc.compiler.lowering.kernel_selection import (
    group_algorithms,
    node_alias,
    replay_on_group,
    select_group_schedule,
    tuning_key,
    with_16_bit_constants,
)
from microc.errors import MicrocError
from microc.external.partition import ClaimedRegion
from microc.graph.ir import Graph, Node
from microc.module import Call, Kernel, Module, Size, Value
from microc.ops.lowering import LoweredGroup, Param
from microc.ops.registry import Alias
from microc.schedule.choose import Choice, workspace_bytes
from microc.schedule.primitives.tree import Step
from microc.schedule.rules.around_rules import split_across_threads
from microc.target import Goal, Target
from microc.tir import ir
from microc.tir.rewrite import map_children, map_stmt
from microc.tir.verify import constant_names, verify

# ---- Functions of a graph: scheduled groups, lowered control flow, copies.


@frozen
class KernelGroup:
    """The origin of a call: the nodes that became one kernel, or a node of control flow; ``uses``, ``in_place`` as in
    :meth:`KernelBuilder.group`."""

    nodes: tuple[Node, ...]
    uses: int = 1
    in_place: bool = False


@frozen
class ValueCopy:
    """The origin of a call that copies a whole value; ``constant``: the value is in flash."""

    value: str
    constant: bool


@frozen
class TunedSchedule:
    """A schedule that was chosen by measurement: algorithm and rule by name, and its steps."""

    algorithm: str
    rule: str
    trace: tuple[Step, ...]


TUNED_SUFFIX = ", tuned"
"""Suffix, in reports, of the rules of measured schedules."""
Tuned = Mapping[str, TunedSchedule]
"""Measured schedules by :func:`tuning_key`."""
Workspaces = Mapping[str, int]
"""Limits of kernel workspaces in bytes, by :func:`tuning_key`; others are unlimited."""
Goals = Mapping[str, Goal]
"""Goals of groups and control flow that differ from the network's, by their last result."""
External = Mapping[tuple[str, ...], ClaimedRegion]
"""Regions that external code computes, by the attribute ``code`` of their nodes."""
Origin = KernelGroup | ValueCopy | Chain
"""The nodes or value that a call was made from."""


@frozen
class Configuration:
    """Everything that a network's kernels are built from, apart from the target.

    ``graph``: after all passes; ``goal``: of the network, ``goals``: of kernels that differ from it; ``workspaces``: limits;
    ``tuned``: measured schedules; ``chains``: layers that are computed row by row, as one kernel each; ``external``:
    regions in external code. Compared by :attr:`key`."""

    graph: Graph
    goal: Goal
    goals: Goals = field(default_factory=dict)
    workspaces: Workspaces = field(default_factory=dict)
    tuned: Tuned = field(default_factory=dict)
    chains: tuple[Chain, ...] = ()
    external: External = field(default_factory=dict)

    @property
    def key(self) -> Hashable:
        """Key of equal configurations, while their graphs exist: graphs are compared by identity."""
        changes = (self.goals, self.workspaces, self.tuned)
        return (
            id(self.graph),
            self.goal,
            *(frozenset(each.items()) for each in changes),
            self.chains,
            bool(self.external),
        )


def lower_copy(graph: Graph, copy: ValueCopy) -> LoweredGroup:
    """Lower the copy of a whole value to a function that copies element by element."""
    value, constant = copy.value, copy.constant
    type_ = graph.types[value]
    x = te.placeholder((type_.size,), type_.dtype, "x")
    out = te.compute((type_.size,), lambda i: x[i], "out", ("i",))
    func = te.create_prim_func("copy", [] if constant else [x], [out], [x] if constant else [])
    param, node = Param("x", value, graph.consts.get(value) if constant else None), Node("copy", (value,), ("out",))
    return LoweredGroup(func, (param,), ("out",), node, 0, (out,), (x,) if constant else ())


class KernelBuilder:
    """Builds the functions of the kernels of a configuration.

    ``threads`` share its large loops; ``shipped``: use bundled schedules. External regions that the configuration does not
    name are lowered like control flow. ``origins``: the origin of every call, by the values that it writes; ``taken``: the
    keys of the measured schedules that were used."""

    sizes: tuple[Size, ...] = ()
    """Dynamic sizes."""

    def __init__(
        self, configuration: Configuration, target: Target, threads: int = 1, *, shipped: bool = False
    ) -> None:
        self.configuration, self.target, self.threads, self.shipped = configuration, target, threads, shipped
        self.graph, self.goal = configuration.graph, configuration.goal
        self.origins: dict[tuple[str, ...], Origin] = {}
        self.taken: set[str] = set()

    def group(self, nodes: Sequence[Node], uses: int, *, in_place: bool = False) -> tuple[LoweredGroup, Choice]:
        """Lower and schedule a group. ``uses``: number of equal groups; ``in_place`` as in
        :func:`.kernel_selection.schedule_group`."""
        lowered = group_algorithms(self.graph, nodes, self.target, "kernel", in_place=in_place)
        goal = self.goal_of(nodes)
        number, choice = self.choose_schedule(lowered, goal, uses)
        choice = with_16_bit_constants(lowered[number], choice, self.target, goal, uses)
        return lowered[number], split_across_threads(choice, self.target, self.threads)

    def choose_schedule(self, lowered: Sequence[LoweredGroup], goal: Goal, uses: int) -> tuple[int, Choice]:
        """Choose the algorithm, by number, and the schedule of a group: measured, else bundled, else the rules' choice."""
        limit = self._workspace_limit(lowered)
        return self._tuned_choice(lowered) or select_group_schedule(
            lowered, self.target, goal, uses, shipped=self.shipped, workspace=limit
        )

    def goal_of(self, nodes: Sequence[Node]) -> Goal:
        """Return the goal of a group, or of a node of control flow."""
        return self.configuration.goals.get(nodes[-1].outputs[0], self.goal)

    def room(self, lowered: Sequence[LoweredGroup], goal: Goal, uses: int) -> float:
        """Return the workspace limit of a group's kernel in bytes; infinite if the unlimited choice keeps within it."""
        limit = self._workspace_limit(lowered)
        if limit == inf:
            return inf
        _, choice = select_group_schedule(lowered, self.target, goal, uses, shipped=self.shipped)
        return limit if workspace_bytes(choice.func) > limit else inf

    def _workspace_limit(self, lowered: Sequence[LoweredGroup]) -> float:
        """Return the workspace limit of a group's kernel in bytes."""
        limits = self.configuration.workspaces
        return limits.get(tuning_key(lowered, self.target), inf) if limits else inf

    def inside(self, lowered: Sequence[LoweredGroup], goal: Goal) -> tuple[int, Choice]:
        """Choose algorithm and schedule for a group inside of control flow; ``goal`` as in :func:`goal_inside`."""
        return self._tuned_choice(lowered) or select_group_schedule(lowered, self.target, goal)

    def _tuned_choice(self, lowered: Sequence[LoweredGroup]) -> tuple[int, Choice] | None:
        """Return the measured schedule of a group; None if there is none, or if it does not fit this layer."""
        measured = self.configuration.tuned
        if not measured or (tuned := measured.get(key := tuning_key(lowered, self.target))) is None:
            return None
        try:
            number = next(k for k, group in enumerate(lowered) if group.algorithm == tuned.algorithm)
            choice = replay_on_group(lowered[number], tuned.trace, tuned.rule + TUNED_SUFFIX)
        except (StopIteration, MicrocError):
            # The bounds of this layer's constants are weaker than those of the layer that was measured.
            return None
        self.taken.add(key)
        return number, choice

    def control(self, node: Node) -> LoweredControl:
        """Lower a node of control flow."""

        def schedule(inner: Graph, nodes: Sequence[Node], iterations: int) -> tuple[LoweredGroup, Choice]:
            lowered, goal = (
                group_algorithms(inner, nodes, self.target, "kernel"),
                goal_inside(self.goal_of((node,)), iterations),
            )
            number, choice = self.inside(lowered, goal)
            return lowered[number], with_16_bit_constants(lowered[number], choice, self.target, goal)

        return lower_control_flow(self.graph, node, schedule, self.target)

    def copy(self, copy: ValueCopy) -> ir.PrimFunc:
        """Lower a copy of a whole value, by the widest moves of the core."""
        choice = select_group_schedule((lower_copy(self.graph, copy),), self.target, self.goal)[1]
        return split_across_threads(choice, self.target, self.threads).func

    def alias(self, node: Node) -> Alias | None:
        """Return the placement of tensors that replaces a node without a kernel; None if it needs a kernel."""
        return node_alias(self.graph, node)

    def extents(self, value: str) -> tuple[ir.Expr, ...]:
        """Return the shape of a value as expressions of the dynamic sizes; empty if it is static."""
        return ()


@frozen
class CompiledNetwork:
    """A module, and the builder of its functions."""

    module: Module
    make: KernelBuilder

    @property
    def configuration(self) -> Configuration:
        return self.make.configuration


# ---- Merging: kernels that differ in a few literals become one C function that reads these from a table.
#
# Layers of one shape differ in their multipliers, shifts and zero points. One body for all of them costs a load or two per
# tile and saves hundreds of bytes of code per layer.

TABLE = "constants"
MAX_TABLE_ENTRIES = 8
"""Most entries of a table: more would cost more loads than the merged code is worth."""


@frozen
class _LiteralFreeFunction:
    """A function with its int32 literals replaced by 0, and the literals in order of appearance."""

    func: ir.PrimFunc
    literals: tuple[int, ...]


def merge_kernels(module: Module) -> Module:
    """Merge the kernels of ``module`` that are equal except for at most :data:`MAX_TABLE_ENTRIES` literals."""
    families: dict[object, list[tuple[Kernel, _LiteralFreeFunction]]] = {}
    for kernel in module.kernels:
        skeleton = _separate_literals(kernel.func)
        families.setdefault((skeleton.func.params, skeleton.func.body), []).append((kernel, skeleton))
    for family in families.values():
        if len(family) > 1:
            module = _merge_family(module, family)
    return module


def _map_literals(func: ir.PrimFunc, on_literal: Callable[[int], ir.Expr]) -> ir.PrimFunc:
    """Map the int32 literals that a function computes with, but not those that index memory; the function's name becomes
    empty."""

    def map_expr_literals(expr: ir.Expr) -> ir.Expr:
        match expr:
            case ir.Const(int() as value, "int32"):
                return on_literal(value)
            case ir.Load() | ir.AddressOf():
                return expr
            case _:
                return map_children(expr, map_expr_literals)

    def on_stmt(s: ir.Stmt) -> ir.Stmt:
        match s:
            case ir.Store(buffer, indices, value):
                return ir.Store(buffer, indices, map_expr_literals(value))
            case ir.Let(var, value, body):
                return ir.Let(var, map_expr_literals(value), body)
            case ir.Evaluate(value):
                return ir.Evaluate(map_expr_literals(value))
            case _:
                return s

    return replace(func, name="", body=map_stmt(func.body, on_stmt))


def _separate_literals(func: ir.PrimFunc) -> _LiteralFreeFunction:
    """Separate a function from the int32 literals that it computes with."""
    literals: list[int] = []

    def collect(value: int) -> ir.Expr:
        literals.append(value)
        return ir.const(0, "int32")

    return _LiteralFreeFunction(_map_literals(func, collect), tuple(literals))


def _merge_family(module: Module, family: list[tuple[Kernel, _LiteralFreeFunction]]) -> Module:
    """Merge a family of kernels that differ in literals: one function, a table of literals for each member, and calls that
    pass it.

    The module is returned unchanged if the tables would be empty or larger than :data:`MAX_TABLE_ENTRIES`."""
    columns = list(zip(*(skeleton.literals for _, skeleton in family), strict=True))
    # Literals with the same values in all members share an entry.
    slots: dict[tuple[int, ...], int] = {}
    for column in columns:
        if len(set(column)) > 1:
            slots.setdefault(column, len(slots))
    if not 0 < len(slots) <= MAX_TABLE_ENTRIES:
        return module
    first = family[0][0]
    table = ir.Buffer(TABLE, (len(slots),), "int32", "const")
    remaining = iter(columns)

    def load(value: int) -> ir.Expr:
        column = next(remaining)
        return table[slots[column]] if column in slots else ir.const(value, "int32")

    body = _map_literals(first.func, load).body
    func = ir.PrimFunc(first.name, (*first.func.params, table), body, first.func.annotations)
    verify(func, tables=constant_names(func))  # the table has literals of members, each of which was verified with them
    values, tables = dict(module.values), {}
    for member, (kernel, _) in enumerate(family):
        name = f"{kernel.name}_{TABLE}"
        data = np.array([column[member] for column in slots], np.int32)
        values[name] = Value(name, data.shape, "int32", "const", data, label=name)
        tables[kernel.name] = name
    common_blocks = tuple(block for block in first.blocks if all(block in kernel.blocks for kernel, _ in family))
    merged = replace(first, func=func, blocks=common_blocks)
    gone = {kernel.name for kernel, _ in family[1:]}
    kernels = tuple(merged if k is first else k for k in module.kernels if k.name not in gone)
    calls = tuple(_redirect_call(call, first.name, tables) for call in module.calls)
    return replace(module, kernels=kernels, calls=calls, values=values)


def _redirect_call(call: Call, kernel: str, tables: dict[str, str]) -> Call:
    """Redirect a call of a merged kernel to the common function, with its table as the last argument; other calls are
    unchanged."""
    if call.kernel not in tables:
        return call
    return replace(call, kernel=kernel, args=(*call.args, tables[call.kernel]))
