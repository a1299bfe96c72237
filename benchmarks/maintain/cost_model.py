# SPDX-License-Identifier: Apache-2.0
"""The cost model against emulated counts: rank correlation and error over the kernels of many networks and schedules.

    python benchmarks/maintain/cost_model.py [--json FILE] [--cores m4,m0] [--models GLOB,GLOB] [--variants rules,plain,more rows]
    python benchmarks/maintain/cost_model.py --cycles --variants shipped [--cores m4,m7,m33,m55,pico] [--layers N]

Every network is compiled once for each variant of its schedules: as the rules choose, with those that come with the compiler,
without the core's special instructions, and with other register tiles (the rules' traces, replayed with another factor). Each
kernel is one pair: instructions as estimated and as counted. Spearman's rank correlation is over all pairs, and over the variants
of each layer alone, which is what choosing between schedules needs.

``--cycles`` compares estimated cycles with those of ``microc profile --cycles``. Errors are relative to what is counted: their
median, that which nine of ten layers do not exceed, and the worst.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.runner import boot, build_firmware
from benchmarks.tables import CORES, board_of, corpus
from microc.compiler.lowering import kernel_selection as driver_kernel
from microc.compiler.options import make_options
from microc.compiler.pipeline import compile_model
from microc.device.boards import load_board
from microc.device.client import Client
from microc.device.toolchain import read_linked_sizes
from microc.errors import MicrocError
from microc.module import Module
from microc.run.board_project import open_project
from microc.run.profile import ticks_to_instructions
from microc.run.session import Device
from microc.schedule.choose import choose_schedule
from microc.schedule.cost.cost_model import estimate
from microc.schedule.schedule import Schedule, Step, replay_trace
from microc.target import Board, Goal, Target
from microc.tir import ir
from microc.tir.lower import lower

MODELS = (
    "mlperf_*_int8.tflite", "tflm_micro_speech_int8.tflite", "gen_unet_int8.tflite", "mww_v2_vad.tflite",
    "gen_mobilenetv3s_075_64_int8.tflite", "seanet_conv__conv8.tflite", "mlperf_ad_float.tflite",
    "torch_lenet_mnist__legacy_op13.onnx", "torch_mobilenetv3_se_64__legacy_op17.onnx", "ortq_dscnn_qdq_s8_sym.onnx",
)  # fmt: skip
CHANGES: dict[str, tuple[int, Callable[[int], int]]] = {
    "fewer rows": (0, lambda n: max(1, n // 2)),
    "more rows": (0, lambda n: n + 1),
    "fewer columns": (1, lambda n: max(1, n // 2)),
    "more columns": (1, lambda n: 2 * n),
    "no unrolling": (2, lambda n: 1),
}
VARIANTS = ("rules", "shipped", "plain", *CHANGES)
CYCLES = {
    "m4": "mps2-an386",
    "m7": "mps2-an500",
    "m33": "mps2-an505",
    "m55": "mps3-an547",
    "pico": "raspberry-pi-pico",
}
"""Boards whose cycles are counted."""


@dataclass(frozen=True)
class Pair:
    """One kernel of one variant: what was estimated, what was counted, in instructions or cycles; code in bytes. ``operations``:
    estimated counts of machine operations."""

    core: str
    model: str
    variant: str
    layer: str
    op: str
    estimated: int
    counted: int
    estimated_bytes: int
    bytes: int
    operations: Mapping[str, float]

    @property
    def error(self) -> float:
        """Relative error of the estimate."""
        return self.estimated / self.counted - 1


def changed(trace: tuple[Step, ...], variant: str) -> tuple[Step, ...]:
    """A trace with the known factors of one of its splits changed: rows, columns, then the reduction, as most rules split."""
    splits = [k for k, step in enumerate(trace) if step.primitive == "split"]
    if variant == "rules" or CHANGES[variant][0] >= len(splits):
        return trace
    number, change = CHANGES[variant]
    place = splits[number]
    loop, (_, first, *rest) = trace[place].args
    return (*trace[:place], Step("split", (loop, (None, change(first), *rest))), *trace[place + 1 :])


@contextmanager
def varied(variant: str) -> Iterator[None]:
    """Schedules that replay what the rules choose, changed; the rules' own where that cannot be."""
    original = driver_kernel.candidate_schedules

    def candidates(func: ir.PrimFunc, op: str, target: Target, goal: Goal, *, low_memory: bool) -> tuple[Schedule, ...]:
        chosen = choose_schedule(original(func, op, target, goal, low_memory=low_memory), target, goal).schedule
        try:
            schedule = replay_trace(func, changed(chosen.trace, variant))
            lower(schedule.func)
        except MicrocError:
            return (chosen,)
        return (schedule,)

    driver_kernel.candidate_schedules = candidates
    driver_kernel.clear_schedule_memo()
    try:
        yield
    finally:
        driver_kernel.candidate_schedules = original
        driver_kernel.clear_schedule_memo()


