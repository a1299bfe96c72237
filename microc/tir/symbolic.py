# SPDX-License-Identifier: Apache-2.0
"""Functions with symbolic extents (sizes known at run time), and scalable loops (vectors of a length known at run time)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import index
from typing import Any

from microc.base.immutable import frozen
from microc.errors import ProgramError
from microc.tir import ir
from microc.tir.analysis.access_order import FOLLOWED, LetScope
from microc.tir.analysis.simplification import linear, simplify, simplify_stmt
from microc.tir.analysis.size_forms import evaluate_at_sizes
from microc.tir.extents import DependsOnSize, Extent, as_expr
from microc.tir.rewrite import (
    accesses_of,
    map_expr,
    map_stmt,
    replace_buffers,
    stmt_children,
    stmt_exprs,
    substitute,
    walk_all_exprs,
    walk_expr,
    walk_stmt,
)

# ---- Symbolic extents: extents of shapes and loops are expressions over ``scalars``, sizes that the caller passes.
#
# Such a function can be printed, parsed and built within bounds of the sizes. Passes that analyse functions accept only a
# function specialised to some sizes (:func:`specialize`); they call :func:`require_constant_sizes` first. Therefore type
# annotations declare extents as ``int``.

_EXTENT_CLASSES = (ir.Const, ir.Var, ir.Bin, ir.Un)
"""Classes of the expressions that extents over symbolic sizes may consist of."""


def convert_extent(value: object, owner: str) -> Any:
    """Convert an extent given by a user to a Python integer, or to an int32 expression over symbolic sizes.

    Raises ProgramError for other values. ``owner``: name of the tensor or axis that has the extent, for the error."""
    if (
        isinstance(value, ir.Expr)
        and value.dtype == "int32"
        and all(isinstance(x, _EXTENT_CLASSES) for x in walk_expr(value))
    ):
        number = ir.int_value(value)
        return value if number is None else number
    if isinstance(value, Extent):
        return value
    try:
        return index(value)  # type: ignore[arg-type]
    except TypeError as error:
        raise ProgramError(
            f"{owner} has an extent that is neither a number nor an expression over sizes; got {value!r}",
            hint='write int32 expressions over sizes: n = te.var("n"), then n, n + 1, n // 2 ...',
        ) from error


def symbolic_sizes_in(extents: Iterable[object]) -> tuple[ir.Var, ...]:
    """Return the variables for symbolic sizes that occur in ``extents``, in order of appearance."""
    exprs = (x for extent in extents if isinstance(extent, ir.Expr) for x in walk_expr(extent))
    return tuple(dict.fromkeys(x for x in exprs if isinstance(x, ir.Var)))


def require_function(value: object) -> None:
    """Raise ProgramError unless a value is a PrimFunc: a module has several, a schedule holds one."""
    if not isinstance(value, ir.PrimFunc):
        raise ProgramError(
            f"{type(value).__name__} is no function; expected a PrimFunc",
            hint='give a function of a module, module["main"], or of a schedule, schedule.func',
        )


def require_constant_sizes(func: ir.PrimFunc) -> None:
    """Raise ProgramError if a function has symbolic sizes (scalar parameters), or is no function."""
    require_function(func)
    if func.scalars:
        names = ", ".join(scalar.name for scalar in func.scalars)
        raise ProgramError(
            f"function {func.name} has symbolic extents; got the sizes {names}, expected constant extents",
            hint="build it for all sizes by microc.build(func, bounds=...), or fix sizes by tir.specialize(func, sizes)",
        )


def specialize(func: ir.PrimFunc, sizes: Mapping[str, int]) -> ir.PrimFunc:
    """Return a function with numbers in place of its symbolic sizes. ``sizes``: value of each scalar, by name.

    A function without scalars is returned unchanged. Raises ProgramError if the size of a scalar is missing, or if an
    extent becomes less than 1."""
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

    def specialised_extent(extent: Any) -> Any:
        if not isinstance(extent, ir.Expr):
            return extent
        found = ir.int_value(simplify(substitute(extent, values)))
        if found is None or found < 1:
            size_text = ", ".join(f"{s.name}={sizes[s.name]}" for s in func.scalars)
            raise ProgramError(
                f"an extent of {func.name} is out of range; got {found} at {size_text}, expected 1 at least",
                hint="give larger sizes",
            )
        return found

    def specialise_statement(stmt: ir.Stmt) -> ir.Stmt:
        match stmt:
            case ir.For():
                return replace(stmt, extent=simplify(stmt.extent))
            case ir.Block(predicate=guard):  # 3 * 3 is folded, so that the verifier reads the bound
                iters = tuple(replace(i, extent=specialised_extent(i.extent)) for i in stmt.iters)
                return replace(stmt, iters=iters, predicate=guard if guard is None else simplify(guard))
            case _:
                return stmt

    allocated = (s.buffer for s in walk_stmt(func.body) if isinstance(s, ir.Alloc))
    open_ = [b for b in (*func.params, *allocated) if symbolic_sizes_in(b.shape)]
    buffers = {b: replace(b, shape=tuple(map(specialised_extent, b.shape))) for b in open_}
    body = map_stmt(replace_buffers(func.body, buffers), specialise_statement, lambda x: substitute(x, values))
    return replace(func, params=tuple(buffers.get(p, p) for p in func.params), body=body, scalars=())


# ---- Functions for all sizes, from functions whose numbers are extents (:mod:`microc.tir.extents`).
#
# A function is lowered with extents in its shapes and literals. Then these are written as expressions over scalar parameters.
# Tensors become one-dimensional, so that their strides may depend on the sizes. Constants keep the strides of the largest
# sizes; smaller sizes read only their first elements along each axis.


@frozen
class SizeGenericFunction:
    """A function with symbolic sizes.

    ``func``: the function on one-dimensional tensors, which are large enough for the largest sizes. ``shaped``: the same
    function on tensors with axes. ``shapes``: extents of these axes as expressions over the sizes, by the name of the
    tensor; constants are not in it.
    """

    func: ir.PrimFunc
    shaped: ir.PrimFunc
    shapes: Mapping[str, tuple[ir.Expr, ...]]

    def specialised_to(self, sizes: Mapping[str, int]) -> ir.PrimFunc:
        """Return the function on tensors with axes, specialised to the given sizes."""
        made = instantiate(self.shaped, sizes)
        shapes = {name: tuple(evaluate_at_sizes(e, sizes) for e in extents) for name, extents in self.shapes.items()}
        buffers = {p: replace(p, shape=shapes.get(p.name, p.shape)) for p in made.params}
        return replace(made, params=tuple(buffers[p] for p in made.params), body=replace_buffers(made.body, buffers))


def instantiate(func: ir.PrimFunc, sizes: Mapping[str, int]) -> ir.PrimFunc:
    """Return a function specialised to the given sizes and simplified.

    A function without symbolic sizes (scalars) is returned unchanged."""
    return replace(found := specialize(func, sizes), body=simplify_stmt(found.body)) if func.scalars else func


def write_sizes(
    func: ir.PrimFunc, constant_shapes: Sequence[tuple[int, ...]], largest_sizes: Mapping[str, int]
) -> SizeGenericFunction:
    """Return a lowered function with its extents written as expressions over the sizes.

    ``constant_shapes``: shapes of the constant parameters at the largest sizes, in order. ``largest_sizes``: largest value of
    each size, by the name of its variable. Raises :class:`DependsOnSize` if a buffer on the stack has no constant shape."""
    shapes = iter(constant_shapes)
    whole = {p: replace(p, shape=next(shapes)) if p.scope == "const" else p for p in func.params}
    shaped = {p: replace(p, shape=evaluate_shape(b.shape, largest_sizes)) for p, b in whole.items()}
    flat = {shaped[p]: replace(p, shape=(evaluate_shape((b.size,), largest_sizes))) for p, b in whole.items()}
    strides = {shaped[p]: [write_extents(ir.const(s, "int32")) for s in b.strides] for p, b in whole.items()}

    def check_allocation(stmt: ir.Stmt) -> ir.Stmt:
        if isinstance(stmt, ir.Alloc) and any(isinstance(extent, Extent) for extent in stmt.buffer.shape):
            raise DependsOnSize(f"the shape of {stmt.buffer.name}, which is on the stack, depends on the sizes")
        return stmt

    def flat_index(buffer: ir.Buffer, indices: Sequence[ir.Expr]) -> tuple[ir.Expr]:
        terms = [
            index if ir.int_value(stride) == 1 else index * stride
            for index, stride in zip(indices, strides[buffer], strict=True)
            if ir.int_value(index) != 0
        ]
        return (sum(terms[1:], terms[0]) if terms else ir.const(0, "int32"),)

    def flatten_access(expr: ir.Expr) -> ir.Expr:
        if isinstance(expr, (ir.Load, ir.AddressOf)) and expr.buffer in flat:
            return replace(expr, buffer=flat[expr.buffer], indices=flat_index(expr.buffer, expr.indices))
        return expr

    def flatten_store(stmt: ir.Stmt) -> ir.Stmt:
        if isinstance(stmt, ir.Store) and stmt.buffer in flat:
            return ir.Store(flat[stmt.buffer], flat_index(stmt.buffer, stmt.indices), stmt.value)
        return stmt

    body = replace_buffers(map_stmt(func.body, check_allocation, write_extents), shaped)
    flat_body = map_stmt(body, flatten_store, lambda x: map_expr(x, flatten_access))
    used = {x.name for x in walk_all_exprs(flat_body) if isinstance(x, ir.Var)}
    scalars = tuple(ir.Var(name) for name in largest_sizes if name in used)
    return SizeGenericFunction(
        replace(func, params=tuple(flat[shaped[p]] for p in func.params), body=flat_body, scalars=scalars),
        replace(func, params=tuple(shaped[p] for p in func.params), body=body, scalars=scalars),
        {p.name: tuple(map(as_expr, p.shape)) for p in func.params if p.scope != "const"},
    )


def write_extents(expr: ir.Expr) -> ir.Expr:
    """Return an expression with the extents in its literals written as expressions over the sizes."""

    def write_literal(part: ir.Expr) -> ir.Expr:
        if isinstance(part, ir.Const) and isinstance(part.value, Extent):
            return ir.cast(part.dtype, part.value.expr)
        if isinstance(part, ir.AddressOf) and isinstance(part.reach, Extent):
            raise DependsOnSize(f"the number of elements of {part.buffer.name} at an address depends on the sizes")
        return part

    return map_expr(expr, write_literal)


def evaluate_shape(shape: Iterable[int], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return a shape at given sizes, by the name of their variables."""
    return tuple(evaluate_at_sizes(as_expr(extent), sizes) for extent in shape)


