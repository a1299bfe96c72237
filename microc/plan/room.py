"""How two blocks of memory may lie to each other: apart, or overlapping at distances that are known to be safe."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from microc.dtypes import Array
from microc.frozen import frozen
from microc.tir.order import NEVER_TOUCHED, NEVER_WRITTEN
from microc.tir.ranges import Conflict

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
