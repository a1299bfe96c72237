"""Splits over categories as splits by thresholds, which is what is compiled."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from microc.dtypes import Array
from microc.errors import ModelError, UnsupportedError
from microc.ops.trees.arrays import LESS, UNORDERED, Tree

MOST_CATEGORIES = 1 << 24
MOST_NODES = 1 << 20
"""Of one tree: what is below a split over categories is there once for each run of them."""


def by_thresholds(tree: Tree, categories: Mapping[int, Array], where: str) -> Tree:
    """The same decisions by thresholds alone, for features that are whole numbers from 0 on.

    ``categories``: those that lead to the right, by nodes of the tree; others lead to the left, missing values where the node's
    mode says. A run of neighbours takes two thresholds, and a copy of what is below.
    """
    if not categories:
        return tree
    made = _Grown(tree, where)
    made.grow(categories)
    return made.tree()


class _Grown:
    def __init__(self, tree: Tree, where: str) -> None:
        self._old, self._where = tree, where
        self._rows: list[tuple[int, int, float, int]] = []  # the old node, left, threshold, mode
        self._right: list[int] = []

    def grow(self, categories: Mapping[int, Array]) -> None:
        """Nodes after their parents: (an old node, the new node that waits for it, which of its children it is)."""
        waiting: list[tuple[int, int, bool]] = [(0, -1, False)]
        while waiting:
            old, parent, is_left = waiting.pop()
            self._hang(parent, is_left)
            if self._old.left[old] < 0 or old not in categories:
                self._add(old, float(self._old.threshold[old]), int(self._old.mode[old]))
                if self._old.left[old] >= 0:
                    waiting += self._children(old, len(self._rows) - 1)
                continue
            waiting += self._chain(old, categories[old])

    def _chain(self, old: int, wanted: Array) -> list[tuple[int, int, bool]]:
        """Comparisons with the ends of the runs, one after the other; what is not less goes on, missing values to the last."""
        edges = _edges(wanted, self._where)
        missing_left = bool(self._old.mode[old] & UNORDERED)
        sides = (int(self._old.left[old]), int(self._old.right[old]))
        found = []
        for k, edge in enumerate(edges):
            last = k == len(edges) - 1
            if k:
                self._hang(len(self._rows) - 1, False)
            # Before the first edge nothing is wanted; pieces alternate from there. The last edge ends the last run.
            to_left = (k % 2 == 0) == missing_left
            self._add(old, edge, LESS | UNORDERED if last and to_left else LESS)
            found.append((sides[k % 2], len(self._rows) - 1, True))
            if last:
                found.append((sides[(k + 1) % 2], len(self._rows) - 1, False))
        return found

    def _children(self, old: int, new: int) -> list[tuple[int, int, bool]]:
        return [(int(self._old.right[old]), new, False), (int(self._old.left[old]), new, True)]

    def _hang(self, parent: int, is_left: bool) -> None:
        """The node that comes next is a child of ``parent``."""
        if parent < 0:
            return
        if is_left:
            old, _, threshold, mode = self._rows[parent]
            self._rows[parent] = (old, len(self._rows), threshold, mode)
        else:
            self._right[parent] = len(self._rows)

    def _add(self, old: int, threshold: float, mode: int) -> None:
        if len(self._rows) >= MOST_NODES:
            raise UnsupportedError(
                "splits over categories that take too many thresholds",
                where=self._where,
                hint="encode the categories as numbers, frequent ones side by side, or one column for each",
            )
        self._rows.append((old, -1, threshold, mode))
        self._right.append(-1)

    def tree(self) -> Tree:
        old, left, threshold, mode = (np.array(column) for column in zip(*self._rows, strict=True))
        return Tree(
            left,
            np.array(self._right),
            self._old.feature[old],
            threshold,
            mode,
            self._old.values[old],
            self._old.target,
        )


def _edges(wanted: Array, where: str) -> list[float]:
    """Where runs of categories begin, and where they have ended."""
    found = np.unique(wanted)
    if not len(found) or found[0] < 0:
        raise ModelError(f"a split over {len(found)} categories", where=where)
    if found[-1] >= MOST_CATEGORIES:
        raise UnsupportedError(f"a split by category {found[-1]}, expected 0..{MOST_CATEGORIES - 1}", where=where)
    breaks = np.flatnonzero(np.diff(found) > 1)
    begins, ends = np.concatenate([found[:1], found[breaks + 1]]), np.concatenate([found[breaks], found[-1:]]) + 1
    return [float(edge) for pair in zip(begins, ends, strict=True) for edge in pair]
