"""The cost model: instructions, cycles and code bytes of a lowered function, counted without running it.

The count follows what codegen prints and a C compiler makes of it. Trip counts are known; a guard is weighed by how often it
holds over the loops around it. Addresses that differ by a constant share a pointer, which a loop advances once an iteration.
Values that live at once and exceed the registers are spilled: accesses more in every iteration.
Instructions rank schedules and are comparable with emulated counts; cycles are an estimate from the core's table.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType

from microc import dtypes
from microc.errors import InternalError
from microc.isa import CORES, SCALAR, Costs
from microc.isa.sets import SILENT
from microc.schedule.addresses import Place, place_of
from microc.schedule.cost_expr import Operations, Selector
from microc.schedule.guards import share
from microc.schedule.invariants import Invariants
from microc.schedule.nests import Nests
from microc.schedule.region import Region
from microc.target import NOTHING, Fetches, Target, Traffic
from microc.tir import ir
from microc.tir.facts import buffers_written
from microc.tir.names import GUARDED, LANES
from microc.tir.rewrite import children, free_vars, substitute, walk_stmt

CALL = 24
"""Instructions of a call: the step function's switch, arguments, saved registers."""
PROLOGUE = 8
"""Instructions among them that belong to the function."""
PEELED, SMALL = 2, 12
"""A loop of so few iterations, of so few instructions, is written out by the compiler."""
REMEMBERED = 256
"""Costs that are kept: what a choice counted, a report asks for again."""


@dataclass(frozen=True, slots=True)
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


