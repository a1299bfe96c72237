"""Numbers of model files of trees, of text, JSON or binary: converted within a declared range, or refused."""

from __future__ import annotations

from typing import Any

import numpy as np

from microc.dtypes import Array
from microc.errors import ModelError

MOST_TARGETS = 1 << 12
"""Results of one ensemble: each is a column of the C code's output, and a tree of every round."""
_MOST = (1 << 31) - 1


def integers(values: Any, where: str, what: str, least: int = 0, most: int = _MOST) -> Array:
    """Return a row of integers within ``least`` .. ``most`` as int64.

    ModelError for what is no row of whole numbers, and for a number outside: none is rounded, cut or wrapped.
    """
    row = isinstance(values, np.ndarray) and values.dtype.kind in "iu" and values.ndim == 1
    if row and (not values.size or (least <= int(values.min()) and int(values.max()) <= most)):
        return np.asarray(values, np.int64)
    try:
        found = [_whole(value) for value in values]
    except (TypeError, ValueError, OverflowError) as error:
        raise ModelError(f"{what}: {error}; expected whole numbers", where=where) from error
    outside = next((value for value in found if not least <= value <= most), None)
    if outside is not None:
        raise ModelError(f"{what}: got {outside}, expected {least}..{most}", where=where)
    return np.array(found, np.int64)


def reals(values: Any, where: str, what: str, *, finite: bool = True) -> Array:
    """Return a row of numbers as float64; ModelError for NaN, and for infinities of which all are ``finite``."""
    try:
        found: Array = np.array(values, np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ModelError(f"{what}: {error}; expected numbers", where=where) from error
    if found.ndim != 1:
        raise ModelError(f"{what}: got {found.ndim} axes, expected a row of numbers", where=where)
    wrong = ~np.isfinite(found) if finite else np.isnan(found)
    if wrong.any():
        raise ModelError(f"{what}: got {found[wrong][0]}, expected a number", where=where)
    return found


def _whole(value: Any) -> int:
    """Return a number, or a text of one, as an integer; ValueError where it is none."""
    if isinstance(value, str):
        return int(value)
    number = int(value)
    if number != value:
        raise ValueError(f"{value!r} is no whole number")
    return number
