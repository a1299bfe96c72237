"""Which part of a buffer is touched: accesses with the loops around them, affine splitting of indices, steps along a loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from microc.tir import ir
from microc.tir.affine import bounds_of, linear, simplify
from microc.tir.rewrite import accesses_of, free_vars, stmt_children, stmt_exprs, substitute


@dataclass(frozen=True, slots=True)
class Access:
    """One access: buffer, indices, how far it extends along the last axis, and the loops around it, outermost first."""

    buffer: ir.Buffer
    indices: tuple[ir.Expr, ...]
    extent: int
    loops: tuple[ir.For, ...]
    writes: bool


def accesses(stmt: ir.Stmt, loops: tuple[ir.For, ...] = ()) -> Iterator[Access]:
    """Every access under ``stmt`` (block iterators must have been substituted)."""
    for expr in stmt_exprs(stmt):
        for part in accesses_of(expr):
            if isinstance(part, ir.Load):
                yield Access(part.buffer, part.indices, 1, loops, False)
            else:
                yield Access(part.buffer, part.indices, part.reach, loops, part.writes)
    if isinstance(stmt, ir.Store):
        yield Access(stmt.buffer, stmt.indices, 1, loops, True)
    inner = (*loops, stmt) if isinstance(stmt, ir.For) else loops
    for child in stmt_children(stmt):
        yield from accesses(child, inner)


def loop_bounds(loops: tuple[ir.For, ...]) -> dict[ir.Var, tuple[int, int]]:
    """Inclusive ranges of the variables of constant loops."""
    found = {}
    for loop in loops:
        extent = ir.int_value(loop.extent)
        if extent is not None:
            found[loop.var] = (0, extent - 1)
    return found


def flat_step(buffer: ir.Buffer, indices: tuple[ir.Expr, ...], var: ir.Var) -> int | None:
    """By how many elements in memory an access moves with ``var``; None if that is no fixed number."""
    total = 0
    for index, stride in zip(indices, buffer.strides, strict=True):
        terms, _ = linear(simplify(index))
        if any(term != var and var in free_vars(term) for term in terms):
            return None
        total += terms.get(var, 0) * stride
    return total


def split_index(
    index: ir.Expr, inner: Mapping[ir.Var, tuple[int, int]], bounds: Mapping[ir.Var, tuple[int, int]]
) -> tuple[ir.Expr, int, int] | None:
    """``index`` as (part that does not depend on ``inner`` variables, lowest and highest of the rest).

    None when the dependent part has no known range.
    """
    terms, offset = linear(simplify(index, bounds))
    outer: ir.Expr = ir.const(0, "int32")
    low = high = offset
    for term, factor in terms.items():
        if free_vars(term) & inner.keys():
            reach = bounds_of(term, bounds)
            if reach is None:
                return None
            ends = (factor * reach[0], factor * reach[1])
            low, high = low + min(ends), high + max(ends)
        else:
            outer = outer + term * factor
    return simplify(outer, bounds), low, high


def address(
    buffer: ir.Buffer, indices: tuple[ir.Expr, ...], at: Mapping[ir.Var, ir.Expr], extent: int, *, writes: bool
) -> ir.AddressOf:
    """Where ``extent`` elements begin, with the variables of ``at`` at their values."""
    return ir.AddressOf(buffer, tuple(simplify(substitute(i, at)) for i in indices), extent, writes)


def consecutive(indices: tuple[ir.Expr, ...], var: ir.Var) -> bool:
    """Whether the last index moves by one with ``var`` and the others do not move."""
    for axis, index in enumerate(indices):
        terms, _ = linear(simplify(index))
        hidden = any(var in free_vars(t) for t in terms if t != var)
        if hidden or terms.get(var, 0) != (1 if axis == len(indices) - 1 else 0):
            return False
    return True
