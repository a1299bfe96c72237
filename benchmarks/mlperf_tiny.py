# SPDX-License-Identifier: Apache-2.0
"""The MLPerf Tiny networks on emulated Cortex-M cores, beside TensorFlow Lite Micro.

    python benchmarks/mlperf_tiny.py [--json FILE] [--models kws,ad_float] [--cores m4,m0] [--optimize GOAL] [--ram 30K]
        [--layers]

int8 on M4, M7 and M55 against TFLM with CMSIS-NN; int8 code for Armv6-M (counted on the emulated M3) against TFLM's
portable kernels on M4; float on M4. Instructions are counted by a board timer under QEMU's instruction clock; they are
not cycles. The models come from the corpus (MICROC_CORPUS or ../shared/corpus), the peers' figures from the folder
``peers`` beside it, what we ask of ourselves from ``tables.py``.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.runner import Running, boot
from benchmarks.tables import CORES, FLOAT, INT8, PEERED, bars, board_of, network_path, peers
from microc.codegen.c.resources import stack_bound
from microc.compiler.options import make_options
from microc.compiler.pipeline import compile_model
from microc.device.toolchain import LinkedSizes
from microc.module import Module
from microc.target import Board

FIGURES = ("instructions", "arena", "ram", "code", "flash")


@dataclass(frozen=True)
class Layer:
    """One kernel's share."""

    layer: str
    op: str
    macs: int
    instructions: int
    estimated_instructions: int
    estimated_cycles: int
    rule: str
    schedule: str


@dataclass(frozen=True)
class Row:
    """One network on one core. ``ratios`` divide by ``peer``'s figures, ``most`` and ``aim`` are what we want of them.

    Bytes: ``code`` is flash less constants, ``ram`` arena, data, bss and the stack's bound (TFLM: as measured).
    """

    model: str
    core: str
    optimize: str
    exact: bool
    macs: int
    instructions: int
    arena: int
    ram: int
    code: int
    weights: int
    flash: int
    peer: dict[str, int]
    ratios: dict[str, float]
    most: dict[str, float]
    aim: dict[str, float]
    missed: tuple[str, ...]
    layers: tuple[Layer, ...]


@dataclass(frozen=True)
class Measured:
    """A network compiled, built, booted and run once."""

    module: Module
    exact: bool
    counts: tuple[int, ...]
    sizes: LinkedSizes
    stack: int


def read_reference_case(path: Path, module: Module) -> tuple[list[Any], list[Any]]:
    """Read the inputs and outputs of the first reference case of the network at ``path``."""
    with np.load(path.with_suffix(".npz")) as data:
        inputs = [data[f"case0_in{i}"] for i in range(len(module.inputs))]
        outputs = [data[f"case0_out{i}"] for i in range(len(module.outputs))]
    return inputs, outputs


def measure(path: Path, board: Board, optimize: str, ram: int | str = 0) -> Measured:
    """Compile, build, boot, run the first reference case, read the profile. ``ram``: limit of the arena, such as 30K."""
    module = compile_model(path, board.target, make_options(optimize=optimize, ram=ram))
    inputs, outputs = read_reference_case(path, module)
    with boot(module, board) as running:
        counts, exact = run(running, inputs, outputs, float_tolerance(path))
        return Measured(module, exact, tuple(counts), running.sizes, running.client.stats().stack_bytes)


def run(running: Running, inputs: list[Any], outputs: list[Any], tolerance: float) -> tuple[list[int], bool]:
    """Instructions of every kernel, and whether the outputs are those of the reference."""
    running.write_inputs(inputs)
    counts = running.count_instructions()
    return counts, all(agrees(g, o, tolerance) for g, o in zip(running.read_outputs(), outputs, strict=True))


def float_tolerance(path: Path) -> float:
    """What a float network's outputs may differ by, relative to the largest: 1e-5, since sums are taken in another order, or
    as much as the runtimes differ among themselves whose references the corpus holds."""
    manifest = json.loads((path.parents[1] / "manifest.json").read_text())
    entry = next(m for m in manifest["models"] if Path(m["file"]).name == path.name)
    others = entry["reference"].get("other_runtimes", {}).values()
    return max([1e-5, *(d for other in others for d in other.get("max_abs_diff", []))])


def agrees(got: bytes, expected: Any, tolerance: float) -> bool:
    """Equal bits of integers; floats to within a tolerance, relative to the largest."""
    if expected.dtype.kind != "f":
        return bool(got == expected.tobytes())
    array = np.frombuffer(got, expected.dtype).reshape(expected.shape)
    return bool(np.max(np.abs(array - expected)) <= tolerance * np.max(np.abs(expected)))


