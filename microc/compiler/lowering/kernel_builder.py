# SPDX-License-Identifier: Apache-2.0
"""Build the functions of a graph's kernels, merge kernels that differ only in integer literals, and store the constants
of channels behind their weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field, replace
from math import inf, isinf

import numpy as np

from microc import te
from microc.base.immutable import frozen
from microc.compiler.cache import ChoiceFile
from microc.compiler.fit.striping import Chain
from microc.compiler.lowering.control_flow import LoweredControl, goal_per_iteration, lower_control_flow
from microc.compiler.lowering.kernel_selection import (
    find_node_alias,
    group_algorithms,
    replay_on_algorithm,
    select_group_schedule,
    tuning_key,
    with_16_bit_constants,
)
from microc.errors import MicrocError
from microc.external.backend import ClaimedRegion
from microc.graph.ir import Graph, Node
from microc.module import Call, Kernel, Module, Size, Value
from microc.ops.lowering import LoweredGroup, Param
from microc.ops.registry import Alias
from microc.schedule.choose import Choice, workspace_bytes
from microc.schedule.cost.cost_model import estimate
from microc.schedule.primitives.tree import Step
from microc.schedule.rules.around_rules import distribute_among_cores, split_across_threads
from microc.target import Goal, Target
from microc.tir import ir
from microc.tir.analysis.simplification import linear, simplify
from microc.tir.rewrite import accesses_of, map_accesses, map_children, map_stmt, stmt_exprs, walk_stmt
from microc.tir.verify import constant_names, verify

# ---- Functions of a graph's kernels: scheduled groups of nodes, lowered control flow, and copies.


@frozen
class KernelGroup:
    """The origin of a call: the nodes that became one kernel, or a node of control flow.

    ``uses``, ``in_place``: as in :meth:`KernelBuilder.schedule_kernel`.
    """

    nodes: tuple[Node, ...]
    uses: int = 1
    in_place: bool = False


@frozen
class ValueCopy:
    """The origin of a call that copies a whole value. ``constant``: the value is a constant, which is in flash."""

    value: str
    constant: bool


@frozen
class TunedSchedule:
    """A schedule that was chosen by measurement: the name of its algorithm, the name of its rule, and its steps."""

    algorithm: str
    rule: str
    trace: tuple[Step, ...]


TUNED_SUFFIX = ", tuned"
"""Suffix that reports add to the rule of a measured schedule."""
Tuned = Mapping[str, TunedSchedule]
"""Measured schedules, by the :func:`tuning_key` of the kernel."""
Workspaces = Mapping[str, int]
"""Maximum workspace of kernels in bytes, by their :func:`tuning_key`. Kernels that are missing have no limit."""
Goals = Mapping[str, Goal]
"""Goals of groups and of control-flow nodes that differ from the goal of the network, by the name of their last
result."""
External = Mapping[tuple[str, ...], ClaimedRegion]
"""Regions that external code computes, by the attribute ``code`` of their nodes."""
Origin = KernelGroup | ValueCopy | Chain
"""Origin of a call: the nodes, the chain of groups, or the copied value from which the call was made."""


@frozen
class Configuration:
    """All choices that determine the kernels of a network for a given target.

    - ``graph``: the graph after all passes.
    - ``goal``: the goal of the network; ``goals``: goals of kernels that differ from it.
    - ``workspaces``: limits of the workspaces of kernels; ``tuned``: measured schedules.
    - ``chains``: groups that are computed row by row; each chain becomes one kernel.
    - ``external``: regions that external code computes.
    - ``alone``: last outputs of kernels that one core computes alone, although cores share large loops.

    :attr:`key` is equal for equal configurations.
    """

    graph: Graph
    goal: Goal
    goals: Goals = field(default_factory=dict)
    workspaces: Workspaces = field(default_factory=dict)
    tuned: Tuned = field(default_factory=dict)
    chains: tuple[Chain, ...] = ()
    external: External = field(default_factory=dict)
    alone: frozenset[str] = frozenset()

    @property
    def key(self) -> Hashable:
        """Key that is equal for equal configurations. Graphs are compared by identity, so the key is valid only while
        the graph exists."""
        changes = (self.goals, self.workspaces, self.tuned)
        return (
            id(self.graph),
            self.goal,
            *(frozenset(each.items()) for each in changes),
            self.chains,
            bool(self.external),
            self.alone,
        )


def lower_copy(graph: Graph, copy: ValueCopy) -> LoweredGroup:
    """Lower the copy of a whole value to a function that copies element by element."""
    value, constant = copy.value, copy.constant
    type_ = graph.types[value]
    x = te.placeholder((type_.size,), type_.dtype, "x")
    out = te.compute((type_.size,), lambda i: x[i], "out", ("i",))
    func = te.create_prim_func("copy", [] if constant else [x], [out], [x] if constant else [])
    param, node = Param("x", value, graph.consts.get(value) if constant else None), Node("copy", (value,), ("out",))
    return LoweredGroup(func, (param,), ("out",), (node,), 0, (out,), (x,) if constant else ())


class KernelBuilder:
    """Builds the functions of the kernels of a configuration.

    ``threads``: the number of threads that share large loops. ``shipped``: use the schedules bundled with the compiler.
    ``choices``: as in :func:`.kernel_selection.select_group_schedule`.
    ``origins``: the origin of every call, by the values that the call writes. ``taken``: the tuning keys of the kernels
    for which a measured schedule was used. A region for external code that is not in the configuration is lowered like
    control flow.
    """

    sizes: tuple[Size, ...] = ()
    """Dynamic sizes of the network; empty if all sizes are static."""

    def __init__(
        self,
        configuration: Configuration,
        target: Target,
        threads: int = 1,
        *,
        shipped: bool = False,
        choices: ChoiceFile | None = None,
    ) -> None:
        self.configuration, self.target, self.threads, self.shipped = configuration, target, threads, shipped
        self.choices = choices
        self.graph, self.goal = configuration.graph, configuration.goal
        self.origins: dict[tuple[str, ...], Origin] = {}
        self.taken: set[str] = set()

    def schedule_kernel(
        self, nodes: Sequence[Node], uses: int, *, in_place: bool = False
    ) -> tuple[LoweredGroup, Choice]:
        """Lower and schedule a group of nodes.

        ``uses``: number of groups of equal shapes, whose kernels may share their code. ``in_place``: as in
        :func:`.kernel_selection.schedule_group`.
        """
        lowered = group_algorithms(self.graph, nodes, self.target, "kernel", in_place=in_place)
        goal = self.goal_of(nodes)
        number, choice = self.choose_schedule(lowered, goal, uses)
        choice = with_16_bit_constants(lowered[number], choice, self.target, goal, uses)
        return lowered[number], self.share_large_loops(choice, nodes)

    def share_large_loops(self, choice: Choice, nodes: Sequence[Node] = ()) -> Choice:
        """Share the large loops of a chosen schedule among the cores of a board, or among the threads of a computer.

        ``nodes``: the kernel's nodes. One core alone computes those that the configuration says."""
        if self.target.cores > 1:
            is_alone = bool(nodes) and nodes[-1].outputs[0] in self.configuration.alone
            return choice if is_alone else distribute_among_cores(choice, self.target)
        return split_across_threads(choice, self.target, self.threads)

    def choose_schedule(self, lowered: Sequence[LoweredGroup], goal: Goal, uses: int) -> tuple[int, Choice]:
        """Choose the schedule of a group; return the index of its algorithm in ``lowered``, and the choice.

        A measured schedule is preferred, then a schedule bundled with the compiler, then the rules' choice.
        """
        limit = self._workspace_limit(lowered)
        return self._tuned_choice(lowered) or select_group_schedule(
            lowered, self.target, goal, uses, shipped=self.shipped, workspace=limit, choices=self.choices
        )

    def goal_of(self, nodes: Sequence[Node]) -> Goal:
        """Return the optimisation goal of a group or of a node of control flow."""
        return self.configuration.goals.get(nodes[-1].outputs[0], self.goal)

    def effective_workspace_limit(self, lowered: Sequence[LoweredGroup], goal: Goal, uses: int) -> float:
        """Return the workspace limit in bytes that changes the choice of a group's kernel.

        It is infinite if the group has no limit, or if the kernel that is chosen without a limit needs no more.
        """
        limit = self._workspace_limit(lowered)
        if limit == inf:
            return inf
        _, choice = select_group_schedule(lowered, self.target, goal, uses, shipped=self.shipped, choices=self.choices)
        return limit if workspace_bytes(choice.func) > limit else inf

    def _workspace_limit(self, lowered: Sequence[LoweredGroup]) -> float:
        """Return the workspace limit of a group's kernel in bytes; infinite if it has none."""
        limits = self.configuration.workspaces
        return limits.get(tuning_key(lowered, self.target), inf) if limits else inf

    def choose_inner_schedule(self, lowered: Sequence[LoweredGroup], goal: Goal) -> tuple[int, Choice]:
        """Choose the schedule of a group inside of control flow; return the index of its algorithm in ``lowered``, and
        the choice.

        ``goal``: the optimisation goal for one iteration (:func:`goal_per_iteration`).
        """
        return self._tuned_choice(lowered) or select_group_schedule(lowered, self.target, goal, choices=self.choices)

    def _tuned_choice(self, lowered: Sequence[LoweredGroup]) -> tuple[int, Choice] | None:
        """Return the measured schedule of a group, with the index of its algorithm in ``lowered``.

        None if there is no measured schedule or if it cannot be applied to this layer.
        """
        measured = self.configuration.tuned
        if not measured or (tuned := measured.get(key := tuning_key(lowered, self.target))) is None:
            return None
        try:
            number, choice = replay_on_algorithm(lowered, tuned.algorithm, tuned.trace, tuned.rule + TUNED_SUFFIX)
        except MicrocError:
            # The schedule relies on bounds of constants that hold for the measured layer but not for this layer.
            return None
        self.taken.add(key)
        return number, choice

    def lower_control_node(self, node: Node) -> LoweredControl:
        """Lower a node with graphs of its own to one function: a loop, a condition, or a region of the
        network for which an external backend provides the code."""

        def schedule_inner_kernel(inner: Graph, nodes: Sequence[Node], iterations: int) -> tuple[LoweredGroup, Choice]:
            lowered, goal = (
                group_algorithms(inner, nodes, self.target, "kernel"),
                goal_per_iteration(self.goal_of((node,)), iterations),
            )
            number, choice = self.choose_inner_schedule(lowered, goal)
            return lowered[number], with_16_bit_constants(lowered[number], choice, self.target, goal)

        return lower_control_flow(self.graph, node, schedule_inner_kernel, self.target)

    def lower_value_copy(self, copy: ValueCopy) -> ir.PrimFunc:
        """Lower a copy of a whole value to a function that uses the widest loads and stores of the core."""
        lowered = (lower_copy(self.graph, copy),)
        choice = select_group_schedule(lowered, self.target, self.goal, choices=self.choices)[1]
        return self.share_large_loops(choice).func

    def find_alias(self, node: Node) -> Alias | None:
        """Return the placement of tensors that makes a kernel for a node unnecessary; None if the node needs a
        kernel."""
        return find_node_alias(self.graph, node)

    def dynamic_extents(self, value: str) -> tuple[ir.Expr, ...]:
        """Return the shape of a value as expressions of the dynamic sizes; empty if the shape is static."""
        return ()


