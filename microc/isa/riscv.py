# SPDX-License-Identifier: Apache-2.0
"""RISC-V cores with their scalar extensions."""

from __future__ import annotations

from microc.isa.host import REFERENCE, with_unit
from microc.isa.instruction_set import UNSCHEDULED, Body, Core, Costs, Family, InstructionSet
from microc.isa.portable import LIBRARY, PORTABLE_LIBRARY, WORD_MOVES
from microc.isa.riscv_vector import RVV_CORES

# ---- CORE-V's extensions for packed SIMD (XCVsimd), clipping (XCValu) and hardware loops (XCVhwlp) of CV32E40P, after its user
# manual (version 1.3.2)
#
# Instructions are written by their encodings (``.insn``), which any RISC-V assembler accepts. Compilers that know the extensions
# define macros; with others, ``-DMICROC_XCV`` enables them. Hardware loops are left to the compiler: CORE-V's gcc makes them of
# counted loops with ``_xcvhwlp`` in ``-march``.

GUARD = "defined(__riscv_xcvsimd) || defined(MICROC_XCV)"
_SIMD, _ALU = 0x7B, 0x2B
"""Major opcodes custom-3 and custom-1."""
ENCODINGS = {
    "dot4_i8": ("cv.sdotsp.b", 0x54, 1),
    "dot4_u8": ("cv.sdotusp.b", 0x50, 1),
    "dot2": ("cv.sdotsp.h", 0x54, 0),
    "dot2_wrapping": ("cv.sdotsp.h", 0x54, 0),
    "add_i16x2": ("cv.add.h", 0x00, 0),
    "sub_i16x2": ("cv.sub.h", 0x04, 0),
    "min_i8x4": ("cv.min.b", 0x10, 1),
    "min_u8x4": ("cv.minu.b", 0x14, 1),
    "min_i16x2": ("cv.min.h", 0x10, 0),
    "max_i8x4": ("cv.max.b", 0x18, 1),
    "max_u8x4": ("cv.maxu.b", 0x1C, 1),
    "max_i16x2": ("cv.max.h", 0x18, 0),
}
"""Instruction, funct7 and funct3, by intrinsic."""
CLIPPED = {
    "saturate_i8": ("cv.clip", 0x38, 8),
    "saturate_u8": ("cv.clipu", 0x39, 9),
    "saturate_i16": ("cv.clip", 0x38, 16),
}
"""Instruction, funct7 and number of bits to which it clips, by intrinsic. The number is one larger for the
instruction that clips negative numbers to 0."""


def _build_packed_simd_body(intrinsic_name: str) -> Body:
    """Build the C body of the packed SIMD instruction that computes the intrinsic ``intrinsic_name``. A dot product
    instruction adds to its result register."""
    _, funct7, funct3 = ENCODINGS[intrinsic_name]
    text = f".insn r {_SIMD:#x}, {funct3}, {funct7:#x}, %0, %1, %2"
    if intrinsic_name.startswith("dot"):
        return Body(f'__asm__("{text}" : "+r"(c) : "r"(a), "r"(b));\nreturn c;')
    return Body(f'int32_t r;\n__asm__("{text}" : "=r"(r) : "r"(a), "r"(b));\nreturn r;')


def _build_clip_body(intrinsic_name: str) -> Body:
    """Build the C body of the clipping instruction that computes the intrinsic ``intrinsic_name``."""
    _, funct7, bits = CLIPPED[intrinsic_name]
    text = f".insn r {_ALU:#x}, 3, {funct7:#x}, %0, %1, x{bits}"
    return Body(f'int32_t r;\n__asm__("{text}" : "=r"(r) : "r"(a));\nreturn r;')


_WORD = "*({0}char (*)[4])({0}void *)p"
_LOAD = Body(f'int32_t r;\n__asm__("lw %0, %1" : "=r"(r) : "m"({_WORD.format("const ")}));\nreturn r;', (("load", 1),))
_STORE = Body(f'__asm__("sw %1, %0" : "=m"({_WORD.format("")}) : "r"(a));', (("store", 1),))
"""C bodies of word accesses by assembly instructions. Compilers load single bytes unless they know the alignment,
but the core loads words at any address."""

