# SPDX-License-Identifier: Apache-2.0
"""Identities of expressions, and the meanings of intrinsics as Python functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from functools import lru_cache
from itertools import product
from types import MappingProxyType
from typing import Any

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array, to_numpy
from microc.base.immutable import frozen
from microc.isa import SCALAR, Intrin
from microc.isa.instruction_set import LANE
from microc.numerics import TO_WHOLE
from microc.tir import ir
from microc.tir.analysis.linear_forms import within
from microc.tir.analysis.simplification import bounds_of
from microc.tir.interp import compile_func
from microc.tir.names import BOUND, MAGNITUDE, SATURATED, TWO_ROUNDINGS
from microc.tir.rewrite import free_vars, map_expr, map_stmt, substitute, walk_expr

# ---- Intrinsics for the TIR interpreter: Python functions that are built from the TIR meanings of the intrinsics.


Function = Callable[[list[Any]], Any]


def intrinsic_functions() -> Mapping[str, Function]:
    """Return a Python function for every intrinsic, by the intrinsic's name, for :func:`microc.tir.interp.run`.

    The functions represent a vector as a tuple of its lanes."""
    return MappingProxyType({name: _intrinsic_function(intrin) for name, intrin in SCALAR.items()})


@lru_cache(maxsize=1024)
def _intrinsic_function(intrin: Intrin) -> Function:
    """Build the Python function that computes an intrinsic by interpreting its TIR meaning."""

    @lru_cache(maxsize=64)
    def compile_for(sizes: tuple[int, ...]) -> Callable[..., None]:
        return compile_func(_meaning_as_func(intrin, sizes))

    # None for a pointer.
    element_types = [None if isinstance(p, ir.Buffer) else to_numpy(_lane_dtype(p.dtype)) for p in intrin.params]
    result = to_numpy(_lane_dtype(intrin.result)) if intrin.result else None

    def call(args: list[Any]) -> Any:
        arrays: list[Array] = []
        for element_type, arg in zip(element_types, args, strict=True):
            if element_type is None:
                memory, start = arg
                arrays += [memory, np.array([start], np.int32)]
            else:
                arrays.append(np.array(arg, element_type).reshape(-1))
        if result is not None:
            arrays.append(np.zeros(int(args[-1]) if intrin.scalable else max(intrin.lanes, 1), result))
        compile_for(tuple(a.size for a in arrays))(arrays, {})
        if result is None:
            return 0
        lanes = arrays[-1].tolist()
        return tuple(lanes) if intrin.lanes else lanes[0]

    return call


def _lane_dtype(dtype: str) -> str:
    """Return the dtype of one lane of a vector dtype. Other dtypes are returned unchanged, also vectors packed in 32
    bits (int16x2), which the interpreter represents as one integer."""
    base, bits, _ = dtypes.dtype_parts(dtype)
    return f"{base}{bits}" if dtypes.is_vector(dtype) else dtype


def _meaning_as_func(intrin: Intrin, sizes: tuple[int, ...]) -> ir.PrimFunc:
    """Build the TIR function that computes an intrinsic, for buffers with these numbers of elements.

    Its parameters are, for each pointer, the whole memory and an offset; for each scalar or vector, an array; and
    last the result."""
    params: list[ir.Buffer] = []
    pointers: dict[ir.Buffer, tuple[ir.Buffer, ir.Load]] = {}
    values: dict[ir.Expr, ir.Expr] = {}
    for param in intrin.params:
        size = sizes[len(params)]
        if isinstance(param, ir.Buffer):
            memory, start = (
                ir.Buffer(f"{param.name}_memory", (size,), param.dtype),
                ir.Buffer(f"{param.name}_at", (1,), "int32"),
            )
            params += [memory, start]
            pointers[param] = memory, start[0]
        else:
            params.append(ir.Buffer(f"{param.name}_in", (size,), _lane_dtype(param.dtype)))
            values[ir.Var(param.name, _lane_dtype(param.dtype))] = params[-1][LANE if size > 1 else 0]

    def on_expr(expr: ir.Expr) -> ir.Expr:
        if isinstance(expr, ir.Load) and expr.buffer in pointers:
            memory, start = pointers[expr.buffer]
            return memory[start + expr.indices[0]]
        return values.get(expr, expr)

    def on_stmt(stmt: ir.Stmt) -> ir.Stmt:
        if isinstance(stmt, ir.Store) and stmt.buffer in pointers:
            memory, start = pointers[stmt.buffer]
            return ir.Store(memory, (start + stmt.indices[0],), stmt.value)
        return stmt

    body = intrin.meaning
    if isinstance(body, ir.Expr):
        params.append(ir.Buffer("result", (sizes[-1],), body.dtype))
        body = ir.Store(params[-1], (LANE if intrin.lanes else ir.const(0, "int32"),), body)
    body = map_stmt(body, on_stmt, lambda x: map_expr(x, on_expr))
    if intrin.lanes:
        body = ir.For(LANE, map_expr(intrin.active_lane_count, on_expr), body)
    return ir.PrimFunc(intrin.name, tuple(params), body)


# ---- Identities: pairs of equal expressions, with the conditions under which they are equal.
#
# Schedules replace the left side by the right side on cores on which this takes fewer instructions, or lets a
# cheaper intrinsic match (:mod:`.rules.around_rules`). Identities are data, as the meanings of
# intrinsics: a new one needs a row of :data:`IDENTITIES`, and tests evaluate both sides of every row.
#
# Names in patterns: x and m are the factors of a high product, c is an addend, s and d are the distances of
# right shifts, v is a float, z a zero point.


THIRDS = 1 << 20
"""Largest magnitude of the left operand of ``product_2_30``, which splits the right operand into three parts."""


@frozen
class Context:
    """Surroundings of an expression.

    - ``root``: the complete expression of the statement that contains it.
    - ``target``: the element that the statement stores to; None if it is not a store.
    - ``notes``: annotations of the blocks around it; those of an inner block come first.
    - ``bindings``: expressions of the iterators of the innermost block, by iterator.
    - ``loop_var``: variable of the innermost loop around that block, apart from unrolled loops; None if there is none."""

    root: ir.Expr | None = None
    target: ir.Load | None = None
    notes: Mapping[str, int | str] = field(default_factory=dict)
    bindings: Mapping[ir.Var, ir.Expr] = field(default_factory=dict)
    loop_var: ir.Var | None = None


@frozen
class Match:
    """Occurrence of a pattern: the expression, its operands by the names of the pattern's variables, and its context."""

    expr: ir.Expr
    operands: Mapping[str, ir.Expr]
    context: Context = Context()

    def value(self, name: str) -> int | float:
        """Return the value of an operand that is a constant."""
        operand = self.operands[name]
        assert isinstance(operand, ir.Const) and operand.value is not None
        return operand.value