def row(model: str, core: str, optimize: str, found: Measured, peer: dict[str, Any] | None) -> Row:
    """The figures of a measurement beside the peer's."""
    module, sizes = found.module, found.sizes
    assert module.plan is not None
    figures = {
        "instructions": sum(found.counts),
        "arena": module.plan.size,
        "ram": sizes.static_ram + stack_bound(module),
        "code": sizes.flash - module.const_bytes,
        "flash": sizes.flash,
    }
    theirs = peer and {
        "instructions": peer["instructions"],
        "arena": peer["arena_bytes"],
        "ram": peer["ram_total_bytes"],
        "code": peer["code_bytes"],
        "flash": peer["code_bytes"] + peer["model_bytes"],
    }
    ratios = {name: figures[name] / theirs[name] for name in FIGURES} if theirs else {}
    wanted = bars(core, model)
    return Row(
        model=model,
        core=CORES[core].code_for,
        optimize=optimize,
        exact=found.exact,
        macs=module.nominal_macs,
        weights=module.const_bytes,
        peer=theirs or {},
        ratios=ratios,
        most=dict(wanted.most),
        aim=dict(wanted.aim),
        missed=tuple(name for name, bar in wanted.most.items() if ratios.get(name, 0) > bar),
        layers=tuple(
            Layer(c.layer, c.op, c.macs, n, c.instructions, c.cycles, c.rule, c.schedule)
            for c, n in zip(module.calls, found.counts, strict=True)
        ),
        **figures,
    )


def table(rows: list[Row]) -> str:
    """The rows as text. Beside a figure its ratio to the peer's, ``<`` or ``>`` the bar."""

    def cell(r: Row, name: str, width: int) -> str:
        ratio, bar = r.ratios.get(name), r.most.get(name)
        text = f"{getattr(r, name):,} "
        if ratio is None:
            return f"{text}{'':11}".rjust(width)
        against = "     " if bar is None else f"{'>' if name in r.missed else '<'}{bar:.2f}"
        return f"{text} {ratio:.2f}{against} ".rjust(width)

    widths = {"instructions": 24, "arena": 20, "ram": 20, "code": 20, "flash": 22}
    head = "".join(f"{name:>{width - 11}}{'ratio':>7}{'bar':>4}" for name, width in widths.items())
    lines = [f"{'model':10} {'core':11} {'exact':5} {'/MAC':>5}{head}"]
    for r in rows:
        cells = "".join(cell(r, name, width) for name, width in widths.items())
        lines.append(
            f"{r.model:10} {r.core:11} {'yes' if r.exact else 'NO':5} {r.instructions / r.macs:5.2f}{cells}".rstrip()
        )
    return "\n".join(lines)


def layer_table(found: Row) -> str:
    """Of every layer instructions (counted, and the cost model's estimate), its share, instructions per MAC, estimated cycles,
    operators and schedule."""
    lines = [
        f"{'instructions':>12} {'%':>5} {'/MAC':>6} {'estimate':>12} {'off by':>7} {'est. cycles':>12}  operators; schedule"
    ]
    for x in found.layers:
        share, each = 100 * x.instructions / found.instructions, x.instructions / x.macs if x.macs else 0.0
        off = 100 * (x.estimated_instructions / max(x.instructions, 1) - 1)
        guess = f"{x.estimated_instructions:>12,} {off:+6.0f}% {x.estimated_cycles:>12,}"
        lines.append(f"{x.instructions:>12,} {share:5.1f} {each:6.2f} {guess}  {x.op}; {x.rule}: {x.schedule}"[:180])
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument(
        "--models",
        default=",".join((*INT8, *FLOAT)),
        help="such as kws,ad_float (default: all); or others of the corpus by name",
    )
    parser.add_argument("--cores", default=",".join(PEERED), help="of m4,m7,m55,m0 (default: all)")
    parser.add_argument("--boards", default="", help="the same by board: mps2-an386 is m4")
    parser.add_argument("--optimize", choices=("speed", "size", "balanced"), default="balanced")
    parser.add_argument("--ram", default=0, help="limit of the arena, such as 30K")
    parser.add_argument("--layers", action="store_true", help="show every layer")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    known = peers()
    cores = [c for c in PEERED if CORES[c].board in options.boards.split(",")] or options.cores.split(",")
    rows = []
    for core in cores:
        place = CORES[core]
        for model in options.models.split(","):
            kind = "float" if model.endswith("_float") else "int8"
            if kind not in place.formats:
                continue
            path = network_path(model)
            print(f"{model} for {place.code_for} on {place.board} ...", file=sys.stderr, flush=True)
            found = measure(path, board_of(place), options.optimize, options.ram)
            rows.append(row(model, core, options.optimize, found, known.get((place.peer, path.stem, place.peer_core))))
            if options.layers:
                print(layer_table(rows[-1]))
    print(table(rows))
    if options.json:
        options.json.write_text(json.dumps({"schema_version": 2, "rows": [asdict(r) for r in rows]}, indent=2) + "\n")
    return 0 if all(r.exact for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
