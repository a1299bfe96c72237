# SPDX-License-Identifier: Apache-2.0
"""Register pressure: addresses in linear form, loop-invariant code motion, and register allocation, as compilers do
them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from operator import itemgetter

from microc.base import dtypes
from microc.base.immutable import frozen
from microc.isa import SCALAR
from microc.schedule.cost.operation_counts import Selector
from microc.tir import ir
from microc.tir.analysis.context import buffers_written
from microc.tir.rewrite import accesses_of, children, free_vars, with_children

# ---- Addresses as a compiler sees them: a pointer that depends on loop variables, and a constant offset.

Terms = dict[ir.Expr, int]


@frozen
class Address:
    """The address of a memory access in linear form: a pointer that depends on loop variables, plus a constant
    ``offset`` in bytes.

    ``terms``: (expression, factor in elements) pairs. All accesses to a buffer whose addresses differ by a constant
    share a ``pointer``."""

    buffer: ir.Buffer
    terms: frozenset[tuple[ir.Expr, int]]
    offset: int

    @property
    def pointer(self) -> Pointer:
        """The address without its constant offset: name of the buffer, and terms."""
        return self.buffer.name, self.terms

    def is_word_after(self, other: Address) -> bool:
        """Test whether the words at this address and at ``other`` are neighbours, so that one instruction can load
        both."""
        return self.pointer == other.pointer and abs(self.offset - other.offset) == 4


Pointer = tuple[str, frozenset[tuple[ir.Expr, int]]]


def address_of(buffer: ir.Buffer, indices: tuple[ir.Expr, ...]) -> Address:
    """Return the address of an element in linear form."""
    terms: Terms = {}
    offset = 0
    for index, stride in zip(indices, buffer.strides, strict=True):
        offset += _add_linear_terms(index, stride, terms)
    return Address(buffer, frozenset((e, k) for e, k in terms.items() if k), offset * dtypes.nbytes(buffer.dtype))


def _add_linear_terms(expr: ir.Expr, factor: int, terms: Terms) -> int:
    """Add the terms of ``factor * expr`` to ``terms``. Return the constant part of ``factor * expr``."""
    match expr:
        case ir.Const(int() as value):
            return factor * value
        case ir.Bin("add", a, b):
            return _add_linear_terms(a, factor, terms) + _add_linear_terms(b, factor, terms)
        case ir.Bin("sub", a, b):
            return _add_linear_terms(a, factor, terms) + _add_linear_terms(b, -factor, terms)
        case ir.Bin("mul", a, ir.Const(int() as value)) | ir.Bin("mul", ir.Const(int() as value), a):
            return _add_linear_terms(a, factor * value, terms)
        case _:
            terms[expr] = terms.get(expr, 0) + factor
            return 0


def depends_on_loop(pointer: Pointer, loop_var: ir.Var) -> bool:
    """Test whether a pointer changes with a loop variable."""
    return any(_contains_variable(e, loop_var) for e, _ in pointer[1])


def pointer_step(pointer: Pointer, loop_var: ir.Var) -> int:
    """Return the number of elements by which each iteration of a loop advances a pointer."""
    return sum(k for e, k in pointer[1] if e == loop_var)


def pointer_before_loop(pointer: Pointer, loop_var: ir.Var) -> Pointer:
    """Return the pointer before a loop: without the terms that depend on the loop's variable."""
    name, terms = pointer
    return name, frozenset((e, k) for e, k in terms if not _contains_variable(e, loop_var))


def _contains_variable(expr: ir.Expr, var: ir.Var) -> bool:
    """Test whether an expression contains a variable."""
    return expr == var if isinstance(expr, ir.Var) else var in free_vars(expr)


# ---- Loop-invariant code motion, as compilers do it
#
# A value is moved out of a loop that changes none of its operands. A variable changes in the loop that defines it, a scalar of a
# register tile in loops that write the tile. Memory other than constants changes in loops that write any memory, because pointers
# of a kernel may overlap. A value under a condition stays under it, except a division or remainder by a constant: it cannot trap,
# and gcc moves what is dear (LIM_EXPENSIVE in tree-ssa-loop-im.cc) even if not all iterations need it.

