# SPDX-License-Identifier: Apache-2.0
"""Primitives on reductions and blocks: decompose_reduction, defer_init, blockize, rfactor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import gcd

from microc.base import dtypes
from microc.base.immutable import frozen
from microc.errors import ScheduleError
from microc.schedule.primitives.compute_at import nest_of_block, stored_buffer
from microc.schedule.primitives.tree import (
    extent_of,
    find_block,
    find_loop,
    find_outer_loop,
    fresh_name,
    loops_around,
    names_in,
    replace_stmt,
)
from microc.tir import ir
from microc.tir.analysis.context import buffers_read
from microc.tir.analysis.region import loop_bounds
from microc.tir.analysis.simplification import bounds_of, linear, simplify
from microc.tir.extents import is_at_most, is_less
from microc.tir.rewrite import free_vars, map_expr, map_stmt, substitute, substitute_stmt, walk_stmt
from microc.tir.text.print import format_expr

# ---- decompose_reduction: the initialisation of a reduction becomes a block of its own, before the reduction loops.
# defer_init: a sum starts from zero, and its readers add its initial value.


def check_decompose(func: ir.PrimFunc, block: ir.Block, loop: ir.For, outer_loops: tuple[ir.For, ...]) -> None:
    """Raise ScheduleError unless ``block`` has an initialisation, and ``loop`` contains its whole reduction.

    ``outer_loops``: the loops around the block."""
    if block.init is None:
        raise ScheduleError(
            f"decompose_reduction: block {block.name!r} has no initialisation; expected a reduction that is not decomposed",
            hint="decompose a block that reduces, once",
        )
    if all(x is not loop for x in outer_loops):
        raise ScheduleError(
            f"decompose_reduction: loop {loop.var.name!r} is not around block {block.name!r}; expected one of "
            f"{', '.join(x.var.name for x in outer_loops)}"
        )
    outer = outer_loops[: next(k for k, x in enumerate(outer_loops) if x is loop)]
    for it in block.iters:
        carried = free_vars(it.binding) & {x.var for x in outer}
        if it.kind == "reduce" and carried:
            names = ", ".join(sorted(v.name for v in carried))
            raise ScheduleError(
                f"decompose_reduction: reduction loop {names} is outside of loop {loop.var.name!r}",
                hint="decompose at the outermost reduction loop",
            )


def decompose_reduction(func: ir.PrimFunc, block: str, loop: str) -> ir.PrimFunc:
    """Move the initialisation of ``block`` into a block ``<block>_init`` before ``loop``, with copies of ``loop``
    and of the loops inside it that are spatial. ``block`` then only accumulates."""
    reduction, outermost = find_block(func.body, block), find_loop(func.body, loop)
    around = loops_around(func.body, reduction)
    check_decompose(func, reduction, outermost, around)
    start = next(k for k, x in enumerate(around) if x is outermost)
    init = build_initialisation_nest(reduction, around[start:], names_in(func.body))
    body = replace_stmt(func.body, reduction, replace(reduction, init=None))
    outermost = find_loop(body, loop)
    return replace(func, body=replace_stmt(body, outermost, ir.seq(init, outermost)))


def defer_init(func: ir.PrimFunc, block: str) -> ir.PrimFunc:
    """Initialise ``block`` with zero, and add its former initial value wherever its result is read. The block must
    be an int32 sum that is not decomposed."""
    summing = find_block(func.body, block)
    match summing.init:
        case ir.Store(total, indices, start) if all(isinstance(index, ir.Var) for index in indices):
            pass
        case _:
            raise ScheduleError(
                f"defer_init: block {block!r} does not initialise its sums at indices that are iterators; expected a "
                "reduction that is not decomposed",
                hint="defer_init before decompose_reduction",
            )
    if total.dtype != "int32" or total in func.params:
        raise ScheduleError(
            f"defer_init: the sums {total.name!r} must be an intermediate int32 buffer; got "
            f"{'an output' if total in func.params else 'a buffer'} of {total.dtype}"
        )
    zero = ir.const(0, "int32")
    if start == zero:
        return func

    def add_initial_value(expr: ir.Expr) -> ir.Expr:
        if not isinstance(expr, ir.Load) or expr.buffer != total:
            return expr
        return expr + substitute(
            start, {v: i for v, i in zip(indices, expr.indices, strict=True) if isinstance(v, ir.Var)}
        )

    body = replace_stmt(func.body, summing, replace(summing, init=ir.Store(total, indices, zero)))
    for reader in [
        s for s in walk_stmt(body) if isinstance(s, ir.Block) and s.name != block and total in buffers_read(s)
    ]:
        new_body = map_stmt(reader.body, lambda s: s, lambda e: map_expr(e, add_initial_value))
        body = replace_stmt(body, reader, replace(reader, body=new_body))
    return replace(func, body=body)


def build_initialisation_nest(
    reduction_block: ir.Block, outer_loops: tuple[ir.For, ...], used_names: set[str]
) -> ir.Stmt:
    """Build the block ``<block>_init`` in copies of the spatial loops among ``outer_loops``.

    New names differ from all ``used_names``."""
    assert reduction_block.init is not None
    spatial = {v for i in reduction_block.iters if i.kind == "space" for v in free_vars(i.binding)}
    inner = [x for x in outer_loops if x.var in spatial]
    renamed: dict[ir.Var, ir.Expr] = {
        x.var: ir.Var(fresh_name(used_names, f"{x.var.name}_init"), x.var.dtype) for x in inner
    }
    iters, values = [], {}
    for it in reduction_block.iters:
        if it.kind == "space":
            var = ir.Var(fresh_name(used_names, f"{it.var.name}_init"))
            values[it.var] = var
            iters.append(replace(it, var=var, binding=substitute(it.binding, renamed)))
    summed = {x.var for x in outer_loops} - spatial
    guards = (e for e in ir.conjuncts(reduction_block.predicate) if not free_vars(e) & summed)
    predicate = ir.all_of(substitute(e, renamed) for e in guards)
    body = substitute_stmt(reduction_block.init, dict(values))
    init: ir.Stmt = ir.Block(f"{reduction_block.name}_init", tuple(iters), body, None, predicate)
    for x in reversed(inner):
        copy = renamed[x.var]
        assert isinstance(copy, ir.Var)
        init = ir.For(copy, x.extent, init, x.kind, x.annotations)
    return init


# ---- blockize: the loops of a tile and the block in them become one block, whose iterators count tiles


def blockize(func: ir.PrimFunc, loop: str) -> ir.PrimFunc:
    """Turn ``loop``, the loops in it and their block into one block ``<block>_o`` (a tile), which other primitives move
    as a whole.

    The iterators of the new block count tiles: they are the parts of the old iterators that outer loops count. The
    initialisation becomes that of the new block, so that ``decompose_reduction("<block>_o", ...)`` separates the
    initialisation of the whole tile. Raise ScheduleError if the loops contain more than one block, or if an iterator
    does not count whole tiles."""
    outermost = find_outer_loop(func.body, loop)
    loops, block = _find_loops_and_single_block(outermost)
    around = loops_around(func.body, outermost)
    taken = names_in(func.body)
    parts = [_split_iterator_by_tile(block, it, loops, taken) for it in block.iters]
    if block.init is not None:
        _check_each_loop_counts_one_iterator(block, loops, parts)
    iters = [
        ir.IterVar(p.outer_var, p.tile_count, p.iterator.kind, p.outer_value) for p in parts if p.outer_var is not None
    ]
    # A guard of outer loops alone stays with the tile; one that inner loops count guards the elements of a tile.
    bounds, inner_vars = loop_bounds(around), {x.var for x in loops}
    tile_guards, inner_guards = [], []
    for test in ir.conjuncts(block.predicate):
        if free_vars(test) & inner_vars:
            inner_guards.append(_rewrite_guard_for_tiles(block, test, parts, loops))
        else:
            tile_guards.append(test)
    for it in iters:
        reach = bounds_of(it.binding, bounds)
        if reach is None or not is_less(reach[1], it.extent):
            tile_guards.append(it.binding < it.extent)
    inner = replace(block, iters=tuple(p.bind_inside_tile() for p in parts), predicate=ir.all_of(inner_guards))
    init = None if block.init is None else build_initialisation_nest(inner, loops, taken)
    body = replace_stmt(outermost, block, replace(inner, init=None))
    name = fresh_name({s.name for s in walk_stmt(func.body) if isinstance(s, ir.Block)}, f"{block.name}_o")
    unit = ir.Block(name, tuple(iters), body, init, ir.all_of(dict.fromkeys(tile_guards)))
    return replace(func, body=replace_stmt(func.body, outermost, unit))


@frozen
class _TiledIterator:
    """A block iterator that is split into tiles: its value is ``outer_var * step + value_in_tile``.

    ``outer_var`` counts ``tile_count`` tiles and is bound to ``outer_value``, an expression of the loops outside of the
    tile. It is None if these loops do not contribute to the iterator. ``value_in_tile`` is an expression of the loops
    inside the tile. ``outer_terms``: linear terms of the outer loops."""

    iterator: ir.IterVar
    outer_var: ir.Var | None
    step: int
    tile_count: int
    outer_value: ir.Expr
    outer_terms: Mapping[ir.Expr, int]
    value_in_tile: ir.Expr

    def bind_inside_tile(self) -> ir.IterVar:
        """Return the block iterator inside a tile, bound to its first value in the tile plus ``value_in_tile``."""
        return replace(self.iterator, binding=simplify(self.first_value() + self.value_in_tile))

    def first_value(self) -> ir.Expr:
        """Return the first value of the iterator in a tile."""
        return ir.const(0, "int32") if self.outer_var is None else self.outer_var * self.step


def _find_loops_and_single_block(outermost: ir.For) -> tuple[tuple[ir.For, ...], ir.Block]:
    """Return the perfectly nested loops from ``outermost`` inwards, and the block in them. Raise ScheduleError if
    they contain more than one block."""
    loops, inner = [], ir.seq(outermost)
    while isinstance(inner, ir.For):
        loops.append(inner)
        inner = inner.body
    if not isinstance(inner, ir.Block):
        raise ScheduleError(
            f"blockize: loop {outermost.var.name!r} contains more than one block; expected exactly one",
            hint="blockize before decompose_reduction and compute_at, which bring others in",
        )
    return tuple(loops), inner


def _blockize_error(block: ir.Block, reason: str) -> ScheduleError:
    """Build the ScheduleError that explains why a block cannot be blockized."""
    return ScheduleError(
        f"blockize: block {block.name!r}: {reason}",
        hint="split its loops, reorder the loops over tiles outside of the loops inside a tile, and fuse afterwards",
    )


def _split_iterator_by_tile(
    block: ir.Block, iterator: ir.IterVar, tile_loops: tuple[ir.For, ...], used_names: set[str]
) -> _TiledIterator:
    """Split an iterator into a part that loops outside of the tile count, and a part that the loops of the tile count.

    Raise ScheduleError unless the loops of the tile count distinct values below ``step``."""
    inside = {x.var for x in tile_loops}
    terms, offset = linear(simplify(iterator.binding, loop_bounds(tile_loops)))
    outer = {term: k for term, k in terms.items() if not free_vars(term) & inside}
    own = {term: k for term, k in terms.items() if term not in outer}
    extents = {x.var: extent_of(x) for x in tile_loops}
    # Inner terms are digits of a mixed radix number: in ascending order each factor is at least the range of the lower ones.
    length = 1
    for term, k in sorted(own.items(), key=lambda item: item[1]):
        if not isinstance(term, ir.Var) or not is_at_most(length, k):
            raise _blockize_error(
                block,
                f"iterator {iterator.var.name} is not a mixed-radix number of the inner loops, which must count distinct "
                f"values; got {format_expr(iterator.binding)}",
            )
        length += k * (extents[term] - 1)
    if offset or not all(is_at_most(0, k) for k in outer.values()):
        raise _blockize_error(
            block, f"iterator {iterator.var.name} does not count from 0; got {format_expr(iterator.binding)}"
        )
    rest = _build_sum_of_terms(own)
    if not outer:
        return _TiledIterator(iterator, None, 1, 1, ir.const(0, "int32"), outer, rest)
    step = gcd(*outer.values()) if own else 1
    if not is_at_most(length, step):
        raise _blockize_error(
            block, f"tiles along {iterator.var.name} overlap, or are interleaved; got {length} values every {step}"
        )
    var = ir.Var(fresh_name(used_names, f"{iterator.var.name}_o"))
    counted = _build_sum_of_terms({term: k // step for term, k in outer.items()})
    return _TiledIterator(iterator, var, step, -(-iterator.extent // step), counted, outer, rest)


def _build_sum_of_terms(terms: Mapping[ir.Expr, int]) -> ir.Expr:
    """Build the sum of linear terms, given as expressions with their factors."""
    total: ir.Expr = ir.const(0, "int32")
    for term, k in terms.items():
        total = total + term * k
    return simplify(total)


def _check_each_loop_counts_one_iterator(
    block: ir.Block, tile_loops: tuple[ir.For, ...], tiled_iterators: list[_TiledIterator]
) -> None:
    """Raise ScheduleError unless every loop of a tile counts exactly one iterator.

    Else the whole tile could not be initialised by one block."""
    counted = [v for part in tiled_iterators for v in free_vars(part.value_in_tile)]
    for x in tile_loops:
        if extent_of(x) > 1 and counted.count(x.var) != 1:
            raise _blockize_error(
                block, f"loop {x.var.name!r} must count along one iterator; got {counted.count(x.var)}"
            )


def _rewrite_guard_for_tiles(
    block: ir.Block, guard: ir.Expr, tiled_iterators: list[_TiledIterator], tile_loops: tuple[ir.For, ...]
) -> ir.Expr:
    """Rewrite a guard ``index < extent`` in terms of the iterators of the tiled block. Raise ScheduleError if outer
    loops do not count its index in whole tiles."""
    if isinstance(guard, ir.Bin) and guard.op == "lt" and ir.int_value(guard.b) is not None:
        inside = {x.var for x in tile_loops}
        terms, offset = linear(simplify(guard.a, loop_bounds(tile_loops)))
        outer = {term: k for term, k in terms.items() if not free_vars(term) & inside}
        own = {term: k for term, k in terms.items() if term not in outer}
        for part in tiled_iterators:
            if outer == part.outer_terms or not outer:
                start = part.first_value() if outer else ir.const(0, "int32")
                return simplify(start + _build_sum_of_terms(own) + offset) < guard.b
    raise _blockize_error(
        block, f"its guard is not counted in whole tiles by the outer loops; got {format_expr(guard)}"
    )


# ---- rfactor: a reduction becomes independent partial reductions along one of its loops, and one reduction over these

_COMBINES = ("add", "mul", "max", "min")


def rfactor(func: ir.PrimFunc, block: str, loop: str) -> ir.PrimFunc:
    """Compute partial results in a new block ``<block>_rf``, one for each iteration of the reduction loop ``loop``.
    ``block`` then reduces the partial results.

    ``loop`` becomes the first axis of the partial results (TVM's ``factor_axis`` 0). The order in which floats are
    added changes. Raise ScheduleError if the block does not reduce along the loop, or if other blocks share its
    loops."""
    reduction, factored = find_block(func.body, block), find_loop(func.body, loop)
    around = loops_around(func.body, reduction)
    combine, value = _reduction_operator_and_term(reduction)
    nest = nest_of_block(func, reduction)
    if around and nest is not around[0]:
        raise ScheduleError(
            f"rfactor: other blocks share the loops of block {block!r}", hint="rfactor before compute_at"
        )
    _check_rfactor_loop(reduction, factored, around)
    taken = names_in(func.body) | {p.name for p in func.params}
    buffer, store = stored_buffer(reduction), reduction.body
    assert isinstance(store, ir.Store)
    extent = extent_of(factored)
    partial = ir.Buffer(fresh_name(taken, f"{buffer.name}_rf"), (extent, *buffer.shape), buffer.dtype, "workspace")

    # 1. The partial results: the factored loop becomes a space loop, other reduction loops stay reductions.
    spatial = [it for it in reduction.iters if it.kind == "space"]
    reduction_vars = _reduction_loop_vars(reduction)
    iters, values = [], dict[ir.Var, ir.Expr]()
    for x in around:
        if x.var in reduction_vars:
            var = ir.Var(fresh_name(taken, f"v_{x.var.name}"), x.var.dtype)
            values[x.var] = var
            kind = "space" if x is factored else "reduce"
            iters.append(ir.IterVar(var, extent_of(x), kind, x.var))
    inner = {it.var: substitute(it.binding, values) for it in reduction.iters if it.kind == "reduce"}
    partial_indices = (values[factored.var], *store.indices)
    start = ir.Store(partial, partial_indices, _identity_element(combine, buffer.dtype))
    update = ir.Store(
        partial, partial_indices, ir.Bin(combine, ir.Load(partial, partial_indices), substitute(value, inner))
    )
    first = ir.Block(
        f"{block}_rf", (*spatial, *iters), update, start, reduction.predicate, annotations=reduction.annotations
    )

    # 2. One reduction over the partial results, in loops of its own.
    loops, again, renamed = [], [], dict[ir.Var, ir.Expr]()
    for it in spatial:
        stem = it.var.name.removeprefix("v_")
        var, counter = (
            ir.Var(fresh_name(taken, f"v_{stem}"), it.var.dtype),
            ir.Var(fresh_name(taken, stem), it.var.dtype),
        )
        renamed[it.var] = var
        loops.append((counter, it.extent))
        again.append(ir.IterVar(var, it.extent, "space", counter))
    counter, along = (ir.Var(fresh_name(taken, name), factored.var.dtype) for name in (loop, f"v_{loop}"))
    loops.append((counter, extent))
    target = tuple(substitute(index, renamed) for index in store.indices)
    assert isinstance(reduction.init, ir.Store)
    last = replace(
        reduction,
        iters=(*again, ir.IterVar(along, extent, "reduce", counter)),
        init=ir.Store(buffer, target, substitute(reduction.init.value, renamed)),
        body=ir.Store(buffer, target, ir.Bin(combine, ir.Load(buffer, target), ir.Load(partial, (along, *target)))),
        predicate=None,
    )
    partial_nest = replace_stmt(nest, reduction, first)
    body = replace_stmt(func.body, nest, ir.seq(partial_nest, ir.loops(loops, last)))
    return replace(func, body=ir.Alloc(partial, body))


def _reduction_operator_and_term(block: ir.Block) -> tuple[str, ir.Expr]:
    """Return (operator, term) of a block that computes ``x = x <operator> term``. Raise ScheduleError if it is no
    such reduction."""
    match block.init, block.body:
        case ir.Store(), ir.Store(buffer, indices, ir.Bin(combine, a, b)) if combine in _COMBINES:
            own = ir.Load(buffer, indices)
            if own in (a, b) and a != b:
                return combine, b if a == own else a
    raise ScheduleError(
        f"rfactor: block {block.name!r} is no reduction by {', '.join(_COMBINES)} with an initialisation",
        hint="apply rfactor before decompose_reduction, to a block whose body is x = x + value (or *, max, min)",
    )


def _check_rfactor_loop(block: ir.Block, loop: ir.For, outer_loops: tuple[ir.For, ...]) -> None:
    """Raise ScheduleError unless the block reduces along ``loop`` without a tail, and no spatial iterator depends on
    a reduction loop."""
    name = loop.var.name
    if all(x is not loop for x in outer_loops):
        raise ScheduleError(
            f"rfactor: loop {name!r} is not around block {block.name!r}; expected one of "
            f"{', '.join(x.var.name for x in outer_loops)}"
        )
    if {it.kind for it in block.iters if loop.var in free_vars(it.binding)} != {"reduce"}:
        raise ScheduleError(
            f"rfactor: block {block.name!r} does not reduce along {name!r}", hint="name one of its reduction loops"
        )
    if block.predicate is not None and loop.var in free_vars(block.predicate):
        raise ScheduleError(
            f"rfactor: loop {name!r} has a guarded tail; expected whole iterations", hint="split by a divisor"
        )
    mixed = [it for it in block.iters if it.kind == "space" and free_vars(it.binding) & _reduction_loop_vars(block)]
    if mixed:
        raise ScheduleError(
            f"rfactor: space iterator {mixed[0].var.name} of block {block.name!r} depends on a reduction loop; got "
            f"{format_expr(mixed[0].binding)}"
        )


def _reduction_loop_vars(block: ir.Block) -> set[ir.Var]:
    """Return the variables of the loops along which the block reduces."""
    return {v for it in block.iters if it.kind == "reduce" for v in free_vars(it.binding)}


def _identity_element(reduction_operator: str, dtype: str) -> ir.Expr:
    """Return the identity element of a reduction operator: 0, 1, or the least or largest number of the dtype."""
    if reduction_operator in ("add", "mul"):
        return ir.const(int(reduction_operator == "mul"), dtype)
    if dtypes.is_float(dtype):
        return ir.const(float("-inf") if reduction_operator == "max" else float("inf"), dtype)
    low, high = dtypes.int_range(dtype)
    return ir.const(low if reduction_operator == "max" else high, dtype)
