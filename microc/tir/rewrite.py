"""Walking and rebuilding TIR. Every pass over expressions or statements is written with these few functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from microc.errors import InternalError
from microc.tir import ir
from microc.tir.ir import Expr, Stmt

ExprMap = Callable[[Expr], Expr]


def map_children(expr: Expr, f: ExprMap) -> Expr:
    """``expr`` with ``f`` applied to its direct operands; the same object when nothing changed."""
    match expr:
        case ir.Bin(op, a, b):
            a2, b2 = f(a), f(b)
            return expr if a2 is a and b2 is b else ir.Bin(op, a2, b2)
        case ir.Un(op, a):
            a2 = f(a)
            return expr if a2 is a else ir.Un(op, a2)
        case ir.Cast(dtype, a):
            a2 = f(a)
            return expr if a2 is a else ir.cast(dtype, a2)
        case ir.Select(c, a, b):
            c2, a2, b2 = f(c), f(a), f(b)
            return expr if c2 is c and a2 is a and b2 is b else ir.Select(c2, a2, b2)
        case ir.Load(buffer, indices):
            new = tuple(f(i) for i in indices)
            return expr if all(n is o for n, o in zip(new, indices, strict=True)) else ir.Load(buffer, new)
        case ir.AddressOf(_, indices):
            new = tuple(f(i) for i in indices)
            same = all(n is o for n, o in zip(new, indices, strict=True))
            return expr if same else replace(expr, indices=new)
        case ir.Call(name, args, dtype):
            new = tuple(f(a) for a in args)
            return expr if all(n is o for n, o in zip(new, args, strict=True)) else ir.Call(name, new, dtype)
        case _:
            return expr


def map_expr(expr: Expr, f: ExprMap) -> Expr:
    """Bottom-up rewriting: operands first, then ``f`` on the rebuilt expression."""
    return f(map_children(expr, lambda child: map_expr(child, f)))


def map_stmt(stmt: Stmt, on_stmt: Callable[[Stmt], Stmt], on_expr: ExprMap | None = None) -> Stmt:
    """Bottom-up rewriting of statements; ``on_expr`` is given every whole expression they hold."""
    e: ExprMap = on_expr or (lambda x: x)

    def walk(s: Stmt) -> Stmt:
        match s:
            case ir.Store(buffer, indices, value):
                return on_stmt(ir.Store(buffer, tuple(e(i) for i in indices), e(value)))
            case ir.For(var, extent, body, kind, annotations):
                return on_stmt(ir.For(var, e(extent), walk(body), kind, annotations))
            case ir.If(condition, then, otherwise):
                return on_stmt(ir.If(e(condition), walk(then), walk(otherwise) if otherwise else None))
            case ir.Seq(body):
                return on_stmt(ir.seq(*(walk(child) for child in body)))
            case ir.Let(var, value, body):
                return on_stmt(ir.Let(var, e(value), walk(body)))
            case ir.Alloc(buffer, body):
                return on_stmt(ir.Alloc(buffer, walk(body)))
            case ir.Evaluate(value):
                return on_stmt(ir.Evaluate(e(value)))
            case ir.Block():
                iters = tuple(ir.IterVar(i.var, i.extent, i.kind, e(i.binding)) for i in s.iters)
                init = walk(s.init) if s.init else None
                predicate = e(s.predicate) if s.predicate else None
                return on_stmt(ir.Block(s.name, iters, walk(s.body), init, predicate, s.annotations))
            case _:
                raise InternalError(f"unknown statement {type(s).__name__}")

    return walk(stmt)


def substitute(expr: Expr, values: Mapping[ir.Var, Expr]) -> Expr:
    """``expr`` with variables replaced."""
    if not values:
        return expr
    return map_expr(expr, lambda x: values.get(x, x) if isinstance(x, ir.Var) else x)


def substitute_stmt(stmt: Stmt, values: Mapping[ir.Var, Expr]) -> Stmt:
    """``stmt`` with (free) variables replaced."""
    if not values:
        return stmt
    return map_stmt(stmt, lambda s: s, lambda x: substitute(x, values))


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

    return map_stmt(stmt, on_stmt, lambda x: map_expr(x, on_expr))


def children(expr: Expr) -> tuple[Expr, ...]:
    """The direct operands."""
    match expr:
        case ir.Bin(_, a, b):
            return (a, b)
        case ir.Un(_, a) | ir.Cast(_, a):
            return (a,)
        case ir.Select(c, a, b):
            return (c, a, b)
        case ir.Load(_, indices) | ir.AddressOf(_, indices):
            return indices
        case ir.Call(_, args):
            return args
        case _:
            return ()


def walk_expr(expr: Expr) -> Iterator[Expr]:
    """``expr`` and everything below it, parents first."""
    stack = [expr]
    while stack:
        found = stack.pop()
        yield found
        stack.extend(reversed(children(found)))


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
    match stmt:
        case ir.For(_, _, body) | ir.Let(_, _, body) | ir.Alloc(_, body):
            return (body,)
        case ir.If(_, then, otherwise):
            return (then, otherwise) if otherwise else (then,)
        case ir.Seq(body):
            return body
        case ir.Block():
            return (stmt.init, stmt.body) if stmt.init else (stmt.body,)
        case _:
            return ()


def walk_stmt(stmt: Stmt) -> Iterator[Stmt]:
    """``stmt`` and everything below it, in execution order, parents first."""
    yield stmt
    for child in stmt_children(stmt):
        yield from walk_stmt(child)


def walk_all_exprs(stmt: Stmt) -> Iterator[Expr]:
    """Every expression and sub-expression under a statement."""
    for s in walk_stmt(stmt):
        for expr in stmt_exprs(s):
            yield from walk_expr(expr)


def free_vars(expr: Expr) -> set[ir.Var]:
    return {x for x in walk_expr(expr) if isinstance(x, ir.Var)}


def buffers_read(stmt: Stmt) -> set[ir.Buffer]:
    """Buffers that are loaded from (or read through an address) anywhere under ``stmt``."""
    return {
        x.buffer
        for x in walk_all_exprs(stmt)
        if isinstance(x, ir.Load) or (isinstance(x, ir.AddressOf) and not x.writes)
    }


def buffers_written(stmt: Stmt) -> set[ir.Buffer]:
    """Buffers that are stored to (or written through an address) anywhere under ``stmt``."""
    stored = {s.buffer for s in walk_stmt(stmt) if isinstance(s, ir.Store)}
    return stored | {x.buffer for x in walk_all_exprs(stmt) if isinstance(x, ir.AddressOf) and x.writes}


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
