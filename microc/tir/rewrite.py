"""Walking and rebuilding TIR. Every pass over expressions or statements is written with these few functions."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import replace
from operator import attrgetter, is_
from types import MappingProxyType
from typing import Any

from microc.errors import InternalError
from microc.tir import ir
from microc.tir.ir import Expr, Stmt

# The functions below call themselves instead of one inside them that knows its name: such a one is a cycle, which lies around
# until cycles are looked for, and a compilation makes some ten thousand.
ExprMap = Callable[[Expr], Expr]


def _no_children(_: Expr) -> tuple[Expr, ...]:
    return ()


_OPERANDS: Mapping[type[Expr], Callable[[Any], tuple[Expr, ...]]] = {
    ir.Bin: attrgetter("a", "b"),
    ir.Un: lambda x: (x.a,),
    ir.Cast: lambda x: (x.a,),
    ir.Select: attrgetter("condition", "a", "b"),
    ir.Load: attrgetter("indices"),
    ir.AddressOf: attrgetter("indices"),
    ir.Call: attrgetter("args"),
}
_REBUILT: Mapping[type[Expr], Callable[[Any, tuple[Expr, ...]], Expr]] = MappingProxyType(
    {
        ir.Un: lambda x, new: ir.Un(x.op, *new),
        ir.Cast: lambda x, new: ir.cast(x.dtype, *new),
        ir.Select: lambda _, new: ir.Select(*new),
        ir.Load: lambda x, new: ir.Load(x.buffer, new),
        ir.AddressOf: lambda x, new: ir.AddressOf(x.buffer, new, x.extent, x.writes, x.step),
        ir.Call: lambda x, new: ir.Call(x.name, new, x.dtype),
    }
)
"""An expression of the same kind with other operands."""


_LEAVES = (ir.Var, ir.Const)


def children(expr: Expr) -> tuple[Expr, ...]:
    """The direct operands."""
    return _OPERANDS.get(type(expr), _no_children)(expr)


def map_children(expr: Expr, f: ExprMap) -> Expr:
    """``expr`` with ``f`` applied to its direct operands; the same object when nothing changed."""
    if isinstance(expr, ir.Bin):  # most expressions are
        a, b = f(expr.a), f(expr.b)
        return expr if a is expr.a and b is expr.b else ir.Bin(expr.op, a, b)
    old = children(expr)
    if not old:
        return expr
    new = tuple([f(x) for x in old])
    return expr if all(map(is_, new, old)) else _REBUILT[type(expr)](expr, new)


def map_expr(expr: Expr, f: ExprMap) -> Expr:
    """Bottom-up rewriting: operands first, then ``f`` on the rebuilt expression."""
    if isinstance(expr, _LEAVES):
        return f(expr)
    return f(map_children(expr, lambda x: map_expr(x, f)))


def map_stmt(stmt: Stmt, on_stmt: Callable[[Stmt], Stmt], on_expr: ExprMap | None = None) -> Stmt:
    """Bottom-up rewriting of statements; ``on_expr`` is given every whole expression they hold."""
    e: ExprMap = on_expr or _same
    match stmt:
        case ir.Store(buffer, indices, value):
            return on_stmt(ir.Store(buffer, tuple([e(i) for i in indices]), e(value)))
        case ir.For(var, extent, body, kind, annotations):
            return on_stmt(ir.For(var, e(extent), map_stmt(body, on_stmt, e), kind, annotations))
        case ir.If(condition, then, otherwise):
            test, first = e(condition), map_stmt(then, on_stmt, e)
            return on_stmt(ir.If(test, first, map_stmt(otherwise, on_stmt, e) if otherwise else None))
        case ir.Seq(body):
            return on_stmt(ir.seq(*[map_stmt(child, on_stmt, e) for child in body]))
        case ir.Let(var, value, body):
            return on_stmt(ir.Let(var, e(value), map_stmt(body, on_stmt, e)))
        case ir.Alloc(buffer, body):
            return on_stmt(ir.Alloc(buffer, map_stmt(body, on_stmt, e)))
        case ir.Evaluate(value):
            return on_stmt(ir.Evaluate(e(value)))
        case ir.Block():
            iters = tuple([ir.IterVar(i.var, i.extent, i.kind, e(i.binding)) for i in stmt.iters])
            init = map_stmt(stmt.init, on_stmt, e) if stmt.init else None
            predicate = e(stmt.predicate) if stmt.predicate else None
            body = map_stmt(stmt.body, on_stmt, e)
            return on_stmt(ir.Block(stmt.name, iters, body, init, predicate, stmt.annotations))
        case _:
            raise InternalError(f"unknown statement {type(stmt).__name__}")


def _same(expr: Expr) -> Expr:
    return expr


def substitute(expr: Expr, values: Mapping[ir.Var, Expr]) -> Expr:
    """``expr`` with variables replaced."""
    if isinstance(expr, ir.Var):
        return values.get(expr, expr)
    if values.keys().isdisjoint(free_vars(expr)):
        return expr
    return map_children(expr, lambda x: substitute(x, values))


def substitute_stmt(stmt: Stmt, values: Mapping[ir.Var, Expr]) -> Stmt:
    """``stmt`` with (free) variables replaced."""
    if not values:
        return stmt
    return map_stmt(stmt, _unchanged, lambda x: substitute(x, values))


def _unchanged(stmt: Stmt) -> Stmt:
    return stmt


def replace_buffers(stmt: Stmt, buffers: Mapping[ir.Buffer, ir.Buffer]) -> Stmt:
    """``stmt`` with buffers exchanged for others of the same rank."""

    def on_expr(x: Expr) -> Expr:
        match x:
            case ir.Load(buffer, indices) if buffer in buffers:
                return ir.Load(buffers[buffer], indices)
            case ir.AddressOf(buffer) if buffer in buffers:
                return replace(x, buffer=buffers[buffer])
            case _:
                return x

    def on_stmt(s: Stmt) -> Stmt:
        match s:
            case ir.Store(buffer, indices, value) if buffer in buffers:
                return ir.Store(buffers[buffer], indices, value)
            case ir.Alloc(buffer, body) if buffer in buffers:
                return ir.Alloc(buffers[buffer], body)
            case _:
                return s

    return map_stmt(stmt, on_stmt, lambda x: map_expr(x, on_expr) if accesses_any(x, buffers) else x)


def accesses_any(expr: Expr, buffers: Container[ir.Buffer]) -> bool:
    """Whether an expression reads one of ``buffers``, or takes an address in it."""
    return any(access.buffer in buffers for access in accesses_of(expr))


def walk_expr(expr: Expr) -> Iterator[Expr]:
    """``expr`` and everything below it, parents first."""
    stack = [expr]
    while stack:
        found = stack.pop()
        yield found
        stack += children(found)[::-1]


def stmt_exprs(stmt: Stmt) -> tuple[Expr, ...]:
    """The whole expressions that a statement holds itself (not those of its sub-statements)."""
    match stmt:
        case ir.Store(_, indices, value):
            return (*indices, value)
        case ir.For(_, extent):
            return (extent,)
        case ir.If(condition):
            return (condition,)
        case ir.Let(_, value) | ir.Evaluate(value):
            return (value,)
        case ir.Block():
            bindings = tuple(i.binding for i in stmt.iters)
            return (*bindings, stmt.predicate) if stmt.predicate else bindings
        case _:
            return ()


def stmt_children(stmt: Stmt) -> tuple[Stmt, ...]:
    """The direct sub-statements."""
    return _PARTS.get(type(stmt), _no_parts)(stmt)


def _no_parts(_: Stmt) -> tuple[Stmt, ...]:
    return ()


def _body(stmt: Any) -> tuple[Stmt, ...]:
    return (stmt.body,)


_PARTS: Mapping[type[Stmt], Callable[[Any], tuple[Stmt, ...]]] = {
    ir.For: _body,
    ir.Let: _body,
    ir.Alloc: _body,
    ir.If: lambda s: (s.then, s.otherwise) if s.otherwise else (s.then,),
    ir.Seq: attrgetter("body"),
    ir.Block: lambda s: (s.init, s.body) if s.init else (s.body,),
}


def walk_stmt(stmt: Stmt) -> Iterator[Stmt]:
    """``stmt`` and everything below it, in execution order, parents first."""
    stack = [stmt]
    while stack:
        found = stack.pop()
        yield found
        stack += stmt_children(found)[::-1]


def walk_all_exprs(stmt: Stmt) -> Iterator[Expr]:
    """Every expression and sub-expression under a statement."""
    for s in walk_stmt(stmt):
        for expr in stmt_exprs(s):
            yield from walk_expr(expr)


def free_vars(expr: Expr) -> frozenset[ir.Var]:
    """The variables in an expression; found once, from those of its operands."""
    try:
        return expr.known_vars
    except AttributeError:
        found: frozenset[ir.Var] = frozenset((expr,)) if isinstance(expr, ir.Var) else frozenset()
        for child in children(expr):
            inner = free_vars(child)
            found = inner if found <= inner else found | inner
        expr.known_vars = found
        return found


def accesses_of(expr: Expr) -> tuple[ir.Load | ir.AddressOf, ...]:
    """What an expression reads or takes addresses of, outer elements before those in their indices; found once, from
    those of its operands."""
    try:
        return expr.known_accesses
    except AttributeError:
        found: tuple[ir.Load | ir.AddressOf, ...] = (expr,) if isinstance(expr, (ir.Load, ir.AddressOf)) else ()
        for child in children(expr):
            found += accesses_of(child)
        expr.known_accesses = found
        return found


def accesses_in(stmt: Stmt) -> Iterator[ir.Load | ir.AddressOf]:
    """The accesses of all expressions under a statement."""
    for s in walk_stmt(stmt):
        for expr in stmt_exprs(s):
            yield from accesses_of(expr)


def buffers_read(stmt: Stmt) -> set[ir.Buffer]:
    """Buffers that are loaded from (or read through an address) anywhere under ``stmt``."""
    return {x.buffer for x in accesses_in(stmt) if isinstance(x, ir.Load) or not x.writes}


def buffers_written(stmt: Stmt) -> set[ir.Buffer]:
    """Buffers that are stored to (or written through an address) anywhere under ``stmt``."""
    stored = {s.buffer for s in walk_stmt(stmt) if isinstance(s, ir.Store)}
    return stored | {x.buffer for x in accesses_in(stmt) if isinstance(x, ir.AddressOf) and x.writes}


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
