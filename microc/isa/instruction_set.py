# SPDX-License-Identifier: Apache-2.0
"""Data types that describe instruction sets: intrinsics and their C bodies, tensor intrinsics, cores and their costs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

from microc.base.dtypes import nbytes
from microc.base.immutable import frozen
from microc.errors import UsageError
from microc.isa.instruction_order import Pipeline
from microc.tir import ir
from microc.tir.analysis.simplification import simplify
from microc.tir.ir import Buffer, Call, Expr, Stmt, Var, const
from microc.tir.names import LANE_OPERATORS, Lanes, parse_lanes
from microc.tir.rewrite import substitute

# ---- An intrinsic is a function of the machine-independent vocabulary: a name with a meaning in TIR. An instruction set has a
# body in C for it.
#
# A scalar intrinsic is a pure function of 32-bit values (also packed ones: four bytes or two 16-bit numbers) or of a pointer.
# A vector intrinsic computes a whole vector, such as ``int32x4``; its meaning describes one lane. The portable C of an
# intrinsic is printed from its meaning.

LANE = Var("lane")
"""Index of the current lane in the TIR meaning of a vector intrinsic."""
ANY = 1 << 30
"""Extent of a pointer parameter if arguments of the call decide how many elements it accesses."""
A, B, C = Var("a"), Var("b"), Var("c")
"""Parameters of most scalar intrinsics."""
VL = Var("vl")
"""Parameter of scalable intrinsics: number of active lanes."""


@frozen
class BodyLoop:
    """A loop inside a C body.

    ``count_parameter``: name of the intrinsic's parameter that is the number of elements to process.
    ``elements_per_iteration``: number of elements that one iteration processes. ``operations_per_iteration``: operation
    counts of one iteration, by type of operation."""

    count_parameter: str
    elements_per_iteration: int
    operations_per_iteration: tuple[tuple[str, float], ...]


@frozen
class Body:
    """C code that implements an intrinsic on an instruction set: statements over the intrinsic's parameters, which may
    contain ``__asm__``.

    - ``text``: the statements; empty if the C that is printed from the TIR meaning is best.
    - ``operations``: counts by type of operation (:class:`Costs`). The default is one ``alu`` per ``__asm__`` and one
      access per ``memcpy``.
    - ``loop``: the loop in the statements whose trip count depends on an argument, if any.
    - ``apart``: True if the body is not inlined but stays a C function, because it is long.
    - ``guard``: C preprocessor condition under which the body replaces the meaning. The default is the condition of its
      instruction set.
    - ``types``: vector types that the statements need, although no parameter has such a type.
    - ``instruction``: the only instruction of the statements, with the result ``%0`` and the parameters ``%1``, ``%2`` ...;
      empty if the statements are more."""

    text: str
    operations: tuple[tuple[str, int], ...] = ()
    loop: BodyLoop | None = None
    apart: bool = False
    guard: str = ""
    types: tuple[str, ...] = ()
    instruction: str = ""

    @property
    def is_empty(self) -> bool:
        """True if the meaning of the intrinsic is printed, because compilers translate it best."""
        return not (self.text or self.operations)

    def counts(self) -> dict[str, int]:
        """Return the operation counts of the body by type of operation, without the iterations of its loop."""
        if self.operations:
            return dict(self.operations)
        memory = {"load": self.text.count("memcpy(&"), "store": self.text.count("memcpy(p")}
        alu = self.text.count("__asm__")
        return {**memory, "alu": alu if alu or any(memory.values()) else 1}


class BodyTable(Mapping[str, Body]):
    """C bodies by the name of the intrinsic. An entry may be a function that builds its body at every lookup.

    Long bodies are built so, because a compilation looks up few names, of the sets of one core."""

    __slots__ = ("entries",)

    def __init__(self, entries: Mapping[str, Body | Callable[[], Body]]) -> None:
        self.entries = entries

    def __getitem__(self, name: str) -> Body:
        entry = self.entries[name]
        return entry if isinstance(entry, Body) else entry()

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


@frozen
class Intrin:
    """An intrinsic: a function of the machine-independent vocabulary, with its meaning as TIR.

    - ``params``: scalar variables, or buffers for pointers.
    - ``meaning``: its value as an expression, or its effect on a buffer as a statement. If the intrinsic has ``lanes``,
      this is the meaning of lane number :data:`LANE`; a vector parameter is written as a scalar variable of the same
      name.
    - ``limits``: (parameter, least value, largest value) for parameters whose range is narrower than their dtype.
    - ``bodies``: C bodies that suit any core (only for intrinsics that users define).
    - ``scalable``: True for scalable vectors, which have ``lanes`` lanes or a multiple. The last parameter ``vl`` is
      then the number of active lanes; the other lanes are undefined."""

    name: str
    params: tuple[Var | Buffer, ...]
    meaning: Expr | Stmt
    lanes: int = 0
    limits: tuple[tuple[str, int, int], ...] = ()
    bodies: tuple[Body, ...] = ()
    scalable: bool = False

    @property
    def is_formula(self) -> bool:
        """True if it computes a scalar by a formula, so that schedules can select it where the formula occurs. A parameter
        or an element alone is no formula."""
        return not self.lanes and isinstance(self.meaning, Expr) and not isinstance(self.meaning, (Var, ir.Load))

    @property
    def is_scalar(self) -> bool:
        """True if it computes a scalar from scalars by a formula, without access to memory."""
        return self.is_formula and all(isinstance(param, Var) for param in self.params)

    @property
    def result(self) -> str:
        """The dtype of the value; empty for an intrinsic that only writes to memory."""
        if isinstance(self.meaning, Stmt):
            return ""
        return vector_dtype(self.meaning.dtype, self.lanes, self.scalable) if self.lanes else self.meaning.dtype

    @property
    def active_lane_count(self) -> Expr:
        """The number of active lanes: the trip count of the loop over lanes in the meaning."""
        return VL if self.scalable else int32_constant(self.lanes)


# ---- Lanes: the body of ``average_u8x4`` or ``average_i32x4`` computes the scalar intrinsic ``average`` in every lane of a word
# or of a vector. Its meaning follows from that of the scalar, so that a set declares the body alone.


@lru_cache(maxsize=4096)
def split_lane_form(name: str) -> tuple[str, Lanes | None]:
    """Split ``average_u8x4`` into the name of a scalar intrinsic and its lanes. Other names have no lanes."""
    base, _, suffix = name.rpartition("_")
    lanes = parse_lanes(suffix)
    return (name, None) if lanes is None or not base else (base, lanes)


def has_lane_form(scalar: Intrin, lanes: Lanes) -> bool:
    """Test whether lanes can compute a scalar intrinsic: its numbers are int32 or, in vectors, float32, as the lanes say."""
    allowed = ("int32",) if lanes.is_narrow else ("int32", "float32")
    result = "float32" if lanes.dtype == "float32" else "int32"
    return scalar.is_scalar and scalar.result == result and all(p.dtype in allowed for p in scalar.params)


def build_lane_form(scalar: Intrin, lanes: Lanes) -> Intrin:
    """Build the intrinsic that computes a scalar intrinsic in ``lanes``: those of a word (``u8x4``), or of a vector (``i32x4``,
    ``f32xvscalex16``). Results in lanes narrower than int32 wrap around."""
    name, meaning = f"{scalar.name}_{lanes.suffix}", scalar.meaning
    assert isinstance(meaning, Expr)
    params = tuple(param for param in scalar.params if isinstance(param, Var))
    if not lanes.is_word:
        dtypes_of_params = {p: lanes.dtype if lanes.is_narrow else p.dtype for p in params}
        vectors = tuple(Var(p.name, vector_dtype(dtypes_of_params[p], lanes.count, lanes.scalable)) for p in params)
        if lanes.is_narrow:
            numbers: dict[Var, Expr] = {p: Var(p.name, lanes.dtype).astype("int32") for p in params}
            meaning = substitute(meaning, numbers).astype(lanes.dtype)
        length = (VL,) if lanes.scalable else ()
        return Intrin(name, (*vectors, *length), meaning, lanes.count, scalar.limits, scalable=lanes.scalable)
    bits, signed = 8 * nbytes(lanes.dtype), lanes.dtype.startswith("int")
    mask, sign = (1 << bits) - 1, 1 << (bits - 1)
    word: Expr = int32_constant(0)
    for shift in range(0, 32, bits):
        parts = {param: (param >> shift) & mask for param in params}
        values: dict[Var, Expr] = {param: (part ^ sign) - sign if signed else part for param, part in parts.items()}
        value = substitute(meaning, values) & mask
        # The highest lane is signed, so that its product by a power of two does not overflow.
        word = word | (value if shift + bits < 32 else (value ^ sign) - sign) * (1 << shift)
    return Intrin(name, params, word)


def build_lane_operation(name: str) -> Intrin | None:
    """Build the operation that a name describes in lanes narrower than int32; None for other names.

    ``load_i16x4(p)`` and ``store_i16x4(p, a)`` access consecutive elements, at any address of an element. ``dup_i16x4(n)``
    sets all lanes to a number. ``add_i16x4(a, b)`` and the like compute an operator of :data:`~microc.tir.names.LANE_OPERATORS`;
    their results wrap around."""
    base, lanes = split_lane_form(name)
    if lanes is None or not lanes.is_narrow or lanes.scalable:
        return None
    for op in (op for op, form in LANE_OPERATORS.items() if form == base):
        wide = "uint32" if op == "mul" else "int32"  # the product of two uint16 exceeds int32
        scalar = Intrin(base, (A, B), ir.binary(op, A.astype(wide), B.astype(wide)).astype("int32"))
        return build_lane_form(scalar, lanes)
    p, a, n = Buffer("p", (lanes.count,), lanes.dtype), Var("a", lanes.dtype), Var("n")
    match "" if lanes.is_word else base:
        case "load":
            return Intrin(name, (p,), p[LANE], lanes.count)
        case "store":
            return Intrin(name, (p, Var("a", lanes.register_dtype)), ir.Store(p, (LANE,), a), lanes.count)
        case "dup":
            return Intrin(name, (n,), n.astype(lanes.dtype), lanes.count)
        case _:
            return None


SUMS = (("c", -(1 << 30), 1 << 30),)
"""Limits of the parameter ``c`` of dot products, the sum to which the products of a word are added."""


def vector_dtype(element: str, lanes: int, scalable: bool = False) -> str:
    """Return the name of the dtype of a vector of ``lanes`` lanes. If ``scalable``, the vector has that many lanes
    or a multiple."""
    return f"{element}x{'vscalex' if scalable else ''}{lanes}"


def int32_constant(value: int) -> Expr:
    """Build an int32 constant expression."""
    return const(value, "int32")


def sign_extend_16(x: Expr) -> Expr:
    """Build the sign extension of the low 16 bits of ``x``. The formula ((x & 0xffff) ^ 0x8000) - 0x8000 does not
    overflow."""
    return ((x & 0xFFFF) ^ 0x8000) - 0x8000


def sign_extend_8(x: Expr) -> Expr:
    """Build the sign extension of the low 8 bits of ``x``."""
    return ((x & 0xFF) ^ 0x80) - 0x80


def pack_halves(low: Expr, high: Expr) -> Expr:
    """Pack two int32 values within the range of int16 into one 32-bit word, ``low`` in its lower half."""
    return (low & 0xFFFF) | (high * 65536)


def build_instruction_body(text: str, inputs: str) -> Body:
    """Build the C body of the assembly instruction ``text``, whose result is ``%0``.

    ``inputs``: names of the parameters, one letter each; they are the general registers ``%1``, ``%2`` and so on."""
    operands = ", ".join(f'"r"({name})' for name in inputs)
    return Body(f'int32_t r;\n__asm__("{text}" : "=r"(r) : {operands});\nreturn r;', instruction=text)


# ---- Tensor units: their memories, the shape of their matrix product, and the time of their instructions
#
# The instructions of a tensor unit are intrinsics of the vocabulary (:mod:`microc.isa.vocabulary.matrix_products`) with TIR
# meanings. A core has a unit if one of its instruction sets describes it (:func:`microc.isa.small_families.with_unit`). The
# generated C calls the instructions as functions. For a real unit the user's header defines these functions. Without a header
# they are a model in C, which computes the meanings and counts cycles by the cost rule.
#
# The cost rule assumes that the processor issues instructions in no time. Each queue executes its instructions one after the
# other. An instruction begins when the previous instruction of its queue has ended and all tokens that the queue waits for have
# arrived. Its duration is
#
# - ``load_input``, ``load_weight``, ``load_sums``, ``store_sums``: ``start`` cycles, plus for every row its bytes / ``bus``;
# - ``set``: for every row its sums / ``columns``; ``load_sums`` with stride 0, which moves one row for all: ``start`` cycles,
#   plus the bytes of that row / ``bus``, plus the cycles of ``set``;
# - ``matmul``: ``tile_cycles`` for every tile of ``rows`` x ``columns`` x ``depth`` that the product covers, even in part;
#
# each quotient is rounded up. A barrier ends when all queues are idle. Utilisation is the number of multiply-accumulates of a
# layer, divided by the number that the unit could compute in the cycles of the layer.

TENSOR_UNIT = "tensor_unit"
"""Feature of cores that have a tensor unit."""
EVENTS = 3
"""Number of kinds of synchronisation tokens that a layer needs: one for each memory of the unit."""
MOST = 1 << 24
"""Largest number that is accepted in the description of a tensor unit."""


@frozen
class Scratchpad:
    """A memory of a tensor unit: its size, and the alignment of matrix rows in it, both in bytes."""

    nbytes: int
    align: int = 16


@frozen
class TensorUnit:
    """A tensor unit: a coprocessor that multiplies int8 matrices and accumulates in int32.

    - ``rows``, ``columns``, ``depth``: shape of the matrix product that takes ``tile_cycles`` cycles.
    - ``input``, ``weight``, ``sums``: the unit's memories for the operands and the sums.
    - ``bus``: bytes that a load or store moves per cycle; ``start``: cycles before the first byte.
    - ``events``: number of kinds of synchronisation tokens between its queues."""

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
            fault = f"wrong name; got {self.name!r}, expected small letters, digits and _"
        elif min(numbers) < 1 or self.start < 0 or max((*numbers, self.start)) > MOST:
            got = (*numbers, self.start)
            fault = (
                "rows, columns, depth, tile_cycles, bus or start is out of range; "
                f"got {got}, expected 1 to {MOST} (start: 0 to {MOST})"
            )
        elif self.events < EVENTS:
            fault = f"too few kinds of tokens; got events={self.events}, expected {EVENTS} at least"
        for name, memory in memories.items():
            align, (count, nbytes) = memory.align, rows[name]
            if align < 1 or align % 4 or memory.nbytes % align:
                fault = (
                    fault
                    or f"the {name} memory must consist of whole rows, each a multiple of 4 bytes; "
                    f"got {memory.nbytes} bytes in rows of {align}"
                )
            elif memory.nbytes < 2 * count * _ceil_div(nbytes, align) * align or memory.nbytes > MOST:
                fault = (
                    fault
                    or f"wrong size of the {name} memory; "
                    f"got {memory.nbytes} bytes, expected two tiles at least and {MOST} bytes at most"
                )
        if fault:
            raise UsageError(
                f"tensor unit {self.name!r}: {fault}", hint="follow the description in microc/isa/small_families.py"
            )

    @property
    def macs(self) -> float:
        """Largest number of multiply-accumulates per cycle."""
        return self.rows * self.columns * self.depth / self.tile_cycles

    def cycles(self, instruction_name: str, arguments: Sequence[int]) -> int:
        """Return the number of cycles of an instruction of the unit.

        ``arguments``: the operands of the instruction without its addresses."""
        rows, columns = arguments[:2]
        match instruction_name:
            case "unit_matmul":
                depth = arguments[2]
                tiles = _ceil_div(rows, self.rows) * _ceil_div(columns, self.columns) * _ceil_div(depth, self.depth)
                return tiles * self.tile_cycles
            case "unit_set":
                return rows * _ceil_div(columns, self.columns)
            case "unit_load_input" | "unit_load_weight":
                return self.start + rows * _ceil_div(columns, self.bus)
            case "unit_load_sums" if arguments[3] == 0:
                return self.start + _ceil_div(4 * columns, self.bus) + rows * _ceil_div(columns, self.columns)
            case _:
                return self.start + rows * _ceil_div(4 * columns, self.bus)


def _ceil_div(dividend: int, divisor: int) -> int:
    """Return the quotient ``dividend / divisor``, rounded up."""
    return -(-dividend // divisor)


# ---- Instruction sets: C bodies of the intrinsics for which they have instructions, and their vector registers. Families of
# cores, each core with a table of costs.

SILENT = frozenset({"taken", "paired", "constant_byte", "signed_byte", "joint"})
"""Types of operations that cost cycles, but no instruction."""
PLAIN: Mapping[str, str] = MappingProxyType({"speed": "-O2", "balanced": "-O2", "size": "-Os"})
"""Optimisation options of the compiler by goal."""
UNSCHEDULED: Mapping[str, str] = MappingProxyType(
    {**PLAIN, "speed": "-O2 -fno-schedule-insns", "balanced": "-O2 -fno-schedule-insns"}
)
"""Optimisation options by goal without gcc's first scheduling pass, which moves all loads of a register tile to its
front, so that values spill.

