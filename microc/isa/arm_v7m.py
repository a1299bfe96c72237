"""What Armv7-M and later have beside arithmetic: words at any address, SSAT and USAT, which shift too; VCVTR of floating-point
units, which rounds half to even and saturates."""

from microc.isa.base import Body, assembly
from microc.isa.sets import InstructionSet
from microc.isa.words import UNALIGNED

ARM_WORDS = InstructionSet("Arm words", "defined(__ARM_FEATURE_UNALIGNED)", UNALIGNED, frozenset({"unaligned"}))

_INSTRUCTIONS = {"saturate_i8": "ssat %0, #8, %1", "saturate_u8": "usat %0, #8, %1", "saturate_i16": "ssat %0, #16, %1"}

ARM_SATURATION = InstructionSet(
    "Arm saturation",
    "defined(__ARM_FEATURE_SAT) && __ARM_FEATURE_SAT",
    {
        **{name: assembly(text, "a") for name, text in _INSTRUCTIONS.items()},
        **{f"{name}_half": assembly(f"{text}, asr #1", "a") for name, text in _INSTRUCTIONS.items()},
    },
)

ARM_FLOAT = InstructionSet(
    "Arm single precision",
    "defined(__ARM_FP) && (__ARM_FP & 4)",
    {
        "nearest_i32": Body(
            "int32_t r;\nfloat t;\n"
            '__asm__("vcvtr.s32.f32 %1, %2\\n\\tvmov %0, %1" : "=r"(r), "=&t"(t) : "t"(x));\n'
            "return r;",
            (("float", 1), ("float_move", 1)),
        )
    },
    frozenset({"fpu", "fma"}),
)
