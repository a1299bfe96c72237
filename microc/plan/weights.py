"""Weights in RAM: copies of constants that lie in an arena for good, or from the call before the one that reads them.

What stays costs memory in all calls and is copied once, when the network is reset. What is copied ahead costs it in two calls,
and its copy in every run: it is for constants that a call reads several times over, from a flash that is slow. The core's own
time for a copy is counted, as without a DMA controller.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from microc.frozen import frozen
from microc.module import Module
from microc.plan.liveness import BEFORE, Unit
from microc.target import Memory, Traffic

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
