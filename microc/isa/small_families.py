# SPDX-License-Identifier: Apache-2.0
"""Families of few cores: AVR, Xtensa, WebAssembly, and the computer on which the compiler runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from microc.isa.instruction_set import (
    PLAIN,
    TENSOR_UNIT,
    Body,
    Core,
    Costs,
    Family,
    InstructionSet,
    Scratchpad,
    TensorUnit,
)
from microc.isa.portable import LIBRARY, PORTABLE_LIBRARY, SHORT_LIBRARY, UNALIGNED, WORD_MOVES, build_gnu_vector_set
from microc.isa.vocabulary.matrix_products import UNIT_WORDS
from microc.isa.x86 import COSTS, HOST_WORDS

# ---- AVR cores: 8-bit registers, the hardware multiplier, and the C library avr-libc.


_AVR_LENGTHS = {
    **SHORT_LIBRARY, "alu": 4.0, "load": 4.0, "store": 4.0, "multiply": 24.0, "branch": 2.0, "call_multiply_long": 200.0,
    "call_divide": 600.0,
}  # fmt: skip
_AVR_CYCLES = {"load": 8.0, "store": 8.0, "multiply": 40.0, "taken": 1.0, "constant_byte": 1.0}

_LACKING = frozenset(("acosh", "asinh", "atanh", "erf", "exp2", "expm1", "log1p", "log2", "rint"))
"""Functions of ``<math.h>`` that libm.a of avr-libc 2.0.0 lacks (``avr-nm -g``)."""
_INEXACT = frozenset(("asin", "atan2", "cos", "cosh", "exp", "log", "log10", "pow", "sin", "sinh", "tan", "tanh"))
"""Functions of ``<math.h>`` that are replaced because of their errors in avr-libc 2.0.0.

