"""Loops marked ``unrolled`` become their iterations; loops of one iteration vanish. What an iteration allocates for itself is
allocated once, around all of them."""

from __future__ import annotations

from microc.errors import InternalError
from microc.tir import ir
from microc.tir.rewrite import map_stmt, substitute_stmt


def unroll_loops(stmt: ir.Stmt) -> ir.Stmt:
    """``stmt`` without ``unrolled`` loops, innermost first."""

    def on_stmt(s: ir.Stmt) -> ir.Stmt:
        if not isinstance(s, ir.For):
            return s
        extent = ir.int_value(s.extent)
        if s.kind != "unrolled" and extent != 1:
            return s
        if extent is None:
            raise InternalError(f"loop {s.var.name} has no constant extent and cannot be unrolled")
        body, own = s.body, []
        while isinstance(body, ir.Alloc):
            own.append(body.buffer)
            body = body.body
        copies = ir.seq(*(substitute_stmt(body, {s.var: ir.const(k, "int32")}) for k in range(extent)))
        for buffer in reversed(own):
            copies = ir.Alloc(buffer, copies)
        return copies

    return map_stmt(stmt, on_stmt)
