"""Loops that copy for their next turn while they compute: their shared buffers have two halves, which take turns."""

from __future__ import annotations

from dataclasses import replace

from microc.errors import ScheduleError
from microc.tir import ir
from microc.tir.affine import simplify_stmt
from microc.tir.facts import buffers_read, buffers_written
from microc.tir.names import DOUBLE_BUFFER
from microc.tir.rewrite import map_expr, map_stmt, substitute_stmt

Halves = dict[ir.Buffer, ir.Buffer]


def double_buffers(stmt: ir.Stmt) -> ir.Stmt:
    """Every loop with the note :data:`~microc.tir.names.DOUBLE_BUFFER` begins with a copy for its first turn, and each turn
    copies for the next one: ``fill(0); for k: if k + 1 < n: fill(k + 1) into half (k + 1) % 2; compute from half k % 2``."""
    halves: Halves = {}

    def on_loop(s: ir.Stmt) -> ir.Stmt:
        return _doubled(s, halves) if isinstance(s, ir.For) and DOUBLE_BUFFER in dict(s.annotations) else s

    def on_alloc(s: ir.Stmt) -> ir.Stmt:
        return ir.Alloc(halves[s.buffer], s.body) if isinstance(s, ir.Alloc) and s.buffer in halves else s

    changed = map_stmt(stmt, on_loop)
    return simplify_stmt(map_stmt(changed, on_alloc)) if halves else stmt


def _doubled(loop: ir.For, halves: Halves) -> ir.Stmt:
    body = loop.body.body if isinstance(loop.body, ir.Seq) else (loop.body,)
    shared = {b for b in buffers_written(loop.body) if b.scope == "shared"}
    fills = [s for s in body if buffers_written(s) & shared]
    rest = [s for s in body if s not in fills]
    if not fills or not rest or body[: len(fills)] != tuple(fills):
        raise ScheduleError(
            f"prefetch: loop {loop.var.name!r} does not begin with copies into shared memory",
            hint="cache_read(block, buffer, 'shared') and compute_at this loop make them",
        )
    wrong = sorted(b.name for s in fills for b in (buffers_written(s) - shared) | (buffers_read(s) & shared))
    if wrong:
        raise ScheduleError(
            f"prefetch: what fills shared memory in loop {loop.var.name!r} uses {wrong[0]!r}, too",
            hint="it may copy from memory of all groups only, and write nothing else",
        )
    taken = {b: replace(b, shape=(2, *b.shape)) for b in shared}
    halves.update(taken)
    zero, one, two = (ir.const(n, "int32") for n in range(3))
    following = loop.var + one
    fill, use = ir.seq(*fills), ir.seq(*rest)
    first = _in_half(substitute_stmt(fill, {loop.var: zero}), taken, zero)
    later = _in_half(substitute_stmt(_renamed(fill), {loop.var: following}), taken, ir.Bin("floormod", following, two))
    guarded = ir.If(ir.Bin("lt", following, loop.extent), later)
    computed = _in_half(use, taken, ir.Bin("floormod", loop.var, two))
    notes = tuple(note for note in loop.annotations if note[0] != DOUBLE_BUFFER)
    return ir.seq(first, replace(loop, body=ir.seq(guarded, computed), annotations=notes))


def _renamed(stmt: ir.Stmt) -> ir.Stmt:
    """A second copy, whose loops have names of their own."""

    def on_stmt(s: ir.Stmt) -> ir.Stmt:
        if not isinstance(s, ir.For):
            return s
        var = ir.Var(f"{s.var.name}_next1", s.var.dtype)
        return replace(s, var=var, body=substitute_stmt(s.body, {s.var: var}))

    return map_stmt(stmt, on_stmt)


def _in_half(stmt: ir.Stmt, halves: Halves, half: ir.Expr) -> ir.Stmt:
    """Accesses go to one half of each buffer."""

    def on_expr(e: ir.Expr) -> ir.Expr:
        if isinstance(e, ir.Load) and e.buffer in halves:
            return ir.Load(halves[e.buffer], (half, *e.indices))
        return e

    def on_stmt(s: ir.Stmt) -> ir.Stmt:
        if isinstance(s, ir.Store) and s.buffer in halves:
            return ir.Store(halves[s.buffer], (half, *s.indices), s.value)
        return s

    return map_stmt(stmt, on_stmt, lambda x: map_expr(x, on_expr))
