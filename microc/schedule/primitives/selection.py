"""Primitives that rewrite expressions to equal ones that suit a core: FMA, high products, rounding, conversion.

Expressions that are the meaning of an intrinsic are selected by :mod:`.intrinsic_selection`."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from microc.base import dtypes
from microc.numerics import TO_WHOLE
from microc.schedule.primitives.intrinsic_selection import match_int32_clamp
from microc.schedule.primitives.tree import loops_around, map_values
from microc.tir import ir
from microc.tir.analysis.intervals import within
from microc.tir.analysis.simplification import bounds_of, simplify
from microc.tir.names import BOUND, MAGNITUDE, SATURATED, TWO_ROUNDINGS
from microc.tir.rewrite import free_vars, map_stmt, substitute, walk_expr, walk_stmt

# ---- Primitives that replace expressions by equal ones that suit a core and the loops

_PRODUCTS = MappingProxyType({"high_mac_round": "high_mul_round", "high_mac": "high_product"})
"""For each high multiply-accumulate the high product without the addend."""
THIRDS = 1 << 20
"""Largest magnitude of the left operand of ``product_2_30``, which splits the right operand into three parts."""


def select_fma(func: ir.PrimFunc) -> ir.PrimFunc:
    """Contract the accumulation of float32 products, ``c[i] = c[i] + a * b``, to ``c[i] = fma(a, b, c[i])``, which
    rounds once.

    Other sums keep both roundings, which may be intended: rounding to an integer by adding a large number needs
    them. Blocks with the annotation TWO_ROUNDINGS also keep both."""
    blocks = [s for s in walk_stmt(func.body) if isinstance(s, ir.Block) and TWO_ROUNDINGS in dict(s.annotations)]
    apart = {id(s) for block in blocks for s in walk_stmt(block.body)}

    def contract_accumulation(stmt: ir.Stmt) -> ir.Stmt:
        match stmt:
            case ir.Store(buffer, indices, ir.Bin("add", ir.Load() as total, ir.Bin("mul", a, b))) if (
                stmt.value.dtype == "float32" and total == ir.Load(buffer, indices) and id(stmt) not in apart
            ):
                return ir.Store(buffer, indices, ir.call("fma", a, b, total))
            case _:
                return stmt

    return replace(func, body=map_stmt(func.body, contract_accumulation))


def select_high_mul(func: ir.PrimFunc) -> ir.PrimFunc:
    """Compute high halves of products, ``high_mul_round(x << 1, m)``, from 32-bit products of parts of the operands,
    for cores on which 64-bit products are library calls.

    The shift implies that x is in -2**30 .. 2**30 - 1, which the intrinsic ``high_mul`` requires. If the annotation
    ``bound`` of a block keeps its sum within :data:`THIRDS`, ``(product_2_30(x, m) + 1) >> 1`` is used, and its last
    shift is merged with the next shift. High halves that are rounded down, ``high_product`` and ``high_mac``, become
    ``product_2_31`` or ``product_2_30(x, m) >> 1``."""

    def rewrite_products(stmt: ir.Stmt, has_small_sums: bool) -> ir.Stmt:
        return map_values(stmt, lambda x: _split_high_product(x, has_small_sums))

    def rewrite_block_with_small_sums(stmt: ir.Stmt) -> ir.Stmt:
        bound = dict(stmt.annotations).get(BOUND) if isinstance(stmt, ir.Block) else None
        return rewrite_products(stmt, has_small_sums=True) if isinstance(bound, int) and bound <= THIRDS else stmt

    return replace(
        func, body=rewrite_products(map_stmt(func.body, rewrite_block_with_small_sums), has_small_sums=False)
    )


def _split_high_product(expr: ir.Expr, has_small_sums: bool) -> ir.Expr:
    """Rewrite a high product as products of parts of its operands. ``has_small_sums``: True if the sums of the block
    are within :data:`THIRDS`."""
    match expr:
        case ir.Call("high_mul_round", (ir.Bin("shl", x, ir.Const(1)), m)):
            if has_small_sums and _is_unscaled_sum(x):
                return (ir.call("product_2_30", x, m) + 1) >> 1
            return ir.call("high_mul", x, m)
        case ir.Call("high_mac_round", (ir.Bin("shl", x, ir.Const(1)) as doubled, m, added)):
            return _split_high_product(ir.call("high_mul_round", doubled, m), has_small_sums) + added
        case ir.Call("high_product", (ir.Bin("shl", x, ir.Const(int() as left)), m)):
            x = x << (left - 1) if left > 1 else x
            return (
                ir.call("product_2_30", x, m) >> 1
                if has_small_sums and _is_unscaled_sum(x)
                else ir.call("product_2_31", x, m)
            )
        case ir.Call("high_mac", (ir.Bin("shl") as doubled, m, added)):
            return _split_high_product(ir.call("high_product", doubled, m), has_small_sums) + added
        # Merge the last shift with the next one: ((p >> 1) + k) >> s = (p + 2 k) >> (s + 1), exactly, since both round down.
        case ir.Bin("shr", ir.Bin("shr", ir.Call("product_2_30") as product, ir.Const(1)), shift):
            return ir.Bin("shr", product, _distance_one_bit_longer(shift))
        case ir.Bin(
            "shr", ir.Bin("add", ir.Bin("shr", ir.Call("product_2_30") as product, ir.Const(1)), ir.Const() as k), shift
        ) if abs(2 * int(k.value)) < 1 << 30:
            return ir.Bin("shr", product + 2 * int(k.value), _distance_one_bit_longer(shift))
        case ir.Bin("shr", ir.Bin("shr", ir.Bin("add", ir.Call("product_2_30")) as rounded, ir.Const(1)), shift):
            return ir.Bin("shr", rounded, _distance_one_bit_longer(shift))
        case ir.Bin(
            "shr",
            ir.Bin(
                "add", ir.Bin("shr", ir.Bin("add", ir.Call("product_2_30") as product), ir.Const(1)), ir.Const() as k
            ),
            shift,
        ) if abs(2 * int(k.value)) < 1 << 30:
            return ir.Bin("shr", product + (2 * int(k.value) + 1), _distance_one_bit_longer(shift))
        case _:
            return expr


def _distance_one_bit_longer(distance: ir.Expr) -> ir.Expr:
    """Return the distance of a right shift that is one bit longer, at most 31. (A shift by 31 already yields the sign
    alone.)

    Distances that depend on data have the form s - 1 with s up to 31."""
    joined = simplify(distance + 1)
    return ir.const(min(int(joined.value), 31), "int32") if isinstance(joined, ir.Const) else joined


def _is_unscaled_sum(x: ir.Expr) -> bool:
    """Test whether an operand is the sum of the block itself: it reads 32-bit numbers, and is not yet scaled or shifted
    to the left.

    If a multiplier is above one, the sum is shifted to the left first."""
    if isinstance(x, ir.Bin) and x.op in ("shl", "mul"):
        return False
    nodes = tuple(walk_expr(x))
    reads_sum = any(isinstance(node, ir.Load) and node.dtype in ("int32", "uint32") for node in nodes)
    return reads_sum and not any(isinstance(node, ir.Call) for node in nodes)


def select_high_mac(func: ir.PrimFunc) -> ir.PrimFunc:
    """Replace ``high_mac(2 x, m, 2 k) >> s`` by ``high_mac(x, m, k) >> (s - 1)``, for cores on which doubled sums have
    no advantage.

    Both are x m / 2**(31 + s), rounded down after k * 2**32 is added. An addend that is computed from data, ``1 <<
    (s - 1)``, implies s >= 2 (:func:`.scaling.scale_with_high_mac`)."""

    def halve_doubled_operand(expr: ir.Expr) -> ir.Expr:
        match expr:
            case ir.Bin("shr", ir.Call("high_mac", (ir.Bin("shl", x, ir.Const(1)), m, added)), shift):
                less = _half_of_addend(added, shift)
                return expr if less is None else ir.call("high_mac", x, m, less) >> _distance_one_bit_shorter(shift)
            case _:
                return expr

    return replace(func, body=map_values(func.body, halve_doubled_operand))


def _half_of_addend(addend: ir.Expr, distance: ir.Expr) -> ir.Expr | None:
    """Return half of an addend that is an even constant or a multiple of ``1 << (distance - 1)``; None for any other
    addend."""
    match addend:
        case ir.Const(int() as value) if value % 2 == 0:
            return ir.const(value // 2, "int32")
        case ir.Bin("mul", ir.Bin("shl", ir.Const(1) as one, less), ir.Const() as steps) if less == distance - 1:
            return (one << _distance_one_bit_shorter(less)) * int(steps.value)
        case _:
            return None


def _distance_one_bit_shorter(distance: ir.Expr) -> ir.Expr:
    """Return the distance of a shift that is one bit shorter. For ``x - constant`` the constant is increased by one."""
    match distance:
        case ir.Bin("sub", x, ir.Const(int() as value)):
            return x - (value + 1)
        case _:
            return simplify(distance - 1)


def select_rounding(func: ir.PrimFunc) -> ir.PrimFunc:
    """Select instructions for a rounding right shift whose distance changes in the innermost loop: two shifts.

    ``high_mac_round(x, m, k * (1 << (s - 1))) >> s`` computes its addend from s, which is efficient only if the
    addend can be hoisted out of the loop. Else ``((high_mul_round(x, m) >> (s - 1)) + k) >> 1`` is shorter. Both are
    equal, because a division that rounds down can be done in two steps. ``high_mac`` is replaced by ``high_product``
    in the same way."""

    def split_rounding_of_block(stmt: ir.Stmt) -> ir.Stmt:
        return _split_rounding_shifts(stmt, inner[stmt.name]) if isinstance(stmt, ir.Block) else stmt

    inner = {s.name: _innermost_rolled_loop(func, s) for s in walk_stmt(func.body) if isinstance(s, ir.Block)}
    return replace(func, body=map_stmt(func.body, split_rounding_of_block))


def _innermost_rolled_loop(func: ir.PrimFunc, block: ir.Block) -> ir.Var | None:
    """Return the variable of the innermost loop around a block, apart from unrolled loops; None if there is none."""
    return next((x.var for x in reversed(loops_around(func.body, block)) if x.kind != "unrolled"), None)


def _split_rounding_shifts(block: ir.Block, loop_var: ir.Var | None) -> ir.Block:
    """Replace each rounding right shift in a block, if its distance depends on ``loop_var``, by two shifts."""
    bindings = {i.var: i.binding for i in block.iters}

    def split_rounding_shift(expr: ir.Expr) -> ir.Expr:
        parts = _match_high_mac_rounding(expr)
        if parts is None or loop_var not in free_vars(substitute(parts[1], bindings)):
            return expr
        total, shift, steps = parts
        return ((total >> _distance_one_bit_shorter(shift)) + steps) >> 1

    body = map_values(block.body, split_rounding_shift)
    return block if body is block.body else replace(block, body=body)


def _match_high_mac_rounding(expr: ir.Expr) -> tuple[ir.Expr, ir.Expr, ir.Const] | None:
    """Match a right shift by s of a high multiply-accumulate whose addend rounds that shift.

    Return the high product without the rounding, the distance s, and k of the addend ``k * (1 << (s - 1))``; None if
    it does not match."""
    match expr:
        case ir.Bin("shr", ir.Call("high_mac_round" | "high_mac" as name, (x, m, added)), shift):
            product: ir.Expr = ir.call(_PRODUCTS[name], x, m)
        case _:
            return None
    if isinstance(added, ir.Bin) and added.op == "add":
        product, added = product + added.a, added.b
    match added:
        case ir.Bin("mul", ir.Bin("shl", ir.Const(1), less), ir.Const() as steps) if less in (
            shift - 1,
            _distance_one_bit_shorter(shift),
        ):
            return product, shift, steps
        case _:
            return None


# ---- Rounding to integers by one saturating instruction, instead of several that clamp floats first
#
# Operators clamp a float to the range of its integer and round by adding 1.5 * 2**23 (``ops/quantised/scaling.py``).
# ``nearest_i32`` rounds in the same way and accepts any float. Therefore the integers are clamped instead of the floats; clamping
# to the range of a dtype is one instruction.
# The zero point is added between two saturations; without the first one the sum could overflow:
#
#     clamp(r, low, high) + z  =  clamp(clamp(r, -2**15, 2**15 - 1) + z, low + z, high + z),    limits within 16 bits.
#
# A clamp maps NaN to ``low``, the instruction to zero: if x may be NaN, the lower limit stays.

_HUGE = 2.0**100
"""Magnitude below which sums and products of a few values are far from infinity."""
_SHORT = (-(1 << 15), (1 << 15) - 1)
"""Range of int16."""


def select_conversion(func: ir.PrimFunc) -> ir.PrimFunc:
    """Round floats to int32 by the intrinsic ``nearest_i32``, and clamp the resulting integers instead of the
    floats."""

    def convert_roundings_of_block(stmt: ir.Stmt) -> ir.Stmt:
        if not isinstance(stmt, ir.Block):
            return stmt
        note = dict(stmt.annotations).get(MAGNITUDE)
        constants = float(note) if isinstance(note, int) else None
        return map_values(stmt, lambda x: _select_nearest_i32(x, constants))

    return replace(func, body=map_stmt(func.body, convert_roundings_of_block))


def _select_nearest_i32(expr: ir.Expr, constant_bound: float | None) -> ir.Expr:
    """Rewrite an expression if it is a rounding, the sum of a rounding and a zero point, or a clamp that has no effect
    after a rounding. Else return it unchanged.

    ``constant_bound``: bound of the magnitude of constants; None if unknown."""
    match expr:
        case ir.Cast("int32", ir.Bin("sub", ir.Bin("add", x, ir.Const(added)), ir.Const(less))) if (
            added == less == TO_WHOLE
        ):
            return _round_then_clamp(x, constant_bound) or expr
        case ir.Bin("add", a, ir.Const(int() as zero)) if (found := _match_clamped_rounding(a)) is not None:
            return _add_zero_point(found[0], zero, found[1][0] + zero, found[1][1] + zero) or expr
        case ir.Cast("int32", ir.Cast(narrow, a)) if a.dtype == "int32" and _match_clamped_rounding(a, narrow):
            return a
        case _:
            outer = match_int32_clamp(expr)
            inner = None if outer is None else match_int32_clamp(outer[0])
            idle = inner is not None and outer is not None and within(inner[1], outer[1])
            return outer[0] if outer is not None and idle else expr


def _round_then_clamp(x: ir.Expr, constant_bound: float | None) -> ir.Expr | None:
    """Build the rounding of a clamped float such that the float is rounded first and the integer is clamped afterwards.

    None unless the limits of the clamp are integers. ``constant_bound``: bound of the magnitude of constants; None
    if unknown."""
    match x:
        case ir.Bin("min", ir.Bin("max", value, ir.Const(low)) as raised, ir.Const(high)):
            if not (float(low).is_integer() and float(high).is_integer()):
                return None
            source = raised if bound_magnitude(value, constant_bound) is None else value
            return ir.clamp(ir.call("nearest_i32", source, dtype="int32"), int(low), int(high))
        case _:
            return None


def _match_clamped_rounding(expr: ir.Expr, limit_dtype: str = "") -> tuple[ir.Expr, tuple[int, int]] | None:
    """Match a clamp of ``nearest_i32``, with or without a zero point. Return (operand of the clamp, limits); None if it
    does not match.

    ``limit_dtype``: if given, the limits must be within the range of this dtype."""
    parts = match_int32_clamp(expr)
    if parts is None or (limit_dtype and not within(parts[1], dtypes.int_range(limit_dtype))):
        return None
    x = parts[0]
    if isinstance(x, ir.Bin) and x.op == "add" and (short := match_int32_clamp(x.a)) is not None:
        x = short[0]
    return parts if isinstance(x, ir.Call) and x.name == "nearest_i32" else None


def _add_zero_point(rounded: ir.Expr, zero_point: int, low: int, high: int) -> ir.Expr | None:
    """Build the sum of a rounded number and a zero point, clamped to low..high.

    The clamp first saturates to a dtype that shares one of the limits. None if there is no such dtype."""
    whole = next(
        (r for r in SATURATED.values() if r[0] <= low and high <= r[1] and (r[0] == low or r[1] == high)), None
    )
    if whole is None or low < _SHORT[0] + zero_point or high > _SHORT[1] + zero_point:
        return None
    result = ir.clamp(ir.clamp(rounded, *_SHORT) + zero_point, *whole)
    result = ir.maximum(result, low) if low > whole[0] else result
    return ir.minimum(result, high) if high < whole[1] else result


def bound_magnitude(x: ir.Expr, constant_bound: float | None) -> float | None:
    """Return an upper bound of the magnitude of x; None if there is none, or if x may be NaN.

    ``constant_bound``: bound of the magnitude of constants; None if unknown."""
    match x:
        case ir.Const(value):
            bound = abs(float(value))
        case ir.Cast("float32", a) if not dtypes.is_float(a.dtype):
            ends = bounds_of(a) or dtypes.int_range(a.dtype)
            bound = float(max(-ends[0], ends[1]))
        case ir.Load(buffer) if buffer.scope == "const" and constant_bound is not None:
            bound = constant_bound
        case ir.Bin("min", ir.Bin("max", _, ir.Const(low)), ir.Const(high)):
            bound = max(abs(float(low)), abs(float(high)))
        case ir.Un("neg", a):
            return bound_magnitude(a, constant_bound)
        case ir.Bin("add" | "sub" | "mul", a, b) | ir.Select(_, a, b):
            left, right = bound_magnitude(a, constant_bound), bound_magnitude(b, constant_bound)
            if left is None or right is None:
                return None
            bound = left * right if isinstance(x, ir.Bin) and x.op == "mul" else left + right
        case ir.Bin("div", a, ir.Const(divisor)) if (
            divisor and (left := bound_magnitude(a, constant_bound)) is not None
        ):
            bound = left / abs(float(divisor))
        case _:
            return None
    return bound if bound < _HUGE else None
