"""The DSP instructions of Armv7E-M and Armv8-M: pairs of 16-bit numbers, and bytes, in a word."""

from microc.isa.base import Body, assembly
from microc.isa.sets import InstructionSet
from microc.isa.words import ALIGNED_WORD


def _widen(signed: bool, less: bool = False) -> Body:
    letter = "s" if signed else "u"
    subtract = '__asm__("ssub16 %0, %1, %2" : "=r"({0}) : "r"({0}), "r"(z));\n'
    less_zero = subtract.format("even") + subtract.format("odd") if less else ""
    return Body(
        f"""{ALIGNED_WORD}int32_t even, odd, low, high;
__asm__("{letter}xtb16 %0, %1" : "=r"(even) : "r"(a));
__asm__("{letter}xtb16 %0, %1, ror #8" : "=r"(odd) : "r"(a));
{less_zero}__asm__("pkhbt %0, %1, %2, lsl #16" : "=r"(low) : "r"(even), "r"(odd));
__asm__("pkhtb %0, %1, %2, asr #16" : "=r"(high) : "r"(odd), "r"(even));
((word *)(void *)p)[0] = low;
((word *)(void *)p)[1] = high;""",
        (("alu", 6 if less else 4), ("store", 1), ("paired", 1)),
    )


def _larger(lane: str, *, smallest: bool) -> Body:
    """The difference's signs, then a choice by them."""
    instruction = {"i8x4": "ssub8", "u8x4": "usub8", "i16x2": "ssub16"}[lane]
    left, right = ("%2", "%1") if smallest else ("%1", "%2")
    text = f"{instruction} %0, {left}, {right}\\n\\tsel %0, %1, %2"
    body = f'int32_t r;\n__asm__("{text}" : "=&r"(r) : "r"(a), "r"(b));\nreturn r;'
    return Body(body, (("alu", 2),))


_LOADED = Body(
    """typedef int64_t __attribute__((may_alias, aligned(4))) words;
int32_t low, high;
__asm__("ldrd %1, %2, %3\\n\\tsmlad %0, %4, %1, %0\\n\\tsmlad %0, %5, %2, %0"
    : "+&r"(c), "=&r"(low), "=&r"(high)
    : "Uv"(*(const words *)(const void *)p), "r"(a), "r"(b));
return c;""",
    (("load", 1), ("paired", 1), ("alu", 2)),
)
"""Numbers that are used once: gcc loads each word where it is used, and never two by one instruction. What ``Uv`` allows, an
offset of whole words up to 1020 bytes, is what LDRD takes."""

_TWO = {"add_i16x2": "sadd16", "sub_i16x2": "ssub16", "high_mul_round": "smmulr", "high_product": "smmul"}
_THREE = {
    "dot2": "smlad", "dot2_wrapping": "smlad", "mac_low_low": "smlabb", "mac_low_high": "smlabt", "mac_high_low": "smlatb",
    "mac_high_high": "smlatt", "high_mac": "smmla", "high_mac_round": "smmlar",
}  # fmt: skip

ARM_DSP = InstructionSet(
    "Arm DSP",
    "defined(__ARM_FEATURE_DSP) && __ARM_FEATURE_DSP",
    {
        **{f"max_{lane}": _larger(lane, smallest=False) for lane in ("i8x4", "u8x4", "i16x2")},
        **{f"min_{lane}": _larger(lane, smallest=True) for lane in ("i8x4", "u8x4", "i16x2")},
        "hold": Body('__asm__("" : "+r"(a));\nreturn a;', (("alu", 0),)),
        "widen_i8x4": _widen(signed=True),
        "widen_u8x4": _widen(signed=False),
        "widen_less_i8x4": _widen(signed=True, less=True),
        "widen_less_u8x4": _widen(signed=False, less=True),
        "evens_i8": assembly("sxtb16 %0, %1", "a"),
        "odds_i8": assembly("sxtb16 %0, %1, ror #8", "a"),
        "evens_u8": assembly("uxtb16 %0, %1", "a"),
        "odds_u8": assembly("uxtb16 %0, %1, ror #8", "a"),
        "dot4_i16_aligned": _LOADED,
        **{name: assembly(f"{text} %0, %1, %2", "ab") for name, text in _TWO.items()},
        **{name: assembly(f"{text} %0, %1, %2, %3", "abc") for name, text in _THREE.items()},
    },
    frozenset({"pairs"}),
)
