"""Several arenas: which memory every value, weight and kernel is in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from math import inf

from microc.base.immutable import frozen
from microc.base.knapsack import Option, front
from microc.module import Arena, Call, HotCode, Kernel, Module, Plan
from microc.plan.liveness import BEFORE, Demand, Unit, lower_bound, size_of
from microc.plan.placement import (
    BRANCHED,
    COPIES,
    EXACT_LIMIT,
    HOT,
    MOVES,
    PAIRS,
    PLACEMENTS,
    SPLITS,
    greedy_by_conflicts,
    greedy_by_size,
    placed,
)
from microc.target import CodeMemory, Memory, Traffic

# ---- Hot code: which kernels run from a memory that waits less for instructions than the flash where they are
# linked.
#
# A kernel gains the cycles that its calls of a run wait less (:class:`microc.target.Fetching`), and takes its estimated size with
# a margin: what compilers make of it is not known before they ran, and the linker has the last word. Which of them go there is
# the 0/1 knapsack problem, solved exactly by :func:`microc.base.knapsack.front`.

MARGIN, BESIDE = 1.5, 48
"""What a function takes: so many times its estimate, and bytes of alignment, of constants behind it, and of jumps to flash."""


def with_hot_code(module: Module, memory: CodeMemory) -> Module:
    """The planned ``module`` with kernels in ``memory``, and calls that wait for their code where it lies."""
    assert module.plan is not None
    calls = Counter(call.kernel for call in module.calls)
    linked = {k.name: memory.linked.waits(k.fetches) for k in module.kernels}
    there = {k.name: memory.fetching.waits(k.fetches) for k in module.kernels}
    gains = {name: calls[name] * (linked[name] - there[name]) for name in linked}
    sizes = {k.name: room(k) for k in module.kernels if gains[k.name] > 0 and k.external is None}
    inside = _chosen(gains, sizes, memory.size)
    waits = {name: there[name] if name in inside else linked[name] for name in linked}
    code = HotCode(
        memory.name,
        inside,
        sum(sizes[name] for name in inside),
        memory.size,
        round(sum(waits[call.kernel] for call in module.calls)),
        round(sum(gains[name] for name in inside)),
    )
    timed = tuple(_waiting(call, round(waits[call.kernel])) for call in module.calls)
    return replace(module, calls=timed, plan=replace(module.plan, code=code))


def _chosen(gains: Mapping[str, float], sizes: Mapping[str, int], capacity: int) -> tuple[str, ...]:
    """The kernels that gain most together in so many bytes, in the module's order: the best set of those that gain most by a
    byte, and of more of them what still finds room."""
    ordered = sorted(sizes, key=lambda name: (-gains[name] / sizes[name], name))
    first, more = ordered[:HOT], ordered[HOT:]
    best = front([(Option(0, gains[name], 0, 0), Option(1, 0.0, sizes[name], 0)) for name in first], capacity)[-1]
    inside, left = {name for name, pick in zip(first, best.picks, strict=True) if pick}, capacity - best.flash
    for name in more:
        if sizes[name] <= left:
            inside.add(name)
            left -= sizes[name]
    return tuple(name for name in gains if name in inside)


def room(kernel: Kernel) -> int:
    """Bytes that are kept for a kernel where it runs from RAM."""
    return round(MARGIN * kernel.code_bytes) + BESIDE


def _waiting(call: Call, cycles: int) -> Call:
    return replace(call, waits=call.waits + cycles, cycles=call.cycles + cycles)


# ---- Weights in RAM: copies of constants that lie in an arena for good, or from the call before the one that reads
# them.
#
# What stays costs memory in all calls and is copied once, when the network is reset. What is copied ahead costs it in two calls,
# and its copy in every run: it is for constants that a call reads several times over, from a flash that is slow. The core's own
# time for a copy is counted, as without a DMA controller.

COPY = 2.0
"""Cycles that a core takes to copy a byte: a word at a time, its loop among it."""


@frozen
class Copied:
    """A way for a constant to lie in RAM. ``step``: at whose start its copy begins, :data:`BEFORE` all runs or a call's.

    ``waits``: cycles of a run in each memory, the copy among them; ``flash``: what it waits where it is linked.
    """

    unit: Unit
    step: int
    waits: tuple[float, ...]
    flash: float


def resident(module: Module, memories: Sequence[Memory], flash: float) -> list[Copied]:
    """Constants that run faster in some memory that may hold weights. ``flash``: cycles that a byte waits there."""
    end = len(module.calls)
    found = []
    for name, uses in _uses(module).items():
        value = module.values[name]
        unit = Unit(name, value.nbytes, value.align, BEFORE, end)
        waits = tuple(sum(m.waits(moved, value.nbytes) for _, moved in uses) if m.weights else inf for m in memories)
        found.append(Copied(unit, BEFORE, waits, flash * sum(moved.bytes_read for _, moved in uses)))
    return [each for each in found if min(each.waits) < each.flash]


def ahead(module: Module, memories: Sequence[Memory], flash: float) -> list[Copied]:
    """Constants of one call that are worth a copy in every run, which goes on while the call before runs."""
    found = []
    for name, uses in _uses(module).items():
        if len(uses) != 1:
            continue
        value, ((call, moved),) = module.values[name], uses
        unit = Unit(name, value.nbytes, value.align, max(call - 1, 0), call)
        copying = (flash + COPY) * value.nbytes
        written = Traffic.of(1, value.nbytes, writes=True)
        waits = tuple(copying + m.waits(moved + written, value.nbytes) if m.weights else inf for m in memories)
        found.append(Copied(unit, max(call - 1, 0), waits, flash * moved.bytes_read))
    return [each for each in found if min(each.waits) < each.flash]


def _uses(module: Module) -> dict[str, list[tuple[int, Traffic]]]:
    """Which calls read a constant that is in the generated C, and how; none of which parts are read by other names."""
    found: dict[str, list[tuple[int, Traffic]]] = {}
    viewed = {module.base_of(view.name)[0] for view in module.views}
    for number, call in enumerate(module.calls):
        for name, moved in zip(call.args, call.traffic, strict=True):
            value = module.values[name]
            if value.storage == "const" and value.data is not None and value.nbytes and name not in viewed:
                found.setdefault(name, []).append((number, moved))
    return found


# ---- Which of a board's memories every value lies in: the split that waits least, of those whose parts fit.
#
# Values are decided one by one, those first that gain most by a byte of fast memory and a call; a branch ends where what is
# decided, with all others where they wait least, is no better than the best split so far, or where some call needs more of a
# memory than there is. That is exact (up to the placements that the planners find) while it takes no more than
# :data:`~microc.plan.placement.SPLITS` steps, of up to :data:`~microc.plan.placement.BRANCHED` values. A first fit in the same
# order, from which single values are then moved in and others out, is there before it begins, so that large networks have a
# good split, too.

Waits = Mapping[Unit, tuple[float, ...]]
"""Cycles of a run that a unit's accesses wait, in each memory; infinite where it may not lie."""
Homes = dict[Unit, int]
"""The number of each unit's memory."""


