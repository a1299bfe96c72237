"""The checker: replays every access on an arena of owners. It shares no code with the planner."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.errors import InternalError
from microc.module import Call, Module, Plan
from microc.schedule.cost.loop_region import spelled
from microc.tir import ir
from microc.tir.analysis.generalise import instantiate
from microc.tir.analysis.simplification import Simplifier
from microc.tir.ir import Buffer, PrimFunc
from microc.tir.operators import ARRAYS
from microc.tir.rewrite import free_vars

# ---- For the checker: the way to every access of a lowered function, through statements in a row, guards, names and
# loops.


@frozen
class Slot:
    """So many ticks on."""

    start: int


@frozen
class Turns:
    """The turns of a loop, ``span`` ticks each, at most ``longest`` of them."""

    loop: ir.For
    span: int
    longest: int


@frozen
class Guard:
    """Only where the condition comes out so."""

    condition: ir.Expr
    holds: bool


@frozen
class Name:
    """A value that has a name from here on."""

    var: ir.Var
    value: ir.Expr


Step = Slot | Turns | Guard | Name
Way = tuple[Step, ...]


@frozen
class Access:
    """How to get to an access, and what it touches."""

    way: Way
    buffer: ir.Buffer
    indices: tuple[ir.Expr, ...]
    extent: int
    write: bool
    step: int = 1


_ENDLESS = ir.const(ir.ENDLESS, "int32")
LEAF = 3
"""Ticks of a statement: reads, writes, and reads that go on while a call writes."""


def accesses(func: ir.PrimFunc) -> Iterator[Access]:
    """Everything that a lowered function touches."""
    return _row(func.body, (), _Ticks())


class _Ticks:
    """How long statements last at most; each is measured once, after the loops around it."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[ir.Stmt, int]] = {}
        self._reach: dict[ir.Var, tuple[int, int]] = {}

    def of(self, stmt: ir.Stmt) -> int:
        if id(stmt) not in self._known:
            self._known[id(stmt)] = (stmt, sum(self.item(item) for item in _flat(stmt)))
        return self._known[id(stmt)][1]

    def item(self, item: ir.Stmt | Name) -> int:
        match item:
            case ir.For(_, _, body):
                return self.turns(item) * self.of(body) + LEAF
            case ir.If(_, then, otherwise):
                return LEAF + self.of(then) + (self.of(otherwise) if otherwise else 0)
            case _:
                return LEAF

    def turns(self, loop: ir.For) -> int:
        """The most turns of a loop, by those of the loops around it; two for an endless one, whose turns are alike."""
        most = 2 if loop.extent == _ENDLESS else Simplifier(self._reach).reach(loop.extent)[1]
        if not isinstance(most, int):
            raise InternalError("the order in a loop without a bound is not known")
        self._reach[loop.var] = (0, max(most - 1, 0))
        return max(most, 0)


def _row(stmt: ir.Stmt, way: Way, ticks: _Ticks) -> Iterator[Access]:
    start = 0
    for item in _flat(stmt):
        here = (*way, Slot(start))
        start += ticks.item(item)
        match item:
            case ir.Store(buffer, indices, value):
                yield from _operands((*indices, value), here)
                yield Access((*here, Slot(1)), buffer, indices, 1, True)
            case ir.Evaluate(value):
                yield from _operands((value,), here)
            case ir.If(condition, then, otherwise):
                yield from _operands((condition,), here)
                yield from _row(then, (*here, Slot(LEAF), Guard(condition, True)), ticks)
                if otherwise is not None:
                    past = Slot(LEAF + ticks.of(then))
                    yield from _row(otherwise, (*here, past, Guard(condition, False)), ticks)
            case ir.For(_, extent, body):
                longest = ticks.turns(item)
                turns = Turns(item, ticks.of(body), longest)
                yield from _row(body, (*here, turns), ticks)
                yield from _operands((extent,), (*here, Slot(turns.longest * turns.span)))  # asked once more at the end
            case Name():
                yield from _operands((item.value,), here)
                way = (*way, item)
            case _:
                raise InternalError(f"{type(item).__name__} was not lowered")


