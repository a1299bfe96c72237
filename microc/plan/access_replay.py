# SPDX-License-Identifier: Apache-2.0
"""Replay of a lowered function for the plan checker: the times at which it first writes and last touches every byte of its
buffers.

The replay shares no code with the analysis that the planner trusts (:mod:`microc.tir.analysis.access_times`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import InternalError
from microc.tir import ir
from microc.tir.analysis.simplification import Simplifier
from microc.tir.names import DISTRIBUTED
from microc.tir.operators import ARRAYS
from microc.tir.rewrite import accesses_of, free_vars, walk_stmt

# ---- Access paths: the path to every memory access of a lowered function, from its outermost statement inwards, through
# sequences, guards, bindings and loops.
#
# Time is counted in ticks of a clock that starts with the call.


@frozen
class ClockAdvance:
    """A step of an access path: the clock advances by ``ticks``, the duration of the preceding statements."""

    ticks: int


@frozen
class LoopStep:
    """A step of an access path: a loop of at most ``max_iterations`` iterations of ``iteration_ticks`` ticks each."""

    loop: ir.For
    iteration_ticks: int
    max_iterations: int


@frozen
class GuardStep:
    """A step of an access path: a condition. The access happens only if the condition evaluates to ``outcome``."""

    condition: ir.Expr
    outcome: bool


@frozen
class LetStep:
    """A step of an access path: a let statement that binds a variable to a value for the rest of the path."""

    var: ir.Var
    value: ir.Expr


Step = ClockAdvance | LoopStep | GuardStep | LetStep
AccessPath = tuple[Step, ...]


@frozen
class Access:
    """A memory access in a lowered function, with the path to it through loops, guards and bindings (``path``).

    It touches ``element_count`` elements of ``buffer``, ``element_stride`` elements apart, starting at ``indices``.
    ``is_write`` is True for a store, False for a read."""

    path: AccessPath
    buffer: ir.Buffer
    indices: tuple[ir.Expr, ...]
    element_count: int
    is_write: bool
    element_stride: int = 1


_ENDLESS = ir.const(ir.ENDLESS, "int32")
STATEMENT_TICKS = 3
"""Ticks of a simple statement. It reads in tick 0 and writes in tick 1. In tick 2 a called function may still read."""


def list_accesses(func: ir.PrimFunc) -> Iterator[Access]:
    """Yield all memory accesses of a lowered function, each with the path to it."""
    return _list_statement_accesses(func.body, (), _Durations())


class _Durations:
    """Upper bounds of the durations of statements, in ticks.

    Each bound is computed once. The enclosing loops must be measured before the statements inside of them."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[ir.Stmt, int]] = {}
        self._reach: dict[ir.Var, tuple[int, int]] = {}

    def max_ticks_of_statement(self, stmt: ir.Stmt) -> int:
        """Return an upper bound of the duration of a statement in ticks."""
        if id(stmt) not in self._known:
            self._known[id(stmt)] = (stmt, sum(self.max_ticks_of_item(item) for item in _list_items_in_order(stmt)))
        return self._known[id(stmt)][1]

    def max_ticks_of_item(self, item: ir.Stmt | LetStep) -> int:
        """Return an upper bound of the duration in ticks of one item of a sequence: a statement, or the binding of a
        let statement."""
        match item:
            case ir.For(_, _, body):
                return self.max_iterations(item) * self.max_ticks_of_statement(body) + STATEMENT_TICKS
            case ir.If(_, then, otherwise):
                return (
                    STATEMENT_TICKS
                    + self.max_ticks_of_statement(then)
                    + (self.max_ticks_of_statement(otherwise) if otherwise else 0)
                )
            case _:
                return STATEMENT_TICKS

    def max_iterations(self, loop: ir.For) -> int:
        """Return an upper bound of a loop's trip count, derived from the ranges of the enclosing loop variables.

        An endless loop counts as two iterations, because all of its iterations are equal."""
        most = 2 if loop.extent == _ENDLESS else Simplifier(self._reach).range_of(loop.extent)[1]
        if not isinstance(most, int):
            raise InternalError(
                "plan check: the extent of a loop has no upper bound, so the order of accesses is unknown"
            )
        self._reach[loop.var] = (0, max(most - 1, 0))
        return max(most, 0)


