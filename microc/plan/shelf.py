"""Thousands of placed units in arrays, so that the gap for one more is found without a look at each of them in Python."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from microc.dtypes import Array
from microc.plan.liveness import Placement, Unit
from microc.plan.room import Room

MANY = 1 << 8
"""Units from which arrays are faster than a list."""


class Shelf:
    """Placed units by rising offset. A row of ``spans`` each: offset, end, first call, last call, how many were placed before."""

    def __init__(self, placed: Mapping[Unit, int]) -> None:
        """With what is placed already."""
        self.placed, self.numbers = Placement(), dict[Unit, int]()
        self.spans = np.zeros((0, 5), np.int64)
        for unit, at in placed.items():
            self.put(unit, at)

    def put(self, unit: Unit, at: int) -> None:
        """One more."""
        self.placed[unit], self.numbers[unit] = at, len(self.numbers)
        row = int(np.searchsorted(self.spans[:, 0], at))
        self.spans = np.insert(self.spans, row, (at, at + unit.size, unit.first, unit.last, self.numbers[unit]), axis=0)

    def lowest_gap(self, unit: Unit, rooms: Mapping[Unit, Room]) -> int:
        """The lowest aligned offset for ``unit`` at an allowed distance from all that it conflicts with.

        Those that it may overlap, by ``rooms``, are looked at one by one; between the others there are gaps.
        """
        near = {other: room for other, room in rooms.items() if other in self.placed and other.conflicts(unit)}
        starts, ends = self._gaps(unit, [self.numbers[other] for other in near])
        offset, settled = 0, -1
        while offset != settled:
            settled = offset
            offset = max(offset, int(ends[np.searchsorted(starts, offset + unit.size)]))
            for other, room in near.items():
                below = self.placed[other]
                offset = below + room.next(offset - below)
                offset += -offset % unit.align
        return offset

    def _gaps(self, unit: Unit, without: list[int]) -> tuple[Array, Array]:
        """Where the gaps that hold ``unit`` end, and where it may begin in each; the last one is open."""
        at, end, first, last, number = self.spans.T
        beside = (first <= unit.last) & (unit.first <= last) & ~np.isin(number, without)
        begins = np.append(0, np.maximum.accumulate(end[beside]))
        begins += -begins % unit.align
        stops = np.append(at[beside], np.iinfo(np.int64).max)
        wide = stops - begins >= unit.size
        return stops[wide], begins[wide]
