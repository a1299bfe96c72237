"""Primitives on reductions and blocks: blockize, decompose_reduction, rfactor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import gcd

from microc.base import dtypes
from microc.base.immutable import frozen
from microc.errors import ScheduleError
from microc.schedule.primitives.compute_at import nest_of, stored_buffer
from microc.schedule.primitives.tree import (
    extent_of,
    find_block,
    find_loop,
    fresh,
    loops_around,
    names_in,
    outer_loop,
    replace_stmt,
)
from microc.tir import ir
from microc.tir.analysis.context import buffers_read
from microc.tir.analysis.simplification import bounds_of, linear, simplify
from microc.tir.lower.region import loop_bounds
from microc.tir.rewrite import free_vars, map_expr, map_stmt, substitute, substitute_stmt, walk_stmt

# ---- decompose_reduction: the initialisation of a reduction becomes a block of its own, before the reduction loops.
# defer_init: what a sum starts from is added where it is read.


def check_decompose(func: ir.PrimFunc, block: ir.Block, loop: ir.For, around: tuple[ir.For, ...]) -> None:
    if block.init is None:
        raise ScheduleError(
            f"decompose_reduction: block {block.name!r} has no initialisation left",
            hint="it reduces nothing, or was done",
        )
    if all(x is not loop for x in around):
        raise ScheduleError(f"decompose_reduction: loop {loop.var.name!r} is not around block {block.name!r}")
    outer = around[: next(k for k, x in enumerate(around) if x is loop)]
    for it in block.iters:
        carried = free_vars(it.binding) & {x.var for x in outer}
        if it.kind == "reduce" and carried:
            names = ", ".join(sorted(v.name for v in carried))
            raise ScheduleError(
                f"decompose_reduction: reduction loop {names} lies outside {loop.var.name!r}",
                hint="decompose at the outermost reduction loop",
            )


def decompose_reduction(func: ir.PrimFunc, block: str, loop: str) -> ir.PrimFunc:
    """``<block>_init`` runs before ``loop`` over the spatial loops from ``loop`` inwards; the block only accumulates."""
    reducing, place = find_block(func.body, block), find_loop(func.body, loop)
    around = loops_around(func.body, reducing)
    check_decompose(func, reducing, place, around)
    start = next(k for k, x in enumerate(around) if x is place)
    init = initialisation(reducing, around[start:], names_in(func.body))
    body = replace_stmt(func.body, reducing, replace(reducing, init=None))
    place = find_loop(body, loop)
    return replace(func, body=replace_stmt(body, place, ir.seq(init, place)))


def defer_init(func: ir.PrimFunc, block: str) -> ir.PrimFunc:
    """``block``, a sum of integers that has its initialisation still, starts from zero; all who read it add what it started
    from."""
    summing = find_block(func.body, block)
    match summing.init:
        case ir.Store(total, places, start) if all(isinstance(place, ir.Var) for place in places):
            pass
        case _:
            raise ScheduleError(f"defer_init: block {block!r} has no initialisation by its own place")
    if total.dtype != "int32" or total in func.params:
        raise ScheduleError(f"defer_init: {total.name!r} is a result, or no int32")
    zero = ir.const(0, "int32")
    if start == zero:
        return func

    def on_expr(e: ir.Expr) -> ir.Expr:
        if not isinstance(e, ir.Load) or e.buffer != total:
            return e
        return e + substitute(start, {v: i for v, i in zip(places, e.indices, strict=True) if isinstance(v, ir.Var)})

    body = replace_stmt(func.body, summing, replace(summing, init=ir.Store(total, places, zero)))
    for reader in [
        s for s in walk_stmt(body) if isinstance(s, ir.Block) and s.name != block and total in buffers_read(s)
    ]:
        added = map_stmt(reader.body, lambda s: s, lambda e: map_expr(e, on_expr))
        body = replace_stmt(body, reader, replace(reader, body=added))
    return replace(func, body=body)


def initialisation(reducing: ir.Block, around: tuple[ir.For, ...], taken: set[str]) -> ir.Stmt:
    """``<block>_init`` in copies of the spatial loops among ``around``, with names that are not ``taken``."""
    assert reducing.init is not None
    spatial = {v for i in reducing.iters if i.kind == "space" for v in free_vars(i.binding)}
    inner = [x for x in around if x.var in spatial]
    renamed: dict[ir.Var, ir.Expr] = {x.var: ir.Var(fresh(taken, f"{x.var.name}_init"), x.var.dtype) for x in inner}
    iters, values = [], {}
    for it in reducing.iters:
        if it.kind == "space":
            var = ir.Var(fresh(taken, f"{it.var.name}_init"))
            values[it.var] = var
            iters.append(replace(it, var=var, binding=substitute(it.binding, renamed)))
    predicate = _guard(reducing, spatial, renamed)
    body = substitute_stmt(reducing.init, dict(values))
    init: ir.Stmt = ir.Block(f"{reducing.name}_init", tuple(iters), body, None, predicate)
    for x in reversed(inner):
        copy = renamed[x.var]
        assert isinstance(copy, ir.Var)
        init = ir.For(copy, x.extent, init, x.kind, x.annotations)
    return init


def _guard(block: ir.Block, spatial: set[ir.Var], renamed: dict[ir.Var, ir.Expr]) -> ir.Expr | None:
    """The part of the predicate that speaks of spatial loops only."""
    return ir.all_of(substitute(e, renamed) for e in ir.conjuncts(block.predicate) if free_vars(e) <= spatial)


# ---- blockize: the loops of a tile and the block in them become one block, whose iterators count tiles.


def blockize(func: ir.PrimFunc, loop: str) -> ir.PrimFunc:
    """``loop``, the loops in it and their block become the block ``<block>_o``, which other steps move as a whole.

    Its iterators are the parts of the block's that loops outside count. A reduction starts with the whole tile: its
    initialisation is that of the new block, so that ``decompose_reduction("<block>_o", ...)`` parts it. ScheduleError where
    the loops hold more than one block, or an iterator does not count whole tiles.
    """
    outermost = outer_loop(func.body, loop)
    loops, block = _nest(outermost)
    around = loops_around(func.body, outermost)
    taken = names_in(func.body)
    parts = [_part(block, it, loops, taken) for it in block.iters]
    if block.init is not None:
        _check_turns(block, loops, parts)
    iters = [ir.IterVar(p.outer, p.tiles, p.it.kind, p.counted) for p in parts if p.outer is not None]
    bounds, inner_vars = loop_bounds(around), {each.var for each in loops}
    tiles, places = [], []
    for test in ir.conjuncts(block.predicate):
        if free_vars(test) & inner_vars:
            places.append(_counted_by_tiles(block, test, parts, loops))
        else:
            tiles.append(test)
    for it in iters:
        reach = bounds_of(it.binding, bounds)
        if reach is None or reach[1] >= it.extent:
            tiles.append(it.binding < it.extent)
    inner = replace(block, iters=tuple(p.inner() for p in parts), predicate=ir.all_of(places))
    init = None if block.init is None else initialisation(inner, loops, taken)
    body = replace_stmt(outermost, block, replace(inner, init=None))
    name = fresh({s.name for s in walk_stmt(func.body) if isinstance(s, ir.Block)}, f"{block.name}_o")
    unit = ir.Block(name, tuple(iters), body, init, ir.all_of(dict.fromkeys(tiles)))
    return replace(func, body=replace_stmt(func.body, outermost, unit))


@frozen
class _Part:
    """An iterator of the block: ``outer * step + rest``, where ``outer`` counts ``tiles`` tiles, bound to ``counted``; ``rest``
    is of the loops inside. ``terms`` are those of the loops outside. No ``outer`` where these do not count it."""

    it: ir.IterVar
    outer: ir.Var | None
    step: int
    tiles: int
    counted: ir.Expr
    terms: Mapping[ir.Expr, int]
    rest: ir.Expr

    def inner(self) -> ir.IterVar:
        return replace(self.it, binding=simplify(self.start() + self.rest))

    def start(self) -> ir.Expr:
        return ir.const(0, "int32") if self.outer is None else self.outer * self.step


def _nest(outermost: ir.For) -> tuple[tuple[ir.For, ...], ir.Block]:
    loops, inner = [], ir.seq(outermost)
    while isinstance(inner, ir.For):
        loops.append(inner)
        inner = inner.body
    if not isinstance(inner, ir.Block):
        raise ScheduleError(
            f"blockize {outermost.var.name!r}: its loops hold more than one block",
            hint="blockize before decompose_reduction and compute_at, which bring others in",
        )
    return tuple(loops), inner


def _refuse(block: ir.Block, why: str) -> ScheduleError:
    return ScheduleError(
        f"blockize: block {block.name!r}: {why}",
        hint="split its loops and reorder them, tiles outside and places in a tile inside, and fuse afterwards",
    )


def _part(block: ir.Block, it: ir.IterVar, loops: tuple[ir.For, ...], taken: set[str]) -> _Part:
    """An iterator, taken apart. Its loops inside count 0..step without meeting a place twice."""
    inside = {each.var for each in loops}
    terms, offset = linear(simplify(it.binding, loop_bounds(loops)))
    outer = {term: k for term, k in terms.items() if not free_vars(term) & inside}
    own = {term: k for term, k in terms.items() if term not in outer}
    extents = {each.var: extent_of(each) for each in loops}
    length = 1
    for term, k in sorted(own.items(), key=lambda item: item[1]):
        if not isinstance(term, ir.Var) or k < length:
            raise _refuse(block, f"{it.var.name} is no sum of digits that the loops inside count")
        length += k * (extents[term] - 1)
    if offset or any(k < 0 for k in outer.values()):
        raise _refuse(block, f"{it.var.name} does not count from 0")
    rest = _sum(own)
    if not outer:
        return _Part(it, None, 1, 1, ir.const(0, "int32"), outer, rest)
    step = gcd(*outer.values()) if own else 1
    if length > step:
        raise _refuse(block, f"tiles along {it.var.name} overlap, or are interleaved")
    var = ir.Var(fresh(taken, f"{it.var.name}_o"))
    counted = _sum({term: k // step for term, k in outer.items()})
    return _Part(it, var, step, -(-it.extent // step), counted, outer, rest)


def _sum(terms: Mapping[ir.Expr, int]) -> ir.Expr:
    total: ir.Expr = ir.const(0, "int32")
    for term, k in terms.items():
        total = total + term * k
    return simplify(total)


def _check_turns(block: ir.Block, loops: tuple[ir.For, ...], parts: list[_Part]) -> None:
    """A reduction starts once for the tile: no loop in it may repeat it, or be of two iterators."""
    counted = [v for part in parts for v in free_vars(part.rest)]
    for each in loops:
        if extent_of(each) > 1 and counted.count(each.var) != 1:
            raise _refuse(block, f"loop {each.var.name!r} counts along {counted.count(each.var)} of its iterators")


def _counted_by_tiles(block: ir.Block, test: ir.Expr, parts: list[_Part], loops: tuple[ir.For, ...]) -> ir.Expr:
    """``place < extent`` in terms of the new iterators."""
    if isinstance(test, ir.Bin) and test.op == "lt" and ir.int_value(test.b) is not None:
        inside = {each.var for each in loops}
        terms, offset = linear(simplify(test.a, loop_bounds(loops)))
        outer = {term: k for term, k in terms.items() if not free_vars(term) & inside}
        own = {term: k for term, k in terms.items() if term not in outer}
        for part in parts:
            if outer == part.terms or not outer:
                start = part.start() if outer else ir.const(0, "int32")
                return simplify(start + _sum(own) + offset) < test.b
    raise _refuse(block, "it is guarded by what tiles do not count")


# ---- rfactor: a reduction becomes partial ones along one of its loops, which need not wait for each other, and one
# over them.

_COMBINES = ("add", "mul", "max", "min")


def rfactor(func: ir.PrimFunc, block: str, loop: str) -> ir.PrimFunc:
    """``block`` reduces what ``<block>_rf`` made: one partial result for every turn of the reduction loop ``loop``, in a buffer
    whose first axis it is (TVM's ``factor_axis`` 0). Sums of floats are then added in another order.

    ScheduleError where the block does not reduce along the loop, or shares its loops with others.
    """
    reducing, place = find_block(func.body, block), find_loop(func.body, loop)
    around = loops_around(func.body, reducing)
    combine, value = _parts(reducing)
    nest = nest_of(func, reducing)
    if around and nest is not around[0]:
        raise ScheduleError(f"rfactor: block {block!r} shares its loops", hint="rfactor before compute_at")
    _check_loop(reducing, place, around)
    taken = names_in(func.body) | {p.name for p in func.params}
    buffer, store = stored_buffer(reducing), reducing.body
    assert isinstance(store, ir.Store)
    turns = extent_of(place)
    partial = ir.Buffer(fresh(taken, f"{buffer.name}_rf"), (turns, *buffer.shape), buffer.dtype, "workspace")

    # the partial results: the loop is spatial now, the other reduction loops stay what they are
    spatial = [it for it in reducing.iters if it.kind == "space"]
    folded = {v for it in reducing.iters if it.kind == "reduce" for v in free_vars(it.binding)}
    iters, values = [], dict[ir.Var, ir.Expr]()
    for each in around:
        if each.var in folded:
            var = ir.Var(fresh(taken, f"v_{each.var.name}"), each.var.dtype)
            values[each.var] = var
            kind = "space" if each is place else "reduce"
            iters.append(ir.IterVar(var, extent_of(each), kind, each.var))
    inner = {it.var: substitute(it.binding, values) for it in reducing.iters if it.kind == "reduce"}
    where = (values[place.var], *store.indices)
    start = ir.Store(partial, where, _identity(combine, buffer.dtype))
    made = ir.Store(partial, where, ir.Bin(combine, ir.Load(partial, where), substitute(value, inner)))
    first = ir.Block(
        f"{block}_rf", (*spatial, *iters), made, start, reducing.predicate, annotations=reducing.annotations
    )

    # and what is left: one reduction over them
    loops, again, renamed = [], [], dict[ir.Var, ir.Expr]()
    for it in spatial:
        stem = it.var.name.removeprefix("v_")
        var, counter = ir.Var(fresh(taken, f"v_{stem}"), it.var.dtype), ir.Var(fresh(taken, stem), it.var.dtype)
        renamed[it.var] = var
        loops.append((counter, it.extent))
        again.append(ir.IterVar(var, it.extent, "space", counter))
    counter, along = (ir.Var(fresh(taken, name), place.var.dtype) for name in (loop, f"v_{loop}"))
    loops.append((counter, turns))
    target = tuple(substitute(index, renamed) for index in store.indices)
    assert isinstance(reducing.init, ir.Store)
    last = replace(
        reducing,
        iters=(*again, ir.IterVar(along, turns, "reduce", counter)),
        init=ir.Store(buffer, target, substitute(reducing.init.value, renamed)),
        body=ir.Store(buffer, target, ir.Bin(combine, ir.Load(buffer, target), ir.Load(partial, (along, *target)))),
        predicate=None,
    )
    nested = replace_stmt(nest, reducing, first)
    body = replace_stmt(func.body, nest, ir.seq(nested, ir.loops(loops, last)))
    return replace(func, body=ir.Alloc(partial, body))


def _parts(block: ir.Block) -> tuple[str, ir.Expr]:
    """How a block combines, and what."""
    match block.init, block.body:
        case ir.Store(), ir.Store(buffer, indices, ir.Bin(combine, a, b)) if combine in _COMBINES:
            own = ir.Load(buffer, indices)
            if own in (a, b) and a != b:
                return combine, b if a == own else a
    raise ScheduleError(
        f"rfactor: block {block.name!r} is no reduction whose parts can be reduced apart",
        hint="its body is x = x + value (or *, max, min), its initialisation its own",
    )


def _check_loop(block: ir.Block, place: ir.For, around: tuple[ir.For, ...]) -> None:
    name = place.var.name
    if all(each is not place for each in around):
        raise ScheduleError(f"rfactor: loop {name!r} is not around block {block.name!r}")
    kinds = {it.kind for it in block.iters if place.var in free_vars(it.binding)}
    if kinds != {"reduce"}:
        raise ScheduleError(
            f"rfactor: block {block.name!r} does not reduce along {name!r}", hint="name one of its reduction loops"
        )
    if block.predicate is not None and place.var in free_vars(block.predicate):
        raise ScheduleError(f"rfactor: loop {name!r} has turns that are not whole", hint="split by a divisor")
    mixed = [it for it in block.iters if it.kind == "space" and free_vars(it.binding) & _reduced(block)]
    if mixed:
        raise ScheduleError(f"rfactor: {mixed[0].var.name} of block {block.name!r} moves along a reduction loop")


def _reduced(block: ir.Block) -> set[ir.Var]:
    return {v for it in block.iters if it.kind == "reduce" for v in free_vars(it.binding)}


def _identity(combine: str, dtype: str) -> ir.Expr:
    """What changes nothing when it is combined."""
    if combine in ("add", "mul"):
        return ir.const(int(combine == "mul"), dtype)
    if dtypes.is_float(dtype):
        return ir.const(float("-inf") if combine == "max" else float("inf"), dtype)
    low, high = dtypes.int_range(dtype)
    return ir.const(low if combine == "max" else high, dtype)
