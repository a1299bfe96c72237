"""Sizes at which a network with open sizes is looked at: far apart, and nothing that it has by itself."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from microc.driver.sizes.readings import Readings
from microc.errors import UsageError
from microc.graph.ir import Graph
from microc.module import Size
from microc.tir.fit import Point

_FIRST = 19
"""The first size of a point, in steps: beyond the windows of usual kernels, whose borders would meet."""
_SCALES = (1, 3, 8, 20)
_NARROW = 5
"""Larger points are tried until every extent that varies has as many elements, behind all strides."""
_APART = 7
"""Steps between points: windows that skip by 2, 4, 8 ... see all remainders, and several results."""
_POINTS, _MANY = 5, 8
"""Points for one symbol, and for several: two more than the terms of a usual rule."""


def chosen_points(readings: Readings, largest: Graph) -> tuple[Point, ...]:
    """Sizes to look at, all of which the model can have. They grow until no extent that varies is small in any layer."""
    taken = {extent for kind in largest.types.values() for extent in kind.shape}
    found: tuple[Point, ...] = ()
    for scale in _SCALES:
        found = _scaled(readings, taken, scale) or found
        if found and _narrowest(readings, found) >= _NARROW:
            break
    if len(found) < 2:
        readings.graph(tuple(_FIRST * size.step for size in readings.sizes))  # which says why
        raise UsageError("too few sizes between the smallest and the largest", hint="give a larger bound")
    maxima = tuple(size.maximum for size in readings.sizes)
    if maxima not in found and _narrowest(readings, (maxima, *found)) >= _NARROW:
        return (*found, maxima)
    return found


def _scaled(readings: Readings, taken: set[int], scale: int) -> tuple[Point, ...]:
    """Points of larger and larger sizes; of small ones, where the model cannot have others."""
    wanted = _POINTS if len(readings.sizes) == 1 else _MANY
    usual = [_usual(size, taken, wanted, _FIRST * scale + 16 * k) for k, size in enumerate(readings.sizes)]  # far apart
    rare = [usual[k] + _small(size) for k, size in enumerate(readings.sizes)]
    found: dict[Point, None] = {}
    for point in (*_spread(usual), *_spread(rare if scale == 1 else usual)):
        if readings.asked(point) is not None:
            found[point] = None
        if len(found) == wanted:
            return tuple(found)
    return tuple(found) if scale == 1 else ()


def _narrowest(readings: Readings, points: Sequence[Point]) -> int:
    """The smallest extent that differs between the points."""
    kinds = [graph.types for graph in map(readings.asked, points) if graph is not None]
    columns = (zip(*(k[name].shape for k in kinds), strict=False) for name in kinds[0] if all(name in k for k in kinds))
    return min((min(column) for rows in columns for column in rows if len(set(column)) > 1), default=_NARROW)


def _usual(size: Size, taken: set[int], wanted: int, first: int) -> list[int]:
    """Sizes of one symbol to look at: large ones that the model does not use, those within the bound at first."""
    large = (size.step * k for k in range(first, first + 64 * _APART * wanted, _APART))
    return [n for n in large if n not in taken][: 2 * wanted]


def _small(size: Size) -> list[int]:
    """Other sizes of one symbol, where the model cannot have usual ones."""
    found = [n for n in range(size.maximum, max(size.minimum, 2) - 1, -1) if n % size.step == 0]
    return found[: 4 * _MANY]


def _spread(columns: Sequence[Sequence[int]]) -> Iterator[Point]:
    """Combinations of sizes in which no symbol follows from another: the columns in shuffled orders, again and again."""
    shuffle = random.Random(0).shuffle
    if len(columns) == 1:
        yield from ((n,) for n in columns[0])
        return
    for _ in range(4):
        orders = [list(column) for column in columns]
        for order in orders:
            shuffle(order)
        yield from zip(*orders, strict=False)
