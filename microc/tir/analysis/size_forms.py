# SPDX-License-Identifier: Apache-2.0
"""Integers that depend on tensor sizes: linear forms for many sizes, their ranges, and integers expressed by extents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations_with_replacement
from math import lcm, prod
from operator import floordiv, mod
from types import MappingProxyType
from typing import Any

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import InternalError
from microc.tir import ir

# ---- Forms: index expressions as linear forms in loop variables, computed for many sizes at once.
#
# A :class:`LoopLinearForm` is ``sum(terms[v] * v)`` plus an unknown number between ``low`` and ``high``. Every coefficient and
# bound is an array, with one element for all sizes, or one element for each size. The range of a non-linear sub-expression is
# added to ``low`` and ``high``. There is one exception: if a quotient and a remainder of a loop variable by
# a constant occur, the variable is replaced by two variables, its *digits*. So row and column can be derived from the index
# of a pixel.

_LARGER = MappingProxyType({"gt": (1, 1), "ge": (1, 0), "lt": (-1, 1), "le": (-1, 0)})
"""Comparisons of integers as lower bounds. For the value (sign, least), ``a op b`` is equivalent to
``sign * (a - b) >= least``."""


@frozen
class LoopLinearForm:
    """A linear form in loop variables: ``sum(terms[v] * v)``, plus an unknown number from ``low`` to ``high``.

    Coefficients and bounds are int64 arrays with one element for each combination of sizes, or one element for all."""

    terms: Mapping[ir.Var, Array]
    low: Array
    high: Array

    def plus(self, other: LoopLinearForm) -> LoopLinearForm:
        """Return the sum of this form and another."""
        terms = dict(self.terms)
        for var, factor in other.terms.items():
            terms[var] = terms[var] + factor if var in terms else factor
        return LoopLinearForm({v: f for v, f in terms.items() if f.any()}, self.low + other.low, self.high + other.high)

    def times(self, factor: Array) -> LoopLinearForm:
        """Return the form multiplied by ``factor``, a number for each size."""
        ends = self.low * factor, self.high * factor
        return LoopLinearForm({v: f * factor for v, f in self.terms.items()}, np.minimum(*ends), np.maximum(*ends))

    def substitute(self, names: Mapping[ir.Var, LoopLinearForm]) -> LoopLinearForm:
        """Return the form with its variables replaced by the forms in ``names``."""
        total = LoopLinearForm({}, self.low, self.high)
        for var, factor in self.terms.items():
            total = total.plus(names[var].times(factor))
        return total

    @property
    def slopes(self) -> frozenset[tuple[ir.Var, bytes]]:
        """The variables and coefficients of the form as a hashable value."""
        return frozenset((var, factor.tobytes()) for var, factor in self.terms.items())

    @property
    def key(self) -> tuple[object, ...]:
        """The variables, coefficients and bounds of the form as a hashable value."""
        return self.slopes, self.low.tobytes(), self.high.tobytes()

    @staticmethod
    def cover_forms(forms: Sequence[LoopLinearForm], var: ir.Var) -> tuple[LoopLinearForm, Array]:
        """Return a form whose values include those of several forms with equal terms, and the extent of its new variable.

        ``var``: the new variable. For each of ``forms`` it has a value at which the returned form includes that form's values."""
        low = np.minimum.reduce(np.broadcast_arrays(*(form.low for form in forms)))
        width = np.maximum.reduce(np.broadcast_arrays(*(form.high - form.low for form in forms)))
        offsets = np.broadcast_arrays(*(form.low - low for form in forms))
        step = np.maximum(np.gcd.reduce(offsets), 1)
        return LoopLinearForm({**forms[0].terms, var: step}, low, low + width), np.maximum.reduce(offsets) // step + 1

    @property
    def number(self) -> Array | None:
        """The value of the form for every size if the value is known and depends on no loop variable; else None."""
        return self.low if not self.terms and np.array_equal(self.low, self.high) else None


def _constant_form(value: Array) -> LoopLinearForm:
    """Return the linear form without variables that has the value ``value`` for each size."""
    return LoopLinearForm({}, value, value)


