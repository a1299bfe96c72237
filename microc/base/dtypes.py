"""Data types, by their numpy names: ``int8`` ... ``float64``, ``bfloat16``, ``bool``, and vectors such as ``int16x2``, or
``int32xvscalex16``, which has a multiple of 16 lanes that the machine decides on.

A dtype is a plain string, so that it prints, compares and parses without ceremony. This file alone maps it to bits, numpy and C.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from microc.errors import InternalError

Array = NDArray[Any]

_PATTERN = re.compile(r"(int|uint|float)((?<=int)8|16|32|64)(?:x(?:vscalex)?([1-9]\d?))?")
VECTORS = (128, 256, 512)
"""Bits of vector registers."""
SAMPLED = 64
"""Numbers that are looked at before all are."""
HALF = ("float16", "bfloat16")
"""Floats that C99 has no type for: their bits are moved about as ``uint16_t``, arithmetic is done in float32."""


class DTypeInfo(NamedTuple):
    """``kind`` is ``int``, ``uint``, ``float`` or ``bool``; ``bits`` counts one lane; ``lanes`` may be the least of several."""

    kind: str
    bits: int
    lanes: int


@lru_cache(maxsize=256)
def info(dtype: str) -> DTypeInfo:
    """Take a dtype apart; an unknown name is a defect of the caller."""
    if dtype == "bool":
        return DTypeInfo("bool", 8, 1)
    if dtype == "bfloat16":
        return DTypeInfo("float", 16, 1)
    match = _PATTERN.fullmatch(dtype)
    if match is None:
        raise InternalError(f"unknown dtype {dtype!r}")
    return DTypeInfo(match[1], int(match[2]), int(match[3] or 1))


def is_valid(dtype: str) -> bool:
    """Whether ``dtype`` is spelled as a dtype."""
    return dtype in ("bool", "bfloat16") or _PATTERN.fullmatch(dtype) is not None


def is_vector(name: str) -> bool:
    """Whether ``name`` is a dtype of several lanes that fill a vector register, not a word."""
    return is_valid(name) and info(name).lanes > 1 and nbytes(name) > 4


def is_scalable(dtype: str) -> bool:
    """Whether a vector's lanes are a multiple that is known when the program runs."""
    return "vscale" in dtype


def is_float(dtype: str) -> bool:
    return info(dtype).kind == "float"


def is_integer(dtype: str) -> bool:
    return info(dtype).kind in ("int", "uint")


def nbytes(dtype: str) -> int:
    """Bytes of one element (all lanes)."""
    kind = info(dtype)
    return kind.bits * kind.lanes // 8


def int_range(dtype: str) -> tuple[int, int]:
    """Smallest and largest value of an integer dtype (``bool`` counts as 0..1)."""
    kind, bits, _ = info(dtype)
    if kind == "bool":
        return 0, 1
    if kind == "uint":
        return 0, (1 << bits) - 1
    if kind == "int":
        return -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    raise InternalError(f"{dtype} has no integer range")


def holds(wider: str, narrow: str) -> bool:
    """Whether an integer dtype has all numbers of another one."""
    if not (is_integer(wider) and is_integer(narrow)):
        return False
    (low, high), (least, most) = int_range(wider), int_range(narrow)
    return low <= least and most <= high


@lru_cache(maxsize=64)
def to_numpy(dtype: str) -> np.dtype[Any]:
    """The numpy dtype that stores one scalar of ``dtype``."""
    kind, bits, lanes = info(dtype)
    if lanes != 1:
        raise InternalError(f"{dtype} is a vector and has no numpy dtype")
    if dtype == "bfloat16":
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return found
    return np.dtype("bool" if kind == "bool" else f"{kind}{bits}")


def c_name(dtype: str) -> str:
    """The C type of a value: packed integer vectors of 32 bits live in ``int32_t`` as in ACLE, those in vector registers have a
    type of their own name (``int32x4``), which codegen defines."""
    kind, bits, lanes = info(dtype)
    if lanes > 1:
        if kind == "int" and bits * lanes == 32:
            return "int32_t"
        if bits * lanes in VECTORS or is_scalable(dtype):
            return dtype
        raise InternalError(f"{dtype} has no portable C type")
    if kind == "bool":
        return "bool"
    if kind == "float":
        return {16: "uint16_t", 32: "float", 64: "double"}[bits]
    return f"{kind}{bits}_t"


def narrowed(array: Array, dtype: str) -> Array:
    """float32 numbers in a half, rounded to the nearest, ties to even; what is too large becomes infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        found: Array = array.astype(to_numpy(dtype))
    return found


def keeps(array: Array, dtype: str) -> bool:
    """Whether a half has every one of some float32 numbers, zeros of both signs and infinities too. NaN is in none."""
    numbers = array.reshape(-1)
    return _kept(numbers[:SAMPLED], dtype) and _kept(numbers, dtype)


def _kept(numbers: Array, dtype: str) -> bool:
    there: Array = narrowed(numbers, dtype).astype(np.float32)
    return bool((there.view(np.uint32) == numbers.view(np.uint32)).all()) and not bool(np.isnan(numbers).any())
