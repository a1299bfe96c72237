"""Tensors defined by an expression of their indices: ``compute((n, m), lambda i, j: a[i, j] + b[j])``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from microc.errors import ProgramError
from microc.tir import ir
from microc.tir.ir import Expr, Var
from microc.tir.symbolic import extent_of


@dataclass(frozen=True, slots=True)
class ReduceAxis:
    """An axis that is summed (or maximised ...) over. Use ``axis.var`` in expressions."""

    var: Var
    extent: int


@dataclass(frozen=True, slots=True)
class TensorRead(Expr):
    """One element of a tensor; lowering turns it into a buffer load."""

    tensor: Tensor
    indices: tuple[Expr, ...]

    @property
    def dtype(self) -> str:  # type: ignore[override]
        return self.tensor.dtype


@dataclass(frozen=True, slots=True)
class Reduce(Expr):
    """``combine`` of ``value`` over ``axes``, starting from ``init``: ``add``, ``mul``, ``fma`` (of products, each rounded with
    its sum, once), or, by what becomes of NaN (:func:`microc.te.lower.combined`), ``max``, ``min``, ``maximum``, ``minimum``.

    Stands only as the whole body of a compute. ``init`` may use the spatial axes (a bias, say).
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
    """How a tensor is made: one expression over its axes. ``notes`` become the block's annotations."""

    axes: tuple[Var, ...]
    body: Expr
    notes: tuple[tuple[str, int | str], ...] = ()


Build = Callable[[tuple[ir.Buffer, ...], tuple[ir.Buffer, ...]], ir.Stmt]
"""Writes the loops of an :class:`ExternDef` over the buffers of its operands and of its results."""


@dataclass(frozen=True, eq=False, slots=True)
class ExternDef:
    """Tensors that loops make together, for what no expression of one element says: sorting, recurrences, butterflies.

    ``results``: (name, shape, dtype) of every tensor that ``build`` fills; it may read what it has written.
    """

    name: str
    operands: tuple[Tensor, ...]
    results: tuple[tuple[str, tuple[int, ...], str], ...]
    build: Build


@dataclass(frozen=True, eq=False, slots=True)
class Tensor:
    """A placeholder (``definition`` None) or a computed tensor. Compares by identity.

    Extents that are expressions (:mod:`microc.tir.symbolic`) are no numbers: operators do not take such tensors.
    ``position``: which result of an :class:`ExternDef` it is.
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
            raise ProgramError(f"{self.name} has {len(self.shape)} axes, {len(items)} indices given")
        return TensorRead(self, tuple(ir.as_index(item) for item in items))


def var(name: str) -> Var:
    """A size that is told later, int32: it and expressions over it may stand for extents, and be computed with."""
    return Var(name)


def placeholder(shape: Sequence[int | Expr], dtype: str, name: str) -> Tensor:
    """An input tensor."""
    return Tensor(name, _extents(name, shape), dtype)


def reduce_axis(extent: int | Expr, name: str) -> ReduceAxis:
    """An axis to reduce over, 0..extent."""
    return ReduceAxis(Var(name), *_extents(name, (extent,)))


def _extents(name: str, shape: Sequence[object]) -> tuple[int, ...]:
    return tuple(extent_of(extent, name) for extent in shape)


def compute(
    shape: Sequence[int | Expr],
    f: Callable[..., Expr],
    name: str,
    axes: tuple[str, ...] | None = None,
    notes: tuple[tuple[str, int | str], ...] = (),
) -> Tensor:
    """The tensor whose element at ``(i, j, ...)`` is ``f(i, j, ...)``. ``axes`` names the loop variables; ``notes`` are what a
    schedule may want to know."""
    names = axes or tuple(f"i{k}" for k in range(len(shape)))
    variables = tuple(Var(axis) for axis in names)
    body = f(*variables)
    return Tensor(name, _extents(name, shape), body.dtype, ComputeDef(variables, body, notes))


def extern(
    name: str, operands: Sequence[Tensor], results: Sequence[tuple[str, tuple[int, ...], str]], build: Build
) -> tuple[Tensor, ...]:
    """Tensors made by ``build``'s loops, one for every (name, shape, dtype) of ``results``."""
    definition = ExternDef(name, tuple(operands), tuple(results), build)
    return tuple(Tensor(*result, definition, position) for position, result in enumerate(results))


def _reduce(combine: str, value: Expr, axes: tuple[ReduceAxis, ...], init: Expr | int | float) -> Reduce:
    start = ir.as_expr(init, value.dtype)
    if start.dtype != value.dtype:
        raise ProgramError(f"reduction of {value.dtype} starts from {start.dtype}")
    return Reduce(combine, value, axes, start)


def sum_reduce(value: Expr, *axes: ReduceAxis, init: Expr | int | float = 0) -> Reduce:
    """The sum of ``value`` over ``axes``, plus ``init``."""
    return _reduce("add", value, axes, init)


def fma_reduce(a: Expr, b: Expr, *axes: ReduceAxis, init: Expr | int | float = 0) -> Reduce:
    """The sum of ``a * b`` over ``axes``, plus ``init``, in the order of the axes: every term is added with one rounding, to the
    factors' dtype."""
    return _reduce("fma", ir.binary("mul", a, b), axes, init)


def max_reduce(value: Expr, *axes: ReduceAxis, init: Expr | int | float) -> Reduce:
    """The largest ``value`` over ``axes``, at least ``init``."""
    return _reduce("max", value, axes, init)


def min_reduce(value: Expr, *axes: ReduceAxis, init: Expr | int | float) -> Reduce:
    """The smallest ``value`` over ``axes``, at most ``init``."""
    return _reduce("min", value, axes, init)
