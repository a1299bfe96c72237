# SPDX-License-Identifier: Apache-2.0
"""Memory accesses of a lowered function and their order in time.

:func:`compute_access_times` computes when each element of a buffer is first written and last accessed, in a function without
symbolic sizes. :class:`UnsafeDistanceProver` proves, for many sizes at once, at which distances between their addresses two
buffers must not overlap in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from math import prod
from types import MappingProxyType

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import InternalError
from microc.tir import ir
from microc.tir.analysis.simplification import simplify
from microc.tir.analysis.size_forms import FormConverter, FormRanges, LoopLinearForm, UnsafeDistances
from microc.tir.names import DISTRIBUTED
from microc.tir.rewrite import accesses_of, free_vars, substitute, walk_expr, walk_stmt

# ---- Accesses of single statements of a lowered function, their order within a statement, and the walk over a sequence.
#
# Time is counted in ticks. A touch is a read or a write.

TICKS = 3
"""Duration of a simple statement in ticks. It reads in tick 0 and writes in tick 1. An intrinsic that reads and writes through
pointers may still read in tick 2."""
FOLLOWED = ("global", "workspace")
"""Scopes of the buffers whose accesses are analysed. Buffers of other scopes (constants, registers) are not in the arena."""


@frozen
class BufferAccess:
    """A memory access in a statement, without the loops around it.

    It touches ``extent`` elements of ``buffer``, ``step`` elements apart, from ``indices`` on. ``tick_in_statement``:
    time of the access in ticks after the start of the statement."""

    buffer: ir.Buffer
    indices: tuple[ir.Expr, ...]
    writes: bool
    tick_in_statement: int
    extent: int = 1
    step: int = 1


@dataclass(slots=True)
class LetScope:
    """Variables bound by ``Let``, with the index expressions that replace them.

    A variable whose value depends on data is not replaced (it is mapped to itself)."""

    names: dict[ir.Var, ir.Expr]

    def bind(self, var: ir.Var, value: ir.Expr) -> None:
        """Add a let-bound variable and its value. A variable whose value depends on data is mapped to itself."""
        data = any(isinstance(x, (ir.Load, ir.Call, ir.AddressOf)) for x in walk_expr(value))
        self.names[var] = var if data else self.substitute(value)

    def substitute(self, expr: ir.Expr) -> ir.Expr:
        """Return an expression with let-bound variables replaced by their index expressions."""
        return substitute(expr, self.names) if self.names else expr

    def substitute_in_indices(self, indices: tuple[ir.Expr, ...]) -> tuple[ir.Expr, ...]:
        """Return the indices of an access with let-bound variables replaced by their index expressions."""
        return tuple(map(self.substitute, indices))


def statements_in_order(stmt: ir.Stmt) -> Iterator[ir.Stmt]:
    """Yield the statements of a sequence in program order. Loops and branches are yielded as a whole.

    A ``Let`` is yielded before the statements of its body."""
    stack = [stmt]
    while stack:
        match stack.pop():
            case ir.Seq(body):
                stack += reversed(body)
            case ir.Let(_, _, body) as let:
                yield let
                stack.append(body)
            case ir.Alloc(_, body):
                stack.append(body)
            case other:
                yield other


def accesses_of_statement(stmt: ir.Stmt, scope: LetScope) -> list[BufferAccess]:
    """Return the memory accesses of a statement, without those of its sub-statements.

    For a loop these are the accesses in its extent, for an ``If`` those in its condition. ``scope``: the enclosing
    let-bound variables, to which the variable of a ``Let`` is added."""
    match stmt:
        case ir.Store(buffer, indices, value):
            written = (
                [BufferAccess(buffer, scope.substitute_in_indices(indices), True, 1)]
                if buffer.scope in FOLLOWED
                else []
            )
            return _accesses_in_expressions((*indices, value), scope) + written
        case ir.Evaluate(value):
            return _accesses_in_expressions((value,), scope)
        case ir.Let(var, value):
            found = _accesses_in_expressions((value,), scope)
            scope.bind(var, value)
            return found
        case ir.If(condition):
            return _accesses_in_expressions((condition,), scope)
        case ir.For(_, extent):
            return _accesses_in_expressions((extent,), scope)
        case _:
            raise InternalError(f"access order: unexpected {type(stmt).__name__}; expected a lowered function")


def _accesses_in_expressions(exprs: tuple[ir.Expr, ...], scope: LetScope) -> list[BufferAccess]:
    """Return the memory accesses in the expressions of one statement.

    The operands of a call are read before the call starts to write."""
    found, writes = [], False
    for access in (access for expr in exprs for access in accesses_of(expr) if access.buffer.scope in FOLLOWED):
        indices = scope.substitute_in_indices(access.indices)
        match access:
            case ir.AddressOf(buffer, _, extent, write, step):
                found.append(BufferAccess(buffer, indices, write, 1 if write else 0, extent, step))
                writes = writes or write
            case ir.Load(buffer):
                found.append(BufferAccess(buffer, indices, False, 0))
    if not writes:
        return found
    # A call may read through a pointer until it returns, since the order of accesses inside of it is unknown. Operands that
    # are passed by value, and loads outside of the call, are read before.
    call = exprs[0]
    outermost = isinstance(call, ir.Call) and any(isinstance(a, ir.AddressOf) and a.writes for a in call.args)
    pointed = {a.buffer for a in call.args if isinstance(a, ir.AddressOf)} if isinstance(call, ir.Call) else set()
    return [
        a if a.writes or (outermost and a.buffer not in pointed) else replace(a, tick_in_statement=2) for a in found
    ]


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

    ``offset``: ticks from the begin of the loop to the access, in the first iteration of the ``inner_loops`` loops between them.
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


def is_distributed(loop: ir.For) -> bool:
    """Test whether the two iterations of a parallel loop are run by two cores."""
    return loop.kind == "parallel" and (DISTRIBUTED, 2) in loop.annotations and ir.int_value(loop.extent) == 2


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
        found += [replace(access, start_tick=access.start_tick + total) for access in accesses] if total else accesses
        total += duration
    return total, found


def _compute_timed_accesses_of_loop(loop: ir.For, scope: LetScope) -> Timed:
    """Return the duration of a loop in ticks, and the accesses in its body with their times."""
    if is_distributed(loop):
        return _compute_timed_accesses_of_cores(loop, scope)
    extent = _max_trip_count(_extent_without_guard(loop, scope)) or 0
    span, inner = _compute_timed_accesses(loop.body, LetScope({**scope.names, loop.var: loop.var}))
    timed = _TimedLoop(loop.var, extent, span)
    return extent * span, [replace(access, loops=(*access.loops, timed)) for access in inner] if extent else []


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
        inside: Array = np.ones((1,) * rank, bool)
        for axis, (index, size, stride) in enumerate(zip(touch.indices, buffer.shape, buffer.strides, strict=True)):
            value = _evaluate_index(index, grid) if grid is not None else None
            if value is None:
                value = _reshape_to_axis(np.arange(size), rank - 2 - axis, rank)
            inside = inside & (value >= 0) & (value < size)
            flat = flat + value * stride
        inside = inside & (flat < buffer.size)
        if touch.writes:
            _update_columns(times.first_write, np.minimum, flat, inside, access, grid or {})
        _update_columns(times.last_touch, np.maximum, flat, inside, access, grid or {})


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
    times: Array, minimum_or_maximum: np.ufunc, flat: Array, inside: Array, access: _AccessWithTime, grid: Grid
) -> None:
    """Update the times of the elements at ``flat`` that are ``inside`` of the buffer, in all columns that an access concerns.

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
    times: Array, minimum_or_maximum: np.ufunc, flat_indices: Array, in_bounds: Array, ticks: Array
) -> None:
    """Update the times of the accessed elements that are inside of the buffer.

    ``minimum_or_maximum``: ``np.minimum`` or ``np.maximum``, which selects between the old and the new time."""
    flat_indices, in_bounds, ticks = (part.reshape(-1) for part in np.broadcast_arrays(flat_indices, in_bounds, ticks))
    if not in_bounds.all():
        flat_indices, ticks = flat_indices[in_bounds], ticks[in_bounds]
    minimum_or_maximum.at(times, flat_indices, ticks)


