# SPDX-License-Identifier: Apache-2.0
"""Vectorisation of a loop over lanes: its state, the names of vector intrinsics, and patterns of rounding arithmetic."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from microc.tir import ir
from microc.tir.analysis.context import buffers_read
from microc.tir.analysis.region import build_address, memory_stride
from microc.tir.analysis.simplification import linear, simplify
from microc.tir.names import WORD_LANES, Lanes
from microc.tir.rewrite import substitute, walk_expr, walk_stmt

# ---- Patterns of rounding arithmetic: scalar expressions that one vector instruction computes.


def match_doubling_multiply(expr: ir.Expr) -> tuple[ir.Expr, ir.Expr] | None:
    """Match ``(x m + 2**30) >> 31``, written as ``high_mul_round(2 x, m)`` or in int64; return (x, m).

    None for other expressions."""
    match expr:
        case ir.Call("high_mul_round", (a, b)):
            half = _match_doubled_value(a)
            return None if half is None else (half, b)
        case ir.Cast(
            "int32",
            ir.Bin(
                "shr",
                ir.Bin("add", ir.Bin("mul", ir.Cast("int64", a), factor), ir.Const(value=1073741824)),
                ir.Const(value=31),
            ),
        ):
            small = _match_widened_int32(factor)
            return None if small is None or a.dtype != "int32" else (a, small)
        case _:
            return None


def divide_by_constant(value: ir.Expr, divisor: int) -> ir.Expr:
    """Return an expression for ``value`` divided by the constant ``divisor`` > 1, truncated towards zero.

    It multiplies instead of dividing. Let x be the value, d the divisor, m = 2**(32 + s) // d + 1 and e = m d - 2**(32 + s).
    Then x m / 2**(32 + s) exceeds x / d by x e / (d 2**(32 + s)). For 0 <= x < 2**31 this difference is below 1 / d if
    e <= 2**(s + 1), so both numbers have the same floor. For -2**31 <= x < 0 the product is below x / d, by at most 1 / d.
    Its floor is one less than the truncated quotient, so ``x >> 31`` is subtracted. m may need 33 bits as a signed number;
    then x is multiplied by m - 2**32 and added to the high half of the product. (Granlund and Montgomery, Division by
    Invariant Integers using Multiplication, 1994.)"""
    shift = next(s for s in range(32) if divisor - (1 << (32 + s)) % divisor <= 1 << (s + 1))
    factor = (1 << (32 + shift)) // divisor + 1
    wide = factor >= 1 << 31
    high: ir.Expr = ir.call("high_product", value, ir.const(factor - (1 << 32) if wide else factor, "int32"))
    high = high + value if wide else high
    return (high >> shift if shift else high) - (value >> 31)


def _match_widened_int32(factor: ir.Expr) -> ir.Expr | None:
    """Return the int32 expression that ``factor`` widens to int64; None for other expressions."""
    match factor:
        case ir.Const(int() as value) if -(1 << 31) <= value < 1 << 31:
            return ir.const(value, "int32")
        case ir.Cast("int64", a) if a.dtype == "int32":
            return a
        case _:
            return None


def _match_doubled_value(expr: ir.Expr) -> ir.Expr | None:
    """Return x if ``expr`` is ``2 x``; None for other expressions. Callers exclude that ``2 x`` overflows."""
    match expr:
        case ir.Bin("shl", a, ir.Const(int() as n)) if n >= 1:
            return a << (n - 1) if n > 1 else a
        case ir.Bin("mul", a, ir.Const(int() as factor)) if factor > 0 and factor % 2 == 0:
            return a * (factor // 2) if factor > 2 else a
        case _:
            return None


def negate_sum(expr: ir.Expr) -> ir.Expr:
    """Return the negation of a sum, with each term negated, so that ``-(a - b)`` becomes ``b - a``."""
    terms, offset = linear(expr)
    total: ir.Expr = ir.const(-offset, "int32")
    for term, factor in terms.items():
        part = term if abs(factor) == 1 else term * abs(factor)
        total = total + part if factor < 0 else total - part
    return simplify(total)


def match_rounding_shift(expr: ir.Expr) -> tuple[ir.Expr, ir.Expr, int] | None:
    """Match ``((x + 2**(n - 1)) >> n) + z`` with 1 <= n <= 31, a right shift that rounds half up; return (x, n, z).

    None for other expressions. Two forms match. In the first, the rounding term is added before the shift, and may include
    z * 2**n; if n is not constant, ``high_mac_round`` adds it. In the second, the shift has two steps, by n - 1 bits and by one
    bit, and 1 + 2 z is added between them, which cannot overflow."""
    match expr:
        case ir.Bin("shr", ir.Call("high_mac_round", (x, m, addend)), distance):
            return _split_rounding(ir.call("high_mul_round", x, m), addend, simplify(distance))
        case ir.Bin("shr", ir.Bin("add", ir.Bin("shr", x, distance), ir.Const(int() as addend)), ir.Const(value=1)) if (
            addend % 2 == 1
        ):
            return x, simplify(distance + 1), (addend - 1) // 2
        case ir.Bin("shr", ir.Bin("add", x, ir.Const(int() as addend)), ir.Const(int() as n)) if n >= 1:
            # addend = 2**(n - 1) + z * 2**n; anything else does not round half up.
            rest, remainder = divmod(addend - (1 << (n - 1)), 1 << n)
            return (x, ir.const(n, "int32"), rest) if remainder == 0 and x.dtype == "int32" else None
        case _:
            return None


def match_rounded_product(expr: ir.Expr) -> tuple[ir.Expr, ir.Expr, ir.Expr, int] | None:
    """Match ``((x m + 2**(n + 30)) >> (n + 31)) + z``, a product that is rounded once; return (x, m, n, z).

    None for other expressions. The product is written as ``high_mac(2 x, m, k) >> n`` or as ``high_mac(x, m, k) >> (n - 1)``,
    where k contains the rounding term and z.
    """
    match expr:
        case ir.Bin("shr", ir.Call("high_mac", (a, m, addend)), distance):
            parts, half = _split_rounding(a, addend, simplify(distance)), _match_doubled_value(a)
        case _:
            return None
    if parts is None or parts[0] != a:
        return None
    _, distance, steps = parts
    return (a, m, simplify(distance + 1), steps) if half is None else (half, m, distance, steps)


def _split_rounding(product: ir.Expr, addend: ir.Expr, distance: ir.Expr) -> tuple[ir.Expr, ir.Expr, int] | None:
    """Split the rounding term off ``(product + addend) >> distance``; return (product + rest, distance, z).

    Here ``addend`` is (1 + 2 z) * 2**(distance - 1) + rest. None if it has no such form. If the distance is constant, the
    rounding term is in the constant offset of ``addend``; otherwise it is a multiple of ``1 << (distance - 1)``.
    """
    terms, offset = linear(addend)
    if isinstance(distance, ir.Const):
        rest, remainder = divmod(offset - (1 << (int(distance.value) - 1)), 1 << int(distance.value))
        steps, others = 1 + 2 * rest if remainder == 0 else 0, list(terms.items())
    else:
        half = ir.const(1, "int32") << simplify(distance - 1)
        steps, others = terms.get(half, 0), [(t, factor) for t, factor in terms.items() if t != half]
        if offset:
            return None
    if steps % 2 == 0:
        return None
    for term, factor in others:
        product = product + (term if factor == 1 else term * factor)
    return product, distance, (steps - 1) // 2


# ---- State of a loop over lanes: variables and registers that differ between lanes, names of intrinsics for its vector width,
# and values that are computed before the loop (:mod:`microc.tir.lower.lane_code` uses it).

ELEMENTS = ("int32", "float32")
"""Dtypes of the elements of vectors."""
WORD_LOADS = frozenset(f"load_{word.suffix}" for word in WORD_LANES)
"""Intrinsics that load several small integers as one 32-bit word. There are also vector forms of these, and ``dup_`` forms that
broadcast one word to all lanes."""
SHORT = "int16"
"""Dtype of the factors of multiply-adds whose sums are int32."""


class NotVectorizableError(Exception):
    """Raised if a loop over lanes cannot be expressed by intrinsics in these lanes. Its text is the reason."""


@dataclass
class LaneScope:
    """State of the vectorisation of a loop over ``var``, and the walk over the statements of its body.

    The ``used_lane_count`` iterations from ``start`` on become ``lanes`` of registers. A subclass converts expressions.
    ``vector_tiles``: register arrays from outside of the loop, with the arrays of vectors that replace them. ``float_level``:
    0 allows no vectors of floats, 1 allows them, 2 also fused multiply-adds by a scalar, 3 also stores as float16.
    ``name_suffix``: suffix of the names of new variables. ``lane_forms``: operations that the core also has in these lanes
    (:func:`~microc.tir.names.lane_forms`).

    Two fields are for scalable vectors, whose length is a multiple of ``lanes.count`` (:mod:`microc.tir.symbolic`).
    ``active_lane_count``: variable with the number of active lanes. ``max_active_lane_count``: variable with this number in
    the first iteration, which is the largest.

    ``vector_of_register_array`` and ``vector_of_variable`` map register arrays and variables of the loop, whose values differ
    between lanes, to their vectors. ``hoisted_values``: variables for the values that are computed before the loop, by value.
    ``uniform_variables``: variables that are bound inside of the loop and equal in all lanes.
    """

    var: ir.Var
    start: ir.Expr
    used_lane_count: int
    lanes: Lanes
    vector_tiles: Mapping[ir.Buffer, ir.Buffer] = field(default_factory=dict)
    float_level: int = 0
    name_suffix: str = ""
    lane_forms: Mapping[str, str] = field(default_factory=dict)
    active_lane_count: ir.Var | None = None
    max_active_lane_count: ir.Var | None = None
    vector_of_register_array: dict[ir.Buffer, ir.Buffer] = field(default_factory=dict)
    vector_of_variable: dict[ir.Var, ir.Var] = field(default_factory=dict)
    hoisted_values: dict[ir.Expr, ir.Var] = field(default_factory=dict)
    uniform_variables: set[ir.Expr] = field(default_factory=set)

    def starting_at_iteration(self, start: int) -> Self:
        """Return the state for the iterations from ``start`` on, which shares the values computed before the loop."""
        return replace(
            self, start=ir.const(start, "int32"), name_suffix="_end", vector_of_register_array={}, vector_of_variable={}
        )

    def varies_between_lanes(self, expr: ir.Expr) -> bool:
        """Test whether the value of an expression differs between lanes."""
        return any(x == self.var or self.is_per_lane(x) for x in walk_expr(expr))

    def is_per_lane(self, expr: ir.Expr) -> bool:
        """Test whether an expression is a variable or a register element that differs between lanes."""
        return expr in self.vector_of_variable or (
            isinstance(expr, ir.Load) and expr.buffer in self.vector_of_register_array
        )

    @property
    def scalar_dtypes(self) -> tuple[str, ...]:
        """The dtypes of the scalar variables and registers that vectors replace."""
        return ELEMENTS

    @abstractmethod
    def to_vector(self, expr: ir.Expr) -> ir.Expr:
        """Return an expression as a register of its values in all lanes."""

    @abstractmethod
    def rewrite_store(self, buffer: ir.Buffer, indices: tuple[ir.Expr, ...], value: ir.Expr) -> ir.Stmt:
        """Return the statement that stores the values of all lanes."""

    def rewrite_statement(self, stmt: ir.Stmt) -> ir.Stmt:
        """Return a statement rewritten for lanes. NotVectorizableError if it cannot be computed in lanes."""
        match stmt:
            case ir.Store(buffer, indices, value):
                return self.rewrite_store(buffer, indices, value)
            case ir.Seq(body):
                return ir.seq(*(self.rewrite_statement(child) for child in body))
            case ir.For(var, extent, body, kind, annotations) if not self.varies_between_lanes(extent):
                self.uniform_variables.add(var)
                return ir.For(var, extent, self.rewrite_statement(body), kind, annotations)
            case ir.Alloc(buffer, body) if buffer.scope == "register" and buffer.dtype in self.scalar_dtypes:
                self.vector_of_register_array[buffer] = replace(
                    buffer, name=f"{buffer.name}{self.name_suffix}", dtype=self.vector_dtype(buffer.dtype)
                )
                return ir.Alloc(self.vector_of_register_array[buffer], self.rewrite_statement(body))
            case ir.Let(var, value, body) if not self.varies_between_lanes(value):
                self.uniform_variables.add(var)
                return ir.Let(var, value, self.rewrite_statement(body))
            case ir.Let(var, value, body) if var.dtype in self.scalar_dtypes:
                self.vector_of_variable[var] = ir.Var(var.name, self.vector_dtype(var.dtype))
                return ir.Let(self.vector_of_variable[var], self.to_vector(value), self.rewrite_statement(body))
            case _:
                raise NotVectorizableError(f"{type(stmt).__name__} statements have no form in lanes")

    def vector_dtype(self, element: str = "") -> str:
        """Return the dtype of registers whose lanes have the dtype ``element``, by default that of ``lanes``: ``int32x4``.

        Raises NotVectorizableError for float elements if vectors of floats are not allowed."""
        if element == "float32" and not self.float_level:
            raise NotVectorizableError("vectors of floats are not allowed")
        return replace(self.lanes, dtype=element or self.lanes.dtype).register_dtype

    def intrinsic_suffix(self, element: str = "") -> str:
        """Return the suffix of the names of intrinsics on registers whose lanes have the dtype ``element``.

        Vectors of int16 in loops over int32 have as many lanes as vectors of int32."""
        self.vector_dtype(element)
        return replace(self.lanes, dtype=element or self.lanes.dtype).suffix

    def call_intrinsic(self, name: str, *args: ir.Expr, element: str = "", before_loop: bool = False) -> ir.Call:
        """Return a call of the intrinsic ``name`` on the active lanes.

        ``element``: dtype of the lanes. ``before_loop``: the call is in front of the loop, and uses the number of
        active lanes of the first iteration, which is the largest."""
        lanes = self.max_active_lane_count if before_loop else self.active_lane_count
        all_args = args if lanes is None else (*args, lanes)
        intrinsic = self.lane_forms.get(name) or f"{name}_{self.intrinsic_suffix(element)}"
        return ir.Call(intrinsic, all_args, self.vector_dtype(element))

    def uses_all_lanes(self) -> bool:
        """Test whether all lanes of the vectors are used."""
        return self.used_lane_count == self.lanes.count

    def vector_index(self, indices: tuple[ir.Expr, ...]) -> tuple[ir.Expr, ...]:
        """Return the indices of the vector, in an array of vectors, that contains the elements at ``indices``.

        Vectors contain elements along the last axis."""
        return (*indices[:-1], simplify(substitute(indices[-1], {self.var: self.start}) // self.lanes.count))

    def lane_stride(self, load: ir.Load) -> int | None:
        """Return the distance in elements between the addresses of a load in consecutive lanes.

        None if the distance is not constant, or if an index is computed from values that differ between lanes."""
        data = any(self.is_per_lane(x) for i in load.indices for x in walk_expr(i))
        return None if data else memory_stride(load.buffer, load.indices, self.var)

    def limit_access_to_active_lanes(self, name: str, args: tuple[ir.Expr, ...]) -> tuple[str, tuple[ir.Expr, ...]]:
        """Return the name and the arguments of an intrinsic that accesses memory in the active lanes only.

        Its ``_first`` form is used if only the first ``used_lane_count`` lanes are active."""
        if self.active_lane_count is not None:
            return name, (*args, self.active_lane_count)
        return (
            (name, args)
            if self.uses_all_lanes()
            else (f"{name}_first", (*args, ir.const(self.used_lane_count, "int32")))
        )

    def first_lane_address(
        self, buffer: ir.Buffer, indices: tuple[ir.Expr, ...], step: int, *, writes: bool
    ) -> ir.AddressOf:
        """Return the address of the element that the first lane accesses.

        ``step``: distance in elements between consecutive lanes; ``writes``: the elements are written."""
        return replace(
            build_address(buffer, indices, {self.var: self.start}, self.used_lane_count, writes=writes), step=step
        )

    def lane_offsets(self, step: int) -> ir.Expr:
        """Return the vector of offsets (0, step, 2 step, ...) of all lanes, which is computed before the loop."""
        return self.hoist_value(f"by{step}", self.call_intrinsic("ramp", ir.const(step, "int32"), before_loop=True))

    def hoist_value(self, stem: str, value: ir.Expr) -> ir.Var:
        """Return the variable for a value (a vector or scalar) that is computed before the loop.

        The variable is created at the first use of the value. ``stem``: part of the variable's name."""
        return self.hoisted_values.setdefault(value, ir.Var(f"{self.var.name}__{stem}{self.name_suffix}", value.dtype))

    def to_uniform_scalar(self, expr: ir.Expr) -> ir.Expr:
        """Return the scalar expression for a value that is equal in all lanes.

        If it loads only from constant memory, it is computed before the loop. Raises NotVectorizableError if its dtype is
        not supported."""
        if expr.dtype not in ("bool", *ELEMENTS):
            raise NotVectorizableError
        loads = [x for x in walk_expr(expr) if isinstance(x, ir.Load)]
        if not loads or not loads_only_constants(expr) or any(x in self.uniform_variables for x in walk_expr(expr)):
            return expr
        return self.hoist_value(f"{loads[0].buffer.name}_{len(self.hoisted_values)}", expr)

    def broadcast(self, expr: ir.Expr) -> ir.Expr:
        """Return an expression that is equal in all lanes as a vector.

        A literal is broadcast before the loop. A word of several integers is broadcast directly from memory."""
        number = self.to_uniform_scalar(expr)
        # A broadcasting load is one instruction; a scalar load and a broadcast would be two.
        if isinstance(number, ir.Call) and number.name in WORD_LOADS and self.active_lane_count is None:
            return self.call_intrinsic(number.name.replace("load", "dup"), *number.args)
        named = isinstance(number, ir.Var) and number in self.hoisted_values.values()
        vector = self.call_intrinsic("dup", number, element=expr.dtype, before_loop=named or isinstance(expr, ir.Const))
        if isinstance(expr, ir.Const):
            plain = isinstance(expr.value, int) and expr.dtype == "int32"
            sign = "minus" if expr.value < 0 else "all"
            return self.hoist_value(
                f"{sign}{abs(expr.value)}" if plain else f"number_{len(self.hoisted_values)}", vector
            )
        return self.hoist_value(f"lanes_{len(self.hoisted_values)}", vector) if named else vector

    def hoist_constants(self, loop: ir.Stmt) -> ir.Stmt:
        """Return the loop with the values that are computed before it bound in front of it, in the order of their first use."""
        for value, name in reversed(self.hoisted_values.items()):
            loop = ir.Let(name, value, loop)
        return loop


def loads_only_constants(value: ir.Expr) -> bool:
    """Test whether an expression loads only from constant memory, or does not load at all."""
    return all(x.buffer.scope == "const" for x in walk_expr(value) if isinstance(x, (ir.Load, ir.AddressOf)))


def is_repeatable(stmt: ir.Stmt) -> bool:
    """Test whether an iteration may run twice, with the same result.

    The body must not write the buffers that it reads, nor buffers that share memory with these. The memory plan may let
    results overlap operands, which are global buffers. So either the buffers read or the buffers written must not be global.
    """
    stored = {s.buffer for s in walk_stmt(stmt) if isinstance(s, ir.Store) and s.buffer.scope != "register"}
    read = {b for b in buffers_read(stmt) if b.scope != "register"}
    apart = any(all(b.scope != "global" for b in side) for side in (stored, read))
    return apart and not stored & read
