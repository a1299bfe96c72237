"""When every value in the arena is alive, and which of them must not overlap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from microc.module import Call, Module

BEFORE = -1
"""The time before the first call, when inputs are written."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Values that share one place (in-place chains), alive from call ``first`` to call ``last``, both included."""

    names: tuple[str, ...]
    size: int
    align: int
    first: int
    last: int

    def conflicts(self, other: Unit) -> bool:
        """Whether some call needs both."""
        return self.first <= other.last and other.first <= self.last


def in_arena(module: Module, name: str, *, io_in_arena: bool) -> bool:
    """Whether a value (not a view) lives in the arena."""
    storage = module.values[name].storage
    return storage in ("intermediate", "workspace", "state") or (io_in_arena and storage in ("input", "output"))


def lifetimes(module: Module, *, io_in_arena: bool) -> dict[str, tuple[int, int]]:
    """First and last call of every value in the arena; a view counts as a use of its base."""
    end = len(module.calls)
    found: dict[str, tuple[int, int]] = {}

    def use(name: str, time: int) -> None:
        base, _ = module.base_of(name)
        if in_arena(module, base, io_in_arena=io_in_arena):
            first, last = found.get(base, (time, time))
            found[base] = min(first, time), max(last, time)

    for name in (*module.inputs, *module.state):
        use(name, BEFORE)
    for time, call in enumerate(module.calls):
        for name in (*call.reads, *call.writes, *call.workspace):
            use(name, time)
    for name in (*module.outputs, *module.state):
        use(name, end)
    return found


def units(module: Module, *, io_in_arena: bool) -> tuple[Unit, ...]:
    """The things to place. A value that dies in the call that makes another of its size, in place, shares its unit."""
    alive = lifetimes(module, io_in_arena=io_in_arena)
    parent: dict[str, str] = {name: name for name in alive}

    def root(name: str) -> str:
        while parent[name] != name:
            name = parent[name]
        return name

    for time, call in enumerate(module.calls):
        taken: set[str] = set()
        for written, read in call.inplace:
            (new, new_offset), (old, old_offset) = module.base_of(written), module.base_of(read)
            if new_offset or old_offset or new not in alive or old not in alive or new in taken:
                continue
            if _also_read(module, call, written, old):
                continue
            same = module.values[new].nbytes == module.values[old].nbytes
            if same and alive[old][1] == time and alive[new][0] == time and root(new) != root(old):
                parent[root(new)] = root(old)
                taken.add(new)  # one result replaces one operand
    members: dict[str, list[str]] = {}
    for name in alive:
        members.setdefault(root(name), []).append(name)
    return tuple(_unit(module, names, alive) for names in members.values())


def _also_read(module: Module, call: Call, written: str, base: str) -> bool:
    """Whether a call reads the memory of ``base`` also through a view that ``written`` must not replace."""
    return any((written, name) not in call.inplace and module.base_of(name)[0] == base for name in call.reads)


def _unit(module: Module, names: list[str], alive: Mapping[str, tuple[int, int]]) -> Unit:
    return Unit(
        names=tuple(names),
        size=max(module.values[n].nbytes for n in names),
        align=max(module.values[n].align for n in names),
        first=min(alive[n][0] for n in names),
        last=max(alive[n][1] for n in names),
    )


def lower_bound(found: tuple[Unit, ...]) -> int:
    """The largest sum of sizes alive at one call: no placement is smaller."""
    times = {u.first for u in found}
    return max((sum(u.size for u in found if u.first <= t <= u.last) for t in times), default=0)
