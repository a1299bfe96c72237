"""Expressions apart from their numbers or operands: what functions that are alike have in common."""

from __future__ import annotations

from collections.abc import Sequence

from microc.errors import InternalError
from microc.tir import ir
from microc.tir.rewrite import children


def is_sum(expr: ir.Expr) -> bool:
    """Whether it is one, or a part of one: linear forms have their terms in any order."""
    return (
        isinstance(expr, (ir.Const, ir.Var))
        or (isinstance(expr, ir.Bin) and expr.op in ("add", "sub", "mul"))
        or (isinstance(expr, ir.Un) and expr.op == "neg")
    )


def head(expr: ir.Expr) -> tuple[object, ...]:
    """What an expression is apart from its operands."""
    match expr:
        case ir.Bin(op) | ir.Un(op):
            return (op,)
        case ir.Call(name, args, dtype):
            return name, len(args), dtype
        case _:
            return (expr.dtype,)


def rebuilt(expr: ir.Expr, parts: Sequence[ir.Expr]) -> ir.Expr:
    """An expression with other operands."""
    match expr:
        case ir.Bin(op):
            return ir.Bin(op, parts[0], parts[1])
        case ir.Un(op):
            return ir.Un(op, parts[0])
        case ir.Cast(dtype):
            return ir.cast(dtype, parts[0])
        case ir.Select():
            return ir.Select(parts[0], parts[1], parts[2])
        case ir.Call(name, _, dtype):
            return ir.Call(name, tuple(parts), dtype)
        case _:
            raise InternalError(f"unknown expression {type(expr).__name__}")


def skeleton(expr: ir.Expr) -> str:
    """An expression as text, numbers left out."""
    match expr:
        case ir.Const():
            return "#"
        case ir.Var(name):
            return name
        case ir.Load(buffer, indices):
            return f"{buffer.name}[{', '.join(map(skeleton, indices))}]"
        case _:
            return f"{head(expr)}({', '.join(map(skeleton, children(expr)))})"
