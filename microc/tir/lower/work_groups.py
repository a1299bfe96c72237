# SPDX-License-Identifier: Apache-2.0
"""Lowering for accelerators with work groups (OpenCL): barriers, private buffers of work items, and the launch grid.

Items are the work items (threads) of a work group. A loop over items is a loop that is bound to ``threadIdx``. A nest of items
is a nest of such loops, which all items of a group run together."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from microc.base.immutable import frozen
from microc.errors import ScheduleError
from microc.tir import ir
from microc.tir.analysis.region import Access, accesses, accesses_to, loop_bounds
from microc.tir.analysis.simplification import bounds_of, linear, simplify, simplify_stmt
from microc.tir.lower.cleanup import compact_buffers, unroll_loops
from microc.tir.lower.loop_splitting import double_buffer_loops, partition_loops
from microc.tir.rewrite import (
    drop_blocks,
    free_vars,
    map_expr,
    map_stmt,
    replace_buffers,
    substitute,
    walk_stmt,
)
from microc.tir.symbolic import require_constant_sizes

# ---- Barriers: the items of a group wait for each other before an item reads or overwrites memory that others access.

BARRIER = "barrier"
LOCAL, GLOBAL = "shared", "global"


@frozen
class _BufferUse:
    """An access to a buffer by a nest of loops over items.

    ``first_axis_index``: the index along the first axis if it is the same in all accesses and for all items; else None."""

    buffer: ir.Buffer
    writes: bool
    first_axis_index: ir.Expr | None

    def conflicts_with(self, other: _BufferUse) -> bool:
        """Test whether this use conflicts with another: at least one writes, and both may access the same element."""
        if self.buffer != other.buffer or not (self.writes or other.writes):
            return False
        return (
            self.first_axis_index is None
            or other.first_axis_index is None
            or not _are_certainly_different_indices(self.first_axis_index, other.first_axis_index)
        )


Uses = frozenset[_BufferUse]
"""Uses of buffers by one or several nests of loops over items."""


def add_barriers(stmt: ir.Stmt, params: Collection[ir.Buffer]) -> ir.Stmt:
    """Return a statement with barriers between nests of loops over items (work items of a group) whose accesses conflict.

    ``params``: parameters of the function, which are in global memory. Raises ScheduleError for a nest that both reads and
    writes a shared buffer, because its items would have to wait for each other inside of the nest.
    """
    written = {a.buffer for a in accesses(stmt) if a.writes}
    read = {a.buffer for a in accesses(stmt) if not a.writes}
    # Only memory that items share and that is both written and read can conflict.
    conflicting = {b for b in written & read if b.scope == "shared" or b in params}
    result, _ = _insert_barriers(stmt, frozenset(), conflicting)
    return result


def _insert_barriers(stmt: ir.Stmt, earlier_uses: Uses, conflicting: set[ir.Buffer]) -> tuple[ir.Stmt, Uses]:
    """Insert barriers into a statement; return the statement, and the uses of buffers since the last barrier in it.

    ``earlier_uses``: the uses of buffers before the statement, since the last barrier. ``conflicting``: the buffers to
    consider."""
    match stmt:
        case ir.Seq(body):
            parts = []
            for child in body:
                part, earlier_uses = _insert_barriers(child, earlier_uses, conflicting)
                parts.append(part)
            return ir.seq(*parts), earlier_uses
        case ir.Alloc(_, inside) | ir.Let(_, _, inside):
            part, after = _insert_barriers(inside, earlier_uses, conflicting)
            return replace(stmt, body=part), after
        case ir.For(var) if _contains_item_loops(stmt):
            # The uses in the previous iteration also precede the body. The loop variable is replaced by var - 1 in these, so
            # that alternating halves of a double buffer do not conflict.
            _, once = _insert_barriers(stmt.body, earlier_uses, conflicting)
            earlier = frozenset(
                replace(u, first_axis_index=u.first_axis_index and substitute(u.first_axis_index, {var: var - 1}))
                for u in once
            )
            part, after = _insert_barriers(stmt.body, earlier_uses | earlier, conflicting)
            return replace(stmt, body=part), earlier_uses | after
        case ir.If(_, then, otherwise) if _contains_item_loops(stmt):
            if _any_conflict(_collect_buffer_uses(stmt, conflicting), earlier_uses):
                # The barrier is inserted before the test, since all items must reach it.
                part, after = _insert_barriers(stmt, frozenset(), conflicting)
                return ir.seq(_build_barrier_call(_collect_buffer_uses(stmt, conflicting), earlier_uses), part), after
            first, after = _insert_barriers(then, earlier_uses, conflicting)
            second, other = (
                _insert_barriers(otherwise, earlier_uses, conflicting)
                if otherwise is not None
                else (None, earlier_uses)
            )
            return replace(stmt, then=first, otherwise=second), after | other
        case _:
            return _add_barrier_before_item_nest(stmt, earlier_uses, conflicting)


def _contains_item_loops(stmt: ir.Stmt) -> bool:
    """Test whether a statement contains loops over items (work items of a group), without being such a loop itself."""
    if isinstance(stmt, ir.For) and stmt.kind in ir.ITEMS:
        return False
    return any(isinstance(s, ir.For) and s.kind in ir.ITEMS for s in walk_stmt(stmt))


def _add_barrier_before_item_nest(
    stmt: ir.Stmt, earlier_uses: Uses, conflicting: set[ir.Buffer]
) -> tuple[ir.Stmt, Uses]:
    """Insert a barrier before one nest of loops over items (work items) if it conflicts with earlier uses of buffers.

    Returns the statement, and the uses since the last barrier. Raises ScheduleError if the nest conflicts with itself."""
    uses = _collect_buffer_uses(stmt, conflicting)
    for buffer in conflicting:
        mine = [u for u in uses if u.buffer == buffer]
        if buffer.scope == "shared" and len({u.writes for u in mine}) == 2:
            raise ScheduleError(
                f"shared buffer {buffer.name!r}: one nest of loops over items both writes and reads it; "
                "expected one nest that writes and another that reads",
                hint="compute_at a loop outside of the loops over items, because items wait only between nests",
            )
    if not _any_conflict(uses, earlier_uses):
        return stmt, earlier_uses | uses
    return ir.seq(_build_barrier_call(uses, earlier_uses), stmt), uses


def _any_conflict(uses: Uses, earlier_uses: Uses) -> bool:
    """Test whether any use in ``uses`` conflicts with any use in ``earlier_uses``."""
    return any(u.conflicts_with(v) for u in uses for v in earlier_uses)


def _build_barrier_call(uses: Uses, earlier_uses: Uses) -> ir.Stmt:
    """Return a call of the barrier for the memory in which the uses conflict: shared memory of the group, or global memory."""
    scope = (
        GLOBAL if any(u.conflicts_with(v) and u.buffer.scope != "shared" for u in uses for v in earlier_uses) else LOCAL
    )
    return ir.Evaluate(ir.Call(f"{BARRIER}_{scope}", (), "int32"))


def _collect_buffer_uses(stmt: ir.Stmt, conflicting: set[ir.Buffer]) -> Uses:
    """Return the uses (reads and writes) of the buffers ``conflicting`` in a statement."""
    found: dict[tuple[ir.Buffer, bool], set[ir.Expr | None]] = {}
    for access in accesses(stmt):
        if access.buffer in conflicting:
            index = access.indices[0] if access.indices else ir.const(0, "int32")  # a scalar is one element
            alike = free_vars(index).isdisjoint(loop.var for loop in access.loops)  # the same index for all items
            found.setdefault((access.buffer, access.writes), set()).add(index if alike else None)
    return frozenset(
        _BufferUse(buffer, writes, next(iter(firsts)) if len(firsts) == 1 else None)
        for (buffer, writes), firsts in found.items()
    )


def _are_certainly_different_indices(a: ir.Expr, b: ir.Expr) -> bool:
    """Test whether two indices, which may select halves of a double buffer, certainly differ.

    Indices x and y, or x % 2 and y % 2, are known to differ if x - y is an odd constant."""
    difference = ir.int_value(simplify(_unwrap_modulo(a) - _unwrap_modulo(b)))
    return difference is not None and difference % 2 == 1


def _unwrap_modulo(half_index: ir.Expr) -> ir.Expr:
    """Return x if the index is ``x % 2``; any other index is returned unchanged."""
    return (
        half_index.a
        if isinstance(half_index, ir.Bin) and half_index.op == "floormod" and ir.int_value(half_index.b) == 2
        else half_index
    )


# ---- Private buffers: each item keeps only its own elements of a register or stack buffer that several nests of items use.

OWN = ("register", "local")
"""Scopes of buffers that are private to one item."""


def shrink_buffers_to_item(stmt: ir.Stmt) -> ir.Stmt:
    """Return a statement whose register and stack buffers, allocated outside of loops over items, are shrunk to one work item.

    Each item owns the same number of consecutive elements of such a buffer along an axis for each thread axis, and the buffer is
    shrunk to these elements. Raises ScheduleError if an item accesses elements of another item, or if the accesses disagree
    about the elements that an item owns.
    """
    if isinstance(stmt, ir.Alloc):
        body = shrink_buffers_to_item(stmt.body)
        return _shrink_to_item(ir.Alloc(stmt.buffer, body)) if stmt.buffer.scope in OWN else ir.Alloc(stmt.buffer, body)
    if isinstance(stmt, ir.Seq):
        return ir.seq(*map(shrink_buffers_to_item, stmt.body))
    if isinstance(stmt, ir.For) and stmt.kind not in ir.ITEMS:
        return replace(stmt, body=shrink_buffers_to_item(stmt.body))
    return stmt


def _shrink_to_item(alloc: ir.Alloc) -> ir.Stmt:
    """Return an allocation with its buffer shrunk to the elements of one item.

    The offset of the item's first element is subtracted from all indices."""
    buffer = alloc.buffer
    found = accesses_to(alloc.body, buffer)
    kinds = {loop.kind for access in found for loop in access.loops if loop.kind in ir.ITEMS and loop.extent != _ONE}
    steps: dict[int, tuple[str, int]] = {}
    for kind in sorted(kinds):
        axis, step = _find_axis_and_elements_per_item(buffer, found, kind)
        steps[axis] = kind, step
    shape = tuple(steps[axis][1] if axis in steps else extent for axis, extent in enumerate(buffer.shape))
    part = replace(buffer, shape=shape)
    variables = {loop.var: loop.kind for access in found for loop in access.loops if loop.kind in ir.ITEMS}

    def shift_indices(indices: tuple[ir.Expr, ...]) -> tuple[ir.Expr, ...]:
        return tuple(
            simplify(_subtract_item_offset(index, variables, steps[axis][0])) if axis in steps else index
            for axis, index in enumerate(indices)
        )

    def shift_load(e: ir.Expr) -> ir.Expr:
        return ir.Load(part, shift_indices(e.indices)) if isinstance(e, ir.Load) and e.buffer == buffer else e

    def shift_store(s: ir.Stmt) -> ir.Stmt:
        if isinstance(s, ir.Store) and s.buffer == buffer:
            return ir.Store(part, shift_indices(s.indices), s.value)
        return s

    return ir.Alloc(part, map_stmt(alloc.body, shift_store, lambda x: map_expr(x, shift_load)))


