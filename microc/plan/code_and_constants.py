# SPDX-License-Identifier: Apache-2.0
"""Assignment of hot kernels and of constants to the memories of a board.

- :func:`move_hot_code_to_memory` chooses the kernels that run from RAM, as a knapsack problem.
- :func:`assign_constants` chooses the flash region of every constant, as a knapsack problem for each region.

Waits are cycles that the core is stalled by a memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from microc.base.knapsack import LayerOption, pareto_front
from microc.module import ConstantRegion, HotCode, Kernel, Module
from microc.plan.placement import MAX_KNAPSACK_ITEMS
from microc.target import CodeMemory, FlashMemory, Traffic

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
    module: Module, regions: Sequence[FlashMemory], copies: Mapping[str, int] | None = None
) -> dict[str, FlashMemory]:
    """Assign every constant to a flash region so that the core waits few cycles for them.

    Constants that an accelerator reads stay in the first region. If the constants do not fit, the last of the regions,
    from fast to slow, is exceeded. ``copies``: constants that are copied to RAM, with the index of the call before which
    the copy begins; kernels do not read these from flash."""
    names = [name for name, value in module.values.items() if value.storage == "const"]
    homes = dict.fromkeys(names, regions[0])
    sizes = {
        name: -(-max(value.nbytes, 1) // value.align) * value.align
        for name, value in module.values.items()
        if name in homes and value.data is not None and not value.alignment
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
