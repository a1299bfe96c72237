# SPDX-License-Identifier: Apache-2.0
"""Small lowering passes on statements.

They remove blocks, unroll loops, shrink buffers, remove dead stores to register tiles, and hoist fills and index lookups."""

from __future__ import annotations

import itertools
from dataclasses import replace

from microc.errors import InternalError, ScheduleError
from microc.tir import ir
from microc.tir.analysis.context import buffers_read, buffers_written
from microc.tir.analysis.region import Access, accesses_to, loop_bounds, split_index
from microc.tir.analysis.simplification import linear, simplify
from microc.tir.extents import is_at_most, largest, smallest
from microc.tir.names import PRIVATE
from microc.tir.rewrite import (
    accesses_of,
    children,
    free_vars,
    map_children,
    map_stmt,
    replace_buffers,
    stmt_children,
    stmt_exprs,
    substitute_stmt,
    walk_expr,
    walk_stmt,
)

# ---- Unrolling: a loop of kind ``unrolled`` is replaced by its iterations, and a loop of one iteration by its body. A buffer
# that an iteration allocates is allocated once, around all iterations.


def unroll_loops(stmt: ir.Stmt) -> ir.Stmt:
    """Return a statement with loops of kind ``unrolled``, and loops of one iteration, unrolled, innermost first."""

    def unroll_loop(s: ir.Stmt) -> ir.Stmt:
        if not isinstance(s, ir.For):
            return s
        extent = ir.int_value(s.extent)
        if s.kind != "unrolled" and extent != 1:
            return s
        if extent is None:
            raise InternalError(f"unroll: loop {s.var.name} has no constant extent")
        body, own = s.body, []
        while isinstance(body, ir.Alloc):
            own.append(body.buffer)
            body = body.body
        copies = ir.seq(*(substitute_stmt(body, {s.var: ir.const(k, "int32")}) for k in range(extent)))
        for buffer in reversed(own):
            copies = ir.Alloc(buffer, copies)
        return copies

    return map_stmt(stmt, unroll_loop)


# ---- Compaction: workspaces and register buffers shrink to the tile that is live at once.
#
# After ``compute_at``, a buffer still has the shape of the whole tensor, although each iteration of the loops around all of its
# accesses touches only one tile. The buffer is replaced by that tile, and indices become relative to its start. If each
# iteration of a parallel loop needs a workspace of its own, the workspace gets an additional axis for these iterations.


def compact_buffers(stmt: ir.Stmt) -> ir.Stmt:
    """Return a statement with every allocated buffer shrunk to the tile (range of elements) that is live at the same time."""

    def compact_allocated_buffer(s: ir.Stmt) -> ir.Stmt:
        return _compact_allocation(s) if isinstance(s, ir.Alloc) else s

    return map_stmt(stmt, compact_allocated_buffer)


def _common_loop_count(all_accesses: list[Access]) -> int:
    """Return the number of loops that enclose all accesses."""
    count = 0
    first = all_accesses[0].loops
    while all(len(a.loops) > count and a.loops[count] is first[count] for a in all_accesses) and count < len(first):
        count += 1
    return count