_ONE = ir.const(1, "int32")


def _subtract_item_offset(index: ir.Expr, thread_axis_by_variable: dict[ir.Var, str], thread_axis: str) -> ir.Expr:
    """Return an index without its multiple of the item's number along ``thread_axis``.

    The item's number is the variable of a loop over items. ``thread_axis_by_variable``: thread axis of each loop over items,
    by loop variable."""
    terms, _ = linear(index)
    for atom, k in terms.items():
        if isinstance(atom, ir.Var) and thread_axis_by_variable.get(atom) == thread_axis:
            return index - atom * k
    return index


def _find_axis_and_elements_per_item(
    buffer: ir.Buffer, all_accesses: list[Access], thread_axis: str
) -> tuple[int, int]:
    """Return (buffer axis, number of elements along it that an item owns) for the items along ``thread_axis``.

    Raises ScheduleError if the accesses disagree."""
    chosen: set[tuple[int, int]] = set()
    for access in all_accesses:
        loop = next((each for each in access.loops if each.kind == thread_axis), None)
        own = None if loop is None else _axis_and_factor_of_item(access, loop)
        if own is None:
            raise ScheduleError(
                f"buffer {buffer.name!r}: an item along {thread_axis} accesses elements of other items; got scope "
                f"{buffer.scope!r}, expected 'shared'",
                hint=f"set_scope({buffer.name!r}, 'shared'), or bind the same loops of all blocks that access it",
            )
        chosen.add(own)
    if len(chosen) > 1:
        raise ScheduleError(
            f"buffer {buffer.name!r}: blocks assign different elements to an item along {thread_axis}; got "
            f"{' and '.join(f'{step} elements along axis {axis}' for axis, step in sorted(chosen))}, expected the same "
            "in all blocks",
            hint="split the loops of these blocks by the same factors before you bind them",
        )
    return chosen.pop()


