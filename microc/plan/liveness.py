"""Liveness of values, and the offsets at which two of them may share memory.

1. When is each value alive (:func:`lifetimes`)? Values that are not alive together may share memory freely.
2. A call may write a result over an operand that dies with it, at *safe distances* that follow from the order in which
  its loops touch the bytes (:class:`Overlaps`, :func:`safe_distances`).
3. Both together are the :class:`Demand` that the planners place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod
from types import MappingProxyType

import numpy as np

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.module import Call, Kernel, Module
from microc.schedule.cost.loop_region import expand_memory_calls
from microc.tir.analysis.access_order import NEVER_TOUCHED, NEVER_WRITTEN, AccessTimes, Precedence, access_times
from microc.tir.analysis.size_forms import Conflict

# ---- Safe distances between two blocks of memory that overlap.

GRAIN = 4
"""Bytes of a grain: every offset in the arena is a multiple of it, so that only such distances matter."""
_SAMPLES = 16
"""Grains, at either end and at random between, at which a distance is tested before it is compared in full."""
_STRIDE = 127
"""Step, in grains, of the rows that a full comparison looks at first."""
_TRIES = 256
"""Most single distances that are compared in full; the rest count as unsafe."""


@frozen
class SafeOffsets:
    """Allowed distances in bytes, from the start of a block of ``under`` bytes to the start of one of ``over`` bytes.

    Distances up to -over and from ``under`` on keep the blocks apart. Between them those in ``safe`` are allowed:
    rising ranges that do not overlap.
    """

    under: int
    over: int
    safe: tuple[range, ...] = ()

    def next(self, distance: int) -> int:
        """Return the smallest allowed distance that is not below ``distance``."""
        if distance <= -self.over or distance >= self.under:
            return distance
        for span in self.safe:
            if distance <= span[-1]:
                return max(span.start, span.start - (span.start - distance) // span.step * span.step)
        return self.under

    def reverse(self) -> SafeOffsets:
        """Return the allowed distances from the second block to the first."""
        safe = tuple(range(-span[-1], -span.start + 1, span.step) for span in reversed(self.safe))
        return SafeOffsets(self.over, self.under, safe)

    @property
    def shared(self) -> int:
        """The most bytes that the blocks may share."""
        inner = sorted((0, self.under - self.over))  # between these distances one block contains the other
        # The overlap rises up to `inner`, is constant within and falls behind it, so the maximum is at an allowed distance
        # nearest to `inner`.
        tries = {span[k] for span in self.safe for k in (0, -1)}
        tries |= {self.next(inner[0]), -self.reverse().next(-inner[1])}
        return max(min(self.under, d + self.over) - max(0, d) for d in tries | {self.under})


def safe_distances(first_write: Array, last_touch: Array) -> tuple[range, ...]:
    """Return the safe distances, multiples of :data:`GRAIN`, of a block that is written over one that dies.

    ``first_write`` (by byte of the new block) and ``last_touch`` (by byte of the old one) are times on one clock. A
    distance d is safe if ``last_touch[x + d] < first_write[x]`` wherever both exist.
    """
    new, old = _pad_to_rows(first_write, NEVER_WRITTEN, GRAIN), _pad_to_rows(last_touch, NEVER_TOUCHED, GRAIN)
    if _has_uniform_rows(new) and _has_uniform_rows(old):
        # One byte of each grain is enough, and a quarter of the work.
        new, old = new[:, :1], old[:, :1]
    low, high = _safe_distance_ends(new, old)
    safe = np.ones(len(old) + len(new) - 1, bool)  # distance d has index d + len(new) - 1
    zero = len(new) - 1
    safe[max(low + 1 + zero, 0) : max(high + zero, 0)] = False
    for d in _single_safe_distances(new, old, range(low + 1, high)):
        safe[d + zero] = True
    return tuple(_split_into_ranges((np.flatnonzero(safe) - zero) * GRAIN))


def distances_without(conflicts: Iterable[Conflict], under: int, over: int) -> tuple[range, ...]:
    """Return the distances, multiples of :data:`GRAIN`, at which blocks overlap and none of the conflicts arises.

    ``under``, ``over``: bytes of the blocks, as in :class:`SafeOffsets`.
    """
    distances = np.arange(1 - -(-over // GRAIN), -(-under // GRAIN)) * GRAIN
    safe = np.ones(len(distances), bool)
    for conflict in conflicts:
        first, end = np.searchsorted(distances, (conflict.low, conflict.high + 1))
        safe[first:end] &= (distances[first:end] - conflict.first) % conflict.modulus > conflict.last - conflict.first
    return tuple(_split_into_ranges(distances[safe]))


def _pad_to_rows(times: Array, padding_value: int, width: int) -> Array:
    """Reshape times to rows of ``width``; the last row is padded with ``padding_value``."""
    return np.concatenate([times, np.full(-len(times) % width, padding_value, np.int64)]).reshape(-1, width)


def _has_uniform_rows(rows: Array) -> bool:
    """Test whether the bytes of every row (grain) have equal times, as with elements of at least a grain."""
    return bool((rows[:, 1:] == rows[:, :1]).all())


def _safe_distance_ends(new: Array, old: Array) -> tuple[int, int]:
    """Return (low, high) in grains: every distance up to ``low`` and every one from ``high`` on is safe."""
    # Distances from above are distances from below of the reversed blocks.
    low = min(_safe_prefix_end(new[:, k], old[:, k]) for k in range(new.shape[1]))
    down = min(_safe_prefix_end(new[::-1, k], old[::-1, k]) for k in range(new.shape[1]))
    if low >= len(old) - 1 or down >= len(old) - 1:
        return len(old) - 1, len(old)
    return low, len(old) - len(new) - down


def _safe_prefix_end(new: Array, old: Array) -> int:
    """Return the largest d such that d and every smaller distance are safe.

    Old grains at y <= x + d must be done before x is written, so the latest time of a prefix counts.
    """
    # For each x the first y whose prefix is not done before x is written; then d < y - x.
    reached = np.searchsorted(np.maximum.accumulate(old), new, side="left")
    bound = reached < len(old)
    return int((reached - np.arange(len(new)))[bound].min()) - 1 if bound.any() else len(old) - 1


def _single_safe_distances(new: Array, old: Array, candidates: range) -> list[int]:
    """Return the safe distances among ``candidates``, some of which are unsafe.

    Most are refuted by the grain touched last of all, the one written first, and samples. The rest often follows from a
    period (a kernel that goes channel by channel); if not, the nearest ones are compared in full."""
    left = np.arange(candidates.start, candidates.stop)
    latest, earliest = int(old.max(axis=1).argmax()), int(new.min(axis=1).argmin())
    left = left[_is_below_limits(-new[::-1], left + (len(new) - 1 - latest), -old[latest])]
    ends = np.arange(min(_SAMPLES, len(new)))
    dice = np.random.default_rng(0).integers(0, len(new), _SAMPLES)
    for x in dict.fromkeys((earliest, *ends.tolist(), *(len(new) - 1 - ends).tolist(), *dice.tolist())):
        if not len(left):
            return []
        left = left[_is_below_limits(old, left + x, new[x])]
    periodic = _periodic_safe_distances(new, old, left)
    rest, level = np.setdiff1d(left, periodic, assume_unique=True), len(old) - len(new)
    # Nearest to 0 or to aligned ends: there the blocks share most.
    nearest = rest[np.lexsort((rest, np.minimum(abs(rest), abs(rest - level))))][:_TRIES]
    return [*periodic.tolist(), *(d for d in nearest.tolist() if _safe(new, old, d))]


def _is_below_limits(times: Array, positions: Array, limits: Array) -> Array:
    """Test for each of some rising positions whether its row of times is below the limits; positions outside of ``times``
    are."""
    inside = slice(*np.searchsorted(positions, (0, len(times))))
    rows, is_below = positions[inside], np.ones(len(positions), bool)
    for column, limit in zip(times.T, limits, strict=True):  # long columns are compared faster than many short rows
        is_below[inside] &= column[rows] < limit
    return is_below


def _safe(new: Array, old: Array, d: int) -> bool:
    """Test whether one distance is safe. A few rows refute most that are not."""
    first, last = max(0, -d), min(len(new), len(old) - d)
    made, done = new[first:last], old[first + d : last + d]
    return bool((done[::_STRIDE] < made[::_STRIDE]).all() and (done < made).all())


def _periodic_safe_distances(new: Array, old: Array, distances: Array) -> Array:
    """Return those of some rising distances whose safety follows from a period.

    All distances of one residue are safe if every class of old grains, modulo the period, is done before the class of
    new grains at that distance is first written."""
    steps = np.diff(distances)
    if not len(steps):
        return distances[:0]
    # The most frequent step is taken as the period, and of it the most frequent residue: only one class is proved.
    period = int(np.bincount(steps).argmax())
    residue = int(np.bincount(distances % period).argmax())
    width = new.shape[1]
    first_writes = _pad_to_rows(new.reshape(-1), NEVER_WRITTEN, period * width)
    last_touches = _pad_to_rows(old.reshape(-1), NEVER_TOUCHED, period * width)
    safe = (np.roll(last_touches.max(axis=0), -residue * width) < first_writes.min(axis=0)).all()
    return distances[distances % period == residue] if safe else distances[:0]


def _split_into_ranges(rising: Array) -> Iterable[range]:
    """Split rising numbers into ranges of constant step, each as long as possible."""
    steps = np.diff(rising)
    bends = np.append(np.flatnonzero(np.diff(steps)) + 1, len(rising) - 1)
    start = 0
    while start < len(rising):
        step = int(steps[start]) if start < len(steps) else GRAIN
        end = int(bends[np.searchsorted(bends, start, side="right")]) if start < len(steps) else start
        yield range(int(rising[start]), int(rising[end]) + 1, step)
        start = end + 1


# ---- Values that may share memory in part: a call writes over operands that it no longer reads.
#
# A call may place a result or workspace over a value that dies with it (an operand's last use, another workspace). The safe
# distances follow from the lowered loops of its kernel (:mod:`microc.tir.analysis.access_order`): 0 for elementwise work, a few
# rows for a convolution. A kernel with dynamic sizes uses the distances that are safe at all sizes, since offsets are fixed.
# Buffers of two dtypes overlap only if one of them has 8 bits, since in C only character types may alias others.

MOST_SIZES = 1 << 16
"""Most combinations of sizes that are examined; a kernel with more keeps its operands apart."""
Lifetimes = Mapping[str, tuple[int, int]]
SafeOffsetsByPair = Mapping[tuple[str, str], SafeOffsets]
"""By (base of one value, base of another): the allowed distances from the first to the second. Both orders are included."""


@frozen
class _ValueAccesses:
    """Accesses to a value during one call: ticks of its bytes on the kernel's clock
    (:mod:`microc.tir.analysis.access_order`), and the dtypes with which they are accessed."""

    times: AccessTimes
    dtypes: frozenset[str]


MOST_BYTES = 1 << 23
"""Largest sum of two values that may overlap: analysis takes a few hundred times their memory, byte by byte."""


class Overlaps:
    """Allowed distances between operands of a module's calls, computed on demand, once per kernel.

    They do not depend on the order of the calls.
    """

    def __init__(self, module: Module) -> None:
        self.module = module
        self._kernels = {kernel.name: kernel for kernel in module.kernels}
        self._clocks: dict[str, dict[str, AccessTimes]] = {}
        self._proofs: dict[str, Precedence] = {}
        self._known: dict[tuple[object, ...], SafeOffsets] = {}

    def room(self, call: Call, old: str, new: str) -> SafeOffsets | None:
        """Return the distances from a value that dies with a call to one that starts with it; None if they must stay apart."""
        kernel = self._kernels.get(call.kernel)
        sizes = self.module.values[old].nbytes, self.module.values[new].nbytes
        if (
            kernel is None
            or kernel.apart
            or not all(sizes)
            or sum(sizes) > MOST_BYTES
            or (kernel.func.scalars and self._size_combinations(kernel) is None)
        ):
            return None
        key = (kernel.name, sizes, self._argument_positions(call, old), self._argument_positions(call, new))
        if key not in self._known:
            self._known[key] = SafeOffsets(*sizes, self._safe(kernel, call, old, new))
        return self._known[key] if self._known[key].shared else None

    def _argument_positions(self, call: Call, base: str) -> tuple[tuple[int, int], ...]:
        """Return the positions of a value among a call's arguments, each with the byte offset there."""
        arguments = ((k, *self.module.base_of(name)) for k, name in enumerate(call.args))
        return tuple((k, offset) for k, owner, offset in arguments if owner == base)

    def _safe(self, kernel: Kernel, call: Call, old: str, new: str) -> tuple[range, ...]:
        """Return the safe distances between two values of a call, by its access times.

        If sizes are dynamic, the distances that are safe at all sizes."""
        if kernel.func.scalars:
            return self._safe_distances_at_all_sizes(kernel, call, old, new)
        if kernel.name not in self._clocks:
            self._clocks[kernel.name] = {
                buffer.name: times for buffer, times in access_times(expand_memory_calls(kernel.func)).items()
            }
        dying, starting = (self._accesses_in_call(kernel, call, name) for name in (old, new))
        if not all(_may_alias(a, b) for a in dying.dtypes for b in starting.dtypes):
            return ()
        return safe_distances(starting.times.first_write, dying.times.last_touch)

    def _safe_distances_at_all_sizes(self, kernel: Kernel, call: Call, old: str, new: str) -> tuple[range, ...]:
        """Return the distances that are safe at all sizes."""
        if kernel.name not in self._proofs:
            self._proofs[kernel.name] = Precedence(
                expand_memory_calls(kernel.func), self._size_combinations(kernel) or {}
            )
        params, conflicts = kernel.func.params, list[Conflict]()
        for a, start in self._argument_positions(call, old):
            for b, other in self._argument_positions(call, new):
                if not _may_alias(params[a].dtype, params[b].dtype):
                    return ()
                found = self._proofs[kernel.name].conflicts(params[a], params[b])
                conflicts += [conflict.moved(start - other) for conflict in found]
        return distances_without(conflicts, self.module.values[old].nbytes, self.module.values[new].nbytes)

    def _size_combinations(self, kernel: Kernel) -> dict[str, Array] | None:
        """Return all combinations of sizes of a kernel as columns, by scalar; None if there are too many."""
        sizes = [size for size in self.module.sizes if size.scalar in kernel.func.scalars]
        ranges = [range(-(-s.minimum // s.step) * s.step, s.maximum + 1, s.step) for s in sizes]
        if prod(map(len, ranges)) > MOST_SIZES:
            return None
        grid = np.meshgrid(*(np.array(each, np.int64) for each in ranges), indexing="ij")
        return {size.scalar.name: column.reshape(-1) for size, column in zip(sizes, grid, strict=True)}

    def _accesses_in_call(self, kernel: Kernel, call: Call, base: str) -> _ValueAccesses:
        """Return the accesses to a value during a call, whose arguments may include several views of it."""
        size, clock, accessed_dtypes = self.module.values[base].nbytes, self._clocks[kernel.name], set()
        first, last = np.full(size, NEVER_WRITTEN, np.int64), np.full(size, NEVER_TOUCHED, np.int64)
        for position, offset in self._argument_positions(call, base):
            param = kernel.func.params[position]
            accessed_dtypes.add(param.dtype)
            span, width = slice(offset, offset + param.nbytes), dtypes.nbytes(param.dtype)
            np.minimum(first[span], np.repeat(clock[param.name].first_write, width), out=first[span])
            np.maximum(last[span], np.repeat(clock[param.name].last_touch, width), out=last[span])
        return _ValueAccesses(AccessTimes(first, last), frozenset(accessed_dtypes))


def find_safe_offsets(module: Module, overlaps: Overlaps, alive: Lifetimes) -> SafeOffsetsByPair:
    """Return the allowed distances of all pairs of values that may overlap.

    ``alive``: first and last call of every value in the arena.
    """
    allowed: dict[tuple[str, str], SafeOffsets] = {}
    for time, call in enumerate(module.calls):
        ending, starting = _dying_and_starting(module, call, alive, time)
        for old in ending:
            for new in starting:
                room = overlaps.room(call, old, new) if old != new else None
                if room is not None and ((old, new) not in allowed or allowed[old, new].shared < room.shared):
                    # Both orders are stored, since of two workspaces either may be the older one.
                    allowed[old, new], allowed[new, old] = room, room.reverse()
    return allowed


def shared_bytes(module: Module, call: Call) -> int:
    """Return the bytes of a planned call's results that overlap its operands."""
    reads, writes = ([_byte_range(module, name) for name in names] for names in (call.reads, call.writes))
    return sum(
        max(0, min(a.stop, b.stop) - max(a.start, b.start))
        for a in reads
        if a is not None
        for b in writes
        if b is not None
    )


def _byte_range(module: Module, name: str) -> range | None:
    """Return the range of bytes that a value takes in the arena; None if it is not in the arena."""
    base, offset = module.base_of(name)
    start = module.plan.offsets.get(base) if module.plan is not None else None
    return None if start is None else range(start + offset, start + offset + module.values[name].nbytes)


def _dying_and_starting(module: Module, call: Call, alive: Lifetimes, time: int) -> tuple[list[str], list[str]]:
    """Return the values in the arena whose lifetime ends with a call, and those whose lifetime starts with it. Workspaces
    do both."""
    touched = dict.fromkeys(module.base_of(name)[0] for name in (*call.reads, *call.writes, *call.workspace))
    alive_values = [name for name in touched if name in alive]
    written = {module.base_of(name)[0] for name in call.writes}
    ending = [name for name in alive_values if alive[name][1] == time and name not in written]
    return ending, [name for name in alive_values if alive[name][0] == time]


def _may_alias(a: str, b: str) -> bool:
    """Test whether C allows accesses to the same memory with these two dtypes (strict aliasing)."""
    return a == b or bool({a, b} & {"int8", "uint8"})


# ---- Lifetimes of the values in the arena, their conflicts, and the demand of memory.

BEFORE = -1
"""The time before the first call, when inputs are written."""


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """A value to place in memory, alive from call ``first`` to call ``last``, both included."""

    name: str
    size: int
    align: int
    first: int
    last: int

    def conflicts(self, other: Unit) -> bool:
        """Test whether two values are alive during the same call."""
        return self.first <= other.last and other.first <= self.last


def is_in_arena(module: Module, name: str, *, io_in_arena: bool) -> bool:
    """Test whether a value (not a view) is in the arena."""
    storage = module.values[name].storage
    return storage in ("intermediate", "workspace", "state") or (io_in_arena and storage in ("input", "output"))


def lifetimes(module: Module, *, io_in_arena: bool) -> dict[str, tuple[int, int]]:
    """Return the first and last call of every value in the arena; a use of a view is a use of its base."""
    end = len(module.calls)
    spans: dict[str, tuple[int, int]] = {}

    def extend_lifetime(name: str, time: int) -> None:
        base, _ = module.base_of(name)
        if is_in_arena(module, base, io_in_arena=io_in_arena):
            first, last = spans.get(base, (time, time))
            spans[base] = min(first, time), max(last, time)

    for name in (*module.inputs, *module.state):
        extend_lifetime(name, BEFORE)
    for time, call in enumerate(module.calls):
        for name in (*call.reads, *call.writes, *call.workspace):
            extend_lifetime(name, time)
    for name in (*module.outputs, *module.state):
        extend_lifetime(name, end)
    return spans


@frozen
class Demand:
    """The values to place in memory, and at which distances they may overlap.

    ``rooms``: by unit, the allowed distances to it from the units that it conflicts with and may overlap. It stays
    apart from all others that it conflicts with. ``limit``: placements of so many bytes or more are of no use."""

    units: tuple[Unit, ...]
    rooms: Mapping[Unit, Mapping[Unit, SafeOffsets]]
    limit: float = inf


def make_demand(units: tuple[Unit, ...], overlapping: SafeOffsetsByPair = MappingProxyType({})) -> Demand:
    """Create the demand of units; those that conflict stay apart, except pairs (of names, in both orders) in ``overlapping``."""
    named, rooms_to = {unit.name: unit for unit in units}, {unit: dict[Unit, SafeOffsets]() for unit in units}
    for (other, name), room in overlapping.items():
        rooms_to[named[name]][named[other]] = room
    return Demand(units, rooms_to)


def conflicting_bytes(wanted: Demand) -> dict[Unit, int]:
    """Return for each unit the bytes of all others that it conflicts with (alive during a common call)."""
    found = _sum_over_conflicts(wanted, np.array([unit.size for unit in wanted.units], np.int64))
    return dict(zip(wanted.units, found.tolist(), strict=True))


def count_conflicts(wanted: Demand) -> int:
    """Count the pairs of units that some call needs both of."""
    return int(_sum_over_conflicts(wanted, np.ones(len(wanted.units), np.int64)).sum()) // 2


def _sum_over_conflicts(wanted: Demand, weights: Array) -> Array:
    """Return for each unit the sum of ``weights`` over all others that it conflicts with.

    That is all that begin before it ends, less those that end before it begins.
    """
    first, last = (
        np.array(times, np.int64) for times in ([u.first for u in wanted.units], [u.last for u in wanted.units])
    )
    started_before, ended_before = (np.append(0, np.cumsum(weights[np.argsort(times)])) for times in (first, last))
    late, early = np.searchsorted(np.sort(first), last, side="right"), np.searchsorted(np.sort(last), first)
    return np.asarray(started_before[late] - ended_before[early] - weights)


Placement = dict[Unit, int]


def placement_size(placement: Placement) -> int:
    """Return the bytes of memory that a placement needs."""
    return max((at + unit.size for unit, at in placement.items()), default=0)


def demand_of_module(module: Module, overlaps: Overlaps, *, io_in_arena: bool) -> Demand:
    """Return the values of a module to place in the arena, with the distances at which they may overlap."""
    alive = lifetimes(module, io_in_arena=io_in_arena)
    values = module.values
    units = tuple(Unit(n, values[n].nbytes, values[n].align, first, last) for n, (first, last) in alive.items())
    return make_demand(units, find_safe_offsets(module, overlaps, alive))


def placement_lower_bound(wanted: Demand) -> int:
    """Return a lower bound of the bytes of any placement: the largest need of one call."""
    return max(least_bytes_by_call(wanted, max((unit.last for unit in wanted.units), default=BEFORE) + 1), default=0)


def least_bytes_by_call(wanted: Demand, call_count: int) -> list[int]:
    """Return the least bytes needed before the first call, and by each of the first ``call_count`` calls.

    Values alive together take the sum of their sizes, less the most that pairs of them may share. A byte shared by
    three values counts in three pairs although it saves two bytes, so this is a lower bound."""

    def alive(sizes: Iterable[tuple[int, int, int]]) -> Array:
        """Return the sum of the sizes alive at each time; items are (first time, last time, size), both times included."""
        steps = np.zeros(call_count + 3, np.int64)
        for first, last, size in sizes:
            steps[min(first, call_count) - BEFORE] += size
            steps[min(last, call_count) + 1 - BEFORE] -= size
        return np.asarray(np.cumsum(steps[: call_count + 1]))

    units = wanted.units
    pairs = ((a, b, room) for a, near in wanted.rooms.items() for b, room in near.items() if a.name < b.name)
    shared = alive((max(a.first, b.first), min(a.last, b.last), room.shared) for a, b, room in pairs)
    # `before` sums the values alive when a call starts, `after` those alive when it returns. No two of these may overlap:
    # overlaps are between a value that dies with a call and one that starts with it.
    together = alive((u.first, u.last, u.size) for u in units) - shared
    before = alive((u.first + 1, u.last, u.size) for u in units if u.first < u.last)
    after = alive((u.first, u.last - 1, u.size) for u in units if u.first < u.last)
    return [int(need) for need in np.maximum(together, np.maximum(before, after))]


def count_covered_addresses(ranges: Sequence[tuple[int, int]]) -> int:
    """Count the addresses in the union of half-open ranges."""
    total = end = 0
    for start, stop in sorted(ranges):
        total += max(0, stop - max(start, end))
        end = max(end, stop)
    return total