_PURE = frozenset({*SCALAR, ir.REINTERPRET})
_DIVISIONS = frozenset({"floordiv", "floormod", "truncdiv", "truncmod"})


def _leaves_branches(expr: ir.Expr) -> bool:
    """Test whether a loop-invariant expression is moved out of a loop even if a branch in the loop skips it."""
    return isinstance(expr, ir.Bin) and expr.op in _DIVISIONS and isinstance(expr.b, ir.Const)


@dataclass(slots=True)
class _LoopLevel:
    """A loop of the current nest, or the function: the buffers that it writes, whether these include memory, and
    variables for the values that each of its iterations computes once."""

    written: frozenset[ir.Buffer]
    writes_memory: bool
    names: dict[ir.Expr, ir.Var] = field(default_factory=dict)


class LoopInvariants:
    """Loop-invariant code motion as compilers do it: invariant values are assigned to new variables outside of the
    loop.

    Level 0 is the function's body; the other levels are the loops around the current statement, outermost first.
    ``on_hoisted`` is called with every new variable, its value and the level that computes it."""

    def __init__(self, selector: Selector, on_hoisted: Callable[[ir.Var, ir.Expr, int], None]) -> None:
        self.selector = selector
        self.on_hoisted = on_hoisted
        self.guarded = 0
        self.levels: list[_LoopLevel] = []
        self.home_levels: dict[ir.Var, int] = {}
        self.replacements: dict[ir.Var, ir.Var] = {}

    def enter_loop(self, var: ir.Var | None, body: ir.Stmt) -> None:
        """Begin a loop over ``var``, or the function if ``var`` is None."""
        written = buffers_written(body)
        self.levels.append(_LoopLevel(written, any(b.scope != "register" for b in written)))
        if var is not None:
            self.home_levels[var] = self.innermost_level

    def leave_loop(self) -> None:
        """End the innermost loop."""
        self.levels.pop()

    @property
    def innermost_level(self) -> int:
        """Level of the innermost loop."""
        return len(self.levels) - 1

    def record_definition(self, var: ir.Var, value: ir.Expr) -> ir.Expr | None:
        """Record the definition of a variable in the source.

        Return its value as :meth:`hoist_invariants` rewrites it; None if value and variable were moved out of the
        loop."""
        moved = self.hoist_invariants(value, self.innermost_level)
        self.replacements.pop(var, None)
        if isinstance(moved, ir.Var) and not isinstance(value, ir.Var):
            self.replacements[var] = moved
            return None
        self.home_levels[var] = self.innermost_level
        return moved

    def hoist_invariants(self, expr: ir.Expr, level: int) -> ir.Expr:
        """Rewrite an expression that level ``level`` computes: its largest subexpressions that outer levels can
        compute are replaced by variables."""
        rewritten, home = self._hoist_parts(expr, level)
        return self._hoisted_name(rewritten, home) if home < level else rewritten

    def _hoist_parts(self, expr: ir.Expr, level: int) -> tuple[ir.Expr, int]:
        """Replace the subexpressions of an expression that leave ``level`` by variables. Return the rewritten
        expression, and the level that computes it."""
        match expr:
            case ir.Const():
                return expr, self.guarded
            case ir.Var():
                name = self.replacements.get(expr, expr)
                return name, max(self.home_levels.get(name, 0), self.guarded)
            case ir.Load() | ir.AddressOf():
                return expr, self._level_that_changes_access(expr)
        guarded = self.guarded
        self.guarded = 0 if _leaves_branches(expr) else guarded
        hoisted = [self._hoist_parts(part, level) for part in children(expr)]
        home = max([home for _, home in hoisted], default=self.guarded)
        home, self.guarded = max(home, self.guarded), guarded
        if home < level and not (isinstance(expr, ir.Call) and expr.name not in _PURE):
            return with_children(expr, [part for part, _ in hoisted]), home
        condition = hoisted[0][0] if isinstance(expr, ir.Select) else None
        parts = []
        for part, home in hoisted:
            if home != level and not isinstance(part, (ir.Const, ir.Var, ir.AddressOf)):
                # Loads in an alternative of a select stay behind the select's condition.
                behind = condition is not None and part is not condition and accesses_of(part)
                parts.append(part if behind else self._hoisted_name(part, home))
            else:
                parts.append(part)
        return with_children(expr, parts), level

    def _hoisted_name(self, expr: ir.Expr, home_level: int) -> ir.Expr:
        """Return the variable for an expression that level ``home_level`` computes.

        An expression that needs no operations is returned itself."""
        if not self.selector.count(expr):
            return expr
        names = self.levels[home_level].names
        if expr not in names:
            names[expr] = name = ir.Var(f"&{len(self.home_levels)}", expr.dtype)
            self.home_levels[name] = home_level
            self.on_hoisted(name, expr, home_level)
        return names[expr]

    def _level_that_changes_access(self, access: ir.Load | ir.AddressOf) -> int:
        """Return the innermost level at which an element in memory, or an address, may change."""
        home = 0
        for var in free_vars(access):
            home = max(home, self.home_levels.get(self.replacements.get(var, var), 0))
        for index in access.indices:
            for inner in accesses_of(index):
                home = max(home, self._level_that_changes_access(inner))
        for level in range(self.innermost_level, max(home, self.guarded), -1):
            at = self.levels[level]
            if access.buffer in at.written or (at.writes_memory and access.buffer.scope not in ("const", "register")):
                return level
        return max(home, self.guarded)