def split(wanted: Demand, waits: Waits, memories: Sequence[Memory]) -> Homes:
    """The memory of every unit. Where no split is found that fits, what is left goes into the first memory, beyond its end."""
    search = _Search(wanted, waits, memories)
    search.first_fit()
    search.improve()
    search.branch()
    return search.best


def part(wanted: Demand, units: Iterable[Unit]) -> Demand:
    """Some of the units, and how they may lie to each other."""
    chosen = set(units)
    kept = tuple(unit for unit in wanted.units if unit in chosen)
    return Demand(kept, {u: {o: r for o, r in wanted.rooms[u].items() if o in chosen} for u in kept})


def fits(size: int, wanted: Demand) -> bool:
    """Whether so many bytes hold all units, as quick planners place them."""
    return fits_anyhow(size, wanted) or _fits_placed(size, wanted)


def fits_anyhow(size: int, wanted: Demand) -> bool:
    """Whether so many bytes hold all units side by side."""
    return sum(unit.size + unit.align for unit in wanted.units) <= size


def _fits_placed(size: int, wanted: Demand) -> bool:
    return lower_bound(wanted) <= size and any(
        size_of(planner(wanted)) <= size for planner in (greedy_by_size, greedy_by_conflicts)
    )


class _Search:
    def __init__(self, wanted: Demand, waits: Waits, memories: Sequence[Memory]) -> None:
        self.wanted, self.waits, self.memories = wanted, waits, memories
        self.numbers = range(len(memories))
        self.units = sorted(wanted.units, key=lambda u: (-self._gain(u), u.size, u.name))
        self.ways = {u: self._ways(u) for u in self.units}
        self.best: Homes = {}
        self.cost = inf
        self._placements = count()
        self._pairs = 0
        self._fits: dict[tuple[int, frozenset[str], bool], bool] = {}

    def _ways(self, unit: Unit) -> list[int]:
        """The memories that are large enough for a unit, the one where it waits least first."""
        large = (m for m in self.numbers if unit.size <= self.memories[m].size and self.waits[unit][m] < inf)
        return sorted(large, key=lambda m: (self.waits[unit][m], m))

    def _least(self, unit: Unit) -> float:
        return min((self.waits[unit][m] for m in self.ways[unit]), default=inf)

    def _gain(self, unit: Unit) -> float:
        """Cycles that the best memory saves over the worst, by byte and call."""
        waits = [cycles for cycles in self.waits[unit] if cycles < inf]
        return (max(waits) - min(waits)) / (max(unit.size, 1) * (unit.last - unit.first + 1))

    def total(self, homes: Homes) -> float:
        """Cycles that a split waits."""
        return sum(self.waits[unit][home] for unit, home in homes.items())

    def fits(self, memory: int, units: Iterable[Unit], *, fully: bool) -> bool:
        """Whether a memory holds some units: by quick planners, or by all."""
        chosen = frozenset(units)
        key = memory, frozenset(unit.name for unit in chosen), fully
        if key not in self._fits:
            self._fits[key] = self._found(self.memories[memory].size, part(self.wanted, chosen), fully=fully)
        return self._fits[key]

    def _found(self, size: int, wanted: Demand, *, fully: bool) -> bool:
        if fits_anyhow(size, wanted):
            return True
        self._pairs += len(wanted.units) ** 2
        if self._pairs > PAIRS:
            return False
        if _fits_placed(size, wanted):
            return True
        if not fully or lower_bound(wanted) > size:
            return False
        small = len(wanted.units) <= EXACT_LIMIT
        return (small or next(self._placements) < PLACEMENTS) and size_of(placed(wanted)[1]) <= size

    def first_fit(self) -> None:
        """Every unit into the memory that waits least of those that still hold it."""
        homes: Homes = {}
        fitting = True
        for unit in self.units:
            home = self._home(unit, homes)
            fitting = fitting and home is not None
            homes[unit] = home or 0
        self.best, self.cost = homes, self.total(homes) if fitting else inf

    def _home(self, unit: Unit, homes: Homes, *, but: int = -1) -> int | None:
        for memory in self.ways[unit]:
            inside = [other for other, home in homes.items() if home == memory]
            if memory != but and self.fits(memory, [*inside, unit], fully=False):
                return memory
        return None

    def improve(self) -> None:
        """Move a unit into a better memory, and out of it what gains least there until it fits, while that waits less."""
        moves = iter(range(MOVES))
        moved = self.cost < inf
        while moved:
            moved = False
            for unit in sorted(self.units, key=lambda u: self._least(u) - self.waits[u][self.best[u]]):
                for memory in self.ways[unit]:
                    if self.waits[unit][memory] >= self.waits[unit][self.best[unit]]:
                        break
                    if next(moves, None) is None:
                        return
                    homes = self._moved(unit, memory)
                    if homes is not None and self.total(homes) < self.cost:
                        self.best, self.cost, moved = homes, self.total(homes), True
                        break

    def _moved(self, unit: Unit, memory: int) -> Homes | None:
        """The best split so far with a unit in a memory, and others out of it; None if these find no place."""
        homes = {**self.best, unit: memory}
        out: list[Unit] = []
        inside = [u for u, home in homes.items() if home == memory]
        for other in reversed(self.units):
            if other is unit or homes[other] != memory or not other.conflicts(unit):
                continue
            if self.fits(memory, inside, fully=False):
                break
            inside.remove(other)
            out.append(other)
            del homes[other]
        for other in reversed(out):
            home = self._home(other, homes)
            if home is None:
                return None
            homes[other] = home
        return homes if self.fits(memory, [u for u, home in homes.items() if home == memory], fully=False) else None

    def branch(self) -> None:
        """Branch and bound over all splits, of few enough values."""
        if len(self.units) > BRANCHED:
            return
        least = [0.0]
        for unit in reversed(self.units):
            least.append(least[-1] + self._least(unit))
        least.reverse()  # what the units from a number on wait at least
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
                if next(steps) >= SPLITS:
                    return
                parts[memory].append(unit)
                if lower_bound(part(self.wanted, parts[memory])) <= self.memories[memory].size:
                    homes[unit] = memory
                    search(number + 1, cost + self.waits[unit][memory])
                    del homes[unit]
                parts[memory].pop()

        search(0, 0.0)


