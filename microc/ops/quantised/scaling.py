# SPDX-License-Identifier: Apache-2.0
"""Fixed-point scaling as TIR expressions: the cheapest sequence of operations that is exact for the known range of its
operand.

:mod:`microc.numerics` defines the results. The expressions built here equal these definitions, which tests check at
edge values. The best sequence depends on the operand's range: an x within -2**30 .. 2**30 - 1 has a spare bit, so that
``high_mul_round`` of 2 x is the doubling high multiply:

    (2 x m + 2**31) >> 32  =  (x m + 2**30) >> 31.

Rounding half away from zero by 2**e, e >= 1, is ``(r + (r >> 31) + 2**(e - 1)) >> e``: the middle term subtracts one
from a negative r, so that its ties round down. The sign of x may replace the sign of its product r: they differ only if
r = 0, and (0 - 1 + 2**(e - 1)) >> e = 0. Therefore ``high_mac_round`` can add both terms. The second term does not
depend on x: a loop over the elements of a channel computes it once.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from microc.base.immutable import frozen
from microc.numerics import (
    INT32_MAX,
    INT32_MIN,
    TO_WHOLE,
    doubling_high_mul,
    multiply_by_reduced_factor,
    multiply_double_rounding,
    multiply_single_rounding,
)
from microc.ops.arithmetic import TIR, clamp_to_dtype
from microc.ops.attributes import Ties
from microc.tir import ir
from microc.tir.ir import Expr

HALF = 1 << 30
"""Mantissa of one half (Q0.31). A multiplication by it is a shift."""
_BELOW_HALF = 0.5 - 2.0**-25
"""The largest float32 below one half."""


ExprAndZeroPointFlag = tuple[Expr, bool]
"""A scaled value, and True if it includes the zero point of the stored result."""


@frozen
class ScaledResult:
    """Parameters of the stored result of a scaling.

    ``zero_point`` is added to the scaled value; the sum is clamped to ``minimum``..``maximum`` and stored as
    ``dtype``."""

    zero_point: int
    minimum: int
    maximum: int
    dtype: str

    def store(self, x: Expr, bound: int) -> Expr:
        """Build the stored result of the scaled int32 ``x``, whose magnitude is at most ``bound``: add the zero point
        and clamp.

        If the sum can overflow int32, ``x`` is clamped before the zero point is added."""
        if bound + abs(self.zero_point) <= INT32_MAX:
            return clamp_to_dtype(x + self.zero_point if self.zero_point else x, self.minimum, self.maximum, self.dtype)
        low = max(self.minimum - self.zero_point, INT32_MIN)
        high = min(self.maximum - self.zero_point, INT32_MAX)
        return ir.cast(self.dtype, clamp_to_dtype(x, low, high, "int32") + self.zero_point)

    @property
    def has_narrow_clamp(self) -> bool:
        """True if the clamp bounds are so narrow that every scaled value of a magnitude from 2**29 on is clamped. Its
        exact value does not matter then."""
        return max(abs(self.minimum - self.zero_point), abs(self.maximum - self.zero_point)) < HALF >> 1

    @property
    def clamps_negative_to_zero_point(self) -> bool:
        """True if every negative scaled value is clamped to the result of 0, as after relu.

        Then its rounding does not matter: for r < 0 either rounding gives a result <= 0, since r + 2**(e-1) < 2**e."""
        return self.minimum >= self.zero_point


@frozen
class FixedPointScale:
    """Fixed-point factor multiplier / 2**31 / 2**right_shift. Multiplier and right shift are integers, or expressions
    if they differ between channels.

    ``right_shift_range``: least and largest value of ``right_shift``. A negative ``right_shift`` is a left shift."""

    multiplier: Expr | int
    right_shift: Expr | int
    right_shift_range: tuple[int, int]

    @staticmethod
    def from_mantissa_and_shift(multiplier: int, shift: int) -> FixedPointScale:
        """Return the scale of a mantissa and a shift in TFLite's convention: positive shifts are to the left."""
        return FixedPointScale(multiplier, -shift, (-shift, -shift))

    @property
    def shift(self) -> Expr | int:
        """Shift in TFLite's convention: positive to the left."""
        match self.right_shift:
            case ir.Bin("sub", ir.Const(value=0), left):
                return left
            case right:
                return -right if isinstance(right, int) else 0 - right


