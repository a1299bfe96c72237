"""Loops annotated ``lanes``: four iterations at once in the lanes of vectors, on cores that have such registers.

``for i in n [lanes=4]: body`` becomes a loop over vectors. Iterations are independent (``vectorized``). Where n is no multiple
of four, one more vector after the loop covers the last four iterations, some of them for the second time, if the body reads or
writes nothing but private memory; else it is a partial one, whose memory accesses are predicated. int32 expressions that vary
along ``i`` become calls of the intrinsics named ``<op>_i32x4``; loads widen, stores narrow, of neighbours or in steps; register
buffers inside the loop become registers of vectors. Literals and constants that all iterations share are read before the loop. A
run of bytes that is only copied or filled is one call, and so are runs that follow each other. What has no such form stays a loop
over single elements.
"""

from __future__ import annotations

from dataclasses import replace

from microc.tir import ir
from microc.tir.affine import simplify_stmt
from microc.tir.lower.lane_code import LANES, TYPES, LaneCode, NoLanesError, fixed
from microc.tir.lower.region import address, consecutive, flat_step
from microc.tir.lower.unroll import unroll_loops
from microc.tir.rewrite import buffers_read, free_vars, map_stmt, walk_stmt

KEY = "lanes"
"""The annotation."""
_RUNS = ("int8", "uint8", "int16")
_RUN_CALLS = frozenset(f"{name}_{TYPES[dtype]}" for name in ("copy", "fill") for dtype in _RUNS)


def lower_lanes(stmt: ir.Stmt) -> ir.Stmt:
    """``stmt`` without loops annotated ``lanes``."""

    def on_stmt(s: ir.Stmt) -> ir.Stmt:
        if not isinstance(s, ir.For):
            return s
        if KEY not in dict(s.annotations):
            return _joined(s) or _after_fixed(s)
        extent = ir.int_value(s.extent)
        plain = replace(s, kind="serial", annotations=tuple(a for a in s.annotations if a[0] != KEY))
        if extent is None:
            return plain
        try:
            return _run(s, extent) or _vectors(replace(s, body=simplify_stmt(unroll_loops(s.body))), extent)
        except NoLanesError:
            return plain

    return map_stmt(stmt, on_stmt)


def _run(loop: ir.For, extent: int) -> ir.Stmt | None:
    """The loop as one copy or fill of memory."""
    store = loop.body
    if not isinstance(store, ir.Store) or store.buffer.dtype not in _RUNS or store.buffer.scope == "register":
        return None
    if not consecutive(store.indices, loop.var):
        return None
    first: dict[ir.Var, ir.Expr] = {loop.var: ir.const(0, "int32")}
    target = address(store.buffer, store.indices, first, extent, writes=True)
    kind, count = TYPES[store.buffer.dtype], ir.const(extent, "int32")
    match store.value:
        case ir.Load(buffer, indices) if buffer.dtype == store.buffer.dtype and consecutive(indices, loop.var):
            source = address(buffer, indices, first, extent, writes=False)
            return ir.Evaluate(ir.Call(f"copy_{kind}", (target, source, count), "int32"))
        case ir.Const(int() as value):
            return ir.Evaluate(ir.Call(f"fill_{kind}", (target, ir.const(value, "int32"), count), "int32"))
        case _:
            return None


def _joined(loop: ir.For) -> ir.Stmt | None:
    """Runs of memory that follow each other as one run."""
    match loop.body:
        case ir.Evaluate(ir.Call(name, (*places, ir.Const(int() as size)), dtype)) if name in _RUN_CALLS:
            extent = ir.int_value(loop.extent)
            ends = [a for a in places if isinstance(a, ir.AddressOf)]
            if extent is None or any(flat_step(a.buffer, a.indices, loop.var) != size for a in ends):
                return None
        case _:
            return None
    first: dict[ir.Var, ir.Expr] = {loop.var: ir.const(0, "int32")}
    moved = [
        address(a.buffer, a.indices, first, extent * size, writes=a.writes) if isinstance(a, ir.AddressOf) else a
        for a in places
    ]
    return ir.Evaluate(ir.Call(name, (*moved, ir.const(extent * size, "int32")), dtype))


def _after_fixed(loop: ir.For) -> ir.Stmt:
    """The loop, after the values that its body starts with naming and that do not depend on it."""
    match loop.body:
        case ir.Let(var, value, body) if fixed(value) and loop.var not in free_vars(value):
            return ir.Let(var, value, _after_fixed(replace(loop, body=body)))
        case _:
            return loop


def _repeatable(stmt: ir.Stmt) -> bool:
    """Whether doing an iteration twice gives the same: what it reads is neither written by it, nor can it lie in the same memory
    (as results may lie over operands)."""
    stored = {s.buffer for s in walk_stmt(stmt) if isinstance(s, ir.Store) and s.buffer.scope != "register"}
    read = {b for b in buffers_read(stmt) if b.scope != "register"}
    apart = any(all(b.scope != "global" for b in side) for side in (stored, read))
    return apart and not stored & read


def _vectors(loop: ir.For, extent: int) -> ir.Stmt:
    """All iterations as vectors."""
    count, rest = divmod(extent, LANES)
    if count and rest and _repeatable(loop.body):
        lanes = LaneCode(loop.var, loop.var * LANES, LANES)
        whole = ir.For(loop.var, ir.const(count, "int32"), lanes.statement(loop.body))
        return lanes.hoisted(ir.seq(whole, lanes.moved(extent - LANES).statement(loop.body)))
    parts: list[ir.Stmt] = []
    if count:
        lanes = LaneCode(loop.var, loop.var * LANES, LANES)
        body = lanes.statement(loop.body)
        parts.append(lanes.hoisted(ir.For(loop.var, ir.const(count, "int32"), body)))
    if rest:
        lanes = LaneCode(loop.var, ir.const(count * LANES, "int32"), rest, "_end")
        parts.append(lanes.hoisted(lanes.statement(loop.body)))
    return ir.seq(*parts)
