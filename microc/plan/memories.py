# SPDX-License-Identifier: Apache-2.0
"""Assignment of values, and of copies of weights, to the RAM of a board.

- :func:`find_resident_copies` and :func:`find_copies_ahead` find the constants that are worth a copy in RAM.
- :func:`assign_memories` chooses the memory of every value: first fit, then moves, then branch and bound.
- :func:`plan_in_memories` combines these steps, and plans an arena for each memory.

Waits are cycles that the core is stalled by a memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from math import inf

from microc.base.immutable import frozen
from microc.module import Arena, Call, Module, Plan
from microc.plan.code_and_constants import ConstantHomes, is_copied_per_run, list_constant_uses, wait_for_reads
from microc.plan.liveness import BEFORE, Demand, Unit, placement_byte_count, placement_lower_bound
from microc.plan.placement import (
    EXACT_LIMIT,
    FULL_PLACEMENTS,
    MAX_BRANCH_VALUES,
    MAX_COPIES,
    MAX_MOVES,
    PAIR_EFFORT,
    SPLIT_EFFORT,
    greedy_by_conflicts,
    greedy_by_size,
    place_units,
)
from microc.target import Memory, Storage, Traffic

# ---- Weights in RAM: copies of constants in an arena. Calls read them instead of the originals in flash.
#
# A resident copy is made once, at reset, and occupies memory during all calls. A copy ahead is made in every run, while the
# call before the one that reads it runs, and occupies memory during these two calls only. It pays off for constants that a
# call reads several times from slow flash. The cost assumes that the core copies, without DMA.

COPY_CYCLES = 2.0
"""Cycles per byte that the core needs for copying word by word, including the loop."""


@frozen
class ConstantCopy:
    """A possible copy of a constant in RAM.

    ``unit``: bytes and lifetime of the copy. ``step``: index of the call at whose start copying begins; :data:`BEFORE`
    for a resident copy, which is made at reset. ``waits``: for each memory, the cycles that a run waits for the
    constant if its copy is in this memory, including the time for copying. ``flash_wait_of_run``: cycles that a run
    waits for the constant without a copy."""

    unit: Unit
    step: int
    waits: tuple[float, ...]
    flash_wait_of_run: float


def find_resident_copies(module: Module, memories: Sequence[Memory], flash: ConstantHomes) -> list[ConstantCopy]:
    """Return the copies of constants in RAM that are made once, at reset, and save cycles in every run.

    ``flash``: the flash region of each constant."""
    end = len(module.calls)
    copies = []
    for name, uses in list_constant_uses(module).items():
        if name not in flash:
            continue
        value = module.values[name]
        unit = Unit(name, value.nbytes, value.align, BEFORE, end)
        waits = tuple(
            sum(m.wait_cycles(moved, value.nbytes) for _, moved in uses) if m.weights else inf for m in memories
        )
        linked = sum(flash[name].wait_cycles(moved, value.nbytes) for _, moved in uses)
        copies.append(ConstantCopy(unit, BEFORE, waits, linked))
    return [each for each in copies if min(each.waits) < each.flash_wait_of_run]


def find_copies_ahead(module: Module, memories: Sequence[Memory], flash: ConstantHomes) -> list[ConstantCopy]:
    """Return the copies of constants in RAM that save cycles although they are made in every run, ahead of their use.

    Only constants that a single call reads are copied in this way, while the preceding call runs. ``flash``: the flash
    region of each constant."""
    copies = []
    for name, uses in list_constant_uses(module).items():
        if len(uses) != 1 or name not in flash:
            continue
        value, ((call, moved),) = module.values[name], uses
        unit = Unit(name, value.nbytes, value.align, max(call - 1, 0), call)
        copying = (flash[name].wait + COPY_CYCLES) * value.nbytes
        written = Traffic.of(1, value.nbytes, writes=True)
        waits = tuple(copying + m.wait_cycles(moved + written, value.nbytes) if m.weights else inf for m in memories)
        copies.append(ConstantCopy(unit, max(call - 1, 0), waits, flash[name].wait_cycles(moved, value.nbytes)))
    return [each for each in copies if min(each.waits) < each.flash_wait_of_run]


# ---- The memory of every value: search for the split (assignment of values to memories) with the least waits that fits.
#
# Branch and bound assigns the values one by one, sorted by cycles saved per byte of memory and call. A branch is pruned if its
# waits, with all remaining values in their best memory, are no less than those of the best split so far, or if some call needs
# more bytes of a memory than there are. The search is exact (as far as the planners find placements) within
# :data:`~microc.plan.placement.SPLIT_EFFORT` steps, for up to :data:`~microc.plan.placement.MAX_BRANCH_VALUES` values. It starts
# from a first fit in the same order, improved by moves of single values, so that large networks get a good split too.

Waits = Mapping[Unit, tuple[float, ...]]
"""For each unit (value to place): the cycles that a run waits for it in each memory; infinite if the memory is not
allowed."""
Homes = dict[Unit, int]
"""Assignment of units to memories: index of each unit's memory."""


