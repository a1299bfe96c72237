"""Functions with symbolic extents, and scalable loops."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from operator import index
from typing import Any

from microc.errors import ProgramError
from microc.tir import ir
from microc.tir.analysis.access_order import FOLLOWED, LetScope
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

# ---- Symbolic extents: sizes that the caller passes are in shapes and loops as expressions over ``scalars``.
#
# Such a function can be printed, parsed and built within bounds; passes that analyse functions get it for some sizes
# (:func:`specialize`). So extents have the type ``int`` everywhere, and :func:`require_constant_sizes` guards the entry of these
# passes.

_KINDS = (ir.Const, ir.Var, ir.Bin, ir.Un)
"""Classes of expressions over sizes."""


def convert_extent(value: object, owner: str) -> Any:
    """Convert an extent given by a user: a number, or an int32 expression over sizes.

    ProgramError, which names the ``owner`` of the extent, for anything else."""
    if isinstance(value, ir.Expr) and value.dtype == "int32" and all(isinstance(x, _KINDS) for x in walk_expr(value)):
        number = ir.int_value(value)
        return value if number is None else number
    try:
        return index(value)  # type: ignore[arg-type]
    except TypeError as error:
        raise ProgramError(
            f"{owner} has an extent that is neither a number nor an expression over sizes; got {value!r}",
            hint='write int32 expressions over sizes: n = te.var("n"), then n, n + 1, n // 2 ...',
        ) from error


def sizes_in(extents: Iterable[object]) -> tuple[ir.Var, ...]:
    """Return the size variables in extents, in order of appearance."""
    exprs = (x for extent in extents if isinstance(extent, ir.Expr) for x in walk_expr(extent))
    return tuple(dict.fromkeys(x for x in exprs if isinstance(x, ir.Var)))


def require_constant_sizes(func: ir.PrimFunc) -> None:
    """Raise ProgramError if a function has symbolic sizes."""
    if func.scalars:
        names = ", ".join(scalar.name for scalar in func.scalars)
        raise ProgramError(
            f"function {func.name} has symbolic extents: {names}",
            hint="build it for all sizes by microc.build(func, bounds=...), or fix sizes by tir.specialize(func, sizes)",
        )


def specialize(func: ir.PrimFunc, sizes: Mapping[str, int]) -> ir.PrimFunc:
    """Return the function for some sizes, given by the names of its scalars; a function without scalars is returned
    unchanged.

    ProgramError for a scalar without a size, and for an extent below 1."""
    if not func.scalars:
        return func
    for scalar in func.scalars:
        if scalar.name not in sizes:
            raise ProgramError(
                f"size {scalar.name} of {func.name} is missing; got {', '.join(sizes) or 'none'}, expected "
                f"{', '.join(s.name for s in func.scalars)}",
                hint="give all sizes, as in sizes={'n': 64}",
            )
    values: dict[ir.Var, ir.Expr] = {s: ir.const(sizes[s.name], s.dtype) for s in func.scalars}

    def number(extent: Any) -> Any:
        if not isinstance(extent, ir.Expr):
            return extent
        found = ir.int_value(simplify(substitute(extent, values)))
        if found is None or found < 1:
            told = ", ".join(f"{s.name}={sizes[s.name]}" for s in func.scalars)
            raise ProgramError(
                f"an extent of {func.name} is out of range; got {found} at {told}, expected 1 at least",
                hint="give larger sizes",
            )
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


# ---- Scalable loops: iterations in strips, each of as many as the machine's vectors have lanes at run time.
#
#     for i in T.scalable(100, annotations={"lanes": 16}):
#         vl: T.int32 = T.vector_length_x16(100 - i)
#         T.evaluate(T.store_i8_i32xvscalex16(T.address_of(y, i), T.load_i8_i32xvscalex16(T.address_of(x, i), vl), vl))
#
# ``i`` advances by ``vl``, the active lanes of an iteration; ``lanes`` is the lane count of the shortest vectors. An address is
# that of a single lane, and all analyses see the loop as one iteration for each lane. At run time a strip executes each
# statement for all its lanes before the next statement. Reads may thus overlap with what other lanes write only if the body
# reads everything before it writes: then every read precedes every write in either order, whatever the number of lanes
# (:func:`scalable_loop_fault`).

LENGTH = "vector_length_x"
"""Prefix of the intrinsics that return the number of active lanes, given how many iterations are left."""


def active_lanes_let(loop: ir.For) -> ir.Let | None:
    """Return the let that binds the number of active lanes at the start of a scalable loop's body; None if there is
    none."""
    stmt = loop.body
    while isinstance(stmt, ir.Let):
        if isinstance(stmt.value, ir.Call) and stmt.value.name.startswith(LENGTH):
            return stmt
        stmt = stmt.body
    return None


def scalable_loop_fault(loop: ir.For) -> str:
    """Return the reason why a scalable loop is ill-formed; empty if it is well-formed."""
    name = f"scalable loop {loop.var.name}"
    if active_lanes_let(loop) is None or _remaining_iterations(loop) != linear(loop.extent - loop.var):
        return f"{name} does not begin with the lanes that it takes of those that are left"
    if not reads_before_writes(loop.body):
        return f"{name} reads memory after it wrote some"
    return ""


def _remaining_iterations(loop: ir.For) -> tuple[Mapping[ir.Expr, int], int] | None:
    """Return the number of iterations left from which the active lanes of a scalable loop are taken, as a linear form;
    None if it takes none."""
    known, stmt = LetScope({}), loop.body
    while isinstance(stmt, ir.Let):
        if stmt == active_lanes_let(loop) and isinstance(stmt.value, ir.Call):
            return linear(known.expr(stmt.value.args[0]))
        known.name(stmt.var, stmt.value)
        stmt = stmt.body
    return None


def reads_before_writes(body: ir.Stmt) -> bool:
    """Test whether all reads from memory that results may be in precede all writes to it (:data:`FOLLOWED` scopes)."""
    written = False
    for reads, writes in _memory_effects(body):
        if reads and written:
            return False
        written = written or writes
    return True


def _memory_effects(stmt: ir.Stmt) -> Iterator[tuple[bool, bool]]:
    """Yield, for each part of a statement, whether it reads, and whether it writes, memory that results may be in.

    The body of a loop is visited twice, so that a read in the next iteration follows a write in this one.
    """
    places = [x for e in stmt_exprs(stmt) for x in accesses_of(e) if x.buffer.scope in FOLLOWED]
    writes = isinstance(stmt, ir.Store) and stmt.buffer.scope in FOLLOWED
    yield (
        any(isinstance(x, ir.Load) or not x.writes for x in places),
        writes or any(isinstance(x, ir.AddressOf) and x.writes for x in places),
    )
    for _ in range(1 + isinstance(stmt, ir.For)):
        for child in stmt_children(stmt):
            yield from _memory_effects(child)
