# SPDX-License-Identifier: Apache-2.0
"""Advanced SIMD (NEON). AArch64: the 128-bit vectors that all its cores have, and the dot products of four bytes of
Armv8.2-A. Armv7-A, for Linux of 32 bits: vectors of integers alone.

:mod:`microc.isa.portable` contains the intrinsics that C operators compute. This file contains the others, by the
functions that compilers declare in ``arm_neon.h``."""

from __future__ import annotations

from collections.abc import Mapping

from microc.isa.arm import ARM_FLOAT, ARM_SATURATION, ARM_WORDS
from microc.isa.instruction_set import PLAIN, Body, Core, Costs, Family, InstructionSet, Probe
from microc.isa.portable import LIBRARY, UNALIGNED, build_gnu_vector_set

_GUARD = "defined(__aarch64__) && defined(__ARM_NEON) && !defined(__AARCH64EB__)"
"""C preprocessor condition of a little-endian AArch64 compiler. For big-endian targets compilers number lanes from
the other end."""
_LANES = 4

_HIGH = """const int64x2_t low = vmull_s32(vget_low_s32(a), vget_low_s32(b)), high = vmull_high_s32(a, b);
return {narrow}_high_n_s64({narrow}_n_s64(low, 32), high, 32);"""
_PAIRS = """const int16x8_t u = vreinterpretq_s16_s32(a), v = vreinterpretq_s16_s32(b);
const int32x4_t low = vmull_s16(vget_low_s16(u), vget_low_s16(v)), high = vmull_high_s16(u, v);
return vaddq_s32(c, vpaddq_s32(low, high));"""

_INTEGER_TEXTS: Mapping[str, tuple[int, str]] = {
    "min_i32x4": (1, "return vminq_s32(a, b);"),
    "max_i32x4": (1, "return vmaxq_s32(a, b);"),
    "doubling_high_mul_i32x4": (1, "return vqrdmulhq_s32(a, b);"),
    "doubling_high_mul_n_i32x4": (1, "return vqrdmulhq_n_s32(a, b);"),
    "doubling_high_floor_i32x4": (1, "return vqdmulhq_s32(a, b);"),
    "doubling_high_floor_n_i32x4": (1, "return vqdmulhq_n_s32(a, b);"),
    "shl_i32x4": (1, "return vshlq_s32(a, b);"),
    "shl_n_i32x4": (1, "return vshlq_s32(a, vdupq_n_s32(b));"),
    "shift_round_i32x4": (1, "return vrshlq_s32(a, b);"),
    "shift_round_n_i32x4": (1, "return vrshlq_s32(a, vdupq_n_s32(b));"),
}
"""Number of vector instructions, and C statements, by intrinsic: those that AArch64 and Armv7-A share."""
_TEXTS: Mapping[str, tuple[int, str]] = {
    **_INTEGER_TEXTS,
    "fma_f32x4": (1, "return vfmaq_f32(c, a, b);"),
    "sqrt_f32x4": (1, "return vsqrtq_f32(a);"),
    "rint_f32x4": (1, "return vrndxq_f32(a);"),
    "floor_f32x4": (1, "return vrndmq_f32(a);"),
    "fabs_f32x4": (1, "return vabsq_f32(a);"),
    "nearest_i32x4": (1, "return vcvtnq_s32_f32(a);"),
    "high_product_i32x4": (4, _HIGH.format(narrow="vshrn")),
    "high_mul_round_i32x4": (4, _HIGH.format(narrow="vrshrn")),
    "dot2_i32x4": (4, _PAIRS),
}

_LOADED = "int32_t word;\nmemcpy(&word, p, sizeof word);\n"
_BYTES = """const int16x4_t half = vmovn_s32(a);
const int8x8_t bytes = vmovn_s16(vcombine_s16(half, half));
const int32_t word = vget_lane_s32(vreinterpret_s32_s8(bytes), 0);
memcpy(p, &word, sizeof word);"""
_INTEGER_MEMORY: Mapping[str, tuple[int, str]] = {
    "load_i8_i32x4": (
        2,
        f"{_LOADED}return vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(word)))));",
    ),
    "load_u8_i32x4": (
        2,
        f"{_LOADED}const uint16x8_t r = vmovl_u8(vreinterpret_u8_s32(vdup_n_s32(word)));\n"
        "return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(r)));",
    ),
    "load_i16_i32x4": (1, "return vmovl_s16(vld1_s16(p));"),
    "load_u16_i32x4": (1, "return vreinterpretq_s32_u32(vmovl_u16(vld1_u16(p)));"),
    "store_i8_i32x4": (2, _BYTES),
    "store_u8_i32x4": (2, _BYTES),
}
"""Number of vector instructions in addition to the memory access, and C statements, by intrinsic that AArch64 and Armv7-A
share. Four bytes are loaded as a word, because gcc 12 would else extract them one by one in general registers."""
_MEMORY: Mapping[str, tuple[int, str]] = {
    **_INTEGER_MEMORY,
    "load_f16_f32x4": (1, "return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));"),
    "load_bf16_f32x4": (1, "return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));"),
}


def _build_neon_bodies(
    texts: Mapping[str, tuple[int, str]], memory_texts: Mapping[str, tuple[int, str]]
) -> dict[str, Body]:
    """Build the C bodies of Advanced SIMD intrinsics, by name, from their counts of instructions and C statements."""
    bodies = {name: Body(text, (("vector", count),)) for name, (count, text) in texts.items()}
    for name, (count, text) in memory_texts.items():
        bodies[name] = Body(text, ((f"vector_{name.partition('_')[0]}", 1), ("vector", count)))
    return bodies


