"""The body of one loop as the cost model sees it: its pointers, the values it shares, the loops inside."""

from __future__ import annotations

from collections import Counter

from microc import dtypes
from microc.schedule.addresses import Place, Pointer, moves_with, without
from microc.schedule.cores import Core
from microc.schedule.cost_expr import Operations
from microc.schedule.pressure import Event, Name, play
from microc.tir import ir


class Region:
    """``var`` is None for the body of the function. ``entries``: how often the loop starts; ``runs``: its iterations."""

    def __init__(self, var: ir.Var | None, entries: float, runs: float) -> None:
        self.var = var
        self.entries = entries
        self.runs = runs
        self.events: list[Event] = []
        self.floats: list[Event] = []
        self.own_names: set[Name] = set()
        self.own_buffers: set[str] = set()
        self.pointers: dict[Pointer, str] = {}
        self.starts: dict[Pointer, int] = {}
        self.inner: dict[Pointer, None] = {}
        self.terms: set[ir.Expr] = set()
        self.counted = False
        self.peak = 0

    # ------------------------------------------------------------ what the body says

    def own(self, buffer: ir.Buffer) -> None:
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
        name = (buffer.name, *(str(ir.int_value(i)) for i in indices))
        if buffer.name in self.own_buffers:
            self.own_names.add(name)
        self._event(name, buffer.dtype, defines=writes)

    def _event(self, name: Name, dtype: str, *, defines: bool) -> None:
        names = (name, (*name, "high")) if dtypes.nbytes(dtype) > 4 else (name,)
        (self.floats if dtype == "float32" else self.events).append(Event(names, defines))

    def access(self, place: Place) -> None:
        self.pointers.setdefault(place.pointer, "float" if place.buffer.dtype == "float32" else "word")
        self.starts.setdefault(place.pointer, place.offset)
        self.events.append(Event((("&", place.pointer),)))

    def distance(self, place: Place) -> int:
        """Bytes from the first access of the pointer to this one."""
        return abs(place.offset - self.starts[place.pointer])

    def compute(self, term: ir.Expr) -> bool:
        """Whether index arithmetic is new in this iteration."""
        new = term not in self.terms
        self.terms.add(term)
        return new

    def hold(self, loop: Region) -> None:
        """A loop in this body: what it uses from outside is used here, its pointers start from pointers of this one."""
        assert loop.var is not None
        for mine, theirs in ((self.events, loop.events), (self.floats, loop.floats)):
            names = tuple(dict.fromkeys(n for e in theirs for n in e.names if n not in loop.own_names and n[0] != "&"))
            changed = {n for e in theirs if e.defines for n in e.names}
            inner = loop.peak - len(names) if theirs is loop.events else 0
            mine.append(Event(names, False, max(inner, 0)))
            mine.append(Event(tuple(n for n in names if n in changed), True))
            self.own_names.update(n for n in names if n[0] in self.own_buffers)
        for pointer in (*loop.pointers, *loop.inner):
            self.inner.setdefault(without(pointer, loop.var))

    # ------------------------------------------------------------ what follows

    def moving(self) -> list[Pointer]:
        """Pointers that this loop advances."""
        if self.var is None:
            return []
        var = self.var
        return [p for p in {**self.pointers, **self.inner} if moves_with(p, var)]

    def entry(self) -> Operations:
        """Once before the loop: every pointer is set up, and the counter."""
        return Counter({"alu": len(self.moving()) + 1}) if self.var is not None else Counter()

    def turn(self, core: Core) -> Operations:
        """Once an iteration: pointers advance, the end is tested."""
        if self.var is None:
            return Counter()
        moving = self.moving()
        steps = sum(not self._absorbed(p) for p in moving) if core.wide else len({self._step(p) for p in moving})
        return Counter({"alu": steps + 1 + int(self.counted and len(moving) > 0), "branch": 1, "taken": 1})

    def _step(self, pointer: Pointer) -> int:
        """Elements that the loop advances a pointer by: short instructions add an index, which equal steps share."""
        return sum(k for e, k in pointer[1] if e == self.var)

    def _absorbed(self, pointer: Pointer) -> bool:
        """Whether an access of the body advances the pointer by itself: any does, of floats only by their own size."""
        if pointer not in self.pointers:
            return False
        return self.pointers[pointer] == "word" or (self.var, 1) in pointer[1]

    def spills(self, core: Core) -> Operations:
        """Accesses to the stack in one iteration; remembers how many registers the body fills."""
        kept = [("&", "inner", str(k)) for k, p in enumerate(self.inner) if p in self.moving()] if self.var else []
        if self.var is not None and (self.counted or kept or not self.pointers):
            kept.append(("&", "counter"))
        whole = [Event((name,), True) for name in kept]
        events = [*self.events, *whole]
        if not core.float_registers:
            events = sorted_together(self.events, self.floats) + whole
        lasting = {n for e in events for n in e.names if n not in self.own_names} if self.var is not None else set()
        found = play(events, lasting, core.registers)
        self.peak = found.peak
        loads, stores = found.loads, found.stores
        if core.float_registers:
            lasting = {n for e in self.floats for n in e.names if n not in self.own_names} if self.var is not None else set()
            more = play(self.floats, lasting, core.float_registers)
            loads, stores = loads + more.loads, stores + more.stores
        return Counter({"load": loads, "store": stores})


def sorted_together(events: list[Event], floats: list[Event]) -> list[Event]:
    """Without float registers, floats live among the integers."""
    return [*events, *floats]
