"""What a loop over lanes is rewritten in: names and registers that its lanes have of their own, the words on vectors of its
width, and what is set before the loop; see :mod:`microc.tir.lower.lane_code`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Self

from microc.tir import ir
from microc.tir.affine import simplify
from microc.tir.lower.region import address, flat_step
from microc.tir.rewrite import substitute, walk_expr

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
    have a multiple of ``lanes`` (:mod:`microc.tir.strips`); ``most``: that of those that the first turn has.
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
