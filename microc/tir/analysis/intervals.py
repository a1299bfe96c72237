# SPDX-License-Identifier: Apache-2.0
"""Interval arithmetic on integers.

An interval is a pair ``(low, high)``, both inclusive; an end is ``-INF`` or ``INF`` if it is unknown. Results are intervals of
exact integers and are not clipped to the range of a dtype, because signed arithmetic must not overflow.
"""

from __future__ import annotations

from microc.base import dtypes

INF = float("inf")
Bound = int | float
Interval = tuple[Bound, Bound]

UNKNOWN: Interval = (-INF, INF)
BOOLEAN: Interval = (0, 1)


def dtype_interval(dtype: str) -> Interval:
    """Return the interval that is assumed for data of a dtype.

    It is the range of the dtype if the dtype has less than 32 bits. Otherwise it is unknown for signed integers and floats,
    and non-negative for unsigned integers."""
    kind, bits, lanes = dtypes.dtype_parts(dtype)
    if kind == "float" or lanes > 1:
        return UNKNOWN
    if kind == "bool" or bits < 32:
        return dtypes.int_range(dtype)
    return (0, INF) if kind == "uint" else UNKNOWN


def within(inner: Interval, outer: Interval) -> bool:
    """Test whether ``outer`` contains ``inner``."""
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def union(a: Interval, b: Interval) -> Interval:
    """Return the smallest interval that contains the intervals ``a`` and ``b``."""
    return min(a[0], b[0]), max(a[1], b[1])


def _multiply_bounds(a: Bound, b: Bound) -> Bound:
    """Return the product of two ends of intervals, where 0 times infinity is 0."""
    return 0 if a == 0 or b == 0 else a * b


def scale(a: Interval, factor: int) -> Interval:
    """Return the interval of ``factor * a``."""
    low, high = _multiply_bounds(a[0], factor), _multiply_bounds(a[1], factor)
    return (low, high) if factor >= 0 else (high, low)


def add(a: Interval, b: Interval) -> Interval:
    """Return the interval of ``a + b``."""
    return a[0] + b[0], a[1] + b[1]


def sub(a: Interval, b: Interval) -> Interval:
    """Return the interval of ``a - b``."""
    return a[0] - b[1], a[1] - b[0]


def mul(a: Interval, b: Interval) -> Interval:
    """Return the interval of ``a * b``."""
    corners = [_multiply_bounds(x, y) for x in a for y in b]
    return min(corners), max(corners)


def floordiv_bound(x: Bound, divisor: int) -> Bound:
    """Return ``x // divisor`` for an end ``x`` of an interval and a positive divisor. An infinite end stays infinite."""
    return x // divisor if isinstance(x, int) else x


def floordiv(a: Interval, b: Interval) -> Interval:
    """Return the interval of ``a // b``, rounded down, if ``b`` is a positive constant; else the unknown interval."""
    if b[0] != b[1] or not isinstance(b[0], int) or b[0] <= 0:
        return UNKNOWN
    return floordiv_bound(a[0], b[0]), floordiv_bound(a[1], b[0])


def floormod(a: Interval, b: Interval) -> Interval:
    """Return the interval of the remainder of floored division, ``a % b``, if ``b`` is positive; else the unknown interval.

    This remainder has the sign of the divisor."""
    if b[0] <= 0:
        return UNKNOWN
    if a[0] >= 0:
        return a if a[1] < b[0] else (0, min(a[1], b[1] - 1))
    return 0, b[1] - 1


