# SPDX-License-Identifier: Apache-2.0
"""Assignment of hot kernels and of constants to the memories of a board.

- :func:`move_hot_code_to_memory` chooses the kernels that run from RAM, as a knapsack problem.
- :func:`assign_constants` chooses the flash region of every constant, as a knapsack problem for each region.
- :func:`choose_stored_constants` chooses the constants that are read from storage, which the core cannot address.

Waits are cycles that the core is stalled by a memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf

from microc.base.knapsack import LayerOption, pareto_front
from microc.module import WEIGHTS_HEADER_BYTES, ConstantRegion, HotCode, Kernel, Module, StoredConstants, Value
from microc.plan.liveness import Demand, Unit
from microc.plan.placement import MAX_KNAPSACK_ITEMS
from microc.target import CodeMemory, FlashMemory, Storage, Traffic

# ---- Hot code: kernels that run from RAM, where instruction fetches wait less than in the flash.
#
# The gain of a kernel is the number of wait cycles that its calls save in a run (:class:`microc.target.Fetching`). Its weight is
# its estimated code size with a margin, since the size is unknown before the C compiler runs. The
# choice is a 0/1 knapsack, solved exactly by :func:`microc.base.knapsack.pareto_front`.

CODE_SIZE_FACTOR, CODE_SIZE_EXTRA = 1.5, 48
"""Size reserved for a function in RAM: factor on its estimated size, and bytes added for alignment, literal pools, and
jumps to flash."""


def move_hot_code_to_memory(module: Module, memory: CodeMemory) -> Module:
    """Return a planned module whose hot kernels (those that profit most) are copied to ``memory`` and run from there.

    The cycles that calls wait for instruction fetches are added to their estimates."""
    assert module.plan is not None
    calls = Counter(call.kernel for call in module.calls)
    linked = {k.name: memory.linked.wait_cycles(k.fetches) for k in module.kernels}
    there = {k.name: memory.fetching.wait_cycles(k.fetches) for k in module.kernels}
    gains = {name: calls[name] * (linked[name] - there[name]) for name in linked}
    sizes = {k.name: reserved_code_bytes(k) for k in module.kernels if gains[k.name] > 0 and k.external is None}
    chosen = _choose_most_gainful(gains, sizes, memory.size)
    inside = tuple(name for name in gains if name in chosen)
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


def _choose_most_gainful(gains: Mapping[str, float], sizes: Mapping[str, int], capacity: int) -> set[str]:
    """Choose from the items of ``sizes`` those with the largest total gain that fit into ``capacity`` bytes.

    The choice is optimal among the :data:`MAX_KNAPSACK_ITEMS` items with the largest gain per byte. Then each of the
    other items is added if it still fits.
    """
    if sum(sizes.values()) <= capacity:
        return set(sizes)
    ordered = sorted(sizes, key=lambda name: (-gains[name] / sizes[name], name))
    exact_candidates, others = ordered[:MAX_KNAPSACK_ITEMS], ordered[MAX_KNAPSACK_ITEMS:]
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
    return chosen


def reserved_code_bytes(kernel: Kernel) -> int:
    """Return the bytes reserved for a kernel that runs from RAM."""
    return round(CODE_SIZE_FACTOR * kernel.code_bytes) + CODE_SIZE_EXTRA


# ---- Constants in flash: those that a run reads most, in the region that waits least.
#
# A constant is in one region as a whole. The fastest region takes the constants whose reads would wait longest in the next
# region: a knapsack problem as for hot code, which is exact for two regions. The rest is divided among the slower regions in
# the same way.

EQUAL_SPEED_GAIN = 2.0**-20
"""Gain of a byte in the earlier of two regions that wait equally, in cycles: constants stay in front, where they fit."""
ConstantHomes = Mapping[str, FlashMemory]
"""The flash region of each constant, by the constant's name."""


def assign_constants(
    module: Module,
    regions: Sequence[FlashMemory],
    copies: Mapping[str, int] | None = None,
    stored: Container[str] = (),
) -> dict[str, FlashMemory]:
    """Assign every constant but those of ``stored`` to a flash region so that the core waits few cycles for them.

    Constants that an accelerator reads stay in the first region. If the constants do not fit, the last of the regions,
    from fast to slow, is exceeded. ``copies``: constants that are copied to RAM, with the index of the call before which
    the copy begins; kernels do not read these from flash."""
    names = [name for name, value in module.values.items() if value.storage == "const" and name not in stored]
    homes = dict.fromkeys(names, regions[0])
    sizes = {
        name: _padded_bytes(module.values[name])
        for name in names
        if module.values[name].data is not None and not module.values[name].alignment
    }
    if len(regions) == 1 or not sizes:
        return homes
    reads = _count_reads_from_flash(module, copies or {})
    waits = {
        region.name: {n: sum(region.wait_cycles(moved, nbytes) for moved, nbytes in reads.get(n, ())) for n in sizes}
        for region in regions
    }
    ordered = sorted(regions, key=lambda region: sum(waits[region.name].values()))
    for number, (region, slower) in enumerate(pairwise(ordered), 1):
        gains = {
            n: waits[slower.name][n] - waits[region.name][n] + EQUAL_SPEED_GAIN * size for n, size in sizes.items()
        }
        inside = _choose_most_gainful(gains, {n: size for n, size in sizes.items() if gains[n] > 0}, region.size)
        left = sum(sizes.values()) - sum(sizes[n] for n in inside)
        if left > sum(other.size for other in ordered[number:]):
            inside = _choose_most_gainful(sizes, sizes, region.size)  # as many bytes as the region takes
        homes |= dict.fromkeys(inside, region)
        sizes = {n: size for n, size in sizes.items() if n not in inside}
    return homes | dict.fromkeys(sizes, ordered[-1])


