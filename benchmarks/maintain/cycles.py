# SPDX-License-Identifier: Apache-2.0
"""Model cycles of the MLPerf Tiny networks on Cortex-M, as ``microc profile --cycles`` counts them, and by stricter rules.

python benchmarks/maintain/cycles.py [--models kws,vww] [--cores m4,m7,m55] [--optimize GOAL] [--layers] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks.mlperf_tiny import float_tolerance, read_reference_case, run
from benchmarks.runner import build_firmware, connect
from benchmarks.tables import CORES, INT8, board_of, network_path
from microc.compiler.options import make_options
from microc.compiler.pipeline import compile_model
from microc.device.emulators import Emulator
from microc.errors import MicrocError
from microc.run.arm_cycles import (
    TRIPLES,
    count_executions,
    disassemble,
    model_cycles,
    require_cycle_source,
    schedule_regions,
    split_blocks,
    translate_block,
)
from microc.run.board_project import open_project
from microc.target import Board

LEFT_OUT = """The figures rank orders and choices of instructions. They are not cycles of a chip, because the model leaves out:
  branches          one issue slot each, taken or not, where a core refills its pipeline or predicts; LE takes none
  memories          no wait states, caches or bus conflicts
  Cortex-M4, M33    divisions of integers take one cycle, where Arm's manual says two to twelve
  Cortex-M7         LLVM may pair more than a chip does; "strict" adds the issue slots of a stricter rule: DSP and SIMD
                    instructions pair only as the older of two, extensions (SXTB16) count as shifted and do not pair,
                    LDRD issues alone
"""


# ---- Strict cycles: what a core may take beyond LLVM's model.

_DSP = re.compile(
    r"smla(?!l$)|smul(?!l$)|sml[ds]|smm|smua|smus|umaal|pkh|sel|usad"
    r"|[su]sat|qd?add|qd?sub|(s|u|q|sh|uh|uq)(add8|add16|sub8|sub16|asx|sax)"
)
"""Products of halfwords, high products, saturation and SIMD; SMLAL and SMULL are none of these."""
_EXTENSION = re.compile(r"[su]xta?[bh]")
_NO_RESULT = re.compile(r"(str|vstr|stm|cmp|cmn|tst|teq|nop|push)")
_TWO_RESULTS = re.compile(r"(ldrd|[su]mull|[su]mlal|smlsld|umaal)")
_LOADED = re.compile(r"(ldr(?:\.w)? )(\w+)")
_REGISTER = re.compile(r"\b(?:[rsd]\d+|lr|sp)\b")


def mnemonic_of(line: str) -> str:
    """Return the mnemonic of an assembly line without its width (``.w``)."""
    return line.partition(" ")[0].partition(".")[0]


def is_strict_pair(older: str, younger: str) -> bool:
    """Test whether the stricter rule of Cortex-M7 lets two instructions issue in one cycle."""
    names = mnemonic_of(older), mnemonic_of(younger)
    return not any(name == "ldrd" or _EXTENSION.match(name) for name in names) and not _DSP.match(names[1])


def is_dependent(older: str, younger: str) -> bool:
    """Test whether the younger instruction names a register that the older one writes."""
    registers, name = _REGISTER.findall(older), mnemonic_of(older)
    count = 0 if _NO_RESULT.match(name) else 2 if _TWO_RESULTS.match(name) else 1
    written = set(registers[:count])
    if base := re.search(r"\[(\w+)[^]]*\](!|, #)", older):
        written.add(base[1])
    return not written.isdisjoint(_REGISTER.findall(younger))


def rename_result(older: str, younger: str) -> tuple[str, str]:
    """Return two instructions, with another result of the younger one if it is a load whose result the older one reads.

    Operands of a pair are read before its results are written, so that the pair is possible, also where LLVM's order of
    retirement separates both."""
    result = _LOADED.match(younger)
    if result is None or result[2] not in _REGISTER.findall(older) or result[2] in _REGISTER.findall(younger)[1:]:
        return older, younger
    spare = next(f"r{n}" for n in range(8) if f"r{n}" not in _REGISTER.findall(f"{older} {younger}"))
    return older, f"{result[1]}{spare}{younger[result.end() :]}"


def count_issues(region: Sequence[str], can_pair: Callable[[str, str], bool]) -> int:
    """Count the issue slots of a region: from the oldest on, two instructions share one if they can pair."""
    slots = index = 0
    while index < len(region):
        index += 2 if index + 1 < len(region) and can_pair(region[index], region[index + 1]) else 1
        slots += 1
    return slots


def strict_cycles(cpu: str, regions: Sequence[Sequence[str]], cycles: Sequence[float]) -> list[float]:
    """Return the cycles of each region by the stricter rules of pairs on Cortex-M7; on other cores as they are.

    A region takes as many cycles more as it has issue slots more by the stricter rule than by LLVM's."""
    if cpu != "cortex-m7":
        return list(cycles)
    renamed_pairs = {rename_result(*pair) for region in regions for pair in pairwise(region)}
    pairs = sorted(renamed_pairs | {pair[::-1] for pair in renamed_pairs})
    reports, _ = schedule_regions(cpu, pairs, "-iterations=1", "-timeline", "-timeline-max-iterations=1")
    issues = {i: [t["CycleIssued"] for t in r["TimelineView"]["TimelineInfo"]] for i, r in reports.items()}
    paired = {pairs[i] for i, (older, younger) in issues.items() if older == younger}

    def can_pair(older: str, younger: str) -> bool:
        # llvm-mca retires in order: it delays a load behind a product, although it pairs them the other way round and sustains
        # a pair in each cycle. Two instructions that pair in one order therefore count as a pair in both.
        renamed = rename_result(older, younger)
        return bool({renamed, renamed[::-1]} & paired) and not is_dependent(older, younger)

    def can_pair_strictly(older: str, younger: str) -> bool:
        return is_strict_pair(older, younger) and can_pair(older, younger)

    return [
        c + max(0, count_issues(region, can_pair_strictly) - count_issues(region, can_pair))
        for c, region in zip(cycles, regions, strict=True)
    ]


