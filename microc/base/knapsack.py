# SPDX-License-Identifier: Apache-2.0
"""Choose one option for every layer such that the total loss is least under limits of flash and time (multiple-choice
knapsack problem).

Losses (quantisation noise, or time of schedules), bytes and cycles of layers are added up. The algorithm is the
dynamic programming of Nemhauser and Ullmann (Management Science 15, 1969). It goes from layer to layer and keeps
only the partial selections that no other partial selection beats in flash, time and loss; those after the last layer
are the Pareto front. If there are more than :data:`MAX_SUMS`, they are sorted into cells of a grid over flash and
time, and each cell keeps the selection of least loss. The result is then optimal up to the size of a cell. The
limits are always respected exactly."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace

from microc.base.immutable import frozen

MAX_SUMS = 1 << 12
"""Most partial selections kept after each layer. It is the number of cells of the grid over flash, or over flash and
time if time is limited."""


@frozen
class LayerOption:
    """One of the options of a layer. A selection contains exactly one option for each layer.

    ``pick`` identifies the option. ``loss`` is minimised. ``flash`` is in bytes, ``cycles`` is the number of cycles
    of one run."""

    pick: int
    loss: float
    flash: int
    cycles: int


@frozen
class Selection:
    """A selection of one option for each of the first layers, in their order, with the totals of loss, flash and
    cycles."""

    picks: tuple[int, ...]
    loss: float
    flash: int
    cycles: int

    def append(self, option: LayerOption) -> Selection:
        """Return this selection extended by an option of the next layer."""
        return Selection(
            (*self.picks, option.pick), self.loss + option.loss, self.flash + option.flash, self.cycles + option.cycles
        )


def pareto_front(
    layers: Sequence[Sequence[LayerOption]], max_flash: int | None = None, max_cycles: int | None = None
) -> tuple[Selection, ...]:
    """Return the Pareto front of loss against flash among the selections within the limits, in order of rising flash
    and falling loss.

    ``max_flash``: limit in bytes. ``max_cycles``: limit of the cycles of a run. None means unlimited. The front is
    empty if no selection is within the limits. Cycles are a criterion only if they are limited; else they only break
    ties."""
    points = [Selection((), 0.0, 0, 0)]
    for number, options in enumerate(layers):
        rest = layers[number + 1 :]
        # What the remaining layers need at least bounds the sums so far: choices that cannot be completed are dropped at
        # once.
        flash_left = _limit_left_for_chosen_layers(max_flash, sum(min(o.flash for o in layer) for layer in rest))
        cycles_left = _limit_left_for_chosen_layers(max_cycles, sum(min(o.cycles for o in layer) for layer in rest))
        candidates = [point.append(option) for point in points for option in options]
        candidates = [p for p in candidates if p.flash <= flash_left and p.cycles <= cycles_left]
        timed = max_cycles is not None and bool(rest)
        points = _thin_out_selections(_drop_dominated_selections(candidates, timed), timed)
    return tuple(points)


def pareto_front_by_time(
    layers: Sequence[Sequence[LayerOption]], max_flash: int | None = None, max_cycles: int | None = None
) -> tuple[Selection, ...]:
    """Return the Pareto front of loss against cycles among the selections within the limits, in order of rising cycles
    and falling loss.

    ``max_flash``: limit in bytes. ``max_cycles``: limit of the cycles of a run. None means unlimited."""
    # The front algorithm orders by flash; with flash and cycles exchanged it orders by time.
    swapped = [[replace(o, flash=o.cycles, cycles=o.flash) for o in options] for options in layers]
    return tuple(replace(p, flash=p.cycles, cycles=p.flash) for p in pareto_front(swapped, max_cycles, max_flash))


def _limit_left_for_chosen_layers(limit: int | None, needed_by_remaining_layers: int) -> float:
    """Return the bytes or cycles that a limit leaves for the layers chosen so far; infinity without a limit.

    ``needed_by_remaining_layers``: least bytes or cycles that the remaining layers need."""
    return float("inf") if limit is None else limit - needed_by_remaining_layers


def _drop_dominated_selections(selections: Sequence[Selection], compare_time: bool) -> list[Selection]:
    """Return the selections that no other selection beats, sorted by flash.

    Selections are compared by flash, time and loss if ``compare_time``, else by flash and loss alone."""
    front_points: list[Selection] = []
    # Points come by rising flash, so only time and loss decide. The staircase holds the best loss for each time so far.
    cycles, losses = [float("-inf")], [float("inf")]
    for point in sorted(selections, key=lambda p: (p.flash, p.loss, p.cycles)):
        time = point.cycles if compare_time else 0
        position = bisect_right(cycles, time)
        if losses[position - 1] <= point.loss:
            continue
        front_points.append(point)
        first = bisect_left(cycles, time)
        last = first
        while last < len(losses) and losses[last] >= point.loss:
            last += 1
        cycles[first:last], losses[first:last] = [time], [point.loss]
    return front_points


def _thin_out_selections(selections: list[Selection], compare_time: bool) -> list[Selection]:
    """Return at most about :data:`MAX_SUMS` of the selections. The smallest and, if ``compare_time``, the fastest
    selection are always kept."""
    if len(selections) <= MAX_SUMS:
        return selections
    steps = int(MAX_SUMS**0.5) if compare_time else MAX_SUMS
    cells: dict[tuple[int, int], Selection] = {}
    least, fastest = min(selections, key=lambda p: p.flash), min(selections, key=lambda p: p.cycles)
    flash_span = max(p.flash for p in selections) - least.flash
    cycles_span = max(p.cycles for p in selections) - fastest.cycles
    for point in selections:
        cell = (
            steps * (point.flash - least.flash) // max(1, flash_span),
            steps * (point.cycles - fastest.cycles) // max(1, cycles_span) if compare_time else 0,
        )
        if cell not in cells or point.loss < cells[cell].loss:
            cells[cell] = point
    chosen = dict.fromkeys((least, *([fastest] if compare_time else ()), *cells.values()))
    return sorted(chosen, key=lambda p: (p.flash, p.loss))
