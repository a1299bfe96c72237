"""Functions that build expressions and statements of the loop IR."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from microc.errors import ProgramError
from microc.tir.expressions import REINTERPRET, Bin, Call, Const, Expr, Select, Var, as_expr, binary
from microc.tir.statements import For, Seq, Stmt


def minimum(a: Expr, b: Expr | int | float) -> Expr:
    return binary("min", a, b)


def maximum(a: Expr, b: Expr | int | float) -> Expr:
    return binary("max", a, b)


def clamp(a: Expr, low: Expr | int | float, high: Expr | int | float) -> Expr:
    return minimum(maximum(a, low), high)


def select(condition: Expr, a: Expr, b: Expr | int | float) -> Expr:
    """``condition ? a : b`` with one dtype on both sides."""
    other = as_expr(b, a.dtype)
    if condition.dtype != "bool" or other.dtype != a.dtype:
        raise ProgramError(f"select({condition.dtype}, {a.dtype}, {other.dtype})")
    return Select(condition, a, other)


def all_of(conditions: Iterable[Expr]) -> Expr | None:
    """The conjunction, or None of nothing."""
    result: Expr | None = None
    for condition in conditions:
        result = condition if result is None else Bin("and", result, condition)
    return result


def conjuncts(condition: Expr | None) -> list[Expr]:
    """What :func:`all_of` joins to a condition, in order."""
    if isinstance(condition, Bin) and condition.op == "and":
        return conjuncts(condition.a) + conjuncts(condition.b)
    return [] if condition is None else [condition]


def call(name: str, *args: Expr, dtype: str | None = None) -> Call:
    """A call; the dtype defaults to that of the first argument."""
    return Call(name, args, dtype or args[0].dtype)


def reinterpret(dtype: str, a: Expr) -> Expr:
    """The bits of ``a`` as a dtype of as many bits."""
    return a if a.dtype == dtype else Call(REINTERPRET, (a,), dtype)


def int_value(expr: Expr) -> int | None:
    """The value of an integer literal, or None."""
    return expr.value if isinstance(expr, Const) and isinstance(expr.value, int) else None


def seq(*stmts: Stmt | None) -> Stmt:
    """Statements in order, flattened; one statement stays itself."""
    flat: list[Stmt] = []
    for stmt in stmts:
        if isinstance(stmt, Seq):
            flat.extend(stmt.body)
        elif stmt is not None:
            flat.append(stmt)
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def loops(extents: Iterable[tuple[Var, int]], body: Callable[[], Stmt] | Stmt) -> Stmt:
    """Nested serial loops around a body, outermost first."""
    result = body() if callable(body) else body
    for var, extent in reversed(list(extents)):
        result = For(var, as_expr(extent, var.dtype), result)
    return result
