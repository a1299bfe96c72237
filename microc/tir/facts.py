"""What passes ask of the same expressions and statements again and again: found once, and kept with them.

A pass hands on what it does not change as it is, so that the next one, and the next step of a schedule, know it already.
"""

from __future__ import annotations

from microc.tir import ir
from microc.tir.ir import Expr, Stmt
from microc.tir.rewrite import accesses_of, free_vars, stmt_children, stmt_exprs

INDEX_OPS = frozenset({"add", "sub", "mul", "floordiv", "floormod", "truncdiv", "truncmod", "min", "max"})
"""What index arithmetic computes with."""
_PURE_OPS = INDEX_OPS | ir.COMPARISONS | ir.LOGICAL


def is_index(expr: Expr) -> bool:
    """Whether an expression is made of int32 variables and literals only; found once, from what its operands are."""
    try:
        return expr.known_index
    except AttributeError:
        expr.known_index = found = _is_index(expr)
        return found


def _is_index(expr: Expr) -> bool:
    match expr:
        case ir.Const():
            return expr.dtype in ("int32", "bool")
        case ir.Var():
            return expr.dtype == "int32"
        case ir.Bin(op, a, b):
            return op in _PURE_OPS and is_index(a) and is_index(b)
        case ir.Un(op, a):
            return op in ("neg", "not") and is_index(a)
        case ir.Select(c, a, b):
            return is_index(c) and is_index(a) and is_index(b)
        case _:
            return False


def buffers_read(stmt: Stmt) -> frozenset[ir.Buffer]:
    """Buffers that are loaded from (or read through an address) anywhere under ``stmt``; found once, from those of its parts."""
    try:
        return stmt.known_read
    except AttributeError:
        accesses = (x for e in stmt_exprs(stmt) for x in accesses_of(e))
        own = [x.buffer for x in accesses if isinstance(x, ir.Load) or not x.writes]
        stmt.known_read = found = frozenset(own).union(*map(buffers_read, stmt_children(stmt)))
        return found


def buffers_written(stmt: Stmt) -> frozenset[ir.Buffer]:
    """Buffers that are stored to (or written through an address) anywhere under ``stmt``; found once, as those that are read."""
    try:
        return stmt.known_written
    except AttributeError:
        accesses = (x for e in stmt_exprs(stmt) for x in accesses_of(e))
        own = [x.buffer for x in accesses if isinstance(x, ir.AddressOf) and x.writes]
        if isinstance(stmt, ir.Store):
            own.append(stmt.buffer)
        stmt.known_written = found = frozenset(own).union(*map(buffers_written, stmt_children(stmt)))
        return found


def blocks_in(stmt: Stmt) -> frozenset[str]:
    """The names of all blocks in ``stmt``, itself included; found once, from those of its parts."""
    try:
        return stmt.known_blocks
    except AttributeError:
        own = (stmt.name,) if isinstance(stmt, ir.Block) else ()
        stmt.known_blocks = found = frozenset(own).union(*map(blocks_in, stmt_children(stmt)))
        return found


def ending(loop: ir.For) -> ir.If | None:
    """What may end a loop before its time: the condition that is all of its body, an element that the turns change.

    Where it is false once, no turn does anything any more.
    """
    body = loop.body
    if loop.kind != "serial" or not isinstance(body, ir.If) or body.otherwise is not None:
        return None
    condition = body.condition
    if not isinstance(condition, ir.Load) or loop.var in free_vars(condition):
        return None
    return body if condition.buffer in buffers_written(body.then) else None
