"""Assignment of values, weights and hot kernels to the memories of a board.

- :func:`with_hot_code`: kernels that run from RAM (knapsack).
- :func:`find_resident_copies`, :func:`find_copies_ahead`: constants that are worth a copy in RAM.
- :func:`assign_memories`: the memory of every value (first fit, moves, branch and bound).
- :func:`plan_in_memories`: all of it, with an arena for each memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from math import inf

from microc.base.immutable import frozen
from microc.base.knapsack import LayerOption, pareto_front
from microc.module import Arena, Call, HotCode, Kernel, Module, Plan
from microc.plan.liveness import BEFORE, Demand, Unit, placement_lower_bound, placement_size
from microc.plan.placement import (
    EXACT_LIMIT,
    FULL_PLACEMENTS,
    MAX_BRANCH_VALUES,
    MAX_COPIES,
    MAX_HOT_KERNELS,
    MAX_MOVES,
    PAIR_EFFORT,
    SPLIT_EFFORT,
    greedy_by_conflicts,
    greedy_by_size,
    place_units,
)
from microc.target import CodeMemory, Memory, Traffic

# ---- Hot code: kernels that run from a memory that waits less for instructions than the flash they are linked in.
#
# A kernel gains the waits that its calls save in a run (:class:`microc.target.Fetching`), and takes its estimated size with a
# margin, since the size of compiled code is unknown before the compiler ran; the linker decides in the end. The choice is a 0/1
# knapsack, solved exactly by :func:`microc.base.knapsack.pareto_front`.

MARGIN, BESIDE = 1.5, 48
"""Size of a function in RAM: a factor on its estimate, and bytes for alignment, literals behind it, and jumps to flash."""


def with_hot_code(module: Module, memory: CodeMemory) -> Module:
    """Return a planned module with kernels placed in ``memory``, and with the waits for code added to its calls."""
    assert module.plan is not None
    calls = Counter(call.kernel for call in module.calls)
    linked = {k.name: memory.linked.waits(k.fetches) for k in module.kernels}
    there = {k.name: memory.fetching.waits(k.fetches) for k in module.kernels}
    gains = {name: calls[name] * (linked[name] - there[name]) for name in linked}
    sizes = {k.name: reserved_code_bytes(k) for k in module.kernels if gains[k.name] > 0 and k.external is None}
    inside = _choose_kernels(gains, sizes, memory.size)
    waits = {name: there[name] if name in inside else linked[name] for name in linked}
    code = HotCode(
        memory.name,
        inside,
        sum(sizes[name] for name in inside),
        memory.size,
        round(sum(waits[call.kernel] for call in module.calls)),
        round(sum(gains[name] for name in inside)),
    )
    more = {call.kernel: round(waits[call.kernel]) for call in module.calls}
    timed = tuple(
        replace(call, waits=call.waits + more[call.kernel], cycles=call.cycles + more[call.kernel])
        for call in module.calls
    )
    return replace(module, calls=timed, plan=replace(module.plan, code=code))


def _choose_kernels(gains: Mapping[str, float], sizes: Mapping[str, int], capacity: int) -> tuple[str, ...]:
    """Return the kernels with the largest gain that fit, in the module's order.

    The choice is exact among the :data:`MAX_HOT_KERNELS` kernels with the largest gain per byte; of the others it takes each that
    still fits.
    """
    ordered = sorted(sizes, key=lambda name: (-gains[name] / sizes[name], name))
    exact_candidates, others = ordered[:MAX_HOT_KERNELS], ordered[MAX_HOT_KERNELS:]
    best = pareto_front(
        [(LayerOption(0, gains[name], 0, 0), LayerOption(1, 0.0, sizes[name], 0)) for name in exact_candidates],
        capacity,
    )[-1]
    chosen, left = (
        {name for name, pick in zip(exact_candidates, best.picks, strict=True) if pick},
        capacity - best.flash,
    )
    for name in others:
        if sizes[name] <= left:
            chosen.add(name)
            left -= sizes[name]
    return tuple(name for name in gains if name in chosen)


def reserved_code_bytes(kernel: Kernel) -> int:
    """Return the bytes reserved for a kernel that runs from RAM."""
    return round(MARGIN * kernel.code_bytes) + BESIDE


# ---- Weights in RAM: copies of constants in an arena, resident or made by the call before the one that reads them.
#
# A resident copy takes memory in all calls and is made once, at reset. A copy ahead takes memory in two calls and is made in
# every run: it pays for constants that a call reads several times from slow flash. Copies are timed as done by the core,
# without DMA.

COPY_CYCLES = 2.0
"""Cycles for copying a byte by the core: a word at a time, including the loop."""


@frozen
class ConstantCopy:
    """A copy of a constant in RAM. ``step``: the call at whose start copying begins, :data:`BEFORE` for a resident copy,
    which is made at reset.

    ``waits``: cycles that a run waits for the constant with a copy in each memory, copying included; ``flash``: cycles
    that it waits without a copy."""

    unit: Unit
    step: int
    waits: tuple[float, ...]
    flash: float


def find_resident_copies(module: Module, memories: Sequence[Memory], flash_wait: float) -> list[ConstantCopy]:
    """Return the copies of constants in RAM, made at reset, that are read faster than the flash.

    ``flash_wait``: cycles that the core waits for a byte of flash."""
    end = len(module.calls)
    copies = []
    for name, uses in _constant_uses(module).items():
        value = module.values[name]
        unit = Unit(name, value.nbytes, value.align, BEFORE, end)
        waits = tuple(sum(m.waits(moved, value.nbytes) for _, moved in uses) if m.weights else inf for m in memories)
        copies.append(ConstantCopy(unit, BEFORE, waits, flash_wait * sum(moved.bytes_read for _, moved in uses)))
    return [each for each in copies if min(each.waits) < each.flash]


def find_copies_ahead(module: Module, memories: Sequence[Memory], flash_wait: float) -> list[ConstantCopy]:
    """Return the copies that pay in every run, of constants that a single call reads.

    Each is made while the call before runs. ``flash_wait``: cycles that the core waits for a byte of flash."""
    copies = []
    for name, uses in _constant_uses(module).items():
        if len(uses) != 1:
            continue
        value, ((call, moved),) = module.values[name], uses
        unit = Unit(name, value.nbytes, value.align, max(call - 1, 0), call)
        copying = (flash_wait + COPY_CYCLES) * value.nbytes
        written = Traffic.of(1, value.nbytes, writes=True)
        waits = tuple(copying + m.waits(moved + written, value.nbytes) if m.weights else inf for m in memories)
        copies.append(ConstantCopy(unit, max(call - 1, 0), waits, flash_wait * moved.bytes_read))
    return [each for each in copies if min(each.waits) < each.flash]


def _constant_uses(module: Module) -> dict[str, list[tuple[int, Traffic]]]:
    """Return the calls that read each constant of the generated C, with their traffic; constants with views are left out."""
    uses: dict[str, list[tuple[int, Traffic]]] = {}
    viewed = {module.base_of(view.name)[0] for view in module.views}
    for number, call in enumerate(module.calls):
        for name, moved in zip(call.args, call.traffic, strict=True):
            value = module.values[name]
            if value.storage == "const" and value.data is not None and value.nbytes and name not in viewed:
                uses.setdefault(name, []).append((number, moved))
    return uses


# ---- The memory of every value: the split with the least waits whose parts fit.
#
# Branch and bound assigns values one by one, by gain per byte of fast memory and call. A branch ends if its waits, with all
# other values in their best memory, are no better than the best split so far, or if some call needs more of a memory than
# there is. It is exact (up to the placements that the planners find) within :data:`~microc.plan.placement.SPLIT_EFFORT` steps,
# for up to :data:`~microc.plan.placement.MAX_BRANCH_VALUES` values. It starts from a first fit in the same order, improved by
# moves of single values, so that large networks get a good split too.

Waits = Mapping[Unit, tuple[float, ...]]
"""Cycles of a run that the accesses to a unit wait, in each memory; infinite if it may not be there."""
Homes = dict[Unit, int]
"""The number of each unit's memory."""


