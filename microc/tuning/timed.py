"""The process that times the kernels of a library: ``python -m microc.tuning.timed PLACE FOLDER``, started by ``on_host``.

Kernels are timed interleaved, in several rounds. Each time includes the overhead of a call from Python.
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
"""Seconds of a measurement at least, so that the clock's resolution matters little."""


def main(place: int, folder: Path) -> None:
    """Run every kernel and save its outputs; then time all, and save the nanoseconds of every round."""
    library = Library(folder / LIBRARY)
    with np.load(folder / GIVEN, allow_pickle=False) as inputs:
        for position, name in enumerate(inputs.files):
            library.set_input(position, inputs[name])
    kernels = library.manifest["kernels"]
    outputs: dict[str, Any] = {}
    for number, kernel in enumerate(kernels):
        for name in kernel["outputs"]:
            _invert_output_bytes(library, name)
        library.run_kernel(number)
        outputs.update({name: library.tensor(name) for name in kernel["outputs"]})
    np.savez(folder / MADE, **outputs)
    bind_process_to_core(place)
    rounds = _time_rounds([_kernel_call(library, number) for number in range(len(kernels))])
    (folder / TAKEN).write_text(json.dumps(rounds))


def bind_process_to_core(place_index: int) -> None:
    """Bind this process to one core of the computer: the last one for place 0, the one before for place 1 ...

    If there are more places than cores, cores are shared."""
    with suppress(AttributeError, OSError):  # not every system binds a process to a core
        cores = sorted(os.sched_getaffinity(0), reverse=True)
        os.sched_setaffinity(0, {cores[place_index % len(cores)]})


def _invert_output_bytes(library: Library, name: str) -> None:
    """Invert all bytes of an output, since the previous kernel may have left the right result there."""
    output = library.tensor(name)
    library.set_tensor(name, (~output.reshape(-1).view(np.uint8)).view(output.dtype).reshape(output.shape))


def _kernel_call(library: Library, kernel_number: int) -> Callable[[], None]:
    """Return a function that runs kernel ``kernel_number`` of a library."""
    return lambda: library.run_kernel(kernel_number)


def _time_rounds(calls: Sequence[Callable[[], None]]) -> list[list[float]]:
    """Time all calls, one after the other, in every round; return nanoseconds by round and call."""
    counts = [max(1, round(LONG_ENOUGH / max(_mean_seconds(call, 1), 1e-9))) for call in calls]
    calls_and_counts = tuple(zip(calls, counts, strict=True))
    return [[1e9 * _mean_seconds(call, count) for call, count in calls_and_counts] for _ in range(ROUNDS)]


def _mean_seconds(call: Callable[[], None], call_count: int) -> float:
    """Time ``call_count`` calls; return the mean in seconds."""
    start = time.perf_counter()
    for _ in range(call_count):
        call()
    return (time.perf_counter() - start) / call_count


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
