"""Fixed-point arithmetic: the one definition of every rounding in microc.

The formulas are written over operators that numpy int64 arrays and TIR expressions both have, so the reference, the
interpreter and the printed C share them. ``Arith`` supplies the three things that operators cannot spell.

Sources: gemmlowp ``fixedpoint.h`` (SaturatingRoundingDoublingHighMul, RoundingDivideByPOT), TFLite
``quantization_util.cc`` (QuantizeMultiplier), TFLite ``common.h`` (MultiplyByQuantizedMultiplier).
"""

from __future__ import annotations

import math
from typing import Any, Protocol, TypeVar

import numpy as np

from microc.dtypes import Array
from microc.errors import InternalError

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

    def select(self, condition: Any, a: T, b: T) -> T:
        """``a`` where the condition holds, else ``b``."""


class NumpyArith:
    """:class:`Arith` over numpy int64 arrays; everything is wide already."""

    def wide(self, x: Any) -> Any:
        return np.asarray(x, dtype=np.int64)

    def narrow(self, x: Any) -> Any:
        return x

    def select(self, condition: Any, a: Any, b: Any) -> Any:
        return np.where(condition, a, b)


NUMPY = NumpyArith()


def quantize_multiplier(real: float) -> tuple[int, int]:
    """``real`` as (mantissa, shift): real = mantissa / 2**31 * 2**shift with mantissa in [2**30, 2**31), or (0, 0).

    The mantissa rounds half away from zero as TFLite's does; multipliers below 2**-32 become zero.
    """
    if real == 0.0:
        return 0, 0
    if not (real > 0.0 and math.isfinite(real)):
        raise InternalError(f"{real} is no quantisation multiplier")
    fraction, shift = math.frexp(real)
    mantissa = math.floor(fraction * (1 << 31) + 0.5)
    if mantissa == 1 << 31:
        mantissa //= 2
        shift += 1
    if shift < -31:
        return 0, 0
    if shift > 30:
        return INT32_MAX, 30
    return mantissa, shift


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


def multiply_double_rounding(x: Any, multiplier: Any, shift: Any, k: Arith[Any]) -> Any:
    """TFLite's MultiplyByQuantizedMultiplier with double rounding; ``shift`` positive is to the left.

    x: int32, multiplier: mantissa from :func:`quantize_multiplier`; the left-shifted x must fit int32.
    """
    if isinstance(shift, int):
        left, right = max(shift, 0), max(-shift, 0)
        shifted = x << left if left else x
        return rounding_shift_right(doubling_high_mul(shifted, multiplier, k), right, k)
    zero = shift * 0
    left, right = k.select(shift > 0, shift, zero), k.select(shift > 0, zero, zero - shift)
    return rounding_shift_right(doubling_high_mul(x << left, multiplier, k), right, k)


def multiply_single_rounding(x: Any, multiplier: Any, shift: Any, k: Arith[Any]) -> Any:
    """``round(x * multiplier * 2**shift / 2**31)``, one rounding, ties to plus infinity (TFLite's TFLITE_SINGLE_ROUNDING)."""
    total = 31 - shift
    product = k.wide(x) * k.wide(multiplier)
    if isinstance(total, int):
        return k.narrow((product + (1 << (total - 1))) >> total)
    wide_total = k.wide(total)
    one = k.wide(x * 0 + 1)
    return k.narrow((product + (one << (wide_total - 1))) >> wide_total)


def reduce_multiplier(multiplier: Any) -> Any:
    """The 15-bit mantissa that TFLite uses for int64 accumulators."""
    m = np.asarray(multiplier, dtype=np.int64)
    reduced = np.where(m < 0x7FFF0000, (m + (1 << 15)) >> 16, 0x7FFF)
    return int(reduced) if reduced.ndim == 0 else reduced


def multiply_reduced(x: Any, reduced: Any, shift: Any, k: Arith[Any]) -> Any:
    """``round(x * reduced * 2**shift / 2**15)``, ties to plus infinity, x int64, reduced from :func:`reduce_multiplier`."""
    total = 15 - shift
    product = k.wide(x) * k.wide(reduced)
    if isinstance(total, int):
        return k.narrow((product + (1 << (total - 1))) >> total)
    wide_total = k.wide(total)
    one = k.wide(reduced * 0 + 1)
    return k.narrow((product + (one << (wide_total - 1))) >> wide_total)


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
