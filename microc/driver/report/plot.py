"""Points in a plane as a picture: axes with round numbers, and perhaps a line."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from microc.frozen import frozen

WIDTH, HEIGHT = 520, 300
LEFT, TOP, RIGHT, BOTTOM = 52, 28, 20, 44
"""Pixels around the plot; to the left more where numbers are long."""
_DIGIT = 7
"""Pixels of a digit at 11.5 pixels of font size in the widest of the page's fonts (DejaVu Sans: 0.636 em)."""
_TICKS = 6
_MARGIN = 0.05
"""Room beside the outermost points, as a share of what they span."""


@frozen
class Point:
    """``kind``: what colours it; ``title``: all there is to say."""

    x: float
    y: float
    kind: str
    title: str


@frozen
class Tick:
    """A place on an axis in pixels, and the number there."""

    at: float
    label: str


@frozen
class Plot:
    """The picture: ``points`` in pixels, ``path`` (SVG) of a line, or empty."""

    points: tuple[Point, ...]
    path: str
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]
    labels: tuple[str, str]
    frame: tuple[int, int, int, int]
    size: tuple[int, int] = (WIDTH, HEIGHT)


def plot(points: Sequence[Point], labels: tuple[str, str], line: Sequence[tuple[float, float]] = ()) -> Plot:
    """The picture of at least one point; ``labels``: what the axes are; ``line``: where one goes through, if any."""
    y, up = _axis([point.y for point in points], HEIGHT - BOTTOM, TOP)
    left = max(LEFT, 10 + _DIGIT * max(len(tick.label) for tick in up))
    x, across = _axis([point.x for point in points], left, WIDTH - RIGHT)
    placed = tuple(Point(x(point.x), y(point.y), point.kind, point.title) for point in points)
    path = "M" + "L".join(f"{x(right):.1f} {y(top):.1f}" for right, top in line) if line else ""
    return Plot(placed, path, across, up, labels, frame=(left, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM))


def _axis(numbers: Sequence[float], start: int, end: int) -> tuple[Callable[[float], float], tuple[Tick, ...]]:
    """From numbers to pixels, and the round numbers between."""
    low, high = min(numbers), max(numbers)
    room = _MARGIN * (high - low) or max(abs(high), 1.0) / 2
    low, high = low - room, high + room

    def at(number: float) -> float:
        return start + (end - start) * (number - low) / (high - low)

    step = _round_step((high - low) / _TICKS)
    first, last = math.ceil(low / step), math.floor(high / step)
    return at, tuple(Tick(at(k * step), f"{k * step:,.10g}") for k in range(first, last + 1))


def _round_step(least: float) -> float:
    """The next of 1, 2, 5, 10, 20 ... and their tenths."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * n for n in (1, 2, 5, 10) if power * n >= least)