def _list_statement_accesses(stmt: ir.Stmt, path: AccessPath, durations: _Durations) -> Iterator[Access]:
    """Yield the accesses of a statement. ``path``: the access path to the statement."""
    start = 0
    for item in _list_items_in_order(stmt):
        here = (*path, ClockAdvance(start))
        start += durations.max_ticks_of_item(item)
        match item:
            case ir.Store(buffer, indices, value):
                yield from _list_operand_accesses((*indices, value), here)
                yield Access((*here, ClockAdvance(1)), buffer, indices, 1, True)
            case ir.Evaluate(value):
                yield from _list_operand_accesses((value,), here)
            case ir.If(condition, then, otherwise):
                yield from _list_operand_accesses((condition,), here)
                yield from _list_statement_accesses(
                    then, (*here, ClockAdvance(STATEMENT_TICKS), GuardStep(condition, True)), durations
                )
                if otherwise is not None:
                    after_then = ClockAdvance(STATEMENT_TICKS + durations.max_ticks_of_statement(then))
                    yield from _list_statement_accesses(
                        otherwise, (*here, after_then, GuardStep(condition, False)), durations
                    )
            case ir.For(_, extent, body):
                longest = durations.max_iterations(item)
                loop = LoopStep(item, durations.max_ticks_of_statement(body), longest)
                yield from _list_statement_accesses(body, (*here, loop), durations)
                # The extent of the loop is evaluated once more after the last iteration.
                yield from _list_operand_accesses(
                    (extent,), (*here, ClockAdvance(loop.max_iterations * loop.iteration_ticks))
                )
            case LetStep():
                yield from _list_operand_accesses((item.value,), here)
                path = (*path, item)
            case _:
                raise InternalError(f"plan check: unexpected {type(item).__name__}; expected a lowered function")


def _list_items_in_order(stmt: ir.Stmt) -> Iterator[ir.Stmt | LetStep]:
    """Yield the statements of a sequence in program order.

    A let statement is yielded as a :class:`LetStep`, followed by the statements of its body."""
    pending = [stmt]
    while pending:
        match pending.pop():
            case ir.Seq(body):
                pending.extend(reversed(body))
            case ir.Let(var, value, body):
                yield LetStep(var, value)
                pending.append(body)
            case ir.Alloc(_, body):
                pending.append(body)
            case other:
                yield other


def _list_operand_accesses(exprs: tuple[ir.Expr, ...], path: AccessPath) -> Iterator[Access]:
    """Yield the memory accesses of the expressions of one statement.

    Reads are assumed to precede writes through pointers. A called function that gets pointers for both may read until
    it returns.
    """
    for expr in exprs:
        yield from _list_expression_accesses(expr, path, is_read_during_call=False)


def _list_expression_accesses(expr: ir.Expr, path: AccessPath, *, is_read_during_call: bool) -> Iterator[Access]:
    """Yield the memory accesses of an expression.

    ``is_read_during_call``: the expression is a pointer argument of a call that also writes, so it may be read while the call
    writes."""
    match expr:
        case ir.Load(buffer, indices):
            yield Access((*path, ClockAdvance(2 if is_read_during_call else 0)), buffer, indices, 1, False)
            yield from _list_index_accesses(indices, path, is_read_during_call=is_read_during_call)
        case ir.AddressOf(buffer, indices, extent, writes, step):
            tick = 1 if writes else 2 if is_read_during_call else 0
            yield Access((*path, ClockAdvance(tick)), buffer, indices, extent, writes, step)
            yield from _list_index_accesses(indices, path, is_read_during_call=is_read_during_call)
        case ir.Call(_, args):
            stores = any(isinstance(a, ir.AddressOf) and a.writes for a in args)
            for a in args:
                yield from _list_expression_accesses(
                    a, path, is_read_during_call=is_read_during_call or (stores and isinstance(a, ir.AddressOf))
                )
        case ir.Select(condition, a, b):
            yield from _list_expression_accesses(condition, path, is_read_during_call=is_read_during_call)
            yield from _list_expression_accesses(
                a, (*path, GuardStep(condition, True)), is_read_during_call=is_read_during_call
            )
            yield from _list_expression_accesses(
                b, (*path, GuardStep(condition, False)), is_read_during_call=is_read_during_call
            )
        case ir.Bin(("and" | "or") as op, a, b):
            yield from _list_expression_accesses(a, path, is_read_during_call=is_read_during_call)
            yield from _list_expression_accesses(
                b, (*path, GuardStep(a, op == "and")), is_read_during_call=is_read_during_call
            )
        case ir.Bin(_, a, b):
            yield from _list_expression_accesses(a, path, is_read_during_call=is_read_during_call)
            yield from _list_expression_accesses(b, path, is_read_during_call=is_read_during_call)
        case ir.Un(_, a) | ir.Cast(_, a):
            yield from _list_expression_accesses(a, path, is_read_during_call=is_read_during_call)
        case ir.Const() | ir.Var():
            return
        case _:
            raise InternalError(f"plan check: unknown type of expression; got {type(expr).__name__}")