@frozen
class CompiledNetwork:
    """A compiled network: its module, and the builder of its kernels (``kernel_builder``)."""

    module: Module
    kernel_builder: KernelBuilder

    @property
    def configuration(self) -> Configuration:
        return self.kernel_builder.configuration


# ---- Merging: kernels that differ only in a few integer literals become one C function, which reads the literals from a
# table.
#
# Layers of the same shape differ in multipliers, shifts and zero points. A common function for them executes one or two
# additional loads per tile, but saves hundreds of bytes of code per layer.

TABLE = "constants"
MAX_TABLE_ENTRIES = 8
"""Maximum number of entries in a table of literals. With more entries, the additional loads would cost more than the
saved code is worth."""


@frozen
class _LiteralFreeFunction:
    """A function in which the int32 literals are replaced by 0, and the literals in order of appearance."""

    func: ir.PrimFunc
    literals: tuple[int, ...]


def merge_kernels(module: Module) -> Module:
    """Merge the kernels of ``module`` that are equal except for at most :data:`MAX_TABLE_ENTRIES` integer literals."""
    families: dict[object, list[tuple[Kernel, _LiteralFreeFunction]]] = {}
    for kernel in module.kernels:
        skeleton = _separate_literals(kernel.func)
        families.setdefault((skeleton.func.params, skeleton.func.body), []).append((kernel, skeleton))
    for family in families.values():
        if len(family) > 1:
            module = _merge_family(module, family)
    return module


