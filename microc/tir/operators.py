# SPDX-License-Identifier: Apache-2.0
"""Operators and mathematical functions of TIR: their semantics, and their notation in TIR text and in C."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.numerics import round_half_away

# ---- Operators: one table entry for each, from which interpreter, printers and parser are derived. Interval arithmetic is in
# :mod:`microc.tir.analysis.linear_forms`, algebraic simplification in :mod:`microc.tir.analysis.simplification`.

Notation = tuple[str, int]
"""Sign of an operator, and its precedence (in Python or in C)."""


def truncdiv(a: int, b: int) -> int:
    """Return the quotient ``a / b`` rounded towards zero, as in C."""
    return a // b if (a >= 0) == (b > 0) else -(-a // b)


def truncmod(a: int, b: int) -> int:
    """Return the remainder of :func:`truncdiv`, as in C. It has the sign of ``a``."""
    return a - truncdiv(a, b) * b


def _truncate_quotient(a: Array, b: Array) -> Array:
    """Return the elementwise quotient of arrays of integers, rounded towards zero."""
    return np.where((a < 0) == (b < 0), abs(a) // abs(b), -(abs(a) // abs(b)))


_FLOORDIV = "return a / b - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);"
_FLOORMOD = """const {type} r = a % b;
return (r != 0 && (r < 0) != (b < 0)) ? r + b : r;"""


@frozen
class Operator:
    """An operator of TIR: its semantics, and its notation in TIR text and in C.

    ``scalar_function``: computes the operator exactly on Python numbers. ``array_function``: computes it on numpy arrays; None
    if ``scalar_function`` also does. ``text_notation``: sign in TIR text and in Python, and its precedence; None if the
    operator is written as a function call. ``c_notation``: sign and precedence in C; None if C calls a helper function.
    ``c_helper_body``: C statements of this function, which compute the result from a and b. ``is_integer_only``: True if the
    operator is defined for integers only."""

    scalar_function: Callable[..., Any]
    text_notation: Notation | None = None
    c_notation: Notation | None = None
    is_integer_only: bool = False
    array_function: Callable[[Array, Array], Array] | None = None
    c_helper_body: str = ""


ARITHMETIC: Mapping[str, Operator] = MappingProxyType(
    {
        "add": Operator(operator.add, ("+", 9), ("+", 12)),
        "sub": Operator(operator.sub, ("-", 9), ("-", 12)),
        "mul": Operator(operator.mul, ("*", 10), ("*", 13)),
        "div": Operator(operator.truediv, ("/", 10), ("/", 13)),
        "floordiv": Operator(
            operator.floordiv,
            ("//", 10),
            None,
            True,
            c_helper_body=_FLOORDIV,
        ),
        "floormod": Operator(operator.mod, ("%", 10), None, True, c_helper_body=_FLOORMOD),
        "truncdiv": Operator(truncdiv, None, ("/", 13), True, _truncate_quotient),
        "truncmod": Operator(truncmod, None, ("%", 13), True, lambda a, b: a - b * _truncate_quotient(a, b)),
        "min": Operator(min, array_function=np.minimum, c_helper_body="return a < b ? a : b;"),
        "max": Operator(max, array_function=np.maximum, c_helper_body="return a > b ? a : b;"),
        "bitand": Operator(operator.and_, ("&", 7), ("&", 8), True),
        "bitor": Operator(operator.or_, ("|", 5), ("|", 6), True),
        "bitxor": Operator(operator.xor, ("^", 6), ("^", 7), True),
        "shl": Operator(operator.lshift, ("<<", 8), ("<<", 11), True),
        "shr": Operator(operator.rshift, (">>", 8), (">>", 11), True),
    }
)
COMPARISONS: Mapping[str, Operator] = MappingProxyType(
    {
        "lt": Operator(operator.lt, ("<", 4), ("<", 10)),
        "le": Operator(operator.le, ("<=", 4), ("<=", 10)),
        "gt": Operator(operator.gt, (">", 4), (">", 10)),
        "ge": Operator(operator.ge, (">=", 4), (">=", 10)),
        "eq": Operator(operator.eq, ("==", 4), ("==", 9)),
        "ne": Operator(operator.ne, ("!=", 4), ("!=", 9)),
    }
)
LOGICAL: Mapping[str, Operator] = MappingProxyType(
    {
        "and": Operator(lambda a, b: a and b, ("and", 2), ("&&", 5), array_function=np.logical_and),
        "or": Operator(lambda a, b: a or b, ("or", 1), ("||", 4), array_function=np.logical_or),
    }
)
BINARY: Mapping[str, Operator] = MappingProxyType({**ARITHMETIC, **COMPARISONS, **LOGICAL})
ARRAYS: Mapping[str, Callable[[Array, Array], Array]] = MappingProxyType(
    {name: each.array_function or each.scalar_function for name, each in BINARY.items() if name != "div"}
)
"""Functions that compute the binary operators on numpy arrays of integers and booleans, by the name of the operator."""
UNARY: Mapping[str, Operator] = MappingProxyType(
    {
        "neg": Operator(operator.neg, ("-", 11), ("-", 14)),
        "not": Operator(operator.not_, ("not ", 3), ("!", 14)),
        "bitnot": Operator(operator.invert, ("~", 11), ("~", 14), True),
    }
)


def _syntax_class(text: str) -> type[ast.AST]:
    """Return the class of the operator in Python's syntax tree of ``text``, which is a single operation."""
    found: Any = ast.parse(text, mode="eval").body
    token: type[ast.AST] = type(found.ops[0] if isinstance(found, ast.Compare) else found.op)
    return token


