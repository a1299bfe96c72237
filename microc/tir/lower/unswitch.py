"""Conditions leave the loops that they do not depend on.

``for c: padded[y, x, c] = select(0 <= y and 0 <= x, data[y, x, c], 0)`` becomes a test per row, a test per column, and inner
loops that copy or fill. A choice that a loop's own counter makes, ``select(c < 8, a[c], b[c - 8])``, becomes two loops.
"""

from __future__ import annotations

from dataclasses import replace

from microc.tir import ir
from microc.tir.affine import linear, simplify, simplify_stmt
from microc.tir.rewrite import free_vars, map_stmt, substitute, substitute_stmt

LONG = 4
"""Runs of at least this many elements are worth a version of their own without guards."""


def unswitch_loops(stmt: ir.Stmt) -> ir.Stmt:
    """``stmt`` with the invariant parts of guarded copies outside their loops, innermost loops first."""

    def on_stmt(s: ir.Stmt) -> ir.Stmt:
        return _unswitch(s) if isinstance(s, ir.For) else s

    return map_stmt(stmt, on_stmt)


def _conjuncts(condition: ir.Expr) -> list[ir.Expr]:
    if isinstance(condition, ir.Bin) and condition.op == "and":
        return _conjuncts(condition.a) + _conjuncts(condition.b)
    return [condition]


def _branches(body: ir.Stmt) -> tuple[ir.Expr, ir.Stmt, ir.Stmt] | None:
    """Condition, copying side and filling side of a guarded copy; the filling side stores constants only."""
    match body:
        case ir.Store(buffer, indices, ir.Select(condition, a, ir.Const() as b)):
            return condition, ir.Store(buffer, indices, a), ir.Store(buffer, indices, b)
        case ir.If(condition, then, ir.Stmt() as otherwise):
            return condition, then, otherwise
        case _:
            return None


def _divided(loop: ir.For) -> ir.Stmt | None:
    """The loop in two where its counter alone chooses between two things to copy, or to copy and to fill with."""
    match loop.body:
        case ir.Store(buffer, indices, ir.Select(ir.Bin("lt", ir.Var() as var, ir.Const(int() as limit)), a, b)):
            extent = ir.int_value(loop.extent)
            if var != loop.var or extent is None or not 0 < limit < extent or not (_moves(a) and _moves(b)):
                return None
        case _:
            return None
    second = ir.Var(f"{var.name}_from_{limit}", var.dtype)
    rest = substitute_stmt(ir.Store(buffer, indices, b), {var: second + limit})
    tail = replace(loop, var=second, extent=ir.const(extent - limit, "int32"), body=simplify_stmt(rest))
    head = replace(loop, extent=ir.const(limit, "int32"), body=ir.Store(buffer, indices, a))
    return ir.seq(head, unswitch_loops(tail))


def _moves(value: ir.Expr) -> bool:
    """Whether nothing is computed, but for more such choices."""
    match value:
        case ir.Select(_, a, b):
            return _moves(a) and _moves(b)
        case _:
            return isinstance(value, (ir.Load, ir.Const))


def _unswitch(loop: ir.For) -> ir.Stmt:
    divided = _divided(loop)
    if divided is not None:
        return divided
    parts = _branches(loop.body)
    if parts is None:
        return loop
    condition, copy, fill = parts
    terms = _conjuncts(condition)
    outside = ir.all_of(t for t in terms if loop.var not in free_vars(t))
    inside = ir.all_of(t for t in terms if loop.var in free_vars(t))
    copying: ir.Stmt = replace(loop, body=copy)
    if inside is not None:
        guarded = replace(loop, body=_guarded(loop.body, inside, copy, fill))
        copying = _whole_or_guarded(loop, inside, copying, guarded)
    if outside is None:
        return copying
    return ir.If(outside, copying, replace(loop, body=fill))


def _whole_or_guarded(loop: ir.For, condition: ir.Expr, copying: ir.Stmt, guarded: ir.Stmt) -> ir.Stmt:
    """A copy without guards where the condition holds for all iterations, as it does away from the border.

    Comparisons of affine expressions that hold at both ends hold in between.
    """
    extent = ir.int_value(loop.extent)
    terms = _conjuncts(condition)
    if extent is None or extent < LONG or not isinstance(loop.body, ir.Store):
        return guarded
    if not all(_monotone(t, loop.var) for t in terms):
        return guarded
    ends = (ir.const(0, "int32"), ir.const(extent - 1, "int32"))
    checks = (simplify(substitute(t, {loop.var: end})) for t in terms for end in ends)
    always = ir.all_of(dict.fromkeys(checks))
    assert always is not None
    return ir.If(always, copying, guarded)


def _monotone(condition: ir.Expr, var: ir.Var) -> bool:
    """Whether a comparison compares int32 expressions that are affine in ``var``."""
    if (
        not isinstance(condition, ir.Bin)
        or condition.op not in ("lt", "le", "gt", "ge")
        or condition.a.dtype != "int32"
    ):
        return False
    terms, _ = linear(condition.a - condition.b)
    return all(term == var or var not in free_vars(term) for term in terms)


def _guarded(old: ir.Stmt, condition: ir.Expr, copy: ir.Stmt, fill: ir.Stmt) -> ir.Stmt:
    """The same statement under a weaker condition."""
    if isinstance(old, ir.Store) and isinstance(copy, ir.Store) and isinstance(fill, ir.Store):
        return ir.Store(old.buffer, old.indices, ir.Select(condition, copy.value, fill.value))
    return ir.If(condition, copy, fill)
