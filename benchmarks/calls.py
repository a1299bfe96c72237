# SPDX-License-Identifier: Apache-2.0
"""What a call from Python costs beside the network: ``lib(x)`` and ``lib.batch(xs)`` against the C function itself.

    python benchmarks/calls.py [MODEL ...] [--rounds 400] [--samples 1000] [--json calls.json]

Microseconds of a sample, the least of ``--rounds`` turns. ``c``: the entry point through ctypes with all pointers made before;
``call``: ``lib(x)``, its checks and a new array for every output; ``over``: the difference, which should stay below 5.
``batch``: ``lib.batch`` on ``--samples`` samples, by their number. Without MODEL the corpus' smallest networks.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np

import microc
from benchmarks.tables import corpus
from microc.base.dtypes import to_numpy
from microc.run.data.samples import draw_inputs

MODELS = ("tflm_hello_world_int8.tflite", "tflm_hello_world_float.tflite")
_TURN = 1e-4
"""Seconds of a turn: short, so that some turns are not interrupted."""


@dataclass(frozen=True)
class Row:
    """A network: microseconds of a sample by every way."""

    network: str
    c: float
    call: float
    over: float
    batch: float


def least(run: Callable[[], object], rounds: int) -> float:
    """Microseconds of a run."""
    run()
    begin = perf_counter()
    run()
    number = max(1, int(_TURN / (perf_counter() - begin)))
    best = float("inf")
    for _ in range(rounds):
        begin = perf_counter()
        for _ in range(number):
            run()
        best = min(best, (perf_counter() - begin) / number)
    return best * 1e6


def measured(path: Path, rounds: int, samples: int) -> Row:
    library = microc.compile(path, "native")
    dice = np.random.default_rng(0)
    inputs = draw_inputs(library.inputs, dice)
    outputs = [np.empty(t["shape"], to_numpy(t["dtype"])) for t in library.outputs]
    arena = np.empty(library.manifest["arena_size"] + 64, np.uint8)
    memory = ctypes.c_void_p(arena.ctypes.data + -arena.ctypes.data % 64)
    places = [(ctypes.c_void_p * max(1, len(each)))(*(a.ctypes.data for a in each)) for each in (inputs, outputs)]
    entry = ctypes.CDLL(str(library.path))
    entry.microc_reset(memory)
    c = least(partial(entry.microc_run, memory, *places), rounds)
    call = least(partial(library, *inputs), rounds)
    many = [np.stack([array] * samples) for array in inputs]
    batch = least(partial(library.batch, *many), max(3, rounds // 20)) / samples
    return Row(path.stem, c, call, call - c, batch)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL")
    parser.add_argument("--rounds", type=int, default=400, help="turns that the least is of (default: %(default)s)")
    parser.add_argument("--samples", type=int, default=1000, help="samples of a batch (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    options = parser.parse_args()
    print(f"{'network':38}{'c':>10}{'call':>10}{'over':>10}{'batch':>10}")
    rows = []
    for path in options.models or [corpus() / "tflite" / name for name in MODELS]:
        row = measured(path, options.rounds, options.samples)
        rows.append(row)
        print(f"{row.network:38}{row.c:>10.2f}{row.call:>10.2f}{row.over:>10.2f}{row.batch:>10.2f}", flush=True)
    if options.json:
        options.json.write_text(
            json.dumps({"schema_version": 1, "rows": [asdict(row) for row in rows]}, indent=2) + "\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
