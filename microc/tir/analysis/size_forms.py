"""Integers that depend on tensor sizes: linear forms at many sizes, ranges of forms, and rules fitted to values."""

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

# ---- Forms: index expressions as sums over loop variables, at many sizes side by side.
#
# A :class:`Form` is ``sum(terms[v] * v)`` plus something between ``low`` and ``high``. Every number is an array: one
# element for all sizes, or one for each. Non-linear parts become part of ``low`` and ``high``. But a variable whose
# quotient and remainder by a number occur is replaced by two variables, its *digits*, so that row and column can be
# derived from the index of a pixel.

_LARGER = MappingProxyType({"gt": (1, 1), "ge": (1, 0), "lt": (-1, 1), "le": (-1, 0)})
"""For each comparison of two integers, the sign of their difference and its least value if the comparison holds."""


@frozen
class Form:
    """A linear form: ``sum(terms[v] * v)`` of loop variables, plus an unknown number from ``low`` to ``high``.

    Factors and limits are arrays of int64, with one element for each size."""

    terms: Mapping[ir.Var, Array]
    low: Array
    high: Array

    def plus(self, other: Form) -> Form:
        """Return the sum of two forms."""
        terms = dict(self.terms)
        for var, factor in other.terms.items():
            terms[var] = terms[var] + factor if var in terms else factor
        return Form({v: f for v, f in terms.items() if f.any()}, self.low + other.low, self.high + other.high)

    def times(self, factor: Array) -> Form:
        """Return the form multiplied by a number at each size."""
        ends = self.low * factor, self.high * factor
        return Form({v: f * factor for v, f in self.terms.items()}, np.minimum(*ends), np.maximum(*ends))

    def substitute(self, names: Mapping[ir.Var, Form]) -> Form:
        """Substitute forms for variables."""
        total = Form({}, self.low, self.high)
        for var, factor in self.terms.items():
            total = total.plus(names[var].times(factor))
        return total

    @property
    def slopes(self) -> frozenset[tuple[ir.Var, bytes]]:
        """The terms of the form, hashable."""
        return frozenset((var, factor.tobytes()) for var, factor in self.terms.items())

    @property
    def key(self) -> tuple[object, ...]:
        """Terms and bounds, hashable."""
        return self.slopes, self.low.tobytes(), self.high.tobytes()

    @staticmethod
    def around(forms: Sequence[Form], var: ir.Var) -> tuple[Form, Array]:
        """Return a form that covers several forms with the same terms, as a sum with one more variable ``var``, and
        the extent of that variable."""
        low = np.minimum.reduce(np.broadcast_arrays(*(form.low for form in forms)))
        width = np.maximum.reduce(np.broadcast_arrays(*(form.high - form.low for form in forms)))
        offsets = np.broadcast_arrays(*(form.low - low for form in forms))
        step = np.maximum(np.gcd.reduce(offsets), 1)
        return Form({**forms[0].terms, var: step}, low, low + width), np.maximum.reduce(offsets) // step + 1

    @property
    def number(self) -> Array | None:
        """The value of the form at every size, if that does not depend on loops; else None."""
        return self.low if not self.terms and np.array_equal(self.low, self.high) else None


def _constant_form(value: Array) -> Form:
    """Return the linear form without loop variables that has this value at each size."""
    return Form({}, value, value)


