"""Hot code: which kernels run from a memory that waits less for instructions than the flash where they are linked.

A kernel gains the cycles that its calls of a run wait less (:class:`microc.target.Fetching`), and takes its estimated size with
a margin: what compilers make of it is not known before they ran, and the linker has the last word. Which of them go there is
the 0/1 knapsack problem, solved exactly by :func:`microc.knapsack.front`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from microc.knapsack import Option, front
from microc.module import Call, HotCode, Kernel, Module
from microc.plan.effort import HOT
from microc.target import CodeMemory

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
