# SPDX-License-Identifier: Apache-2.0
"""Lowering of a scheduled function to plain loops, which are then printed as C. :data:`PASSES` lists the passes in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from microc.tir import ir
from microc.tir.analysis.simplification import simplify_stmt
from microc.tir.lower.cleanup import (
    compact_buffers,
    drop_dead_register_stores,
    hoist_fills,
    hoist_index_lookups,
    unroll_loops,
)
from microc.tir.lower.lanes import lower_lanes
from microc.tir.lower.loop_splitting import distribute_loops, partition_loops, unswitch_loops
from microc.tir.lower.matrix_intrinsics import lower_float16_products, lower_float16_windows, lower_products
from microc.tir.lower.shared_values import share_values
from microc.tir.lower.unit_lowering import lower_requantisation, lower_tensor_unit
from microc.tir.lower.work_groups import unbind_loops
from microc.tir.rewrite import drop_blocks, map_stmt
from microc.tir.symbolic import require_constant_sizes

Pass = Callable[[ir.PrimFunc], ir.PrimFunc]


def _make_body_pass(rewrite_body: Callable[[ir.Stmt], ir.Stmt]) -> Pass:
    """Return a pass that rewrites the body of a function by ``rewrite_body`` and keeps its parameters."""
    return lambda func: replace(func, body=rewrite_body(func.body))


def lift_workspaces(func: ir.PrimFunc) -> ir.PrimFunc:
    """Return a function whose workspaces are parameters instead of allocations, because the memory plan assigns addresses.

    They are the last parameters, sorted by name."""
    workspaces: dict[ir.Buffer, None] = {}  # a peeled tail shares its loop's workspace

    def remove_allocation(stmt: ir.Stmt) -> ir.Stmt:
        if isinstance(stmt, ir.Alloc) and stmt.buffer.scope == "workspace":
            workspaces[stmt.buffer] = None
            return stmt.body
        return stmt

    body = map_stmt(func.body, remove_allocation)
    return replace(func, params=(*func.params, *sorted(workspaces, key=lambda b: b.name)), body=body)


_KINDS: tuple[tuple[str, Callable[[ir.Stmt], ir.Stmt]], ...] = (
    ("lanes", lower_lanes),
    ("unroll", unroll_loops),
    ("simplify", simplify_stmt),
)
"""Names and functions of the passes that lower annotated loops: lanes, vectorized, unrolled."""

PASSES: tuple[tuple[str, Pass], ...] = (
    ("blocks", _make_body_pass(drop_blocks)),
    ("simplify", _make_body_pass(simplify_stmt)),
    ("compact", _make_body_pass(compact_buffers)),
    ("distribute", _make_body_pass(distribute_loops)),
    ("hoist", _make_body_pass(hoist_fills)),
    ("partition", _make_body_pass(partition_loops)),
    ("unswitch", _make_body_pass(unswitch_loops)),
    ("invariant", _make_body_pass(hoist_index_lookups)),
    ("halves", _make_body_pass(lambda body: lower_float16_windows(lower_float16_products(body)))),
    ("products", _make_body_pass(lower_products)),
    ("unit", _make_body_pass(lower_tensor_unit)),
    *((name, _make_body_pass(rewrite_body)) for name, rewrite_body in _KINDS),
    ("requantisation", _make_body_pass(lower_requantisation)),
    ("dead", _make_body_pass(drop_dead_register_stores)),
    ("workspaces", lift_workspaces),
    ("share", _make_body_pass(share_values)),
)
"""Names and functions of all lowering passes, in order. Several passes may have the same name."""


def lowering_stages(func: ir.PrimFunc) -> Iterator[tuple[str, ir.PrimFunc]]:
    """Yield (name of the pass, function after the pass) for every lowering pass, in order."""
    func = unbind_loops(func)  # a processor runs the threads of a group one after another
    for name, lower_func in PASSES:
        func = lower_func(func)
        yield name, func


def lower(func: ir.PrimFunc) -> ir.PrimFunc:
    """Lower a scheduled function to plain loops without blocks.

    Workspaces become the last parameters of the function, sorted by name."""
    require_constant_sizes(func)
    for _, lowered in lowering_stages(func):
        func = lowered
    return func


def lower_annotated_loops(body: ir.Stmt) -> ir.Stmt:
    """Lower the loops in ``body`` that are annotated ``lanes``, or are of kind ``vectorized`` or ``unrolled``."""
    for _, rewrite_body in _KINDS:
        body = rewrite_body(body)
    return body
