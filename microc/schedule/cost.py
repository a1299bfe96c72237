"""The cost model: instructions, cycles and code bytes of a lowered function, counted without running it.

The count follows what codegen prints and a C compiler makes of it. Trip counts are known; a guard is weighed by how often it
holds over the loops around it. Addresses that differ by a constant share a pointer, which a loop advances once an iteration.
Values that live at once and exceed the registers are spilled: accesses more in every iteration.
Instructions rank schedules and are comparable with emulated counts; cycles are an estimate from the core's table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import field
from functools import lru_cache
from types import MappingProxyType

from microc.errors import InternalError
from microc.frozen import frozen
from microc.isa import CORES, SCALAR, Costs
from microc.schedule.cost_expr import Selector
from microc.schedule.cost_values import Values
from microc.schedule.guards import share
from microc.schedule.invariants import Invariants
from microc.schedule.region import Region
from microc.target import NOTHING, Fetches, Target, Traffic
from microc.tir import ir
from microc.tir.facts import buffers_written
from microc.tir.names import GUARDED, LANES
from microc.tir.rewrite import substitute, walk_stmt

CALL = 24
"""Instructions of a call: the step function's switch, arguments, saved registers."""
PROLOGUE = 8
"""Instructions among them that belong to the function."""
PEELED, SMALL = 2, 12
"""A loop of so few iterations, of so few instructions, is written out by the compiler."""
REMEMBERED = 256
"""Costs that are kept: what a choice counted, a report asks for again."""


@frozen
class Cost:
    """What a run of a function costs. ``operations`` are its parts by kind (``isa/sets.py``); all but bytes are estimates
    of one call. ``spilled``: accesses to the stack among the instructions; ``traffic``: accesses to operands, by their names;
    ``fetches``: the code, whose waits are no part of the cycles."""

    instructions: float
    cycles: float
    code_bytes: int
    spilled: float
    operations: Mapping[str, float]
    traffic: Mapping[str, Traffic] = field(default_factory=dict)
    fetches: Fetches = NOTHING


def estimate(func: ir.PrimFunc, target: Target) -> Cost:
    """The cost of a lowered function (what codegen prints) on a core."""
    return _estimate(func.body, target, (CORES.entries, SCALAR.entries))


@lru_cache(maxsize=REMEMBERED)
def _estimate(body: ir.Stmt, target: Target, _known: tuple[object, ...]) -> Cost:
    core = target.core.costs
    walker = _Walker(Selector(target), core)
    walker.enter(body)
    operations = walker.operations
    instructions = sum(n * core.length(kind) for kind, n in operations.items())
    cycles = sum(n * core.duration(kind) for kind, n in operations.items())
    return Cost(
        instructions=instructions,
        cycles=cycles * core.issue + operations["constant_byte"] * target.flash_wait,
        code_bytes=round(walker.printed * core.instruction_bytes),
        spilled=walker.spilled,
        operations=MappingProxyType(dict(operations)),
        traffic=MappingProxyType(dict(walker.traffic)),
        fetches=walker.nests.function(walker.printed),
    )


