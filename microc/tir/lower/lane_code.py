# SPDX-License-Identifier: Apache-2.0
"""Rewriting of the body of a loop over lanes with vector intrinsics.

:class:`LaneBodyRewriter` walks statements and expressions. :class:`VectorOperations` provides operations whose intrinsic
depends on which operands are uniform (equal in all lanes): products, shifts, saturation. A body that cannot be vectorised
raises NotVectorizableError.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from microc.base import dtypes
from microc.tir import ir
from microc.tir.analysis.linear_forms import within
from microc.tir.analysis.region import memory_stride
from microc.tir.analysis.simplification import bounds_of, linear, simplify
from microc.tir.lower.lane_scope import (
    ELEMENTS,
    SHORT,
    WORD_LOADS,
    LaneScope,
    NotVectorizableError,
    divide_by_constant,
    match_doubling_multiply,
    match_rounded_product,
    match_rounding_shift,
    negate_sum,
)
from microc.tir.names import LANE_OPERATORS, SHIFTED_SATURATIONS, SUFFIXES
from microc.tir.names import SATURATED as SATURATING_INTRINSICS
from microc.tir.rewrite import map_expr

# ---- Arithmetic on lanes: operations whose intrinsic depends on whether an operand is uniform (equal in all lanes).

TYPES = MappingProxyType({dtype: suffix for dtype, suffix in SUFFIXES.items() if dtype != "float32"})
"""Suffixes of the intrinsics that load, store, gather and scatter elements, by the dtype of the elements in memory."""
_NUMBERS = ("add", "sub", "mul")
"""Integer operations that have an intrinsic with the suffix ``_n``, whose second operand is a scalar for all lanes."""
SATURATED = ("int8", "int16")
"""Dtypes for which there are store intrinsics that saturate int32 lanes to the dtype."""
NARROWING_SUFFIX, NARROWING_DISTANCES = "i32x4", range(2, 16)
"""Suffix of the vectors that have stores with a rounding shift to the right, and the distances of these shifts."""
SCALABLE_SCALAR_OPS = ("min", "max")
"""Operations that have an intrinsic with the suffix ``_n`` for scalable vectors only."""
CLAMPS: Mapping[str, tuple[int, int, int]] = MappingProxyType(
    {
        **{name: (*bounds, 0) for name, bounds in SATURATING_INTRINSICS.items()},
        **{name: (*SATURATING_INTRINSICS[base], shift) for name, (base, shift) in SHIFTED_SATURATIONS.items()},
    }
)
"""Saturating intrinsics by name: (lowest value, highest value, number of bits by which the operand is shifted right first)."""


LANE_CALLS = frozenset(
    {*CLAMPS, "high_mul_round", "high_product", "high_mac", "high_mac_round", "dot2", "dot4_i8", "dot4_u8"}
)
"""Scalar intrinsics that loops over lanes compute on every core with vectors."""


class VectorOperations(LaneScope):
    """Vector arithmetic of a loop over lanes: products, shifts and saturation.

    The intrinsic depends on which operands are uniform (equal in all lanes)."""

    def convert_rounding_operation(self, expr: ir.Expr) -> ir.Expr | None:
        """Return a rounding multiplication or rounding right shift as vector intrinsics; None for other expressions."""
        product = match_doubling_multiply(expr)
        if product is not None:
            return self.call_vector_operation("doubling_high_mul", *product, has_scalar_form=True)
        once = match_rounded_product(expr)
        if once is not None:
            x, m, distance, addend = once
            rounded = self.shift_right(
                self.call_vector_operation("doubling_high_floor", x, m, has_scalar_form=True), distance, rounds=True
            )
        else:
            found = match_rounding_shift(expr)
            if found is None:
                return None
            value, distance, addend = found
            rounded = self.shift_right(self.to_vector(value), distance, rounds=True)
        if not addend:
            return rounded
        number = ir.const(addend, "int32")
        return (
            self.call_intrinsic("add", rounded, self.broadcast(number))
            if self.active_lane_count is None
            else self.call_intrinsic("add_n", rounded, number)
        )

    def try_multiply_add(self, total: ir.Expr, x: ir.Expr, y: ir.Expr) -> ir.Expr | None:
        """Return ``total + x * y`` as a multiply-add of scalable vectors; None if there is no instruction for it.

        If both factors are int16 or narrower, a widening multiply-add is used, because int16 vectors need half the registers
        of int32 vectors.
        """
        vector, other = (x, y) if self.varies_between_lanes(x) else (y, x)
        short, number = self.load_int16_vector(vector), not self.varies_between_lanes(other)
        if short is not None and number and is_loaded_as_int16(other):
            return self.call_intrinsic("mac_short_n", self.to_vector(total), short, self.to_uniform_scalar(other))
        if short is not None and (factor := self.load_int16_vector(other)) is not None:
            return self.call_intrinsic("mac_short", self.to_vector(total), short, factor)
        return (
            None if number else self.call_intrinsic("mac", self.to_vector(total), self.to_vector(x), self.to_vector(y))
        )

    def load_int16_vector(self, value: ir.Expr) -> ir.Expr | None:
        """Return a load of consecutive elements of int16 or narrower as a vector of int16; None for other expressions."""
        match value:
            case ir.Cast("int32", ir.Load(buffer, indices) as load) if is_loaded_as_int16(value):
                if buffer.scope == "register" or self.lane_stride(load) != 1:
                    return None
                name = f"load_{TYPES[buffer.dtype]}_{self.intrinsic_suffix(SHORT)}"
                place = self.first_lane_address(buffer, indices, 1, writes=False)
                return ir.Call(*self.limit_access_to_active_lanes(name, (place,)), self.vector_dtype(SHORT))
            case _:
                return None

    def call_vector_operation(self, name: str, a: ir.Expr, b: ir.Expr, *, has_scalar_form: bool = False) -> ir.Expr:
        """Return the vector operation ``name`` on the operands ``a`` and ``b``.

        If an operand is uniform, the intrinsic with the suffix ``_n`` is used, whose second operand is a scalar.
        ``has_scalar_form``: there is such an intrinsic. For the names in ``_NUMBERS`` this is known without the parameter."""
        has_scalar_form = (
            has_scalar_form or name in _NUMBERS or (self.active_lane_count is not None and name in SCALABLE_SCALAR_OPS)
        )
        if has_scalar_form and not self.varies_between_lanes(b):
            return self.call_intrinsic(f"{name}_n", self.to_vector(a), self.to_uniform_scalar(b))
        if name in ("add", "mul") and not self.varies_between_lanes(a):
            return self.call_intrinsic(f"{name}_n", self.to_vector(b), self.to_uniform_scalar(a))
        return self.call_intrinsic(name, self.to_vector(a), self.to_vector(b))

    def shift_left(self, vector: ir.Expr, distance: ir.Expr, *, rounds: bool) -> ir.Expr:
        """Return a vector shifted left by ``distance``, which may differ between lanes. A negative distance shifts right.

        ``rounds``: right shifts are rounded."""
        name = "shift_round" if rounds else "shl"
        if self.varies_between_lanes(distance):
            return self.call_intrinsic(name, vector, self.to_vector(distance))
        return self.call_intrinsic(f"{name}_n", vector, self.to_uniform_scalar(distance))

    def shift_right(self, vector: ir.Expr, distance: ir.Expr, *, rounds: bool) -> ir.Expr:
        """Return a vector shifted right by ``distance``, 0 to 31, which may differ between lanes.

        ``rounds``: the result is rounded."""
        if self.active_lane_count is None:
            return self.shift_left(vector, negate_sum(distance), rounds=rounds)
        name = "right_round" if rounds else "right"
        if not self.varies_between_lanes(distance):
            return self.call_intrinsic(f"{name}_n", vector, self.to_uniform_scalar(distance))
        terms, _ = linear(distance)
        # If the distance is the negation of a varying value, one ``neg`` of that vector is enough.
        left = all(factor < 0 for factor in terms.values())
        places = self.call_intrinsic("neg", self.to_vector(negate_sum(distance))) if left else self.to_vector(distance)
        return self.call_intrinsic(name, vector, places)

    def wrap_to_dtype(self, narrow_dtype: str, a: ir.Expr) -> ir.Expr:
        """Return the vector of an int32 value that is cast to ``narrow_dtype`` and back to int32.

        The value is unchanged if its bounds fit the dtype. Otherwise it is reduced modulo 2**bits: by a mask if the dtype is
        unsigned, by two shifts if it is signed."""
        reach, room = bounds_of(simplify(_saturation_to_clamp(a))), dtypes.int_range(narrow_dtype)
        if reach is not None and within(reach, room):
            return self.to_vector(a)
        if not room[0]:
            return self.to_vector(a & room[1])
        up = ir.const(32 - dtypes.dtype_parts(narrow_dtype).bits, "int32")
        return self.shift_right(self.shift_left(self.to_vector(a), up, rounds=False), up, rounds=False)


def _saturation_to_clamp(expr: ir.Expr) -> ir.Expr:
    """Return a clamp with the same range in place of a saturating intrinsic, so that the range can be derived."""
    if isinstance(expr, ir.Call) and expr.name in CLAMPS:
        low, high, _ = CLAMPS[expr.name]
        return ir.clamp(ir.Var("any"), low, high)
    return expr


def saturation_operand(saturation: ir.Call) -> ir.Expr:
    """Return the operand of a saturating intrinsic, shifted right as the intrinsic does before it saturates."""
    (a,), (_, _, shift) = saturation.args, CLAMPS[saturation.name]
    return a >> shift if shift else a


def match_saturation(expr: ir.Expr, dtype: str) -> ir.Expr | None:
    """Return x if the expression is x clamped to the whole range of ``dtype``; None for other expressions."""
    match expr:
        case ir.Bin("min", ir.Bin("max", a, ir.Const(value=low)), ir.Const(value=high)) if dtype in SATURATED and (
            low,
            high,
        ) == dtypes.int_range(dtype):
            return a
        case ir.Call(name, (a,)) if name in CLAMPS and CLAMPS[name][:2] == dtypes.int_range(dtype):
            return saturation_operand(expr)
        case _:
            return None


def is_loaded_as_int16(value: ir.Expr) -> bool:
    """Test whether an expression is a load, widened by a cast, of int16 elements or of elements whose range int16 contains."""
    return (
        isinstance(value, ir.Cast) and isinstance(value.a, ir.Load) and dtypes.contains_range_of(SHORT, value.a.dtype)
    )


# ---- Rewriting of the body of a loop over lanes (:mod:`microc.tir.lower.lanes`).
#
# Rounding operations become one instruction each: the doubling high multiply ``(2 x m + 2**31) >> 32``, which scalar code
# writes as ``high_mul_round``, and the rounding shift ``((x >> (n - 1)) + 1) >> 1``. A constant that is part of the rounding term
# is added afterwards.

HALVES = MappingProxyType({"float16": "f16", "bfloat16": "bf16"})
"""Suffixes of the intrinsics that load 16-bit floats and convert them to float32."""
NARROWED = 3
"""Lowest value of the annotation ``floats`` that allows vectors of floats to be stored as float16."""
_FLOAT_OPS = frozenset({"add", "sub", "mul", "div", "min", "max"})
FLOAT_CALLS = frozenset({"fma", "sqrt", "rint", "floor", "fabs"})
"""Float functions that have vector intrinsics."""


class LaneBodyRewriter(VectorOperations):
    """Rewriter of the body of a loop with vector intrinsics. Each iteration becomes a lane."""

    def rewrite_store(self, buffer: ir.Buffer, indices: tuple[ir.Expr, ...], value: ir.Expr) -> ir.Stmt:
        """Return the vector statement for a store to a register, to consecutive elements, or to elements at a constant stride."""
        if buffer in self.vector_of_register_array:
            return ir.Store(self.vector_of_register_array[buffer], indices, self.to_vector(value))
        if buffer in self.vector_tiles:
            return ir.Store(self.vector_tiles[buffer], self.vector_index(indices), self.to_vector(value))
        if buffer.dtype == "float32":
            if buffer.scope == "register" or memory_stride(buffer, indices, self.var) != 1:
                raise NotVectorizableError
            target = self.first_lane_address(buffer, indices, 1, writes=True)
            stored = self.limit_access_to_active_lanes(
                f"store_f32_{self.intrinsic_suffix('float32')}", (target, self.to_vector(value))
            )
            return ir.Evaluate(ir.Call(*stored, "int32"))
        if buffer.dtype == "float16" and isinstance(value, ir.Cast) and value.a.dtype == "float32":
            if (
                self.float_level < NARROWED
                or buffer.scope == "register"
                or memory_stride(buffer, indices, self.var) != 1
            ):
                raise NotVectorizableError
            target = self.first_lane_address(buffer, indices, 1, writes=True)
            stored = self.limit_access_to_active_lanes(
                f"store_f16_{self.intrinsic_suffix('float32')}", (target, self.to_vector(value.a))
            )
            return ir.Evaluate(ir.Call(*stored, "int32"))
        kind, step = TYPES.get(buffer.dtype), memory_stride(buffer, indices, self.var)
        if buffer.scope == "register" or kind is None or step is None or step < 1:
            raise NotVectorizableError
        # Vector stores keep the low bits of int32 lanes, as the cast does: the cast itself needs no instruction.
        narrow = value.a if isinstance(value, ir.Cast) and value.a.dtype == "int32" else value
        if narrow.dtype != "int32":
            narrow = ir.cast("int32", narrow)
        target = self.first_lane_address(buffer, indices, step, writes=True)
        where = (target,) if step == 1 else (target, self.lane_offsets(step))
        name = f"{'store' if step == 1 else 'scatter'}_{kind}_{self.intrinsic_suffix()}"
        # Scalable vectors always saturate. Other vectors saturate if the value is a call, which the schedule inserts for cores
        # that have instructions for it.
        saturates = self.active_lane_count is not None or isinstance(narrow, ir.Call)
        if step == 1 and saturates and (inner := match_saturation(narrow, buffer.dtype)) is not None:
            name, narrow = self.saturating_store(kind, inner)
        return ir.Evaluate(ir.Call(*self.limit_access_to_active_lanes(name, (*where, self.to_vector(narrow))), "int32"))

    def saturating_store(self, kind: str, value: ir.Expr) -> tuple[str, ir.Expr]:
        """Return the intrinsic that saturates a vector to the dtype ``kind`` and stores it, and the vector's value.

        If the value is a rounding shift, the intrinsic shifts, too."""
        match match_rounding_shift(value):
            case (operand, ir.Const(int() as distance), 0) if (
                self.intrinsic_suffix() == NARROWING_SUFFIX and distance in NARROWING_DISTANCES
            ):
                return f"store_saturated_{kind}_rshr_{distance}_{NARROWING_SUFFIX}", operand
            case _:
                return f"store_saturated_{kind}_{self.intrinsic_suffix()}", value

    def to_vector(self, expr: ir.Expr) -> ir.Expr:
        """Return an int32 or float32 expression as a vector of its values in all lanes."""
        if not self.varies_between_lanes(expr):
            return self.broadcast(expr)
        match expr:
            case ir.Var() if expr in self.vector_of_variable:
                return self.vector_of_variable[expr]
            case ir.Load(buffer, indices) if buffer in self.vector_of_register_array:
                return ir.Load(self.vector_of_register_array[buffer], indices)
            case ir.Load(buffer, indices) if buffer in self.vector_tiles:
                return ir.Load(self.vector_tiles[buffer], self.vector_index(indices))
            case ir.Select(condition, a, b) if not self.varies_between_lanes(condition) and expr.dtype in ELEMENTS:
                return ir.Select(self.to_uniform_scalar(condition), self.to_vector(a), self.to_vector(b))
        return self.convert_float(expr) if expr.dtype == "float32" else self.convert_integer(expr)

    def convert_float(self, expr: ir.Expr) -> ir.Expr:
        """Return the vector of a float32 expression that differs between lanes."""
        match expr:
            case ir.Load(buffer, indices):
                if buffer.scope == "register" or self.lane_stride(expr) != 1:
                    raise NotVectorizableError
                source = self.first_lane_address(buffer, indices, 1, writes=False)
                return ir.Call(
                    *self.limit_access_to_active_lanes(f"load_f32_{self.intrinsic_suffix('float32')}", (source,)),
                    self.vector_dtype("float32"),
                )
            case ir.Cast("float32", ir.Load(buffer, indices) as load) if buffer.dtype in HALVES:
                if self.lane_stride(load) != 1:
                    raise NotVectorizableError
                name = f"load_{HALVES[buffer.dtype]}_{self.intrinsic_suffix('float32')}"
                source = self.first_lane_address(buffer, indices, 1, writes=False)
                return ir.Call(*self.limit_access_to_active_lanes(name, (source,)), self.vector_dtype("float32"))
            case ir.Bin(op, a, b) if op in _FLOAT_OPS:
                return self.call_intrinsic(op, self.to_vector(a), self.to_vector(b), element="float32")
            case ir.Un("neg", a):
                # Not 0 - a, which has the wrong sign for a = 0.
                return self.call_intrinsic(
                    "mul", self.to_vector(a), self.broadcast(ir.const(-1.0, "float32")), element="float32"
                )
            case ir.Call("fma", (a, b, total)) if self.float_level > 1 and self.varies_between_lanes(
                a
            ) != self.varies_between_lanes(b):
                vector, number = (a, b) if self.varies_between_lanes(a) else (b, a)
                return self.call_intrinsic(
                    "fma_n",
                    self.to_vector(vector),
                    self.to_uniform_scalar(number),
                    self.to_vector(total),
                    element="float32",
                )
            case ir.Call(name, args) if name in self.lane_forms:
                return self.call_intrinsic(name, *map(self.to_vector, args), element="float32")
            case ir.Call(name, args) if name in FLOAT_CALLS:
                return self.call_intrinsic(name, *map(self.to_vector, args), element="float32")
            case ir.Select(ir.Bin(op, x, y), a, b) if op in ir.COMPARISONS and x.dtype == "float32":
                chosen = (self.to_vector(e) for e in (x, y, self.clamp_table_indices(a), self.clamp_table_indices(b)))
                return self.call_intrinsic(f"select_{op}", *chosen, element="float32")
            case ir.Select(ir.Bin("or", ir.Bin(_, x) as one, other), a, b) if x.dtype == "float32":
                # ``or`` has no vector form; each test becomes a select of its own.
                return self.to_vector(ir.Select(one, a, ir.Select(other, a, b)))
            case ir.Call(ir.REINTERPRET, (a,)) if a.dtype in ("int32", "uint32"):
                return self.call_intrinsic("of_bits", self.to_vector(_reinterpret_as_signed(a)), element="float32")
            case ir.Cast("float32", a) if a.dtype in ("int32", *TYPES):
                return self.call_intrinsic("from_i32", self.to_vector(ir.cast("int32", a)), element="float32")
            case _:
                raise NotVectorizableError

    def convert_integer(self, expr: ir.Expr) -> ir.Expr:
        """Return the vector of an int32 expression that differs between lanes.

        The order of the cases matters: rounding operations precede the shifts and products that they contain, widened loads
        precede other casts, and multiply-adds precede additions.
        """
        special = self.convert_rounding_operation(expr)
        if special is not None:
            return special
        match expr:
            case ir.Load() if expr.dtype == "int32":
                return self.rewrite_load(expr)
            case ir.Cast("int32", ir.Load() as load):
                return self.rewrite_load(load)
            # Widening twice is widening once.
            case ir.Cast("int32", ir.Cast(wider, a)) if a.dtype in TYPES and dtypes.contains_range_of(wider, a.dtype):
                return self.to_vector(ir.cast("int32", a))
            case ir.Cast("int32", ir.Cast(narrow, a)) if a.dtype == "int32":
                return self.wrap_to_dtype(narrow, a)
            case ir.Cast("int32", ir.Select(condition, a, b)):
                return self.to_vector(ir.Select(condition, ir.cast("int32", a), ir.cast("int32", b)))
            # uint32 arithmetic modulo 2**32 has the same bits in int32 lanes, which wrap around, too.
            case ir.Cast("int32", ir.Bin() as wrapping) if wrapping.dtype == "uint32":
                return self.to_vector(_reinterpret_as_signed(wrapping))
            case ir.Bin("add", a, ir.Bin("mul", x, y)) if self.active_lane_count is not None and (
                addend := self.try_multiply_add(a, x, y)
            ):
                return addend
            case ir.Bin("add", a, ir.Bin("mul", x, y)) if expr.dtype == "int32" and self.varies_between_lanes(
                x
            ) != self.varies_between_lanes(y):
                vector, number = (x, y) if self.varies_between_lanes(x) else (y, x)
                return self.call_intrinsic(
                    "mac_n", self.to_vector(a), self.to_vector(vector), self.to_uniform_scalar(number)
                )
            case ir.Bin(op, a, b) if op in LANE_OPERATORS and expr.dtype == "int32":
                return self.call_vector_operation(LANE_OPERATORS[op], a, b)
            case ir.Bin("truncdiv", a, ir.Const(int() as divisor)) if expr.dtype == "int32" and divisor > 1:
                return self.to_vector(divide_by_constant(a, divisor))
            case ir.Bin(("shl" | "shr") as op, a, b) if expr.dtype == "int32":
                vector = self.to_vector(a)
                return (
                    self.shift_left(vector, b, rounds=False)
                    if op == "shl"
                    else self.shift_right(vector, b, rounds=False)
                )
            case ir.Un("neg", a) if a.dtype == "int32" and self.active_lane_count is not None:
                return self.call_intrinsic("neg", self.to_vector(a))
            case ir.Un("neg", a) if a.dtype == "int32":
                return self.call_intrinsic("sub", self.broadcast(ir.const(0, "int32")), self.to_vector(a))
            case ir.Select(ir.Bin(op, x, y), a, b) if op in ir.COMPARISONS and x.dtype == "int32":
                return self.call_intrinsic(
                    f"select_{op}",
                    *(self.to_vector(e) for e in (x, y, self.clamp_table_indices(a), self.clamp_table_indices(b))),
                )
            # int16 has a saturating instruction; saturation to bytes is a min and a max.
            case ir.Call(name) if name in CLAMPS and CLAMPS[name][:2] == dtypes.int_range("int16"):
                return self.call_intrinsic("saturate_i16", self.to_vector(saturation_operand(expr)))
            case ir.Call(name) if name in CLAMPS:
                low, high, _ = CLAMPS[name]
                return self.to_vector(ir.clamp(saturation_operand(expr), low, high))
            case ir.Call(name, args) if name in self.lane_forms and expr.dtype == "int32":
                return self.call_intrinsic(name, *map(self.to_vector, args))
            case ir.Call("high_mul_round" | "high_product" as name, (a, b)):
                return self.call_intrinsic(name, self.to_vector(a), self.to_vector(b))
            case ir.Call("dot2" | "dot4_i8" | "dot4_u8" as name, args):
                return self.call_intrinsic(name, *map(self.to_vector, args))
            case ir.Call(name, (ir.AddressOf() as place,)) if name in WORD_LOADS:
                # Lanes must read adjacent words, so that one vector load reads all of them; there is no predicated form.
                if not self.uses_all_lanes() or memory_stride(place.buffer, place.indices, self.var) != place.extent:
                    raise NotVectorizableError
                elements = self.first_lane_address(place.buffer, place.indices, 1, writes=False)
                return self.call_intrinsic(name, replace(elements, extent=place.extent * self.lanes.count))
            case ir.Call(ir.REINTERPRET, (a,)) if (a.dtype, expr.dtype) == ("float32", "int32"):
                return self.call_intrinsic("bits", self.to_vector(a))
            case ir.Cast("int32", a) if a.dtype == "float32":
                # rint and the conversion are one instruction; a bare conversion truncates.
                rounds = isinstance(a, ir.Call) and a.name == "rint"
                number = self.to_vector(a.args[0] if rounds and isinstance(a, ir.Call) else a)
                return self.call_intrinsic("nearest" if rounds else "toward_zero", number)
            case _:
                raise NotVectorizableError

    def rewrite_load(self, load: ir.Load) -> ir.Expr:
        """Return the vector of a load whose element differs between lanes.

        Elements are consecutive, at a constant stride, or looked up in a table by computed indices."""
        kind = TYPES.get(load.dtype)
        if kind is None or load.buffer.scope == "register":
            raise NotVectorizableError
        step = self.lane_stride(load)
        if step is not None and step > 0:
            where = (self.first_lane_address(load.buffer, load.indices, step, writes=False),)
            name, args = ("load", where) if step == 1 else ("gather", (*where, self.lane_offsets(step)))
            return ir.Call(
                *self.limit_access_to_active_lanes(f"{name}_{kind}_{self.intrinsic_suffix()}", args),
                self.vector_dtype(),
            )
        if len(load.indices) == 1:  # a table, looked up by value
            table = ir.AddressOf(load.buffer, (ir.const(0, "int32"),), load.buffer.size)
            args = (table, self.to_vector(load.indices[0]))
            return ir.Call(
                *self.limit_access_to_active_lanes(f"gather_{kind}_{self.intrinsic_suffix()}", args),
                self.vector_dtype(),
            )
        raise NotVectorizableError

    def clamp_table_indices(self, expr: ir.Expr) -> ir.Expr:
        """Return an operand of a select with the indices of table lookups clamped to the table.

        Vectors compute both operands of a select in all lanes. So a table is also read in lanes in which the condition guards
        against an index that is out of range.
        """

        def clamp_index_of_lookup(e: ir.Expr) -> ir.Expr:
            match e:
                case ir.Load(buffer, (place,)) if self.varies_between_lanes(e) and self.lane_stride(e) is None:
                    return ir.Load(buffer, (simplify(ir.clamp(place, 0, buffer.size - 1)),))
                case _:
                    return e

        return map_expr(expr, clamp_index_of_lookup)


def _reinterpret_as_signed(expr: ir.Expr) -> ir.Expr:
    """Return the int32 expression that has the same bits as a uint32 expression; arithmetic in its lanes wraps around."""
    match expr:
        case ir.Const(int() as value, "uint32"):
            return ir.const(value - (1 << 32 if value >> 31 else 0), "int32")
        case ir.Call(ir.REINTERPRET, (a,), "uint32"):
            return ir.reinterpret("int32", a)
        case ir.Cast("uint32", a) if a.dtype == "int32":
            return a
        case ir.Bin("add" | "sub" | "mul" | "bitand" | "bitor" | "bitxor" | "shl" as op, a, b) if (
            expr.dtype == "uint32"
        ):
            return ir.Bin(op, _reinterpret_as_signed(a), _reinterpret_as_signed(b))
        case _:
            return expr
