# SPDX-License-Identifier: Apache-2.0
"""Values and calls that gradient rules receive: arithmetic on them appends nodes to the graph under construction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, Union

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import UnsupportedError
from microc.graph.ir import Attr, Graph, Node, TensorType


class NodeEmitter(Protocol):
    """Interface of the graph under construction."""

    def emit(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr]) -> tuple[str, ...]:
        """Append a node; return the names of its results."""

    def add_constant(self, data: Array) -> str:
        """Add a constant; return its name."""

    def type(self, name: str) -> TensorType:
        """Return the type of a value."""


Number = Union["Value", int, float]
"""Operand of arithmetic on values. A Python number becomes a constant of the other operand's dtype."""


@frozen
class Value:
    """A value of the graph under construction. Operators and methods append nodes and return their results."""

    emitter: NodeEmitter
    name: str

    @property
    def type(self) -> TensorType:
        return self.emitter.type(self.name)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> str:
        return self.type.dtype

    def apply(self, op: str, *others: Number, **attrs: Attr) -> Value:
        """Append a node of operator ``op`` with this value as its first operand; return the node's only result."""
        (result,) = self.apply_all(op, *others, **attrs)
        return result

    def apply_all(self, op: str, *others: Number, **attrs: Attr) -> tuple[Value, ...]:
        """Append a node as :meth:`apply` does; return all its results."""
        operands = (self, *(self._as_value(other) for other in others))
        names = self.emitter.emit(op, [operand.name for operand in operands], attrs)
        return tuple(Value(self.emitter, name) for name in names)

    def _as_value(self, number: Number) -> Value:
        return number if isinstance(number, Value) else self.constant(number)

    def constant(self, data: Any, dtype: str = "") -> Value:
        """Add a constant of this value's dtype, or of ``dtype``."""
        array = np.asarray(data, dtypes.to_numpy(dtype or self.dtype))
        return Value(self.emitter, self.emitter.add_constant(array))

    def __add__(self, other: Number) -> Value:
        return self.apply("add", other)

    __radd__ = __add__

    def __sub__(self, other: Number) -> Value:
        return self.apply("sub", other)

    def __rsub__(self, other: Number) -> Value:
        return self._as_value(other).apply("sub", self)

    def __mul__(self, other: Number) -> Value:
        return self.apply("mul", other)

    __rmul__ = __mul__

    def __truediv__(self, other: Number) -> Value:
        return self.apply("div", other)

    def __rtruediv__(self, other: Number) -> Value:
        return self._as_value(other).apply("div", self)

    def __neg__(self) -> Value:
        return self.apply("neg")

    def __gt__(self, other: Number) -> Value:
        return self.apply("greater", other)

    def __lt__(self, other: Number) -> Value:
        return self.apply("less", other)

    def equals(self, other: Number) -> Value:
        """Compare with ``other``; the result is bool."""
        return self.apply("equal", other)

    def select(self, a: Number, b: Number) -> Value:
        """Return ``a`` where this bool value is true, else ``b``. One of both must be a :class:`Value`."""
        sample = a if isinstance(a, Value) else b
        assert isinstance(sample, Value)
        return self.apply("where", sample._as_value(a), sample._as_value(b))

    def reshape(self, shape: Sequence[int]) -> Value:
        return self if self.shape == tuple(shape) else self.apply("reshape", shape=tuple(shape))

    def transpose(self, axes: Sequence[int]) -> Value:
        return self if tuple(axes) == tuple(range(len(axes))) else self.apply("transpose", axes=tuple(axes))

    def slice(self, begin: Sequence[int], end: Sequence[int]) -> Value:
        """Return the elements from ``begin`` up to ``end`` along each axis."""
        if not any(begin) and tuple(end) == self.shape:
            return self
        return self.apply("slice", begin=tuple(begin), end=tuple(end), strides=(1,) * len(self.shape))

    def pad(self, before: Sequence[int], after: Sequence[int]) -> Value:
        """Add zeros before and after each axis."""
        if not any((*before, *after)):
            return self
        return self.apply("pad", padding=tuple(zip(before, after, strict=True)), value=0)

    def sum(self, axes: Sequence[int], keepdims: bool = False) -> Value:
        """Sum over ``axes``, which are not negative. Axes of one element are reshaped only."""
        shape = tuple(1 if axis in axes else extent for axis, extent in enumerate(self.shape))
        kept = shape if keepdims else tuple(extent for axis, extent in enumerate(self.shape) if axis not in axes)
        longer = tuple(axis for axis in axes if self.shape[axis] != 1)
        total = self.apply("sum", axes=longer, keepdims=True) if longer else self
        return total.reshape(kept)

    def broadcast_to(self, shape: Sequence[int]) -> Value:
        return self if self.shape == tuple(shape) else self.apply("broadcast_to", shape=tuple(shape))

    def sum_to(self, shape: Sequence[int]) -> Value:
        """Sum over the axes along which ``shape`` was broadcast to this value's shape: the adjoint of broadcasting."""
        rank = len(self.shape) - len(shape)
        aligned = (*(1,) * rank, *shape)
        axes = [axis for axis, extent in enumerate(aligned) if extent == 1 != self.shape[axis]]
        return self.sum(axes, keepdims=True).reshape(shape)


@frozen
class GradientCall:
    """A node as the gradient rule of its operator receives it.

    ``operands``: the node's operands; None for one that is absent. ``results``: the node's results.
    ``result_gradients``: for each result the gradient of the loss, of the result's type; None if the loss does not
    depend on the result. ``wanted``: positions of the operands whose gradients are needed. A rule returns one gradient
    for each operand, of the operand's type. Gradients of operands that are not wanted are ignored; None stands for
    zero."""

    node: Node
    graph: Graph
    operands: tuple[Value | None, ...]
    results: tuple[Value, ...]
    result_gradients: tuple[Value | None, ...]
    wanted: frozenset[int]

    @property
    def attrs(self) -> Mapping[str, Attr]:
        return self.node.attrs

    def attr(self, name: str) -> Any:
        """Return the value of an attribute."""
        return self.node.attr(name)

    def operand(self, position: int) -> Value:
        """Return an operand that is always present."""
        value = self.operands[position]
        assert value is not None
        return value

    @property
    def data(self) -> Value:
        """The first operand."""
        return self.operand(0)

    @property
    def result(self) -> Value:
        """The first result."""
        return self.results[0]

    @property
    def gradient(self) -> Value:
        """The gradient of the first result, of an operator with a single one."""
        value = self.result_gradients[0]
        assert value is not None
        return value

    def unsupported(self, got: str, expected: str) -> UnsupportedError:
        """Return the error for a form of the operator whose gradient is not defined."""
        return UnsupportedError(
            f"{self.node.op}: the gradient of this form is not supported; got {got}, expected {expected}",
            where=str(self.node.loc),
            hint="differentiate by values behind this operator, or rewrite it",
        )

    def constant_operand(self, position: int) -> Array | None:
        """Return the data of an operand that is known at compile time, else None."""
        return self.graph.consts.get(self.node.inputs[position])


Gradients = Sequence[Value | None]
"""Gradients of the operands of a node, in their order. Operands behind the last one have none."""
GradientRule = Callable[[GradientCall], Gradients]
"""Function that appends the nodes of a node's gradients to the graph under construction."""
