"""What the rows and columns of a product are filled up to with zeros, where several of their elements are multiplied at once."""

from __future__ import annotations

from collections.abc import Set

from microc.frozen import frozen

WORD = 4
"""Neighbours that are multiplied at once, where any are."""


@frozen
class Multiples:
    """Of a core (:func:`microc.schedule.rules.algorithms.multiples_of`); without any, a product is as large as the model says.

    - ``factors``: dtypes of two factors of which the products of :data:`WORD` neighbours are summed at once.
    - ``partly``: matrices are multiplied where they lie, though their rows end within a word.
    - ``columns``: of vectors that hold columns, the most first.
    """

    factors: Set[tuple[str, str]] = frozenset()
    partly: bool = False
    columns: tuple[int, ...] = ()

    def terms(self, depth: int, *factors: str) -> int:
        """The terms of a sum of products of two dtypes: ``depth``, and zeros up to whole words where those are multiplied."""
        return -(-depth // WORD) * WORD if factors in self.factors else depth

    def units(self, units: int) -> int:
        """Columns: ``units``, and some of zeros where these fill fewer of the widest vectors than of those without a rest."""
        if not self.columns:
            return units
        wide = next((n for n in reversed(self.columns) if n >= units), self.columns[0])
        even = next((n for n in self.columns if units % n == 0), 1)
        return -(-units // wide) * wide if -(-units // wide) < units // even else units


ONES = Multiples()
"""Nothing is filled up."""
