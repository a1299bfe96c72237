# SPDX-License-Identifier: Apache-2.0
"""Primitives that move a block to the place where its values are needed: compute_at, reverse_compute_at, inlining."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from microc.errors import ScheduleError
from microc.schedule.primitives.tree import (
    check_moves_back,
    check_moves_forward,
    extent_of,
    find_block,
    find_loop,
    find_outer_loop,
    fresh_name,
    loops_around,
    names_in,
    outermost_blocks,
    replace_stmt,
    statements_outside_blocks,
)
from microc.tir import ir
from microc.tir.analysis.context import buffers_read
from microc.tir.analysis.cover import takes_all_values
from microc.tir.analysis.region import Access, accesses_to, loop_bounds, split_index
from microc.tir.analysis.simplification import TRUE, Simplifier, bounds_of, linear, simplify
from microc.tir.extents import is_at_most, is_less, largest, smallest
from microc.tir.rewrite import (
    accesses_any_buffer,
    drop_blocks,
    free_vars,
    map_accesses,
    map_expr,
    map_stmt,
    stmt_exprs,
    substitute,
    walk_expr,
    walk_stmt,
)
from microc.tir.text.print import format_expr

Region = tuple[tuple[ir.Expr, int], ...]


def stored_buffer(block: ir.Block) -> ir.Buffer:
    """Return the only buffer that a block writes, apart from buffers allocated in it. Raise ScheduleError if the
    block writes several or none."""
    own = {s.buffer for s in walk_stmt(block.body) if isinstance(s, ir.Alloc)}
    stores = {s.buffer for s in walk_stmt(block.body) if isinstance(s, ir.Store)} - own
    if len(stores) != 1:
        raise ScheduleError(
            f"block {block.name!r} has no single output; got "
            f"{', '.join(sorted(repr(s.name) for s in stores)) or 'none'}, expected one buffer",
            hint="name a block that writes one buffer",
        )
    return next(iter(stores))


def nest_of_block(func: ir.PrimFunc, block: ir.Block) -> ir.Stmt:
    """Return the loop nest of a block: the outermost loop that contains the block and no other statement, or the block
    itself if there is no such loop."""
    nest: ir.Stmt = block
    for loop in reversed(loops_around(func.body, block)):
        if loop.body is not nest:
            break
        nest = loop
    return nest


def _accesses_in_loop(
    loop: ir.For, outer_loops: tuple[ir.For, ...], buffer: ir.Buffer, *, writes: bool
) -> list[Access]:
    """Return the reads or, if ``writes``, the writes of ``buffer`` in ``loop``. ``outer_loops``: the loops around it."""
    found = accesses_to(drop_blocks(loop.body), buffer, (*outer_loops, loop))
    return [access for access in found if access.writes == writes]


def _accessed_region(accesses: list[Access], outer_loops: tuple[ir.For, ...], buffer: ir.Buffer) -> Region:
    """Return the region of ``buffer`` that one iteration of a loop accesses by ``accesses``: (start, number of elements)
    per axis.

    A start is an expression of the variables of the loop and of ``outer_loops``, the loops around it. If the accesses
    along an axis start at different expressions, the region contains the whole axis."""
    starts: list[ir.Expr | None] = [None] * len(buffer.shape)
    lows = list(buffer.shape)
    highs = [-1] * len(buffer.shape)
    whole = [False] * len(buffer.shape)
    for access in accesses:
        bounds = loop_bounds(access.loops)
        inner = [x.var for x in access.loops[len(outer_loops) + 1 :]]
        for axis, index in enumerate(access.indices):
            parts = split_index(index, inner, bounds)
            if parts is None or (starts[axis] is not None and starts[axis] != parts[0]):
                whole[axis] = True
                continue
            starts[axis] = parts[0]
            last = access.extent - 1 if axis == len(buffer.shape) - 1 else 0
            lows[axis], highs[axis] = smallest(lows[axis], parts[1]), largest(highs[axis], parts[2] + last)
    region: list[tuple[ir.Expr, int]] = []
    for axis, extent in enumerate(buffer.shape):
        start, size = starts[axis], highs[axis] - lows[axis] + 1
        if whole[axis] or start is None or is_at_most(extent, size):
            region.append((ir.const(0, "int32"), extent))
        else:
            region.append((simplify(start + lows[axis]), size))
    return tuple(region)


def _build_nest_over_region(
    func: ir.PrimFunc,
    block: ir.Block,
    region: Mapping[ir.Var, tuple[ir.Expr, int]],
    outer_loops: tuple[ir.For, ...],
    outer_guards: tuple[ir.Expr, ...] = (),
) -> ir.Stmt:
    """Build new loops around a block that cover a region of its spatial iterators and its whole reduction.

    ``region``: (first value, number of iterations) by spatial iterator. ``outer_guards``: conditions on ``outer_loops`` under
    which the block runs."""
    taken = names_in(func.body)
    bounds = loop_bounds(outer_loops)
    loops: list[tuple[ir.Var, int]] = []
    iters, guards = [], []
    for it in block.iters:
        start, size = region.get(it.var, (ir.const(0, "int32"), it.extent))
        var = ir.Var(fresh_name(taken, it.var.name.removeprefix("v_")))
        binding = simplify(start + var, {**bounds, var: (0, size - 1)})
        iters.append(replace(it, binding=binding))
        loops.append((var, size))
        # Tiles need not divide the extent: guard the side on which the binding may leave it.
        reach = bounds_of(binding, {**bounds, var: (0, size - 1)})
        if reach is None or not is_less(reach[1], it.extent):
            guards.append(binding < it.extent)
        if reach is None or not is_at_most(0, reach[0]):
            guards.append(binding >= 0)
    moved = replace(block, iters=tuple(iters), predicate=ir.all_of([*outer_guards, *guards]))
    return ir.loops(loops, moved)


def compute_at(func: ir.PrimFunc, block: str, loop: str) -> ir.PrimFunc:
    """Move the producer ``block`` into ``loop``, just before its consumers there. Each iteration computes the region
    that they read."""
    producer, target = find_block(func.body, block), find_outer_loop(func.body, loop)
    buffer = stored_buffer(producer)
    nest = nest_of_block(func, producer)
    within = {id(s) for s in (producer, *outermost_blocks(target))}
    if any(buffer in buffers_read(s) for s in outermost_blocks(func.body) if id(s) not in within):
        raise ScheduleError(
            f"compute_at: {buffer.name!r} of block {block!r} is also read outside loop {loop!r}",
            hint="choose a loop around all readers, or cache_read first",
        )
    if buffer in func.params:
        raise ScheduleError(
            f"compute_at: block {block!r} writes the output {buffer.name!r}", hint="use reverse_compute_at"
        )
    check_moves_back(func, producer, target, "compute_at")
    outer = loops_around(func.body, target)
    region = _accessed_region(_accesses_in_loop(target, outer, buffer, writes=False), outer, buffer)
    spatial = {}
    for counted, (start, size) in zip(_iterator_and_step_by_axis(producer, buffer), region, strict=True):
        if counted is not None:
            spatial[counted[0]] = _first_iteration_and_count(start, size, counted[1])
    new_nest = _build_nest_over_region(func, producer, spatial, (*outer, target))
    body = replace_stmt(func.body, nest, None)
    target = find_loop(body, loop)
    return replace(func, body=replace_stmt(body, target, replace(target, body=ir.seq(new_nest, target.body))))


def _iterator_and_step_by_axis(block: ir.Block, buffer: ir.Buffer) -> list[tuple[ir.Var, int] | None]:
    """Return one entry per axis of the stored buffer: (block iterator, step in elements) if the iterator counts along
    the axis, else None."""
    own = {it.var for it in block.iters}
    for s in walk_stmt(drop_blocks(block.body)):
        if isinstance(s, ir.Store) and s.buffer == buffer:
            return [_match_iterator_times_factor(index, own) for index in s.indices]
    raise ScheduleError(f"block {block.name!r} does not write {buffer.name!r}")


def _match_iterator_times_factor(index: ir.Expr, block_iterators: set[ir.Var]) -> tuple[ir.Var, int] | None:
    """Return (iterator, factor) if an index contains a single one of ``block_iterators``, starts at zero and grows with
    it; else None."""
    terms, offset = linear(index)
    match [(term, factor) for term, factor in terms.items() if free_vars(term) & block_iterators]:
        case [(ir.Var() as var, factor)] if is_less(0, factor) and not offset:
            return var, factor
        case _:
            return None


def _consists_of_whole_tiles(start: ir.Expr, element_count: int, axis_length: int, tile_length: int) -> bool:
    """Test whether a region of ``element_count`` elements from ``start`` on, along an axis of ``axis_length`` elements,
    consists of whole tiles of ``tile_length`` elements."""
    return (
        tile_length == 1
        or element_count == axis_length
        or (element_count % tile_length == 0 and ir.int_value(simplify(start % tile_length)) == 0)
    )


def _first_iteration_and_count(start: ir.Expr, element_count: int, elements_per_iteration: int) -> tuple[ir.Expr, int]:
    """Return (first iteration, number of iterations) such that the iterations cover ``element_count`` elements from
    ``start``. An iteration covers ``elements_per_iteration`` elements."""
    if elements_per_iteration == 1:
        return start, element_count
    aligned = ir.int_value(simplify(start % elements_per_iteration)) == 0
    # An unaligned start may touch one iteration more than the size alone needs.
    return simplify(start // elements_per_iteration), -(-element_count // elements_per_iteration) if aligned else (
        element_count + elements_per_iteration - 2
    ) // elements_per_iteration + 1


def reverse_compute_at(func: ir.PrimFunc, block: str, loop: str) -> ir.PrimFunc:
    """Move the elementwise consumer ``block`` into ``loop``, just after its producer there. Each iteration computes
    the region that the producer has just written."""
    consumer, target = find_block(func.body, block), find_outer_loop(func.body, loop)
    inside = outermost_blocks(target)
    own_result = stored_buffer(consumer)
    readers = [b.name for b in inside if b is not consumer and own_result in buffers_read(b)]
    if readers:  # it would come behind them
        raise ScheduleError(
            f"reverse_compute_at: block {readers[0]!r} in loop {loop!r} reads the result of {block!r}, which would "
            "be computed after it",
            hint=f"choose a loop outside of block {readers[0]!r}",
        )
    produced = {stored_buffer(b) for b in inside if b is not consumer} - {own_result}
    read = sorted((b for b in buffers_read(consumer.body) if b in produced), key=lambda b: b.name)
    if not read:
        raise ScheduleError(
            f"reverse_compute_at: block {block!r} reads none of the tensors computed in loop {loop!r}; expected one at least",
            hint="choose a loop around a producer of the block",
        )
    guards: dict[ir.Expr, None] = {}
    for buffer in read:
        producers = [b for b in inside if stored_buffer(b) == buffer]
        _check_reduction_complete(func, producers[0], target)
        for producer in producers:
            guards |= dict.fromkeys(_guards_beside_domain(func, producer, target))
    blocks = outermost_blocks(func.body)
    for later in blocks[blocks.index(inside[-1]) + 1 :]:
        if later is not consumer and stored_buffer(later) in buffers_read(consumer.body):
            raise ScheduleError(
                f"reverse_compute_at: block {block!r} reads the result of {later.name!r}, which is computed after loop {loop!r}",
                hint=f"choose a loop around block {later.name!r}",
            )
    check_moves_forward(func, consumer, target, "reverse_compute_at")
    regions = {buffer.name: _iterators_over_tile(func, consumer, buffer, target) for buffer in read}
    # The tensor that the most iterators index decides. The others have to agree: tiles of E[i] and F[j] would not say which
    # pairs (i, j) belong to an iteration.
    widest = max(regions, key=lambda name: len(regions[name]))
    spatial = regions[widest]
    for name, region in regions.items():
        if region.items() - spatial.items():
            raise ScheduleError(
                f"reverse_compute_at: block {block!r} reads other elements of {name!r} than of {widest!r} in an iteration of "
                f"loop {loop!r}",
                hint="choose a loop around the producer of one of them alone, or compute_inline the other",
            )
    loops = (*loops_around(func.body, target), target)
    new_nest = _build_nest_over_region(func, consumer, spatial, loops, tuple(guards))
    body = replace_stmt(func.body, nest_of_block(func, consumer), None)
    target = find_loop(body, loop)
    return replace(func, body=replace_stmt(body, target, replace(target, body=ir.seq(target.body, new_nest))))


def _iterators_over_tile(
    func: ir.PrimFunc, consumer: ir.Block, buffer: ir.Buffer, loop: ir.For
) -> dict[ir.Var, tuple[ir.Expr, int]]:
    """Return (first iteration, number of iterations) of the iterators of ``consumer`` that index ``buffer``, such that they
    read what one iteration of ``loop`` writes.

    Raises ScheduleError if that is no tile without gaps, or if ``consumer`` reads it otherwise than element by element."""
    outer = loops_around(func.body, loop)
    writes = _accesses_in_loop(loop, outer, buffer, writes=True)
    region = _accessed_region(writes, outer, buffer)
    if not _are_contiguous(writes, len(outer) + 1) or not _write_whole_tiles(writes, len(outer) + 1):
        raise ScheduleError(
            f"reverse_compute_at: an iteration of loop {loop.var.name!r} writes elements of {buffer.name!r} with gaps; "
            "expected whole tiles",
            hint="choose a loop whose iterations write whole tiles: reorder it outside of the loop that it was split from",
        )
    exprs = (e for s in walk_stmt(drop_blocks(consumer.body)) for e in stmt_exprs(s))
    reads = {x.indices for e in exprs for x in walk_expr(e) if isinstance(x, ir.Load) and x.buffer == buffer}
    own = {it.var for it in consumer.iters}
    spatial: dict[ir.Var, tuple[ir.Expr, int]] = {}
    for index, (start, size), extent in zip(next(iter(reads)), region, buffer.shape, strict=True):
        counted = _match_iterator_times_factor(index, own)
        if len(reads) != 1 or counted is None or not _consists_of_whole_tiles(start, size, extent, counted[1]):
            raise ScheduleError(
                f"reverse_compute_at: block {consumer.name!r} does not read {buffer.name!r} one element at a time from the "
                f"tiles that an iteration of {loop.var.name!r} writes",
                hint="use compute_at for the producer, or keep its tiles inside of what an iteration writes",
            )
        spatial[counted[0]] = _first_iteration_and_count(start, size, counted[1])
    return spatial


def _write_whole_tiles(writes: list[Access], fixed_loop_count: int) -> bool:
    """Test whether one iteration of the outermost ``fixed_loop_count`` loops writes every element of a tile, in all axes
    together.

    It does not if a fused loop is split within a row: each axis is written without gaps then, but not each pair of indices."""
    offsets = {tuple(linear(index)[1] for index in access.indices) for access in writes}
    if len(offsets) != prod(len(set(column)) for column in zip(*offsets, strict=True)):
        return False
    for access in writes:
        inner, bounds = [x.var for x in access.loops[fixed_loop_count:]], loop_bounds(access.loops)
        tile = [split_index(index, inner, bounds) for index in access.indices]
        rests = [simplify(i - t[0], bounds) for i, t in zip(access.indices, tile, strict=True) if t is not None]
        if len(rests) < len(tile) or any(not free_vars(rest) <= set(inner) for rest in rests):
            return False
        spans = [(rest - t[1], t[2] - t[1] + 1) for rest, t in zip(rests, tile, strict=True) if t is not None]
        if not takes_all_values(spans, {var: bounds[var] for var in inner if var in bounds}, access.extent):
            return False
    return True


def _are_contiguous(writes: list[Access], fixed_loop_count: int) -> bool:
    """Test whether writes to a buffer, in one iteration of their outermost ``fixed_loop_count`` loops, cover a region
    without gaps."""
    axis_count = len(writes[0].buffer.shape)
    for axis in range(axis_count):
        forms = [(linear(simplify(a.indices[axis], loop_bounds(a.loops))), a) for a in writes]
        offsets = [offset for (_, offset), _ in forms]
        (terms, _), access = forms[0]
        inner, bounds = {x.var for x in access.loops[fixed_loop_count:]}, loop_bounds(access.loops)
        # Add the inner loops' strides in ascending order: a gap shows as a stride that exceeds the run of elements so far.
        length = largest(*offsets) - smallest(*offsets) + (access.extent if axis == axis_count - 1 else 1)
        for term, factor in sorted(terms.items(), key=lambda item: abs(item[1])):
            reach = bounds_of(term, bounds) if free_vars(term) & inner else (0, 0)
            stride = largest(factor, -factor)
            if reach is None or (reach[0] != reach[1] and not is_at_most(stride, length)):
                return False
            length += stride * (reach[1] - reach[0])
    return True


def _check_reduction_complete(func: ir.PrimFunc, producer: ir.Block, target: ir.For) -> None:
    """Raise ScheduleError unless the reduction of ``producer`` is completed within one iteration of the loop
    ``target``."""
    around = {loop.var for loop in (*loops_around(func.body, target), target)}
    for it in producer.iters:
        if it.kind == "reduce" and free_vars(it.binding) & around:
            raise ScheduleError(
                f"reverse_compute_at: loop {target.var.name!r} is inside the reduction of block {producer.name!r}",
                hint="reorder the reduction loops inside it first",
            )


def _guards_beside_domain(func: ir.PrimFunc, producer: ir.Block, target: ir.For) -> list[ir.Expr]:
    """Return the guards around the loop ``target`` that may exclude ``producer`` although its iterators are within their domain.

    A loop that is split with a tail but indexes nothing has such a guard. Where the producer does not run, the consumer would
    read a tile that other iterations have overwritten. Raises ScheduleError if a guard names loops on both sides of
    ``target``: the producer then writes a part of the tile."""
    loops, around = loops_around(func.body, producer), loops_around(func.body, target)
    outside = {loop.var for loop in (*around, target)}
    known = Simplifier(loop_bounds(loops))
    for i in producer.iters:
        known = known.assuming(ir.Bin("lt", i.binding, ir.const(i.extent, i.var.dtype)))
    guards = ir.conjuncts(producer.predicate) if producer.predicate is not None else ()
    found = [guard for guard in guards if known.simplify(guard) != TRUE and not free_vars(guard).isdisjoint(outside)]
    for guard in found:
        if not free_vars(guard) <= outside:
            raise ScheduleError(
                f"reverse_compute_at: loop {target.var.name!r} is inside of the guard {format_expr(guard)} of block "
                f"{producer.name!r}, which names loops inside of {target.var.name!r}, too",
                hint="choose a loop around or inside of all loops that the guard names",
            )
    return found


def compute_inline(func: ir.PrimFunc, block: str) -> ir.PrimFunc:
    """Replace every read of the result of ``block`` by the expression that computes it. Remove the block and its
    buffer."""
    producer = find_block(func.body, block)
    buffer = stored_buffer(producer)
    if not isinstance(producer.body, ir.Store) or producer.init is not None:
        raise ScheduleError(
            f"compute_inline: block {block!r} reduces; expected an elementwise block", hint="use compute_at"
        )
    if buffer in func.params:
        raise ScheduleError(
            f"compute_inline: block {block!r} writes the output {buffer.name!r}; expected an intermediate buffer",
            hint="use reverse_compute_inline",
        )
    others = [b.name for b in outermost_blocks(func.body) if b is not producer and stored_buffer(b) == buffer]
    if others:
        raise ScheduleError(
            f"compute_inline: block {others[0]!r} writes {buffer.name!r}, too; expected one writer",
            hint="compute_inline before decompose_reduction and decompose_padding",
        )
    counters = _iterator_and_step_by_axis(producer, buffer)
    store = producer.body
    # Its indices must be plain iterators: these are substituted by the indices of each read.
    if any(counter is None or counter[0] != index for counter, index in zip(counters, store.indices, strict=True)):
        raise ScheduleError(
            f"compute_inline: block {block!r} stores at computed indices; expected an iterator along each axis",
            hint="use compute_at",
        )
    around = set(map(id, loops_around(func.body, producer)))
    for reader in statements_outside_blocks(func.body):
        exprs = () if isinstance(reader, ir.Block) else stmt_exprs(reader)
        if reader is not producer and (
            any(accesses_any_buffer(e, (buffer,)) for e in exprs)
            or (isinstance(reader, ir.Block) and buffer in buffers_read(reader))
        ):
            loops = [loop for loop in loops_around(func.body, reader) if id(loop) not in around]
            check_moves_back(func, producer, loops[0] if loops else reader, "compute_inline")

    def inline_load(access: ir.Load | ir.AddressOf) -> ir.Expr:
        if isinstance(access, ir.Load):
            return substitute(store.value, dict(zip(store.indices, access.indices, strict=True)))  # type: ignore[arg-type]
        return access

    body = replace_stmt(func.body, nest_of_block(func, producer), None)

    def remove_allocation(stmt: ir.Stmt) -> ir.Stmt:
        return stmt.body if isinstance(stmt, ir.Alloc) and stmt.buffer == buffer else stmt

    return replace(func, body=map_accesses(body, (buffer,), remove_allocation, inline_load))


def reverse_compute_inline(func: ir.PrimFunc, block: str) -> ir.PrimFunc:
    """Inline the elementwise consumer ``block`` into the producer of its operand. Remove the operand's buffer."""
    consumer = find_block(func.body, block)
    blocks = [s for s in outermost_blocks(func.body) if s is not consumer]
    producers = [
        b for b in blocks if stored_buffer(b) in buffers_read(consumer) and stored_buffer(b) not in func.params
    ]
    if len(producers) != 1 or consumer.init is not None or not isinstance(consumer.body, ir.Store):
        raise ScheduleError(
            f"reverse_compute_inline: block {block!r} is not elementwise over one intermediate tensor; got "
            f"{len(producers)} producers",
            hint="use compute_inline for the producers",
        )
    producer, result = producers[0], consumer.body
    buffer = stored_buffer(producer)
    if not isinstance(producer.body, ir.Store) or producer.init is not None:
        raise ScheduleError(f"reverse_compute_inline: block {producer.name!r} reduces", hint="use reverse_compute_at")
    if any(buffer in buffers_read(other) for other in blocks):
        raise ScheduleError(
            f"reverse_compute_inline: {buffer.name!r} has other readers than block {block!r}",
            hint="use compute_inline or reverse_compute_at",
        )
    check_moves_forward(func, consumer, producer, "reverse_compute_inline")
    # The consumer must be a bijection between its iterators and the operand's elements: one read, by every iterator exactly once,
    # in any order, over the whole shape, without a guard. Then each element that is produced gives one element of the result.
    iters = {it.var: it.extent for it in consumer.iters}
    reads = {x.indices for x in walk_expr(result.value) if isinstance(x, ir.Load) and x.buffer == buffer}
    indices = next(iter(reads), ())
    is_bijection = (
        len(reads) == 1
        and set(indices) == set(iters)
        and len(set(indices)) == len(indices)
        and consumer.predicate is None
    )
    if not is_bijection or [iters[v] for v in indices if isinstance(v, ir.Var)] != list(buffer.shape):
        raise ScheduleError(
            f"reverse_compute_inline: block {block!r} does not read every element of {buffer.name!r} once",
            hint="use reverse_compute_at",
        )
    # The consumer's iterators become the producer's indices, its read the producer's expression. The result has the consumer's
    # name, since later steps and the epilogue's readers look for that.
    value = producer.body.value
    bindings = {
        var: index for var, index in zip(indices, producer.body.indices, strict=True) if isinstance(var, ir.Var)
    }

    def replace_load_by_value(expr: ir.Expr) -> ir.Expr:
        return value if isinstance(expr, ir.Load) and expr.buffer == buffer else expr

    store = ir.Store(
        result.buffer,
        tuple(substitute(index, bindings) for index in result.indices),
        map_expr(substitute(result.value, bindings), replace_load_by_value),
    )
    body = replace_stmt(func.body, nest_of_block(func, consumer), None)
    body = replace_stmt(body, producer, replace(producer, name=block, body=store))
    return replace(func, body=map_stmt(body, lambda s: s.body if isinstance(s, ir.Alloc) and s.buffer == buffer else s))


def loop_extent(func: ir.PrimFunc, loop: str) -> int:
    """Return the constant extent of the loop called ``loop``. Raise ScheduleError if it is not constant."""
    return extent_of(find_loop(func.body, loop))
