"""Arm's half precision: VCVTB and VCVTT between floats of 16 and 32 bits, which the single-precision units of Armv7E-M and later
have, too, whatever the compiler's macros say of it.

Numbers, infinities and signs are those of the integer conversions in ``codegen/halves.py``; NaN stays NaN.
"""

from microc.isa.base import Body
from microc.isa.sets import InstructionSet

_WIDEN = """const uint32_t bits = x;
float r;
__asm__("vmov %0, %1\\n\\tvcvtb.f32.f16 %0, %0" : "=t"(r) : "r"(bits));
return r;"""
_TAKEN = """float r;
__asm__("vcvt{}.f32.f16 %0, %1" : "=t"(r) : "t"(x));
return r;"""
_NARROW = """uint32_t r;
float t;
__asm__("vcvtb.f16.f32 %1, %2\\n\\tvmov %0, %1" : "=r"(r), "=&t"(t) : "t"(x));
return (uint16_t)(x != x ? (r & 0x8000U) | 0x7E00U : r);"""

ARM_HALF = InstructionSet(
    "Arm half precision",
    "defined(__ARM_FP) && defined(__ARM_ARCH_PROFILE) && __ARM_ARCH_PROFILE == 'M'",
    {
        **{f"float16_{half}": Body(_TAKEN.format(end), (("float", 1),)) for half, end in (("low", "b"), ("high", "t"))},
        "float16_to_float": Body(_WIDEN, (("float", 2),)),
        "float_to_float16": Body(_NARROW, (("float", 3), ("alu", 2))),
    },
)
