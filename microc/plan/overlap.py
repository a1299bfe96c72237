"""Which values may share memory in part, and at which distances: what a call is done with makes room for what it writes.

A call may place something it makes (results, workspaces) over something that ends with it (an operand's last use, another
workspace). The distances come from the lowered loops of its kernel (:mod:`microc.tir.order`): 0 for elementwise work, a few rows
for a convolution, whatever the schedule gives. Buffers of two dtypes overlap only if one of them has 8 bits: C lets bytes alias
everything, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from microc import dtypes
from microc.module import Call, Kernel, Module
from microc.plan.room import Room, safe_distances
from microc.tir.order import NEVER_TOUCHED, NEVER_WRITTEN, Touches, touches

Lifetimes = Mapping[str, tuple[int, int]]
Rooms = Mapping[tuple[str, str], Room]
"""By (base of one value, base of another): the allowed distances from the first to the second. Both orders are there."""


@dataclass(frozen=True, slots=True)
class _Use:
    """A value's memory during one call: its bytes on the kernel's clock, and the dtypes it is accessed in."""

    times: Touches
    dtypes: frozenset[str]


def rooms(module: Module, alive: Lifetimes) -> Rooms:
    """Rooms of all pairs of values that may overlap. ``alive``: first and last call of everything in the arena."""
    kernels = {kernel.name: kernel for kernel in module.kernels}
    clocks: dict[str, dict[str, Touches]] = {}
    known: dict[tuple[object, ...], tuple[range, ...]] = {}
    found: dict[tuple[str, str], Room] = {}
    for time, call in enumerate(module.calls):
        if call.kernel not in kernels:
            continue
        kernel = kernels[call.kernel]
        ending, starting = _meeting(module, call, alive, time)
        if not ending or not starting:
            continue
        if kernel.name not in clocks:
            clocks[kernel.name] = {b.name: times for b, times in touches(kernel.func).items()}
        roles = _roles(module, call)
        for old in ending:
            for new in starting:
                if old == new or not (module.values[old].nbytes and module.values[new].nbytes):
                    continue
                key = (kernel.name, roles[old], roles[new])
                if key not in known:
                    known[key] = _between(module, kernel, call, clocks[kernel.name], old, new)
                room = Room(module.values[old].nbytes, module.values[new].nbytes, known[key])
                if room.shared and ((old, new) not in found or found[old, new].shared < room.shared):
                    found[old, new], found[new, old] = room, room.turned()  # of two workspaces either may be the older
    return found


def _meeting(module: Module, call: Call, alive: Lifetimes, time: int) -> tuple[list[str], list[str]]:
    """Values in the arena that end with a call, and those that start with it. Workspaces do both."""
    touched = dict.fromkeys(module.base_of(name)[0] for name in (*call.reads, *call.writes, *call.workspace))
    here = [name for name in touched if name in alive]
    written = {module.base_of(name)[0] for name in call.writes}
    ending = [name for name in here if alive[name][1] == time and name not in written]
    return ending, [name for name in here if alive[name][0] == time]


def _roles(module: Module, call: Call) -> dict[str, tuple[tuple[int, int], ...]]:
    """By base: the positions at which a call is given it, each with the byte offset there."""
    found: dict[str, tuple[tuple[int, int], ...]] = {}
    for position, name in enumerate(call.args):
        base, offset = module.base_of(name)
        found[base] = (*found.get(base, ()), (position, offset))
    return found


def _between(
    module: Module, kernel: Kernel, call: Call, clock: Mapping[str, Touches], old: str, new: str
) -> tuple[range, ...]:
    """Safe distances from ``old`` to ``new`` during a call."""
    dying, made = (_use(module, kernel, call, clock, name) for name in (old, new))
    kinds = dying.dtypes | made.dtypes
    if len(kinds) > 1 and not all(_aliasing(a, b) for a in dying.dtypes for b in made.dtypes):
        return ()
    return safe_distances(made.times.first_write, dying.times.last_touch)


def _aliasing(a: str, b: str) -> bool:
    """Whether C lets accesses of these dtypes meet in one place."""
    return a == b or bool({a, b} & {"int8", "uint8"})


def _use(module: Module, kernel: Kernel, call: Call, clock: Mapping[str, Touches], base: str) -> _Use:
    """Times by byte of a value that a call touches, perhaps in several ways (views of it)."""
    size, kinds = module.values[base].nbytes, set()
    first, last = np.full(size, NEVER_WRITTEN, np.int64), np.full(size, NEVER_TOUCHED, np.int64)
    for name, param in zip(call.args, kernel.func.params, strict=True):
        owner, offset = module.base_of(name)
        if owner != base:
            continue
        kinds.add(param.dtype)
        bytes_of = slice(offset, offset + param.nbytes)
        width = dtypes.nbytes(param.dtype)
        np.minimum(first[bytes_of], np.repeat(clock[param.name].first_write, width), out=first[bytes_of])
        np.maximum(last[bytes_of], np.repeat(clock[param.name].last_touch, width), out=last[bytes_of])
    return _Use(Touches(first, last), frozenset(kinds))
