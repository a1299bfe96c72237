/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions of libgcc for Xtensa LX106. The ESP8266 has them in its ROM; for that reason Debian's libgcc for this core lacks
 * them. A compiler calls them for integers of 64 bits, divisions and floats. They are weak: a libgcc that has them all is used
 * where it is linked for others of its functions.
 *
 * Floats round to nearest, ties to even, as IEEE 754 says, denormals included; every NaN result is the quiet one.
 */
#include <stdint.h>
#include <string.h>

#define WEAK __attribute__((weak, used))
#define FLOAT_BITS 23u
#define DOUBLE_BITS 52u

uint64_t __umulsidi3(uint32_t a, uint32_t b);
int64_t __muldi3(int64_t a, int64_t b);
uint32_t __udivsi3(uint32_t a, uint32_t b);
uint32_t __umodsi3(uint32_t a, uint32_t b);
int32_t __divsi3(int32_t a, int32_t b);
uint64_t __udivmoddi4(uint64_t a, uint64_t b, uint64_t *rest); /* libgcc has it */
uint64_t __udivdi3(uint64_t a, uint64_t b);
uint64_t __umoddi3(uint64_t a, uint64_t b);
int64_t __divdi3(int64_t a, int64_t b);
float __addsf3(float a, float b);
float __subsf3(float a, float b);
float __mulsf3(float a, float b);
float __floatsisf(int32_t a);
float __floatunsisf(uint32_t a);
uint32_t __fixunssfsi(float a);
double __adddf3(double a, double b);
double __subdf3(double a, double b);
double __muldf3(double a, double b);
double __divdf3(double a, double b);
double __floatsidf(int32_t a);
double __floatunsidf(uint32_t a);
int32_t __fixdfsi(double a);
uint32_t __fixunsdfsi(double a);
double __extendsfdf2(float a);
float __truncdfsf2(double a);

/* ---- Integers. The core multiplies to 32 bits: products of halves are exact. */

WEAK uint64_t __umulsidi3(uint32_t a, uint32_t b)
{
    const uint32_t a_low = a & 0xFFFFu, a_high = a >> 16;
    const uint32_t b_low = b & 0xFFFFu, b_high = b >> 16;
    const uint32_t low = a_low * b_low;
    const uint32_t middle = a_high * b_low + (low >> 16); /* below 2^32 */
    const uint32_t cross = a_low * b_high + (middle & 0xFFFFu);
    const uint32_t high = a_high * b_high + (middle >> 16) + (cross >> 16);
    return (uint64_t)high << 32 | (cross << 16 | (low & 0xFFFFu));
}

WEAK int64_t __muldi3(int64_t a, int64_t b)
{
    const uint32_t a_low = (uint32_t)a, a_high = (uint32_t)((uint64_t)a >> 32);
    const uint32_t b_low = (uint32_t)b, b_high = (uint32_t)((uint64_t)b >> 32);
    const uint64_t product = __umulsidi3(a_low, b_low);
    return (int64_t)(product + ((uint64_t)(a_low * b_high + a_high * b_low) << 32));
}

/* Quotient by shifts and subtractions; a quotient by zero is undefined, here 0. */
static uint32_t divide(uint32_t a, uint32_t b, uint32_t *rest)
{
    uint32_t quotient = 0;
    if (b != 0u && a >= b) {
        for (int shift = __builtin_clz(b) - __builtin_clz(a); shift >= 0; shift--) {
            quotient <<= 1;
            if (a >= b << shift) {
                a -= b << shift;
                quotient |= 1u;
            }
        }
    }
    *rest = a;
    return quotient;
}

WEAK uint32_t __udivsi3(uint32_t a, uint32_t b)
{
    uint32_t rest;
    return divide(a, b, &rest);
}

WEAK uint32_t __umodsi3(uint32_t a, uint32_t b)
{
    uint32_t rest;
    (void)divide(a, b, &rest);
    return rest;
}

