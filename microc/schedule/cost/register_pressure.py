"""Registers, addresses, and what compilers move out of loops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from microc.base import dtypes
from microc.base.immutable import frozen
from microc.isa import SCALAR
from microc.schedule.cost.operation_counts import Selector
from microc.tir import ir
from microc.tir.analysis.context import buffers_written
from microc.tir.rewrite import accesses_of, free_vars, map_children

# ---- Addresses as a compiler sees them: a pointer that depends on loop variables, and a constant offset.

Terms = dict[ir.Expr, int]


@frozen
class Place:
    """``pointer`` is shared by all accesses of one buffer whose addresses differ by a constant; ``offset`` is in bytes."""

    buffer: ir.Buffer
    terms: frozenset[tuple[ir.Expr, int]]
    offset: int

    @property
    def pointer(self) -> Pointer:
        return self.buffer.name, self.terms

    def follows(self, other: Place) -> bool:
        """Whether two words are neighbours, which one instruction loads."""
        return self.pointer == other.pointer and abs(self.offset - other.offset) == 4


Pointer = tuple[str, frozenset[tuple[ir.Expr, int]]]


def place_of(buffer: ir.Buffer, indices: tuple[ir.Expr, ...]) -> Place:
    """The address of an element."""
    terms: Terms = {}
    offset = 0
    for index, stride in zip(indices, buffer.strides, strict=True):
        offset += _add(index, stride, terms)
    return Place(buffer, frozenset((e, k) for e, k in terms.items() if k), offset * dtypes.nbytes(buffer.dtype))


def _add(expr: ir.Expr, factor: int, terms: Terms) -> int:
    """Add ``factor * expr`` to linear terms; returns its constant part."""
    match expr:
        case ir.Const(int() as value):
            return factor * value
        case ir.Bin("add", a, b):
            return _add(a, factor, terms) + _add(b, factor, terms)
        case ir.Bin("sub", a, b):
            return _add(a, factor, terms) + _add(b, -factor, terms)
        case ir.Bin("mul", a, ir.Const(int() as value)) | ir.Bin("mul", ir.Const(int() as value), a):
            return _add(a, factor * value, terms)
        case _:
            terms[expr] = terms.get(expr, 0) + factor
            return 0


def moves_with(pointer: Pointer, var: ir.Var) -> bool:
    """Whether a pointer changes with a loop variable."""
    return any(_depends(e, var) for e, _ in pointer[1])


def step_of(pointer: Pointer, var: ir.Var) -> int:
    """Elements that a loop advances a pointer by."""
    return sum(k for e, k in pointer[1] if e == var)


def without(pointer: Pointer, var: ir.Var) -> Pointer:
    """The pointer at the start of a loop."""
    name, terms = pointer
    return name, frozenset((e, k) for e, k in terms if not _depends(e, var))


def _depends(expr: ir.Expr, var: ir.Var) -> bool:
    return expr == var if isinstance(expr, ir.Var) else var in free_vars(expr)


# ---- What compilers move out of loops: values that every iteration would compute alike.
#
# A value leaves a loop that changes nothing of what it is made of. Names and loop variables change where they get their value,
# cells of register tiles in loops that write them, memory in loops that write any: pointers of a kernel may overlap, but for
# constants, which nobody writes. What a condition guards stays behind the condition.

_PURE = frozenset({*SCALAR, ir.REINTERPRET})


@dataclass(slots=True)
class _Level:
    """A loop, or the function: what it writes, and the names of values that are computed once an iteration of it."""

    written: frozenset[ir.Buffer]
    memory: bool
    names: dict[ir.Expr, ir.Var] = field(default_factory=dict)


class Invariants:
    """Names for values by the level that they are computed at: 0 is the function's body, others are loops from the outermost on.

    ``charge`` is told of every new name, with its value and its level.
    """

    def __init__(self, selector: Selector, charge: Callable[[ir.Var, ir.Expr, int], None]) -> None:
        self.selector = selector
        self.charge = charge
        self.guarded = 0
        self.levels: list[_Level] = []
        self.homes: dict[ir.Var, int] = {}
        self.known: dict[ir.Var, ir.Var] = {}

    def enter(self, var: ir.Var | None, body: ir.Stmt) -> None:
        """A loop begins, or the function."""
        written = buffers_written(body)
        self.levels.append(_Level(written, any(b.scope != "register" for b in written)))
        if var is not None:
            self.homes[var] = self.here

    def leave(self) -> None:
        self.levels.pop()

    @property
    def here(self) -> int:
        return len(self.levels) - 1

    def define(self, var: ir.Var, value: ir.Expr) -> ir.Expr | None:
        """A name of the source: its value as :meth:`settle` leaves it, or None where that has left its loop with the name."""
        moved = self.settle(value, self.here)
        self.known.pop(var, None)
        if isinstance(moved, ir.Var) and not isinstance(value, ir.Var):
            self.known[var] = moved
            return None
        self.homes[var] = self.here
        return moved

    def settle(self, expr: ir.Expr, level: int) -> ir.Expr:
        """``expr``, computed at a level, with names for its largest parts that are computed further out."""
        settled, home = self._visit(expr, level)
        return self._outside(settled, home) if home < level else settled

    def _visit(self, expr: ir.Expr, level: int) -> tuple[ir.Expr, int]:
        """An expression with what leaves the level named, and the level that itself is computed at."""
        match expr:
            case ir.Const():
                return expr, self.guarded
            case ir.Var():
                name = self.known.get(expr, expr)
                return name, max(self.homes.get(name, 0), self.guarded)
            case ir.Load() | ir.AddressOf():
                return expr, self._home_of_access(expr)
        homes: list[int] = []

        def visit(child: ir.Expr) -> ir.Expr:
            settled, home = self._visit(child, level)
            homes.append(home)
            return settled

        settled = map_children(expr, visit)
        home = max(homes, default=self.guarded)
        if home < level and not (isinstance(expr, ir.Call) and expr.name not in _PURE):
            return settled, home
        parts = iter(homes)
        return map_children(settled, lambda part: self._part(settled, part, next(parts), level)), level

    def _part(self, whole: ir.Expr, part: ir.Expr, home: int, level: int) -> ir.Expr:
        """A part of what stays. A choice's loads stay behind its condition."""
        behind = isinstance(whole, ir.Select) and part is not whole.condition and accesses_of(part)
        if home == level or behind or isinstance(part, ir.AddressOf):
            return part
        return self._outside(part, home)

    def _outside(self, expr: ir.Expr, home: int) -> ir.Expr:
        if not self.selector.count(expr):
            return expr
        names = self.levels[home].names
        if expr not in names:
            names[expr] = name = ir.Var(f"&{len(self.homes)}", expr.dtype)
            self.homes[name] = home
            self.charge(name, expr, home)
        return names[expr]

    def _home_of_access(self, access: ir.Load | ir.AddressOf) -> int:
        """The level that an element, or an address, is the same within."""
        home = max((self.homes.get(self.known.get(var, var), 0) for var in free_vars(access)), default=0)
        looked_up = (inner for index in access.indices for inner in accesses_of(index))
        home = max(home, *map(self._home_of_access, looked_up), 0)
        for level in range(self.here, max(home, self.guarded), -1):
            at = self.levels[level]
            if access.buffer in at.written or (at.memory and access.buffer.scope not in ("const", "register")):
                return level
        return max(home, self.guarded)