def _map_literals(func: ir.PrimFunc, replace_literal: Callable[[int], ir.Expr]) -> ir.PrimFunc:
    """Replace the int32 literals that a function computes with by the results of ``replace_literal``.

    Literals in memory indices stay the same. The name of the resulting function is empty.
    """

    def map_expr_literals(expr: ir.Expr) -> ir.Expr:
        match expr:
            case ir.Const(int() as value, "int32"):
                return replace_literal(value)
            case ir.Load() | ir.AddressOf():
                return expr
            case _:
                return map_children(expr, map_expr_literals)

    def map_stmt_literals(stmt: ir.Stmt) -> ir.Stmt:
        match stmt:
            case ir.Store(buffer, indices, value):
                return ir.Store(buffer, indices, map_expr_literals(value))
            case ir.Let(var, value, body):
                return ir.Let(var, map_expr_literals(value), body)
            case ir.Evaluate(value):
                return ir.Evaluate(map_expr_literals(value))
            case _:
                return stmt

    return replace(func, name="", body=map_stmt(func.body, map_stmt_literals))


def _separate_literals(func: ir.PrimFunc) -> _LiteralFreeFunction:
    """Separate a function from the int32 literals that it computes with."""
    literals: list[int] = []

    def collect_literal(value: int) -> ir.Expr:
        literals.append(value)
        return ir.const(0, "int32")

    return _LiteralFreeFunction(_map_literals(func, collect_literal), tuple(literals))


