"""Clamping to bytes: SSAT and USAT of Armv7-M and later, which shift too; on Armv6-M a comparison with the byte itself, which
most values pass."""

from __future__ import annotations

from microc.schedule.intrinsics.base import Intrin, assembly
from microc.tir import ir
from microc.tir.ir import Var

_A = Var("a")
_SAT = "defined(__ARM_FEATURE_SAT) && __ARM_FEATURE_SAT"


def _saturate(name: str, text: str, low: int, high: int) -> tuple[Intrin, ...]:
    plain = Intrin(name, (_A,), ir.clamp(_A, low, high), "sat", _SAT, assembly(f"{text}, %1", '"r"(a)'))
    shifted = ir.clamp(_A >> 1, low, high)
    halved = Intrin(f"{name}_half", (_A,), shifted, "sat", _SAT, assembly(f"{text}, %1, asr #1", '"r"(a)'))
    return plain, halved


SATURATION = (
    Intrin(
        "clamp8",
        (_A,),
        ir.clamp(_A, -128, 127),
        "thumb1",
        "defined(__ARM_ARCH_6M__)",
        "return (int8_t)a == a ? a : (a >> 31) ^ 127;",
        (("alu", 4),),
    ),
    *_saturate("saturate_i8", "ssat %0, #8", -128, 127),
    *_saturate("saturate_u8", "usat %0, #8", 0, 255),
    *_saturate("saturate_i16", "ssat %0, #16", -32768, 32767),
)