def _compact_allocation(alloc: ir.Alloc) -> ir.Stmt:
    """Return an allocation shrunk to the elements that are live at the same time; its body alone if nothing accesses
    the buffer."""
    buffer = alloc.buffer
    accesses_of_buffer = accesses_to(alloc.body, buffer)
    if not accesses_of_buffer:
        return alloc.body
    common_loop_count = _common_loop_count(accesses_of_buffer)
    scopes = [([x.var for x in a.loops[common_loop_count:]], loop_bounds(a.loops)) for a in accesses_of_buffer]
    starts: list[ir.Expr] = []
    shape: list[int] = []
    for axis, extent in enumerate(buffer.shape):
        if buffer.slots and axis == 0:  # tiles in the slots are used in later iterations, too
            starts.append(ir.const(0, "int32"))
            shape.append(extent)
            continue
        start, size = _accessed_range_along_axis(
            accesses_of_buffer, scopes, axis, extent, is_last_axis=axis == len(buffer.shape) - 1
        )
        starts.append(start)
        shape.append(size)
    innermost_common_loop = accesses_of_buffer[0].loops[common_loop_count - 1] if common_loop_count else None
    parallel = next(
        (loop for loop in accesses_of_buffer[0].loops[:common_loop_count] if PRIVATE in dict(loop.annotations)), None
    )
    private_loops: tuple[ir.For, ...] = () if parallel is None or buffer.scope != "workspace" else (parallel,)
    if tuple(shape) == buffer.shape and not private_loops:
        return _sink_allocation(buffer, alloc.body, innermost_common_loop)
    if any(ir.int_value(loop.extent) is None for loop in private_loops):
        _check_slices(buffer, private_loops[0], starts, shape, accesses_of_buffer[0].loops[:common_loop_count])
        return ir.Alloc(buffer, alloc.body)
    tile = replace(buffer, shape=(*(most + 1 for _, most in loop_bounds(private_loops).values()), *shape))

    def indices_in_tile(indices: tuple[ir.Expr, ...]) -> tuple[ir.Expr, ...]:
        places = [i if ir.int_value(s) == 0 else i - s for i, s in zip(indices, starts, strict=True)]
        return (*(loop.var for loop in private_loops), *map(simplify, places))

    body = replace_buffers(alloc.body, {buffer: tile}, indices_in_tile)
    return _sink_allocation(tile, body, innermost_common_loop)


def _check_slices(
    buffer: ir.Buffer, parallel: ir.For, starts: list[ir.Expr], shape: list[int], loops: tuple[ir.For, ...]
) -> None:
    """Raise ScheduleError unless each iteration of ``parallel``, whose number is symbolic, has a slice of the buffer.

    ``starts``, ``shape``: the tile that an iteration of ``loops`` accesses. A copy for each iteration would have a symbolic
    size; slices are in the buffer as it is declared."""
    inside = {loop.var for loop in loops[loops.index(parallel) + 1 :]}
    for start, size in zip(starts, shape, strict=True):
        if not free_vars(start) & inside and is_at_most(size, linear(start)[0].get(parallel.var, 0)):
            return
    raise ScheduleError(
        f"the iterations of parallel loop {parallel.var.name!r}, whose extent is symbolic, would share the workspace "
        f"{buffer.name!r}",
        hint="let each iteration write a slice of the workspace, or leave the loop serial",
    )


def _sink_allocation(buffer: ir.Buffer, body: ir.Stmt, common_loop: ir.For | None) -> ir.Stmt:
    """Return ``body`` with the allocation of a buffer added.

    A buffer in registers or on the stack is allocated inside of ``common_loop``, the innermost loop around all of its
    accesses, because C declares it in the scope that uses it."""
    if common_loop is None or buffer.scope not in ("register", "local"):
        return ir.Alloc(buffer, body)

    def allocate_in_loop(s: ir.Stmt) -> ir.Stmt:
        if isinstance(s, ir.For) and s.var == common_loop.var:
            return ir.For(s.var, s.extent, ir.Alloc(buffer, s.body), s.kind, s.annotations)
        return s

    return map_stmt(body, allocate_in_loop)


def _accessed_range_along_axis(
    all_accesses: list[Access],
    scopes: list[tuple[list[ir.Var], dict[ir.Var, tuple[int, int]]]],
    axis: int,
    axis_length: int,
    *,
    is_last_axis: bool,
) -> tuple[ir.Expr, int]:
    """Return (start, number of elements) of the range that all accesses touch along an axis; if unknown, the whole axis.

    ``scopes``: by access, the variables of the loops that do not enclose all accesses, and the ranges of all loop variables.
    ``is_last_axis``: True for the buffer's last axis."""
    whole = ir.const(0, "int32"), axis_length
    base: ir.Expr | None = None
    low, high = axis_length, -axis_length
    for access, (inner, bounds) in zip(all_accesses, scopes, strict=True):
        parts = split_index(access.indices[axis], inner, bounds)
        # All accesses must move with the outer loops in the same way, or the touched range is no tile of constant size.
        if parts is None or (base is not None and parts[0] != base):
            return whole
        base = parts[0]
        low, high = smallest(low, parts[1]), largest(high, parts[2] + (access.extent - 1 if is_last_axis else 0))
    size = high - low + 1
    if base is None or is_at_most(axis_length, size):
        return whole
    return simplify(base + low), size


