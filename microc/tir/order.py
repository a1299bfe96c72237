"""When a function touches every element of its buffers: the first write and the last touch, on one clock.

A lowered function runs its statements in a fixed order, so the time of a statement is an affine function of the loop
variables around it: every leaf statement lasts :data:`TICKS`, a loop as many times its body as it has turns. From it
follows whether two buffers may share memory: a byte that ends up in both must be touched for the last time as the one before
it is written for the first time as the other (:mod:`microc.plan.overlap`).

Whatever is not known makes the answer careful: a guarded access counts as made where its indices lie within the buffer, an
index made of data reaches all along its axis, a loop of variable extent runs to its bound, and in a function with a loop that
is ``parallel`` or without a bound nothing is known to come before anything else. Work is numpy's; there is no Python loop over
elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from math import prod
from types import MappingProxyType

import numpy as np

from microc.dtypes import Array
from microc.frozen import frozen
from microc.tir import ir
from microc.tir.accesses import FOLLOWED, TICKS, Scope, Touch, leaf, row
from microc.tir.rewrite import free_vars, walk_stmt

NEVER_WRITTEN = np.iinfo(np.int64).max
NEVER_TOUCHED = -1
_AT_ONCE = 1 << 20
"""Accesses that are worked out in one go; bounds the memory this takes."""
_MOST = 1 << 24
"""Executions of one access beyond which its address is not followed: it is taken to reach the whole buffer."""


@frozen
class Touches:
    """Times of a buffer by flat element index, int64: its first write (:data:`NEVER_WRITTEN`) and its last read or write
    (:data:`NEVER_TOUCHED`)."""

    first_write: Array
    last_touch: Array


@frozen
class _Turn:
    """A loop around an access: ``span`` ticks from one turn to the next."""

    var: ir.Var
    extent: int
    span: int


@frozen
class _Access:
    """A touch that happens at ``at`` plus ``span`` times the turn of every loop around it, innermost first."""

    touch: Touch
    at: int
    loops: tuple[_Turn, ...] = ()


def touches(func: ir.PrimFunc) -> dict[ir.Buffer, Touches]:
    """First writes and last touches of every parameter of a lowered function; constants are left out."""
    found = {
        b: Touches(np.full(b.size, NEVER_WRITTEN, np.int64), np.full(b.size, NEVER_TOUCHED, np.int64))
        for b in func.params
        if b.scope in FOLLOWED
    }
    loops = [s for s in walk_stmt(func.body) if isinstance(s, ir.For)]
    if any(loop.kind == "parallel" or _bound(loop.extent) is None for loop in loops):
        return {b: Touches(np.zeros_like(t.first_write), np.zeros_like(t.last_touch)) for b, t in found.items()}
    _, accesses = _collect(func.body, Scope({}))
    for access in accesses:
        if access.touch.buffer in found:
            _record(access, found[access.touch.buffer])
    return found


# ---------------------------------------------------------------- all accesses of a function, with their loops

Timed = tuple[int, list[_Access]]


def _collect(stmt: ir.Stmt, around: Scope) -> Timed:
    """How long a statement lasts, and its accesses timed from its start."""
    scope = Scope(dict(around.names))
    parts: list[Timed] = []
    for item in row(stmt):
        own: Timed = TICKS, [_Access(touch, touch.tick) for touch in leaf(item, scope)]
        match item:
            case ir.If(_, then, otherwise):
                parts += [own, _collect(then, scope)]
                parts += [_collect(otherwise, scope)] if otherwise else []
            case ir.For():
                parts += [
                    _loop(item, scope),
                    own,
                ]  # C looks at the extent before every turn, so for the last time at the end
            case _:
                parts.append(own)
    return _sequence(parts)


def _sequence(parts: Iterable[Timed]) -> Timed:
    total, found = 0, []
    for duration, accesses in parts:
        found += [replace(access, at=access.at + total) for access in accesses] if total else accesses
        total += duration
    return total, found


def _loop(loop: ir.For, scope: Scope) -> Timed:
    extent = _bound(loop.extent) or 0
    span, inner = _collect(loop.body, Scope({**scope.names, loop.var: loop.var}))
    turn = _Turn(loop.var, extent, span)
    return extent * span, [replace(access, loops=(*access.loops, turn)) for access in inner] if extent else []


def _bound(extent: ir.Expr) -> int | None:
    """The most turns of a loop."""
    if isinstance(extent, ir.Bin) and extent.op == "min":
        return min((n for n in (_bound(extent.a), _bound(extent.b)) if n is not None), default=None)
    value = ir.int_value(extent)
    if value == ir.ENDLESS:
        return 2  # its turns touch the same elements: the first and the last tell all
    return None if value is None else max(value, 0)


# ---------------------------------------------------------------- addresses and times as arrays


def _record(access: _Access, into: Touches) -> None:
    """Enter one access at all its elements: a write at its earliest, any access at its latest time."""
    touch, buffer = access.touch, access.touch.buffer
    for grid, rank in _grids(access):
        flat: Array = _along(np.arange(touch.extent) * touch.step, rank - 1, rank)
        inside: Array = np.ones((1,) * rank, bool)
        for axis, (index, size, stride) in enumerate(zip(touch.indices, buffer.shape, buffer.strides, strict=True)):
            value = _evaluate(index, grid) if grid is not None else None
            if value is None:
                value = _along(np.arange(size), rank - 2 - axis, rank)
            inside = inside & (value >= 0) & (value < size)
            flat = flat + value * stride
        inside = inside & (flat < buffer.size)
        if touch.write:
            _enter(into.first_write, np.minimum, flat, inside, _time(access, grid or {}, last=False))
        _enter(into.last_touch, np.maximum, flat, inside, _time(access, grid or {}, last=True))


Grid = Mapping[ir.Var, Array]


def _grids(access: _Access) -> Iterator[tuple[Grid | None, int]]:
    """The loop variables that the address depends on, as arrays along an axis each, piece by piece; and the rank of all.

    Behind the loops' axes there is one for every index, should it be unknown, and one for the elements from an address on.
    The grid is None when it would be too large.
    """
    names = {var for index in access.touch.indices for var in free_vars(index)}
    used = [turn for turn in reversed(access.loops) if turn.var in names]
    rank = len(used) + len(access.touch.indices) + 1
    points = prod(turn.extent for turn in used) * access.touch.extent * _unknown(access.touch, used)
    if points > _MOST:
        yield None, rank
        return
    first = used[0].extent if used else 1
    step = max(1, first * _AT_ONCE // points) if points else 1
    fixed = {t.var: _along(np.arange(t.extent), axis, rank) for axis, t in enumerate(used)}
    for start in range(0, first, step):
        turns = {used[0].var: _along(np.arange(start, min(start + step, first)), 0, rank)} if used else {}
        yield {**fixed, **turns}, rank


def _unknown(touch: Touch, used: Iterable[_Turn]) -> int:
    """Elements along the axes whose index is made of data, each of which may be meant at every turn."""
    start = {turn.var: np.zeros((), np.int64) for turn in used}
    axes = zip(touch.indices, touch.buffer.shape, strict=True)
    return prod(size for index, size in axes if _evaluate(index, start) is None)


def _time(access: _Access, grid: Grid, *, last: bool) -> Array:
    """When the access happens, over the grid: in the last (or first) turn of the loops that its address does not see."""
    when: Array = np.array(access.at, np.int64)
    for turn in access.loops:
        if turn.var in grid:
            when = when + grid[turn.var] * turn.span
        elif last:
            when = when + (turn.extent - 1) * turn.span
    return when


def _enter(times: Array, better: np.ufunc, flat: Array, inside: Array, when: Array) -> None:
    flat, inside, when = (part.reshape(-1) for part in np.broadcast_arrays(flat, inside, when))
    if not inside.all():
        flat, when = flat[inside], when[inside]
    better.at(times, flat, when)


def _along(values: Array, axis: int, rank: int) -> Array:
    shape = [1] * rank
    shape[axis] = -1
    return values.astype(np.int64).reshape(shape)


def _evaluate(expr: ir.Expr, grid: Grid) -> Array | None:
    """An index over the grid; None when it is made of data."""
    match expr:
        case ir.Const(int() as value):
            return np.array(value, np.int64)
        case ir.Var():
            return grid.get(expr)
        case ir.Bin(op, a, b) if op in _OPERATORS:
            x, y = _evaluate(a, grid), _evaluate(b, grid)
            return None if x is None or y is None else _OPERATORS[op](x, y)
        case _:
            return None


_OPERATORS: Mapping[str, Callable[[Array, Array], Array]] = MappingProxyType(
    {
        "add": np.add,
        "sub": np.subtract,
        "mul": np.multiply,
        "floordiv": np.floor_divide,
        "floormod": np.mod,
        "min": np.minimum,
        "max": np.maximum,
    }
)
"""Index arithmetic; indices of any other kind are unknown."""
