"""The process that times whole networks, interleaved: ``python -m microc.tuning.in_place PLACE FOLDER ...``.

:mod:`microc.tuning.whole_network` starts it. In every round each network runs as a whole, then kernel by kernel, so that a
kernel's time is its time after the others have run. Each time includes the overhead of a call from Python, the same in all
networks.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from microc.run.desktop.library import Library
from microc.run.verification import random_inputs
from microc.tuning.on_host import LIBRARY, TAKEN
from microc.tuning.timed import bind_process_to_core

SECONDS = 1.0
"""Seconds during which new rounds are started."""
ROUNDS = 3
"""Rounds at least."""
MIN_VISIT = 1e-3
"""Seconds of a visit at least: short enough for many rounds, long enough that caches left by the previous network matter
little."""
Taken = tuple[float, list[float]]
"""Nanoseconds of a run of a network, and of each of its kernels."""


def main(place: int, folders: Sequence[Path]) -> None:
    """Time networks in rounds, and write the nanoseconds of every round and network to the first folder."""
    networks = [_load_network_with_inputs(folder) for folder in folders]
    if "threads" not in networks[0].manifest["options"]:  # which are not to share a core
        bind_process_to_core(place)
    counts = [_runs_per_visit(network) for network in networks]
    end, rounds = time.perf_counter() + SECONDS, list[list[Taken]]()
    while len(rounds) < ROUNDS or time.perf_counter() < end:
        rounds.append([_time_visit(network, count) for network, count in zip(networks, counts, strict=True)])
    (folders[0] / TAKEN).write_text(json.dumps(rounds))


def _load_network_with_inputs(folder: Path) -> Library:
    """Load the library of a network in a folder, and set random inputs, which are the same for all networks."""
    library = Library(folder / LIBRARY)
    for position, array in enumerate(random_inputs(library.inputs, np.random.default_rng(0))):
        library.set_input(position, array)
    return library


def _runs_per_visit(network: Library) -> int:
    """Return how many runs of a network take MIN_VISIT seconds."""
    network.run()
    begin = time.perf_counter()
    network.run()
    return max(1, round(MIN_VISIT / max(time.perf_counter() - begin, 1e-9)))


def _time_visit(network: Library, run_count: int) -> Taken:
    """Time ``run_count`` runs of the whole network, then as many kernel by kernel.

    Return the nanoseconds of a run and of each kernel."""
    begin = time.perf_counter()
    for _ in range(run_count):
        network.run()
    whole = time.perf_counter() - begin
    kernels = [0.0] * len(network.manifest["kernels"])
    for _ in range(run_count):
        for number in range(len(kernels)):
            begin = time.perf_counter()
            network.run_kernel(number)
            kernels[number] += time.perf_counter() - begin
    return 1e9 * whole / run_count, [1e9 * each / run_count for each in kernels]


if __name__ == "__main__":
    main(int(sys.argv[1]), [Path(each) for each in sys.argv[2:]])
