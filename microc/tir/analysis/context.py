# SPDX-License-Identifier: Apache-2.0
"""Cached facts about expressions and statements, and knowledge about the values of variables at a point of a function."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Self

from microc.base import dtypes
from microc.tir import ir
from microc.tir.analysis import linear_forms
from microc.tir.analysis.linear_forms import (
    AtomTable,
    Fact,
    Int32Overflow,
    Interval,
    LinearForm,
    LinearFormDivider,
    cancelling_factors,
    inequality_facts,
    split_by_divisor,
)
from microc.tir.extents import Extent, is_at_most, is_less, largest, smallest
from microc.tir.ir import Bin, Const, Expr, Stmt, Var
from microc.tir.names import DISTRIBUTED
from microc.tir.rewrite import accesses_of, free_vars, is_endless, stmt_children, stmt_exprs

# ---- Facts that passes need repeatedly. They are computed once and stored with the expression or statement.
#
# A pass returns an unchanged expression or statement as the same object, so later passes, and later steps of a schedule, find
# its facts there.

INDEX_OPS = frozenset({"add", "sub", "mul", "floordiv", "floormod", "truncdiv", "truncmod", "min", "max"})
"""Arithmetic operators that may occur in an index."""
_PURE_OPS = INDEX_OPS | ir.COMPARISONS | ir.LOGICAL
"""All operators that may occur in an index, including those of conditions."""


def is_index(expr: Expr) -> bool:
    """Test whether an expression is index arithmetic: its operands are only int32 variables and literals, no loads.

    The result is cached in the expression."""
    known = expr.known_index
    if known is None:
        expr.known_index = known = _is_index(expr)
    return known


def _is_index(expr: Expr) -> bool:
    """Test whether an expression is index arithmetic, without the cache of :func:`is_index`."""
    # Most expressions are of the first two types. Patterns with fields would take several times as long.
    if isinstance(expr, Bin):
        return expr.op in _PURE_OPS and is_index(expr.a) and is_index(expr.b)
    if isinstance(expr, Var):
        return expr.dtype == "int32"
    match expr:
        case ir.Const():
            return expr.dtype in ("int32", "bool")
        case ir.Un(op, a):
            return op in ("neg", "not") and is_index(a)
        case ir.Select(c, a, b):
            return is_index(c) and is_index(a) and is_index(b)
        case _:
            return False


def buffers_read(stmt: Stmt) -> frozenset[ir.Buffer]:
    """Return the buffers that a statement and its sub-statements read, by loads or through addresses.

    The result is cached in the statement."""
    known = stmt.known_read
    if known is None:
        accesses = (x for e in stmt_exprs(stmt) for x in accesses_of(e))
        own = [x.buffer for x in accesses if isinstance(x, ir.Load) or not x.writes]
        stmt.known_read = known = frozenset(own).union(*map(buffers_read, stmt_children(stmt)))
    return known


def buffers_written(stmt: Stmt) -> frozenset[ir.Buffer]:
    """Return the buffers that a statement and its sub-statements write, by stores or through addresses.

    The result is cached in the statement."""
    known = stmt.known_written
    if known is None:
        accesses = (x for e in stmt_exprs(stmt) for x in accesses_of(e))
        own = [x.buffer for x in accesses if isinstance(x, ir.AddressOf) and x.writes]
        if isinstance(stmt, ir.Store):
            own.append(stmt.buffer)
        stmt.known_written = known = frozenset(own).union(*map(buffers_written, stmt_children(stmt)))
    return known


def block_names_in(stmt: Stmt) -> frozenset[str]:
    """Return the names of all blocks in ``stmt``, including ``stmt`` itself. The result is cached in the statement."""
    known = stmt.known_blocks
    if known is None:
        own = (stmt.name,) if isinstance(stmt, ir.Block) else ()
        stmt.known_blocks = known = frozenset(own).union(*map(block_names_in, stmt_children(stmt)))
    return known


def is_distributed(loop: ir.For) -> bool:
    """Test whether two cores run the two iterations of a parallel loop."""
    return loop.kind == "parallel" and (DISTRIBUTED, 2) in loop.annotations and ir.int_value(loop.extent) == 2


def early_exit_branch(loop: ir.For) -> ir.If | None:
    """Return the branch (``If``) that may end a loop early; None if the loop has none.

    The branch is the whole body of the loop, and its condition loads from a buffer that the branch itself writes, but does not
    depend on the loop variable. Once it is false, all further iterations have no effect. In a loop that is not endless,
    the condition is one element: a test that costs more is only worth its time where it saves iterations."""
    body = loop.body
    if loop.kind != "serial" or not isinstance(body, ir.If) or body.otherwise is not None:
        return None
    condition = body.condition
    if loop.var in free_vars(condition) or not (isinstance(condition, ir.Load) or is_endless(loop)):
        return None
    loaded = {access.buffer for access in accesses_of(condition)}
    return None if loaded.isdisjoint(buffers_written(body.then)) else body


# ---- Contexts: knowledge at the point where an expression is evaluated, and the linear form and range of the expression there.
#
# A :class:`LinearForm` is ``sum(coefficient * atom) + constant``. Atoms are variables and all expressions that are not linear:
# ``floordiv`` and ``floormod`` by constants, ``min``, ``max``, products, loads. A :class:`Context` contains the bounds of
# variables, and the facts (``linear form <= 0``) that follow from enclosing conditions. Results are cached by object identity.

NEGATED: Mapping[str, str] = MappingProxyType({"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"})
"""Negation of each comparison operator on integers."""
_FACTS_COMBINED = 2
"""Most facts that are combined to bound one linear form."""


class Context(LinearFormDivider):
    """Knowledge about values at a point of a function, from which linear forms and ranges of expressions are derived.

    ``bounds``: intervals of variables. ``facts``: linear forms that are at most zero. ``opaque``: variables bound to data,
    whose sums are not reordered. ``kept``: variables that are not replaced by a literal even if they have only one
    possible value. ``without_facts``: the same context without facts. A context without facts does not refer to itself, so that
    reference counting frees it."""

    def __init__(
        self,
        bounds: Mapping[Var, Interval] | None = None,
        facts: tuple[Fact, ...] = (),
        opaque: frozenset[Var] = frozenset(),
        kept: frozenset[Var] = frozenset(),
        without_facts: Self | None = None,
        atoms: AtomTable | None = None,
    ) -> None:
        super().__init__(atoms)
        self.bounds: Mapping[Var, Interval] = bounds or {}
        self.facts = facts
        self.opaque = opaque
        self.kept = kept
        self._plain = (without_facts or type(self)(bounds, (), opaque, kept, None, self.atoms)) if facts else None
        self._visited: dict[int, tuple[Expr, Expr]] = {}
        self._linear: dict[int, tuple[Expr, LinearForm]] = {}
        self._ranges: dict[int, tuple[Expr, Interval]] = {}
        self._reaches: dict[int, tuple[Expr, Interval]] = {}

    @property
    def without_facts(self) -> Self:
        """Context with the same bounds, without facts."""
        return self._plain or self

    @abstractmethod
    def simplify_structure(self, expr: Expr) -> Expr:
        """Return an equivalent expression, simplified without linear forms."""

    @abstractmethod
    def select(self, condition: Expr, a: Expr, b: Expr) -> Expr:
        """Return ``condition ? a : b`` with ``a`` and ``b`` simplified under the outcome of the condition."""

    # ------------------------------------------------------------ contexts

    def with_variable(self, var: Var, bounds: Interval, *, opaque: bool = False, kept: bool = False) -> Self:
        """Return the context in which ``var`` has the interval ``bounds``.

        ``opaque``: the variable is bound to data, so sums that contain it keep their order. ``kept``: the variable is never
        replaced by a literal."""
        return type(self)(
            {**self.bounds, var: bounds},
            self.facts,
            self.opaque | {var} if opaque else self.opaque,
            self.kept | {var} if kept else self.kept,
            None,
            self.atoms,
        )

    def assuming(self, condition: Expr, holds: bool = True) -> Self:
        """Return the context in which ``condition`` is known to hold, or not to hold if ``holds`` is False."""
        facts = tuple(self._condition_facts(condition, holds))
        if not facts:
            return self
        return type(self)(self.bounds, self.facts + facts, self.opaque, self.kept, self.without_facts, self.atoms)

    def _condition_facts(self, condition: Expr, holds: bool) -> Iterable[Fact]:
        """Yield the facts that follow if a condition has the outcome ``holds``."""
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
                        yield from self._facts_of_multiples(fact)

    def _facts_of_multiples(self, fact: Fact) -> Iterable[Fact]:
        """Yield facts about the multiples of a coefficient ``c`` in a fact.

        A fact ``c * q + r <= 0`` implies ``q <= floor(-min(r) / c)``: ``3 * a + b <= 8`` implies ``a <= 2`` if ``b >= 0``.
        """
        for c in {abs(k) for k in fact.terms.values()} - {1}:
            quotient, rest = split_by_divisor(fact, c)
            least, _ = self.without_facts.range_of_form(rest)
            if rest.terms and isinstance(least, int):
                yield quotient.plus(LinearForm({}, -(-least // c)))

    def _facts_of_dividends(self, fact: Fact) -> Iterable[Fact]:
        """Yield facts about a dividend ``x`` that follow from a fact about ``x // c`` or ``x % c``.

        The remainder ``x % c`` is replaced by ``x - c * (x // c)``. The quotient satisfies
        ``c * (x // c) <= x <= c * (x // c) + c - 1``.
        """
        for atom, k in fact.terms.items():
            digit = self.match_quotient_or_remainder(atom)
            if digit is None:
                continue
            op, x, c = digit
            if op == "floormod":
                yield fact.plus(LinearForm({atom: k}), -1).plus(x, k).plus(self.divide(x, c), -k * c)
            elif abs(k) == 1:
                rest = fact.plus(LinearForm({atom: k}), -1).times(c)
                yield rest.plus(x).plus(LinearForm({}, 1 - c)) if k == 1 else rest.plus(x, -1)

    # ------------------------------------------------------------ linear forms

    def is_index(self, expr: Expr) -> bool:
        """Test whether ``expr`` is index arithmetic, whose sums may be reordered.

        Its operands are int32 literals and int32 variables that are not bound to data."""
        return is_index(expr) and (not self.opaque or self.opaque.isdisjoint(free_vars(expr)))

    def linear_form(self, expr: Expr) -> LinearForm:
        """Return the linear form of an int32 expression. The result is cached."""
        found = self._linear.get(id(expr))
        if found is None:
            found = (expr, self._compute_linear_form(expr))
            self._linear[id(expr)] = found
        return found[1]

    def difference(self, a: Expr, b: Expr) -> LinearForm | None:
        """Return the shortest linear form of ``a - b``; None if a number in the form does not fit int32."""
        try:
            return self.join_quotients_and_remainders(self.linear_form(a).plus(self.linear_form(b), -1))
        except Int32Overflow:
            return None

    def _shortest_form(self, expr: Expr) -> LinearForm | None:
        """Return the shortest linear form of an expression; None if a number in the form does not fit int32."""
        try:
            return self.join_quotients_and_remainders(self.linear_form(expr))
        except Int32Overflow:
            return None

    def _compute_linear_form(self, expr: Expr) -> LinearForm:
        """Compute the linear form of an expression."""
        # Most expressions are of the first three types. Patterns with fields would take several times as long.
        if isinstance(expr, Bin):
            op = expr.op
            if op in INDEX_OPS:
                left = self.linear_form(expr.a)
                if isinstance(expr.b, Const) and type(number := expr.b.value) is int:  # an Extent is no int
                    if op == "add" or op == "sub":
                        return LinearForm(left.terms, left.const + (number if op == "add" else -number))
                    if op == "mul":
                        return left.times(number)
                right = self.linear_form(expr.b)
                if op == "add":
                    return left.plus(right)
                return left.plus(right, -1) if op == "sub" else self._form_of_operation(op, left, right)
            return self.form_of_atom(self.simplify_structure(expr))
        if isinstance(expr, Var):
            low, high = self.bounds.get(expr, linear_forms.UNKNOWN)
            if isinstance(low, int) and low == high and expr not in self.kept:
                return LinearForm({}, low)
            return self.form_of_atom(expr)
        if isinstance(expr, Const):
            return LinearForm({}, expr.value if isinstance(expr.value, Extent) else int(expr.value))
        match expr:
            case ir.Un("neg", a):
                return self.linear_form(a).times(-1)
            case ir.Select(c, a, b):
                return self._form_of_select(c, a, b)
            case _:
                return self.form_of_atom(self.simplify_structure(expr))

    def _form_of_operation(self, op: str, a: LinearForm, b: LinearForm) -> LinearForm:
        """Return the linear form of ``a op b`` for an operator that is not linear, such as ``mul`` or ``floordiv``.

        If the result is an atom, the operands of a commutative operator are ordered, so that equal values are equal atoms."""
        if op == "mul":
            if not a.terms:
                return b.times(a.const)
            if not b.terms:
                return a.times(b.const)
            left, right = sorted(
                (
                    self.to_expr(self.join_quotients_and_remainders(a)),
                    self.to_expr(self.join_quotients_and_remainders(b)),
                ),
                key=self.sort_key,
            )
            return self.form_of_atom(Bin("mul", left, right))
        if op in ("min", "max"):
            return self._form_of_min_or_max(
                op, self.join_quotients_and_remainders(a), self.join_quotients_and_remainders(b)
            )
        if not b.terms and is_less(0, b.const):
            nonnegative = op.startswith("floor") or is_at_most(0, self.range_of_form(a)[0])
            if nonnegative:
                return self.divide(a, b.const) if op.endswith("div") else self.modulo(a, b.const)
        return self.form_of_atom(
            Bin(
                op,
                self.to_expr(self.join_quotients_and_remainders(a)),
                self.to_expr(self.join_quotients_and_remainders(b)),
            )
        )

    def _form_of_min_or_max(self, op: str, a: LinearForm, b: LinearForm) -> LinearForm:
        """Return the linear form of a minimum or maximum.

        It is one of the operands if their ranges decide, else an atom whose operands are ordered."""
        low, high = self.range_of_form(self.join_quotients_and_remainders(a.plus(b, -1)))
        if is_at_most(high, 0):
            return a if op == "min" else b
        if is_at_most(0, low):
            return b if op == "min" else a
        left, right = self.to_expr(a), self.to_expr(b)
        if isinstance(left, Const) or (not isinstance(right, Const) and self.sort_key(right) < self.sort_key(left)):
            left, right = right, left
        return self.form_of_atom(Bin(op, left, right))

    def _form_of_select(self, condition: Expr, a: Expr, b: Expr) -> LinearForm:
        """Return the linear form of ``condition ? a : b``."""
        result = self.select(condition, a, b)
        return self.form_of_atom(result) if isinstance(result, ir.Select) else self.linear_form(result)

    # ------------------------------------------------------------ ranges

    def range_of_form(self, form: LinearForm) -> Interval:
        """Return the range (lowest, highest) of a linear form, derived from the ranges of its atoms and from the facts."""
        depth = _FACTS_COMBINED
        return -self._upper_bound(form.times(-1), depth), self._upper_bound(form, depth)

    def _upper_bound(self, form: LinearForm, depth: int) -> linear_forms.Bound:
        """Return an upper bound of a linear form.

        A fact ``f <= 0`` implies ``form <= form - factor * f`` for factor > 0. At most ``depth`` facts are combined. Then the
        remaining atoms are bounded without facts, which ends the recursion.
        """
        ranges = self if depth == _FACTS_COMBINED else self.without_facts
        high: linear_forms.Bound = form.const
        for atom, k in form.terms.items():
            ends = ranges.range_of_atom(atom.expr)
            if not (is_at_most(0, k) or is_at_most(k, 0)):
                return linear_forms.INF
            end = ends[1] if is_at_most(0, k) else ends[0]
            high = high + (k * end if end else 0)
        if depth:
            for fact in self.facts:
                for factor in cancelling_factors(form, fact):
                    high = smallest(high, self._upper_bound(form.plus(fact, -factor), depth - 1))
        return high

    def range_of(self, expr: Expr) -> Interval:
        """Return the range (lowest, highest) of an expression. For int32, it follows from the linear form and the facts."""
        if expr.dtype != "int32":
            return self.range_of_atom(expr)
        found = self._reaches.get(id(expr))
        if found is None:
            form = self._shortest_form(expr)
            found = (expr, linear_forms.UNKNOWN if form is None else self.range_of_form(form))
            self._reaches[id(expr)] = found
        return found[1]

    def range_of_quotient(self, expr: Expr) -> Interval:
        """Return the range of an expression whose linear form contains a quotient, derived from facts about its dividend.

        ``4 * a + b`` divided by 3 has the form ``a + (a + b) // 3``, in which a fact about ``4 * a + b`` is no longer seen.
        Unknown for other expressions."""
        form = self._shortest_form(expr) if expr.dtype == "int32" else None
        for atom, k in () if form is None else form.terms.items():
            digit = self.match_quotient_or_remainder(atom)
            if form is not None and k == 1 and digit is not None and digit[0] == "floordiv":
                _, dividend, c = digit
                whole = form.plus(LinearForm({atom: 1}), -1).times(c).plus(dividend)
                return linear_forms.floordiv(self.range_of_form(whole), (c, c))
        return linear_forms.UNKNOWN

    def range_of_atom(self, expr: Expr) -> Interval:
        """Return the range (lowest, highest) of an atom, derived from the ranges of its operands; for a variable, its bounds.

        The result is cached."""
        found = self._ranges.get(id(expr))
        if found is None:
            found = (expr, self._compute_range(expr))
            self._ranges[id(expr)] = found
        return found[1]

    def _compute_range(self, expr: Expr) -> Interval:
        """Compute the range of an atom from the ranges of its operands."""
        match expr:
            case Const(value):
                return (value, value) if isinstance(value, int) else linear_forms.UNKNOWN
            case Var():
                return self.bounds.get(expr, linear_forms.dtype_interval(expr.dtype))
            case Bin(("add" | "sub"), _, _) if expr.dtype == "int32":
                return self.range_of(expr)
            # A maximum is at least the mean of its operands, so max(x, -x) is at least 0.
            case Bin("max", a, b) if expr.dtype == "int32":
                low, high = linear_forms.maximum(self.range_of(a), self.range_of(b))
                return largest(low, linear_forms.floordiv(self.range_of(a + b), (2, 2))[0]), high
            case Bin(op, a, b):
                found = linear_forms.binary(op, self.range_of(a), self.range_of(b))
                return linear_forms.BOOLEAN if expr.dtype == "bool" else _range_after_wraparound(found, expr.dtype)
            case ir.Un(op, a):
                if op == "not":
                    return linear_forms.BOOLEAN
                low, high = self.range_of(a)
                return _range_after_wraparound((-high, -low) if op == "neg" else (-high - 1, -low - 1), expr.dtype)
            case ir.Select(c, a, b):
                return linear_forms.union(self.assuming(c).range_of(a), self.assuming(c, False).range_of(b))
            case ir.Cast(dtype, a):
                return self._cast_range(dtype, a)
            case _:
                return linear_forms.dtype_interval(expr.dtype)

    def _cast_range(self, dtype: str, a: Expr) -> Interval:
        """Return the range of a cast to ``dtype``; the whole range of the dtype if the operand may not fit."""
        if not is_scalar_int(dtype) or not is_scalar_int(a.dtype):
            return linear_forms.dtype_interval(dtype)
        low, high = self.range_of(a)
        lowest, highest = dtypes.int_range(a.dtype)
        found = (largest(low, lowest), smallest(high, highest))
        return found if linear_forms.within(found, dtypes.int_range(dtype)) else linear_forms.dtype_interval(dtype)


def is_scalar_int(dtype: str) -> bool:
    """Test whether a dtype is an integer, not a float and not a vector."""
    kind, _, lanes = dtypes.dtype_parts(dtype)
    return kind in ("int", "uint") and lanes == 1


def _range_after_wraparound(interval: Interval, dtype: str) -> Interval:
    """Return ``interval``, or the whole range of ``dtype`` if unsigned arithmetic may wrap around."""
    kind, _, lanes = dtypes.dtype_parts(dtype)
    if kind == "uint" and lanes == 1 and not linear_forms.within(interval, dtypes.int_range(dtype)):
        return dtypes.int_range(dtype)
    return interval
