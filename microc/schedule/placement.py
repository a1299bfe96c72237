"""Primitives that move a block to where its values are needed: compute_at, reverse_compute_at, compute_inline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from microc.errors import ScheduleError
from microc.schedule.tree import extent_of, find_block, find_loop, fresh, loops_around, names_in, replace_stmt
from microc.tir import ir
from microc.tir.affine import bounds_of, simplify
from microc.tir.lower.blocks import drop_blocks
from microc.tir.lower.region import accesses, loop_bounds, split_index
from microc.tir.rewrite import buffers_read, free_vars, map_expr, map_stmt, stmt_exprs, substitute, walk_expr, walk_stmt

Region = tuple[tuple[ir.Expr, int], ...]


def stored_buffer(block: ir.Block) -> ir.Buffer:
    """The one buffer that a block writes, apart from those that live in it."""
    own = {s.buffer for s in walk_stmt(block.body) if isinstance(s, ir.Alloc)}
    stores = {s.buffer for s in walk_stmt(block.body) if isinstance(s, ir.Store)} - own
    if len(stores) != 1:
        raise ScheduleError(
            f"block {block.name!r} writes {len(stores)} buffers", hint="only blocks with one output move"
        )
    return next(iter(stores))


def nest_of(func: ir.PrimFunc, block: ir.Block) -> ir.Stmt:
    """The outermost loop that holds nothing but this block (the block itself when there is none)."""
    nest: ir.Stmt = block
    for loop in reversed(loops_around(func.body, block)):
        if loop.body is not nest:
            break
        nest = loop
    return nest


def touched(loop: ir.For, outer: tuple[ir.For, ...], buffer: ir.Buffer, *, writes: bool) -> Region:
    """What one iteration of ``loop`` touches of ``buffer``: per axis a start (of outer variables) and a size."""
    starts: list[ir.Expr | None] = [None] * len(buffer.shape)
    lows = list(buffer.shape)
    highs = [-1] * len(buffer.shape)
    whole = [False] * len(buffer.shape)
    for access in accesses(drop_blocks(loop.body), (*outer, loop)):
        if access.buffer != buffer or access.writes != writes:
            continue
        bounds = loop_bounds(access.loops)
        inner = {x.var: bounds.get(x.var, (0, 0)) for x in access.loops[len(outer) + 1 :]}
        for axis, index in enumerate(access.indices):
            parts = split_index(index, inner, bounds)
            if parts is None or (starts[axis] is not None and starts[axis] != parts[0]):
                whole[axis] = True
                continue
            starts[axis] = parts[0]
            last = access.extent - 1 if axis == len(buffer.shape) - 1 else 0
            lows[axis], highs[axis] = min(lows[axis], parts[1]), max(highs[axis], parts[2] + last)
    region: list[tuple[ir.Expr, int]] = []
    for axis, extent in enumerate(buffer.shape):
        start, size = starts[axis], highs[axis] - lows[axis] + 1
        if whole[axis] or start is None or size >= extent:
            region.append((ir.const(0, "int32"), extent))
        else:
            region.append((simplify(start + lows[axis]), size))
    return tuple(region)


def _moved_nest(
    func: ir.PrimFunc, block: ir.Block, region: Mapping[ir.Var, tuple[ir.Expr, int]], outer: tuple[ir.For, ...]
) -> ir.Stmt:
    """The block in new loops that cover ``region`` of its spatial iterators and all of its reduction."""
    taken = names_in(func.body)
    bounds = loop_bounds(outer)
    loops: list[tuple[ir.Var, int]] = []
    iters, guards = [], []
    for it in block.iters:
        start, size = region.get(it.var, (ir.const(0, "int32"), it.extent))
        var = ir.Var(fresh(taken, it.var.name.removeprefix("v_")))
        binding = simplify(start + var, {**bounds, var: (0, size - 1)})
        iters.append(replace(it, binding=binding))
        loops.append((var, size))
        reach = bounds_of(binding, {**bounds, var: (0, size - 1)})
        if reach is None or reach[1] >= it.extent:
            guards.append(binding < it.extent)
        if reach is None or reach[0] < 0:
            guards.append(binding >= 0)
    moved = replace(block, iters=tuple(iters), predicate=ir.all_of(guards))
    return ir.loops(loops, moved)


def compute_at(func: ir.PrimFunc, block: str, loop: str) -> ir.PrimFunc:
    """Compute the producer ``block`` inside ``loop``, just before the consumers there, for what they read."""
    producer, target = find_block(func.body, block), find_loop(func.body, loop)
    buffer = stored_buffer(producer)
    nest = nest_of(func, producer)
    if any(buffer in buffers_read(s) for s in walk_stmt(func.body) if isinstance(s, ir.Block) and s is not producer
           and not any(s is inside for inside in walk_stmt(target))):  # fmt: skip
        raise ScheduleError(
            f"compute_at: {buffer.name!r} of block {block!r} is also read outside loop {loop!r}",
            hint="choose a loop around all readers, or cache_read first",
        )
    if buffer in func.params:
        raise ScheduleError(
            f"compute_at: block {block!r} writes the output {buffer.name!r}", hint="use reverse_compute_at"
        )
    outer = loops_around(func.body, target)
    region = touched(target, outer, buffer, writes=False)
    where = _store_iters(producer, buffer)
    spatial = {var: part for var, part in zip(where, region, strict=True) if var is not None}
    new_nest = _moved_nest(func, producer, spatial, (*outer, target))
    body = replace_stmt(func.body, nest, None)
    target = find_loop(body, loop)
    return replace(func, body=replace_stmt(body, target, replace(target, body=ir.seq(new_nest, target.body))))


def _store_iters(block: ir.Block, buffer: ir.Buffer) -> list[ir.Var | None]:
    """Per axis of the stored buffer the block iterator that indexes it; other index forms are refused."""
    for s in walk_stmt(block.body):
        if isinstance(s, ir.Store) and s.buffer == buffer:
            return [i if isinstance(i, ir.Var) else None for i in s.indices]
    raise ScheduleError(f"block {block.name!r} does not write {buffer.name!r}")


def reverse_compute_at(func: ir.PrimFunc, block: str, loop: str) -> ir.PrimFunc:
    """Compute the elementwise consumer ``block`` inside ``loop``, just after its producer there, for what it made."""
    consumer, target = find_block(func.body, block), find_loop(func.body, loop)
    inside = [s for s in walk_stmt(target) if isinstance(s, ir.Block)]
    made = {stored_buffer(b) for b in inside}
    read = [b for b in buffers_read(consumer.body) if b in made]
    if len(read) != 1:
        raise ScheduleError(
            f"reverse_compute_at: block {block!r} reads {len(read)} of the tensors made in loop {loop!r}",
            hint="it must consume exactly one",
        )
    buffer = read[0]
    producer = next(b for b in inside if stored_buffer(b) == buffer)
    _check_complete(func, producer, target)
    outer = loops_around(func.body, target)
    region = touched(target, outer, buffer, writes=True)
    indices = {
        x.indices
        for s in walk_stmt(consumer.body)
        for e in _exprs(s)
        for x in e
        if isinstance(x, ir.Load) and x.buffer == buffer
    }
    if len(indices) != 1 or not all(isinstance(i, ir.Var) for i in next(iter(indices))):
        raise ScheduleError(
            f"reverse_compute_at: block {block!r} does not read {buffer.name!r} one element at a time",
            hint="compute the producer at the consumer instead",
        )
    spatial = {var: part for var, part in zip(next(iter(indices)), region, strict=True) if isinstance(var, ir.Var)}
    new_nest = _moved_nest(func, consumer, spatial, (*outer, target))
    body = replace_stmt(func.body, nest_of(func, consumer), None)
    target = find_loop(body, loop)
    return replace(func, body=replace_stmt(body, target, replace(target, body=ir.seq(target.body, new_nest))))


def _exprs(stmt: ir.Stmt) -> list[list[ir.Expr]]:
    return [list(walk_expr(e)) for e in stmt_exprs(stmt)]


def _check_complete(func: ir.PrimFunc, producer: ir.Block, target: ir.For) -> None:
    """The reduction must be finished within one iteration of the target loop."""
    around = {loop.var for loop in (*loops_around(func.body, target), target)}
    for it in producer.iters:
        if it.kind == "reduce" and free_vars(it.binding) & around:
            raise ScheduleError(
                f"reverse_compute_at: loop {target.var.name!r} lies inside the reduction of block {producer.name!r}",
                hint="reorder the reduction loops inside it first",
            )


def compute_inline(func: ir.PrimFunc, block: str) -> ir.PrimFunc:
    """Put the expression of ``block`` wherever its value is read; its buffer disappears."""
    producer = find_block(func.body, block)
    buffer = stored_buffer(producer)
    if not isinstance(producer.body, ir.Store) or producer.init is not None:
        raise ScheduleError(f"compute_inline: block {block!r} reduces", hint="only elementwise blocks can be inlined")
    if buffer in func.params:
        raise ScheduleError(f"compute_inline: block {block!r} writes the output {buffer.name!r}")
    where = _store_iters(producer, buffer)
    store = producer.body
    if any(var is None for var in where):
        raise ScheduleError(f"compute_inline: block {block!r} stores at computed indices")

    def on_expr(e: ir.Expr) -> ir.Expr:
        if isinstance(e, ir.Load) and e.buffer == buffer:
            return substitute(store.value, dict(zip(store.indices, e.indices, strict=True)))  # type: ignore[arg-type]
        return e

    body = replace_stmt(func.body, nest_of(func, producer), None)

    def on_stmt(s: ir.Stmt) -> ir.Stmt:
        return s.body if isinstance(s, ir.Alloc) and s.buffer == buffer else s

    return replace(func, body=map_stmt(body, on_stmt, lambda x: map_expr(x, on_expr)))


def reverse_compute_inline(func: ir.PrimFunc, block: str) -> ir.PrimFunc:
    """Put the expression of the elementwise ``block`` where the value that it reads is made; that value's buffer disappears."""
    consumer = find_block(func.body, block)
    blocks = [s for s in walk_stmt(func.body) if isinstance(s, ir.Block) and s is not consumer]
    made = [b for b in blocks if stored_buffer(b) in buffers_read(consumer) and stored_buffer(b) not in func.params]
    if len(made) != 1 or consumer.init is not None or not isinstance(consumer.body, ir.Store):
        raise ScheduleError(
            f"reverse_compute_inline: block {block!r} is not elementwise over one tensor that is made before",
            hint="compute_inline puts producers into their consumers",
        )
    producer, result = made[0], consumer.body
    buffer = stored_buffer(producer)
    if not isinstance(producer.body, ir.Store) or producer.init is not None:
        raise ScheduleError(f"reverse_compute_inline: block {producer.name!r} reduces", hint="use reverse_compute_at")
    if any(buffer in buffers_read(other) for other in blocks):
        raise ScheduleError(f"reverse_compute_inline: {buffer.name!r} has other readers")
    iters = {it.var: it.extent for it in consumer.iters}
    reads = {x.indices for x in walk_expr(result.value) if isinstance(x, ir.Load) and x.buffer == buffer}
    where = next(iter(reads), ())
    whole = (
        len(reads) == 1 and set(where) == set(iters) and len(set(where)) == len(where) and consumer.predicate is None
    )
    if not whole or [iters[v] for v in where if isinstance(v, ir.Var)] != list(buffer.shape):
        raise ScheduleError(
            f"reverse_compute_inline: block {block!r} does not read every element of {buffer.name!r} once",
            hint="use reverse_compute_at",
        )
    value = producer.body.value
    places = {var: index for var, index in zip(where, producer.body.indices, strict=True) if isinstance(var, ir.Var)}

    def on_expr(e: ir.Expr) -> ir.Expr:
        return value if isinstance(e, ir.Load) and e.buffer == buffer else e

    stored = ir.Store(
        result.buffer,
        tuple(substitute(index, places) for index in result.indices),
        map_expr(substitute(result.value, places), on_expr),
    )
    body = replace_stmt(func.body, nest_of(func, consumer), None)
    body = replace_stmt(body, producer, replace(producer, name=block, body=stored))
    return replace(func, body=map_stmt(body, lambda s: s.body if isinstance(s, ir.Alloc) and s.buffer == buffer else s))


def loop_extent(func: ir.PrimFunc, loop: str) -> int:
    """The constant extent of a named loop."""
    return extent_of(find_loop(func.body, loop))
