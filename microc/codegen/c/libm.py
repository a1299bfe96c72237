# SPDX-License-Identifier: Apache-2.0
"""Portable C for functions of <math.h>, and for conversions of 16-bit floats."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from microc.codegen.c.c_expressions import float32_literal

# ---- Conversions between float32 and 16-bit floats, and ``float16_fma``, the only operation that some cores compute in float16.
#
# Conversions use integer arithmetic. Their results have the same bits on every core, whether or not its FPU supports 16-bit
# floats. Conversions to 16 bits round to nearest, ties to even; NaN stays NaN.
#
# ``float16_fma`` rounds a * b + c once. The product of two float16 numbers has 22 bits and is therefore exact in double. The sum
# is either exact too, or the bits that double drops are so far below the last bit of a float16 that the result is c or infinity
# with or without them. The sum is then rounded to odd in float32, which preserves on which side of a tie between two float16
# numbers it is.

# The last lines of a helper that returns ``bits`` as a float, and the first lines of a helper whose parameter ``x`` is a float.
_RETURN_BITS_AS_FLOAT = ("    float value;", "    (void)memcpy(&value, &bits, sizeof value);", "    return value;", "}")
_FLOAT_TO_BITS = ("    uint32_t bits;", "    (void)memcpy(&bits, &x, sizeof bits);")

HALF_FLOAT_HELPERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
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
            *_RETURN_BITS_AS_FLOAT,
        ),
        "float_to_float16": (
            "static inline uint16_t float_to_float16(float x)",
            "{",
            *_FLOAT_TO_BITS,
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
            *_RETURN_BITS_AS_FLOAT,
        ),
        "float_to_bfloat16": (
            "static inline uint16_t float_to_bfloat16(float x)",
            "{",
            *_FLOAT_TO_BITS,
            "    if ((bits & 0x7FFFFFFFU) > 0x7F800000U) {",
            "        return (uint16_t)((bits >> 16) | 0x40U);",
            "    }",
            "    return (uint16_t)((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);",
            "}",
        ),
    }
)


# ---- Functions of ``<math.h>`` in portable C, for C libraries that lack these functions or compute them less exactly
# (``Family.own_math``).
#
# They compute in float32 and call functions that such libraries have (``expf``, ``atanf``, ``sqrtf``, ``ldexpf``, ``frexpf``).
# The constant ln 2 is split into 0.693359375 - 2.12194440e-4. The first part has 9 bits, so that its products with integers below
# 2**15 are exact (Cody and Waite, Software Manual for the Elementary Functions, 1980). The formulas are:
#
#     exp(x)    =  2**n exp(x - n ln 2),                             n = round(x / ln 2)
#     exp2(x)   =  2**n exp((x - n) ln 2),                           n = round(x)
#     expm1(x)  =  x (1 + x P(x)) within -1/2 .. 1/2,                else exp(x) - 1
#     log(1 + f) =  f - s (f - 2 s**2 Q(s**2)), s = f / (2 + f),     f within -0.4 .. 0.6 (fdlibm's e_log.c: f is exact)
#     log, log2, log10 of 2**n m: of n and of f = m - 1,             m within sqrt(1/2) .. sqrt(2)
#     log1p(x)  =  log(1 + x)
#     pow(x, y) =  2**k exp((y log2(x) - k) ln 2), k the nearest whole number, log2(x) and products in two floats (Dekker, 1971)
#     sinh(x)   =  x + x**3 P(x**2) within -1 .. 1,                  else e - 1 / (4 e), e = exp(x) / 2
#     cosh(x)   =  e + 1 / (4 e)
#     tanh(x)   =  x + x**3 P(x**2) within -1/2 .. 1/2,              else 1 - 2 / (exp(2 x) + 1)
#     asinh(x)  =  log1p(x (1 + x / (1 + sqrt(x**2 + 1)))),          beyond 2**13 log(x) + ln 2
#     acosh(x)  =  log1p(t + sqrt(t (t + 2))), t = x - 1,            beyond 2**13 log(x) + ln 2
#     atanh(x)  =  log1p(2 x / (1 - x)) / 2
#     asin(x)   =  atan(x / sqrt((1 - x) (1 + x)))
#     sin(x), cos(x), tan(x) by polynomials of r within -pi/4 .. pi/4, x = n pi/2 + r, where n and r are computed with the 96 bits
#                                                                    of 2/pi that affect the result (Payne and Hanek, 1983)
#     erf(x)    =  x + x P(x**2) within -0.9 .. 0.9,                 else 1 - exp(-Q(x))
#     rint(x)   =  (x + 2**23) - 2**23, exactly, ties to even
#     floor(a / b), exactly up to 2**24, by the remainder of fmod    (other cores divide in double)
#
# The polynomials minimise the largest relative error of the result, by weighted least squares (Lawson, 1961). These errors are:
# expm1 3.1e-9, log 1.7e-8, sin 3.6e-9, cos 1.2e-10, sinh 2.4e-8, tanh 1.5e-8, erf 1.2e-8 and 2.6e-8. NaN stays NaN, zeros keep
# their sign, and limits at infinity and at poles are those of C99.


def _print_horner(coefficients: tuple[float, ...], variable: str) -> str:
    """Return the C expression of a polynomial in ``variable``, by Horner's rule. Coefficients begin with the highest power."""
    text = float32_literal(np.float32(coefficients[0]))
    for number, coefficient in enumerate(coefficients[1:], 1):
        sign = "-" if coefficient < 0 else "+"
        text = f"{text if number == 1 else f'({text})'} * {variable} {sign} {float32_literal(np.float32(abs(coefficient)))}"
    return text