def assign_memories(wanted: Demand, waits: Waits, memories: Sequence[Memory]) -> Homes:
    """Assign a memory to every unit. If no split fits, the remaining units go into the first memory, beyond its end."""
    search = _SplitSearch(wanted, waits, memories)
    search.first_fit()
    search.improve_by_moves()
    search.branch_and_bound()
    return search.best


def restrict_demand(wanted: Demand, units: Iterable[Unit]) -> Demand:
    """Restrict a demand to some units."""
    chosen = set(units)
    kept = tuple(unit for unit in wanted.units if unit in chosen)
    return Demand(kept, {u: {o: r for o, r in wanted.rooms[u].items() if o in chosen} for u in kept})


def fits(size: int, wanted: Demand) -> bool:
    """Test whether so many bytes hold all units, by the quick planners."""
    return fits_side_by_side(size, wanted) or _fits_greedily(size, wanted)


def fits_side_by_side(size: int, wanted: Demand) -> bool:
    """Test whether ``size`` bytes hold all units side by side, without any sharing."""
    return sum(unit.size + unit.align for unit in wanted.units) <= size


def _fits_greedily(size: int, wanted: Demand) -> bool:
    return placement_lower_bound(wanted) <= size and any(
        placement_size(planner(wanted)) <= size for planner in (greedy_by_size, greedy_by_conflicts)
    )


