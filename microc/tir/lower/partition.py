"""Guards of imperfect splits leave the inner loop: the last iteration of the outer loop is peeled off.

``for i in 7: for j in 4: if i*4 + j < 26`` becomes six full iterations and one whose ``j`` loop runs to 2. The same for
any conjunction of ``affine < constant`` conditions that holds up to some iteration. A loop with the note ``peel`` 0 keeps its
guards as run-time tests: its body is long, and little of it is guarded. So does a parallel one, of which every turn is some
thread's.
"""

from __future__ import annotations

from dataclasses import replace

from microc.tir import ir
from microc.tir.affine import bounds_of, linear, simplify, simplify_stmt
from microc.tir.names import PEEL
from microc.tir.rewrite import free_vars, map_stmt, replace_buffers, substitute_stmt, walk_stmt

Bounds = dict[ir.Var, tuple[int, int]]

PEEL_LIMIT = 1
"""Peel at most this many iterations; a guard that fails earlier stays a run-time test."""


def partition_loops(stmt: ir.Stmt) -> ir.Stmt:
    """Peel guarded tails everywhere, outermost loops first."""
    return _partition(stmt, {})


def _partition(stmt: ir.Stmt, bounds: Bounds) -> ir.Stmt:
    match stmt:
        case ir.For(var, extent, body, kind, annotations):
            count = ir.int_value(extent)
            if count is None:
                return stmt
            shorter = _bounded(stmt)
            if shorter is not stmt:
                return _partition(shorter, bounds)
            here: Bounds = {**bounds, var: (0, count - 1)}
            whole = kind in ("parallel", *ir.GROUPS, *ir.ITEMS) or (PEEL, 0) in annotations
            cut = None if whole else _threshold(var, count, body, here)
            if cut is not None and 0 <= cut < count and count - cut <= PEEL_LIMIT:
                full = _shorten(ir.For(var, ir.const(cut, "int32"), body, kind, annotations), bounds)
                tails = [
                    _shorten(
                        substitute_stmt(
                            _renamed(body, f"_{var.name.partition('_')[0]}{t}"), {var: ir.const(t, "int32")}
                        ),
                        bounds,
                    )
                    for t in range(cut, count)
                ]
                return ir.seq(full, *tails)
            return ir.For(var, extent, _partition(body, here), kind, annotations)
        case ir.Seq(body):
            return ir.seq(*(_partition(child, bounds) for child in body))
        case ir.Let(var, value, body):
            return ir.Let(var, value, _partition(body, bounds))
        case ir.Alloc(buffer, body):
            return ir.Alloc(buffer, _partition(body, bounds))
        case ir.If(condition, then, otherwise):
            rest = _partition(otherwise, bounds) if otherwise else None
            return ir.If(condition, _partition(then, bounds), rest)
        case _:
            return stmt


def _bounded(stmt: ir.Stmt) -> ir.Stmt:
    """``for i: if i < n`` as a shorter loop; anything else as it is."""
    if not isinstance(stmt, ir.For) or not isinstance(stmt.body, ir.If) or stmt.body.otherwise is not None:
        return stmt
    count, limit = ir.int_value(stmt.extent), _upper(stmt.var, stmt.body.condition)
    if count is None or limit is None:
        return stmt
    return ir.For(stmt.var, ir.const(min(count, limit), "int32"), stmt.body.then, stmt.kind, stmt.annotations)


def _shorten(stmt: ir.Stmt, bounds: Bounds) -> ir.Stmt:
    """Simplify under the bounds of the loops around, then turn ``for i: if i < n`` into a shorter loop."""

    def merge(s: ir.Stmt) -> ir.Stmt:
        """Guards move outwards over loops that they do not depend on, so that they meet the loop they bound."""
        if isinstance(s, ir.For) and isinstance(s.body, ir.If) and s.body.otherwise is None:
            terms = ir.conjuncts(s.body.condition)
            free = [t for t in terms if not _mentions(t, s.var)]
            if free:
                kept = ir.all_of(t for t in terms if _mentions(t, s.var))
                body = ir.If(kept, s.body.then) if kept is not None else s.body.then
                guard = ir.all_of(free)
                assert guard is not None
                return ir.If(guard, _bounded(ir.For(s.var, s.extent, body, s.kind, s.annotations)))
        return _bounded(s)

    shortened = map_stmt(simplify_stmt(stmt, bounds), merge)
    return simplify_stmt(_partition(shortened, bounds), bounds)


def _mentions(expr: ir.Expr, var: ir.Var) -> bool:
    return var in free_vars(expr)


def _upper(var: ir.Var, condition: ir.Expr) -> int | None:
    """n when the condition is just ``var < n`` in some affine spelling."""
    form = _less_than(condition)
    if form is None:
        return None
    terms, room = form
    if set(terms) != {var} or terms[var] <= 0:
        return None
    return max(0, -(-room // terms[var]))


def _less_than(condition: ir.Expr) -> tuple[dict[ir.Expr, int], int] | None:
    """``condition`` as (terms, room) meaning sum(terms) < room; only for ``lt``, ``le``, ``gt``, ``ge`` of int32."""
    if not isinstance(condition, ir.Bin) or condition.op not in ("lt", "le", "gt", "ge"):
        return None
    if condition.a.dtype != "int32":
        return None
    small, large = condition.a, condition.b
    if condition.op in ("gt", "ge"):
        small, large = large, small
    terms, offset = linear(simplify(small - large))
    return dict(terms), -offset + (1 if condition.op in ("le", "ge") else 0)


def _threshold(var: ir.Var, count: int, body: ir.Stmt, bounds: Bounds) -> int | None:
    """The first iteration of ``var`` at which some guard inside may fail; None when no guard depends on ``var``."""
    cut: int | None = None
    inside = dict(bounds)
    for s in walk_stmt(body):
        if isinstance(s, ir.For):
            extent = ir.int_value(s.extent)
            if extent is not None:
                inside[s.var] = (0, extent - 1)
    for s in walk_stmt(body):
        if not isinstance(s, ir.If):
            continue
        for condition in ir.conjuncts(s.condition):
            form = _less_than(condition)
            if form is None or form[0].get(var, 0) <= 0:
                continue
            terms, room = form
            rest = 0
            for term, factor in terms.items():
                if term == var:
                    continue
                reach = bounds_of(term, inside)
                if reach is None:
                    break
                rest += max(factor * reach[0], factor * reach[1])
            else:
                first = -(-(room - rest) // terms[var])
                cut = max(0, first) if cut is None else min(cut, max(0, first))
    return cut if cut is not None and cut < count else None


def _renamed(stmt: ir.Stmt, suffix: str) -> ir.Stmt:
    """A copy with other names for the variables and buffers it binds, so that names stay unique."""
    names = {
        s.var: ir.Var(s.var.name + suffix, s.var.dtype) for s in walk_stmt(stmt) if isinstance(s, (ir.For, ir.Let))
    }
    registers = {
        s.buffer: replace(s.buffer, name=s.buffer.name + suffix)
        for s in walk_stmt(stmt)
        if isinstance(s, ir.Alloc) and s.buffer.scope in ("register", "local")
    }

    def on_stmt(s: ir.Stmt) -> ir.Stmt:
        match s:
            case ir.For(var, extent, body, kind, annotations):
                return ir.For(names[var], extent, body, kind, annotations)
            case ir.Let(var, value, body):
                return ir.Let(names[var], value, body)
            case _:
                return s

    return replace_buffers(map_stmt(substitute_stmt(stmt, dict(names)), on_stmt), registers)
