"""Bits for every layer under limits of a board: sensitivities, prices, the choice, and a look at what was chosen.

Prices are those of networks all of whose layers have 8, 4 or 2 bits, compiled for the board: a layer that the compiler stores
as bytes whatever its numbers are (depthwise, say) costs the same in all three, and keeps its bits. The networks that are
chosen are compiled too, since code is shared by layers in ways that prices do not know; where one is above the limit by some
bytes, the choice is repeated with fewer. What decides in the end are networks as they are after repairs: some that are
predicted to be about as good as the best are repaired and measured, and accuracy is that of repaired networks.

Where 8 bits lose more accuracy than allowed, layers may have activations of 16 bits, or stay in floats. That hardly costs
flash, but time: the choice is then the fastest one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from microc.errors import FitError
from microc.knapsack import Point
from microc.quantization.by_hand import BITS, FLOAT_BITS, WIDE_BITS, labels
from microc.quantization.repairs import Repaired
from microc.quantization.scheme import WIDE
from microc.quantization.task import Task
from microc.quantization.ways import Ways, ways_of

_TRIES = 6
"""How often a choice that is above a limit is made again."""
_CANDIDATES, _NEAR = 2, 1.5
"""How many networks are repaired and measured, of those whose noise is predicted to be at most so many times the least."""
_STEPS = 32
"""Networks of the front among which the least that keeps the accuracy is found, by bisection."""
_SHOWN = 64


def search(task: Task) -> tuple[Repaired, dict[str, Any]]:
    """The repaired network, and plain data about how it was found. FitError where no choice keeps the limits."""
    ways = ways_of(task, BITS, by_time=False)
    if task.limits.max_drop is None:
        point = _kept(task, ways, _least_noise)
    else:
        point = _kept(task, ways, _smallest)
        if point is None:
            wider = (
                (FLOAT_BITS, BITS[0]) if task.network.config.activations == WIDE else (FLOAT_BITS, WIDE_BITS, BITS[0])
            )
            ways = ways_of(task, wider, by_time=True)
            point = _kept(task, ways, _smallest)
    if point is None:
        raise _too_inaccurate(task)
    _check_ram(task, point.picks)
    return task.made(point.picks), _report(task, ways, point)


def _kept(task: Task, ways: Ways, choose: Callable[[Task, Sequence[Point]], Point | None]) -> Point | None:
    """The choice that really keeps the limits; None where ``choose`` takes none. FitError where none keeps them."""
    flash, cycles = task.limits.flash, task.limits.cycles
    for _ in range(_TRIES):
        within = ways.front(flash, cycles)
        if not within:
            break
        point = choose(task, within)
        if point is None:
            return None
        over = task.over(point.picks)
        if not any(over):
            task.made(point.picks)
            over = task.over(point.picks)
        if not any(over):
            return point
        flash = _tighter(flash, over[0], ways.base["flash"] + point.flash)
        cycles = _tighter(cycles, over[1], ways.base["estimated_cycles"] + point.cycles)
    raise _refusal(task, ways)


def _tighter(limit: int | None, over: int, predicted: int) -> int | None:
    """A limit that forbids what was predicted to cost so much, and half of what it is over: other choices may be over by less."""
    return limit if limit is None or not over else min(limit - over // 2, predicted - 1)


def _least_noise(task: Task, points: Sequence[Point]) -> Point:
    """Of points that are predicted to be about as good as the best one, that which is, repaired."""
    near = [point for point in points if point.loss <= _NEAR * points[-1].loss]
    tried = [near[k] for k in _spaced(len(near), _CANDIDATES)]
    fitting = [point for point in tried if not any(task.over(point.picks))]
    if len(fitting) < 2:
        return (fitting or tried)[-1]
    found = {point: task.measured(point.picks) for point in task.in_turn("networks", fitting)}
    return max(found, key=lambda point: found[point])


def _smallest(task: Task, points: Sequence[Point]) -> Point | None:
    """The least choice that keeps the score, by bisection: the score falls with noise. None where none does."""
    points = [points[k] for k in _spaced(len(points), _STEPS)]
    low, high, tried, most = -1, len(points) - 1, 1, 1 + (len(points) - 1).bit_length()
    task.tell("networks", 0, most)
    if not task.keeps_score(points[-1].picks):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        task.tell("networks", tried, most)
        if task.keeps_score(points[middle].picks):
            high = middle
        else:
            low = middle
        tried += 1
    task.tell("networks", most, most)
    return points[high]


def _spaced(count: int, most: int) -> list[int]:
    """At most so many of the first ``count`` numbers, evenly, the last one among them."""
    return sorted({int(k) for k in np.linspace(count - 1, 0, min(most, count))})


def _check_ram(task: Task, bits: tuple[int, ...]) -> None:
    need, room = task.cost(bits)["ram"], task.limits.ram
    if room is not None and need > room:
        raise FitError(
            f"{task.network.graph.name} needs {need} bytes of RAM, {room} are allowed ({need - room} too many)",
            where=f"{task.limits.board.name}: bits of weights hardly change RAM, that of activations is what counts",
            hint="activations of int8, a smaller input, or a smaller network",
        )


def _too_inaccurate(task: Task) -> FitError:
    least = min(task.drop(bits) for bits in task.scores)
    return FitError(
        f"the score falls by at least {least:.4f}, more than {task.limits.max_drop:g}",
        where=task.network.graph.name,
        hint="16 bits for all activations (int16), more data for calibration, or a larger drop",
    )


def _refusal(task: Task, ways: Ways) -> FitError:
    """What the least is that can be had."""
    smallest = tuple(min(layer, key=lambda o: (o.flash, o.loss)).pick for layer in ways.options)
    fastest = tuple(min(layer, key=lambda o: (o.cycles, o.loss)).pick for layer in ways.options)
    least = [
        f"{what} of at least {task.cost(bits)[key]}, {limit} allowed"
        for what, key, bits, limit in (
            ("flash", "flash", smallest, task.limits.flash),
            ("cycles", "estimated_cycles", fastest, task.limits.cycles),
        )
        if limit is not None
    ]
    inside = set(task.network.found.weights) - set(task.weights)
    return FitError(
        f"no bits for the weights of {task.network.graph.name} keep the limits: {'; '.join(least)}",
        where=task.limits.board.name,
        hint="a larger limit, a smaller network, or another board"
        + (
            "; bits of weights inside of loops are not searched, 4 bits for all weights are theirs, too"
            if inside
            else ""
        ),
    )


def _report(task: Task, ways: Ways, chosen: Point) -> dict[str, Any]:
    """Layers with their options, the front without limits, and what was measured of it, after repairs."""
    points, named = ways.front(), labels(task.network.graph, task.weights)
    shown, known = {*_spaced(len(points), _SHOWN)}, {chosen.picks, *task.scores, *task.decibels}
    return {
        "board": task.limits.board.name,
        "against": "cycles" if ways.by_time else "flash",
        "layers": [
            {
                "layer": named[name],
                "weight": name,
                "bits": bits,
                "options": [{"bits": o.pick, "noise": o.loss, "flash": o.flash, "cycles": o.cycles} for o in layer],
            }
            for name, bits, layer in zip(task.weights, chosen.picks, ways.options, strict=True)
        ],
        "front": [
            {
                "flash": ways.base["flash"] + p.flash,
                "cycles": ways.base["estimated_cycles"] + p.cycles,
                "noise": p.loss,
                "bits": list(p.picks),
                "score": task.scores.get(p.picks),
                "decibels": task.decibels.get(p.picks),
                "chosen": p.picks == chosen.picks,
            }
            for k, p in enumerate(points)
            if k in shown or p.picks in known
        ],
        "tried": len(task.made_of),
    }
