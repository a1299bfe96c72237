"""Instruments for :class:`microc.transform.context.PassContext`: how long passes take, and what they make."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from microc.errors import OutputError
from microc.graph.file import SUFFIX, to_bytes
from microc.graph.ir import Graph
from microc.graph.text import to_text


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

    Every dump is a ``.txt`` to read and a ``.mcg`` to load (:mod:`microc.graph.file`). Raises OutputError where it cannot write.
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
        write_graph(self.folder, f"{self._count:02}-{name}", graph)
        self._count += 1


def write_graph(folder: Path, stem: str, graph: Graph) -> None:
    """A graph as a text to read and a file to load. OutputError where it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in ((f"{stem}.txt", to_text(graph).encode("ascii")), (f"{stem}{SUFFIX}", to_bytes(graph))):
            with tempfile.NamedTemporaryFile(prefix=".", dir=folder, delete=False) as file:
                file.write(data)
            os.chmod(file.name, 0o644)
            os.replace(file.name, folder / name)  # a link that has this name is replaced, not followed
    except OSError as error:
        hint = "choose another folder with --dump"
        raise OutputError(f"cannot write {stem}: {error.strerror}", where=str(folder), hint=hint) from error
