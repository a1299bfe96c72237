# SPDX-License-Identifier: Apache-2.0
"""Constant folding and simplification of index arithmetic.

:class:`Simplifier` rewrites expressions, using the bounds of variables and the conditions that hold. :func:`simplify`,
:func:`simplify_stmt`, :func:`prove` and :func:`bounds_of` are the entry points.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from operator import is_
from types import MappingProxyType
from typing import NoReturn

from microc.base import dtypes
from microc.errors import InternalError
from microc.tir import ir, rewrite
from microc.tir.analysis import context as facts
from microc.tir.analysis import linear_forms
from microc.tir.analysis.context import NEGATED, Context, is_scalar_int
from microc.tir.analysis.linear_forms import Int32Overflow, Interval, LinearForm, index_literal
from microc.tir.extents import Extent, common_divisor, is_at_most, is_less, largest
from microc.tir.ir import COMPARISONS, LOGICAL, Bin, Const, Expr, Stmt, Var
from microc.tir.operators import ARITHMETIC, BINARY

# ---- Constant folding: operations on literals, with the same results as in the generated C.

TRUE = Const(1, "bool")
FALSE = Const(0, "bool")


def bool_literal(value: bool) -> Const:
    """Return a literal of dtype bool."""
    return TRUE if value else FALSE


_EXACT = frozenset(("add", "sub", "mul", "div"))
"""Float operators that are folded if their result is exact."""


def fits_dtype(value: int, dtype: str) -> bool:
    """Test whether an integer is in the range of ``dtype``."""
    low, high = dtypes.int_range(dtype)
    return low <= value <= high


def _make_integer_literal(value: int, dtype: str) -> Const | None:
    """Return the literal of an integer result. An unsigned result is wrapped to its dtype.

    None if a signed result overflows: the operation then stays in the program."""
    kind, bits, _ = dtypes.dtype_parts(dtype)
    if kind == "uint":
        value &= (1 << bits) - 1
    return Const(value, dtype) if fits_dtype(value, dtype) else None


def _fold_float(op: str, a: float, b: float, dtype: str) -> Const | None:
    """Return ``a op b`` as a float literal; None if it is rounded, infinite, undefined, or may be -0.0."""
    if op not in _EXACT or not (math.isfinite(a) and math.isfinite(b)) or (op == "div" and b == 0):
        return None
    exact = BINARY[op].scalar_function(Fraction(a), Fraction(b))
    kind = dtypes.to_numpy(dtype).type
    if exact == 0:
        return Const(0.0, dtype) if math.copysign(1, a) > 0 and math.copysign(1, b) > 0 and op != "sub" else None
    if exact.denominator & (exact.denominator - 1) or abs(exact) > 1e300 or abs(exact) < 1e-300:
        return None
    value = float(kind(float(exact))) if abs(exact) < 1e38 or dtype == "float64" else math.inf
    return Const(value, dtype) if math.isfinite(value) and Fraction(value) == exact else None


def fold_binary(op: str, a: Const, b: Const) -> Const | None:
    """Return ``a op b`` as a literal; None if it must not be folded: overflow, division by zero, inexact float result."""
    x, y = a.value, b.value
    if op in COMPARISONS:
        return bool_literal(BINARY[op].scalar_function(x, y))
    if op in LOGICAL:
        return bool_literal(bool(x and y) if op == "and" else bool(x or y))
    if dtypes.is_float(a.dtype):
        return _fold_float(op, x, y, a.dtype)
    if op not in ARITHMETIC or op == "div" or not (isinstance(x, int) and isinstance(y, int)):
        return None
    if op in ("floordiv", "floormod", "truncdiv", "truncmod") and y == 0:
        return None
    if op in ("shl", "shr") and not 0 <= y < dtypes.dtype_parts(a.dtype).bits:
        return None
    return _make_integer_literal(ARITHMETIC[op].scalar_function(x, y), a.dtype)


def fold_unary(op: str, a: Const) -> Const | None:
    """Return ``op a`` as a literal; None if it must not be folded."""
    if op == "not":
        return bool_literal(not a.value)
    if op == "neg":
        return Const(-a.value, a.dtype) if isinstance(a.value, float) else _make_integer_literal(-a.value, a.dtype)
    if op == "bitnot" and isinstance(a.value, int):
        return _make_integer_literal(~a.value, a.dtype)
    return None


def fold_cast(dtype: str, a: Const) -> Const | None:
    """Return the literal ``a`` converted to ``dtype``. Integers wrap around.

    None if C does not define the result, or if a conversion to float is inexact."""
    kind, bits, lanes = dtypes.dtype_parts(dtype)
    if lanes > 1 or dtypes.dtype_parts(a.dtype).lanes > 1:
        return None
    if kind == "bool":
        return bool_literal(bool(a.value))
    if kind == "float":
        if isinstance(a.value, float) and not math.isfinite(a.value):
            return Const(a.value, dtype)
        if isinstance(a.value, Extent):
            return None
        if abs(a.value) > 3e38 and bits == 32:
            return None
        value = float(dtypes.to_numpy(dtype).type(a.value))
        return Const(value, dtype) if value == a.value else None
    if isinstance(a.value, float):
        if not math.isfinite(a.value) or not fits_dtype(int(a.value), dtype):
            return None
        return Const(int(a.value), dtype)
    if isinstance(a.value, Extent):
        return Const(a.value, dtype) if fits_dtype(a.value, dtype) else None
    value_bits = a.value & ((1 << bits) - 1)
    if kind == "int" and value_bits >> (bits - 1):
        value_bits -= 1 << bits
    return Const(value_bits, dtype)


# ---- Simplifier: expressions are rewritten under the knowledge of a context.

_ZERO: Interval = (0, 0)


def negate(condition: Expr) -> Expr:
    """Return the negation of a condition.

    The operator of a float comparison is not replaced by its opposite, because with NaN both are false; a ``not`` is added."""
    match condition:
        case Bin(op, a, b) if op in NEGATED and not dtypes.is_float(a.dtype):
            return Bin(NEGATED[op], a, b)
        case ir.Un("not", a):
            return a
        case Const(value):
            return bool_literal(not value)
        case _:
            return ir.Un("not", condition)


class Simplifier(Context):
    """Simplifier of expressions under the bounds of variables and the facts of a context."""

    def simplify(self, expr: Expr) -> Expr:
        """Return an expression of equal value, in canonical form if it is index arithmetic. The result is cached."""
        if isinstance(expr, Const):
            return expr
        found = self._visited.get(id(expr))
        if found is None:
            found = (expr, self._simplify(expr))
            self._visited[id(expr)] = found
        return found[1]

    def _simplify(self, expr: Expr) -> Expr:
        """Simplify index arithmetic through its linear form, and any other expression through its structure."""
        if self.is_index(expr) and expr.dtype == "int32":
            try:
                return self.to_expr(self.join_quotients_and_remainders(self.linear_form(expr)))
            except Int32Overflow:
                pass
        return self.simplify_structure(expr)

    def simplify_structure(self, expr: Expr) -> Expr:
        """Simplify the operands of an expression, then apply the rules that hold for any dtype."""
        # Most expressions are of the first three types. Patterns with fields would take several times as long.
        if isinstance(expr, Bin):
            op, a, b = expr.op, expr.a, expr.b
            if op in ("and", "or"):
                return self._simplify_and_or(op, a, b)
            if op in ir.COMPARISONS and self.is_index(a) and self.is_index(b):
                try:
                    return self._simplify_index_comparison(op, a, b)
                except Int32Overflow:
                    pass
            return self._simplify_binary(expr, op, self.simplify(a), self.simplify(b))
        if isinstance(expr, (ir.Load, ir.AddressOf, ir.Call)):
            return rewrite.map_children(expr, self.simplify)
        if isinstance(expr, Var):
            # A variable with only one possible value becomes a literal, unless schedules refer to the variable.
            low, high = self.bounds.get(expr, linear_forms.UNKNOWN)
            if low == high and expr not in self.kept and dtypes.is_integer(expr.dtype):
                return Const(low, expr.dtype)
            return expr
        match expr:
            case ir.Select(c, a, b):
                return self.select(c, a, b)
            case ir.Un(op, a):
                inner = self.simplify(a)
                folded = fold_unary(op, inner) if isinstance(inner, Const) else None
                if folded is None and op == "not":
                    return negate(inner)
                return folded or (expr if inner is a else ir.Un(op, inner))
            case ir.Cast(dtype, a):
                inner = self.simplify(a)
                folded = fold_cast(dtype, inner) if isinstance(inner, Const) else None
                return folded or (expr if inner is a else ir.cast(dtype, inner))
            case _:
                return rewrite.map_children(expr, self.simplify)

    def select(self, condition: Expr, a: Expr, b: Expr) -> Expr:
        """Return ``condition ? a : b`` with ``a`` and ``b`` simplified under the outcome of the condition."""
        test = self.simplify(condition)
        if isinstance(test, Const):
            return self.simplify(a if test.value else b)
        first, second = self.assuming(test).simplify(a), self.assuming(test, False).simplify(b)
        same = first == second and repr(first) == repr(second)  # 0.0 == -0.0, but their bits differ
        return first if same else ir.Select(test, first, second)

    def _simplify_and_or(self, op: str, a: Expr, b: Expr) -> Expr:
        """Simplify ``a and b`` or ``a or b``.

        ``b`` is evaluated only if ``a`` does not decide the result, so the value of ``a`` is known when ``b`` is simplified."""
        left = self.simplify(a)
        if isinstance(left, Const):
            return self.simplify(b) if bool(left.value) == (op == "and") else left
        right = self.assuming(left, op == "and").simplify(b)
        if isinstance(right, Const):
            return left if bool(right.value) == (op == "and") else right
        return Bin(op, left, right)

    def _simplify_index_comparison(self, op: str, a: Expr, b: Expr) -> Expr:
        """Simplify a comparison of index expressions.

        The result is a literal if bounds decide the comparison. Otherwise terms with positive coefficients are moved to the
        left side and terms with negative coefficients to the right side, and common divisors are removed. So equivalent
        comparisons become equal expressions.
        """
        form = self.join_quotients_and_remainders(self.linear_form(a).plus(self.linear_form(b), -1))
        known = linear_forms.compare(op, self.range_of_form(form), _ZERO)
        if known is not None:
            return bool_literal(known)
        if op in ("eq", "ne"):
            return self._simplify_index_equality(op, form)
        if op in ("gt", "ge"):
            op, form = {"gt": "lt", "ge": "le"}[op], form.times(-1)
        if op == "lt":
            form = form.plus(LinearForm({}, 1))
        # From here on the comparison is form <= 0. Dividing by a common divisor of the terms rounds the constant up:
        # terms are integers, so the comparison remains equivalent.
        divisor = common_divisor(*form.terms.values())
        form = LinearForm({t: k // divisor for t, k in form.terms.items()}, -(-form.const // divisor))
        left = LinearForm({t: k for t, k in form.terms.items() if k >= 0})
        right = LinearForm({t: -k for t, k in form.terms.items() if t not in left.terms})
        if not left.terms:
            return Bin("ge", self.to_expr(right), index_literal(form.const))
        return Bin("lt", self.to_expr(left), self.to_expr(right.plus(LinearForm({}, 1 - form.const))))

    def _simplify_index_equality(self, op: str, form: LinearForm) -> Expr:
        """Simplify ``form == 0`` or ``form != 0``. The atom with the smallest sort key gets a positive coefficient."""
        divisor = common_divisor(*form.terms.values())
        if form.const % divisor:  # the terms are multiples of the divisor, so the sum cannot be 0
            return bool_literal(op == "ne")
        form = LinearForm({t: k // divisor for t, k in form.terms.items()}, form.const // divisor)
        if form.terms[min(form.terms, key=lambda atom: self.sort_key(atom.expr))] < 0:
            form = form.times(-1)
        left = LinearForm({t: k for t, k in form.terms.items() if k >= 0})
        right = LinearForm({t: -k for t, k in form.terms.items() if t not in left.terms}, -form.const)
        return Bin(op, self.to_expr(left), self.to_expr(right))

    def _simplify_binary(self, expr: Bin, op: str, a: Expr, b: Expr) -> Expr:
        """Simplify ``a op b``, whose operands are simplified, by constant folding and by identities of integers.

        If nothing changes, the original object ``expr`` is returned."""
        if isinstance(a, Const) and isinstance(b, Const):
            folded = fold_binary(op, a, b)
            if folded is not None:
                return folded
        elif is_scalar_int(a.dtype):
            identity = self._apply_identity(op, a, b)
            if identity is not None:
                return identity
        return expr if a is expr.a and b is expr.b else Bin(op, a, b)

    def _apply_identity(self, op: str, a: Expr, b: Expr) -> Expr | None:
        """Simplify an integer operation that is not index arithmetic; None if no identity applies.

        Identities concern neutral and absorbing literals (x + 0, x * 0), and ranges of operands that decide the result."""
        x, y = ir.int_value(a), ir.int_value(b)
        if op in ("min", "max") or op in ir.COMPARISONS:
            return self._decide_by_range(op, a, b)
        if y == 0 and op in ("add", "sub", "shl", "shr", "bitor", "bitxor"):
            return a
        if x == 0 and op in ("add", "bitor", "bitxor"):
            return b
        if (x == 0 or y == 0) and op in ("mul", "bitand"):
            return Const(0, a.dtype)
        if y == 1 and op in ("mul", "floordiv", "truncdiv"):
            return a
        if x == 1 and op == "mul":
            return b
        if y is not None and is_less(0, y) and op in ("floordiv", "floormod", "shr"):
            low, high = self.range_of(a)
            if not isinstance(low, int) or not isinstance(high, int):
                return None
            if op == "shr":
                return Const(low >> y, a.dtype) if low >> y == high >> y else None
            # All values of a are in the same multiple of y, so the quotient is constant. The remainder is a itself if that is 0.
            if low // y == high // y:
                if op == "floordiv":
                    return Const(low // y, a.dtype)
                return a if low // y == 0 else None
        return None

    def _decide_by_range(self, op: str, a: Expr, b: Expr) -> Expr | None:
        """Return the result of a comparison, minimum or maximum if the ranges of the operands decide it; else None.

        For int32, the range of the difference of the operands is used. It is tighter, because common terms cancel.
        """
        form = self.difference(a, b) if a.dtype == "int32" else None
        left, right = (self.range_of(a), self.range_of(b)) if form is None else (self.range_of_form(form), _ZERO)
        if op in ir.COMPARISONS:
            known = linear_forms.compare(op, left, right)
            return None if known is None else bool_literal(known)
        smaller = linear_forms.compare("le", left, right)
        if smaller is None and linear_forms.compare("ge", left, right):
            smaller = False
        return None if smaller is None else a if smaller == (op == "min") else b


# ---- Declared names and known facts at a position of a walk over a function.

Names = Mapping[str, ir.Var | ir.Buffer]


class IllFormedError(InternalError):
    """Error for a function that violates a rule of TIR (:mod:`microc.tir.verify`)."""


def raise_ill_formed(where: str, problem: str) -> NoReturn:
    """Raise :class:`IllFormedError` with the description ``problem``. ``where``: function and block with the problem."""
    raise IllFormedError(problem, where=where)


def check_name(name: str, where: str) -> None:
    """Check that a name is an ASCII identifier. IllFormedError if it is not."""
    if not (name.isascii() and name.isidentifier()):
        raise_ill_formed(where, f"name {name!r} is no ASCII identifier")


def with_declared_name(names: Names, declared: ir.Var | ir.Buffer, where: str) -> Names:
    """Return the declared names with a variable or buffer added.

    Raises IllFormedError if the name is already declared, is no identifier, or has an unknown dtype."""
    check_name(declared.name, where)
    if declared.name in names:
        raise_ill_formed(where, f"{declared.name} is declared twice; expected a name that no enclosing scope declares")
    if not dtypes.is_valid(declared.dtype):
        raise_ill_formed(where, f"{declared.name}: unknown dtype; got {declared.dtype!r}")
    return {**names, declared.name: declared}


def with_declared_buffer(names: Names, buffer: ir.Buffer, where: str) -> Names:
    """Return the declared names with a buffer added. IllFormedError if its name, dtype, scope or shape is invalid."""
    if buffer.scope not in ir.SCOPES:
        raise_ill_formed(where, f"buffer {buffer.name}: unknown scope; got {buffer.scope!r}")
    if any(n < 0 for n in buffer.shape):
        raise_ill_formed(where, f"buffer {buffer.name}: negative extent in the shape; got {list(buffer.shape)}")
    return with_declared_name(names, buffer, where)


class WalkPosition:
    """Position of a walk over a function.

    ``names``: variables and buffers declared there. ``known``: knowledge about values. ``around``: the enclosing loops and
    conditions up to the innermost enclosing block, outermost first."""

    def __init__(self, names: Names, known: Simplifier, around: tuple[ir.For | ir.Expr, ...]) -> None:
        self.names = names
        self.known = known
        self.around = around

    def inside_of(self, names: Names, known: Simplifier, outer: ir.For | ir.Expr) -> WalkPosition:
        """Return the position in the body of ``outer``, a loop or condition that the walk enters from this position."""
        return WalkPosition(names, known, (*self.around, outer))

    def with_knowledge(self, known: Simplifier) -> WalkPosition:
        """Return the same position with other knowledge about values."""
        return WalkPosition(self.names, known, self.around)


# ---- Simplification of index arithmetic: exact rewriting of int32 affine forms with floored division, bounds, proofs.
#
# A sum of literals and variables is rewritten to one canonical sum. ``floordiv`` and ``floormod`` by positive constants are
# decomposed and joined again (mixed-radix sums). ``min``, ``max``, comparisons and ``Select`` are decided by bounds and by
# enclosing conditions. Index arithmetic is assumed not to overflow. Sums of data (loads, calls, casts, and variables bound to
# these) keep their order, and only neutral literals are removed. Floats are folded only if the result is exact. Bounds are
# inclusive pairs (low, high).

Bounds = Mapping[Var, tuple[int, int]]
_NONE: Bounds = MappingProxyType({})
_EMPTY = ir.Seq(())
REMEMBERED = 1 << 14
"""Number of entries of each cache. Schedule candidates of a kernel, and unrolled copies of its statements, contain the same
expressions many times."""  # measured: unknown


def simplify(expr: Expr, bounds: Bounds = _NONE) -> Expr:
    """Return a simplified expression that has the same value for all variables within ``bounds``.

    A variable with only one possible value becomes a literal."""
    return expr if isinstance(expr, ir.Const) else _simplify_with_cache(expr, _relevant_bounds(expr, bounds))


def _relevant_bounds(expr: Expr, bounds: Bounds) -> tuple[tuple[Var, tuple[int, int]], ...]:
    """Return the bounds of the variables that occur in an expression.

    The bounds of other variables must not be part of the cache key, as they do not affect the result."""
    names = rewrite.free_vars(expr) if bounds else ()
    return tuple([item for item in bounds.items() if item[0] in names]) if names else ()


@lru_cache(maxsize=REMEMBERED)
def _simplify_with_cache(expr: Expr, bounds: tuple[tuple[Var, tuple[int, int]], ...]) -> Expr:
    return Simplifier(dict(bounds)).simplify(expr)


def bounds_of(expr: Expr, bounds: Bounds = _NONE) -> tuple[int, int] | None:
    """Return bounds (smallest, largest) of the value of an integer expression, by interval arithmetic; None if unknown.

    A load of an integer of less than 32 bits has the range of its dtype. The bounds of signed results are those of exact
    arithmetic. If they exceed the range of the dtype, an overflow cannot be excluded.
    """
    low, high = _range_with_cache(expr, _relevant_bounds(expr, bounds))
    return (low, high) if isinstance(low, int) and isinstance(high, int) else None


@lru_cache(maxsize=REMEMBERED)
def _range_with_cache(expr: Expr, bounds: tuple[tuple[Var, tuple[int, int]], ...]) -> linear_forms.Interval:
    return Simplifier(dict(bounds)).range_of(expr)


def prove(condition: Expr, bounds: Bounds = _NONE) -> bool:
    """Test whether ``condition`` is proved to hold for all variables within ``bounds``. False if there is no proof."""
    return ir.int_value(simplify(condition, bounds)) == 1


@lru_cache(maxsize=REMEMBERED)
def linear(expr: Expr) -> tuple[Mapping[Expr, int], int]:
    """Return an int32 expression as a linear form ``(coefficients, constant)``.

    ``coefficients`` are by variable or non-linear sub-expression."""
    if expr.dtype != "int32":
        raise InternalError(f"linear: wrong dtype of the expression; got {expr.dtype}, expected int32")
    form = Simplifier().difference(expr, ir.const(0, "int32"))
    if form is None:
        return MappingProxyType({expr: 1}), 0
    return MappingProxyType({atom.expr: k for atom, k in form.terms.items()}), form.const


def simplify_stmt(stmt: Stmt, bounds: Bounds = _NONE) -> Stmt:
    """Simplify a statement: every expression under the bounds and conditions at its position, and its structure.

    Branches that are never taken and loops without iterations are removed. A loop of extent 1 is replaced by its body, with
    0 for its variable. Block iterators are kept even if their extent is 1, because schedules refer to them. A block
    predicate that always holds is removed. A variable that a ``Let`` binds to an integer literal is replaced by the literal.
    A statement without effect becomes an empty ``Seq``.
    """
    return _simplify_statement(stmt, Simplifier(bounds))


def _simplify_statement(stmt: Stmt, context: Simplifier) -> Stmt:
    match stmt:
        case ir.Store(buffer, indices, value):
            places, stored = tuple([context.simplify(i) for i in indices]), context.simplify(value)
            same = stored is value and all(map(is_, places, indices))
            return stmt if same else ir.Store(buffer, places, stored)  # the same statement keeps its memoised facts
        case ir.For():
            return _simplify_loop(stmt, context)
        case ir.If(condition, then, otherwise):
            return _simplify_branch(condition, then, otherwise, context)
        case ir.Seq(body):
            return ir.seq(*[_simplify_statement(child, context) for child in body])
        case ir.Let(var, value, body):
            return _simplify_let(var, value, body, context)
        case ir.Alloc(buffer, body):
            inner = _simplify_statement(body, context)
            return inner if inner == _EMPTY else ir.Alloc(buffer, inner)
        case ir.Evaluate(value):
            return ir.Evaluate(context.simplify(value))
        case ir.Block():
            return _simplify_block(stmt, context)
        case _:
            raise InternalError(f"simplify: unknown type of statement; got {type(stmt).__name__}")


def loop_context(loop: ir.For, context: Simplifier) -> Simplifier:
    """Return the knowledge about values in the body of a loop. ``context``: the knowledge outside of the loop.

    The loop variable is in 0..extent-1. If the extent is a ``min``, it is less than each operand."""
    _, high = context.range_of(loop.extent)
    inner = context.with_variable(loop.var, (0, largest(high - 1, 0)))
    for condition in conditions_below_extent(loop.var, loop.extent):
        inner = inner.assuming(condition)
    return inner


def conditions_below_extent(var: Var, extent: Expr) -> tuple[Expr, ...]:
    """Return the conditions ``var < extent`` that hold in a loop over ``var`` of variable extent.

    An extent that is a ``min`` gives a condition for each operand; a literal extent gives no condition."""
    if isinstance(extent, ir.Bin) and extent.op == "min":
        return conditions_below_extent(var, extent.a) + conditions_below_extent(var, extent.b)
    return () if isinstance(extent, ir.Const) else (ir.Bin("lt", var, extent),)


def branch_context(condition: Expr, holds: bool, branch: Stmt, context: Simplifier) -> Simplifier:
    """Return the knowledge about values in a branch of an ``If`` that runs if ``condition`` has the outcome ``holds``.

    Parts of the condition that load from buffers that the branch writes are ignored. ``context``: the knowledge before the
    ``If``."""
    read = {x.buffer for x in rewrite.walk_expr(condition) if isinstance(x, ir.Load)}
    if not read or not read & facts.buffers_written(branch):
        return context.assuming(condition, holds)
    match condition:
        case ir.Bin(op, a, b) if op == ("and" if holds else "or"):
            return branch_context(b, holds, branch, branch_context(a, holds, branch, context))
        case ir.Un("not", a):
            return branch_context(a, not holds, branch, context)
        case _:
            return context


def let_context(var: Var, value: Expr, context: Simplifier) -> Simplifier:
    """Return the knowledge about values in the body of a ``Let``: its variable has the bounds of ``value``.

    If the value depends on data, the variable is opaque: sums that contain it keep their order."""
    bounds = context.range_of(value) if value.dtype not in ("float32", "float64") else linear_forms.UNKNOWN
    return context.with_variable(var, bounds, opaque=not context.is_index(value))


def _simplify_loop(loop: ir.For, context: Simplifier) -> Stmt:
    extent = context.simplify(loop.extent)
    if isinstance(extent, ir.Const) and is_at_most(extent.value, 0):
        return _EMPTY
    if extent is not loop.extent:
        loop = ir.For(loop.var, extent, loop.body, loop.kind, loop.annotations)
    body = _simplify_statement(loop.body, loop_context(loop, context))
    if body == _EMPTY or ir.int_value(extent) == 1:
        return body
    return loop if body is loop.body else ir.For(loop.var, extent, body, loop.kind, loop.annotations)


def _simplify_branch(condition: Expr, then: Stmt, otherwise: Stmt | None, context: Simplifier) -> Stmt:
    test = context.simplify(condition)
    if isinstance(test, ir.Const):
        chosen = then if test.value else otherwise
        return _EMPTY if chosen is None else _simplify_statement(chosen, context)
    first = _simplify_statement(then, branch_context(test, True, then, context))
    second = (
        _EMPTY if otherwise is None else _simplify_statement(otherwise, branch_context(test, False, otherwise, context))
    )
    if first == _EMPTY:
        return _EMPTY if second == _EMPTY else ir.If(negate(test), second)
    return ir.If(test, first, None if second == _EMPTY else second)


def _simplify_let(var: Var, value: Expr, body: Stmt, context: Simplifier) -> Stmt:
    simple = context.simplify(value)
    inner = _simplify_statement(body, let_context(var, simple, context))
    constant = ir.int_value(simple) is not None and var.dtype != "bool"
    return inner if constant or inner == _EMPTY or not _reads_variable(inner, var) else ir.Let(var, simple, inner)


def _reads_variable(stmt: Stmt, var: Var) -> bool:
    """Test whether an expression in a statement or its sub-statements contains a variable."""
    return any(var in rewrite.free_vars(e) for s in rewrite.walk_stmt(stmt) for e in rewrite.stmt_exprs(s))


def _simplify_block(block: ir.Block, context: Simplifier) -> Stmt:
    predicate = context.simplify(block.predicate) if block.predicate else None
    if isinstance(predicate, ir.Const):
        if not predicate.value:
            return _EMPTY
        predicate = None
    iters = tuple(ir.IterVar(i.var, i.extent, i.kind, context.simplify(i.binding)) for i in block.iters)
    inner = context
    for i in iters:
        inner = inner.with_variable(i.var, (0, i.extent - 1), kept=True)
    init = _simplify_statement(block.init, inner) if block.init else None
    return ir.Block(block.name, iters, _simplify_statement(block.body, inner), init, predicate, block.annotations)
