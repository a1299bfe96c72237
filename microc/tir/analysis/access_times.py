# SPDX-License-Identifier: Apache-2.0
"""Times at which a lowered function without symbolic sizes first writes and last accesses each element of its buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.tir import ir
from microc.tir.analysis.access_order import (
    FOLLOWED,
    TICKS,
    BufferAccess,
    LetScope,
    accesses_of_statement,
    statements_in_order,
)
from microc.tir.analysis.context import is_distributed
from microc.tir.analysis.simplification import simplify
from microc.tir.rewrite import free_vars, walk_stmt

# ---- Times of the first write and the last access of every element, on one clock.
#
# A lowered function runs its statements in a fixed order, so the time of a statement is an affine function of the enclosing
# loop variables. A simple statement takes :data:`TICKS` ticks. A loop takes the duration of its body times its trip count. Two
# buffers may share a byte of memory if the last access to the byte in one buffer precedes its first write in the other buffer
# (:mod:`microc.plan.liveness`).
#
# Unknown facts are resolved conservatively. Guards are ignored: a guarded access counts wherever its indices are within the
# buffer. An index that depends on data may have any value along its axis. A loop of variable extent runs to its upper bound. In
# a function with a parallel loop, or with a loop without a bound, no access is known to precede another. The computation is
# vectorised with numpy; there is no Python loop over elements.
#
# Of a loop that is distributed among two cores, accesses by one core have an order, and those by different cores have none: seen
# from the other core, a write may happen when the loop begins, and a touch when it ends. So each element has four pairs of times
# that must be in order, one for each core with itself and with the other (:data:`_WRITE_COLUMNS`, :data:`_TOUCH_COLUMNS`).

NEVER_WRITTEN = np.iinfo(np.int64).max
"""Time of the first write of an element that is never written."""
NEVER_TOUCHED = -1
"""Time of the last access to an element that is never accessed."""
_AT_ONCE = 1 << 20
"""Most executions of an access that are computed in one array, to limit memory."""
_MOST = 1 << 24
"""Most executions of an access for which addresses are computed. An access that is executed more often counts as an access to
the whole buffer."""


@frozen
class AccessTimes:
    """Times of the accesses to each element of a buffer, as int64 arrays of ticks.

    ``first_write``: time of the first write, or :data:`NEVER_WRITTEN`. ``last_touch``: time of the last read or write, or
    :data:`NEVER_TOUCHED`. In a function that cores share, both have four columns, each of which must be in order."""

    first_write: Array
    last_touch: Array


@frozen
class _TimedLoop:
    """A loop around an access, with its duration. ``iteration_ticks``: duration of an iteration."""

    var: ir.Var
    extent: int
    iteration_ticks: int


@frozen
class _CoreOfLoop:
    """The core that makes an access in a distributed loop.

    ``offset``: ticks from the start of the loop to the access, in the first iteration of the ``inner_loops`` loops between them.
    ``duration``: ticks of the loop."""

    core: int
    offset: int
    inner_loops: int
    duration: int


@frozen
class _AccessWithTime:
    """An access with its time: ``start_tick``, plus iteration index times ``iteration_ticks`` for every enclosing loop.

    ``loops``: the enclosing loops, innermost first, without a distributed loop. ``shared``: the core in a distributed loop; None
    outside of such loops."""

    touch: BufferAccess
    start_tick: int
    loops: tuple[_TimedLoop, ...] = ()
    shared: _CoreOfLoop | None = None

    # Every access is moved for every loop and sequence around it; dataclasses.replace takes four times as long.

    def with_start(self, start_tick: int) -> _AccessWithTime:
        """Return the access at another time."""
        return _AccessWithTime(self.touch, start_tick, self.loops, self.shared)

    def inside_of(self, loop: _TimedLoop) -> _AccessWithTime:
        """Return the access in the iterations of a loop around it."""
        return _AccessWithTime(self.touch, self.start_tick, (*self.loops, loop), self.shared)


_WRITE_COLUMNS, _TOUCH_COLUMNS = ((0, 2), (1, 3)), ((0, 3), (1, 2))
"""Columns of the times of an access by core 0 and by core 1: that which is compared with accesses by the same core, and that
which is compared with accesses by the other core."""


def compute_access_times(func: ir.PrimFunc) -> dict[ir.Buffer, AccessTimes]:
    """Return the times of the first write and the last access of every element of a lowered function's parameters.

    Constants are left out."""
    loops = [s for s in walk_stmt(func.body) if isinstance(s, ir.For)]
    columns = (4,) if any(map(is_distributed, loops)) else ()
    found = {
        b: AccessTimes(
            np.full((b.size, *columns), NEVER_WRITTEN, np.int64), np.full((b.size, *columns), NEVER_TOUCHED, np.int64)
        )
        for b in func.params
        if b.scope in FOLLOWED
    }
    if any(
        (loop.kind == "parallel" and not is_distributed(loop)) or _max_trip_count(loop.extent) is None for loop in loops
    ):
        return {b: AccessTimes(np.zeros_like(t.first_write), np.zeros_like(t.last_touch)) for b, t in found.items()}
    _, accesses = _compute_timed_accesses(func.body, LetScope({}))
    for access in accesses:
        if access.touch.buffer in found:
            _record_access(access, found[access.touch.buffer])
    return found


# ---------------------------------------------------------------- all accesses of a function, with their loops

Timed = tuple[int, list[_AccessWithTime]]


def _compute_timed_accesses(stmt: ir.Stmt, outer_scope: LetScope) -> Timed:
    """Return the duration of a statement in ticks, and its accesses with their times after the start of the statement."""
    scope = LetScope(dict(outer_scope.names))
    parts: list[Timed] = []
    for item in statements_in_order(stmt):
        own: Timed = (
            TICKS,
            [_AccessWithTime(touch, touch.tick_in_statement) for touch in accesses_of_statement(item, scope)],
        )
        match item:
            case ir.If(_, then, otherwise):
                parts += [own, _compute_timed_accesses(then, scope)]
                parts += [_compute_timed_accesses(otherwise, scope)] if otherwise else []
            case ir.For():
                parts += [
                    _compute_timed_accesses_of_loop(item, scope),
                    own,
                ]  # C evaluates the extent before every iteration, and for the last time after the last iteration
            case _:
                parts.append(own)
    return _concatenate_timed_accesses(parts)


def _concatenate_timed_accesses(parts: Iterable[Timed]) -> Timed:
    """Return the duration and the accesses of a sequence, given those of its statements.

    The times of a statement's accesses are increased by the duration of the statements before it."""
    total, found = 0, []
    for duration, accesses in parts:
        found += [a.with_start(a.start_tick + total) for a in accesses] if total else accesses
        total += duration
    return total, found


