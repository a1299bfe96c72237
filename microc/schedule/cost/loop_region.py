# SPDX-License-Identifier: Apache-2.0
"""The cost model's record of one loop: its size in the loop nest, its pointers, its values, and its inner loops."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, count
from operator import mul
from typing import NamedTuple

from microc.base import dtypes
from microc.isa import SCALAR, Costs
from microc.isa.instruction_set import SILENT
from microc.schedule.cost.operation_counts import Operations, Selector
from microc.schedule.cost.register_pressure import (
    ADDRESS,
    CONSTANT,
    KINDS,
    Address,
    Name,
    Pointer,
    RegisterEvent,
    SpillCounts,
    address_of,
    allocate_registers,
    depends_on_loop,
    pointer_before_loop,
    pointer_step,
)
from microc.target import Fetches, Traffic
from microc.tir import ir
from microc.tir.rewrite import accesses_of, children, free_vars, map_expr, map_stmt

# ---- Calls that copy or fill contiguous memory, expanded to equivalent loops, so that analyses see when each element is accessed
#
# The calls move several elements in an iteration: they read all of these before they write any, and iterations go from the first
# element to the last. Relative to the writes of other elements, an element is read no later than in the expanded loop. Therefore
# buffers that may overlap in the loop may overlap in the call.


def expand_memory_calls(func: ir.PrimFunc) -> ir.PrimFunc:
    """Expand the intrinsics that copy or fill memory to loops over elements. The result is for analyses, not for
    printing."""
    numbers = count()

    def expand_memory_call(stmt: ir.Stmt) -> ir.Stmt:
        match stmt:
            case ir.Evaluate(ir.Call(name, args)) if name in SCALAR:
                intrin = SCALAR[name]
                match intrin.meaning:
                    case ir.For(var, ir.Var() as length, ir.Store(_, (index,)) as store) if index == var:
                        arguments = dict(zip((p.name for p in intrin.params), args, strict=True))
                        element = ir.Var(f"iteration {next(numbers)} of {name}")
                        return ir.For(element, arguments[length.name], _element_store(store, arguments, element))
        return stmt

    return replace(func, body=map_stmt(func.body, expand_memory_call))


def _element_store(store: ir.Store, arguments: dict[str, ir.Expr], element: ir.Var) -> ir.Store:
    """Return the store that copies or fills one element, in an iteration of the expanded loop.

    ``arguments``: arguments of the intrinsic's call, by parameter name."""

    def substitute_argument(expr: ir.Expr) -> ir.Expr:
        match expr:
            case ir.Load(buffer):
                source = arguments[buffer.name]
                assert isinstance(source, ir.AddressOf)
                return ir.Load(source.buffer, _indices_after_address(source, element))
            case ir.Var(name):
                return arguments.get(name, expr)
            case _:
                return expr

    into = arguments[store.buffer.name]
    assert isinstance(into, ir.AddressOf)
    return ir.Store(into.buffer, _indices_after_address(into, element), map_expr(store.value, substitute_argument))


