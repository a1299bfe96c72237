"""The DSP instructions of Armv7E-M and Armv8-M: pairs of 16-bit numbers in a word."""

from __future__ import annotations

from microc.schedule.intrinsics.base import Intrin, Part, Step, TensorIntrin, assembly, i32, pack16, sign8, sign16
from microc.schedule.intrinsics.words import ALIGNED_WORD
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Var

_A, _B, _C, _Z = Var("a"), Var("b"), Var("c"), Var("z")

_DSP = "defined(__ARM_FEATURE_DSP) && __ARM_FEATURE_DSP"


def _widen(name: str, signed: bool, less: bool = False) -> Intrin:
    """Four bytes of a word become four 16-bit numbers in memory, in their order; ``p`` lies at a multiple of four bytes.
    ``less``: minus the number that ``z`` holds twice."""
    pointer, letter = Buffer("p", (4,), "int16"), "s" if signed else "u"

    def element(k: int) -> Expr:
        part = _A >> (8 * k)
        value = sign8(part) if signed else part & 0xFF
        return ir.cast("int16", value - sign16(_Z) if less else value)

    stores = (ir.Store(pointer, (i32(k),), element(k)) for k in range(4))
    subtract = '__asm__("ssub16 %0, %1, %2" : "=r"({0}) : "r"({0}), "r"(z));\n'
    less_zero = subtract.format("even") + subtract.format("odd") if less else ""
    body = f"""{ALIGNED_WORD}int32_t even, odd, low, high;
__asm__("{letter}xtb16 %0, %1" : "=r"(even) : "r"(a));
__asm__("{letter}xtb16 %0, %1, ror #8" : "=r"(odd) : "r"(a));
{less_zero}__asm__("pkhbt %0, %1, %2, lsl #16" : "=r"(low) : "r"(even), "r"(odd));
__asm__("pkhtb %0, %1, %2, asr #16" : "=r"(high) : "r"(odd), "r"(even));
((word *)(void *)p)[0] = low;
((word *)(void *)p)[1] = high;"""
    return Intrin(name, (pointer, _A, *((_Z,) if less else ())), ir.seq(*stores), "dsp", _DSP, body)


def _half(name: str, instruction: str, a: Expr, b: Expr) -> Intrin:
    """One half of each word multiplied, and added."""
    body = assembly(f"{instruction} %0, %1, %2, %3", '"r"(a), "r"(b), "r"(c)')
    return Intrin(name, (_A, _B, _C), _C + a * b, "dsp", _DSP, body)


def _lanes(name: str, instruction: str, low: Expr, high: Expr) -> Intrin:
    """Both halves of two words added or subtracted, modulo 2**16."""
    text = assembly(f"{instruction} %0, %1, %2", '"r"(a), "r"(b)')
    return Intrin(name, (_A, _B), pack16(low, sign16(high)), "dsp", _DSP, text)


def _larger(name: str, lanes: int, *, signed: bool, smallest: bool = False) -> Intrin:
    """The larger number of every lane of two words, or the smaller: the difference's signs, then a choice by them."""
    bits = 32 // lanes
    mask, sign = (1 << bits) - 1, 1 << (bits - 1)

    def lane(word: Expr, k: int) -> Expr:
        part = (word >> (bits * k)) & mask
        return (part ^ sign) - sign if signed else part

    total: Expr = i32(0)
    for k in range(lanes):
        found: Expr = ir.binary("min" if smallest else "max", lane(_A, k), lane(_B, k))
        found = found if k < lanes - 1 or signed else (found ^ sign) - sign
        total = total | ((found & mask) * (1 << (bits * k)) if k < lanes - 1 else found * (1 << (bits * k)))
    left, right = ("%2", "%1") if smallest else ("%1", "%2")
    text = f"{'s' if signed else 'u'}sub{bits} %0, {left}, {right}\\n\\tsel %0, %1, %2"
    body = f'int32_t r;\n__asm__("{text}" : "=&r"(r) : "r"(a), "r"(b));\nreturn r;'
    return Intrin(name, (_A, _B), total, "dsp", _DSP, body, (("alu", 2),))