def _axis_and_factor_of_item(access: Access, loop: ir.For) -> tuple[int, int] | None:
    """Return (axis, factor) of the index of an access that contains the variable of ``loop``, a loop over items.

    None if no index contains the variable, or if the rest of this index is not in 0..factor-1."""
    bounds = loop_bounds(access.loops)
    for axis, index in enumerate(access.indices):
        terms, _ = linear(index)
        step = terms.get(loop.var, 0)
        if step > 0:
            rest = bounds_of(simplify(index - loop.var * step), bounds)
            return (axis, step) if rest is not None and rest[0] >= 0 and rest[1] < step else None
    return None


# ---- Grids: a function with bound loops becomes a kernel launch, in which work groups of work items run in parallel (OpenCL).
#
# A bound loop has the semantics of a serial loop, so schedules with bound loops are tried and compared like any other schedules.
# Loops bound to ``blockIdx`` enclose the whole body. Inside of these, the items of a group run each nest of loops bound to
# ``threadIdx`` together. There is a barrier between nests whose accesses conflict. Registers that several nests use are private
# to an item; ``shared`` buffers belong to a group.


@frozen
class Grid:
    """A kernel launch: numbers of work groups, and of work items in a group, along x, y and z. Each item runs ``func``.

    ``func`` still contains the bound loops. The variable of a bound loop is the number of the running group or item. Loops
    bound to groups enclose the whole body.
    """

    groups: tuple[int, int, int]
    items: tuple[int, int, int]
    func: ir.PrimFunc


