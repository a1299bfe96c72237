"""When values are alive, and which may share memory at which offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf, prod
from types import MappingProxyType

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.module import Call, Kernel, Module
from microc.schedule.cost.loop_region import spelled
from microc.tir.analysis.access_order import NEVER_TOUCHED, NEVER_WRITTEN, Precedence, Touches, touches
from microc.tir.analysis.size_forms import Conflict

# ---- How two blocks of memory may lie to each other: apart, or overlapping at distances that are known to be safe.

GRAIN = 4
"""Everything in the arena starts at a multiple of this many bytes, so that only such distances matter."""
_SAMPLES = 16
"""Grains, at either end and in between, at which single distances are tried before they are compared in full."""
_STRIDE = 127
"""Of a distance that is compared in full, so many grains apart some are compared first."""
_TRIES = 256
"""Single distances that are compared in full; the rest count as unsafe."""


@frozen
class Room:
    """Distances in bytes from the start of a block of ``under`` bytes to the start of one of ``over`` bytes.

    Distances of -over and less, of ``under`` and more keep the blocks apart. Between them those in ``safe`` are allowed: rising
    ranges that do not meet.
    """

    under: int
    over: int
    safe: tuple[range, ...] = ()

    def next(self, distance: int) -> int:
        """The smallest allowed distance that is not below ``distance``."""
        if distance <= -self.over or distance >= self.under:
            return distance
        for span in self.safe:
            if distance <= span[-1]:
                return max(span.start, span.start - (span.start - distance) // span.step * span.step)
        return self.under

    def turned(self) -> Room:
        """The same from the other block's point of view."""
        safe = tuple(range(-span[-1], -span.start + 1, span.step) for span in reversed(self.safe))
        return Room(self.over, self.under, safe)

    @property
    def shared(self) -> int:
        """The most bytes that the blocks may have in common."""
        inner = sorted((0, self.under - self.over))  # here one block lies within the other
        tries = {span[k] for span in self.safe for k in (0, -1)}
        tries |= {self.next(inner[0]), -self.turned().next(-inner[1])}
        return max(min(self.under, d + self.over) - max(0, d) for d in tries | {self.under})


def safe_distances(first_write: Array, last_touch: Array) -> tuple[range, ...]:
    """Safe distances, multiples of :data:`GRAIN`, of a block that is written over one that dies.

    ``first_write`` (by byte of the new block) and ``last_touch`` (by byte of the old one) are times on one clock. A distance d is
    safe if ``last_touch[x + d] < first_write[x]`` wherever both exist.
    """
    new, old = _rows(first_write, NEVER_WRITTEN, GRAIN), _rows(last_touch, NEVER_TOUCHED, GRAIN)
    if _uniform(new) and _uniform(old):
        new, old = new[:, :1], old[:, :1]
    low, high = _rays(new, old)
    safe = np.ones(len(old) + len(new) - 1, bool)  # distance d stands at d + len(new) - 1
    zero = len(new) - 1
    safe[max(low + 1 + zero, 0) : max(high + zero, 0)] = False
    for d in _single(new, old, range(low + 1, high)):
        safe[d + zero] = True
    return tuple(_ranges((np.flatnonzero(safe) - zero) * GRAIN))


