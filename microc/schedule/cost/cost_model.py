# SPDX-License-Identifier: Apache-2.0
"""Cost model: estimates instructions, cycles and code bytes of a lowered function without running it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np

from microc.base.immutable import frozen
from microc.errors import InternalError
from microc.isa import CORES, SCALAR, Costs
from microc.isa.arm_product_loops import ProductLoop, find_product_loop
from microc.isa.instruction_set import TensorUnit
from microc.isa.straight_line import Run, split_at_runs
from microc.module import UnitUse
from microc.schedule.cost.loop_region import LoopBody, ValueCosts
from microc.schedule.cost.operation_counts import Selector
from microc.schedule.cost.register_pressure import LoopInvariants
from microc.target import NOTHING, Fetches, Target, Traffic
from microc.tir import ir
from microc.tir.analysis.context import buffers_written, is_distributed
from microc.tir.names import BARRIER, COMPUTE, GUARDED, LANES, LOAD, QUEUES, SIGNAL, STORE, WAIT
from microc.tir.operators import ARRAYS
from microc.tir.rewrite import free_vars, stmt_children, substitute, walk_expr, walk_stmt

# ---- The fraction of iterations in which a condition over loop variables holds

_MAX_POINTS = 1 << 14
"""Most combinations of loop variables for which a condition is evaluated. Larger iteration domains are sampled."""
_GOLDEN = (5**0.5 - 1) / 2
"""The reciprocal of the golden ratio."""
_UNKNOWN = 0.5
"""Probability that is assumed for a condition that depends on data."""


def condition_probability(
    condition: ir.Expr, known_conditions: Sequence[ir.Expr], trip_counts: Mapping[ir.Var, int]
) -> float:
    """Return the fraction of iterations in which a condition holds, among the iterations in which all
    ``known_conditions`` hold.

    ``trip_counts``: trip counts by loop variable. A condition that depends on data has the probability one half."""
    if not _depends_on_loops_only(condition, trip_counts):
        return _UNKNOWN
    assumptions = [
        g for g in known_conditions if _depends_on_loops_only(g, trip_counts) and free_vars(g) & free_vars(condition)
    ]
    names = sorted(set().union(*(free_vars(e) for e in (condition, *assumptions))), key=lambda v: v.name)
    axes = _sampled_loop_values([trip_counts[v] for v in names])
    values = dict(zip(names, np.meshgrid(*axes, indexing="ij", sparse=True), strict=True))
    holds = np.ones([len(axis) for axis in axes], bool)
    for assumption in assumptions:
        holds = holds & _evaluate_over_loop_values(assumption, values)
    total = int(np.count_nonzero(holds))
    return int(np.count_nonzero(holds & _evaluate_over_loop_values(condition, values))) / total if total else 0.0


def _sampled_loop_values(trip_counts: list[int]) -> list[np.ndarray[Any, Any]]:
    """Return for each loop variable the values at which conditions are evaluated. These are all values of short
    loops and a sample of long loops; there are at most about :data:`_MAX_POINTS` combinations."""
    axes: list[np.ndarray[Any, Any]] = [np.arange(0)] * len(trip_counts)
    remaining = float(_MAX_POINTS)
    for n, axis in enumerate(sorted(range(len(trip_counts)), key=trip_counts.__getitem__)):
        points = max(2, int(remaining ** (1 / (len(trip_counts) - n))))
        axes[axis] = _golden_ratio_sample(trip_counts[axis], points)
        remaining /= len(axes[axis])
    return axes


def _golden_ratio_sample(extent: int, sample_size: int) -> np.ndarray[Any, Any]:
    """Return ``sample_size`` integers below an extent, spread by the golden ratio; all integers if the extent is not
    larger.

    Equidistant integers would have only a few different remainders in a division."""
    if extent <= sample_size:
        return np.arange(extent)
    return (np.arange(sample_size) * _GOLDEN % 1 * extent).astype(np.int64)


def _depends_on_loops_only(expr: ir.Expr, trip_counts: Mapping[ir.Var, int]) -> bool:
    """Test whether an expression depends on loop variables and constants alone."""
    for x in walk_expr(expr):
        match x:
            case ir.Var() if x in trip_counts:
                pass
            case ir.Bin(op) if op in ARRAYS:
                pass
            case ir.Un("not") | ir.Const():
                pass
            case _:
                return False
    return True


def _evaluate_over_loop_values(expr: ir.Expr, loop_values: Mapping[ir.Var, Any]) -> Any:
    """Evaluate an expression over loop variables in numpy. ``loop_values``: array of values by loop variable."""
    match expr:
        case ir.Var():
            return loop_values[expr]
        case ir.Const(value):
            return value
        case ir.Un(_, a):
            return np.logical_not(_evaluate_over_loop_values(a, loop_values))
        case ir.Bin(op, a, b):
            return ARRAYS[op](_evaluate_over_loop_values(a, loop_values), _evaluate_over_loop_values(b, loop_values))
        case _:
            raise AssertionError(expr)


# ---- The use of a tensor unit by a lowered function: run its instructions by the unit's cost rule, without data
#
# The model in C (``templates/project/tensor_unit.c.j2``) counts the same cycles when the network runs.

_WORDS = frozenset({*QUEUES, SIGNAL, WAIT, BARRIER})


@dataclass(slots=True)
class _TensorUnitClock:
    """Simulated state of a tensor unit.

    ``current_cycles``: current cycle of each of the three queues. ``busy_cycles``: cycles in which each queue executed
    instructions. ``token_cycles``: cycles at which synchronisation tokens were sent, by (sending queue, receiving
    queue, kind of token). ``mac_count``: number of multiply-accumulates so far."""

    unit: TensorUnit
    current_cycles: list[int] = field(default_factory=lambda: [0, 0, 0])
    busy_cycles: list[int] = field(default_factory=lambda: [0, 0, 0])
    token_cycles: dict[tuple[int, ...], deque[int]] = field(default_factory=dict)
    mac_count: int = 0

    def simulate_instruction(self, instruction_name: str, operands: list[int]) -> None:
        """Simulate one instruction of the tensor unit. ``operands``: its operands without the addresses.

        The instructions of a queue run one after the other. A wait delays its queue until another queue has sent the
        token."""
        match instruction_name:
            case "unit_signal":
                waiting = self.token_cycles.setdefault(tuple(operands[:3]), deque())
                waiting.extend([self.current_cycles[operands[0]]] * operands[3])
            case "unit_wait":
                for _ in range(operands[3]):
                    waiting = self.token_cycles.get(tuple(operands[:3]), deque())
                    if not waiting:
                        raise InternalError(
                            f"queue {operands[1]} of the tensor unit waits for a token of event {operands[2]} that no "
                            "earlier instruction sends"
                        )
                    self.current_cycles[operands[1]] = max(self.current_cycles[operands[1]], waiting.popleft())
            case "unit_barrier":
                self.current_cycles = [max(self.current_cycles)] * 3
            case _:
                cycles, queue = self.unit.cycles(instruction_name, operands), QUEUES[instruction_name]
                self.current_cycles[queue] += cycles
                self.busy_cycles[queue] += cycles
                if instruction_name == "unit_matmul":
                    self.mac_count += operands[0] * operands[1] * operands[2]


def tensor_unit_use(func: ir.PrimFunc, unit: TensorUnit | None, mac_count: int) -> UnitUse | None:
    """Return the use of a tensor unit by a lowered function; None if the function does not use it.

    ``mac_count``: multiply-accumulates of the network that the function computes."""
    calls = _keep_unit_calls(func.body)
    if unit is None or calls is None:
        return None
    clock = _TensorUnitClock(unit)
    _simulate_unit(calls, clock)
    cycles = max(clock.current_cycles)
    used = min(mac_count, clock.mac_count) / (cycles * unit.macs) if cycles else 0.0
    return UnitUse(
        cycles, clock.busy_cycles[LOAD], clock.busy_cycles[COMPUTE], clock.busy_cycles[STORE], clock.mac_count, used
    )


def _keep_unit_calls(stmt: ir.Stmt) -> ir.Stmt | None:
    """Remove everything from a statement except the tensor unit's instructions and the loops around them. Return None
    if nothing remains.

    Raise InternalError if an instruction is under a condition."""
    match stmt:
        case ir.Evaluate(ir.Call(name)) if name in _WORDS:
            return stmt
        case ir.For(var, extent, body):
            inner = _keep_unit_calls(body)
            return ir.For(var, extent, inner) if inner is not None else None
        case ir.If() if any(_keep_unit_calls(child) is not None for child in stmt_children(stmt)):
            raise InternalError(
                "tensor unit: an instruction is inside a branch; the simulation of cycles expects instructions in loops only"
            )
        case _:
            parts = [part for child in stmt_children(stmt) if (part := _keep_unit_calls(child)) is not None]
            return ir.seq(*parts) if parts else None


def _simulate_unit(stmt: ir.Stmt, clock: _TensorUnitClock) -> None:
    """Simulate all instructions of a statement in order. The statement is a result of :func:`_keep_unit_calls`."""
    match stmt:
        case ir.Seq(body):
            for child in body:
                _simulate_unit(child, clock)
        case ir.For(_, extent, body):
            for _ in range(ir.int_value(extent) or 0):
                _simulate_unit(body, clock)
        case ir.Evaluate(ir.Call(name, args)):
            clock.simulate_instruction(name, [_constant_operand(a) for a in args if not isinstance(a, ir.AddressOf)])


def _constant_operand(expr: ir.Expr) -> int:
    """Return the value of an operand of a tensor unit's instruction. Raise InternalError if it is not constant."""
    value = ir.int_value(expr)
    if value is None:
        raise InternalError(f"tensor unit: an operand of an instruction is not constant; got {type(expr).__name__}")
    return value