def build_doubling_high_mul(x: Expr, low: int, high: int, mantissa: Expr | int) -> Expr:
    """Build ``doubling_high_mul`` of an int32 within ``low``..``high`` and a mantissa. The result is within +-(2**31 -
    2)."""
    if mantissa == HALF and high < INT32_MAX:
        return (x + 1) >> 1
    factor = ir.as_expr(mantissa, "int32")
    if low >= -HALF and high < HALF:
        return ir.call("high_mul_round", x << 1, factor)
    product: Expr = doubling_high_mul(x, factor, TIR)
    return product


def build_rounding_shift_right(
    value: Expr, bound: int, scale: FixedPointScale, out: ScaledResult | None
) -> ExprAndZeroPointFlag | None:
    """Build the rounding right shift of ``value`` by ``scale.right_shift``; return the expression, and whether it
    includes the zero point of ``out``.

    ``value`` is an int32 with abs(value) <= ``bound`` < 2**31 - 1; ties round away from zero. Return None if no int32
    sequence is exact."""
    least, most = scale.right_shift_range
    if least == most == 0:
        return value, False
    if least < 0 or most > 31:
        return None
    hidden = out is not None and out.clamps_negative_to_zero_point
    if isinstance(scale.right_shift, int):
        exact = value if hidden else value + (value >> 31)
        half, folded = 1 << (most - 1), out.zero_point << most if out is not None else 0
        if folded and bound + 1 + abs(half + folded) <= INT32_MAX:
            return (exact + (half + folded)) >> most, True
        if bound + half <= INT32_MAX:
            return (exact + half) >> most, False
        # Adding half could overflow: shift by all but one bit first, then round by the last bit.
        return ((exact >> (most - 1)) + 1) >> 1, False
    one, fits = ir.const(1, "int32"), bound + (1 << (most - 1)) <= INT32_MAX
    if least >= 1:  # rounding by one bit after a shift by the others avoids computing 2**(right - 1) at run time
        exact = value if hidden else value + (value >> 31)
        half = 1 + (2 * out.zero_point if out is not None else 0)
        if (bound >> (least - 1)) + 1 + abs(half) <= INT32_MAX:
            return ((exact >> (scale.right_shift - 1)) + half) >> 1, out is not None
        return ((exact >> (scale.right_shift - 1)) + 1) >> 1, False
    if not fits or most > 30:
        return None
    exact = value if hidden else value + ir.select(scale.right_shift > 0, value >> 31, 0)
    return (exact + ((one << scale.right_shift) >> 1)) >> scale.right_shift, False


def scale_with_rounding_mac(
    x: Expr, bound: int, scale: FixedPointScale, out: ScaledResult | None
) -> ExprAndZeroPointFlag | None:
    """Build the high product of ``x`` and its rounding shift as one ``high_mac_round`` and one shift.

    abs(x) <= ``bound``. Return the expression, and whether it includes the zero point of ``out``; return None if this
    sequence is not exact. Multipliers are not negative."""
    least, most = scale.right_shift_range
    if bound >= HALF or least < 1 or most > 30 or scale.multiplier == HALF:
        return None
    # The addend in units of half a result: one for rounding, and twice the zero point if the sum still fits int32.
    steps = 1 + (2 * out.zero_point if out is not None else 0)
    folded = out is not None and bound + 1 + (abs(steps) << (most - 1)) <= INT32_MAX
    if not folded:
        steps = 1
    if bound + 1 + (abs(steps) << (most - 1)) > INT32_MAX:
        return None
    if isinstance(scale.right_shift, int):
        half: Expr = ir.const(steps << (most - 1), "int32")
    else:
        half = (ir.const(1, "int32") << (scale.right_shift - 1)) * steps
    if out is None or not out.clamps_negative_to_zero_point:
        half = (x >> 31) + half
    return ir.call("high_mac_round", x << 1, ir.as_expr(scale.multiplier, "int32"), half) >> scale.right_shift, folded