def compiled(path: Path, board: Board, variant: str) -> Module:
    """The network in one variant; ``plain`` knows no special instructions, ``shipped`` is what users get."""
    options = make_options(optimize="speed", shipped=False, cache=False)  # variants are not in the keys of a cache
    if variant == "plain":
        target = replace(board.target, features=board.target.features - {"pairs", "lanes", "fma"})
        return compile_model(path, target, options)
    if variant == "shipped":
        return compile_model(path, board.target, replace(options, shipped=True))
    with varied(variant):
        return compile_model(path, board.target, options)


def timing(client: Client, ticks: Sequence[int]) -> int:
    """Ticks of a profile's call that are not the call's but the timer's, by the two calls side by side that take the least: run
    together they read it once, run alone twice, and a run counts one such call, profiled or not."""
    if len(ticks) < 2:
        return 0
    k = min(range(len(ticks) - 1), key=lambda k: ticks[k] + ticks[k + 1])
    alone = client.run(k, k).min
    around = alone + client.run(k + 1, k + 1).min - client.run(k, k + 1).min
    return ticks[k] - (alone - around)


def measure(module: Module, board: Board) -> tuple[list[int], dict[str, int]]:
    """Instructions of every call, and the size of every function (of the one that the compiler made of it, where it knows a
    parameter's value), of a firmware that runs once on zeros."""
    with boot(module, board) as running:
        sizes = {s.name.partition(".")[0]: s.size for s in running.sizes.symbols}
        ticks = running.client.profile()
        own = timing(running.client, ticks)
        return [ticks_to_instructions(board, call - own) for call in ticks], sizes


def measure_cycles(module: Module, board: Board) -> tuple[list[int], dict[str, int]]:
    """Cycles of every call, and the size of every function, of a firmware that runs once on zeros."""
    with tempfile.TemporaryDirectory(prefix="microc-") as folder:
        elf = build_firmware(module, board, Path(folder) / "project")
        sizes = {s.name.partition(".")[0]: s.size for s in read_linked_sizes(elf).symbols}
        with Device(open_project(elf.parent), cycles=True) as device:
            cycles = device.measure_kernels()[1]
    assert cycles is not None
    return list(cycles.cycles), sizes


def pairs(core: str, path: Path, variant: str, *, cycles: bool = False) -> list[Pair]:
    """All kernels of a network."""
    board = load_board(CYCLES[core]) if cycles else board_of(CORES[core])
    module = compiled(path, board, variant)
    counts, sizes = measure_cycles(module, board) if cycles else measure(module, board)
    costs = {k.name: estimate(k.func, board.target) for k in module.kernels}
    return [
        Pair(
            core=core,
            model=path.name,
            variant=variant,
            layer=call.layer,
            op=call.op,
            estimated=round(costs[call.kernel].cycles if cycles else costs[call.kernel].instructions),
            counted=count,
            estimated_bytes=costs[call.kernel].code_bytes,
            bytes=sizes.get(call.kernel, 0),
            operations=dict(costs[call.kernel].operations),
        )
        for call, count in zip(module.calls, counts, strict=True)
    ]


