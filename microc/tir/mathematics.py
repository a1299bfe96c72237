"""The mathematical functions that TIR calls by name, as numpy computes them in the argument's own dtype.

numpy's float32 functions lie within 4 units in the last place of the true value (numpy's own stated limit for its
vectorised loops; most within 1), as C libraries do; ``sqrt``, ``floor``, ``ceil``, ``trunc``, ``rint``, ``round``, ``fabs``,
``fmin``, ``fmax`` and ``fmod`` are exact or correctly rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from microc.fixed import round_half_away


def _through_double(f: Callable[[float], float]) -> Callable[[Any], Any]:
    return lambda x: type(x)(f(float(x)))


def _absolute(x: Any) -> Any:
    return abs(x)


def _rsqrt(x: Any) -> Any:
    return type(x)(1) / np.sqrt(x)


def _sigmoid(x: Any) -> Any:
    one = type(x)(1)
    return one / (one + np.exp(-x))


def _fma(a: Any, b: Any, c: Any) -> Any:
    """a * b + c of float32, or of float16, with one rounding.

    The product is exact in double. The sum is rounded to odd there: when it is inexact and its last bit is 0, it moves to
    the neighbour on the side of the error. Rounding that to float32, which has less than half the digits, is then right.
    """
    product, addend = float(a) * float(b), float(c)
    total = product + addend
    if math.isfinite(total):
        part = total - product
        error = (product - (total - part)) + (addend - part)
        if error and not np.float64(total).view(np.int64) & 1:
            total = math.nextafter(total, math.copysign(math.inf, error))
    return type(c)(total)


FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "abs": _absolute,
        "acos": np.arccos,
        "acosh": np.arccosh,
        "asin": np.arcsin,
        "asinh": np.arcsinh,
        "atan": np.arctan,
        "atan2": np.arctan2,
        "atanh": np.arctanh,
        "cbrt": np.cbrt,
        "ceil": np.ceil,
        "cos": np.cos,
        "cosh": np.cosh,
        "erf": _through_double(math.erf),
        "exp": np.exp,
        "exp2": np.exp2,
        "expm1": np.expm1,
        "fabs": _absolute,
        "floor": np.floor,
        "fma": _fma,
        "fmax": np.fmax,
        "fmin": np.fmin,
        "fmod": np.fmod,
        "hypot": np.hypot,
        "log": np.log,
        "log10": np.log10,
        "log1p": np.log1p,
        "log2": np.log2,
        "pow": np.power,
        "rint": np.rint,
        "round": lambda x: type(x)(round_half_away(x)),
        "rsqrt": _rsqrt,
        "sigmoid": _sigmoid,
        "sin": np.sin,
        "sinh": np.sinh,
        "sqrt": np.sqrt,
        "tan": np.tan,
        "tanh": np.tanh,
        "trunc": np.trunc,
    }
)
