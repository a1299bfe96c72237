"""The body of one loop as the cost model sees it: its pointers, the values it shares, the loops inside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from microc import dtypes
from microc.frozen import frozen
from microc.isa import Costs
from microc.schedule.addresses import Place, Pointer, moves_with, step_of, without
from microc.schedule.cost_expr import Operations
from microc.schedule.pressure import ADDRESS, CONSTANT, KINDS, Event, Name, Spills, play
from microc.tir import ir

_END: Name = (ADDRESS, "end")
"""A loop's counter, or where a pointer arrives at the end."""
_VALUE = "="
"""First part of the names of values that have none."""
_FEW = 2
"""Places of a constant that a loop looks up by its counter."""
_TOGETHER = 0.5
"""Accesses to the stack of a value that waits there while a loop runs: it is stored and loaded together with another one."""
_SPILLED = 2
"""Accesses to the stack of a sum that does not stay in its register, in each turn of a loop."""


@frozen
class Operand:
    """What an instruction reads from a register."""

    name: Name
    dtype: str

    @staticmethod
    def constant(number: ir.Const) -> Operand:
        """A number that an instruction does not hold."""
        return Operand((CONSTANT, number.value), number.dtype)


@dataclass(slots=True)
class Use:
    """A pointer's first access in a body: its name, its offset in bytes, and whether floats are accessed; how many there are."""

    name: Name
    offset: int
    floats: bool
    size: int
    count: int = 0


