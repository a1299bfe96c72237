# SPDX-License-Identifier: Apache-2.0
"""Memory accesses with their enclosing loops, affine decomposition of indices, and strides of accesses along a loop."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache

from microc.base.immutable import frozen
from microc.tir import ir
from microc.tir.analysis.simplification import REMEMBERED, bounds_of, linear, simplify
from microc.tir.extents import largest, smallest
from microc.tir.rewrite import accesses_of, free_vars, stmt_children, stmt_exprs, substitute


@frozen
class Access:
    """A memory access with its enclosing loops.

    ``extent``: number of elements along the last axis that it accesses, from ``indices`` on. ``loops``: the enclosing loops,
    outermost first."""

    buffer: ir.Buffer
    indices: tuple[ir.Expr, ...]
    extent: int
    loops: tuple[ir.For, ...]
    writes: bool


def accesses(stmt: ir.Stmt, loops: tuple[ir.For, ...] = ()) -> Iterator[Access]:
    """Yield every memory access in ``stmt`` and its sub-statements, which must contain no blocks.

    ``loops``: loops around ``stmt``, outermost first."""
    for expr in stmt_exprs(stmt):
        for part in accesses_of(expr):
            yield _convert_to_access(part, loops)
    if isinstance(stmt, ir.Store):
        yield Access(stmt.buffer, stmt.indices, 1, loops, True)
    inner = (*loops, stmt) if isinstance(stmt, ir.For) else loops
    for child in stmt_children(stmt):
        yield from accesses(child, inner)


def accesses_to(stmt: ir.Stmt, buffer: ir.Buffer, loops: tuple[ir.For, ...] = ()) -> list[Access]:
    """Return the accesses to one buffer in ``stmt`` and its sub-statements, in program order.

    ``loops``: loops around ``stmt``, outermost first."""
    found: list[Access] = []
    waiting = [(stmt, loops)]
    while waiting:
        s, around = waiting.pop()
        for expr in stmt_exprs(s):
            for part in accesses_of(expr):
                if part.buffer == buffer:
                    found.append(_convert_to_access(part, around))
        if isinstance(s, ir.Store) and s.buffer == buffer:
            found.append(Access(buffer, s.indices, 1, around, True))
        inner = (*around, s) if isinstance(s, ir.For) else around
        waiting += [(child, inner) for child in stmt_children(s)[::-1]]
    return found


def _convert_to_access(part: ir.Load | ir.AddressOf, loops: tuple[ir.For, ...]) -> Access:
    """Return the access that a load or an address makes. ``loops``: its enclosing loops."""
    if isinstance(part, ir.Load):
        return Access(part.buffer, part.indices, 1, loops, False)
    return Access(part.buffer, part.indices, part.reach, loops, part.writes)


def loop_bounds(loops: tuple[ir.For, ...]) -> dict[ir.Var, tuple[int, int]]:
    """Return the inclusive range of each loop variable, for the loops of constant extent."""
    found = {}
    for loop in loops:
        extent = ir.int_value(loop.extent)
        if extent is not None:
            found[loop.var] = (0, extent - 1)
    return found


def memory_stride(buffer: ir.Buffer, indices: tuple[ir.Expr, ...], var: ir.Var) -> int | None:
    """Return the distance in memory, in elements, between accesses in consecutive iterations of the loop over ``var``.

    None if the distance is not constant."""
    total = 0
    for index, stride in zip(indices, buffer.strides, strict=True):
        terms, _ = linear(simplify(index))
        if any(term != var and var in free_vars(term) for term in terms):
            return None
        total += terms.get(var, 0) * stride
    return total


def split_index(
    index: ir.Expr, inner_vars: Collection[ir.Var], bounds: Mapping[ir.Var, tuple[int, int]]
) -> tuple[ir.Expr, int, int] | None:
    """Split ``index`` into a sum of a part without the variables ``inner_vars``, and the rest.

    Returns (the part as an expression, lowest value of the rest, highest value of the rest). None if the range of the rest is
    unknown. ``bounds``: inclusive ranges of variables.
    """
    names = free_vars(index)
    return _split_index_with_cache(
        index, tuple([v for v in names if v in inner_vars]), tuple([(v, bounds[v]) for v in names if v in bounds])
    )


@lru_cache(maxsize=REMEMBERED)
def _split_index_with_cache(
    index: ir.Expr, inner: tuple[ir.Var, ...], known: tuple[tuple[ir.Var, tuple[int, int]], ...]
) -> tuple[ir.Expr, int, int] | None:
    bounds = dict(known)
    terms, offset = linear(simplify(index, bounds))
    outer: ir.Expr = ir.const(0, "int32")
    low = high = offset
    for term, factor in terms.items():
        if not free_vars(term).isdisjoint(inner):
            reach = bounds_of(term, bounds)
            if reach is None:
                return None
            ends = (factor * reach[0], factor * reach[1])
            low, high = low + smallest(*ends), high + largest(*ends)
        else:
            outer = outer + term * factor
    return simplify(outer, bounds), low, high


def build_address(
    buffer: ir.Buffer,
    indices: tuple[ir.Expr, ...],
    variable_values: Mapping[ir.Var, ir.Expr],
    extent: int,
    *,
    writes: bool,
) -> ir.AddressOf:
    """Return the address of ``extent`` consecutive elements from ``indices`` on, for access by an intrinsic.

    Variables in the indices are replaced as in ``variable_values``. ``writes``: the intrinsic writes the elements."""
    return ir.AddressOf(buffer, tuple(simplify(substitute(i, variable_values)) for i in indices), extent, writes)


def is_consecutive(indices: tuple[ir.Expr, ...], var: ir.Var) -> bool:
    """Test whether consecutive iterations of the loop over ``var`` access adjacent elements along the last axis."""
    for axis, index in enumerate(indices):
        terms, _ = linear(simplify(index))
        hidden = any(var in free_vars(t) for t in terms if t != var)
        if hidden or terms.get(var, 0) != (1 if axis == len(indices) - 1 else 0):
            return False
    return bool(indices)