class _SplitSearch:
    """Search for the assignment of units to memories with the least waits: first fit, then moves, then branch and bound."""

    def __init__(self, wanted: Demand, waits: Waits, memories: Sequence[Memory]) -> None:
        self.wanted, self.waits, self.memories = wanted, waits, memories
        self.numbers = range(len(memories))
        self.units = sorted(wanted.units, key=lambda u: (-self._gain_density(u), u.size, u.name))
        self.ways = {u: self._usable_memories(u) for u in self.units}
        self.best: Homes = {}
        self.cost = inf
        self._placements = count()
        self._pairs = 0
        self._fits: dict[tuple[int, frozenset[str], bool], bool] = {}

    def _usable_memories(self, unit: Unit) -> list[int]:
        """Return the memories that are large enough for a unit, the one with the least waits first."""
        large = (m for m in self.numbers if unit.size <= self.memories[m].size and self.waits[unit][m] < inf)
        return sorted(large, key=lambda m: (self.waits[unit][m], m))

    def _least_waits(self, unit: Unit) -> float:
        """Return the cycles that a unit waits in its best memory."""
        return min((self.waits[unit][m] for m in self.ways[unit]), default=inf)

    def _gain_density(self, unit: Unit) -> float:
        """Return the cycles that a unit's best memory saves over its worst, per byte and call that it is alive."""
        waits = [cycles for cycles in self.waits[unit] if cycles < inf]
        return (max(waits) - min(waits)) / (max(unit.size, 1) * (unit.last - unit.first + 1))

    def total(self, homes: Homes) -> float:
        """Return the cycles that a run waits for all units with this assignment."""
        return sum(self.waits[unit][home] for unit, home in homes.items())

    def fits(self, memory: int, units: Iterable[Unit], *, fully: bool) -> bool:
        """Test whether a memory holds some units: by the quick planners, or by all."""
        chosen = frozenset(units)
        key = memory, frozenset(unit.name for unit in chosen), fully
        if key not in self._fits:
            self._fits[key] = self._is_placeable(
                self.memories[memory].size, restrict_demand(self.wanted, chosen), fully=fully
            )
        return self._fits[key]

    def _is_placeable(self, size: int, wanted: Demand, *, fully: bool) -> bool:
        """Test whether ``size`` bytes hold all units, as far as the effort limits allow to find out."""
        if fits_side_by_side(size, wanted):
            return True
        self._pairs += len(wanted.units) ** 2
        if self._pairs > PAIR_EFFORT:
            return False
        if _fits_greedily(size, wanted):
            return True
        if not fully or placement_lower_bound(wanted) > size:
            return False
        # All planners are slow, so only few memories get them; small ones are solved exactly and do not count.
        small = len(wanted.units) <= EXACT_LIMIT
        return (small or next(self._placements) < FULL_PLACEMENTS) and placement_size(place_units(wanted)[1]) <= size

    def first_fit(self) -> None:
        """Assign every unit to the memory with the least waits that still holds it."""
        homes: Homes = {}
        fitting = True
        for unit in self.units:
            home = self._first_fitting_memory(unit, homes)
            fitting = fitting and home is not None
            homes[unit] = home or 0
        self.best, self.cost = homes, self.total(homes) if fitting else inf

    def _first_fitting_memory(self, unit: Unit, homes: Homes, *, excluded_memory: int = -1) -> int | None:
        """Return the memory with the least waits that still holds a unit, other than ``excluded_memory``; None if there is
        none."""
        for memory in self.ways[unit]:
            inside = [other for other, home in homes.items() if home == memory]
            if memory != excluded_memory and self.fits(memory, [*inside, unit], fully=False):
                return memory
        return None

    def improve_by_moves(self) -> None:
        """Move a unit into a better memory, and the units with the least gain out of it until it fits, while the waits shrink."""
        moves = iter(range(MAX_MOVES))
        moved = self.cost < inf
        # In each pass, units that lose most where they are come first.
        while moved:
            moved = False
            for unit in sorted(self.units, key=lambda u: self._least_waits(u) - self.waits[u][self.best[u]]):
                for memory in self.ways[unit]:
                    if self.waits[unit][memory] >= self.waits[unit][self.best[unit]]:
                        break
                    if next(moves, None) is None:
                        return
                    homes = self._with_moved(unit, memory)
                    if homes is not None and self.total(homes) < self.cost:
                        self.best, self.cost, moved = homes, self.total(homes), True
                        break

    def _with_moved(self, unit: Unit, memory: int) -> Homes | None:
        """Return the best split so far with a unit in a memory, and others moved out of it; None if these fit nowhere."""
        homes = {**self.best, unit: memory}
        evicted: list[Unit] = []
        inside = [u for u, home in homes.items() if home == memory]
        for other in reversed(self.units):
            if other is unit or homes[other] != memory or not other.conflicts(unit):
                continue
            if self.fits(memory, inside, fully=False):
                break
            inside.remove(other)
            evicted.append(other)
            del homes[other]
        for other in reversed(evicted):
            home = self._first_fitting_memory(other, homes)
            if home is None:
                return None
            homes[other] = home
        return homes if self.fits(memory, [u for u, home in homes.items() if home == memory], fully=False) else None

    def branch_and_bound(self) -> None:
        """Search all splits by branch and bound, for few enough values."""
        if len(self.units) > MAX_BRANCH_VALUES:
            return
        least = [0.0]
        for unit in reversed(self.units):
            least.append(least[-1] + self._least_waits(unit))
        least.reverse()  # least[k]: the least waits of units k, k + 1, ...
        steps, homes = count(), dict[Unit, int]()
        parts: list[list[Unit]] = [[] for _ in self.memories]

        def search(number: int, cost: float) -> None:
            if cost + least[number] >= self.cost:
                return
            if number == len(self.units):
                if all(self.fits(m, parts[m], fully=True) for m in self.numbers):
                    self.best, self.cost = dict(homes), cost
                return
            unit = self.units[number]
            for memory in self.ways[unit]:
                if next(steps) >= SPLIT_EFFORT:
                    return
                parts[memory].append(unit)
                if placement_lower_bound(restrict_demand(self.wanted, parts[memory])) <= self.memories[memory].size:
                    homes[unit] = memory
                    search(number + 1, cost + self.waits[unit][memory])
                    del homes[unit]
                parts[memory].pop()

        search(0, 0.0)