def _merge_family(module: Module, family: list[tuple[Kernel, _LiteralFreeFunction]]) -> Module:
    """Merge kernels that differ only in literals: into one function, with a table of literals for each kernel, which
    the calls pass as an argument.

    The module is returned unchanged if the tables would be empty or have more than :data:`MAX_TABLE_ENTRIES` entries.
    """
    columns = list(zip(*(skeleton.literals for _, skeleton in family), strict=True))
    # Two literals share an entry of the table if they have the same value as each other in every kernel.
    slots: dict[tuple[int, ...], int] = {}
    for column in columns:
        if len(set(column)) > 1:
            slots.setdefault(column, len(slots))
    if not 0 < len(slots) <= MAX_TABLE_ENTRIES:
        return module
    first = family[0][0]
    table = ir.Buffer(TABLE, (len(slots),), "int32", "const")
    remaining = iter(columns)

    def load_literal_from_table(value: int) -> ir.Expr:
        column = next(remaining)
        return table[slots[column]] if column in slots else ir.const(value, "int32")

    body = _map_literals(first.func, load_literal_from_table).body
    func = ir.PrimFunc(first.name, (*first.func.params, table), body, first.func.annotations)
    verify(
        func, tables=constant_names(func)
    )  # the values in the table are not checked: each kernel was verified with its own
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
    """Redirect a call of a merged kernel to the common function, with the kernel's table of literals as the last
    argument.

    A call of any other kernel is returned unchanged.
    """
    if call.kernel not in tables:
        return call
    return replace(call, kernel=kernel, args=(*call.args, tables[call.kernel]))


# ---- Constants of channels: biases, addends, multipliers and shifts of the channels that an iteration computes are stored
# behind the weights of these channels.
#
# An iteration then has one address in flash instead of up to four, which would take registers or be loaded from the stack.
# XNNPACK packs weights and biases in the same way. The number of bytes is unchanged.

_WORD_LOADS = ("load_i16x2_aligned", "load_i16x2")
"""Intrinsics that load an int32 from two int16: behind an even and behind an odd number of int16."""
_HALVES = 2
"""Number of int16 in an int32."""


@frozen
class _Access:
    """A load or an address of a constant: the first and the last element of the memory that it covers, relative to the
    sum of the ``terms``, the coefficients of loop variables."""

    terms: Mapping[ir.Expr, int]
    first: int
    last: int