WEAK int32_t __divsi3(int32_t a, int32_t b)
{
    uint32_t rest;
    const uint32_t quotient = divide(a < 0 ? 0u - (uint32_t)a : (uint32_t)a, b < 0 ? 0u - (uint32_t)b : (uint32_t)b, &rest);
    return (int32_t)((a ^ b) < 0 ? 0u - quotient : quotient);
}

WEAK uint64_t __udivdi3(uint64_t a, uint64_t b)
{
    return __udivmoddi4(a, b, NULL);
}

WEAK uint64_t __umoddi3(uint64_t a, uint64_t b)
{
    uint64_t rest;
    (void)__udivmoddi4(a, b, &rest);
    return rest;
}

WEAK int64_t __divdi3(int64_t a, int64_t b)
{
    const uint64_t quotient =
        __udivmoddi4(a < 0 ? 0u - (uint64_t)a : (uint64_t)a, b < 0 ? 0u - (uint64_t)b : (uint64_t)b, NULL);
    return (int64_t)((a ^ b) < 0 ? 0u - quotient : quotient);
}

/* ---- Floats of both sizes, unpacked: mantissa * 2^exponent, the mantissa's highest bit in bit 63; 0 has mantissa 0. */

enum type { FINITE, INFINITE, NOT_A_NUMBER };

struct number {
    enum type type;
    uint32_t sign;
    int32_t exponent;
    uint64_t mantissa;
};

static int32_t bias(uint32_t bits)
{
    return bits == FLOAT_BITS ? 127 : 1023;
}

static struct number normalise(uint32_t sign, int32_t exponent, uint64_t mantissa)
{
    const int shift = mantissa == 0u ? 0 : __builtin_clzll(mantissa);
    return (struct number){FINITE, sign, exponent - shift, mantissa << shift};
}

static struct number unpack(uint64_t pattern, uint32_t bits)
{
    const int32_t special = 2 * bias(bits) + 1;
    const int32_t exponent = (int32_t)(pattern >> bits & (uint32_t)special);
    const uint64_t fraction = pattern & (((uint64_t)1 << bits) - 1u);
    const uint32_t sign = (uint32_t)(pattern >> (bits == FLOAT_BITS ? 31 : 63)) & 1u;
    const int32_t unit = 1 - bias(bits) - (int32_t)bits; /* exponent of the lowest bit of a denormal number */
    if (exponent == special) {
        return (struct number){fraction != 0u ? NOT_A_NUMBER : INFINITE, sign, 0, 0u};
    }
    if (exponent == 0) {
        return normalise(sign, unit, fraction);
    }
    return normalise(sign, unit + exponent - 1, fraction | (uint64_t)1 << bits);
}

/* Shift right; a bit that is lost stays in the lowest one. */
static uint64_t shift_sticky(uint64_t mantissa, int32_t shift)
{
    if (shift > 63) {
        return mantissa != 0u;
    }
    return mantissa >> shift | ((mantissa & (((uint64_t)1 << shift) - 1u)) != 0u);
}

static uint64_t pack(struct number a, uint32_t bits)
{
    const int32_t special = 2 * bias(bits) + 1;
    const uint64_t sign = (uint64_t)a.sign << (bits == FLOAT_BITS ? 31 : 63);
    const uint32_t dropped = 63u - bits;
    if (a.type == NOT_A_NUMBER) {
        return (uint64_t)special << bits | (uint64_t)1 << (bits - 1u);
    }
    if (a.type == FINITE && a.mantissa == 0u) {
        return sign;
    }
    int32_t exponent = a.exponent + 63 + bias(bits);
    if (a.type == INFINITE || exponent >= special) {
        return sign | (uint64_t)special << bits;
    }
    if (exponent < 1) { /* denormal: its highest bit is no longer the hidden one */
        a.mantissa = shift_sticky(a.mantissa, 1 - exponent);
        exponent = 1;
    }
    const uint64_t kept = a.mantissa >> dropped;
    const uint64_t rest = a.mantissa << (64u - dropped);
    const uint64_t half = (uint64_t)1 << 63;
    const uint64_t up = rest > half || (rest == half && (kept & 1u) != 0u);
    return sign | (((uint64_t)(exponent - 1) << bits) + kept + up); /* the hidden bit adds 1 to the exponent */
}

