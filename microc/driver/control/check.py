"""A check of the workspaces inside control flow, apart from what decides when they are used again.

Every value that gets a workspace has a number. As statements are written, in order, the check notes whose value lies where; a
statement that reads a workspace which holds another value is a defect. A second turn of a loop must find what the first found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from microc.errors import InternalError
from microc.tir import ir
from microc.tir.stream import Place

_EITHER = -1
"""The value that lies there depends on a condition."""


class Workspaces:
    """Whose value lies in which workspace."""

    def __init__(self) -> None:
        self.count = 0
        self.lying: dict[ir.Buffer, int] = {}
        self.reads: list[Place] = []

    def number(self) -> int:
        """A number for a new value."""
        self.count += 1
        return self.count

    def written(self, *places: Place) -> None:
        self.lying |= {place.buffer: place.owner for place in places if place.owner}

    def read(self, *places: Place) -> None:
        """InternalError where a value has been written over."""
        for place in places:
            if place.owner and self.lying.get(place.buffer) != place.owner:
                raise InternalError(
                    f"a value inside control flow is read from {place.buffer.name}, which holds another"
                )
        self.reads += [place for place in places if place.owner]

    def statement(self, reads: Iterable[Place], writes: Iterable[Place]) -> None:
        """A statement whose operands must be there until its results are."""
        reads, writes = tuple(reads), tuple(writes)
        self.written(*writes)
        self.read(*reads, *writes)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """The body of a loop: what it reads from before the loop is there for the next turn, too."""
        outer, self.reads, before = self.reads, [], self.count
        yield
        self.read(*(place for place in self.reads if place.owner <= before))
        self.reads = outer + self.reads

    @contextmanager
    def side(self, others: list[dict[ir.Buffer, int]]) -> Iterator[None]:
        """One side of a condition; ``others`` collects how the sides end."""
        before = dict(self.lying)
        yield
        others.append(self.lying)
        self.lying = before

    def joined(self, ends: list[dict[ir.Buffer, int]]) -> None:
        """Behind a condition with sides that end so."""
        buffers = {buffer for end in ends for buffer in end}
        found = {buffer: {end.get(buffer, 0) for end in ends} for buffer in buffers}
        self.lying = {buffer: owners.pop() if len(owners) == 1 else _EITHER for buffer, owners in found.items()}