Condition = Callable[[Match], bool]


def _always(_: Match) -> bool:
    return True


@frozen
class Identity:
    """Two expressions that are equal for all operands within ranges and conditions.

    - ``pattern``, ``replacement``: expressions of the same variables. A variable of the pattern matches any operand of its dtype.
    - ``constants``: variables that match constants only, each with a typical value, for the cost of the identity.
    - ``ranges``: (variable, least, largest value) for which both sides are equal. They are not checked, because they follow
      from the pattern, which must not overflow: ``x << 1`` implies that x has a spare bit.
    - ``condition``: further condition on the operands. ``context``: condition on statement, block and loops.
    - ``portable``: True if the replacement pays even where the core has no C body for the intrinsics in it.
    - ``scalar``: True if the lowering to the lanes of vectors expects the pattern, so that cores with lanes keep it.
    - ``before_rules``: True if rules depend on the replacement, so that it comes before them.
    - ``is_exact``: False if the replacement is rounded in another way."""

    name: str
    pattern: ir.Expr
    replacement: ir.Expr
    constants: Mapping[str, int | float] = field(default_factory=dict)
    ranges: tuple[tuple[str, float, float], ...] = ()
    condition: Condition = _always
    context: Condition = _always
    portable: bool = False
    scalar: bool = False
    before_rules: bool = False
    is_exact: bool = True

    @property
    def new_calls(self) -> frozenset[str]:
        """Names of the functions that the replacement calls and the pattern does not call."""
        before, after = (
            {x.name for x in walk_expr(side) if isinstance(x, ir.Call)} for side in (self.pattern, self.replacement)
        )
        return frozenset(after - before)