def _compute_timed_accesses_of_loop(loop: ir.For, scope: LetScope) -> Timed:
    """Return the duration of a loop in ticks, and the accesses in its body with their times."""
    if is_distributed(loop):
        return _compute_timed_accesses_of_cores(loop, scope)
    extent = _max_trip_count(_extent_without_guard(loop, scope)) or 0
    span, inner = _compute_timed_accesses(loop.body, LetScope({**scope.names, loop.var: loop.var}))
    timed = _TimedLoop(loop.var, extent, span)
    return extent * span, [access.inside_of(timed) for access in inner] if extent else []


def _compute_timed_accesses_of_cores(loop: ir.For, scope: LetScope) -> Timed:
    """Return the duration of a distributed loop in ticks, and the accesses of each core with their times, which are those of one
    core that does the work of both in order."""
    bodies = [
        _compute_timed_accesses(loop.body, LetScope({**scope.names, loop.var: ir.as_index(core)})) for core in (0, 1)
    ]
    total = sum(duration for duration, _ in bodies)
    found = []
    for core, start in enumerate((0, bodies[0][0])):
        for access in bodies[core][1]:
            offset = start + access.start_tick
            shared = _CoreOfLoop(core, offset, len(access.loops), total)
            found.append(replace(access, start_tick=offset, shared=shared))
    return total, found


