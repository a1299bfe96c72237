# SPDX-License-Identifier: Apache-2.0
"""Arm's Cortex-M cores, and the ARM1176: word accesses, saturation, DSP instructions, half precision."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from microc.isa.instruction_order import OLDER, YOUNGER, Pipeline, Timing
from microc.isa.instruction_set import UNSCHEDULED, Body, Core, Costs, Family, InstructionSet, build_instruction_body
from microc.isa.mve.arm_mve import ARM_MVE, ARM_MVE_FLOAT, ARM_MVE_HALF
from microc.isa.portable import ALIGNED_WORD, LIBRARY, SOFT_LIBRARY, THUMB_LIBRARY, UNALIGNED, WORD_MOVES
from microc.isa.small_families import REFERENCE, with_unit
from microc.tir.names import SHIFTED_SATURATIONS

# ---- Armv6-M: eight low registers, products of 32 bits. Signed bytes can only be loaded at a register offset, unsigned bytes at
# any small immediate offset.

ARM_V6M = InstructionSet(
    "Armv6-M",
    "defined(__ARM_ARCH_6M__)",
    {
        "clamp8": Body("return (int8_t)a == a ? a : (a >> 31) ^ 127;", (("alu", 4),)),
        "high_mul": Body(""),
        "product_2_30": Body(""),
        "product_2_31": Body(""),
        "swap_bytes": Body('int32_t r;\n__asm__("rev16 %0, %1" : "=l"(r) : "l"(a));\nreturn r;'),
    },
    frozenset({"unsigned_bytes", "product_loops"}),
)
ARM_V8M_BASE = replace(ARM_V6M, name="Armv8-M Baseline", guard="defined(__ARM_ARCH_8M_BASE__)")
"""Armv6-M with a divider; the other instructions that it adds are chosen by compilers."""


# ---- Armv7-M and later: accesses to words at any address; SSAT and USAT, which can also shift their operand; the FPU's VCVTR,
# which rounds half to even and saturates

ARM_WORDS = InstructionSet("Arm words", "defined(__ARM_FEATURE_UNALIGNED)", UNALIGNED, frozenset({"unaligned"}))

_INSTRUCTIONS = {
    "saturate_i8": "ssat %0, #8, %1", "saturate_u8": "usat %0, #8, %1", "saturate_i16": "ssat %0, #16, %1",
    "saturate_u15": "usat %0, #15, %1",
}  # fmt: skip

ARM_SATURATION = InstructionSet(
    "Arm saturation",
    "defined(__ARM_FEATURE_SAT) && __ARM_FEATURE_SAT",
    {
        **{name: build_instruction_body(text, "a") for name, text in _INSTRUCTIONS.items()},
        **{
            name: build_instruction_body(f"{_INSTRUCTIONS[saturation]}, asr #{distance}", "a")
            for name, (saturation, distance) in SHIFTED_SATURATIONS.items()
        },
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


# ---- The DSP instructions of Armv7E-M and Armv8-M, on two int16 or four bytes that are packed in a word


def _build_byte_widening_body(signed: bool, subtracts_z: bool = False) -> Body:
    """Build the C body that widens four bytes to int16 and stores them.

    ``subtracts_z``: subtract the parameter ``z`` from each widened byte."""
    letter = "s" if signed else "u"
    subtract = '__asm__("ssub16 %0, %1, %2" : "=r"({0}) : "r"({0}), "r"(z));\n'
    less_zero = subtract.format("even") + subtract.format("odd") if subtracts_z else ""
    return Body(
        f"""{ALIGNED_WORD}int32_t even, odd, low, high;
