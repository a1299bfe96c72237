"""blockize: the loops of a tile and the block in them become one block, whose iterators count tiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import gcd

from microc.errors import ScheduleError
from microc.frozen import frozen
from microc.schedule.reduction import initialisation
from microc.schedule.tree import extent_of, fresh, loops_around, names_in, outer_loop, replace_stmt
from microc.tir import ir
from microc.tir.affine import bounds_of, linear, simplify
from microc.tir.lower.region import loop_bounds
from microc.tir.rewrite import free_vars, walk_stmt


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