def _list_index_accesses(
    indices: tuple[ir.Expr, ...], path: AccessPath, *, is_read_during_call: bool
) -> Iterator[Access]:
    """Yield the memory accesses inside of the index expressions of another access. Most indices contain none."""
    for index in indices:
        if accesses_of(index):
            yield from _list_expression_accesses(index, path, is_read_during_call=is_read_during_call)


def find_deciding_variables(access: Access) -> set[ir.Var]:
    """Return the variables that decide whether an access happens, and which element it touches."""
    needed = {var for index in access.indices for var in free_vars(index)}
    for step in reversed(access.path):
        match step:
            case GuardStep(condition):
                needed |= free_vars(condition)
            case LoopStep(loop):
                needed |= free_vars(loop.extent)
            case LetStep(var, value) if var in needed:
                needed |= free_vars(value)
    return needed


# ---- Replay: the times of the first write and last touch of every byte of a call's operands.
#
# The replay works in the opposite direction to the analysis that the planner trusts (:mod:`microc.tir.analysis.access_times`).
# That analysis collects accesses from the innermost loop outwards, derives the times of addresses and ignores guards. The replay
# walks the path to each access from the outermost loop inwards. All executions of an access are computed at once, as numpy
# arrays, and guards remove the executions that do not pass. Of a loop that an access does not depend on, only the first and
# last iteration are replayed, because the iterations between touch the same bytes.

_TWO = ir.const(2, "int32")
_START_OF_SHARED_LOOP = ir.Var("start of the shared loop")
"""Key of the times at which a loop that cores share starts, among the values of variables."""
NEVER = 1 << 62  # time of the first write of a byte that is never written
_MAX_EXECUTIONS_AT_ONCE = 1 << 18
"""Most executions of an access that are computed at once, as one array."""


Values = Mapping[ir.Var, Array | None]
"""Values of variables: an array with an element for each execution of an access; None if the value depends on data."""


