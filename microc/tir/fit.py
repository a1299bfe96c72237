"""Numbers that depend on sizes, as expressions over them: what they are at some sizes is given, the rule is found and checked.

A rule is a sum of at most three products of *extents* (symbols, and strided ones such as ``(height + 1) // 2``) with integer
factors and a constant. It has fewer unknowns than there are points, so that the points left over are a check.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import combinations, combinations_with_replacement
from math import prod

import numpy as np

from microc import dtypes
from microc.errors import InternalError
from microc.frozen import frozen
from microc.tir import ir

Point = tuple[int, ...]
"""A size for every symbol, or the values of something at all points."""
_DEGREE = 3
_DIVISOR = 64
"""The largest number that a product is divided by."""
_SPARE = 2
"""Points that a rule must have left after its unknowns are solved for."""


@frozen
class Extent:
    """Something that products are made of: an int32 expression over the symbols, and what it is at every point."""

    expr: ir.Expr
    values: Point


class Fitter:
    """Finds rules over ``extents``. All methods give None where no rule holds at every point.

    ``domain``: sizes that a run may have, all of them or many, at which divisions must be exact.
    """

    def __init__(self, extents: Sequence[Extent], domain: Sequence[Mapping[str, int]] = ()) -> None:
        self.extents, self.domain = tuple(extents), tuple(domain)
        self.points = len(extents[0].values)
        self.products = tuple(
            Extent(_product(parts), tuple(prod(column) for column in zip(*(p.values for p in parts), strict=True)))
            for degree in range(1, _DEGREE + 1)
            for parts in combinations_with_replacement(self.extents, degree)
        )
        self._known: dict[tuple[Point, int], ir.Expr | None] = {}

    def integer(self, values: Sequence[int], terms: int = 3) -> ir.Expr | None:
        """An int32 expression with these values at the points, of at most so many products."""
        key = tuple(values)
        if len(set(key)) == 1:
            return ir.const(key[0], "int32") if dtypes.int_range("int32")[1] >= abs(key[0]) else None
        if (key, terms) not in self._known:
            self._known[key, terms] = self._rule(key, terms)
        return self._known[key, terms]

    def divides(self, values: Sequence[int], factor: int) -> bool:
        """Whether what has these values at the points is a multiple of a number at all sizes."""
        rule = self.integer(values)
        return rule is not None and all(value_at(rule, sizes) % factor == 0 for sizes in self.domain)

    def real(self, values: Sequence[float], dtype: str) -> ir.Expr | None:
        """A float expression: an integer rule as a float, or a number divided or multiplied by one; equal in every bit."""
        kind = dtypes.to_numpy(dtype).type
        if all(float(v).is_integer() for v in values):
            found = self.integer([int(v) for v in values])
            return None if found is None else ir.Cast(dtype, found)
        wanted = np.array(values, kind)
        for product in self.products:
            steps = np.array(product.values, kind)
            for op, apply, guess in (("div", np.divide, wanted * steps), ("mul", np.multiply, wanted / steps)):
                for constant in dict.fromkeys((float(kind(round(float(guess[0])))), *map(float, guess))):
                    if np.array_equal(apply(kind(constant), steps), wanted):
                        return ir.Bin(op, ir.const(constant, dtype), ir.Cast(dtype, product.expr))
        return None

    def _rule(self, values: Point, terms: int) -> ir.Expr | None:
        for product in self.products:
            if product.values == values:
                return product.expr
        for count in range(1, terms + 1):
            if count + 1 + _SPARE > self.points:
                return None
            usable = self.products if count < 3 else [p for p in self.products if _degree(p.expr) < _DEGREE]
            for chosen in combinations(usable, count):
                factors = _solve([p.values for p in chosen], values)
                if factors is not None:
                    return _sum([p.expr for p in chosen], factors)
        return self._part(values)

    def _part(self, values: Point) -> ir.Expr | None:
        """A product divided by a number, without a rest at any size."""
        for product in self.products:
            part = Fraction(values[0], product.values[0]) if product.values[0] else Fraction(0)
            if not 1 < part.denominator <= _DIVISOR or any(
                v != part * p for v, p in zip(values, product.values, strict=True)
            ):
                continue
            scaled = product.expr if part.numerator == 1 else product.expr * part.numerator
            if all(value_at(scaled, sizes) % part.denominator == 0 for sizes in self.domain):
                return scaled // part.denominator
        return None


def _solve(columns: Sequence[Point], values: Point) -> tuple[int, ...] | None:
    """Integer factors of the columns, none of them 0, and a constant, that give the values exactly."""
    matrix = np.array([*columns, (1,) * len(values)], np.float64).T
    scale = np.abs(matrix).max(axis=0)
    found = np.linalg.lstsq(matrix / scale, np.array(values, np.float64), rcond=None)[0] / scale
    if not np.isfinite(found).all() or np.abs(found).max() > 1 << 52:
        return None
    factors = tuple(round(float(f)) for f in found)
    if 0 in factors[:-1]:
        return None
    for number, value in enumerate(values):
        if sum(f * c[number] for f, c in zip(factors, columns, strict=False)) + factors[-1] != value:
            return None
    return factors


def _degree(expr: ir.Expr) -> int:
    return _degree(expr.a) + 1 if isinstance(expr, ir.Bin) and expr.op == "mul" else 1


def _product(parts: Sequence[Extent]) -> ir.Expr:
    total = parts[0].expr
    for part in parts[1:]:
        total = total * part.expr
    return total


def _sum(products: Sequence[ir.Expr], factors: Sequence[int]) -> ir.Expr:
    """The sum with positive terms first, the constant last."""
    total: ir.Expr | None = None
    for product, factor in sorted(zip(products, factors, strict=False), key=lambda item: item[1] < 0):
        term = product if abs(factor) == 1 else product * abs(factor)
        if total is None:
            total = term if factor > 0 else ir.const(0, "int32") - term
        else:
            total = total + term if factor > 0 else total - term
    assert total is not None
    rest = factors[-1]
    return total if rest == 0 else total + rest if rest > 0 else total - (-rest)


def strided(symbol: ir.Var, pairs: Mapping[int, int], most: int = 64) -> list[tuple[ir.Expr, tuple[int, int, int]]]:
    """Rules ``(a * symbol + b) // c`` that hold for all pairs of (size, value), the smallest divisors first.

    For every divisor all that differ in b are there, as long as they are few; the caller tells them apart by asking for more
    pairs. The second item is (a, b, c).
    """
    found: list[tuple[ir.Expr, tuple[int, int, int]]] = []
    for c in range(2, most + 1):
        for a in range(1, 9):
            low = max(value * c - a * size for size, value in pairs.items())
            high = min(value * c - a * size + c - 1 for size, value in pairs.items())
            for b in range(low, min(high, low + most) + 1):
                scaled = symbol if a == 1 else symbol * a
                moved = scaled if b == 0 else scaled + b if b > 0 else scaled - (-b)
                found.append((moved // c, (a, b, c)))
    return found


def value_at(expr: ir.Expr, sizes: Mapping[str, int]) -> int:
    """What an integer expression over symbols is when they have these sizes."""
    match expr:
        case ir.Const(int() as value):
            return value
        case ir.Var(name):
            return sizes[name]
        case ir.Bin("add", a, b):
            return value_at(a, sizes) + value_at(b, sizes)
        case ir.Bin("sub", a, b):
            return value_at(a, sizes) - value_at(b, sizes)
        case ir.Bin("mul", a, b):
            return value_at(a, sizes) * value_at(b, sizes)
        case ir.Bin("floordiv", a, b):
            return value_at(a, sizes) // value_at(b, sizes)
        case _:
            raise InternalError(f"{expr} is no expression over sizes")
