"""Functions of symbolic extents, and scalable loops."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from operator import index
from typing import Any

from microc.errors import ProgramError
from microc.tir import ir
from microc.tir.analysis.access_order import FOLLOWED, Scope
from microc.tir.analysis.simplification import linear, simplify
from microc.tir.rewrite import (
    accesses_of,
    map_stmt,
    replace_buffers,
    stmt_children,
    stmt_exprs,
    substitute,
    walk_expr,
    walk_stmt,
)

# ---- Functions of symbolic extents: sizes that a caller tells stand in shapes and loops as expressions over
# ``scalars``.
#
# Such a function can be printed, parsed and built within bounds; what looks into functions gets it at some sizes
# (:func:`specialize`). So extents have the type ``int`` everywhere, and :func:`require_fixed` stands where functions come in.

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


# ---- Scalable loops: iterations taken strip by strip, each as many of them as a machine's vectors have lanes for
# when it runs.
#
#     for i in T.scalable(100, annotations={"lanes": 16}):
#         vl: T.int32 = T.vector_length_x16(100 - i)
#         T.evaluate(T.store_i8_i32xvscalex16(T.address_of(y, i), T.load_i8_i32xvscalex16(T.address_of(x, i), vl), vl))
#
# ``i`` goes on by ``vl``, the lanes that a turn has; ``lanes`` are those of the shortest vectors. An address tells of one lane,
# and so do all analyses: the loop stands for as many turns of one lane as it has iterations. A turn does each statement for all
# its lanes before the next, so what it reads may lie where other lanes write only if it reads all before it writes: then the
# order of every read before every write is that of single lanes, whatever the number of them (:func:`fault`).

LENGTH = "vector_length_x"
"""How words begin that say how many lanes a turn has, of so many that are left."""


def taken(loop: ir.For) -> ir.Let | None:
    """What names a turn's lanes, among the values that the body of a scalable loop starts with naming."""
    stmt = loop.body
    while isinstance(stmt, ir.Let):
        if isinstance(stmt.value, ir.Call) and stmt.value.name.startswith(LENGTH):
            return stmt
        stmt = stmt.body
    return None


def fault(loop: ir.For) -> str:
    """What is wrong with a scalable loop; nothing where all is well."""
    name = f"scalable loop {loop.var.name}"
    if taken(loop) is None or _asked(loop) != linear(loop.extent - loop.var):
        return f"{name} does not begin with the lanes that it takes of those that are left"
    if not in_order(loop.body):
        return f"{name} reads memory after it wrote some"
    return ""


def _asked(loop: ir.For) -> tuple[Mapping[ir.Expr, int], int] | None:
    """Of how many iterations that are left the lanes of a turn are taken."""
    known, stmt = Scope({}), loop.body
    while isinstance(stmt, ir.Let):
        if stmt == taken(loop) and isinstance(stmt.value, ir.Call):
            return linear(known.expr(stmt.value.args[0]))
        known.name(stmt.var, stmt.value)
        stmt = stmt.body
    return None


def in_order(body: ir.Stmt) -> bool:
    """Whether all that is read where results may lie is read before anything is written there."""
    written = False
    for reads, writes in _touched(body):
        if reads and written:
            return False
        written = written or writes
    return True


def _touched(stmt: ir.Stmt) -> Iterator[tuple[bool, bool]]:
    """Whether each part of a statement reads, and writes, where results lie; a loop that does both does so twice."""
    places = [x for e in stmt_exprs(stmt) for x in accesses_of(e) if x.buffer.scope in FOLLOWED]
    writes = isinstance(stmt, ir.Store) and stmt.buffer.scope in FOLLOWED
    yield (
        any(isinstance(x, ir.Load) or not x.writes for x in places),
        writes or any(isinstance(x, ir.AddressOf) and x.writes for x in places),
    )
    for _ in range(1 + isinstance(stmt, ir.For)):
        for child in stmt_children(stmt):
            yield from _touched(child)
