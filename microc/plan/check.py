"""The checker: executes the call sequence on an arena of owners. It shares no code with the planners.

Every byte of every arena remembers whose value it holds. A read of a byte that holds something else or a place outside of the
arenas is a defect of the plan. Where operands of one call overlap, the call's loops are run to see in which order they touch each
byte (:mod:`microc.plan.replay`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from microc.dtypes import Array
from microc.errors import InternalError
from microc.module import Call, Module, Plan
from microc.plan.replay import Replay
from microc.schedule.runs import spelled
from microc.tir.generalise import instantiate
from microc.tir.ir import Buffer, PrimFunc

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
