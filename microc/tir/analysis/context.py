"""Memoised facts about expressions and statements, and what is known about values at a point of a function."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Self

from microc.base import dtypes
from microc.tir import ir
from microc.tir.analysis import intervals
from microc.tir.analysis.intervals import Interval
from microc.tir.analysis.linear_forms import (
    AtomTable,
    Division,
    Fact,
    Int32Overflow,
    Linear,
    cancelling_factors,
    inequality_facts,
)
from microc.tir.ir import Bin, Const, Expr, Stmt, Var
from microc.tir.rewrite import accesses_of, free_vars, stmt_children, stmt_exprs

# ---- Facts that passes request repeatedly; computed once and stored with the expression or statement.
#
# Passes return what they do not change as the same object, so the next pass, and the next step of a schedule, finds the
# facts there.

INDEX_OPS = frozenset({"add", "sub", "mul", "floordiv", "floormod", "truncdiv", "truncmod", "min", "max"})
"""Operators of index arithmetic."""
_PURE_OPS = INDEX_OPS | ir.COMPARISONS | ir.LOGICAL
"""Operators that may occur in an index, comparisons included."""


def is_index(expr: Expr) -> bool:
    """Test whether an expression consists of int32 variables and literals only. Memoised."""
    try:
        return expr.known_index
    except AttributeError:
        expr.known_index = found = _is_index(expr)
        return found


def _is_index(expr: Expr) -> bool:
    match expr:
        case ir.Const():
            return expr.dtype in ("int32", "bool")
        case ir.Var():
            return expr.dtype == "int32"
        case ir.Bin(op, a, b):
            return op in _PURE_OPS and is_index(a) and is_index(b)
        case ir.Un(op, a):
            return op in ("neg", "not") and is_index(a)
        case ir.Select(c, a, b):
            return is_index(c) and is_index(a) and is_index(b)
        case _:
            return False


def buffers_read(stmt: Stmt) -> frozenset[ir.Buffer]:
    """Return the buffers that are loaded from, or read through an address, anywhere under ``stmt``. Memoised."""
    try:
        return stmt.known_read
    except AttributeError:
        accesses = (x for e in stmt_exprs(stmt) for x in accesses_of(e))
        own = [x.buffer for x in accesses if isinstance(x, ir.Load) or not x.writes]
        stmt.known_read = found = frozenset(own).union(*map(buffers_read, stmt_children(stmt)))
        return found


def buffers_written(stmt: Stmt) -> frozenset[ir.Buffer]:
    """Return the buffers that are stored to, or written through an address, anywhere under ``stmt``. Memoised."""
    try:
        return stmt.known_written
    except AttributeError:
        accesses = (x for e in stmt_exprs(stmt) for x in accesses_of(e))
        own = [x.buffer for x in accesses if isinstance(x, ir.AddressOf) and x.writes]
        if isinstance(stmt, ir.Store):
            own.append(stmt.buffer)
        stmt.known_written = found = frozenset(own).union(*map(buffers_written, stmt_children(stmt)))
        return found


def blocks_in(stmt: Stmt) -> frozenset[str]:
    """Return the names of all blocks in ``stmt``, itself included. Memoised."""
    try:
        return stmt.known_blocks
    except AttributeError:
        own = (stmt.name,) if isinstance(stmt, ir.Block) else ()
        stmt.known_blocks = found = frozenset(own).union(*map(blocks_in, stmt_children(stmt)))
        return found


def early_exit_branch(loop: ir.For) -> ir.If | None:
    """Return the ``If`` that may end a loop early; None if there is none.

    It is the loop's whole body, and its condition is an element that iterations change. Once it is false, no iteration
    has an effect any more."""
    body = loop.body
    if loop.kind != "serial" or not isinstance(body, ir.If) or body.otherwise is not None:
        return None
    condition = body.condition
    if not isinstance(condition, ir.Load) or loop.var in free_vars(condition):
        return None
    return body if condition.buffer in buffers_written(body.then) else None


# ---- Contexts: what is known where an expression is evaluated, and its linear form and range under these facts.
#
# A :class:`Linear` is ``sum(coefficient * atom) + constant``. Atoms are variables and everything that is not linear:
# ``floordiv`` and ``floormod`` by constants, ``min``, ``max``, products, loads. A :class:`Context` knows the bounds of
# variables and the facts (``linear form <= constant``) that enclosing conditions establish. Results are memoised by
# object identity.

NEGATED: Mapping[str, str] = MappingProxyType({"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"})
"""Comparisons of integers and their negations."""
_FACTS_COMBINED = 2
"""Facts that are combined to bound one linear form."""


class Context(Division):
    """Knowledge about values at a point of a function (bounds of variables, and facts), and the linear forms and
    ranges of expressions that follow.

    ``kept`` variables are never replaced by their only value. ``plain`` is the same context without facts; a context
    without facts does not refer to itself, so that reference counting frees it."""

    def __init__(
        self,
        bounds: Mapping[Var, Interval] | None = None,
        facts: tuple[Fact, ...] = (),
        opaque: frozenset[Var] = frozenset(),
        kept: frozenset[Var] = frozenset(),
        plain: Self | None = None,
        atoms: AtomTable | None = None,
    ) -> None:
        super().__init__(atoms)
        self.bounds: Mapping[Var, Interval] = bounds or {}
        self.facts = facts
        self.opaque = opaque
        self.kept = kept
        self._plain = (plain or type(self)(bounds, (), opaque, kept, None, self.atoms)) if facts else None
        self._visited: dict[int, tuple[Expr, Expr]] = {}
        self._linear: dict[int, tuple[Expr, Linear]] = {}
        self._ranges: dict[int, tuple[Expr, Interval]] = {}
        self._reaches: dict[int, tuple[Expr, Interval]] = {}

    @property
    def plain(self) -> Self:
        """Return the context without facts."""
        return self._plain or self

    @abstractmethod
    def structural(self, expr: Expr) -> Expr:
        """Return an equivalent expression, simplified without regard to linear forms."""

    @abstractmethod
    def select(self, condition: Expr, a: Expr, b: Expr) -> Expr:
        """Return ``condition ? a : b`` with each side simplified under the outcome of the condition."""

    # ------------------------------------------------------------ contexts

    def with_var(self, var: Var, bounds: Interval, *, opaque: bool = False, kept: bool = False) -> Self:
        """Return the context in which ``var`` is also known. An ``opaque`` variable holds data: sums of it keep
        their order."""
        return type(self)(
            {**self.bounds, var: bounds},
            self.facts,
            self.opaque | {var} if opaque else self.opaque,
            self.kept | {var} if kept else self.kept,
            None,
            self.atoms,
        )

    def assuming(self, condition: Expr, holds: bool = True) -> Self:
        """Return the context in which ``condition`` is known to hold (or not to hold)."""
        facts = tuple(self._condition_facts(condition, holds))
        if not facts:
            return self
        return type(self)(self.bounds, self.facts + facts, self.opaque, self.kept, self.plain, self.atoms)

    def _condition_facts(self, condition: Expr, holds: bool) -> Iterable[Fact]:
        """Yield the facts that follow if a condition holds (or does not hold)."""
        match condition:
            case Bin("and", a, b) if holds:
                yield from self._condition_facts(a, True)
                yield from self._condition_facts(b, True)
            case Bin("or", a, b) if not holds:
                yield from self._condition_facts(a, False)
                yield from self._condition_facts(b, False)
            case ir.Un("not", a):
                yield from self._condition_facts(a, not holds)
            case Bin(op, a, b) if op in ir.COMPARISONS and a.dtype == "int32":
                difference = self.difference(a, b)
                if difference is not None:
                    for fact in inequality_facts(op if holds else NEGATED[op], difference):
                        yield fact
                        yield from self._facts_of_dividends(fact)

    def _facts_of_dividends(self, fact: Fact) -> Iterable[Fact]:
        """Yield facts about ``x`` that follow from one about ``x // c`` or ``x % c``.

        For the remainder, x % c = x - c * (x // c) is substituted. For the quotient, c * (x // c) <= x <= c * (x // c)
        + c - 1.
        """
        for atom, k in fact.terms.items():
            digit = self.digit(atom)
            if digit is None:
                continue
            op, x, c = digit
            if op == "floormod":
                yield fact.plus(Linear({atom: k}), -1).plus(x, k).plus(self.divide(x, c), -k * c)
            elif abs(k) == 1:
                rest = fact.plus(Linear({atom: k}), -1).times(c)
                yield rest.plus(x).plus(Linear({}, 1 - c)) if k == 1 else rest.plus(x, -1)

    # ------------------------------------------------------------ linear forms

    def is_index(self, expr: Expr) -> bool:
        """Test whether ``expr`` consists of int32 variables and literals that are no data, so that its sums may be
        reordered."""
        return is_index(expr) and (not self.opaque or self.opaque.isdisjoint(free_vars(expr)))

    def linear(self, expr: Expr) -> Linear:
        """Return the linear form of an int32 expression. Memoised."""
        found = self._linear.get(id(expr))
        if found is None:
            found = (expr, self._make_linear(expr))
            self._linear[id(expr)] = found
        return found[1]

    def difference(self, a: Expr, b: Expr) -> Linear | None:
        """Return ``a - b`` as its shortest linear form; None if its numbers exceed int32."""
        try:
            return self.tidy(self.linear(a).plus(self.linear(b), -1))
        except Int32Overflow:
            return None

    def _shortest_form(self, expr: Expr) -> Linear | None:
        """Return the shortest linear form of an expression; None if its numbers exceed int32."""
        try:
            return self.tidy(self.linear(expr))
        except Int32Overflow:
            return None

    def _make_linear(self, expr: Expr) -> Linear:
        """Compute the linear form of an expression."""
        match expr:
            case Const(value):
                return Linear({}, int(value))
            case Var():
                low, high = self.bounds.get(expr, intervals.UNKNOWN)
                if low == high and expr not in self.kept:
                    return Linear({}, int(low))
                return self.form(expr)
            case ir.Un("neg", a):
                return self.linear(a).times(-1)
            case Bin("add", a, b):
                return self.linear(a).plus(self.linear(b))
            case Bin("sub", a, b):
                return self.linear(a).plus(self.linear(b), -1)
            case Bin(op, a, b) if op in INDEX_OPS:
                return self._atom_of(op, self.linear(a), self.linear(b))
            case ir.Select(c, a, b):
                return self._select_form(c, a, b)
            case _:
                return self.form(self.structural(expr))

    def _atom_of(self, op: str, a: Linear, b: Linear) -> Linear:
        """Return the linear form of a non-linear operation; operands are ordered, so that equal values are equal
        atoms."""
        if op == "mul":
            if not a.terms:
                return b.times(a.const)
            if not b.terms:
                return a.times(b.const)
            left, right = sorted((self.emit(self.tidy(a)), self.emit(self.tidy(b))), key=self.key)
            return self.form(Bin("mul", left, right))
        if op in ("min", "max"):
            return self._min_max(op, self.tidy(a), self.tidy(b))
        if not b.terms and b.const > 0:
            nonnegative = op.startswith("floor") or self.span(a)[0] >= 0
            if nonnegative:
                return self.divide(a, b.const) if op.endswith("div") else self.modulo(a, b.const)
        return self.form(Bin(op, self.emit(self.tidy(a)), self.emit(self.tidy(b))))

    def _min_max(self, op: str, a: Linear, b: Linear) -> Linear:
        """Return the linear form of a minimum or maximum: one operand if ranges decide, else an atom with ordered
        operands."""
        low, high = self.span(self.tidy(a.plus(b, -1)))
        if high <= 0:
            return a if op == "min" else b
        if low >= 0:
            return b if op == "min" else a
        left, right = self.emit(a), self.emit(b)
        if isinstance(left, Const) or (not isinstance(right, Const) and self.key(right) < self.key(left)):
            left, right = right, left
        return self.form(Bin(op, left, right))

    def _select_form(self, condition: Expr, a: Expr, b: Expr) -> Linear:
        """Return the linear form of ``condition ? a : b``."""
        result = self.select(condition, a, b)
        return self.form(result) if isinstance(result, ir.Select) else self.linear(result)

    # ------------------------------------------------------------ ranges

    def span(self, form: Linear) -> Interval:
        """Return the range of a linear form, from the ranges of its atoms and from the facts."""
        depth = _FACTS_COMBINED
        return -self._upper_bound(form.times(-1), depth), self._upper_bound(form, depth)

    def _upper_bound(self, form: Linear, depth: int) -> intervals.Bound:
        """Return an upper bound of a linear form.

        A fact ``f <= 0`` implies form <= form - factor * f for factor > 0. At most ``depth`` facts are combined; the
        atoms left are then bounded without facts, which ends the recursion.
        """
        ranges = self if depth == _FACTS_COMBINED else self.plain
        high: intervals.Bound = form.const
        for atom, k in form.terms.items():
            ends = ranges.range(atom.expr)
            end = ends[1] if k > 0 else ends[0]
            high = high + (k * end if end else 0)
        if depth:
            for fact in self.facts:
                for factor in cancelling_factors(form, fact):
                    high = min(high, self._upper_bound(form.plus(fact, -factor), depth - 1))
        return high

    def reach(self, expr: Expr) -> Interval:
        """Return the range of an expression; for int32, facts are taken into account."""
        if expr.dtype != "int32":
            return self.range(expr)
        found = self._reaches.get(id(expr))
        if found is None:
            form = self._shortest_form(expr)
            found = (expr, intervals.UNKNOWN if form is None else self.span(form))
            self._reaches[id(expr)] = found
        return found[1]

    def range(self, expr: Expr) -> Interval:
        """Return the range of an atom from the ranges of its operands; of a variable, its bounds. Memoised."""
        found = self._ranges.get(id(expr))
        if found is None:
            found = (expr, self._compute_range(expr))
            self._ranges[id(expr)] = found
        return found[1]

    def _compute_range(self, expr: Expr) -> Interval:
        """Compute the range of an atom from the ranges of its operands."""
        match expr:
            case Const(value):
                return (value, value) if isinstance(value, int) else intervals.UNKNOWN
            case Var():
                return self.bounds.get(expr, intervals.dtype_interval(expr.dtype))
            case Bin(("add" | "sub"), _, _) if expr.dtype == "int32":
                return self.reach(expr)
            # A maximum is at least the mean of its operands; max(x, -x) is thus at least 0.
            case Bin("max", a, b) if expr.dtype == "int32":
                low, high = intervals.maximum(self.reach(a), self.reach(b))
                return max(low, intervals.floordiv(self.reach(a + b), (2, 2))[0]), high
            case Bin(op, a, b):
                found = intervals.binary(op, self.reach(a), self.reach(b))
                return intervals.BOOLEAN if expr.dtype == "bool" else _range_with_wrap(found, expr.dtype)
            case ir.Un(op, a):
                if op == "not":
                    return intervals.BOOLEAN
                low, high = self.reach(a)
                return _range_with_wrap((-high, -low) if op == "neg" else (-high - 1, -low - 1), expr.dtype)
            case ir.Select(c, a, b):
                return intervals.union(self.assuming(c).reach(a), self.assuming(c, False).reach(b))
            case ir.Cast(dtype, a):
                return self._cast_range(dtype, a)
            case _:
                return intervals.dtype_interval(expr.dtype)

    def _cast_range(self, dtype: str, a: Expr) -> Interval:
        """Return the range of a cast; that of its dtype if the operand may not fit."""
        if not is_scalar_int(dtype) or not is_scalar_int(a.dtype):
            return intervals.dtype_interval(dtype)
        low, high = self.reach(a)
        lowest, highest = dtypes.int_range(a.dtype)
        found = (max(low, lowest), min(high, highest))
        return found if intervals.within(found, dtypes.int_range(dtype)) else intervals.dtype_interval(dtype)


def is_scalar_int(dtype: str) -> bool:
    """Test whether a dtype is a single integer, not a vector."""
    kind, _, lanes = dtypes.dtype_parts(dtype)
    return kind in ("int", "uint") and lanes == 1


def _range_with_wrap(interval: Interval, dtype: str) -> Interval:
    """Return the range of the dtype if unsigned arithmetic may wrap, else the interval itself."""
    kind, _, lanes = dtypes.dtype_parts(dtype)
    if kind == "uint" and lanes == 1 and not intervals.within(interval, dtypes.int_range(dtype)):
        return dtypes.int_range(dtype)
    return interval
