# SPDX-License-Identifier: Apache-2.0
"""Fixed-point arithmetic: definitions of every rounding, and of transcendental functions as TFLite Micro computes
them."""

from __future__ import annotations

import math
from typing import Any, Protocol, TypeVar

import numpy as np

from microc.base.dtypes import Array
from microc.errors import UnsupportedError

# ---- Fixed-point arithmetic: the one definition of every rounding in microc.
#
# The formulas use operators that numpy int64 arrays and TIR expressions both have, so the reference, the interpreter and the
# printed C share them. ``Arith`` supplies what Python's operators cannot express.
#
# Sources: gemmlowp ``fixedpoint.h`` (SaturatingRoundingDoublingHighMul, RoundingDivideByPOT), TFLite
# ``quantization_util.cc`` (QuantizeMultiplier), TFLite ``common.h`` (MultiplyByQuantizedMultiplier).
#
# With scales that are far apart TFLite Micro's formulas overflow, which C leaves undefined. If the model's constants make it
# overflow, the model is rejected (:func:`quantize_multiplier`); if data can, the operand is saturated first
# (:func:`clamp_and_shift_left`), so that the result is clamped to the end that it would have exceeded.

T = TypeVar("T")

INT32_MIN, INT32_MAX = -(1 << 31), (1 << 31) - 1
TO_WHOLE = 1.5 * (1 << 23)
"""Constant that rounds a float32 below 2**22 in magnitude to the nearest integer when added to it: the sum has no
fraction bits, and the addition rounds half to even."""


class Arith(Protocol[T]):
    """Interface of the operations that the formulas need beyond Python's operators; implemented for numpy arrays and
    for TIR expressions."""

    def widen(self, x: T) -> T:
        """Convert ``x`` to int64."""

    def narrow(self, x: T) -> T:
        """Convert an int64 ``x`` that is known to be in the range of int32 to int32."""

    def wrap(self, x: T) -> T:
        """Convert an int64 ``x`` to int32 modulo 2**32: return its lower 32 bits, in two's complement."""

    def select(self, condition: Any, a: T, b: T) -> T:
        """Return ``a`` where the condition holds, else ``b``."""

    def clamp(self, x: T, low: Any, high: Any) -> T:
        """Clamp ``x`` to the range from ``low`` to ``high``."""


class NumpyArith:
    """:class:`Arith` over numpy arrays. All integers are stored as int64, so that widening and narrowing change
    nothing."""

    def widen(self, x: Any) -> Any:
        return np.asarray(x, dtype=np.int64)

    def narrow(self, x: Any) -> Any:
        return x

    def wrap(self, x: Any) -> Any:
        return np.asarray(x).astype(np.int32).astype(np.int64)

    def select(self, condition: Any, a: Any, b: Any) -> Any:
        return np.where(condition, a, b)

    def clamp(self, x: Any, low: Any, high: Any) -> Any:
        return np.clip(x, low, high)


NUMPY = NumpyArith()


FAR_APART = "check the quantisation of the tensors around it: their scales are too far apart for integer arithmetic"


def quantize_multiplier(multiplier: float, max_shift: int = 30) -> tuple[int, int]:
    """Convert a multiplier to (mantissa, shift): the multiplier is approximately mantissa / 2**31 * 2**shift.

    The mantissa is in [2**30, 2**31), or mantissa and shift are both 0. The mantissa is rounded half away from zero,
    as in TFLite. Multipliers below 2**-32 become zero. Raise UnsupportedError for a multiplier that is negative or
    not finite, and for a shift above ``max_shift``, because the product would then exceed 32 bits."""
    mantissa, shift = mantissa_and_shift(multiplier)
    if not mantissa or shift < -31:
        return 0, 0
    if shift > max_shift:
        raise UnsupportedError(
            f"requantisation: the multiplier is too large; got {multiplier:.3g}, expected at most 2**{max_shift}",
            hint=FAR_APART,
        )
    return mantissa, shift