# ---- Removal of dead stores to register tiles.
#
# A partial tile is scheduled like a whole tile. If an intrinsic, or products of pairs, compute several elements at once, sums
# are also computed for elements beyond the end of the tile, which are never stored to memory.

Cell = tuple[ir.Expr, ...]
"""Indices of an element of a register tile (a small buffer that is unrolled into scalar variables)."""
_NOTHING = ir.Seq(())


def drop_dead_register_stores(stmt: ir.Stmt) -> ir.Stmt:
    """Return a statement without dead stores to register tiles (small buffers that are unrolled into scalar variables).

    A store is dead if it affects no memory, condition or call."""

    def drop_dead_stores_of_register_tile(s: ir.Stmt) -> ir.Stmt:
        return _drop_dead_stores(s) if isinstance(s, ir.Alloc) and s.buffer.scope == "register" else s

    return map_stmt(stmt, drop_dead_stores_of_register_tile)


def _drop_dead_stores(alloc: ir.Alloc) -> ir.Stmt:
    """Return an allocation without dead stores to its register tile.

    An element is live if a statement reads it for anything but a store to the same tile, or if a live element is computed from
    it."""
    buffer = alloc.buffer
    feeds: dict[Cell, set[Cell]] = {}
    needed: set[Cell] = set()
    for s in walk_stmt(alloc.body):
        read = {access.indices for whole in stmt_exprs(s) for access in accesses_of(whole) if access.buffer == buffer}
        if isinstance(s, ir.Store) and s.buffer == buffer:
            feeds.setdefault(s.indices, set()).update(read)
        else:
            needed |= read
    if not all(isinstance(index, ir.Const) for cell in {*feeds, *needed} for index in cell):
        return alloc  # with variable indices it is unknown which elements are accessed
    waiting = list(needed)
    while waiting:
        more = feeds.get(waiting.pop(), set()) - needed
        needed |= more
        waiting += more
    if needed >= feeds.keys():
        return alloc

    def drop_if_dead_store(s: ir.Stmt) -> ir.Stmt:
        dead = isinstance(s, ir.Store) and s.buffer == buffer and s.indices not in needed
        inside = stmt_children(s)
        return _NOTHING if dead or (inside and all(child == _NOTHING for child in inside)) else s

    return ir.Alloc(buffer, map_stmt(alloc.body, drop_if_dead_store))


# ---- Hoisting of fills: a fill with a constant is moved out of a loop that repeats it.
#
# For every channel, a padded plane is filled with a constant, and then its interior is copied. If the copy always writes the
# same box of elements and nothing else writes the buffer, the elements outside of the box keep the values of the first fill.
# So the fill is moved in front of the loop.


def hoist_fills(stmt: ir.Stmt) -> ir.Stmt:
    """Return a statement with repeated fills moved in front of their loops, innermost loops first."""

    def hoist_fill_of_loop(s: ir.Stmt) -> ir.Stmt:
        return _hoist_fill(s) if isinstance(s, ir.For) else s

    return map_stmt(stmt, hoist_fill_of_loop)


def _hoist_fill(loop: ir.For) -> ir.Stmt:
    """Return the loop with the first invariant fill of its body moved in front of it; the loop itself if there is none."""
    if not isinstance(loop.body, ir.Seq) or not ir.int_value(loop.extent):
        return loop
    body = loop.body.body
    for k, (fill, copy) in enumerate(itertools.pairwise(body)):
        filled, copied = _match_loop_nest_of_one_store(fill), _match_loop_nest_of_one_store(copy)
        if filled is None or copied is None or not isinstance(filled[1].value, ir.Const):
            continue
        buffer = filled[1].buffer
        if copied[1].buffer != buffer or any(buffer in buffers_written(s) for s in body[k + 2 :]):
            continue
        if buffer in buffers_read(copy):  # the copy is a sum, which must start from the fill in each iteration
            continue
        if any(buffer in buffers_written(s) | buffers_read(s) for s in body[:k]):
            continue
        if all(loop.var not in free_vars(index) for index in filled[1].indices) and _stores_to_every_element_of_box(
            *copied
        ):
            return ir.seq(fill, ir.For(loop.var, loop.extent, ir.seq(*body[:k], *body[k + 1 :]), loop.kind))
    return loop