def _extent_without_guard(loop: ir.For, scope: LetScope) -> ir.Expr:
    """Return the extent of a loop. A guard that holds in the first iterations only shortens it."""
    if isinstance(loop.body, ir.If) and loop.body.otherwise is None:
        match simplify(scope.substitute(loop.body.condition)):
            case ir.Bin("lt", ir.Var() as var, limit) if var == loop.var and ir.int_value(limit) is not None:
                return ir.Bin("min", loop.extent, limit)
    return loop.extent


def _max_trip_count(extent: ir.Expr) -> int | None:
    """Return an upper bound of the trip count of a loop with this extent; None if it is unknown."""
    if isinstance(extent, ir.Bin) and extent.op == "min":
        return min((n for n in (_max_trip_count(extent.a), _max_trip_count(extent.b)) if n is not None), default=None)
    value = ir.int_value(extent)
    if value == ir.ENDLESS:
        return 2  # iterations access the same elements: the first and the last determine all times
    return None if value is None else max(value, 0)


# ---------------------------------------------------------------- addresses and times as arrays


def _record_access(access: _AccessWithTime, times: AccessTimes) -> None:
    """Update ``times`` by one access: the first write of elements by its earliest time, their last touch by its latest
    time."""
    touch, buffer = access.touch, access.touch.buffer
    for grid, rank in _iterate_grids_of_loop_values(access):
        flat: Array = _reshape_to_axis(np.arange(touch.extent) * touch.step, rank - 1, rank)
        # Most accesses are inside of the buffer at all points of the grid. They need no mask of the grid's size.
        inside: Array | None = None
        for axis, (index, size, stride) in enumerate(zip(touch.indices, buffer.shape, buffer.strides, strict=True)):
            value = _evaluate_index(index, grid) if grid is not None else None
            if value is None:
                value = _reshape_to_axis(np.arange(size), rank - 2 - axis, rank)
            inside = _combine_masks(inside, (value >= 0) & (value < size))
            flat = flat + value * stride
        if touch.extent > 1:
            inside = _combine_masks(inside, flat < buffer.size)
        if touch.writes:
            _update_columns(times.first_write, np.minimum, flat, inside, access, grid or {})
        _update_columns(times.last_touch, np.maximum, flat, inside, access, grid or {})


def _combine_masks(first: Array | None, second: Array | bool) -> Array | None:
    """Return the conjunction of two masks. None stands for a mask that is true everywhere."""
    mask = np.asarray(second)
    if mask.all():
        return first
    return mask if first is None else np.asarray(first & mask)


Grid = Mapping[ir.Var, Array]


