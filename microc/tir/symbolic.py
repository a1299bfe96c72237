"""Functions of symbolic extents: sizes that a caller tells stand in shapes and loops as expressions over ``scalars``.

Such a function can be printed, parsed and built within bounds; what looks into functions gets it at some sizes
(:func:`specialize`). So extents have the type ``int`` everywhere, and :func:`require_fixed` stands where functions come in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from operator import index
from typing import Any

from microc.errors import ProgramError
from microc.tir import ir
from microc.tir.affine import simplify
from microc.tir.rewrite import map_stmt, replace_buffers, substitute, walk_expr, walk_stmt

_KINDS = (ir.Const, ir.Var, ir.Bin, ir.Un)
"""What expressions over sizes are made of."""


def extent_of(value: object, what: str) -> Any:
    """An extent that somebody wrote: a number, or an int32 expression over sizes; ProgramError for anything else."""
    if isinstance(value, ir.Expr) and value.dtype == "int32" and all(isinstance(x, _KINDS) for x in walk_expr(value)):
        number = ir.int_value(value)
        return value if number is None else number
    try:
        return index(value)  # type: ignore[arg-type]
    except TypeError as error:
        raise ProgramError(
            f"{what} has an extent that is neither a number nor an expression over sizes",
            hint='expressions over sizes are int32: n = te.var("n"), then n, n + 1, n // 2 ...',
        ) from error


def sizes_in(extents: Iterable[object]) -> tuple[ir.Var, ...]:
    """The sizes that extents are made of, in their order."""
    exprs = (x for extent in extents if isinstance(extent, ir.Expr) for x in walk_expr(extent))
    return tuple(dict.fromkeys(x for x in exprs if isinstance(x, ir.Var)))


def require_fixed(func: ir.PrimFunc) -> None:
    """ProgramError where a function has sizes that nobody told."""
    if func.scalars:
        names = ", ".join(scalar.name for scalar in func.scalars)
        raise ProgramError(
            f"function {func.name} has symbolic extents: {names}",
            hint="microc.build(func, bounds=...) takes it for all sizes, tir.specialize(func, sizes) gives it at some",
        )


def specialize(func: ir.PrimFunc, sizes: Mapping[str, int]) -> ir.PrimFunc:
    """The function at some sizes, by the names of its scalars; itself where it has none.

    ProgramError for a scalar without a size, and where an extent would be none or negative.
    """
    if not func.scalars:
        return func
    for scalar in func.scalars:
        if scalar.name not in sizes:
            raise ProgramError(
                f"size {scalar.name} of {func.name} is not told", hint="sizes={'n': 64}, for all of them"
            )
    values: dict[ir.Var, ir.Expr] = {s: ir.const(sizes[s.name], s.dtype) for s in func.scalars}

    def number(extent: Any) -> Any:
        if not isinstance(extent, ir.Expr):
            return extent
        found = ir.int_value(simplify(substitute(extent, values)))
        if found is None or found < 1:
            told = ", ".join(f"{s.name}={sizes[s.name]}" for s in func.scalars)
            raise ProgramError(f"an extent of {func.name} is {found} at {told}", hint="extents are at least 1")
        return found

    def on_stmt(stmt: ir.Stmt) -> ir.Stmt:
        match stmt:
            case ir.For():
                return replace(stmt, extent=simplify(stmt.extent))
            case ir.Block():
                return replace(stmt, iters=tuple(replace(i, extent=number(i.extent)) for i in stmt.iters))
            case _:
                return stmt

    allocated = (s.buffer for s in walk_stmt(func.body) if isinstance(s, ir.Alloc))
    open_ = [b for b in (*func.params, *allocated) if sizes_in(b.shape)]
    buffers = {b: replace(b, shape=tuple(map(number, b.shape))) for b in open_}
    body = map_stmt(replace_buffers(func.body, buffers), on_stmt, lambda x: substitute(x, values))
    return replace(func, params=tuple(buffers.get(p, p) for p in func.params), body=body, scalars=())
