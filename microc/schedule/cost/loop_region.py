"""The body of one loop as the cost model sees it: nests, values."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, count
from operator import mul

from microc.base import dtypes
from microc.base.immutable import frozen
from microc.isa import SCALAR, Costs
from microc.isa.instruction_set import SILENT
from microc.schedule.cost.operation_counts import Operations, Selector
from microc.schedule.cost.register_pressure import (
    ADDRESS,
    CONSTANT,
    KINDS,
    Event,
    Name,
    Place,
    Pointer,
    Spills,
    moves_with,
    place_of,
    play,
    step_of,
    without,
)
from microc.target import Fetches, Traffic
from microc.tir import ir
from microc.tir.rewrite import accesses_of, children, free_vars, map_expr, map_stmt

# ---- Calls that copy or fill runs of memory, as the loops that they mean: so that analyses see when each element is
# touched.
#
# Instructions move several elements at once: all of a turn are read before any is written, and turns go from the first element to
# the last. So an element is read no later, beside the writes of others, than in the loop, and what is safe for the loop is safe
# for them.


def spelled(func: ir.PrimFunc) -> ir.PrimFunc:
    """A lowered function with loops in the place of such calls; not meant to be printed."""
    numbers = count()

    def on_stmt(stmt: ir.Stmt) -> ir.Stmt:
        match stmt:
            case ir.Evaluate(ir.Call(name, args)) if name in SCALAR:
                intrin = SCALAR[name]
                match intrin.meaning:
                    case ir.For(var, ir.Var() as length, ir.Store(_, (index,)) as store) if index == var:
                        given = dict(zip((p.name for p in intrin.params), args, strict=True))
                        turn = ir.Var(f"turn {next(numbers)} of {name}")
                        return ir.For(turn, given[length.name], _placed(store, given, turn))
        return stmt

    return replace(func, body=map_stmt(func.body, on_stmt))


def _placed(store: ir.Store, given: dict[str, ir.Expr], turn: ir.Var) -> ir.Store:
    """The store of one turn, where the call's arguments point."""

    def on_expr(expr: ir.Expr) -> ir.Expr:
        match expr:
            case ir.Load(buffer):
                place = given[buffer.name]
                assert isinstance(place, ir.AddressOf)
                return ir.Load(place.buffer, _element(place, turn))
            case ir.Var(name):
                return given.get(name, expr)
            case _:
                return expr

    into = given[store.buffer.name]
    assert isinstance(into, ir.AddressOf)
    return ir.Store(into.buffer, _element(into, turn), map_expr(store.value, on_expr))


