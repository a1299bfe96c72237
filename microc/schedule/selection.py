"""Primitives that choose instructions: select_saturation, select_fma."""

from __future__ import annotations

from dataclasses import replace

from microc.tir import ir
from microc.tir.affine import simplify
from microc.tir.rewrite import map_expr, map_stmt

_RANGES = {(-128, 127): "ssat8", (0, 255): "usat8", (-32768, 32767): "ssat16"}


def select_saturation(func: ir.PrimFunc) -> ir.PrimFunc:
    """``min(max(x, low), high)`` becomes ``ssat8(x)`` and the like; a shift by one to the right below it joins in."""

    def on_expr(e: ir.Expr) -> ir.Expr:
        match e:
            case ir.Bin("min", ir.Bin("max", x, ir.Const(low)), ir.Const(high)) if e.dtype == "int32":
                pass
            case ir.Bin("max", ir.Bin("min", x, ir.Const(high)), ir.Const(low)) if e.dtype == "int32":
                pass
            case _:
                return e
        name = _RANGES.get((int(low), int(high)))
        if name is None:
            return e
        x = simplify(x)
        if isinstance(x, ir.Bin) and x.op == "shr" and x.b == ir.const(1, "int32"):
            return ir.Call(f"{name}_asr1", (x.a,), "int32")
        return ir.Call(name, (x,), "int32")

    return replace(func, body=map_stmt(func.body, lambda s: s, lambda x: map_expr(x, on_expr)))


def select_fma(func: ir.PrimFunc) -> ir.PrimFunc:
    """Sums of float32 products, ``c[i] = c[i] + a * b``, round once: ``c[i] = fma(a, b, c[i])``.

    Only accumulation is contracted. Elsewhere both roundings may be meant, as in rounding to an integer by a large summand.
    """

    def on_stmt(s: ir.Stmt) -> ir.Stmt:
        match s:
            case ir.Store(buffer, indices, ir.Bin("add", ir.Load() as total, ir.Bin("mul", a, b))) if (
                s.value.dtype == "float32" and total == ir.Load(buffer, indices)
            ):
                return ir.Store(buffer, indices, ir.call("fma", a, b, total))
            case _:
                return s

    return replace(func, body=map_stmt(func.body, on_stmt))
