"""Calls that copy or fill runs of memory, as the loops that they mean: so that analyses see when each element is touched.

Instructions move several elements at once: all of a turn are read before any is written, and turns go from the first element to
the last. So an element is read no later, beside the writes of others, than in the loop, and what is safe for the loop is safe for
them.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, count
from operator import mul

from microc.isa import SCALAR
from microc.tir import ir
from microc.tir.rewrite import map_expr, map_stmt


def spelled(func: ir.PrimFunc) -> ir.PrimFunc:
    """A lowered function with loops in the place of such calls; not meant to be printed."""
    numbers = count()

    def on_stmt(stmt: ir.Stmt) -> ir.Stmt:
        match stmt:
            case ir.Evaluate(ir.Call(name, args)) if name in SCALAR:
                intrin = SCALAR[name]
                match intrin.meaning:
                    case ir.For(var, ir.Var() as length, ir.Store(_, (index,)) as store) if index == var:
                        given = dict(zip((p.name for p in intrin.params), args, strict=True))
                        turn = ir.Var(f"turn {next(numbers)} of {name}")
                        return ir.For(turn, given[length.name], _placed(store, given, turn))
        return stmt

    return replace(func, body=map_stmt(func.body, on_stmt))


def _placed(store: ir.Store, given: dict[str, ir.Expr], turn: ir.Var) -> ir.Store:
    """The store of one turn, where the call's arguments point."""

    def on_expr(expr: ir.Expr) -> ir.Expr:
        match expr:
            case ir.Load(buffer):
                place = given[buffer.name]
                assert isinstance(place, ir.AddressOf)
                return ir.Load(place.buffer, _element(place, turn))
            case ir.Var(name):
                return given.get(name, expr)
            case _:
                return expr

    into = given[store.buffer.name]
    assert isinstance(into, ir.AddressOf)
    return ir.Store(into.buffer, _element(into, turn), map_expr(store.value, on_expr))


def _element(place: ir.AddressOf, turn: ir.Var) -> tuple[ir.Expr, ...]:
    """The indices of the element of a turn from an address on: what the last axis cannot hold goes to those before it."""
    *outer, last = place.indices
    shape = place.buffer.shape
    start = ir.int_value(last)
    if not outer or (start is not None and start + place.reach <= shape[-1]):
        return (*outer, last + turn * place.step)
    inner = list(accumulate(reversed(shape[1:]), mul, initial=1))[::-1]
    flat = sum((index * stride for index, stride in zip(place.indices, inner, strict=True)), ir.as_index(0))
    flat = flat + turn * place.step
    first, *others = (flat // stride for stride in inner)
    return (first, *(index % size for index, size in zip(others, shape[1:], strict=True)))
