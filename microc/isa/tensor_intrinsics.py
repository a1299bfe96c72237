# SPDX-License-Identifier: Apache-2.0
"""Tensor intrinsics: a small loop nest that sums products, and the scalar intrinsics that replace it."""

from __future__ import annotations

from microc.base.immutable import frozen
from microc.tir import ir
from microc.tir.analysis.simplification import simplify
from microc.tir.ir import Call, Expr, Stmt


@frozen
class StepOperand:
    """An operand of a step of a tensor intrinsic: intrinsics ``intrinsic_names``, innermost first, applied to the address of
    ``element_count`` elements.

    ``element_offset``: distance in elements from the operand's first element. Without intrinsics, the operand is the element
    itself, widened to int32, or the address if ``element_count`` is above 1."""

    element_offset: int
    intrinsic_names: tuple[str, ...]
    element_count: int

    def build_operand(self, first_element: ir.Load) -> Expr:
        """Build the operand, given the load of its first element, ``first_element``. The value is an int32, often two packed
        int16."""
        indices = _indices_at_offset(first_element, self.element_offset)
        if not self.intrinsic_names and self.element_count == 1:
            return ir.cast("int32", ir.Load(first_element.buffer, indices))
        value: Expr = ir.AddressOf(first_element.buffer, indices, self.element_count)
        for name in self.intrinsic_names:
            value = Call(name, (value,), "int32")
        return value


def _indices_at_offset(start: ir.Load, offset: int) -> tuple[Expr, ...]:
    """Return the indices of the element that is ``offset`` elements behind ``start`` in memory. An index beyond its
    axis is carried to the axis before it."""
    indices = list(start.indices)
    for axis in reversed(range(len(indices))):
        offset, step = divmod(offset, start.buffer.shape[axis]) if axis else (0, offset)
        indices[axis] = simplify(indices[axis] + step)
    return tuple(indices)


@frozen
class IntrinsicStep:
    """A step of a tensor intrinsic: the call of a scalar intrinsic that multiplies two operands and adds the products
    to the sum of output number ``output_index``.

    ``more_left_operands``: additional left operands. If there are any, the intrinsic's first argument is the right operand, an
    address, and all left operands follow."""

    left: StepOperand
    right: StepOperand
    name: str = "dot2"
    output_index: int = 0
    more_left_operands: tuple[StepOperand, ...] = ()

    def build_call(self, a: ir.Load, b: ir.Load, previous_sum: Expr) -> Call:
        """Build the call of the step's scalar intrinsic.

        ``a``, ``b``: loads of the first elements, at (0, 0). ``previous_sum``: sum to which the products are added."""
        lefts = [part.build_operand(a) for part in (self.left, *self.more_left_operands)]
        right = self.right.build_operand(b)
        return Call(
            self.name,
            (right, *lefts, previous_sum) if self.more_left_operands else (*lefts, right, previous_sum),
            "int32",
        )


@frozen
class TensorIntrin:
    """A tensor intrinsic: the loop nest ``c[n] += a[n, k] * b[n, k]`` over outputs n and terms k (operands widened to
    int32), and the scalar intrinsics that replace it.

    A core has the tensor intrinsic if it has all of these scalar intrinsics. If there is a single output, there is no
    loop over n.

    - ``a``, ``b``: dtypes of the operands.
    - ``order_a``, ``order_b``: for every (n, k) in row-major order, the distance of the operand's element from that of
      (0, 0), in elements.
    - ``steps``: the calls of scalar intrinsics.
    - ``aligned_a``, ``aligned_b``: True if the operand is read by words, which must be at multiples of four bytes.
    - ``outputs``: number of outputs n."""

    name: str
    a: str
    b: str
    order_a: tuple[int, ...]
    order_b: tuple[int, ...]
    steps: tuple[IntrinsicStep, ...]
    aligned_a: bool = False
    aligned_b: bool = False
    outputs: int = 1

    @property
    def extents(self) -> tuple[int, ...]:
        """The trip counts of the loops that the intrinsic replaces, outermost first."""
        terms = len(self.order_a) // self.outputs
        return (self.outputs, terms) if self.outputs > 1 else (terms,)

    @property
    def required_intrinsics(self) -> frozenset[str]:
        """The names of the scalar intrinsics that a core must have."""
        parts = [
            (s.name, *(name for part in (s.left, s.right, *s.more_left_operands) for name in part.intrinsic_names))
            for s in self.steps
        ]
        return frozenset(name for names in parts for name in names)

    def build_body(self, a: ir.Load, b: ir.Load, sums: tuple[ir.Load, ...]) -> Stmt:
        """Build the statement that replaces the loops, given the loads of the operands at (0, 0) and of the sums.

        Successive steps that add to the same sum become one nested call."""
        stores: list[ir.Store] = []
        for step in self.steps:
            total = sums[step.output_index]
            is_chained = bool(stores) and ir.Load(stores[-1].buffer, stores[-1].indices) == total
            old = stores.pop().value if is_chained else total
            stores.append(ir.Store(total.buffer, total.indices, step.build_call(a, b, old)))
        return ir.seq(*stores)