Without that pass kernels need up to a fifth fewer instructions on Armv7-M, and register tiles of four by four pay on
RISC-V."""


@frozen
class VectorUnit:
    """The vector registers of an instruction set.

    ``c_types``: C type by vector dtype. ``header``: header that declares the C types, if necessary. ``has_lane_subscripts``:
    True if C can access lanes by subscripts."""

    c_types: Mapping[str, str]
    header: str = ""
    has_lane_subscripts: bool = False


@frozen
class InstructionSet:
    """A set of instructions that a compiler supports all together or not at all.

    - ``guard``: C preprocessor condition under which the compiler supports them.
    - ``bodies``: C bodies, by the name of the intrinsic that a body implements. These names are also features of a core
      with the set: schedules and lowering use an intrinsic on cores that have the feature.
    - ``features``: additional features of a core with the set.
    - ``intrinsics``: intrinsics of the set that the vocabulary lacks; ``tensors``: tensor intrinsics that use these.
    - ``unit``: its vector registers, if any.
    - ``tensor_unit``: the coprocessor to which the instructions belong, if any."""

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
        "counted": "one instruction counts an innermost loop down and branches",
        "predicated": "one of two values is chosen without a branch",
        "elements": "offsets count elements, and loads of signed numbers below 32 bits have none",
    }
)
"""Instruction forms, with descriptions. A core without one of the first six forms needs two instructions instead.
The form ``elements`` restricts loads and stores."""


@frozen
class Costs:
    """Costs of a core, in instructions and cycles.

    Operations are counted by type: ``alu`` (one instruction on registers), ``load``, ``store``, ``multiply``,
    ``multiply_long``, ``divide``, ``branch`` (executed), ``float``, ``float_move``, ``float_multiply``, ``float_fma``,
    ``float_divide``, ``float_load``, ``float_store``, ``vector``, ``vector_load``, ``vector_store``, and ``call_*`` for
    library functions. Three types cost cycles, but no instruction: ``taken`` (a branch that jumps), ``paired`` (the
    second of two words that one instruction loads) and ``constant_byte`` (a byte that is loaded from flash). ``joint`` (two
    instructions that a run of products issues in one cycle) takes cycles off.
    ``extension`` fits a word to a signed byte or a halfword. ``signed_byte`` is the sign extension of a byte, on cores that load
    only unsigned ones.

    - ``registers``, ``float_registers``, ``vector_registers``: numbers of registers in which a compiler can keep
      values. (High registers of Armv6-M are only useful for sums.) If ``vector_registers`` is 0, a vector occupies two
      general registers.
    - ``offset``: largest offset of a load, in bytes or, with the form ``elements``, in elements.
    - ``forms``: instruction forms of :data:`FORMS`.
    - ``pair``: largest offset in bytes at which one instruction loads two neighbouring words; 0 if there is no such
      instruction.
    - ``advance``: most bytes by which a load or store also advances its pointer; 0 if there is no such instruction.
    - ``instruction_bytes``: mean size of an instruction.
    - ``lengths``: number of instructions of an operation, if it is not one.
    - ``cycles``: cycles of an operation, if they differ from the number of instructions.
    - ``issue``: factor on the cycles of an instruction stream for cores that issue two instructions at once; 1 for
      other cores."""

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
        """Test whether the core has an instruction form, named as in :data:`FORMS`."""
        return form in self.forms

    def length(self, operation: str) -> float:
        """Return the number of instructions of an operation; 0 for operations that only cost cycles."""
        return self.lengths.get(operation, 0.0 if operation in SILENT else 1.0)

    def instructions(self, operations: Mapping[str, float]) -> float:
        """Return the number of instructions of operations, which are counted by type."""
        return sum(n * self.length(kind) for kind, n in operations.items())

    def duration(self, operation: str) -> float:
        """Return the number of cycles of an operation."""
        return self.cycles.get(operation, self.length(operation))


@frozen
class Probe:
    """A test in C, at run time, whether a computer has the instructions for which a library was compiled.

    - ``guard``: C preprocessor condition under which the compiler used the instructions.
    - ``text``: C expression that is true on a computer that has the instructions; ``header`` declares its functions.
    - ``attribute``: C attribute of the testing function, which keeps the instructions out of that function."""

    guard: str
    text: str
    header: str = ""
    attribute: str = ""


@frozen
class Core:
    """A core for which code can be compiled.

    - ``sets``: its instruction sets. If several have a body of an intrinsic, the first is used. ``features``:
      additional features.
    - ``lanes``: numbers of 32-bit lanes of its vectors, the largest first; empty if schedules do not use vectors.
    - ``vectors``: number of vector registers.
    - ``pipelined``: number of vector multiply-adds in flight (units times latency). That many independent sums keep the
      units busy. 0 if latency does not matter.
    - ``cache``: bytes of the largest cache that it shares with no other core; 0 if it has none.
    - ``options``: compiler options of the network's files, in addition to options of its family and of the board.
    - ``machine``: options that select the core or instruction set, unless the board's file selects it (``-march=...``).
    - ``probe``: for computers, the test at run time whether a library that was compiled for the core runs on the
      computer.
    - ``pipeline``: for cores that issue two instructions in a cycle, the pipeline by which runs of products are ordered.
      Schedules are then ranked by cycles instead of instructions."""

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
    pipeline: Pipeline | None = None

    @property
    def has(self) -> frozenset[str]:
        """All features of the core: its own, the features of its instruction sets, and the names of the intrinsics for
        which these sets have bodies."""
        return self.features.union(*(s.features.union(s.bodies) for s in self.sets))

    @property
    def tensor_unit(self) -> TensorUnit | None:
        """The tensor unit that is the core's coprocessor, if any."""
        return next((s.tensor_unit for s in self.sets if s.tensor_unit is not None), None)

    @property
    def units(self) -> tuple[InstructionSet, ...]:
        """The instruction sets of the core that have vector registers."""
        return tuple(s for s in self.sets if s.unit is not None)


