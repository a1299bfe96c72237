# SPDX-License-Identifier: Apache-2.0
"""Plan the memory of a module: choose an order of its calls, and a memory and an offset for every value.

An independent checker (:mod:`microc.plan.plan_check`) verifies each plan."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from microc.base.immutable import frozen
from microc.errors import FitError
from microc.module import Call, Module, Plan
from microc.plan.code_and_constants import (
    ConstantHomes,
    Reads,
    assign_constants,
    choose_stored_constants,
    describe_constant_regions,
    describe_storage,
    list_read_buffers,
    schedule_reads,
)
from microc.plan.liveness import (
    Demand,
    Overlaps,
    demand_of_module,
    is_in_arena,
    placement_byte_count,
    placement_lower_bound,
)
from microc.plan.memories import add_operand_waits, add_units, plan_in_memories
from microc.plan.placement import ORDER_EFFORT, place_units
from microc.plan.plan_check import check_plan
from microc.target import FlashMemory, Memory, Storage

# ---- The order of calls with the smallest peak of memory, for networks that branch.
#
# Beam search over sets of finished calls: level k contains sets of k calls, and the best :data:`ORDER_BEAM_WIDTH` of them are
# kept. The search is exact while a level has at most :data:`ORDER_BEAM_WIDTH` sets, and while it needs no more than its share of
# :data:`~microc.plan.placement.ORDER_EFFORT`. A chain of calls has only one order, so it is not searched.

ORDER_BEAM_WIDTH = 64  # beam width: number of sets of calls that are kept at each level


@frozen
class _PartialOrder:
    """A set of finished calls, with the best order found for these calls: a state of the beam search.

    ``peak_bytes``: the largest number of bytes needed so far. ``live_bytes``: bytes alive after the last call.
    ``last_call``: index of the last call. ``finished_calls``, ``live_values``: bit sets of the finished calls and of
    the live values. ``previous_order``: the partial order without its last call. ``tie_rank``: index of
    ``previous_order`` among the states of its level in lexicographic order, which breaks ties."""

    peak_bytes: int
    live_bytes: int
    tie_rank: int
    last_call: int
    finished_calls: int
    live_values: int
    previous_order: _PartialOrder | None = None

    @property
    def rank(self) -> tuple[int, int, int, int]:
        """Sort key: a smaller peak first, then fewer bytes alive, then lexicographic order, which makes ties
        deterministic."""
        return self.peak_bytes, self.live_bytes, self.tie_rank, self.last_call

    def order(self) -> tuple[int, ...]:
        """Return the indices of the finished calls, in the order in which they run."""
        found, state = list[int](), self
        while state.previous_order is not None:
            found.append(state.last_call)
            state = state.previous_order
        return tuple(reversed(found))


def order_calls(module: Module, overlaps: Overlaps, *, io_in_arena: bool) -> Module:
    """Reorder the calls of a module for a smaller peak of memory; the new order respects all dependences.

    Returns ``module`` unchanged if the search finds no better order, and for a network that learns, whose first calls
    must be those of an inference."""
    if module.inference_calls:
        return module
    search = OrderSearch(module, overlaps, io_in_arena=io_in_arena)
    # A chain: every call depends on the one before.
    if all(k - 1 in earlier for k, earlier in enumerate(search.needs) if k):
        return module
    best = search.find_best_order()
    if best.peak_bytes >= search.follow_order(range(len(module.calls))).peak_bytes:
        return module
    return replace(module, calls=tuple(module.calls[k] for k in best.order()))


def reorder_like(module: Module, reference_module: Module) -> Module:
    """Reorder the calls of a module as in ``reference_module``, which computes the same values.

    Returns ``module`` unchanged if ``reference_module`` lacks a call that writes the same values."""
    places = {call.writes: k for k, call in enumerate(reference_module.calls)}
    if reference_module is module or any(call.writes not in places for call in module.calls):
        return module
    return replace(module, calls=tuple(sorted(module.calls, key=lambda call: places[call.writes])))


def _find_predecessors(module: Module) -> list[set[int]]:
    """Return for each call the indices of the earlier calls that must stay before it.

    These calls write a value that the call reads, or read or write a value that the call writes. Views of one
    concatenated value may be written in any order, because they are disjoint.
    """
    bases = {name: module.base_and_offset(name)[0] for name in module.values}
    readers, writers, writers_by_name = (defaultdict[str, set[int]](set) for _ in range(3))
    dependences: list[set[int]] = []
    for k, call in enumerate(module.calls):
        reads, writes = ({bases[name] for name in names} for names in (call.reads, call.writes))
        dependences.append(
            set[int]().union(
                *(writers[base] for base in reads),
                *(readers[base] for base in writes),
                *(writers_by_name[name] for name in call.writes),
            )
        )
        for base in reads:
            readers[base].add(k)
        for base in writes:
            writers[base].add(k)
        for name in call.writes:
            writers_by_name[name].add(k)
    return dependences


class OrderSearch:
    """Beam search for an order of a module's calls with a small peak of memory.

    ``needs``: for each call, the indices of the calls that must run before it. Sets of calls and sets of values are
    stored as bit sets."""

    def __init__(self, module: Module, overlaps: Overlaps, *, io_in_arena: bool) -> None:
        self.needs = _find_predecessors(module)
        self.names = sorted(n for n in module.values if is_in_arena(module, n, io_in_arena=io_in_arena))
        self.sizes = [module.values[name].nbytes for name in self.names]
        numbers = {name: k for k, name in enumerate(self.names)}

        def numbers_of_base_values(names: Iterable[str]) -> frozenset[int]:
            return frozenset(numbers[base] for name in names if (base := module.base_and_offset(name)[0]) in numbers)

        self.accessed_values = [numbers_of_base_values((*c.reads, *c.writes)) for c in module.calls]
        self.scratch = [sum(self.sizes[numbers[n]] for n in c.workspace) for c in module.calls]
        self.kept = numbers_of_base_values((*module.outputs, *module.state))
        users: list[list[int]] = [[] for _ in self.names]
        for k, accessed in enumerate(self.accessed_values):
            for n in accessed:
                users[n].append(k)
        self.users = [_to_bit_set(calls) for calls in users]
        self.earlier = [_to_bit_set(calls) for calls in self.needs]
        self.followers: list[list[int]] = [[] for _ in self.needs]
        for k, needed in enumerate(self.needs):
            for j in needed:
                self.followers[j].append(k)
        alive = numbers_of_base_values((*module.inputs, *module.state))
        self.start = _PartialOrder(0, sum(self.sizes[n] for n in alive), 0, -1, 0, _to_bit_set(alive))
        self.overlaps = overlaps
        self.calls: tuple[Call, ...] = module.calls
        self._savings: dict[tuple[int, frozenset[int], frozenset[int]], int] = {}

    def append_call(self, state: _PartialOrder, call_index: int, tie_rank: int = 0) -> _PartialOrder:
        """Return the partial order ``state`` with call ``call_index`` appended."""
        done, accessed = state.finished_calls | 1 << call_index, self.accessed_values[call_index]
        starting = frozenset(n for n in accessed if not state.live_values >> n & 1)
        ending = frozenset(n for n in accessed if n not in self.kept and not self.users[n] & ~done)
        during = state.live_bytes + sum(self.sizes[n] for n in starting)
        # A call's results may overlap operands whose last use is this call.
        need = during + self.scratch[call_index] - self._max_shared_bytes(call_index, ending - starting, starting)
        left = during - sum(self.sizes[n] for n in ending)
        live = (state.live_values | _to_bit_set(starting)) & ~_to_bit_set(ending)
        return _PartialOrder(max(state.peak_bytes, need), left, tie_rank, call_index, done, live, state)

    def _max_shared_bytes(self, call_index: int, ending: frozenset[int], starting: frozenset[int]) -> int:
        """Return the most bytes that call ``call_index`` can save by sharing memory between values.

        Values that it is the first to use (``starting``) may overlap values that it is the last to use (``ending``)."""
        key = call_index, ending, starting
        if key not in self._savings:
            call = self.calls[call_index]
            old, new = (sorted({*(self.names[n] for n in some), *call.workspace}) for some in (ending, starting))
            rooms = (self.overlaps.safe_offsets(call, a, b) for a in old for b in new if a != b)
            self._savings[key] = sum(room.max_shared_bytes for room in rooms if room is not None)
        return self._savings[key]

    def follow_order(self, order: Sequence[int]) -> _PartialOrder:
        """Return the partial order in which the calls ``order`` run one after the other."""
        state = self.start
        for k in order:
            state = self.append_call(state, k)
        return state

    def find_best_order(self) -> _PartialOrder:
        """Return the best order of all calls that beam search finds."""
        states, ready = [self.start], dict[int, list[int]]()
        share = max(ORDER_EFFORT // max(len(self.calls), 1), 1)
        for _ in self.calls:
            places = {
                s.finished_calls: k for k, s in enumerate(sorted(states, key=lambda s: (s.tie_rank, s.last_call)))
            }
            earlier, ready = ready, dict[int, list[int]]()
            best_by_set: dict[int, _PartialOrder] = {}
            for state, k in islice(self._list_extensions(states, earlier, ready), share):
                new = self.append_call(state, k, places[state.finished_calls])
                if new.finished_calls not in best_by_set or new.rank < best_by_set[new.finished_calls].rank:
                    best_by_set[new.finished_calls] = new
            states = sorted(best_by_set.values(), key=lambda state: state.rank)[:ORDER_BEAM_WIDTH]
        return states[0]

    def _list_extensions(
        self, states: Iterable[_PartialOrder], earlier: Mapping[int, list[int]], ready: dict[int, list[int]]
    ) -> Iterator[tuple[_PartialOrder, int]]:
        """Yield pairs (partial order of calls, index of a call that may run next) for all partial orders in ``states``.

        The calls that may run next are stored in ``ready``, by set of finished calls. ``earlier``: contents of
        ``ready`` at the level before, from which this level is updated."""
        for state in states:
            if state.previous_order is None:
                ready[state.finished_calls] = [k for k, needed in enumerate(self.needs) if not needed]
            else:
                # Only followers of the last call can have become ready.
                freed = (k for k in self.followers[state.last_call] if not self.earlier[k] & ~state.finished_calls)
                ready[state.finished_calls] = sorted(
                    {*earlier[state.previous_order.finished_calls], *freed} - {state.last_call}
                )
            yield from ((state, k) for k in ready[state.finished_calls])


def _to_bit_set(members: Iterable[int]) -> int:
    """Return a bit set: an integer whose bits at the positions ``members`` are set."""
    bits = 0
    for number in members:
        bits |= 1 << number
    return bits


# ---- Entry points.

ARENA_ALIGN = 8
"""Alignment of the arena in bytes, unless a value needs more."""
MAX_ARENA_BYTES = (1 << 31) - 1
"""Largest arena in bytes: generated code indexes with int32."""
FAST_FLASH = FlashMemory("flash", 1 << 40)
"""Flash of any size that is as fast as the core."""


def plan_module(
    module: Module,
    *,
    io_in_arena: bool = True,
    memories: Sequence[Memory] = (),
    flash: tuple[FlashMemory, ...] = (FAST_FLASH,),
    storage: Storage | None = None,
    arena_limit: int = 0,
    order_like: Module | None = None,
) -> Module:
    """Order the calls of a module, and assign an offset to every value in the arena.

    By default the calls are ordered for a small peak of memory. If ``order_like`` is a module (it may be ``module``),
    its order of calls is used. ``io_in_arena``: also place the inputs and outputs in the arena. ``memories``: the
    memories for tensors of a board that has several, starting with the memory of the stack. The plan then has an arena
    in each memory, and the calls include wait cycles for their operands. ``flash``: the flash regions for constants,
    starting with the first region of the board. ``storage``: a memory for the constants for which these have no room; a
    run reads them into the arena, ahead of their use if the arena then takes at most ``arena_limit`` bytes (0:
    unlimited)."""
    overlaps = Overlaps(module)
    module = (
        order_calls(module, overlaps, io_in_arena=io_in_arena)
        if order_like is None
        else reorder_like(module, order_like)
    )
    demand = demand_of_module(module, overlaps, io_in_arena=io_in_arena)
    stored = choose_stored_constants(module, flash, storage) if storage is not None else frozenset[str]()
    homes = assign_constants(module, flash, stored=stored)
    schedules: list[Reads] = [{}]
    if storage is not None and stored:
        schedules = list(schedule_reads(module, stored, storage, demand, arena_limit))
    plan = _place_values_and_reads(module, demand, memories, homes, schedules[0])
    if 0 < arena_limit < plan.main_arena_size and schedules[0] != schedules[-1]:
        plain = _place_values_and_reads(module, demand, memories, homes, schedules[-1])
        plan = min(plan, plain, key=lambda plan: plan.main_arena_size)
    if plan.copies:  # they are not read from flash, where others take their place
        homes = assign_constants(module, flash, plan.copies, stored)
    if plan.size > MAX_ARENA_BYTES:
        raise FitError(
            f"the network needs an arena of {plan.size:,} bytes; generated code indexes at most {MAX_ARENA_BYTES:,}",
            where=module.source,
            hint="fix symbolic dimensions to smaller sizes: --input-shape NAME=1,...",
        )
    align = max((ARENA_ALIGN, *(module.values[name].align for name in plan.offsets)))
    regions = describe_constant_regions(module, flash, homes, plan.copies)
    reads = {name: plan.copies[name] for name in sorted(stored)}
    kept = describe_storage(module, reads, storage) if storage is not None else None
    planned = module.with_plan(replace(plan, io_in_arena=io_in_arena, align=align, flash=regions, storage=kept))
    if memories or flash != (FAST_FLASH,) or module.plan is not None:
        planned = add_operand_waits(planned, memories, homes, storage)
    check_plan(planned)
    return planned


def _place_values_and_reads(
    module: Module, demand: Demand, memories: Sequence[Memory], homes: ConstantHomes, reads: Reads
) -> Plan:
    """Return the plan that places all values, and the buffers of the constants that a run reads from storage."""
    whole = add_units(demand, list_read_buffers(module, reads)) if reads else demand
    plan = plan_in_memories(module, whole, memories, homes) if memories else _plan_single_arena(whole)
    return replace(plan, copies={**plan.copies, **reads})


def plan_in_one_arena(
    module: Module, flash: tuple[FlashMemory, ...] = (FAST_FLASH,), storage: Storage | None = None
) -> Module:
    """Replace a memory plan with several arenas by a plan with a single arena, for builds that can place only one
    arena.

    The choice of hot code (kernels that run from RAM) is kept. A module without a plan, or with a single arena, is
    returned unchanged."""
    plan = module.plan
    if plan is None or not plan.arenas:
        return module
    planned = plan_module(module, io_in_arena=plan.io_in_arena, flash=flash, storage=storage)
    assert planned.plan is not None
    return planned.with_plan(replace(planned.plan, code=plan.code))


def divide_flash(modules: Sequence[Module], flash: Sequence[FlashMemory]) -> tuple[Module, ...]:
    """Return planned modules of one firmware, each with its constants in what those before it leave of the flash regions.

    Each module has a single arena."""
    divided = []
    for module in modules:
        assert module.plan is not None
        homes = assign_constants(module, flash)
        regions = describe_constant_regions(module, flash, homes, {})
        divided.append(add_operand_waits(module.with_plan(replace(module.plan, flash=regions)), (), homes))
        flash = [replace(m, size=max(m.size - r.size, 0)) for m, r in zip(flash, regions, strict=True)]
    return tuple(divided)


def _plan_single_arena(demand: Demand) -> Plan:
    """Return the plan that places all values in one arena."""
    name, best = place_units(demand)
    offsets = {unit.name: at for unit, at in best.items()}
    return Plan(
        dict(sorted(offsets.items())), -(-placement_byte_count(best) // 4) * 4, placement_lower_bound(demand), name
    )