# ---- Register allocation of straight-line code
#
# A value is live from its definition to its last use. If more values are live than a core has registers, compilers spill whole
# live ranges, those with the fewest uses per time first (the priority of gcc's and LLVM's allocators). A spilled value is loaded
# before each use, unless a register has been free since the previous use. It is stored after its definition, unless no use needs
# a load. A constant without a register is rematerialised at each use.

Name = tuple[object, ...]
KINDS = ("general", "float", "vector")
"""Types of registers."""
ADDRESS = "&"
"""First element of the names of addresses. Uses of an address count twice in spill decisions, because an access
waits for its address."""
CONSTANT = "#"
"""First element of the names of constants, including constant addresses, which have no definition."""


@frozen
class RegisterEvent:
    """An instruction that reads the registers ``names``, all at once, or writes them if ``defines``.

    ``inner_registers``: if the event represents an inner loop, number of additional registers that the loop needs.
    ``kind``: type of register, from :data:`KINDS`. ``share``: fraction of iterations that execute the instruction."""

    names: tuple[Name, ...]
    defines: bool = False
    kind: str = "general"
    inner_registers: int = 0
    share: float = 1.0


@frozen
class SpillCounts:
    """Stack accesses of one iteration (``loads``, ``stores``), the most registers in use at once (``peak``), and the
    number of constants that are ``rematerialised``."""

    loads: float
    stores: float
    peak: int
    rematerialised: float = 0.0


@dataclass(slots=True)
class _LiveRange:
    """The live range of one value. Program points are indices of events.

    ``accesses``: rising program points that define or use the value. ``definition``: the one that defines it, if any.
    ``intervals``: half-open intervals of program points in which it is live."""

    name: Name
    accesses: list[int]
    definition: int | None
    intervals: Sequence[tuple[int, int]] = ()

    @property
    def weight(self) -> int:
        """Estimated number of stack accesses if the value is spilled."""
        return len(self.accesses) * (1 + (self.name[0] == ADDRESS))

    def idle_spans(self) -> list[tuple[int, int]]:
        """Return the half-open intervals of program points at which the value is live, but not accessed."""
        spans = []
        for begin, end in self.intervals:
            edges = [begin - 1, *(time for time in self.accesses if begin <= time < end), end]
            spans += [(low + 1, high) for low, high in pairwise(edges) if low + 1 < high]
        return spans


