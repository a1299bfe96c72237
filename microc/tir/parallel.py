"""Whether the turns of a parallel loop keep out of each other's way in a buffer that they write."""

from __future__ import annotations

from collections.abc import Iterator

from microc.tir import ir
from microc.tir.rewrite import stmt_children, stmt_exprs, walk_expr


def has_parts(loop: ir.For, buffer: ir.Buffer) -> bool:
    """Whether one axis of ``buffer`` counts the turns wherever ``loop`` touches it, so that no two turns share an element."""
    axes = set(range(len(buffer.shape)))
    for where in _places(loop.body, buffer, frozenset({loop.var})):
        axes &= where
    return bool(axes)


def _places(stmt: ir.Stmt, buffer: ir.Buffer, turns: frozenset[ir.Var]) -> Iterator[set[int]]:
    """The axes whose index is one of ``turns``, for every touch; none where an address is taken."""
    if isinstance(stmt, ir.Block):
        turns |= {it.var for it in stmt.iters if it.binding in turns}
    if isinstance(stmt, ir.Store) and stmt.buffer == buffer:
        yield _counting(stmt.indices, turns)
    for x in (x for expr in stmt_exprs(stmt) for x in walk_expr(expr)):
        if isinstance(x, ir.Load) and x.buffer == buffer:
            yield _counting(x.indices, turns)
        elif isinstance(x, ir.AddressOf) and x.buffer == buffer:
            yield set()
    for child in stmt_children(stmt):
        yield from _places(child, buffer, turns)


def _counting(indices: tuple[ir.Expr, ...], turns: frozenset[ir.Var]) -> set[int]:
    return {axis for axis, index in enumerate(indices) if index in turns}