def _reshape_to_axis(values: Array, axis: int, rank: int) -> Array:
    """Return a vector as an int64 array of ``rank`` axes that varies along ``axis`` only."""
    shape = [1] * rank
    shape[axis] = -1
    return values.astype(np.int64).reshape(shape)


def _evaluate_index(expr: ir.Expr, grid: Grid) -> Array | None:
    """Return the values of an index at all points of the grid; None if the index depends on data."""
    match expr:
        case ir.Const(int() as value):
            return np.array(value, np.int64)
        case ir.Var():
            return grid.get(expr)
        case ir.Bin(op, a, b) if op in _OPERATORS:
            x, y = _evaluate_index(a, grid), _evaluate_index(b, grid)
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
"""Numpy functions of the operators of index arithmetic. An index with any other operator counts as unknown."""


# ---- Unsafe distances between two buffers that overlap in memory, for many sizes at once.
#
# Two buffers may share a byte of memory if the last access to the byte in the old buffer precedes its first write in the new
# buffer. The code above decides this for one size, element by element. The code below proves it for all sizes, from the nesting
# of loops. An execution of one statement is later than an execution of another in two cases: all common loops are in the same
# iteration and the statement is later in program order; or the outermost common loop whose iterations differ is in a later
# iteration. In each case the distance of the two addresses is a sum over loop variables, whose range is known at every size
# (:mod:`microc.tir.analysis.size_forms`). The result is a list of :class:`UnsafeDistances`.

