"""The body of a loop over lanes, rewritten for vectors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from microc.base import dtypes
from microc.tir import ir
from microc.tir.analysis.simplification import bounds_of, linear, simplify
from microc.tir.lower.lane_scope import (
    ELEMENTS,
    SHORT,
    WORD_LOADS,
    LaneScope,
    NoLanesError,
    doubling_multiply,
    negated,
    quotient,
    rounded_once,
    rounding_shift,
)
from microc.tir.lower.region import flat_step
from microc.tir.rewrite import map_expr

# ---- Arithmetic on lanes whose form depends on what is a number for all of them, or lies in between: products,
# shifts, clamping.

TYPES = MappingProxyType({"int8": "i8", "uint8": "u8", "int16": "i16", "uint16": "u16", "int32": "i32"})
_NUMBERS = ("add", "sub", "mul")
"""Operations of integers with a number for all lanes as second operand."""
SATURATED = ("int8", "int16")
"""Dtypes that vectors of any length are clamped to where they are stored."""
SCALABLE_NUMBERS = ("min", "max")
"""The same of vectors of any length."""
CLAMPS: Mapping[str, tuple[int, int, int]] = MappingProxyType(
    {
        f"{name}{suffix}": (*bounds, shift)
        for name, bounds in {
            "saturate_i8": (-128, 127),
            "saturate_u8": (0, 255),
            "saturate_i16": (-32768, 32767),
        }.items()
        for suffix, shift in (("", 0), ("_half", 1))
    }
)


class LaneOperations(LaneScope):
    """Operations of a loop over lanes."""

    @abstractmethod
    def vector(self, expr: ir.Expr) -> ir.Expr:
        """An int32 or float32 expression for all lanes."""

    def rounding(self, expr: ir.Expr) -> ir.Expr | None:
        """Multiplications and shifts that round."""
        product = doubling_multiply(expr)
        if product is not None:
            return self.operation("doubling_high_mul", *product, numbers=True)
        once = rounded_once(expr)
        if once is not None:
            x, m, distance, added = once
            rounded = self.right(self.operation("doubling_high_floor", x, m, numbers=True), distance, rounds=True)
        else:
            found = rounding_shift(expr)
            if found is None:
                return None
            value, distance, added = found
            rounded = self.right(self.vector(value), distance, rounds=True)
        if not added:
            return rounded
        number = ir.const(added, "int32")
        return (
            self.call("add", rounded, self.repeated(number))
            if self.taken is None
            else self.call("add_n", rounded, number)
        )

    def added(self, total: ir.Expr, x: ir.Expr, y: ir.Expr) -> ir.Expr | None:
        """A sum with a product in vectors of any length: of short numbers, which take half the room, where both are; None where
        that takes no word of its own."""
        vector, other = (x, y) if self.varies(x) else (y, x)
        short, number = self.short(vector), not self.varies(other)
        if short is not None and number and is_short(other):
            return self.call("mac_short_n", self.vector(total), short, self.uniform(other))
        if short is not None and (factor := self.short(other)) is not None:
            return self.call("mac_short", self.vector(total), short, factor)
        return None if number else self.call("mac", self.vector(total), self.vector(x), self.vector(y))

    def short(self, value: ir.Expr) -> ir.Expr | None:
        """Neighbours in memory as int16; None where that is not what a value is."""
        match value:
            case ir.Cast("int32", ir.Load(buffer, indices) as load) if is_short(value):
                if buffer.scope == "register" or self.step(load) != 1:
                    return None
                name = f"load_{TYPES[buffer.dtype]}_{self.suffix(SHORT)}"
                place = self.address(buffer, indices, 1, writes=False)
                return ir.Call(*self.partial(name, (place,)), self.type(SHORT))
            case _:
                return None

    def operation(self, name: str, a: ir.Expr, b: ir.Expr, *, numbers: bool = False) -> ir.Expr:
        numbers = numbers or name in _NUMBERS or (self.taken is not None and name in SCALABLE_NUMBERS)
        if numbers and not self.varies(b):
            return self.call(f"{name}_n", self.vector(a), self.uniform(b))
        if name in ("add", "mul") and not self.varies(a):
            return self.call(f"{name}_n", self.vector(b), self.uniform(a))
        return self.call(name, self.vector(a), self.vector(b))

    def shifted(self, vector: ir.Expr, left: ir.Expr, *, rounds: bool) -> ir.Expr:
        """A vector shifted by ``left``, to the right where it is negative."""
        name = "shift_round" if rounds else "shl"
        if self.varies(left):
            return self.call(name, vector, self.vector(left))
        return self.call(f"{name}_n", vector, self.uniform(left))

    def right(self, vector: ir.Expr, distance: ir.Expr, *, rounds: bool) -> ir.Expr:
        """A vector shifted to the right by ``distance``, up to 31."""
        if self.taken is None:
            return self.shifted(vector, negated(distance), rounds=rounds)
        name = "right_round" if rounds else "right"
        if not self.varies(distance):
            return self.call(f"{name}_n", vector, self.uniform(distance))
        terms, _ = linear(distance)
        left = all(factor < 0 for factor in terms.values())
        places = self.call("neg", self.vector(negated(distance))) if left else self.vector(distance)
        return self.call(name, vector, places)

    def narrowed(self, narrow: str, a: ir.Expr) -> ir.Expr:
        """A value that is stored in fewer bits and taken up again: unchanged where it fits, else modulo those bits."""
        reach, room = bounds_of(simplify(_clamped(a))), dtypes.int_range(narrow)
        if reach is not None and room[0] <= reach[0] and reach[1] <= room[1]:
            return self.vector(a)
        if not room[0]:
            return self.vector(a & room[1])
        up = ir.const(32 - dtypes.info(narrow).bits, "int32")
        return self.right(self.shifted(self.vector(a), up, rounds=False), up, rounds=False)


def _clamped(expr: ir.Expr) -> ir.Expr:
    """A saturation, spelled out."""
    if isinstance(expr, ir.Call) and expr.name in CLAMPS:
        low, high, _ = CLAMPS[expr.name]
        return ir.clamp(ir.Var("any"), low, high)
    return expr


def unclamped(saturation: ir.Call) -> ir.Expr:
    """What an instruction saturates, shifted as it does so."""
    (a,), (_, _, shift) = saturation.args, CLAMPS[saturation.name]
    return a >> shift if shift else a


def saturated(expr: ir.Expr, dtype: str) -> ir.Expr | None:
    """What is clamped to all numbers of a dtype; None of another value."""
    match expr:
        case ir.Bin("min", ir.Bin("max", a, ir.Const(value=low)), ir.Const(value=high)) if dtype in SATURATED and (
            low,
            high,
        ) == dtypes.int_range(dtype):
            return a
        case ir.Call(name, (a,)) if name in CLAMPS and CLAMPS[name][:2] == dtypes.int_range(dtype):
            return unclamped(expr)
        case _:
            return None


def is_short(value: ir.Expr) -> bool:
    """Whether a number is loaded from 16 bits with a sign, or fewer."""
    return isinstance(value, ir.Cast) and isinstance(value.a, ir.Load) and dtypes.holds(SHORT, value.a.dtype)


# ---- The body of a loop over lanes, rewritten for vectors; see :mod:`microc.tir.lower.lanes`.
#
# Rounding is recognised: ``(2 x m + 2**31) >> 32``, the doubling high multiply that scalar code spells with ``high_mul_round``,
# and the rounding shift ``((x >> (n - 1)) + 1) >> 1`` are one instruction each; a constant folded into its rounding is added
# behind it.

_OPS = MappingProxyType(
    {
        "add": "add",
        "sub": "sub",
        "mul": "mul",
        "min": "min",
        "max": "max",
        "bitand": "and",
        "bitor": "or",
        "bitxor": "xor",
    }
)
HALVES = MappingProxyType({"float16": "f16", "bfloat16": "bf16"})
"""Floats that loads widen."""
NARROWED = 3
"""``floats`` where vectors of floats are stored as float16, too."""
_FLOAT_OPS = frozenset({"add", "sub", "mul", "div", "min", "max"})
FLOAT_CALLS = frozenset({"fma", "sqrt", "rint", "floor", "fabs"})
"""Functions of floats that have words on vectors."""


class LaneCode(LaneOperations):
    """Rewrites the body of a loop over lanes for some of its iterations."""

    def statement(self, stmt: ir.Stmt) -> ir.Stmt:
        match stmt:
            case ir.Store(buffer, indices, value):
                return self.store(buffer, indices, value)
            case ir.Seq(body):
                return ir.seq(*(self.statement(child) for child in body))
            case ir.For(var, extent, body, kind, annotations) if not self.varies(extent):
                self.inside.add(var)
                return ir.For(var, extent, self.statement(body), kind, annotations)
            case ir.Alloc(buffer, body) if buffer.scope == "register" and buffer.dtype in ELEMENTS:
                self.registers[buffer] = replace(
                    buffer, name=f"{buffer.name}{self.label}", dtype=self.type(buffer.dtype)
                )
                return ir.Alloc(self.registers[buffer], self.statement(body))
            case ir.Let(var, value, body) if not self.varies(value):
                self.inside.add(var)
                return ir.Let(var, value, self.statement(body))
            case ir.Let(var, value, body) if var.dtype in ELEMENTS:
                self.names[var] = ir.Var(var.name, self.type(var.dtype))
                return ir.Let(self.names[var], self.vector(value), self.statement(body))
            case _:
                raise NoLanesError

    def store(self, buffer: ir.Buffer, indices: tuple[ir.Expr, ...], value: ir.Expr) -> ir.Stmt:
        if buffer in self.registers:
            return ir.Store(self.registers[buffer], indices, self.vector(value))
        if buffer in self.tiles:
            return ir.Store(self.tiles[buffer], self.place(indices), self.vector(value))
        if buffer.dtype == "float32":
            if buffer.scope == "register" or flat_step(buffer, indices, self.var) != 1:
                raise NoLanesError
            target = self.address(buffer, indices, 1, writes=True)
            stored = self.partial(f"store_f32_{self.suffix('float32')}", (target, self.vector(value)))
            return ir.Evaluate(ir.Call(*stored, "int32"))
        if buffer.dtype == "float16" and isinstance(value, ir.Cast) and value.a.dtype == "float32":
            if self.floats < NARROWED or buffer.scope == "register" or flat_step(buffer, indices, self.var) != 1:
                raise NoLanesError
            target = self.address(buffer, indices, 1, writes=True)
            stored = self.partial(f"store_f16_{self.suffix('float32')}", (target, self.vector(value.a)))
            return ir.Evaluate(ir.Call(*stored, "int32"))
        kind, step = TYPES.get(buffer.dtype), flat_step(buffer, indices, self.var)
        if buffer.scope == "register" or kind is None or step is None or step < 1:
            raise NoLanesError
        narrow = value.a if isinstance(value, ir.Cast) and value.a.dtype == "int32" else value
        if narrow.dtype != "int32":
            narrow = ir.cast("int32", narrow)
        target = self.address(buffer, indices, step, writes=True)
        where = (target,) if step == 1 else (target, self.offsets(step))
        name = f"{'store' if step == 1 else 'scatter'}_{kind}_{self.suffix()}"
        # vectors of any length always saturate; others where the schedule says so by a call: the core has instructions for it
        saturates = self.taken is not None or isinstance(narrow, ir.Call)
        if step == 1 and saturates and (inner := saturated(narrow, buffer.dtype)) is not None:
            name, narrow = f"store_saturated_{kind}_{self.suffix()}", inner
        return ir.Evaluate(ir.Call(*self.partial(name, (*where, self.vector(narrow))), "int32"))

    def vector(self, expr: ir.Expr) -> ir.Expr:
        """An int32 or float32 expression for all lanes."""
        if not self.varies(expr):
            return self.repeated(expr)
        match expr:
            case ir.Var() if expr in self.names:
                return self.names[expr]
            case ir.Load(buffer, indices) if buffer in self.registers:
                return ir.Load(self.registers[buffer], indices)
            case ir.Load(buffer, indices) if buffer in self.tiles:
                return ir.Load(self.tiles[buffer], self.place(indices))
            case ir.Select(condition, a, b) if not self.varies(condition) and expr.dtype in ELEMENTS:
                return ir.Select(self.uniform(condition), self.vector(a), self.vector(b))
        return self.reals(expr) if expr.dtype == "float32" else self.integers(expr)

    def reals(self, expr: ir.Expr) -> ir.Expr:
        """A float32 expression that varies."""
        match expr:
            case ir.Load(buffer, indices):
                if buffer.scope == "register" or self.step(expr) != 1:
                    raise NoLanesError
                source = self.address(buffer, indices, 1, writes=False)
                return ir.Call(*self.partial(f"load_f32_{self.suffix('float32')}", (source,)), self.type("float32"))
            case ir.Cast("float32", ir.Load(buffer, indices) as load) if buffer.dtype in HALVES:
                if self.step(load) != 1:
                    raise NoLanesError
                name = f"load_{HALVES[buffer.dtype]}_{self.suffix('float32')}"
                source = self.address(buffer, indices, 1, writes=False)
                return ir.Call(*self.partial(name, (source,)), self.type("float32"))
            case ir.Bin(op, a, b) if op in _FLOAT_OPS:
                return self.call(op, self.vector(a), self.vector(b), element="float32")
            case ir.Un("neg", a):
                return self.call("mul", self.vector(a), self.repeated(ir.const(-1.0, "float32")), element="float32")
            case ir.Call("fma", (a, b, total)) if self.floats > 1 and self.varies(a) != self.varies(b):
                vector, number = (a, b) if self.varies(a) else (b, a)
                return self.call(
                    "fma_n", self.vector(vector), self.uniform(number), self.vector(total), element="float32"
                )
            case ir.Call(name, args) if name in FLOAT_CALLS:
                return self.call(name, *map(self.vector, args), element="float32")
            case ir.Select(ir.Bin(op, x, y), a, b) if op in ir.COMPARISONS and x.dtype == "float32":
                chosen = (self.vector(e) for e in (x, y, self.readable(a), self.readable(b)))
                return self.call(f"select_{op}", *chosen, element="float32")
            case ir.Select(ir.Bin("or", ir.Bin(_, x) as one, other), a, b) if x.dtype == "float32":
                return self.vector(ir.Select(one, a, ir.Select(other, a, b)))
            case ir.Call(ir.REINTERPRET, (a,)) if a.dtype in ("int32", "uint32"):
                return self.call("of_bits", self.vector(_signed(a)), element="float32")
            case ir.Cast("float32", a) if a.dtype in ("int32", *TYPES):
                return self.call("from_i32", self.vector(ir.cast("int32", a)), element="float32")
            case _:
                raise NoLanesError

    def integers(self, expr: ir.Expr) -> ir.Expr:
        """An int32 expression that varies."""
        special = self.rounding(expr)
        if special is not None:
            return special
        match expr:
            case ir.Load() if expr.dtype == "int32":
                return self.load(expr)
            case ir.Cast("int32", ir.Load() as load):
                return self.load(load)
            case ir.Cast("int32", ir.Cast(wider, a)) if a.dtype in TYPES and dtypes.holds(wider, a.dtype):
                return self.vector(ir.cast("int32", a))
            case ir.Cast("int32", ir.Cast(narrow, a)) if a.dtype == "int32":
                return self.narrowed(narrow, a)
            case ir.Cast("int32", ir.Select(condition, a, b)):
                return self.vector(ir.Select(condition, ir.cast("int32", a), ir.cast("int32", b)))
            case ir.Cast("int32", ir.Bin() as wrapping) if wrapping.dtype == "uint32":
                return self.vector(_signed(wrapping))
            case ir.Bin("add", a, ir.Bin("mul", x, y)) if self.taken is not None and (added := self.added(a, x, y)):
                return added
            case ir.Bin("add", a, ir.Bin("mul", x, y)) if expr.dtype == "int32" and self.varies(x) != self.varies(y):
                vector, number = (x, y) if self.varies(x) else (y, x)
                return self.call("mac_n", self.vector(a), self.vector(vector), self.uniform(number))
            case ir.Bin(op, a, b) if op in _OPS and expr.dtype == "int32":
                return self.operation(_OPS[op], a, b)
            case ir.Bin("truncdiv", a, ir.Const(int() as divisor)) if expr.dtype == "int32" and divisor > 1:
                return self.vector(quotient(a, divisor))
            case ir.Bin(("shl" | "shr") as op, a, b) if expr.dtype == "int32":
                vector = self.vector(a)
                return self.shifted(vector, b, rounds=False) if op == "shl" else self.right(vector, b, rounds=False)
            case ir.Un("neg", a) if a.dtype == "int32" and self.taken is not None:
                return self.call("neg", self.vector(a))
            case ir.Un("neg", a) if a.dtype == "int32":
                return self.call("sub", self.repeated(ir.const(0, "int32")), self.vector(a))
            case ir.Select(ir.Bin(op, x, y), a, b) if op in ir.COMPARISONS and x.dtype == "int32":
                return self.call(f"select_{op}", *(self.vector(e) for e in (x, y, self.readable(a), self.readable(b))))
            case ir.Call("saturate_i16" | "saturate_i16_half"):
                return self.call("saturate_i16", self.vector(unclamped(expr)))
            case ir.Call(name) if name in CLAMPS:
                low, high, _ = CLAMPS[name]
                return self.vector(ir.clamp(unclamped(expr), low, high))
            case ir.Call("high_mul_round" | "high_product" as name, (a, b)):
                return self.call(name, self.vector(a), self.vector(b))
            case ir.Call("dot2" | "dot4_i8" | "dot4_u8" as name, args):
                return self.call(name, *map(self.vector, args))
            case ir.Call(name, (ir.AddressOf() as place,)) if name in WORD_LOADS:
                if not self.whole() or flat_step(place.buffer, place.indices, self.var) != place.extent:
                    raise NoLanesError
                elements = self.address(place.buffer, place.indices, 1, writes=False)
                return self.call(name, replace(elements, extent=place.extent * self.lanes))
            case ir.Call(ir.REINTERPRET, (a,)) if (a.dtype, expr.dtype) == ("float32", "int32"):
                return self.call("bits", self.vector(a))
            case ir.Cast("int32", a) if a.dtype == "float32":
                rounds = isinstance(a, ir.Call) and a.name == "rint"
                number = self.vector(a.args[0] if rounds and isinstance(a, ir.Call) else a)
                return self.call("nearest" if rounds else "toward_zero", number)
            case _:
                raise NoLanesError

    def load(self, load: ir.Load) -> ir.Expr:
        kind = TYPES.get(load.dtype)
        if kind is None or load.buffer.scope == "register":
            raise NoLanesError
        step = self.step(load)
        if step is not None and step > 0:
            where = (self.address(load.buffer, load.indices, step, writes=False),)
            name, args = ("load", where) if step == 1 else ("gather", (*where, self.offsets(step)))
            return ir.Call(*self.partial(f"{name}_{kind}_{self.suffix()}", args), self.type())
        if len(load.indices) == 1:  # a table, looked up by value
            table = ir.AddressOf(load.buffer, (ir.const(0, "int32"),), load.buffer.size)
            args = (table, self.vector(load.indices[0]))
            return ir.Call(*self.partial(f"gather_{kind}_{self.suffix()}", args), self.type())
        raise NoLanesError

    def readable(self, expr: ir.Expr) -> ir.Expr:
        """``expr`` without lookups beyond the ends of a table: all lanes compute both sides of a choice, also the one for which
        they are not meant."""

        def on_expr(e: ir.Expr) -> ir.Expr:
            match e:
                case ir.Load(buffer, (place,)) if self.varies(e) and self.step(e) is None:
                    return ir.Load(buffer, (simplify(ir.clamp(place, 0, buffer.size - 1)),))
                case _:
                    return e

        return map_expr(expr, on_expr)


def _signed(expr: ir.Expr) -> ir.Expr:
    """An expression of 32 bits by int32, whose lanes wrap around: the bits of a uint32."""
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
            return ir.Bin(op, _signed(a), _signed(b))
        case _:
            return expr
