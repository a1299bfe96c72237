"""The loops of a function as the cost model walks over them: how much code each is, and how much of it is executed."""

from __future__ import annotations

from microc.isa import Costs
from microc.target import Fetches

_LIBRARY = "call_"
"""What begins kinds of operations whose instructions lie in a library."""


class Nests:
    """Loops nest as they are entered. What is computed ahead of a loop counts as a part of it, as it stands beside it."""

    def __init__(self, core: Costs) -> None:
        self.core = core
        self.executed = 0.0
        self.found: list[list[Fetches]] = [[]]
        self.begun: list[tuple[float, float]] = []

    def add(self, kind: str, count: float) -> None:
        """Operations that a call executes."""
        if not kind.startswith(_LIBRARY):
            self.executed += count * self.core.length(kind)

    def enter(self, printed: float) -> None:
        """A loop begins, after so many instructions that were printed."""
        self.begun.append((printed, self.executed))
        self.found.append([])

    def leave(self, printed: float, entries: float, *, peeled: bool) -> None:
        """It ends. One that is written out is none: its iterations follow each other."""
        before, executed = self.begun.pop()
        inside = self.found.pop()
        loop = self._code(printed - before, self.executed - executed, entries, inside)
        self.found[-1] += inside if peeled else [loop]

    def function(self, printed: float) -> Fetches:
        """All of it."""
        return self._code(printed, self.executed, 1.0, self.found[0])

    def _code(self, printed: float, executed: float, entries: float, inside: list[Fetches]) -> Fetches:
        width = self.core.instruction_bytes
        return Fetches(printed * width, executed * width, entries, tuple(inside))
