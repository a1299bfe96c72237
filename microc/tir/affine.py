"""Simplifying index arithmetic: exact rewriting of int32 affine forms with floored division, bounds, proofs.

What is rewritten: sums of literals and variables become one canonical sum; ``floordiv``/``floormod`` by positive
constants are taken apart and put together again (mixed-radix sums), ``min``, ``max``, comparisons and ``Select`` are
decided from bounds and enclosing conditions. Index arithmetic is taken not to overflow. Sums of data (loads, calls,
casts, and variables bound to them) keep their order; only neutral literals vanish. Floats are folded only where the
result is exact. Bounds are inclusive (low, high).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from microc.errors import InternalError
from microc.tir import facts, interval, ir, rewrite
from microc.tir.ir import Expr, Stmt, Var
from microc.tir.simplifier import Simplifier, negate

Bounds = Mapping[Var, tuple[int, int]]
_NONE: Bounds = MappingProxyType({})
_EMPTY = ir.Seq(())
REMEMBERED = 1 << 14
"""Answers that are kept: candidates of a kernel, and its parts after unrolling, ask for the same again and again."""


def simplify(expr: Expr, bounds: Bounds = _NONE) -> Expr:
    """An expression of equal value for all variables within ``bounds``; a variable with one possible value becomes it."""
    return expr if isinstance(expr, ir.Const) else _simplified(expr, _relevant(expr, bounds))


def _relevant(expr: Expr, bounds: Bounds) -> tuple[tuple[Var, tuple[int, int]], ...]:
    """The bounds of an expression's variables: loops around it that it does not depend on make no other question of it."""
    names = rewrite.free_vars(expr) if bounds else ()
    return tuple([item for item in bounds.items() if item[0] in names]) if names else ()


@lru_cache(maxsize=REMEMBERED)
def _simplified(expr: Expr, bounds: tuple[tuple[Var, tuple[int, int]], ...]) -> Expr:
    return Simplifier(dict(bounds)).simplify(expr)


def bounds_of(expr: Expr, bounds: Bounds = _NONE) -> tuple[int, int] | None:
    """The smallest and largest value of an integer expression as far as intervals tell, or None.

    Loads of integers below 32 bits have their dtype's range. Signed results are mathematical: they may exceed the
    dtype, which is how a caller sees that an overflow cannot be excluded.
    """
    low, high = _reach(expr, _relevant(expr, bounds))
    return (low, high) if isinstance(low, int) and isinstance(high, int) else None


@lru_cache(maxsize=REMEMBERED)
def _reach(expr: Expr, bounds: tuple[tuple[Var, tuple[int, int]], ...]) -> interval.Interval:
    return Simplifier(dict(bounds)).reach(expr)


def prove(condition: Expr, bounds: Bounds = _NONE) -> bool:
    """Whether ``condition`` certainly holds; False means unknown."""
    return ir.int_value(simplify(condition, bounds)) == 1


@lru_cache(maxsize=REMEMBERED)
def linear(expr: Expr) -> tuple[Mapping[Expr, int], int]:
    """``(coefficients, constant)`` of an int32 expression; whatever is not linear is a key of its own."""
    if expr.dtype != "int32":
        raise InternalError(f"a linear form of {expr.dtype}")
    form = Simplifier().difference(expr, ir.const(0, "int32"))
    if form is None:
        return MappingProxyType({expr: 1}), 0
    return MappingProxyType({atom.expr: k for atom, k in form.terms.items()}), form.const


def simplify_stmt(stmt: Stmt, bounds: Bounds = _NONE) -> Stmt:
    """``stmt`` with every expression simplified where it stands, without dead branches, empty loops and loops of one turn.

    Loops of extent 1 vanish (their variable is 0). Block iterators stay, also those of extent 1, since schedules refer
    to them; a predicate that always holds is dropped. ``Let`` of an integer literal is substituted. What has no effect
    left is an empty ``Seq``.
    """
    return _statement(stmt, Simplifier(bounds))


def _statement(stmt: Stmt, context: Simplifier) -> Stmt:
    match stmt:
        case ir.Store(buffer, indices, value):
            return ir.Store(buffer, tuple(context.simplify(i) for i in indices), context.simplify(value))
        case ir.For():
            return _loop(stmt, context)
        case ir.If(condition, then, otherwise):
            return _branch(condition, then, otherwise, context)
        case ir.Seq(body):
            return ir.seq(*(_statement(child, context) for child in body))
        case ir.Let(var, value, body):
            return _let(var, value, body, context)
        case ir.Alloc(buffer, body):
            inner = _statement(body, context)
            return inner if inner == _EMPTY else ir.Alloc(buffer, inner)
        case ir.Evaluate(value):
            return ir.Evaluate(context.simplify(value))
        case ir.Block():
            return _block(stmt, context)
        case _:
            raise InternalError(f"unknown statement {type(stmt).__name__}")


