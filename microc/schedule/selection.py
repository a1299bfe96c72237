"""The primitive select_saturation: clamps to a whole integer range become the core's saturating instructions."""

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