_ONE = ir.const(1, "int32")
_X, _M, _C, _D, _S, _N, _K, _L, _Z = (ir.Var(name) for name in ("x", "m", "c", "d", "s", "n", "k", "l", "z"))
_SPARE_BIT = ("x", -(1 << 30), (1 << 30) - 1)
_SMALL = ("x", -THIRDS, THIRDS)
_MULTIPLIER = ("m", 0, (1 << 31) - 1)
_ADDEND = ("c", -(1 << 28), 1 << 28)


# ---- Fused multiply-add
#
# Sums other than accumulations keep both roundings, which may be intended: rounding to an integer by adding a large number needs
# them. Blocks with the annotation TWO_ROUNDINGS also keep both.


def _is_accumulation(match: Match) -> bool:
    """Test whether an expression is stored to the element c to which it adds, in a block that may round once."""
    context = match.context
    return match.expr is context.root and match.operands["c"] == context.target and TWO_ROUNDINGS not in context.notes


def _list_fused_products() -> Iterator[Identity]:
    """Yield the contraction of ``c[i] = c[i] + a * b`` to ``c[i] = fma(a, b, c[i])``, which rounds once."""
    a, b, c = (ir.Var(name, "float32") for name in "abc")
    yield Identity("fused_product", c + a * b, ir.call("fma", a, b, c), context=_is_accumulation, is_exact=False)


# ---- High multiply-accumulate without the doubling
#
# Both sides are x m / 2**(31 + s), rounded down after k 2**32 is added. An addend that is computed from data, 1 << d, implies
# d >= 1 (:func:`.scaling.scale_with_high_mac`). Rules must see the result, since they store doubled weights for what is doubled.


def _list_halved_operands() -> Iterator[Identity]:
    """Yield ``high_mac(2 x, m, 2 k) >> s = high_mac(x, m, k) >> (s - 1)``."""
    yield Identity(
        "halved_operand",
        ir.call("high_mac", _X << 1, _M, _K) >> _S,
        ir.call("high_mac", _X, _M, _K >> 1) >> (_S - 1),
        constants={"k": 8},
        ranges=(_SPARE_BIT, _MULTIPLIER, ("k", *_ADDEND[1:]), ("s", 1, 31)),
        condition=lambda match: match.value("k") % 2 == 0,
        portable=True,
        scalar=True,
        before_rules=True,
    )
    yield Identity(
        "halved_operand_by_data",
        ir.call("high_mac", _X << 1, _M, (_ONE << _D) * _N) >> (_D + 1),
        ir.call("high_mac", _X, _M, (_ONE << (_D - 1)) * _N) >> _D,
        constants={"n": -255},
        ranges=(_SPARE_BIT, _MULTIPLIER, ("d", 1, 20)),
        portable=True,
        scalar=True,
        before_rules=True,
    )


# ---- Rounding right shifts whose distance changes in the innermost loop
#
# ``high_mac_round(x, m, n << d) >> (d + 1)`` computes its addend from d, which is efficient only if the addend can be moved out
# of the loop. Else two shifts are shorter. Both are equal, because a division that rounds down can be done in two steps.


def _changes_in_innermost_loop(match: Match) -> bool:
    """Test whether the distance d depends on the innermost loop around the block."""
    distance = substitute(match.operands["d"], match.context.bindings)
    return match.context.loop_var in free_vars(distance)