__asm__("{letter}xtb16 %0, %1" : "=r"(even) : "r"(a));
__asm__("{letter}xtb16 %0, %1, ror #8" : "=r"(odd) : "r"(a));
{less_zero}__asm__("pkhbt %0, %1, %2, lsl #16" : "=r"(low) : "r"(even), "r"(odd));
__asm__("pkhtb %0, %1, %2, asr #16" : "=r"(high) : "r"(odd), "r"(even));
((word *)(void *)p)[0] = low;
((word *)(void *)p)[1] = high;""",
        (("alu", 6 if subtracts_z else 4), ("store", 1), ("paired", 1)),
    )


def _build_lane_min_or_max_body(lane_type: str, *, minimum: bool) -> Body:
    """Build the C body of a lane-wise maximum, or of a lane-wise minimum if ``minimum``.

    A subtraction sets the GE flags of all lanes; SEL then selects lanes by these flags."""
    instruction = {"i8x4": "ssub8", "u8x4": "usub8", "i16x2": "ssub16"}[lane_type]
    left, right = ("%2", "%1") if minimum else ("%1", "%2")
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
"""C body of four int16 products: one LDRD and two SMLAD. It suits operands that are used only once, which gcc would
load by two separate instructions. The constraint ``Uv`` (an offset that is a multiple of 4, up to 1020 bytes) is the
addressing mode of LDRD."""

_TWO = {"add_i16x2": "sadd16", "sub_i16x2": "ssub16", "high_mul_round": "smmulr", "high_product": "smmul"}
_THREE = {
    "dot2": "smlad", "dot2_wrapping": "smlad", "mac_low_low": "smlabb", "mac_low_high": "smlabt", "mac_high_low": "smlatb",
    "mac_high_high": "smlatt", "high_mac": "smmla", "high_mac_round": "smmlar",
}  # fmt: skip

ARM_DSP = InstructionSet(
    "Arm DSP",
    "defined(__ARM_FEATURE_DSP) && __ARM_FEATURE_DSP",
    {
        **{f"max_{lane}": _build_lane_min_or_max_body(lane, minimum=False) for lane in ("i8x4", "u8x4", "i16x2")},
        **{f"min_{lane}": _build_lane_min_or_max_body(lane, minimum=True) for lane in ("i8x4", "u8x4", "i16x2")},
        "hold": Body('__asm__("" : "+r"(a));\nreturn a;', (("alu", 0),)),
        "widen_i8x4": _build_byte_widening_body(signed=True),
        "widen_u8x4": _build_byte_widening_body(signed=False),
        "widen_less_i8x4": _build_byte_widening_body(signed=True, subtracts_z=True),
        "widen_less_u8x4": _build_byte_widening_body(signed=False, subtracts_z=True),
        "evens_i8": build_instruction_body("sxtb16 %0, %1", "a"),
        "odds_i8": build_instruction_body("sxtb16 %0, %1, ror #8", "a"),
        "evens_u8": build_instruction_body("uxtb16 %0, %1", "a"),
        "odds_u8": build_instruction_body("uxtb16 %0, %1, ror #8", "a"),
        "dot4_i16_aligned": _LOADED,
        **{name: build_instruction_body(f"{text} %0, %1, %2", "ab") for name, text in _TWO.items()},
        **{name: build_instruction_body(f"{text} %0, %1, %2, %3", "abc") for name, text in _THREE.items()},
    },
    frozenset({"pairs"}),
)


# ---- Arm's half precision: VCVTB and VCVTT between floats of 16 and 32 bits, which the single-precision FPUs of Armv7E-M and
# later have, too, whatever the compiler's macros say
#
# Results are equal to those of the integer conversions in ``codegen/c/libm.py``; NaN stays NaN.

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


# ---- Arm's Cortex-M cores.

_LOADS = {
    "load": 1.8, "paired": 1.0, "store": 1.1, "taken": 2.0, "divide": 6.0, "float_load": 1.8, "float_fma": 3.0,
    "float_divide": 14.0
}  # fmt: skip
"""Cycles of Cortex-M3, M4 and M33 by Arm's manuals: a load takes two, or one if a load or store follows, and a branch that jumps
refills the pipeline."""

_STARTS = {"smlad": "smuad", "smlabb": "smulbb", "smlabt": "smulbt", "smlatb": "smultb", "smlatt": "smultt"}
_M7_PIPELINE = Pipeline(
    timings=MappingProxyType(
        {
            "load": Timing("load", 1, 2, frozenset({OLDER})),
            "product": Timing("multiplier", 1, 1, frozenset({YOUNGER})),
            "extension": Timing("shifter", 1, 2, frozenset({OLDER})),
        }
    ),
    types=MappingProxyType(
        {
            **dict.fromkeys((*_STARTS, *_STARTS.values()), "product"),
            **dict.fromkeys(("sxtb16", "uxtb16"), "extension"),
        }
    ),
    starts=MappingProxyType(_STARTS),
    loads=frozenset({"load_i16x2_aligned", "load_i16x2", "load_i8x4", "load_u8x4"}),
    load_type="load",
    load="ldr {}, [{}, #{}]",
    max_offset=4095,
    registers=13,
    guard="defined(__ARM_FEATURE_DSP) && defined(__ARM_FEATURE_UNALIGNED) && defined(__OPTIMIZE__)",
)
"""Cortex-M7. Loads and extensions alternate with products. That suits LLVM's model, where a product issues beside the instruction
before it, and the stricter rule of ``benchmarks/maintain/cycles.py``, where a load issues beside the product before it and
an extension alone. A load of two words issues alone by both, so that a run has none. Latencies are those of LLVM's model,
rounded up. One of 14 general registers may be the frame pointer; without optimisation compilers occupy more."""
_M55_CYCLES = {
    "load": 1.8, "paired": 1.0, "branch": 0.0, "divide": 6.0, "float_load": 1.2, "float_divide": 14.0, "vector": 1.65,
    "vector_load": 1.35, "vector_store": 2.0, "joint": -0.4,
}  # fmt: skip
"""Cycles of Cortex-M55. A vector instruction takes two, and shares the second with the next one if that belongs to another
unit. The prices contain the overlaps of the code that gcc makes of C; ``joint`` takes off those that an asm statement has
beyond these. LE takes no cycle. Fitted to LLVM's model of 102 kernels of eight networks
(``benchmarks/maintain/cost_model.py --cycles``): the error is 4 % in the median, at most 13 % for nine of ten."""
_M7_CYCLES = {"taken": 0.5, "divide": 6.0, "float_divide": 14.0, "joint": -1.0}

_WIDE = frozenset({"shifted", "accumulated", "predicated"})
"""Instruction forms of Thumb-2, from :data:`microc.isa.instruction_set.FORMS`."""
_REACH = {"pair": 1020, "advance": 255}
_M0 = Costs(9, 0, 31, frozenset({"indexed", "elements"}), 2.5, THUMB_LIBRARY, {"load": 2.0, "store": 2.0, "taken": 2.0})
_M3 = Costs(14, 0, 4095, _WIDE, 3.4, SOFT_LIBRARY, {**_LOADS, "multiply_long": 4.0}, **_REACH)
_M4 = Costs(14, 30, 4095, _WIDE, 3.4, LIBRARY, _LOADS, **_REACH)
_M7 = Costs(14, 30, 4095, _WIDE, 3.4, LIBRARY, _M7_CYCLES, **_REACH)
_M55 = Costs(14, 30, 4095, _WIDE | {"counted"}, 3.4, LIBRARY, _M55_CYCLES, **_REACH, vector_registers=8)
_M23 = replace(_M0, lengths={**THUMB_LIBRARY, "call_divide": 1.0}, cycles={**_M0.cycles, "call_divide": 17.0})
_M52 = replace(_M55, cycles={k: 2 * n if k.startswith(("vector", "joint")) else n for k, n in _M55_CYCLES.items()})
_M85_CYCLES = {"paired": 0.5, "taken": 0.5, "divide": 6.0, "float_divide": 14.0}
_M85 = replace(_M55, cycles={**_M85_CYCLES, "vector": 2.0, "vector_load": 2.0, "vector_store": 2.0}, issue=0.65)
"""Cycles of Cortex-M23, M52 and M85 follow Arm's descriptions of the cores: the fast divider of the M23 takes 17 cycles; the
M52 executes one beat of a vector instruction in a cycle, where the M55 and the M85 execute two; the M85 issues two
instructions. They were not measured."""

_V7M = (ARM_WORDS, ARM_SATURATION)
_V7EM = (*_V7M, ARM_FLOAT, ARM_HALF, ARM_DSP)

_IN_ORDER = "-fno-tree-reassoc"
"""Compiler options for cores with one multiplication at a time: gcc keeps the interleaved order of the sums of a
register tile, instead of computing one sum after the other."""
_LOW_REGISTERS = "-fira-algorithm=priority -fno-tree-ter"
"""Compiler options for cores with eight low registers: gcc computes values where the C computes them, and assigns
registers to the values that are used most."""


def _build_cortex_m_core(
    name: str, costs: Costs, sets: tuple[InstructionSet, ...], *features: str, options: str = "", mcpu: str = ""
) -> Core:
    """Build a Cortex-M core. ``mcpu``: name of the core for gcc's ``-mcpu``, if it differs from ``name``."""
    return Core(name, "arm", costs, sets, frozenset(features), options, f"-mcpu={mcpu or name} -mthumb")


