"""The order of calls that needs the least memory at once, where a network branches.

The search goes through sets of finished calls, level by level, and keeps the best few at each: exact while there are no more
than :data:`WIDTH` of them. A chain has one order only.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

from microc.module import Call, Module
from microc.plan.liveness import in_arena
from microc.plan.overlap import Overlaps

WIDTH = 64


@dataclass(frozen=True, slots=True)
class _State:
    """Calls done so far: the largest need until now, what is alive, and the order."""

    peak: int
    live: frozenset[str]
    order: tuple[int, ...]


def order_calls(module: Module, overlaps: Overlaps, *, io_in_arena: bool) -> Module:
    """``module`` with its calls in a topological order of small peak; as it is, if no other order is better."""
    search = Search(module, overlaps, io_in_arena=io_in_arena)
    if all(k - 1 in earlier for k, earlier in enumerate(search.needs) if k):
        return module
    found = search.best()
    if found.peak >= search.along(range(len(module.calls))).peak:
        return module
    return replace(module, calls=tuple(module.calls[k] for k in found.order))


def _needs(module: Module) -> list[set[int]]:
    """For every call the earlier ones that must stay in front of it: it reads what they write, or writes what they touch.

    Parts of a concatenation are written in any order.
    """
    bases = {name: module.base_of(name)[0] for name in module.values}
    found: list[set[int]] = []
    for k, call in enumerate(module.calls):
        reads, writes = ({bases[name] for name in names} for names in (call.reads, call.writes))
        found.append(
            {
                j
                for j, other in enumerate(module.calls[:k])
                if any(bases[n] in reads for n in other.writes)
                or any(bases[n] in writes for n in other.reads)
                or any(n in call.writes for n in other.writes)
            }
        )
    return found


class Search:
    """Sizes, uses and savings of a module's calls. ``needs``: for every call those that must run before it."""

    def __init__(self, module: Module, overlaps: Overlaps, *, io_in_arena: bool) -> None:
        self.needs = _needs(module)
        placed = {n for n in module.values if in_arena(module, n, io_in_arena=io_in_arena)}
        self.sizes = {name: module.values[name].nbytes for name in placed}

        def bases(names: Sequence[str]) -> frozenset[str]:
            return frozenset(module.base_of(name)[0] for name in names) & placed

        self.touched = [bases((*c.reads, *c.writes)) for c in module.calls]
        self.scratch = [sum(self.sizes[n] for n in c.workspace) for c in module.calls]
        self.kept = bases((*module.outputs, *module.state))
        self.users = {n: frozenset(k for k, t in enumerate(self.touched) if n in t) for n in placed}
        self.start = _State(0, bases((*module.inputs, *module.state)), ())
        self.overlaps = overlaps
        self.calls: tuple[Call, ...] = module.calls

    def after(self, state: _State, k: int) -> _State:
        """The state when call ``k`` has run, too."""
        order = (*state.order, k)
        during = state.live | self.touched[k]
        ending = {n for n in self.touched[k] if n not in self.kept and self.users[n] <= set(order)}
        starting = self.touched[k] - state.live
        need = sum(self.sizes[n] for n in during) + self.scratch[k] - self._shared(k, ending - starting, starting)
        return _State(max(state.peak, need), frozenset(during - ending), order)

    def _shared(self, k: int, ending: Set[str], starting: Set[str]) -> int:
        """The most bytes that values of a call may have in common."""
        call, total = self.calls[k], 0
        for old in sorted({*ending, *call.workspace}):
            for new in sorted({*starting, *call.workspace}):
                room = self.overlaps.room(call, old, new) if old != new else None
                total += room.shared if room is not None else 0
        return total

    def along(self, order: Sequence[int]) -> _State:
        """The state after some calls in order."""
        state = self.start
        for k in order:
            state = self.after(state, k)
        return state

    def best(self) -> _State:
        """The state after all calls, in the best order found."""
        states = [self.start]
        for _ in self.calls:
            found: dict[frozenset[int], _State] = {}
            for state in states:
                done = set(state.order)
                for k in range(len(self.calls)):
                    if k in done or not self.needs[k] <= done:
                        continue
                    new = self.after(state, k)
                    key = frozenset((*done, k))
                    if key not in found or self._rank(new) < self._rank(found[key]):
                        found[key] = new
            states = sorted(found.values(), key=self._rank)[:WIDTH]
        return states[0]

    def _rank(self, state: _State) -> tuple[int, int, tuple[int, ...]]:
        return state.peak, sum(self.sizes[n] for n in state.live), state.order
