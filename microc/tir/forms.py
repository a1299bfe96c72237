"""Index expressions as sums over loop variables, at many sizes side by side.

A :class:`Form` is ``sum(terms[v] * v)`` and something between ``low`` and ``high``. Every number is an array: one element for all
sizes, or one for each. What is not linear becomes a part of ``low`` and ``high``; but a variable whose quotient and remainder by
something are asked for is taken for two variables, its *digits*, so that the index of a pixel tells row and column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from microc.dtypes import Array
from microc.frozen import frozen
from microc.tir import ir

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
