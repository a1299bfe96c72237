"""Arithmetic on lanes whose form depends on what is a number for all of them, or lies in between: products, shifts, clamping."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from types import MappingProxyType

from microc import dtypes
from microc.tir import ir
from microc.tir.affine import bounds_of, linear, simplify
from microc.tir.lower.lane_patterns import doubling_multiply, negated, rounded_once, rounding_shift
from microc.tir.lower.lane_scope import SHORT, LaneScope

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