TOKENS: Mapping[type[ast.AST], str] = MappingProxyType(
    {
        _syntax_class(f"{first}{each.text_notation[0]} b"): name
        for first, table in (("a ", BINARY), ("", UNARY))
        for name, each in table.items()
        if each.text_notation is not None
    }
)
"""Names of the operators by their classes in Python's syntax tree, for the parser of TIR text."""


# ---- Mathematical functions that TIR calls by name, as numpy computes them in the argument's dtype.
#
# numpy's float32 functions are within 4 units in the last place of the true value (numpy's stated limit for its
# vectorised loops; most within 1), like C libraries. ``sqrt``, ``floor``, ``ceil``, ``trunc``, ``rint``, ``round``,
# ``fabs``, ``fmin``, ``fmax`` and ``fmod`` are exact or correctly rounded.


def _absolute(x: Any) -> Any:
    return abs(x)


def _fma(a: Any, b: Any, c: Any) -> Any:
    """Return a * b + c of float32 or float16 values, with a single rounding (fused multiply-add).

    The product is exact in double precision: it has at most 48 of 53 bits. The sum is rounded to odd: if it is inexact and
    its last bit is 0, it is replaced by the neighbouring number in the direction of the error. Rounding the result to
    float32 is then correct, since double precision has at least two more bits (Boldo and Melquiond, Emulation of a FMA and
    correctly rounded sums: proved algorithms using rounding to odd, 2008).
    """
    product, addend = float(a) * float(b), float(c)
    total = product + addend
    if math.isfinite(total):
        # The error of the sum, exactly (Knuth's TwoSum).
        part = total - product
        error = (product - (total - part)) + (addend - part)
        if error and not np.float64(total).view(np.int64) & 1:
            total = math.nextafter(total, math.copysign(math.inf, error))
    return type(c)(total)


FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
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
        "erf": lambda x: type(x)(math.erf(float(x))),  # numpy has none
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
        "sin": np.sin,
        "sinh": np.sinh,
        "sqrt": np.sqrt,
        "tan": np.tan,
        "tanh": np.tanh,
        "trunc": np.trunc,
    }
)