@frozen
class Family:
    """A family of cores for which one compiler generates code.

    - ``options``: compiler options of the network's files, by goal.
    - ``flash_space``: True if constants are in an address space of their own.
    - ``array_bytes``: bytes of the largest array that compilers support; 0 for no limit.
    - ``threads``: True for computers with POSIX threads; ``computers``: names of the family in Python's
      ``platform.machine()``.
    - ``flags``: options that a search may try for a kernel. Each is a comma-separated list of gcc's ``-f`` options or
      of an optimisation level (``O3``). No option changes results.
    - ``own_math``: functions of ``<math.h>`` that its C library lacks, or computes less exactly than operators promise.
      ``codegen/c/libm.py`` prints these in portable C.
    - ``double_bytes``: size of C's ``double``; networks with float64 need 8."""

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


# ---- Tensor intrinsics: a small loop nest that sums products, and the scalar intrinsics that replace it.


@frozen
class StepOperand:
    """An operand of a step of a tensor intrinsic: intrinsics ``intrinsic_names``, innermost first, applied to the address of
    ``element_count`` elements.

    ``element_offset``: distance in elements from the operand's first element. Without intrinsics, the operand is the element
    itself, widened to int32, or the address if ``element_count`` is above 1."""

    element_offset: int
    intrinsic_names: tuple[str, ...]
    element_count: int

    def build_operand(self, first_element: ir.Load) -> Expr:
        """Build the operand, given the load of its first element, ``first_element``. The value is an int32, often two packed
        int16."""
        indices = _indices_at_offset(first_element, self.element_offset)
        if not self.intrinsic_names and self.element_count == 1:
            return ir.cast("int32", ir.Load(first_element.buffer, indices))
        value: Expr = ir.AddressOf(first_element.buffer, indices, self.element_count)
        for name in self.intrinsic_names:
            value = Call(name, (value,), "int32")
        return value


