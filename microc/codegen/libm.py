"""Functions of ``<math.h>`` in portable C, for C libraries that lack them or compute them less exactly (``Family.own_math``).

They compute in float32 and call functions that such libraries have (``expf``, ``logf``, ``sqrtf``, ``ldexpf``, ``frexpf``). With
ln 2 = 0.693359375 - 2.12194440e-4, whose first part has 9 bits, so that its products with whole numbers below 2**15 are exact
(Cody and Waite, Software Manual for the Elementary Functions, 1980):

    exp(x)    =  2**n exp(x - n ln 2),                             n = round(x / ln 2)
    exp2(x)   =  2**n exp((x - n) ln 2),                           n = round(x)
    expm1(x)  =  x (1 + x P(x)) within -1/2 .. 1/2,                else exp(x) - 1
    log2(x)   =  n + log(m) / ln 2,                                x = 2**n m, m within sqrt(1/2) .. sqrt(2)
    log1p(x)  =  2 s (1 + s**2 Q(s**2)), s = x / (2 + x), within -0.4 .. 0.6,   else log(1 + x)
    pow(x, y) =  2**k exp((y n - k + y log2(m)) ln 2),             y n exact in two parts, k the nearest whole number
    sinh(x), cosh(x) = exp(x / 2)**2 / 2 beyond 9, where exp(-2 x) is below 2**-24
    asinh(x)  =  log1p(x (1 + x / (1 + sqrt(x**2 + 1)))),          beyond 2**13 log(x) + ln 2
    acosh(x)  =  log1p(t + sqrt(t (t + 2))), t = x - 1,            beyond 2**13 log(x) + ln 2
    atanh(x)  =  log1p(2 x / (1 - x)) / 2
    erf(x)    =  x P(x**2) / Q(x**2)                               as schedule/polynomials.py has it
    rint(x)   =  (x + 2**23) - 2**23, exactly, ties to even

P and Q have the least relative errors that weighted least squares find (Lawson, 1961): 3.1e-9 and 1.7e-8. On an emulated AVR
operators are held to their tolerances, one case each. Errors over whole ranges: measured: unknown. NaN stays, zeros keep their
sign, limits are C99's.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from microc.codegen.c_expr import single
from microc.schedule.polynomials import ERF


def _horner(coefficients: tuple[float, ...], variable: str) -> str:
    """A polynomial in C, the highest power first."""
    text = single(np.float32(coefficients[0]))
    for number, coefficient in enumerate(coefficients[1:], 1):
        sign = "-" if coefficient < 0 else "+"
        text = f"{text if number == 1 else f'({text})'} * {variable} {sign} {single(np.float32(abs(coefficient)))}"
    return text


_EXPM1 = (1.984981e-4, 1.3996176e-3, 8.333579e-3, 4.166536e-2, 0.16666664, 0.50000006)
_LOG1P = (0.15719944, 0.1994677, 0.3333389)
_LIMIT, _NUMERATOR, _DENOMINATOR = ERF
_TEXTS = {
    "exp": """
static float exp_f32(float x)
{
    if (!(x > -104.0f && x < 89.0f)) {
        return expf(x); /* zero, infinity or NaN */
    }
    const int n = (int)(x * 1.442695f + (x < 0.0f ? -0.5f : 0.5f));
    return ldexpf(expf((x - (float)n * 0.693359375f) - (float)n * -2.1219444e-4f), n);
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
        const float rest = {_horner(_EXPM1, "x")};
        return x * (1.0f + x * rest);
    }}
    return exp_f32(x) - 1.0f;
}}
""",
    "log2": """
static float log2_f32(float x)
{
    int n;
    float m;
    if (!(x > 0.0f && x <= 3.4028235e38f)) {
        return logf(x);
    }
    m = frexpf(x, &n);
    if (m < 0.70710677f) {
        m *= 2.0f;
        n -= 1;
    }
    return (float)n + logf(m) * 1.442695f;
}
""",
    "log1p": f"""
static float log1p_f32(float x)
{{
    if (x > -0.4f && x < 0.6f) {{
        const float s = x / (2.0f + x);
        const float square = s * s;
        const float rest = {_horner(_LOG1P, "square")};
        return (s + s) + (s + s) * (rest * square);
    }}
    return logf(1.0f + x);
}}
""",
    "sinh": """
static float sinh_f32(float x)
{
    if (x > -9.0f && x < 9.0f) {
        return sinhf(x);
    }
    const float root = exp_f32(fabsf(x) * 0.5f);
    return (x < 0.0f ? -0.5f : 0.5f) * root * root;
}
""",
    "cosh": """
static float cosh_f32(float x)
{
    if (x > -9.0f && x < 9.0f) {
        return coshf(x);
    }
    const float root = exp_f32(fabsf(x) * 0.5f);
    return 0.5f * root * root;
}
""",
    "asinh": """
static float asinh_f32(float x)
{
    const float a = fabsf(x);
    const float y = a > 8192.0f ? logf(a) + 0.6931472f : log1p_f32(a * (1.0f + a / (1.0f + sqrtf(a * a + 1.0f))));
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
    return x > 8192.0f ? logf(x) + 0.6931472f : log1p_f32(t + sqrtf(t * (t + 2.0f)));
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
    "atan2": """
static float atan2_f32(float y, float x)
{
    if (fabsf(y) <= 0.0f && fabsf(x) <= 0.0f && signbit(x)) {
        return copysignf(3.1415927f, y);
    }
    return atan2f(y, x);
}
""",
    "pow": """
static float pow_f32(float x, float y)
{
    const float a = fabsf(x);
    int n;
    if (!(fabsf(y) < 16777216.0f && a > 0.0f && a <= 3.4028235e38f)) {
        return powf(fabsf(y) < 16777216.0f ? x : a, y); /* numbers beyond 2**24 are even */
    }
    if (x < 0.0f && y - floorf(y) > 0.0f) {
        return NAN;
    }
    float m = frexpf(a, &n);
    if (m < 0.70710677f) {
        m *= 2.0f;
        n -= 1;
    }
    const float sign = x < 0.0f && y * 0.5f - floorf(y * 0.5f) > 0.0f ? -1.0f : 1.0f;
    const float shifted = y * 4097.0f;
    const float high = shifted - (shifted - y); /* 12 bits (Dekker, 1971), whose product with n is exact */
    const float low = (y - high) * (float)n + y * (logf(m) * 1.442695f);
    const float power = high * (float)n + low;
    if (power >= 129.0f) {
        return sign * INFINITY;
    }
    if (power < -151.0f) {
        return sign * 0.0f;
    }
    const float whole = floorf(power + 0.5f);
    return sign * ldexpf(expf((high * (float)n - whole + low) * 0.6931472f), (int)whole);
}
""",
    "erf": f"""
static float erf_f32(float x)
{{
    const float within = x > {_LIMIT}f ? {_LIMIT}f : x < -{_LIMIT}f ? -{_LIMIT}f : x;
    const float square = within * within;
    const float numerator = {_horner(_NUMERATOR, "square")};
    const float denominator = {_horner(_DENOMINATOR, "square")};
    return within * numerator / denominator;
}}
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
OWN: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {f"{name}_f32": tuple(text.strip().splitlines()) for name, text in _TEXTS.items()}
)
"""Lines of C by the name of the helper."""
