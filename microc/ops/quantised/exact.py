"""Scaling in integers that equals exact arithmetic with ties to even, proved for every operand when the network is compiled.

Scales are float32 numbers, so that a scaled sum is a ratio of integers, ``(p1 x1 + p2 x2) / q``. :func:`exact_levels` rounds that
ratio itself. A factor in fixed point is wrong by at most half a unit: its products pass a tie, or move off one. Each candidate
(:class:`Factors`) is compared with the exact levels of all operands; the cheapest that equals them everywhere is taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np

from microc.dtypes import Array
from microc.fixed import NUMPY, shifted_right_even
from microc.frozen import frozen

LARGEST_DOMAIN = 1 << 20
"""The most operands that are compared: 20 ms of numpy."""
_FACTOR_BITS = (31, 52)
"""Factors of int32 first: their products are one instruction on cores with a multiplier of 32 by 32 bits. Scales that are decimal
fractions (0.0123, 0.04) put sums as near to ties as 2**-30, which takes more bits; 52 and 10 of a sum fit int64."""
LARGEST_FACTOR = 1 << 52
_NEAR_TIE = 1e-5
"""Ratios as float64 are right to 2**-30 within 22 bits; those so near a tie are computed in integers of any size."""


def ratio(*scales: float) -> Fraction:
    """The product of ``scales[:-1]`` over the last, each a float32 number."""
    *factors, divisor = (Fraction(float(np.float32(scale))) for scale in scales)
    return math.prod(factors, start=Fraction(1)) / divisor


def exact_levels(terms: Sequence[tuple[Array, Fraction]]) -> Array:
    """The sum of ``x * factor`` of int64 ``x``, exactly, rounded half to even; numbers beyond 22 bits are only large."""
    q = math.lcm(*(factor.denominator for _, factor in terms))
    weights = [int(factor * q) for _, factor in terms]
    most = sum(int(abs(x).max(initial=0)) * abs(weight) for (x, _), weight in zip(terms, weights, strict=True))
    if max(most, q) < 1 << 60:
        total = sum(x * weight for (x, _), weight in zip(terms, weights, strict=True))
        level, rest = np.divmod(np.asarray(total, np.int64), q)
        return np.asarray(level + ((2 * rest > q) | ((2 * rest == q) & (level & 1 == 1))))
    real = np.asarray(sum(x * float(factor) for x, factor in terms), np.float64)
    real = np.clip(real, -(2.0**30), 2.0**30)
    levels = np.asarray(np.rint(real).astype(np.int64))
    near = (abs(real - np.floor(real) - 0.5) < _NEAR_TIE) & (abs(real) < 1 << 22)
    for index in zip(*np.nonzero(near), strict=True):
        levels[index] = round(Fraction(sum(int(x[index]) * w for (x, _), w in zip(terms, weights, strict=True)), q))
    return levels


@frozen
class Factors:
    """``round(sum(x * factor) / 2**distance)``; sums within ``near`` of a tie are one, a negative ``near`` lets ties go up."""

    factors: tuple[int, ...]
    distance: int
    near: int

    def levels(self, operands: Sequence[Array]) -> Array:
        """Compute the levels as the generated code does."""
        total = sum(x * factor for x, factor in zip(operands, self.factors, strict=True))
        return np.asarray(shifted_right_even(np.asarray(total, np.int64), self.distance, self.near, NUMPY))


def proved_factors(terms: Sequence[tuple[Array, Fraction]], low: int, high: int) -> Factors | None:
    """Factors that give the exact levels of all operands, clamped to low..high; None where none of those tried does."""
    operands, wanted = [x for x, _ in terms], np.clip(exact_levels(terms), low, high)
    for found in _candidates(terms):
        if np.array_equal(np.clip(found.levels(operands), low, high), wanted):
            return found
    return None


def _candidates(terms: Sequence[tuple[Array, Fraction]]) -> Iterator[Factors]:
    """Without ties, with exact ones, and with ties that rounded factors move; of few bits first."""
    largest = max(abs(factor) for _, factor in terms)
    sizes = [int(abs(x).max(initial=0)) for x, _ in terms]
    for bits in _FACTOR_BITS:
        distance = bits - 1 - math.ceil(math.log2(largest))
        if not 1 <= distance <= 61 or sum(sizes).bit_length() + bits > 62:
            continue
        scaled = [factor * (1 << distance) for _, factor in terms]
        factors = [round(factor) for factor in scaled]
        errors = [abs(factor - whole) for factor, whole in zip(scaled, factors, strict=True)]
        shorter = 0
        if not any(errors):
            zeros = min((factor & -factor).bit_length() - 1 for factor in factors)
            shorter = max(0, min(zeros, distance - 1))
        moved = math.ceil(sum(size * error for size, error in zip(sizes, errors, strict=True)))
        for near in dict.fromkeys((-1, 0, moved)):
            yield Factors(tuple(factor >> shorter for factor in factors), distance - shorter, near)


def is_exact_scale(scale: float, bound: int, factor: Fraction, low: int, high: int) -> bool:
    """Test whether float32 products by ``scale`` of all integers up to ``bound`` round as exact ones by ``factor`` do, clamped to
    low..high."""
    if 2 * bound > LARGEST_DOMAIN:
        return False
    x = np.arange(-bound, bound + 1)
    with np.errstate(over="ignore"):
        real = np.rint(np.clip(x.astype(np.float32) * np.float32(scale), -(2.0**30), 2.0**30))
    wanted = np.clip(exact_levels(((x, factor),)), low, high)
    return bool(np.array_equal(np.clip(real.astype(np.int64), low, high), wanted))
