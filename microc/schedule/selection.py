"""Primitives that choose among equal expressions what suits a core and the loops."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from microc.schedule.tree import loops_around
from microc.tir import ir
from microc.tir.affine import simplify
from microc.tir.names import BOUND, TWO_ROUNDINGS
from microc.tir.rewrite import free_vars, map_expr, map_stmt, substitute, walk_expr, walk_stmt

RANGES = MappingProxyType({(-128, 127): "saturate_i8", (0, 255): "saturate_u8", (-32768, 32767): "saturate_i16"})
"""What one instruction saturates to."""
HELD = MappingProxyType(dict(zip(RANGES.values(), ("int8", "uint8", "int16"), strict=True)))
"""The dtype of such numbers."""
BYTE_PRODUCTS = MappingProxyType({("int8", "int8"): "mul_i8", ("int8", "uint8"): "mul_i8_u8"})
"""What one instruction multiplies."""
_PRODUCTS = MappingProxyType({"high_mac_round": "high_mul_round", "high_mac": "high_product"})
"""What is left of a sum with a high half when the other operand is added later."""
THIRDS = 1 << 20
"""The largest magnitude of what ``product_2_30`` multiplies."""


def select_saturation(func: ir.PrimFunc) -> ir.PrimFunc:
    """``min(max(x, low), high)`` becomes ``saturate_i8(x)`` and the like; a shift by one to the right below it joins in. Such a
    number needs no cast to its dtype and back, which compilers do not know of what is assembly to them."""

    def on_expr(e: ir.Expr) -> ir.Expr:
        match e:
            case ir.Cast("int32", ir.Cast(dtype, ir.Call(word) as held)) if (
                HELD.get(word.removesuffix("_half")) == dtype
            ):
                return held
        parts = clamped_parts(e)
        name = RANGES.get(parts[1]) if parts is not None else None
        if parts is None or name is None:
            return e
        x = simplify(parts[0])
        if isinstance(x, ir.Bin) and x.op == "shr" and x.b == ir.const(1, "int32"):
            return ir.Call(f"{name}_half", (x.a,), "int32")
        return ir.Call(name, (x,), "int32")

    return replace(func, body=map_stmt(func.body, lambda s: s, lambda x: map_expr(x, on_expr)))


def select_clamp(func: ir.PrimFunc) -> ir.PrimFunc:
    """Clamping to an int8 becomes ``clamp8``."""

    def on_expr(e: ir.Expr) -> ir.Expr:
        parts = clamped_parts(e)
        return ir.call("clamp8", parts[0]) if parts is not None and parts[1] == (-128, 127) else e

    return replace(func, body=map_stmt(func.body, lambda s: s, lambda x: map_expr(x, on_expr)))


def clamped_parts(e: ir.Expr) -> tuple[ir.Expr, tuple[int, int]] | None:
    """What an int32 expression clamps, and to which range."""
    match e:
        case ir.Bin("min", ir.Bin("max", x, ir.Const(low)), ir.Const(high)) if e.dtype == "int32":
            return x, (int(low), int(high))
        case ir.Bin("max", ir.Bin("min", x, ir.Const(high)), ir.Const(low)) if e.dtype == "int32":
            return x, (int(low), int(high))
        case _:
            return None


def select_fma(func: ir.PrimFunc) -> ir.PrimFunc:
    """Sums of float32 products, ``c[i] = c[i] + a * b``, round once: ``c[i] = fma(a, b, c[i])``.

    Only accumulation is contracted. Elsewhere both roundings may be meant, as in rounding to an integer by a large summand, and
    where a block says so.
    """
    blocks = [s for s in walk_stmt(func.body) if isinstance(s, ir.Block) and TWO_ROUNDINGS in dict(s.annotations)]
    apart = {id(s) for block in blocks for s in walk_stmt(block.body)}

    def on_stmt(s: ir.Stmt) -> ir.Stmt:
        match s:
            case ir.Store(buffer, indices, ir.Bin("add", ir.Load() as total, ir.Bin("mul", a, b))) if (
                s.value.dtype == "float32" and total == ir.Load(buffer, indices) and id(s) not in apart
            ):
                return ir.Store(buffer, indices, ir.call("fma", a, b, total))
            case _:
                return s

    return replace(func, body=map_stmt(func.body, on_stmt))


def select_byte_products(func: ir.PrimFunc) -> ir.PrimFunc:
    """Products of two bytes that are widened to 32 bits, by one instruction that multiplies bytes."""

    def product(x: ir.Expr) -> ir.Expr:
        match x:
            case ir.Bin("mul", ir.Cast("int32", ir.Load() as a), ir.Cast("int32", ir.Load() as b)):
                for left, right in ((a, b), (b, a)):
                    name = BYTE_PRODUCTS.get((left.dtype, right.dtype))
                    if name is not None:
                        return ir.Call(name, (left.astype("int32"), right.astype("int32")), "int32")
        return x

    return replace(func, body=map_stmt(func.body, lambda s: s, lambda e: map_expr(e, product)))


def select_high_mul(func: ir.PrimFunc) -> ir.PrimFunc:
    """High halves of products, ``high_mul_round(x << 1, m)``, by parts: for cores where 64-bit products are calls.

    The shift says that x lies within -2**30 .. 2**30 - 1, which is what ``high_mul`` needs. A sum that its block's note ``bound``
    keeps within THIRDS takes ``(product_2_30(x, m) + 1) >> 1``, whose last shift is joined with the next one. High halves that
    are rounded down, those of ``high_product`` and ``high_mac``, take ``product_2_31`` or ``product_2_30(x, m) >> 1``.
    """

    def within(s: ir.Stmt, short: bool) -> ir.Stmt:
        return map_stmt(s, lambda x: x, lambda e: map_expr(e, lambda x: _by_parts(x, short)))

    def on_stmt(s: ir.Stmt) -> ir.Stmt:
        bound = dict(s.annotations).get(BOUND) if isinstance(s, ir.Block) else None
        return within(s, short=True) if isinstance(bound, int) and bound <= THIRDS else s

    return replace(func, body=within(map_stmt(func.body, on_stmt), short=False))


def _by_parts(e: ir.Expr, short: bool) -> ir.Expr:
    match e:
        case ir.Call("high_mul_round", (ir.Bin("shl", x, ir.Const(1)), m)):
            if short and _is_sum(x):
                return (ir.call("product_2_30", x, m) + 1) >> 1
            return ir.call("high_mul", x, m)
        case ir.Call("high_mac_round", (ir.Bin("shl", x, ir.Const(1)) as doubled, m, added)):
            return _by_parts(ir.call("high_mul_round", doubled, m), short) + added
        case ir.Call("high_product", (ir.Bin("shl", x, ir.Const(int() as left)), m)):
            x = x << (left - 1) if left > 1 else x
            return ir.call("product_2_30", x, m) >> 1 if short and _is_sum(x) else ir.call("product_2_31", x, m)
        case ir.Call("high_mac", (ir.Bin("shl") as doubled, m, added)):
            return _by_parts(ir.call("high_product", doubled, m), short) + added
        case ir.Bin("shr", ir.Bin("shr", ir.Call("product_2_30") as product, ir.Const(1)), shift):
            return ir.Bin("shr", product, _one_more(shift))
        case ir.Bin(
            "shr", ir.Bin("add", ir.Bin("shr", ir.Call("product_2_30") as product, ir.Const(1)), ir.Const() as k), shift
        ) if abs(2 * int(k.value)) < 1 << 30:
            return ir.Bin("shr", product + 2 * int(k.value), _one_more(shift))
        case ir.Bin("shr", ir.Bin("shr", ir.Bin("add", ir.Call("product_2_30")) as rounded, ir.Const(1)), shift):
            return ir.Bin("shr", rounded, _one_more(shift))
        case ir.Bin(
            "shr",
            ir.Bin(
                "add", ir.Bin("shr", ir.Bin("add", ir.Call("product_2_30") as product), ir.Const(1)), ir.Const() as k
            ),
            shift,
        ) if abs(2 * int(k.value)) < 1 << 30:
            return ir.Bin("shr", product + (2 * int(k.value) + 1), _one_more(shift))
        case _:
            return e


def _one_more(shift: ir.Expr) -> ir.Expr:
    """A shift to the right joined with one by 1: beyond 31 only the sign is left. One that is data is s - 1, of s up to 31."""
    joined = simplify(shift + 1)
    return ir.const(min(int(joined.value), 31), "int32") if isinstance(joined, ir.Const) else joined


def _is_sum(x: ir.Expr) -> bool:
    """Whether an operand is the sum that a block begins with: it reads 32-bit numbers, and nothing has been scaled yet, nor
    shifted to the left as multipliers above one want it."""
    if isinstance(x, ir.Bin) and x.op in ("shl", "mul"):
        return False
    parts = tuple(walk_expr(x))
    wide = any(isinstance(p, ir.Load) and p.dtype in ("int32", "uint32") for p in parts)
    return wide and not any(isinstance(p, ir.Call) for p in parts)


def select_high_mac(func: ir.PrimFunc) -> ir.PrimFunc:
    """``high_mac(2 x, m, 2 k) >> s`` becomes ``high_mac(x, m, k) >> (s - 1)``: for cores to which it means nothing that twice x
    has room. Both are x m / 2**(31 + s), rounded down after k * 2**32 is added. A half that is made from data,
    ``1 << (s - 1)``, comes of s >= 2 only (``scaling.rounded_once``).
    """

    def on_expr(e: ir.Expr) -> ir.Expr:
        match e:
            case ir.Bin("shr", ir.Call("high_mac", (ir.Bin("shl", x, ir.Const(1)), m, added)), shift):
                less = _halved(added, shift)
                return e if less is None else ir.call("high_mac", x, m, less) >> _one_less(shift)
            case _:
                return e

    return replace(func, body=map_stmt(func.body, lambda s: s, lambda x: map_expr(x, on_expr)))


def _halved(added: ir.Expr, shift: ir.Expr) -> ir.Expr | None:
    """Half of a number, or of a multiple of ``1 << (shift - 1)``; None of what is odd."""
    match added:
        case ir.Const(int() as value) if value % 2 == 0:
            return ir.const(value // 2, "int32")
        case ir.Bin("mul", ir.Bin("shl", ir.Const(1) as one, less), ir.Const() as steps) if less == shift - 1:
            return (one << _one_less(less)) * int(steps.value)
        case _:
            return None


def _one_less(shift: ir.Expr) -> ir.Expr:
    """A shift less one; a number that is taken off it already is one more."""
    match shift:
        case ir.Bin("sub", x, ir.Const(int() as value)):
            return x - (value + 1)
        case _:
            return simplify(shift - 1)


def select_rounding(func: ir.PrimFunc) -> ir.PrimFunc:
    """Rounding by a shift that changes in the innermost loop becomes the last of two shifts.

    ``high_mac_round(x, m, k * (1 << (s - 1))) >> s`` makes what it adds from s: good where a loop repeats one s. Else
    ``((high_mul_round(x, m) >> (s - 1)) + k) >> 1`` is shorter. They are equal, for a division that rounds down can be done in
    two. ``high_mac`` becomes ``high_product`` like that.
    """

    def on_stmt(s: ir.Stmt) -> ir.Stmt:
        return _split_rounding(s, inner[s.name]) if isinstance(s, ir.Block) else s

    inner = {s.name: _innermost(func, s) for s in walk_stmt(func.body) if isinstance(s, ir.Block)}
    return replace(func, body=map_stmt(func.body, on_stmt))


def _innermost(func: ir.PrimFunc, block: ir.Block) -> ir.Var | None:
    """The variable of the innermost loop around a block that stays a loop."""
    return next((x.var for x in reversed(loops_around(func.body, block)) if x.kind != "unrolled"), None)


def _split_rounding(block: ir.Block, inner: ir.Var | None) -> ir.Block:
    """Shifts that depend on ``inner`` are done in two steps."""
    bindings = {i.var: i.binding for i in block.iters}

    def on_expr(e: ir.Expr) -> ir.Expr:
        parts = _rounding(e)
        if parts is None or inner not in free_vars(substitute(parts[1], bindings)):
            return e
        total, shift, steps = parts
        return ((total >> _one_less(shift)) + steps) >> 1

    return replace(block, body=map_stmt(block.body, lambda s: s, lambda x: map_expr(x, on_expr)))


def _rounding(e: ir.Expr) -> tuple[ir.Expr, ir.Expr, ir.Const] | None:
    """The sum before rounding, the shift, and what is added in steps of half the divisor; None of anything else."""
    match e:
        case ir.Bin("shr", ir.Call("high_mac_round" | "high_mac" as name, (x, m, added)), shift):
            product: ir.Expr = ir.call(_PRODUCTS[name], x, m)
        case _:
            return None
    if isinstance(added, ir.Bin) and added.op == "add":
        product, added = product + added.a, added.b
    match added:
        case ir.Bin("mul", ir.Bin("shl", ir.Const(1), less), ir.Const() as steps) if less in (
            shift - 1,
            _one_less(shift),
        ):
            return product, shift, steps
        case _:
            return None
