"""The primitive double_reduction: a reduction computes twice its sum, because that is what its consumer wants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeGuard

from microc import dtypes
from microc.errors import ScheduleError
from microc.schedule.placement import stored_buffer
from microc.schedule.tree import buffer_named, find_block, replace_stmt
from microc.tir import ir
from microc.tir.facts import buffers_read
from microc.tir.rewrite import map_expr, map_stmt, walk_all_exprs, walk_stmt


def double_reduction(func: ir.PrimFunc, block: str, weight: str) -> ir.PrimFunc:
    """``block`` (decomposed, a sum of products by the constant ``weight``) starts from twice its initial value, and the
    constant is stored doubled; its readers use the sum as ``x << 1``, for the high multiply, or for its sign.

    The doubled sum must fit: readers that shift it say so. The doubled constant must fit its dtype.
    """
    summing, starting = find_block(func.body, block), find_block(func.body, f"{block}_init")
    total, constant = stored_buffer(summing), buffer_named(func, weight)
    if constant.scope != "const" or not dtypes.is_integer(constant.dtype) or constant not in buffers_read(summing):
        raise ScheduleError(f"double_reduction: {weight!r} is no integer constant that block {block!r} reads")

    def start(s: ir.Stmt) -> ir.Stmt:
        return ir.Store(s.buffer, s.indices, s.value << 1) if isinstance(s, ir.Store) else s

    body = replace_stmt(func.body, starting, replace(starting, body=map_stmt(starting.body, start)))
    readers = [s for s in walk_stmt(body) if isinstance(s, ir.Block) and s.name != block and total in buffers_read(s)]
    for reader in readers:
        found = list(walk_all_exprs(reader.body))
        uses = sum(isinstance(x, ir.Load) and x.buffer == total for x in found)
        shifted = {id(x): x.a for x in found if _is(x, "shl", 1, total)}
        if len([x for x in found if id(x) in shifted or _is(x, "shr", 31, total)]) != uses:
            raise ScheduleError(
                f"double_reduction: block {reader.name!r} uses {total.name!r} undoubled",
                hint="it may be read as x << 1 or, for its sign, x >> 31 only",
            )
        body = replace_stmt(body, reader, replace(reader, body=map_stmt(reader.body, lambda s: s, _taking(shifted))))
    return replace(func, body=body)


def _taking(shifted: Mapping[int, ir.Expr]) -> Callable[[ir.Expr], ir.Expr]:
    """Expressions with others in the place of some, which are told by their identity: of ``(x << 1) << 1`` the inner shift alone
    is meant, and what is left of the outer one looks like it."""
    return lambda x: map_expr(x, lambda e: shifted.get(id(e), e))


def _is(e: ir.Expr, op: str, distance: int, total: ir.Buffer) -> TypeGuard[ir.Bin]:
    """Whether ``e`` is the sum, shifted."""
    match e:
        case ir.Bin(kind, ir.Load(buffer), ir.Const(by)):
            return (kind, by, buffer) == (op, distance, total)
        case _:
            return False