@dataclass(slots=True)
class FormConverter:
    """Converter of index expressions to linear forms. ``sizes``: values of the scalars, side by side; ``extents``: the
    largest extent of loop variables, None if unknown; ``digits``: variables that are ``divisor`` times one variable
    plus another, as in mixed radix."""

    sizes: Mapping[str, Array]
    extents: dict[ir.Var, Array | None] = field(default_factory=dict)
    digits: dict[ir.Var, tuple[ir.Var, ir.Var, Array]] = field(default_factory=dict)

    def loop(self, var: ir.Var, extent: ir.Expr) -> None:
        """Register a loop variable and its largest extent."""
        self.extents[var] = self.longest(extent)

    def longest(self, extent: ir.Expr) -> Array | None:
        """Return the largest number of iterations of a loop at every size; None for an endless loop, and for one whose end
        depends on data."""
        if isinstance(extent, ir.Bin) and extent.op == "min":
            known = [most for most in map(self.longest, (extent.a, extent.b)) if most is not None]
            return np.asarray(np.minimum.reduce(np.broadcast_arrays(*known))) if known else None
        form = None if ir.int_value(extent) == ir.ENDLESS else self.of(extent)
        return None if form is None else self.range(form)[1]

    def variables(self, var: ir.Var) -> tuple[ir.Var, ...]:
        """Return the variables of the nested loops over a loop variable's mixed-radix digits, outermost first; the
        variable alone if it is not split."""
        if var not in self.digits:
            return (var,)
        high, low, _ = self.digits[var]
        return (*self.variables(high), *self.variables(low))

    def range(self, form: Form) -> tuple[Array, Array]:
        """Return the smallest and the largest value of a form at every size."""
        low, high = form.low, form.high
        for var, factor in form.terms.items():
            reach = factor * self.reach(var)
            low, high = low + np.minimum(reach, 0), high + np.maximum(reach, 0)
        return low, high

    def of(self, expr: ir.Expr) -> Form | None:
        """Convert an int32 expression to a form; None if it depends on data."""
        match expr:
            case ir.Const(int() as value):
                return _constant_form(np.array([value], np.int64))
            case ir.Var(name):
                if name in self.sizes:
                    return _constant_form(self.sizes[name])
                return self._variable_form(expr) if self.extents.get(expr) is not None else None
            case ir.Bin(op, a, b):
                x, y = self.of(a), self.of(b)
                return None if x is None or y is None else self._binary_form(op, x, y)
            case _:
                return None

    def reach(self, var: ir.Var) -> Array:
        """Return the last iteration of a loop whose extent is known."""
        extent = self.extents[var]
        assert extent is not None
        last: Array = np.maximum(extent - 1, 0)
        return last

    def facts(self, condition: ir.Expr, holds: bool) -> Iterator[Form]:
        """Yield forms that are non-negative if a condition holds (or does not hold); conditions on data yield
        nothing."""
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

    def _variable_form(self, var: ir.Var) -> Form:
        """Return the form of a loop variable, over its digits if it is split."""
        if var in self.digits:
            high, low, divisor = self.digits[var]
            return self._variable_form(high).times(divisor).plus(self._variable_form(low))
        zero = np.zeros(1, np.int64)
        return Form({var: zero + 1}, zero, zero)

    def _binary_form(self, op: str, x: Form, y: Form) -> Form | None:
        """Return the form of ``x op y``; None for operators that are no index arithmetic."""
        match op:
            case "add":
                return x.plus(y)
            case "sub":
                return x.plus(y.times(np.array([-1])))
            case "mul":
                return self._product(x, y)
            case "floordiv" | "floormod" if y.number is not None and (y.number > 0).all():
                quotient, rest = self._divide(x, y.number)
                return quotient if op == "floordiv" else rest
            case "min" | "max":
                better = np.minimum if op == "min" else np.maximum
                (low, high), (low_y, high_y) = self.range(x), self.range(y)
                return Form({}, better(low, low_y), better(high, high_y))
            case _:
                return None

    def _product(self, x: Form, y: Form) -> Form:
        """Multiply forms: exactly if one is a number, else by ranges only."""
        for form, factor in ((x, y.number), (y, x.number)):
            if factor is not None:
                return form.times(factor)
        ends = np.broadcast_arrays(*(a * b for a in self.range(x) for b in self.range(y)))
        return Form({}, np.minimum.reduce(ends), np.maximum.reduce(ends))

    def _divide(self, x: Form, divisor: Array) -> tuple[Form, Form]:
        """Return the floored quotient and the remainder of a form by a number at each size."""
        whole = {v: f // divisor for v, f in x.terms.items() if not (f % divisor).any()}
        rest = Form({v: f for v, f in x.terms.items() if v not in whole}, x.low, x.high)
        low, high = (end // divisor for end in self.range(rest))
        zero = np.zeros(1, np.int64)
        if (low == high).all():
            return Form(whole, low, low), Form(rest.terms, rest.low - low * divisor, rest.high - low * divisor)
        if self._split_variable(rest, divisor):
            return self._divide(x.substitute({var: self._variable_form(var) for var in x.terms}), divisor)
        return Form(whole, low, high), Form({}, zero, divisor - 1)

    def _split_variable(self, rest: Form, divisor: Array) -> bool:
        """Split the variable of the largest factor into two mixed-radix digits if that makes the division exact; return
        whether it did.

        This needs a factor that divides the divisor, and the other terms to stay within one step of that factor."""
        if not rest.terms:
            return False
        var = max(rest.terms, key=lambda v: (int(rest.terms[v].max()), v.name))
        factor, extent = rest.terms[var], self.reach(var) + 1
        if (factor <= 0).any() or (divisor % np.maximum(factor, 1)).any():
            return False
        base = divisor // factor
        others = {v: f for v, f in rest.terms.items() if v is not var}
        low, high = self.range(Form(others, rest.low, rest.high))
        if (low // factor != high // factor).any() or (low // factor % base).any() or (base >= extent).all():
            return False
        pair = ir.Var(f"{var.name}.high"), ir.Var(f"{var.name}.low")
        self.digits[var] = (*pair, base)
        self.extents[pair[0]], self.extents[pair[1]] = -(-extent // base), np.minimum(base, extent)
        return True


# ---- Ranges of distances that are sums over loop variables, at every size: the distances at which two accesses
# conflict.

_ZERO = np.zeros(1, np.int64)


@frozen
class Conflict:
    """Unsafe distances from ``low`` to ``high``, in bytes: those whose remainder modulo ``modulus`` is from
    ``first`` to ``last``; with modulus 1 all of them."""

    low: int
    high: int
    modulus: int = 1
    first: int = 0
    last: int = 0

    def moved(self, by: int) -> Conflict:
        """Return the conflict of buffers that are ``by`` bytes further apart."""
        return Conflict(self.low + by, self.high + by, self.modulus, self.first + by, self.last + by)


class FormRanges:
    """Ranges of forms over all iterations of loops. ``reach``: last iterations of the loops; two loop variables may depend
    on each other (:meth:`later_and_earlier`)."""

    def __init__(self, reach: dict[ir.Var, Array]) -> None:
        self.reach = reach
        self.tied: tuple[ir.Var, ...] = ()
        self.possible: Array = np.ones(1, bool)

    def later_and_earlier(self, var: ir.Var, extent: Array) -> tuple[Form, Form]:
        """Return a later and an earlier iteration of one loop as forms: k + 1 + n and k, where k + n is at most the
        extent minus two."""
        earlier, more = ir.Var(f"{var.name} earlier"), ir.Var(f"{var.name} more")
        self.tied, self.possible = (earlier, more), extent > 1
        self.reach |= dict.fromkeys(self.tied, np.maximum(extent - 2, 0))
        one = _ZERO + 1
        return Form({earlier: one, more: one}, one, one), Form({earlier: one}, _ZERO, _ZERO)

    def least(self, form: Form) -> Array:
        """Return the smallest value of a form at every size."""
        # The tied variables sum to at most one reach: a linear function of them is smallest at 0 or at one of the two
        # ends.
        ends = [_ZERO, *(form.terms[var] * self.reach[var] for var in self.tied if var in form.terms)]
        free = (factor * self.reach[var] for var, factor in form.terms.items() if var not in self.tied)
        total: Array = form.low + np.minimum.reduce(np.broadcast_arrays(*ends))
        return sum((np.minimum(end, 0) for end in free), total)

    def least_where(self, form: Form, facts: Sequence[Form]) -> Array:
        """Return a lower bound of a form where all facts are non-negative.

        Subtracting a non-negative multiple of a fact from the form can only make it smaller, so the smallest value of
        the difference is a lower bound, too.
        """
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
        """Return the range of a distance over all sizes, and the modulus whose remainders exclude most; None if no size
        has such iterations.

        Moduli are common divisors of large strides: the remaining terms alone determine the remainder.
        """
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


# ---- Rules: expressions over sizes, found from values at some sizes and checked.
#
# A rule is a sum of at most three products of *extents* (symbols, and strided ones such as ``(height + 1) // 2``) with
# integer factors and a constant. It has fewer unknowns than there are points; the points left over are a check.

Point = tuple[int, ...]
"""A size for every symbol, or the values of something at all points."""
_DEGREE = 3
"""Extents in a product."""
_DIVISOR = 64
"""Largest divisor of a product."""
_SPARE = 2
"""Points that must be left for checking after the unknowns of a rule are solved for."""


@frozen
class FittedExtent:
    """A factor of the products in rules: an int32 expression over the symbols, and its value at every point."""

    expr: ir.Expr
    values: Point


class Fitter:
    """Finder of rules (expressions over ``extents``) that yield given values at all points. Its methods return None if no
    rule does.

    ``domain``: sizes that may occur at run time, all of them or many, at which divisions must be exact."""

    def __init__(self, extents: Sequence[FittedExtent], domain: Sequence[Mapping[str, int]] = ()) -> None:
        self.extents, self.domain = tuple(extents), tuple(domain)
        self.points = len(extents[0].values)
        self.products = tuple(
            FittedExtent(
                _product(parts), tuple(prod(column) for column in zip(*(p.values for p in parts), strict=True))
            )
            for degree in range(1, _DEGREE + 1)
            for parts in combinations_with_replacement(self.extents, degree)
        )
        self._memo: dict[tuple[Point, int], ir.Expr | None] = {}

    def integer(self, values: Sequence[int], terms: int = 3) -> ir.Expr | None:
        """Return an int32 expression with these values at the points, of at most ``terms`` products. Memoised."""
        key = tuple(values)
        if len(set(key)) == 1:
            return ir.const(key[0], "int32") if dtypes.int_range("int32")[1] >= abs(key[0]) else None
        if (key, terms) not in self._memo:
            self._memo[key, terms] = self._find_rule(key, terms)
        return self._memo[key, terms]

    def divides(self, values: Sequence[int], factor: int) -> bool:
        """Test whether a rule for these values is a multiple of ``factor`` at all sizes."""
        rule = self.integer(values)
        return rule is not None and all(evaluate_at_sizes(rule, sizes) % factor == 0 for sizes in self.domain)

    def real(self, values: Sequence[float], dtype: str) -> ir.Expr | None:
        """Return a float expression with these values, equal in every bit: an integer rule as a float, or a constant
        divided or multiplied by a product."""
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

    def _find_rule(self, values: Point, terms: int) -> ir.Expr | None:
        """Find a rule that yields the values at all points: a single product first, then sums of few terms, then a
        fraction of a product."""
        for product in self.products:
            if product.values == values:
                return product.expr
        for count in range(1, terms + 1):
            if count + 1 + _SPARE > self.points:
                return None
            usable = self.products if count < 3 else [p for p in self.products if _factor_count(p.expr) < _DEGREE]
            for chosen in combinations(usable, count):
                factors = _solve_integer_factors([p.values for p in chosen], values)
                if factors is not None:
                    return _weighted_sum([p.expr for p in chosen], factors)
        return self._fraction_of_product(values)

    def _fraction_of_product(self, values: Point) -> ir.Expr | None:
        """Return a product times a fraction that yields the values, if the division is exact at all sizes; else None."""
        for product in self.products:
            part = Fraction(values[0], product.values[0]) if product.values[0] else Fraction(0)
            if not 1 < part.denominator <= _DIVISOR or any(
                v != part * p for v, p in zip(values, product.values, strict=True)
            ):
                continue
            scaled = product.expr if part.numerator == 1 else product.expr * part.numerator
            if all(evaluate_at_sizes(scaled, sizes) % part.denominator == 0 for sizes in self.domain):
                return scaled // part.denominator
        return None


def _solve_integer_factors(columns: Sequence[Point], values: Point) -> tuple[int, ...] | None:
    """Solve for integer factors of the columns, none of them 0, and a constant, that give the values exactly; else
    None.

    Least squares in float64, with columns scaled to similar size, then rounding; the integers are checked exactly.
    """
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


def _factor_count(expr: ir.Expr) -> int:
    """Return the number of factors of a product."""
    return _factor_count(expr.a) + 1 if isinstance(expr, ir.Bin) and expr.op == "mul" else 1


def _product(parts: Sequence[FittedExtent]) -> ir.Expr:
    """Multiply extents."""
    total = parts[0].expr
    for part in parts[1:]:
        total = total * part.expr
    return total


def _weighted_sum(products: Sequence[ir.Expr], factors: Sequence[int]) -> ir.Expr:
    """Return the sum of products times factors as an expression, positive terms first and the constant (the last factor)
    last."""
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


def strided_rules(
    symbol: ir.Var, pairs: Mapping[int, int], limit: int = 64
) -> list[tuple[ir.Expr, tuple[int, int, int]]]:
    """Return rules ``(a * symbol + b) // c`` that hold for all pairs of (size, value), smallest divisors first.

    Each comes with (a, b, c). ``limit``: the largest c, and for each c and a the largest distance of b from its
    smallest value; the caller distinguishes the rules by more pairs."""
    found: list[tuple[ir.Expr, tuple[int, int, int]]] = []
    for c in range(2, limit + 1):
        for a in range(1, 9):
            low = max(value * c - a * size for size, value in pairs.items())
            high = min(value * c - a * size + c - 1 for size, value in pairs.items())
            for b in range(low, min(high, low + limit) + 1):
                scaled = symbol if a == 1 else symbol * a
                moved = scaled if b == 0 else scaled + b if b > 0 else scaled - (-b)
                found.append((moved // c, (a, b, c)))
    return found


def evaluate_at_sizes(expr: ir.Expr, sizes: Mapping[str, int]) -> int:
    """Evaluate an integer expression over symbols at some sizes."""
    match expr:
        case ir.Const(int() as value):
            return value
        case ir.Var(name):
            return sizes[name]
        case ir.Bin("add", a, b):
            return evaluate_at_sizes(a, sizes) + evaluate_at_sizes(b, sizes)
        case ir.Bin("sub", a, b):
            return evaluate_at_sizes(a, sizes) - evaluate_at_sizes(b, sizes)
        case ir.Bin("mul", a, b):
            return evaluate_at_sizes(a, sizes) * evaluate_at_sizes(b, sizes)
        case ir.Bin("floordiv", a, b):
            return evaluate_at_sizes(a, sizes) // evaluate_at_sizes(b, sizes)
        case _:
            raise InternalError(f"not an integer expression over sizes; got {expr}")