# ---- What straight-line code keeps in registers, and what it must keep on the stack.
#
# A value lives from where it is defined to its last use. Where more of them live at once than a core has registers, compilers
# keep whole values on the stack, not parts of their lives: those first that are used least for the time that they would take a
# register (the priority of gcc's and LLVM's allocators). Such a value is loaded before each use, unless a register is free
# since the use before it, and stored where it is defined, but for one whose uses all found it in a register. A constant that
# has none is made anew at each use.

Name = tuple[object, ...]
KINDS = ("general", "float", "vector")
"""Kinds of registers."""
ADDRESS = "&"
"""First part of the names of addresses, which no source names. Their uses count twice: an access waits for them."""
CONSTANT = "#"
"""First part of the names of numbers, and of addresses that are such, which nothing defines."""


@frozen
class Event:
    """``names`` are used (or, for ``defines``, written) at once; a loop in between needs ``inner`` registers for itself. ``kind``
    says which registers: of :data:`KINDS`. ``share``: how many iterations, of one, come by."""

    names: tuple[Name, ...]
    defines: bool = False
    kind: str = "general"
    inner: int = 0
    share: float = 1.0


@frozen
class Spills:
    """Accesses to the stack in one iteration, the registers in use at the fullest moment, and ``constants`` made anew."""

    loads: float
    stores: float
    peak: int
    constants: float = 0.0


