"""Floored division of linear forms by positive constants: taken apart where possible, put together again."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import suppress
from math import gcd

from microc.tir.interval import Interval
from microc.tir.ir import Bin, Const, Expr
from microc.tir.linear import INDEX_LIMIT, Atom, Atoms, Emitter, Linear, Unprintable, index, split


class Division(Emitter):
    """Quotients and remainders in a context that knows the ranges of forms."""

    def __init__(self, atoms: Atoms | None = None) -> None:
        super().__init__(atoms)
        self._digits: dict[Atom, tuple[str, Linear, int] | None] = {}

    @abstractmethod
    def linear(self, expr: Expr) -> Linear:
        """The linear form of an int32 expression."""

    @abstractmethod
    def span(self, form: Linear) -> Interval:
        """The range of a linear form."""

    def divide(self, form: Linear, c: int) -> Linear:
        """``form // c`` for c > 0: multiples of c leave the division, what is within one multiple is dropped."""
        if c == 1:
            return form
        quotient, rest = split(self.tidy(form), c)
        low, high = self.span(rest)
        if isinstance(low, int) and isinstance(high, int) and low // c == high // c:
            return quotient.plus(Linear({}, low // c))
        reduced = self._common_factor(rest, c)
        if reduced is not None:
            inner, _, g = reduced
            return quotient.plus(self.divide(inner, c // g))
        nested = self._nested_divide(rest, c)
        if nested is not None:
            return quotient.plus(nested)
        return quotient.plus(self.form(Bin("floordiv", self.emit(rest), index(c))))

    def _nested_divide(self, rest: Linear, c: int) -> Linear | None:
        if len(rest.terms) != 1:
            return None
        (atom, k), *_ = rest.terms.items()
        digit = self.digit(atom) if k == 1 else None
        if digit is None:
            return None
        op, inner, a = digit
        if op == "floordiv" and a * c <= INDEX_LIMIT:
            return self.divide(inner.plus(Linear({}, rest.const * a)), a * c)
        if op == "floormod" and rest.const == 0 and a % c == 0:
            return self.modulo(self.divide(inner, c), a // c)
        return None

    def modulo(self, form: Linear, c: int) -> Linear:
        """``form mod c`` (floored) for c > 0."""
        if c == 1:
            return Linear({})
        _, rest = split(self.tidy(form), c)
        for atom, k in rest.terms.items():
            digit = self.digit(atom)
            if digit is not None and digit[0] == "floormod" and k * digit[2] % c == 0:
                return self.modulo(rest.plus(Linear({atom: k}), -1).plus(digit[1], k), c)
        low, high = self.span(rest)
        if isinstance(low, int) and isinstance(high, int) and low // c == high // c:
            return rest.plus(Linear({}, -c * (low // c)))
        reduced = self._common_factor(rest, c)
        if reduced is not None:
            inner, remainder, g = reduced
            return self.modulo(inner, c // g).times(g).plus(remainder)
        return self.form(Bin("floormod", self.emit(rest), index(c)))

    def _common_factor(self, rest: Linear, c: int) -> tuple[Linear, Linear, int] | None:
        """``rest = g * inner + remainder`` with ``0 <= remainder < g`` and g a divisor of c greater than 1."""
        for g in sorted({gcd(k, c) for k in rest.terms.values()} - {1}, reverse=True):
            outer = Linear({t: k for t, k in rest.terms.items() if k % g}, rest.const % g)
            low, high = self.span(outer)
            if isinstance(low, int) and isinstance(high, int) and low // g == high // g:
                steps = low // g
                inner = Linear({t: k // g for t, k in rest.terms.items() if k % g == 0}, rest.const // g + steps)
                return inner, outer.plus(Linear({}, -g * steps)), g
        return None

    def digit(self, atom: Atom) -> tuple[str, Linear, int] | None:
        """(``floordiv`` or ``floormod``, dividend, divisor) of an atom that is a division by a positive constant."""
        if atom not in self._digits:
            self._digits[atom] = None
            match atom.expr:
                case Bin(("floordiv" | "floormod") as op, a, Const(int(c))) if c > 0:
                    with suppress(Unprintable):
                        self._digits[atom] = (op, self.linear(a), c)
        return self._digits[atom]

    def tidy(self, form: Linear) -> Linear:
        """Put quotients and remainders of one dividend together again: ``(x // c) * c + x % c`` is ``x``."""
        while True:
            joined = self._join(form)
            if joined is None:
                return form
            form = joined

    def _join(self, form: Linear) -> Linear | None:
        for atom, k in form.terms.items():
            digit = self.digit(atom) if type(atom.expr) is Bin else None
            if digit is None:
                continue
            op, x, c = digit
            if op == "floormod":
                joined = self._join_remainder(form, atom, k, x, c)
                if joined is not None:
                    return joined
            elif k % c == 0 and all(form.terms.get(t) == -k // c * v for t, v in x.terms.items()):
                j = -k // c
                return form.plus(Linear({atom: k}), -1).plus(x, -j).plus(self.modulo(x, c), j)
        return None

    def _join_remainder(self, form: Linear, atom: Atom, k: int, x: Linear, c: int) -> Linear | None:
        quotient = self.divide(x, c)
        y = quotient.single
        if y is None:
            return None
        if form.terms.get(y) == k * c:
            return form.plus(Linear({atom: k, y: k * c}), -1).plus(x, k)
        for other, value in form.terms.items():
            digit = self.digit(other) if value == k * c else None
            if digit is not None and digit[0] == "floormod" and digit[1].same(quotient):
                return form.plus(Linear({atom: k, other: value}), -1).plus(self.modulo(x, c * digit[2]), k)
        return None