class Region:
    """``var`` is None for the body of the function. ``entries``: how often the loop starts; ``runs``: its iterations;
    ``weight``: how many reach the place where the walk stands. ``vectors``: these have registers of their own."""

    def __init__(self, var: ir.Var | None, entries: float, runs: float, *, vectors: bool) -> None:
        self.var = var
        self.vectors = vectors
        self.entries = entries
        self.runs = runs
        self.weight = runs
        self.events: list[Event] = []
        self.own_names: set[Name] = set()
        self.own_buffers: set[str] = set()
        self.pointers: dict[Pointer, list[Use]] = {}
        self.constants: set[Pointer] = set()
        self.looked_up: list[Pointer] = []
        self.inner: dict[Pointer, None] = {}
        self.terms: set[ir.Expr] = set()
        self.counted = False
        self.loops: list[Region] = []
        self.peak = 0

    # ------------------------------------------------------------ what the body says

    @property
    def share(self) -> float:
        """The part of the iterations that reach the place where the walk stands."""
        return self.weight / self.runs if self.runs else 0.0

    def own(self, buffer: ir.Buffer) -> None:
        """A register tile that is declared here."""
        self.own_buffers.add(buffer.name)

    def define(self, var: ir.Var) -> None:
        self.own_names.add((var.name,))
        self._event([Operand((var.name,), var.dtype)], defines=True)

    def variable(self, var: ir.Var) -> list[Operand]:
        """A name as an operand; the loop's own counter has no register but the one that ends the loop."""
        if var == self.var:
            self.counted = True
            return []
        return [Operand((var.name,), var.dtype)]

    def cell(self, buffer: ir.Buffer, indices: tuple[ir.Expr, ...]) -> Operand:
        """A scalar of a register tile."""
        name = (buffer.name, *(ir.int_value(i) for i in indices))
        if buffer.name in self.own_buffers:
            self.own_names.add(name)
        return Operand(name, buffer.dtype)

    def assign(self, cell: Operand) -> None:
        """A scalar of a register tile gets a value."""
        self._event([cell], defines=True)

    def take(self, operands: Iterable[Operand]) -> None:
        """An instruction reads its operands, all at once."""
        self._event(list(dict.fromkeys(operands)), defines=False)

    def make(self, dtype: str) -> list[Operand]:
        """A value without a name, as an operand of what follows: none for vectors and floats, whose instructions compilers put
        in an order of their own (counted as words, they made x86-64 choose tiles that were a sixth slower)."""
        if dtypes.is_vector(dtype) or dtypes.is_float(dtype):
            return []
        made = Operand((_VALUE, len(self.events)), dtype)
        self.own_names.update(self._names(made))
        self._event([made], defines=True)
        return [made]

    def _event(self, operands: list[Operand], *, defines: bool) -> None:
        names: dict[str, list[Name]] = {}
        for operand in operands:
            names.setdefault(self._kind(operand), []).extend(self._names(operand))
        for kind, those in names.items():
            self.events.append(Event(tuple(those), defines, kind, share=self.share))

    def _kind(self, operand: Operand) -> str:
        if self.vectors and dtypes.is_vector(operand.dtype):
            return "vector"
        return "float" if operand.dtype == "float32" else "general"

    def _names(self, operand: Operand) -> tuple[Name, ...]:
        """Its registers: two for a number of 64 bits."""
        two = dtypes.nbytes(operand.dtype) > 4 and self._kind(operand) != "vector"
        return (operand.name, (*operand.name, "high")) if two else (operand.name,)

    def access(self, place: Place, reach: int) -> tuple[Use, int]:
        """An access to memory: its pointer, the distance from it in bytes. What is further than ``reach`` has its own pointer."""
        uses = self.pointers.setdefault(place.pointer, [])
        if place.buffer.scope == "const":
            self.constants.add(place.pointer)
        use = next((use for use in uses if abs(place.offset - use.offset) <= reach), None)
        if use is None:
            dtype = place.buffer.dtype
            name = (ADDRESS, len(self.pointers), len(uses))
            use = Use(name, place.offset, dtype == "float32", dtypes.nbytes(dtype))
            uses.append(use)
        use.count += 1
        self.events.append(Event((use.name,), share=self.share))
        return use, abs(place.offset - use.offset)

    def compute(self, term: ir.Expr) -> bool:
        """Whether index arithmetic is new in this iteration."""
        new = term not in self.terms
        self.terms.add(term)
        return new

    def hold(self, loop: Region) -> None:
        """A loop in this body: what it uses from outside is used here, its pointers start from pointers of this one."""
        assert loop.var is not None
        for kind in KINDS:
            theirs = [e for e in loop.events if e.kind == kind]
            used = dict.fromkeys(n for e in theirs for n in e.names if n not in loop.own_names and n[0] != ADDRESS)
            changed = {n for e in theirs if e.defines for n in e.names}
            inner = max(loop.peak - len(used), 0) if kind == "general" else 0
            self.events.append(Event(tuple(used), False, kind, inner, self.share))
            self.events.append(Event(tuple(n for n in used if n in changed), True, kind, share=self.share))
            self.own_names.update(n for n in used if n[0] in self.own_buffers)
        self.loops.append(loop)
        for pointer in (*loop.pointers, *loop.inner):
            self.inner.setdefault(without(pointer, loop.var))

    # ------------------------------------------------------------ what follows

    def moving(self) -> list[Pointer]:
        """Pointers that this loop advances; one stands once for each of its places that are far from each other."""
        var = self.var
        if var is None:
            return []
        return [p for p in {**self.pointers, **self.inner} if moves_with(p, var) for _ in self.pointers.get(p, (None,))]

    def entry(self) -> Operations:
        """Once before the loop: every pointer is set up, and the counter."""
        return Counter({"alu": len(self.moving()) + 1}) if self.var is not None else Counter()

    def turn(self, core: Costs) -> Operations:
        """Once an iteration: pointers advance, the end is tested, which is where a pointer arrives unless the counter is needed.

        Pointers of equal steps share an index where loads add it, beside an offset or where there is none.
        """
        if self.var is None:
            return Counter()
        var = self.var
        moving = [p for p in self.moving() if p not in self.looked_up]
        if core.has("indexed"):
            sharing = [p for p in moving if not core.has("elements") or self._absorbed(p, 1 << 31)]
            steps = len({step_of(p, var) for p in sharing}) + len(moving) - len(sharing)
        else:
            steps = sum(not self._absorbed(p, core.advance) for p in moving)
        counter = int(self.counted or not moving or bool(self.looked_up))
        test = int(not core.has("compared") and bool(moving))  # a counter's own sum is compared with zero
        return Counter({"alu": steps + counter + test, "branch": 1, "taken": 1})

    def _absorbed(self, pointer: Pointer, most: int) -> bool:
        """Whether the only access of the body advances the pointer by itself, by at most so many bytes: loads of floats do so by
        their own size alone."""
        uses = self.pointers.get(pointer, [])
        if len(uses) != 1 or uses[0].count > 1 or self.var is None:
            return False
        step = abs(step_of(pointer, self.var))
        return step == 1 and most > 0 if uses[0].floats else step * uses[0].size <= most

    def settle(self, core: Costs) -> None:
        """What the compiler does with constants of which a body takes a few elements: where registers are short, their places
        have bases of their own, which come from the code, beside one index that all of them share."""
        if not core.has("shifted"):
            return
        apart = [p for p in self.moving() if p in self.constants and p not in self.inner]
        few = [p for p in apart if sum(use.count for use in self.pointers[p]) <= _FEW]
        if few and self._played(self._general(core), core.registers).peak >= core.registers:
            self.looked_up = few

    def full(self, core: Costs) -> list[Region]:
        """Loops inside that fill all registers."""
        return [loop for loop in self.loops if loop.peak >= core.registers]

    def resident(self, core: Costs) -> Name | None:
        """The constant that keeps its register while full loops run, if there is one. Others wait on the stack or are made anew,
        loop by loop, but gcc decides about a constant for the whole function: the one that is used most keeps its register
        where its uses outweigh what a value of those loops costs without one."""
        full = self.full(core)
        inside = {name for loop in full for event in loop.events for name in event.names}
        uses = Counter(n for e in self.events for n in e.names if n[0] == CONSTANT and n not in inside)
        if not full or not uses:
            return None
        name, count = uses.most_common(1)[0]
        return name if count * self.runs >= _SPILLED * max(loop.runs for loop in full) else None

    def spills(self, core: Costs, resident: Name | None = None) -> tuple[float, float]:
        """Loads and stores of the stack in one iteration, loads of constants included, where one register holds a ``resident``
        constant. Remembers how many registers the body fills."""
        general = self._played(_without(self._general(core), resident), core.registers - (resident is not None))
        self.peak = general.peak + (resident is not None)
        together = _TOGETHER if core.pair and any(e.inner for e in self.events) else 1.0
        loads, stores = together * general.loads + general.constants, together * general.stores
        for kind, registers in (("float", core.float_registers), ("vector", core.vector_registers)):
            if registers:
                more = self._played([e for e in self.events if e.kind == kind], registers)
                loads, stores = loads + more.loads + more.constants, stores + more.stores
        return loads, stores

    def _general(self, core: Costs) -> list[Event]:
        """What the body does in general registers, and what the loop does to its pointers and its counter behind it."""
        elsewhere = {"float" if core.float_registers else "", "vector" if core.vector_registers else ""}
        moving, looked_up = self.moving(), {u.name for p in self.looked_up for u in self.pointers[p]}
        events: list[Event] = []
        for place, event in enumerate(self.events):
            if event.kind in elsewhere:
                continue
            if event.names[:1] and event.names[0] in looked_up:
                events.append(Event(((CONSTANT, "base", place),), share=event.share))
                event = Event((_END,), share=event.share)
            events.append(event)
        advanced: list[Name] = [(ADDRESS, "outer", k) for k, p in enumerate(self.inner) if p in moving]
        advanced += [u.name for p in dict.fromkeys(moving) for u in self.pointers.get(p, ()) if u.name not in looked_up]
        if self.var is not None:
            if self.counted or not moving or looked_up:
                advanced.append(_END)
            else:
                events.append(Event((_END,)))
        for name in advanced:
            events += [Event((name,)), Event((name,), True)]
        return events

    def _played(self, events: list[Event], registers: int) -> Spills:
        lasting = {n for e in events for n in e.names if n not in self.own_names} if self.var is not None else set()
        return play(events, lasting, registers)


def _without(events: list[Event], name: Name | None) -> list[Event]:
    """What happens to all other values."""
    if name is None:
        return events
    return [replace(e, names=tuple(n for n in e.names if n != name)) if name in e.names else e for e in events]