def _indices_at_offset(start: ir.Load, offset: int) -> tuple[Expr, ...]:
    """Return the indices of the element that is ``offset`` elements behind ``start`` in memory. An index beyond its
    axis is carried to the axis before it."""
    indices = list(start.indices)
    for axis in reversed(range(len(indices))):
        offset, step = divmod(offset, start.buffer.shape[axis]) if axis else (0, offset)
        indices[axis] = simplify(indices[axis] + step)
    return tuple(indices)


@frozen
class IntrinsicStep:
    """A step of a tensor intrinsic: the call of a scalar intrinsic that multiplies two operands and adds the products
    to the sum of output number ``output_index``.

    ``more_left_operands``: additional left operands. If there are any, the intrinsic's first argument is the right operand, an
    address, and all left operands follow."""

    left: StepOperand
    right: StepOperand
    name: str = "dot2"
    output_index: int = 0
    more_left_operands: tuple[StepOperand, ...] = ()

    def build_call(self, a: ir.Load, b: ir.Load, previous_sum: Expr) -> Call:
        """Build the call of the step's scalar intrinsic.

        ``a``, ``b``: loads of the first elements, at (0, 0). ``previous_sum``: sum to which the products are added."""
        lefts = [part.build_operand(a) for part in (self.left, *self.more_left_operands)]
        right = self.right.build_operand(b)
        return Call(
            self.name,
            (right, *lefts, previous_sum) if self.more_left_operands else (*lefts, right, previous_sum),
            "int32",
        )


