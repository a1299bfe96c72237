"""Instruments for :class:`microc.transform.context.PassContext`: how long passes take, and what they make."""

from __future__ import annotations

import time
from pathlib import Path

from microc.graph.ir import Graph
from microc.graph.text import save


class TimingInstrument:
    """``seconds`` by pass, in the order in which they first ran; several runs of a pass add up. Verification counts in."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._start = 0.0

    def before(self, name: str, graph: Graph) -> None:
        self._start = time.perf_counter()

    def after(self, name: str, graph: Graph) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - self._start


class DumpInstrument:
    """Writes the graph into ``folder``: ``00-read`` before the first pass, then ``01-<pass>`` ... after each.

    Every dump is a ``.txt`` and a ``.npz`` that :func:`microc.graph.text.load` reads. Raises OutputError where it cannot write.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0

    def before(self, name: str, graph: Graph) -> None:
        if self._count == 0:
            self._dump("read", graph)

    def after(self, name: str, graph: Graph) -> None:
        self._dump(name, graph)

    def _dump(self, name: str, graph: Graph) -> None:
        save(graph, self.folder / f"{self._count:02}-{name}")
        self._count += 1
