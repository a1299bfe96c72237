"""A confusion matrix as a picture: true classes by row, answers by column."""

from __future__ import annotations

import math
from collections.abc import Sequence

from microc.frozen import frozen

SIDE, MARGIN = 34, 40
"""Pixels of a cell, and for the numbers of the classes."""
_HOTTEST = 5


@frozen
class Cell:
    """Samples of a true class that have an answer: where, how many, by how many more than before; ``heat`` from 0 to 5 by the
    share of the class."""

    x: int
    y: int
    count: str
    change: str
    heat: int
    right: bool
    title: str


@frozen
class Matrix:
    """The picture: its size in pixels, its cells, the numbers of the classes with their places along an edge."""

    size: int
    side: int
    cells: tuple[Cell, ...]
    classes: tuple[tuple[int, str], ...]


def matrix_of(counts: Sequence[Sequence[int]], before: Sequence[Sequence[int]] | None = None) -> Matrix:
    """The picture of counts; ``before``: earlier ones, against which every cell says how it changed."""
    cells = []
    for truth, row in enumerate(counts):
        total = max(1, sum(row))
        for answer, count in enumerate(row):
            change = count - before[truth][answer] if before else 0
            title = f"{count:,} of class {truth} answered {answer}" + (
                f", {change:+,} against before" if change else ""
            )
            cells.append(
                Cell(
                    x=MARGIN + SIDE * answer,
                    y=MARGIN + SIDE * truth,
                    count=f"{count:,}" if count else "",
                    change=f"{change:+d}" if change else "",
                    heat=math.ceil(_HOTTEST * count / total),
                    right=truth == answer,
                    title=title,
                )
            )
    places = tuple((MARGIN + SIDE * k + SIDE // 2, str(k)) for k in range(len(counts)))
    return Matrix(MARGIN + SIDE * len(counts) + 1, SIDE, tuple(cells), places)
