"""The body of one loop as the cost model sees it: its pointers, the values it shares, the loops inside."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from microc import dtypes
from microc.isa import Costs
from microc.schedule.addresses import Place, Pointer, moves_with, step_of, without
from microc.schedule.cost_expr import Operations
from microc.schedule.pressure import KINDS, Event, Name, play
from microc.tir import ir

POINTER = "&"
"""First part of the names of values that no source names: pointers and counters."""


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
        vector = self.vectors and dtypes.is_vector(dtype)
        names = (name, (*name, "high")) if dtypes.nbytes(dtype) > 4 and not vector else (name,)
        self.events.append(Event(names, defines, "vector" if vector else "float" if dtype == "float32" else "general"))

    def access(self, place: Place, reach: int) -> tuple[Use, int]:
        """An access to memory: its pointer, the distance from it in bytes. What is further than ``reach`` has its own pointer."""
        uses = self.pointers.setdefault(place.pointer, [])
        use = next((use for use in uses if abs(place.offset - use.offset) <= reach), None)
        if use is None:
            dtype = place.buffer.dtype
            name = (POINTER, len(self.pointers), len(uses))
            use = Use(name, place.offset, dtype == "float32", dtypes.nbytes(dtype))
            uses.append(use)
        use.count += 1
        self.events.append(Event((use.name,)))
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
            used = dict.fromkeys(n for e in theirs for n in e.names if n not in loop.own_names and n[0] != POINTER)
            changed = {n for e in theirs if e.defines for n in e.names}
            inner = max(loop.peak - len(used), 0) if kind == "general" else 0
            self.events.append(Event(tuple(used), False, kind, inner))
            self.events.append(Event(tuple(n for n in used if n in changed), True, kind))
            self.own_names.update(n for n in used if n[0] in self.own_buffers)
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
        var, moving = self.var, self.moving()
        if core.has("indexed"):
            sharing = [p for p in moving if not core.has("elements") or self._absorbed(p, 1 << 31)]
            steps = len({step_of(p, var) for p in sharing}) + len(moving) - len(sharing)
        else:
            steps = sum(not self._absorbed(p, core.advance) for p in moving)
        counter = int(self.counted or not moving)
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

    def spills(self, core: Costs) -> tuple[int, int]:
        """Loads and stores of the stack in one iteration. Remembers how many registers the body fills."""
        moving = set(self.moving())
        kept: list[Name] = [(POINTER, "outer", k) for k, p in enumerate(self.inner) if p in moving]
        whole = [*self.events, *(Event((name,), True) for name in kept)]
        if self.var is not None:  # a counter, or what a pointer is compared with at the end
            whole.append(Event(((POINTER, "end"),), defines=self.counted or not moving))
        own = {"float": core.float_registers, "vector": core.vector_registers}
        loads, stores = self._played([e for e in whole if not own.get(e.kind)], core.registers, remember=True)
        for kind, registers in own.items():
            if registers:
                more = self._played([e for e in whole if e.kind == kind], registers, remember=False)
                loads, stores = loads + more[0], stores + more[1]
        return loads, stores

    def _played(self, events: list[Event], registers: int, *, remember: bool) -> tuple[int, int]:
        lasting = {n for e in events for n in e.names if n not in self.own_names} if self.var is not None else set()
        found = play(events, lasting, registers)
        if remember:
            self.peak = found.peak
        return found.loads, found.stores
