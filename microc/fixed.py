"""Fixed-point arithmetic: the one definition of every rounding in microc.

The formulas are written over operators that numpy int64 arrays and TIR expressions both have, so the reference, the
interpreter and the printed C share them. ``Arith`` supplies the three things that operators cannot spell.

Sources: gemmlowp ``fixedpoint.h`` (SaturatingRoundingDoublingHighMul, RoundingDivideByPOT), TFLite
``quantization_util.cc`` (QuantizeMultiplier), TFLite ``common.h`` (MultiplyByQuantizedMultiplier).

Scales that are far apart make these overflow, which C leaves undefined: what TFLite Micro gives then is an accident of its
compiler. Where the numbers of the model decide, it is refused (:func:`quantize_multiplier`); where data do, the operand is
saturated first (:func:`shifted_left`), so that results are clamped to the end that they would have passed.
"""

from __future__ import annotations

import math
from typing import Any, Protocol, TypeVar

import numpy as np

from microc.dtypes import Array
from microc.errors import UnsupportedError

T = TypeVar("T")

INT32_MIN, INT32_MAX = -(1 << 31), (1 << 31) - 1
TO_WHOLE = 1.5 * (1 << 23)
"""Added to a float32 of a magnitude below 2**22 it leaves no bits below one, so that the addition rounds half to even."""


class Arith(Protocol[T]):
    """What the formulas need beyond Python's operators."""

    def wide(self, x: T) -> T:
        """``x`` as int64."""

    def narrow(self, x: T) -> T:
        """``x``, known to fit, as int32."""

    def wrapped(self, x: T) -> T:
        """The lower 32 bits of ``x`` as int32."""

    def select(self, condition: Any, a: T, b: T) -> T:
        """``a`` where the condition holds, else ``b``."""

    def clamp(self, x: T, low: Any, high: Any) -> T:
        """``x`` brought into low..high."""


class NumpyArith:
    """:class:`Arith` over numpy int64 arrays; everything is wide already."""

    def wide(self, x: Any) -> Any:
        return np.asarray(x, dtype=np.int64)

    def narrow(self, x: Any) -> Any:
        return x

    def wrapped(self, x: Any) -> Any:
        return np.asarray(x).astype(np.int32).astype(np.int64)

    def select(self, condition: Any, a: Any, b: Any) -> Any:
        return np.where(condition, a, b)

    def clamp(self, x: Any, low: Any, high: Any) -> Any:
        return np.clip(x, low, high)


NUMPY = NumpyArith()


FAR_APART = "its scales are too far apart for integers: look at how the tensors around it were quantised"


def quantize_multiplier(real: float, most: int = 30) -> tuple[int, int]:
    """``real`` as (mantissa, shift): real = mantissa / 2**31 * 2**shift with mantissa in [2**30, 2**31), or (0, 0).

    The mantissa rounds half away from zero as TFLite's does; multipliers below 2**-32 become zero. UnsupportedError of what is
    no positive number, and of shifts above ``most``, which 32 bits do not hold.
    """
    mantissa, shift = mantissa_and_shift(real)
    if not mantissa or shift < -31:
        return 0, 0
    if shift > most:
        raise UnsupportedError(f"a multiplier of {real:.3g}, which is more than 2**{most}", hint=FAR_APART)
    return mantissa, shift


