"""The loops of elementwise work, and where its operands' elements are in them: shapes of one row-major memory."""

from __future__ import annotations

from collections.abc import Sequence

from microc.graph.ir import TensorType
from microc.tir import ir
from microc.tir.affine import simplify


def loop_extents(result: TensorType, operands: Sequence[TensorType]) -> tuple[int, ...]:
    """Loops for a purely elementwise group: one if all operands are alike, rows by channels, or the graph's own axes."""
    odd = [t for t in operands if t.size not in (1, result.size)]
    if not odd or not result.shape:  # of a scalar, tables are odd
        return (result.size,)
    if all(varies_last(t, result) for t in odd):
        return (result.size // result.shape[-1], result.shape[-1])
    return result.shape


def varies_last(kind: TensorType, result: TensorType) -> bool:
    """Whether an operand varies along the last axis only."""
    return bool(kind.shape) and kind.size == kind.shape[-1] == result.shape[-1]


def index_in(shape: tuple[int, ...], wanted: tuple[int, ...], index: tuple[ir.Expr, ...]) -> tuple[ir.Expr, ...]:
    """The index in shape ``wanted`` of the element at ``index`` of ``shape`` (same row-major memory)."""
    if shape == wanted:
        return index
    flat: ir.Expr = ir.const(0, "int32")
    for i, extent in zip(index, shape, strict=True):
        flat = flat * extent + i
    found: list[ir.Expr] = []
    for extent in reversed(wanted):
        found.append(flat % extent)
        flat = flat // extent
    return tuple(simplify(e) for e in reversed(found))