def assign_memories(demand: Demand, waits: Waits, memories: Sequence[Memory]) -> Homes:
    """Assign all units (values to place) to memories so that the core waits few cycles for them.

    If no assignment fits, the units for which there is no space are assigned to the first memory, which is then
    exceeded."""
    search = _SplitSearch(demand, waits, memories)
    search.assign_first_fit()
    search.improve_by_moves()
    search.branch_and_bound()
    return search.best


def restrict_demand(demand: Demand, units: Iterable[Unit]) -> Demand:
    """Return the part of a demand that concerns only the units ``units``."""
    chosen = set(units)
    kept = tuple(unit for unit in demand.units if unit in chosen)
    return Demand(kept, {u: {o: r for o, r in demand.allowed_distances[u].items() if o in chosen} for u in kept})


def fits_in_bytes(byte_count: int, demand: Demand) -> bool:
    """Test whether the quick planners find a placement of all units within ``byte_count`` bytes."""
    return fits_side_by_side(byte_count, demand) or _fits_greedily(byte_count, demand)


def fits_side_by_side(byte_count: int, demand: Demand) -> bool:
    """Test whether all units fit into ``byte_count`` bytes without sharing any memory."""
    return sum(unit.size + unit.align for unit in demand.units) <= byte_count


def _fits_greedily(byte_count: int, demand: Demand) -> bool:
    """Test whether a greedy planner finds a placement of all units within ``byte_count`` bytes."""
    return placement_lower_bound(demand) <= byte_count and any(
        placement_byte_count(planner(demand)) <= byte_count for planner in (greedy_by_size, greedy_by_conflicts)
    )


