# SPDX-License-Identifier: Apache-2.0
"""Tensor expressions: tensors defined by an expression of one element, as in TVM.

An example is ``compute((n, m), lambda i, j: a[i, j] + b[j])``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from microc.errors import ProgramError
from microc.tir import ir
from microc.tir.ir import Expr, Var
from microc.tir.symbolic import convert_extent


@dataclass(frozen=True, slots=True)
class ReduceAxis:
    """A reduction axis: an axis over which a :class:`Reduce` combines values, for example by addition.

    Expressions refer to the axis as ``axis.var``."""

    var: Var
    extent: int


@dataclass(frozen=True, slots=True)
class TensorRead(Expr):
    """A read of one element of a tensor. Lowering replaces it by a load from a buffer."""

    tensor: Tensor
    indices: tuple[Expr, ...]

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return self.tensor.dtype


@dataclass(frozen=True, slots=True)
class Reduce(Expr):
    """Reduction of ``value`` over ``axes`` by the operation ``combine``, starting from ``init``.

    ``combine`` is ``add``, ``mul``, ``fma`` (a sum of products; a product and its addition are rounded once), ``max``,
    ``min``, ``maximum`` or ``minimum``. The last two differ from ``max`` and ``min`` for NaN
    (:func:`microc.te.lower.build_reduction_step`). A reduction must be the whole expression of a :func:`compute`. ``init`` may
    depend on the spatial axes, for example a bias.
    """

    combine: str
    value: Expr
    axes: tuple[ReduceAxis, ...]
    init: Expr

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return self.value.dtype


@dataclass(frozen=True, slots=True)
class ComputeDef:
    """Definition of a tensor by one expression of an element, over the variables ``axes``.

    ``notes``: annotations of the block to which the tensor is lowered."""

    axes: tuple[Var, ...]
    body: Expr
    notes: tuple[tuple[str, int | str], ...] = ()


Build = Callable[[tuple[ir.Buffer, ...], tuple[ir.Buffer, ...]], ir.Stmt]
"""Function that returns the loops of an :class:`ExternDef`. Its arguments are the buffers of the operands and of the results."""


@dataclass(frozen=True, eq=False, slots=True)
class ExternDef:
    """Definition of tensors by loops, for operations that no expression of a single element can describe.

    Examples are sorting, recurrences and the FFT. ``build`` returns the loops, which may also read elements that they have
    written. ``results``: (name, shape, dtype) of every tensor that the loops fill.
    """

    name: str
    operands: tuple[Tensor, ...]
    results: tuple[tuple[str, tuple[int, ...], str], ...]
    build: Build


@dataclass(frozen=True, eq=False, slots=True)
class Tensor:
    """A tensor: a placeholder (``definition`` is None), or a tensor computed by its definition. Compared by identity.

    Extents may be expressions over symbolic sizes (:mod:`microc.tir.symbolic`); such tensors cannot be operands of
    operators. ``position``: index of the tensor among the results of its :class:`ExternDef`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    definition: ComputeDef | ExternDef | None = None
    position: int = 0

    @property
    def size(self) -> int:
        return prod(self.shape)

    def __getitem__(self, indices: Expr | int | tuple[Expr | int, ...]) -> TensorRead:
        items = indices if isinstance(indices, tuple) else (indices,)
        if len(items) != len(self.shape):
            raise ProgramError(f"{self.name}: wrong number of indices; got {len(items)}, expected {len(self.shape)}")
        return TensorRead(self, tuple(ir.as_index(item) for item in items))


def var(name: str) -> Var:
    """Return an int32 variable for a symbolic size, whose value is given at run time.

    The variable, and expressions over it, may be extents of tensors and operands of expressions."""
    return Var(name)


def placeholder(shape: Sequence[int | Expr], dtype: str, name: str) -> Tensor:
    """Return a placeholder: an input tensor of a function."""
    return Tensor(name, _convert_extents(name, shape), dtype)


def reduce_axis(extent: int | Expr, name: str) -> ReduceAxis:
    """Return a reduction axis whose index runs from 0 to ``extent`` - 1."""
    return ReduceAxis(Var(name), *_convert_extents(name, (extent,)))


def _convert_extents(name: str, shape: Sequence[object]) -> tuple[int, ...]:
    return tuple(convert_extent(extent, name) for extent in shape)


def compute(
    shape: Sequence[int | Expr],
    f: Callable[..., Expr],
    name: str,
    axes: tuple[str, ...] | None = None,
    notes: tuple[tuple[str, int | str], ...] = (),
) -> Tensor:
    """Return the tensor whose element at ``(i, j, ...)`` is ``f(i, j, ...)``.

    ``axes``: names of the loop variables. ``notes``: annotations of the tensor's block, which schedules read as hints.
    """
    names = axes or tuple(f"i{k}" for k in range(len(shape)))
    variables = tuple(Var(axis) for axis in names)
    body = f(*variables)
    return Tensor(name, _convert_extents(name, shape), body.dtype, ComputeDef(variables, body, notes))


def extern(
    name: str, operands: Sequence[Tensor], results: Sequence[tuple[str, tuple[int, ...], str]], build: Build
) -> tuple[Tensor, ...]:
    """Return the tensors that the loops of ``build`` compute: one for every (name, shape, dtype) in ``results``."""
    definition = ExternDef(name, tuple(operands), tuple(results), build)
    return tuple(Tensor(*result, definition, position) for position, result in enumerate(results))


def _make_reduce(combine: str, value: Expr, axes: tuple[ReduceAxis, ...], init: Expr | int | float) -> Reduce:
    """Return a reduction. ProgramError if ``init`` and ``value`` have different dtypes."""
    start = ir.as_expr(init, value.dtype)
    if start.dtype != value.dtype:
        raise ProgramError(
            f"a reduction has an initial value of another dtype; got {start.dtype}, expected {value.dtype}",
            hint=f"cast init to {value.dtype}",
        )
    return Reduce(combine, value, axes, start)


def sum_reduce(value: Expr, *axes: ReduceAxis, init: Expr | int | float = 0) -> Reduce:
    """Return the sum of ``value`` over ``axes``, plus ``init``."""
    return _make_reduce("add", value, axes, init)


def fma_reduce(a: Expr, b: Expr, *axes: ReduceAxis, init: Expr | int | float = 0) -> Reduce:
    """Return the sum of ``a * b`` over ``axes``, plus ``init``. Terms are added in the order of the axes.

    Each product is added to the sum with a single rounding (fused multiply-add), in the dtype of the factors."""
    return _make_reduce("fma", ir.binary("mul", a, b), axes, init)


def max_reduce(value: Expr, *axes: ReduceAxis, init: Expr | int | float) -> Reduce:
    """Return the maximum of ``init`` and of ``value`` over ``axes``."""
    return _make_reduce("max", value, axes, init)


def min_reduce(value: Expr, *axes: ReduceAxis, init: Expr | int | float) -> Reduce:
    """Return the minimum of ``init`` and of ``value`` over ``axes``."""
    return _make_reduce("min", value, axes, init)
