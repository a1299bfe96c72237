# SPDX-License-Identifier: Apache-2.0
"""Model cycles of the MLPerf Tiny networks on Cortex-M4, M7 and M55, by LLVM's scheduling models.

    python benchmarks/maintain/cycles.py [--models kws,vww] [--cores m4,m7,m55] [--optimize GOAL] [--layers] [--json FILE]

A QEMU plugin counts the executions of each instruction of one inference. The disassembly is cut into straight-line blocks
of equal count, llvm-mca gives the steady state of each block, and cycles times executions are summed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.maintain.block_cycles import (
    MCA,
    OBJDUMP,
    TRIPLES,
    model_cycles,
    parse_disassembly,
    split_blocks,
    strict_cycles,
    translate_block,
)
from benchmarks.mlperf_tiny import float_tolerance, read_reference_case, run
from benchmarks.runner import build_firmware, connect
from benchmarks.tables import CORES, INT8, board_of, network_path
from microc.compiler.options import make_options
from microc.compiler.pipeline import compile_model
from microc.device.emulators import Emulator
from microc.device.toolchain import host_compiler, run_compiler
from microc.module import Module
from microc.target import Board

PLUGIN = Path(__file__).with_name("count_executions.c")
EXIT_SECONDS = 10.0
LEFT_OUT = """The figures rank orders and choices of instructions. They are not cycles of a chip, because the model leaves out:
  branches          one issue slot each, taken or not, where a core refills its pipeline or predicts; LE takes none
  memories          no wait states, caches or bus conflicts
  library calls     memcpy, memset and others: "outside", in instructions
  Cortex-M4         LDRD takes one cycle, where Arm's manual says three: "strict" adds two
  Cortex-M7         LLVM may pair more than a chip does; "strict" adds the issue slots of a stricter rule: DSP and SIMD
                    instructions pair only as the older of two, extensions (SXTB16) count as shifted and do not pair,
                    LDRD issues alone
"""


# ---- Executions: the firmware runs under QEMU with the plugin.


@dataclass(frozen=True)
class Execution:
    """One inference on an emulated board: counts by instruction address, and the timer's instructions of all kernels."""

    module: Module
    elf: Path
    counts: Mapping[int, int]
    profiled: int
    exact: bool


def execute(path: Path, board: Board, optimize: str, folder: Path) -> Execution:
    """Compile the network at ``path``, build its firmware in ``folder``, run the first reference case."""
    module = compile_model(path, board.target, make_options(optimize=optimize))
    inputs, outputs = read_reference_case(path, module)
    elf, plugin, out = (
        build_firmware(module, board, folder / "project"),
        folder / "count_executions.so",
        folder / "counts",
    )
    run_compiler((host_compiler(), "-O2", "-shared", "-fPIC", "-o", str(plugin), str(PLUGIN)), folder)
    table = board.raw["emulator"]
    counting = {**table, "argv": [*table["argv"], "-plugin", f"{plugin},out={out}"]}
    with Emulator(replace(board, raw={**board.raw, "emulator": counting}), elf) as emulator:
        with connect(module, board, emulator, elf) as running:
            instructions, exact = run(running, inputs, outputs, float_tolerance(path))
        # The plugin writes its counts when QEMU exits by itself; close() kills it.
        emulator.execute_qmp_command("quit")
        deadline = time.monotonic() + EXIT_SECONDS
        while emulator.running and time.monotonic() < deadline:
            time.sleep(0.01)
    counts = {int(address, 16): int(n) for address, n in (line.split() for line in out.read_text().splitlines())}
    return Execution(module, elf, counts, sum(instructions), exact)


# ---- The benchmark.


@dataclass(frozen=True)
class Figures:
    """Instructions and model cycles of one inference."""

    instructions: int
    cycles: float
    strict: float


@dataclass(frozen=True)
class Row:
    """One network on one core. ``outside``: instructions that the board's timer counts in kernels beyond those of their own
    functions. ``kernels``: figures by function. ``unknown``: lines that llvm-mca does not know."""

    model: str
    core: str
    optimize: str
    exact: bool
    outside: int
    total: Figures
    kernels: Mapping[str, Figures]
    unknown: tuple[str, ...]


