# SPDX-License-Identifier: Apache-2.0
"""The process that times code on this computer: ``python -m microc.tuning.timing_process WHAT PLACE FOLDER ...``.

If WHAT is ``kernels``, the kernels of one library are timed (:mod:`microc.tuning.meters` starts this process). If it
is ``networks``, whole networks are timed (:mod:`microc.tuning.whole_network`). PLACE determines the core of the
computer. Each round times all kernels or networks once. Times include the overhead of a call from Python.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from microc.base.file_access import write_text
from microc.base.operating_system import bind_process_to_core
from microc.run.data.samples import draw_inputs
from microc.run.desktop.library import Library
from microc.tuning.meters import INPUTS_FILE, LIBRARY_FILE, OUTPUTS_FILE, TIMES_FILE

# ---- Timing of the kernels of a library. Every round times all kernels, one after another.

KERNEL_ROUNDS = 9
MIN_MEASUREMENT_SECONDS = 300e-6
"""Minimum number of seconds that the calls of one measurement take together, so that the resolution of the clock has
little effect."""


def time_kernels(process_index: int, folder: Path) -> None:
    """Run every kernel once and save its outputs; then time all kernels, and save their nanoseconds in every round."""
    library = Library(folder / LIBRARY_FILE)
    with np.load(folder / INPUTS_FILE, allow_pickle=False) as inputs:
        for position, name in enumerate(inputs.files):
            library.set_input(position, inputs[name])
    kernels = library.manifest["kernels"]
    outputs: dict[str, Any] = {}
    for number, kernel in enumerate(kernels):
        for name in kernel["outputs"]:
            _invert_output_bytes(library, name)
        library.run_kernel(number)
        outputs.update({name: library.tensor(name) for name in kernel["outputs"]})
    np.savez(folder / OUTPUTS_FILE, **outputs)
    bind_process_to_core(process_index)
    rounds = _time_rounds([_bind_kernel_call(library, number) for number in range(len(kernels))])
    write_text(folder / TIMES_FILE, json.dumps(rounds))


def _invert_output_bytes(library: Library, name: str) -> None:
    """Invert all bytes of an output, because the previous kernel may have left the correct result there."""
    output = library.tensor(name)
    library.set_tensor(name, (~output.reshape(-1).view(np.uint8)).view(output.dtype).reshape(output.shape))


def _bind_kernel_call(library: Library, kernel_number: int) -> Callable[[], None]:
    """Return a function that runs the kernel with index ``kernel_number`` of a library."""
    return lambda: library.run_kernel(kernel_number)


def _time_rounds(calls: Sequence[Callable[[], None]]) -> list[list[float]]:
    """Time all calls in every round, one after another; return the nanoseconds of each call in each round."""
    counts = [max(1, round(MIN_MEASUREMENT_SECONDS / max(_mean_seconds(call, 1), 1e-9))) for call in calls]
    calls_and_counts = tuple(zip(calls, counts, strict=True))
    return [[1e9 * _mean_seconds(call, count) for call, count in calls_and_counts] for _ in range(KERNEL_ROUNDS)]


def _mean_seconds(call: Callable[[], None], call_count: int) -> float:
    """Return the mean time in seconds of ``call_count`` calls."""
    start = time.perf_counter()
    for _ in range(call_count):
        call()
    return (time.perf_counter() - start) / call_count


# ---- Timing of whole networks. In every round each network is run as a whole, and then kernel by kernel. So the time of a
# kernel is its time after the other kernels of the network have run.

NETWORK_SECONDS = 1.0
"""Number of seconds during which new rounds are started."""
NETWORK_ROUNDS = 3
"""Minimum number of rounds."""
MIN_VISIT_SECONDS = 1e-3
"""Minimum number of seconds for which a network runs before the next network's turn. It is short enough for many
rounds, and long enough that the cache contents left by the previous network have little effect."""
NetworkTimes = tuple[float, list[float]]
"""Nanoseconds of a run of a network, and nanoseconds of each of its kernels."""


def time_networks(process_index: int, folders: Sequence[Path]) -> None:
    """Time networks alternately, in rounds. Write the nanoseconds of every network in every round to a file in the
    first folder."""
    networks = [_load_network_with_inputs(folder) for folder in folders]
    if "threads" not in networks[0].manifest["options"]:  # several threads must not share one core
        bind_process_to_core(process_index)
    counts = [_choose_runs_per_visit(network) for network in networks]
    end, rounds = time.perf_counter() + NETWORK_SECONDS, list[list[NetworkTimes]]()
    while len(rounds) < NETWORK_ROUNDS or time.perf_counter() < end:
        rounds.append([_time_visit(network, count) for network, count in zip(networks, counts, strict=True)])
    write_text(folders[0] / TIMES_FILE, json.dumps(rounds))


def _load_network_with_inputs(folder: Path) -> Library:
    """Load the library of a network from a folder, and set random inputs, which are identical for all networks."""
    library = Library(folder / LIBRARY_FILE)
    for position, array in enumerate(draw_inputs(library.inputs, np.random.default_rng(0))):
        library.set_input(position, array)
    return library


def _choose_runs_per_visit(network: Library) -> int:
    """Return the number of runs of a network that take about MIN_VISIT_SECONDS seconds."""
    network.run()
    begin = time.perf_counter()
    network.run()
    return max(1, round(MIN_VISIT_SECONDS / max(time.perf_counter() - begin, 1e-9)))


def _time_visit(network: Library, run_count: int) -> NetworkTimes:
    """Time ``run_count`` runs of the whole network, then as many runs kernel by kernel.

    Return the nanoseconds of a run, and the nanoseconds of each kernel.
    """
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
    what, place_text, *folder_names = sys.argv[1:]
    named_folders = [Path(name) for name in folder_names]
    if what == "kernels":
        time_kernels(int(place_text), *named_folders)
    else:
        time_networks(int(place_text), named_folders)