_ZERO = np.zeros(1, np.int64)
Guard = tuple[ir.Expr, bool]
"""A condition, and the outcome that it must have."""


@frozen
class _LocatedAccess:
    """A memory access with its position in the function.

    ``loops``: variables of the enclosing loops. ``statement_number``: number of its statement in program order.
    ``guards``: the conditions under which it runs."""

    touch: BufferAccess
    loops: tuple[ir.Var, ...]
    statement_number: int
    guards: tuple[Guard, ...]


@frozen
class _AccessForms:
    """A memory access as linear forms over loop variables.

    ``byte_addresses``: addresses of the accessed bytes. ``nonnegative_forms``: forms that are non-negative whenever the access
    runs. ``loops``: variables of the enclosing loops. ``program_order``: position in program order."""

    byte_addresses: LoopLinearForm
    nonnegative_forms: tuple[LoopLinearForm, ...]
    loops: tuple[ir.Var, ...]
    program_order: tuple[int, int]
    writes: bool


class UnsafeDistanceProver:
    """Proofs of the distances at which two buffers of a lowered function must not overlap in memory.

    ``sizes``: values of the function's symbolic sizes, by name. Element k of all arrays is the k-th combination of sizes."""

    def __init__(self, func: ir.PrimFunc, sizes: Mapping[str, Array]) -> None:
        self.forms = FormConverter(sizes)
        self._statement_number = 0
        loops = (s for s in walk_stmt(func.body) if isinstance(s, ir.For))
        self._ordered = all(loop.kind != "parallel" for loop in loops)
        followed = {b for b in func.params if b.scope in FOLLOWED}
        found = [
            x for x in self._iterate_located_accesses(func.body, LetScope({}), (), ()) if x.touch.buffer in followed
        ]
        self._places: dict[ir.Buffer, list[_AccessForms]] = {}
        # The conversion of an address may split a loop variable into two digits, which changes the forms of other addresses.
        # So the conversion is repeated until no further variable is split.
        digits = -1
        while digits < len(self.forms.digits):
            digits = len(self.forms.digits)
            self._places = {b: [] for b in followed}
            for x in found:
                self._places[x.touch.buffer].append(self._access_forms(x))

    def find_unsafe_distances(self, old: ir.Buffer, new: ir.Buffer) -> list[UnsafeDistances]:
        """Return the unsafe distances from ``old`` to ``new``.

        At these distances some byte of ``old`` is accessed after ``new`` has been written to the same memory."""
        if not self._ordered:
            return [UnsafeDistances(-new.nbytes, old.nbytes)]
        touched, written = self._places[old], [place for place in self._places[new] if place.writes]
        found = [
            self._find_conflict_of_accesses(a, b, _loops_around_both(a, b), None)
            for a in touched
            for b in written
            if a.program_order >= b.program_order
        ]
        for a in self._merge_accesses_of_unrolled_loop(touched, old.name):
            for b in self._merge_accesses_of_unrolled_loop(written, new.name):
                common = _loops_around_both(a, b)
                found += [self._find_conflict_of_accesses(a, b, common[:k], var) for k, var in enumerate(common)]
        return list(dict.fromkeys(conflict for conflict in found if conflict is not None))

    # ------------------------------------------------------------ touches

    def _iterate_located_accesses(
        self, stmt: ir.Stmt, around: LetScope, loops: tuple[ir.Var, ...], guards: tuple[Guard, ...]
    ) -> Iterator[_LocatedAccess]:
        """Yield all accesses of a statement and its sub-statements, with their positions. Loop variables get unique names."""
        scope = LetScope(dict(around.names))
        for item in statements_in_order(stmt):
            self._statement_number += 1
            own, number = accesses_of_statement(item, scope), self._statement_number
            match item:
                case ir.If(condition, then, otherwise):
                    decided = scope.substitute(condition)
                    yield from self._iterate_located_accesses(then, scope, loops, (*guards, (decided, True)))
                    if otherwise is not None:
                        yield from self._iterate_located_accesses(otherwise, scope, loops, (*guards, (decided, False)))
                case ir.For(var, extent, body):
                    unique, count = ir.Var(f"{var.name}.{number}"), scope.substitute(extent)
                    self.forms.record_loop(unique, count)
                    inner = LetScope({**scope.names, var: unique})
                    yield from self._iterate_located_accesses(
                        body, inner, (*loops, unique), (*guards, (unique < count, True))
                    )
                    # C evaluates the extent for the last time after the last iteration.
                    self._statement_number = number = self._statement_number + 1
            for touch in own:
                yield _LocatedAccess(touch, loops, number, guards)

    def _access_forms(self, located: _LocatedAccess) -> _AccessForms:
        """Return an access as linear forms."""
        loops = tuple(digit for var in located.loops for digit in self.forms.digit_variables(var))
        facts = tuple(fact for guard in located.guards for fact in self.forms.facts_of_condition(*guard) if fact.terms)
        order = located.statement_number, located.touch.tick_in_statement
        return _AccessForms(self._byte_addresses(located.touch), facts, loops, order, located.touch.writes)

    def _byte_addresses(self, touch: BufferAccess) -> LoopLinearForm:
        """Return the byte addresses of an access as a linear form. If they depend on data, the form covers the whole
        buffer."""
        buffer, width = touch.buffer, dtypes.nbytes(touch.buffer.dtype)
        total = LoopLinearForm({}, _ZERO, _ZERO + (touch.extent - 1) * touch.step * width + width - 1)
        for index, stride in zip(touch.indices, buffer.strides, strict=True):
            form = self.forms.form_of(index)
            if form is None:
                return LoopLinearForm({}, _ZERO, _ZERO + buffer.nbytes - 1)
            total = total.plus(form.times(_ZERO + stride * width))
        return total

    # ------------------------------------------------------------ distances

    def _merge_accesses_of_unrolled_loop(
        self, accesses: Sequence[_AccessForms], loop_name: str
    ) -> Iterator[_AccessForms]:
        """Yield the accesses, with those in the same loops that differ only by a constant merged into one.

        The merged access is in an additional loop, as if the loop had not been unrolled. ``loop_name``: part of the name of
        this loop's variable."""
        found: dict[object, list[_AccessForms]] = {}
        for place in accesses:
            found.setdefault(
                (place.loops, place.byte_addresses.slopes, frozenset(f.key for f in place.nonnegative_forms)), []
            ).append(place)
        for k, group in enumerate(found.values()):
            unrolled = ir.Var(f"{k} of {loop_name}")
            bytes_, self.forms.extents[unrolled] = LoopLinearForm.cover_forms(
                [place.byte_addresses for place in group], unrolled
            )
            yield replace(group[0], byte_addresses=bytes_, loops=(*group[0].loops, unrolled))

    def _find_conflict_of_accesses(
        self, a: _AccessForms, b: _AccessForms, shared_loops: tuple[ir.Var, ...], later_loop: ir.Var | None
    ) -> UnsafeDistances | None:
        """Return the unsafe distances that follow from two accesses; None if there are none.

        Both accesses are in the same iterations of ``shared_loops``. If ``later_loop`` is not None, access ``a`` is in a later
        iteration of this loop than access ``b``. All other loops are independent of each other."""
        extents = self.forms.extents
        mine, other = (
            {var: _form_of_variable(var) for var in shared_loops},
            {var: _form_of_variable(var) for var in shared_loops},
        )
        reach = {var: self.forms.largest_value(var) for var in shared_loops if extents[var] is not None}
        for names, place, mark in ((mine, a, "'"), (other, b, '"')):
            for var in place.loops[len(shared_loops) :]:
                if extents[var] is not None:
                    names[var] = _form_of_variable(ir.Var(var.name + mark))
                    reach[ir.Var(var.name + mark)] = self.forms.largest_value(var)
        ranges = FormRanges(reach)
        if later_loop is not None and (extent := extents[later_loop]) is not None:
            mine[later_loop], other[later_loop] = ranges.later_and_earlier_iteration(later_loop, extent)
        facts = [
            *(f.substitute(mine) for f in a.nonnegative_forms),
            *(f.substitute(other) for f in b.nonnegative_forms),
        ]
        return ranges.unsafe_distances(
            a.byte_addresses.substitute(mine).plus(b.byte_addresses.substitute(other).times(_ZERO - 1)), facts
        )


def _form_of_variable(var: ir.Var) -> LoopLinearForm:
    """Return the linear form that consists of a variable alone."""
    return LoopLinearForm({var: _ZERO + 1}, _ZERO, _ZERO)


def _loops_around_both(a: _AccessForms, b: _AccessForms) -> tuple[ir.Var, ...]:
    """Return the variables of the loops that enclose both accesses, outermost first."""
    pairs = zip(a.loops, b.loops, strict=False)
    return tuple(x for x, y in takewhile(lambda pair: pair[0] == pair[1], pairs))