class _SplitSearch:
    """Search for the assignment of units to memories with the least waits: first fit, then moves, then branch and
    bound."""

    def __init__(self, demand: Demand, waits: Waits, memories: Sequence[Memory]) -> None:
        self.demand, self.waits, self.memories = demand, waits, memories
        self.numbers = range(len(memories))
        self.units = sorted(demand.units, key=lambda u: (-self._gain_density(u), u.size, u.name))
        self.usable_memories = {u: self._list_usable_memories(u) for u in self.units}
        self.best: Homes = {}
        self.cost = inf
        self._placements = count()
        self._pairs = 0
        self._fits: dict[tuple[int, frozenset[str], bool], bool] = {}

    def _list_usable_memories(self, unit: Unit) -> list[int]:
        """Return the indices of the memories that are large enough for a unit, the memory with the least waits
        first."""
        large = (m for m in self.numbers if unit.size <= self.memories[m].size and self.waits[unit][m] < inf)
        return sorted(large, key=lambda m: (self.waits[unit][m], m))

    def _waits_in_best_memory(self, unit: Unit) -> float:
        """Return the cycles that a unit waits in its best memory."""
        return min((self.waits[unit][m] for m in self.usable_memories[unit]), default=inf)

    def _gain_density(self, unit: Unit) -> float:
        """Return the wait cycles that a unit saves in its best memory compared with its worst memory.

        The result is per byte of the unit and per call of its lifetime."""
        waits = [cycles for cycles in self.waits[unit] if cycles < inf]
        return (max(waits) - min(waits)) / (max(unit.size, 1) * (unit.last - unit.first + 1))

    def total_waits(self, homes: Homes) -> float:
        """Return the cycles that a run waits for all units, if they are assigned to memories as in ``homes``."""
        return sum(self.waits[unit][home] for unit, home in homes.items())

    def can_hold(self, memory_index: int, units: Iterable[Unit], *, try_all_planners: bool) -> bool:
        """Test whether planners find a placement of ``units`` in the memory with index ``memory_index``.

        ``try_all_planners``: try all planners, not only the quick ones."""
        chosen = frozenset(units)
        key = memory_index, frozenset(unit.name for unit in chosen), try_all_planners
        if key not in self._fits:
            self._fits[key] = self._is_placeable(
                self.memories[memory_index].size,
                restrict_demand(self.demand, chosen),
                try_all_planners=try_all_planners,
            )
        return self._fits[key]

    def _is_placeable(self, byte_count: int, demand: Demand, *, try_all_planners: bool) -> bool:
        """Test whether planners find a placement of all units within ``byte_count`` bytes, and within the effort
        limits.

        ``try_all_planners``: try all planners, not only the quick ones."""
        if fits_side_by_side(byte_count, demand):
            return True
        self._pairs += len(demand.units) ** 2
        if self._pairs > PAIR_EFFORT:
            return False
        if _fits_greedily(byte_count, demand):
            return True
        if not try_all_planners or placement_lower_bound(demand) > byte_count:
            return False
        # Running all planners is slow, so this is done a limited number of times. Sets of few units are placed exactly and
        # do not count.
        small = len(demand.units) <= EXACT_LIMIT
        return (small or next(self._placements) < FULL_PLACEMENTS) and placement_byte_count(
            place_units(demand)[1]
        ) <= byte_count

    def assign_first_fit(self) -> None:
        """Set ``best`` to the assignment of every unit to the memory with the least waits that still has space for
        it."""
        homes: Homes = {}
        fitting = True
        for unit in self.units:
            home = self._first_fitting_memory(unit, homes)
            fitting = fitting and home is not None
            homes[unit] = home or 0
        self.best, self.cost = homes, self.total_waits(homes) if fitting else inf

    def _first_fitting_memory(self, unit: Unit, homes: Homes, *, excluded_memory: int = -1) -> int | None:
        """Return the index of the memory with the least waits that still has space for a unit; None if there is none.

        ``homes``: assignment of the other units; ``excluded_memory``: index of a memory that is not considered."""
        for memory in self.usable_memories[unit]:
            inside = [other for other, home in homes.items() if home == memory]
            if memory != excluded_memory and self.can_hold(memory, [*inside, unit], try_all_planners=False):
                return memory
        return None

    def improve_by_moves(self) -> None:
        """Improve ``best`` by moves of single units into faster memories, as long as the waits shrink.

        If the faster memory is full, the units with the least gain are moved out of it."""
        moves = iter(range(MAX_MOVES))
        moved = self.cost < inf
        # Each pass starts with the units that wait longest compared with their best memory.
        while moved:
            moved = False
            for unit in sorted(self.units, key=lambda u: self._waits_in_best_memory(u) - self.waits[u][self.best[u]]):
                for memory in self.usable_memories[unit]:
                    if self.waits[unit][memory] >= self.waits[unit][self.best[unit]]:
                        break
                    if next(moves, None) is None:
                        return
                    homes = self._move_unit(unit, memory)
                    if homes is not None and self.total_waits(homes) < self.cost:
                        self.best, self.cost, moved = homes, self.total_waits(homes), True
                        break

    def _move_unit(self, unit: Unit, memory_index: int) -> Homes | None:
        """Return the best assignment so far, changed so that ``unit`` is in the memory with index ``memory_index``.

        Other units are moved out of this memory to make space. None if these units fit into no other memory."""
        homes = {**self.best, unit: memory_index}
        evicted: list[Unit] = []
        inside = [u for u, home in homes.items() if home == memory_index]
        for other in reversed(self.units):
            if other is unit or homes[other] != memory_index or not other.conflicts(unit):
                continue
            if self.can_hold(memory_index, inside, try_all_planners=False):
                break
            inside.remove(other)
            evicted.append(other)
            del homes[other]
        for other in reversed(evicted):
            home = self._first_fitting_memory(other, homes)
            if home is None:
                return None
            homes[other] = home
        return (
            homes
            if self.can_hold(
                memory_index, [u for u, home in homes.items() if home == memory_index], try_all_planners=False
            )
            else None
        )

    def branch_and_bound(self) -> None:
        """Improve ``best`` by branch and bound over all assignments, if there are at most :data:`MAX_BRANCH_VALUES`
        units."""
        if len(self.units) > MAX_BRANCH_VALUES:
            return
        least = [0.0]
        for unit in reversed(self.units):
            least.append(least[-1] + self._waits_in_best_memory(unit))
        least.reverse()  # least[k]: the least waits of units k, k + 1, ...
        steps, homes = count(), dict[Unit, int]()
        parts: list[list[Unit]] = [[] for _ in self.memories]

        def assign_units_from(unit_index: int, waits_so_far: float) -> None:
            if waits_so_far + least[unit_index] >= self.cost:
                return
            if unit_index == len(self.units):
                if all(self.can_hold(m, parts[m], try_all_planners=True) for m in self.numbers):
                    self.best, self.cost = dict(homes), waits_so_far
                return
            unit = self.units[unit_index]
            for memory in self.usable_memories[unit]:
                if next(steps) >= SPLIT_EFFORT:
                    return
                parts[memory].append(unit)
                if placement_lower_bound(restrict_demand(self.demand, parts[memory])) <= self.memories[memory].size:
                    homes[unit] = memory
                    assign_units_from(unit_index + 1, waits_so_far + self.waits[unit][memory])
                    del homes[unit]
                parts[memory].pop()

        assign_units_from(0, 0.0)


