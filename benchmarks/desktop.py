# SPDX-License-Identifier: Apache-2.0
"""Desktop libraries beside ONNX Runtime and LiteRT: microseconds of a run on threads, the least of many, taken by turns.

    python benchmarks/desktop.py [--networks float,int8 | NAME,...] [--target native] [--threads 1] [--math exact] [--rounds 30]
        [--json FILE]

Seven float and seven quantised networks of the corpus (MICROC_CORPUS or ../shared/corpus) as ONNX files, as many as TFLite
files (``tflite-float``, ``tflite-int8``; these need the package ai-edge-litert), and any other file of it by name. Random
inputs, batch 1. ``ratio``: our time by that of ONNX Runtime's CPU provider or of LiteRT with XNNPACK, which pick their kernels
by what the machine has. ``differ``: the largest difference of outputs. ``compile``: seconds, the C compiler included, without
any cache.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np

import microc
from benchmarks.desktop_peers import peer_of
from benchmarks.tables import corpus
from microc.device.toolchain import native_core

NETWORKS: Mapping[str, tuple[str, ...]] = {
    "float": (
        "torch_dscnn_kws__dynamo_op21",
        "torch_mobilenetv2_035_96__legacy_op17",
        "torch_resnet18lite_64__legacy_op13",
        "torch_vit_tiny_48__legacy_op13",
        "torch_mlp_ae__legacy_op13",
        "torch_lenet_mnist__legacy_op13",
        "torch_unet_seg_64__legacy_op17",
    ),
    "int8": (
        "ortq_dscnn_qdq_s8_sym",
        "ortq_mobilenetv2_qdq_s8_perch",
        "ortq_resnet18lite_qdq_u8s8_perch",
        "ortq_resnet18lite_qop_u8",
        "ortq_mlp_ae_qdq_u8",
        "ortq_tcn_qdq_s8",
        "pulsevad_2.1k_int8",
    ),
    "tflite-float": (
        "mlperf_kws_float",
        "mlperf_vww_float",
        "mlperf_ic_float",
        "mlperf_ad_float",
        "gen_dscnn_float",
        "gen_unet_float",
        "gen_lstm2_float",
    ),
    "tflite-int8": (
        "mlperf_kws_int8",
        "mlperf_vww_int8",
        "mlperf_ic_int8",
        "mlperf_ad_int8",
        "mlperf_strww_int8",
        "gen_unet_int8",
        "gen_mobilenetv3s_075_64_int8",
    ),
}


@dataclass(frozen=True)
class Row:
    """A network: microseconds of a run, ours by theirs, the largest difference, seconds of compilation."""

    network: str
    ours: float
    theirs: float
    ratio: float
    differ: float
    compile: float


def least(runs: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Microseconds of each, taken by turns so that all see the same machine; a turn is as many runs as take a millisecond."""
    number = {}
    for name, run in runs.items():
        begin = time.perf_counter()
        run()
        number[name] = max(1, int(1e-3 / (time.perf_counter() - begin)))
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, run in runs.items():
            begin = time.perf_counter()
            for _ in range(number[name]):
                run()
            best[name] = min(best[name], (time.perf_counter() - begin) / number[name] * 1e6)
    return best


def measured(path: Path, target: str, rounds: int, threads: int, math: str) -> Row:
    peer = peer_of(path, threads)
    shapes = {name: peer.inputs[name].shape for name in peer.open} or None
    begin = time.perf_counter()
    library = microc.compile(path, target, input_shapes=shapes, threads=threads, math=math, cache=False)
    seconds = time.perf_counter() - begin
    for name, array in peer.inputs.items():
        library.set_input(name, array)
    peer.run()
    wanted = peer.outputs()
    library.run()
    differ = max(
        float(np.abs(library.get_output(k).astype(np.float64) - np.asarray(want, np.float64)).max())
        for k, want in enumerate(wanted)
    )
    found = least({"ours": library.run, "theirs": peer.run}, rounds)
    return Row(path.stem, found["ours"], found["theirs"], found["ours"] / found["theirs"], differ, seconds)


def file_of(name: str) -> Path:
    """A network of the corpus by its name. Raises: SystemExit where it holds none."""
    found = [path for kind in ("onnx", "tflite") for path in (corpus() / kind).glob(f"{name}.{kind}")]
    if not found:
        raise SystemExit(f"{name}: no such network in {corpus()}")
    return found[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default="float,int8", help="groups or names (default: %(default)s)")
    parser.add_argument("--target", default="native", help="a core, or what this computer is (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=30, help="turns that the least is of (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="of both sides (default: %(default)s)")
    parser.add_argument("--math", choices=("exact", "fast"), default="exact", help="ours (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    options = parser.parse_args()
    target = native_core() if options.target == "native" else options.target
    names = [name for word in options.networks.split(",") for name in NETWORKS.get(word, (word,))]
    print(f"for {target}, threads: {options.threads}, math: {options.math}")
    print(f"{'network':38}{'us':>10}{'theirs':>10}{'ratio':>8}{'differ':>10}{'compile':>9}")
    rows = []
    for name in names:
        row = measured(file_of(name), target, options.rounds, options.threads, options.math)
        rows.append(row)
        print(
            f"{row.network:38}{row.ours:>10.1f}{row.theirs:>10.1f}{row.ratio:>8.2f}{row.differ:>10.1e}{row.compile:>9.1f}",
            flush=True,
        )
    mean = exp(sum(log(row.ratio) for row in rows) / len(rows))
    print(f"geometric mean {mean:.2f}, largest {max(row.ratio for row in rows):.2f}")
    if options.json:
        run = {"target": target, "threads": options.threads, "math": options.math, "geometric_mean": mean}
        made = {"schema_version": 1, **run, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(made, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
