"""The DSP instructions of Armv7E-M and Armv8-M: pairs of 16-bit numbers in a word."""

from __future__ import annotations

from microc.schedule.intrinsics.base import Intrin, TensorIntrin, assembly, pack16, sign8, sign16
from microc.tir.ir import Var

_A, _B, _C = Var("a"), Var("b"), Var("c")

_DSP = "defined(__ARM_FEATURE_DSP) && __ARM_FEATURE_DSP"

DSP = (
    Intrin("sxtb16", (_A,), pack16(sign8(_A), sign8(_A >> 16)), "dsp", _DSP, assembly("sxtb16 %0, %1", '"r"(a)')),
    Intrin(
        "sxtb16_ror8",
        (_A,),
        pack16(sign8(_A >> 8), sign8(_A >> 24)),
        "dsp",
        _DSP,
        assembly("sxtb16 %0, %1, ror #8", '"r"(a)'),
    ),
    Intrin("uxtb16", (_A,), _A & 0x00FF00FF, "dsp", _DSP, assembly("uxtb16 %0, %1", '"r"(a)')),
    Intrin(
        "uxtb16_ror8",
        (_A,),
        (_A >> 8) & 0x00FF00FF,
        "dsp",
        _DSP,
        assembly("uxtb16 %0, %1, ror #8", '"r"(a)'),
    ),
    Intrin(
        "smlad",
        (_A, _B, _C),
        _C + sign16(_A) * sign16(_B) + (_A >> 16) * (_B >> 16),
        "dsp",
        _DSP,
        assembly("smlad %0, %1, %2, %3", '"r"(a), "r"(b), "r"(c)'),
    ),
    Intrin(
        "smmulr",
        (_A, _B),
        ((_A.astype("int64") * _B.astype("int64") + (1 << 31)) >> 32).astype("int32"),
        "dsp",
        _DSP,
        assembly("smmulr %0, %1, %2", '"r"(a), "r"(b)'),
    ),
)


def _dot4(a: str, b: str) -> TensorIntrin:
    """Four products of 8-bit values: bytes 0, 2 and 1, 3 pair up alike on both sides, so nothing is repacked."""
    wide = {"int8": ("load_i8x4", "sxtb16", "sxtb16_ror8"), "uint8": ("load_u8x4", "uxtb16", "uxtb16_ror8")}
    (la, ea, oa), (lb, eb, ob) = wide[a], wide[b]
    return TensorIntrin(f"dot4_{a}_{b}", a, b, 4, "dsp", (((la, ea), (lb, eb)), ((la, oa), (lb, ob))))


DSP_TENSOR = (
    _dot4("int8", "int8"),
    _dot4("uint8", "int8"),
    TensorIntrin("dot2_int16_int16", "int16", "int16", 2, "dsp", ((("load_i16x2",), ("load_i16x2",)),)),
)
