"""Numbers that depend on sizes: forms, fits, ranges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations, combinations_with_replacement
from math import prod
from types import MappingProxyType

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import InternalError
from microc.tir import ir

# ---- Index expressions as sums over loop variables, at many sizes side by side.
#
# A :class:`Form` is ``sum(terms[v] * v)`` and something between ``low`` and ``high``. Every number is an array: one element for
# all sizes, or one for each. What is not linear becomes a part of ``low`` and ``high``; but a variable whose quotient and
# remainder by something are asked for is taken for two variables, its *digits*, so that the index of a pixel tells row and
# column.

_LARGER = MappingProxyType({"gt": (1, 1), "ge": (1, 0), "lt": (-1, 1), "le": (-1, 0)})
"""By comparison of two integers: the sign of the difference that is at least so much where it holds."""


@frozen
class Form:
    """``sum(terms[v] * v)`` and something from ``low`` to ``high``, int64."""

    terms: Mapping[ir.Var, Array]
    low: Array
    high: Array

    def plus(self, other: Form) -> Form:
        terms = dict(self.terms)
        for var, factor in other.terms.items():
            terms[var] = terms[var] + factor if var in terms else factor
        return Form({v: f for v, f in terms.items() if f.any()}, self.low + other.low, self.high + other.high)

    def times(self, factor: Array) -> Form:
        ends = self.low * factor, self.high * factor
        return Form({v: f * factor for v, f in self.terms.items()}, np.minimum(*ends), np.maximum(*ends))

    def renamed(self, names: Mapping[ir.Var, Form]) -> Form:
        """With forms in the place of variables."""
        total = Form({}, self.low, self.high)
        for var, factor in self.terms.items():
            total = total.plus(names[var].times(factor))
        return total

    @property
    def slopes(self) -> frozenset[tuple[ir.Var, bytes]]:
        """Its terms as something to compare."""
        return frozenset((var, factor.tobytes()) for var, factor in self.terms.items())

    @property
    def key(self) -> tuple[object, ...]:
        """Something to compare it by."""
        return self.slopes, self.low.tobytes(), self.high.tobytes()

    @staticmethod
    def around(forms: Sequence[Form], var: ir.Var) -> tuple[Form, Array]:
        """What reaches over some forms with the same terms: a sum with one more variable, and how many turns that has."""
        low = np.minimum.reduce(np.broadcast_arrays(*(form.low for form in forms)))
        width = np.maximum.reduce(np.broadcast_arrays(*(form.high - form.low for form in forms)))
        offsets = np.broadcast_arrays(*(form.low - low for form in forms))
        step = np.maximum(np.gcd.reduce(offsets), 1)
        return Form({**forms[0].terms, var: step}, low, low + width), np.maximum.reduce(offsets) // step + 1

    @property
    def number(self) -> Array | None:
        """What it is at every size, if no loop decides."""
        return self.low if not self.terms and np.array_equal(self.low, self.high) else None


def _constant(value: Array) -> Form:
    return Form({}, value, value)


@dataclass(slots=True)
class Forms:
    """Forms of expressions. ``sizes``: what the scalars are, side by side; ``extents``: the most turns of loop variables, None
    where nobody knows; ``digits``: variables that are ``divisor`` times one variable plus another."""

    sizes: Mapping[str, Array]
    extents: dict[ir.Var, Array | None] = field(default_factory=dict)
    digits: dict[ir.Var, tuple[ir.Var, ir.Var, Array]] = field(default_factory=dict)

    def loop(self, var: ir.Var, extent: ir.Expr) -> None:
        """Make the variable of a loop known."""
        self.extents[var] = self.longest(extent)

    def longest(self, extent: ir.Expr) -> Array | None:
        """The most turns of a loop at every size; of an endless one, and of one that data end, unknown."""
        if isinstance(extent, ir.Bin) and extent.op == "min":
            known = [most for most in map(self.longest, (extent.a, extent.b)) if most is not None]
            return np.asarray(np.minimum.reduce(np.broadcast_arrays(*known))) if known else None
        form = None if ir.int_value(extent) == ir.ENDLESS else self.of(extent)
        return None if form is None else self.range(form)[1]

    def variables(self, var: ir.Var) -> tuple[ir.Var, ...]:
        """A loop as nested loops over its digits."""
        if var not in self.digits:
            return (var,)
        high, low, _ = self.digits[var]
        return (*self.variables(high), *self.variables(low))

    def range(self, form: Form) -> tuple[Array, Array]:
        """The smallest and the largest that a form can be, at every size."""
        low, high = form.low, form.high
        for var, factor in form.terms.items():
            reach = factor * self.reach(var)
            low, high = low + np.minimum(reach, 0), high + np.maximum(reach, 0)
        return low, high

    def of(self, expr: ir.Expr) -> Form | None:
        """An int32 expression as a form; None where data decide."""
        match expr:
            case ir.Const(int() as value):
                return _constant(np.array([value], np.int64))
            case ir.Var(name):
                return _constant(self.sizes[name]) if name in self.sizes else self._loop(expr)
            case ir.Bin(op, a, b):
                x, y = self.of(a), self.of(b)
                return None if x is None or y is None else self._binary(op, x, y)
            case _:
                return None

    def reach(self, var: ir.Var) -> Array:
        """The last turn of a loop whose extent is known."""
        extent = self.extents[var]
        assert extent is not None
        last: Array = np.maximum(extent - 1, 0)
        return last

    def facts(self, condition: ir.Expr, holds: bool) -> Iterator[Form]:
        """Forms that are not negative where a condition comes out so; what data decide tells nothing."""
        match condition:
            case ir.Un("not", a):
                yield from self.facts(a, not holds)
            case ir.Bin(("and" | "or") as op, a, b) if (op == "and") == holds:
                yield from self.facts(a, holds)
                yield from self.facts(b, holds)
            case ir.Bin("lt", a, ir.Bin("min", b, c)) if holds:
                yield from self.facts(ir.Bin("lt", a, b), True)
                yield from self.facts(ir.Bin("lt", a, c), True)
            case ir.Bin(op, a, b) if op in _LARGER:
                x, y = self.of(a), self.of(b)
                if x is not None and y is not None:
                    sign, least = _LARGER[op] if holds else (-_LARGER[op][0], 1 - _LARGER[op][1])
                    difference = x.plus(y.times(np.array([-1]))).times(np.array([sign]))
                    yield Form(difference.terms, difference.low - least, difference.high - least)

    def _loop(self, var: ir.Var) -> Form | None:
        return self._known(var) if self.extents.get(var) is not None else None

    def _known(self, var: ir.Var) -> Form:
        if var in self.digits:
            high, low, divisor = self.digits[var]
            return self._known(high).times(divisor).plus(self._known(low))
        zero = np.zeros(1, np.int64)
        return Form({var: zero + 1}, zero, zero)

    def _binary(self, op: str, x: Form, y: Form) -> Form | None:
        match op:
            case "add":
                return x.plus(y)
            case "sub":
                return x.plus(y.times(np.array([-1])))
            case "mul":
                return self._product(x, y)
            case "floordiv" | "floormod" if y.number is not None and (y.number > 0).all():
                quotient, rest = self._division(x, y.number)
                return quotient if op == "floordiv" else rest
            case "min" | "max":
                better = np.minimum if op == "min" else np.maximum
                (low, high), (low_y, high_y) = self.range(x), self.range(y)
                return Form({}, better(low, low_y), better(high, high_y))
            case _:
                return None

    def _product(self, x: Form, y: Form) -> Form:
        for form, factor in ((x, y.number), (y, x.number)):
            if factor is not None:
                return form.times(factor)
        ends = np.broadcast_arrays(*(a * b for a in self.range(x) for b in self.range(y)))
        return Form({}, np.minimum.reduce(ends), np.maximum.reduce(ends))

    def _division(self, x: Form, divisor: Array) -> tuple[Form, Form]:
        """Quotient and remainder, floored."""
        whole = {v: f // divisor for v, f in x.terms.items() if not (f % divisor).any()}
        rest = Form({v: f for v, f in x.terms.items() if v not in whole}, x.low, x.high)
        low, high = (end // divisor for end in self.range(rest))
        zero = np.zeros(1, np.int64)
        if (low == high).all():
            return Form(whole, low, low), Form(rest.terms, rest.low - low * divisor, rest.high - low * divisor)
        if self._split(rest, divisor):
            return self._division(x.renamed({var: self._known(var) for var in x.terms}), divisor)
        return Form(whole, low, high), Form({}, zero, divisor - 1)

    def _split(self, rest: Form, divisor: Array) -> bool:
        """Take the variable of the largest factor for two, if that is what keeps the division from being exact."""
        if not rest.terms:
            return False
        var = max(rest.terms, key=lambda v: (int(rest.terms[v].max()), v.name))
        factor, extent = rest.terms[var], self.reach(var) + 1
        if (factor <= 0).any() or (divisor % np.maximum(factor, 1)).any():
            return False
        turns = divisor // factor
        others = {v: f for v, f in rest.terms.items() if v is not var}
        low, high = self.range(Form(others, rest.low, rest.high))
        if (low // factor != high // factor).any() or (low // factor % turns).any() or (turns >= extent).all():
            return False
        pair = ir.Var(f"{var.name}.high"), ir.Var(f"{var.name}.low")
        self.digits[var] = (*pair, turns)
        self.extents[pair[0]], self.extents[pair[1]] = -(-extent // turns), np.minimum(turns, extent)
        return True


# ---- The range of a distance that is a sum over loop variables, at every size: of these distances some two places
# conflict.

_ZERO = np.zeros(1, np.int64)


@frozen
class Conflict:
    """Distances in bytes from ``low`` to ``high`` that are not safe, as far as they are from ``first`` to ``last`` modulo
    ``modulus``; with 1 all of them are."""

    low: int
    high: int
    modulus: int = 1
    first: int = 0
    last: int = 0

    def moved(self, by: int) -> Conflict:
        """The same, of buffers that are further apart."""
        return Conflict(self.low + by, self.high + by, self.modulus, self.first + by, self.last + by)


class Ranges:
    """Ranges of forms. ``reach``: the last turns of the loops; two of them may be tied together (:meth:`turns`)."""

    def __init__(self, reach: dict[ir.Var, Array]) -> None:
        self.reach = reach
        self.tied: tuple[ir.Var, ...] = ()
        self.possible: Array = np.ones(1, bool)

    def turns(self, var: ir.Var, extent: Array) -> tuple[Form, Form]:
        """A later turn and an earlier turn of one loop: k + 1 + n and k, where k + n are at most the extent less two."""
        earlier, more = ir.Var(f"{var.name} earlier"), ir.Var(f"{var.name} more")
        self.tied, self.possible = (earlier, more), extent > 1
        self.reach |= dict.fromkeys(self.tied, np.maximum(extent - 2, 0))
        one = _ZERO + 1
        return Form({earlier: one, more: one}, one, one), Form({earlier: one}, _ZERO, _ZERO)

    def least(self, form: Form) -> Array:
        """The smallest that it can be, at every size."""
        ends = [_ZERO, *(form.terms[var] * self.reach[var] for var in self.tied if var in form.terms)]
        free = (factor * self.reach[var] for var, factor in form.terms.items() if var not in self.tied)
        total: Array = form.low + np.minimum.reduce(np.broadcast_arrays(*ends))
        return sum((np.minimum(end, 0) for end in free), total)

    def least_where(self, form: Form, facts: Sequence[Form]) -> Array:
        """The same where none of the facts is negative: subtracting multiples of them can only make it smaller."""
        best = self.least(form)
        for fact in facts:
            upper = Form(fact.terms, fact.high, fact.high)
            for var, slope in fact.terms.items():
                times = np.maximum(form.terms.get(var, _ZERO) // np.where(slope == 0, 1, slope), 0)
                if not times.any():
                    continue
                tried = form.plus(upper.times(-times))
                least = self.least(tried)
                if least.min() > best.min():
                    form = tried
                best = np.maximum(best, least)
        return best

    def conflict(self, distance: Form, facts: Sequence[Form]) -> Conflict | None:
        """The range over all sizes, with the most telling of all remainders: by a common divisor of large steps. None where
        no size has such turns."""
        opposite = distance.times(_ZERO - 1)
        possible, low, high = np.broadcast_arrays(
            self.possible, self.least_where(distance, facts), -self.least_where(opposite, facts)
        )
        if not possible.any():
            return None
        found, share = Conflict(int(low[possible].min()), int(high[possible].max())), 1.0
        divisors = {var: int(np.gcd.reduce(factor)) for var, factor in distance.terms.items()}
        for modulus in sorted({divisor for divisor in divisors.values() if divisor > 1}):
            rest = {var: factor for var, factor in distance.terms.items() if divisors[var] % modulus}
            first = int(self.least(Form(rest, distance.low, distance.high)).min())
            last = -int(self.least(Form(rest, distance.low, distance.high).times(_ZERO - 1)).min())
            if (last - first + 1) / modulus < share:
                share = (last - first + 1) / modulus
                found = Conflict(found.low, found.high, modulus, first, last)
        return found


# ---- Numbers that depend on sizes, as expressions over them: what they are at some sizes is given, the rule is found
# and checked.
#
# A rule is a sum of at most three products of *extents* (symbols, and strided ones such as ``(height + 1) // 2``) with integer
# factors and a constant. It has fewer unknowns than there are points, so that the points left over are a check.

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
