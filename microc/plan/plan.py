"""The memory plan of a module, and the order of its calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from microc.base.immutable import frozen
from microc.errors import FitError
from microc.module import Call, Module, Plan
from microc.plan.liveness import Demand, Overlaps, demand, in_arena, lower_bound, size_of
from microc.plan.memories import plan_in_memories, waiting
from microc.plan.placement import ORDERING, placed
from microc.plan.plan_check import check_plan
from microc.target import Memory

# ---- The order of calls that needs the least memory at once, where a network branches.
#
# The search goes through sets of finished calls, level by level, and keeps the best few at each: exact while there are no more
# than :data:`WIDTH` of them, and while a level takes no more than its share of :data:`~microc.plan.placement.ORDERING`. A chain
# has one order only.

WIDTH = 64


@frozen
class _State:
    """Calls done so far: the largest need until now, the bytes alive, what is done and alive (bits by number), the last call.

    ``place``: of the orders that are compared, in alphabetical order, the number of the one that the last call is put behind.
    """

    peak: int
    size: int
    place: int
    call: int
    done: int
    live: int
    before: _State | None = None

    @property
    def rank(self) -> tuple[int, int, int, int]:
        return self.peak, self.size, self.place, self.call

    def order(self) -> tuple[int, ...]:
        """The calls, one after the other."""
        found, state = list[int](), self
        while state.before is not None:
            found.append(state.call)
            state = state.before
        return tuple(reversed(found))


def order_calls(module: Module, overlaps: Overlaps, *, io_in_arena: bool) -> Module:
    """``module`` with its calls in a topological order of small peak; as it is, if no other order is better."""
    search = Search(module, overlaps, io_in_arena=io_in_arena)
    if all(k - 1 in earlier for k, earlier in enumerate(search.needs) if k):
        return module
    found = search.best()
    if found.peak >= search.along(range(len(module.calls))).peak:
        return module
    return replace(module, calls=tuple(module.calls[k] for k in found.order()))


def ordered_as(module: Module, other: Module) -> Module:
    """``module``, with its calls in the order of ``other``, which computes the same values; as it is where that does not."""
    places = {call.writes: k for k, call in enumerate(other.calls)}
    if other is module or any(call.writes not in places for call in module.calls):
        return module
    return replace(module, calls=tuple(sorted(module.calls, key=lambda call: places[call.writes])))


def _needs(module: Module) -> list[set[int]]:
    """For every call the earlier ones that must stay in front of it: it reads what they write, or writes what they touch.

    Parts of a concatenation are written in any order.
    """
    bases = {name: module.base_of(name)[0] for name in module.values}
    readers, writers, makers = (defaultdict[str, set[int]](set) for _ in range(3))
    found: list[set[int]] = []
    for k, call in enumerate(module.calls):
        reads, writes = ({bases[name] for name in names} for names in (call.reads, call.writes))
        found.append(
            set[int]().union(
                *(writers[base] for base in reads),
                *(readers[base] for base in writes),
                *(makers[name] for name in call.writes),
            )
        )
        for base in reads:
            readers[base].add(k)
        for base in writes:
            writers[base].add(k)
        for name in call.writes:
            makers[name].add(k)
    return found


class Search:
    """Sizes, uses and savings of a module's calls. ``needs``: for every call those that must run before it.

    Sets of calls and of values are the bits of a number.
    """

    def __init__(self, module: Module, overlaps: Overlaps, *, io_in_arena: bool) -> None:
        self.needs = _needs(module)
        self.names = sorted(n for n in module.values if in_arena(module, n, io_in_arena=io_in_arena))
        self.sizes = [module.values[name].nbytes for name in self.names]
        numbers = {name: k for k, name in enumerate(self.names)}

        def bases(names: Iterable[str]) -> frozenset[int]:
            return frozenset(numbers[base] for name in names if (base := module.base_of(name)[0]) in numbers)

        self.touched = [bases((*c.reads, *c.writes)) for c in module.calls]
        self.scratch = [sum(self.sizes[numbers[n]] for n in c.workspace) for c in module.calls]
        self.kept = bases((*module.outputs, *module.state))
        users: list[list[int]] = [[] for _ in self.names]
        for k, touched in enumerate(self.touched):
            for n in touched:
                users[n].append(k)
        self.users = [_bits(calls) for calls in users]
        self.earlier = [_bits(calls) for calls in self.needs]
        self.followers: list[list[int]] = [[] for _ in self.needs]
        for k, needed in enumerate(self.needs):
            for j in needed:
                self.followers[j].append(k)
        alive = bases((*module.inputs, *module.state))
        self.start = _State(0, sum(self.sizes[n] for n in alive), 0, -1, 0, _bits(alive))
        self.overlaps = overlaps
        self.calls: tuple[Call, ...] = module.calls
        self._savings: dict[tuple[int, frozenset[int], frozenset[int]], int] = {}

    def after(self, state: _State, k: int, place: int = 0) -> _State:
        """The state when call ``k`` has run, too."""
        done, touched = state.done | 1 << k, self.touched[k]
        starting = frozenset(n for n in touched if not state.live >> n & 1)
        ending = frozenset(n for n in touched if n not in self.kept and not self.users[n] & ~done)
        during = state.size + sum(self.sizes[n] for n in starting)
        need = during + self.scratch[k] - self._shared(k, ending - starting, starting)
        left = during - sum(self.sizes[n] for n in ending)
        live = (state.live | _bits(starting)) & ~_bits(ending)
        return _State(max(state.peak, need), left, place, k, done, live, state)

    def _shared(self, k: int, ending: frozenset[int], starting: frozenset[int]) -> int:
        """The most bytes that values of a call may have in common."""
        key = k, ending, starting
        if key not in self._savings:
            call = self.calls[k]
            old, new = (sorted({*(self.names[n] for n in some), *call.workspace}) for some in (ending, starting))
            rooms = (self.overlaps.room(call, a, b) for a in old for b in new if a != b)
            self._savings[key] = sum(room.shared for room in rooms if room is not None)
        return self._savings[key]

    def along(self, order: Sequence[int]) -> _State:
        """The state after some calls in order."""
        state = self.start
        for k in order:
            state = self.after(state, k)
        return state

    def best(self) -> _State:
        """The state after all calls, in the best order found."""
        states, ready = [self.start], dict[int, list[int]]()
        share = max(ORDERING // max(len(self.calls), 1), 1)
        for _ in self.calls:
            places = {s.done: k for k, s in enumerate(sorted(states, key=lambda s: (s.place, s.call)))}
            earlier, ready = ready, dict[int, list[int]]()
            found: dict[int, _State] = {}
            for state, k in islice(self._ways(states, earlier, ready), share):
                new = self.after(state, k, places[state.done])
                if new.done not in found or new.rank < found[new.done].rank:
                    found[new.done] = new
            states = sorted(found.values(), key=lambda state: state.rank)[:WIDTH]
        return states[0]

    def _ways(
        self, states: Iterable[_State], earlier: Mapping[int, list[int]], ready: dict[int, list[int]]
    ) -> Iterator[tuple[_State, int]]:
        """States, each with every call that may run next; these go into ``ready``, by what is done.

        ``earlier``: the same for the states before.
        """
        for state in states:
            if state.before is None:
                ready[state.done] = [k for k, needed in enumerate(self.needs) if not needed]
            else:
                freed = (k for k in self.followers[state.call] if not self.earlier[k] & ~state.done)
                ready[state.done] = sorted({*earlier[state.before.done], *freed} - {state.call})
            yield from ((state, k) for k in ready[state.done])


def _bits(numbers: Iterable[int]) -> int:
    found = 0
    for number in numbers:
        found |= 1 << number
    return found


# ---- The memory plan of a module: an order of calls, memories for its values, the best of several planners, checked.

ARENA_ALIGN = 8
"""Bytes, unless a value asks for more."""
LARGEST = (1 << 31) - 1
"""Indices are int32."""


def plan_module(
    module: Module,
    *,
    io_in_arena: bool = True,
    memories: Sequence[Memory] = (),
    flash: float = 0.0,
    like: Module | None = None,
) -> Module:
    """``module`` with its calls in the order that needs least memory, or in that of ``like`` (it may be ``module``), and
    offsets for everything in the arena.

    Inputs and outputs lie inside it by choice. ``memories``: where the board has several for tensors, the one with the stack
    first: then there are several arenas, and calls say how long they wait for what lies in them. ``flash``: cycles that a byte
    of constants waits where it is linked.
    """
    overlaps = Overlaps(module)
    module = order_calls(module, overlaps, io_in_arena=io_in_arena) if like is None else ordered_as(module, like)
    wanted = demand(module, overlaps, io_in_arena=io_in_arena)
    plan = plan_in_memories(module, wanted, memories, flash) if memories else _in_one(wanted)
    if plan.size > LARGEST:
        raise FitError(
            f"the network needs an arena of {plan.size:,} bytes; generated code indexes at most {LARGEST:,}",
            where=module.source,
            hint="bind a smaller input shape: --input-shape NAME=1,...",
        )
    align = max((ARENA_ALIGN, *(module.values[name].align for name in plan.offsets)))
    plan = replace(plan, io_in_arena=io_in_arena, align=align)
    planned = module.with_plan(plan)
    planned = waiting(planned, memories, flash) if memories or module.plan is not None else planned
    check_plan(planned)
    return planned


def in_one_arena(module: Module, flash: float = 0.0) -> Module:
    """A planned module as for a board with one memory: for what places its arena by itself, and hot code."""
    plan = module.plan
    if plan is None or not plan.arenas:
        return module
    planned = plan_module(module, io_in_arena=plan.io_in_arena, flash=flash)
    assert planned.plan is not None
    return planned.with_plan(replace(planned.plan, code=plan.code))


def _in_one(wanted: Demand) -> Plan:
    name, best = placed(wanted)
    offsets = {unit.name: at for unit, at in best.items()}
    return Plan(dict(sorted(offsets.items())), -(-size_of(best) // 4) * 4, lower_bound(wanted), name)