# ---- Plans with several arenas: the memory of every value and copied weight, and its offset.

ARENA_SPACING = 64
"""Alignment of the arenas in a plan's offsets, in bytes."""
FLASH = Memory("flash", 1 << 40)
"""The flash as a choice of memory for constants."""
MemoryWaits = dict[Unit, tuple[float, ...]]


def plan_in_memories(module: Module, wanted: Demand, memories: Sequence[Memory], flash_wait: float) -> Plan:
    """Plan an arena for each memory, one behind the other in the plan's offsets; empty if the memory holds nothing.

    ``flash_wait``: cycles that a byte of constants waits in flash. Either resident weights are assigned together with
    tensors and the others are copied ahead into what is left, or vice versa, whichever waits less.
    """
    waits = _tensor_waits(module, wanted, memories)
    resident_copies, ahead_copies = (
        _most_gainful_copies(copies(module, memories, flash_wait))
        for copies in (find_resident_copies, find_copies_ahead)
    )
    if not resident_copies and not ahead_copies:
        return _make_plan(module, wanted, assign_memories(wanted, waits, memories), {}, waits, memories)
    splits = [
        _split_with_copies(wanted, waits, *order, memories)
        for order in ((resident_copies, ahead_copies), (ahead_copies, resident_copies))
    ]
    linked = {each.unit.name: each.flash for each in (*resident_copies, *ahead_copies)}

    def total(split_: tuple[Homes, dict[str, ConstantCopy]]) -> float:
        homes, copied = split_
        own = sum((copied[u.name].waits if u.name in copied else waits[u])[home] for u, home in homes.items())
        return own + sum(cycles for name, cycles in linked.items() if name not in copied)

    homes, copied = min(splits, key=total)
    waits |= {each.unit: each.waits for each in copied.values()}
    return _make_plan(module, _add_units(wanted, copied.values()), homes, copied, waits, memories)