# ---- The benchmark.


@dataclass(frozen=True)
class Figures:
    """Instructions and model cycles of one inference."""

    instructions: int
    cycles: float
    strict: float


@dataclass(frozen=True)
class Row:
    """One network on one core. ``kernels``: figures by layer, with the kernel's number. ``unknown``: lines that llvm-mca does
    not know."""

    model: str
    core: str
    optimize: str
    exact: bool
    total: Figures
    kernels: Mapping[str, Figures]
    unknown: tuple[str, ...]


def measure(model: str, path: Path, board: Board, optimize: str) -> Row:
    """Run the first reference case of a network, and model the cycles of its kernels."""
    cpu = board.target.cpu
    module = compile_model(path, board.target, make_options(optimize=optimize))
    inputs, outputs = read_reference_case(path, module)
    with tempfile.TemporaryDirectory(prefix="microc-") as folder:
        elf = build_firmware(module, board, Path(folder) / "project")
        with (
            count_executions(open_project(elf.parent)) as counter,
            Emulator(counter.project.board, elf) as emulator,
            connect(module, board, emulator, elf) as running,
        ):
            counter.skip()
            _, exact = run(running, inputs, outputs, float_tolerance(path))
            executions = counter.read_kernels(len(module.calls), running.client.kernels_per_request)
        disassembly = disassemble(elf, cpu)
    kernels, unknown_lines = {}, set[str]()
    for number, (call, counts) in enumerate(zip(module.calls, executions, strict=True)):
        blocks = split_blocks(disassembly, counts)
        regions = [translate_block(block) for block in blocks]
        cycles, unknown = model_cycles(cpu, regions)
        stricter = strict_cycles(cpu, regions, cycles)
        kernels[f"{number} {call.layer}"] = Figures(
            sum(counts.values()),
            sum(block.count * c for block, c in zip(blocks, cycles, strict=True)),
            sum(block.count * c for block, c in zip(blocks, stricter, strict=True)),
        )
        unknown_lines |= unknown
    columns = (sum(getattr(k, name) for k in kernels.values()) for name in ("instructions", "cycles", "strict"))
    return Row(model, cpu, optimize, exact, Figures(*columns), kernels, tuple(sorted(unknown_lines)))


def format_figures(figures: Figures) -> str:
    """Format figures as columns: instructions, cycles, strict cycles, and cycles of an instruction."""
    cpi = figures.cycles / max(figures.instructions, 1)
    return f"{figures.instructions:>12,} {figures.cycles:>12,.0f} {figures.strict:>12,.0f} {cpi:>5.2f}"


_HEAD = f"{'instructions':>12} {'cycles':>12} {'strict':>12} {'CPI':>5}"


def format_table(rows: Sequence[Row]) -> str:
    """Format one line for each network and core, and what the model leaves out."""
    lines = [f"{'model':10} {'core':11} {'exact':5} {_HEAD}"]
    for r in rows:
        exact = "yes" if r.exact else "NO"
        lines.append(f"{r.model:10} {r.core:11} {exact:5} {format_figures(r.total)}")
    unknown = sorted({line for r in rows for line in r.unknown})
    return "\n".join([*lines, *(f"not modelled: {line}" for line in unknown), "", LEFT_OUT.rstrip()])


def format_kernels(row: Row) -> str:
    """Format one line for each kernel, the one of most cycles first."""
    kernels = sorted(row.kernels.items(), key=lambda item: -item[1].cycles)
    return "\n".join(
        [f"{_HEAD} {'%':>5}  kernel"]
        + [f"{format_figures(f)} {100 * f.cycles / row.total.cycles:5.1f}  {name}" for name, f in kernels]
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=LEFT_OUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=",".join(INT8), help="such as kws,ad_float (default: all int8)")
    parser.add_argument("--cores", default="m4,m7,m55", help="of m4,m7,m33,m55 (default: m4,m7,m55)")
    parser.add_argument("--optimize", choices=("speed", "size", "balanced"), default="balanced")
    parser.add_argument("--layers", action="store_true", help="show every kernel")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    cores = {name: core for name, core in CORES.items() if core.code_for in TRIPLES}
    rows = []
    for name in options.cores.split(","):
        if name not in cores:
            sys.exit(f"benchmark: --cores: no scheduling model; got {name}, expected {', '.join(cores)}")
        core = cores[name]
        try:
            require_cycle_source(board_of(core))
        except MicrocError as error:
            sys.exit(f"benchmark: {error}")
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