def _flat(stmt: ir.Stmt) -> Iterator[ir.Stmt | Name]:
    """Statements in order; a let is a statement that names a value for those behind it."""
    waiting = [stmt]
    while waiting:
        match waiting.pop():
            case ir.Seq(body):
                waiting.extend(reversed(body))
            case ir.Let(var, value, body):
                yield Name(var, value)
                waiting.append(body)
            case ir.Alloc(_, body):
                waiting.append(body)
            case other:
                yield other


def _operands(exprs: tuple[ir.Expr, ...], way: Way) -> Iterator[Access]:
    """Reads come first and writes through pointers second. A call that does both may read until it ends."""
    for expr in exprs:
        yield from _expression(expr, way, during=False)


def _expression(expr: ir.Expr, way: Way, *, during: bool) -> Iterator[Access]:
    match expr:
        case ir.Load(buffer, indices):
            yield Access((*way, Slot(2 if during else 0)), buffer, indices, 1, False)
            for index in indices:
                yield from _expression(index, way, during=during)
        case ir.AddressOf(buffer, indices, extent, writes, step):
            tick = 1 if writes else 2 if during else 0
            yield Access((*way, Slot(tick)), buffer, indices, extent, writes, step)
            for index in indices:
                yield from _expression(index, way, during=during)
        case ir.Call(_, args):
            stores = any(isinstance(a, ir.AddressOf) and a.writes for a in args)
            for a in args:
                yield from _expression(a, way, during=during or (stores and isinstance(a, ir.AddressOf)))
        case ir.Select(condition, a, b):
            yield from _expression(condition, way, during=during)
            yield from _expression(a, (*way, Guard(condition, True)), during=during)
            yield from _expression(b, (*way, Guard(condition, False)), during=during)
        case ir.Bin(("and" | "or") as op, a, b):
            yield from _expression(a, way, during=during)
            yield from _expression(b, (*way, Guard(a, op == "and")), during=during)
        case ir.Bin(_, a, b):
            yield from _expression(a, way, during=during)
            yield from _expression(b, way, during=during)
        case ir.Un(_, a) | ir.Cast(_, a):
            yield from _expression(a, way, during=during)
        case ir.Const() | ir.Var():
            return
        case _:
            raise InternalError(f"unknown expression {type(expr).__name__}")


def variables(access: Access) -> set[ir.Var]:
    """Variables on which it depends whether and where the access happens."""
    found = {var for index in access.indices for var in free_vars(index)}
    for step in reversed(access.way):
        match step:
            case Guard(condition):
                found |= free_vars(condition)
            case Turns(loop):
                found |= free_vars(loop.extent)
            case Name(var, value) if var in found:
                found |= free_vars(value)
    return found


# ---- For the checker: when a call touches every byte of some operands, by walking down to each access and running it
# in order.
#
# It shares no code with the analysis that the planner trusts (:mod:`microc.tir.analysis.access_order`) and works the other way
# round: the analysis collects accesses from the inside out, works out when their addresses come up and ignores guards; here the
# way to each access is walked from the outside in (:mod:`microc.plan.plan_check`), all executions side by side in arrays, and
# guards turn back those that do not pass. A loop that an access does not depend on runs its first and its last turn only: those
# between touch the same bytes.

NEVER = 1 << 62
_CHUNK = 1 << 18
"""Executions of an access that are followed side by side."""


Values = Mapping[ir.Var, Array | None]
"""Variables, one number for each of some executions side by side; None for data."""