Errors in ulp, measured in simavr: sin, cos and tan have no correct digit for arguments beyond 1e27; exp 50 at 84
(7.6e-8 of the argument), cosh and sinh likewise; pow 50, and NaN for negative bases whose exponent is no int32; asin
7.6; log and log10 4.4; tanh 4.02. atan2 of two zeros is 0 if the second zero is negative, and is not -0 if the first
zero is negative."""


def _build_byte_product_body(instruction: str, right_c_type: str, register_constraint: str) -> Body:
    """Build a C body that multiplies two bytes to 16 bits by one instruction. A 32-bit product would be a library
    call."""
    text = f'"{instruction} %1, %2\\n\\tmovw %0, r0\\n\\tclr __zero_reg__"'
    operands = f'"{register_constraint}"((int8_t)a), "{register_constraint}"(({right_c_type})b)'
    return Body(f'int16_t r;\n__asm__({text} : "=r"(r) : {operands});\nreturn r;', (("alu", 2),))


_MULTIPLIER = InstructionSet(
    "AVR multiplier",
    "defined(__AVR_HAVE_MUL__)",
    {
        "mul_i8": _build_byte_product_body("muls", "int8_t", "d"),
        "mul_i8_u8": _build_byte_product_body("mulsu", "uint8_t", "a"),
    },
)

AVR = Family(
    "avr",
    (Core("avr", "avr", Costs(5, 0, 63, frozenset(), 2.0, _AVR_LENGTHS, _AVR_CYCLES), (_MULTIPLIER,)),),
    {"speed": "-O2", "balanced": "-Os", "size": "-Os"},
    flash_space=True,
    array_bytes=(1 << 15) - 1,
    own_math=_LACKING | _INEXACT,
    double_bytes=4,
)


# ---- Xtensa LX7 (ESP32-S3, without FPU ESP32-S2), LX6 (ESP32) and LX106 (ESP8266) cores. Instructions of library
# functions of the LX106 are measured; its other costs and those of the other cores are derived from the
# instruction sets alone.


_FORMS = frozenset({"compared"})
_XTENSA_CYCLES = {"load": 2.0, "taken": 2.0, "divide": 12.0}
_XTENSA_COSTS = Costs(13, 14, 255, _FORMS, 2.8, {**LIBRARY, "multiply_long": 2.0}, _XTENSA_CYCLES)
_SOFT_COSTS = Costs(13, 0, 255, _FORMS, 2.8, {**PORTABLE_LIBRARY, "multiply_long": 2.0}, _XTENSA_CYCLES)
_LX106_LIBRARY = {
    **SHORT_LIBRARY, "signed_byte": 2.0, "extension": 2.0, "call_multiply_long": 54.0, "call_float_add": 592.0,
    "call_float_multiply": 584.0, "call_float_divide": 170.0, "call_float_compare": 12.0, "call_float_convert": 99.0,
    "call_sqrt": 260.0, "call_math": 11450.0, "call_tanh": 20260.0, "call_erf": 18720.0, "call_log": 14280.0,
}  # fmt: skip
"""Instructions of library functions on the LX106: of ``runtime_c/ports/lx106_libgcc.c``, which stands for the libgcc
functions that Debian's lacks, and of picolibc, whose ``expf`` computes in double. Measured by
``benchmarks/maintain/soft_floats.py`` with gcc 12.2 in QEMU."""
_LX106 = Costs(13, 0, 255, _FORMS, 2.8, _LX106_LIBRARY, {"load": 2.0, "taken": 2.0})
"""The LX106 multiplies to 32 bits; it has neither division, nor sign extension, nor an FPU."""

XTENSA = Family(
    "xtensa",
    (
        *(
            Core(name, "xtensa", _XTENSA_COSTS, (WORD_MOVES,), frozenset({"fpu", "mul64"}))
            for name in ("xtensa-lx6", "xtensa-lx7")
        ),
        Core("xtensa-lx7-nofpu", "xtensa", _SOFT_COSTS, (WORD_MOVES,), frozenset({"mul64", "one_product"})),
        Core("xtensa-lx106", "xtensa", _LX106, (WORD_MOVES,), frozenset({"one_product"})),
    ),
    PLAIN,
)


# ---- WebAssembly with its 128-bit vectors (SIMD128), as browsers and Node run it.
#
# :mod:`microc.isa.portable` contains the intrinsics that C operators compute. This file contains the others,
# by the functions that clang declares in ``wasm_simd128.h``. WebAssembly has no fused multiply-add. It also has
# no shift by a vector of counts, which is done lane by lane.


_GUARD = "defined(__wasm_simd128__)"
_LANES = 4

_PRODUCTS = """const v128_t half = wasm_i64x2_splat({half});
const v128_t low = wasm_i64x2_shr(wasm_i64x2_add(wasm_i64x2_extmul_low_i32x4(a, b), half), {right});
const v128_t high = wasm_i64x2_shr(wasm_i64x2_add(wasm_i64x2_extmul_high_i32x4(a, b), half), {right});
const v128_t r = wasm_i32x4_shuffle(low, high, 0, 2, 4, 6);
"""
_SATURATED = "return wasm_v128_xor(r, wasm_i32x4_eq(r, wasm_i32x4_splat(INT32_MIN)));"
"""C statement that saturates a doubled high product. Only the product of INT32_MIN with itself exceeds the largest
int32, by one."""
_ROUNDED = """if (b >= 0) {
    return wasm_i32x4_shl(a, (uint32_t)b);
}
const v128_t half = wasm_v128_and(wasm_i32x4_shr(a, (uint32_t)(-b - 1)), wasm_i32x4_splat(1));
return wasm_i32x4_add(wasm_i32x4_shr(a, (uint32_t)(b < -31 ? 31 : -b)), half);"""

_TEXTS: Mapping[str, tuple[int, str]] = {
    "sqrt_f32x4": (1, "return (float32x4)wasm_f32x4_sqrt((v128_t)a);"),
    "rint_f32x4": (1, "return (float32x4)wasm_f32x4_nearest((v128_t)a);"),
    "floor_f32x4": (1, "return (float32x4)wasm_f32x4_floor((v128_t)a);"),
    "fabs_f32x4": (1, "return (float32x4)wasm_f32x4_abs((v128_t)a);"),
    "nearest_i32x4": (2, "return wasm_i32x4_trunc_sat_f32x4(wasm_f32x4_nearest((v128_t)a));"),
    "min_i32x4": (1, "return wasm_i32x4_min(a, b);"),
    "max_i32x4": (1, "return wasm_i32x4_max(a, b);"),
    "doubling_high_mul_i32x4": (9, _PRODUCTS.format(half="1 << 30", right=31) + _SATURATED),
    "doubling_high_floor_i32x4": (9, _PRODUCTS.format(half="0", right=31) + _SATURATED),
    "high_product_i32x4": (5, _PRODUCTS.format(half="0", right=32) + "return r;"),
    "high_mul_round_i32x4": (7, _PRODUCTS.format(half="INT64_C(1) << 31", right=32) + "return r;"),
    "shl_n_i32x4": (1, "return b < 0 ? wasm_i32x4_shr(a, (uint32_t)-b) : wasm_i32x4_shl(a, (uint32_t)b);"),
    "shift_round_n_i32x4": (4, _ROUNDED),
    "dot2_i32x4": (2, "return wasm_i32x4_add(c, wasm_i32x4_dot_i16x8(a, b));"),
}
"""Number of vector instructions, and C statements, by intrinsic."""

SIMD128 = InstructionSet(
    "SIMD128",
    _GUARD,
    {name: Body(text, (("vector", count),)) for name, (count, text) in _TEXTS.items()},
    frozenset({"vectors"}),
)
_UNIT = build_gnu_vector_set("vectors of WebAssembly", _GUARD, "wasm_simd128.h")
_WORDS = InstructionSet("words of WebAssembly", "defined(__wasm__)", UNALIGNED, frozenset({"unaligned"}))

_WASM_COSTS = Costs(
    14,
    16,
    1 << 31,
    frozenset({"predicated"}),
    3.0,
    {**LIBRARY, "call_math": 40.0},
    {"divide": 20.0, "float_divide": 10.0},
    0.35,
    vector_registers=16,
)

WASM = Family(
    "wasm",
    (
        Core(
            "wasm-simd128",
            "wasm",
            _WASM_COSTS,
            (SIMD128, _UNIT, _WORDS),
            frozenset({"fpu", "mul64"}),
            machine="--target=wasm32-wasi -msimd128",
            lanes=(_LANES,),
            vectors=16,
        ),
    ),
    PLAIN,
)


# ---- The reference tensor unit, which the model in C simulates for tests. It is a typical unit of its size, not a product.
#
# 256 products in a cycle, as an array of 16 x 16 does; 16 KiB each for inputs, weights and sums; a bus of 64 bits.

REFERENCE = TensorUnit(
    "tensor16",
    rows=16,
    columns=16,
    depth=16,
    tile_cycles=16,
    input=Scratchpad(16 * 1024),
    weight=Scratchpad(16 * 1024),
    sums=Scratchpad(16 * 1024),
    bus=8,
    start=8,
)


def with_unit(core: Core, unit: TensorUnit) -> Core:
    """Return ``core`` with a tensor unit as its coprocessor, under the name ``<core>+<unit>``."""
    # Issuing an instruction costs the processor a store for each operand, and one to the register that starts it.
    operands = {word.name: len(word.params) for word in UNIT_WORDS}
    bodies = {name: Body("", (("alu", count), ("store", count + 1))) for name, count in operands.items()}
    beside = InstructionSet(
        f"tensor unit {unit.name}", "1", MappingProxyType(bodies), frozenset({TENSOR_UNIT}), tensor_unit=unit
    )
    return replace(core, name=f"{core.name}+{unit.name}", sets=(*core.sets, beside))


# ---- The computer on which the compiler runs. The only assumption is that it loads words at any address.

_HOST_CORE = Core("host", "host", COSTS, (HOST_WORDS,), frozenset({"fpu"}))
HOST = Family("host", (_HOST_CORE, with_unit(_HOST_CORE, REFERENCE)), PLAIN, threads=True)