# ---- Scalable loops: iterations run in strips. Their length is the number of vector lanes, which is known only at run time.
#
#     for i in T.scalable(100, annotations={"lanes": 16}):
#         vl: T.int32 = T.vector_length_x16(100 - i)
#         T.evaluate(T.store_i8_i32xvscalex16(T.address_of(y, i), T.load_i8_i32xvscalex16(T.address_of(x, i), vl), vl))
#
# ``i`` advances by ``vl``, the number of active lanes of the strip. ``lanes`` is the number of lanes of the shortest vectors. An
# address is the address of a single lane, and all analyses treat the loop as one iteration for each lane. At run time a strip
# executes each statement for all of its lanes before the next statement. The two orders are equivalent, for any number of
# lanes, if the body reads all of its operands before it writes (:func:`explain_scalable_loop_fault` checks this).

LENGTH = "vector_length_x"
"""Prefix of the intrinsics that return the number of active lanes, given the number of remaining iterations."""


def find_active_lanes_let(loop: ir.For) -> ir.Let | None:
    """Return the let statement that binds the number of active lanes at the start of a scalable loop's body.

    None if there is no such statement."""
    stmt = loop.body
    while isinstance(stmt, ir.Let):
        if isinstance(stmt.value, ir.Call) and stmt.value.name.startswith(LENGTH):
            return stmt
        stmt = stmt.body
    return None