def measure(model: str, path: Path, board: Board, optimize: str) -> Row:
    """Execute a network once and model the cycles of its kernels."""
    cpu = board.target.cpu
    with tempfile.TemporaryDirectory(prefix="microc-") as folder:
        execution = execute(path, board, optimize, Path(folder))
        command = (OBJDUMP, "-d", "--no-show-raw-insn", f"--triple={TRIPLES[cpu]}", f"--mcpu={cpu}", str(execution.elf))
        disassembly = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    kernels = {call.kernel for call in execution.module.calls}
    # The compiler names specialised copies of a function NAME.constprop.0.
    own = [i for i in parse_disassembly(disassembly) if i.function.partition(".")[0] in kernels]
    blocks = split_blocks(own, execution.counts)
    regions = [translate_block(block) for block in blocks]
    cycles, unknown = model_cycles(cpu, regions)
    stricter = strict_cycles(cpu, regions, cycles)
    instructions, modelled, strict = Counter[str](), Counter[str](), Counter[str]()
    for block, block_cycles, strict_block_cycles in zip(blocks, cycles, stricter, strict=True):
        name = block.instructions[0].function.partition(".")[0]
        instructions[name] += block.count * len(block.instructions)
        modelled[name] += block.count * block_cycles
        strict[name] += block.count * strict_block_cycles
    return Row(
        model=model,
        core=cpu,
        optimize=optimize,
        exact=execution.exact,
        outside=execution.profiled - instructions.total(),
        total=Figures(instructions.total(), modelled.total(), strict.total()),
        kernels={name: Figures(instructions[name], modelled[name], strict[name]) for name in instructions},
        unknown=tuple(sorted(unknown)),
    )


def format_figures(figures: Figures) -> str:
    """Format figures as columns: instructions, cycles, strict cycles, and cycles of an instruction."""
    cpi = figures.cycles / max(figures.instructions, 1)
    return f"{figures.instructions:>12,} {figures.cycles:>12,.0f} {figures.strict:>12,.0f} {cpi:>5.2f}"


_HEAD = f"{'instructions':>12} {'cycles':>12} {'strict':>12} {'CPI':>5}"


def format_table(rows: Sequence[Row]) -> str:
    """Format one line for each network and core, and what the model leaves out."""
    lines = [f"{'model':10} {'core':11} {'exact':5} {_HEAD} {'outside':>9}"]
    for r in rows:
        exact = "yes" if r.exact else "NO"
        lines.append(f"{r.model:10} {r.core:11} {exact:5} {format_figures(r.total)} {r.outside:>9,}")
    unknown = sorted({line for r in rows for line in r.unknown})
    return "\n".join([*lines, *(f"not modelled: {line}" for line in unknown), "", LEFT_OUT.rstrip()])


def format_kernels(row: Row) -> str:
    """Format one line for each function, the one of most cycles first."""
    functions = sorted(row.kernels.items(), key=lambda item: -item[1].cycles)
    return "\n".join(
        [f"{_HEAD} {'%':>5}  kernel"]
        + [f"{format_figures(f)} {100 * f.cycles / row.total.cycles:5.1f}  {name}" for name, f in functions]
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=LEFT_OUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=",".join(INT8), help="such as kws,ad_float (default: all int8)")
    parser.add_argument("--cores", default="m4,m7,m55", help="of m4,m7,m55 (default: all)")
    parser.add_argument("--optimize", choices=("speed", "size", "balanced"), default="balanced")
    parser.add_argument("--layers", action="store_true", help="show every kernel")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    for program in (MCA, OBJDUMP):
        if shutil.which(program) is None:
            sys.exit(f"benchmark: {program} is not on PATH: install the Debian package llvm-19")
    cores = {name: core for name, core in CORES.items() if core.code_for in TRIPLES}
    rows = []
    for name in options.cores.split(","):
        if name not in cores:
            sys.exit(f"benchmark: --cores: no scheduling model; got {name}, expected {', '.join(cores)}")
        core = cores[name]
        for model in options.models.split(","):
            if ("float" if model.endswith("_float") else "int8") not in core.formats:
                continue
            print(f"{model} for {core.code_for} on {core.board} ...", file=sys.stderr, flush=True)
            rows.append(measure(model, network_path(model), board_of(core), options.optimize))
            if options.layers:
                print(format_kernels(rows[-1]))
    print(format_table(rows))
    if options.json:
        options.json.write_text(json.dumps({"schema_version": 1, "rows": [asdict(r) for r in rows]}, indent=2) + "\n")
    return 0 if all(r.exact for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
