"""One option of every layer: an exact choice of the least loss under limits of flash and time.

Losses (noise of layers in few bits, ticks of schedules), bytes and cycles add up: the multiple-choice knapsack problem. Layer
by layer the sums of all choices are kept that no other choice beats in everything (Nemhauser and Ullmann's dynamic
programming, Management Science 15, 1969), so that the last ones are the Pareto front. Where they become more than :data:`MOST`,
of those whose flash and time differ by less than a step the one of the least loss stays: the choice is exact up to that step,
and limits are kept exactly.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace

from microc.base.immutable import frozen

MOST = 1 << 12
"""Sums that are kept of each layer; steps of flash, and of flash by time where both count."""


@frozen
class Option:
    """What a layer may be: ``pick`` tells which one it is, ``loss`` is to be least, ``flash`` in bytes, ``cycles`` of a run."""

    pick: int
    loss: float
    flash: int
    cycles: int


@frozen
class Point:
    """A choice for all layers, in their order, and its sums."""

    picks: tuple[int, ...]
    loss: float
    flash: int
    cycles: int

    def joined(self, option: Option) -> Point:
        """With one layer more."""
        return Point(
            (*self.picks, option.pick), self.loss + option.loss, self.flash + option.flash, self.cycles + option.cycles
        )


def front(layers: Sequence[Sequence[Option]], flash: int | None = None, cycles: int | None = None) -> tuple[Point, ...]:
    """The Pareto front of loss against flash, of choices within the limits: flash rises, loss falls. Empty if there are none.

    Time is only weighed where it is limited; elsewhere the faster of two that are equal is taken.
    """
    points = [Point((), 0.0, 0, 0)]
    for number, options in enumerate(layers):
        rest = layers[number + 1 :]
        flash_left = _limit(flash, sum(min(o.flash for o in layer) for layer in rest))
        cycles_left = _limit(cycles, sum(min(o.cycles for o in layer) for layer in rest))
        tried = [point.joined(option) for point in points for option in options]
        tried = [p for p in tried if p.flash <= flash_left and p.cycles <= cycles_left]
        timed = cycles is not None and bool(rest)
        points = _thinned(_unbeaten(tried, timed), timed)
    return tuple(points)


def front_by_time(
    layers: Sequence[Sequence[Option]], flash: int | None = None, cycles: int | None = None
) -> tuple[Point, ...]:
    """The front of loss against time: time rises, loss falls."""
    turned = [[replace(o, flash=o.cycles, cycles=o.flash) for o in options] for options in layers]
    return tuple(replace(p, flash=p.cycles, cycles=p.flash) for p in front(turned, cycles, flash))


def _limit(limit: int | None, rest: int) -> float:
    return float("inf") if limit is None else limit - rest


def _unbeaten(points: Sequence[Point], timed: bool) -> list[Point]:
    """Those that none other beats, sorted by flash. ``timed``: in flash, time and loss, else in flash and loss."""
    found: list[Point] = []
    cycles, losses = [float("-inf")], [float("inf")]  # a staircase: more cycles, less loss
    for point in sorted(points, key=lambda p: (p.flash, p.loss, p.cycles)):
        time = point.cycles if timed else 0
        place = bisect_right(cycles, time)
        if losses[place - 1] <= point.loss:
            continue
        found.append(point)
        first = bisect_left(cycles, time)
        last = first
        while last < len(losses) and losses[last] >= point.loss:
            last += 1
        cycles[first:last], losses[first:last] = [time], [point.loss]
    return found


def _thinned(points: list[Point], timed: bool) -> list[Point]:
    """At most about :data:`MOST` of them, the smallest and the fastest among them."""
    if len(points) <= MOST:
        return points
    steps = int(MOST**0.5) if timed else MOST
    cells: dict[tuple[int, int], Point] = {}
    least, fastest = min(points, key=lambda p: p.flash), min(points, key=lambda p: p.cycles)
    wide = max(p.flash for p in points) - least.flash
    long = max(p.cycles for p in points) - fastest.cycles
    for point in points:
        cell = (
            steps * (point.flash - least.flash) // max(1, wide),
            steps * (point.cycles - fastest.cycles) // max(1, long) if timed else 0,
        )
        if cell not in cells or point.loss < cells[cell].loss:
            cells[cell] = point
    kept = dict.fromkeys((least, *([fastest] if timed else ()), *cells.values()))
    return sorted(kept, key=lambda p: (p.flash, p.loss))
