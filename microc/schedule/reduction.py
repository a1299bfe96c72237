"""decompose_reduction: the initialisation of a reduction becomes a block of its own, before the reduction loops. defer_init: what
a sum starts from is added where it is read."""

from __future__ import annotations

from dataclasses import replace

from microc.errors import ScheduleError
from microc.schedule.tree import find_block, find_loop, fresh, loops_around, names_in, replace_stmt
from microc.tir import ir
from microc.tir.facts import buffers_read
from microc.tir.rewrite import free_vars, map_expr, map_stmt, substitute, substitute_stmt, walk_stmt


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