def has_bound_loops(func: ir.PrimFunc) -> bool:
    """Test whether a function has a loop that is bound to a thread axis (groups or items)."""
    return any(isinstance(s, ir.For) and s.kind in (*ir.GROUPS, *ir.ITEMS) for s in walk_stmt(func.body))


def unbind_loops(func: ir.PrimFunc) -> ir.PrimFunc:
    """Return a function for a machine without work groups.

    Bound loops become serial loops, and shared buffers become workspaces. If there are bound loops, register buffers become
    stack arrays for all items. If there are none, register buffers are register tiles, whose loops are unrolled, and stay.
    """
    bound = has_bound_loops(func)
    scopes = {"shared": "workspace", "register": "local"} if bound else {"shared": "workspace"}
    placed = {
        s.buffer: replace(s.buffer, scope=scopes[s.buffer.scope])
        for s in walk_stmt(func.body)
        if isinstance(s, ir.Alloc) and s.buffer.scope in scopes
    }
    if not (bound or placed):
        return func

    def make_serial(s: ir.Stmt) -> ir.Stmt:
        return replace(s, kind="serial") if isinstance(s, ir.For) and s.kind in (*ir.GROUPS, *ir.ITEMS) else s

    return replace(func, body=replace_buffers(map_stmt(func.body, make_serial), placed))