def mantissa_and_shift(multiplier: float) -> tuple[int, int]:
    """Convert a multiplier to (mantissa, shift) as :func:`quantize_multiplier` does, but without limits of the
    shift."""
    if multiplier == 0.0:
        return 0, 0
    if not (multiplier > 0.0 and math.isfinite(multiplier)):
        raise UnsupportedError(
            f"requantisation: the multiplier is wrong; got {multiplier}, expected a positive finite number",
            hint=FAR_APART,
        )
    fraction, shift = math.frexp(multiplier)
    mantissa = math.floor(fraction * (1 << 31) + 0.5)
    return (mantissa // 2, shift + 1) if mantissa == 1 << 31 else (mantissa, shift)


def doubling_high_mul(a: Any, b: Any, arith: Arith[Any]) -> Any:
    """Return ``round(a * b / 2**31)``, ties to plus infinity: gemmlowp's SaturatingRoundingDoublingHighMul.

    gemmlowp truncates (ab + nudge) / 2**31 with a nudge of 1 - 2**30 for negative products. For every product that
    equals the floor that this function computes. gemmlowp saturates only if both operands are INT32_MIN. That cannot
    occur here, because ``b`` is a mantissa, which is at least 0."""
    return arith.narrow((arith.widen(a) * arith.widen(b) + (1 << 30)) >> 31)


def rounding_shift_right(x: Any, exponent: Any, arith: Arith[Any]) -> Any:
    """Return ``round(x / 2**exponent)``, ties away from zero (gemmlowp's RoundingDivideByPOT), 0 <= exponent <= 31.

    ``exponent`` may be an int, an array or a TIR expression. If it is no int, both alternatives of the select are
    evaluated in int64, so that neither overflows."""
    if isinstance(exponent, int):
        if exponent == 0:
            return x
        wide = arith.widen(x)
        return arith.narrow((wide + (wide >> 63) + (1 << (exponent - 1))) >> exponent)
    wide, e = arith.widen(x), arith.widen(exponent)
    half = (arith.widen(x * 0 + 1) << e) >> 1
    return arith.narrow(arith.select(e > 0, (wide + (wide >> 63) + half) >> e, wide))


def clamp_and_shift_left(x: Any, distance: Any, arith: Arith[Any]) -> Any:
    """Return ``x * 2**distance`` for an int32 ``x``, 0 <= distance <= 30. ``x`` is clamped first, so that the result
    fits int32.

    A clamped x times 2**distance is at least 2**30 in magnitude. Multiplied by any mantissa (at least one half) it
    still exceeds 16 bits, so that a final result of 8 or 16 bits is clamped to the same value as without this
    saturation."""
    if isinstance(distance, int):
        return arith.clamp(x, INT32_MIN >> distance, INT32_MAX >> distance) << distance if distance else x
    least, most = distance * 0 + INT32_MIN >> distance, distance * 0 + INT32_MAX >> distance
    return arith.clamp(x, least, most) << distance


def multiply_double_rounding(x: Any, multiplier: Any, shift: Any, arith: Arith[Any], shift_fits: bool = False) -> Any:
    """Scale ``x`` as TFLite's MultiplyByQuantizedMultiplier with double rounding. A positive ``shift`` is to the left.

    ``x``: int32. ``multiplier``: mantissa from :func:`quantize_multiplier`. The left shift of x saturates. If
    ``shift_fits``, the caller knows that the shifted x fits int32, and the saturation is omitted."""
    if isinstance(shift, int):
        left, right = max(shift, 0), max(-shift, 0)
    else:
        zero = shift * 0
        left, right = arith.select(shift > 0, shift, zero), arith.select(shift > 0, zero, zero - shift)
    shifted = x << left if shift_fits else clamp_and_shift_left(x, left, arith)
    return rounding_shift_right(doubling_high_mul(shifted, multiplier, arith), right, arith)


def multiply_single_rounding(x: Any, multiplier: Any, shift: Any, arith: Arith[Any]) -> Any:
    """Return ``round(x * multiplier * 2**shift / 2**31)`` with one rounding, ties to plus infinity
    (TFLITE_SINGLE_ROUNDING).

    The result saturates to int32 if the multiplier is above one (a positive shift)."""
    total = 31 - shift
    product = arith.widen(x) * arith.widen(multiplier)
    if isinstance(total, int):
        scaled = (product + (1 << (total - 1))) >> total
        return arith.narrow(scaled if shift <= 0 else arith.clamp(scaled, INT32_MIN, INT32_MAX))
    wide_total = arith.widen(total)
    one = arith.widen(x * 0 + 1)
    scaled = (product + (one << (wide_total - 1))) >> wide_total
    return arith.narrow(arith.clamp(scaled, INT32_MIN, INT32_MAX))


def shift_right_even(x: Any, distance: int, tie_margin: int, arith: Arith[Any]) -> Any:
    """Return ``round(x / 2**distance)``, ties to even, distance >= 1.

    An ``x`` within ``tie_margin`` of a tie counts as a tie: factors that were rounded to fixed point move ties by
    less than that. A negative margin asserts that no ties occur; then the code for ties is omitted."""
    lifted = x + ((1 << (distance - 1)) + max(tie_margin, 0))
    level = lifted >> distance
    if tie_margin < 0:
        return level
    # A tie plus half a unit and near has a remainder of 0 .. 2 near: it was rounded up, and clearing bit 0 makes it even.
    return arith.select((lifted & ((1 << distance) - 1)) <= 2 * tie_margin, level & -2, level)


def reduce_multiplier(multiplier: Any) -> Any:
    """Round a mantissa to the 15 bits that TFLite uses with int64 accumulators."""
    m = np.asarray(multiplier, dtype=np.int64)
    reduced = np.where(m < 0x7FFF0000, (m + (1 << 15)) >> 16, 0x7FFF)
    return int(reduced) if reduced.ndim == 0 else reduced


def multiply_by_reduced_factor(x: Any, reduced_multiplier: Any, shift: Any, arith: Arith[Any]) -> Any:
    """Return ``round(x * reduced_multiplier * 2**shift / 2**15)``, ties to plus infinity.

    ``x``: int64 of at most 47 bits and a sign. ``reduced_multiplier``: from :func:`reduce_multiplier`. ``shift`` <= 7.
    A result that does not fit int32 loses its upper bits, as in TFLite."""
    total = 15 - shift
    product = arith.widen(x) * arith.widen(reduced_multiplier)
    if isinstance(total, int):
        return arith.wrap((product + (1 << (total - 1))) >> total)
    wide_total = arith.widen(total)
    one = arith.widen(reduced_multiplier * 0 + 1)
    return arith.wrap((product + (one << (wide_total - 1))) >> wide_total)


def round_half_away(x: Array) -> Array:
    """Round floats to the nearest integer, ties away from zero (C's ``round``, TFLite's ``TfLiteRound``)."""
    floor = np.floor(np.abs(x))
    with np.errstate(invalid="ignore"):  # infinity - infinity is NaN, and infinity rounds to itself
        rounded: Array = np.copysign(floor + (np.abs(x) - floor >= 0.5), x)
    return rounded


def clip_with_nan_as_low(x: Array, low: Any, high: Any) -> Array:
    """Clip floats to the range from ``low`` to ``high``. NaN becomes ``low``, as with the comparisons in the
    generated C."""
    clipped: Array = np.clip(np.where(np.isnan(x), low, x), low, high)
    return clipped


def round_half_even(x: Array) -> Array:
    """Round floats to the nearest integer, ties to even (C's ``rint``, ONNX's rounding)."""
    rounded: Array = np.rint(x)
    return rounded


def round_up_to_multiple(number: int, divisor: int) -> int:
    """Return the least multiple of ``divisor`` that is at least ``number``."""
    return -(-number // divisor) * divisor


# ---- Transcendental functions in fixed point, bit for bit as TFLite Micro computes them.
#
# A value in format Qm.n is an int32 ``raw`` that stands for raw / 2**n, with m + n = 31. The formulas use operators and
# :class:`Arith`, so the numpy reference and the generated loops share them.
#
# Source of the formulas: gemmlowp ``fixedpoint.h`` (exp_on_negative_values, one_over_one_plus_x_for_x_in_0_1, logistic,
# tanh); TFLite ``common.h`` (GetReciprocal).

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
    """Return ``round(x / 2**exponent)`` for x >= 0, ties upwards, exponent >= 1. No intermediate value exceeds 32
    bits."""
    return (x >> exponent) + ((x >> (exponent - 1)) & 1)


def saturating_double(x: Any) -> Any:
    """Return ``2 x`` for 0 <= x < 2**31, saturated to int32 (SaturatingRoundingMultiplyByPOT).

    The formula has no branch. If bit 30 of x is set, 2 x does not fit: all lower bits of the result are then set,
    too."""
    too_large = (x >> 30) & 1
    return (((x | -too_large) & ((1 << 30) - 1)) << 1) + too_large


def exp_on_negative_values(a: Any, integer_bits: int) -> Any:
    """Return exp(a) in Q0.31 for a <= 0, over numpy int64 arrays. ``a`` is in fixed point with ``integer_bits`` (at
    most 5) integer bits.

    ``a`` is split into a remainder by 1/4 and a sum of powers of two. The result is exp of the remainder (a Taylor
    polynomial around -1/8) times exp of each power of two."""
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


def fixed_point_reciprocal(denominator: Any, arith: Arith[Any]) -> Any:
    """Return 1 / d in Q2.29 for a ``denominator`` d in [1/2, 1) in Q0.31, by three Newton steps from 48/17 - 32/17 d.

    The correction x * (1 - d x) is below 2/17, so that its left shift to Q2.29 never saturates; gemmlowp uses a
    saturating shift."""
    x = doubling_high_mul(denominator, NEWTON_SLOPE, arith) + NEWTON_START
    for _ in range(3):
        error = ONE_Q2 - doubling_high_mul(denominator, x, arith)
        x = x + (doubling_high_mul(x, error, arith) << 2)
    return x


def half_of_one_plus(x: Any) -> Any:
    """Return (1 + x) / 2 in Q0.31 for x in [0, 1) in Q0.31. One is represented as 2**31 - 1 (RoundingHalfSum)."""
    return (x >> 1) + (1 << 30)


def logistic(a: Any, integer_bits: int) -> Any:
    """Return 1 / (1 + exp(-a)) in Q0.31 over numpy int64 arrays. ``a`` is in fixed point with ``integer_bits``
    integer bits."""
    decay = exp_on_negative_values(NUMPY.select(a > 0, -a, a), integer_bits)
    positive = saturating_double(fixed_point_reciprocal(half_of_one_plus(decay), NUMPY))
    result = NUMPY.select(a > 0, positive, INT32_MAX - positive)
    return NUMPY.select((a >= 0) & (a <= 0), result * 0 + (1 << 30), result)


def tanh(a: Any, integer_bits: int) -> Any:
    """Return tanh(a) in Q0.31 over numpy int64 arrays. ``a`` is in fixed point with ``integer_bits`` (at most 4)
    integer bits.

    The formula is (1 - x) / (1 + x) with x = exp(-2 |a|), with the sign of a."""
    decay = exp_on_negative_values(NUMPY.select(a > 0, -a, a), integer_bits + 1)
    size = fixed_point_reciprocal(half_of_one_plus(decay), NUMPY) - ONE_Q2
    size = NUMPY.select(size >= ONE_Q2, size * 0 + INT32_MAX, size << 2)
    result = NUMPY.select(a > 0, size, -size)
    return NUMPY.select((a >= 0) & (a <= 0), result * 0, result)


HALF_ROOT_OF_TWO = 1518500250
"""sqrt(2) / 2 in Q0.31."""


def _saturating_shift_left(x: Any, exponent: int, arith: Arith[Any]) -> Any:
    """Return ``x * 2**exponent``, saturated to the largest int32. A negative x must fit without saturation."""
    most = INT32_MAX >> exponent
    shifted = arith.select(x > most, x * 0 + most, x) << exponent
    return arith.select(x > most, x * 0 + INT32_MAX, shifted)


NEWTON_STEPS = 5
ONE_Q3 = 1 << 28


def inverse_root_step(root: Any, half_operand: Any, arith: Arith[Any]) -> Any:
    """Return the next Newton iterate of 1 / sqrt(x), given the current iterate ``root`` and ``half_operand`` = x / 2,
    all in Q3.28.

    The first iterate is one."""
    cube = doubling_high_mul(doubling_high_mul(root, root, arith), root, arith)
    cube = _saturating_shift_left(cube, 6, arith)
    step = doubling_high_mul(root, ONE_Q3 + (ONE_Q3 >> 1), arith) - doubling_high_mul(half_operand, cube, arith)
    return _saturating_shift_left(step, 3, arith)


def inverse_square_root_mantissa_and_shift(x: int) -> tuple[int, int]:
    """Return 1 / sqrt(x) for an int32 x as (mantissa in Q0.31, left shift). An x below 1 counts as 1.

    Source: TFLite ``common.h``, GetInvSqrtQuantizedMultiplierExp."""
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