def distances_without(conflicts: Iterable[Conflict], under: int, over: int) -> tuple[range, ...]:
    """Distances, multiples of :data:`GRAIN`, of a block of ``over`` bytes to one of ``under`` bytes that it meets, at which
    none of the conflicts arises."""
    distances = np.arange(1 - -(-over // GRAIN), -(-under // GRAIN)) * GRAIN
    safe = np.ones(len(distances), bool)
    for conflict in conflicts:
        first, end = np.searchsorted(distances, (conflict.low, conflict.high + 1))
        safe[first:end] &= (distances[first:end] - conflict.first) % conflict.modulus > conflict.last - conflict.first
    return tuple(_ranges(distances[safe]))


def _rows(times: Array, neutral: int, width: int) -> Array:
    """Times in rows of ``width``, the last one filled up."""
    return np.concatenate([times, np.full(-len(times) % width, neutral, np.int64)]).reshape(-1, width)


def _uniform(rows: Array) -> bool:
    """Whether the bytes of every grain have one time, as where elements are no smaller."""
    return bool((rows[:, 1:] == rows[:, :1]).all())


def _rays(new: Array, old: Array) -> tuple[int, int]:
    """(low, high): every distance up to ``low`` and every one from ``high`` on is safe, in grains."""
    low = min(_ray(new[:, k], old[:, k]) for k in range(new.shape[1]))
    down = min(_ray(new[::-1, k], old[::-1, k]) for k in range(new.shape[1]))
    if low >= len(old) - 1 or down >= len(old) - 1:
        return len(old) - 1, len(old)
    return low, len(old) - len(new) - down


def _ray(new: Array, old: Array) -> int:
    """The largest d such that d and every smaller distance are safe.

    Old grains at y <= x + d must be done before x is written, so what counts is the latest time of a prefix.
    """
    reached = np.searchsorted(np.maximum.accumulate(old), new, side="left")
    bound = reached < len(old)
    return int((reached - np.arange(len(new)))[bound].min()) - 1 if bound.any() else len(old) - 1


def _single(new: Array, old: Array, between: range) -> list[int]:
    """Safe distances among those that no ray covers.

    A sample refutes most of them, after the grain that is last touched of all and the one that is first written. What is left
    often follows from a period (a kernel that goes channel by channel); if not, the nearest ones are compared in full.
    """
    left = np.arange(between.start, between.stop)
    latest, earliest = int(old.max(axis=1).argmax()), int(new.min(axis=1).argmin())
    left = left[_below(-new[::-1], left + (len(new) - 1 - latest), -old[latest])]
    ends = np.arange(min(_SAMPLES, len(new)))
    dice = np.random.default_rng(0).integers(0, len(new), _SAMPLES)
    for x in dict.fromkeys((earliest, *ends.tolist(), *(len(new) - 1 - ends).tolist(), *dice.tolist())):
        if not len(left):
            return []
        left = left[_below(old, left + x, new[x])]
    found = _periodic(new, old, left)
    rest, level = np.setdiff1d(left, found, assume_unique=True), len(old) - len(new)
    nearest = rest[np.lexsort((rest, np.minimum(abs(rest), abs(rest - level))))][:_TRIES]
    return [*found.tolist(), *(d for d in nearest.tolist() if _safe(new, old, d))]


def _below(times: Array, places: Array, limits: Array) -> Array:
    """Whether the rows of times at some rising places lie below limits; where there is no such place nothing is in the way."""
    inside = slice(*np.searchsorted(places, (0, len(times))))
    at, kept = places[inside], np.ones(len(places), bool)
    for column, limit in zip(times.T, limits, strict=True):  # long columns are compared faster than many short rows
        kept[inside] &= column[at] < limit
    return kept


def _safe(new: Array, old: Array, d: int) -> bool:
    """Whether one distance is safe. A few rows of all refute most that are not."""
    first, last = max(0, -d), min(len(new), len(old) - d)
    made, done = new[first:last], old[first + d : last + d]
    return bool((done[::_STRIDE] < made[::_STRIDE]).all() and (done < made).all())


def _periodic(new: Array, old: Array, tried: Array) -> Array:
    """Those of rising distances that are safe because classes of grains keep apart: all that differ by multiples of a period."""
    steps = np.diff(tried)
    if not len(steps):
        return tried[:0]
    period = int(np.bincount(steps).argmax())
    residue = int(np.bincount(tried % period).argmax())
    width = new.shape[1]
    made = _rows(new.reshape(-1), NEVER_WRITTEN, period * width)
    done = _rows(old.reshape(-1), NEVER_TOUCHED, period * width)
    safe = (np.roll(done.max(axis=0), -residue * width) < made.min(axis=0)).all()
    return tried[tried % period == residue] if safe else tried[:0]


def _ranges(rising: Array) -> Iterable[range]:
    """Rising numbers as ranges, as long as each goes."""
    steps = np.diff(rising)
    turns = np.append(np.flatnonzero(np.diff(steps)) + 1, len(rising) - 1)
    start = 0
    while start < len(rising):
        step = int(steps[start]) if start < len(steps) else GRAIN
        end = int(turns[np.searchsorted(turns, start, side="right")]) if start < len(steps) else start
        yield range(int(rising[start]), int(rising[end]) + 1, step)
        start = end + 1


# ---- Which values may share memory in part, and at which distances: what a call is done with makes room for what it
# writes.
#
# A call may place something it makes (results, workspaces) over something that ends with it (an operand's last use, another
# workspace). The distances come from the lowered loops of its kernel (:mod:`microc.tir.analysis.access_order`): 0 for
# elementwise work, a few rows for a convolution, whatever the schedule gives. Where a kernel depends on sizes that vary, they
# are those that are safe at all sizes (:mod:`microc.tir.analysis.access_order`), since everything keeps its place. Buffers of
# two dtypes overlap only if one of them has 8 bits: C lets bytes alias everything, and nothing else.

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


# ---- When every value in the arena is alive, which of them conflict, and how near to each other they may lie.

BEFORE = -1
"""The time before the first call, when inputs are written."""


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """A value to place, alive from call ``first`` to call ``last``, both included."""

    name: str
    size: int
    align: int
    first: int
    last: int

    def conflicts(self, other: Unit) -> bool:
        """Whether some call needs both."""
        return self.first <= other.last and other.first <= self.last


def in_arena(module: Module, name: str, *, io_in_arena: bool) -> bool:
    """Whether a value (not a view) lives in the arena."""
    storage = module.values[name].storage
    return storage in ("intermediate", "workspace", "state") or (io_in_arena and storage in ("input", "output"))


def lifetimes(module: Module, *, io_in_arena: bool) -> dict[str, tuple[int, int]]:
    """First and last call of every value in the arena; a view counts as a use of its base."""
    end = len(module.calls)
    found: dict[str, tuple[int, int]] = {}

    def use(name: str, time: int) -> None:
        base, _ = module.base_of(name)
        if in_arena(module, base, io_in_arena=io_in_arena):
            first, last = found.get(base, (time, time))
            found[base] = min(first, time), max(last, time)

    for name in (*module.inputs, *module.state):
        use(name, BEFORE)
    for time, call in enumerate(module.calls):
        for name in (*call.reads, *call.writes, *call.workspace):
            use(name, time)
    for name in (*module.outputs, *module.state):
        use(name, end)
    return found


@frozen
class Demand:
    """Everything that wants a place.

    ``rooms``: by unit, the allowed distances to it from those that it conflicts with and may overlap. It keeps apart from all
    others that it conflicts with. ``limit``: placements of so many bytes or more are of no use.
    """

    units: tuple[Unit, ...]
    rooms: Mapping[Unit, Mapping[Unit, Room]]
    limit: float = inf


def demand_of(units: tuple[Unit, ...], overlapping: Rooms = MappingProxyType({})) -> Demand:
    """Units that conflict stay apart, but for pairs (of names, both ways) that may overlap."""
    named, found = {unit.name: unit for unit in units}, {unit: dict[Unit, Room]() for unit in units}
    for (other, name), room in overlapping.items():
        found[named[name]][named[other]] = room
    return Demand(units, found)


def pressures(wanted: Demand) -> dict[Unit, int]:
    """By unit, the bytes of all others that it conflicts with."""
    found = _beside(wanted, np.array([unit.size for unit in wanted.units], np.int64))
    return dict(zip(wanted.units, found.tolist(), strict=True))


def conflicts(wanted: Demand) -> int:
    """Pairs of units that some call needs both of."""
    return int(_beside(wanted, np.ones(len(wanted.units), np.int64)).sum()) // 2


def _beside(wanted: Demand, weights: Array) -> Array:
    """By unit, the sum over all others that it conflicts with: all that begin before it ends, less those that end before."""
    first, last = (
        np.array(times, np.int64) for times in ([u.first for u in wanted.units], [u.last for u in wanted.units])
    )
    begun, ended = (np.append(0, np.cumsum(weights[np.argsort(times)])) for times in (first, last))
    late, early = np.searchsorted(np.sort(first), last, side="right"), np.searchsorted(np.sort(last), first)
    return np.asarray(begun[late] - ended[early] - weights)


Placement = dict[Unit, int]


def size_of(placement: Placement) -> int:
    """Bytes that a placement needs."""
    return max((at + unit.size for unit, at in placement.items()), default=0)


def demand(module: Module, overlaps: Overlaps, *, io_in_arena: bool) -> Demand:
    """The things to place, and how they may lie to each other."""
    alive = lifetimes(module, io_in_arena=io_in_arena)
    values = module.values
    units = tuple(Unit(n, values[n].nbytes, values[n].align, first, last) for n, (first, last) in alive.items())
    return demand_of(units, rooms(module, overlaps, alive))


def lower_bound(wanted: Demand) -> int:
    """The largest need of one call: no placement is smaller."""
    return max(needs(wanted, max((unit.last for unit in wanted.units), default=BEFORE) + 1), default=0)


def needs(wanted: Demand, count: int) -> list[int]:
    """Bytes needed at least before the first call, and by each of the first ``count`` calls.

    What is alive together takes the sum of its sizes, less what pairs of them may share at most (a byte of more than two counts
    as shared more often than it saves, so nothing is missed).
    """

    def alive(sizes: Iterable[tuple[int, int, int]]) -> Array:
        """Sums by time of sizes that last from one time to another, both included."""
        steps = np.zeros(count + 3, np.int64)
        for first, last, size in sizes:
            steps[min(first, count) - BEFORE] += size
            steps[min(last, count) + 1 - BEFORE] -= size
        return np.asarray(np.cumsum(steps[: count + 1]))

    units = wanted.units
    pairs = ((a, b, room) for a, near in wanted.rooms.items() for b, room in near.items() if a.name < b.name)
    shared = alive((max(a.first, b.first), min(a.last, b.last), room.shared) for a, b, room in pairs)
    together = alive((u.first, u.last, u.size) for u in units) - shared
    before = alive((u.first + 1, u.last, u.size) for u in units if u.first < u.last)
    after = alive((u.first, u.last - 1, u.size) for u in units if u.first < u.last)
    return [int(need) for need in np.maximum(together, np.maximum(before, after))]