def lower_grid(func: ir.PrimFunc) -> Grid:
    """Lower a function with bound loops to a kernel launch.

    Raises ScheduleError if work groups and items cannot run the function with these bindings."""
    require_constant_sizes(func)
    body = drop_blocks(func.body)
    for change in (simplify_stmt, compact_buffers, partition_loops, double_buffer_loops, unroll_loops, simplify_stmt):
        body = change(body)
    allocated: list[ir.Buffer] = []
    groups: dict[str, ir.For] = {}
    while isinstance(body, ir.Alloc) or (isinstance(body, ir.For) and body.kind in ir.GROUPS):
        if isinstance(body, ir.Alloc):
            allocated.append(body.buffer)
        elif body.kind in groups:
            raise ScheduleError(
                f"{func.name}: loops {groups[body.kind].var.name!r} and {body.var.name!r} are both bound to "
                f"{body.kind}",
                hint="fuse the two loops, or bind one of them to .y or .z",
            )
        else:
            groups[body.kind] = body
        body = body.body
    for buffer in reversed(allocated):
        body = ir.Alloc(buffer, body)
    _check_body_of_work_group(func, body)
    items = {
        kind: [_constant_extent(s) for s in walk_stmt(body) if isinstance(s, ir.For) and s.kind == kind]
        for kind in ir.ITEMS
    }
    body = add_barriers(shrink_buffers_to_item(body), func.params)
    for loop in reversed(groups.values()):
        body = replace(loop, body=body)
    counts = {kind: _constant_extent(loop) for kind, loop in groups.items()}
    x, y, z = (counts.get(kind, 1) for kind in ir.GROUPS)
    wide, high, deep = (max(items[kind], default=1) for kind in ir.ITEMS)
    return Grid((x, y, z), (wide, high, deep), replace(func, body=body))


def _constant_extent(loop: ir.For) -> int:
    """Return the extent of a loop bound to a thread axis. ScheduleError if the extent is not constant."""
    count = ir.int_value(loop.extent)
    if count is None:
        raise ScheduleError(
            f"loop {loop.var.name!r} is bound to {loop.kind} and has no constant extent; expected a constant extent",
            hint="split it by a factor, and bind the loop whose extent is the factor",
        )
    return count


def _check_body_of_work_group(func: ir.PrimFunc, body: ir.Stmt) -> None:
    """Check the statement that the items of a work group run.

    Raises ScheduleError for a loop bound to groups, for nested loops bound to the same axis of items, and for a workspace."""
    for s in walk_stmt(body):
        if isinstance(s, ir.For) and s.kind in ir.GROUPS:
            raise ScheduleError(
                f"{func.name}: loop {s.var.name!r} is bound to {s.kind} but does not enclose the whole function",
                hint="move all blocks into the loops over groups by compute_at and reverse_compute_at",
            )
        if isinstance(s, ir.For) and s.kind in ir.ITEMS:
            inner = (x for x in walk_stmt(s.body) if isinstance(x, ir.For) and x.kind == s.kind)
            for twice in inner:
                raise ScheduleError(
                    f"{func.name}: loops {s.var.name!r} and {twice.var.name!r} inside it are both bound to {s.kind}",
                    hint="move the inner block out of the loops over items by compute_at",
                )
        if isinstance(s, ir.Alloc) and s.buffer.scope == "workspace":
            raise ScheduleError(
                f"{func.name}: buffer {s.buffer.name!r} has a scope that an accelerator lacks; got 'workspace', expected "
                "'shared', 'register' or 'local'",
                hint=f"set_scope({s.buffer.name!r}, 'shared'), 'register' or 'local'",
            )