# ---- Plans with several arenas: a memory and an offset for every value and every copied weight.

ARENA_SPACING = 64
"""Alignment in bytes of the start of each arena, in the address space in which a plan's offsets are counted."""
FLASH = Memory("flash", 1 << 40)
"""The flash as one of the memories for constants: a constant that is assigned to it is not copied to RAM."""
MemoryWaits = dict[Unit, tuple[float, ...]]


def plan_in_memories(module: Module, demand: Demand, memories: Sequence[Memory], flash: ConstantHomes) -> Plan:
    """Plan an arena for each memory. The plan's offsets count through all arenas, one after the other.

    The arena of an unused memory is empty. Two assignments are compared, and the one with fewer waits is used. The
    first assigns tensors and resident copies of weights together, and then makes copies ahead in the memory that is
    left. The second assigns copies ahead first, and then resident copies. ``flash``: the flash region of each constant.
    """
    waits = _compute_tensor_waits(module, demand, memories)
    resident_copies, ahead_copies = (
        _select_most_gainful_copies(copies(module, memories, flash))
        for copies in (find_resident_copies, find_copies_ahead)
    )
    if not resident_copies and not ahead_copies:
        return _make_plan(module, demand, assign_memories(demand, waits, memories), {}, waits, memories)
    splits = [
        _split_with_copies(demand, waits, *order, memories)
        for order in ((resident_copies, ahead_copies), (ahead_copies, resident_copies))
    ]
    linked = {each.unit.name: each.flash_wait_of_run for each in (*resident_copies, *ahead_copies)}

    def total_waits_of_split(homes_and_copies: tuple[Homes, dict[str, ConstantCopy]]) -> float:
        homes, copied = homes_and_copies
        own = sum((copied[u.name].waits if u.name in copied else waits[u])[home] for u, home in homes.items())
        return own + sum(cycles for name, cycles in linked.items() if name not in copied)

    homes, copied = min(splits, key=total_waits_of_split)
    waits |= {each.unit: each.waits for each in copied.values()}
    whole = add_units(demand, [each.unit for each in copied.values()])
    return _make_plan(module, whole, homes, copied, waits, memories)