def mantissa_and_shift(real: float) -> tuple[int, int]:
    """As :func:`quantize_multiplier`, whatever the shift."""
    if real == 0.0:
        return 0, 0
    if not (real > 0.0 and math.isfinite(real)):
        raise UnsupportedError(f"a multiplier of {real}", hint=FAR_APART)
    fraction, shift = math.frexp(real)
    mantissa = math.floor(fraction * (1 << 31) + 0.5)
    return (mantissa // 2, shift + 1) if mantissa == 1 << 31 else (mantissa, shift)


def doubling_high_mul(a: Any, b: Any, k: Arith[Any]) -> Any:
    """``round(a * b / 2**31)``, ties to plus infinity: gemmlowp's SaturatingRoundingDoublingHighMul.

    gemmlowp truncates (ab + nudge) / 2**31 with a nudge of 1 - 2**30 for negative products; that equals the floor
    written here for every product. The one saturating pair (both operands INT32_MIN) cannot occur, for ``b`` is a mantissa >= 0.
    """
    return k.narrow((k.wide(a) * k.wide(b) + (1 << 30)) >> 31)


def rounding_shift_right(x: Any, exponent: Any, k: Arith[Any]) -> Any:
    """``round(x / 2**exponent)``, ties away from zero (gemmlowp's RoundingDivideByPOT), 0 <= exponent <= 31.

    ``exponent`` may be an int or an expression; both arms are evaluated on int64 so that nothing overflows.
    """
    if isinstance(exponent, int):
        if exponent == 0:
            return x
        wide = k.wide(x)
        return k.narrow((wide + (wide >> 63) + (1 << (exponent - 1))) >> exponent)
    wide, e = k.wide(x), k.wide(exponent)
    half = (k.wide(x * 0 + 1) << e) >> 1
    return k.narrow(k.select(e > 0, (wide + (wide >> 63) + half) >> e, wide))


def shifted_left(x: Any, left: Any, k: Arith[Any]) -> Any:
    """``x * 2**left`` of an int32, 0 <= left <= 30; x is saturated so that the result fits int32.

    What was saturated is at least 2**30 in size once ``left`` bits are added, so that any mantissa makes more than 16 bits of it.
    """
    if isinstance(left, int):
        return k.clamp(x, INT32_MIN >> left, INT32_MAX >> left) << left if left else x
    least, most = left * 0 + INT32_MIN >> left, left * 0 + INT32_MAX >> left
    return k.clamp(x, least, most) << left


def multiply_double_rounding(x: Any, multiplier: Any, shift: Any, k: Arith[Any], fits: bool = False) -> Any:
    """TFLite's MultiplyByQuantizedMultiplier with double rounding; ``shift`` positive is to the left.

    x: int32, multiplier: mantissa from :func:`quantize_multiplier`. The left-shifted x saturates, which costs nothing where it
    is known that it ``fits``.
    """
    if isinstance(shift, int):
        left, right = max(shift, 0), max(-shift, 0)
    else:
        zero = shift * 0
        left, right = k.select(shift > 0, shift, zero), k.select(shift > 0, zero, zero - shift)
    shifted = x << left if fits else shifted_left(x, left, k)
    return rounding_shift_right(doubling_high_mul(shifted, multiplier, k), right, k)


def multiply_single_rounding(x: Any, multiplier: Any, shift: Any, k: Arith[Any]) -> Any:
    """``round(x * multiplier * 2**shift / 2**31)``, one rounding, ties to plus infinity (TFLite's TFLITE_SINGLE_ROUNDING).

    The result saturates where the multiplier is above one.
    """
    total = 31 - shift
    product = k.wide(x) * k.wide(multiplier)
    if isinstance(total, int):
        scaled = (product + (1 << (total - 1))) >> total
        return k.narrow(scaled if shift <= 0 else k.clamp(scaled, INT32_MIN, INT32_MAX))
    wide_total = k.wide(total)
    one = k.wide(x * 0 + 1)
    scaled = (product + (one << (wide_total - 1))) >> wide_total
    return k.narrow(k.clamp(scaled, INT32_MIN, INT32_MAX))


def shifted_right_even(x: Any, distance: int, near: int, k: Arith[Any]) -> Any:
    """``round(x / 2**distance)``, ties to even, distance >= 1; x within ``near`` of a tie is one.

    Factors that are no fractions of powers of two move ties by less than ``near``. Where it is negative there are no ties; they
    would go to plus infinity.
    """
    lifted = x + ((1 << (distance - 1)) + max(near, 0))
    level = lifted >> distance
    if near < 0:
        return level
    return k.select((lifted & ((1 << distance) - 1)) <= 2 * near, level & -2, level)


def reduce_multiplier(multiplier: Any) -> Any:
    """The 15-bit mantissa that TFLite uses for int64 accumulators."""
    m = np.asarray(multiplier, dtype=np.int64)
    reduced = np.where(m < 0x7FFF0000, (m + (1 << 15)) >> 16, 0x7FFF)
    return int(reduced) if reduced.ndim == 0 else reduced


def multiply_reduced(x: Any, reduced: Any, shift: Any, k: Arith[Any]) -> Any:
    """``round(x * reduced * 2**shift / 2**15)``, ties to plus infinity, x int64 within 47 bits and a sign, reduced from
    :func:`reduce_multiplier`, shift <= 7. What does not fit int32 loses its upper bits, as in TFLite.
    """
    total = 15 - shift
    product = k.wide(x) * k.wide(reduced)
    if isinstance(total, int):
        return k.wrapped((product + (1 << (total - 1))) >> total)
    wide_total = k.wide(total)
    one = k.wide(reduced * 0 + 1)
    return k.wrapped((product + (one << (wide_total - 1))) >> wide_total)


def round_half_away(x: Array) -> Array:
    """Floats to the nearest integer, ties away from zero (C's ``round``, TFLite's ``TfLiteRound``)."""
    floor = np.floor(np.abs(x))
    with np.errstate(invalid="ignore"):  # an infinity less itself: it rounds to itself
        rounded: Array = np.copysign(floor + (np.abs(x) - floor >= 0.5), x)
    return rounded


def bounded(x: Array, low: Any, high: Any) -> Array:
    """Floats brought into low..high; NaN becomes ``low``, as where C compares."""
    found: Array = np.clip(np.where(np.isnan(x), low, x), low, high)
    return found


def round_half_even(x: Array) -> Array:
    """Floats to the nearest integer, ties to even (C's ``rint``, ONNX's rounding)."""
    rounded: Array = np.rint(x)
    return rounded