def _list_split_roundings() -> Iterator[Identity]:
    """Yield the rounding shifts of high products by data, in two steps. The product may have a further addend c."""
    for (mac, high), has_addend in product(
        {"high_mac_round": "high_mul_round", "high_mac": "high_product"}.items(), (False, True)
    ):
        rounding, value = (_ONE << _D) * _N, ir.call(high, _X, _M)
        yield Identity(
            f"split_rounding_{mac}{'_plus' if has_addend else ''}",
            ir.call(mac, _X, _M, _C + rounding if has_addend else rounding) >> (_D + 1),
            (((value + _C if has_addend else value) >> _D) + _N) >> 1,
            constants={"n": -255},
            ranges=(_MULTIPLIER, _ADDEND, ("d", 0, 20)),
            context=_changes_in_innermost_loop,
            portable=True,
            scalar=True,
        )


# ---- High multiply-accumulate by its sum, for cores with an instruction for the product alone, doubled or not


def _list_sums_of_products() -> Iterator[Identity]:
    """Yield ``high_mac(x, m, c) = c + high_product(x, m)``, the same rounded, and both of a doubled operand."""
    for (mac, high), (suffix, x) in product(
        {"high_mac_round": "high_mul_round", "high_mac": "high_product"}.items(),
        {"": _X, "_of_doubled": _X << 1}.items(),
    ):
        yield Identity(
            f"{mac}{suffix}_by_sum",
            ir.call(mac, x, _M, _C),
            _C + ir.call(high, x, _M),
            ranges=(*((_SPARE_BIT,) if suffix else ()), _MULTIPLIER, _ADDEND),
            scalar=True,
        )


# ---- High products from 32-bit products of parts of the operands, for cores on which 64-bit products are library calls
#
# Instruction sets declare the intrinsics by an empty C body where the portable C is best. (AVR does not: its 32-bit products are
# library calls, too, and its shifts are loops. The digits example took 16 % more cycles there, and 6 % less flash.)
#
# The shift ``x << 1`` implies that x is in -2**30 .. 2**30 - 1, which ``high_mul`` and ``product_2_31`` require. If the
# annotation ``bound`` of a block keeps its sum within THIRDS, ``product_2_30`` is shorter; its last shift is merged with the
# next one.


def _is_small_sum(match: Match) -> bool:
    """Test whether x is the sum of a block whose annotation keeps it within THIRDS: it reads 32-bit numbers, and is not yet
    scaled or shifted to the left.

    If a multiplier is above one, the sum is shifted to the left first, and the annotation says nothing of the result."""
    bound, x = match.context.notes.get(BOUND), match.operands["x"]
    if not isinstance(bound, int) or bound > THIRDS or (isinstance(x, ir.Bin) and x.op in ("shl", "mul")):
        return False
    nodes = tuple(walk_expr(x))
    reads_sum = any(isinstance(node, ir.Load) and node.dtype in ("int32", "uint32") for node in nodes)
    return reads_sum and not any(isinstance(node, ir.Call) for node in nodes)


def _list_products_by_parts() -> Iterator[Identity]:
    """Yield high products of doubled operands, rounded or not, with and without an addend, as products by parts."""
    third = ir.call("product_2_30", _X, _M)
    for high, mac, by_thirds, by_halves in (
        ("high_mul_round", "high_mac_round", (third + 1) >> 1, ir.call("high_mul", _X, _M)),
        ("high_product", "high_mac", third >> 1, ir.call("product_2_31", _X, _M)),
    ):
        for name, addend in ((high, ()), (mac, (_C,))):
            pattern = ir.call(name, _X << 1, _M, *addend)
            yield Identity(
                f"{name}_by_thirds",
                pattern,
                by_thirds + _C if addend else by_thirds,
                ranges=(_SMALL, _MULTIPLIER, _ADDEND),
                context=_is_small_sum,
            )
            yield Identity(
                f"{name}_by_halves",
                pattern,
                by_halves + _C if addend else by_halves,
                ranges=(_SPARE_BIT, _MULTIPLIER, _ADDEND),
            )
    # Where the right shift of a channel is short, x is shifted by more than one bit (:func:`.scaling.scale_with_high_mac`).
    for name, addend in (("high_product", ()), ("high_mac", (_C,))):
        shifted = ir.call("product_2_31", _X << (_L - 1), _M)
        yield Identity(
            f"{name}_of_shifted_by_halves",
            ir.call(name, _X << _L, _M, *addend),
            shifted + _C if addend else shifted,
            constants={"l": 2},
            ranges=(_SMALL, _MULTIPLIER, _ADDEND),
            condition=lambda match: 2 <= match.value("l") <= 31,
        )


