"""Check a plan by replaying every access on an arena of owners.

The checker shares no code with the planner, nor with the analysis that it trusts
(:mod:`microc.tir.analysis.access_order`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import InternalError
from microc.module import Call, Module, Plan
from microc.schedule.cost.loop_region import expand_memory_calls
from microc.tir import ir
from microc.tir.analysis.generalise import instantiate
from microc.tir.analysis.simplification import Simplifier
from microc.tir.ir import Buffer, PrimFunc
from microc.tir.operators import ARRAYS
from microc.tir.rewrite import free_vars

# ---- Access paths: the path to every access of a lowered function, through sequences, guards, names and loops.


@frozen
class ClockAdvance:
    """A step of an access path: the clock advances by ``start`` ticks."""

    start: int


@frozen
class LoopStep:
    """A step of an access path: the iterations of a loop, ``span`` ticks each, at most ``longest`` of them."""

    loop: ir.For
    span: int
    longest: int


@frozen
class GuardStep:
    """A step of an access path: a condition, with the outcome for which the access happens."""

    condition: ir.Expr
    holds: bool


@frozen
class LetStep:
    """A step of an access path: a variable bound to a value, visible from here on."""

    var: ir.Var
    value: ir.Expr


Step = ClockAdvance | LoopStep | GuardStep | LetStep
Way = tuple[Step, ...]


@frozen
class Access:
    """An access in a lowered function: the path to it through loops, guards and bindings, and the elements that it
    touches."""

    way: Way
    buffer: ir.Buffer
    indices: tuple[ir.Expr, ...]
    extent: int
    write: bool
    step: int = 1


_ENDLESS = ir.const(ir.ENDLESS, "int32")
LEAF = 3
"""Ticks of a statement: 0 reads, 1 writes, 2 reads that continue while a call writes."""


def accesses(func: ir.PrimFunc) -> Iterator[Access]:
    """Yield all accesses of a lowered function, each with the path to it."""
    return _sequence_accesses(func.body, (), _Durations())


class _Durations:
    """Upper bounds of the durations of statements in ticks. Each is computed once, after the loops around it."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[ir.Stmt, int]] = {}
        self._reach: dict[ir.Var, tuple[int, int]] = {}

    def of(self, stmt: ir.Stmt) -> int:
        """Return the duration of a statement in ticks."""
        if id(stmt) not in self._known:
            self._known[id(stmt)] = (stmt, sum(self.item(item) for item in _items_in_order(stmt)))
        return self._known[id(stmt)][1]

    def item(self, item: ir.Stmt | LetStep) -> int:
        """Return the duration in ticks of one statement or binding of a sequence."""
        match item:
            case ir.For(_, _, body):
                return self.iterations(item) * self.of(body) + LEAF
            case ir.If(_, then, otherwise):
                return LEAF + self.of(then) + (self.of(otherwise) if otherwise else 0)
            case _:
                return LEAF

    def iterations(self, loop: ir.For) -> int:
        """Return the largest number of iterations of a loop, derived from the ranges of the loops around it.

        An endless loop counts as two iterations, which are equal."""
        most = 2 if loop.extent == _ENDLESS else Simplifier(self._reach).reach(loop.extent)[1]
        if not isinstance(most, int):
            raise InternalError("the order of accesses in a loop whose extent has no bound is unknown")
        self._reach[loop.var] = (0, max(most - 1, 0))
        return max(most, 0)


