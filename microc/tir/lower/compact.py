"""Workspaces and registers shrink to the part that is live at once.

``compute_at`` leaves a buffer of the whole tensor of which each iteration of the loops around all its accesses touches
one tile. The buffer becomes that tile, and indices count from the tile's start. A workspace of a parallel loop whose turns have
such of their own becomes one for each turn.
"""

from __future__ import annotations

from dataclasses import replace

from microc.tir import ir
from microc.tir.affine import simplify
from microc.tir.lower.region import Access, accesses_to, loop_bounds, split_index
from microc.tir.names import PRIVATE
from microc.tir.rewrite import accesses_any, map_expr, map_stmt


def compact_buffers(stmt: ir.Stmt) -> ir.Stmt:
    """Shrink every allocation under ``stmt`` and move nothing else."""

    def on_stmt(s: ir.Stmt) -> ir.Stmt:
        return _compact(s) if isinstance(s, ir.Alloc) else s

    return map_stmt(stmt, on_stmt)


def _common_loops(found: list[Access]) -> int:
    """How many outermost loops all accesses share."""
    count = 0
    first = found[0].loops
    while all(len(a.loops) > count and a.loops[count] is first[count] for a in found) and count < len(first):
        count += 1
    return count


def _compact(alloc: ir.Alloc) -> ir.Stmt:
    buffer = alloc.buffer
    found = accesses_to(alloc.body, buffer)
    if not found:
        return alloc.body
    shared = _common_loops(found)
    starts: list[ir.Expr] = []
    shape: list[int] = []
    for axis, extent in enumerate(buffer.shape):
        if buffer.slots and axis == 0:  # which outlive a turn
            starts.append(ir.const(0, "int32"))
            shape.append(extent)
            continue
        start, size = _axis_tile(found, shared, axis, extent, last=axis == len(buffer.shape) - 1)
        starts.append(start)
        shape.append(size)
    home = found[0].loops[shared - 1] if shared else None
    turn = next((loop for loop in found[0].loops[:shared] if PRIVATE in dict(loop.annotations)), None)
    own = () if turn is None or buffer.scope != "workspace" else (turn,)
    if tuple(shape) == buffer.shape and not own:
        return _sink(buffer, alloc.body, home)
    tile = replace(buffer, shape=(*(most + 1 for _, most in loop_bounds(own).values()), *shape))

    def move(indices: tuple[ir.Expr, ...]) -> tuple[ir.Expr, ...]:
        places = [i if ir.int_value(s) == 0 else i - s for i, s in zip(indices, starts, strict=True)]
        return (*(loop.var for loop in own), *map(simplify, places))

    def on_expr(e: ir.Expr) -> ir.Expr:
        match e:
            case ir.Load(b, indices) if b == buffer:
                return ir.Load(tile, move(indices))
            case ir.AddressOf(b, indices) if b == buffer:
                return replace(e, buffer=tile, indices=move(indices))
            case _:
                return e

    def on_stmt(s: ir.Stmt) -> ir.Stmt:
        if isinstance(s, ir.Store) and s.buffer == buffer:
            return ir.Store(tile, move(s.indices), s.value)
        return s

    body = map_stmt(alloc.body, on_stmt, lambda x: map_expr(x, on_expr) if accesses_any(x, (buffer,)) else x)
    return _sink(tile, body, home)


def _sink(buffer: ir.Buffer, body: ir.Stmt, home: ir.For | None) -> ir.Stmt:
    """The allocation right inside the innermost loop around all accesses: registers are declared where they are used."""
    if home is None or buffer.scope not in ("register", "local"):
        return ir.Alloc(buffer, body)

    def on_stmt(s: ir.Stmt) -> ir.Stmt:
        if isinstance(s, ir.For) and s.var == home.var:
            return ir.For(s.var, s.extent, ir.Alloc(buffer, s.body), s.kind, s.annotations)
        return s

    return map_stmt(body, on_stmt)


def _axis_tile(found: list[Access], shared: int, axis: int, extent: int, *, last: bool) -> tuple[ir.Expr, int]:
    """Start and size of what all accesses touch along one axis; the whole axis where that is not known."""
    whole = ir.const(0, "int32"), extent
    base: ir.Expr | None = None
    low, high = extent, -extent
    for access in found:
        inner = [loop.var for loop in access.loops[shared:]]
        parts = split_index(access.indices[axis], inner, loop_bounds(access.loops))
        if parts is None or (base is not None and parts[0] != base):
            return whole
        base = parts[0]
        low, high = min(low, parts[1]), max(high, parts[2] + (access.extent - 1 if last else 0))
    size = high - low + 1
    if base is None or size >= extent:
        return whole
    return simplify(base + low), size
