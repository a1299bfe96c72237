"""Places that are looked up leave the loops that they do not depend on.

``for c: out[i, c] = data[index[i], c]`` reads ``index[i]`` once. A compiler cannot know that: bytes that are stored might be the
index's own.
"""

from __future__ import annotations

from microc.tir import ir
from microc.tir.facts import buffers_written
from microc.tir.rewrite import children, free_vars, map_children, map_stmt, stmt_exprs, walk_expr, walk_stmt


def hoist_places(stmt: ir.Stmt) -> ir.Stmt:
    """``stmt`` with what loops over a single store look up by turns in front of them, innermost loops first."""
    taken = {var.name for s in walk_stmt(stmt) for whole in stmt_exprs(s) for var in free_vars(whole)}
    taken |= {s.var.name for s in walk_stmt(stmt) if isinstance(s, (ir.For, ir.Let))}

    def on_stmt(s: ir.Stmt) -> ir.Stmt:
        if not isinstance(s, ir.For) or not isinstance(s.body, ir.Store):
            return s
        bound: dict[ir.Expr, ir.Var] = {}
        for place in dict.fromkeys(p for e in stmt_exprs(s.body) for p in _places(e, s.var)):
            if any(isinstance(x, ir.Load) and x.buffer in buffers_written(s.body) for x in walk_expr(place)):
                continue
            name = next(n for n in (f"place_{k}" for k in range(len(taken) + 1)) if n not in taken)
            taken.add(name)
            bound[place] = ir.Var(name, place.dtype)

        def known_places(part: ir.Expr) -> ir.Expr:
            """The largest first: one may be a part of another."""
            return bound.get(part) or map_children(part, known_places)

        store = map_stmt(s.body, lambda x: x, known_places)
        moved: ir.Stmt = ir.For(s.var, s.extent, store, s.kind, s.annotations)
        for place, known in reversed(bound.items()):
            moved = ir.Let(known, place, moved)
        return moved

    return map_stmt(stmt, on_stmt)


def _places(value: ir.Expr, var: ir.Var) -> list[ir.Expr]:
    """The largest parts of the indices of loads that load something themselves and do not depend on ``var``. What a condition
    guards stays where it is."""
    match value:
        case ir.Select():
            return []
        case ir.Load(_, indices):
            return [p for index in indices for p in _lookups(index, var)]
        case _:
            return [p for child in children(value) for p in _places(child, var)]


def _lookups(index: ir.Expr, var: ir.Var) -> list[ir.Expr]:
    if not any(isinstance(x, ir.Load) for x in walk_expr(index)):
        return []
    if var not in free_vars(index):
        return [index]
    return [p for child in children(index) for p in _lookups(child, var)]
