"""Fills leave loops that repeat them for nothing.

A plane with a border is filled with a constant, then its inside is copied, for every channel anew. Where the copy always
writes the same box and nothing else writes the buffer, what lies outside the box stays as the first fill left it, and the fill
moves in front of the loop.
"""

from __future__ import annotations

import itertools

from microc.tir import ir
from microc.tir.affine import linear
from microc.tir.facts import buffers_read, buffers_written
from microc.tir.rewrite import free_vars, map_stmt


def hoist_fills(stmt: ir.Stmt) -> ir.Stmt:
    """``stmt`` with repeated fills in front of their loops, innermost loops first."""

    def on_stmt(s: ir.Stmt) -> ir.Stmt:
        return _hoist(s) if isinstance(s, ir.For) else s

    return map_stmt(stmt, on_stmt)


def _hoist(loop: ir.For) -> ir.Stmt:
    if not isinstance(loop.body, ir.Seq) or not ir.int_value(loop.extent):
        return loop
    body = loop.body.body
    for k, (fill, copy) in enumerate(itertools.pairwise(body)):
        filled, copied = _nest(fill), _nest(copy)
        if filled is None or copied is None or not isinstance(filled[1].value, ir.Const):
            continue
        buffer = filled[1].buffer
        if copied[1].buffer != buffer or any(buffer in buffers_written(s) for s in body[k + 2 :]):
            continue
        if buffer in buffers_read(copy):  # a sum, which starts anew
            continue
        if any(buffer in buffers_written(s) | buffers_read(s) for s in body[:k]):
            continue
        if loop.var not in _variables(filled[1]) and _is_box(*copied):
            return ir.seq(fill, ir.For(loop.var, loop.extent, ir.seq(*body[:k], *body[k + 1 :]), loop.kind))
    return loop


def _nest(stmt: ir.Stmt) -> tuple[dict[ir.Var, int], ir.Store] | None:
    """The constant loops around a single store."""
    loops: dict[ir.Var, int] = {}
    while isinstance(stmt, ir.For):
        extent = ir.int_value(stmt.extent)
        if not extent:
            return None
        loops[stmt.var], stmt = extent, stmt.body
    return (loops, stmt) if isinstance(stmt, ir.Store) else None


def _is_box(loops: dict[ir.Var, int], store: ir.Store) -> bool:
    """Whether the loops bring the indices through every element of a fixed box: each counts one index, or none."""
    seen: set[ir.Expr] = set()
    for index in store.indices:
        terms, _ = linear(index)
        if any(term not in loops or factor != 1 or term in seen for term, factor in terms.items()) or len(terms) > 1:
            return False
        seen |= terms.keys()
    return True


def _variables(store: ir.Store) -> set[ir.Var]:
    return {v for index in store.indices for v in free_vars(index)}