# ---- Several arenas: which memory of the board every value lies in, weights too where a memory may hold them, and
# where in it.

APART = 64
"""Bytes at whose multiples arenas start among a plan's."""
FLASH = Memory("flash", 1 << 40)
"""Where constants are linked, as a memory to choose."""
MemoryWaits = dict[Unit, tuple[float, ...]]


def plan_in_memories(module: Module, wanted: Demand, memories: Sequence[Memory], flash: float) -> Plan:
    """Arenas one behind the other, an empty one for a memory that holds nothing.

    ``flash``: cycles that a byte of constants waits where it is linked. Weights that stay in RAM are decided together with
    tensors, and what is left of them is copied ahead where there is room; or the other way round, whichever waits less.
    """
    waits = _tensor_waits(module, wanted, memories)
    stay, come = (_promising(copies(module, memories, flash)) for copies in (resident, ahead))
    if not stay and not come:
        return _laid_out(module, wanted, split(wanted, waits, memories), {}, waits, memories)
    ways = [_together(wanted, waits, *kinds, memories) for kinds in ((stay, come), (come, stay))]
    linked = {each.unit.name: each.flash for each in (*stay, *come)}

    def total(way: tuple[Homes, dict[str, Copied]]) -> float:
        homes, copied = way
        own = sum((copied[u.name].waits if u.name in copied else waits[u])[home] for u, home in homes.items())
        return own + sum(cycles for name, cycles in linked.items() if name not in copied)

    homes, copied = min(ways, key=total)
    waits |= {each.unit: each.waits for each in copied.values()}
    return _laid_out(module, _with(wanted, copied.values()), homes, copied, waits, memories)


