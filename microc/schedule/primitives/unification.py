# SPDX-License-Identifier: Apache-2.0
"""Unification of patterns with expressions: a variable of a pattern matches any operand of its dtype, commutative operators of
integers match in both orders, and so do the minimum and the maximum of a clamp. An operand that is a call of an intrinsic
also matches the intrinsic's meaning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from microc.base import dtypes
from microc.isa import SCALAR
from microc.tir import ir
from microc.tir.analysis.simplification import simplify
from microc.tir.rewrite import children, substitute

_COMMUTATIVE = frozenset({"add", "mul", "bitand", "bitor", "bitxor", "min", "max", "eq", "ne"})
Operands = Mapping[ir.Expr, ir.Expr]
"""Operands by variable of a pattern."""


def root_operator(expr: ir.Expr | ir.Stmt) -> str:
    """Return the name of the outermost operator of an expression, by which patterns are looked up. Maxima are minima,
    because a clamp may be written in both orders."""
    match expr:
        case ir.Bin("max", ir.Bin("min")):
            return "min"
        case ir.Bin(op) | ir.Un(op):
            return op
        case ir.Call(name):
            return name
        case _:
            return type(expr).__name__


def normalise_clamp(expr: ir.Expr) -> tuple[ir.Expr, bool]:
    """Rewrite a clamp of int32 to ``min(max(x, low), high)`` with a simplified x, so that a final shift of x is visible.
    Leave any other expression unchanged. Return the expression, and whether it is a clamp."""
    parts = match_int32_clamp(expr)
    return (expr, False) if parts is None else (ir.clamp(simplify(parts[0]), *parts[1]), True)


def _clamp_with_outer_minimum(expr: ir.Expr) -> ir.Expr:
    """Rewrite a clamp of int32 to ``min(max(x, low), high)``. Leave any other expression unchanged."""
    parts = match_int32_clamp(expr)
    return expr if parts is None else ir.clamp(parts[0], *parts[1])


def match_int32_clamp(expr: ir.Expr) -> tuple[ir.Expr, tuple[int, int]] | None:
    """Match ``min(max(x, low), high)`` of int32, with minimum and maximum in either order. Return (x, (low, high));
    None if it does not match."""
    match expr:
        case ir.Bin("min", ir.Bin("max", x, ir.Const(low)), ir.Const(high)) if expr.dtype == "int32":
            return x, (int(low), int(high))
        case ir.Bin("max", ir.Bin("min", x, ir.Const(high)), ir.Const(low)) if expr.dtype == "int32" and low <= high:
            return x, (int(low), int(high))
        case _:
            return None


def add_constant(expr: ir.Expr, value: int) -> ir.Expr:
    """Build the sum of an integer expression and a constant. A constant that the expression adds or subtracts is included."""
    match expr:
        case ir.Const(int() as number):
            return ir.Const(number + value, expr.dtype)
        case ir.Bin("add" | "sub" as op, x, ir.Const(int() as number)):
            total = (number if op == "add" else -number) + value
            return x if total == 0 else x + total if total > 0 else x - -total
        case _:
            return simplify(expr + value)


def expand_call(call: ir.Call) -> ir.Expr:
    """Return the meaning of a call of a scalar intrinsic, with its arguments. Return any other call unchanged."""
    return _expand_call(call, SCALAR.entries)


@lru_cache(maxsize=256)
def _expand_call(call: ir.Call, _entries: object) -> ir.Expr:
    """Return :func:`expand_call`. The contents of the registry are part of the key, since plugins extend it."""
    intrin = SCALAR.get(call.name)
    if intrin is None or not intrin.is_scalar or not isinstance(intrin.meaning, ir.Expr):
        return call
    params = (param for param in intrin.params if isinstance(param, ir.Var))
    return substitute(intrin.meaning, dict(zip(params, call.args, strict=True)))


def unify(pattern: ir.Expr | ir.Stmt, expr: ir.Expr, known: Operands) -> Iterator[Operands]:
    """Iterate over the operands for which ``pattern`` is equal to ``expr``. ``known``: operands that were matched before."""
    if isinstance(pattern, ir.Var):
        if known.get(pattern, expr) == expr and pattern.dtype == expr.dtype:
            yield {**known, pattern: expr}
        return
    match pattern:
        # A distance plus one may have been folded: d + 1 is s for d = s - 1.
        case ir.Bin("add", ir.Var() as var, ir.Const(int() as number)) if var in known:
            if add_constant(known[var], number) == expr:
                yield known
                return
        case ir.Bin("min", ir.Bin("max")):
            expr = _clamp_with_outer_minimum(expr)
        case ir.Bin() | ir.Select() | ir.Cast() if isinstance(expr, ir.Call):
            expr = expand_call(expr)
        case _:
            pass
    if type(pattern) is not type(expr) or pattern.dtype != expr.dtype:
        return
    match pattern, expr:
        case ir.Const(), _:
            if pattern == expr:
                yield known
            return
        case (ir.Bin(a), ir.Bin(b)) | (ir.Un(a), ir.Un(b)) | (ir.Call(a), ir.Call(b)) if a != b:
            return
        case ((ir.Load() | ir.AddressOf()), _):
            return
    parts = children(expr)
    yield from _unify_all(children(pattern), parts, known)
    if isinstance(pattern, ir.Bin) and pattern.op in _COMMUTATIVE and dtypes.is_integer(parts[0].dtype):
        yield from _unify_all(children(pattern), parts[::-1], known)


def _unify_all(patterns: Sequence[ir.Expr], parts: Sequence[ir.Expr], known: Operands) -> Iterator[Operands]:
    """Iterate over the operands for which all patterns are equal to the expressions ``parts`` at the same positions."""
    if len(patterns) != len(parts):
        return
    if not patterns:
        yield known
        return
    for operands in unify(patterns[0], parts[0], known):
        yield from _unify_all(patterns[1:], parts[1:], operands)
