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

# What calls itself below is an object or a function of the module, no function inside another that knows its own name: such a one
# is a cycle, which lies around until cycles are looked for, and a compilation makes some ten thousand.
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
    kind = type(expr)
    if kind not in _REBUILT:
        return expr
    old = _OPERANDS[kind](expr)
    new = tuple([f(x) for x in old])
    return expr if all(map(is_, new, old)) else _REBUILT[kind](expr, new)


class _Mapper:
    """Rewrites an expression bottom-up. What is an operand of several expressions is rewritten once, and is one object again:
    polynomials and transforms are far smaller as graphs than as trees."""

    __slots__ = ("f", "known")

    def __init__(self, f: ExprMap) -> None:
        self.f = f
        self.known: dict[int, Expr] = {}

    def __call__(self, expr: Expr) -> Expr:
        if isinstance(expr, _LEAVES):
            return self.f(expr)
        found = self.known.get(id(expr))
        if found is None:
            found = self.known[id(expr)] = self.f(map_children(expr, self))
        return found


def map_expr(expr: Expr, f: ExprMap) -> Expr:
    """Bottom-up rewriting: operands first, then ``f`` on the rebuilt expression; ``f`` is asked once about what is shared."""
    return _Mapper(f)(expr)


def map_stmt(stmt: Stmt, on_stmt: Callable[[Stmt], Stmt], on_expr: ExprMap | None = None) -> Stmt:
    """Bottom-up rewriting of statements; ``on_expr`` is given every whole expression they hold, ``on_stmt`` the same object where
    nothing in it changed."""
    return on_stmt(_with_parts(stmt, on_stmt, on_expr or _same))


def _with_parts(stmt: Stmt, on_stmt: Callable[[Stmt], Stmt], e: ExprMap) -> Stmt:
    """A statement whose parts are rewritten; the same object when nothing changed."""
    match stmt:
        case ir.Store(buffer, indices, value):
            places, stored = tuple([e(i) for i in indices]), e(value)
            same = stored is value and all(map(is_, places, indices))
            return stmt if same else ir.Store(buffer, places, stored)
        case ir.For(var, extent, body, kind, annotations):
            count, inner = e(extent), map_stmt(body, on_stmt, e)
            return stmt if count is extent and inner is body else ir.For(var, count, inner, kind, annotations)
        case ir.If(condition, then, otherwise):
            test, first = e(condition), map_stmt(then, on_stmt, e)
            second = map_stmt(otherwise, on_stmt, e) if otherwise else None
            same = test is condition and first is then and second is otherwise
            return stmt if same else ir.If(test, first, second)
        case ir.Seq(body):
            parts = [map_stmt(child, on_stmt, e) for child in body]
            return stmt if all(map(is_, parts, body)) else ir.seq(*parts)
        case ir.Let(var, value, body):
            named, inner = e(value), map_stmt(body, on_stmt, e)
            return stmt if named is value and inner is body else ir.Let(var, named, inner)
        case ir.Alloc(buffer, body):
            inner = map_stmt(body, on_stmt, e)
            return stmt if inner is body else ir.Alloc(buffer, inner)
        case ir.Evaluate(value):
            effect = e(value)
            return stmt if effect is value else ir.Evaluate(effect)
        case ir.Block():
            return _block_with_parts(stmt, on_stmt, e)
        case _:
            raise InternalError(f"unknown statement {type(stmt).__name__}")


def _block_with_parts(block: ir.Block, on_stmt: Callable[[Stmt], Stmt], e: ExprMap) -> ir.Block:
    bindings = [e(i.binding) for i in block.iters]
    init = map_stmt(block.init, on_stmt, e) if block.init else None
    predicate = e(block.predicate) if block.predicate else None
    body = map_stmt(block.body, on_stmt, e)
    pairs = zip(block.iters, bindings, strict=True)
    iters = tuple([i if new is i.binding else ir.IterVar(i.var, i.extent, i.kind, new) for i, new in pairs])
    same = body is block.body and init is block.init and predicate is block.predicate
    if same and all(map(is_, iters, block.iters)):
        return block
    return ir.Block(block.name, iters, body, init, predicate, block.annotations)


def _same(expr: Expr) -> Expr:
    return expr


class _Substitution:
    """Replaces variables; what is shared stays shared, as in :class:`_Mapper`."""

    __slots__ = ("known", "names", "values")

    def __init__(self, values: Mapping[ir.Var, Expr]) -> None:
        self.values = values
        self.names = frozenset(values)
        self.known: dict[int, Expr] = {}

    def __call__(self, expr: Expr) -> Expr:
        if isinstance(expr, ir.Var):
            return self.values.get(expr, expr)
        if self.names.isdisjoint(free_vars(expr)):
            return expr
        found = self.known.get(id(expr))
        if found is None:
            found = self.known[id(expr)] = map_children(expr, self)
        return found


def substitute(expr: Expr, values: Mapping[ir.Var, Expr]) -> Expr:
    """``expr`` with variables replaced."""
    return _Substitution(values)(expr)


def substitute_stmt(stmt: Stmt, values: Mapping[ir.Var, Expr]) -> Stmt:
    """``stmt`` with (free) variables replaced."""
    return map_stmt(stmt, _unchanged, _Substitution(values)) if values else stmt


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
