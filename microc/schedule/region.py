"""The body of one loop as the cost model sees it: its pointers, the values it shares, the loops inside."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from microc import dtypes
from microc.isa import Costs
from microc.schedule.addresses import Place, Pointer, moves_with, step_of, without
from microc.schedule.cost_expr import Operations
from microc.schedule.pressure import Event, Name, play
from microc.tir import ir

POINTER = "&"
"""First part of the names of values that no source names: pointers and counters."""


@dataclass(frozen=True, slots=True)
class Use:
    """A pointer's first access in a body: its name, its offset in bytes, and whether floats are accessed."""

    name: Name
    offset: int
    floats: bool


class Region:
    """``var`` is None for the body of the function. ``entries``: how often the loop starts; ``runs``: its iterations."""

    def __init__(self, var: ir.Var | None, entries: float, runs: float) -> None:
        self.var = var
        self.entries = entries
        self.runs = runs
        self.events: list[Event] = []
        self.own_names: set[Name] = set()
        self.own_buffers: set[str] = set()
        self.pointers: dict[Pointer, Use] = {}
        self.inner: dict[Pointer, None] = {}
        self.terms: set[ir.Expr] = set()
        self.counted = False
        self.peak = 0

    # ------------------------------------------------------------ what the body says

    def own(self, buffer: ir.Buffer) -> None:
        """A register tile that is declared here."""
        self.own_buffers.add(buffer.name)

    def define(self, var: ir.Var) -> None:
        self.own_names.add((var.name,))
        self._event((var.name,), var.dtype, defines=True)

    def use(self, var: ir.Var) -> None:
        if var == self.var:
            self.counted = True
        else:
            self._event((var.name,), var.dtype, defines=False)

    def cell(self, buffer: ir.Buffer, indices: tuple[ir.Expr, ...], *, writes: bool) -> None:
        """A scalar of a register tile."""
        name = (buffer.name, *(ir.int_value(i) for i in indices))
        if buffer.name in self.own_buffers:
            self.own_names.add(name)
        self._event(name, buffer.dtype, defines=writes)

    def _event(self, name: Name, dtype: str, *, defines: bool) -> None:
        names = (name, (*name, "high")) if dtypes.nbytes(dtype) > 4 else (name,)
        self.events.append(Event(names, defines, floats=dtype == "float32"))

    def access(self, place: Place) -> int:
        """An access to memory; the distance in bytes from the pointer's first one."""
        use = self.pointers.get(place.pointer)
        if use is None:
            use = Use((POINTER, len(self.pointers)), place.offset, place.buffer.dtype == "float32")
            self.pointers[place.pointer] = use
        self.events.append(Event((use.name,)))
        return abs(place.offset - use.offset)

    def compute(self, term: ir.Expr) -> bool:
        """Whether index arithmetic is new in this iteration."""
        new = term not in self.terms
        self.terms.add(term)
        return new

    def hold(self, loop: Region) -> None:
        """A loop in this body: what it uses from outside is used here, its pointers start from pointers of this one."""
        assert loop.var is not None
        for floats in (False, True):
            theirs = [e for e in loop.events if e.floats == floats]
            used = dict.fromkeys(n for e in theirs for n in e.names if n not in loop.own_names and n[0] != POINTER)
            changed = {n for e in theirs if e.defines for n in e.names}
            inner = 0 if floats else max(loop.peak - len(used), 0)
            self.events.append(Event(tuple(used), False, floats, inner))
            self.events.append(Event(tuple(n for n in used if n in changed), True, floats))
            self.own_names.update(n for n in used if n[0] in self.own_buffers)
        for pointer in (*loop.pointers, *loop.inner):
            self.inner.setdefault(without(pointer, loop.var))

    # ------------------------------------------------------------ what follows

    def moving(self) -> list[Pointer]:
        """Pointers that this loop advances."""
        var = self.var
        return [p for p in {**self.pointers, **self.inner} if moves_with(p, var)] if var is not None else []

    def entry(self) -> Operations:
        """Once before the loop: every pointer is set up, and the counter."""
        return Counter({"alu": len(self.moving()) + 1}) if self.var is not None else Counter()

    def turn(self, core: Costs) -> Operations:
        """Once an iteration: pointers advance, the end is tested.

        Short instructions add an index to their pointer, which pointers of equal steps share; others advance it themselves.
        """
        if self.var is None:
            return Counter()
        var, moving = self.var, self.moving()
        steps = sum(not self._absorbed(p) for p in moving) if core.wide else len({step_of(p, var) for p in moving})
        return Counter({"alu": steps + 1 + int(self.counted and len(moving) > 0), "branch": 1, "taken": 1})

    def _absorbed(self, pointer: Pointer) -> bool:
        """Whether an access of the body advances the pointer by itself: loads of floats do so by their own size alone."""
        use = self.pointers.get(pointer)
        return use is not None and (not use.floats or (self.var, 1) in pointer[1])

    def spills(self, core: Costs) -> tuple[int, int]:
        """Loads and stores of the stack in one iteration. Remembers how many registers the body fills."""
        moving = set(self.moving())
        kept: list[Name] = [(POINTER, "outer", k) for k, p in enumerate(self.inner) if p in moving]
        if self.var is not None and (self.counted or kept or not self.pointers):
            kept.append((POINTER, "counter"))
        whole = [*self.events, *(Event((name,), True) for name in kept)]
        if not core.float_registers:
            return self._played(whole, core.registers, remember=True)
        loads, stores = self._played([e for e in whole if not e.floats], core.registers, remember=True)
        more = self._played([e for e in whole if e.floats], core.float_registers, remember=False)
        return loads + more[0], stores + more[1]

    def _played(self, events: list[Event], registers: int, *, remember: bool) -> tuple[int, int]:
        lasting = {n for e in events for n in e.names if n not in self.own_names} if self.var is not None else set()
        found = play(events, lasting, registers)
        if remember:
            self.peak = found.peak
        return found.loads, found.stores