def _iterate_grids_of_loop_values(access: _AccessWithTime) -> Iterator[tuple[Grid | None, int]]:
    """Yield pairs (grid, rank) that together describe all addresses of an access, in pieces of bounded size.

    A grid maps each loop variable in the address to an array of its values. The array has ``rank`` axes and varies along one
    of them only, as numpy.ogrid's arrays do: first an axis for each loop, then an axis for each index of the access (used if
    the index is unknown), then an axis for the elements from an address on. The grid is None if it would be too large."""
    names = {var for index in access.touch.indices for var in free_vars(index)}
    used = [loop for loop in reversed(access.loops) if loop.var in names]
    rank = len(used) + len(access.touch.indices) + 1
    points = (
        prod(loop.extent for loop in used) * access.touch.extent * _count_elements_at_unknown_index(access.touch, used)
    )
    if points > _MOST:
        yield None, rank
        return
    first = used[0].extent if used else 1
    step = max(1, first * _AT_ONCE // points) if points else 1
    fixed = {t.var: _reshape_to_axis(np.arange(t.extent), axis, rank) for axis, t in enumerate(used)}
    for start in range(0, first, step):
        # The first axis is split into pieces, to bound the memory of each.
        piece = {used[0].var: _reshape_to_axis(np.arange(start, min(start + step, first)), 0, rank)} if used else {}
        yield {**fixed, **piece}, rank


def _count_elements_at_unknown_index(touch: BufferAccess, address_loops: Iterable[_TimedLoop]) -> int:
    """Return the number of elements that the data-dependent indices of an access may select.

    It is the product of the extents of their axes. Each of these elements may be accessed in every iteration of
    ``address_loops``."""
    start = {loop.var: np.zeros((), np.int64) for loop in address_loops}
    axes = zip(touch.indices, touch.buffer.shape, strict=True)
    return prod(size for index, size in axes if _evaluate_index(index, start) is None)


def _update_columns(
    times: Array, minimum_or_maximum: np.ufunc, flat: Array, inside: Array | None, access: _AccessWithTime, grid: Grid
) -> None:
    """Update the times of the elements at ``flat`` that are ``inside`` of the buffer (all if None), in all columns that an access
    concerns.

    ``minimum_or_maximum``: np.minimum for first writes, np.maximum for last touches."""
    last, shared = minimum_or_maximum is np.maximum, access.shared
    ticks = _compute_access_ticks(access, grid, last=last)
    if times.ndim == 1:
        _update_times(times, minimum_or_maximum, flat, inside, ticks)
        return
    same_core, other_core = (_TOUCH_COLUMNS if last else _WRITE_COLUMNS)[shared.core if shared else 0]
    _update_times(times[:, same_core], minimum_or_maximum, flat, inside, ticks)
    if shared is not None:
        begin = replace(access, start_tick=access.start_tick - shared.offset, loops=access.loops[shared.inner_loops :])
        ticks = _compute_access_ticks(begin, grid, last=last) + (shared.duration - 1 if last else 0)
    _update_times(times[:, other_core], minimum_or_maximum, flat, inside, ticks)


def _compute_access_ticks(access: _AccessWithTime, grid: Grid, *, last: bool) -> Array:
    """Return the times of an access at every point of the grid of loop variables.

    Loops on which the address does not depend are in their last iteration if ``last`` is True, else in their first."""
    when: Array = np.array(access.start_tick, np.int64)
    for loop in access.loops:
        if loop.var in grid:
            when = when + grid[loop.var] * loop.iteration_ticks
        elif last:
            when = when + (loop.extent - 1) * loop.iteration_ticks
    return when


def _update_times(
    times: Array, minimum_or_maximum: np.ufunc, flat_indices: Array, in_bounds: Array | None, ticks: Array
) -> None:
    """Update the times of the accessed elements that are inside of the buffer (all if ``in_bounds`` is None).

    ``minimum_or_maximum``: ``np.minimum`` or ``np.maximum``, which selects between the old and the new time."""
    if in_bounds is not None:
        flat_indices, in_bounds, ticks = np.broadcast_arrays(flat_indices, in_bounds, ticks)
        flat_indices, ticks = flat_indices[in_bounds], ticks[in_bounds]
    elif np.broadcast(flat_indices, ticks).shape != flat_indices.shape:
        # Iterations access the same elements, at other times. Otherwise, ``at`` itself broadcasts the times.
        flat_indices, ticks = np.broadcast_arrays(flat_indices, ticks)
    minimum_or_maximum.at(times, flat_indices, ticks)


def _reshape_to_axis(values: Array, axis: int, rank: int) -> Array:
    """Return a vector as an int64 array of ``rank`` axes that varies along ``axis`` only."""
    shape = [1] * rank
    shape[axis] = -1
    return values.astype(np.int64).reshape(shape)


def _evaluate_index(expr: ir.Expr, grid: Grid) -> Array | int | None:
    """Return the values of an index at all points of the grid, or its value if it is a literal; None if the index depends on
    data."""
    match expr:
        case ir.Const(int() as value):
            return value
        case ir.Var():
            return grid.get(expr)
        case ir.Bin(op, a, b) if op in _OPERATORS:
            x, y = _evaluate_index(a, grid), _evaluate_index(b, grid)
            return None if x is None or y is None else _OPERATORS[op](x, y)
        case _:
            return None


_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = MappingProxyType(
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
"""Numpy functions of the operators of index arithmetic. An index with any other operator counts as unknown."""