@dataclass(slots=True)
class FormConverter:
    """Converter of index expressions to linear forms in loop variables.

    ``sizes``: values of the symbolic sizes, by name, as arrays with an element for each combination of sizes. ``extents``:
    upper bounds of the extents of loop variables, None if unknown. ``digits``: loop variables that are split into
    (high, low, divisor), with the value ``divisor * high + low``."""

    sizes: Mapping[str, Array]
    extents: dict[ir.Var, Array | None] = field(default_factory=dict)
    digits: dict[ir.Var, tuple[ir.Var, ir.Var, Array]] = field(default_factory=dict)

    def record_loop(self, var: ir.Var, extent: ir.Expr) -> None:
        """Record the upper bound of a loop variable's extent."""
        self.extents[var] = self.max_trip_count(extent)

    def max_trip_count(self, extent: ir.Expr) -> Array | None:
        """Return an upper bound of the trip count of a loop for every size.

        None for an endless loop, and for a loop whose extent depends on data."""
        if isinstance(extent, ir.Bin) and extent.op == "min":
            known = [most for most in map(self.max_trip_count, (extent.a, extent.b)) if most is not None]
            return np.asarray(np.minimum.reduce(np.broadcast_arrays(*known))) if known else None
        form = None if ir.int_value(extent) == ir.ENDLESS else self.form_of(extent)
        return None if form is None else self.range_of_form(form)[1]

    def digit_variables(self, var: ir.Var) -> tuple[ir.Var, ...]:
        """Return the digits into which a loop variable is split, most significant first; else the variable alone.

        They are like the variables of nested loops, outermost first."""
        if var not in self.digits:
            return (var,)
        high, low, _ = self.digits[var]
        return (*self.digit_variables(high), *self.digit_variables(low))

    def range_of_form(self, form: LoopLinearForm) -> tuple[Array, Array]:
        """Return the smallest and the largest value of a form for every size."""
        low, high = form.low, form.high
        for var, factor in form.terms.items():
            reach = factor * self.largest_value(var)
            low, high = low + np.minimum(reach, 0), high + np.maximum(reach, 0)
        return low, high

    def form_of(self, expr: ir.Expr) -> LoopLinearForm | None:
        """Return the linear form of an int32 expression; None if the expression depends on data."""
        match expr:
            case ir.Const(int() as value):
                return _constant_form(np.array([value], np.int64))
            case ir.Var(name):
                if name in self.sizes:
                    return _constant_form(self.sizes[name])
                return self._variable_form(expr) if self.extents.get(expr) is not None else None
            case ir.Bin(op, a, b):
                x, y = self.form_of(a), self.form_of(b)
                return None if x is None or y is None else self._binary_form(op, x, y)
            case _:
                return None

    def largest_value(self, var: ir.Var) -> Array:
        """Return the largest value of a loop variable with a known extent, for every size."""
        extent = self.extents[var]
        assert extent is not None
        last: Array = np.maximum(extent - 1, 0)
        return last

    def facts_of_condition(self, condition: ir.Expr, holds: bool) -> Iterator[LoopLinearForm]:
        """Yield linear forms that are non-negative if a condition has the outcome ``holds``.

        A condition that depends on data yields no forms."""
        match condition:
            case ir.Un("not", a):
                yield from self.facts_of_condition(a, not holds)
            case ir.Bin(("and" | "or") as op, a, b) if (op == "and") == holds:
                yield from self.facts_of_condition(a, holds)
                yield from self.facts_of_condition(b, holds)
            case ir.Bin("lt", a, ir.Bin("min", b, c)) if holds:
                yield from self.facts_of_condition(ir.Bin("lt", a, b), True)
                yield from self.facts_of_condition(ir.Bin("lt", a, c), True)
            case ir.Bin(op, a, b) if op in _LARGER:
                x, y = self.form_of(a), self.form_of(b)
                if x is not None and y is not None:
                    sign, least = _LARGER[op] if holds else (-_LARGER[op][0], 1 - _LARGER[op][1])
                    difference = x.plus(y.times(np.array([-1]))).times(np.array([sign]))
                    yield LoopLinearForm(difference.terms, difference.low - least, difference.high - least)

    def _variable_form(self, var: ir.Var) -> LoopLinearForm:
        """Return the linear form of a loop variable; over its digits if the variable is split."""
        if var in self.digits:
            high, low, divisor = self.digits[var]
            return self._variable_form(high).times(divisor).plus(self._variable_form(low))
        zero = np.zeros(1, np.int64)
        return LoopLinearForm({var: zero + 1}, zero, zero)

    def _binary_form(self, op: str, x: LoopLinearForm, y: LoopLinearForm) -> LoopLinearForm | None:
        """Return the linear form of ``x op y``; None if the operator is not supported in an index."""
        match op:
            case "add":
                return x.plus(y)
            case "sub":
                return x.plus(y.times(np.array([-1])))
            case "mul":
                return self._form_of_product(x, y)
            case "floordiv" | "floormod" if y.number is not None and (y.number > 0).all():
                quotient, rest = self._quotient_and_remainder(x, y.number)
                return quotient if op == "floordiv" else rest
            case "min" | "max":
                better = np.minimum if op == "min" else np.maximum
                (low, high), (low_y, high_y) = self.range_of_form(x), self.range_of_form(y)
                return LoopLinearForm({}, better(low, low_y), better(high, high_y))
            case _:
                return None

    def _form_of_product(self, x: LoopLinearForm, y: LoopLinearForm) -> LoopLinearForm:
        """Return the product of two forms. It is exact if one factor is a number; otherwise only its range is known."""
        for form, factor in ((x, y.number), (y, x.number)):
            if factor is not None:
                return form.times(factor)
        ends = np.broadcast_arrays(*(a * b for a in self.range_of_form(x) for b in self.range_of_form(y)))
        return LoopLinearForm({}, np.minimum.reduce(ends), np.maximum.reduce(ends))

    def _quotient_and_remainder(self, x: LoopLinearForm, divisor: Array) -> tuple[LoopLinearForm, LoopLinearForm]:
        """Return the floored quotient and the remainder of a form by ``divisor``, a number for each size."""
        whole = {v: f // divisor for v, f in x.terms.items() if not (f % divisor).any()}
        rest = LoopLinearForm({v: f for v, f in x.terms.items() if v not in whole}, x.low, x.high)
        low, high = (end // divisor for end in self.range_of_form(rest))
        zero = np.zeros(1, np.int64)
        if (low == high).all():
            return LoopLinearForm(whole, low, low), LoopLinearForm(
                rest.terms, rest.low - low * divisor, rest.high - low * divisor
            )
        if self._split_variable_into_digits(rest, divisor):
            return self._quotient_and_remainder(
                x.substitute({var: self._variable_form(var) for var in x.terms}), divisor
            )
        return LoopLinearForm(whole, low, high), LoopLinearForm({}, zero, divisor - 1)

    def _split_variable_into_digits(self, rest: LoopLinearForm, divisor: Array) -> bool:
        """Split the variable with the largest coefficient into two mixed-radix digits, if that makes a division exact.

        Returns True if the variable was split. The coefficient must divide ``divisor``, and the sum of the other terms must
        stay within one multiple of the coefficient. ``rest``: the dividend without the terms that are divisible."""
        if not rest.terms:
            return False
        var = max(rest.terms, key=lambda v: (int(rest.terms[v].max()), v.name))
        factor, extent = rest.terms[var], self.largest_value(var) + 1
        if (factor <= 0).any() or (divisor % np.maximum(factor, 1)).any():
            return False
        base = divisor // factor
        others = {v: f for v, f in rest.terms.items() if v is not var}
        low, high = self.range_of_form(LoopLinearForm(others, rest.low, rest.high))
        if (low // factor != high // factor).any() or (low // factor % base).any() or (base >= extent).all():
            return False
        pair = ir.Var(f"{var.name}.high"), ir.Var(f"{var.name}.low")
        self.digits[var] = (*pair, base)
        self.extents[pair[0]], self.extents[pair[1]] = -(-extent // base), np.minimum(base, extent)
        return True


# ---- Ranges of distances between the addresses of two accesses, which are linear forms in loop variables, for every size.

_ZERO = np.zeros(1, np.int64)


@frozen
class UnsafeDistances:
    """A set of unsafe distances between two buffers, in bytes, at which two accesses conflict.

    It contains the distances from ``low`` to ``high`` whose remainder modulo ``modulus`` is between ``first_remainder`` and
    ``last_remainder`` (modulo ``modulus``). With modulus 1 it contains all distances from ``low`` to ``high``."""

    low: int
    high: int
    modulus: int = 1
    first_remainder: int = 0
    last_remainder: int = 0

    def shifted_by(self, byte_offset: int) -> UnsafeDistances:
        """Return these distances, increased by ``byte_offset`` bytes."""
        return UnsafeDistances(
            self.low + byte_offset,
            self.high + byte_offset,
            self.modulus,
            self.first_remainder + byte_offset,
            self.last_remainder + byte_offset,
        )


class FormRanges:
    """Ranges of linear forms over all iterations of loops.

    ``largest_values``: largest value of each loop variable. ``bounded_pair``: two variables whose sum is bounded
    (:meth:`later_and_earlier_iteration`)."""

    def __init__(self, largest_values: dict[ir.Var, Array]) -> None:
        self.largest_values = largest_values
        self.bounded_pair: tuple[ir.Var, ...] = ()
        self.possible: Array = np.ones(1, bool)

    def later_and_earlier_iteration(self, var: ir.Var, extent: Array) -> tuple[LoopLinearForm, LoopLinearForm]:
        """Return the indices of a later and an earlier iteration of a loop, as linear forms in two new variables.

        They are k + 1 + n and k, where k + n is at most the extent minus 2."""
        earlier, more = ir.Var(f"{var.name} earlier"), ir.Var(f"{var.name} more")
        self.bounded_pair, self.possible = (earlier, more), extent > 1
        self.largest_values |= dict.fromkeys(self.bounded_pair, np.maximum(extent - 2, 0))
        one = _ZERO + 1
        return LoopLinearForm({earlier: one, more: one}, one, one), LoopLinearForm({earlier: one}, _ZERO, _ZERO)

    def smallest_value(self, form: LoopLinearForm) -> Array:
        """Return the smallest value of a form for every size."""
        # The sum of the two tied variables is at most the reach of one. A linear function of them is smallest if both are 0, or
        # if one is at its reach and the other is 0.
        ends = [_ZERO, *(form.terms[var] * self.largest_values[var] for var in self.bounded_pair if var in form.terms)]
        free = (factor * self.largest_values[var] for var, factor in form.terms.items() if var not in self.bounded_pair)
        total: Array = form.low + np.minimum.reduce(np.broadcast_arrays(*ends))
        return sum((np.minimum(end, 0) for end in free), total)

    def lower_bound_under_facts(self, form: LoopLinearForm, facts: Sequence[LoopLinearForm]) -> Array:
        """Return a lower bound of a form over the iterations in which all ``facts`` are non-negative.

        If a non-negative multiple of a fact is subtracted from the form, the result is at most the form. So the smallest
        value of the difference is a lower bound of the form, too.
        """
        best = self.smallest_value(form)
        for fact in facts:
            upper = LoopLinearForm(fact.terms, fact.high, fact.high)
            for var, slope in fact.terms.items():
                times = np.maximum(form.terms.get(var, _ZERO) // np.where(slope == 0, 1, slope), 0)
                if not times.any():
                    continue
                tried = form.plus(upper.times(-times))
                least = self.smallest_value(tried)
                if least.min() > best.min():
                    form = tried
                best = np.maximum(best, least)
        return best

    def unsafe_distances(self, distance: LoopLinearForm, facts: Sequence[LoopLinearForm]) -> UnsafeDistances | None:
        """Return the unsafe distances, given the linear form of the distance; None if no size has such iterations.

        The result has the range of the distance over all sizes, and the modulus whose remainders exclude the most
        distances. A modulus is a common divisor of large coefficients: then the other terms alone determine the remainder.
        ``facts``: forms that are non-negative in all iterations considered.
        """
        opposite = distance.times(_ZERO - 1)
        possible, low, high = np.broadcast_arrays(
            self.possible, self.lower_bound_under_facts(distance, facts), -self.lower_bound_under_facts(opposite, facts)
        )
        if not possible.any():
            return None
        found, share = UnsafeDistances(int(low[possible].min()), int(high[possible].max())), 1.0
        divisors = {var: int(np.gcd.reduce(factor)) for var, factor in distance.terms.items()}
        for modulus in sorted({divisor for divisor in divisors.values() if divisor > 1}):
            rest = {var: factor for var, factor in distance.terms.items() if divisors[var] % modulus}
            first = int(self.smallest_value(LoopLinearForm(rest, distance.low, distance.high)).min())
            last = -int(self.smallest_value(LoopLinearForm(rest, distance.low, distance.high).times(_ZERO - 1)).min())
            if (last - first + 1) / modulus < share:
                share = (last - first + 1) / modulus
                found = UnsafeDistances(found.low, found.high, modulus, first, last)
        return found


# ---- Integers of a graph, expressed by extents.
#
# A point is one combination of sizes, at which a graph was read. An integer that differs between the points is expressed by
# known extents: as a multiple of a product of extents, with a constant and an exact divisor, as a floored quotient, or as the
# padding of windows. An expression has at most two unknown integers, which fewer than all points determine; the others verify it.

Point = tuple[int, ...]
"""One integer for each symbolic size, or one integer for each point."""
_MIN_POINTS_OF_MULTIPLE, _MIN_POINTS_OF_LINE = 3, 4
"""Minimum number of values of an extent, to express an integer by a multiple of it, without and with an added constant: two more
than there are unknowns."""
_MAX_DIVISOR = 64
"""Largest divisor of an extent."""


def express_integer(
    values: Point, near: Mapping[Point, Any], known: Mapping[Point, Any], strides: Sequence[int] = ()
) -> Any:
    """Express an integer that has ``values`` at the points by extents; None if no expression of them has these values.

    ``near``, ``known``: extents by their values at the points. Products of three extents are formed only of the former.
    ``strides``: strides of a window, if the integer is its padding."""
    for extents, degree in ((near, 1), (known, 1), (near, 2), (known, 2), (near, 3)):
        for parts in combinations_with_replacement(extents.items(), degree):
            product_values = [prod(numbers) for numbers in zip(*(part[0] for part in parts), strict=True)]
            line = _find_line(product_values, values)
            if line is not None:
                factor, constant, divisor = line
                dividend = prod(part[1] for part in parts) * factor + constant
                if divisor == 1 or dividend % divisor == 0:
                    return dividend // divisor
            quotient = _find_quotient(*parts[0], values, strides) if degree == 1 else None
            if quotient is not None:
                return quotient
    return None


def _find_line(extents: Sequence[int], values: Point) -> tuple[int, int, int] | None:
    """Find ``factor``, ``constant`` and ``divisor`` such that ``(factor * extent + constant) / divisor`` has the values."""
    low, high = min(extents), max(extents)
    if low == high:
        return None
    at_low, at_high = values[extents.index(low)], values[extents.index(high)]
    slope = Fraction(at_high - at_low, high - low)
    constant = at_low - slope * low
    divisor = lcm(slope.denominator, constant.denominator)
    needed = _MIN_POINTS_OF_LINE if constant else _MIN_POINTS_OF_MULTIPLE
    if not slope or divisor > _MAX_DIVISOR or len(set(extents)) < needed:
        return None
    if any(slope * n + constant != value for n, value in zip(extents, values, strict=True)):
        return None
    return int(slope * divisor), int(constant * divisor), divisor


def _find_quotient(extents: Point, extent: Any, values: Point, strides: Sequence[int]) -> Any:
    """Find a floored quotient of an extent, or the padding of windows along it, that has the values; None if there is none.

    ``extents``: the extent at the points. Several expressions with the right values must be equal at all sizes.

    Windows of stride s over n elements that end with the last one need ``s * ((n + b) // s) - n + c`` elements of padding. One
    side has all of them, half, or the larger half."""
    for stride in {*strides} - {1}:
        # Padding depends on the remainder alone, so that points with all remainders determine it.
        is_determined = len({n % stride for n in extents}) == stride
        found = _list_paddings(extents, extent, values, stride)
        if found and (is_determined or all(number == found[0] for number in found)):
            return found[0]
    found = []
    for divisor in range(2, _MAX_DIVISOR + 1):
        low = max(value * divisor - n for n, value in zip(extents, values, strict=True))
        high = min(value * divisor - n + divisor - 1 for n, value in zip(extents, values, strict=True))
        found += [(extent + constant) // divisor for constant in range(low, high + 1)]
    return found[0] if found and all(number == found[0] for number in found) else None


def _list_paddings(extents: Point, extent: Any, values: Point, stride: int) -> list[Any]:
    """List the paddings of windows of stride ``stride`` along an extent that have the values."""
    found: list[Any] = []
    for offset in range(stride):
        lacking = [stride * ((n + offset) // stride) - n for n in extents]
        for share, constant in ((1, values[0] - lacking[0]), *((2, 2 * values[0] - lacking[0] + k) for k in (0, 1))):
            if all((n + constant) // share == value for n, value in zip(lacking, values, strict=True)):
                found.append((stride * ((extent + offset) // stride) - extent + constant) // share)
    return found


_QUOTIENTS: Mapping[str, Callable[[int, int], int]] = MappingProxyType(
    {"floordiv": floordiv, "floormod": mod, "min": min, "max": max}
)
"""Operators of integers in rules that no sum of products replaces."""


def evaluate_at_sizes(expr: ir.Expr, sizes: Mapping[str, int]) -> int:
    """Return the value of an integer expression over symbolic sizes. ``sizes``: value of each symbolic size, by name."""
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
        case ir.Un("neg", a):
            return -evaluate_at_sizes(a, sizes)
        case ir.Bin(op, a, b) if op in _QUOTIENTS:
            return _QUOTIENTS[op](evaluate_at_sizes(a, sizes), evaluate_at_sizes(b, sizes))
        case _:
            raise InternalError(f"not an integer expression over sizes; got {expr}")
