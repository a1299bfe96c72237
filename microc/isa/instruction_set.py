"""What an intrinsic, an instruction set and a tensor unit are, as data."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from microc.base.immutable import frozen
from microc.errors import UsageError
from microc.isa.tensor_intrinsics import TensorIntrin
from microc.tir.ir import Buffer, Expr, Stmt, Var, const

# ---- What an intrinsic is: a name of the neutral vocabulary and its meaning in TIR; what an instruction set brings
# for it: a body in C.
#
# A scalar intrinsic is a pure function of 32-bit values (words of four bytes or two 16-bit numbers included) or of a pointer.
# Vector intrinsics have values of a whole vector, such as ``int32x4``; their meaning is that of one lane. The portable C of an
# intrinsic is printed from its meaning.

LANE = Var("lane")
"""The number of the lane that the meaning of a vector intrinsic speaks of."""
ANY = 1 << 30
"""Elements behind a pointer when the call says how many it touches."""
A, B, C = Var("a"), Var("b"), Var("c")
"""Parameters of most scalar intrinsics."""
VL = Var("vl")
"""The lanes of a scalable vector that take part."""


@frozen
class Turns:
    """A loop inside a body: the parameter that says how many elements there are, how many an iteration takes, and what an
    iteration costs."""

    parameter: str
    elements: int
    operations: tuple[tuple[str, int], ...]


@frozen
class Body:
    """How instructions compute an intrinsic: statements of C (may use ``__asm__``) over its parameters; empty where the meaning
    is as good as anything.

    ``operations``: what it costs, by kind of operation (``isa/instruction_set.py``); one ``alu`` for each ``__asm__`` and an
    access for each ``memcpy`` unless given. ``turns`` is the loop inside, whose length is an argument. ``apart``: it stays a
    function of its own, since it is long. ``guard``: the C preprocessor condition under which it replaces the meaning, that of
    its set unless given. ``types``: vectors that are declared before it, with their header, though no parameter is one.
    """

    text: str
    operations: tuple[tuple[str, int], ...] = ()
    turns: Turns | None = None
    apart: bool = False
    guard: str = ""
    types: tuple[str, ...] = ()

    def counts(self) -> dict[str, int]:
        """What it costs, without the loop inside."""
        if self.operations:
            return dict(self.operations)
        memory = {"load": self.text.count("memcpy(&"), "store": self.text.count("memcpy(p")}
        alu = self.text.count("__asm__")
        return {**memory, "alu": alu if alu or any(memory.values()) else 1}


@frozen
class Intrin:
    """A word of the vocabulary.

    ``params`` are scalar variables or (for pointers) buffers; ``meaning`` is its value, or its effect on a buffer. With
    ``lanes`` the meaning holds for every lane, number :data:`LANE`: a vector parameter stands there for its element, as the
    variable of its name and the element's dtype, and a value is that of the lane. ``limits``: the smallest and largest number
    of parameters that have narrower ones than their dtype; others give nothing. ``bodies``: those that suit any core (a user's
    own). ``scalable``: vectors have at least so many lanes, of which the last parameter, ``vl``, says how many take part; others
    hold anything.
    """

    name: str
    params: tuple[Var | Buffer, ...]
    meaning: Expr | Stmt
    lanes: int = 0
    limits: tuple[tuple[str, int, int], ...] = ()
    bodies: tuple[Body, ...] = ()
    scalable: bool = False

    @property
    def result(self) -> str:
        """The dtype of the value; empty for an intrinsic that only writes."""
        if isinstance(self.meaning, Stmt):
            return ""
        return vector(self.meaning.dtype, self.lanes, self.scalable) if self.lanes else self.meaning.dtype

    @property
    def turns(self) -> Expr:
        """The lanes that take part."""
        return VL if self.scalable else i32(self.lanes)


SUMS = (("c", -(1 << 30), 1 << 30),)
"""Limits of what products of a word are added to."""


def vector(element: str, lanes: int, scalable: bool = False) -> str:
    """The dtype of so many lanes, or of a multiple of them."""
    return f"{element}x{'vscalex' if scalable else ''}{lanes}"


def i32(value: int) -> Expr:
    return const(value, "int32")


def sign16(x: Expr) -> Expr:
    """The low half of ``x`` as a signed number, without overflow: ((x & 0xffff) ^ 0x8000) - 0x8000."""
    return ((x & 0xFFFF) ^ 0x8000) - 0x8000


def sign8(x: Expr) -> Expr:
    return ((x & 0xFF) ^ 0x80) - 0x80


def pack16(low: Expr, high: Expr) -> Expr:
    """Two values within int16 as one word."""
    return (low & 0xFFFF) | (high * 65536)


def assembly(text: str, inputs: str) -> Body:
    """A body of one instruction with one result ``%0``; ``inputs`` are parameters in general registers, ``%1`` on."""
    operands = ", ".join(f'"r"({name})' for name in inputs)
    return Body(f'int32_t r;\n__asm__("{text}" : "=r"(r) : {operands});\nreturn r;')


# ---- What a tensor unit is, as data: memories of its own, the matrix product that it does at once, and how long
# instructions take.
#
# Its instructions are words of the vocabulary (:mod:`microc.isa.vocabulary.matrix_products`), which say what they mean; a core
# has a unit by a set that holds its description (:func:`microc.isa.host.with_unit`). C calls the instructions by their words. A
# header of yours defines them for the unit itself; without one they are a model, which computes what they mean and counts
# cycles by the rule.
#
# The rule, ours: the processor issues instructions in no time. Each queue does one after the other; an instruction begins when
# the one before it has ended and the tokens that its queue waits for are there. It takes
#
# - ``load_input``, ``load_weight``, ``load_sums``, ``store_sums``: ``start`` cycles, and for every row its bytes by ``bus``;
# - ``set``, and ``load_sums`` of one row for all (a stride of 0), which is moved once: for every row its sums by ``columns``;
# - ``matmul``: ``tile_cycles`` for every tile of ``rows`` x ``columns`` x ``depth`` that it has a part of,
#
# each quotient rounded up. A barrier ends when all queues are done. Utilisation is the products of a layer by those that the unit
# could have done in the cycles that the layer took.

TENSOR_UNIT = "tensor_unit"
"""The feature of cores that have one."""
EVENTS = 3
"""Kinds of tokens that a layer takes: one for each memory."""
MOST = 1 << 24


@frozen
class Scratchpad:
    """A memory of the unit: its bytes, and the bytes at whose multiples rows of a matrix begin in it."""

    nbytes: int
    align: int = 16


@frozen
class TensorUnit:
    """A unit that multiplies int8 by int8 to int32.

    ``rows`` x ``columns`` x ``depth``: the products that it does in ``tile_cycles`` cycles. ``bus``: bytes that it moves in a
    cycle; ``start``: cycles before the first. ``events``: kinds of tokens that it can tell apart.
    """

    name: str
    rows: int
    columns: int
    depth: int
    tile_cycles: int
    input: Scratchpad
    weight: Scratchpad
    sums: Scratchpad
    bus: int
    start: int
    events: int = 8

    def __post_init__(self) -> None:
        """UsageError where this is no unit that rules can use."""
        numbers = (self.rows, self.columns, self.depth, self.tile_cycles, self.bus)
        memories = {"input": self.input, "weight": self.weight, "sums": self.sums}
        rows = {
            "input": (self.rows, self.depth),
            "weight": (self.columns, self.depth),
            "sums": (self.rows, 4 * self.columns),
        }
        fault = ""
        if not re.fullmatch(r"[a-z0-9_]+", self.name):
            fault = "a name is of small letters, digits and _"
        elif min(numbers) < 1 or self.start < 0 or max((*numbers, self.start)) > MOST:
            fault = f"rows, columns, depth, tile_cycles and bus are 1 to {MOST}, start is 0 to {MOST}"
        elif self.events < EVENTS:
            fault = f"tiles need {EVENTS} kinds of tokens, events are {self.events}"
        for name, memory in memories.items():
            align, (count, nbytes) = memory.align, rows[name]
            if align < 1 or align % 4 or memory.nbytes % align:
                fault = fault or f"the {name} memory has whole rows of {align} bytes only, which are a multiple of 4"
            elif memory.nbytes < 2 * count * _parts(nbytes, align) * align or memory.nbytes > MOST:
                fault = fault or f"the {name} memory holds two tiles at least, and {MOST} bytes at most"
        if fault:
            raise UsageError(f"tensor unit {self.name!r}: {fault}", hint="microc/isa/host.py describes one")

    @property
    def macs(self) -> float:
        """Products in a cycle, at most."""
        return self.rows * self.columns * self.depth / self.tile_cycles

    def cycles(self, word: str, numbers: Sequence[int]) -> int:
        """What an instruction takes; ``numbers``: its arguments behind the addresses."""
        rows, columns = numbers[:2]
        match word:
            case "unit_matmul":
                depth = numbers[2]
                tiles = _parts(rows, self.rows) * _parts(columns, self.columns) * _parts(depth, self.depth)
                return tiles * self.tile_cycles
            case "unit_set":
                return rows * _parts(columns, self.columns)
            case "unit_load_input" | "unit_load_weight":
                return self.start + rows * _parts(columns, self.bus)
            case "unit_load_sums" if numbers[3] == 0:
                return self.start + _parts(4 * columns, self.bus) + rows * _parts(columns, self.columns)
            case _:
                return self.start + rows * _parts(4 * columns, self.bus)


def _parts(count: int, size: int) -> int:
    return -(-count // size)


# ---- What an instruction set is, as data: the bodies of intrinsics that it has instructions for, its vector unit; a
# family of sets and its cores, each with a table of costs.

SILENT = frozenset({"taken", "paired", "constant_byte"})
"""Kinds of operations that are no instructions."""
PLAIN: Mapping[str, str] = MappingProxyType({"speed": "-O2", "balanced": "-O2", "size": "-Os"})
"""Compiler options by goal."""
UNSCHEDULED: Mapping[str, str] = MappingProxyType(
    {**PLAIN, "speed": "-O2 -fno-schedule-insns", "balanced": "-O2 -fno-schedule-insns"}
)
"""gcc's first scheduling pass moves all loads of a register tile to its front, where they spill: without it kernels take up to a
fifth fewer instructions on Armv7-M, and tiles of four by four pay on RISC-V."""


@frozen
class VectorUnit:
    """Vectors in registers. ``types``: what C calls the types of vectors by ours; ``header`` declares them, if anything has to.
    ``elements``: C takes their lanes by subscripts."""

    types: Mapping[str, str]
    header: str = ""
    elements: bool = False


@frozen
class InstructionSet:
    """Instructions that come together.

    - ``guard``: the C preprocessor condition under which a compiler knows them.
    - ``bodies``: by the name of the intrinsic that they compute. A core with the set *has* these names as features: whatever
      schedules and lowering do by an intrinsic, they do where a core has it.
    - ``features``: what else is known of a core that has the set.
    - ``intrinsics``, ``tensors``: meanings that the vocabulary lacks, and loop nests that they replace.
    - ``unit``: its vectors, if it has some.
    - ``tensor_unit``: the coprocessor that its words are instructions of, if they are.
    """

    name: str
    guard: str
    bodies: Mapping[str, Body]
    features: frozenset[str] = frozenset()
    intrinsics: tuple[Intrin, ...] = ()
    tensors: tuple[TensorIntrin, ...] = ()
    unit: VectorUnit | None = None
    tensor_unit: TensorUnit | None = None


FORMS: Mapping[str, str] = MappingProxyType(
    {
        "shifted": "sums and logic take an operand that is shifted by a constant on the way",
        "accumulated": "sums take a product",
        "indexed": "loads and stores add an index to their pointer",
        "compared": "branches compare two registers",
        "predicated": "one of two values is chosen without a branch",
        "elements": "offsets count elements, and loads of signed numbers below 32 bits have none",
    }
)
"""What one instruction of a core does where another core takes two, or does otherwise."""


@frozen
class Costs:
    """Costs of a core, in instructions and cycles.

    Operations are counted by kind: ``alu`` (one instruction on registers), ``load``, ``store``, ``multiply``, ``multiply_long``,
    ``divide``, ``branch`` (executed), ``taken`` (branches that jump: cycles, no instruction of their own), ``float``,
    ``float_move``, ``float_multiply``, ``float_divide``, ``float_load``, ``float_store``, ``vector``, ``vector_load``,
    ``vector_store``, ``call_*`` for what the core leaves to a library function, and what takes time alone: ``paired``, the second
    of two words that one instruction loads, and ``constant_byte``, a byte that is loaded from flash.

    - ``registers``, ``float_registers``, ``vector_registers``: what a compiler can hold values in (high registers of Armv6-M are
      good for sums alone). Without a number a vector counts as two general ones.
    - ``offset``: largest offset of a load in bytes, or in elements.
    - ``forms``: of :data:`FORMS`.
    - ``pair``: largest offset in bytes that two neighbouring words are loaded at together; ``advance``: most bytes that a load or
      store advances its pointer by. 0 where there is no such instruction.
    - ``instruction_bytes``: mean size of an instruction.
    - ``lengths``: instructions of an operation where it is not one.
    - ``cycles``: cycles of an operation where they are not its instructions.
    - ``issue``: cycles that remain of an instruction stream when the core issues two at once (1 where it does not).
    """

    registers: int
    float_registers: int
    offset: int
    forms: frozenset[str]
    instruction_bytes: float
    lengths: Mapping[str, float]
    cycles: Mapping[str, float]
    issue: float = 1.0
    pair: int = 0
    advance: int = 0
    vector_registers: int = 0

    def has(self, form: str) -> bool:
        """Whether one instruction does what :data:`FORMS` says."""
        return form in self.forms

    def length(self, operation: str) -> float:
        """Instructions of an operation; none for what only takes time."""
        return self.lengths.get(operation, 0.0 if operation in SILENT else 1.0)

    def duration(self, operation: str) -> float:
        """Cycles of an operation."""
        return self.cycles.get(operation, self.length(operation))


@frozen
class Probe:
    """How a program finds out whether it may use a core's instructions: ``guard`` is the C preprocessor condition under which its
    compiler used them, ``text`` an expression of C that is true on a computer that has them; ``header`` declares what it calls.
    ``attribute``: what keeps those instructions out of the function that asks."""

    guard: str
    text: str
    header: str = ""
    attribute: str = ""


@frozen
class Core:
    """A row of a family's table: what code is compiled for.

    - ``sets``: what it has, the body of the first that has one counts. ``features``: what else is known of it.
    - ``lanes``: of vectors that one of its registers holds whole, the most first; none where schedules do not ask for them.
    - ``vectors``: how many of them it has. ``pipelined``: multiply-adds of vectors that it has under way at once, its units times
      the cycles of one: a sum that waits for itself takes as long as so many; 0 where that does not matter.
    - ``cache``: bytes of the largest cache that it shares with no other core; 0 where there is none.
    - ``options``: what compilers are told about the network's files, beside its family's options and behind the board's.
    - ``machine``: options that tell compilers which core or instruction set it is, where boards do not (``-march=...``).
    - ``probe``: of computers, how a library that was made for the core knows that it runs on one.
    """

    name: str
    family: str
    costs: Costs
    sets: tuple[InstructionSet, ...] = ()
    features: frozenset[str] = frozenset()
    options: str = ""
    machine: str = ""
    lanes: tuple[int, ...] = ()
    vectors: int = 0
    pipelined: int = 0
    cache: int = 0
    probe: Probe | None = None

    @property
    def has(self) -> frozenset[str]:
        """All features: its own, those of its sets, and the intrinsics that these have bodies of."""
        return self.features.union(*(s.features.union(s.bodies) for s in self.sets))

    @property
    def tensor_unit(self) -> TensorUnit | None:
        """The tensor unit beside it, if there is one."""
        return next((s.tensor_unit for s in self.sets if s.tensor_unit is not None), None)

    @property
    def units(self) -> tuple[InstructionSet, ...]:
        """The sets with vectors."""
        return tuple(s for s in self.sets if s.unit is not None)


@frozen
class Family:
    """Cores that one compiler serves. ``options``: what it is told about the network's files, by goal. ``flash_space``: constants
    lie in an address space of their own. ``array_bytes``: of the largest array that compilers make (0: any). ``threads``: these
    are computers, with an operating system that has threads of POSIX; ``computers``: what Python calls such
    (``platform.machine()``). ``flags``: what a search may try for a kernel beside those options, each a list of gcc's ``-f``
    options or a level (``O3``) with commas between; none of them changes a result. ``own_math``: functions of ``<math.h>`` that
    its C library lacks, or computes less exactly than operators promise: ``codegen/c/libm.py`` has them in portable C. It has all
    others that code calls. ``double_bytes``: the size of C's ``double``; networks with float64 need 8."""

    name: str
    cores: tuple[Core, ...]
    options: Mapping[str, str]
    flash_space: bool = False
    array_bytes: int = 0
    threads: bool = False
    computers: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    own_math: frozenset[str] = frozenset()
    double_bytes: int = 8