NEON = InstructionSet("Advanced SIMD", _GUARD, _build_neon_bodies(_TEXTS, _MEMORY), frozenset({"vectors", "fma"}))
DOT = InstructionSet(
    "Advanced SIMD dot product",
    f"defined(__ARM_FEATURE_DOTPROD) && {_GUARD}",
    {"dot4_i8_i32x4": Body("return vdotq_s32(c, vreinterpretq_s8_s32(a), vreinterpretq_s8_s32(b));", (("vector", 1),))},
)
_UNIT = build_gnu_vector_set("vectors of AArch64", _GUARD, "arm_neon.h")
_WORDS = InstructionSet("words of AArch64", _GUARD, UNALIGNED, frozenset({"unaligned"}))

_FORMS = frozenset({"shifted", "accumulated", "indexed", "predicated"})
_COSTS = Costs(
    28, 32, 4095, _FORMS, 4.0, {**LIBRARY, "call_math": 40.0}, {"divide": 10.0, "float_divide": 10.0}, 0.5, 252, 255, 32
)


_DOT_PROBE = Probe(
    "defined(__ARM_FEATURE_DOTPROD) && defined(__linux__)",
    "(getauxval(AT_HWCAP) & (unsigned long)HWCAP_ASIMDDP) != 0UL",
    "sys/auxv.h",
)


_PIPELINED = 8
"""Vector multiply-adds in flight: two units, four cycles of latency. Source: Arm Neoverse N1 Software Optimization
Guide, ASIMD floating-point multiply-accumulate."""
_CACHE = 1 << 19
"""Least size of the second-level cache of a Cortex-A72 or a Neoverse N1, in bytes."""


def _build_aarch64_core(name: str, march: str, *sets: InstructionSet, probe: Probe | None = None) -> Core:
    """Build an AArch64 core that has the instruction sets ``sets`` in addition to the sets that all AArch64
    cores have.

    ``march``: value of the compiler option ``-march``."""
    features = frozenset({"fpu", "mul64"})
    every = (*sets, NEON, _UNIT, _WORDS)
    option = f"-march={march}"
    return Core(
        name,
        "aarch64",
        _COSTS,
        every,
        features,
        machine=option,
        lanes=(_LANES,),
        vectors=32,
        pipelined=_PIPELINED,
        cache=_CACHE,
        probe=probe,
    )


AARCH64 = Family(
    "aarch64",
    (
        _build_aarch64_core("aarch64", "armv8-a"),
        _build_aarch64_core("aarch64-dotprod", "armv8.2-a+dotprod", DOT, probe=_DOT_PROBE),
    ),
    PLAIN,
    threads=True,
    flags=("unroll-loops", "no-tree-vectorize", "O3"),
    computers=("aarch64", "arm64", "ARM64"),
)


# ---- Armv7-A: the Cortex-A7 to A17, as in the i.MX6ULL, the STM32MP1 and the Raspberry Pi with Linux of 32 bits
#
# NEON of Armv7-A flushes denormal floats to zero, which IEEE 754 does not. Floats are therefore computed by the VFP, one by one.

_GUARD_32 = "defined(__ARMEL__) && defined(__ARM_NEON)"
"""C preprocessor condition of a little-endian compiler for Arm of 32 bits with NEON."""
_HIGH_32 = """const int64x2_t low = vmull_s32(vget_low_s32(a), vget_low_s32(b));
const int64x2_t high = vmull_s32(vget_high_s32(a), vget_high_s32(b));
return vcombine_s32({narrow}_n_s64(low, 32), {narrow}_n_s64(high, 32));"""
_PAIRS_32 = """const int16x8_t u = vreinterpretq_s16_s32(a), v = vreinterpretq_s16_s32(b);
const int32x4_t low = vmull_s16(vget_low_s16(u), vget_low_s16(v)), high = vmull_s16(vget_high_s16(u), vget_high_s16(v));
const int32x2_t first = vpadd_s32(vget_low_s32(low), vget_high_s32(low));
return vaddq_s32(c, vcombine_s32(first, vpadd_s32(vget_low_s32(high), vget_high_s32(high))));"""
_TEXTS_32: Mapping[str, tuple[int, str]] = {
    **_INTEGER_TEXTS,
    "high_product_i32x4": (4, _HIGH_32.format(narrow="vshrn")),
    "high_mul_round_i32x4": (4, _HIGH_32.format(narrow="vrshrn")),
    "dot2_i32x4": (5, _PAIRS_32),
}
NEON_INTEGERS = InstructionSet(
    "Armv7-A NEON, integers", _GUARD_32, _build_neon_bodies(_TEXTS_32, _INTEGER_MEMORY), frozenset({"vectors"})
)
_UNIT_32 = build_gnu_vector_set("vectors of Armv7-A", _GUARD_32, "arm_neon.h", has_floats=False)

_COSTS_32 = Costs(
    13, 30, 4095, _FORMS, 4.0, LIBRARY, {"divide": 10.0, "float_divide": 15.0, "vector": 2.0}, 0.8, vector_registers=16
)
"""Costs by Arm's description of the Cortex-A7, whose NEON unit has 64 bits: a vector instruction takes two cycles. They were
not measured."""

ARMV7A = Family(
    "armv7a",
    (
        Core(
            "armv7a-neon",
            "armv7a",
            _COSTS_32,
            (NEON_INTEGERS, _UNIT_32, ARM_WORDS, ARM_SATURATION, ARM_FLOAT),
            frozenset({"mul64"}),
            machine="-march=armv7-a -mfpu=neon-vfpv4 -mfloat-abi=hard",
            lanes=(4,),
            vectors=16,
        ),
    ),
    PLAIN,
    threads=True,
    computers=("armv7l",),
)