def _indices_after_address(address: ir.AddressOf, element: ir.Var) -> tuple[ir.Expr, ...]:
    """Return the buffer indices of the element that is ``element`` steps behind an address.

    An index beyond the end of the last axis is carried to the axes before it, in row-major order."""
    *outer, last = address.indices
    shape = address.buffer.shape
    start = ir.int_value(last)
    if not outer or (start is not None and start + address.reach <= shape[-1]):
        return (*outer, last + element * address.step)
    strides = list(accumulate(reversed(shape[1:]), mul, initial=1))[::-1]
    flat = sum((index * stride for index, stride in zip(address.indices, strides, strict=True)), ir.as_index(0))
    flat = flat + element * address.step
    first, *others = (flat // stride for stride in strides)
    return (first, *(index % size for index, size in zip(others, shape[1:], strict=True)))


# ---- The loop nest of a function during the cost model's walk: code bytes of each loop, and how many of them are executed

_LIBRARY = "call_"
"""Prefix of operation types whose instructions are in a library function, outside of the loop."""


class CodeSizeTree:
    """Builder of the tree of a function's loops with their code bytes (:class:`Fetches`), while the cost model enters
    and leaves loops.

    Values that are hoisted out of a loop count as a part of the loop, because their instructions are next to it."""

    def __init__(self, core: Costs) -> None:
        self.core = core
        self.executed = 0.0
        self.loops: list[list[Fetches]] = [[]]
        self.starts: list[tuple[float, float]] = []

    def add_operations(self, counts: Operations, executions: float) -> None:
        """Count operations that a call of the function executes ``executions`` times."""
        for kind, n in counts.items():
            if not kind.startswith(_LIBRARY):
                self.executed += n * executions * self.core.length(kind)

    def enter_loop(self, printed_instructions: float) -> None:
        """Begin a loop. ``printed_instructions``: number of instructions of the function before the loop."""
        self.starts.append((printed_instructions, self.executed))
        self.loops.append([])

    def leave_loop(self, printed_instructions: float, entries: float, *, peeled: bool) -> None:
        """End a loop that a call of the function enters ``entries`` times.

        ``printed_instructions``: number of instructions of the function up to the loop's end. If the loop is
        ``peeled``, its iterations are straight-line code of the loop around it."""
        before, executed = self.starts.pop()
        inside = self.loops.pop()
        loop = self._loop_in_bytes(printed_instructions - before, self.executed - executed, entries, inside)
        self.loops[-1] += inside if peeled else [loop]

    def build_function_tree(self, printed_instructions: float) -> Fetches:
        """Return the tree of the whole function, whose code has ``printed_instructions`` instructions."""
        return self._loop_in_bytes(printed_instructions, self.executed, 1.0, self.loops[0])

    def _loop_in_bytes(
        self, printed_instructions: float, executed_instructions: float, entries: float, inner_loops: list[Fetches]
    ) -> Fetches:
        """Build the node of a loop: its printed and executed instructions, converted to bytes, and the nodes of its
        inner loops."""
        width = self.core.instruction_bytes
        return Fetches(printed_instructions * width, executed_instructions * width, entries, tuple(inner_loops))


# ---- The body of one loop: its pointers, its values, the loops inside

_END: Name = (ADDRESS, "end")
"""Name of the register for a loop's counter, or for the address at which a pointer ends."""
_VALUE = "="
"""First element of the names of unnamed values."""
_MAX_INDEXED = 2
"""Most elements of a constant that a loop may access by its counter, without a pointer for the constant."""
_PAIRED_SPILL = 0.5
"""Weight of a stack access of a value that is spilled around an inner loop: one instruction stores or loads it
together with another value."""
_SUM_SPILL = 2
"""Stack accesses, in each iteration, for a sum that does not stay in its register: a load and a store."""


class Operand(NamedTuple):  # a tuple, because sets of operands need its hash often
    """A value in a register that an instruction reads or writes."""

    name: Name
    dtype: str

    @staticmethod
    def constant(number: ir.Const) -> Operand:
        """Return the operand for a constant that needs a register, because the instruction cannot encode it as an
        immediate."""
        return Operand((CONSTANT, number.value), number.dtype)


@lru_cache(maxsize=64)
def _register_class(dtype: str, has_vector_registers: bool) -> tuple[str, bool]:
    """Return the type of register for values of a dtype (``general``, ``float`` or ``vector``), and True if a value needs
    two registers, because it has 64 bits."""
    if has_vector_registers and dtypes.is_vector(dtype):
        return "vector", False
    return "float" if dtype == "float32" else "general", dtypes.nbytes(dtype) > 4


@dataclass(slots=True)
class PointerUse:
    """A pointer register by which a loop body accesses memory.

    ``offset``: byte offset of the first access. ``accesses_floats``: True if its accesses are to floats.
    ``element_bytes``: bytes of an element. ``access_count``: number of accesses in the body."""

    name: Name
    offset: int
    accesses_floats: bool
    element_bytes: int
    access_count: int = 0


class LoopBody:
    """Record of a loop's body, or of the function's body (``var`` is None): its register events, pointers and inner
    loops.

    - ``entries``: number of times that a call enters the loop; ``runs``: total number of iterations in a call.
    - ``weight``: number of these iterations that reach the current statement of the walk.
    - ``has_vector_registers``: True if vectors have registers of their own."""

    def __init__(self, var: ir.Var | None, entries: float, runs: float, *, has_vector_registers: bool) -> None:
        self.var = var
        self.has_vector_registers = has_vector_registers
        self.entries = entries
        self.runs = runs
        self.weight = runs
        self.events: list[RegisterEvent] = []
        self.own_names: set[Name] = set()
        self.own_buffers: set[str] = set()
        self.pointers: dict[Pointer, list[PointerUse]] = {}
        self.constants: set[Pointer] = set()
        self.looked_up: list[Pointer] = []
        self.inner: dict[Pointer, None] = {}
        self.terms: set[ir.Expr] = set()
        self.counted = False
        self.loops: list[LoopBody] = []
        self.peak = 0

    # ------------------------------------------------------------ recording the body

    @property
    def share(self) -> float:
        """Fraction of the iterations that reach the current statement."""
        return self.weight / self.runs if self.runs else 0.0

    def record_tile(self, buffer: ir.Buffer) -> None:
        """Record that this body allocates the register tile ``buffer``."""
        self.own_buffers.add(buffer.name)

    def record_definition(self, var: ir.Var) -> None:
        """Record an instruction of this body that defines a variable."""
        self.own_names.add((var.name,))
        self._record_event([Operand((var.name,), var.dtype)], defines=True)

    def operand_of_variable(self, var: ir.Var) -> list[Operand]:
        """Return a list with the operand for a variable.

        The list is empty for the loop's own counter, because the loop's end test already keeps the counter in a
        register."""
        if var == self.var:
            self.counted = True
            return []
        return [Operand((var.name,), var.dtype)]

    def operand_of_tile_element(self, buffer: ir.Buffer, indices: tuple[ir.Expr, ...]) -> Operand:
        """Return the operand for one scalar of a register tile."""
        name = (buffer.name, *(ir.int_value(i) for i in indices))
        if buffer.name in self.own_buffers:
            self.own_names.add(name)
        return Operand(name, buffer.dtype)

    def record_tile_write(self, tile_element: Operand) -> None:
        """Record an instruction that writes a scalar of a register tile."""
        self._record_event([tile_element], defines=True)

    def record_reads(self, operands: Iterable[Operand]) -> None:
        """Record an instruction that reads all these operands at once."""
        self._record_event(dict.fromkeys(operands), defines=False)

    def record_unnamed_value(self, dtype: str) -> list[Operand]:
        """Record an instruction that computes an unnamed value. Return a list with the operand for the value.

        The list is empty for vectors and floats, because compilers reorder their instructions. When they were
        counted like words, the model chose tiles on x86-64 that were a sixth slower."""
        if dtypes.is_vector(dtype) or dtypes.is_float(dtype):
            return []
        value = Operand((_VALUE, len(self.events)), dtype)
        self._record_event([value], defines=True)
        self.own_names.update(self.events[-1].names)
        return [value]

    def _record_event(self, operands: Iterable[Operand], *, defines: bool) -> None:
        """Record that an instruction uses or defines operands, as one event for each type of register."""
        names_by_kind: dict[str, list[Name]] = {}
        for name, dtype in operands:
            kind, is_pair = _register_class(dtype, self.has_vector_registers)
            names = names_by_kind.setdefault(kind, [])
            names.append(name)
            if is_pair:
                names.append((*name, "high"))
        for kind, names in names_by_kind.items():
            self.events.append(RegisterEvent(tuple(names), defines, kind, share=self.share))

    def record_access(self, address: Address, max_distance: int) -> tuple[PointerUse, int]:
        """Record an access to memory. Return the pointer that it uses, and its distance from this pointer in bytes.

        An access that is further than ``max_distance`` bytes from all pointers gets a new pointer."""
        pointer = address.pointer
        uses = self.pointers.setdefault(pointer, [])
        if address.buffer.scope == "const":
            self.constants.add(pointer)
        for use in uses:
            if abs(address.offset - use.offset) <= max_distance:
                break
        else:
            dtype = address.buffer.dtype
            name = (ADDRESS, len(self.pointers), len(uses))
            use = PointerUse(name, address.offset, dtype == "float32", dtypes.nbytes(dtype))
            uses.append(use)
        use.access_count += 1
        self.events.append(RegisterEvent((use.name,), share=self.share))
        return use, abs(address.offset - use.offset)

    def record_index_term(self, term: ir.Expr) -> bool:
        """Record a term of index arithmetic. Return True if this body has not computed it before."""
        new = term not in self.terms
        self.terms.add(term)
        return new

    def record_inner_loop(self, loop: LoopBody) -> None:
        """Record an inner loop of this body.

        Outer values that the loop uses are live in this body while the loop runs. The loop's pointers start from
        pointers of this body."""
        assert loop.var is not None
        for kind in KINDS:
            inner_events = [e for e in loop.events if e.kind == kind]
            used = dict.fromkeys(
                n for e in inner_events for n in e.names if n not in loop.own_names and n[0] != ADDRESS
            )
            changed = {n for e in inner_events if e.defines for n in e.names}
            inner = max(loop.peak - len(used), 0) if kind == "general" else 0
            self.events.append(RegisterEvent(tuple(used), False, kind, inner, self.share))
            self.events.append(RegisterEvent(tuple(n for n in used if n in changed), True, kind, share=self.share))
            self.own_names.update(n for n in used if n[0] in self.own_buffers)
        self.loops.append(loop)
        for pointer in (*loop.pointers, *loop.inner):
            self.inner.setdefault(pointer_before_loop(pointer, loop.var))

    # ------------------------------------------------------------ costs of the recorded body

    def advanced_pointers(self) -> list[Pointer]:
        """Return the pointers that this loop advances. A pointer occurs several times if its accesses are too far apart
        to share one register: once for each register."""
        var = self.var
        if var is None:
            return []
        return [
            p for p in {**self.pointers, **self.inner} if depends_on_loop(p, var) for _ in self.pointers.get(p, (None,))
        ]

    def count_entry_operations(self) -> Operations:
        """Count the operations before the loop, which initialise every pointer and the counter."""
        return {"alu": len(self.advanced_pointers()) + 1} if self.var is not None else {}

    def count_control_operations(self, core: Costs) -> Operations:
        """Count the operations that control the loop in one iteration: they advance pointers and test the end.

        The end test compares a pointer with its last address, unless the loop needs a counter. If loads can add an
        index to their address, pointers with equal steps share an index register."""
        if self.var is None:
            return {}
        var = self.var
        moving = [p for p in self.advanced_pointers() if p not in self.looked_up]
        if core.has("indexed"):
            indexed = [p for p in moving if not core.has("elements") or self._is_post_incremented(p, 1 << 31)]
            steps = len({pointer_step(p, var) for p in indexed}) + len(moving) - len(indexed)
        else:
            steps = sum(not self._is_post_incremented(p, core.advance) for p in moving)
        if core.has("counted") and not self.loops:
            return {"alu": steps, "branch": 1}
        counter = int(self.counted or not moving or bool(self.looked_up))
        test = int(not core.has("compared") and bool(moving))  # a counter's own sum is compared with zero
        return {"alu": steps + counter + test, "branch": 1, "taken": 1}

    def _is_post_incremented(self, pointer: Pointer, max_bytes: int) -> bool:
        """Test whether the only access by a pointer also advances the pointer (post-increment), by at most
        ``max_bytes`` bytes.

        An access to floats can advance the pointer by one element only."""
        uses = self.pointers.get(pointer, [])
        if len(uses) != 1 or uses[0].access_count > 1 or self.var is None:
            return False
        step = abs(pointer_step(pointer, self.var))
        return step == 1 and max_bytes > 0 if uses[0].accesses_floats else step * uses[0].element_bytes <= max_bytes

    def share_constant_index(self, core: Costs) -> None:
        """Mark constant arrays of few elements as accessed by a shared index, without pointers of their own, if the
        registers do not suffice for the body.

        Compilers load the base addresses of such constants when they need them."""
        if not core.has("shifted"):
            return
        constants = [p for p in self.advanced_pointers() if p in self.constants and p not in self.inner]
        few = [p for p in constants if sum(use.access_count for use in self.pointers[p]) <= _MAX_INDEXED]
        if few and self._allocate_iteration(self._general_register_events(core), core.registers).peak >= core.registers:
            self.looked_up = few

    def loops_using_all_registers(self, core: Costs) -> list[LoopBody]:
        """Return the directly inner loops that need all general registers."""
        return [loop for loop in self.loops if loop.peak >= core.registers]

    def find_resident_constant(self, core: Costs) -> Name | None:
        """Return the constant that keeps its register while inner loops run that need all registers; None if there is
        no such constant.

        Other constants are spilled or rematerialised, loop by loop. But gcc decides about a constant for the whole
        function. The constant with the most uses keeps its register if these uses outweigh the cost of the value
        that the inner loops have to spill instead."""
        full = self.loops_using_all_registers(core)
        if not full:
            return None
        inside = {name for loop in full for event in loop.events for name in event.names}
        uses = Counter(n for e in self.events for n in e.names if n[0] == CONSTANT and n not in inside)
        if not uses:
            return None
        name, count = uses.most_common(1)[0]
        return name if count * self.runs >= _SUM_SPILL * max(loop.runs for loop in full) else None

    def count_spills(self, core: Costs, resident_constant: Name | None = None) -> tuple[float, float]:
        """Return (loads from the stack, stores to the stack) of one iteration. Rematerialised constants count as loads.
        A ``resident_constant`` constant occupies a register throughout.

        Sets ``peak``, the number of general registers that the body needs."""
        general = self._allocate_iteration(
            _remove_value(self._general_register_events(core), resident_constant),
            core.registers - (resident_constant is not None),
        )
        self.peak = general.peak + (resident_constant is not None)
        together = _PAIRED_SPILL if core.pair and any(e.inner_registers for e in self.events) else 1.0
        loads, stores = together * general.loads + general.rematerialised, together * general.stores
        for kind, registers in (("float", core.float_registers), ("vector", core.vector_registers)):
            if registers:
                more = self._allocate_iteration([e for e in self.events if e.kind == kind], registers)
                loads, stores = loads + more.loads + more.rematerialised, stores + more.stores
        return loads, stores

    def _general_register_events(self, core: Costs) -> list[RegisterEvent]:
        """Return the events of general registers, including those that control the loop: pointers are advanced, and
        the counter is tested."""
        elsewhere = {"float" if core.float_registers else "", "vector" if core.vector_registers else ""}
        moving, looked_up = self.advanced_pointers(), {u.name for p in self.looked_up for u in self.pointers[p]}
        events: list[RegisterEvent] = []
        for event in self.events:
            if event.kind in elsewhere:
                continue
            if looked_up and event.names and event.names[0] in looked_up:
                events.append(RegisterEvent(((CONSTANT, "base", len(events)),), share=event.share))
                event = RegisterEvent((_END,), share=event.share)
            events.append(event)
        advanced: list[Name] = [(ADDRESS, "outer", k) for k, p in enumerate(self.inner) if p in moving]
        advanced += [u.name for p in dict.fromkeys(moving) for u in self.pointers.get(p, ()) if u.name not in looked_up]
        if self.var is not None:
            if self.counted or not moving or looked_up:
                advanced.append(_END)
            else:
                events.append(RegisterEvent((_END,)))
        for name in advanced:
            events += [RegisterEvent((name,)), RegisterEvent((name,), True)]
        return events

    def _allocate_iteration(self, events: list[RegisterEvent], registers: int) -> SpillCounts:
        """Allocate registers for the events of one iteration.

        Values that are defined outside of the loop are live during the whole iteration."""
        names = {name for event in events for name in event.names} if self.var is not None else set()
        return allocate_registers(events, names - self.own_names, registers)


def _remove_value(events: list[RegisterEvent], name: Name | None) -> list[RegisterEvent]:
    """Remove the value ``name`` from all register events. If ``name`` is None, return the events unchanged."""
    if name is None:
        return events
    return [replace(e, names=tuple(n for n in e.names if n != name)) if name in e.names else e for e in events]


# ---- Values during the cost model's walk: their operations, the registers of their operands, the memory that they read


class ValueCosts:
    """Visitor of a function's values that counts operations, weighted by their executions, and printed instructions.

    ``regions``: records of the function's body and of the loops around the current statement, outermost first.
    ``held``: operands by subexpression of the current expression. ``pairs_loads``: False in runs of products, where each
    word has a load of its own."""

    def __init__(self, selector: Selector, core: Costs) -> None:
        self.selector = selector
        self.core = core
        self.operations: defaultdict[str, float] = defaultdict(float)
        self.printed = 0.0
        self.traffic: defaultdict[str, Traffic] = defaultdict(Traffic)
        self.regions: list[LoopBody] = []
        self.held: dict[ir.Expr, list[Operand]] = {}
        self.previous: Address | None = None
        self.single = False
        self.pairs_loads = True
        self.nests = CodeSizeTree(core)

    def add_operations(self, counts: Mapping[str, float], executions: float, *, printed: bool = True) -> None:
        """Count operations that are executed ``executions`` times."""
        for kind, n in counts.items():
            self.operations[kind] += n * executions
            if printed and kind not in SILENT:
                self.printed += n
        self.nests.add_operations(counts, executions)

    def count_value(self, value: ir.Expr, counts: Operations) -> None:
        """Count an expression whose operations are ``counts``. Then record its memory accesses and the registers
        that it needs."""
        self.add_operations(counts, self.regions[-1].weight)
        self.single = _is_plain_load(value)
        self.held = {}
        self.regions[-1].record_reads(self.operands_of(value))

    # ------------------------------------------------------------ registers

    def operands_of(self, value: ir.Expr) -> list[Operand]:
        """Return the operands (registers) that contain a value until an instruction reads it. Equal values share
        their registers."""
        match value:
            case ir.Const():
                return []
            case ir.Var():
                return self.regions[-1].operand_of_variable(value)
        operands = self.held.get(value)
        if operands is None:
            operands = self.held[value] = self._record_value(value)
        return operands

    def _record_value(self, value: ir.Expr) -> list[Operand]:
        """Record the memory accesses and instructions that compute a value. Return the operands that contain the
        value."""
        region = self.regions[-1]
        match value:
            case ir.Load(buffer, indices) if buffer.scope == "register":
                return [region.operand_of_tile_element(buffer, indices)]
            case ir.Load(buffer, indices):
                self.record_access(buffer, indices)
                self.count_traffic(buffer)
                return region.record_unnamed_value(value.dtype)
            case ir.AddressOf(buffer, indices, extent, writes, step):
                self.count_traffic(buffer, extent, step, writes=writes)
                return [operand for index in indices for operand in self.operands_of(index)]
            case ir.Call(name, (ir.AddressOf(buffer, indices, extent) as address, *rest)):
                distance = self.record_access(buffer, indices, loads_word=name.endswith("_aligned"))
                if distance > self.core.pair and "paired" in self.selector.count_call(name, value.dtype):
                    self.add_operations(
                        {"alu": 1}, region.weight
                    )  # a load of two words has a shorter offset than one of a word
                self.count_traffic(buffer, extent, address.step, writes=address.writes)
                region.record_reads(self._instruction_operands(value, rest))
                return region.record_unnamed_value(value.dtype) if name not in SCALAR or SCALAR[name].result else []
        operands = self._instruction_operands(value, children(value))
        if len(operands) == 1 and not self.selector.has_own_operations(value):
            return operands
        region.record_reads(operands)
        return region.record_unnamed_value(value.dtype)

    def _instruction_operands(self, whole: ir.Expr, parts: Sequence[ir.Expr]) -> list[Operand]:
        """Return the register operands of the instruction that computes ``whole`` from ``parts``.

        Constants that the instruction encodes as immediates are omitted."""
        operands = []
        for part in parts:
            if isinstance(part, ir.Const) and self.selector.needs_constant_register(whole, part):
                operands.append(Operand.constant(part))
            else:
                operands += self.operands_of(part)
        return operands

    # ------------------------------------------------------------ memory

    def count_traffic(
        self, buffer: ir.Buffer, element_count: int = 1, element_stride: int = 1, *, writes: bool = False
    ) -> None:
        """Count the bytes that an access to ``element_count`` elements of a buffer transfers. ``element_stride``:
        distance of the elements. Register tiles transfer none."""
        if buffer.scope != "register":
            traffic = Traffic.of(dtypes.nbytes(buffer.dtype), element_count, element_stride, writes=writes)
            self.traffic[buffer.name] += traffic.times(self.regions[-1].weight)
            if buffer.scope == "const":
                self.operations["constant_byte"] += self.regions[-1].weight * traffic.bytes_read

    def record_access(
        self, buffer: ir.Buffer, indices: tuple[ir.Expr, ...], *, writes: bool = False, loads_word: bool = False
    ) -> int:
        """Record an access to contiguous elements of a buffer. Return its distance in bytes from the pointer that it
        uses.

        ``loads_word``: True if it loads an aligned word."""
        address = address_of(buffer, indices)
        for term, _ in address.terms:
            if not isinstance(term, ir.Var):
                self.count_index_term(term)
        if any(accesses_of(term) for term, _ in address.terms):
            address = replace(address, terms=frozenset((t, n) for t, n in address.terms if not accesses_of(t)))
        distance = self.record_pointer(address, writes=writes)
        near = distance <= self.core.pair
        self.count_paired_load(
            address if near and (loads_word or buffer.dtype in ("int32", "uint32")) and not writes else None
        )
        return distance

    def count_paired_load(self, word_address: Address | None) -> None:
        """Count the load of a word and the load just before it as one paired load if both words are neighbours in
        memory.

        ``word_address``: address of the loaded word; None for any other access. Two words in one expression are not
        paired, because each is loaded just before the instruction that uses it."""
        word_address = word_address if self.single and self.pairs_loads else None
        before, self.previous = self.previous, word_address
        if self.core.pair and word_address is not None and before is not None and word_address.is_word_after(before):
            self.previous = None
            self.add_operations({"load": -1, "paired": 1}, self.regions[-1].weight)

    def record_pointer(self, address: Address, *, writes: bool) -> int:
        """Record the pointer of an access. Return the distance of the access from this pointer in bytes.

        If the offsets of a core count elements (Armv6-M), loads of signed numbers below 32 bits have no offset. Each
        such load needs another instruction, for the offset or for the sign, unless it is the only access by the
        pointer."""
        region, width = self.regions[-1], dtypes.nbytes(address.buffer.dtype)
        if not self.core.has("elements"):
            return region.record_access(address, self.core.offset)[1]
        use, distance = region.record_access(address, self.core.offset * width)
        if not writes and width < 4 and address.buffer.dtype.startswith("int"):
            # The second access pays for the first one, too, which was free as long as it was the only one.
            self.add_operations({"alu": {1: 0, 2: 2}.get(use.access_count, 1)}, region.weight)
        return distance

    def count_index_term(self, term: ir.Expr) -> None:
        """Count a term of index arithmetic once in each iteration of the innermost loop on which it depends.

        A term that contains a load counts in the current loop; equal subexpressions count once."""
        if accesses_of(term):
            if self.regions[-1].record_index_term(term):
                self.add_operations(self.selector.count_shared(term), self.regions[-1].weight)
                self.regions[-1].record_reads(self.operands_of(term))
            return
        names = free_vars(term)
        depth = max((k for k, region in enumerate(self.regions) if region.var in names), default=0)
        region = self.regions[depth]
        if region.record_index_term(term):
            self.add_operations(self.selector.count(term), region.runs)


def _is_plain_load(value: ir.Expr) -> bool:
    """Test whether a value is only a load from memory, without arithmetic."""
    match value:
        case ir.Load(buffer):
            return buffer.scope != "register"
        case ir.Call(_, (ir.AddressOf(),)):
            return True
        case _:
            return False