def _sequence_accesses(stmt: ir.Stmt, path: Way, ticks: _Durations) -> Iterator[Access]:
    """Yield the accesses of a statement that is at the end of ``path``."""
    start = 0
    for item in _items_in_order(stmt):
        here = (*path, ClockAdvance(start))
        start += ticks.item(item)
        match item:
            case ir.Store(buffer, indices, value):
                yield from _operand_accesses((*indices, value), here)
                yield Access((*here, ClockAdvance(1)), buffer, indices, 1, True)
            case ir.Evaluate(value):
                yield from _operand_accesses((value,), here)
            case ir.If(condition, then, otherwise):
                yield from _operand_accesses((condition,), here)
                yield from _sequence_accesses(then, (*here, ClockAdvance(LEAF), GuardStep(condition, True)), ticks)
                if otherwise is not None:
                    after_then = ClockAdvance(LEAF + ticks.of(then))
                    yield from _sequence_accesses(otherwise, (*here, after_then, GuardStep(condition, False)), ticks)
            case ir.For(_, extent, body):
                longest = ticks.iterations(item)
                loop = LoopStep(item, ticks.of(body), longest)
                yield from _sequence_accesses(body, (*here, loop), ticks)
                # The condition of the loop is evaluated once more at its end.
                yield from _operand_accesses((extent,), (*here, ClockAdvance(loop.longest * loop.span)))
            case LetStep():
                yield from _operand_accesses((item.value,), here)
                path = (*path, item)
            case _:
                raise InternalError(f"plan check: unexpected {type(item).__name__}; expected a lowered function")


def _items_in_order(stmt: ir.Stmt) -> Iterator[ir.Stmt | LetStep]:
    """Yield statements in order; a let becomes a :class:`LetStep` for the statements behind it."""
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


def _operand_accesses(exprs: tuple[ir.Expr, ...], path: Way) -> Iterator[Access]:
    """Yield the accesses of expressions.

    Reads come before writes through pointers, but a call that does both may read until it ends.
    """
    for expr in exprs:
        yield from _expression_accesses(expr, path, during=False)


def _expression_accesses(expr: ir.Expr, path: Way, *, during: bool) -> Iterator[Access]:
    """Yield the accesses of an expression. ``during``: it is read while the call around it writes."""
    match expr:
        case ir.Load(buffer, indices):
            yield Access((*path, ClockAdvance(2 if during else 0)), buffer, indices, 1, False)
            for index in indices:
                yield from _expression_accesses(index, path, during=during)
        case ir.AddressOf(buffer, indices, extent, writes, step):
            tick = 1 if writes else 2 if during else 0
            yield Access((*path, ClockAdvance(tick)), buffer, indices, extent, writes, step)
            for index in indices:
                yield from _expression_accesses(index, path, during=during)
        case ir.Call(_, args):
            stores = any(isinstance(a, ir.AddressOf) and a.writes for a in args)
            for a in args:
                yield from _expression_accesses(a, path, during=during or (stores and isinstance(a, ir.AddressOf)))
        case ir.Select(condition, a, b):
            yield from _expression_accesses(condition, path, during=during)
            yield from _expression_accesses(a, (*path, GuardStep(condition, True)), during=during)
            yield from _expression_accesses(b, (*path, GuardStep(condition, False)), during=during)
        case ir.Bin(("and" | "or") as op, a, b):
            yield from _expression_accesses(a, path, during=during)
            yield from _expression_accesses(b, (*path, GuardStep(a, op == "and")), during=during)
        case ir.Bin(_, a, b):
            yield from _expression_accesses(a, path, during=during)
            yield from _expression_accesses(b, path, during=during)
        case ir.Un(_, a) | ir.Cast(_, a):
            yield from _expression_accesses(a, path, during=during)
        case ir.Const() | ir.Var():
            return
        case _:
            raise InternalError(f"plan check: unknown type of expression; got {type(expr).__name__}")


def deciding_variables(access: Access) -> set[ir.Var]:
    """Return the variables on which it depends whether an access happens and to which element."""
    needed = {var for index in access.indices for var in free_vars(index)}
    for step in reversed(access.way):
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
# It works the other way round than the analysis that the planner trusts (:mod:`microc.tir.analysis.access_order`). That one
# collects accesses from the inside out, derives the times of addresses and ignores guards. Here the path to each access is
# walked from the outside in, with all executions side by side in arrays, and guards drop those that do not pass. A loop that
# an access does not depend on runs only its first and last iteration: those between touch the same bytes.

NEVER = 1 << 62  # time of the first write of a byte that is not written
_CHUNK = 1 << 18
"""Executions of an access that are computed side by side."""


