"""What single statements of a lowered function touch, in which order within them, and the walk over statements in a row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from microc.errors import InternalError
from microc.frozen import frozen
from microc.tir import ir
from microc.tir.rewrite import substitute, walk_expr

TICKS = 3
"""A statement reads (0), then writes (1); an intrinsic that reads and writes through pointers reads to its very end (2)."""
FOLLOWED = ("global", "workspace")
"""Scopes whose accesses matter; constants and registers have no place in the arena."""
_EXPRESSIONS = (ir.Load, ir.AddressOf, ir.Const, ir.Var, ir.Bin, ir.Un, ir.Cast, ir.Select, ir.Call)


@frozen
class Touch:
    """One syntactic access, ``tick`` ticks after its statement starts: ``extent`` elements from an index on, ``step`` apart."""

    buffer: ir.Buffer
    indices: tuple[ir.Expr, ...]
    write: bool
    tick: int
    extent: int = 1
    step: int = 1


@dataclass(slots=True)
class Scope:
    """The indices that names stand for. A name for data stands for itself, and is unknown."""

    names: dict[ir.Var, ir.Expr]

    def name(self, var: ir.Var, value: ir.Expr) -> None:
        data = any(isinstance(x, (ir.Load, ir.Call, ir.AddressOf)) for x in walk_expr(value))
        self.names[var] = var if data else self.expr(value)

    def expr(self, expr: ir.Expr) -> ir.Expr:
        return substitute(expr, self.names) if self.names else expr

    def indices(self, indices: tuple[ir.Expr, ...]) -> tuple[ir.Expr, ...]:
        return tuple(map(self.expr, indices))


def row(stmt: ir.Stmt) -> Iterator[ir.Stmt]:
    """Statements in order; a let stands for itself, what it encloses comes behind it."""
    stack = [stmt]
    while stack:
        match stack.pop():
            case ir.Seq(body):
                stack += reversed(body)
            case ir.Let(_, _, body) as let:
                yield let
                stack.append(body)
            case ir.Alloc(_, body):
                stack.append(body)
            case other:
                yield other


def leaf(stmt: ir.Stmt, scope: Scope) -> list[Touch]:
    """What a statement touches by itself: of a condition and a loop, what decides on them; names enter the scope."""
    match stmt:
        case ir.Store(buffer, indices, value):
            written = [Touch(buffer, scope.indices(indices), True, 1)] if buffer.scope in FOLLOWED else []
            return _touched((*indices, value), scope) + written
        case ir.Evaluate(value):
            return _touched((value,), scope)
        case ir.Let(var, value):
            found = _touched((value,), scope)
            scope.name(var, value)
            return found
        case ir.If(condition):
            return _touched((condition,), scope)
        case ir.For(_, extent):
            return _touched((extent,), scope)
        case _:
            raise InternalError(f"{type(stmt).__name__} was not lowered")


def _touched(exprs: tuple[ir.Expr, ...], scope: Scope) -> list[Touch]:
    """What the expressions of one statement touch. Operands of a call are there before it starts to write."""
    found, writes = [], False
    for x in (x for expr in exprs for x in walk_expr(expr)):
        match x:
            case ir.Load(buffer, indices) if buffer.scope in FOLLOWED:
                found.append(Touch(buffer, scope.indices(indices), False, 0))
            case ir.AddressOf(buffer, indices, extent, write, step) if buffer.scope in FOLLOWED:
                found.append(Touch(buffer, scope.indices(indices), write, 1 if write else 0, extent, step))
                writes = writes or write
            case x if not isinstance(x, _EXPRESSIONS):
                raise InternalError(f"unknown expression {type(x).__name__}")
    if not writes:
        return found
    call = exprs[0]
    outermost = isinstance(call, ir.Call) and any(isinstance(a, ir.AddressOf) and a.writes for a in call.args)
    pointed = {a.buffer for a in call.args if isinstance(a, ir.AddressOf)} if isinstance(call, ir.Call) else set()
    return [a if a.write or (outermost and a.buffer not in pointed) else replace(a, tick=2) for a in found]
