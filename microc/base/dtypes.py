# SPDX-License-Identifier: Apache-2.0
"""Data types, by their numpy names: ``int8`` ... ``float64``, ``bfloat16``, ``bool``, and vectors such as ``int16x2``.

A scalable vector (Arm SVE, RISC-V V) is named by its smallest number of lanes: ``int32xvscalex16`` has a multiple of
16 lanes that the hardware decides. A dtype is a plain string, so that it can be printed, compared and parsed without
conversion. Only this file maps dtypes to bits, numpy and C."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from microc.errors import InternalError

Array = NDArray[Any]

_PATTERN = re.compile(r"(int|uint|float)((?<=int)8|16|32|64)(?:x(?:vscalex)?([1-9]\d?))?")
SCREENED_ELEMENTS = 64
"""Number of leading elements of an array that :func:`is_exact_in` tests first. Most arrays are rejected by these
alone, without a scan of all elements."""
HALF = ("float16", "bfloat16")
"""Float dtypes of 16 bits, which have no C99 type. They are stored as the bits of a ``uint16_t``; arithmetic is done
in float32."""


class DTypeInfo(NamedTuple):
    """The components of a dtype's name.

    ``kind`` is ``int``, ``uint``, ``float`` or ``bool``. ``bits`` is the width of one lane. ``lanes`` is the number
    of lanes; for scalable vectors it is the minimum."""

    kind: str
    bits: int
    lanes: int


@lru_cache(maxsize=256)
def dtype_parts(dtype: str) -> DTypeInfo:
    """Return kind, bits and lanes of a dtype. Raise InternalError for an unknown name."""
    if dtype == "bool":
        return DTypeInfo("bool", 8, 1)
    if dtype == "bfloat16":
        return DTypeInfo("float", 16, 1)
    match = _PATTERN.fullmatch(dtype)
    if match is None:
        raise InternalError(f"unknown dtype {dtype!r}")
    return DTypeInfo(match[1], int(match[2]), int(match[3] or 1))


def is_valid(dtype: str) -> bool:
    """Test whether a string is the name of a known dtype, such as ``int8`` or ``int8x4``."""
    return dtype in ("bool", "bfloat16") or _PATTERN.fullmatch(dtype) is not None


@lru_cache(maxsize=256)
def is_vector(dtype: str) -> bool:
    """Test whether ``dtype`` is a vector dtype wider than 32 bits, which needs a vector register."""
    return is_valid(dtype) and dtype_parts(dtype).lanes > 1 and nbytes(dtype) > 4


def is_float(dtype: str) -> bool:
    """Test whether ``dtype`` is a float dtype, scalar or vector."""
    return dtype_parts(dtype).kind == "float"


def is_integer(dtype: str) -> bool:
    """Test whether ``dtype`` is a signed or unsigned integer dtype, scalar or vector."""
    return dtype_parts(dtype).kind in ("int", "uint")


def nbytes(dtype: str) -> int:
    """Return the number of bytes of one element of ``dtype``, with all its lanes."""
    kind = dtype_parts(dtype)
    return kind.bits * kind.lanes // 8


def int_range(dtype: str) -> tuple[int, int]:
    """Return the smallest and the largest value of an integer dtype (``bool`` counts as 0..1)."""
    kind, bits, _ = dtype_parts(dtype)
    if kind == "bool":
        return 0, 1
    if kind == "uint":
        return 0, (1 << bits) - 1
    if kind == "int":
        return -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    raise InternalError(f"{dtype!r} has no integer range; expected an integer dtype or bool")


def contains_range_of(wider: str, narrow: str) -> bool:
    """Test whether the integer dtype ``wider`` represents every value of the integer dtype ``narrow``."""
    if not (is_integer(wider) and is_integer(narrow)):
        return False
    (low, high), (least, most) = int_range(wider), int_range(narrow)
    return low <= least and most <= high


@lru_cache(maxsize=64)
def to_numpy(dtype: str) -> np.dtype[Any]:
    """Return the numpy dtype of a scalar ``dtype``. Raise InternalError for a vector."""
    kind, bits, lanes = dtype_parts(dtype)
    if lanes != 1:
        raise InternalError(f"{dtype!r} has no numpy dtype; expected a scalar dtype")
    if dtype == "bfloat16":
        import ml_dtypes

        converted: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return converted
    return np.dtype("bool" if kind == "bool" else f"{kind}{bits}")


def c_name(dtype: str) -> str:
    """Return the C type that stores a value of ``dtype``.

    An integer vector of 32 bits is packed in an ``int32_t``, as in Arm's ACLE. A vector that needs a vector register
    has a C type named after its dtype (``int32x4``); code generation defines that type."""
    kind, bits, lanes = dtype_parts(dtype)
    if lanes > 1:
        if is_vector(dtype):
            return dtype
        if kind == "int" and bits * lanes == 32:
            return "int32_t"
        raise InternalError(f"{dtype} has no portable C type")
    if kind == "bool":
        return "bool"
    if kind == "float":
        return {16: "uint16_t", 32: "float", 64: "double"}[bits]
    return f"{kind}{bits}_t"


def round_to_16_bit_float(array: Array, dtype: str) -> Array:
    """Round float32 numbers to the 16-bit float ``dtype``, float16 or bfloat16.

    The rounding is to nearest, ties to even; a number that is too large becomes an infinity."""
    with np.errstate(over="ignore", invalid="ignore"):
        converted: Array = array.astype(to_numpy(dtype))
    return converted


def is_exact_in(array: Array, dtype: str) -> bool:
    """Test whether the 16-bit float ``dtype`` represents all float32 numbers of an array exactly.

    Signed zeros and infinities are exact, NaN never is."""
    numbers = array.reshape(-1)
    return _survives_rounding_to(numbers[:SCREENED_ELEMENTS], dtype) and _survives_rounding_to(numbers, dtype)


def _survives_rounding_to(numbers: Array, dtype: str) -> bool:
    """Test whether all float32 numbers keep their bits when they are rounded to the 16-bit float ``dtype`` and
    converted back."""
    there: Array = round_to_16_bit_float(numbers, dtype).astype(np.float32)
    # Bits are compared, not numbers: 0.0 == -0.0 would hide a lost sign.
    return bool((there.view(np.uint32) == numbers.view(np.uint32)).all()) and not bool(np.isnan(numbers).any())
