"""From a scheduled function to plain loops that print as C, one small pass per file: :data:`PASSES`, in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from microc.tir import ir
from microc.tir.analysis.simplification import simplify_stmt
from microc.tir.lower.cleanup import (
    compact_buffers,
    drop_blocks,
    drop_dead_cells,
    hoist_fills,
    hoist_places,
    unroll_loops,
)
from microc.tir.lower.lanes import lower_lanes
from microc.tir.lower.loop_splitting import partition_loops, unswitch_loops
from microc.tir.lower.matrix_intrinsics import lower_half_products, lower_half_windows, lower_products
from microc.tir.lower.shared_values import share_values
from microc.tir.lower.unit_lowering import lower_unit
from microc.tir.lower.vectorize import lower_vectorized
from microc.tir.lower.work_groups import unbound
from microc.tir.rewrite import map_stmt
from microc.tir.symbolic import require_fixed

Pass = Callable[[ir.PrimFunc], ir.PrimFunc]


def _on_body(change: Callable[[ir.Stmt], ir.Stmt]) -> Pass:
    """A pass that leaves a function's parameters alone."""
    return lambda func: replace(func, body=change(func.body))


def lift_workspaces(func: ir.PrimFunc) -> ir.PrimFunc:
    """Workspaces become the last parameters, by name: the memory plan places them."""
    workspaces: dict[ir.Buffer, None] = {}  # a peeled tail shares its loop's workspace

    def lift(stmt: ir.Stmt) -> ir.Stmt:
        if isinstance(stmt, ir.Alloc) and stmt.buffer.scope == "workspace":
            workspaces[stmt.buffer] = None
            return stmt.body
        return stmt

    body = map_stmt(func.body, lift)
    return replace(func, params=(*func.params, *sorted(workspaces, key=lambda b: b.name)), body=body)


_KINDS: tuple[tuple[str, Callable[[ir.Stmt], ir.Stmt]], ...] = (
    ("lanes", lower_lanes),
    ("vectorize", lower_vectorized),
    ("unroll", unroll_loops),
    ("simplify", simplify_stmt),
)
"""What makes loops of a kind what they are marked as."""

PASSES: tuple[tuple[str, Pass], ...] = (
    ("blocks", _on_body(drop_blocks)),
    ("simplify", _on_body(simplify_stmt)),
    ("compact", _on_body(compact_buffers)),
    ("hoist", _on_body(hoist_fills)),
    ("partition", _on_body(partition_loops)),
    ("unswitch", _on_body(unswitch_loops)),
    ("invariant", _on_body(hoist_places)),
    ("halves", _on_body(lambda body: lower_half_windows(lower_half_products(body)))),
    ("products", _on_body(lower_products)),
    ("unit", _on_body(lower_unit)),
    *((name, _on_body(change)) for name, change in _KINDS),
    ("dead", _on_body(drop_dead_cells)),
    ("workspaces", lift_workspaces),
    ("share", _on_body(share_values)),
)
"""Names, which may repeat, and functions."""


def stages(func: ir.PrimFunc) -> Iterator[tuple[str, ir.PrimFunc]]:
    """The function after every pass, with the pass's name."""
    for name, change in PASSES:
        func = change(func)
        yield name, func


def lower(func: ir.PrimFunc) -> ir.PrimFunc:
    """Plain loops without blocks. Workspaces are the last parameters, by name."""
    require_fixed(func)
    func = unbound(func)
    for _, change in PASSES:
        func = change(func)
    return func


def lower_kinds(body: ir.Stmt) -> ir.Stmt:
    """Loops that are marked for vectors, words or to be unrolled, as that."""
    for _, change in _KINDS:
        body = change(body)
    return body