def ranks(values: list[float]) -> np.ndarray[Any, Any]:
    """Ranks from 0 on; equal values share the mean of theirs."""
    array = np.asarray(values, float)
    _, place, counts = np.unique(array, return_inverse=True, return_counts=True)
    last = np.cumsum(counts) - 1
    return np.asarray((last - (counts - 1) / 2)[place], float)


def spearman(a: list[float], b: list[float]) -> float:
    """Rank correlation."""
    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])


def summary(core: str, found: list[Pair]) -> dict[str, Any]:
    """What the model is worth on a core. ``regret``: counted instructions of the schedules that it would choose, over those of
    the best ones."""
    layers = defaultdict(list)
    for p in found:
        layers[p.model, p.layer, p.op].append(p)
    rivals = [ps for ps in layers.values() if len({p.counted for p in ps}) > 2]
    chosen = sum(min(ps, key=lambda p: p.estimated).counted for ps in rivals)
    errors = np.array([p.error for p in found])
    worst = found[int(np.argmax(np.abs(errors)))]
    weights = np.array([p.counted for p in found])
    return {
        "core": core,
        "kernels": len(found),
        "spearman": spearman([p.estimated for p in found], [p.counted for p in found]),
        "layers": len(rivals),
        "spearman_within_layer": float(
            np.mean([spearman([p.estimated for p in ps], [p.counted for p in ps]) for ps in rivals] or [0.0])
        ),
        "regret": chosen / max(1, sum(min(p.counted for p in ps) for ps in rivals)),
        "error": float(np.average(np.abs(errors), weights=weights)),
        "median": float(np.median(np.abs(errors))),
        "nine_of_ten": float(np.quantile(np.abs(errors), 0.9)),
        "worst": float(np.max(np.abs(errors))),
        "worst_layer": f"{worst.model} {worst.variant}: {worst.layer} ({worst.op})",
        "bias": float(np.average(errors, weights=weights)),
        "spearman_code": spearman([p.estimated_bytes for p in found if p.bytes], [p.bytes for p in found if p.bytes]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write pairs and summaries to this file")
    parser.add_argument("--cores", help="default: m4,m7,m55,m3,m0; with --cycles: m4,m7,m33,m55,pico")
    parser.add_argument("--models", default=",".join(MODELS), help="file names or patterns")
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--cycles", action="store_true", help="compare cycles instead of instructions")
    parser.add_argument("--layers", type=int, default=0, help="show the layers of the largest errors")
    options = parser.parse_args()
    folder = corpus()
    paths = [path for pattern in options.models.split(",") for path in sorted(folder.glob(f"*/{pattern}"))]
    summaries, everything = [], []
    columns = ("kernels", "spearman", "in layer", "regret", "error", "median", "9 of 10", "worst", "bias", "code")
    print(f"{'core':5}" + "".join(f"{name:>9}" for name in columns))
    for core in (options.cores or (",".join(CYCLES) if options.cycles else "m4,m7,m55,m3,m0")).split(","):
        found: list[Pair] = []
        for path in paths:
            for variant in options.variants.split(","):
                try:
                    found += pairs(core, path, variant, cycles=options.cycles)
                except MicrocError as error:
                    print(f"{path.name} {variant} on {core}: {error.what.splitlines()[0]}", file=sys.stderr)
        s = summary(core, found)
        figures = ("spearman", "spearman_within_layer", "regret", "error", "median", "nine_of_ten", "worst")
        print(
            f"{core:5}{s['kernels']:>9}{''.join(f'{s[name]:>9.3f}' for name in figures)}"
            f"{s['bias']:>+9.3f}{s['spearman_code']:>9.3f}",
            flush=True,
        )
        for p in sorted(found, key=lambda p: -abs(p.error))[: options.layers]:
            print(f"  {p.error:>+7.1%} {p.estimated:>9,} {p.counted:>9,}  {p.model} {p.variant}: {p.layer} ({p.op})")
        summaries.append(s)
        everything += found
    if options.json:
        data = {"schema_version": 1, "summaries": summaries, "pairs": [asdict(p) for p in everything]}
        options.json.write_text(json.dumps(data, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