@dataclass(slots=True)
class _Life:
    """One value: when it is used and defined, and the times, from one to before another, in which it lives."""

    name: Name
    uses: list[int] = field(default_factory=list)
    defined: list[int] = field(default_factory=list)
    times: list[tuple[int, int]] = field(default_factory=list)

    @property
    def touched(self) -> list[int]:
        return sorted({*self.uses, *self.defined})

    @property
    def weight(self) -> int:
        """What keeping it on the stack is feared to cost."""
        return (len(self.uses) + len(self.defined)) * (1 + (self.name[0] == ADDRESS))


def play(events: Sequence[Event], lasting: Iterable[Name], registers: int) -> Spills:
    """One iteration in the steady state. ``lasting`` values live from one iteration to the next."""
    registers = max(registers, 1)
    lives = _lives(events, frozenset(lasting))
    demand = _demand(events, lives)
    peak = max(demand, default=0)
    if peak <= registers:
        return Spills(0, 0, peak)
    loads = stores = constants = 0.0
    for life in reversed(_spilled(lives, demand, registers)):
        if life.name[0] == CONSTANT:
            constants += _times(life.uses, events)
        else:
            kept = _kept(life, demand, registers)
            again = [time for time in life.uses if time not in kept]
            loads += _times(again, events)
            stores += _times(life.defined, events) if again else 0
    return Spills(loads, stores, registers, constants)


def _times(places: Iterable[int], events: Sequence[Event]) -> float:
    """How often an iteration comes by there."""
    return sum(events[place].share for place in places)


def _lives(events: Sequence[Event], lasting: frozenset[Name]) -> list[_Life]:
    """A definition begins a life; the last one of a value that lasts goes on as its first one of the next iteration."""
    first: dict[Name, _Life] = {}
    latest: dict[Name, _Life] = {}
    lives = []
    for time, event in enumerate(events):
        for name in event.names:
            life = latest.get(name)
            if life is None or event.defines:
                life = latest[name] = _Life(name)
                first.setdefault(name, life)
                lives.append(life)
            (life.defined if event.defines else life.uses).append(time)
    end = len(events)
    for life in lives:
        touched = life.touched
        life.times = [(touched[0], touched[-1] + 1)]
    for name in lasting.intersection(first):
        begin, last = first[name], latest[name]
        start = last.times[0][0]
        if begin.defined:
            last.times = [(start, end)]
        elif begin is last:
            last.times = [(0, end)]
        else:
            last.times = [(0, begin.times[0][1]), (start, end)]
            last.uses = begin.uses + last.uses
            begin.times = []
    return [life for life in lives if life.times]


def _demand(events: Sequence[Event], lives: Iterable[_Life]) -> list[int]:
    """Registers that are wanted, by time."""
    change = [0] * (len(events) + 1)
    for life in lives:
        for begin, end in life.times:
            change[begin] += 1
            change[end] -= 1
    return [n + event.inner for n, event in zip(accumulate(change), events, strict=False)]


def _spilled(lives: Iterable[_Life], demand: list[int], registers: int) -> list[_Life]:
    """Values that are kept on the stack, until the others fit; ``demand`` becomes theirs."""
    before = [0, *accumulate(int(n > registers) for n in demand)]
    order = []
    for place, life in enumerate(lives):
        full = sum(before[end] - before[begin] for begin, end in life.times)
        if full:
            order.append((life.weight / (full + 1), place, life))
    spilled = []
    for _, _, life in sorted(order, key=lambda entry: entry[:2]):
        busy = frozenset(life.touched)
        idle = [t for begin, end in life.times for t in range(begin, end) if t not in busy]
        if any(demand[t] > registers for t in idle):
            for t in idle:
                demand[t] -= 1
            spilled.append(life)
    return spilled


def _kept(life: _Life, demand: list[int], registers: int) -> set[int]:
    """Uses that find a spilled value in a register still; it takes that one."""
    kept = set()
    for begin, end in pairwise(life.touched):
        between = range(begin + 1, end)
        if end not in life.defined and all(demand[t] < registers for t in between):
            kept.add(end)
            for t in between:
                demand[t] += 1
    return kept
