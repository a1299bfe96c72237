"""Which values may share memory in part, and at which distances: what a call is done with makes room for what it writes.

A call may place something it makes (results, workspaces) over something that ends with it (an operand's last use, another
workspace). The distances come from the lowered loops of its kernel (:mod:`microc.tir.order`): 0 for elementwise work, a few rows
for a convolution, whatever the schedule gives. Where a kernel depends on sizes that vary, they are those that are safe at all
sizes (:mod:`microc.tir.precedence`), since everything keeps its place. Buffers of two dtypes overlap only if one of them has
8 bits: C lets bytes alias everything, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from microc import dtypes
from microc.dtypes import Array
from microc.frozen import frozen
from microc.module import Call, Kernel, Module
from microc.plan.room import Room, distances_without, safe_distances
from microc.schedule.runs import spelled
from microc.tir.order import NEVER_TOUCHED, NEVER_WRITTEN, Touches, touches
from microc.tir.precedence import Precedence
from microc.tir.ranges import Conflict

MOST_SIZES = 1 << 16
"""Combinations of sizes that are looked at; a kernel that depends on more keeps its operands apart."""
Lifetimes = Mapping[str, tuple[int, int]]
Rooms = Mapping[tuple[str, str], Room]
"""By (base of one value, base of another): the allowed distances from the first to the second. Both orders are there."""


@frozen
class _Use:
    """A value's memory during one call: its bytes on the kernel's clock, and the dtypes it is accessed in."""

    times: Touches
    dtypes: frozenset[str]


MOST_BYTES = 1 << 23
"""Values that are larger together keep apart: their bytes are followed one by one, in a few hundred times their memory."""


class Overlaps:
    """Rooms between operands of a module's calls, worked out when asked for, once for every kernel. The order of calls is no
    matter."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self._kernels = {kernel.name: kernel for kernel in module.kernels}
        self._clocks: dict[str, dict[str, Touches]] = {}
        self._proofs: dict[str, Precedence] = {}
        self._known: dict[tuple[object, ...], Room] = {}

    def room(self, call: Call, old: str, new: str) -> Room | None:
        """Distances from a value that ends with a call to one that starts with it; None if they must stay apart."""
        kernel = self._kernels.get(call.kernel)
        sizes = self.module.values[old].nbytes, self.module.values[new].nbytes
        if (
            kernel is None
            or kernel.apart
            or not all(sizes)
            or sum(sizes) > MOST_BYTES
            or (kernel.func.scalars and self._columns(kernel) is None)
        ):
            return None
        key = (kernel.name, sizes, self._roles(call, old), self._roles(call, new))
        if key not in self._known:
            self._known[key] = Room(*sizes, self._safe(kernel, call, old, new))
        return self._known[key] if self._known[key].shared else None

    def _roles(self, call: Call, base: str) -> tuple[tuple[int, int], ...]:
        """The positions at which a call is given a value, each with the byte offset there."""
        places = ((k, *self.module.base_of(name)) for k, name in enumerate(call.args))
        return tuple((k, offset) for k, owner, offset in places if owner == base)

    def _safe(self, kernel: Kernel, call: Call, old: str, new: str) -> tuple[range, ...]:
        if kernel.func.scalars:
            return self._always_safe(kernel, call, old, new)
        if kernel.name not in self._clocks:
            self._clocks[kernel.name] = {buffer.name: times for buffer, times in touches(spelled(kernel.func)).items()}
        dying, made = (self._use(kernel, call, name) for name in (old, new))
        if not all(_aliasing(a, b) for a in dying.dtypes for b in made.dtypes):
            return ()
        return safe_distances(made.times.first_write, dying.times.last_touch)

    def _always_safe(self, kernel: Kernel, call: Call, old: str, new: str) -> tuple[range, ...]:
        """Distances that are safe at all sizes."""
        if kernel.name not in self._proofs:
            self._proofs[kernel.name] = Precedence(spelled(kernel.func), self._columns(kernel) or {})
        params, conflicts = kernel.func.params, list[Conflict]()
        for a, start in self._roles(call, old):
            for b, other in self._roles(call, new):
                if not _aliasing(params[a].dtype, params[b].dtype):
                    return ()
                found = self._proofs[kernel.name].conflicts(params[a], params[b])
                conflicts += [conflict.moved(start - other) for conflict in found]
        return distances_without(conflicts, self.module.values[old].nbytes, self.module.values[new].nbytes)

    def _columns(self, kernel: Kernel) -> dict[str, Array] | None:
        """All sizes that a kernel may see side by side, by scalar; None where there are too many."""
        sizes = [size for size in self.module.sizes if size.scalar in kernel.func.scalars]
        ranges = [range(-(-s.minimum // s.step) * s.step, s.maximum + 1, s.step) for s in sizes]
        if prod(map(len, ranges)) > MOST_SIZES:
            return None
        grid = np.meshgrid(*(np.array(each, np.int64) for each in ranges), indexing="ij")
        return {size.scalar.name: column.reshape(-1) for size, column in zip(sizes, grid, strict=True)}

    def _use(self, kernel: Kernel, call: Call, base: str) -> _Use:
        """Times by byte of a value that a call touches, perhaps in several ways (views of it)."""
        size, clock, kinds = self.module.values[base].nbytes, self._clocks[kernel.name], set()
        first, last = np.full(size, NEVER_WRITTEN, np.int64), np.full(size, NEVER_TOUCHED, np.int64)
        for position, offset in self._roles(call, base):
            param = kernel.func.params[position]
            kinds.add(param.dtype)
            part, width = slice(offset, offset + param.nbytes), dtypes.nbytes(param.dtype)
            np.minimum(first[part], np.repeat(clock[param.name].first_write, width), out=first[part])
            np.maximum(last[part], np.repeat(clock[param.name].last_touch, width), out=last[part])
        return _Use(Touches(first, last), frozenset(kinds))


def rooms(module: Module, overlaps: Overlaps, alive: Lifetimes) -> Rooms:
    """Rooms of all pairs of values that may overlap. ``alive``: first and last call of everything in the arena."""
    found: dict[tuple[str, str], Room] = {}
    for time, call in enumerate(module.calls):
        ending, starting = _meeting(module, call, alive, time)
        for old in ending:
            for new in starting:
                room = overlaps.room(call, old, new) if old != new else None
                if room is not None and ((old, new) not in found or found[old, new].shared < room.shared):
                    found[old, new], found[new, old] = room, room.turned()  # of two workspaces either may be the older
    return found


def shared_bytes(module: Module, call: Call) -> int:
    """Bytes of a planned call's results that lie over what it reads."""
    reads, writes = ([_place(module, name) for name in names] for names in (call.reads, call.writes))
    return sum(
        max(0, min(a.stop, b.stop) - max(a.start, b.start))
        for a in reads
        if a is not None
        for b in writes
        if b is not None
    )


def _place(module: Module, name: str) -> range | None:
    base, offset = module.base_of(name)
    start = module.plan.offsets.get(base) if module.plan is not None else None
    return None if start is None else range(start + offset, start + offset + module.values[name].nbytes)


def _meeting(module: Module, call: Call, alive: Lifetimes, time: int) -> tuple[list[str], list[str]]:
    """Values in the arena that end with a call, and those that start with it. Workspaces do both."""
    touched = dict.fromkeys(module.base_of(name)[0] for name in (*call.reads, *call.writes, *call.workspace))
    here = [name for name in touched if name in alive]
    written = {module.base_of(name)[0] for name in call.writes}
    ending = [name for name in here if alive[name][1] == time and name not in written]
    return ending, [name for name in here if alive[name][0] == time]


def _aliasing(a: str, b: str) -> bool:
    """Whether C lets accesses of these dtypes meet in one place."""
    return a == b or bool({a, b} & {"int8", "uint8"})