class _Walker(Values):
    """Statements: loops and branches around values."""

    def __init__(self, selector: Selector, core: Costs) -> None:
        super().__init__(selector, core)
        self.spilled = 0.0
        self.guards: list[ir.Expr] = []
        self.extents: dict[ir.Var, int] = {}
        self.named: dict[ir.Var, ir.Expr] = {}
        self.carried: set[ir.Buffer] = set()
        self.lasting = False
        """Whether the next test is what ends a loop: it is counted as if it held for all turns."""
        self.invariants = Invariants(selector, self.ahead)

    def enter(self, body: ir.Stmt) -> None:
        self.regions.append(Region(None, 1.0, 1.0, vectors=self.core.vector_registers > 0))
        self.invariants.enter(None, body)
        self.add(Counter({"alu": CALL / 2, "load": CALL / 4, "store": CALL / 4}), 1.0, printed=False)
        self.printed += PROLOGUE
        self.walk(body)
        self.leave()

    # ------------------------------------------------------------ statements

    def walk(self, stmt: ir.Stmt) -> None:
        match stmt:
            case ir.Seq(body):
                for child in body:
                    self.walk(child)
            case ir.Store(buffer, indices, value):
                value = self.invariants.settle(value, self.invariants.here)
                self.value(value, self.selector.store(buffer, value))
                if buffer in self.carried and isinstance(value, (ir.Const, ir.Var)):
                    self.add({"alu": 1}, self.regions[-1].weight)
                if buffer.scope == "register":
                    self.regions[-1].assign(self.regions[-1].cell(buffer, indices))
                else:
                    self.access(buffer, indices, writes=True)
                self.touch(buffer, writes=True)
            case ir.Let(var, value, body):
                self.named[var] = substitute(value, self.named)
                if (settled := self.invariants.define(var, value)) is not None:
                    self.compute(var, self.selector.named(var, settled))
                self.walk(body)
            case ir.Evaluate(value):
                value = self.invariants.settle(value, self.invariants.here)
                self.value(value, self.selector.count(value))
                self.printed -= self.selector.again(value)
            case ir.Alloc(buffer, body):
                self.regions[-1].own(buffer)
                if any(buffer in buffers_written(loop) for loop in walk_stmt(body) if isinstance(loop, ir.For)):
                    self.carried.add(buffer)
                self.walk(body)
            case ir.If():
                self.branch(stmt)
            case ir.For():
                self.loop(stmt)
            case _:
                raise InternalError(f"the cost of {type(stmt).__name__} is unknown: lower the function first")

    def branch(self, branch: ir.If) -> None:
        """Both sides, weighted by how often they run; the first jumps over the second."""
        region = self.regions[-1]
        condition = substitute(branch.condition, self.named)
        met = 1.0 if self.lasting else share(condition, self.guards, self.extents)
        self.lasting = False
        test = self.invariants.settle(branch.condition, self.invariants.here)
        self.value(test, self.selector.branch(test))
        jumps = {"taken": 1 - met, "branch": met if branch.otherwise is not None else 0}
        self.add(jumps, region.weight, printed=False)
        weight, guarded = region.weight, self.invariants.guarded
        self.invariants.guarded = self.invariants.here
        sides = ((condition, branch.then, met), (ir.Un("not", condition), branch.otherwise, 1 - met))
        for guard, side, part in sides:
            if side is not None:
                self.guards.append(guard)
                region.weight = weight * part
                self.walk(side)
                self.guards.pop()
        region.weight, self.invariants.guarded = weight, guarded

    def loop(self, loop: ir.For) -> None:
        extent = ir.int_value(loop.extent) or 1
        extent = 1 if extent == ir.ENDLESS else extent
        if loop.kind == "scalable":  # counted for the shortest vectors
            extent = -(-extent // int(dict(loop.annotations)[LANES]))
        self.extents[loop.var] = extent
        weight = self.regions[-1].weight
        self.regions.append(Region(loop.var, weight, weight * extent, vectors=self.core.vector_registers > 0))
        self.invariants.enter(loop.var, loop.body)
        before = self.printed
        self.lasting = GUARDED in dict(loop.annotations)
        self.nests.enter(before)
        self.walk(loop.body)
        size = self.printed - before
        peeled = extent <= PEELED and size <= SMALL
        if peeled:
            self.printed += (extent - 1) * size
        self.leave(peeled=peeled)
        self.nests.leave(self.printed, weight, peeled=peeled)

    def leave(self, *, peeled: bool = False) -> None:
        """What a loop costs beside its body: its counter, its pointers, the values that do not fit the registers."""
        region = self.regions.pop()
        self.invariants.leave()
        region.settle(self.core)
        if not peeled:
            self.add(region.entry(), region.entries)
            self.add(region.turn(self.core), region.runs)
        self.spill(region)
        if self.regions:
            self.regions[-1].hold(region)

    def spill(self, region: Region) -> None:
        """Accesses to the stack, with those of loops that a constant of this body takes a register from."""
        constant = region.resident(self.core)
        if constant is not None:
            for loop in region.full(self.core):
                before, after = loop.spills(self.core), loop.spills(self.core, constant)
                self.stack(after[0] - before[0], after[1] - before[1], loop.runs)
        self.stack(*region.spills(self.core, constant), region.runs)

    def stack(self, loads: float, stores: float, runs: float) -> None:
        self.add({"load": loads, "store": stores}, runs)
        self.spilled += (loads + stores) * runs

    # ------------------------------------------------------------ expressions

    def compute(self, name: ir.Var, value: ir.Expr) -> None:
        """A value that gets a name."""
        self.value(value, self.selector.count(value))
        self.regions[-1].define(name)

    def ahead(self, name: ir.Var, value: ir.Expr, level: int) -> None:
        """A value of an inner loop that is computed once an iteration of an outer one."""
        inner, self.regions = self.regions, self.regions[: level + 1]
        self.compute(name, self.selector.named(name, self.invariants.settle(value, level)))
        self.regions = inner
