"""Whether the loops around a block bring its iterators through their whole domain.

Every binding is taken apart into digits of loop variables: ``f // 12``, ``f // 4 % 3`` and ``f % 4`` are independent digits of
``f``, and a sum of digits whose strides leave no gap runs through an interval. Conditions around the block (its predicate,
``If``, loops of variable extent) must let every instance within the domain pass. A block that was tensorized handles as
many values of an iterator at once as its intrinsics touch elements; steps up to that size leave no gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from microc.tir import fold, ir
from microc.tir.affine import tail_conditions
from microc.tir.linear import Atom, Linear, Unprintable
from microc.tir.rewrite import walk_all_exprs, walk_stmt
from microc.tir.simplifier import Simplifier
from microc.tir.text.print import expr_text

_Base = frozenset[tuple[Atom, int]]


class _Digit(NamedTuple):
    """``base // lower % (upper / lower)``; ``upper`` None is the leading digit."""

    base: _Base
    lower: int
    upper: int | None


def covers_domain(block: ir.Block, around: Sequence[ir.For | ir.Expr]) -> str:
    """Nothing (the empty text) when the domain is covered, else what could not be proven.

    ``around`` holds the enclosing loops and the conditions that hold, outermost first.
    """
    bounds: dict[ir.Var, tuple[int, int]] = {}
    conditions = [x for x in around if isinstance(x, ir.Expr)]
    if block.predicate is not None:
        conditions.append(block.predicate)
    for loop in (x for x in around if isinstance(x, ir.For)):
        high = Simplifier(bounds).reach(loop.extent)[1]
        if not isinstance(high, int):
            return f"loop {loop.var.name} has no known extent"
        bounds[loop.var] = (0, max(high - 1, 0))
        conditions += tail_conditions(loop.var, loop.extent)
    try:
        return _conditions(block, bounds, conditions) or _Cover(bounds).check(block)
    except Unprintable:
        return "the numbers are too large"


def _conditions(block: ir.Block, bounds: dict[ir.Var, tuple[int, int]], conditions: list[ir.Expr]) -> str:
    """The first condition that an instance within the domain might fail."""
    inside = Simplifier(bounds)
    for i in block.iters:
        zero, extent = ir.const(0, i.var.dtype), ir.const(i.extent, i.var.dtype)
        inside = inside.assuming(ir.Bin("ge", i.binding, zero)).assuming(ir.Bin("lt", i.binding, extent))
    for condition in conditions:
        if inside.simplify(condition) != fold.TRUE:
            return f"{expr_text(condition)} may leave instances out"
    return ""


class _Cover:
    def __init__(self, bounds: dict[ir.Var, tuple[int, int]]) -> None:
        self.engine = Simplifier(bounds)
        self.bounds = bounds
        self.extents: dict[_Base, int] = {}

    def check(self, block: ir.Block) -> str:
        forms = [self.engine.tidy(self.engine.linear(i.binding)) for i in block.iters]
        digits: dict[Atom, _Digit] = {}
        for i, form in zip(block.iters, forms, strict=True):
            for atom in form.terms:
                digit = self.digit(atom)
                if digit is None or atom in digits:
                    return f"{i.var.name} = {expr_text(i.binding)} is no independent digit of loops"
                digits[atom] = digit
        sizes = self.sizes(digits)
        if sizes is None:
            return "two iterators share the same part of a loop"
        holds_blocks = any(isinstance(s, ir.Block) for s in walk_stmt(block.body))  # which are checked themselves
        touched = () if holds_blocks else walk_all_exprs(block.body)
        step = max((x.reach for x in touched if isinstance(x, ir.AddressOf)), default=1)
        for i, form in zip(block.iters, forms, strict=True):
            if not _runs_through(form, sizes, i.extent, step):
                return f"{i.var.name} = {expr_text(i.binding)} does not run through 0..{i.extent - 1}"
        return ""

    def digit(self, atom: Atom) -> _Digit | None:
        """``atom`` as a digit of loops, its base registered with its extent."""
        parts = self.engine.digit(atom)
        if parts is None:
            return self.leading(Linear({atom: 1}), 1)
        op, inner, divisor = parts
        if op == "floordiv":
            return self.leading(inner, divisor)
        lower = self.engine.digit(inner.single) if inner.single is not None else None
        dividend, step = lower[1:] if lower is not None and lower[0] == "floordiv" else (inner, 1)
        digit = self.leading(dividend, step)
        return None if digit is None else _Digit(digit.base, digit.lower, digit.lower * divisor)

    def leading(self, form: Linear, lower: int) -> _Digit | None:
        """``form // lower`` where ``form`` runs through 0..extent of loops."""
        if form.const or not all(isinstance(v.expr, ir.Var) and v.expr in self.bounds for v in form.terms):
            return None
        extents = {v: self.bounds[v.expr][1] + 1 for v in form.terms if isinstance(v.expr, ir.Var)}
        base = frozenset(form.terms.items())
        self.extents[base] = _reach(form, extents)[1]
        return _Digit(base, lower, None)

    def sizes(self, digits: dict[Atom, _Digit]) -> dict[Atom, int] | None:
        """How many values every digit takes independently of the others; None when some are not independent."""
        owners = [v for base in {d.base for d in digits.values()} for v, _ in base]
        if len(owners) != len(set(owners)):
            return None
        found: dict[Atom, int] = {}
        for base, extent in self.extents.items():
            group = sorted(((d, atom) for atom, d in digits.items() if d.base == base), key=lambda x: x[0].lower)
            for k, (digit, atom) in enumerate(group):
                last = k + 1 == len(group)
                if digit.upper is None:
                    if not last:
                        return None
                    found[atom] = extent // digit.lower if k else -(-extent // digit.lower)
                elif (not last and group[k + 1][0].lower % digit.upper) or extent < digit.upper:
                    return None
                else:
                    found[atom] = digit.upper // digit.lower
        return found


def _reach(form: Linear, sizes: dict[Atom, int], step: int = 1) -> tuple[int, int]:
    """(start, length) of the interval that a sum of independent digits runs through without a gap, from its least value.

    ``step`` values count from each one on: a tensorized block handles several at once.
    """
    start, length = form.const, step
    for atom, k in sorted(form.terms.items(), key=lambda item: abs(item[1])):
        if k < 0:
            start += k * (sizes[atom] - 1)
        if abs(k) <= length:
            length += abs(k) * (sizes[atom] - 1)
    return start, length


def _runs_through(form: Linear, sizes: dict[Atom, int], extent: int, step: int) -> bool:
    start, length = _reach(form, sizes, step)
    return start <= 0 and start + length >= extent
