"""Transcendental functions in fixed point, bit for bit as TFLite Micro computes them.

A value in format Qm.n is an int32 ``raw`` that stands for raw / 2**n, with m + n = 31. Formulas are written over operators and
:class:`microc.fixed.Arith`, so the numpy reference and the generated loops share them.

Source of the formulas: gemmlowp ``fixedpoint.h`` (exp_on_negative_values, one_over_one_plus_x_for_x_in_0_1, logistic,
tanh); TFLite ``common.h`` (GetReciprocal).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from microc.fixed import INT32_MAX, NUMPY, Arith, doubling_high_mul, rounding_shift_right

ONE_THIRD = round((1 << 31) / 3)
EXP_OF_EIGHTH = 1895147668  # exp(-1/8) in Q0.31
EXP_OF_POWERS = {  # exp(-2**k) in Q0.31
    -2: 1672461947,
    -1: 1302514674,
    0: 790015084,
    1: 290630308,
    2: 39332535,
    3: 720401,
    4: 242,
}
NEWTON_START, NEWTON_SLOPE = 1515870810, -1010580540  # 48/17 and -32/17 in Q2.29
ONE_Q2 = 1 << 29


def shift_right_half_up(x: Any, exponent: int) -> Any:
    """``round(x / 2**exponent)`` of x >= 0, ties upwards, exponent >= 1, without leaving 32 bits."""
    return (x >> exponent) + ((x >> (exponent - 1)) & 1)


def saturating_double(x: Any) -> Any:
    """``2 x`` for 0 <= x < 2**31; what does not fit int32 becomes its largest value (SaturatingRoundingMultiplyByPOT).

    Without a branch: bit 30 says whether it fits, and sets all the bits below it if not.
    """
    too_large = (x >> 30) & 1
    return (((x | -too_large) & ((1 << 30) - 1)) << 1) + too_large


def exp_on_negative_values(a: Any, integer_bits: int) -> Any:
    """exp(a) in Q0.31 of a <= 0 with ``integer_bits`` (at most 5) integer bits, over numpy int64 arrays.

    exp of the remainder of a by a quarter (a Taylor polynomial around -1/8) times exp of the powers of two in the rest.
    """
    fraction = 31 - integer_bits
    quarter = 1 << (fraction - 2)
    remainder = (a & (quarter - 1)) - quarter
    rest = remainder - a
    x = (remainder << integer_bits) + (1 << 28)
    square = doubling_high_mul(x, x, NUMPY)
    cube = doubling_high_mul(square, x, NUMPY)
    fourth = doubling_high_mul(square, square, NUMPY)
    tail = doubling_high_mul(rounding_shift_right(fourth, 2, NUMPY) + cube, ONE_THIRD, NUMPY) + square
    polynomial = x + rounding_shift_right(tail, 1, NUMPY)
    result = EXP_OF_EIGHTH + doubling_high_mul(EXP_OF_EIGHTH, polynomial, NUMPY)
    for power, factor in EXP_OF_POWERS.items():
        if integer_bits > power:
            bit = (rest >> (fraction + power)) & 1
            result = NUMPY.select(bit > 0, doubling_high_mul(result, factor, NUMPY), result)
    return NUMPY.select(a >= 0, result * 0 + INT32_MAX, result)


def reciprocal(half_denominator: Any, k: Arith[Any]) -> Any:
    """1 / d in Q2.29 of d in [1/2, 1) in Q0.31: three Newton steps from 48/17 - 32/17 d.

    The step x * (1 - d x) is below 2/17, so its shift to Q2.29 never saturates as gemmlowp's may.
    """
    x = doubling_high_mul(half_denominator, NEWTON_SLOPE, k) + NEWTON_START
    for _ in range(3):
        error = ONE_Q2 - doubling_high_mul(half_denominator, x, k)
        x = x + (doubling_high_mul(x, error, k) << 2)
    return x


def half_of_one_plus(x: Any) -> Any:
    """(1 + x) / 2 in Q0.31 of x in [0, 1) in Q0.31, where one is 2**31 - 1 (RoundingHalfSum)."""
    return (x >> 1) + (1 << 30)


def logistic(a: Any, integer_bits: int) -> Any:
    """1 / (1 + exp(-a)) in Q0.31 of any a with ``integer_bits`` integer bits, over numpy int64 arrays."""
    decay = exp_on_negative_values(NUMPY.select(a > 0, -a, a), integer_bits)
    positive = saturating_double(reciprocal(half_of_one_plus(decay), NUMPY))
    result = NUMPY.select(a > 0, positive, INT32_MAX - positive)
    return NUMPY.select((a >= 0) & (a <= 0), result * 0 + (1 << 30), result)


def tanh(a: Any, integer_bits: int) -> Any:
    """tanh(a) in Q0.31 of any a with ``integer_bits`` (at most 4) integer bits: (1 - x) / (1 + x) with x = exp(-2 |a|)."""
    decay = exp_on_negative_values(NUMPY.select(a > 0, -a, a), integer_bits + 1)
    size = reciprocal(half_of_one_plus(decay), NUMPY) - ONE_Q2
    size = NUMPY.select(size >= ONE_Q2, size * 0 + INT32_MAX, size << 2)
    result = NUMPY.select(a > 0, size, -size)
    return NUMPY.select((a >= 0) & (a <= 0), result * 0, result)


HALF_ROOT_OF_TWO = 1518500250
"""sqrt(2) / 2 in Q0.31."""


def _saturating_shift_left(x: Any, exponent: int, k: Arith[Any]) -> Any:
    """``x * 2**exponent`` within int32."""
    most = INT32_MAX >> exponent
    shifted = k.select(x > most, x * 0 + most, x) << exponent
    return k.select(x > most, x * 0 + INT32_MAX, shifted)


NEWTON_STEPS = 5
ONE_Q3 = 1 << 28


def inverse_root_step(root: Any, half: Any, k: Arith[Any]) -> Any:
    """A Newton step towards 1 / sqrt(2 ``half``), everything Q3.28; it starts from one."""
    cube = doubling_high_mul(doubling_high_mul(root, root, k), root, k)
    cube = _saturating_shift_left(cube, 6, k)
    step = doubling_high_mul(root, ONE_Q3 + (ONE_Q3 >> 1), k) - doubling_high_mul(half, cube, k)
    return _saturating_shift_left(step, 3, k)


def inverse_square_root(x: int) -> tuple[int, int]:
    """(mantissa in Q0.31, shift to the left) of 1 / sqrt(x) of an int32 x (TFLite ``common.h``,
    GetInvSqrtQuantizedMultiplierExp); 0 counts as 1."""
    if x <= 1:
        return INT32_MAX, 0
    right = 11
    while x >= 1 << 29:
        x, right = x // 4, right + 1
    pairs = (32 - x.bit_length() - 1) // 2 - 1
    right -= pairs
    half, root = rounding_shift_right(np.int64((x << 2 * pairs) >> 1), 1, NUMPY), np.int64(ONE_Q3)
    for _ in range(NEWTON_STEPS):
        root = inverse_root_step(root, half, NUMPY)
    mantissa = int(doubling_high_mul(root, HALF_ROOT_OF_TWO, NUMPY))
    return (mantissa << -right, 0) if right < 0 else (mantissa, -right)
