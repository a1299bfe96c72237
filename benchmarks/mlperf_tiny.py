"""The five MLPerf Tiny int8 networks on emulated Cortex-M4, M7 and M55, beside TensorFlow Lite Micro with CMSIS-NN.

    python benchmarks/mlperf_tiny.py [--json FILE] [--models kws,ad] [--boards mps2-an386] [--layers]

Instructions are counted by a board timer under QEMU's instruction clock; they are not cycles. The models come from the
corpus (MICROC_CORPUS or ../shared/corpus), the peers' figures from the folder ``peers`` beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import microc
from microc.codegen.files import write_tree
from microc.codegen.manifest import tensor_names
from microc.codegen.project import project_files
from microc.device.boards import load_board
from microc.device.client import Client
from microc.device.emulator import Emulator, instructions
from microc.device.toolchain import run_make, section_sizes
from microc.device.transport import open_transport
from microc.driver.options import Options
from microc.driver.pipeline import compile_model
from microc.module import Module

MODELS = ("kws", "vww", "ic", "ad", "strww")
BOARDS = {"mps2-an386": "cortex-m4", "mps2-an500": "cortex-m7", "mps3-an547": "cortex-m55"}
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Row:
    """One network on one core. ``*_ratio`` divides by the peer's figure; smaller is better."""

    model: str
    core: str
    exact: bool
    macs: int
    instructions: int
    arena: int
    ram: int
    code: int
    weights: int
    instructions_ratio: float | None
    arena_ratio: float | None
    ram_ratio: float | None
    code_ratio: float | None
    layers: tuple[tuple[str, int, int], ...]


def corpus() -> Path:
    """The corpus folder, or an explanation and exit code 2."""
    folder = Path(os.environ.get("MICROC_CORPUS", ROOT.parent / "shared" / "corpus"))
    if not (folder / "manifest.json").is_file():
        sys.exit("benchmark: the model corpus is absent: set MICROC_CORPUS or put it at ../shared/corpus")
    return folder


def peers(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """TFLM + CMSIS-NN by (model, core); empty where the figures are absent."""
    path = folder.parent / "peers" / "tflm.json"
    if not path.is_file():
        return {}
    rows = json.loads(path.read_text())
    return {(r["model"], r["core"]): r for r in rows if r["peer"] == "tflm-cmsis-nn"}


def measure(path: Path, board_name: str, peer: dict[str, Any] | None) -> Row:
    """Compile, build, boot, run the first reference case, read the profile."""
    board = load_board(board_name)
    module = compile_model(path, board.target, Options())
    assert module.plan is not None
    with np.load(path.with_suffix(".npz")) as data:
        inputs = [data[f"case0_in{i}"] for i in range(len(module.inputs))]
        outputs = [data[f"case0_out{i}"] for i in range(len(module.outputs))]
    with tempfile.TemporaryDirectory(prefix="microc-") as folder:
        project = Path(folder) / "project"
        write_tree(project, project_files(module, board, microc.__version__))
        run_make(project)
        sizes = section_sizes(project / "firmware.elf")
        with Emulator(board, project / "firmware.elf") as emulator, Client(open_transport(emulator.url)) as client:
            ticks, exact = run(module, client, inputs, outputs)
            stack = client.stats().stack_bytes
    counts = [instructions(board, t) for t in ticks]
    total, ram, code = sum(counts), sizes.ram + stack, sizes.flash - module.const_bytes
    return Row(
        model=path.stem.removeprefix("mlperf_").removesuffix("_int8"),
        core=BOARDS[board_name],
        exact=exact,
        macs=module.nominal_macs,
        instructions=total,
        arena=module.plan.size,
        ram=ram,
        code=code,
        weights=module.const_bytes,
        instructions_ratio=total / peer["instructions"] if peer else None,
        arena_ratio=module.plan.size / peer["arena_bytes"] if peer else None,
        ram_ratio=ram / peer["ram_total_bytes"] if peer else None,
        code_ratio=code / peer["code_bytes"] if peer else None,
        layers=tuple((call.layer, call.macs, n) for call, n in zip(module.calls, counts, strict=True)),
    )


def run(module: Module, client: Client, inputs: list[Any], outputs: list[Any]) -> tuple[tuple[int, ...], bool]:
    """Ticks of every kernel, and whether the outputs are bit-exact."""
    names = tensor_names(module)
    client.hello()
    client.expect(module.fingerprint)
    for name, array in zip(module.inputs, inputs, strict=True):
        client.write_tensor(names.index(name), array.tobytes())
    ticks = client.profile()
    got = [client.read_tensor(names.index(name)) for name in module.outputs]
    return ticks, all(g == o.tobytes() for g, o in zip(got, outputs, strict=True))


def table(rows: list[Row]) -> str:
    """The rows as text; ratios to TFLM + CMSIS-NN in brackets."""

    def cell(number: int, ratio: float | None) -> str:
        return f"{number:>12,} ({ratio:.2f})" if ratio is not None else f"{number:>12,}"

    lines = [
        f"{'model':6} {'core':11} {'exact':5} {'instructions':>19} {'/MAC':>5} "
        f"{'arena':>19} {'RAM':>19} {'code':>19} {'weights':>9}"
    ]
    for r in rows:
        lines.append(
            f"{r.model:6} {r.core:11} {'yes' if r.exact else 'NO':5} {cell(r.instructions, r.instructions_ratio):>19} "
            f"{r.instructions / r.macs:5.2f} {cell(r.arena, r.arena_ratio):>19} {cell(r.ram, r.ram_ratio):>19} "
            f"{cell(r.code, r.code_ratio):>19} {r.weights:>9,}"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--boards", default=",".join(BOARDS))
    parser.add_argument("--layers", action="store_true", help="show instructions per MAC of every layer")
    options = parser.parse_args()
    folder = corpus()
    known = peers(folder)
    rows = []
    for board in options.boards.split(","):
        for model in options.models.split(","):
            path = folder / "tflite" / f"mlperf_{model}_int8.tflite"
            print(f"{model} on {board} ...", file=sys.stderr, flush=True)
            rows.append(measure(path, board, known.get((path.stem, BOARDS[board]))))
            if options.layers:
                for layer, macs, count in rows[-1].layers:
                    print(f"{count:>12,} {count / macs if macs else 0:6.2f} {layer[:90]}")
    print(table(rows))
    if options.json:
        options.json.write_text(json.dumps({"schema_version": 1, "rows": [asdict(r) for r in rows]}, indent=2) + "\n")
    return 0 if all(r.exact for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