# ---- The cost model: instructions, cycles and code bytes of a lowered function, counted without running it
#
# The model counts the instructions that a C compiler selects for the printed C. Trip counts are known. A guard is weighted by the
# fraction of iterations in which it holds. Addresses that differ by a constant share a pointer, which a loop advances once per
# iteration. If more values are live than there are registers, some are spilled, which adds stack accesses to every iteration.
# Instructions rank schedules, and can be compared with counts of an emulator. Cycles are an estimate from the core's table.

CALL = 24
"""Instructions of a kernel's call: the switch of the step function, arguments, saved registers."""
PROLOGUE = 8
"""Instructions of CALL that are in the called function itself."""
PEELED, SMALL = 2, 12
"""Limits up to which compilers unroll a loop completely: number of iterations, and instructions of the body."""
MEMO_SIZE = 256
"""Number of costs that are memoised, because reports estimate again the functions of a choice."""


@frozen
class Cost:
    """Estimated cost of one call of a function.

    - ``operations``: counts of machine operations by type (:class:`microc.isa.instruction_set.Costs`).
    - ``spilled``: number of instructions that access the stack.
    - ``traffic``: memory accesses to each operand, by name.
    - ``fetches``: instruction fetches of the function's loops. Their wait states are not included in ``cycles``.
    - ``time_unit``: ``instructions`` or ``cycles``, by which schedules are ranked."""

    instructions: float
    cycles: float
    code_bytes: int
    spilled: float
    operations: Mapping[str, float]
    traffic: Mapping[str, Traffic] = field(default_factory=dict)
    fetches: Fetches = NOTHING
    time_unit: str = "instructions"

    @property
    def time(self) -> float:
        """Instructions or cycles, as :attr:`time_unit` says."""
        return self.cycles if self.time_unit == "cycles" else self.instructions


