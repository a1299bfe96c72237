# SPDX-License-Identifier: Apache-2.0
"""Distribution: the iterations of a parallel loop are divided among two cores.

``for y in 9`` with the annotation :data:`~microc.tir.names.DISTRIBUTED` becomes a parallel loop of two iterations, one for each
core::

    for y_core in parallel(2):
        for y in 5:
            if y < y_core + 4:
                ... iteration y_core * 4 + y

Core 0 runs the first half of the iterations, core 1 the rest, which may be one iteration more. Neither takes iterations from the
other, so that a run does the same in the same time whenever it is repeated. The iterations of a core keep their order.

A guarded last iteration is peeled, as it is from serial loops, and belongs to core 0, which also forks and joins. Work that is
moved out of the loop (a border that is filled once) is done by each core for its own workspaces, which get an axis for the cores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from microc.tir import ir
from microc.tir.analysis.context import buffers_written
from microc.tir.analysis.cover import has_disjoint_iterations
from microc.tir.lower.cleanup import hoist_fills
from microc.tir.lower.loop_splitting import peel_last_iterations
from microc.tir.lower.region import accesses_to
from microc.tir.names import DISTRIBUTED, PEEL
from microc.tir.rewrite import map_stmt, replace_buffers, substitute_stmt, walk_stmt

_WITHOUT_PEELING = ((PEEL, 0),)


def distribute_loops(stmt: ir.Stmt) -> ir.Stmt:
    """Return a statement with every loop that is annotated :data:`~microc.tir.names.DISTRIBUTED` distributed among its cores."""
    loops = [s for s in walk_stmt(stmt) if isinstance(s, ir.For) and DISTRIBUTED in dict(s.annotations)]
    private = {b: replace(b, shape=(2, *b.shape)) for loop in loops for b in _list_private_workspaces(stmt, loop)}

    def distribute(s: ir.Stmt) -> ir.Stmt:
        match s:
            case ir.For() if DISTRIBUTED in dict(s.annotations):
                return _distribute(s, private)
            case ir.Alloc(buffer, body) if buffer in private:
                return ir.Alloc(private[buffer], body)
            case _:
                return s

    return map_stmt(stmt, distribute) if loops else stmt


def _list_private_workspaces(stmt: ir.Stmt, loop: ir.For) -> list[ir.Buffer]:
    """Return the workspaces of which each core needs its own: ``stmt`` uses them in ``loop`` only, and several iterations write
    the same elements."""
    written = sorted((b for b in buffers_written(loop.body) if b.scope == "workspace"), key=lambda b: b.name)
    return [
        b
        for b in written
        if len(accesses_to(loop, b)) == len(accesses_to(stmt, b)) and not has_disjoint_iterations(loop, b)
    ]


def _distribute(loop: ir.For, private: Mapping[ir.Buffer, ir.Buffer]) -> ir.Stmt:
    """Return a parallel loop over two cores, each of which runs a part of the iterations of ``loop``.

    A loop of less than two full iterations becomes serial. ``private``: workspaces with an axis for the cores, by workspace."""
    core = ir.Var(f"{loop.var.name}_core", loop.var.dtype)
    serial = replace(
        loop, kind="serial", annotations=tuple(note for note in loop.annotations if note[0] != DISTRIBUTED)
    )
    hoisted = hoist_fills(serial)
    *prologue, iterations = hoisted.body if isinstance(hoisted, ir.Seq) else (hoisted,)
    assert isinstance(iterations, ir.For)
    full, *tails = peel_last_iterations(iterations, {}) or (iterations,)
    count = ir.int_value(full.extent) if isinstance(full, ir.For) and full.var == loop.var else None
    if count is None or count < 2:
        return _use_workspaces_of_core(ir.seq(*prologue, full, *tails), private, ir.as_index(0))
    assert isinstance(full, ir.For)
    least = count // 2
    body = substitute_stmt(full.body, {loop.var: core * least + loop.var})
    notes = full.annotations
    if count % 2:  # a test in each iteration, since most analyses ask for a constant extent
        body, notes = ir.If(loop.var < core + least, body), _WITHOUT_PEELING
    parts = [*prologue, ir.For(loop.var, ir.as_index(count - least), body, "serial", notes)]
    if tails:
        parts.append(ir.If(ir.Bin("eq", core, ir.as_index(0)), ir.seq(*tails)))
    distributed = ir.For(core, ir.as_index(2), ir.seq(*parts), "parallel", ((DISTRIBUTED, 2),))
    return _use_workspaces_of_core(distributed, private, core)


def _use_workspaces_of_core(stmt: ir.Stmt, private: Mapping[ir.Buffer, ir.Buffer], core: ir.Expr) -> ir.Stmt:
    """Return a statement in which accesses to private workspaces go to the workspaces of ``core``."""
    return replace_buffers(stmt, private, lambda indices: (core, *indices))
