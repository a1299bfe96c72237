# SPDX-License-Identifier: Apache-2.0
"""Proofs about polynomials over symbolic sizes: bounds and remainders that hold at all sizes.

A lower bound of a polynomial P is proved in these steps:

1. A quotient ``q = a // b`` leaves P by ``a - b + 1 <= b * q <= a``; exactly, if ``a % b`` is known. A remainder is
   ``a - b * (a // b)``. Of ``min`` and ``max`` both cases are considered.
2. A size at whose increase P cannot decrease is set to its minimum; if P cannot increase, to its maximum.
3. The smallest values of the terms are added, with sizes counted from their minima.
4. The values of a size are halved, if the bound is not yet what must be proved.

Upper bounds are lower bounds of -P. The number of polynomials that a proof considers is limited.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd, prod

from microc.tir import expressions as ir
from microc.tir.statements import int_value

Monomial = tuple[ir.Expr, ...]
"""Product of symbolic sizes and of quotients, remainders, minima and maxima over them, in canonical order."""
Polynomial = Mapping[Monomial, int]
"""Sum of monomials times integers other than 0."""
Ranges = Mapping[str, range]
"""Allowed values of each size, by the name of its variable, with the smallest first."""

_MAX_POLYNOMIALS = 300
"""Maximum number of polynomials that one proof considers. Measured: of 145 proofs for ESPCN and for strided convolutions with
open height and width, the longest considers 35, half of them 1."""


def add_polynomials(a: Polynomial, b: Polynomial, factor: int = 1) -> Polynomial:
    """Return ``a + factor * b``."""
    total = dict(a)
    for monomial, number in b.items():
        total[monomial] = total.get(monomial, 0) + factor * number
    return {monomial: number for monomial, number in total.items() if number}


def multiply_polynomials(a: Polynomial, b: Polynomial) -> Polynomial:
    """Return ``a * b``."""
    total: dict[Monomial, int] = {}
    for left, x in a.items():
        for right, y in b.items():
            monomial = tuple(sorted((*left, *right), key=str))
            total[monomial] = total.get(monomial, 0) + x * y
    return {monomial: number for monomial, number in total.items() if number}


def divide_polynomials(dividend: Polynomial, divisor: Polynomial) -> tuple[Polynomial, Polynomial]:
    """Return a quotient and the rest of a long division, so that ``dividend`` is ``quotient * divisor + rest``.

    The division ends where the greatest term of the divisor does not divide that of the rest."""
    quotient: dict[Monomial, int] = {}
    atoms, number = _greatest_term(divisor)
    while dividend:
        monomial, factor = _greatest_term(dividend)
        rest = list(monomial)
        for atom in atoms:
            if atom not in rest:
                return quotient, dividend
            rest.remove(atom)
        if factor % number or tuple(rest) in quotient:
            break
        quotient[tuple(rest)] = factor // number
        dividend = add_polynomials(dividend, multiply_polynomials(divisor, {tuple(rest): factor // number}), -1)
    return quotient, dividend


def _greatest_term(polynomial: Polynomial) -> tuple[Monomial, int]:
    """Return the term of the most atoms; of several, the last in alphabetical order."""
    return max(polynomial.items(), key=lambda term: (len(term[0]), str(term[0])))


def polynomial_of(expr: ir.Expr) -> Polynomial:
    """Return an int32 expression over sizes as a polynomial, in which quotients, minima and maxima are atoms."""
    match expr:
        case ir.Const(int() as value):
            return {(): value} if value else {}
        case ir.Un("neg", a):
            return add_polynomials({}, polynomial_of(a), -1)
        case ir.Bin(("add" | "sub") as op, a, b):
            return add_polynomials(polynomial_of(a), polynomial_of(b), 1 if op == "add" else -1)
        case ir.Bin("mul", a, b):
            return multiply_polynomials(polynomial_of(a), polynomial_of(b))
        case ir.Bin("floormod", a, b) if int_value(b):
            quotient: Polynomial = {(ir.Bin("floordiv", a, b),): 1}
            return add_polynomials(polynomial_of(a), multiply_polynomials(polynomial_of(b), quotient), -1)
        case _:
            return {(expr,): 1}


class SizeProver:
    """Proofs about polynomials whose sizes have the values ``ranges``."""

    def __init__(self, ranges: Ranges) -> None:
        self.ranges = ranges
        self._bounds: dict[tuple[frozenset[tuple[Monomial, int]], int | None], int] = {}

    def is_at_least(self, polynomial: Polynomial, value: int) -> bool:
        """Test whether a polynomial is proved to be at least ``value`` at all sizes."""
        return self._bound(polynomial, value) >= value

    def is_equal(self, polynomial: Polynomial, value: int) -> bool:
        """Test whether a polynomial is proved to be ``value`` at all sizes."""
        difference = add_polynomials(polynomial, {(): 1}, -value)
        return self.is_at_least(difference, 0) and self.is_at_least(add_polynomials({}, difference, -1), 0)

    def lower_bound(self, polynomial: Polynomial) -> int:
        """Return a number that a polynomial does not fall below at any size."""
        return self._bound(polynomial, None)

    def upper_bound(self, polynomial: Polynomial) -> int:
        """Return a number that a polynomial does not exceed at any size."""
        return -self._bound(add_polynomials({}, polynomial, -1), None)

    def find_remainder(self, polynomial: Polynomial, divisor: int) -> int | None:
        """Return the remainder of a polynomial by a positive number if it is the same at all sizes; else None."""
        total = 0
        for monomial, factor in polynomial.items():
            reduced = divisor // gcd(factor, divisor)
            if prod(map(self._divisor_of, monomial)) % reduced == 0:
                continue
            remainders = [self._remainder_of_atom(atom, reduced) for atom in monomial]
            if None in remainders:
                return None
            total += factor * prod(r for r in remainders if r is not None)
        return total % divisor

    def _divisor_of(self, atom: ir.Expr) -> int:
        """Return a number that divides an atom at all sizes."""
        if not isinstance(atom, ir.Var):
            return 1
        values = self.ranges[atom.name]
        return gcd(values.start, values.step if len(values) > 1 else 0) or 1

    def _remainder_of_atom(self, atom: ir.Expr, divisor: int) -> int | None:
        """Return the remainder of an atom by ``divisor`` if it is the same at all sizes; else None."""
        match atom:
            case ir.Var(name):
                values = self.ranges[name]
                return values.start % divisor if len(values) == 1 or values.step % divisor == 0 else None
            case ir.Bin("floordiv", a, b) if (number := int_value(b)) and number > 0:
                dividend = self.find_remainder(_expand_remainders(polynomial_of(a)), number * divisor)
                return None if dividend is None else dividend // number
            case _:
                return None

    def _bound(self, polynomial: Polynomial, goal: int | None) -> int:
        """Return a lower bound, which the search improves until it is ``goal``. The result is cached."""
        key = frozenset(polynomial.items()), goal
        if key not in self._bounds:
            search = _BoundSearch(self)
            self._bounds[key] = search.lower_bound(_expand_remainders(polynomial), self.ranges, goal)
        return self._bounds[key]


class _BoundSearch:
    """One search for a lower bound, with its budget: the number of polynomials that it may still consider."""

    def __init__(self, prover: SizeProver) -> None:
        self.prover = prover
        self.budget = _MAX_POLYNOMIALS

    def lower_bound(self, polynomial: Polynomial, ranges: Ranges, goal: int | None) -> int:
        """Return a lower bound of a polynomial over sizes in ``ranges``. A bound of ``goal`` or more is not improved."""
        self.budget -= 1
        best = self.add_smallest_terms(polynomial, ranges)
        if self.budget <= 0 or not any(polynomial) or (goal is not None and best >= goal):
            return best
        atom = _find_outermost_quotient(polynomial)
        if atom is not None:
            return max(best, self.bound_without_quotient(polynomial, atom, ranges, goal))
        for var in sorted({atom for monomial in polynomial for atom in monomial}, key=str):
            assert isinstance(var, ir.Var)
            values = ranges[var.name]
            slope = _differentiate(polynomial, var)
            if self.add_smallest_terms(slope, ranges) >= 0:
                return max(best, self.lower_bound(_substitute(polynomial, var, {(): values[0]}), ranges, goal))
            if self.add_smallest_terms(add_polynomials({}, slope, -1), ranges) >= 0:
                return max(best, self.lower_bound(_substitute(polynomial, var, {(): values[-1]}), ranges, goal))
        return best if goal is None else max(best, self.bound_halves(polynomial, ranges, goal))

    def bound_halves(self, polynomial: Polynomial, ranges: Ranges, goal: int) -> int:
        """Return the lower of the bounds for the smaller and the larger values of the size that has the most values."""
        names = {atom.name for monomial in polynomial for atom in monomial if isinstance(atom, ir.Var)}
        name = max(sorted(names), key=lambda name: len(ranges[name]))
        values = ranges[name]
        half = len(values) // 2
        if not half:
            return self.add_smallest_terms(polynomial, ranges)
        lower = self.lower_bound(polynomial, {**ranges, name: values[:half]}, goal)
        return (
            lower if lower < goal else min(lower, self.lower_bound(polynomial, {**ranges, name: values[half:]}, goal))
        )

    def bound_without_quotient(self, polynomial: Polynomial, atom: ir.Bin, ranges: Ranges, goal: int | None) -> int:
        """Return a lower bound of a polynomial from bounds of polynomials without one quotient, minimum or maximum ``atom``.

        The polynomial is ``factor * atom + rest``."""
        factor = {_without_atom(monomial, atom): n for monomial, n in polynomial.items() if atom in monomial}
        rest = {monomial: n for monomial, n in polynomial.items() if atom not in monomial}
        rises = self.add_smallest_terms(factor, ranges) >= 0
        falls = not rises and self.add_smallest_terms(add_polynomials({}, factor, -1), ranges) >= 0

        def bound_with(value: Polynomial, divisor: int = 1) -> int:
            """Return the bound for ``atom = value / divisor``."""
            scaled = add_polynomials(multiply_polynomials(factor, value), rest, divisor)
            return -(-self.lower_bound(scaled, ranges, None if goal is None else divisor * (goal - 1) + 1) // divisor)

        a, b = _expand_remainders(polynomial_of(atom.a)), _expand_remainders(polynomial_of(atom.b))
        if atom.op in ("min", "max"):
            cases = bound_with(a), bound_with(b)
            return max(cases) if (rises if atom.op == "max" else falls) else min(cases)
        if not (rises or falls):
            return self.add_smallest_terms(polynomial, ranges)
        low, high = self.range_of_atom(atom, ranges)
        end = low if rises else high
        by_range = bound_with({(): end} if end else {})
        divisor = int_value(atom.b)
        if goal is not None and by_range >= goal:
            return by_range
        if atom.op == "floormod" and falls and low >= 0:
            return max(by_range, bound_with(add_polynomials(b, {(): 1}, -1)))
        if atom.op != "floordiv" or divisor is None or divisor <= 0:
            return by_range
        remainder = self.prover.find_remainder(a, divisor)
        if remainder is None:
            remainder = divisor - 1 if rises else 0
        return max(by_range, bound_with(add_polynomials(a, {(): 1}, -remainder), divisor))

    def add_smallest_terms(self, polynomial: Polynomial, ranges: Ranges) -> int:
        """Return the sum of the smallest values of the terms, after each atom is counted from its smallest value."""
        widths: dict[ir.Expr, int] = {}
        for atom in {atom for monomial in polynomial for atom in monomial}:
            low, high = self.range_of_atom(atom, ranges)
            widths[atom] = high - low
            if low:
                polynomial = _substitute(polynomial, atom, {(atom,): 1, (): low})
        return sum(n * prod(widths[atom] for atom in m) for m, n in polynomial.items() if not m or n < 0)

    def range_of_atom(self, atom: ir.Expr, ranges: Ranges) -> tuple[int, int]:
        """Return numbers between which an atom is at sizes in ``ranges``."""
        if isinstance(atom, ir.Var):
            return ranges[atom.name][0], ranges[atom.name][-1]
        assert isinstance(atom, ir.Bin)
        (low_a, high_a), (low_b, high_b) = (
            (self.add_smallest_terms(p, ranges), -self.add_smallest_terms(add_polynomials({}, p, -1), ranges))
            for p in (polynomial_of(atom.a), polynomial_of(atom.b))
        )
        if atom.op in ("min", "max"):
            choose = min if atom.op == "min" else max
            return choose(low_a, low_b), choose(high_a, high_b)
        greatest = max(abs(low_a), abs(high_a), abs(low_b), abs(high_b))
        if low_b <= 0:
            return -greatest - 1, greatest + 1  # of a quotient or a remainder by numbers of either sign other than 0
        if atom.op == "floormod":
            return (low_a, high_a) if low_a >= 0 and high_a < low_b else (0, high_b - 1)
        ends = [a // b for a in (low_a, high_a) for b in (low_b, high_b)]
        return min(ends), max(ends)


def _expand_remainders(polynomial: Polynomial) -> Polynomial:
    """Return a polynomial whose remainders by numbers are differences with quotients."""
    for atom in {atom for monomial in polynomial for atom in monomial}:
        if isinstance(atom, ir.Bin) and atom.op == "floormod" and int_value(atom.b):
            polynomial = _substitute(polynomial, atom, polynomial_of(atom))
    return polynomial


def _find_outermost_quotient(polynomial: Polynomial) -> ir.Bin | None:
    """Return an atom that is no size and occurs in no other atom; None if all atoms are sizes."""
    quotients = {atom for monomial in polynomial for atom in monomial if isinstance(atom, ir.Bin)}
    return max(quotients, key=lambda atom: (_depth(atom), str(atom)), default=None)


def _depth(expr: ir.Expr) -> int:
    """Return the number of nested operators of an expression."""
    match expr:
        case ir.Bin(_, a, b):
            return 1 + max(_depth(a), _depth(b))
        case ir.Un(_, a):
            return 1 + _depth(a)
        case _:
            return 0


def _without_atom(monomial: Monomial, atom: ir.Expr) -> Monomial:
    """Return a monomial divided by one of its atoms."""
    position = monomial.index(atom)
    return (*monomial[:position], *monomial[position + 1 :])


def _substitute(polynomial: Polynomial, atom: ir.Expr, value: Polynomial) -> Polynomial:
    """Return a polynomial with an atom replaced by another polynomial. The atom is not searched inside of other atoms."""
    total: Polynomial = {}
    for monomial, number in polynomial.items():
        term: Polynomial = {tuple(a for a in monomial if a != atom): number}
        for _ in range(monomial.count(atom)):
            term = multiply_polynomials(term, value)
        total = add_polynomials(total, term)
    return total


def _differentiate(polynomial: Polynomial, var: ir.Expr) -> Polynomial:
    """Return the derivative of a polynomial by one of its atoms."""
    return {_without_atom(m, var): n * m.count(var) for m, n in polynomial.items() if var in m}