def time_unit_of(target: Target) -> str:
    """Return the unit by which schedules are ranked: cycles if they depend on the order of instructions, or if the core
    waits for its flash."""
    return "cycles" if target.core.pipeline is not None or target.waits_for_flash else "instructions"


def estimate(func: ir.PrimFunc, target: Target) -> Cost:
    """Estimate the cost of a lowered function on a core. The function is in the form from which C is printed."""
    return _estimate_with_memo(func.body, target, (CORES.entries, SCALAR.entries))


@lru_cache(maxsize=MEMO_SIZE)
def _estimate_with_memo(body: ir.Stmt, target: Target, _cache_key: tuple[object, ...]) -> Cost:
    """Estimate the cost of a function body, memoised.

    ``_cache_key`` (the registries of cores and intrinsics, which plugins extend) is used only as a part of the
    memo's key."""
    core = target.core.costs
    walker = _CostWalker(Selector(target), core)
    walker.count_function(body)
    operations = walker.operations
    instructions = core.instructions(operations)
    cycles = sum(n * core.duration(kind) for kind, n in operations.items())
    return Cost(
        instructions=instructions,
        cycles=cycles * core.issue + operations["constant_byte"] * target.flash_wait,
        code_bytes=round(walker.printed * core.instruction_bytes),
        spilled=walker.spilled,
        operations=MappingProxyType(dict(operations)),
        traffic=MappingProxyType(dict(walker.traffic)),
        fetches=walker.nests.build_function_tree(walker.printed),
        time_unit=time_unit_of(target),
    )


