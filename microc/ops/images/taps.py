"""What is read at a real place between elements: a table of their indices and weights, filled once and used for every channel."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from microc.frozen import frozen
from microc.tir import ir
from microc.tir.ir import Buffer, Expr, Stmt, Var

FARTHEST = float(1 << 20)
"""Places farther away are taken to lie there, so that they can be made integers; so are those that are no numbers."""


@frozen
class Side:
    """One axis of a place: the axis' ``extent``, the number of ``taps``, and of each tap its index within the axis, its weight,
    and the conditions on which there is an element."""

    extent: int
    taps: int
    tap: Callable[[Var], tuple[Expr, Expr, Sequence[Expr]]]


@frozen
class Taps:
    """Tables of ``count`` elements: the flat ``index`` into the image, -1 where nothing is read, and the ``weight``."""

    count: int
    index: Buffer
    weight: Buffer

    @classmethod
    def of(cls, count: int, dtype: str) -> Taps:
        return cls(
            count, Buffer("index", (count,), "int32", "workspace"), Buffer("weight", (count,), dtype, "workspace")
        )

    def living_in(self, body: Stmt) -> Stmt:
        """``body`` with the tables around it."""
        return ir.Alloc(self.index, ir.Alloc(self.weight, body))

    def fill(self, sides: Sequence[Side]) -> Stmt:
        """All combinations of the taps of the axes, the last axis fastest."""

        def level(k: int, number: Expr, flat: Expr, weight: Expr, conditions: tuple[Expr, ...]) -> Stmt:
            if k == len(sides):
                inside = ir.all_of(conditions)
                index = flat if inside is None else ir.select(inside, flat, -1)
                return ir.seq(ir.Store(self.index, (number,), index), ir.Store(self.weight, (number,), weight))
            side, t = sides[k], Var(f"t{k}")
            at, share, more = side.tap(t)
            where, part = Var(f"at{k}"), Var(f"share{k}", self.weight.dtype)
            inner = level(
                k + 1,
                number * side.taps + t,
                flat * side.extent + where,
                weight * part if k else part,
                (*conditions, *more),
            )
            return ir.loops([(t, side.taps)], ir.Let(where, at, ir.Let(part, share, inner)))

        zero = ir.const(0, "int32")
        return level(0, zero, zero, ir.const(1.0, self.weight.dtype), ())

    def product(self, t: Var, element: Callable[[Expr], Expr]) -> Expr:
        """Element ``t`` times its weight, or 0; ``element`` reads the image at a flat index."""
        value = element(self.index[t]) * self.weight[t]
        return ir.select(self.index[t] >= 0, value, 0.0)


def near(place: Expr) -> Expr:
    """A place that converts to int32."""
    return ir.select(place > -FARTHEST, ir.minimum(place, FARTHEST), -FARTHEST)
