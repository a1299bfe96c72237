# SPDX-License-Identifier: Apache-2.0
"""Integer expressions over loop variables: the intervals of their values, and linear forms."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from contextlib import suppress

from microc.base import dtypes
from microc.tir import ir
from microc.tir.extents import common_divisor, divide_exactly, is_at_most, is_less, largest, magnitude, smallest
from microc.tir.ir import Bin, Const, Expr, Var

# ---- Interval arithmetic on integers.
#
# An interval is a pair ``(low, high)``, both inclusive; an end is ``-INF`` or ``INF`` if it is unknown. Results
# are intervals of exact integers and are not clipped to the range of a dtype, because signed arithmetic must
# not overflow.


INF = float("inf")
Bound = int | float
Interval = tuple[Bound, Bound]

UNKNOWN: Interval = (-INF, INF)
BOOLEAN: Interval = (0, 1)


def dtype_interval(dtype: str) -> Interval:
    """Return the interval that is assumed for data of a dtype.

    It is the range of the dtype if the dtype has less than 32 bits. Otherwise it is unknown for signed integers and floats,
    and non-negative for unsigned integers."""
    kind, bits, lanes = dtypes.dtype_parts(dtype)
    if kind == "float" or lanes > 1:
        return UNKNOWN
    if kind == "bool" or bits < 32:
        return dtypes.int_range(dtype)
    return (0, INF) if kind == "uint" else UNKNOWN


def within(inner: Interval, outer: Interval) -> bool:
    """Test whether ``outer`` contains ``inner``."""
    return is_at_most(outer[0], inner[0]) and is_at_most(inner[1], outer[1])


def union(a: Interval, b: Interval) -> Interval:
    """Return the smallest interval that contains the intervals ``a`` and ``b``."""
    return smallest(a[0], b[0]), largest(a[1], b[1])


def _multiply_bounds(a: Bound, b: Bound) -> Bound:
    """Return the product of two ends of intervals, where 0 times infinity is 0."""
    return 0 if a == 0 or b == 0 else a * b


def scale(a: Interval, factor: int) -> Interval:
    """Return the interval of ``factor * a``."""
    if is_at_most(0, factor):
        return _multiply_bounds(a[0], factor), _multiply_bounds(a[1], factor)
    if is_at_most(factor, 0):
        return _multiply_bounds(a[1], factor), _multiply_bounds(a[0], factor)
    return mul(a, (factor, factor))


def add(a: Interval, b: Interval) -> Interval:
    """Return the interval of ``a + b``."""
    return a[0] + b[0], a[1] + b[1]


def sub(a: Interval, b: Interval) -> Interval:
    """Return the interval of ``a - b``."""
    return a[0] - b[1], a[1] - b[0]


def mul(a: Interval, b: Interval) -> Interval:
    """Return the interval of ``a * b``; the unknown interval if an end is infinite, and the sign of another depends on sizes."""
    ends = *a, *b
    if not all(isinstance(end, int) for end in ends) and not all(
        is_at_most(0, end) or is_at_most(end, 0) for end in ends
    ):
        return UNKNOWN
    corners = [_multiply_bounds(x, y) for x in a for y in b]
    return smallest(*corners), largest(*corners)


def floordiv_bound(x: Bound, divisor: int) -> Bound:
    """Return ``x // divisor`` for an end ``x`` of an interval and a positive divisor. An infinite end stays infinite."""
    return x // divisor if isinstance(x, int) else x


def floordiv(a: Interval, b: Interval) -> Interval:
    """Return the interval of ``a // b``, rounded down, if ``b`` is a positive constant; else the unknown interval."""
    if b[0] != b[1] or not isinstance(b[0], int) or not is_less(0, b[0]):
        return UNKNOWN
    return floordiv_bound(a[0], b[0]), floordiv_bound(a[1], b[0])


def floormod(a: Interval, b: Interval) -> Interval:
    """Return the interval of the remainder of floored division, ``a % b``, if ``b`` is positive; else the unknown interval.

    This remainder has the sign of the divisor."""
    if not is_less(0, b[0]):
        return UNKNOWN
    if is_at_most(0, a[0]):
        return a if is_less(a[1], b[0]) else (0, smallest(a[1], b[1] - 1))
    return 0, b[1] - 1