static struct number add(struct number a, struct number b)
{
    if (a.type == NOT_A_NUMBER || b.type == NOT_A_NUMBER ||
        (a.type == INFINITE && b.type == INFINITE && a.sign != b.sign)) {
        return (struct number){NOT_A_NUMBER, 0u, 0, 0u};
    }
    if (a.type == INFINITE || b.type == INFINITE) {
        return a.type == INFINITE ? a : b;
    }
    if (a.mantissa == 0u || b.mantissa == 0u) {
        if (a.mantissa == b.mantissa) { /* -0 only of two of them */
            a.sign &= b.sign;
            return a;
        }
        return a.mantissa == 0u ? b : a;
    }
    if (a.exponent < b.exponent) {
        const struct number larger = b;
        b = a;
        a = larger;
    }
    /* One bit for the carry; mantissas have 53 bits, so that what is shifted out of a difference is never half a unit. */
    const uint64_t left = a.mantissa >> 1;
    const uint64_t right = shift_sticky(b.mantissa >> 1, a.exponent - b.exponent);
    if (a.sign == b.sign) {
        return normalise(a.sign, a.exponent + 1, left + right);
    }
    if (left == right) {
        return normalise(0u, 0, 0u);
    }
    return left > right ? normalise(a.sign, a.exponent + 1, left - right)
                        : normalise(b.sign, a.exponent + 1, right - left);
}

static struct number multiply(struct number a, struct number b)
{
    const uint32_t sign = a.sign ^ b.sign;
    const int has_zero =
        (a.type == FINITE && a.mantissa == 0u) || (b.type == FINITE && b.mantissa == 0u);
    if (a.type != FINITE || b.type != FINITE) {
        const int is_nan = a.type == NOT_A_NUMBER || b.type == NOT_A_NUMBER || has_zero;
        return (struct number){is_nan ? NOT_A_NUMBER : INFINITE, sign, 0, 0u};
    }
    const uint32_t a_low = (uint32_t)a.mantissa, a_high = (uint32_t)(a.mantissa >> 32);
    const uint32_t b_low = (uint32_t)b.mantissa, b_high = (uint32_t)(b.mantissa >> 32);
    const uint64_t low = __umulsidi3(a_low, b_low);
    const uint64_t middle = __umulsidi3(a_high, b_low) + (low >> 32);
    const uint64_t cross = __umulsidi3(a_low, b_high) + (uint32_t)middle;
    const uint64_t high = __umulsidi3(a_high, b_high) + (middle >> 32) + (cross >> 32);
    return normalise(sign, a.exponent + b.exponent + 64, high | ((uint32_t)cross != 0u || (uint32_t)low != 0u));
}

static struct number divide_numbers(struct number a, struct number b)
{
    const uint32_t sign = a.sign ^ b.sign;
    const int a_zero = a.type == FINITE && a.mantissa == 0u;
    const int b_zero = b.type == FINITE && b.mantissa == 0u;
    if (a.type == NOT_A_NUMBER || b.type == NOT_A_NUMBER || (a_zero && b_zero) ||
        (a.type == INFINITE && b.type == INFINITE)) {
        return (struct number){NOT_A_NUMBER, 0u, 0, 0u};
    }
    if (a_zero || b.type == INFINITE) {
        return normalise(sign, 0, 0u);
    }
    if (a.type == INFINITE || b_zero) {
        return (struct number){INFINITE, sign, 0, 0u};
    }
    const uint64_t divisor = b.mantissa >> 1; /* exact: 53 bits of 64 are in use */
    uint64_t rest = a.mantissa >> 1;
    uint64_t quotient = 0;
    for (int bit = 0; bit < 62; bit++) {
        quotient <<= 1;
        if (rest >= divisor) {
            rest -= divisor;
            quotient |= 1u;
        }
        rest <<= 1;
    }
    return normalise(sign, a.exponent - b.exponent - 61, quotient | (rest != 0u));
}