DSP = (
    *(
        _larger(f"{name}_{letter}{bits}x{32 // bits}", 32 // bits, signed=letter == "i", smallest=name == "min")
        for name in ("max", "min")
        for letter, bits in (("i", 8), ("u", 8), ("i", 16))
    ),
    _lanes("add_i16x2", "sadd16", sign16(_A) + sign16(_B), (_A >> 16) + (_B >> 16)),
    _lanes("sub_i16x2", "ssub16", sign16(_A) - sign16(_B), (_A >> 16) - (_B >> 16)),
    _widen("widen_i8x4", signed=True),
    _widen("widen_u8x4", signed=False),
    _widen("widen_less_i8x4", signed=True, less=True),
    _widen("widen_less_u8x4", signed=False, less=True),
    Intrin("evens_i8", (_A,), pack16(sign8(_A), sign8(_A >> 16)), "dsp", _DSP, assembly("sxtb16 %0, %1", '"r"(a)')),
    Intrin(
        "odds_i8",
        (_A,),
        pack16(sign8(_A >> 8), sign8(_A >> 24)),
        "dsp",
        _DSP,
        assembly("sxtb16 %0, %1, ror #8", '"r"(a)'),
    ),
    Intrin("evens_u8", (_A,), _A & 0x00FF00FF, "dsp", _DSP, assembly("uxtb16 %0, %1", '"r"(a)')),
    Intrin(
        "odds_u8",
        (_A,),
        (_A >> 8) & 0x00FF00FF,
        "dsp",
        _DSP,
        assembly("uxtb16 %0, %1, ror #8", '"r"(a)'),
    ),
    Intrin(
        "dot2",
        (_A, _B, _C),
        _C + sign16(_A) * sign16(_B) + (_A >> 16) * (_B >> 16),
        "dsp",
        _DSP,
        assembly("smlad %0, %1, %2, %3", '"r"(a), "r"(b), "r"(c)'),
    ),
    _half("mac_low_low", "smlabb", sign16(_A), sign16(_B)),
    _half("mac_low_high", "smlabt", sign16(_A), _B >> 16),
    _half("mac_high_low", "smlatb", _A >> 16, sign16(_B)),
    _half("mac_high_high", "smlatt", _A >> 16, _B >> 16),
    Intrin(
        "dot2_wrapping",
        (_A, _B, _C),
        (
            _C.astype("int64") + (sign16(_A) * sign16(_B)).astype("int64") + ((_A >> 16) * (_B >> 16)).astype("int64")
        ).astype("int32"),
        "dsp",
        _DSP,
        assembly("smlad %0, %1, %2, %3", '"r"(a), "r"(b), "r"(c)'),
    ),
    Intrin(
        "high_mul_round",
        (_A, _B),
        ((_A.astype("int64") * _B.astype("int64") + (1 << 31)) >> 32).astype("int32"),
        "dsp",
        _DSP,
        assembly("smmulr %0, %1, %2", '"r"(a), "r"(b)'),
    ),
    Intrin(
        "high_mac",
        (_A, _B, _C),
        _C + ((_A.astype("int64") * _B.astype("int64")) >> 32).astype("int32"),
        "dsp",
        _DSP,
        assembly("smmla %0, %1, %2, %3", '"r"(a), "r"(b), "r"(c)'),
    ),
    Intrin(
        "high_mac_round",
        (_A, _B, _C),
        _C + ((_A.astype("int64") * _B.astype("int64") + (1 << 31)) >> 32).astype("int32"),
        "dsp",
        _DSP,
        assembly("smmlar %0, %1, %2, %3", '"r"(a), "r"(b), "r"(c)'),
    ),
)


WIDENED = {
    "int8": (("load_i8x4", "evens_i8"), ("load_i8x4", "odds_i8")),
    "uint8": (("load_u8x4", "evens_u8"), ("load_u8x4", "odds_u8")),
}
"""How a word of four bytes becomes the pairs (0, 2) and (1, 3)."""

NATURAL = (0, 1, 2, 3)
CROSSED = (0, 2, 1, 3)
"""Bytes stored in this order come out of ``SXTB16`` as the pairs (0, 1) and (2, 3)."""


def _dot4(a: str, b: str) -> TensorIntrin:
    """Four products of 8-bit values: bytes 0, 2 and 1, 3 pair up alike on both sides, so nothing is repacked."""
    steps = tuple(Step(Part(0, x, 4), Part(0, y, 4)) for x, y in zip(WIDENED[a], WIDENED[b], strict=True))
    return TensorIntrin(f"dot4_{a}_{b}", a, b, NATURAL, NATURAL, "dsp", steps)


_PAIRS = (Part(0, ("load_i16x2_aligned",), 2), Part(2, ("load_i16x2_aligned",), 2))
_CROSSED_BYTES = tuple(Part(0, names, 4) for names in WIDENED["int8"])

DSP_TENSOR = (
    _dot4("int8", "int8"),
    _dot4("uint8", "int8"),
    TensorIntrin(
        "dot4_int16_crossed_int8",
        "int16",
        "int8",
        NATURAL,
        CROSSED,
        "dsp",
        tuple(map(Step, _PAIRS, _CROSSED_BYTES)),
        aligned_a=True,
    ),
    TensorIntrin(
        "dot4_int16_int16",
        "int16",
        "int16",
        NATURAL,
        NATURAL,
        "dsp",
        tuple(map(Step, _PAIRS, _PAIRS)),
        aligned_a=True,
        aligned_b=True,
    ),
    TensorIntrin(
        "dot4_crossed_int16_int16",
        "int16",
        "int16",
        CROSSED,
        CROSSED,
        "dsp",
        tuple(map(Step, _PAIRS, _PAIRS)),
        aligned_a=True,
        aligned_b=True,
    ),
    TensorIntrin(
        "dot2_int16_int16",
        "int16",
        "int16",
        (0, 1),
        (0, 1),
        "dsp",
        (Step(Part(0, ("load_i16x2",), 2), Part(0, ("load_i16x2",), 2)),),
    ),
)
