"""Conditions leave the loops that they do not depend on.

``for c: padded[y, x, c] = select(0 <= y and 0 <= x, data[y, x, c], 0)`` becomes a test per row, a test per column, and inner
loops that copy or fill; where vectors copy, a row's columns away from the border are tested once, and may be one run. A choice
that a loop's own counter makes, ``select(c < 8, a[c], b[c - 8])``, becomes several loops.
"""

from __future__ import annotations

from dataclasses import replace

from microc.tir import ir
from microc.tir.affine import linear, simplify, simplify_stmt
from microc.tir.names import LANES
from microc.tir.rewrite import free_vars, map_stmt, substitute, substitute_stmt

FAR = 1 << 31
LONG = 4
"""Runs of at least this many elements are worth a version of their own without guards."""


def unswitch_loops(stmt: ir.Stmt) -> ir.Stmt:
    """``stmt`` with the invariant parts of guarded copies outside their loops, innermost loops first."""

    def on_stmt(s: ir.Stmt) -> ir.Stmt:
        return _unswitch(s) if isinstance(s, ir.For) else s

    return map_stmt(stmt, on_stmt)


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
    """The loop in parts where its counter alone says from where to where there is something to copy, and what else is stored."""
    match loop.body:
        case ir.Store(buffer, indices, ir.Select(condition, a, b)) if _moves(a) and _moves(b):
            pass
        case _:
            return None
    extent, terms = ir.int_value(loop.extent), ir.conjuncts(condition)
    ranges = {term: found for term in terms if (found := _range(term, loop.var)) is not None}
    if extent is None or not ranges:
        return None
    start = min(max(0, *(low for low, _ in ranges.values())), extent)
    stop = max(start, min(extent, *(high for _, high in ranges.values())))
    rest = ir.all_of(t for t in terms if t not in ranges)
    inside = a if rest is None else ir.select(rest, a, b)
    parts = []
    for first, last, value in ((0, start, b), (start, stop, inside), (stop, extent, b)):
        if first < last:
            var = ir.Var(f"{loop.var.name}_from_{first}", loop.var.dtype) if first else loop.var
            store = substitute_stmt(ir.Store(buffer, indices, value), {loop.var: var + first} if first else {})
            part = replace(loop, var=var, extent=ir.const(last - first, "int32"), body=simplify_stmt(store))
            parts.append(_unswitch(part))
    return ir.seq(*parts)


def _range(condition: ir.Expr, var: ir.Var) -> tuple[int, int] | None:
    """From where to where a condition on nothing but ``var`` holds."""
    if not _monotone(condition, var):
        return None
    assert isinstance(condition, ir.Bin)
    small, large = (condition.a, condition.b) if condition.op in ("lt", "le") else (condition.b, condition.a)
    terms, offset = linear(small - large)
    slack = offset - (condition.op in ("le", "ge"))  # factor * var + slack < 0
    if set(terms) != {var} or abs(terms[var]) != 1:
        return None
    return (-FAR, -slack) if terms[var] == 1 else (slack + 1, FAR)


def _moves(value: ir.Expr) -> bool:
    """Whether nothing is computed, but for more such choices."""
    match value:
        case ir.Select(_, a, b):
            return _moves(a) and _moves(b)
        case ir.Cast(_, inner):
            return _moves(inner)
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
    terms = ir.conjuncts(condition)
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
    terms = ir.conjuncts(condition)
    if extent is None or not (_copies_run(copying) or (extent >= LONG and isinstance(loop.body, ir.Store))):
        return guarded
    if not all(_monotone(t, loop.var) for t in terms):
        return guarded
    ends = (ir.const(0, "int32"), ir.const(extent - 1, "int32"))
    checks = (simplify(substitute(t, {loop.var: end})) for t in terms for end in ends)
    always = ir.all_of(dict.fromkeys(checks))
    assert always is not None
    return ir.If(always, _unswitch(copying) if isinstance(copying, ir.For) else copying, guarded)


def _copies_run(loop: ir.Stmt) -> bool:
    """Whether vectors copy runs, several of which may be neighbours, or one of which is behind a test of its own."""
    match loop:
        case ir.For(body=ir.If(then=ir.For() as run)) | ir.For(body=ir.For() as run) if isinstance(run.body, ir.Store):
            return isinstance(run.body.value, ir.Load) and LANES in dict(run.annotations)
        case _:
            return False


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
