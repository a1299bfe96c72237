"""Several arenas: which memory of the board every value lies in, weights too where a memory may hold them, and where in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf

from microc.module import Arena, Call, Module, Plan
from microc.plan.effort import COPIES
from microc.plan.liveness import Demand, Unit, lower_bound, size_of
from microc.plan.planners import placed
from microc.plan.split import Homes, fits, part, split
from microc.plan.weights import Copied, ahead, resident
from microc.target import Memory

APART = 64
"""Bytes at whose multiples arenas start among a plan's."""
FLASH = Memory("flash", 1 << 40)
"""Where constants are linked, as a memory to choose."""
Waits = dict[Unit, tuple[float, ...]]


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
    wanted: Demand, waits: Waits, copies: Sequence[Copied], more: Sequence[Copied], memories: Sequence[Memory]
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


def _tensor_waits(module: Module, wanted: Demand, memories: Sequence[Memory]) -> Waits:
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
    module: Module, wanted: Demand, homes: Homes, copied: Mapping[str, Copied], waits: Waits, memories: Sequence[Memory]
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