def _promising(copies: Sequence[Copied]) -> list[Copied]:
    """Those that gain most by a byte: how long the search takes must not follow the number of a network's constants."""
    return sorted(copies, key=lambda c: ((min(c.waits) - c.flash) / c.unit.size, c.unit.name))[:COPIES]


def _with(wanted: Demand, copies: Iterable[Copied]) -> Demand:
    """Copies of constants, too, which keep apart from all else."""
    units = [each.unit for each in copies]
    return Demand((*wanted.units, *units), {**wanted.rooms, **{unit: {} for unit in units}})


def _together(
    wanted: Demand, waits: MemoryWaits, copies: Sequence[Copied], more: Sequence[Copied], memories: Sequence[Memory]
) -> tuple[Homes, dict[str, Copied]]:
    """A split of tensors and of copies of one kind, and those of the other kind that find room beside them."""
    choices = {unit: (*cycles, inf) for unit, cycles in waits.items()}
    choices |= {each.unit: (*each.waits, each.flash) for each in copies}
    homes = split(_with(wanted, copies), choices, (*memories, FLASH))
    homes = {unit: home for unit, home in homes.items() if home < len(memories)}
    return _filled(wanted, homes, {c.unit.name: c for c in copies if c.unit in homes}, more, memories)


def _filled(
    wanted: Demand, homes: Homes, copied: Mapping[str, Copied], more: Sequence[Copied], memories: Sequence[Memory]
) -> tuple[Homes, dict[str, Copied]]:
    """A split with more copies of constants in what is free, those first that gain most by a byte and call."""
    homes, copied = dict(homes), dict(copied)
    rooms = {**wanted.rooms, **{unit: {} for unit in homes if unit not in wanted.rooms}}
    ends = max((unit.last for unit in homes), default=0)

    def gain(each: Copied) -> float:
        return (each.flash - min(each.waits)) / (each.unit.size * (min(each.unit.last, ends) - each.unit.first + 1))

    for each in sorted(more, key=lambda each: (-gain(each), each.unit.name)):
        if each.unit.name in copied:
            continue
        rooms[each.unit] = {}
        for number in sorted(range(len(memories)), key=lambda n: (each.waits[n], n)):
            inside = [unit for unit, home in homes.items() if home == number]
            units = (*inside, each.unit)
            if each.waits[number] < each.flash and fits(memories[number].size, part(Demand(units, rooms), units)):
                homes[each.unit], copied[each.unit.name] = number, each
                break
    return homes, copied


