"""What an instruction set is, as data: the bodies of intrinsics that it has instructions for, its vector unit; a family of sets
and its cores, each with a table of costs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from microc.frozen import frozen
from microc.isa.base import Body, Intrin
from microc.isa.tensor import TensorIntrin
from microc.isa.tensor_unit import TensorUnit

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
    its C library lacks, or computes less exactly than operators promise: ``codegen/libm.py`` has them in portable C. It has all
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
