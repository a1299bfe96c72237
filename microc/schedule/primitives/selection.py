"""Primitives that select instructions for expressions: saturation, FMA, high products, rounding, conversion,
functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from microc.base import dtypes
from microc.numerics import TO_WHOLE
from microc.schedule.primitives.tree import loops_around, map_values
from microc.tir import ir
from microc.tir.analysis.intervals import within
from microc.tir.analysis.simplification import bounds_of, simplify
from microc.tir.names import BOUND, MAGNITUDE, TWO_ROUNDINGS
from microc.tir.rewrite import free_vars, map_expr, map_stmt, substitute, walk_expr, walk_stmt

# ---- Primitives that replace expressions by equal ones that suit a core and the loops

RANGES = MappingProxyType({(-128, 127): "saturate_i8", (0, 255): "saturate_u8", (-32768, 32767): "saturate_i16"})
"""Saturating intrinsics by range (lowest, highest)."""
SATURATED_DTYPES = MappingProxyType(dict(zip(RANGES.values(), ("int8", "uint8", "int16"), strict=True)))
"""Dtype whose range the result of a saturating intrinsic has."""
BYTE_PRODUCTS = MappingProxyType({("int8", "int8"): "mul_i8", ("int8", "uint8"): "mul_i8_u8"})
"""Intrinsics that multiply two bytes, by the dtypes of the operands."""
_PRODUCTS = MappingProxyType({"high_mac_round": "high_mul_round", "high_mac": "high_product"})
"""For each high multiply-accumulate the high product without the addend."""
THIRDS = 1 << 20
"""Largest magnitude of the left operand of ``product_2_30``, which splits the right operand into three parts."""


def select_saturation(func: ir.PrimFunc) -> ir.PrimFunc:
    """Replace ``min(max(x, low), high)`` by a saturating intrinsic such as ``saturate_i8(x)``. A right shift of x by
    one becomes part of the intrinsic.

    Casts of the result to the intrinsic's dtype and back are removed, because the compiler cannot remove them from
    inline assembly."""

    def replace_clamp_by_saturation(expr: ir.Expr) -> ir.Expr:
        match expr:
            case ir.Cast("int32", ir.Cast(dtype, ir.Call(name) as saturated)) if (
                SATURATED_DTYPES.get(name.removesuffix("_half")) == dtype
            ):
                return saturated
        parts = match_int32_clamp(expr)
        intrinsic = RANGES.get(parts[1]) if parts is not None else None
        if parts is None or intrinsic is None:
            return expr
        x = simplify(parts[0])
        if isinstance(x, ir.Bin) and x.op == "shr" and x.b == ir.const(1, "int32"):
            return ir.Call(f"{intrinsic}_half", (x.a,), "int32")
        return ir.Call(intrinsic, (x,), "int32")

    # A clamp of loop variables is replaced, too, so index arithmetic is not left out.
    return replace(func, body=map_stmt(func.body, lambda s: s, lambda x: map_expr(x, replace_clamp_by_saturation)))


def select_clamp(func: ir.PrimFunc) -> ir.PrimFunc:
    """Replace clamping to the range of int8 by the intrinsic ``clamp8``."""

    def replace_clamp_by_clamp8(expr: ir.Expr) -> ir.Expr:
        parts = match_int32_clamp(expr)
        return ir.call("clamp8", parts[0]) if parts is not None and parts[1] == (-128, 127) else expr

    return replace(func, body=map_stmt(func.body, lambda s: s, lambda x: map_expr(x, replace_clamp_by_clamp8)))


def match_int32_clamp(expr: ir.Expr) -> tuple[ir.Expr, tuple[int, int]] | None:
    """Match ``min(max(x, low), high)`` of int32, with minimum and maximum in either order. Return (x, (low, high));
    None if it does not match."""
    match expr:
        case ir.Bin("min", ir.Bin("max", x, ir.Const(low)), ir.Const(high)) if expr.dtype == "int32":
            return x, (int(low), int(high))
        case ir.Bin("max", ir.Bin("min", x, ir.Const(high)), ir.Const(low)) if expr.dtype == "int32":
            return x, (int(low), int(high))
        case _:
            return None


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


def select_byte_products(func: ir.PrimFunc) -> ir.PrimFunc:
    """Replace products of two bytes that are widened to 32 bits by an instruction that multiplies bytes."""

    def to_byte_product(expr: ir.Expr) -> ir.Expr:
        match expr:
            case ir.Bin("mul", ir.Cast("int32", ir.Load() as a), ir.Cast("int32", ir.Load() as b)):
                for left, right in ((a, b), (b, a)):
                    name = BYTE_PRODUCTS.get((left.dtype, right.dtype))
                    if name is not None:
                        return ir.Call(name, (left.astype("int32"), right.astype("int32")), "int32")
        return expr

    return replace(func, body=map_values(func.body, to_byte_product))


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
    whole = next((r for r in RANGES if r[0] <= low and high <= r[1] and (r[0] == low or r[1] == high)), None)
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


# ---- The primitive select_functions: erf, exp, expm1, tanh, log and log1p by arithmetic, for vector units without such
# functions, and if floats may be fast
#
#     erf(x)   ~  x P(x**2) / Q(x**2),    x within -3.75 .. 3.75, beyond which erf is less than 2**-23 from 1,
#     tanh(x)  ~  x P(x**2) / Q(x**2),    x within -9.01 .. 9.01, beyond which tanh is less than 2**-24 from 1,
#     exp(x)   ~  (2**n)**2 P(x - 2 n ln 2),    n = round(x / (2 ln 2)),    x within -104 .. 89, where exp is 0 and infinite,
#     expm1(x) ~  (2**n (P(r) - 1) + (2**n - 2**-n)) 2**n,    r = x - 2 n ln 2, P and n those of exp,
#     log(x)   =  n ln 2 + log(1 + f),    x = 2**n (1 + f),    1 + f within sqrt(1/2) .. sqrt(2),
#     log(1 + f)  ~  f - f**2 / 2 + f**3 P(f),
#     log1p(x) =  log(y) + (x - (y - 1)) / y,    y = 1 + x, rounded.
#
# Polynomials are computed by Horner's rule, with one rounding for each step where a core multiplies and adds at once. The
# coefficients have the least relative error that weighted least squares find (Lawson, 1961, on Chebyshev's nodes): 3.1e-8,
# 1.3e-9, 1.2e-8 and 5.8e-9 before rounding. 2 n ln 2 is subtracted in two parts, the first of which is exact. Powers of two are
# built from the bits that adding 1.5 * 2**23 leaves. They are multiplied one after the other, so that subnormal and infinite
# results of exp are correct. log is also correct for zero, negative, infinite and subnormal operands. NaN stays NaN. Zeros keep
# their sign, except in expm1 and log1p.
#
# The largest errors of erf, tanh and exp were measured on a seventh of all floats from 2**-12 (2**-24 for exp) to the limits:
# relative to the result 3.2e-7, 3.5e-7 and 2.3e-7 with fused steps, :data:`ERRORS` without. With fused steps, log has 8.2e-8 on a
# seventh of all positive floats; expm1 and log1p have 2.6e-7 and 1.4e-7 on a thousandth of all floats. Results of erf and tanh
# may exceed 1 by as much. Subnormal results of exp differ by up to two of the smallest subnormal number.

ERRORS: Mapping[str, float] = MappingProxyType(
    {"erf": 3.8e-7, "tanh": 3.7e-7, "exp": 2.7e-7, "expm1": 3.2e-7, "log": 1.2e-7, "log1p": 1.8e-7}
)
"""Largest relative error without fused multiply-adds, by function."""
ERF = (
    3.75,
    (
        2.21193072746928e-08,
        -2.022567286985577e-06,
        1.3239930558484048e-04,
        3.141249530017376e-03,
        4.872777685523033e-02,
        1.8566012382507324e-01,
        1.1283791065216064,
    ),
    (
        8.329787524417043e-04,
        1.3176330365240574e-02,
        1.0914591699838638e-01,
        4.978693127632141e-01,
        1.0,
    ),
)
"""Limit of the argument, numerator and denominator of erf. Coefficients begin with the highest power."""
_TANH = (
    9.01,
    (
        -1.2224813175643057e-11,
        3.0613733770223917e-08,
        2.801937262120191e-05,
        3.8689174689352512e-03,
        1.3680385053157806e-01,
        1.0,
    ),
    (
        1.2881998827651842e-06,
        3.939671441912651e-04,
        2.7247997000813484e-02,
        4.7013717889785767e-01,
        1.0,
    ),
)
"""Limit of the argument, numerator and denominator of tanh. Coefficients begin with the highest power."""
_EXP_LIMITS = (-104.0, 89.0)
"""Argument of exp below which the result is 0, and argument above which it is infinite."""
_EXP = (
    1.9551708828657866e-04,
    1.411487115547061e-03,
    8.337056264281273e-03,
    4.166053980588913e-02,
    1.66665717959404e-01,
    5.000004768371582e-01,
    1.0,
    1.0,
)
"""Coefficients of the polynomial of exp, from the highest power to the constant."""
_INVERSE_TWICE_LN2 = 0.7213475204444817
"""1 / (2 ln 2)."""
_TWICE_LN2 = (1.38623046875, 6.389236659742892e-05)
"""2 ln 2 as a sum of two floats: the first has 14 bits, so that its products with n are exact; the second is the
remainder."""
_LOG = (
    -0.07634496688842773,
    0.1276157647371292,
    -0.13160182535648346,
    0.14201757311820984,
    -0.16623356938362122,
    0.20001226663589478,
    -0.2500081956386566,
    0.3333333134651184,
)
"""Coefficients of the polynomial P of log, from the highest power to the constant."""
_LN2 = (0.693359375, -2.1219444170128554e-4)
"""ln 2 as a sum of two floats: the first has 9 bits, so that its products with n are exact; the second is the
remainder."""
_EXPONENT_BITS, _ONE = 23, 127 << 23
"""Position of the exponent in the bits of a float32, and the bits of 1.0."""
LOGARITHMS = frozenset({"log", "log1p"})
"""Functions that are replaced only on request."""
_ROOT_OF_HALF = 0x3F3504F3
"""Bits of sqrt(1/2) as a float32."""
_NORMAL, _LARGEST = 2.0**-126, 3.4028234663852886e38
"""Least and largest normal float32."""


def select_functions(func: ir.PrimFunc, fused: bool, logarithms: bool = False) -> ir.PrimFunc:
    """Replace calls of ``erf``, ``exp``, ``expm1`` and ``tanh`` of float32 by arithmetic; also ``log`` and ``log1p`` if
    ``logarithms``.

    ``fused``: True if the core has a fused multiply-add."""

    def replace_function_call(expr: ir.Expr) -> ir.Expr:
        match expr:
            case ir.Call(name, (x,)) if (
                expr.dtype == "float32" and name in _FUNCTIONS and (logarithms or name not in LOGARITHMS)
            ):
                return _FUNCTIONS[name](x, _build_fused_multiply_add if fused else _build_multiply_then_add)
            case _:
                return expr

    return replace(func, body=map_values(func.body, replace_function_call))


MultiplyAdd = Callable[[ir.Expr, ir.Expr | float, float | ir.Expr], ir.Expr]
"""Function of (a, b, c) that builds the expression a * b + c."""


def _build_fused_multiply_add(a: ir.Expr, b: ir.Expr | float, c: ir.Expr | float) -> ir.Expr:
    """Build a * b + c with one rounding."""
    return ir.call("fma", a, _as_float_expr(b), _as_float_expr(c))


def _build_multiply_then_add(a: ir.Expr, b: ir.Expr | float, c: ir.Expr | float) -> ir.Expr:
    """Build a * b + c with two roundings."""
    return a * b + c


def _as_float_expr(x: ir.Expr | float) -> ir.Expr:
    """Convert a number to a float32 constant. An expression is returned unchanged."""
    return x if isinstance(x, ir.Expr) else ir.const(x, "float32")


def _clamp_keeping_nan(x: ir.Expr, low: float, high: float) -> ir.Expr:
    """Build the clamp of x to low..high. NaN stays NaN, because the limits are the first operands of ``max`` and
    ``min``, which return their second operand for NaN."""
    return ir.binary("min", ir.const(high, "float32"), ir.binary("max", ir.const(low, "float32"), x))


def _build_rational_function(
    limit: float, numerator: Sequence[float], denominator: Sequence[float], x: ir.Expr, multiply_add: MultiplyAdd
) -> ir.Expr:
    """Build the odd rational function x P(x**2) / Q(x**2), with x clamped to -limit..limit.

    ``numerator`` and ``denominator``: coefficients of P and Q, from the highest power to the constant."""
    within = _clamp_keeping_nan(x, -limit, limit)
    square = within * within
    return (
        within
        * _build_polynomial(numerator, square, multiply_add)
        / _build_polynomial(denominator, square, multiply_add)
    )


def _reduce_exp_argument(x: ir.Expr, multiply_add: MultiplyAdd) -> tuple[ir.Expr, ir.Expr]:
    """Build the reduced argument of exp, r = x - 2 n ln 2 in -ln 2 .. ln 2, and the bits of 2**n minus the bits of
    1.0."""
    within = _clamp_keeping_nan(x, *_EXP_LIMITS)
    # Adding 1.5 * 2**23 rounds, and leaves n in the low bits of the sum: shifted, these are an exponent.
    shifted = within * _INVERSE_TWICE_LN2 + TO_WHOLE
    n = shifted - TO_WHOLE
    rest = multiply_add(n, -_TWICE_LN2[1], multiply_add(n, -_TWICE_LN2[0], within))
    return rest, ir.reinterpret("uint32", shifted) << _EXPONENT_BITS


def _build_exp(x: ir.Expr, multiply_add: MultiplyAdd) -> ir.Expr:
    """Build exp(x) from arithmetic. The polynomial is multiplied by 2**n twice, because 2**(2 n) may exceed the
    range of float32."""
    rest, exponent = _reduce_exp_argument(x, multiply_add)
    power = ir.reinterpret("float32", exponent + _ONE)
    return _build_polynomial(_EXP, rest, multiply_add) * power * power


def _build_expm1(x: ir.Expr, multiply_add: MultiplyAdd) -> ir.Expr:
    """Build expm1(x) from arithmetic. For small x, n is 0, and 2**n - 2**-n is exactly 0. The polynomial has no
    constant term, so that the result keeps its relative precision near 0."""
    rest, exponent = _reduce_exp_argument(x, multiply_add)
    one = ir.const(_ONE, "uint32")
    power, inverse = ir.reinterpret("float32", exponent + one), ir.reinterpret("float32", one - exponent)
    less_one = multiply_add(_build_polynomial(_EXP[:-2], rest, multiply_add), rest * rest, rest)
    return multiply_add(less_one, power, power - inverse) * power


def _build_log1p(x: ir.Expr, multiply_add: MultiplyAdd) -> ir.Expr:
    """Build log(1 + x) from arithmetic: log(y) for the rounded y = 1 + x, corrected by the rounding error of y."""
    y = x + 1.0
    log = _build_log(y, multiply_add)
    return ir.select(y > 0.0, ir.select(y <= _LARGEST, log + (x - (y - 1.0)) / y, log), log)


def _build_log(x: ir.Expr, multiply_add: MultiplyAdd) -> ir.Expr:
    """Build log(x) from arithmetic. Subnormal numbers are scaled up first. The results for zero, negative numbers,
    infinity and NaN are selected at the end."""
    small = x < _NORMAL
    positive = _clamp_keeping_nan(ir.select(small, x * float(1 << _EXPONENT_BITS), x), _NORMAL, _LARGEST)
    bits = ir.reinterpret("int32", positive)
    exponent = (bits - _ROOT_OF_HALF) >> _EXPONENT_BITS
    f = ir.reinterpret("float32", bits - exponent * (1 << _EXPONENT_BITS)) - 1.0
    n = ir.cast("float32", ir.select(small, exponent - _EXPONENT_BITS, exponent))
    square = f * f
    low = multiply_add(n, _LN2[1], _build_polynomial(_LOG, f, multiply_add) * square * f)
    log = multiply_add(n, _LN2[0], multiply_add(square, -0.5, low) + f)
    # x - x is 0 for numbers: 0 / 0 is NaN, -1 / 0 is -infinity.
    outside = ir.select(x < 0.0, ir.const(0.0, "float32"), ir.const(-1.0, "float32")) / (x - x)
    return ir.select(x > 0.0, ir.select(x <= _LARGEST, log, x), outside)


def _build_polynomial(coefficients: Sequence[float], x: ir.Expr, multiply_add: MultiplyAdd) -> ir.Expr:
    """Build a polynomial of x by Horner's rule. ``coefficients`` begin with the highest power."""
    total: ir.Expr = ir.const(coefficients[0], "float32")
    for coefficient in coefficients[1:]:
        total = multiply_add(total, x, coefficient)
    return total


_FUNCTIONS: Mapping[str, Callable[[ir.Expr, MultiplyAdd], ir.Expr]] = MappingProxyType(
    {
        "erf": partial(_build_rational_function, *ERF),
        "exp": _build_exp,
        "expm1": _build_expm1,
        "log": _build_log,
        "log1p": _build_log1p,
        "tanh": partial(_build_rational_function, *_TANH),
    }
)