XCV = InstructionSet(
    "XCVsimd, XCValu",
    GUARD,
    {
        **{name: _build_packed_simd_body(name) for name in ENCODINGS},
        **{name: _build_clip_body(name) for name in CLIPPED},
        **{f"load_{lanes}": _LOAD for lanes in ("i8x4", "u8x4", "i16x2", "i16x2_aligned")},
        **{f"store_{lanes}": _STORE for lanes in ("i8x4", "u8x4", "i16x2", "i16x2_aligned")},
    },
    frozenset({"unaligned"}),
)

_RISCV_XCV_CYCLES = {"taken": 2.0, "divide": 20.0, "multiply_long": 6.0}
_COSTS = Costs(26, 0, 2047, frozenset({"compared"}), 3.2, {**PORTABLE_LIBRARY, "multiply_long": 2.0}, _RISCV_XCV_CYCLES)

CV32E40P = Core(
    "cv32e40p",
    "riscv",
    _COSTS,
    (XCV,),
    frozenset({"mul64"}),
    machine="-march=rv32imc_zicsr_xcvmac_xcvsimd_xcvalu_xcvhwlp",
)


# ---- Bit manipulation extensions of Hazard3. Compilers use minima, maxima and sign extensions (Zbb) and sums of shifted numbers
# (Zba) for plain C; therefore these sets have no bodies.

ZBA = InstructionSet("Zba", "defined(__riscv_zba)", {})
ZBB = InstructionSet("Zbb", "defined(__riscv_zbb)", {}, frozenset({"minmax"}))


# ---- Cores by their base sets; those with vectors are in :mod:`microc.isa.riscv_vector`

_RISCV_CYCLES = {"load": 2.0, "taken": 2.0, "divide": 32.0}
_FORMS = frozenset({"compared"})
_INTEGER = Costs(26, 0, 2047, _FORMS, 3.2, {**PORTABLE_LIBRARY, "multiply_long": 2.0}, _RISCV_CYCLES)
_FLOAT = Costs(26, 30, 2047, _FORMS, 3.2, {**LIBRARY, "multiply_long": 2.0}, _RISCV_CYCLES)

_FASTEST = "-O3 -fno-schedule-insns"
"""Compiler options for speed. -O3 needs half a percent to 3 % fewer cycles than -O2, for 15 to 25 % more code."""


def _build_riscv_core(name: str, costs: Costs, *features: str, extra_sets: tuple[InstructionSet, ...] = ()) -> Core:
    """Build a RISC-V core.

    ``extra_sets``: instruction sets that the libraries of boards do not use. If there are any, only the network's
    files are compiled with the option that selects the core."""
    machine = f"-march={name}"
    return Core(
        name,
        "riscv",
        costs,
        (*extra_sets, WORD_MOVES),
        frozenset({"mul64", *features}),
        machine if extra_sets else "",
        machine,
    )


RISCV = Family(
    "riscv",
    (
        _build_riscv_core("rv32imc", _INTEGER, "one_product"),
        _build_riscv_core("rv32imac", _INTEGER, "one_product"),
        _build_riscv_core("rv32imac_zba_zbb", _INTEGER, "one_product", extra_sets=(ZBA, ZBB)),
        _build_riscv_core("rv32imafc", _FLOAT, "fpu", "fma"),
        with_unit(_build_riscv_core("rv32imafc", _FLOAT, "fpu", "fma"), REFERENCE),
        _build_riscv_core("rv64imac", _INTEGER),
        _build_riscv_core("rv64imafdc", _FLOAT, "fpu", "fma"),
        CV32E40P,
        *RVV_CORES,
    ),
    {**UNSCHEDULED, "speed": _FASTEST, "balanced": _FASTEST},
    computers=("riscv64",),
    flags=("unroll-loops", "no-gcse", "no-gcse,unroll-loops", "no-tree-loop-im", "schedule-insns", "Os"),
)