def scale_double_rounding(
    x: Expr, low: int, high: int, scale: FixedPointScale, out: ScaledResult | None = None
) -> Expr:
    """Build ``multiply_double_rounding`` of an int32 within ``low``..``high``. The value is stored as ``out``
    describes, or is an int32 if ``out`` is None.

    The cheapest exact sequence is built: no multiplication, one ``high_mac_round``, a high product and an int32 shift,
    or the definition in 64 bits."""
    scaled: ExprAndZeroPointFlag | None = None
    left = max(-scale.right_shift_range[0], 0)
    fits = low << left >= INT32_MIN and high << left <= INT32_MAX
    is_constant = isinstance(scale.right_shift, int) or not left
    if scale.multiplier == HALF and scale.right_shift == -1 and (fits or (out is not None and out.has_narrow_clamp)):
        scaled = x, False
    elif (sums := scale_with_rounding_mac(x, max(-low, high), scale, out)) is not None:
        scaled = sums
    elif fits and is_constant:
        product = build_doubling_high_mul(x << left if left else x, low << left, high << left, scale.multiplier)
        distance = FixedPointScale(scale.multiplier, 0, (0, 0)) if left else scale
        scaled = build_rounding_shift_right(product, min(max(-low, high) << left, INT32_MAX - 1), distance, out)
    elif fits and scale.right_shift_range[1] <= 0:  # shifts differ between channels, and all are to the left
        scaled = build_doubling_high_mul(x << scale.shift, low << left, high << left, scale.multiplier), False
    if scaled is None:
        scaled = multiply_double_rounding(x, ir.as_expr(scale.multiplier, "int32"), scale.shift, TIR, fits), False
    return _store_scaled_value(scaled, min(max(-low, high) << left, INT32_MAX), out)


def scale_with_high_mac(
    x: Expr, bound: int, scale: FixedPointScale, out: ScaledResult | None
) -> ExprAndZeroPointFlag | None:
    """Build ``round(x * multiplier / 2**31 / 2**right_shift)``, ties up, as one ``high_mac`` and one shift, where
    abs(x) <= ``bound``.

    Return the expression, and whether it includes the zero point of ``out``; return None if this sequence is not exact.
    Multipliers are not negative.

    The high half of the product may be taken before the rounding addend is added, because this addend has no lower
    half: with y = 2**left x,

        (y m + 2**(31 + e)) >> (32 + e)  =  ((y m >> 32) + 2**(e - 1)) >> e,    e = right + left - 1 >= 1.

    The zero point, times 2**e, is part of the same addend. If x has a spare bit it is doubled: vector instructions
    multiply so, and cores that multiply in 16-bit parts can use the knowledge that the bit is spare. For other cores
    the identity ``halved_operand`` removes the doubling; an e that is known only at run time must be at least two for that."""
    is_constant = isinstance(scale.right_shift, int)
    least, most = scale.right_shift_range
    for left in (max(1, (2 if is_constant else 3) - least), 0):
        last, high = most + left - 1, bound << left >> 1
        if x.dtype != "int32" or least + left < 2 or last > 30 or (left and bound > INT32_MAX >> left):
            continue
        for zero in dict.fromkeys((out.zero_point if out is not None else 0, 0)):
            steps, complete = 1 + 2 * zero, out is not None and zero == out.zero_point
            if high + 1 + (abs(steps) << (last - 1)) <= INT32_MAX:
                distance = scale.right_shift if left == 1 else scale.right_shift + (left - 1)
                half = (
                    ir.const(steps << (last - 1), "int32")
                    if is_constant
                    else (ir.const(1, "int32") << (distance - 1)) * steps
                )
                operand = x << left if left else x
                return ir.call("high_mac", operand, ir.as_expr(scale.multiplier, "int32"), half) >> distance, complete
    return None


def build_half_up_shift_right(
    x: Expr, bound: int, distance: int, out: ScaledResult | None
) -> ExprAndZeroPointFlag | None:
    """Build ``round(x / 2**distance)``, ties up, of an int32 with abs(x) <= ``bound`` and 0 <= distance <= 31.

    Return the expression, and whether it includes the zero point of ``out``. Return None if a sum can overflow
    int32."""
    half = 1 << distance >> 1
    if not distance or bound + half > INT32_MAX:
        return None if distance else (x, False)
    folded = out.zero_point << distance if out is not None else 0
    if folded and bound + abs(half + folded) <= INT32_MAX:
        return (x + (half + folded)) >> distance, True
    return (x + half) >> distance, False