def _most_gainful_copies(copies: Sequence[ConstantCopy]) -> list[ConstantCopy]:
    """Return the copies with the largest gain per byte.

    Their number is limited, so that the time of the search does not grow with the number of constants.
    """
    return sorted(copies, key=lambda c: ((min(c.waits) - c.flash) / c.unit.size, c.unit.name))[:MAX_COPIES]


def _add_units(wanted: Demand, copies: Iterable[ConstantCopy]) -> Demand:
    """Add copies of constants, which overlap nothing, to a demand."""
    units = [each.unit for each in copies]
    return Demand((*wanted.units, *units), {**wanted.rooms, **{unit: {} for unit in units}})


def _split_with_copies(
    wanted: Demand,
    waits: MemoryWaits,
    copies: Sequence[ConstantCopy],
    other_copies: Sequence[ConstantCopy],
    memories: Sequence[Memory],
) -> tuple[Homes, dict[str, ConstantCopy]]:
    """Split tensors and copies of one kind, then add copies of the other kind that still fit."""
    choices = {unit: (*cycles, inf) for unit, cycles in waits.items()}
    choices |= {each.unit: (*each.waits, each.flash) for each in copies}
    homes = assign_memories(_add_units(wanted, copies), choices, (*memories, FLASH))
    homes = {unit: home for unit, home in homes.items() if home < len(memories)}
    return _add_copies(wanted, homes, {c.unit.name: c for c in copies if c.unit in homes}, other_copies, memories)


def _add_copies(
    wanted: Demand,
    homes: Homes,
    copies: Mapping[str, ConstantCopy],
    candidates: Sequence[ConstantCopy],
    memories: Sequence[Memory],
) -> tuple[Homes, dict[str, ConstantCopy]]:
    """Add copies of constants (``candidates``) to what an assignment leaves free, those with the largest gain per byte and
    call first."""
    homes, copies = dict(homes), dict(copies)
    rooms = {**wanted.rooms, **{unit: {} for unit in homes if unit not in wanted.rooms}}
    last_call = max((unit.last for unit in homes), default=0)

    def gain_density(copy: ConstantCopy) -> float:
        return (copy.flash - min(copy.waits)) / (
            copy.unit.size * (min(copy.unit.last, last_call) - copy.unit.first + 1)
        )

    for copy in sorted(candidates, key=lambda copy: (-gain_density(copy), copy.unit.name)):
        if copy.unit.name in copies:
            continue
        rooms[copy.unit] = {}
        for number in sorted(range(len(memories)), key=lambda n: (copy.waits[n], n)):
            inside = [unit for unit, home in homes.items() if home == number]
            units = (*inside, copy.unit)
            if copy.waits[number] < copy.flash and fits(
                memories[number].size, restrict_demand(Demand(units, rooms), units)
            ):
                homes[copy.unit], copies[copy.unit.name] = number, copy
                break
    return homes, copies


