# SPDX-License-Identifier: Apache-2.0
"""Extents: integers that depend on symbolic sizes, with which functions are built and lowered once for all sizes.

An extent takes the place of a Python integer: in shapes, strides and attributes, and in literals of functions. It knows its
expression, and its value at many combinations of sizes (:class:`SizeDomain`). Arithmetic yields extents. Comparisons are
answered by the values:

- Extents are equal if they are equal at all allowed sizes.
- The operators ``< <= > >=`` answer for all allowed sizes if these agree, and else for large sizes: the general case is taken.
  The last combination for which that answer is wrong is recorded. There the function for all sizes is compared with the
  function for fixed sizes; for a network's kernel at the 8 largest of these combinations.
- :func:`is_less` and :func:`is_at_most` test all sizes. Analyses call them to prove a fact.

If there are too many combinations to list them, the listed ones only refute a fact, and :mod:`microc.tir.size_proofs` proves it:
that extents are equal or constant, the order of two extents, and bounds.

A program that needs a number, for example as the extent of a ``range``, gets :class:`DependsOnSize`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import gcd, prod
from types import MappingProxyType
from typing import Any

import numpy as np

from microc.base.dtypes import Array
from microc.tir import expressions as ir
from microc.tir.size_proofs import (
    Polynomial,
    Ranges,
    SizeProver,
    add_polynomials,
    divide_polynomials,
    multiply_polynomials,
)

_INFINITIES = (float("inf"), -float("inf"))


class DependsOnSize(Exception):
    """Raised if a decision or a number depends on the sizes. The message names it."""


class SizeDomain:
    """Combinations of sizes, each a value by the name of a size's variable, at which extents are evaluated.

    ``allowed``: combinations that a run may have, all or many of them. ``large``: a few combinations that stand for the general
    case; they answer a comparison on which ``allowed`` disagree. ``exceptions``: for each answer that is wrong at some of
    ``allowed``, the last of these, by its position. ``coincidences``: likewise for numbers that are equal at some of
    ``allowed`` and count as different. ``ranges``: the values of each size if ``allowed`` lists only some combinations of them;
    ``prover`` then proves what holds at all combinations."""

    def __init__(
        self, allowed: Sequence[Mapping[str, int]], large: Sequence[Mapping[str, int]], ranges: Ranges | None = None
    ) -> None:
        self.combinations = (*allowed, *large)
        self.prover = None if ranges is None else SizeProver(ranges)
        self.allowed_count = len(allowed)
        self.exceptions: dict[int, Mapping[str, int]] = {}
        self.coincidences: dict[int, Mapping[str, int]] = {}
        self._values: dict[ir.Expr, Array] = {}

    def extent_of(self, expr: ir.Expr) -> Any:
        """Return the extent that an int32 expression over sizes denotes; a Python integer if it is constant."""
        match expr:
            case ir.Const(value):
                return value
            case ir.Var(name):
                return self._make({(expr,): 1}, np.array([sizes[name] for sizes in self.combinations], np.int64))
            case ir.Un("neg", a):
                return -self.extent_of(a)
            case ir.Bin(op, a, b) if op in _OPERATORS:
                return _OPERATORS[op](self.extent_of(a), self.extent_of(b))
            case _:
                raise DependsOnSize(f"{expr} is no expression over sizes")

    def decide(self, answers: Array, question: str) -> bool:
        """Return the answer for all allowed sizes, or else the answer for large sizes. ``answers``: by combination.

        Raise DependsOnSize if large sizes differ in the answer."""
        allowed, large = answers[: self.allowed_count], answers[self.allowed_count :]
        if (allowed == allowed[0]).all():
            return bool(allowed[0])
        if (large != large[0]).any():
            raise DependsOnSize(f"{question} depends on the sizes")
        wrong = int(np.flatnonzero(allowed != large[0])[-1])
        self.exceptions[wrong] = self.combinations[wrong]
        return bool(large[0])

    def is_difference_at_least(self, a: Any, b: Any, least: int) -> bool:
        """Test whether ``a - b`` is at least ``least`` at all sizes."""
        if not np.all((_values(a) - _values(b))[: self.allowed_count] >= least):
            return False
        return self.prover is None or self.prover.is_at_least(add_polynomials(_terms(a), _terms(b), -1), least)

    def find_bounds(self, extent: Extent) -> tuple[int, int]:
        """Return the smallest and the largest value of an extent, or, where they are not listed, bounds of them."""
        if self.prover is not None:
            return self.prover.lower_bound(extent.terms), self.prover.upper_bound(extent.terms)
        allowed = extent.values[: self.allowed_count]
        return int(allowed.min()), int(allowed.max())

    def _make(self, terms: Polynomial, values: Array) -> Any:
        """Return a sum of terms with the given values; a Python integer if it is the same at all allowed sizes."""
        number, allowed = int(values[0]), values[: self.allowed_count]
        if (allowed == number).all() and (self.prover is None or self.prover.is_equal(terms, number)):
            return number
        return Extent(self, terms, values)

    def _make_opaque(self, op: str, a: Any, b: Any, values: Array) -> Any:
        """Return ``a op b`` with the given values as a new atom."""
        expr = ir.Bin(op, as_expr(a), as_expr(b))
        self._values.setdefault(expr, values)
        return self._make({(expr,): 1}, values)

    def _evaluate(self, terms: Polynomial) -> Array:
        """Return the values of a sum of terms."""
        total = np.zeros(len(self.combinations), np.int64)
        for monomial, factor in terms.items():
            product = np.full_like(total, factor)
            for atom in monomial:
                if atom not in self._values:
                    self._values[atom] = self.extent_of(atom).values
                product *= self._values[atom]
            total += product
        return total


class Extent(ir.SizeDependent):
    """An integer that depends on sizes: a sum of ``terms``, monomials times factors, with ``values`` by combination.

    It counts as an ``int`` in patterns and in ``isinstance``, so that whatever computes with integers computes with
    extents. C code, such as ``range`` and numpy, raises :class:`DependsOnSize`."""

    __slots__ = ("_expr", "domain", "terms", "values")

    def __init__(self, domain: SizeDomain, terms: Polynomial, values: Array) -> None:
        self.domain, self.terms, self.values = domain, terms, values
        self._expr: ir.Expr | None = None

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return int

    @property
    def expr(self) -> ir.Expr:
        """The extent as an int32 expression over sizes: positive terms first, products of more sizes first."""
        if self._expr is None:
            total: ir.Expr | None = None
            for monomial, factor in sorted(self.terms.items(), key=lambda t: (t[1] < 0, -len(t[0]), str(t[0]))):
                size = ir.const(abs(factor), "int32")
                term: ir.Expr = size
                if monomial:
                    term = monomial[0]
                    for atom in monomial[1:]:
                        term = term * atom
                    term = term if abs(factor) == 1 else term * size
                if total is None:
                    total = term if factor > 0 else ir.const(0, "int32") - term
                else:
                    total = total + term if factor > 0 else total - term
            assert total is not None
            self._expr = total
        return self._expr

    def __repr__(self) -> str:
        from microc.tir.text.print import format_expr  # the text imports the expressions

        return format_expr(self.expr)

    def __format__(self, spec: str) -> str:
        """Return the extent as an operand: in brackets unless it is a variable."""
        return format(repr(self) if isinstance(self.expr, ir.Var) else f"({self!r})", spec)

    def __hash__(self) -> int:
        return hash(self.values[: self.domain.allowed_count].tobytes())

    def __index__(self) -> int:
        raise DependsOnSize(f"{self} is not constant")

    __int__ = __float__ = __round__ = __trunc__ = __index__

    def __truediv__(self, other: Any) -> float:
        raise DependsOnSize(f"the fraction {self} / {other} is not constant")

    def __rtruediv__(self, other: Any) -> float:
        raise DependsOnSize(f"the fraction {other} / {self} is not constant")

    # ------------------------------------------------------------ arithmetic

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, int):
            return other if other in _INFINITIES else NotImplemented
        return self.domain._make(add_polynomials(self.terms, _terms(other)), self.values + _values(other))

    def __mul__(self, other: Any) -> Any:
        if not isinstance(other, int):
            if other not in _INFINITIES:
                return NotImplemented
            # A number that is negative at some sizes and 0 at others counts as negative, also if it is 0 at large sizes.
            return -other if is_at_most(self, 0) or self < 0 else other
        return self.domain._make(multiply_polynomials(self.terms, _terms(other)), self.values * _values(other))

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Any:
        return self * -1

    def __abs__(self) -> Any:
        return self if self >= 0 else -self

    def __sub__(self, other: Any) -> Any:
        return self + -other if isinstance(other, int) or other in _INFINITIES else NotImplemented

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __floordiv__(self, other: Any) -> Any:
        return _divide(self, other) if isinstance(other, int) else NotImplemented

    def __rfloordiv__(self, other: Any) -> Any:
        return _divide(other, self)

    def __mod__(self, other: Any) -> Any:
        return _modulo(self, other) if isinstance(other, int) else NotImplemented

    def __rmod__(self, other: Any) -> Any:
        return _modulo(other, self)

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Any, Any]:
        return other // self, other % self

    def __lshift__(self, bits: int) -> Any:
        return self * (1 << bits)

    def __pow__(self, exponent: int) -> Any:
        return prod([self] * exponent)

    def bit_length(self) -> int:
        """Return the number of bits of the magnitude. Raise DependsOnSize unless it is the same at all allowed sizes."""
        low, high = self.domain.find_bounds(self)
        if low.bit_length() != high.bit_length() or (low < 0) != (high < 0):
            raise DependsOnSize(f"the number of bits of {self} is not constant")
        return high.bit_length()

    def _refuse(self, other: Any) -> Any:
        raise DependsOnSize(f"{self} and {other} are combined bit by bit")

    __and__ = __or__ = __xor__ = __rshift__ = __rand__ = __ror__ = __rxor__ = __rlshift__ = __rrshift__ = _refuse

    # ------------------------------------------------------------ comparisons

    def __bool__(self) -> bool:
        return self != 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, int) or (isinstance(other, Extent) and other.domain is not self.domain):
            return False
        equal = (self.values == _values(other))[: self.domain.allowed_count]
        prover = self.domain.prover
        if equal.all() and (prover is None or prover.is_equal(add_polynomials(self.terms, _terms(other), -1), 0)):
            return True
        if equal.any():
            last = int(np.flatnonzero(equal)[-1])
            self.domain.coincidences[last] = self.domain.combinations[last]
        return False

    def __lt__(self, other: Any) -> Any:
        return self._compare(np.less, "<", other)

    def __le__(self, other: Any) -> Any:
        return self._compare(np.less_equal, "<=", other)

    def __gt__(self, other: Any) -> Any:
        return self._compare(np.greater, ">", other)

    def __ge__(self, other: Any) -> Any:
        return self._compare(np.greater_equal, ">=", other)

    def _compare(self, compare: Callable[[Any, Any], Any], sign: str, other: Any) -> Any:
        """Return the answer of a comparison (:meth:`SizeDomain.decide`)."""
        if not isinstance(other, (int, float)):
            return NotImplemented
        return self.domain.decide(compare(self.values, _values(other)), f"{self} {sign} {other}")


# ---- Division. A quotient that is no polynomial becomes an atom of monomials.


def _divide(a: Any, b: Any) -> Any:
    """Return ``a // b``. A division by a number is reduced to one of a smaller dividend, by a smaller number, or by one number:
    ``(n - 1) // 2`` is ``(n + 1) // 2 - 1``, ``(2 * n + 1) // 4`` is ``n // 2``, ``(n // 2 + 1) // 3`` is ``(n + 2) // 6``."""
    domain, dividend, divisor = _domain(a, b), _values(a), _values(b)
    if not np.all(divisor) or not (is_less(0, b) or is_less(b, 0)):
        raise DependsOnSize(f"{b} may be 0, by which {a} is divided")
    quotient, _ = _divide_polynomials(domain, a, b)
    if quotient is not None:
        return domain._make(quotient, np.broadcast_to(dividend // divisor, len(domain.combinations)))
    if type(b) is int and b > 0:
        whole = {t: f // b for t, f in a.terms.items() if f // b and (not t or f % b == 0)}
        if whole:
            small = a + domain._make({t: -f * b for t, f in whole.items()}, domain._evaluate(whole) * -b)
            return small // b + domain._make(whole, domain._evaluate(whole))
        shared = gcd(b, *(factor for monomial, factor in a.terms.items() if monomial))
        if shared > 1:
            reduced = {monomial: factor // shared for monomial, factor in a.terms.items() if factor // shared}
            return domain._make(reduced, domain._evaluate(reduced)) // (b // shared)
        if all(factor < 0 for monomial, factor in a.terms.items() if monomial):
            return -((b - 1 - a) // b)  # a rounded quotient is an atom in one form only: (1 - n) // 2 is -(n // 2)
        match [(monomial, factor) for monomial, factor in a.terms.items() if monomial]:
            case [((ir.Bin("floordiv", inner, ir.Const(int() as first)),), 1)] if first > 0:
                return (domain.extent_of(inner) + a.terms.get((), 0) * first) // (first * b)
    return domain._make_opaque("floordiv", a, b, dividend // divisor + domain._evaluate({}))


def _divide_polynomials(domain: SizeDomain, a: Any, b: Any) -> tuple[Polynomial | None, Polynomial]:
    """Return the floored quotient and the remainder of ``a`` by ``b`` if both are polynomials; else None, and nothing."""
    quotient, rest = divide_polynomials(_terms(a), _terms(b))
    if not rest:
        return quotient, rest
    one: Polynomial = {(): 1}
    lower = add_polynomials(quotient, one, -1), add_polynomials(rest, _terms(b))  # the rest may be just below 0
    for terms, remainder in [(quotient, rest), lower] if quotient else []:
        number = domain._make(remainder, domain._evaluate(remainder))
        if is_at_most(0, number) and is_less(number, b):
            return terms, remainder
    return None, {}


def _modulo(a: Any, b: Any) -> Any:
    """Return ``a % b``."""
    domain, dividend, divisor = _domain(a, b), _values(a), _values(b)
    if not np.all(divisor) or not (is_less(0, b) or is_less(b, 0)):
        raise DependsOnSize(f"{b} may be 0, by which {a} is divided")
    quotient, remainder = _divide_polynomials(domain, a, b)
    if quotient is not None:
        return domain._make(remainder, np.broadcast_to(dividend % divisor, len(domain.combinations)))
    return domain._make_opaque("floormod", a, b, dividend % divisor + domain._evaluate({}))


# ---- Extents in texts. A program may write sizes into a text of TIR, where they appear as the names of their variables.

_SIZES_IN_TEXTS: ContextVar[Mapping[str, Any]] = ContextVar("_SIZES_IN_TEXTS", default=MappingProxyType({}))


@contextmanager
def declare_sizes_in_texts(sizes: Mapping[str, Any]) -> Iterator[None]:
    """Let texts that are parsed in this context read undeclared names as the extents ``sizes``."""
    token = _SIZES_IN_TEXTS.set(sizes)
    try:
        yield
    finally:
        _SIZES_IN_TEXTS.reset(token)


def find_size_in_texts(name: str) -> ir.Const | None:
    """Return the size of this name as a literal, if :func:`declare_sizes_in_texts` declares it."""
    size = _SIZES_IN_TEXTS.get().get(name)
    return None if size is None else ir.const(size, "int32")


# ---- Functions of numbers, each of which may be an extent.


def as_expr(value: Any) -> ir.Expr:
    """Return an integer as an int32 expression over sizes."""
    return value.expr if isinstance(value, Extent) else ir.const(value, "int32")


def is_less(a: Any, b: Any) -> bool:
    """Test whether ``a < b`` holds at all sizes."""
    if not _have_extent_and_integer(a, b):
        return bool(a < b)
    return _domain(a, b).is_difference_at_least(b, a, 1)


def is_at_most(a: Any, b: Any) -> bool:
    """Test whether ``a <= b`` holds at all sizes."""
    if not _have_extent_and_integer(a, b):
        return bool(a <= b)
    return _domain(a, b).is_difference_at_least(b, a, 0)


def _have_extent_and_integer(a: Any, b: Any) -> bool:
    """Test whether an order depends on sizes: one of two numbers is an extent, and neither is infinite."""
    return (isinstance(a, Extent) or isinstance(b, Extent)) and isinstance(a, int) and isinstance(b, int)


def upper_bound(value: Any) -> int:
    """Return the largest value of an integer at all sizes; of an extent, a number that it does not exceed."""
    return value.domain.find_bounds(value)[1] if isinstance(value, Extent) else int(value)


def smallest(*values: Any) -> Any:
    """Return the minimum. It is a new extent if the sizes decide which number is the smallest."""
    return _find_extreme("min", values)


def largest(*values: Any) -> Any:
    """Return the maximum. It is a new extent if the sizes decide which number is the largest."""
    return _find_extreme("max", values)


def _find_extreme(op: str, values: Sequence[Any]) -> Any:
    """Return the minimum or maximum of integers. ``op``: ``min`` or ``max``."""
    best, *others = values
    for value in others:
        first, second = (best, value) if op == "min" else (value, best)
        if not is_at_most(first, second):
            best = value if is_at_most(second, first) else _min_or_max(op, best, value)
    return best


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """Return the shape to which numpy broadcasts shapes whose extents may depend on sizes. Raise ValueError if there is none.

    An extent that depends on sizes counts as more than 1: it must equal the others."""
    rank = max(map(len, shapes), default=0)
    result = []
    for axis in range(rank):
        column = [shape[axis - rank] for shape in shapes if axis - rank >= -len(shape)]
        longer = [extent for extent in column if extent != 1]
        if any(extent != longer[0] for extent in longer):
            raise ValueError(f"shapes do not broadcast: {shapes}")
        result.append(longer[0] if longer else 1)
    return tuple(result)


def divide_exactly(a: Any, b: Any) -> Any:
    """Return the floored quotient of integers. If it depends on sizes, return it only if it is exact, and else 0."""
    if not isinstance(a, Extent) and not isinstance(b, Extent):
        return a // b
    return a // b if type(a % b) is int and a % b == 0 else 0


def common_divisor(*numbers: Any) -> Any:
    """Return the greatest common divisor of integers. An extent counts only where it divides the others, or they divide it."""
    if not any(isinstance(number, Extent) for number in numbers):
        return gcd(*numbers)
    divisor, *others = numbers
    for number in others:
        pair = (divisor, number)
        divisor = next((x for x, y in (pair, pair[::-1]) if x != 0 and divide_exactly(y, x)), 1)
    return abs(divisor)


def magnitude(value: Any) -> int:
    """Return the magnitude of an integer, to sort terms by it; of an extent that at large sizes."""
    return abs(int(value.values[-1] if isinstance(value, Extent) else value))


def _min_or_max(op: str, a: Any, b: Any) -> Any:
    apply: Callable[[Any, Any], Any] = np.minimum if op == "min" else np.maximum
    if not isinstance(a, Extent) and not isinstance(b, Extent):
        return int(apply(a, b))
    return _domain(a, b)._make_opaque(op, a, b, apply(_values(a), _values(b)))


def _domain(a: Any, b: Any) -> SizeDomain:
    """Return the domain of the extent among two numbers."""
    domain: SizeDomain = a.domain if isinstance(a, Extent) else b.domain
    return domain


def _values(number: Any) -> Any:
    """Return the values of an extent by combination, or the number itself."""
    return number.values if isinstance(number, Extent) else number


def _terms(number: Any) -> Polynomial:
    """Return an integer as a sum of terms."""
    return number.terms if isinstance(number, Extent) else {(): int(number)} if number else {}


_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = MappingProxyType(
    {
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "mul": lambda a, b: a * b,
        "floordiv": lambda a, b: a // b,
        "floormod": lambda a, b: a % b,
        "min": lambda a, b: _min_or_max("min", a, b),
        "max": lambda a, b: _min_or_max("max", a, b),
    }
)