def scale_single_rounding(x: Expr, bound: int, scale: FixedPointScale, out: ScaledResult | None = None) -> Expr:
    """Build ``multiply_single_rounding`` of an int32 with abs(x) <= ``bound``. The value is stored as ``out``
    describes, or is an int32 if ``out`` is None.

    The cheapest exact sequence is built: a shift, a high product, one ``high_mac``, or the definition in 64 bits."""
    scaled: ExprAndZeroPointFlag | None = None
    right, left = scale.right_shift, max(-scale.right_shift_range[0], 0)
    if scale.multiplier == HALF and isinstance(right, int) and -1 <= right <= 30:
        scaled = build_half_up_shift_right(x, bound, right + 1, out)
    if scaled is None and isinstance(right, int) and right <= 0 and bound << left <= INT32_MAX:
        scaled = (
            build_doubling_high_mul(x << left if left else x, -bound << left, bound << left, scale.multiplier),
            False,
        )
    if scaled is None:
        scaled = scale_with_high_mac(x, bound, scale, out)
    if scaled is None and right == 1:
        scaled = ir.call("high_mul_round", x, ir.as_expr(scale.multiplier, "int32")), False
    if scaled is None:
        scaled = multiply_single_rounding(x, ir.as_expr(scale.multiplier, "int32"), scale.shift, TIR), False
    return _store_scaled_value(scaled, min(bound << left, INT32_MAX), out)


def _store_scaled_value(scaled: ExprAndZeroPointFlag, bound: int, out: ScaledResult | None) -> Expr:
    """Build the stored result of a scaled value: add the zero point of ``out`` unless the value includes it, and clamp.

    ``scaled``: the value, and whether it includes the zero point. ``bound``: largest magnitude of a value without the
    zero point."""
    value, complete = scaled
    if out is None:
        return value
    return clamp_to_dtype(value, out.minimum, out.maximum, out.dtype) if complete else out.store(value, bound)


def scale_by_reduced_multiplier(x: Expr, bound: int, scale: FixedPointScale, out: ScaledResult) -> Expr:
    """Build ``multiply_by_reduced_factor``, the scaling by a 15-bit multiplier, of an int32 or int64 with abs(x) <=
    ``bound`` (-1: unknown)."""
    multiplier = ir.cast("int32", ir.as_expr(scale.multiplier, "int32"))
    if isinstance(scale.right_shift, int) and isinstance(scale.multiplier, int) and x.dtype == "int32" and bound >= 0:
        total = 15 + scale.right_shift
        half = 1 << (total - 1)
        if bound * scale.multiplier + half <= INT32_MAX:  # the whole product fits 32 bits
            return out.store((x * multiplier + half) >> total, INT32_MAX)
    mantissa = scale.multiplier << 16 if isinstance(scale.multiplier, int) else multiplier << 16
    once = scale_with_high_mac(
        x,
        bound if bound >= 0 else INT32_MAX,
        FixedPointScale(mantissa, scale.right_shift, scale.right_shift_range),
        out,
    )
    if once is not None:
        return _store_scaled_value(once, INT32_MAX, out)
    value = multiply_by_reduced_factor(x, multiplier, scale.shift, TIR)
    return out.store(value, INT32_MAX)


def round_to_int32(x: Expr, lowest_result: int, highest_result: int, rounding: str) -> Expr:
    """Clamp the float32 ``x`` to ``lowest_result``..``highest_result`` and round it to int32: half to ``even``, or half
    ``away`` from zero.

    Ranges below 2**22 need no library function. Half to even: adding 1.5 * 2**23 leaves no fraction bits, and the
    addition itself rounds to even. Half away from zero: x +- p is truncated, where p is the largest float32 below one
    half; with one half itself, the largest float32 below 0.5 would become 1."""
    lowest_result, highest_result = max(lowest_result, INT32_MIN), min(highest_result, INT32_MAX)
    x = ir.clamp(x, least_float32_not_below(lowest_result), largest_float32_not_above(highest_result))
    if max(-lowest_result, highest_result) >= 1 << 22:
        return ir.cast("int32", ir.call("rint" if rounding == Ties.EVEN else "round", x))
    if rounding == Ties.EVEN:
        return ir.cast("int32", (x + TO_WHOLE) - TO_WHOLE)
    return ir.cast("int32", x + ir.select(x < 0.0, ir.const(-_BELOW_HALF, "float32"), _BELOW_HALF))


@lru_cache(maxsize=256)
def least_float32_not_below(value: int) -> float:
    """Return the smallest float32 number that is at least ``value``."""
    return 0.0 - largest_float32_not_above(-value)  # 0.0 - 0.0 is 0.0, where negation gives -0.0


@lru_cache(maxsize=256)
def largest_float32_not_above(value: int) -> float:
    """Return the largest float32 number that is at most ``value``."""
    nearest = np.float32(value)
    return float(nearest if float(nearest) <= value else np.nextafter(nearest, np.float32(-np.inf)))
