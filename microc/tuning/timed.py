"""The process that times the kernels of a library: ``python -m microc.tuning.timed PLACE FOLDER``, started by ``on_host``.

Every kernel is timed in turn with all others, several rounds. Each has the time of a call from Python in it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from microc.run.desktop.library import Library
from microc.tuning.on_host import GIVEN, LIBRARY, MADE, TAKEN

ROUNDS = 9
LONG_ENOUGH = 300e-6
"""Seconds of a measurement, at least: a clock's step is little beside it."""


def main(place: int, folder: Path) -> None:
    """Run, keep the outputs; time, keep the nanoseconds of every round."""
    library = Library(folder / LIBRARY)
    with np.load(folder / GIVEN, allow_pickle=False) as given:
        for position, name in enumerate(given.files):
            library.set_input(position, given[name])
    kernels = library.manifest["kernels"]
    made: dict[str, Any] = {}
    for number, kernel in enumerate(kernels):
        for name in kernel["outputs"]:
            _spoil(library, name)
        library.run_kernel(number)
        made.update({name: library.tensor(name) for name in kernel["outputs"]})
    np.savez(folder / MADE, **made)
    bind(place)
    taken = _interleaved([_call(library, number) for number in range(len(kernels))])
    (folder / TAKEN).write_text(json.dumps(taken))


def bind(place: int) -> None:
    """Stay on one core, the last one for place 0, another for each other place; where these are more, in turn."""
    with suppress(AttributeError, OSError):  # not every system binds a process to a core
        cores = sorted(os.sched_getaffinity(0), reverse=True)
        os.sched_setaffinity(0, {cores[place % len(cores)]})


def _spoil(library: Library, name: str) -> None:
    """Change all bytes of an output, where the kernel before may have left what is right."""
    held = library.tensor(name)
    library.set_tensor(name, (~held.reshape(-1).view(np.uint8)).view(held.dtype).reshape(held.shape))


def _call(library: Library, number: int) -> Callable[[], None]:
    return lambda: library.run_kernel(number)


def _interleaved(calls: Sequence[Callable[[], None]]) -> list[list[float]]:
    """Nanoseconds of every call, in several rounds in which each has its turn."""
    counts = [max(1, round(LONG_ENOUGH / max(_seconds(call, 1), 1e-9))) for call in calls]
    turns = tuple(zip(calls, counts, strict=True))
    return [[1e9 * _seconds(call, count) for call, count in turns] for _ in range(ROUNDS)]


def _seconds(call: Callable[[], None], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