class Replay:
    """Times at which a lowered function first writes and last touches every byte of the buffers ``watched``.

    ``first_write``, ``last_touch``: arrays of times by buffer, on one clock, with a row for each core; a function that no cores
    share has one row. A touch is a read or a write. ``earliest_write``, ``latest_touch``: the same as another core sees it. What
    a core does in a loop that cores share may happen at any time from the start of the loop to its end."""

    def __init__(self, func: ir.PrimFunc, watched: Iterable[ir.Buffer]) -> None:
        buffers = tuple(watched)
        self.cores = max((count_cores(s) for s in walk_stmt(func.body) if isinstance(s, ir.For)), default=1)
        self.first_write, self.earliest_write = (
            {b: np.full((self.cores, b.nbytes), NEVER, np.int64) for b in buffers} for _ in range(2)
        )
        self.last_touch, self.latest_touch = (
            {b: np.full((self.cores, b.nbytes), -1, np.int64) for b in buffers} for _ in range(2)
        )
        for access in list_accesses(func):
            if access.buffer in self.first_write:
                self._replay_access(access)

    def _replay_access(self, access: Access) -> None:
        """Record the times of all executions of one access."""
        shared = next((s for s in access.path if isinstance(s, LoopStep) and count_cores(s.loop) > 1), None)
        needed = find_deciding_variables(access) | ({shared.loop.var} if shared else set())
        for values, ticks in _list_executions(access.path, needed, {}, np.zeros(1, np.int64)):
            if shared is None:
                self._record_executions(access, values, (ticks, ticks), (ticks, ticks), 0)
                continue
            for core in range(self.cores):
                chosen = np.asarray(values[shared.loop.var] == core)
                inner, when = _select_executions(values, chosen), ticks[chosen]
                start = inner[_START_OF_SHARED_LOOP]
                assert start is not None
                end = start + shared.iteration_ticks * shared.max_iterations - 1
                self._record_executions(access, inner, (when, when), (start, end), core)

    def _record_executions(
        self,
        access: Access,
        values: Values,
        own_ticks: tuple[Array, Array],
        others_ticks: tuple[Array, Array],
        core: int,
    ) -> None:
        """Record the times of some executions of an access by one core.

        ``values``: values of the variables in each execution; ``own_ticks``: first and last possible time of each execution, as
        the core itself sees it; ``others_ticks``: the same, as another core sees it."""
        buffer = access.buffer
        count = len(own_ticks[0])
        numbers = [_evaluate(index, values) for index in access.indices]
        known, inside = np.zeros(count, np.int64), np.ones(count, bool)
        unknown = np.zeros(1, np.int64)  # an index that depends on data may have any value along its axis
        for number, extent, stride in zip(numbers, buffer.shape, buffer.strides, strict=True):
            if number is None:
                unknown = (unknown[:, None] + np.arange(extent) * stride).reshape(-1)
            else:  # guards that depend on data are ignored, so indices inside of them may be out of range
                inside &= (number >= 0) & (number < extent)
                known = known + number * stride
        views = [(own_ticks, self.first_write, self.last_touch)]
        if self.cores > 1:
            views.append((others_ticks, self.earliest_write, self.latest_touch))
        for (first, last), writes, touches in views:
            times = _find_first_and_last_times(known[inside], first[inside], last[inside], buffer.size)
            self._record_elements(access, times, unknown, writes[buffer][core], touches[buffer][core])

    def _record_elements(
        self, access: Access, times: tuple[Array, Array, Array], unknown: Array, first_write: Array, last_touch: Array
    ) -> None:
        """Record that an access touches elements of its buffer.

        ``times``: positions of elements, and the first and last time at which each is touched. ``unknown``: distances from these
        to all elements that may be meant. ``first_write``, ``last_touch``: the arrays to update, with a time for each byte."""
        known, first, last = times
        width = dtypes.nbytes(access.buffer.dtype)
        offsets = (np.arange(access.element_count)[:, None] * access.element_stride * width + np.arange(width)).reshape(
            -1
        )
        for start in range(0, len(known), max(1, _MAX_EXECUTIONS_AT_ONCE // (len(unknown) * len(offsets)))):
            part = slice(start, start + max(1, _MAX_EXECUTIONS_AT_ONCE // (len(unknown) * len(offsets))))
            element = known[part, None, None] + unknown[:, None]
            touched = np.minimum(element * width + offsets, access.buffer.nbytes - 1)
            byte_positions, first_ticks, last_ticks = (
                each.reshape(-1)
                for each in np.broadcast_arrays(touched, first[part, None, None], last[part, None, None])
            )
            np.maximum.at(last_touch, byte_positions, last_ticks)
            if access.is_write:
                np.minimum.at(first_write, byte_positions, first_ticks)


def count_cores(loop: ir.For) -> int:
    """Return the number of cores that run the iterations of a loop at the same time, one each; 1 for all other loops."""
    return 2 if loop.kind == "parallel" and (DISTRIBUTED, 2) in loop.annotations and loop.extent == _TWO else 1


def _find_first_and_last_times(
    positions: Array, first_ticks: Array, last_ticks: Array, size: int
) -> tuple[Array, Array, Array]:
    """Return three arrays: the distinct positions below ``size``, and the earliest and the latest tick of each."""
    # An element for every position is filled in a fraction of the time in which positions are sorted.
    first, last = np.full(size, NEVER, np.int64), np.full(size, -1, np.int64)
    np.minimum.at(first, positions, first_ticks)
    np.maximum.at(last, positions, last_ticks)
    distinct = np.flatnonzero(last >= 0)
    return distinct, first[distinct], last[distinct]


def _list_executions(
    path: AccessPath, needed_variables: set[ir.Var], values: Values, ticks: Array
) -> Iterator[tuple[Values, Array]]:
    """Yield the executions that reach the end of an access path, in batches.

    A batch is a pair: the values of the variables in each execution, and the time of each execution.
    ``needed_variables``: the variables that decide whether the access happens, and which element it touches."""
    for position, step in enumerate(path):
        match step:
            case ClockAdvance(start):
                ticks = ticks + start
            case GuardStep(condition, outcome):
                values, ticks = _filter_by_guard(condition, outcome, values, ticks)
            case LetStep(var, value) if var in needed_variables:
                named = _evaluate(value, values)
                values = {**values, var: None if named is None else np.broadcast_to(named, ticks.shape)}
            case LoopStep():
                for inner, then in _iterate_loop(step, needed_variables, values, ticks):
                    yield from _list_executions(path[position + 1 :], needed_variables, inner, then)
                return
    yield values, ticks


def _filter_by_guard(condition: ir.Expr, outcome: bool, values: Values, ticks: Array) -> tuple[Values, Array]:
    """Return the values and ticks of the executions in which ``condition`` evaluates to ``outcome``.

    If the condition depends on data, all executions are returned."""
    # `a and b` holds if both hold, and `a or b` fails if both fail. So each operand filters, even if the other depends on data.
    if isinstance(condition, ir.Bin) and condition.op == ("and" if outcome else "or"):
        for part in (condition.a, condition.b):
            values, ticks = _filter_by_guard(part, outcome, values, ticks)
        return values, ticks
    results = _evaluate(condition, values)
    if results is None:
        return values, ticks
    chosen = np.broadcast_to(results.astype(bool) == outcome, ticks.shape)
    return _select_executions(values, chosen), ticks[chosen]


def _iterate_loop(
    step: LoopStep, needed_variables: set[ir.Var], values: Values, ticks: Array
) -> Iterator[tuple[Values, Array]]:
    """Yield the executions of a loop's iterations, in batches.

    If the loop variable is not among ``needed_variables``, only the first and the last iteration are executed."""
    loop = step.loop
    extents = _evaluate(loop.extent, values)
    if count_cores(loop) > 1:
        values = {**values, _START_OF_SHARED_LOOP: ticks}
    elif loop.kind == "parallel":
        extents = None
    if extents is None:
        raise InternalError(
            f"plan check: the order of accesses in loop {loop.var.name} is unknown: the loop is parallel or its "
            "extent depends on data"
        )
    if step.max_iterations < int(extents.max(initial=0)):
        if loop.var in needed_variables:
            raise InternalError(f"plan check: loop {loop.var.name} has no bound, and addresses depend on its iteration")
        extents = np.minimum(extents, step.max_iterations)
    extents = np.broadcast_to(extents, ticks.shape)
    count = int(extents.max(initial=0))
    iterations = np.arange(count if loop.var in needed_variables else min(count, 2))
    at_once = max(1, _MAX_EXECUTIONS_AT_ONCE // max(len(ticks), 1))
    for start in range(0, len(iterations), at_once):
        batch = iterations[start : start + at_once]
        parent, number = np.repeat(np.arange(len(ticks)), len(batch)), np.tile(batch, len(ticks))
        if loop.var not in needed_variables:
            number = number * (extents[parent] - 1)
        is_run = (number >= 0) & (number < extents[parent])
        parent, number = parent[is_run], number[is_run]
        yield {**_select_executions(values, parent), loop.var: number}, ticks[parent] + number * step.iteration_ticks


def _select_executions(values: Values, chosen: Array) -> dict[ir.Var, Array | None]:
    """Return the values of variables in the executions that ``chosen``, a mask or an array of indices, selects."""
    return {var: None if array is None else array[chosen] for var, array in values.items()}


def _evaluate(expr: ir.Expr, values: Values) -> Array | None:
    """Return the value of an integer expression in every execution; None if the expression depends on data."""
    match expr:
        case ir.Const(int() as value):
            return np.array(value)
        case ir.Var():
            return values.get(expr)
        case ir.Un("neg", a):
            x = _evaluate(a, values)
            return None if x is None else -x
        case ir.Un("not", a):
            x = _evaluate(a, values)
            return None if x is None else ~x
        case ir.Bin(op, a, b) if op in ARRAYS:
            x, y = _evaluate(a, values), _evaluate(b, values)
            return None if x is None or y is None else ARRAYS[op](x, y)
        case ir.Select(c, a, b):
            chosen, x, y = (_evaluate(part, values) for part in (c, a, b))
            return None if chosen is None or x is None or y is None else np.where(chosen, x, y)
        case _:
            return None