def _tensor_waits(module: Module, wanted: Demand, memories: Sequence[Memory]) -> MemoryWaits:
    """Return the cycles that a run waits for each unit, in each memory."""
    by_name = {unit.name: unit for unit in wanted.units}
    waits = {unit: [0.0] * len(memories) for unit in wanted.units}
    for call in module.calls:
        for name, moved in zip(call.args, call.traffic, strict=True):
            unit = by_name.get(module.base_of(name)[0])
            if unit is not None:
                for number, memory in enumerate(memories):
                    waits[unit][number] += memory.waits(moved, module.values[name].nbytes)
    return {unit: tuple(cycles) for unit, cycles in waits.items()}


def _make_plan(
    module: Module,
    wanted: Demand,
    homes: Homes,
    copied: Mapping[str, ConstantCopy],
    waits: MemoryWaits,
    memories: Sequence[Memory],
) -> Plan:
    """Place the units of each memory in its arena, and return the plan."""
    accesses = dict.fromkeys((unit.name for unit in wanted.units), 0.0)
    for call in module.calls:
        for name, moved in zip(call.args, call.traffic, strict=True):
            base, _ = module.base_of(name)
            if base in accesses:
                accesses[base] += moved.reads + moved.writes
    offsets: dict[str, int] = {}
    arenas: list[Arena] = []
    planners: list[str] = []
    start = bound = 0
    for number, memory in enumerate(memories):
        own = [unit for unit in wanted.units if homes[unit] == number]
        inside = restrict_demand(wanted, own)
        name, best = place_units(inside)
        size = -(-placement_size(best) // 4) * 4
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
        copies={name: each.step for name, each in sorted(copied.items())},
    )


def add_operand_waits(module: Module, memories: Sequence[Memory], flash_wait: float) -> Module:
    """Add the waits for operands to the cycles of a planned module's calls."""
    assert module.plan is not None
    runs = any(map(_is_copied_per_run, module.plan.copies.values()))
    ahead_copies = {each.unit.name: each for each in find_copies_ahead(module, memories, flash_wait)} if runs else {}
    return replace(
        module, calls=tuple(_with_waits(module, call, memories, flash_wait, ahead_copies) for call in module.calls)
    )


def _with_waits(
    module: Module, call: Call, memories: Sequence[Memory], flash_wait: float, ahead_copies: Mapping[str, ConstantCopy]
) -> Call:
    """Return a call with its waits; ``ahead_copies``: constants that may be copied in every run."""
    plan, cycles = module.plan, 0.0
    assert plan is not None
    for name, moved in zip(call.args, call.traffic, strict=True):
        base, _ = module.base_of(name)
        at, nbytes = plan.offsets.get(base), module.values[name].nbytes
        if at is not None and plan.arenas:
            number = max(k for k, arena in enumerate(plan.arenas) if arena.size and arena.start <= at)
            copied = ahead_copies.get(base) if _is_copied_per_run(plan.copies.get(base, -1)) else None
            cycles += copied.waits[number] if copied else memories[number].waits(moved, nbytes)
        elif module.values[base].storage == "const":
            cycles += flash_wait * moved.bytes_read
    return replace(call, waits=round(cycles), cycles=call.cycles - call.waits + round(cycles))


def _is_copied_per_run(step: int) -> bool:
    """Test whether a copy is made in every run, not at reset."""
    return step >= 0