def _select_most_gainful_copies(copies: Sequence[ConstantCopy]) -> list[ConstantCopy]:
    """Return the :data:`MAX_COPIES` copies of constants that save the most cycles per byte.

    The limit keeps the search fast for networks with many constants.
    """
    return sorted(copies, key=lambda c: ((min(c.waits) - c.flash_wait_of_run) / c.unit.size, c.unit.name))[:MAX_COPIES]


def add_units(demand: Demand, units: Iterable[Unit]) -> Demand:
    """Return a demand with units for constants added. They must not overlap any other unit that is alive with them."""
    units = tuple(units)
    return Demand((*demand.units, *units), {**demand.allowed_distances, **{unit: {} for unit in units}})


def _split_with_copies(
    demand: Demand,
    waits: MemoryWaits,
    copies: Sequence[ConstantCopy],
    other_copies: Sequence[ConstantCopy],
    memories: Sequence[Memory],
) -> tuple[Homes, dict[str, ConstantCopy]]:
    """Assign tensors and the copies ``copies`` to memories, then add the copies of ``other_copies`` that still fit.

    Returns the assignment, and by name the copies of constants that are made."""
    choices = {unit: (*cycles, inf) for unit, cycles in waits.items()}
    choices |= {each.unit: (*each.waits, each.flash_wait_of_run) for each in copies}
    homes = assign_memories(add_units(demand, [each.unit for each in copies]), choices, (*memories, FLASH))
    homes = {unit: home for unit, home in homes.items() if home < len(memories)}
    return _add_copies(demand, homes, {c.unit.name: c for c in copies if c.unit in homes}, other_copies, memories)


def _add_copies(
    demand: Demand,
    homes: Homes,
    copies: Mapping[str, ConstantCopy],
    candidates: Sequence[ConstantCopy],
    memories: Sequence[Memory],
) -> tuple[Homes, dict[str, ConstantCopy]]:
    """Add copies of constants to an assignment, in the memory that it leaves free.

    The ``candidates`` that save the most cycles per byte and call are tried first. Returns the assignment, and by name
    all copies of constants that are made."""
    homes, copies = dict(homes), dict(copies)
    rooms = {**demand.allowed_distances, **{unit: {} for unit in homes if unit not in demand.allowed_distances}}
    last_call = max((unit.last for unit in homes), default=0)

    def gain_density(copy: ConstantCopy) -> float:
        return (copy.flash_wait_of_run - min(copy.waits)) / (
            copy.unit.size * (min(copy.unit.last, last_call) - copy.unit.first + 1)
        )

    for copy in sorted(candidates, key=lambda copy: (-gain_density(copy), copy.unit.name)):
        if copy.unit.name in copies:
            continue
        rooms[copy.unit] = {}
        for number in sorted(range(len(memories)), key=lambda n: (copy.waits[n], n)):
            inside = [unit for unit, home in homes.items() if home == number]
            units = (*inside, copy.unit)
            if copy.waits[number] < copy.flash_wait_of_run and fits_in_bytes(
                memories[number].size, restrict_demand(Demand(units, rooms), units)
            ):
                homes[copy.unit], copies[copy.unit.name] = number, copy
                break
    return homes, copies


def _compute_tensor_waits(module: Module, demand: Demand, memories: Sequence[Memory]) -> MemoryWaits:
    """Return the cycles that a run waits for each tensor or stored constant (unit of the demand), in each memory.

    If memories hold weights, stored constants are read into these only: a DMA controller need not reach the others."""
    by_name = {unit.name: unit for unit in demand.units}
    waits = {unit: [0.0] * len(memories) for unit in demand.units}
    for call in module.calls:
        for name, moved in zip(call.args, call.traffic, strict=True):
            unit = by_name.get(module.base_and_offset(name)[0])
            if unit is not None:
                for number, memory in enumerate(memories):
                    waits[unit][number] += memory.wait_cycles(moved, module.values[name].nbytes)
    if any(memory.weights for memory in memories):
        for unit in demand.units:
            if module.values[unit.name].storage == "const":
                waits[unit] = [w if m.weights else inf for w, m in zip(waits[unit], memories, strict=True)]
    return {unit: tuple(cycles) for unit, cycles in waits.items()}