def _build_helium_core(name: str, costs: Costs, mcpu: str = "") -> Core:
    """Build a Cortex-M core with Helium (MVE). The arguments are those of :func:`_build_cortex_m_core`."""
    sets = (*_V7EM, ARM_MVE, ARM_MVE_FLOAT, ARM_MVE_HALF)
    return replace(_build_cortex_m_core(name, costs, sets, "mul64", mcpu=mcpu), lanes=(4,), vectors=8)


_V6M_OPTIONS = f"{_IN_ORDER} {_LOW_REGISTERS}"

ARM = Family(
    "arm",
    (
        _build_cortex_m_core("cortex-m0", _M0, (ARM_V6M, WORD_MOVES), "one_product", options=_V6M_OPTIONS),
        _build_cortex_m_core("cortex-m0plus", _M0, (ARM_V6M, WORD_MOVES), "one_product", options=_V6M_OPTIONS),
        _build_cortex_m_core("cortex-m23", _M23, (ARM_V8M_BASE, WORD_MOVES), "one_product", options=_V6M_OPTIONS),
        _build_cortex_m_core("cortex-m3", _M3, _V7M, "mul64", "one_product", options=_IN_ORDER),
        _build_cortex_m_core("cortex-m4", _M4, _V7EM, "mul64"),
        with_unit(_build_cortex_m_core("cortex-m4", _M4, _V7EM, "mul64"), REFERENCE),
        replace(_build_cortex_m_core("cortex-m7", _M7, _V7EM, "mul64"), pipeline=_M7_PIPELINE),
        _build_cortex_m_core("cortex-m33", _M4, _V7EM, "mul64"),
        _build_cortex_m_core(
            "cortex-m33-nodsp", _M3, _V7M, "mul64", "one_product", options=_IN_ORDER, mcpu="cortex-m33+nodsp+nofp"
        ),
        _build_cortex_m_core("cortex-m35p", _M4, _V7EM, "mul64"),
        _build_helium_core("cortex-m52", _M52, mcpu="cortex-m55"),  # gcc knows the M52 from 14 on
        _build_helium_core("cortex-m55", _M55),
        _build_helium_core("cortex-m85", _M85, mcpu="cortex-m55"),  # from 13 on
    ),
    UNSCHEDULED,
    flags=("unroll-loops", "no-gcse", "no-gcse,unroll-loops", "no-tree-loop-im", "Os"),
)