@frozen
class TensorIntrin:
    """A tensor intrinsic: the loop nest ``c[n] += a[n, k] * b[n, k]`` over outputs n and terms k (operands widened to
    int32), and the scalar intrinsics that replace it.

    A core has the tensor intrinsic if it has all of these scalar intrinsics. If there is a single output, there is no
    loop over n.

    - ``a``, ``b``: dtypes of the operands.
    - ``order_a``, ``order_b``: for every (n, k) in row-major order, the distance of the operand's element from that of
      (0, 0), in elements.
    - ``steps``: the calls of scalar intrinsics.
    - ``aligned_a``, ``aligned_b``: True if the operand is read by words, which must be at multiples of four bytes.
    - ``outputs``: number of outputs n."""

    name: str
    a: str
    b: str
    order_a: tuple[int, ...]
    order_b: tuple[int, ...]
    steps: tuple[IntrinsicStep, ...]
    aligned_a: bool = False
    aligned_b: bool = False
    outputs: int = 1

    @property
    def extents(self) -> tuple[int, ...]:
        """The trip counts of the loops that the intrinsic replaces, outermost first."""
        terms = len(self.order_a) // self.outputs
        return (self.outputs, terms) if self.outputs > 1 else (terms,)

    @property
    def required_intrinsics(self) -> frozenset[str]:
        """The names of the scalar intrinsics that a core must have."""
        parts = [
            (s.name, *(name for part in (s.left, s.right, *s.more_left_operands) for name in part.intrinsic_names))
            for s in self.steps
        ]
        return frozenset(name for names in parts for name in names)

    def build_body(self, a: ir.Load, b: ir.Load, sums: tuple[ir.Load, ...]) -> Stmt:
        """Build the statement that replaces the loops, given the loads of the operands at (0, 0) and of the sums.

        Successive steps that add to the same sum become one nested call."""
        stores: list[ir.Store] = []
        for step in self.steps:
            total = sums[step.output_index]
            is_chained = bool(stores) and ir.Load(stores[-1].buffer, stores[-1].indices) == total
            old = stores.pop().value if is_chained else total
            stores.append(ir.Store(total.buffer, total.indices, step.build_call(a, b, old)))
        return ir.seq(*stores)