def loop_context(loop: ir.For, context: Simplifier) -> Simplifier:
    """What is known inside a loop: its variable lies in 0..extent-1, also below each side of a ``min`` extent."""
    _, high = context.reach(loop.extent)
    inner = context.with_var(loop.var, (0, max(high - 1, 0)))
    for condition in tail_conditions(loop.var, loop.extent):
        inner = inner.assuming(condition)
    return inner


def tail_conditions(var: Var, extent: Expr) -> tuple[Expr, ...]:
    """``var < extent`` of a variable extent, one condition for each side of a ``min``; nothing of a literal."""
    if isinstance(extent, ir.Bin) and extent.op == "min":
        return tail_conditions(var, extent.a) + tail_conditions(var, extent.b)
    return () if isinstance(extent, ir.Const) else (ir.Bin("lt", var, extent),)


def branch_context(condition: Expr, holds: bool, branch: Stmt, context: Simplifier) -> Simplifier:
    """What is known in a branch of an ``If``: nothing about elements that the branch itself overwrites."""
    read = {x.buffer for x in rewrite.walk_expr(condition) if isinstance(x, ir.Load)}
    if not read or not read & facts.buffers_written(branch):
        return context.assuming(condition, holds)
    match condition:
        case ir.Bin(op, a, b) if op == ("and" if holds else "or"):
            return branch_context(b, holds, branch, branch_context(a, holds, branch, context))
        case ir.Un("not", a):
            return branch_context(a, not holds, branch, context)
        case _:
            return context


def let_context(var: Var, value: Expr, context: Simplifier) -> Simplifier:
    """What is known below a ``Let``: the bounds of the value; a value made of data keeps its sums in order."""
    bounds = context.reach(value) if value.dtype not in ("float32", "float64") else interval.UNKNOWN
    return context.with_var(var, bounds, opaque=not context.is_index(value))


def _loop(loop: ir.For, context: Simplifier) -> Stmt:
    extent = context.simplify(loop.extent)
    if isinstance(extent, ir.Const) and extent.value <= 0:
        return _EMPTY
    loop = ir.For(loop.var, extent, loop.body, loop.kind, loop.annotations)
    body = _statement(loop.body, loop_context(loop, context))
    if body == _EMPTY or ir.int_value(extent) == 1:
        return body
    return ir.For(loop.var, extent, body, loop.kind, loop.annotations)


def _branch(condition: Expr, then: Stmt, otherwise: Stmt | None, context: Simplifier) -> Stmt:
    test = context.simplify(condition)
    if isinstance(test, ir.Const):
        chosen = then if test.value else otherwise
        return _EMPTY if chosen is None else _statement(chosen, context)
    first = _statement(then, branch_context(test, True, then, context))
    second = _EMPTY if otherwise is None else _statement(otherwise, branch_context(test, False, otherwise, context))
    if first == _EMPTY:
        return _EMPTY if second == _EMPTY else ir.If(negate(test), second)
    return ir.If(test, first, None if second == _EMPTY else second)


def _let(var: Var, value: Expr, body: Stmt, context: Simplifier) -> Stmt:
    simple = context.simplify(value)
    inner = _statement(body, let_context(var, simple, context))
    constant = ir.int_value(simple) is not None and var.dtype != "bool"
    return inner if constant or inner == _EMPTY or not _reads(inner, var) else ir.Let(var, simple, inner)


def _reads(stmt: Stmt, var: Var) -> bool:
    """Whether a value is used still, below what was simplified."""
    return any(var in rewrite.free_vars(e) for s in rewrite.walk_stmt(stmt) for e in rewrite.stmt_exprs(s))


def _block(block: ir.Block, context: Simplifier) -> Stmt:
    predicate = context.simplify(block.predicate) if block.predicate else None
    if isinstance(predicate, ir.Const):
        if not predicate.value:
            return _EMPTY
        predicate = None
    iters = tuple(ir.IterVar(i.var, i.extent, i.kind, context.simplify(i.binding)) for i in block.iters)
    inner = context
    for i in iters:
        inner = inner.with_var(i.var, (0, i.extent - 1), kept=True)
    init = _statement(block.init, inner) if block.init else None
    return ir.Block(block.name, iters, _statement(block.body, inner), init, predicate, block.annotations)
