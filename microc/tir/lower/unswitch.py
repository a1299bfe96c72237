"""Conditions leave the loops that they do not depend on.

``for c: padded[y, x, c] = select(0 <= y and 0 <= x, data[y, x, c], 0)`` becomes a test per row, a test per column, and inner
loops that copy or fill.
"""

from __future__ import annotations

from microc.tir import ir
from microc.tir.rewrite import free_vars, map_stmt


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


def _unswitch(loop: ir.For) -> ir.Stmt:
    parts = _branches(loop.body)
    if parts is None:
        return loop
    condition, copy, fill = parts
    terms = _conjuncts(condition)
    outside = ir.all_of(t for t in terms if loop.var not in free_vars(t))
    if outside is None:
        return loop
    inside = ir.all_of(t for t in terms if loop.var in free_vars(t))
    body = copy if inside is None else _guarded(loop.body, inside, copy, fill)
    filling = ir.For(loop.var, loop.extent, fill, loop.kind, loop.annotations)
    return ir.If(outside, ir.For(loop.var, loop.extent, body, loop.kind, loop.annotations), filling)


def _guarded(old: ir.Stmt, condition: ir.Expr, copy: ir.Stmt, fill: ir.Stmt) -> ir.Stmt:
    """The same statement under a weaker condition."""
    if isinstance(old, ir.Store) and isinstance(copy, ir.Store) and isinstance(fill, ir.Store):
        return ir.Store(old.buffer, old.indices, ir.Select(condition, copy.value, fill.value))
    return ir.If(condition, copy, fill)
