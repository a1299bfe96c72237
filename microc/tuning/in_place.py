"""The process that times whole networks by turns: ``python -m microc.tuning.in_place PLACE FOLDER ...``, started by ``network``.

In every round each network runs as a whole, and once more kernel by kernel, so that what a kernel takes is what it takes behind
the others. The time of a call from Python is in each: it is the same in all networks.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from microc.run.desktop.library import Library
from microc.run.verify import random_inputs
from microc.tuning.on_host import LIBRARY, TAKEN
from microc.tuning.timed import bind

SECONDS = 1.0
"""How long rounds are begun."""
ROUNDS = 3
"""As many at least."""
TURN = 1e-3
"""Seconds of a turn, at least: what a network before left in caches is little beside it."""
Taken = tuple[float, list[float]]
"""Nanoseconds of a run of a network, and of each of its kernels in a run."""


def main(place: int, folders: Sequence[Path]) -> None:
    """Run, and keep the nanoseconds of every round and network in the first folder."""
    networks = [_opened(folder) for folder in folders]
    if "threads" not in networks[0].manifest["options"]:  # which are not to share a core
        bind(place)
    counts = [_count(network) for network in networks]
    end, taken = time.perf_counter() + SECONDS, list[list[Taken]]()
    while len(taken) < ROUNDS or time.perf_counter() < end:
        taken.append([_turn(network, count) for network, count in zip(networks, counts, strict=True)])
    (folders[0] / TAKEN).write_text(json.dumps(taken))


def _opened(folder: Path) -> Library:
    """The network in a folder, on inputs that are the same for all."""
    library = Library(folder / LIBRARY)
    for position, array in enumerate(random_inputs(library.inputs, np.random.default_rng(0))):
        library.set_input(position, array)
    return library


def _count(network: Library) -> int:
    """The runs of a turn."""
    network.run()
    begin = time.perf_counter()
    network.run()
    return max(1, round(TURN / max(time.perf_counter() - begin, 1e-9)))


def _turn(network: Library, count: int) -> Taken:
    begin = time.perf_counter()
    for _ in range(count):
        network.run()
    whole = time.perf_counter() - begin
    kernels = [0.0] * len(network.manifest["kernels"])
    for _ in range(count):
        for number in range(len(kernels)):
            begin = time.perf_counter()
            network.run_kernel(number)
            kernels[number] += time.perf_counter() - begin
    return 1e9 * whole / count, [1e9 * each / count for each in kernels]


if __name__ == "__main__":
    main(int(sys.argv[1]), [Path(each) for each in sys.argv[2:]])
