"""The checker: executes the call sequence on an arena of owners. It shares no code with the planners.

Every byte remembers whose value it holds. A read of a byte that holds something else, a write over an operand of the same
call, or a place outside the arena is a defect of the plan.
"""

from __future__ import annotations

import numpy as np

from microc.errors import InternalError
from microc.module import Call, Module


class _Arena:
    def __init__(self, module: Module) -> None:
        assert module.plan is not None
        self.module, self.plan = module, module.plan
        self.numbers = {name: k + 1 for k, name in enumerate(module.values)}
        ends = {end for place in map(self.place, module.values) if place for end in (place[0].start, place[0].stop)}
        self.edges = np.array(sorted(ends), dtype=np.int64)
        self.owner = np.zeros(len(self.edges), dtype=np.int32)

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


def _overlap(a: slice, b: slice) -> bool:
    return bool(a.start < b.stop and b.start < a.stop)


def _check_call(arena: _Arena, call: Call) -> None:
    """Operands of one call keep out of each other's way, in-place pairs excepted: those start at the same byte."""
    for written in (*call.writes, *call.workspace):
        mine = arena.place(written)
        if mine is None:
            continue
        for other in (*call.reads, *call.writes, *call.workspace):
            theirs = arena.place(other)
            if other == written or theirs is None or not _overlap(mine[0], theirs[0]):
                continue
            if (written, other) in call.inplace and mine[0] == theirs[0]:
                continue
            raise InternalError(f"{call.kernel}: {written} overlaps {other}")


def check_plan(module: Module) -> None:
    """Raise InternalError if the plan lets any value be damaged before its last use."""
    arena = _Arena(module)
    for name in (*module.inputs, *module.state):
        arena.write(name)
    for call in module.calls:
        for name in call.reads:
            arena.read(name, call.kernel)
        _check_call(arena, call)
        for name in (*call.workspace, *call.writes):
            arena.write(name)
    for name in (*module.outputs, *module.state):
        arena.read(name, "the caller")
