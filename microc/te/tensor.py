"""Tensors defined by an expression of their indices: ``compute((n, m), lambda i, j: a[i, j] + b[j])``."""

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
    """An axis over which a tensor is reduced: summed, maximised ... Use ``axis.var`` in expressions."""

    var: Var
    extent: int


@dataclass(frozen=True, slots=True)
class TensorRead(Expr):
    """An element of a tensor; lowering replaces it by a buffer load."""

    tensor: Tensor
    indices: tuple[Expr, ...]

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return self.tensor.dtype


@dataclass(frozen=True, slots=True)
class Reduce(Expr):
    """Reduction of ``value`` over ``axes`` by ``combine``, starting from ``init``.

    ``combine`` is ``add``, ``mul``, ``fma`` (of products, each rounded once, with its sum), or, depending on the
    treatment of NaN (:func:`microc.te.lower.combine_step`), ``max``, ``min``, ``maximum``, ``minimum``. A reduction must be
    the whole body of a compute. ``init`` may use the spatial axes (a bias, say).
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
    """Definition of a tensor by one expression over its axes. ``notes`` become the block's annotations."""

    axes: tuple[Var, ...]
    body: Expr
    notes: tuple[tuple[str, int | str], ...] = ()


Build = Callable[[tuple[ir.Buffer, ...], tuple[ir.Buffer, ...]], ir.Stmt]
"""Function that writes the loops of an :class:`ExternDef`, given the buffers of its operands and of its results."""


@dataclass(frozen=True, eq=False, slots=True)
class ExternDef:
    """Definition of tensors by loops, for operations that no expression of a single element describes: sorting,
    recurrences, FFT.

    ``results``: (name, shape, dtype) of every tensor that ``build`` fills; it may read what it has written.
    """

    name: str
    operands: tuple[Tensor, ...]
    results: tuple[tuple[str, tuple[int, ...], str], ...]
    build: Build


@dataclass(frozen=True, eq=False, slots=True)
class Tensor:
    """A placeholder (``definition`` None) or a computed tensor. Compared by identity.

    Operators do not take tensors whose extents are expressions (:mod:`microc.tir.symbolic`). ``position``: index of
    this result of an :class:`ExternDef`.
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
    """Return an int32 variable that stands for a size given later. It, and expressions over it, may be extents and may be
    computed with."""
    return Var(name)


def placeholder(shape: Sequence[int | Expr], dtype: str, name: str) -> Tensor:
    """Return an input tensor."""
    return Tensor(name, _convert_extents(name, shape), dtype)


def reduce_axis(extent: int | Expr, name: str) -> ReduceAxis:
    """Return an axis to reduce over, 0..extent."""
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

    ``axes`` names the loop variables; ``notes`` are hints for schedules.
    """
    names = axes or tuple(f"i{k}" for k in range(len(shape)))
    variables = tuple(Var(axis) for axis in names)
    body = f(*variables)
    return Tensor(name, _convert_extents(name, shape), body.dtype, ComputeDef(variables, body, notes))


def extern(
    name: str, operands: Sequence[Tensor], results: Sequence[tuple[str, tuple[int, ...], str]], build: Build
) -> tuple[Tensor, ...]:
    """Return the tensors that ``build``'s loops compute, one for every (name, shape, dtype) of ``results``."""
    definition = ExternDef(name, tuple(operands), tuple(results), build)
    return tuple(Tensor(*result, definition, position) for position, result in enumerate(results))


def _make_reduce(combine: str, value: Expr, axes: tuple[ReduceAxis, ...], init: Expr | int | float) -> Reduce:
    """Return a reduction; ProgramError if the dtype of ``init`` is not that of ``value``."""
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
    """Return the sum of ``a * b`` over ``axes``, plus ``init``, in the order of the axes. Every term is added with a
    single rounding, to the dtype of the factors."""
    return _make_reduce("fma", ir.binary("mul", a, b), axes, init)


def max_reduce(value: Expr, *axes: ReduceAxis, init: Expr | int | float) -> Reduce:
    """Return the largest ``value`` over ``axes``, at least ``init``."""
    return _make_reduce("max", value, axes, init)


def min_reduce(value: Expr, *axes: ReduceAxis, init: Expr | int | float) -> Reduce:
    """Return the smallest ``value`` over ``axes``, at most ``init``."""
    return _make_reduce("min", value, axes, init)