class Replay:
    """First write and last touch of every byte of the watched buffers of a lowered function, on one clock."""

    def __init__(self, func: ir.PrimFunc, watched: Iterable[ir.Buffer]) -> None:
        self.first_write = {b: np.full(b.nbytes, NEVER, np.int64) for b in watched}
        self.last_touch = {b: np.full(b.nbytes, -1, np.int64) for b in self.first_write}
        for access in accesses(func):
            if access.buffer in self.first_write:
                self._follow(access)

    def _follow(self, access: Access) -> None:
        """Run one access."""
        for values, when in _walk(access.way, variables(access), {}, np.zeros(1, np.int64)):
            self._touch(access, values, when)

    def _touch(self, access: Access, values: Values, when: Array) -> None:
        buffer, width = access.buffer, dtypes.nbytes(access.buffer.dtype)
        numbers = [_value(index, values) for index in access.indices]
        known, inside = np.zeros_like(when), np.ones(len(when), bool)
        unknown = np.zeros(1, np.int64)  # an index made of data stands anywhere along its axis
        for number, extent, stride in zip(numbers, buffer.shape, buffer.strides, strict=True):
            if number is None:
                unknown = (unknown[:, None] + np.arange(extent) * stride).reshape(-1)
            else:  # behind a guard that is made of data, anything may stand
                inside &= (number >= 0) & (number < extent)
                known = known + number * stride
        known, first, last = _spans(known[inside], when[inside])
        offsets = (np.arange(access.extent)[:, None] * access.step * width + np.arange(width)).reshape(-1)
        for start in range(0, len(known), max(1, _CHUNK // (len(unknown) * len(offsets)))):
            part = slice(start, start + max(1, _CHUNK // (len(unknown) * len(offsets))))
            element = known[part, None, None] + unknown[:, None]
            touched = np.minimum(element * width + offsets, buffer.nbytes - 1)
            self._mark(access, touched, first[part, None, None], last[part, None, None])

    def _mark(self, access: Access, touched: Array, first: Array, last: Array) -> None:
        touched, first, last = (part.reshape(-1) for part in np.broadcast_arrays(touched, first, last))
        np.maximum.at(self.last_touch[access.buffer], touched, last)
        if access.write:
            np.minimum.at(self.first_write[access.buffer], touched, first)


def _spans(places: Array, when: Array) -> tuple[Array, Array, Array]:
    """Every place once, with the earliest and the latest of its times."""
    distinct, number = np.unique(places, return_inverse=True)
    first, last = np.full(len(distinct), NEVER, np.int64), np.full(len(distinct), -1, np.int64)
    np.minimum.at(first, number, when)
    np.maximum.at(last, number, when)
    return distinct, first, last


def _walk(way: Way, wanted: set[ir.Var], values: Values, when: Array) -> Iterator[tuple[Values, Array]]:
    """Executions of what lies at the end of a way: variables and times side by side."""
    for position, step in enumerate(way):
        match step:
            case Slot(start):
                when = when + start
            case Guard(condition, holds):
                values, when = _guarded(condition, holds, values, when)
            case Name(var, value) if var in wanted:
                named = _value(value, values)
                values = {**values, var: None if named is None else np.broadcast_to(named, when.shape)}
            case Turns():
                for inner, then in _turns(step, wanted, values, when):
                    yield from _walk(way[position + 1 :], wanted, inner, then)
                return
    yield values, when


def _guarded(condition: ir.Expr, holds: bool, values: Values, when: Array) -> tuple[Values, Array]:
    """The executions that a guard lets pass; one that is made of data lets all pass."""
    if isinstance(condition, ir.Bin) and condition.op == ("and" if holds else "or"):
        for part in (condition.a, condition.b):
            values, when = _guarded(part, holds, values, when)
        return values, when
    outcome = _value(condition, values)
    if outcome is None:
        return values, when
    chosen = np.broadcast_to(outcome.astype(bool) == holds, when.shape)
    return _picked(values, chosen), when[chosen]


def _turns(step: Turns, wanted: set[ir.Var], values: Values, when: Array) -> Iterator[tuple[Values, Array]]:
    """The turns of a loop, some at a time; the first and the last only, if the access does not depend on the loop."""
    loop = step.loop
    extents = _value(loop.extent, values)
    if extents is None or loop.kind == "parallel":
        raise InternalError(f"the order in loop {loop.var.name} is not known")
    if step.longest < int(extents.max(initial=0)):
        if loop.var in wanted:
            raise InternalError(f"loop {loop.var.name} is endless and addresses by its turn")
        extents = np.minimum(extents, step.longest)
    extents = np.broadcast_to(extents, when.shape)
    count = int(extents.max(initial=0))
    turns = np.arange(count if loop.var in wanted else min(count, 2))
    at_once = max(1, _CHUNK // max(len(when), 1))
    for start in range(0, len(turns), at_once):
        some = turns[start : start + at_once]
        parent, number = np.repeat(np.arange(len(when)), len(some)), np.tile(some, len(when))
        if loop.var not in wanted:
            number = number * (extents[parent] - 1)
        chosen = (number >= 0) & (number < extents[parent])
        parent, number = parent[chosen], number[chosen]
        yield {**_picked(values, parent), loop.var: number}, when[parent] + number * step.span


def _picked(values: Values, chosen: Array) -> dict[ir.Var, Array | None]:
    return {var: None if array is None else array[chosen] for var, array in values.items()}


def _value(expr: ir.Expr, values: Values) -> Array | None:
    """An integer expression for every execution; None where data decides."""
    match expr:
        case ir.Const(int() as value):
            return np.array(value)
        case ir.Var():
            return values.get(expr)
        case ir.Un("neg", a):
            x = _value(a, values)
            return None if x is None else -x
        case ir.Un("not", a):
            x = _value(a, values)
            return None if x is None else ~x
        case ir.Bin(op, a, b) if op in ARRAYS:
            x, y = _value(a, values), _value(b, values)
            return None if x is None or y is None else ARRAYS[op](x, y)
        case ir.Select(c, a, b):
            chosen, x, y = (_value(part, values) for part in (c, a, b))
            return None if chosen is None or x is None or y is None else np.where(chosen, x, y)
        case _:
            return None


# ---- The checker: executes the call sequence on an arena of owners. It shares no code with the planners.
#
# Every byte of every arena remembers whose value it holds. A read of a byte that holds something else or a place outside of the
# arenas is a defect of the plan. Where operands of one call overlap, the call's loops are run to see in which order they touch
# each byte (:mod:`microc.plan.plan_check`).

_KEPT = 1 << 15
"""Bytes of operands whose replay is kept for the next call of the same kernel; it takes 16 times as many."""


class _Arena:
    def __init__(self, module: Module) -> None:
        assert module.plan is not None
        self.module, self.plan = module, module.plan
        self.numbers = {name: k + 1 for k, name in enumerate(module.values)}
        ends = {end for place in map(self.place, module.values) if place for end in (place[0].start, place[0].stop)}
        self.edges = np.array(sorted(ends), dtype=np.int64)
        self.owner = np.zeros(len(self.edges), dtype=np.int32)
        self.replays: dict[tuple[object, ...], Replay] = {}

    def cells(self, place: slice) -> slice:
        """The stretches between neighbouring edges that a place covers: their bytes share all their owners."""
        first, last = np.searchsorted(self.edges, (place.start, place.stop))
        return slice(int(first), int(last))

    def place(self, name: str) -> tuple[slice, int] | None:
        """The bytes of a value (or view) and the number of its owner; None when it lives outside the arena."""
        nbytes, offset = self.module.values[name].nbytes, 0
        seen = name
        links = {v.name: v for v in self.module.views}
        while seen in links:
            offset += links[seen].offset
            seen = links[seen].base
        if offset + nbytes > self.module.values[seen].nbytes:
            raise InternalError(f"view {name} reaches beyond {seen}")
        start = self.plan.offsets.get(seen)
        if start is None:
            if self.module.values[seen].storage in ("intermediate", "workspace", "state"):
                raise InternalError(f"{seen} has no place in the arena")
            return None
        start += offset
        if start < 0 or start + nbytes > self.plan.size:
            raise InternalError(f"{name} lies outside the arena")
        if self.plan.arenas and not any(
            a.start <= start and start + nbytes <= a.start + a.size for a in self.plan.arenas
        ):
            raise InternalError(f"{name} lies in no arena, or in two")
        if start % self.module.values[seen].align and not offset:
            raise InternalError(f"{name} is misaligned")
        return slice(start, start + nbytes), self.numbers[seen]

    def write(self, name: str) -> None:
        place = self.place(name)
        if place is not None:
            self.owner[self.cells(place[0])] = place[1]

    def read(self, name: str, who: str) -> None:
        place = self.place(name)
        if place is not None and not np.all(self.owner[self.cells(place[0])] == place[1]):
            raise InternalError(f"{who} reads {name}, whose memory was overwritten")


def _shared(a: slice, b: slice) -> slice:
    """The bytes that two places have in common; an empty or backward slice if there are none."""
    return slice(max(a.start, b.start), min(a.stop, b.stop))


def _check_call(arena: _Arena, call: Call) -> None:
    """Operands of one call keep out of each other's way: where they share bytes, one is done before the other comes.

    What is written for later (not for this call only) has to come last.
    """
    places = {name: place[0] for name in (*call.reads, *call.writes, *call.workspace) if (place := arena.place(name))}
    pairs = [
        (one, other)
        for one in (*call.writes, *call.workspace)
        for other in places
        if one in places and one != other and _length(_shared(places[one], places[other])) > 0
    ]
    if not pairs:
        return
    kernel = next((k for k in arena.module.kernels if k.name == call.kernel), None)
    if kernel is None:
        raise InternalError(f"{call.kernel}: {pairs[0][0]} overlaps {pairs[0][1]}")
    names = {name for pair in pairs for name in pair}
    for sizes in _tried(arena.module) if kernel.func.scalars else [{}]:
        _check_pairs(_Order(arena, kernel.func, sizes, call, names), call, places, pairs)


def _check_pairs(order: _Order, call: Call, places: Mapping[str, slice], pairs: Sequence[tuple[str, str]]) -> None:
    """Operands that share bytes, at some sizes."""
    for one, other in pairs:
        common = _shared(places[one], places[other])
        free = order.done_before(other, one, places, common) & (other not in call.writes)
        if other in (*call.writes, *call.workspace):
            free |= order.done_before(one, other, places, common) & (one not in call.writes)
        if not free.all():
            byte = common.start + int(np.argmin(free))
            raise InternalError(f"{call.kernel}: {one} overlaps {other} while it is in use (byte {byte} of the arena)")
        if not _may_alias(order.dtypes[one], order.dtypes[other]):
            raise InternalError(f"{call.kernel}: {one} overlaps {other} of another type")


def _tried(module: Module) -> list[dict[str, int]]:
    """Sizes at which calls are replayed: the largest and the smallest, their neighbours, one large only, the middle."""
    most = [(size.maximum - size.minimum) // size.step for size in module.sizes]
    steps = [most, [0 for _ in most], [min(n, 1) for n in most], [max(n - 1, 0) for n in most], [n // 2 for n in most]]
    steps += [[n if j == k else 0 for j, n in enumerate(most)] for k in range(len(most))]
    return [
        {s.scalar.name: s.minimum + n * s.step for s, n in zip(module.sizes, point, strict=True)}
        for point in dict.fromkeys(map(tuple, steps))
    ]


def _length(place: slice) -> int:
    return int(place.stop - place.start)


def _may_alias(one: set[str], other: set[str]) -> bool:
    """C lets characters alias everything, and other types themselves only."""
    return all(a == b or "int8" in (a, b) or "uint8" in (a, b) for a in one for b in other)


class _Order:
    """When a call touches the bytes of some operands."""

    def __init__(self, arena: _Arena, func: PrimFunc, sizes: Mapping[str, int], call: Call, names: set[str]) -> None:
        func = instantiate(func, sizes)
        self.params = {name: [p for p, a in zip(func.params, call.args, strict=True) if a == name] for name in names}
        self.dtypes = {name: {p.dtype for p in params} for name, params in self.params.items()}
        watched = [p for params in self.params.values() for p in params]
        key = (call.kernel, *sorted(sizes.items()), *sorted(p.name for p in watched))
        self.replay = arena.replays.get(key) or Replay(spelled(func), watched)
        if sum(p.nbytes for p in watched) <= _KEPT:
            arena.replays[key] = self.replay

    def done_before(self, first: str, second: str, places: Mapping[str, slice], common: slice) -> Array:
        """By byte: whether ``first`` is touched for the last time before ``second`` is written for the first time."""

        def part(times: Mapping[Buffer, Array], name: str) -> list[Array]:
            base = places[name].start
            return [times[p][common.start - base : common.stop - base] for p in self.params[name]]

        last: Array = np.max(part(self.replay.last_touch, first), axis=0)
        start: Array = np.min(part(self.replay.first_write, second), axis=0)
        return last < start


def _check_arenas(plan: Plan) -> None:
    """Arenas keep apart, and within their memories; only the first may be too large, for which a board is refused."""
    end = 0
    for arena in plan.used:
        if arena.start < end or arena.start + arena.size > plan.size:
            raise InternalError(f"the arena in {arena.memory} lies over another")
        if arena != plan.arenas[0] and arena.size > arena.capacity:
            raise InternalError(f"the arena in {arena.memory} takes {arena.size} bytes of {arena.capacity}")
        end = arena.start + arena.size


def check_plan(module: Module) -> None:
    """Raise InternalError if the plan lets any value be damaged before its last use."""
    arena = _Arena(module)
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