def _make_plan(
    module: Module,
    demand: Demand,
    homes: Homes,
    copies_by_name: Mapping[str, ConstantCopy],
    waits: MemoryWaits,
    memories: Sequence[Memory],
) -> Plan:
    """Place the units of each memory in its arena, and return the plan.

    ``homes``: the index of the memory of each unit. ``copies_by_name``: the copies of constants among the units."""
    accesses = dict.fromkeys((unit.name for unit in demand.units), 0.0)
    for call in module.calls:
        for name, moved in zip(call.args, call.traffic, strict=True):
            base, _ = module.base_and_offset(name)
            if base in accesses:
                accesses[base] += moved.reads + moved.writes
    offsets: dict[str, int] = {}
    arenas: list[Arena] = []
    planners: list[str] = []
    start = bound = 0
    for number, memory in enumerate(memories):
        own = [unit for unit in demand.units if homes[unit] == number]
        inside = restrict_demand(demand, own)
        name, best = place_units(inside)
        size = -(-placement_byte_count(best) // 4) * 4
        offsets |= {unit.name: start + at for unit, at in best.items()}
        count, cycles = sum(accesses[unit.name] for unit in own), sum(waits[unit][number] for unit in own)
        arenas.append(Arena(memory.name, start, size, memory.size, round(count), round(cycles)))
        planners += [name] if own else []
        bound += placement_lower_bound(inside)
        start += -(-size // ARENA_SPACING) * ARENA_SPACING
    return Plan(
        offsets=dict(sorted(offsets.items())),
        size=max((arena.start + arena.size for arena in arenas if arena.size), default=0),
        lower_bound=bound,
        planner=", ".join(dict.fromkeys(planners)),
        arenas=tuple(arenas),
        copies={name: each.step for name, each in sorted(copies_by_name.items())},
    )


def add_operand_waits(
    module: Module, memories: Sequence[Memory], flash: ConstantHomes, storage: Storage | None = None
) -> Module:
    """Return a planned module whose calls include the cycles that they wait for their operands.

    ``flash``: the flash region of each constant that is not read from ``storage``."""
    assert module.plan is not None
    stored = module.plan.stored_offsets
    runs = any(is_copied_per_run(step) for name, step in module.plan.copies.items() if name not in stored)
    ahead_copies = {each.unit.name: each for each in find_copies_ahead(module, memories, flash)} if runs else {}
    calls = tuple(_add_waits_to_call(module, call, memories, flash, ahead_copies) for call in module.calls)
    if storage is not None:
        reads = {name: module.plan.copies[name] for name in stored}
        waits = map(round, wait_for_reads(module, reads, storage))
        calls = tuple(replace(c, waits=c.waits + w, cycles=c.cycles + w) for c, w in zip(calls, waits, strict=True))
    return replace(module, calls=calls)


def _add_waits_to_call(
    module: Module,
    call: Call,
    memories: Sequence[Memory],
    flash: ConstantHomes,
    ahead_copies: Mapping[str, ConstantCopy],
) -> Call:
    """Return a call whose cycle estimate includes the cycles that the core waits for the call's operands.

    ``ahead_copies``: copies of constants that are made in every run, by name."""
    plan, cycles = module.plan, 0.0
    assert plan is not None
    for name, moved in zip(call.args, call.traffic, strict=True):
        base, _ = module.base_and_offset(name)
        at, nbytes = plan.offsets.get(base), module.values[name].nbytes
        if at is not None and plan.arenas:
            number = max(k for k, arena in enumerate(plan.arenas) if arena.size and arena.start <= at)
            copied = ahead_copies.get(base) if is_copied_per_run(plan.copies.get(base, -1)) else None
            cycles += copied.waits[number] if copied else memories[number].wait_cycles(moved, nbytes)
        elif base in flash:
            cycles += flash[base].wait_cycles(moved, nbytes)
    return replace(call, waits=round(cycles), cycles=call.cycles - call.waits + round(cycles))
