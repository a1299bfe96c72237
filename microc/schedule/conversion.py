"""Rounding to integers by one instruction that saturates, where clamping floats first would take several.

Operators bring a float within the limits of its integer and round by adding 1.5 * 2**23 (``ops/quantised/scaling.py``).
``nearest_i32`` rounds alike and takes any float, so that the limits are kept by integers, for whole dtypes in one instruction;
the zero point is added between two saturations, where the sum could overflow without the first:

    clamp(r, low, high) + z  =  clamp(clamp(r, -2**15, 2**15 - 1) + z, low + z, high + z),    limits within 16 bits.

A clamp brings NaN to ``low``, the instruction to zero: where x may be NaN, the lower limit stays.
"""

from __future__ import annotations

from dataclasses import replace

from microc import dtypes
from microc.fixed import TO_WHOLE
from microc.schedule.selection import RANGES, clamped_parts
from microc.tir import ir
from microc.tir.affine import bounds_of
from microc.tir.interval import within
from microc.tir.names import MAGNITUDE
from microc.tir.rewrite import map_expr, map_stmt

_HUGE = 2.0**100
"""Sums and products below do not come near infinity."""
_SHORT = (-(1 << 15), (1 << 15) - 1)


def select_conversion(func: ir.PrimFunc) -> ir.PrimFunc:
    """Floats are rounded by ``nearest_i32``."""

    def on_stmt(s: ir.Stmt) -> ir.Stmt:
        if not isinstance(s, ir.Block):
            return s
        noted = dict(s.annotations).get(MAGNITUDE)
        constants = float(noted) if isinstance(noted, int) else None
        return map_stmt(s, lambda x: x, lambda e: map_expr(e, lambda x: _selected(x, constants)))

    return replace(func, body=map_stmt(func.body, on_stmt))


def _selected(e: ir.Expr, constants: float | None) -> ir.Expr:
    """A rounding, a zero point added to one, or what its limits make idle."""
    match e:
        case ir.Cast("int32", ir.Bin("sub", ir.Bin("add", x, ir.Const(added)), ir.Const(less))) if (
            added == less == TO_WHOLE
        ):
            return _rounded(x, constants) or e
        case ir.Bin("add", a, ir.Const(int() as zero)) if (found := _nearest(a)) is not None:
            return _shifted(found[0], zero, found[1][0] + zero, found[1][1] + zero) or e
        case ir.Cast("int32", ir.Cast(narrow, a)) if a.dtype == "int32" and _nearest(a, narrow):
            return a
        case _:
            outer = clamped_parts(e)
            inner = None if outer is None else clamped_parts(outer[0])
            idle = inner is not None and outer is not None and within(inner[1], outer[1])
            return outer[0] if outer is not None and idle else e


def _rounded(x: ir.Expr, constants: float | None) -> ir.Expr | None:
    """The float ``x``, clamped to integers, rounded."""
    match x:
        case ir.Bin("min", ir.Bin("max", value, ir.Const(low)) as raised, ir.Const(high)):
            if not (float(low).is_integer() and float(high).is_integer()):
                return None
            source = raised if magnitude(value, constants) is None else value
            return ir.clamp(ir.call("nearest_i32", source, dtype="int32"), int(low), int(high))
        case _:
            return None


def _nearest(e: ir.Expr, narrow: str = "") -> tuple[ir.Expr, tuple[int, int]] | None:
    """A rounded float, perhaps shifted, and its limits; those must lie within a dtype that is named."""
    parts = clamped_parts(e)
    if parts is None or (narrow and not within(parts[1], dtypes.int_range(narrow))):
        return None
    x = parts[0]
    if isinstance(x, ir.Bin) and x.op == "add" and (short := clamped_parts(x.a)) is not None:
        x = short[0]
    return parts if isinstance(x, ir.Call) and x.name == "nearest_i32" else None


def _shifted(rounded: ir.Expr, zero: int, low: int, high: int) -> ir.Expr | None:
    """``rounded`` + zero within low..high, by saturation to a dtype of which one end is a limit."""
    whole = next((r for r in RANGES if r[0] <= low and high <= r[1] and (r[0] == low or r[1] == high)), None)
    if whole is None or low < _SHORT[0] + zero or high > _SHORT[1] + zero:
        return None
    found = ir.clamp(ir.clamp(rounded, *_SHORT) + zero, *whole)
    found = ir.maximum(found, low) if low > whole[0] else found
    return ir.minimum(found, high) if high < whole[1] else found


def magnitude(x: ir.Expr, constants: float | None) -> float | None:
    """A bound of \\|x\\|; None where there is none, or where x may be NaN."""
    match x:
        case ir.Const(value):
            found = abs(float(value))
        case ir.Cast("float32", a) if not dtypes.is_float(a.dtype):
            ends = bounds_of(a) or dtypes.int_range(a.dtype)
            found = float(max(-ends[0], ends[1]))
        case ir.Load(buffer) if buffer.scope == "const" and constants is not None:
            found = constants
        case ir.Bin("min", ir.Bin("max", _, ir.Const(low)), ir.Const(high)):
            found = max(abs(float(low)), abs(float(high)))
        case ir.Un("neg", a):
            return magnitude(a, constants)
        case ir.Bin("add" | "sub" | "mul", a, b) | ir.Select(_, a, b):
            left, right = magnitude(a, constants), magnitude(b, constants)
            if left is None or right is None:
                return None
            found = left * right if isinstance(x, ir.Bin) and x.op == "mul" else left + right
        case ir.Bin("div", a, ir.Const(divisor)) if divisor and (left := magnitude(a, constants)) is not None:
            found = left / abs(float(divisor))
        case _:
            return None
    return found if found < _HUGE else None
