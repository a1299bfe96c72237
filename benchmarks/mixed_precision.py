# SPDX-License-Identifier: Apache-2.0
"""Mixed precision: weights of 8 bits, of 4, and of whichever keep a limit of flash between the two.

    python benchmarks/mixed_precision.py nets/ [--networks cnn,dscnn] [--share 0.5] [--board nucleo-l476rg] [--json rows.json]

Networks and samples are those of benchmarks/quantisation.py (``corpus``: keyword spotting). ``flash`` is that of the firmware;
``noise`` the squared error of the outputs over the square of the float network's, in front of a last softmax, on the samples to
test with; ``of 4 bits``: how much of 4 bits' noise is left.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import microc
from benchmarks.quantisation import Judged, networks
from benchmarks.quantisers import by_microc
from microc.quantization.repairs import Attempt, Trial


@dataclass(frozen=True)
class Row:
    """A network with weights of some bits. ``drop``: points below float."""

    network: str
    weights: str
    flash: int
    noise: float
    score: float
    drop: float


def rows(judged: Judged, board: str, share: float) -> Iterator[Row]:
    """With 8 bits, with 4, and with a limit of flash that is by ``share`` from the latter to the former."""
    path, samples = judged.path, judged.samples
    reached = samples.score(by_microc(path, samples.x_test))

    def row(name: str, **options: Any) -> Row:
        found = microc.quantize(path, samples.x_cal, board=board, **options)
        flash = microc.compile(found.graph, board=board).report()["flash"]
        score = samples.score(by_microc(found.graph, samples.x_test))
        shape = found.float_graph.types[found.float_graph.inputs[0]].shape
        trial = Trial(found.float_graph, Attempt(found.recipe, found.biases))
        decibels = trial.decibels([(x.reshape(shape),) for x in samples.x_test])
        return Row(path.stem, name, flash, 10 ** (-decibels / 10), score, reached - score)

    ends = row("8", weights=8), row("4", weights=4)
    yield from ends
    limit = round(ends[1].flash + share * (ends[0].flash - ends[1].flash))
    yield row("mixed", flash=limit)


def line(row: Row, of: float | None = None) -> str:
    share = "" if of is None else f"{of:12.2f}"
    return f"{row.network:18} {row.weights:6}{row.flash:>9,}{row.noise:12.6f}{row.score:9.2f}{row.drop:7.2f}{share}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="float networks and their samples, or corpus")
    parser.add_argument("--networks", default="", help="such as cnn,lstm (default: all of the folder)")
    parser.add_argument(
        "--share", type=float, default=0.5, help="of the flash between 4 and 8 bits (default: %(default)s)"
    )
    parser.add_argument("--board", default="nucleo-l476rg", help="(default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    options = parser.parse_args()
    wanted = options.networks.split(",") if options.networks else []
    print(f"{'network':18} {'bits':6}{'flash':>9}{'noise':>12}{'score':>9}{'drop':>7}{'of 4 bits':>12}")
    made = []
    for judged in networks(options.folder, wanted):
        eight, four, mixed = rows(judged, options.board, options.share)
        print(f"{line(eight)}\n{line(four)}\n{line(mixed, mixed.noise / four.noise)}", flush=True)
        made += [eight, four, mixed]
    if options.json:
        options.json.write_text(json.dumps({"schema_version": 1, "rows": [asdict(r) for r in made]}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
