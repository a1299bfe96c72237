# SPDX-License-Identifier: Apache-2.0
"""Liveness of values, and the distances at which two values may overlap in memory.

1. :func:`compute_lifetimes` computes the first and last call of each value. Values that no call needs together may share
   memory.
2. A call may write a result over an operand whose last use is this call. Safe *distances* (differences of their
  offsets) follow from the order in which the loops of the call's kernel touch the bytes (:class:`Overlaps`,
  :func:`safe_distances`).
3. A :class:`Demand` combines the lifetimes and the safe distances. It is the input of the planners.
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
from microc.tir.analysis.access_order import UnsafeDistanceProver
from microc.tir.analysis.access_times import NEVER_TOUCHED, NEVER_WRITTEN, AccessTimes, compute_access_times
from microc.tir.analysis.size_forms import UnsafeDistances

# ---- Safe distances between two blocks of memory that overlap.

_INT32_MAX = (1 << 31) - 1
GRAIN = 4
"""Granularity of offsets in the arena, in bytes: all offsets, and so all distances, are multiples of a grain."""
_SAMPLES = 16
"""Number of grains at each end, and of random grains, at which a distance is tested before all grains are compared."""
_SPARSE_STRIDE = 127
"""Stride, in grains, of the sparse comparison that refutes most unsafe distances before all grains are compared."""
_MAX_FULL_COMPARISONS = 256
"""Most distances for which all grains are compared one by one; distances beyond this number count as unsafe."""


@frozen
class SafeOffsets:
    """Allowed distances in bytes from the start of a first block of memory to the start of a second block.

    ``first_bytes``, ``second_bytes``: sizes of the two blocks in bytes. At distances of at most ``-second_bytes`` or at
    least ``first_bytes`` the blocks do not overlap, so these are allowed. ``overlapping_distances``: the allowed
    distances at which the blocks overlap, as rising disjoint ranges.
    """

    first_bytes: int
    second_bytes: int
    overlapping_distances: tuple[range, ...] = ()

    def next_allowed(self, distance: int) -> int:
        """Return the smallest allowed distance that is at least ``distance``."""
        if distance <= -self.second_bytes or distance >= self.first_bytes:
            return distance
        for span in self.overlapping_distances:
            if distance <= span[-1]:
                return max(span.start, span.start - (span.start - distance) // span.step * span.step)
        return self.first_bytes

    def reverse(self) -> SafeOffsets:
        """Return the allowed distances from the second block to the first."""
        overlapping_distances = tuple(
            range(-span[-1], -span.start + 1, span.step) for span in reversed(self.overlapping_distances)
        )
        return SafeOffsets(self.second_bytes, self.first_bytes, overlapping_distances)

    @property
    def max_shared_bytes(self) -> int:
        """Most bytes that the two blocks may share at an allowed distance."""
        inner = sorted(
            (0, self.first_bytes - self.second_bytes)
        )  # between these distances one block contains the other
        # The overlap rises up to `inner`, is constant within and falls behind it, so the maximum is at an allowed distance
        # nearest to `inner`.
        tries = {span[k] for span in self.overlapping_distances for k in (0, -1)}
        tries |= {self.next_allowed(inner[0]), -self.reverse().next_allowed(-inner[1])}
        return max(min(self.first_bytes, d + self.second_bytes) - max(0, d) for d in tries | {self.first_bytes})


def safe_distances(first_write: Array, last_touch: Array) -> tuple[range, ...]:
    """Return the safe distances (offset differences in bytes) from an old block of memory to a new block that is
    written over it.

    The distances are multiples of :data:`GRAIN`. ``first_write``: times at which the bytes of the new block are first
    written; ``last_touch``: times at which the bytes of the old block are last accessed, on the same clock. A distance
    d is safe if ``last_touch[x + d] < first_write[x]`` for all x at which both blocks have a byte. Each byte may have several
    pairs of times, the columns of both arrays.
    """
    columns = prod(first_write.shape[1:])
    if last_touch.max(initial=NEVER_TOUCHED) < _INT32_MAX:  # a write that is clipped stays after all touches
        first_write, last_touch = np.minimum(first_write, _INT32_MAX).astype(np.int32), last_touch.astype(np.int32)
    never_written = int(np.iinfo(first_write.dtype).max)
    # Columns are compared, and they exceed the caches: they are contiguous, and of 32 bits if the times fit.
    new = np.asfortranarray(_pad_to_rows(first_write.reshape(-1), never_written, GRAIN * columns))
    old = np.asfortranarray(_pad_to_rows(last_touch.reshape(-1), NEVER_TOUCHED, GRAIN * columns))
    if _has_uniform_rows(new, columns) and _has_uniform_rows(old, columns):
        # Comparing one byte of each grain is enough then, which is a quarter of the work.
        new, old = new[:, :columns], old[:, :columns]
    low, high = _find_safe_distance_ends(new, old)
    safe = np.ones(len(old) + len(new) - 1, bool)  # distance d has index d + len(new) - 1
    zero = len(new) - 1
    safe[max(low + 1 + zero, 0) : max(high + zero, 0)] = False
    for d in _find_single_safe_distances(new, old, range(low + 1, high)):
        safe[d + zero] = True
    return tuple(_split_into_ranges((np.flatnonzero(safe) - zero) * GRAIN))


def distances_without_conflicts(
    conflicts: Iterable[UnsafeDistances], first_bytes: int, second_bytes: int
) -> tuple[range, ...]:
    """Return the distances at which two blocks of memory overlap without any of the given access conflicts.

    The distances are multiples of :data:`GRAIN`. ``first_bytes``, ``second_bytes``: number of bytes of the two blocks.
    """
    distances = np.arange(1 - -(-second_bytes // GRAIN), -(-first_bytes // GRAIN)) * GRAIN
    safe = np.ones(len(distances), bool)
    for conflict in conflicts:
        first, end = np.searchsorted(distances, (conflict.low, conflict.high + 1))
        safe[first:end] &= (
            distances[first:end] - conflict.first_remainder
        ) % conflict.modulus > conflict.last_remainder - conflict.first_remainder
    return tuple(_split_into_ranges(distances[safe]))


def _pad_to_rows(times: Array, padding_value: int, width: int) -> Array:
    """Return the times of bytes as rows of ``width`` bytes; the last row is padded with ``padding_value``."""
    return np.concatenate([times, np.full(-len(times) % width, padding_value, times.dtype)]).reshape(-1, width)


def _has_uniform_rows(rows: Array, columns: int) -> bool:
    """Test whether all bytes of a row (grain) have equal times, in every row. Each byte has ``columns`` times.

    This holds for elements of at least :data:`GRAIN` bytes."""
    return bool((rows[:, columns:] == rows[:, :-columns]).all())


def _find_safe_distance_ends(first_writes: Array, last_touches: Array) -> tuple[int, int]:
    """Return two distances (low, high) in grains (units of :data:`GRAIN` bytes): all distances d <= low and d >= high
    are safe."""
    # The upper end is computed as the lower end of the reversed blocks.
    low = min(_safe_prefix_end(first_writes[:, k], last_touches[:, k]) for k in range(first_writes.shape[1]))
    down = min(_safe_prefix_end(first_writes[::-1, k], last_touches[::-1, k]) for k in range(first_writes.shape[1]))
    if low >= len(last_touches) - 1 or down >= len(last_touches) - 1:
        return len(last_touches) - 1, len(last_touches)
    return low, len(last_touches) - len(first_writes) - down


def _safe_prefix_end(first_writes: Array, last_touches: Array) -> int:
    """Return the largest distance d in grains such that d and all smaller distances between two blocks are safe.

    The old grains at y <= x + d must be last touched before the new grain x is first written. So the times of the old
    block are compared as a running maximum.
    """
    # `reached`: for each x, the first y such that an old grain up to y is still touched when x is written. So d < y - x.
    reached = np.searchsorted(np.maximum.accumulate(last_touches), first_writes, side="left")
    bound = reached < len(last_touches)
    return int((reached - np.arange(len(first_writes)))[bound].min()) - 1 if bound.any() else len(last_touches) - 1


def _find_single_safe_distances(first_writes: Array, last_touches: Array, candidates: range) -> list[int]:
    """Return the safe distances in grains among ``candidates``.

    ``first_writes``: for each grain (:data:`GRAIN` bytes) of the new block, the times at which its bytes are first
    written. ``last_touches``: for each grain of the old block, the times at which its bytes are last accessed.

    Most unsafe distances are refuted at a few grains: at the old grain that is touched last, at the new grain that is
    written first, and at samples. Many of the remaining distances are proved at once if the accesses are periodic, as
    in a kernel that works channel by channel. Of the others, the :data:`_MAX_FULL_COMPARISONS` with the largest
    overlaps are tested one by one."""
    left = np.arange(candidates.start, candidates.stop)
    latest, earliest = int(last_touches.max(axis=1).argmax()), int(first_writes.min(axis=1).argmin())
    left = left[
        _is_below_limits(
            -first_writes[::-1], left[:, None] + (len(first_writes) - 1 - latest), -last_touches[latest, None]
        )
    ]
    ends = np.arange(min(_SAMPLES, len(first_writes)))
    # Multiples of the golden ratio, without their integer parts, are spread evenly and have no period (Knuth, 6.4).
    inner = np.arange(1, _SAMPLES + 1) * 0x9E3779B1 % (1 << 32) * len(first_writes) >> 32
    samples = list(dict.fromkeys((earliest, *ends.tolist(), *(len(first_writes) - 1 - ends).tolist(), *inner.tolist())))
    # Groups of samples double in size, since the first samples refute most distances.
    start, end = 0, 1
    while start < len(samples) and len(left):
        group = samples[start:end]
        left = left[_is_below_limits(last_touches, left[:, None] + group, first_writes[group])]
        start, end = end, 2 * end + 1
    if not len(left):
        return []
    periodic = _find_periodic_safe_distances(first_writes, last_touches, left)
    rest, level = np.setdiff1d(left, periodic, assume_unique=True), len(last_touches) - len(first_writes)
    # The blocks share most bytes at distances near 0 (equal starts) and near `level` (equal ends).
    nearest = rest[np.lexsort((rest, np.minimum(abs(rest), abs(rest - level))))][:_MAX_FULL_COMPARISONS]
    return [*periodic.tolist(), *(d for d in nearest.tolist() if _is_safe_distance(first_writes, last_touches, d))]


def _is_below_limits(times: Array, positions: Array, limits: Array) -> Array:
    """Test for each row of ``positions`` whether the times at these positions are below ``limits``.

    A position is a row index of ``times``; positions outside of ``times`` pass the test. ``limits``: a row for each
    column of ``positions``, and a column for each column of ``times``."""
    is_below = np.ones(positions.shape, bool)
    for column, limit in zip(times.T, limits.T, strict=True):  # long columns are compared faster than many short rows
        is_below &= column.take(positions, mode="clip") < limit
    return np.asarray((is_below | (positions < 0) | (positions >= len(times))).all(axis=1))


def _is_safe_distance(first_writes: Array, last_touches: Array, distance: int) -> bool:
    """Test whether a distance in grains is safe. A sparse comparison first refutes most unsafe distances."""
    first, last = max(0, -distance), min(len(first_writes), len(last_touches) - distance)
    shared_first_writes, shared_last_touches = (
        first_writes[first:last],
        last_touches[first + distance : last + distance],
    )
    is_sparsely_safe = (shared_last_touches[::_SPARSE_STRIDE] < shared_first_writes[::_SPARSE_STRIDE]).all()
    return bool(is_sparsely_safe and (shared_last_touches < shared_first_writes).all())


def _find_periodic_safe_distances(first_writes: Array, last_touches: Array, distances: Array) -> Array:
    """Return the distances that are safe because the accesses to both blocks are periodic.

    ``distances``: candidates in rising order, in grains (units of :data:`GRAIN` bytes). Let grains be in one class if
    their indices are equal modulo a period. All distances with one residue are safe if each class of old grains is last
    touched before the class of new grains at that residue is first written."""
    steps = np.diff(distances)
    if not len(steps):
        return distances[:0]
    # The period is the most frequent difference of neighbouring distances. Only the most frequent residue is tested.
    period = int(np.bincount(steps).argmax())
    residue = int(np.bincount(distances % period).argmax())
    width = first_writes.shape[1]
    never_written = int(np.iinfo(first_writes.dtype).max)
    first_writes_by_class = _pad_to_rows(first_writes.reshape(-1), never_written, period * width)
    last_touches_by_class = _pad_to_rows(last_touches.reshape(-1), NEVER_TOUCHED, period * width)
    safe = (np.roll(last_touches_by_class.max(axis=0), -residue * width) < first_writes_by_class.min(axis=0)).all()
    return distances[distances % period == residue] if safe else distances[:0]


def _split_into_ranges(rising_numbers: Array) -> Iterable[range]:
    """Split rising numbers into ranges of constant step; each range is as long as possible."""
    steps = np.diff(rising_numbers)
    bends = np.append(np.flatnonzero(np.diff(steps)) + 1, len(rising_numbers) - 1)
    start = 0
    while start < len(rising_numbers):
        step = int(steps[start]) if start < len(steps) else GRAIN
        end = int(bends[np.searchsorted(bends, start, side="right")]) if start < len(steps) else start
        yield range(int(rising_numbers[start]), int(rising_numbers[end]) + 1, step)
        start = end + 1


# ---- Values that may overlap in memory: a call writes over operands that it no longer reads.
#
# A result or workspace of a call may overlap an operand whose last use is this call, or another workspace. The safe
# distances follow from the lowered loops of its kernel (:mod:`microc.tir.analysis.access_times`): 0 for elementwise kernels, a
# few rows for a convolution. A kernel with dynamic sizes uses the distances that are safe at all sizes, since offsets are fixed.
# Buffers of two dtypes overlap only if one of them has 8 bits, since in C only character types may alias other types.

MAX_SIZE_COMBINATIONS = 1 << 16
"""Most combinations of dynamic sizes that are examined; operands of a kernel with more combinations never overlap."""
Lifetimes = Mapping[str, tuple[int, int]]
SafeOffsetsByPair = Mapping[tuple[str, str], SafeOffsets]
"""The allowed distances from one value to another, by the pair of their names. Both orders of a pair are included."""


@frozen
class _ValueAccesses:
    """Accesses to the bytes of a value during one call.

    ``times``: when each byte is first written and last touched, in ticks of the kernel's clock
    (:mod:`microc.tir.analysis.access_times`). ``dtypes``: element types with which the call accesses the value."""

    times: AccessTimes
    dtypes: frozenset[str]


MAX_OVERLAPPING_BYTES = 1 << 23
"""Most bytes of two values together that may overlap. The analysis needs a few hundred times as much memory."""


class Overlaps:
    """Allowed distances (differences of offsets in the arena) between the operands of each call of a module.

    Distances are computed on demand, once per kernel. They do not depend on the order of the calls.
    """

    def __init__(self, module: Module) -> None:
        self.module = module
        self._kernels = {kernel.name: kernel for kernel in module.kernels}
        self._clocks: dict[str, dict[str, AccessTimes]] = {}
        self._proofs: dict[str, UnsafeDistanceProver] = {}
        self._known: dict[tuple[object, ...], SafeOffsets] = {}

    def safe_offsets(self, call: Call, old: str, new: str) -> SafeOffsets | None:
        """Return the allowed distances from the value ``old`` to the value ``new``; None if they must not overlap.

        ``call`` is the last call that uses ``old``, and the first call that uses ``new``."""
        kernel = self._kernels.get(call.kernel)
        sizes = self.module.values[old].nbytes, self.module.values[new].nbytes
        if (
            kernel is None
            or kernel.apart
            or not all(sizes)
            or sum(sizes) > MAX_OVERLAPPING_BYTES
            or (kernel.func.scalars and self._list_size_combinations(kernel) is None)
        ):
            return None
        key = (kernel.name, sizes, self._find_argument_positions(call, old), self._find_argument_positions(call, new))
        if key not in self._known:
            self._known[key] = SafeOffsets(*sizes, self._compute_safe_distances(kernel, call, old, new))
        return self._known[key] if self._known[key].max_shared_bytes else None

    def _find_argument_positions(self, call: Call, base: str) -> tuple[tuple[int, int], ...]:
        """Return a pair for each argument of a call that is the value ``base`` or a view of it.

        A pair contains the position of the argument, and the offset of the argument in the value in bytes."""
        arguments = ((k, *self.module.base_and_offset(name)) for k, name in enumerate(call.args))
        return tuple((k, offset) for k, owner, offset in arguments if owner == base)

    def _compute_safe_distances(self, kernel: Kernel, call: Call, old: str, new: str) -> tuple[range, ...]:
        """Return the safe distances from the value ``old`` to the value ``new``, from the times at which a call
        accesses them.

        If the kernel has dynamic sizes, only distances that are safe at all sizes are returned."""
        if kernel.func.scalars:
            return self._safe_distances_at_all_sizes(kernel, call, old, new)
        if kernel.name not in self._clocks:
            self._clocks[kernel.name] = {
                buffer.name: times for buffer, times in compute_access_times(expand_memory_calls(kernel.func)).items()
            }
        dying, starting = (self._collect_accesses_in_call(kernel, call, name) for name in (old, new))
        if not all(_may_alias(a, b) for a in dying.dtypes for b in starting.dtypes):
            return ()
        return safe_distances(starting.times.first_write, dying.times.last_touch)

    def _safe_distances_at_all_sizes(self, kernel: Kernel, call: Call, old: str, new: str) -> tuple[range, ...]:
        """Return the distances from ``old`` to ``new`` that are safe for all dynamic sizes of a kernel."""
        if kernel.name not in self._proofs:
            self._proofs[kernel.name] = UnsafeDistanceProver(
                expand_memory_calls(kernel.func), self._list_size_combinations(kernel) or {}
            )
        params, conflicts = kernel.func.params, list[UnsafeDistances]()
        for a, start in self._find_argument_positions(call, old):
            for b, other in self._find_argument_positions(call, new):
                if not _may_alias(params[a].dtype, params[b].dtype):
                    return ()
                found = self._proofs[kernel.name].find_unsafe_distances(params[a], params[b])
                conflicts += [conflict.shifted_by(start - other) for conflict in found]
        return distances_without_conflicts(conflicts, self.module.values[old].nbytes, self.module.values[new].nbytes)

    def _list_size_combinations(self, kernel: Kernel) -> dict[str, Array] | None:
        """Return all combinations of a kernel's dynamic sizes; None if there are more than
        :data:`MAX_SIZE_COMBINATIONS`.

        The result has a column for each scalar parameter. Element k of all columns is the k-th combination."""
        sizes = [size for size in self.module.sizes if size.scalar in kernel.func.scalars]
        ranges = [range(-(-s.minimum // s.step) * s.step, s.maximum + 1, s.step) for s in sizes]
        if prod(map(len, ranges)) > MAX_SIZE_COMBINATIONS:
            return None
        grid = np.meshgrid(*(np.array(each, np.int64) for each in ranges), indexing="ij")
        return {size.scalar.name: column.reshape(-1) for size, column in zip(sizes, grid, strict=True)}

    def _collect_accesses_in_call(self, kernel: Kernel, call: Call, base: str) -> _ValueAccesses:
        """Return the accesses to a value during a call. Several arguments may be views of the value."""
        size, clock, accessed_dtypes = self.module.values[base].nbytes, self._clocks[kernel.name], set()
        columns = next(iter(clock.values())).first_write.shape[1:]
        first = np.full((size, *columns), NEVER_WRITTEN, np.int64)
        last = np.full((size, *columns), NEVER_TOUCHED, np.int64)
        for position, offset in self._find_argument_positions(call, base):
            param = kernel.func.params[position]
            accessed_dtypes.add(param.dtype)
            span, width = slice(offset, offset + param.nbytes), dtypes.nbytes(param.dtype)
            np.minimum(first[span], np.repeat(clock[param.name].first_write, width, axis=0), out=first[span])
            np.maximum(last[span], np.repeat(clock[param.name].last_touch, width, axis=0), out=last[span])
        return _ValueAccesses(AccessTimes(first, last), frozenset(accessed_dtypes))


def find_safe_offsets(module: Module, overlaps: Overlaps, alive: Lifetimes) -> SafeOffsetsByPair:
    """Return the allowed distances between all pairs of values that may overlap while both are alive.

    ``alive``: indices of the first and last call that need each value of the arena.
    """
    allowed: dict[tuple[str, str], SafeOffsets] = {}
    for time, call in enumerate(module.calls):
        ending, starting = _find_dying_and_starting_values(module, call, alive, time)
        for old in ending:
            for new in starting:
                room = overlaps.safe_offsets(call, old, new) if old != new else None
                if room is not None and (
                    (old, new) not in allowed or allowed[old, new].max_shared_bytes < room.max_shared_bytes
                ):
                    # Both orders are stored, since two workspaces of a call have no order.
                    allowed[old, new], allowed[new, old] = room, room.reverse()
    return allowed


def shared_bytes(module: Module, call: Call) -> int:
    """Return the number of bytes that the results of a planned call share with its operands."""
    reads, writes = ([_arena_byte_range(module, name) for name in names] for names in (call.reads, call.writes))
    return sum(
        max(0, min(a.stop, b.stop) - max(a.start, b.start))
        for a in reads
        if a is not None
        for b in writes
        if b is not None
    )


def _arena_byte_range(module: Module, name: str) -> range | None:
    """Return the range of bytes that a value occupies in the arena; None if it is not in the arena."""
    base, offset = module.base_and_offset(name)
    start = module.plan.offsets.get(base) if module.plan is not None else None
    return None if start is None else range(start + offset, start + offset + module.values[name].nbytes)


def _find_dying_and_starting_values(
    module: Module, call: Call, alive: Lifetimes, time: int
) -> tuple[list[str], list[str]]:
    """Return two lists: the values in the arena whose lifetime ends with a call, and the values whose lifetime starts
    with it.

    Workspaces of the call are in both lists. ``time``: index of the call."""
    touched = dict.fromkeys(module.base_and_offset(name)[0] for name in (*call.reads, *call.writes, *call.workspace))
    alive_values = [name for name in touched if name in alive]
    written = {module.base_and_offset(name)[0] for name in call.writes}
    ending = [name for name in alive_values if alive[name][1] == time and name not in written]
    return ending, [name for name in alive_values if alive[name][0] == time]


def _may_alias(first_dtype: str, second_dtype: str) -> bool:
    """Test whether C allows accesses to the same memory with these two dtypes (strict aliasing)."""
    return first_dtype == second_dtype or bool({first_dtype, second_dtype} & {"int8", "uint8"})


# ---- Lifetimes of the values in the arena, their conflicts, and the demand for memory.
#
# Time is counted in calls: time k is the call of index k.

BEFORE = -1
"""Time before the first call, when the inputs are written."""


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """A value to place in memory, of ``size`` bytes at an offset that is a multiple of ``align``.

    The value is alive from call ``first`` to call ``last``, both included."""

    name: str
    size: int
    align: int
    first: int
    last: int

    def conflicts(self, other: Unit) -> bool:
        """Test whether two values are alive during a common call, so that they must not overlap without a proof."""
        return self.first <= other.last and other.first <= self.last


def is_in_arena(module: Module, name: str, *, io_in_arena: bool) -> bool:
    """Test whether a value, which is not a view, is placed in the arena."""
    storage = module.values[name].storage
    return storage in ("intermediate", "workspace", "state") or (io_in_arena and storage in ("input", "output"))


def compute_lifetimes(module: Module, *, io_in_arena: bool) -> dict[str, tuple[int, int]]:
    """Return the indices of the first and last call that need each value of the arena.

    A use of a view counts as a use of the value that it views. Inputs and state are alive before the first call
    (:data:`BEFORE`), outputs and state after the last call (time ``len(module.calls)``)."""
    end = len(module.calls)
    spans: dict[str, tuple[int, int]] = {}

    def extend_lifetime(name: str, time: int) -> None:
        base, _ = module.base_and_offset(name)
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
    """Memory planning problem: the values to place (units), and the distances at which they may overlap.

    ``allowed_distances[unit][other]``: the allowed distances from ``other`` to ``unit``, for conflicting units (alive
    during a common call) that may overlap. All other conflicting units must not overlap. ``limit``: placements of at
    least this number of bytes are rejected."""

    units: tuple[Unit, ...]
    allowed_distances: Mapping[Unit, Mapping[Unit, SafeOffsets]]
    limit: float = inf


def make_demand(units: tuple[Unit, ...], overlapping: SafeOffsetsByPair = MappingProxyType({})) -> Demand:
    """Create the planning problem of placing ``units`` in memory.

    ``overlapping``: allowed distances of the pairs of units that may overlap although they conflict, by names, in both
    orders. All other units that conflict must not overlap."""
    named, distances_to = {unit.name: unit for unit in units}, {unit: dict[Unit, SafeOffsets]() for unit in units}
    for (other, name), room in overlapping.items():
        distances_to[named[name]][named[other]] = room
    return Demand(units, distances_to)


def count_conflicting_bytes(demand: Demand) -> dict[Unit, int]:
    """Return for each unit the total bytes of the other units that it conflicts with (alive during a common call)."""
    found = _sum_over_conflicts(demand, np.array([unit.size for unit in demand.units], np.int64))
    return dict(zip(demand.units, found.tolist(), strict=True))


def count_conflicts(demand: Demand) -> int:
    """Count the pairs of units (values to place in memory) that are alive during a common call."""
    return int(_sum_over_conflicts(demand, np.ones(len(demand.units), np.int64)).sum()) // 2


def _sum_over_conflicts(demand: Demand, weights: Array) -> Array:
    """Return for each unit the sum of ``weights`` over all other units that it conflicts with.

    A unit conflicts with all units that begin before it ends, except those that end before it begins.
    """
    first, last = (
        np.array(times, np.int64) for times in ([u.first for u in demand.units], [u.last for u in demand.units])
    )
    started_before, ended_before = (np.append(0, np.cumsum(weights[np.argsort(times)])) for times in (first, last))
    late, early = np.searchsorted(np.sort(first), last, side="right"), np.searchsorted(np.sort(last), first)
    return np.asarray(started_before[late] - ended_before[early] - weights)


Placement = dict[Unit, int]


def placement_byte_count(placement: Placement) -> int:
    """Return the bytes of memory that a placement needs: the end of its highest unit."""
    return max((at + unit.size for unit, at in placement.items()), default=0)


def demand_of_module(module: Module, overlaps: Overlaps, *, io_in_arena: bool) -> Demand:
    """Return the demand for memory of a module: the values in its arena, and the distances at which they may
    overlap."""
    alive = compute_lifetimes(module, io_in_arena=io_in_arena)
    values = module.values
    units = tuple(Unit(n, values[n].nbytes, values[n].align, first, last) for n, (first, last) in alive.items())
    return make_demand(units, find_safe_offsets(module, overlaps, alive))


def placement_lower_bound(demand: Demand) -> int:
    """Return a lower bound on the bytes that any placement needs: the largest number of bytes that one call needs."""
    return max(least_bytes_by_call(demand, max((unit.last for unit in demand.units), default=BEFORE) + 1), default=0)


def least_bytes_by_call(demand: Demand, call_count: int) -> list[int]:
    """Return lower bounds of the bytes needed before the first call, and by each of the first ``call_count`` calls.

    The bound of a call is the sum of the sizes of the values alive, less the most bytes that each pair of these values
    may share. It is a lower bound: a byte that three values share is subtracted for three pairs, although it saves only
    two bytes."""

    def sum_alive_sizes(sizes: Iterable[tuple[int, int, int]]) -> Array:
        """Return the sum of the sizes that are alive at each time.

        ``sizes``: triples (first time, last time, size), both times included."""
        steps = np.zeros(call_count + 3, np.int64)
        for first, last, size in sizes:
            steps[min(first, call_count) - BEFORE] += size
            steps[min(last, call_count) + 1 - BEFORE] -= size
        return np.asarray(np.cumsum(steps[: call_count + 1]))

    units = demand.units
    pairs = (
        (a, b, room) for a, near in demand.allowed_distances.items() for b, room in near.items() if a.name < b.name
    )
    shared = sum_alive_sizes(
        (max(a.first, b.first), min(a.last, b.last), room.max_shared_bytes) for a, b, room in pairs
    )
    # `before` sums the values alive when a call starts, `after` those alive when it returns. No two of these may overlap:
    # overlaps are between a value that dies with a call and one that starts with it.
    together = sum_alive_sizes((u.first, u.last, u.size) for u in units) - shared
    before = sum_alive_sizes((u.first + 1, u.last, u.size) for u in units if u.first < u.last)
    after = sum_alive_sizes((u.first, u.last - 1, u.size) for u in units if u.first < u.last)
    return [int(need) for need in np.maximum(together, np.maximum(before, after))]


def count_covered_addresses(ranges: Sequence[tuple[int, int]]) -> int:
    """Count the addresses in the union of half-open ranges (start, end)."""
    total = end = 0
    for start, stop in sorted(ranges):
        total += max(0, stop - max(start, end))
        end = max(end, stop)
    return total