def _list_merged_shifts() -> Iterator[Identity]:
    """Yield ``((p >> 1) + k) >> s = (p + 2 k) >> (s + 1)`` for products p by thirds, which leave room for 2 k.

    The right side is exact because both shifts round down. A shift by 31 already yields the sign alone. Distances that are
    data have the form s - 1 with s up to 31."""
    p: ir.Expr = ir.call("product_2_30", _X, _M)
    for is_rounded, has_addend, is_constant in product((False, True), (False, True), (True, False)):
        inner = p + 1 if is_rounded else p
        pattern, total = inner >> 1, inner
        if has_addend:
            pattern, total = pattern + _K, p + (_K * 2 + int(is_rounded))
        yield Identity(
            "merged_shifts"
            + ("_rounded" if is_rounded else "")
            + ("_plus" if has_addend else "")
            + ("" if is_constant else "_by_data"),
            pattern >> _S,
            total >> (ir.minimum(_S + 1, 31) if is_constant else _S + 1),
            constants={**({"k": 5} if has_addend else {}), **({"s": 3} if is_constant else {})},
            ranges=(_SMALL, _MULTIPLIER, ("s", 0, 30)),
            condition=_has_room_for_doubled_addend if has_addend else _always,
        )


def _has_room_for_doubled_addend(match: Match) -> bool:
    """Test whether twice the addend k, and a product by thirds, fit int32."""
    return abs(2 * match.value("k")) < 1 << 30


# ---- Rounding to integers by one saturating instruction, instead of several that clamp floats first
#
# Operators clamp a float to the range of its integer and round by adding 1.5 * 2**23 (``ops/quantised/scaling.py``).
# ``nearest_i32`` rounds in the same way and accepts any float. Therefore the integers are clamped instead of the floats; clamping
# to the range of a dtype is one instruction.
# The zero point is added between two saturations; without the first one the sum could overflow:
#
#     clamp(r, low, high) + z  =  clamp(clamp(r, -2**15, 2**15 - 1) + z, low + z, high + z),    limits within 16 bits.
#
# A clamp maps NaN to ``low``, the instruction to zero: if v may be NaN, the lower limit stays.

_HUGE = 2.0**100
"""Magnitude below which sums and products of a few values are far from infinity."""
_SHORT = (-(1 << 15), (1 << 15) - 1)
"""Range of int16."""
_EXACT = 1 << 22
"""Magnitude below which the addition of TO_WHOLE rounds to integers."""
_V, _FLOAT_LOW, _FLOAT_HIGH = (ir.Var(name, "float32") for name in ("v", "low", "high"))
_LOW, _HIGH, _OUTER_LOW, _OUTER_HIGH = (ir.Var(name) for name in ("low", "high", "outer_low", "outer_high"))
_WHOLE = ir.const(TO_WHOLE, "float32")


def _has_integer_limits(match: Match) -> bool:
    """Test whether the limits of a clamp of floats are integers."""
    limits = match.value("low"), match.value("high")
    return all(float(limit).is_integer() and abs(limit) < _EXACT for limit in limits) and limits[0] <= limits[1]


def _is_finite(match: Match) -> bool:
    """Test whether the float v has a known bound, so that it cannot be NaN."""
    constants = match.context.notes.get(MAGNITUDE)
    return bound_magnitude(match.operands["v"], float(constants) if isinstance(constants, int) else None) is not None


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