/* Towards zero; what does not fit, which C leaves undefined, becomes the nearest that does. */
static uint32_t magnitude(struct number a, uint32_t most)
{
    const int32_t shift = -a.exponent;
    if (a.type == NOT_A_NUMBER || (a.type == FINITE && (a.mantissa == 0u || shift > 63))) {
        return 0u;
    }
    if (a.type == INFINITE || shift < 32 || a.mantissa >> shift > most) {
        return most;
    }
    return (uint32_t)(a.mantissa >> shift);
}

static struct number from_float(float a)
{
    uint32_t pattern;
    (void)memcpy(&pattern, &a, sizeof pattern);
    return unpack(pattern, FLOAT_BITS);
}

static struct number from_double(double a)
{
    uint64_t pattern;
    (void)memcpy(&pattern, &a, sizeof pattern);
    return unpack(pattern, DOUBLE_BITS);
}

static float to_float(struct number a)
{
    const uint32_t pattern = (uint32_t)pack(a, FLOAT_BITS);
    float result;
    (void)memcpy(&result, &pattern, sizeof result);
    return result;
}

static double to_double(struct number a)
{
    const uint64_t pattern = pack(a, DOUBLE_BITS);
    double result;
    (void)memcpy(&result, &pattern, sizeof result);
    return result;
}

static struct number negate(struct number a)
{
    a.sign ^= 1u;
    return a;
}

static struct number from_integer(int32_t a)
{
    return normalise(a < 0, 0, a < 0 ? 0u - (uint32_t)a : (uint32_t)a);
}

WEAK float __addsf3(float a, float b)
{
    return to_float(add(from_float(a), from_float(b)));
}

WEAK float __subsf3(float a, float b)
{
    return to_float(add(from_float(a), negate(from_float(b))));
}

WEAK float __mulsf3(float a, float b)
{
    return to_float(multiply(from_float(a), from_float(b)));
}

WEAK float __floatsisf(int32_t a)
{
    return to_float(from_integer(a));
}

WEAK float __floatunsisf(uint32_t a)
{
    return to_float(normalise(0u, 0, a));
}

WEAK uint32_t __fixunssfsi(float a)
{
    const struct number number = from_float(a);
    return number.sign != 0u ? 0u : magnitude(number, 0xFFFFFFFFu);
}

WEAK double __adddf3(double a, double b)
{
    return to_double(add(from_double(a), from_double(b)));
}

WEAK double __subdf3(double a, double b)
{
    return to_double(add(from_double(a), negate(from_double(b))));
}

WEAK double __muldf3(double a, double b)
{
    return to_double(multiply(from_double(a), from_double(b)));
}

WEAK double __divdf3(double a, double b)
{
    return to_double(divide_numbers(from_double(a), from_double(b)));
}

WEAK double __floatsidf(int32_t a)
{
    return to_double(from_integer(a));
}

WEAK double __floatunsidf(uint32_t a)
{
    return to_double(normalise(0u, 0, a));
}

WEAK int32_t __fixdfsi(double a)
{
    const struct number number = from_double(a);
    const uint32_t result = magnitude(number, number.sign != 0u ? 0x80000000u : 0x7FFFFFFFu);
    return (int32_t)(number.sign != 0u ? 0u - result : result);
}

WEAK uint32_t __fixunsdfsi(double a)
{
    const struct number number = from_double(a);
    return number.sign != 0u ? 0u : magnitude(number, 0xFFFFFFFFu);
}

WEAK double __extendsfdf2(float a)
{
    return to_double(from_float(a));
}

WEAK float __truncdfsf2(double a)
{
    return to_float(from_double(a));
}