class _CostWalker(ValueCosts):
    """Visitor that adds up the cost of statements, loops and branches. The base class counts their values."""

    def __init__(self, selector: Selector, core: Costs) -> None:
        super().__init__(selector, core)
        self.spilled = 0.0
        self.guards: list[ir.Expr] = []
        self.extents: dict[ir.Var, int] = {}
        self.named: dict[ir.Var, ir.Expr] = {}
        self.carried: set[ir.Buffer] = set()
        self.lasting = False
        """True if the next test ends a loop: it is counted as if it held in all iterations."""
        self.invariants = LoopInvariants(selector, self.count_hoisted_value)

    def count_function(self, body: ir.Stmt) -> None:
        """Count the body of the function, and the overhead of its call."""
        self.regions.append(LoopBody(None, 1.0, 1.0, has_vector_registers=self.core.vector_registers > 0))
        self.invariants.enter_loop(None, body)
        self.add_operations({"alu": CALL / 2, "load": CALL / 4, "store": CALL / 4}, 1.0, printed=False)
        self.printed += PROLOGUE
        self.count_statement(body)
        self.close_loop()

    # ------------------------------------------------------------ statements

    def count_statement(self, stmt: ir.Stmt) -> None:
        """Count a statement, and the cycles that its runs of products save."""
        for part in split_at_runs(stmt, self.selector.target.cpu, self.regions[-1].var):
            if not isinstance(part, Run):
                self._count_without_runs(part)
                continue
            self.pairs_loads = False
            for statement in part.statements:
                self._count_without_runs(statement)
            self.pairs_loads = True
            joint = len(part.order.lines) - part.order.cycles
            self.add_operations({"joint": joint}, self.regions[-1].weight)

    def _count_without_runs(self, stmt: ir.Stmt) -> None:
        """Count a statement that is no run of products and contains none, except in its loops and branches."""
        match stmt:
            case ir.Seq(body):
                for child in body:
                    self._count_without_runs(child)
            case ir.Store(buffer, indices, value):
                value = self.invariants.hoist_invariants(value, self.invariants.innermost_level)
                self.count_value(value, self.selector.count_store(buffer, value))
                # A register tile that a loop writes keeps its register: copying a value to it is a move.
                if buffer in self.carried and isinstance(value, (ir.Const, ir.Var)):
                    self.add_operations({"alu": 1}, self.regions[-1].weight)
                if buffer.scope == "register":
                    self.regions[-1].record_tile_write(self.regions[-1].operand_of_tile_element(buffer, indices))
                else:
                    self.record_access(buffer, indices, writes=True)
                self.count_traffic(buffer, writes=True)
            case ir.Let(var, value, body):
                self.named[var] = substitute(value, self.named)
                if (rewritten := self.invariants.record_definition(var, value)) is not None:
                    self.count_definition(var, self.selector.widened_word(var, rewritten))
                self._count_without_runs(body)
            case ir.Evaluate(value):
                value = self.invariants.hoist_invariants(value, self.invariants.innermost_level)
                self.count_value(value, self.selector.count(value))
                self.printed -= self.selector.repeated_instructions(value)
            case ir.Alloc(buffer, body):
                self.regions[-1].record_tile(buffer)
                if any(buffer in buffers_written(loop) for loop in walk_stmt(body) if isinstance(loop, ir.For)):
                    self.carried.add(buffer)
                self.count_statement(body)
            case ir.If():
                self.count_branch(stmt)
            case ir.For():
                products = find_product_loop(stmt, self.selector.target.cpu)
                if products is None:
                    self.count_loop(stmt)
                else:
                    self.count_product_loop(products)
            case _:
                raise InternalError(f"the cost of {type(stmt).__name__} is unknown: lower the function first")

    def count_branch(self, branch: ir.If) -> None:
        """Count the test of a branch, and its two sides weighted by their probabilities. The first side ends with a
        jump over the second side."""
        region = self.regions[-1]
        condition = substitute(branch.condition, self.named)
        probability = 1.0 if self.lasting else condition_probability(condition, self.guards, self.extents)
        self.lasting = False
        test = self.invariants.hoist_invariants(branch.condition, self.invariants.innermost_level)
        self.count_value(test, self.selector.count_branch(test))
        jumps = {"taken": 1 - probability, "branch": probability if branch.otherwise is not None else 0}
        self.add_operations(jumps, region.weight, printed=False)
        weight, guarded = region.weight, self.invariants.guarded
        self.invariants.guarded = self.invariants.innermost_level
        sides = (
            (condition, branch.then, probability),
            (ir.Un("not", condition), branch.otherwise, 1 - probability),
        )
        for guard, side, part in sides:
            if side is not None:
                self.guards.append(guard)
                region.weight = weight * part
                self.count_statement(side)
                self.guards.pop()
        region.weight, self.invariants.guarded = weight, guarded

    def count_loop(self, loop: ir.For) -> None:
        """Count a loop: its body, weighted by the number of iterations, and the operations that control it."""
        extent = ir.int_value(loop.extent) or 1
        extent = 1 if extent == ir.ENDLESS else extent
        if is_distributed(loop):  # each core runs one iteration at the same time: the path through both is counted
            extent = 1
        if loop.kind == "scalable":  # counted for the shortest vectors
            extent = -(-extent // int(dict(loop.annotations)[LANES]))
        self.extents[loop.var] = extent
        weight = self.regions[-1].weight
        self.regions.append(
            LoopBody(loop.var, weight, weight * extent, has_vector_registers=self.core.vector_registers > 0)
        )
        self.invariants.enter_loop(loop.var, loop.body)
        before = self.printed
        self.lasting = GUARDED in dict(loop.annotations)
        self.nests.enter_loop(before)
        self.count_statement(loop.body)
        size = self.printed - before
        peeled = extent <= PEELED and size <= SMALL
        if peeled:
            self.printed += (extent - 1) * size
        self.close_loop(peeled=peeled)
        self.nests.leave_loop(self.printed, weight, peeled=peeled)

    def count_product_loop(self, loop: ProductLoop) -> None:
        """Count a loop that is printed as instructions, and the addresses and the end that these start from."""
        region = self.regions[-1]
        for address, count in ((loop.words, loop.word_count), (loop.bytes, loop.byte_count)):
            self.record_access(address.buffer, address.indices)
            self.count_traffic(address.buffer, count)
        region.record_reads(region.operand_of_tile_element(total.buffer, total.indices) for total in loop.totals)
        self.add_operations({"alu": 3}, region.weight)
        self.nests.enter_loop(self.printed)
        self.add_operations(loop.operations, region.weight * loop.iterations)
        self.nests.leave_loop(self.printed, region.weight, peeled=False)

    def close_loop(self, *, peeled: bool = False) -> None:
        """Leave the innermost loop. Count its operations outside of statements: counter, pointers and spilled
        values."""
        region = self.regions.pop()
        self.invariants.leave_loop()
        region.share_constant_index(self.core)
        if not peeled:
            self.add_operations(region.count_entry_operations(), region.entries)
            self.add_operations(region.count_control_operations(self.core), region.runs)
        self.count_spills(region)
        if self.regions:
            self.regions[-1].record_inner_loop(region)

    def count_spills(self, region: LoopBody) -> None:
        """Count the accesses to the stack of a loop body that has more live values than the core has registers.

        If a constant keeps a register while inner loops run that need all registers, those loops are counted again
        with one register less."""
        constant = region.find_resident_constant(self.core)
        if constant is not None:
            for loop in region.loops_using_all_registers(self.core):
                before, after = loop.count_spills(self.core), loop.count_spills(self.core, constant)
                self.count_stack_accesses(after[0] - before[0], after[1] - before[1], loop.runs)
        self.count_stack_accesses(*region.count_spills(self.core, constant), region.runs)

    def count_stack_accesses(self, loads: float, stores: float, runs: float) -> None:
        """Count loads from the stack and stores to the stack in each of ``runs`` iterations."""
        self.add_operations({"load": loads, "store": stores}, runs)
        self.spilled += (loads + stores) * runs

    # ------------------------------------------------------------ expressions

    def count_definition(self, var: ir.Var, value: ir.Expr) -> None:
        """Count the operations of a value, and define the variable to which it is assigned."""
        self.count_value(value, self.selector.count(value))
        self.regions[-1].record_definition(var)

    def count_hoisted_value(self, var: ir.Var, value: ir.Expr, level: int) -> None:
        """Count a loop-invariant value of an inner loop. The outer loop number ``level`` computes it, once in each
        of its iterations."""
        inner, self.regions = self.regions, self.regions[: level + 1]
        self.count_definition(var, self.selector.widened_word(var, self.invariants.hoist_invariants(value, level)))
        self.regions = inner
