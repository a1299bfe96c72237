"""Registers of a group's items: each item has its own part of what lives from one nest of items to the next."""

from __future__ import annotations

from dataclasses import replace

from microc.errors import ScheduleError
from microc.tir import ir
from microc.tir.affine import bounds_of, linear, simplify
from microc.tir.lower.region import Access, accesses_to, loop_bounds
from microc.tir.rewrite import map_expr, map_stmt

OWN = ("register", "local")


def private_buffers(stmt: ir.Stmt) -> ir.Stmt:
    """Buffers of scope ``register`` and ``local`` that are allocated outside of loops of items hold one item's part.

    ScheduleError where an access is not to the part of the item that makes it: along one axis, a turn of each loop of items
    around it has so many elements in a row, the same in all accesses.
    """
    if isinstance(stmt, ir.Alloc):
        body = private_buffers(stmt.body)
        return _own_part(ir.Alloc(stmt.buffer, body)) if stmt.buffer.scope in OWN else ir.Alloc(stmt.buffer, body)
    if isinstance(stmt, ir.Seq):
        return ir.seq(*map(private_buffers, stmt.body))
    if isinstance(stmt, ir.For) and stmt.kind not in ir.ITEMS:
        return replace(stmt, body=private_buffers(stmt.body))
    return stmt


def _own_part(alloc: ir.Alloc) -> ir.Stmt:
    buffer = alloc.buffer
    found = accesses_to(alloc.body, buffer)
    kinds = {loop.kind for access in found for loop in access.loops if loop.kind in ir.ITEMS and loop.extent != _ONE}
    steps: dict[int, tuple[str, int]] = {}
    for kind in sorted(kinds):
        axis, step = _axis_of(buffer, found, kind)
        steps[axis] = kind, step
    shape = tuple(steps[axis][1] if axis in steps else extent for axis, extent in enumerate(buffer.shape))
    part = replace(buffer, shape=shape)
    variables = {loop.var: loop.kind for access in found for loop in access.loops if loop.kind in ir.ITEMS}

    def moved(indices: tuple[ir.Expr, ...]) -> tuple[ir.Expr, ...]:
        return tuple(
            simplify(_without(index, variables, steps[axis][0])) if axis in steps else index
            for axis, index in enumerate(indices)
        )

    def on_expr(e: ir.Expr) -> ir.Expr:
        return ir.Load(part, moved(e.indices)) if isinstance(e, ir.Load) and e.buffer == buffer else e

    def on_stmt(s: ir.Stmt) -> ir.Stmt:
        if isinstance(s, ir.Store) and s.buffer == buffer:
            return ir.Store(part, moved(s.indices), s.value)
        return s

    return ir.Alloc(part, map_stmt(alloc.body, on_stmt, lambda x: map_expr(x, on_expr)))


_ONE = ir.const(1, "int32")


def _without(index: ir.Expr, variables: dict[ir.Var, str], kind: str) -> ir.Expr:
    """An index without the item's share of it."""
    terms, _ = linear(index)
    for atom, k in terms.items():
        if isinstance(atom, ir.Var) and variables.get(atom) == kind:
            return index - atom * k
    return index


def _axis_of(buffer: ir.Buffer, found: list[Access], kind: str) -> tuple[int, int]:
    """The axis along which items of ``kind`` have parts, and the elements of a part."""
    chosen: set[tuple[int, int]] = set()
    for access in found:
        loop = next((each for each in access.loops if each.kind == kind), None)
        own = None if loop is None else _place(access, loop)
        if own is None:
            raise ScheduleError(
                f"{buffer.name!r} is of scope {buffer.scope}, and items of {kind} would use each other's part of it",
                hint=f"set_scope({buffer.name!r}, 'shared'), or bind the loops of all blocks that use it alike",
            )
        chosen.add(own)
    if len(chosen) > 1:
        raise ScheduleError(
            f"blocks give items of {kind} different parts of {buffer.name!r}",
            hint="split their loops by the same factors before they are bound",
        )
    return chosen.pop()


def _place(access: Access, loop: ir.For) -> tuple[int, int] | None:
    """Where an access has the item's number as a factor of its own: the axis, and what it is multiplied by."""
    bounds = loop_bounds(access.loops)
    for axis, index in enumerate(access.indices):
        terms, _ = linear(index)
        step = terms.get(loop.var, 0)
        if step > 0:
            rest = bounds_of(simplify(index - loop.var * step), bounds)
            return (axis, step) if rest is not None and rest[0] >= 0 and rest[1] < step else None
    return None