@frozen
class ChannelBlocks:
    """Weights and the constants of their channels, in equal blocks that a loop over ``variables`` reads one by one.

    ``length``: number of weights in a block. ``constants``: int32 constants, with equal numbers of elements in a block."""

    weights: ir.Buffer
    variables: frozenset[ir.Expr]
    length: int
    constants: tuple[ir.Buffer, ...]

    @property
    def count(self) -> int:
        """Number of blocks."""
        return self.weights.size // self.length

    @property
    def stored_weights(self) -> ir.Buffer:
        """Weights with the constants of each block behind it, as a matrix of one row for each block."""
        words = sum(constant.size for constant in self.constants) // self.count
        return replace(self.weights, shape=(self.count, self.length + _HALVES * words))

    def __str__(self) -> str:
        names = ", ".join(constant.name for constant in self.constants)
        return f"behind each {self.length} elements of {self.weights.name}: {names}"

    def apply(self, func: ir.PrimFunc) -> ir.PrimFunc:
        """Return a function that reads the constants behind the weights."""
        stored = self.stored_weights
        starts, start = dict[ir.Buffer, int](), self.length
        for constant in self.constants:
            starts[constant] = start
            start += _HALVES * constant.size // self.count

        def redirect(access: ir.Load | ir.AddressOf) -> ir.Expr:
            covered = _access_of(access)
            (row,) = (v for v in covered.terms if v in self.variables)
            if access.buffer in starts:  # a load: constants with addresses remain
                column = ir.const(starts[access.buffer] + _HALVES * covered.first, "int32")
                address = ir.AddressOf(stored, (row, column), _HALVES)
                return ir.Call(_WORD_LOADS[self.length % _HALVES], (address,), "int32")
            inner: ir.Expr = ir.const(covered.first, "int32")
            inner = sum((term * factor for term, factor in covered.terms.items() if term is not row), inner)
            indices = (row, simplify(inner))
            if isinstance(access, ir.Load):
                return ir.Load(stored, indices)
            return replace(access, buffer=stored, indices=indices)

        body = map_accesses(func.body, {self.weights, *self.constants}, lambda stmt: stmt, redirect)
        params = tuple(stored if p == self.weights else p for p in func.params if p not in self.constants)
        return replace(func, params=params, body=body)


def append_channel_constants(module: Module, target: Target, goal: Goal) -> Module:
    """Store int32 constants of channels behind int16 weights, for the kernels that this improves.

    Kernels whose weights also belong to other kernels or other constants remain: their weights would be stored twice. Constants
    that several layers share are stored for each of them, which adds to the flash of the kernel."""
    price = goal.price
    for kernel in module.kernels:
        blocks = find_channel_blocks(kernel.func, target) if kernel.external is None else None
        if blocks is None:
            continue
        func = blocks.apply(kernel.func)
        values = _append_to_values(module, kernel, blocks)
        if values is None:
            continue
        calls = sum(call.kernel == kernel.name for call in module.calls)
        old, new = estimate(kernel.func, target), estimate(func, target)
        flash = new.code_bytes - old.code_bytes + _constant_bytes(values) - _constant_bytes(module.values)
        time = calls * (new.time - old.time)
        if ((flash, time) if isinf(price) else (time + price * flash, flash)) >= (0, 0):
            continue
        verify(func, tables=constant_names(func))
        changed = replace(kernel, func=func, comment=(*kernel.comment, str(blocks)))
        kept = [k for k, param in enumerate(kernel.func.params) if param not in blocks.constants]
        module = replace(
            module,
            kernels=tuple(changed if k is kernel else k for k in module.kernels),
            calls=tuple(
                replace(call, args=tuple(call.args[k] for k in kept)) if call.kernel == kernel.name else call
                for call in module.calls
            ),
            values=values,
        )
    return module


def _constant_bytes(values: Mapping[str, Value]) -> int:
    """Return the bytes of all constants."""
    return sum(value.nbytes for value in values.values() if value.storage == "const")