Values = Mapping[ir.Var, Array | None]
"""Variables, one number for each of some executions side by side; None if it depends on data."""


class Replay:
    """Times of the first write and the last touch of every byte of the watched buffers of a lowered function, on one
    clock."""

    def __init__(self, func: ir.PrimFunc, watched: Iterable[ir.Buffer]) -> None:
        self.first_write = {b: np.full(b.nbytes, NEVER, np.int64) for b in watched}
        self.last_touch = {b: np.full(b.nbytes, -1, np.int64) for b in self.first_write}
        for access in accesses(func):
            if access.buffer in self.first_write:
                self._replay_access(access)

    def _replay_access(self, access: Access) -> None:
        """Record the times of all executions of one access."""
        for values, when in _executions_at_end(access.way, deciding_variables(access), {}, np.zeros(1, np.int64)):
            self._record_executions(access, values, when)

    def _record_executions(self, access: Access, values: Values, ticks: Array) -> None:
        """Record the times of some executions of an access.

        ``values``: values of the variables, by execution; ``ticks``: when each happens."""
        buffer, width = access.buffer, dtypes.nbytes(access.buffer.dtype)
        numbers = [_evaluate(index, values) for index in access.indices]
        known, inside = np.zeros_like(ticks), np.ones(len(ticks), bool)
        unknown = np.zeros(1, np.int64)  # an index that depends on data may be any along its axis
        for number, extent, stride in zip(numbers, buffer.shape, buffer.strides, strict=True):
            if number is None:
                unknown = (unknown[:, None] + np.arange(extent) * stride).reshape(-1)
            else:  # behind a guard that depends on data, indices may be out of range
                inside &= (number >= 0) & (number < extent)
                known = known + number * stride
        known, first, last = _first_and_last_times(known[inside], ticks[inside])
        offsets = (np.arange(access.extent)[:, None] * access.step * width + np.arange(width)).reshape(-1)
        for start in range(0, len(known), max(1, _CHUNK // (len(unknown) * len(offsets)))):
            part = slice(start, start + max(1, _CHUNK // (len(unknown) * len(offsets))))
            element = known[part, None, None] + unknown[:, None]
            touched = np.minimum(element * width + offsets, buffer.nbytes - 1)
            self._record_bytes(access, touched, first[part, None, None], last[part, None, None])

    def _record_bytes(self, access: Access, byte_positions: Array, first_ticks: Array, last_ticks: Array) -> None:
        """Record the first and last ticks at which an access touches bytes, by their positions in the buffer."""
        byte_positions, first_ticks, last_ticks = (
            part.reshape(-1) for part in np.broadcast_arrays(byte_positions, first_ticks, last_ticks)
        )
        np.maximum.at(self.last_touch[access.buffer], byte_positions, last_ticks)
        if access.write:
            np.minimum.at(self.first_write[access.buffer], byte_positions, first_ticks)


def _first_and_last_times(positions: Array, ticks: Array) -> tuple[Array, Array, Array]:
    """Return the distinct positions, each with the earliest and the latest of its ticks."""
    distinct, number = np.unique(positions, return_inverse=True)
    first, last = np.full(len(distinct), NEVER, np.int64), np.full(len(distinct), -1, np.int64)
    np.minimum.at(first, number, ticks)
    np.maximum.at(last, number, ticks)
    return distinct, first, last


def _executions_at_end(
    path: Way, needed_variables: set[ir.Var], values: Values, ticks: Array
) -> Iterator[tuple[Values, Array]]:
    """Yield the executions that reach the end of a path, in batches: values of variables, and ticks.

    ``needed_variables``: variables that decide whether and where the access happens."""
    for position, step in enumerate(path):
        match step:
            case ClockAdvance(start):
                ticks = ticks + start
            case GuardStep(condition, holds):
                values, ticks = _filter_by_guard(condition, holds, values, ticks)
            case LetStep(var, value) if var in needed_variables:
                named = _evaluate(value, values)
                values = {**values, var: None if named is None else np.broadcast_to(named, ticks.shape)}
            case LoopStep():
                for inner, then in _iterate_loop(step, needed_variables, values, ticks):
                    yield from _executions_at_end(path[position + 1 :], needed_variables, inner, then)
                return
    yield values, ticks


def _filter_by_guard(condition: ir.Expr, holds: bool, values: Values, ticks: Array) -> tuple[Values, Array]:
    """Return those executions that pass a guard, with their values and ticks; a guard that depends on data passes all."""
    # `a and b` holds if both hold, `a or b` fails if both fail: each part is a guard, even if the other depends on data.
    if isinstance(condition, ir.Bin) and condition.op == ("and" if holds else "or"):
        for part in (condition.a, condition.b):
            values, ticks = _filter_by_guard(part, holds, values, ticks)
        return values, ticks
    outcome = _evaluate(condition, values)
    if outcome is None:
        return values, ticks
    chosen = np.broadcast_to(outcome.astype(bool) == holds, ticks.shape)
    return _select_executions(values, chosen), ticks[chosen]


def _iterate_loop(
    step: LoopStep, needed_variables: set[ir.Var], values: Values, ticks: Array
) -> Iterator[tuple[Values, Array]]:
    """Yield the executions of a loop's iterations, some at a time.

    Only the first and the last iteration if the loop variable is not among ``needed_variables``."""
    loop = step.loop
    extents = _evaluate(loop.extent, values)
    if extents is None or loop.kind == "parallel":
        raise InternalError(
            f"the order of accesses in loop {loop.var.name} is unknown: it is parallel, or its extent depends on data"
        )
    if step.longest < int(extents.max(initial=0)):
        if loop.var in needed_variables:
            raise InternalError(f"loop {loop.var.name} has no bound, and addresses depend on its iteration")
        extents = np.minimum(extents, step.longest)
    extents = np.broadcast_to(extents, ticks.shape)
    count = int(extents.max(initial=0))
    iterations = np.arange(count if loop.var in needed_variables else min(count, 2))
    at_once = max(1, _CHUNK // max(len(ticks), 1))
    for start in range(0, len(iterations), at_once):
        batch = iterations[start : start + at_once]
        parent, number = np.repeat(np.arange(len(ticks)), len(batch)), np.tile(batch, len(ticks))
        if loop.var not in needed_variables:
            number = number * (extents[parent] - 1)
        is_run = (number >= 0) & (number < extents[parent])
        parent, number = parent[is_run], number[is_run]
        yield {**_select_executions(values, parent), loop.var: number}, ticks[parent] + number * step.span


def _select_executions(values: Values, chosen: Array) -> dict[ir.Var, Array | None]:
    """Return the values of variables in the chosen executions."""
    return {var: None if array is None else array[chosen] for var, array in values.items()}


def _evaluate(expr: ir.Expr, values: Values) -> Array | None:
    """Evaluate an integer expression for every execution; None if it depends on data."""
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


# ---- The checker: executes the calls on an arena of owners.
#
# Every byte of every arena has an owner, the value that was written there last. A read of a byte with another owner, or
# outside of the arenas, is a defect of the plan. If operands of one call overlap, its loops are replayed for the order in
# which they touch each byte.

_KEPT = 1 << 15
"""Bytes of operands up to which a replay is kept for the next call of the same kernel; it takes 16 times as much memory."""


class _ArenaOwners:
    """The owner of every byte of the arena: the value that was written there last.

    Bytes between two neighbouring ends of values always have the same owner, so they share an element of ``owner``."""

    def __init__(self, module: Module) -> None:
        assert module.plan is not None
        self.module, self.plan = module, module.plan
        self.numbers = {name: k + 1 for k, name in enumerate(module.values)}
        ends = {end for place in map(self.place, module.values) if place for end in (place[0].start, place[0].stop)}
        self.edges = np.array(sorted(ends), dtype=np.int64)
        self.owner = np.zeros(len(self.edges), dtype=np.int32)
        self.replays: dict[tuple[object, ...], Replay] = {}

    def cells(self, byte_range: slice) -> slice:
        """Return the elements of ``owner`` that a range of bytes covers."""
        first, last = np.searchsorted(self.edges, (byte_range.start, byte_range.stop))
        return slice(int(first), int(last))

    def place(self, name: str) -> tuple[slice, int] | None:
        """Return the bytes of a value (or view) in the arena and the number of its owner; None if it is not in the arena."""
        nbytes, offset = self.module.values[name].nbytes, 0
        base = name
        links = {v.name: v for v in self.module.views}
        while base in links:
            offset += links[base].offset
            base = links[base].base
        if offset + nbytes > self.module.values[base].nbytes:
            raise InternalError(f"view {name} reaches beyond {base}")
        start = self.plan.offsets.get(base)
        if start is None:
            if self.module.values[base].storage in ("intermediate", "workspace", "state"):
                raise InternalError(f"{base} has no place in the arena")
            return None
        start += offset
        if start < 0 or start + nbytes > self.plan.size:
            raise InternalError(f"{name} lies outside the arena")
        if self.plan.arenas and not any(
            a.start <= start and start + nbytes <= a.start + a.size for a in self.plan.arenas
        ):
            raise InternalError(f"{name} is not within a single arena of the plan")
        if start % self.module.values[base].align and not offset:
            raise InternalError(f"{name} is misaligned")
        return slice(start, start + nbytes), self.numbers[base]

    def write(self, name: str) -> None:
        """Make a value the owner of its bytes."""
        place = self.place(name)
        if place is not None:
            self.owner[self.cells(place[0])] = place[1]

    def read(self, name: str, reader: str) -> None:
        """Check that a value owns its bytes; InternalError, which names the ``reader``, if not."""
        place = self.place(name)
        if place is not None and not np.all(self.owner[self.cells(place[0])] == place[1]):
            raise InternalError(f"{reader} reads {name}, whose memory was overwritten")


def _common_bytes(a: slice, b: slice) -> slice:
    """Return the bytes that two ranges share; an empty or backward slice if there are none."""
    return slice(max(a.start, b.start), min(a.stop, b.stop))


def _check_call(arena: _ArenaOwners, call: Call) -> None:
    """Check operands of one call that share bytes: one must be done before the other is written.

    A result, which later calls read, must be written last.
    """
    ranges = {name: place[0] for name in (*call.reads, *call.writes, *call.workspace) if (place := arena.place(name))}
    pairs = [
        (one, other)
        for one in (*call.writes, *call.workspace)
        for other in ranges
        if one in ranges and one != other and _slice_length(_common_bytes(ranges[one], ranges[other])) > 0
    ]
    if not pairs:
        return
    kernel = next((k for k in arena.module.kernels if k.name == call.kernel), None)
    if kernel is None:
        raise InternalError(f"{call.kernel}: {pairs[0][0]} overlaps {pairs[0][1]}")
    names = {name for pair in pairs for name in pair}
    for sizes in _replay_sizes(arena.module) if kernel.func.scalars else [{}]:
        _check_pairs(_TouchTimes(arena, kernel.func, sizes, call, names), call, ranges, pairs)


def _check_pairs(order: _TouchTimes, call: Call, places: Mapping[str, slice], pairs: Sequence[tuple[str, str]]) -> None:
    """Check pairs of operands that share bytes of the arena, at one choice of sizes.

    InternalError if an operand is overwritten while it is in use."""
    for one, other in pairs:
        common = _common_bytes(places[one], places[other])
        free = order.done_before(other, one, places, common) & (other not in call.writes)
        if other in (*call.writes, *call.workspace):
            free |= order.done_before(one, other, places, common) & (one not in call.writes)
        if not free.all():
            byte = common.start + int(np.argmin(free))
            raise InternalError(f"{call.kernel}: {one} overlaps {other} while it is in use (byte {byte} of the arena)")
        if not _may_alias(order.dtypes[one], order.dtypes[other]):
            raise InternalError(f"{call.kernel}: {one} overlaps {other} of another type, which C forbids to alias")


def _replay_sizes(module: Module) -> list[dict[str, int]]:
    """Return sizes at which calls are replayed.

    These are the largest, the smallest, their neighbours, the middle, and one size large with the others small.
    """
    most = [(size.maximum - size.minimum) // size.step for size in module.sizes]
    steps = [most, [0 for _ in most], [min(n, 1) for n in most], [max(n - 1, 0) for n in most], [n // 2 for n in most]]
    steps += [[n if j == k else 0 for j, n in enumerate(most)] for k in range(len(most))]
    return [
        {s.scalar.name: s.minimum + n * s.step for s, n in zip(module.sizes, point, strict=True)}
        for point in dict.fromkeys(map(tuple, steps))
    ]


def _slice_length(byte_range: slice) -> int:
    return int(byte_range.stop - byte_range.start)


def _may_alias(one: set[str], other: set[str]) -> bool:
    """Test whether C allows accesses of these dtypes to the same memory: only characters may alias other types."""
    return all(a == b or "int8" in (a, b) or "uint8" in (a, b) for a in one for b in other)


class _TouchTimes:
    """Times at which a call touches the bytes of some of its operands."""

    def __init__(
        self, arena: _ArenaOwners, func: PrimFunc, sizes: Mapping[str, int], call: Call, names: set[str]
    ) -> None:
        func = instantiate(func, sizes)
        self.params = {name: [p for p, a in zip(func.params, call.args, strict=True) if a == name] for name in names}
        self.dtypes = {name: {p.dtype for p in params} for name, params in self.params.items()}
        watched = [p for params in self.params.values() for p in params]
        key = (call.kernel, *sorted(sizes.items()), *sorted(p.name for p in watched))
        self.replay = arena.replays.get(key) or Replay(expand_memory_calls(func), watched)
        if sum(p.nbytes for p in watched) <= _KEPT:
            arena.replays[key] = self.replay

    def done_before(self, first: str, second: str, places: Mapping[str, slice], common: slice) -> Array:
        """Test for each byte whether ``first`` is touched for the last time before ``second`` is first written."""

        def part(times: Mapping[Buffer, Array], name: str) -> list[Array]:
            base = places[name].start
            return [times[p][common.start - base : common.stop - base] for p in self.params[name]]

        last: Array = np.max(part(self.replay.last_touch, first), axis=0)
        start: Array = np.min(part(self.replay.first_write, second), axis=0)
        return last < start


def _check_arenas(plan: Plan) -> None:
    """Check that arenas are disjoint and within their memories.

    Only the first may exceed its memory: the fit of the firmware is checked elsewhere, and refuses the board.
    """
    end = 0
    for arena in plan.used:
        if arena.start < end or arena.start + arena.size > plan.size:
            raise InternalError(f"the arena in {arena.memory} lies over another")
        if arena != plan.arenas[0] and arena.size > arena.capacity:
            raise InternalError(f"the arena in {arena.memory} takes {arena.size} bytes of {arena.capacity}")
        end = arena.start + arena.size


def check_plan(module: Module) -> None:
    """Raise InternalError if the plan lets any value be overwritten before its last use."""
    arena = _ArenaOwners(module)
    _check_arenas(arena.plan)
    kept = [name for name, step in arena.plan.copies.items() if step < 0]
    for name in (*module.inputs, *module.state, *kept):
        arena.write(name)
    for number, call in enumerate(module.calls):
        copied = [name for name in call.args if module.values[name].storage == "const"]
        for name, step in arena.plan.copies.items():
            if step == number:  # the copy may be written while the call runs
                arena.write(name)
        for name in (*call.reads, *copied):
            arena.read(name, call.kernel)
        _check_call(arena, call)
        for name in (*call.workspace, *call.writes):
            arena.write(name)
        for name in copied:
            arena.read(name, call.kernel)
    for name in (*module.outputs, *module.state, *kept):
        arena.read(name, "the caller")
