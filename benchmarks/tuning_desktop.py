# SPDX-License-Identifier: Apache-2.0
"""What a search finds on this computer: microseconds of a network before and after ``microc tune``, taken by turns.

    python benchmarks/tuning_desktop.py [--networks NAME,...] [--target native] [--trials 250] [--rounds 60] [--records DIR]

Networks are those of the corpus (MICROC_CORPUS or ../shared/corpus), by name, or files. Both libraries run on the same random
inputs and must give the same outputs; of each the least of many runs counts. ``DIR`` keeps what was measured, a file for each
network. Of use on a computer at rest.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from math import exp, log
from pathlib import Path

import numpy as np

import microc
from benchmarks.desktop import file_of, least
from microc.device.toolchain import native_core
from microc.run.data.samples import draw_inputs

NETWORKS = (
    "mlperf_kws_int8",
    "mlperf_vww_int8",
    "mlperf_ic_int8",
    "mlperf_ad_int8",
    "mlperf_kws_float",
    "mlperf_ic_float",
    "mlperf_vww_float",
    "torch_dscnn_kws__dynamo_op21",
    "ortq_tcn_qdq_s8",
    "torch_lenet_mnist__legacy_op13",
)


@dataclass(frozen=True)
class Row:
    """Microseconds of a run, seconds of the search, and whether the outputs agree."""

    before: float
    after: float
    seconds: float
    equal: bool


def measured(path: Path, target: str, trials: int, rounds: int, records: Path) -> Row:
    begin = time.monotonic()
    microc.tune(path, target, records=records, trials=trials)
    seconds = time.monotonic() - begin
    before, after = (microc.compile(path, target, tuned=each) for each in (None, records))
    values = draw_inputs(before.inputs, np.random.default_rng(0))
    made = [[np.asarray(each) for each in _outputs(library, values)] for library in (before, after)]
    equal = all(np.array_equal(a, b, equal_nan=True) for a, b in zip(*made, strict=True))
    found = least({"before": before.run, "after": after.run}, rounds)
    return Row(found["before"], found["after"], seconds, equal)


def _outputs(library: microc.Library, values: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    made = library(*values)
    return made if isinstance(made, tuple) else (made,)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--target", default="native", help="a core, or what this computer is (default: %(default)s)")
    parser.add_argument("--trials", type=int, default=250)
    parser.add_argument("--rounds", type=int, default=60, help="turns that the least is of (default: %(default)s)")
    parser.add_argument("--records", type=Path, default=None, metavar="DIR")
    arguments = parser.parse_args()
    target = native_core() if arguments.target == "native" else arguments.target
    print(f"for {target}\n{'network':36}{'before':>10}{'after':>10}{'ratio':>8}{'seconds':>9}  equal")
    ratios, right = [], True
    with tempfile.TemporaryDirectory() as folder:
        kept = arguments.records or Path(folder)
        kept.mkdir(parents=True, exist_ok=True)
        for name in arguments.networks.split(","):
            path = Path(name) if Path(name).is_file() else file_of(name)
            row = measured(path, target, arguments.trials, arguments.rounds, kept / f"{path.stem}.jsonl")
            ratios.append(row.after / row.before)
            right &= row.equal
            print(
                f"{path.stem:36}{row.before:>10.1f}{row.after:>10.1f}{ratios[-1]:>8.3f}{row.seconds:>9.0f}"
                f"  {'yes' if row.equal else 'NO'}",
                flush=True,
            )
    print(f"geometric mean {exp(sum(map(log, ratios)) / len(ratios)):.3f}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