def explain_scalable_loop_fault(loop: ir.For) -> str:
    """Return the reason why a scalable loop is ill-formed; an empty string if it is well-formed."""
    name = f"scalable loop {loop.var.name}"
    if find_active_lanes_let(loop) is None or _remaining_iterations(loop) != linear(loop.extent - loop.var):
        return f"{name} does not begin with the number of active lanes for the remaining iterations"
    if not reads_before_writes(loop.body):
        return f"{name} reads memory after a write"
    return ""


def _remaining_iterations(loop: ir.For) -> tuple[Mapping[ir.Expr, int], int] | None:
    """Return the argument of the intrinsic that computes a scalable loop's number of active lanes, as a linear form.

    The argument should be the number of remaining iterations. None if the loop does not call such an intrinsic."""
    known, stmt = LetScope({}), loop.body
    while isinstance(stmt, ir.Let):
        if stmt == find_active_lanes_let(loop) and isinstance(stmt.value, ir.Call):
            return linear(known.substitute(stmt.value.args[0]))
        known.bind(stmt.var, stmt.value)
        stmt = stmt.body
    return None


def reads_before_writes(body: ir.Stmt) -> bool:
    """Test whether all reads in ``body`` precede all writes, counting only buffers of the :data:`FOLLOWED` scopes.

    These are the scopes of buffers whose memory operands and results may share."""
    written = False
    for reads, writes in _reads_and_writes_in_order(body):
        if reads and written:
            return False
        written = written or writes
    return True


def _reads_and_writes_in_order(stmt: ir.Stmt) -> Iterator[tuple[bool, bool]]:
    """Yield (reads, writes) for a statement and its sub-statements in program order.

    The two booleans state whether the statement itself reads or writes a buffer of the :data:`FOLLOWED` scopes. The body of
    a loop is visited twice, because a read in the next iteration follows a write in this iteration.
    """
    places = [x for e in stmt_exprs(stmt) for x in accesses_of(e) if x.buffer.scope in FOLLOWED]
    writes = isinstance(stmt, ir.Store) and stmt.buffer.scope in FOLLOWED
    yield (
        any(isinstance(x, ir.Load) or not x.writes for x in places),
        writes or any(isinstance(x, ir.AddressOf) and x.writes for x in places),
    )
    for _ in range(1 + isinstance(stmt, ir.For)):
        for child in stmt_children(stmt):
            yield from _reads_and_writes_in_order(child)
