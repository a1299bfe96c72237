"""The data types of instruction sets: intrinsics and their C bodies, cores and their costs, tensor units."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from microc.base.immutable import frozen
from microc.errors import UsageError
from microc.isa.tensor_intrinsics import TensorIntrin
from microc.tir.ir import Buffer, Expr, Stmt, Var, const

# ---- An intrinsic is a name of the neutral vocabulary with its meaning in TIR. An instruction set has a body in C for it.
#
# A scalar intrinsic is a pure function of 32-bit values (words of four bytes or two 16-bit numbers included) or of a pointer.
# Vector intrinsics have values of a whole vector, such as ``int32x4``; their meaning is that of one lane. The portable C of an
# intrinsic is printed from its meaning.

LANE = Var("lane")
"""The number of the current lane in the meaning of a vector intrinsic."""
ANY = 1 << 30
"""Elements behind a pointer if the call decides how many it accesses."""
A, B, C = Var("a"), Var("b"), Var("c")
"""Parameters of most scalar intrinsics."""
VL = Var("vl")
"""The active lanes of a scalable vector."""


@frozen
class BodyLoop:
    """A loop inside a body: the parameter that is the number of elements, the elements and the operations of one iteration."""

    parameter: str
    elements: int
    operations: tuple[tuple[str, int], ...]


@frozen
class Body:
    """The C code of an intrinsic on an instruction set: statements over its parameters, which may use ``__asm__``.

    - ``text``: empty if the C printed from the meaning is best.
    - ``operations``: counts by kind (:class:`Costs`); default: one ``alu`` per ``__asm__`` and an access per ``memcpy``.
    - ``turns``: the loop inside, whose length is an argument.
    - ``apart``: it stays a function of its own, since it is long.
    - ``guard``: the C preprocessor condition under which it replaces the meaning; default: that of its set.
    - ``types``: vector types that are declared before it, with their header, although no parameter has one.
    """

    text: str
    operations: tuple[tuple[str, int], ...] = ()
    turns: BodyLoop | None = None
    apart: bool = False
    guard: str = ""
    types: tuple[str, ...] = ()

    def counts(self) -> dict[str, int]:
        """Return the operation counts of the body by kind, without the loop inside."""
        if self.operations:
            return dict(self.operations)
        memory = {"load": self.text.count("memcpy(&"), "store": self.text.count("memcpy(p")}
        alu = self.text.count("__asm__")
        return {**memory, "alu": alu if alu or any(memory.values()) else 1}


@frozen
class Intrin:
    """An intrinsic of the vocabulary.

    - ``params``: scalar variables, or buffers for pointers.
    - ``meaning``: its value, or its effect on a buffer. With ``lanes`` it is the meaning of lane number :data:`LANE`: a vector
      parameter is the variable of its name and the element's dtype.
    - ``limits``: the smallest and largest values of parameters whose range is narrower than their dtype.
    - ``bodies``: those that suit any core (of a user's intrinsic).
    - ``scalable``: vectors have ``lanes`` lanes or a multiple; the last parameter, ``vl``, is the number of active ones, others
      are undefined.
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
        return vector_dtype(self.meaning.dtype, self.lanes, self.scalable) if self.lanes else self.meaning.dtype

    @property
    def turns(self) -> Expr:
        """The number of active lanes, over which the meaning of one lane is repeated."""
        return VL if self.scalable else int32_constant(self.lanes)


SUMS = (("c", -(1 << 30), 1 << 30),)
"""Limits of the sum to which products of a word are added."""


def vector_dtype(element: str, lanes: int, scalable: bool = False) -> str:
    """Return the name of the dtype of vectors of ``lanes`` lanes; ``scalable``: of that many lanes or a multiple."""
    return f"{element}x{'vscalex' if scalable else ''}{lanes}"


def int32_constant(value: int) -> Expr:
    """Return an int32 constant."""
    return const(value, "int32")


def sign_extend_16(x: Expr) -> Expr:
    """Sign-extend the low half of ``x``, without overflow: ((x & 0xffff) ^ 0x8000) - 0x8000."""
    return ((x & 0xFFFF) ^ 0x8000) - 0x8000


def sign_extend_8(x: Expr) -> Expr:
    """Build the sign extension of the low byte of ``x``."""
    return ((x & 0xFF) ^ 0x80) - 0x80


def pack_halves(low: Expr, high: Expr) -> Expr:
    """Build the word that holds two values within the range of int16."""
    return (low & 0xFFFF) | (high * 65536)


def one_instruction_body(text: str, inputs: str) -> Body:
    """Build the body of one assembly instruction ``text`` with the result ``%0``; ``inputs``: the parameters, one letter
    each, in general registers ``%1`` on."""
    operands = ", ".join(f'"r"({name})' for name in inputs)
    return Body(f'int32_t r;\n__asm__("{text}" : "=r"(r) : {operands});\nreturn r;')


# ---- A tensor unit: its memories, the matrix product that it does at once, and the time of its instructions
#
# Its instructions are intrinsics of the vocabulary (:mod:`microc.isa.vocabulary.matrix_products`), which have meanings. A core
# has a unit if one of its sets describes one (:func:`microc.isa.host.with_unit`). C calls the instructions by their names. Your
# header defines them for the unit itself; without one they are a model, which computes their meanings and counts cycles by the
# cost rule.
#
# The cost rule is ours: the processor issues instructions in no time. Each queue runs one after the other; an instruction begins
# when the previous one has ended and the tokens that its queue waits for have arrived. It takes
#
# - ``load_input``, ``load_weight``, ``load_sums``, ``store_sums``: ``start`` cycles, and for every row its bytes by ``bus``;
# - ``set``, and ``load_sums`` of one row for all (a stride of 0), which is moved once: for every row its sums by ``columns``;
# - ``matmul``: ``tile_cycles`` for every tile of ``rows`` x ``columns`` x ``depth`` that it has a part of,
#
# each quotient rounded up. A barrier ends when all queues are done. Utilisation is the products of a layer, divided by those that
# the unit could have done in the cycles of the layer.

TENSOR_UNIT = "tensor_unit"
"""The feature of cores that have a tensor unit."""
EVENTS = 3
"""Kinds of tokens that a layer needs: one for each memory."""
MOST = 1 << 24
"""The largest number in a unit's description."""


@frozen
class Scratchpad:
    """A memory of the unit: its size, and the alignment of matrix rows in it, in bytes."""

    nbytes: int
    align: int = 16


@frozen
class TensorUnit:
    """A unit that multiplies int8 by int8 to int32.

    ``rows`` x ``columns`` x ``depth``: the products that it does in ``tile_cycles`` cycles. ``bus``: bytes that it moves in a
    cycle; ``start``: cycles before the first. ``events``: kinds of tokens that it distinguishes.
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
        """Raise UsageError for a tensor unit that schedule rules cannot use."""
        numbers = (self.rows, self.columns, self.depth, self.tile_cycles, self.bus)
        memories = {"input": self.input, "weight": self.weight, "sums": self.sums}
        rows = {
            "input": (self.rows, self.depth),
            "weight": (self.columns, self.depth),
            "sums": (self.rows, 4 * self.columns),
        }
        fault = ""
        if not re.fullmatch(r"[a-z0-9_]+", self.name):
            fault = f"a name is of small letters, digits and _; got {self.name!r}"
        elif min(numbers) < 1 or self.start < 0 or max((*numbers, self.start)) > MOST:
            got = (*numbers, self.start)
            fault = f"rows, columns, depth, tile_cycles and bus are 1 to {MOST}, start is 0 to {MOST}; got {got}"
        elif self.events < EVENTS:
            fault = f"tiles need {EVENTS} kinds of tokens, events are {self.events}"
        for name, memory in memories.items():
            align, (count, nbytes) = memory.align, rows[name]
            if align < 1 or align % 4 or memory.nbytes % align:
                fault = (
                    fault
                    or f"the {name} memory has whole rows, of a multiple of 4 bytes; got {memory.nbytes} bytes in rows of {align}"
                )
            elif memory.nbytes < 2 * count * _divide_up(nbytes, align) * align or memory.nbytes > MOST:
                fault = (
                    fault
                    or f"the {name} memory holds two tiles at least, and {MOST} bytes at most; got {memory.nbytes}"
                )
        if fault:
            raise UsageError(f"tensor unit {self.name!r}: {fault}", hint="follow the description in microc/isa/host.py")

    @property
    def macs(self) -> float:
        """The largest number of products in a cycle."""
        return self.rows * self.columns * self.depth / self.tile_cycles

    def cycles(self, instruction_name: str, arguments: Sequence[int]) -> int:
        """Return the cycles that an instruction of the unit takes, with its arguments behind the addresses."""
        rows, columns = arguments[:2]
        match instruction_name:
            case "unit_matmul":
                depth = arguments[2]
                tiles = _divide_up(rows, self.rows) * _divide_up(columns, self.columns) * _divide_up(depth, self.depth)
                return tiles * self.tile_cycles
            case "unit_set":
                return rows * _divide_up(columns, self.columns)
            case "unit_load_input" | "unit_load_weight":
                return self.start + rows * _divide_up(columns, self.bus)
            case "unit_load_sums" if arguments[3] == 0:
                return self.start + _divide_up(4 * columns, self.bus) + rows * _divide_up(columns, self.columns)
            case _:
                return self.start + rows * _divide_up(4 * columns, self.bus)


def _divide_up(dividend: int, divisor: int) -> int:
    """Return ``dividend`` divided by ``divisor``, rounded up."""
    return -(-dividend // divisor)


# ---- Instruction sets: the bodies of intrinsics that they have instructions for, their vector units. Families of cores, each
# with a table of costs.

SILENT = frozenset({"taken", "paired", "constant_byte"})
"""Kinds of operations that are no instructions."""
PLAIN: Mapping[str, str] = MappingProxyType({"speed": "-O2", "balanced": "-O2", "size": "-Os"})
"""Compiler options by goal."""
UNSCHEDULED: Mapping[str, str] = MappingProxyType(
    {**PLAIN, "speed": "-O2 -fno-schedule-insns", "balanced": "-O2 -fno-schedule-insns"}
)
"""Options without gcc's first scheduling pass, which moves all loads of a register tile to its front, where they spill.

Without it kernels take up to a fifth fewer instructions on Armv7-M, and tiles of four by four pay on RISC-V.
"""


@frozen
class VectorUnit:
    """Vector registers. ``types``: C's names of our vector types; ``header`` declares them, if necessary. ``elements``: C
    accesses lanes by subscripts."""

    types: Mapping[str, str]
    header: str = ""
    elements: bool = False


@frozen
class InstructionSet:
    """A set of instructions that a compiler has or lacks together.

    - ``guard``: the C preprocessor condition under which a compiler has them.
    - ``bodies``: the C bodies, by the name of the intrinsic that they compute. A core with the set *has* these names as
    features: schedules and lowering use an intrinsic on cores that have it.
    - ``features``: further features of a core with the set.
    - ``intrinsics``, ``tensors``: intrinsics that the vocabulary lacks, and loop nests that they replace.
    - ``unit``: its vectors, if any.
    - ``tensor_unit``: the coprocessor whose instructions these are, if any."""

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
"""Instruction forms of cores; other cores need two instructions, or behave otherwise."""


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
        """Test whether the core has an instruction form of :data:`FORMS`."""
        return form in self.forms

    def length(self, operation: str) -> float:
        """Return the instructions of an operation; 0 for those that only take time."""
        return self.lengths.get(operation, 0.0 if operation in SILENT else 1.0)

    def duration(self, operation: str) -> float:
        """Return the cycles of an operation."""
        return self.cycles.get(operation, self.length(operation))


@frozen
class Probe:
    """A test in C whether a program may use a core's instructions.

    ``guard``: the C preprocessor condition under which its compiler used them. ``text``: a C expression that is true on a
    computer that has them; ``header`` declares its functions. ``attribute``: keeps those instructions out of the function that
    tests.
    """

    guard: str
    text: str
    header: str = ""
    attribute: str = ""


@frozen
class Core:
    """A row of a family's table: a core that code is compiled for.

    - ``sets``: its instruction sets; the first one with a body of an intrinsic counts. ``features``: further features.
    - ``lanes``: lanes of vectors that fill one of its registers, most first; none if schedules do not use them.
    - ``vectors``: number of vector registers. ``pipelined``: vector multiply-adds in flight, units times latency: a sum that
      depends on itself takes as long as so many; 0 if that does not matter.
    - ``cache``: bytes of the largest cache that it shares with no other core; 0 without one.
    - ``options``: compiler options of the network's files, beside its family's options and behind the board's.
    - ``machine``: options that select the core or instruction set, unless boards do (``-march=...``).
    - ``probe``: for computers, the test whether a library that was compiled for the core runs on one.
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
        """The tensor unit beside it, if any."""
        return next((s.tensor_unit for s in self.sets if s.tensor_unit is not None), None)

    @property
    def units(self) -> tuple[InstructionSet, ...]:
        """The core's instruction sets that have vectors."""
        return tuple(s for s in self.sets if s.unit is not None)


@frozen
class Family:
    """A family of cores that one compiler serves.

    - ``options``: compiler options of the network's files, by goal.
    - ``flash_space``: constants are in an address space of their own.
    - ``array_bytes``: the largest array that compilers support (0: any).
    - ``threads``: these are computers with POSIX threads; ``computers``: their names in Python
    (``platform.machine()``).
    - ``flags``: options that a search may try for a kernel, each a list of gcc's ``-f`` options or a level (``O3``),
    separated by commas; none changes a result.
    - ``own_math``: functions of ``<math.h>`` that its C library lacks, or computes less exactly than operators promise;
    ``codegen/c/libm.py`` has them in portable C.
    - ``double_bytes``: the size of C's ``double``; networks with float64 need 8."""

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