def truncdiv(a: Interval, b: Interval) -> Interval:
    """Return the interval of ``a / b``, rounded towards zero, if ``b`` is a positive constant; else the unknown interval."""
    if b[0] != b[1] or not isinstance(b[0], int) or not is_less(0, b[0]):
        return UNKNOWN
    if not all(is_at_most(0, end) or is_at_most(end, 0) for end in a):
        return UNKNOWN
    ends = [x if not isinstance(x, int) else (x // b[0] if is_at_most(0, x) else -(-x // b[0])) for x in a]
    return ends[0], ends[1]


def truncmod(a: Interval, b: Interval) -> Interval:
    """Return the interval of the remainder of truncated division if ``b`` is positive; else the unknown interval.

    This remainder has the sign of the dividend, as in C."""
    if not is_less(0, b[0]):
        return UNKNOWN
    last = b[1] - 1
    return smallest(largest(a[0], -last), 0), largest(smallest(a[1], last), 0)


def shift_left(a: Interval, b: Interval) -> Interval:
    """Return the interval of ``a << b`` if ``b`` is within 0 to 63; else the unknown interval."""
    if not (isinstance(b[0], int) and isinstance(b[1], int) and within(b, (0, 63))):
        return UNKNOWN
    return mul(a, (1 << b[0], 1 << b[1]))


def shift_right(a: Interval, b: Interval) -> Interval:
    """Return the interval of ``a >> b``, rounded down, if ``b`` is within 0 to 63; else the unknown interval."""
    if not (isinstance(b[0], int) and isinstance(b[1], int) and within(b, (0, 63))):
        return UNKNOWN
    ends = [floordiv_bound(x, 1 << s) for x in a for s in (b[0], b[1])]
    return smallest(*ends), largest(*ends)


def bitand(a: Interval, b: Interval) -> Interval:
    """Return the interval of ``a & b``; unknown if both operands may be negative.

    The result is between zero and any operand that is non-negative."""
    highs = [x[1] for x in (a, b) if is_at_most(0, x[0])]
    return (0, smallest(*highs)) if highs else UNKNOWN


def bitor(a: Interval, b: Interval) -> Interval:
    """Return the interval of ``a | b`` or ``a ^ b``; unknown unless both operands are non-negative and bounded.

    The result has at most as many bits as the longer operand."""
    if not is_at_most(0, smallest(a[0], b[0])) or not (isinstance(a[1], int) and isinstance(b[1], int)):
        return UNKNOWN
    return 0, (1 << largest(a[1], b[1]).bit_length()) - 1


def minimum(a: Interval, b: Interval) -> Interval:
    """Return the interval of ``min(a, b)``."""
    return smallest(a[0], b[0]), smallest(a[1], b[1])


def maximum(a: Interval, b: Interval) -> Interval:
    """Return the interval of ``max(a, b)``."""
    return largest(a[0], b[0]), largest(a[1], b[1])


def binary(op: str, a: Interval, b: Interval) -> Interval:
    """Return the interval of ``a op b`` for an arithmetic operator on integers; unknown for other operators."""
    match op:
        case "add":
            return add(a, b)
        case "sub":
            return sub(a, b)
        case "mul":
            return mul(a, b)
        case "floordiv":
            return floordiv(a, b)
        case "floormod":
            return floormod(a, b)
        case "truncdiv":
            return truncdiv(a, b)
        case "truncmod":
            return truncmod(a, b)
        case "min":
            return minimum(a, b)
        case "max":
            return maximum(a, b)
        case "shl":
            return shift_left(a, b)
        case "shr":
            return shift_right(a, b)
        case "bitand":
            return bitand(a, b)
        case "bitor" | "bitxor":
            return bitor(a, b)
        case _:
            return UNKNOWN


def compare(op: str, a: Interval, b: Interval) -> bool | None:
    """Return True if the comparison ``a op b`` holds for all values, False if it holds for none, None if it is unknown."""
    match op:
        case "lt":
            return True if is_less(a[1], b[0]) else False if is_at_most(b[1], a[0]) else None
        case "le":
            return True if is_at_most(a[1], b[0]) else False if is_less(b[1], a[0]) else None
        case "gt":
            return compare("lt", b, a)
        case "ge":
            return compare("le", b, a)
        case "eq" | "ne":
            equal = (
                True if a[0] == a[1] == b[0] == b[1] else False if is_less(a[1], b[0]) or is_less(b[1], a[0]) else None
            )
            return equal if op == "eq" or equal is None else not equal
        case _:
            return None


# ---- LinearForm forms of index expressions, and their floored division by constants.
#
# A linear form is a sum of integer multiples of atoms, plus a constant. An atom is a variable or a non-linear
# expression. :class:`LinearFormEmitter` converts forms to expressions in a canonical order.
# :class:`LinearFormDivider` divides forms by constants.


# ---- LinearForm forms over atoms, and their canonical expressions.

INDEX_LIMIT = (1 << 31) - 1
"""Largest int32."""


class Int32Overflow(Exception):
    """Raised if a number in a linear form does not fit int32. The caller then leaves the expression unchanged."""


class Atom:
    """An atom of linear forms: a variable, or an expression that is not linear.

    Equal expressions share one atom, which an :class:`AtomTable` creates. So atoms are compared and hashed by identity, which
    is cheaper than hashing an expression."""

    __slots__ = ("expr", "order")

    def __init__(self, expr: Expr, order: int) -> None:
        self.expr = expr
        self.order = order


class AtomTable:
    """Table of atoms, numbered in order of appearance. Equal expressions share one atom.

    ``emitted``: expressions of the linear forms that were emitted before."""

    def __init__(self) -> None:
        self._by_identity: dict[int, tuple[Expr, Atom]] = {}
        self._by_structure: dict[Expr, Atom] = {}
        self.emitted: dict[tuple[int, tuple[tuple[Atom, int], ...]], Expr] = {}

    def atom_of(self, expr: Expr) -> Atom:
        """Return the atom of an expression, which equal expressions share."""
        found = self._by_identity.get(id(expr))
        if found is None:
            atom = self._by_structure.setdefault(expr, Atom(expr, len(self._by_structure)))
            found = self._by_identity[id(expr)] = (expr, atom)
        return found[1]


class LinearForm:
    """A linear form ``sum(terms[atom] * atom) + const``. Coefficients are never zero. Immutable once built."""

    __slots__ = ("const", "terms")

    def __init__(self, terms: dict[Atom, int], const: int = 0) -> None:
        self.terms = terms
        self.const = const

    def plus(self, other: LinearForm, factor: int = 1) -> LinearForm:
        """Return ``self + factor * other``."""
        terms = dict(self.terms)
        for atom, k in other.terms.items():
            value = terms.get(atom, 0) + k * factor
            if value:
                terms[atom] = value
            else:
                terms.pop(atom, None)
        return LinearForm(terms, self.const + other.const * factor)

    def times(self, factor: int) -> LinearForm:
        """Return ``factor * self``."""
        if factor == 0:
            return LinearForm({})
        return LinearForm({atom: k * factor for atom, k in self.terms.items()}, self.const * factor)

    def equals(self, other: LinearForm) -> bool:
        """Test whether two forms have the same terms and constant."""
        return self.const == other.const and self.terms == other.terms

    @property
    def single_atom(self) -> Atom | None:
        """The atom if the form consists of exactly one atom with factor 1; else None."""
        if self.const == 0 and len(self.terms) == 1:
            (atom, k), *_ = self.terms.items()
            return atom if k == 1 else None
        return None


Fact = LinearForm  # a linear form that is known to be at most zero


def index_literal(value: int) -> Const:
    """Return an int32 literal. Raises :class:`Int32Overflow` if the value does not fit."""
    if not (is_at_most(-INDEX_LIMIT - 1, value) and is_at_most(value, INDEX_LIMIT)):
        raise Int32Overflow
    return ir.const(value, "int32") if type(value) is int else Const(value, "int32")  # an Extent is no int


def split_by_divisor(form: LinearForm, divisor: int) -> tuple[LinearForm, LinearForm]:
    """Return two forms, ``quotient`` and ``rest``, such that ``form = divisor * quotient + rest``.

    The coefficients of ``rest`` are less than the divisor in magnitude. Its constant is in 0..divisor-1."""
    quotient: dict[Atom, int] = {}
    rest: dict[Atom, int] = {}
    for atom, k in form.terms.items():
        q = divide_exactly(k, divisor) if k >= 0 else -divide_exactly(-k, divisor)
        if q:
            quotient[atom] = q
        if k - q * divisor:
            rest[atom] = k - q * divisor
    whole = divide_exactly(form.const, divisor)
    return LinearForm(quotient, whole), LinearForm(rest, form.const - whole * divisor)


def cancelling_factors(form: LinearForm, fact: Fact) -> set[int]:
    """Return the positive factors k for which ``form - k * fact`` lacks one of the atoms of ``form``."""
    shared = ((form.terms[t], v) for t, v in fact.terms.items() if t in form.terms)
    return {k // v for k, v in shared if k % v == 0 and is_less(0, k // v)}


def inequality_facts(op: str, form: LinearForm) -> Iterable[Fact]:
    """Yield the facts (forms that are at most zero) that together are equivalent to ``form op 0``."""
    one = LinearForm({}, 1)
    if not form.terms:
        return
    match op:
        case "lt":
            yield form.plus(one)
        case "le":
            yield form
        case "gt":
            yield form.times(-1).plus(one)
        case "ge":
            yield form.times(-1)
        case "eq":
            yield form
            yield form.times(-1)


class LinearFormEmitter:
    """Converter of linear forms to int32 expressions."""

    def __init__(self, atoms: AtomTable | None = None) -> None:
        self.atoms = atoms or AtomTable()
        self._keys: dict[int, tuple[Expr, str]] = {}

    def form_of_atom(self, expr: Expr) -> LinearForm:
        """Return the linear form that consists of ``expr`` as its only atom."""
        return LinearForm({self.atoms.atom_of(expr): 1})

    def sort_key(self, expr: Expr) -> str:
        """Return the sort key of an expression, a text that is the same in every run of the compiler.

        Expressions that depend on data are sorted in order of appearance. The key is cached."""
        found = self._keys.get(id(expr))
        if found is None:
            found = self._keys[id(expr)] = (expr, self._compute_sort_key(expr))
        return found[1]

    def _compute_sort_key(self, expr: Expr) -> str:
        """Compute the sort key of an expression from those of its operands."""
        match expr:
            case Var(name):
                return name
            case Bin(op, a, b):
                return f"({self.sort_key(a)} {op} {self.sort_key(b)})"
            case Const(value):
                return str(value)
            case ir.Un(op, a):
                return f"{op} {self.sort_key(a)}"
            case ir.Select(c, a, b):
                return f"({self.sort_key(c)} ? {self.sort_key(a)} : {self.sort_key(b)})"
            case _:
                return f"#{self.atoms.atom_of(expr).order}"

    def to_expr(self, form: LinearForm) -> Expr:
        """Return a linear form as an expression in canonical order.

        Positive terms come first, large coefficients before small ones, the constant last. Equal forms are emitted as the
        same object, so that facts about the expression are computed once."""
        key = form.const, tuple(form.terms.items())
        found = self.atoms.emitted.get(key)
        if found is None:
            found = self.atoms.emitted[key] = self._build_expr(form)
        return found

    def _build_expr(self, form: LinearForm) -> Expr:
        """Build the expression of a linear form in canonical order."""
        terms = sorted(
            form.terms.items(), key=lambda item: (not item[1] >= 0, -magnitude(item[1]), self.sort_key(item[0].expr))
        )
        result: Expr | None = None
        rest = form.const
        for atom, k in terms:
            size = index_literal(abs(k))
            term = atom.expr if abs(k) == 1 else Bin("mul", atom.expr, size)
            # Without positive terms a positive constant comes first: ``5 - x`` instead of ``-x + 5``.
            if result is None and not k >= 0 and rest > 0:
                result, rest = index_literal(rest), 0
            if result is None:
                result = (
                    term if k >= 0 else ir.Un("neg", atom.expr) if k == -1 else Bin("mul", atom.expr, index_literal(k))
                )
            else:
                result = Bin("add" if k >= 0 else "sub", result, term)
        if result is None:
            return index_literal(rest)
        if rest:
            result = Bin("add" if rest >= 0 else "sub", result, index_literal(abs(rest)))
        return result


# ---- Floored division of linear forms by positive constants. Quotients and remainders are decomposed if possible, and a
# quotient and a remainder of the same dividend are joined again.
#
# A digit is an atom that is a quotient or a remainder by a constant, as in a mixed-radix number.


class LinearFormDivider(LinearFormEmitter):
    """Floored division of linear forms by constants. Subclasses provide the linear forms and the ranges of expressions."""

    def __init__(self, atoms: AtomTable | None = None) -> None:
        super().__init__(atoms)
        self._digits: dict[Atom, tuple[str, LinearForm, int] | None] = {}

    @abstractmethod
    def linear_form(self, expr: Expr) -> LinearForm:
        """Return the linear form of an int32 expression."""

    @abstractmethod
    def range_of_form(self, form: LinearForm) -> Interval:
        """Return the range of a linear form."""

    def divide(self, form: LinearForm, divisor: int) -> LinearForm:
        """Return ``form // divisor``, the floored quotient, for a positive divisor.

        Terms whose coefficients are multiples of the divisor are divided exactly. The quotient of the rest is constant if
        the range of the rest is within one multiple of the divisor. Otherwise common factors and nested divisions are
        reduced. If neither is possible, the quotient of the rest is an atom.
        """
        if divisor == 1:
            return form
        quotient, rest = split_by_divisor(self.join_quotients_and_remainders(form), divisor)
        low, high = self.range_of_form(rest)
        if isinstance(low, int) and isinstance(high, int) and low // divisor == high // divisor:
            return quotient.plus(LinearForm({}, low // divisor))
        reduced = self._split_by_common_divisor(rest, divisor)
        if reduced is not None:
            inner, _, g = reduced
            return quotient.plus(self.divide(inner, divisor // g))
        nested = self._divide_nested_quotient_or_remainder(rest, divisor)
        if nested is not None:
            return quotient.plus(nested)
        return quotient.plus(self.form_of_atom(Bin("floordiv", self.to_expr(rest), index_literal(divisor))))

    def _divide_nested_quotient_or_remainder(self, rest: LinearForm, divisor: int) -> LinearForm | None:
        """Return ``rest // divisor`` if ``rest`` is a single quotient or remainder plus a constant; else None.

        With c for the divisor, ``(x // a + d) // c`` is ``(x + d a) // (a c)``. If c divides a, ``x % a // c`` is
        ``x // c % (a // c)``."""
        if len(rest.terms) != 1:
            return None
        (atom, k), *_ = rest.terms.items()
        digit = self.match_quotient_or_remainder(atom) if k == 1 else None
        if digit is None:
            return None
        op, inner, a = digit
        if op == "floordiv" and a * divisor <= INDEX_LIMIT:
            return self.divide(inner.plus(LinearForm({}, rest.const * a)), a * divisor)
        if op == "floormod" and rest.const == 0 and a % divisor == 0:
            return self.modulo(self.divide(inner, divisor), a // divisor)
        return None

    def modulo(self, form: LinearForm, divisor: int) -> LinearForm:
        """Return ``form % divisor``, the remainder of floored division, for a positive divisor.

        Inner remainders are replaced by their dividends: ``k * (x % a)`` and ``k * x`` are equal modulo the divisor if it
        divides k a.
        """
        if divisor == 1:
            return LinearForm({})
        _, rest = split_by_divisor(self.join_quotients_and_remainders(form), divisor)
        for atom, k in rest.terms.items():
            digit = self.match_quotient_or_remainder(atom)
            if digit is not None and digit[0] == "floormod" and k * digit[2] % divisor == 0:
                return self.modulo(rest.plus(LinearForm({atom: k}), -1).plus(digit[1], k), divisor)
        low, high = self.range_of_form(rest)
        if isinstance(low, int) and isinstance(high, int) and low // divisor == high // divisor:
            return rest.plus(LinearForm({}, -divisor * (low // divisor)))
        reduced = self._split_by_common_divisor(rest, divisor)
        if reduced is not None:
            inner, remainder, g = reduced
            return self.modulo(inner, divisor // g).times(g).plus(remainder)
        return self.form_of_atom(Bin("floormod", self.to_expr(rest), index_literal(divisor)))

    def _split_by_common_divisor(self, rest: LinearForm, divisor: int) -> tuple[LinearForm, LinearForm, int] | None:
        """Return (inner, remainder, g) such that ``rest = g * inner + remainder`` and ``0 <= remainder < g``.

        Here g > 1 is the largest possible factor of ``divisor``. Then ``rest // divisor`` equals
        ``inner // (divisor / g)``. None if there is no such g.
        """
        for g in sorted({common_divisor(k, divisor) for k in rest.terms.values()} - {1}, reverse=True):
            outer = LinearForm({t: k for t, k in rest.terms.items() if k % g}, rest.const % g)
            low, high = self.range_of_form(outer)
            if isinstance(low, int) and isinstance(high, int) and low // g == high // g:
                steps = low // g
                inner = LinearForm({t: k // g for t, k in rest.terms.items() if k % g == 0}, rest.const // g + steps)
                return inner, outer.plus(LinearForm({}, -g * steps)), g
        return None

    def match_quotient_or_remainder(self, atom: Atom) -> tuple[str, LinearForm, int] | None:
        """Return (operator, dividend, divisor) of an atom that is a quotient or remainder by a positive constant.

        The operator is ``floordiv`` or ``floormod``. None for other atoms."""
        if atom not in self._digits:
            self._digits[atom] = None
            match atom.expr:
                case Bin(("floordiv" | "floormod") as op, a, Const(int(c))) if c > 0:
                    with suppress(Int32Overflow):
                        self._digits[atom] = (op, self.linear_form(a), c)
        return self._digits[atom]

    def join_quotients_and_remainders(self, form: LinearForm) -> LinearForm:
        """Return a form with quotients and remainders of the same dividend joined: ``(x // c) * c + x % c`` becomes ``x``."""
        while True:
            joined = self._join_terms(form)
            if joined is None:
                return form
            form = joined

    def _join_terms(self, form: LinearForm) -> LinearForm | None:
        """Return a form with one quotient and one remainder of the same dividend joined; None if there is no such pair."""
        for atom, k in form.terms.items():
            digit = self.match_quotient_or_remainder(atom) if type(atom.expr) is Bin else None
            if digit is None:
                continue
            op, x, c = digit
            if op == "floormod":
                joined = self._join_remainder(form, atom, k, x, c)
                if joined is not None:
                    return joined
            elif k % c == 0 and all(form.terms.get(t) == -k // c * v for t, v in x.terms.items()):
                j = -k // c
                return form.plus(LinearForm({atom: k}), -1).plus(x, -j).plus(self.modulo(x, c), j)
        return None

    def _join_remainder(
        self, form: LinearForm, atom: Atom, factor: int, dividend: LinearForm, divisor: int
    ) -> LinearForm | None:
        """Return a form in which its term ``factor * (dividend % divisor)`` is joined with another term.

        The other term has the coefficient ``factor * divisor``. Its atom is ``dividend // divisor``, or a remainder of
        ``dividend // divisor``. None if there is no such term."""
        quotient = self.divide(dividend, divisor)
        y = quotient.single_atom
        if y is None:
            return None
        if form.terms.get(y) == factor * divisor:
            return form.plus(LinearForm({atom: factor, y: factor * divisor}), -1).plus(dividend, factor)
        for other, value in form.terms.items():
            digit = self.match_quotient_or_remainder(other) if value == factor * divisor else None
            if digit is not None and digit[0] == "floormod" and digit[1].equals(quotient):
                return form.plus(LinearForm({atom: factor, other: value}), -1).plus(
                    self.modulo(dividend, divisor * digit[2]), factor
                )
        return None
