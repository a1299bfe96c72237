"""Tensor expressions as text, for people: one tensor a line, producers first, in the notation of index sums.

::

    x: int8[64, 9]
    acc[p < 64, o < 8]: int32 = bias[o] + sum(int32(x[p, k]) * int32(weight[o, k]) for k < 9)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from microc import dtypes
from microc.te.lower import stages
from microc.te.tensor import ComputeDef, ExternDef, Reduce, Tensor, TensorRead
from microc.tir import ir
from microc.tir.ir import Expr
from microc.tir.rewrite import map_children
from microc.tir.text.names import ATOM, COMPARISON, INFIX, NAMED_BINARY, PREFIX

WIDTH = 120
"""A longer expression gets a line of its own."""
_SUMS = {"add": ("sum", "+"), "mul": ("product", "*")}


def to_text(outputs: Iterable[Tensor], consts: Sequence[Tensor] = ()) -> str:
    """What ``outputs`` are computed from and how; placeholders among ``consts`` are said to be constant."""
    known = {id(tensor) for tensor in consts}
    return "".join(f"{_tensor(tensor, constant=id(tensor) in known)}\n" for tensor in stages(outputs))


def formula(tensor: Tensor) -> str:
    """``acc[p, o] = bias[o] + sum(x[p, k] * weight[o, k] for k < 9)``: a computed tensor without types, for comments."""
    made = tensor.definition
    assert isinstance(made, ComputeDef)
    return f"{tensor.name}[{', '.join(var.name for var in made.axes)}] = {_body(_untyped(made.body))}"


def _untyped(expr: Expr) -> Expr:
    """An expression of numbers: without casts between integers, and types of literals."""
    match expr:
        case ir.Cast(dtype, a) if dtypes.is_integer(dtype) and dtypes.is_integer(a.dtype):
            return _untyped(a)
        case ir.Const(value, dtype) if dtype != "bool":
            return ir.Const(float(f"{value:.9g}") if dtypes.is_float(dtype) else value, "int32")
        case Reduce(combine, value, axes, init):
            return Reduce(combine, _untyped(value), axes, _untyped(init))
        case TensorRead(tensor, indices):
            return TensorRead(tensor, tuple(_untyped(i) for i in indices))
        case _:
            return map_children(expr, _untyped)


def _tensor(tensor: Tensor, *, constant: bool) -> str:
    shape = ", ".join(map(_extent, tensor.shape))
    match tensor.definition:
        case ComputeDef(axes, body, notes):
            axes_text = ", ".join(f"{v.name} < {_extent(n)}" for v, n in zip(axes, tensor.shape, strict=True))
            head, value = f"{tensor.name}[{axes_text}]: {tensor.dtype} =", _body(body)
            line = f"{head} {value}" if len(head) + len(value) < WIDTH else f"{head}\n    {value}"
            return line + "".join(f"\n    # {name} = {note}" for name, note in notes)
        case ExternDef(name, operands):
            read = ", ".join(operand.name for operand in operands)
            return f"{tensor.name}: {tensor.dtype}[{shape}] = {name}({read})[{tensor.position}]  # loops of the operator's own"
        case _:
            return f"{tensor.name}: {tensor.dtype}[{shape}]{' constant' if constant else ''}"


def _extent(extent: object) -> str:
    return _at(extent, COMPARISON + 1) if isinstance(extent, Expr) else str(extent)


def _body(body: Expr) -> str:
    if not isinstance(body, Reduce):
        return _expr(body)[0]
    over = ", ".join(f"{axis.var.name} < {_extent(axis.extent)}" for axis in body.axes)
    name, sign = _SUMS.get(body.combine, (body.combine, ""))
    reduced = f"{name}({_expr(body.value)[0]} for {over})"
    if not sign:
        return f"{name}({_expr(body.init)[0]}, {reduced})"
    neutral = isinstance(body.init, ir.Const) and body.init.value == (0 if sign == "+" else 1)
    return reduced if neutral else f"{_at(body.init, INFIX[body.combine][1])} {sign} {reduced}"


def _expr(expr: Expr) -> tuple[str, int]:
    """Text and precedence."""
    match expr:
        case ir.Const(value, dtype):
            return _literal(value, dtype)
        case ir.Var(name):
            return name, ATOM
        case TensorRead(tensor, indices):
            return f"{tensor.name}[{_list(indices)}]", ATOM
        case ir.Bin(op, a, b) if op in NAMED_BINARY:
            return f"{op}({_list((a, b))})", ATOM
        case ir.Bin(op, a, b):
            sign, level = INFIX[op]
            return f"{_at(a, level + (level == COMPARISON))} {sign} {_at(b, level + 1)}", level
        case ir.Un(op, a):
            sign, level = PREFIX[op]
            return f"{sign}{_at(a, level)}", level
        case ir.Cast(dtype, a):
            return f"{dtype}({_expr(a)[0]})", ATOM
        case ir.Select(condition, a, b):
            return f"select({_list((condition, a, b))})", ATOM
        case ir.Call(name, args):
            return f"{name}({_list(args)})", ATOM
        case _:
            return f"<{type(expr).__name__}>", ATOM


def _at(expr: Expr, level: int) -> str:
    text, binds = _expr(expr)
    return text if binds >= level else f"({text})"


def _list(exprs: Iterable[Expr]) -> str:
    return ", ".join(_expr(e)[0] for e in exprs)


def _literal(value: int | float | bool, dtype: str) -> tuple[str, int]:
    if dtype == "bool":
        return str(bool(value)), ATOM
    if dtype == "int32":
        return str(value), ATOM if value >= 0 else PREFIX["neg"][1]
    shown = f"{value:.9g}" if dtypes.is_float(dtype) and math.isfinite(value) else str(value)
    return f"{dtype}({shown})", ATOM
