"""Desktop libraries beside ONNX Runtime: microseconds of a run on one thread or several, the least of many, taken by turns.

    python benchmarks/desktop.py [--networks float,int8 | NAME,...] [--target native] [--threads 1] [--math exact] [--rounds 30]
        [--json FILE]

Seven float and seven quantised networks of the corpus (MICROC_CORPUS or ../shared/corpus), and any other .onnx file of it by
name. Random inputs, batch 1. ``ratio``: our time by that of ONNX Runtime's CPU provider, which picks its kernels by what the
machine has. ``differ``: the largest difference of outputs. ``compile``: seconds, the C compiler included, without any cache.
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
import onnxruntime
from mlperf_tiny import corpus

import microc
from microc.device.machine import native

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


def session_of(path: Path, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def inputs_of(session: onnxruntime.InferenceSession) -> dict[str, Any]:
    """Random numbers for every input; unknown extents are 1."""
    dice, made = np.random.default_rng(0), {}
    kinds = {"tensor(float)": np.float32, "tensor(int8)": np.int8, "tensor(uint8)": np.uint8, "tensor(int64)": np.int64}
    for each in session.get_inputs():
        shape = [n if isinstance(n, int) else 1 for n in each.shape]
        kind = kinds[each.type]
        small = dice.integers(0, 8, shape)
        made[each.name] = dice.normal(size=shape).astype(kind) if kind is np.float32 else small.astype(kind)
    return made


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
    session = session_of(path, threads)
    inputs = inputs_of(session)
    begin = time.perf_counter()
    library = microc.compile(
        path, target, input_shapes=_shapes(session, inputs), threads=threads, math=math, cache=False
    )
    seconds = time.perf_counter() - begin
    for name, array in inputs.items():
        library.set_input(name, array)
    wanted = session.run(None, inputs)
    library.run()
    differ = max(
        float(np.abs(library.get_output(k).astype(np.float64) - np.asarray(want, np.float64)).max())
        for k, want in enumerate(wanted)
    )
    found = least({"ours": library.run, "theirs": lambda: session.run(None, inputs)}, rounds)
    return Row(path.stem, found["ours"], found["theirs"], found["ours"] / found["theirs"], differ, seconds)


def _shapes(session: onnxruntime.InferenceSession, inputs: Mapping[str, Any]) -> dict[str, tuple[int, ...]] | None:
    """The extents of inputs that leave some open."""
    open_ = [e.name for e in session.get_inputs() if any(not isinstance(n, int) for n in e.shape)]
    return {name: inputs[name].shape for name in open_} or None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default="float,int8", help="groups or names (default: %(default)s)")
    parser.add_argument("--target", default="native", help="a core, or what this computer is (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=30, help="turns that the least is of (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="of both sides (default: %(default)s)")
    parser.add_argument("--math", choices=("exact", "fast"), default="exact", help="ours (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    options = parser.parse_args()
    target = native() if options.target == "native" else options.target
    names = [name for word in options.networks.split(",") for name in NETWORKS.get(word, (word,))]
    folder = corpus() / "onnx"
    print(f"for {target}, threads: {options.threads}, math: {options.math}")
    print(f"{'network':38}{'us':>10}{'theirs':>10}{'ratio':>8}{'differ':>10}{'compile':>9}")
    rows = []
    for name in names:
        row = measured(folder / f"{name}.onnx", target, options.rounds, options.threads, options.math)
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