def _tensor_waits(module: Module, wanted: Demand, memories: Sequence[Memory]) -> MemoryWaits:
    """Cycles that the calls of a run wait for each unit, in each memory."""
    by_name = {unit.name: unit for unit in wanted.units}
    waits = {unit: [0.0] * len(memories) for unit in wanted.units}
    for call in module.calls:
        for name, moved in zip(call.args, call.traffic, strict=True):
            unit = by_name.get(module.base_of(name)[0])
            if unit is not None:
                for number, memory in enumerate(memories):
                    waits[unit][number] += memory.waits(moved, module.values[name].nbytes)
    return {unit: tuple(cycles) for unit, cycles in waits.items()}


def _laid_out(
    module: Module,
    wanted: Demand,
    homes: Homes,
    copied: Mapping[str, Copied],
    waits: MemoryWaits,
    memories: Sequence[Memory],
) -> Plan:
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
        inside = part(wanted, own)
        name, best = placed(inside)
        size = -(-size_of(best) // 4) * 4
        offsets |= {unit.name: start + at for unit, at in best.items()}
        count, cycles = sum(accesses[unit.name] for unit in own), sum(waits[unit][number] for unit in own)
        arenas.append(Arena(memory.name, start, size, memory.size, round(count), round(cycles)))
        planners += [name] if own else []
        bound += lower_bound(inside)
        start += -(-size // APART) * APART
    return Plan(
        offsets=dict(sorted(offsets.items())),
        size=max((arena.start + arena.size for arena in arenas if arena.size), default=0),
        lower_bound=bound,
        planner=", ".join(dict.fromkeys(planners)),
        arenas=tuple(arenas),
        copies={name: each.step for name, each in sorted(copied.items())},
    )


def waiting(module: Module, memories: Sequence[Memory], flash: float) -> Module:
    """``module`` with the cycles of its calls as they wait for their operands where these lie."""
    assert module.plan is not None
    runs = any(map(_runs, module.plan.copies.values()))
    come = {each.unit.name: each for each in ahead(module, memories, flash)} if runs else {}
    return replace(module, calls=tuple(_timed(module, call, memories, flash, come) for call in module.calls))


def _timed(module: Module, call: Call, memories: Sequence[Memory], flash: float, come: Mapping[str, Copied]) -> Call:
    """``come``: constants that may be copied in every run."""
    plan, cycles = module.plan, 0.0
    assert plan is not None
    for name, moved in zip(call.args, call.traffic, strict=True):
        base, _ = module.base_of(name)
        at, nbytes = plan.offsets.get(base), module.values[name].nbytes
        if at is not None and plan.arenas:
            number = max(k for k, arena in enumerate(plan.arenas) if arena.size and arena.start <= at)
            copied = come.get(base) if _runs(plan.copies.get(base, -1)) else None
            cycles += copied.waits[number] if copied else memories[number].waits(moved, nbytes)
        elif module.values[base].storage == "const":
            cycles += flash * moved.bytes_read
    return replace(call, waits=round(cycles), cycles=call.cycles - call.waits + round(cycles))


def _runs(step: int) -> bool:
    """Whether a copy is made in every run."""
    return step >= 0