def find_channel_blocks(func: ir.PrimFunc, target: Target) -> ChannelBlocks | None:
    """Find int16 weights and int32 constants that a loop reads in blocks; None if a function has none."""
    if func.scalars or not {"int16", "int32"} <= {param.dtype for param in func.params if param.scope == "const"}:
        return None
    extents: dict[ir.Expr, int] = {}
    accesses: dict[ir.Buffer, list[_Access]] = {}
    addressed: set[ir.Buffer] = set()  # intrinsics, such as loads of vectors, read several elements behind an address
    for stmt in walk_stmt(func.body):
        if isinstance(stmt, ir.For) and isinstance(stmt.extent, ir.Const):
            extents[stmt.var] = int(stmt.extent.value)
        for expr in stmt_exprs(stmt):
            for access in accesses_of(expr):
                if access.buffer.scope == "const":
                    accesses.setdefault(access.buffer, []).append(_access_of(access))
                    if isinstance(access, ir.AddressOf):
                        addressed.add(access.buffer)
    blocks = {
        buffer: _find_blocks(buffer, found, extents)
        for buffer, found in accesses.items()
        if buffer.dtype == "int32" and buffer in func.params and buffer not in addressed
    }
    for weights, found in accesses.items():
        if weights.dtype != "int16" or weights not in func.params:
            continue
        for count in dict.fromkeys(block[0] for block in blocks.values() if block):
            constants = {b: block for b, block in blocks.items() if block and block[0] == count}
            variables = frozenset[ir.Expr]().union(*(v for _, v in constants.values()))
            own = _find_blocks(weights, found, extents, variables)
            constants = {b: block for b, block in constants.items() if own and block[1] <= own[1]}
            if own and own[0] == count and constants:
                length = weights.size // count
                if target.has(_WORD_LOADS[length % _HALVES]):
                    return ChannelBlocks(weights, own[1], length, tuple(constants))
    return None


def _access_of(access: ir.Load | ir.AddressOf) -> _Access:
    """Return the elements that a load or an address covers."""
    terms: Counter[ir.Expr] = Counter()
    first = 0
    for index, stride in zip(access.indices, access.buffer.strides, strict=True):
        coefficients, constant = linear(index)
        first += constant * stride
        for term, factor in coefficients.items():
            terms[term] += factor * stride
    return _Access(terms, first, first + (access.reach - 1 if isinstance(access, ir.AddressOf) else 0))


def _find_blocks(
    buffer: ir.Buffer,
    accesses: Sequence[_Access],
    extents: Mapping[ir.Expr, int],
    variables: frozenset[ir.Expr] | None = None,
) -> tuple[int, frozenset[ir.Expr]] | None:
    """Return the number of equal blocks of a constant and the loop variables that count them.

    None if an access is not within one block. ``variables``: those that may count; without them any that each access has
    alone."""
    counts, used = set[int](), set[ir.Expr]()
    for access in accesses:
        counting = [v for v in access.terms if variables is None or v in variables]
        others = {v: factor for v, factor in access.terms.items() if v not in counting}
        if len(counting) != 1 or any(v not in extents for v in access.terms):
            return None
        (variable,) = counting
        length = access.terms[variable]
        first = access.first + sum(min(0, factor * (extents[v] - 1)) for v, factor in others.items())
        last = access.last + sum(max(0, factor * (extents[v] - 1)) for v, factor in others.items())
        if not 0 <= first <= last < length or length * extents[variable] != buffer.size:
            return None
        counts.add(extents[variable])
        used.add(variable)
    (count,) = counts if len(counts) == 1 else (1,)
    return (count, frozenset(used)) if count > 1 else None


def _append_to_values(module: Module, kernel: Kernel, blocks: ChannelBlocks) -> dict[str, Value] | None:
    """Return the values of a module in which a kernel's constants of channels are behind the weights.

    None if weights have other readers or other constants, or if the values of constants are unknown."""
    positions = {param: k for k, param in enumerate(kernel.func.params)}
    moved = {positions[param] for param in (blocks.weights, *blocks.constants)}
    values, origins = dict(module.values), dict[str, tuple[str, ...]]()
    others = {*module.outputs, *module.starts.values(), *(view.base for view in module.views)}
    for call in module.calls:
        others.update(a for k, a in enumerate(call.args) if call.kernel != kernel.name or k not in moved)
    for call in module.calls:
        if call.kernel != kernel.name:
            continue
        weights = call.args[positions[blocks.weights]]
        constants = tuple(call.args[positions[constant]] for constant in blocks.constants)
        if weights in others or origins.setdefault(weights, constants) != constants:
            return None
        data = (module.values[name].data for name in (weights, *constants))
        arrays = [array for array in data if array is not None]
        if len(arrays) <= len(constants):
            return None
        rows = [np.ascontiguousarray(array).reshape(blocks.count, -1) for array in arrays]
        halves = [rows[0], *(row.astype("<i4").view("<i2") for row in rows[1:])]
        joined = np.ascontiguousarray(np.concatenate(halves, axis=1), np.int16)
        values[weights] = replace(module.values[weights], shape=joined.shape, data=joined)
    for name in set().union(*origins.values()):
        if name not in others:
            del values[name]
    return values