def _element(place: ir.AddressOf, turn: ir.Var) -> tuple[ir.Expr, ...]:
    """The indices of the element of a turn from an address on: what the last axis cannot hold goes to those before it."""
    *outer, last = place.indices
    shape = place.buffer.shape
    start = ir.int_value(last)
    if not outer or (start is not None and start + place.reach <= shape[-1]):
        return (*outer, last + turn * place.step)
    inner = list(accumulate(reversed(shape[1:]), mul, initial=1))[::-1]
    flat = sum((index * stride for index, stride in zip(place.indices, inner, strict=True)), ir.as_index(0))
    flat = flat + turn * place.step
    first, *others = (flat // stride for stride in inner)
    return (first, *(index % size for index, size in zip(others, shape[1:], strict=True)))


# ---- The loops of a function as the cost model walks over them: how much code each is, and how much of it is
# executed.

_LIBRARY = "call_"
"""What begins kinds of operations whose instructions lie in a library."""


class Nests:
    """Loops nest as they are entered. What is computed ahead of a loop counts as a part of it, as it stands beside it."""

    def __init__(self, core: Costs) -> None:
        self.core = core
        self.executed = 0.0
        self.found: list[list[Fetches]] = [[]]
        self.begun: list[tuple[float, float]] = []

    def add(self, kind: str, count: float) -> None:
        """Operations that a call executes."""
        if not kind.startswith(_LIBRARY):
            self.executed += count * self.core.length(kind)

    def enter(self, printed: float) -> None:
        """A loop begins, after so many instructions that were printed."""
        self.begun.append((printed, self.executed))
        self.found.append([])

    def leave(self, printed: float, entries: float, *, peeled: bool) -> None:
        """It ends. One that is written out is none: its iterations follow each other."""
        before, executed = self.begun.pop()
        inside = self.found.pop()
        loop = self._code(printed - before, self.executed - executed, entries, inside)
        self.found[-1] += inside if peeled else [loop]

    def function(self, printed: float) -> Fetches:
        """All of it."""
        return self._code(printed, self.executed, 1.0, self.found[0])

    def _code(self, printed: float, executed: float, entries: float, inside: list[Fetches]) -> Fetches:
        width = self.core.instruction_bytes
        return Fetches(printed * width, executed * width, entries, tuple(inside))


# ---- The body of one loop as the cost model sees it: its pointers, the values it shares, the loops inside.

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


# ---- Values as the cost model walks over them: the operations that they take, the registers that hold their parts
# until an instruction takes them, the memory that they read.


class Values:
    """Adds up operations, weighted by how often they run, and instructions as they are printed. ``regions``: the function's body
    and the loops around, from the outermost on; ``held``: what holds the parts of the expression that is walked over."""

    def __init__(self, selector: Selector, core: Costs) -> None:
        self.selector = selector
        self.core = core
        self.operations: defaultdict[str, float] = defaultdict(float)
        self.printed = 0.0
        self.traffic: defaultdict[str, Traffic] = defaultdict(Traffic)
        self.regions: list[Region] = []
        self.held: dict[ir.Expr, list[Operand]] = {}
        self.previous: Place | None = None
        self.single = False
        self.nests = Nests(core)

    def add(self, counts: Mapping[str, float], weight: float, *, printed: bool = True) -> None:
        """Operations that run so often."""
        for kind, n in counts.items():
            self.operations[kind] += n * weight
            self.nests.add(kind, n * weight)
            if printed and kind not in SILENT:
                self.printed += n

    def value(self, value: ir.Expr, counts: Operations) -> None:
        """An expression where it stands: its operations, then the memory and the names that it uses."""
        self.add(counts, self.regions[-1].weight)
        self.single = _is_word(value)
        self.held = {}
        self.regions[-1].take(self.operands(value))

    # ------------------------------------------------------------ registers

    def operands(self, value: ir.Expr) -> list[Operand]:
        """What holds a value while it waits for the others of its expression; equal ones are one."""
        if value not in self.held:
            self.held[value] = self._operands(value)
        return self.held[value]

    def _operands(self, value: ir.Expr) -> list[Operand]:
        region = self.regions[-1]
        match value:
            case ir.Const():
                return []
            case ir.Var():
                return region.variable(value)
            case ir.Load(buffer, indices) if buffer.scope == "register":
                return [region.cell(buffer, indices)]
            case ir.Load(buffer, indices):
                self.access(buffer, indices)
                self.touch(buffer)
                return region.make(value.dtype)
            case ir.AddressOf(buffer, indices, extent, writes, step):
                self.touch(buffer, extent, step, writes=writes)
                return [operand for index in indices for operand in self.operands(index)]
            case ir.Call(name, (ir.AddressOf(buffer, indices, extent) as place, *rest)):
                distance = self.access(buffer, indices, word=name.endswith("_aligned"))
                if distance > self.core.pair and self.selector.call(name, value.dtype)["paired"]:
                    self.add({"alu": 1}, region.weight)  # two words at once reach less far than one
                self.touch(buffer, extent, place.step, writes=place.writes)
                region.take(self._parts(value, rest))
                return region.make(value.dtype) if name not in SCALAR or SCALAR[name].result else []
        parts = children(value)
        found = self._parts(value, parts)
        if len(found) == 1 and self.selector.count(value) == sum(map(self.selector.count, parts), Counter()):
            return found
        region.take(found)
        return region.make(value.dtype)

    def _parts(self, whole: ir.Expr, parts: Sequence[ir.Expr]) -> list[Operand]:
        """What holds the operands of an instruction, numbers that it does not hold itself among them."""
        found = []
        for part in parts:
            if isinstance(part, ir.Const) and self.selector.keeps(whole, part):
                found.append(Operand.constant(part))
            else:
                found += self.operands(part)
        return found

    # ------------------------------------------------------------ memory

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
        place = place_of(buffer, indices)
        for term, _ in place.terms:
            if not isinstance(term, ir.Var):
                self.index(term)
        if any(accesses_of(term) for term, _ in place.terms):
            place = replace(place, terms=frozenset((term, n) for term, n in place.terms if not accesses_of(term)))
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
        """Arithmetic of an index: computed once an iteration of the innermost loop that it depends on, which is this one for what
        is made of loaded values; its equal parts are computed once."""
        if accesses_of(term):
            if self.regions[-1].compute(term):
                self.add(self.selector.once(term), self.regions[-1].weight)
                self.regions[-1].take(self.operands(term))
            return
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