def _match_loop_nest_of_one_store(stmt: ir.Stmt) -> tuple[dict[ir.Var, int], ir.Store] | None:
    """Return a nest of loops around a single store as (extents by loop variable, store).

    None for other statements, and if an extent is not constant."""
    loops: dict[ir.Var, int] = {}
    while isinstance(stmt, ir.For):
        extent = ir.int_value(stmt.extent)
        if not extent:
            return None
        loops[stmt.var], stmt = extent, stmt.body
    return (loops, stmt) if isinstance(stmt, ir.Store) else None


def _stores_to_every_element_of_box(loops: dict[ir.Var, int], store: ir.Store) -> bool:
    """Test whether a loop nest stores to every element of a fixed box.

    Each index of the store must be a constant, or a constant plus the variable of one loop."""
    seen: set[ir.Expr] = set()
    for index in store.indices:
        terms, _ = linear(index)
        if any(term not in loops or factor != 1 or term in seen for term, factor in terms.items()) or len(terms) > 1:
            return False
        seen |= terms.keys()
    return True


# ---- Hoisting of index lookups: an index that is loaded from memory is moved out of a loop that it does not depend on.
#
# So ``for c: out[i, c] = data[index[i], c]`` loads ``index[i]`` only once. A C compiler cannot do this itself, because the
# stored bytes might alias the index.


def hoist_index_lookups(stmt: ir.Stmt) -> ir.Stmt:
    """Return a statement with loop-invariant index lookups moved in front of their loops, innermost loops first.

    An index lookup is a load in an index. Only loops whose body is a single store are considered."""
    taken: set[str] = set()

    def hoist_lookups_of_loop(s: ir.Stmt) -> ir.Stmt:
        if not isinstance(s, ir.For) or not isinstance(s.body, ir.Store):
            return s
        lookups = dict.fromkeys(p for e in stmt_exprs(s.body) for p in _invariant_lookups(e, s.var))
        if not lookups:  # most functions have none, so the names in use are collected only for the first one
            return s
        if not taken:
            taken.update(var.name for t in walk_stmt(stmt) for whole in stmt_exprs(t) for var in free_vars(whole))
            taken.update(t.var.name for t in walk_stmt(stmt) if isinstance(t, (ir.For, ir.Let)))
        bound: dict[ir.Expr, ir.Var] = {}
        for place in lookups:
            if any(isinstance(x, ir.Load) and x.buffer in buffers_written(s.body) for x in walk_expr(place)):
                continue
            name = next(n for n in (f"place_{k}" for k in range(len(taken) + 1)) if n not in taken)
            taken.add(name)
            bound[place] = ir.Var(name, place.dtype)

        def replace_lookups(part: ir.Expr) -> ir.Expr:
            """Replace lookups by variables, outermost first, because a lookup may be part of another lookup."""
            return bound.get(part) or map_children(part, replace_lookups)

        store = map_stmt(s.body, lambda x: x, replace_lookups)
        moved: ir.Stmt = ir.For(s.var, s.extent, store, s.kind, s.annotations)
        for place, known in reversed(bound.items()):
            moved = ir.Let(known, place, moved)
        return moved

    return map_stmt(stmt, hoist_lookups_of_loop)


def _invariant_lookups(value: ir.Expr, var: ir.Var) -> list[ir.Expr]:
    """Return the sub-expressions of indices of loads in ``value`` that can be hoisted out of a loop over ``var``.

    They contain loads and do not depend on ``var``, and are as large as possible. Operands of a ``Select`` are left out,
    because its condition may guard the loads."""
    match value:
        case ir.Select():
            return []
        case ir.Load(_, indices):
            return [p for index in indices for p in _invariant_index_parts(index, var)]
        case _:
            return [p for child in children(value) for p in _invariant_lookups(child, var)]


def _invariant_index_parts(index: ir.Expr, var: ir.Var) -> list[ir.Expr]:
    """Return the largest sub-expressions of an index that contain loads and do not depend on ``var``."""
    if not any(isinstance(x, ir.Load) for x in walk_expr(index)):
        return []
    if var not in free_vars(index):
        return [index]
    return [p for child in children(index) for p in _invariant_index_parts(child, var)]