# ---- ARM1176JZF-S, an Armv6 application core, as in the Raspberry Pi 1 and Zero with Linux of 32 bits
#
# It runs Arm instructions: its Thumb has neither these DSP instructions nor the FPU. VFPv2 has no fused multiply-add. LDRD
# wants registers with neighbouring numbers, the first one even, which no constraint of gcc's asm statements can ask for.

_ARMV6_DSP = InstructionSet(
    "Armv6 DSP",
    "defined(__ARM_FEATURE_SIMD32) && __ARM_FEATURE_SIMD32",
    {name: body for name, body in ARM_DSP.bodies.items() if body is not _LOADED},
    ARM_DSP.features,
)
_VFP2 = replace(ARM_FLOAT, name="VFPv2", features=frozenset({"fpu"}))
_ARM11_DIVISION = 112.0
"""Instructions of a division, a call of libgcc. Measured with gcc 12.2 and counted by QEMU, for random dividends of 25 to 32
bits and divisors of at most 16."""
_ARM11 = Costs(
    13, 30, 255, _WIDE | {"indexed"}, 4.0, {**LIBRARY, "divide": _ARM11_DIVISION},
    {"divide": _ARM11_DIVISION, "multiply": 2.0, "multiply_long": 3.0, "float_divide": 15.0}, advance=255,
)  # fmt: skip
"""Costs by LLVM's model of the ARM1176 (``ARMScheduleV6.td``), which is from the core's reference manual, without latencies and
caches. They were not measured. The offset is that of loads of signed bytes and halfwords; words and unsigned bytes reach 4095."""

ARMV6 = Family(
    "armv6",
    (
        Core(
            "arm1176",
            "armv6",
            _ARM11,
            (*_V7M, _VFP2, _ARMV6_DSP),
            frozenset({"mul64"}),
            machine="-mcpu=arm1176jzf-s -mfpu=vfp -mfloat-abi=hard -marm -munaligned-access",
        ),
    ),
    UNSCHEDULED,
    threads=True,
    computers=("armv6l",),
)
