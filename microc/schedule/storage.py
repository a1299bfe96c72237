"""Primitives about where values live: cache_read, cache_write, set_scope."""

from __future__ import annotations

from dataclasses import replace

from microc.errors import ScheduleError
from microc.schedule.placement import stored_buffer
from microc.schedule.tree import buffer_named, find_block, fresh, loops_around, names_in, replace_stmt, units
from microc.tir import ir
from microc.tir.facts import buffers_read, buffers_written
from microc.tir.rewrite import map_expr, map_stmt, replace_buffers, walk_stmt

CACHE_SCOPES = ("workspace", "shared", "register", "local", *ir.UNIT_SCOPES)


def _check_scope(scope: str) -> None:
    if scope not in CACHE_SCOPES:
        raise ScheduleError(f"unknown scope {scope!r}", hint="scopes: " + ", ".join(CACHE_SCOPES))


def _copy_nest(func: ir.PrimFunc, name: str, source: ir.Buffer, target: ir.Buffer) -> ir.Stmt:
    taken = names_in(func.body)
    loops, iters = [], []
    for axis, extent in enumerate(source.shape):
        loop = ir.Var(fresh(taken, f"{name}_i{axis}"))
        iters.append(ir.IterVar(ir.Var(fresh(taken, f"v_{name}_i{axis}")), extent, "space", loop))
        loops.append((loop, extent))
    where = tuple(i.var for i in iters)
    return ir.loops(loops, ir.Block(name, tuple(iters), ir.Store(target, where, ir.Load(source, where))))


def cache_read(func: ir.PrimFunc, block: str, buffer: str, scope: str) -> ir.PrimFunc:
    """``block`` reads a copy of ``buffer``, made before it by a new block ``<buffer>_<scope>``; compute_at places it."""
    _check_scope(scope)
    reader, source = find_block(func.body, block), buffer_named(func, buffer)
    if source not in buffers_read(reader):
        raise ScheduleError(f"cache_read: block {block!r} does not read {buffer!r}")
    if source in buffers_written(reader):
        raise ScheduleError(
            f"cache_read: block {block!r} writes {buffer!r}, too, whose copy would not see that",
            hint="cache_write keeps sums near",
        )
    name = f"{buffer}_{scope}"
    copy = replace(source, name=fresh(names_in(func.body) | {p.name for p in func.params}, name), scope=scope)
    nest: ir.Stmt = reader
    for loop in reversed(loops_around(func.body, reader)):
        nest = loop
    inside = {id(s) for s in walk_stmt(nest)}
    makers = [b.name for b in units(func.body) if id(b) in inside and source in buffers_written(b)]
    if makers:  # the copy stands before the nest
        raise ScheduleError(
            f"cache_read: block {makers[0]!r} makes {buffer!r} inside of the loops of {block!r}",
            hint="cache_read first, then compute_at",
        )

    def on_expr(e: ir.Expr) -> ir.Expr:
        return ir.Load(copy, e.indices) if isinstance(e, ir.Load) and e.buffer == source else e

    def on_stmt(s: ir.Stmt) -> ir.Stmt:
        return s

    reading = map_stmt(reader, on_stmt, lambda x: map_expr(x, on_expr))
    body = replace_stmt(func.body, reader, reading)
    anchor = replace_stmt(nest, reader, reading) if nest is not reader else reading
    copying = _copy_nest(func, copy.name, source, copy)
    new = replace_stmt(body, _same(body, anchor), ir.seq(copying, anchor))
    return replace(func, body=ir.Alloc(copy, new))


def _same(body: ir.Stmt, wanted: ir.Stmt) -> ir.Stmt:
    """The object in the tree that equals ``wanted``."""
    return next(s for s in walk_stmt(body) if s == wanted)


def cache_write(func: ir.PrimFunc, block: str, scope: str) -> ir.PrimFunc:
    """``block`` writes a new buffer ``<output>_<scope>``; a new block of that name copies it to the old place afterwards."""
    _check_scope(scope)
    writer = find_block(func.body, block)
    target = stored_buffer(writer)
    name = fresh(names_in(func.body) | {p.name for p in func.params}, f"{target.name}_{scope}")
    cache = replace(target, name=name, scope=scope)
    nest: ir.Stmt = writer
    for loop in reversed(loops_around(func.body, writer)):
        if loop.body is not nest:
            break
        nest = loop
    around = loops_around(func.body, nest)
    if around:  # the copy is of the whole tensor, of which an iteration has a part
        raise ScheduleError(
            f"cache_write: other blocks share loop {around[-1].var.name!r} with block {block!r}",
            hint="cache_write first, then compute_at",
        )
    inside = {id(s) for s in walk_stmt(nest)}
    others = [b.name for b in units(func.body) if id(b) not in inside and target in buffers_written(b)]
    if others:  # its numbers would be overwritten by those of the cache
        raise ScheduleError(
            f"cache_write: block {others[0]!r} writes {target.name!r}, too",
            hint="write the cache before decompose_reduction",
        )
    writing = replace_buffers(nest, {target: cache})
    copying = _copy_nest(func, name, cache, target)
    return replace(func, body=ir.Alloc(cache, replace_stmt(func.body, nest, ir.seq(writing, copying))))


def set_scope(func: ir.PrimFunc, buffer: str, scope: str) -> ir.PrimFunc:
    """Move an intermediate buffer to ``workspace``, ``shared``, ``register``, ``local`` or a tensor unit's memory."""
    _check_scope(scope)
    old = buffer_named(func, buffer)
    if old in func.params:
        raise ScheduleError(
            f"set_scope: {buffer!r} is a parameter", hint="cache_read or cache_write makes a buffer to place"
        )
    return replace(func, body=replace_buffers(func.body, {old: replace(old, scope=scope)}))