def truncdiv(a: Interval, b: Interval) -> Interval:
    """Return the interval of ``a / b``, rounded towards zero, if ``b`` is a positive constant; else the unknown interval."""
    if b[0] != b[1] or not isinstance(b[0], int) or b[0] <= 0:
        return UNKNOWN
    ends = [x if not isinstance(x, int) else (x // b[0] if x >= 0 else -(-x // b[0])) for x in a]
    return ends[0], ends[1]


def truncmod(a: Interval, b: Interval) -> Interval:
    """Return the interval of the remainder of truncated division if ``b`` is positive; else the unknown interval.

    This remainder has the sign of the dividend, as in C."""
    if b[0] <= 0:
        return UNKNOWN
    largest = b[1] - 1
    return max(a[0], -largest) if a[0] < 0 else 0, min(a[1], largest) if a[1] > 0 else 0


def shift_left(a: Interval, b: Interval) -> Interval:
    """Return the interval of ``a << b`` if ``b`` is within 0 to 63; else the unknown interval."""
    if not (isinstance(b[0], int) and isinstance(b[1], int) and 0 <= b[0] <= b[1] < 64):
        return UNKNOWN
    return mul(a, (1 << b[0], 1 << b[1]))


def shift_right(a: Interval, b: Interval) -> Interval:
    """Return the interval of ``a >> b``, rounded down, if ``b`` is within 0 to 63; else the unknown interval."""
    if not (isinstance(b[0], int) and isinstance(b[1], int) and 0 <= b[0] <= b[1] < 64):
        return UNKNOWN
    ends = [floordiv_bound(x, 1 << s) for x in a for s in (b[0], b[1])]
    return min(ends), max(ends)


def bitand(a: Interval, b: Interval) -> Interval:
    """Return the interval of ``a & b``; unknown if both operands may be negative.

    The result is between zero and any operand that is non-negative."""
    highs = [x[1] for x in (a, b) if x[0] >= 0]
    return (0, min(highs)) if highs else UNKNOWN


def bitor(a: Interval, b: Interval) -> Interval:
    """Return the interval of ``a | b`` or ``a ^ b``; unknown unless both operands are non-negative and bounded.

    The result has at most as many bits as the longer operand."""
    if a[0] < 0 or b[0] < 0 or not (isinstance(a[1], int) and isinstance(b[1], int)):
        return UNKNOWN
    return 0, (1 << max(a[1], b[1]).bit_length()) - 1


def minimum(a: Interval, b: Interval) -> Interval:
    """Return the interval of ``min(a, b)``."""
    return min(a[0], b[0]), min(a[1], b[1])


def maximum(a: Interval, b: Interval) -> Interval:
    """Return the interval of ``max(a, b)``."""
    return max(a[0], b[0]), max(a[1], b[1])


def binary(op: str, a: Interval, b: Interval) -> Interval:
    """Return the interval of ``a op b`` for an arithmetic operator on integers; unknown for other operators."""
    match op:
        case "add":
            return add(a, b)
        case "sub":
            return sub(a, b)
        case "mul":
            return mul(a, b)
        case "floordiv":
            return floordiv(a, b)
        case "floormod":
            return floormod(a, b)
        case "truncdiv":
            return truncdiv(a, b)
        case "truncmod":
            return truncmod(a, b)
        case "min":
            return minimum(a, b)
        case "max":
            return maximum(a, b)
        case "shl":
            return shift_left(a, b)
        case "shr":
            return shift_right(a, b)
        case "bitand":
            return bitand(a, b)
        case "bitor" | "bitxor":
            return bitor(a, b)
        case _:
            return UNKNOWN


def compare(op: str, a: Interval, b: Interval) -> bool | None:
    """Return True if the comparison ``a op b`` holds for all values, False if it holds for none, None if it is unknown."""
    match op:
        case "lt":
            return True if a[1] < b[0] else False if a[0] >= b[1] else None
        case "le":
            return True if a[1] <= b[0] else False if a[0] > b[1] else None
        case "gt":
            return compare("lt", b, a)
        case "ge":
            return compare("le", b, a)
        case "eq" | "ne":
            equal = True if a[0] == a[1] == b[0] == b[1] else False if a[1] < b[0] or b[1] < a[0] else None
            return equal if op == "eq" or equal is None else not equal
        case _:
            return None