def allocate_registers(
    events: Sequence[RegisterEvent], loop_carried: Iterable[Name], register_count: int
) -> SpillCounts:
    """Allocate registers for the events of one loop iteration in the steady state. Return the spills.

    ``loop_carried``: values that are live from one iteration to the next."""
    register_count = max(register_count, 1)
    lives = _live_ranges(events, loop_carried)
    demand = _live_registers(events, lives)
    peak = max(demand, default=0)
    if peak <= register_count:
        return SpillCounts(0, 0, peak)
    loads = stores = constants = 0.0
    for life in reversed(_choose_spills(lives, demand, register_count)):
        if life.name[0] == CONSTANT:
            constants += _executions_per_iteration(life.accesses, events)
        else:
            in_register = _uses_in_register(life, demand, register_count)
            reloads = [time for time in life.accesses if time != life.definition and time not in in_register]
            loads += _executions_per_iteration(reloads, events)
            if reloads and life.definition is not None:
                stores += events[life.definition].share
    return SpillCounts(loads, stores, register_count, constants)


def _executions_per_iteration(program_points: Iterable[int], events: Sequence[RegisterEvent]) -> float:
    """Return how often one iteration executes the events at these program points, in total."""
    return sum(events[time].share for time in program_points)


def _live_ranges(events: Sequence[RegisterEvent], loop_carried: Iterable[Name]) -> list[_LiveRange]:
    """Build the live ranges of all values in one iteration.

    Every definition begins a new range. The last range of a loop-carried value continues in the next iteration, up
    to the end of the value's first range."""
    first: dict[Name, _LiveRange] = {}
    latest: dict[Name, _LiveRange] = {}
    lives = []
    for time, event in enumerate(events):
        for name in event.names:
            life = latest.get(name)
            if life is None or event.defines:
                life = latest[name] = _LiveRange(name, [time], time if event.defines else None)
                first.setdefault(name, life)
                lives.append(life)
            else:
                life.accesses.append(time)
    end = len(events)
    for life in lives:
        life.intervals = ((life.accesses[0], life.accesses[-1] + 1),)
    for name in first.keys() & loop_carried:
        begin, last = first[name], latest[name]
        start = last.intervals[0][0]
        if begin.definition is not None:
            last.intervals = ((start, end),)
        elif begin is last:
            last.intervals = ((0, end),)
        else:
            last.intervals = (0, begin.intervals[0][1]), (start, end)
            last.accesses = begin.accesses + last.accesses
            begin.intervals = ()
    return [life for life in lives if life.intervals]


def _live_registers(events: Sequence[RegisterEvent], lives: Iterable[_LiveRange]) -> list[int]:
    """Return the number of live registers at every program point."""
    change = [0] * (len(events) + 1)
    for life in lives:
        for begin, end in life.intervals:
            change[begin] += 1
            change[end] -= 1
    return [n + event.inner_registers for n, event in zip(accumulate(change), events, strict=False)]


def _choose_spills(lives: Iterable[_LiveRange], register_demand: list[int], register_count: int) -> list[_LiveRange]:
    """Choose live ranges to spill until the others fit in the registers.

    ``register_demand``: number of live registers at every program point. Each spilled range is subtracted from it at
    points where the value is not accessed."""
    # Priority: estimated accesses per time in which registers do not suffice. Ties go to the earlier range.
    overfull = [0, *accumulate(int(n > register_count) for n in register_demand)]
    order = []
    for k, life in enumerate(lives):
        full = sum([overfull[end] - overfull[begin] for begin, end in life.intervals])
        if full:
            order.append((life.weight / (full + 1), k, life))
    spilled = []
    for _, _, life in sorted(order, key=itemgetter(0, 1)):
        idle = life.idle_spans()
        if any(max(register_demand[begin:end]) > register_count for begin, end in idle):
            for begin, end in idle:
                register_demand[begin:end] = [n - 1 for n in register_demand[begin:end]]
            spilled.append(life)
            if max(register_demand) <= register_count:
                break
    return spilled


def _uses_in_register(live_range: _LiveRange, register_demand: list[int], register_count: int) -> set[int]:
    """Return the uses of a spilled value that need no load, because a register has been free since the previous access.

    Such a register is then added to ``register_demand``."""
    in_register = set()
    for access, end in pairwise(sorted(set(live_range.accesses))):
        begin = access + 1
        if end != live_range.definition and max(register_demand[begin:end], default=0) < register_count:
            in_register.add(end)
            register_demand[begin:end] = [n + 1 for n in register_demand[begin:end]]
    return in_register
