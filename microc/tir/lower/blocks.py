"""Blocks become their bodies: iterators are replaced by their bindings, ``init`` and the predicate by ifs."""

from __future__ import annotations

from microc.tir import ir
from microc.tir.rewrite import map_stmt, substitute_stmt


def drop_blocks(stmt: ir.Stmt) -> ir.Stmt:
    """``stmt`` without blocks. A reduction that was not decomposed tests for its first step at run time."""

    def on_stmt(s: ir.Stmt) -> ir.Stmt:
        if not isinstance(s, ir.Block):
            return s
        values = {i.var: i.binding for i in s.iters}
        body = substitute_stmt(s.body, values)
        if s.init is not None:
            first = ir.all_of(ir.Bin("eq", i.binding, ir.const(0, "int32")) for i in s.iters if i.kind == "reduce")
            init = substitute_stmt(s.init, values)
            body = ir.seq(ir.If(first, init) if first is not None else init, body)
        return ir.If(s.predicate, body) if s.predicate is not None else body

    return map_stmt(stmt, on_stmt)
