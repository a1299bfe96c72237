# SPDX-License-Identifier: Apache-2.0
"""WebAssembly with its 128-bit vectors (SIMD128), as browsers and Node run it.

:mod:`microc.isa.gnu_vectors` contains the intrinsics that C operators compute. This file contains the others, by the
functions that clang declares in ``wasm_simd128.h``. WebAssembly has no fused multiply-add. It also has no shift by a
vector of counts, which is done lane by lane."""

from __future__ import annotations

from collections.abc import Mapping

from microc.isa.gnu_vectors import build_gnu_vector_set
from microc.isa.instruction_set import PLAIN, Body, Core, Costs, Family, InstructionSet
from microc.isa.portable import LIBRARY, UNALIGNED

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

_COSTS = Costs(
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
            _COSTS,
            (SIMD128, _UNIT, _WORDS),
            frozenset({"fpu", "mul64"}),
            machine="--target=wasm32-wasi -msimd128",
            lanes=(_LANES,),
            vectors=16,
        ),
    ),
    PLAIN,
)