_EXPM1 = (1.984981e-4, 1.3996176e-3, 8.333579e-3, 4.166536e-2, 0.16666664, 0.50000006)
_LOG = (0.15719944, 0.1994677, 0.3333389)
_POW = (0.3537288, 0.42805985, 0.600005)
_TANH = (0.01724149, -0.053045493, 0.13325879, -0.33333144)
_SINH = (2.0372194e-4, 8.3302837e-3, 0.16666716)
_SIN = (-1.9517235e-4, 8.332178e-3, -0.16666655)
_COS = (2.4433082e-5, -1.3887315e-3, 4.1666646e-2)
_ERF = (-6.090360e-4, 5.0119627e-3, -2.6778908e-2, 0.1128214, -0.37612525, 0.12837915)
_ERFC = (1.2515606e-3, -1.5579036e-2, 9.110913e-2, 0.65075535, 1.1201907, 1.8776512e-3)
"""Coefficients of the polynomials for the functions in their names, beginning with the highest power. The polynomial of _ERFC is
-log(erfc(x))."""
_FUNCTION_SOURCES = {
    "exp_scaled": """
static float exp_scaled_f32(float x, int scale)
{
    const int n = (int)(x * 1.442695f + (x < 0.0f ? -0.5f : 0.5f));
    return ldexpf(expf((x - (float)n * 0.693359375f) - (float)n * -2.1219444e-4f), n + scale);
}
""",
    "exp": """
static float exp_f32(float x)
{
    return x > -104.0f && x < 89.0f ? exp_scaled_f32(x, 0) : expf(x); /* zero, infinity or NaN */
}
""",
    "exp2": """
static float exp2_f32(float x)
{
    if (!(x > -151.0f)) {
        return x < 0.0f ? 0.0f : x;
    }
    if (x >= 128.0f) {
        return INFINITY;
    }
    const int n = (int)(x + (x < 0.0f ? -0.5f : 0.5f));
    return ldexpf(expf((x - (float)n) * 0.6931472f), n);
}
""",
    "expm1": f"""
static float expm1_f32(float x)
{{
    if (x > -0.5f && x < 0.5f) {{
        const float rest = {_print_horner(_EXPM1, "x")};
        return x * (1.0f + x * rest);
    }}
    return exp_f32(x) - 1.0f;
}}
""",
    "log_near": f"""
static float log_near_f32(float f)
{{
    const float s = f / (2.0f + f);
    const float square = s * s;
    const float rest = {_print_horner(_LOG, "square")};
    return f - s * (f - 2.0f * square * rest);
}}
""",
    "log": """
static float log_f32(float x)
{
    int n;
    float m;
    if (!(x > 0.0f)) {
        return x < 0.0f ? NAN : x >= 0.0f ? -INFINITY : x;
    }
    if (x > 3.4028235e38f) {
        return x;
    }
    m = frexpf(x, &n);
    if (m < 0.70710677f) {
        m *= 2.0f;
        n -= 1;
    }
    return (float)n * 0.693359375f + (log_near_f32(m - 1.0f) + (float)n * -2.1219444e-4f);
}
""",
    "log10": """
static float log10_f32(float x)
{
    int n;
    float m;
    if (!(x > 0.0f && x <= 3.4028235e38f)) {
        return log_f32(x);
    }
    m = frexpf(x, &n);
    if (m < 0.70710677f) {
        m *= 2.0f;
        n -= 1;
    }
    return (float)n * 0.30102539f + (log_near_f32(m - 1.0f) * 0.4342945f + (float)n * 4.605039e-6f);
}
""",
    "log2": """
static float log2_f32(float x)
{
    int n;
    float m;
    if (!(x > 0.0f && x <= 3.4028235e38f)) {
        return log_f32(x);
    }
    m = frexpf(x, &n);
    if (m < 0.70710677f) {
        m *= 2.0f;
        n -= 1;
    }
    return (float)n + log_near_f32(m - 1.0f) * 1.442695f;
}
""",
    "log1p": """
static float log1p_f32(float x)
{
    return x > -0.4f && x < 0.6f ? log_near_f32(x) : log_f32(1.0f + x);
}
""",
    "sinh": f"""
static float sinh_f32(float x)
{{
    const float a = fabsf(x);
    if (a < 1.0f) {{
        const float square = x * x;
        const float rest = {_print_horner(_SINH, "square")};
        return x + x * (square * rest);
    }}
    if (!(a < 90.0f)) {{
        return x * INFINITY;
    }}
    const float half = exp_scaled_f32(a, -1);
    const float y = half - 0.25f / half;
    return x < 0.0f ? -y : y;
}}
""",
    "cosh": """
static float cosh_f32(float x)
{
    const float a = fabsf(x);
    if (!(a < 90.0f)) {
        return a * INFINITY;
    }
    const float half = exp_scaled_f32(a, -1);
    return half + 0.25f / half;
}
""",
    "tanh": f"""
static float tanh_f32(float x)
{{
    const float a = fabsf(x);
    if (a < 1e-4f) {{
        return x;
    }}
    if (a < 0.5f) {{
        const float square = x * x;
        return x + x * (square * ({_print_horner(_TANH, "square")}));
    }}
    const float y = a < 10.0f ? 1.0f - 2.0f / (exp_scaled_f32(a + a, 0) + 1.0f) : 1.0f;
    return isnan(x) ? x : x < 0.0f ? -y : y;
}}
""",
    "asinh": """
static float asinh_f32(float x)
{
    const float a = fabsf(x);
    const float y = a > 8192.0f ? log_f32(a) + 0.6931472f : log1p_f32(a * (1.0f + a / (1.0f + sqrtf(a * a + 1.0f))));
    return x < 0.0f ? -y : x > 0.0f ? y : x;
}
""",
    "acosh": """
static float acosh_f32(float x)
{
    const float t = x - 1.0f;
    if (t < 0.0f) {
        return NAN;
    }
    return x > 8192.0f ? log_f32(x) + 0.6931472f : log1p_f32(t + sqrtf(t * (t + 2.0f)));
}
""",
    "atanh": """
static float atanh_f32(float x)
{
    const float a = fabsf(x);
    const float y = 0.5f * log1p_f32((a + a) / (1.0f - a));
    return x < 0.0f ? -y : x > 0.0f ? y : x;
}
""",
    "asin": """
static float asin_f32(float x)
{
    return fabsf(x) < 1.0f ? atanf(x / sqrtf((1.0f - x) * (1.0f + x))) : asinf(x);
}
""",
    "atan2": """
static float atan2_f32(float y, float x)
{
    if (fabsf(y) <= 0.0f && !isnan(x)) {
        return signbit(x) ? copysignf(3.1415927f, y) : y;
    }
    return atan2f(y, x);
}
""",
    "bits_of_quotient": """
static uint32_t bits_of_quotient_f32(int word)
{
    /* 2 / pi, behind 32 zeros */
    return word == 0 ? 0U : word == 1 ? 0xA2F9836EU : word == 2 ? 0x4E441529U : word == 3 ? 0xFC2757D1U
        : word == 4 ? 0xF534DDC0U : word == 5 ? 0xDB629599U : word == 6 ? 0x3C439041U : 0xFE5163ABU;
}
""",
    "window_of_quotient": """
static uint32_t window_of_quotient_f32(int bit)
{
    const int word = bit >> 5;
    const int shift = bit & 31;
    return bits_of_quotient_f32(word) << shift | bits_of_quotient_f32(word + 1) >> 1 >> (31 - shift);
}
""",
    "reduced": """
static float reduced_f32(float x, int *quarter)
{
    int power;
    if (fabsf(x) < 0.7853981f) {
        *quarter = 0;
        return x;
    }
    const float m = frexpf(fabsf(x), &power);
    const uint32_t integer = (uint32_t)(m * 16777216.0f);
    const int bit = power + 6; /* bits before it make whole turns; those behind the third word, less than 2**-70 */
    uint64_t turns = (uint64_t)(integer * window_of_quotient_f32(bit)) << 32;
    turns += (uint64_t)integer * window_of_quotient_f32(bit + 32);
    turns += (uint64_t)integer * window_of_quotient_f32(bit + 64) >> 32;
    const uint64_t whole = (turns + (UINT64_C(1) << 61)) >> 62; /* quarters have 62 bits behind the point */
    turns -= whole << 62;
    const bool below = turns >> 63 != 0U;
    turns = below ? ~turns + 1U : turns;
    int shift = 0;
    while (turns < UINT64_C(1) << 60 && shift < 40) {
        turns <<= 1;
        shift += 1;
    }
    const uint64_t angle = (uint64_t)(uint32_t)(turns >> 30) * 0xC90FDAA2U; /* pi / 2 */
    const float rest = ldexpf((float)(uint32_t)(angle >> 32), -31 - shift);
    *quarter = (int)(x < 0.0f ? -whole & 3U : whole & 3U);
    return below != (x < 0.0f) ? -rest : rest;
}
""",
    "sin_near": f"""
static float sin_near_f32(float x)
{{
    if (fabsf(x) < 1e-4f) {{
        return x;
    }}
    const float square = x * x;
    const float rest = {_print_horner(_SIN, "square")};
    return x + x * (square * rest);
}}
""",
    "cos_near": f"""
static float cos_near_f32(float x)
{{
    const float square = x * x;
    const float rest = {_print_horner(_COS, "square")};
    return 1.0f - (square * 0.5f - square * square * rest);
}}
""",
    "sin": """
static float sin_f32(float x)
{
    int quarter;
    if (!(fabsf(x) <= 3.4028235e38f)) {
        return x - x;
    }
    const float rest = reduced_f32(x, &quarter);
    const float y = (quarter & 1) != 0 ? cos_near_f32(rest) : sin_near_f32(rest);
    return quarter >= 2 ? -y : y;
}
""",
    "cos": """
static float cos_f32(float x)
{
    int quarter;
    if (!(fabsf(x) <= 3.4028235e38f)) {
        return x - x;
    }
    const float rest = reduced_f32(x, &quarter);
    const float y = (quarter & 1) != 0 ? sin_near_f32(rest) : cos_near_f32(rest);
    return quarter == 1 || quarter == 2 ? -y : y;
}
""",
    "tan": """
static float tan_f32(float x)
{
    int quarter;
    if (!(fabsf(x) <= 3.4028235e38f)) {
        return x - x;
    }
    const float rest = reduced_f32(x, &quarter);
    const float sine = sin_near_f32(rest);
    const float cosine = cos_near_f32(rest);
    return (quarter & 1) != 0 ? -cosine / sine : sine / cosine;
}
""",
    "high": """
static float high_f32(float x)
{
    const float c = x * 4097.0f; /* 12 bits, whose products are exact */
    return c - (c - x);
}
""",
    "pow": f"""
static float pow_f32(float x, float y)
{{
    const float a = fabsf(x);
    if (fabsf(y) <= 0.0f || fabsf(x - 1.0f) <= 0.0f) {{
        return 1.0f;
    }}
    if (isnan(x) || isnan(y)) {{
        return x + y;
    }}
    const bool odd = floorf(y) >= y && floorf(y * 0.5f) < y * 0.5f;
    const float sign = signbit(x) && odd ? -1.0f : 1.0f;
    if (!(a > 0.0f && a <= 3.4028235e38f)) {{
        return (a > 0.0f) == (y > 0.0f) ? sign * INFINITY : sign * 0.0f;
    }}
    if (x < 0.0f && floorf(y) < y) {{
        return NAN;
    }}
    int n;
    float m = frexpf(a, &n);
    if (m < 0.70710677f) {{
        m *= 2.0f;
        n -= 1;
    }}
    const float f = m - 1.0f;
    const float s = f / (m + 1.0f);
    const float s_high = high_f32(s);
    const float sum = high_f32(m + 1.0f);
    const float s_low = ((f - s_high * sum) - s_high * (m - (sum - 1.0f))) / (m + 1.0f);
    const float square = s * s;
    const float rest = square * square * ({_print_horner(_POW, "square")}) + s_low * (s_high + s);
    const float head = s_high * s_high;
    const float series = high_f32(3.0f + head + rest); /* log(m) = 2 / 3 s (3 + s**2 + rest) */
    const float product = s_high * series;
    const float tail = s_low * series + (rest - ((series - 3.0f) - head)) * s;
    const float log_high = high_f32(product + tail);
    const float log_low = tail - (log_high - product);
    const float scaled_high = 0.9619140625f * log_high; /* 2 / (3 ln 2) in two parts */
    const float scaled_low = -1.1736857e-4f * log_high + 0.9617967f * log_low;
    const float t = high_f32((float)n + (scaled_high + scaled_low));
    const float t_low = scaled_low - ((t - (float)n) - scaled_high);
    const float limited = y > 4294967296.0f ? 4294967296.0f : y < -4294967296.0f ? -4294967296.0f : y;
    const float high = high_f32(limited);
    const float low = (limited - high) * t + limited * t_low;
    const float power = high * t + low;
    if (power >= 129.0f) {{
        return sign * INFINITY;
    }}
    if (power < -151.0f) {{
        return sign * 0.0f;
    }}
    const float whole = floorf(power + 0.5f);
    return sign * ldexpf(expf((high * t - whole + low) * 0.6931472f), (int)whole);
}}
""",
    "erf": f"""
static float erf_f32(float x)
{{
    const float a = fabsf(x) < 4.0f ? fabsf(x) : 4.0f;
    if (a < 0.9f) {{
        const float square = x * x;
        return x + x * ({_print_horner(_ERF, "square")});
    }}
    const float y = 1.0f - exp_f32(-({_print_horner(_ERFC, "a")}));
    return isnan(x) ? x : x < 0.0f ? -y : y;
}}
""",
    "floor_quotient": """
static float floor_quotient_f32(float a, float b)
{
    const float q = a / b;
    const float whole = floorf(q);
    if (q > whole || !(fabsf(q) < 16777216.0f)) {
        return whole;
    }
    float rest = fmodf(a, b); /* a quotient just below q may have been rounded to it */
    if (rest < 0.0f ? b > 0.0f : rest > 0.0f && b < 0.0f) {
        rest += b;
    }
    return fabsf(rest) > fabsf(b) * 0.5f ? whole - 1.0f : whole;
}
""",
    "rint": """
static float rint_f32(float x)
{
    if (!(x > -8388608.0f && x < 8388608.0f)) {
        return x;
    }
    if (x < 0.0f) {
        return -((8388608.0f - x) - 8388608.0f);
    }
    return x > 0.0f ? (x + 8388608.0f) - 8388608.0f : x;
}
""",
}
MATH_HELPERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {f"{name}_f32": tuple(text.strip().splitlines()) for name, text in _FUNCTION_SOURCES.items()}
)
"""Lines of the C function of each helper for ``<math.h>``, by the helper's name."""
ULP_BOUNDS: Mapping[str, float] = MappingProxyType({
    "acosh": 3.5, "asin": 3.0, "asinh": 4.0, "atan2": 2.5, "atanh": 3.5, "cos": 2.0, "cosh": 2.0, "erf": 2.0, "exp": 2.0,
    "exp2": 2.0, "expm1": 3.0, "log": 1.5, "log10": 2.5, "log1p": 2.5, "log2": 2.5, "pow": 2.0, "rint": 0.0, "sin": 2.0,
    "sinh": 3.0, "tan": 4.0, "tanh": 2.5,
})  # fmt: skip
"""Largest measured error of each function, in units in the last place of the result.

For subnormal results the unit is the smallest subnormal number. The errors were measured against results in extended precision,
with at least 3,000,000 arguments of each function compiled with glibc, and 200,000 compiled with avr-libc 2.0.0 and run in
simavr. The arguments have all exponents, or are near zeros, poles and limits (``tests/codegen/test_libm.py``).
"""
