"""From a function with bound loops to one that groups of items run side by side: OpenCL's work-groups and work-items.

The meaning of a bound loop is that of a plain one, so a schedule is tried, and compared, like any other. Loops bound to
``blockIdx`` stand around everything; inside, each nest of loops bound to ``threadIdx`` is done by all items of a group together,
and a barrier stands between nests where one reads or overwrites what another used. What is kept in registers from nest to nest
is one item's own; what is ``shared`` is the group's.
"""

from __future__ import annotations

from dataclasses import replace

from microc.errors import ScheduleError
from microc.frozen import frozen
from microc.tir import ir
from microc.tir.affine import simplify_stmt
from microc.tir.lower.barriers import with_barriers
from microc.tir.lower.blocks import drop_blocks
from microc.tir.lower.compact import compact_buffers
from microc.tir.lower.double_buffer import double_buffers
from microc.tir.lower.partition import partition_loops
from microc.tir.lower.private import private_buffers
from microc.tir.lower.unroll import unroll_loops
from microc.tir.rewrite import map_stmt, replace_buffers, walk_stmt
from microc.tir.symbolic import require_fixed


@frozen
class Grid:
    """What one launch runs: ``groups`` of ``items`` along x, y and z; ``func`` for each item.

    Bound loops are still there, and stand for the group and the item that run. Those of groups are around everything.
    """

    groups: tuple[int, int, int]
    items: tuple[int, int, int]
    func: ir.PrimFunc


def is_bound(func: ir.PrimFunc) -> bool:
    """Whether a loop is bound to groups or items."""
    return any(isinstance(s, ir.For) and s.kind in (*ir.GROUPS, *ir.ITEMS) for s in walk_stmt(func.body))


def unbound(func: ir.PrimFunc) -> ir.PrimFunc:
    """The same for a machine without groups: bound loops are plain, what a group shares is a workspace, and registers of all
    items are an array. Without bound loops registers stay those of a tile, whose loops are unrolled."""
    bound = is_bound(func)
    scopes = {"shared": "workspace", "register": "local"} if bound else {"shared": "workspace"}
    placed = {
        s.buffer: replace(s.buffer, scope=scopes[s.buffer.scope])
        for s in walk_stmt(func.body)
        if isinstance(s, ir.Alloc) and s.buffer.scope in scopes
    }
    if not (bound or placed):
        return func

    def plain(s: ir.Stmt) -> ir.Stmt:
        return replace(s, kind="serial") if isinstance(s, ir.For) and s.kind in (*ir.GROUPS, *ir.ITEMS) else s

    return replace(func, body=replace_buffers(map_stmt(func.body, plain), placed))


def lower_grid(func: ir.PrimFunc) -> Grid:
    """What a launch of ``func`` runs; ScheduleError where its loops are not bound so that groups and items could."""
    require_fixed(func)
    body = drop_blocks(func.body)
    for change in (simplify_stmt, compact_buffers, partition_loops, double_buffers, unroll_loops, simplify_stmt):
        body = change(body)
    allocated: list[ir.Buffer] = []
    groups: dict[str, ir.For] = {}
    while isinstance(body, ir.Alloc) or (isinstance(body, ir.For) and body.kind in ir.GROUPS):
        if isinstance(body, ir.Alloc):
            allocated.append(body.buffer)
        elif body.kind in groups:
            raise ScheduleError(f"{func.name}: two loops are bound to {body.kind}", hint="fuse them, or use .y and .z")
        else:
            groups[body.kind] = body
        body = body.body
    for buffer in reversed(allocated):
        body = ir.Alloc(buffer, body)
    _check(func, body)
    items = {
        kind: [_count(s) for s in walk_stmt(body) if isinstance(s, ir.For) and s.kind == kind] for kind in ir.ITEMS
    }
    body = with_barriers(private_buffers(body), func.params)
    for loop in reversed(groups.values()):
        body = replace(loop, body=body)
    counts = {kind: _count(loop) for kind, loop in groups.items()}
    x, y, z = (counts.get(kind, 1) for kind in ir.GROUPS)
    wide, high, deep = (max(items[kind], default=1) for kind in ir.ITEMS)
    return Grid((x, y, z), (wide, high, deep), replace(func, body=body))


def _count(loop: ir.For) -> int:
    count = ir.int_value(loop.extent)
    if count is None:
        raise ScheduleError(
            f"loop {loop.var.name!r} is bound to {loop.kind} and has no fixed number of turns",
            hint="split it by a factor, and bind the part with that many",
        )
    return count


def _check(func: ir.PrimFunc, body: ir.Stmt) -> None:
    """What stands inside the groups: no loop of groups, no loop of items in another of its axis, no memory that nobody gives."""
    for s in walk_stmt(body):
        if isinstance(s, ir.For) and s.kind in ir.GROUPS:
            raise ScheduleError(
                f"{func.name}: loop {s.var.name!r} is bound to {s.kind} and does not stand around everything",
                hint="one function is one launch: compute_at and reverse_compute_at bring all blocks into loops of groups",
            )
        if isinstance(s, ir.For) and s.kind in ir.ITEMS:
            inner = (x for x in walk_stmt(s.body) if isinstance(x, ir.For) and x.kind == s.kind)
            for twice in inner:
                raise ScheduleError(
                    f"{func.name}: loops {s.var.name!r} and {twice.var.name!r} inside it are both bound to {s.kind}",
                    hint="compute_at a loop outside of the items: they do one nest after the other, together",
                )
        if isinstance(s, ir.Alloc) and s.buffer.scope == "workspace":
            raise ScheduleError(
                f"{func.name}: an accelerator has no workspace, where {s.buffer.name!r} is",
                hint=f"set_scope({s.buffer.name!r}, 'shared'), 'register' or 'local'",
            )