def _padded_bytes(value: Value) -> int:
    """Return the bytes of a constant in flash, with those that align the next one."""
    return -(-max(value.nbytes, 1) // value.align) * value.align


def _count_reads_from_flash(module: Module, copies: Mapping[str, int]) -> dict[str, list[tuple[Traffic, int]]]:
    """List the reads of each constant from flash in a run, by its name: the traffic, and the bytes that it may touch.

    External code, whose traffic is not known, counts as if it read a constant once."""
    reads: dict[str, list[tuple[Traffic, int]]] = {}
    for call in module.calls:
        for name, moved in zip(call.args, call.traffic, strict=True):
            base, _ = module.base_and_offset(name)
            nbytes = module.values[name].nbytes
            if module.values[base].storage == "const" and base not in copies:
                reads.setdefault(base, []).append((moved if moved.reads else Traffic.of(1, nbytes), nbytes))
    for name, step in copies.items():
        if is_copied_per_run(step):
            nbytes = module.values[name].nbytes
            reads[name] = [(Traffic.of(1, nbytes), nbytes)]
    return reads


def describe_constant_regions(
    module: Module, regions: Sequence[FlashMemory], homes: ConstantHomes, copies: Mapping[str, int]
) -> tuple[ConstantRegion, ...]:
    """Return the constants of each flash region of a board with several, for a plan; empty for other boards."""
    if len(regions) == 1:
        return ()
    reads = _count_reads_from_flash(module, copies)
    result = []
    for region in regions:
        inside = tuple(sorted(name for name, home in homes.items() if home.name == region.name))
        traffic = [each for name in inside for each in reads.get(name, ())]
        result.append(
            ConstantRegion(
                region.name,
                inside,
                sum(module.values[name].nbytes for name in inside),
                region.size,
                round(sum(moved.reads for moved, _ in traffic)),
                round(sum(region.wait_cycles(moved, nbytes) for moved, nbytes in traffic)),
            )
        )
    return tuple(result)


def is_copied_per_run(step: int) -> bool:
    """Test whether a copy of a constant is made in every run, not once at reset. ``step``: call at which copying
    begins."""
    return step >= 0


def list_constant_uses(module: Module) -> dict[str, list[tuple[int, Traffic]]]:
    """List the calls that read each constant of the generated C, by the name of the constant: the index of the call,
    and the bytes that it moves.

    Constants that have views are left out."""
    uses: dict[str, list[tuple[int, Traffic]]] = {}
    viewed = {module.base_and_offset(view.name)[0] for view in module.views}
    for number, call in enumerate(module.calls):
        for name, moved in zip(call.args, call.traffic, strict=True):
            value = module.values[name]
            if value.storage == "const" and value.data is not None and value.nbytes and name not in viewed:
                uses.setdefault(name, []).append((number, moved))
    return uses


# ---- Constants in storage: a memory that the core cannot address, such as an SD card.
#
# A run reads a stored constant into a buffer in the arena, once: at the start of the call before the first that uses it if
# reads go on while the core computes (two buffers alternate), else at the start of that call itself. The flash takes the
# constants whose reads would wait longest, by a knapsack problem as above. Since the reads of a call overlap the same computing,
# the gains are those beside the constants of the call that were stored in the last round: a few rounds, of which the best counts.

STORED_MIN_BYTES = 64
"""Fewest bytes of a constant in storage: a read of less costs its latency for almost no flash. A buffer of this size also
takes the header of the file."""
STORED_ROUNDS = 4
"""Number of knapsack problems that are solved."""
Reads = Mapping[str, int]
"""For each stored constant the index of the call at whose start its read begins."""


def list_storable_constants(module: Module) -> list[str]:
    """List the constants that a run may read from storage.

    Small constants, those that no call reads, such as the initial contents of states, and those that external code reads
    at an alignment of its own stay in flash."""
    return [
        name
        for name in list_constant_uses(module)
        if module.values[name].nbytes >= STORED_MIN_BYTES
        and not module.values[name].alignment
        and name not in module.starts.values()
    ]


def choose_stored_constants(module: Module, regions: Sequence[FlashMemory], storage: Storage) -> frozenset[str]:
    """Choose the constants that are read from storage; empty if the flash regions have room for all constants."""
    sizes = {name: _padded_bytes(v) for name, v in module.values.items() if v.storage == "const" and v.data is not None}
    room = sum(region.size for region in regions) - sum(sizes.values())
    if room >= 0:
        return frozenset()
    movable = {name: sizes[name] for name in list_storable_constants(module)}
    room = max(room + sum(movable.values()), 0)
    reading = {name: storage.read_cycles(module.values[name].nbytes) for name in movable}
    first = {name: uses[0][0] for name, uses in list_constant_uses(module).items() if name in movable}
    names_by_call: dict[int, list[str]] = {}
    for name, call in first.items():
        names_by_call.setdefault(call, []).append(name)

    def waits(call: int, stored: Container[str]) -> float:
        cycles = sum(reading[name] for name in names_by_call[call] if name in stored)
        return _unhidden_cycles(module, call, cycles) if storage.dma else cycles

    best, least, gains = frozenset(movable), inf, reading
    for _ in range(STORED_ROUNDS):
        kept = _choose_most_gainful(gains, {name: size for name, size in movable.items() if gains[name] > 0}, room)
        stored = frozenset(movable) - kept
        total = sum(waits(call, stored) for call in names_by_call)
        if total < least:
            best, least = stored, total
        gains = {
            name: waits(first[name], stored | {name})
            - waits(first[name], stored - {name})
            + EQUAL_SPEED_GAIN * reading[name]
            for name in movable
        }
    return best


def _unhidden_cycles(module: Module, call: int, cycles: float) -> float:
    """Return the cycles that a call waits for reads of ``cycles`` cycles that began in the call before, while it computed."""
    before = module.calls[call - 1]
    return max(cycles - (before.cycles - before.waits), 0.0) if call else cycles


def schedule_reads(
    module: Module, stored: Iterable[str], storage: Storage, demand: Demand, arena_limit: int
) -> tuple[Reads, Reads]:
    """Return two schedules of the reads of stored constants: one that overlaps reads and computing as far as the arena
    stays within ``arena_limit`` bytes (0: unlimited), and one that overlaps nothing.

    The bytes of an arena are estimated as those of all values that are alive, without values that overlap. Reads ahead are
    left out, the largest first, in the calls that exceed the limit."""
    uses = list_constant_uses(module)
    late = {name: uses[name][0][0] for name in sorted(stored)}
    if not storage.dma:
        return late, late
    ahead = {name: max(call - 1, 0) for name, call in late.items()}
    need = [0] * len(module.calls)
    for unit in (*demand.units, *list_read_buffers(module, ahead)):
        for call in range(max(unit.first, 0), min(unit.last, len(need) - 1) + 1):
            need[call] += unit.size
    for name in sorted(ahead, key=lambda name: (-module.values[name].nbytes, name)):
        if arena_limit and need[ahead[name]] > arena_limit and ahead[name] != late[name]:
            need[ahead[name]] -= module.values[name].nbytes
            ahead[name] = late[name]
    return ahead, late


def list_read_buffers(module: Module, reads: Reads) -> tuple[Unit, ...]:
    """Return the buffers of stored constants: each is alive from the call at which its read begins to its last use."""
    uses = list_constant_uses(module)
    return tuple(
        Unit(name, module.values[name].nbytes, module.values[name].align, begin, uses[name][-1][0])
        for name, begin in reads.items()
    )


def describe_storage(module: Module, reads: Reads, storage: Storage) -> StoredConstants | None:
    """Return the layout of the file of weights and the cost of its reads, for a plan; None if nothing is stored.

    Constants are in the order in which a run reads them. Each begins at a block."""
    step, end, offsets = max(storage.block_bytes, 4), WEIGHTS_HEADER_BYTES, dict[str, int]()
    place = {name: number for number, name in enumerate(module.values)}
    for name in sorted(reads, key=lambda name: (reads[name], place[name])):
        offsets[name] = -(-end // step) * step
        end = offsets[name] + module.values[name].nbytes
    waits = round(sum(wait_for_reads(module, reads, storage)))
    return (
        StoredConstants(storage.name, offsets, end, storage.size, storage.block_bytes, len(reads), waits)
        if reads
        else None
    )


def wait_for_reads(module: Module, reads: Reads, storage: Storage) -> list[float]:
    """Return for each call the cycles that it waits until the constants that it uses first are read.

    Reads follow each other. Those that began in the call before have run while it computed."""
    uses = list_constant_uses(module)
    begun_before, begun_here = ([0.0] * len(module.calls) for _ in range(2))
    for name, begin in reads.items():
        first = uses[name][0][0]
        (begun_before if begin < first else begun_here)[first] += storage.read_cycles(module.values[name].nbytes)
    return [
        _unhidden_cycles(module, call, ahead) + here
        for call, (ahead, here) in enumerate(zip(begun_before, begun_here, strict=True))
    ]
