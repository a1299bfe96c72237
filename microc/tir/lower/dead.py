"""Scalars of register tiles that nobody needs are not computed.

A part of a tile is scheduled as the whole one is: where an intrinsic, or products of pairs, make the values of several
elements, all of them are summed up, and those behind the end are never stored.
"""

from __future__ import annotations

from microc.tir import ir
from microc.tir.rewrite import accesses_of, map_stmt, stmt_children, stmt_exprs, walk_stmt

Cell = tuple[ir.Expr, ...]
_NOTHING = ir.Seq(())


def drop_dead_cells(stmt: ir.Stmt) -> ir.Stmt:
    """``stmt`` without stores to cells of register tiles whose values reach no memory, no condition and no call."""

    def on_stmt(s: ir.Stmt) -> ir.Stmt:
        return _drop(s) if isinstance(s, ir.Alloc) and s.buffer.scope == "register" else s

    return map_stmt(stmt, on_stmt)


def _drop(alloc: ir.Alloc) -> ir.Stmt:
    buffer = alloc.buffer
    feeds: dict[Cell, set[Cell]] = {}
    needed: set[Cell] = set()
    for s in walk_stmt(alloc.body):
        read = {access.indices for whole in stmt_exprs(s) for access in accesses_of(whole) if access.buffer == buffer}
        if isinstance(s, ir.Store) and s.buffer == buffer:
            feeds.setdefault(s.indices, set()).update(read)
        else:
            needed |= read
    if not all(isinstance(index, ir.Const) for cell in {*feeds, *needed} for index in cell):
        return alloc  # cells that loops number
    waiting = list(needed)
    while waiting:
        more = feeds.get(waiting.pop(), set()) - needed
        needed |= more
        waiting += more
    if needed >= feeds.keys():
        return alloc

    def on_stmt(s: ir.Stmt) -> ir.Stmt:
        dead = isinstance(s, ir.Store) and s.buffer == buffer and s.indices not in needed
        inside = stmt_children(s)
        return _NOTHING if dead or (inside and all(child == _NOTHING for child in inside)) else s

    return ir.Alloc(buffer, map_stmt(alloc.body, on_stmt))
