"""Names, registers and patterns of a loop over lanes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Self

from microc.tir import ir
from microc.tir.analysis.simplification import linear, simplify
from microc.tir.lower.region import address, flat_step
from microc.tir.rewrite import substitute, walk_expr

# ---- Arithmetic that vector instructions do in one step, found in scalar expressions: see ``fixed.py`` for its
# definition.


def doubling_multiply(expr: ir.Expr) -> tuple[ir.Expr, ir.Expr] | None:
    """x and m of ``(x m + 2**30) >> 31``, written as ``high_mul_round(2 x, m)`` or in 64 bits."""
    match expr:
        case ir.Call("high_mul_round", (a, b)):
            half = _halved(a)
            return None if half is None else (half, b)
        case ir.Cast(
            "int32",
            ir.Bin(
                "shr",
                ir.Bin("add", ir.Bin("mul", ir.Cast("int64", a), factor), ir.Const(value=1073741824)),
                ir.Const(value=31),
            ),
        ):
            small = _narrow(factor)
            return None if small is None or a.dtype != "int32" else (a, small)
        case _:
            return None


def quotient(value: ir.Expr, divisor: int) -> ir.Expr:
    """``value`` divided by a number above 1, without its fraction, as the upper half of a product.

    With m = 2**(32 + s) // d + 1 and e = m d - 2**(32 + s), x m / 2**(32 + s) exceeds x / d by x e / (d 2**(32 + s)), which is
    below 1 / d for 0 <= x < 2**31 where e <= 2**(s + 1): its floor is that of x / d. Of x from -2**31 to -1 it falls short of
    x / d by at most 1 / d, but by something: its floor is one less than wanted. m may take 33 bits with its sign; then 2**32 less
    is multiplied, and x added.
    """
    shift = next(s for s in range(32) if divisor - (1 << (32 + s)) % divisor <= 1 << (s + 1))
    factor = (1 << (32 + shift)) // divisor + 1
    wide = factor >= 1 << 31
    high: ir.Expr = ir.call("high_product", value, ir.const(factor - (1 << 32) if wide else factor, "int32"))
    high = high + value if wide else high
    return (high >> shift if shift else high) - (value >> 31)


def _narrow(factor: ir.Expr) -> ir.Expr | None:
    """The int32 under a widening to 64 bits."""
    match factor:
        case ir.Const(int() as value) if -(1 << 31) <= value < 1 << 31:
            return ir.const(value, "int32")
        case ir.Cast("int64", a) if a.dtype == "int32":
            return a
        case _:
            return None


def _halved(expr: ir.Expr) -> ir.Expr | None:
    """x of ``2 x``, which does not overflow."""
    match expr:
        case ir.Bin("shl", a, ir.Const(int() as n)) if n >= 1:
            return a << (n - 1) if n > 1 else a
        case ir.Bin("mul", a, ir.Const(int() as factor)) if factor > 0 and factor % 2 == 0:
            return a * (factor // 2) if factor > 2 else a
        case _:
            return None


def negated(expr: ir.Expr) -> ir.Expr:
    """``-expr`` of a small sum, its terms collected even where they are data."""
    terms, offset = linear(expr)
    total: ir.Expr = ir.const(-offset, "int32")
    for term, factor in terms.items():
        part = term if abs(factor) == 1 else term * abs(factor)
        total = total + part if factor < 0 else total - part
    return simplify(total)


def rounding_shift(expr: ir.Expr) -> tuple[ir.Expr, ir.Expr, int] | None:
    """x, n and z of ``((x + 2**(n - 1)) >> n) + z``, the middle term rounding half up, 1 <= n <= 31.

    Either the rounding term, perhaps with z * 2**n in it, is added before the shift, by a multiplication that adds where n is no
    number; or the shift is done in two steps, n - 1 and then 1, with 1 + 2 z added in between.
    """
    match expr:
        case ir.Bin("shr", ir.Call("high_mac_round", (x, m, added)), distance):
            return _added(ir.call("high_mul_round", x, m), added, simplify(distance))
        case ir.Bin("shr", ir.Bin("add", ir.Bin("shr", x, distance), ir.Const(int() as added)), ir.Const(value=1)) if (
            added % 2 == 1
        ):
            return x, simplify(distance + 1), (added - 1) // 2
        case ir.Bin("shr", ir.Bin("add", x, ir.Const(int() as added)), ir.Const(int() as n)) if n >= 1:
            rest, remainder = divmod(added - (1 << (n - 1)), 1 << n)
            return (x, ir.const(n, "int32"), rest) if remainder == 0 and x.dtype == "int32" else None
        case _:
            return None


def rounded_once(expr: ir.Expr) -> tuple[ir.Expr, ir.Expr, ir.Expr, int] | None:
    """x, m, n and z of ``((x m + 2**(n + 30)) >> (n + 31)) + z``, written as ``high_mac(2 x, m, k) >> n`` or with x
    itself and a shift that is one less, z in k."""
    match expr:
        case ir.Bin("shr", ir.Call("high_mac", (a, m, added)), distance):
            parts, half = _added(a, added, simplify(distance)), _halved(a)
        case _:
            return None
    if parts is None or parts[0] != a:
        return None
    _, distance, steps = parts
    return (a, m, simplify(distance + 1), steps) if half is None else (half, m, distance, steps)


def _added(product: ir.Expr, added: ir.Expr, distance: ir.Expr) -> tuple[ir.Expr, ir.Expr, int] | None:
    """The parts of ``(product + added) >> distance``, where what is added is (1 + 2 z) * 2**(distance - 1), or that and more."""
    terms, offset = linear(added)
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


# ---- What a loop over lanes is rewritten in: names and registers that its lanes have of their own, the words on
# vectors of its width, and what is set before the loop; see :mod:`microc.tir.lower.lane_code`.

ELEMENTS = MappingProxyType({"int32": "i32", "float32": "f32"})
"""What vectors are made of."""
WORD_LOADS = frozenset({"load_i16x2", "load_i8x4", "load_u8x4"})
"""Loads of several numbers as one word, which vectors have too, and as ``dup_`` for all lanes alike."""
SHORT = "int16"
"""What the factors of products may be that are added to vectors of int32."""


class NoLanesError(Exception):
    """The loop has no form with vectors."""


@dataclass
class LaneScope:
    """A loop over ``var`` of which ``count`` iterations from ``start`` on become vectors of ``lanes``.

    ``tiles``: arrays in registers from outside the loop, and those of vectors that they become. ``floats``: vectors may be of
    floats, 2: and multiplied by numbers, 3: and stored as float16. ``taken``: the name of the lanes that take part, where vectors
    have a multiple of ``lanes`` (:mod:`microc.tir.symbolic`); ``most``: that of those that the first turn has.
    """

    var: ir.Var
    start: ir.Expr
    count: int
    lanes: int
    tiles: Mapping[ir.Buffer, ir.Buffer] = field(default_factory=dict)
    floats: int = 0
    label: str = ""
    taken: ir.Var | None = None
    most: ir.Var | None = None
    registers: dict[ir.Buffer, ir.Buffer] = field(default_factory=dict)
    names: dict[ir.Var, ir.Var] = field(default_factory=dict)
    constants: dict[ir.Expr, ir.Var] = field(default_factory=dict)
    inside: set[ir.Expr] = field(default_factory=set)

    def moved(self, start: int) -> Self:
        """The same for the iterations from ``start`` on, with constants in common."""
        return replace(self, start=ir.const(start, "int32"), label="_end", registers={}, names={})

    def varies(self, expr: ir.Expr) -> bool:
        """Whether lanes differ."""
        return any(x == self.var or self.computed(x) for x in walk_expr(expr))

    def computed(self, expr: ir.Expr) -> bool:
        """Whether this is a name or register of the loop that lanes have of their own."""
        return expr in self.names or (isinstance(expr, ir.Load) and expr.buffer in self.registers)

    def type(self, element: str = "int32") -> str:
        if element == "float32" and not self.floats:
            raise NoLanesError
        return f"{element}x{self._count()}"

    def _count(self) -> str:
        return f"{'' if self.taken is None else 'vscalex'}{self.lanes}"

    def suffix(self, element: str = "int32") -> str:
        """How words on vectors of these elements end."""
        self.type(element)
        return f"{ELEMENTS.get(element, 'i16')}x{self._count()}"

    def call(self, name: str, *args: ir.Expr, element: str = "int32", ahead: bool = False) -> ir.Expr:
        """A word on vectors; ``ahead`` of the loop, for all lanes that a turn may have."""
        lanes = self.most if ahead else self.taken
        given = args if lanes is None else (*args, lanes)
        return ir.Call(f"{name}_{self.suffix(element)}", given, self.type(element))

    def whole(self) -> bool:
        """Whether all lanes do something."""
        return self.count == self.lanes

    def place(self, indices: tuple[ir.Expr, ...]) -> tuple[ir.Expr, ...]:
        """Where the vector lies that holds the elements at ``indices``, along the last axis."""
        return (*indices[:-1], simplify(substitute(indices[-1], {self.var: self.start}) // self.lanes))

    def step(self, load: ir.Load) -> int | None:
        """By how many elements a place moves from lane to lane; None where values say it."""
        data = any(self.computed(x) for i in load.indices for x in walk_expr(i))
        return None if data else flat_step(load.buffer, load.indices, self.var)

    def partial(self, name: str, args: tuple[ir.Expr, ...]) -> tuple[str, tuple[ir.Expr, ...]]:
        """An access of all lanes, or of the first ones."""
        if self.taken is not None:
            return name, (*args, self.taken)
        return (name, args) if self.whole() else (f"{name}_first", (*args, ir.const(self.count, "int32")))

    def address(self, buffer: ir.Buffer, indices: tuple[ir.Expr, ...], step: int, *, writes: bool) -> ir.AddressOf:
        return replace(address(buffer, indices, {self.var: self.start}, self.count, writes=writes), step=step)

    def offsets(self, step: int) -> ir.Expr:
        """Multiples of ``step``, set before the loop."""
        return self.constant(f"by{step}", self.call("ramp", ir.const(step, "int32"), ahead=True))

    def constant(self, stem: str, value: ir.Expr) -> ir.Var:
        """The name of a vector or number that is set before the loop."""
        return self.constants.setdefault(value, ir.Var(f"{self.var.name}__{stem}{self.label}", value.dtype))

    def uniform(self, expr: ir.Expr) -> ir.Expr:
        """A number for all lanes; constants in memory are read before the loop."""
        if expr.dtype not in ("bool", *ELEMENTS):
            raise NoLanesError
        loads = [x for x in walk_expr(expr) if isinstance(x, ir.Load)]
        if not loads or not fixed(expr) or any(x in self.inside for x in walk_expr(expr)):
            return expr
        return self.constant(f"{loads[0].buffer.name}_{len(self.constants)}", expr)

    def repeated(self, expr: ir.Expr) -> ir.Expr:
        """A number in all lanes; literals are set before the loop, a word of several numbers comes from memory."""
        number = self.uniform(expr)
        if isinstance(number, ir.Call) and number.name in WORD_LOADS and self.taken is None:
            return self.call(number.name.replace("load", "dup"), *number.args)
        named = isinstance(number, ir.Var) and number in self.constants.values()
        vector = self.call("dup", number, element=expr.dtype, ahead=named or isinstance(expr, ir.Const))
        if isinstance(expr, ir.Const):
            plain = isinstance(expr.value, int) and expr.dtype == "int32"
            sign = "minus" if expr.value < 0 else "all"
            return self.constant(f"{sign}{abs(expr.value)}" if plain else f"number_{len(self.constants)}", vector)
        return self.constant(f"lanes_{len(self.constants)}", vector) if named else vector

    def hoisted(self, loop: ir.Stmt) -> ir.Stmt:
        """The loop, after the vectors of literals that it uses."""
        for value, name in reversed(self.constants.items()):
            loop = ir.Let(name, value, loop)
        return loop


def fixed(value: ir.Expr) -> bool:
    """Whether nothing that is ever written is read."""
    return all(x.buffer.scope == "const" for x in walk_expr(value) if isinstance(x, (ir.Load, ir.AddressOf)))
