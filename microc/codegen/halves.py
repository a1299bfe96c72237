"""Conversions between float32 and floats of 16 bits, in integers: the same bits on every core, with or without an FPU for them;
and the one operation that is done in float16 where cores have it.

To 16 bits they round to the nearest, ties to even; NaN stays NaN.

``float16_fma`` rounds a * b + c once. The product of two float16 has 22 bits, so it is exact in double; so is the sum, or what
double drops lies so far below the last bit of a float16 that c, or infinity, is the result anyhow. Rounded to odd, a float32 says
on which side of a tie the sum lies.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_WIDEN = ("    float value;", "    (void)memcpy(&value, &bits, sizeof value);", "    return value;", "}")
_BITS = ("    uint32_t bits;", "    (void)memcpy(&bits, &x, sizeof bits);")

HALVES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "float16_to_float": (
            "static inline float float16_to_float(uint16_t x)",
            "{",
            "    const uint32_t sign = (uint32_t)(x & 0x8000U) << 16;",
            "    const uint32_t exponent = ((uint32_t)x >> 10) & 31U;",
            "    const uint32_t fraction = (uint32_t)x & 0x3FFU;",
            "    uint32_t bits = sign | ((exponent + 112U) << 23) | (fraction << 13);",
            "    if (exponent == 0U) { /* a multiple of 2**-24 */",
            "        const float small = (float)fraction * 5.9604645e-8f;",
            "        return sign != 0U ? -small : small;",
            "    }",
            "    if (exponent == 31U) {",
            "        bits = sign | 0x7F800000U | (fraction << 13);",
            "    }",
            *_WIDEN,
        ),
        "float_to_float16": (
            "static inline uint16_t float_to_float16(float x)",
            "{",
            *_BITS,
            "    const uint32_t sign = (bits >> 16) & 0x8000U;",
            "    bits &= 0x7FFFFFFFU;",
            "    if (bits > 0x7F800000U) {",
            "        return (uint16_t)(sign | 0x7E00U);",
            "    }",
            "    if (bits >= 0x477FF000U) { /* 65520 and more round to infinity */",
            "        return (uint16_t)(sign | 0x7C00U);",
            "    }",
            "    if (bits < 0x38800000U) { /* a multiple of 2**-24: what is below is lost in the sum with a half */",
            "        const float sum = (x < 0.0f ? -x : x) + 0.5f;",
            "        (void)memcpy(&bits, &sum, sizeof bits);",
            "        return (uint16_t)(sign | (bits - 0x3F000000U));",
            "    }",
            "    bits += 0xFFFU + ((bits >> 13) & 1U);",
            "    return (uint16_t)(sign | ((bits - 0x38000000U) >> 13));",
            "}",
        ),
        "float16_fma": (
            "static inline uint16_t float16_fma(uint16_t a, uint16_t b, uint16_t c)",
            "{",
            "    const double sum = (double)float16_to_float(a) * (double)float16_to_float(b) + (double)float16_to_float(c);",
            "    float near = (float)sum;",
            "    const double lost = sum - (double)near;",
            "    uint32_t bits;",
            "    (void)memcpy(&bits, &near, sizeof bits);",
            "    if ((bits & 1U) == 0U && (lost < 0.0 || lost > 0.0)) {",
            "        bits += (lost > 0.0) == (near > 0.0f) ? 1U : UINT32_MAX;",
            "        (void)memcpy(&near, &bits, sizeof near);",
            "    }",
            "    return float_to_float16(near);",
            "}",
        ),
        "bfloat16_to_float": (
            "static inline float bfloat16_to_float(uint16_t x)",
            "{",
            "    const uint32_t bits = (uint32_t)x << 16;",
            *_WIDEN,
        ),
        "float_to_bfloat16": (
            "static inline uint16_t float_to_bfloat16(float x)",
            "{",
            *_BITS,
            "    if ((bits & 0x7FFFFFFFU) > 0x7F800000U) {",
            "        return (uint16_t)((bits >> 16) | 0x40U);",
            "    }",
            "    return (uint16_t)((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);",
            "}",
        ),
    }
)
