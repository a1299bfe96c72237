"""Tensor intrinsics: a small loop nest of a sum of products, and the scalar intrinsics that replace it."""

from __future__ import annotations

from microc.base.immutable import frozen
from microc.tir import ir
from microc.tir.analysis.simplification import simplify
from microc.tir.ir import Call, Expr, Stmt


@frozen
class Part:
    """An operand of a step: the intrinsics applied, innermost first, to the address ``offset`` elements on, where ``width``
    elements are read; without intrinsics the element itself, widened to int32, or the address of several."""

    offset: int
    names: tuple[str, ...]
    width: int

    def value(self, start: ir.Load) -> Expr:
        """The operand, counted from the element ``start`` (often a pair: ``int16x2`` in an int32)."""
        indices = _moved(start, self.offset)
        if not self.names and self.width == 1:
            return ir.cast("int32", ir.Load(start.buffer, indices))
        value: Expr = ir.AddressOf(start.buffer, indices, self.width)
        for name in self.names:
            value = Call(name, (value,), "int32")
        return value


def _moved(start: ir.Load, offset: int) -> tuple[Expr, ...]:
    """The indices of the element ``offset`` further on in memory; what an axis cannot hold is carried to the one before."""
    indices = list(start.indices)
    for axis in reversed(range(len(indices))):
        offset, step = divmod(offset, start.buffer.shape[axis]) if axis else (0, offset)
        indices[axis] = simplify(indices[axis] + step)
    return tuple(indices)


@frozen
class Step:
    """An intrinsic that multiplies two parts and adds to the sum of one ``output``. ``more``: those of the left operand that it
    takes beside the first; they stand behind the right one, which is an address then."""

    left: Part
    right: Part
    name: str = "dot2"
    output: int = 0
    more: tuple[Part, ...] = ()

    def value(self, a: ir.Load, b: ir.Load, old: Expr) -> Call:
        """The call, from the operands at (0, 0) and the sum before it."""
        lefts = [part.value(a) for part in (self.left, *self.more)]
        right = self.right.value(b)
        return Call(self.name, (right, *lefts, old) if self.more else (*lefts, right, old), "int32")


@frozen
class TensorIntrin:
    """Loops over ``outputs`` and the terms of a sum, ``c[n] += a[n, k] * b[n, k]`` (operands widened to int32), and the
    intrinsics that replace them; a core has it that has all of those.

    ``a`` and ``b`` are the operands' dtypes. ``order_a`` and ``order_b`` say, for every (n, k) in row-major order, how many
    elements behind that of (0, 0) the operand lies. ``aligned_a``, ``aligned_b``: the operand is read by words that must lie
    at multiples of four bytes. A single output has no loop n.
    """

    name: str
    a: str
    b: str
    order_a: tuple[int, ...]
    order_b: tuple[int, ...]
    steps: tuple[Step, ...]
    aligned_a: bool = False
    aligned_b: bool = False
    outputs: int = 1

    @property
    def extents(self) -> tuple[int, ...]:
        """The lengths of the loops."""
        terms = len(self.order_a) // self.outputs
        return (self.outputs, terms) if self.outputs > 1 else (terms,)

    @property
    def needs(self) -> frozenset[str]:
        """The intrinsics that it is made of."""
        parts = [(s.name, *(name for part in (s.left, s.right, *s.more) for name in part.names)) for s in self.steps]
        return frozenset(name for names in parts for name in names)

    def body(self, a: ir.Load, b: ir.Load, sums: tuple[ir.Load, ...]) -> Stmt:
        """The calls, from the operands at (0, 0) and the places of the sums; those that add to one sum in turn are one
        statement."""
        stores: list[ir.Store] = []
        for step in self.steps:
            place = sums[step.output]
            chained = bool(stores) and ir.Load(stores[-1].buffer, stores[-1].indices) == place
            old = stores.pop().value if chained else place
            stores.append(ir.Store(place.buffer, place.indices, step.value(a, b, old)))
        return ir.seq(*stores)
