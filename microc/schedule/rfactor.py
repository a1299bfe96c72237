"""rfactor: a reduction becomes partial ones along one of its loops, which need not wait for each other, and one over them."""

from __future__ import annotations

from dataclasses import replace

from microc import dtypes
from microc.errors import ScheduleError
from microc.schedule.placement import nest_of, stored_buffer
from microc.schedule.tree import extent_of, find_block, find_loop, fresh, loops_around, names_in, replace_stmt
from microc.tir import ir
from microc.tir.rewrite import free_vars, substitute

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