class _Walker:
    """Adds up operations, weighted by how often they run, and instructions as they are printed."""

    def __init__(self, selector: Selector, core: Costs) -> None:
        self.selector = selector
        self.core = core
        self.operations: defaultdict[str, float] = defaultdict(float)
        self.printed = 0.0
        self.spilled = 0.0
        self.traffic: defaultdict[str, Traffic] = defaultdict(Traffic)
        self.regions: list[Region] = []
        self.guards: list[ir.Expr] = []
        self.extents: dict[ir.Var, int] = {}
        self.named: dict[ir.Var, ir.Expr] = {}
        self.previous: Place | None = None
        self.carried: set[ir.Buffer] = set()
        self.single = False
        self.lasting = False
        """Whether the next test is what ends a loop: it is counted as if it held for all turns."""
        self.invariants = Invariants(selector, self.ahead)
        self.nests = Nests(core)

    def enter(self, body: ir.Stmt) -> None:
        self.regions.append(Region(None, 1.0, 1.0, vectors=self.core.vector_registers > 0))
        self.invariants.enter(None, body)
        self.add(Counter({"alu": CALL / 2, "load": CALL / 4, "store": CALL / 4}), 1.0, printed=False)
        self.printed += PROLOGUE
        self.walk(body)
        self.leave()

    def add(self, counts: Mapping[str, float], weight: float, *, printed: bool = True) -> None:
        for kind, n in counts.items():
            self.operations[kind] += n * weight
            self.nests.add(kind, n * weight)
            if printed and kind not in SILENT:
                self.printed += n

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
        loads, stores = region.spills(self.core)
        self.add({"load": loads, "store": stores}, region.runs)
        self.spilled += (loads + stores) * region.runs
        if self.regions:
            self.regions[-1].hold(region)

    # ------------------------------------------------------------ expressions

    def compute(self, name: ir.Var, value: ir.Expr) -> None:
        """A value that gets a name."""
        self.value(value, self.selector.count(value))
        self.regions[-1].define(name)

    def ahead(self, name: ir.Var, value: ir.Expr, level: int) -> None:
        """A value of an inner loop that is computed once an iteration of an outer one."""
        inner, self.regions = self.regions, self.regions[: level + 1]
        self.compute(name, self.invariants.settle(value, level))
        self.regions = inner

    def value(self, value: ir.Expr, counts: Operations) -> None:
        """An expression where it stands: its operations, then the memory and the names that it uses."""
        self.add(counts, self.regions[-1].weight)
        self.single = _is_word(value)
        self.uses(value)

    def uses(self, value: ir.Expr) -> None:
        match value:
            case ir.Load(buffer, indices):
                self.access(buffer, indices)
                self.touch(buffer)
            case ir.Call(name, (ir.AddressOf(buffer, indices, extent) as place, *rest)):
                distance = self.access(buffer, indices, word=name.endswith("_aligned"))
                if distance > self.core.pair and self.selector.call(name, value.dtype)["paired"]:
                    self.add({"alu": 1}, self.regions[-1].weight)  # two words at once reach less far than one
                self.touch(buffer, extent, place.step, writes=place.writes)
                for argument in rest:
                    self.uses(argument)
            case ir.AddressOf(buffer, indices, extent, writes, step):
                self.touch(buffer, extent, step, writes=writes)
                for child in indices:
                    self.uses(child)
            case ir.Var():
                self.regions[-1].use(value)
            case _:
                for child in children(value):
                    self.uses(child)

    def touch(self, buffer: ir.Buffer, extent: int = 1, step: int = 1, *, writes: bool = False) -> None:
        """What goes over the bus for it; registers have none."""
        if buffer.scope != "register":
            moved = Traffic.of(dtypes.nbytes(buffer.dtype), extent, step, writes=writes)
            self.traffic[buffer.name] += moved.times(self.regions[-1].weight)
            if buffer.scope == "const":
                self.operations["constant_byte"] += self.regions[-1].weight * moved.bytes_read

    def access(
        self, buffer: ir.Buffer, indices: tuple[ir.Expr, ...], *, writes: bool = False, word: bool = False
    ) -> int:
        """An access to one element or some in a row, and how far in bytes its pointer is; ``word``: they are an aligned word."""
        region = self.regions[-1]
        if buffer.scope == "register":
            region.cell(buffer, indices, writes=writes)
            return 0
        place = place_of(buffer, indices)
        for term, _ in place.terms:
            if not isinstance(term, ir.Var):
                self.index(term)
        distance = self.reach(place, writes=writes)
        near = distance <= self.core.pair
        self.pair(place if near and (word or buffer.dtype in ("int32", "uint32")) and not writes else None)
        return distance

    def pair(self, word: Place | None) -> None:
        """Two words side by side may be loaded together where each is a value by itself, one right after the other. Words in one
        expression are not: each is loaded where it is used, behind what the other one went into."""
        word = word if self.single else None
        before, self.previous = self.previous, word
        if self.core.pair and word is not None and before is not None and word.follows(before):
            self.previous = None
            self.add({"load": -1, "paired": 1}, self.regions[-1].weight)

    def reach(self, place: Place, *, writes: bool) -> int:
        """The pointer of an access, and how far the access is from it, in bytes. Where offsets count elements, loads of signed
        numbers below 32 bits have none: each takes an instruction for it, or for the sign, but for a pointer's only access."""
        region, width = self.regions[-1], dtypes.nbytes(place.buffer.dtype)
        if not self.core.has("elements"):
            return region.access(place, self.core.offset)[1]
        use, distance = region.access(place, self.core.offset * width)
        if not writes and width < 4 and place.buffer.dtype.startswith("int"):
            self.add(
                {"alu": {1: 0, 2: 2}.get(use.count, 1)}, region.weight
            )  # the second one tells that the first was not alone
        return distance

    def index(self, term: ir.Expr) -> None:
        """Arithmetic of loop variables: computed once an iteration of the innermost loop that it depends on."""
        names = free_vars(term)
        depth = max((k for k, region in enumerate(self.regions) if region.var in names), default=0)
        region = self.regions[depth]
        if region.compute(term):
            self.add(self.selector.count(term), region.runs)


def _is_word(value: ir.Expr) -> bool:
    """Whether a value is just what a word of memory holds."""
    match value:
        case ir.Load(buffer):
            return buffer.scope != "register"
        case ir.Call(_, (ir.AddressOf(),)):
            return True
        case _:
            return False