def _list_conversions() -> Iterator[Identity]:
    """Yield the rounding of a clamped float to an integer, and clamps of integers that follow from it."""
    rounded = (ir.minimum(ir.maximum(_V, _FLOAT_LOW), _FLOAT_HIGH) + _WHOLE) - _WHOLE
    limits = ir.cast("int32", _FLOAT_LOW), ir.cast("int32", _FLOAT_HIGH)
    for name, source, context in (
        ("clamp_after_rounding", _V, _is_finite),
        ("clamp_after_rounding_nan", ir.maximum(_V, _FLOAT_LOW), _always),
    ):
        yield Identity(
            name,
            ir.cast("int32", rounded),
            ir.clamp(ir.call("nearest_i32", source, dtype="int32"), *limits),
            constants={"low": -128.0, "high": 127.0},
            ranges=(("v", -_HUGE, _HUGE),),
            condition=_has_integer_limits,
            context=context,
        )
    yield from _list_zero_points()
    for narrow in ("int8", "uint8", "int16", "uint16"):
        yield Identity(
            f"{narrow}_of_rounded",
            _X.astype(narrow).astype("int32"),
            _X,
            ranges=(("x", *dtypes.int_range(narrow)),),
            condition=_is_rounded_within(narrow),
        )
    yield Identity(
        "idle_clamp",
        ir.clamp(ir.clamp(_X, _LOW, _HIGH), _OUTER_LOW, _OUTER_HIGH),
        ir.clamp(_X, _LOW, _HIGH),
        constants={"low": -128, "high": 127, "outer_low": -32768, "outer_high": 32767},
        condition=lambda match: (
            match.value("outer_low") <= match.value("low") <= match.value("high") <= match.value("outer_high")
        ),
    )


def _list_zero_points() -> Iterator[Identity]:
    """Yield the sum of a clamped rounding and a zero point, clamped by saturation to a dtype.

    The dtype shares at least one limit with the sum; another limit remains a minimum or maximum."""
    rounded = ir.call("nearest_i32", _V, dtype="int32")
    for name, ends in SATURATED.items():
        saturated = ir.clamp(ir.clamp(rounded, *_SHORT) + _Z, *ends)
        for suffix, value in (
            ("", saturated),
            ("_above", ir.maximum(saturated, _LOW + _Z)),
            ("_below", ir.minimum(saturated, _HIGH + _Z)),
        ):
            yield Identity(
                f"zero_point_{name}{suffix}",
                ir.clamp(rounded, _LOW, _HIGH) + _Z,
                value,
                constants={"low": -100, "high": 100, "z": -3},
                ranges=(("v", -_HUGE, _HUGE),),
                condition=_shares_limits(ends, suffix),
            )


def _shares_limits(ends: tuple[int, int], suffix: str) -> Condition:
    """Return the condition that a sum is clamped within ``ends``, and shares these limits except the one that ``suffix``
    names."""

    def shares_limits(match: Match) -> bool:
        low, high, z = (int(match.value(name)) for name in ("low", "high", "z"))
        fits = ends[0] <= low + z <= high + z <= ends[1] and within((low, high), _SHORT)
        return fits and (low + z != ends[0], high + z != ends[1]) == (suffix == "_above", suffix == "_below")

    return shares_limits


def _is_rounded_within(narrow: str) -> Condition:
    """Return the condition that x is a rounded float within the range of the dtype ``narrow``."""

    def is_rounded_within(match: Match) -> bool:
        x = match.operands["x"]
        is_rounded = any(isinstance(node, ir.Call) and node.name == "nearest_i32" for node in walk_expr(x))
        bounds = bounds_of(x) if is_rounded else None
        return bounds is not None and within(bounds, dtypes.int_range(narrow))

    return is_rounded_within


_BY_OLD_STEP = {
    "select_fma": (*_list_fused_products(),),
    "select_high_mac": (*_list_halved_operands(),),
    "select_rounding": (*_list_split_roundings(),),
    "select_high_mul": (*_list_products_by_parts(), *_list_merged_shifts()),
    "select_conversion": (*_list_conversions(),),
}
IDENTITIES: Mapping[str, Identity] = MappingProxyType(
    {
        identity.name: identity
        for identities in (*_BY_OLD_STEP.values(), _list_sums_of_products())
        for identity in identities
    }
)
"""All identities, by name."""
OLD_STEPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {step: tuple(identity.name for identity in identities) for step, identities in _BY_OLD_STEP.items()}
)
"""Names of identities by a step that did the same in traces of older schedules, which records of tuning contain."""
