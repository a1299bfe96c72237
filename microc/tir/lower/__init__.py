"""From a scheduled function to plain loops that print as C, one small pass per file.

blocks -> compact -> hoist -> partition -> unswitch -> invariant -> products -> lanes -> vectorize -> unroll -> simplify ->
share -> workspaces become parameters.
"""

from __future__ import annotations

from microc.tir import ir
from microc.tir.affine import simplify_stmt
from microc.tir.lower.blocks import drop_blocks
from microc.tir.lower.compact import compact_buffers
from microc.tir.lower.hoist import hoist_fills
from microc.tir.lower.invariant import hoist_places
from microc.tir.lower.lanes import lower_lanes
from microc.tir.lower.partition import partition_loops
from microc.tir.lower.products import lower_products
from microc.tir.lower.share import share_values
from microc.tir.lower.unroll import unroll_loops
from microc.tir.lower.unswitch import unswitch_loops
from microc.tir.lower.vectorize import lower_vectorized
from microc.tir.rewrite import map_stmt


def lower(func: ir.PrimFunc) -> ir.PrimFunc:
    """Plain loops without blocks. Workspaces are the last parameters, in order of appearance."""
    body = drop_blocks(func.body)
    body = simplify_stmt(body)
    body = compact_buffers(body)
    body = hoist_fills(body)
    body = partition_loops(body)
    body = unswitch_loops(body)
    body = hoist_places(body)
    body = lower_kinds(lower_products(body))
    workspaces: list[ir.Buffer] = []

    def hoist(stmt: ir.Stmt) -> ir.Stmt:
        if isinstance(stmt, ir.Alloc) and stmt.buffer.scope == "workspace":
            if stmt.buffer not in workspaces:  # a peeled tail shares its loop's workspace
                workspaces.append(stmt.buffer)
            return stmt.body
        return stmt

    body = map_stmt(body, hoist)
    body = share_values(body)
    ordered = tuple(sorted(workspaces, key=lambda b: b.name))
    return ir.PrimFunc(func.name, func.params + ordered, body, func.annotations)


def lower_kinds(body: ir.Stmt) -> ir.Stmt:
    """Loops that are marked for vectors, words or to be unrolled, as that."""
    return simplify_stmt(unroll_loops(lower_vectorized(lower_lanes(body))))
