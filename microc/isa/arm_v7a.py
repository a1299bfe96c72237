"""Armv7-A with NEON, for Linux of 32 bits: the Cortex-A7 to A17, as in the i.MX6ULL, the STM32MP1 and the Raspberry Pi.

Integers are in vectors. NEON of Armv7-A flushes denormal floats to zero, which IEEE 754 does not; floats are therefore
computed by the VFP, one by one."""

from __future__ import annotations

from collections.abc import Mapping

from microc.isa.arm import ARM_FLOAT, ARM_SATURATION, ARM_WORDS
from microc.isa.arm_neon import INTEGER_MEMORY, INTEGER_TEXTS, build_neon_bodies
from microc.isa.gnu_vectors import build_gnu_vector_set
from microc.isa.instruction_set import PLAIN, Core, Costs, Family, InstructionSet
from microc.isa.portable import LIBRARY

_GUARD = "defined(__ARMEL__) && defined(__ARM_NEON)"
"""C preprocessor condition of a little-endian compiler for Arm of 32 bits with NEON."""

_HIGH = """const int64x2_t low = vmull_s32(vget_low_s32(a), vget_low_s32(b));
const int64x2_t high = vmull_s32(vget_high_s32(a), vget_high_s32(b));
return vcombine_s32({narrow}_n_s64(low, 32), {narrow}_n_s64(high, 32));"""
_PAIRS = """const int16x8_t u = vreinterpretq_s16_s32(a), v = vreinterpretq_s16_s32(b);
const int32x4_t low = vmull_s16(vget_low_s16(u), vget_low_s16(v)), high = vmull_s16(vget_high_s16(u), vget_high_s16(v));
const int32x2_t first = vpadd_s32(vget_low_s32(low), vget_high_s32(low));
return vaddq_s32(c, vcombine_s32(first, vpadd_s32(vget_low_s32(high), vget_high_s32(high))));"""
_TEXTS: Mapping[str, tuple[int, str]] = {
    **INTEGER_TEXTS,
    "high_product_i32x4": (4, _HIGH.format(narrow="vshrn")),
    "high_mul_round_i32x4": (4, _HIGH.format(narrow="vrshrn")),
    "dot2_i32x4": (5, _PAIRS),
}
NEON_INTEGERS = InstructionSet(
    "Armv7-A NEON, integers", _GUARD, build_neon_bodies(_TEXTS, INTEGER_MEMORY), frozenset({"vectors"})
)
_UNIT = build_gnu_vector_set("vectors of Armv7-A", _GUARD, "arm_neon.h", has_floats=False)

_FORMS = frozenset({"shifted", "accumulated", "indexed", "predicated"})
_COSTS = Costs(
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
            _COSTS,
            (NEON_INTEGERS, _UNIT, ARM_WORDS, ARM_SATURATION, ARM_FLOAT),
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
