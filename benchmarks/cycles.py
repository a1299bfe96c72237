"""Model cycles of the MLPerf Tiny networks on Cortex-M4, M7 and M55, by LLVM's scheduling models.

    python benchmarks/cycles.py [--models kws,vww] [--cores m4,m7,m55] [--optimize GOAL] [--layers] [--json FILE]

A QEMU plugin counts the executions of each instruction of one inference. The disassembly is cut into straight-line blocks
of equal count, llvm-mca gives the steady state of each block, and cycles times executions are summed.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from bars import CORES, INT8
from mlperf_tiny import board_of, corpus, float_tolerance, run

import microc
from microc.codegen.output_files import write_tree
from microc.codegen.project.firmware import project_files
from microc.compiler.options import make_options
from microc.compiler.pipeline import compile_model
from microc.device.client import Client
from microc.device.emulators import Emulator
from microc.device.toolchain import host_compiler, run_compiler, run_make
from microc.device.transport import open_transport
from microc.module import Module
from microc.run.profile import ticks_to_instructions
from microc.target import Board

PLUGIN = Path(__file__).with_name("count_executions.c")
MCA, OBJDUMP = "llvm-mca-19", "llvm-objdump-19"
TRIPLES = {
    "cortex-m4": "thumbv7em-none-eabi",
    "cortex-m7": "thumbv7em-none-eabi",
    "cortex-m55": "thumbv8.1m.main-none-eabi",
}
"""LLVM's triples by core; LLVM 19 has a scheduling model of each."""
ITERATIONS = 60  # of each block in llvm-mca: to fill and drain the pipeline adds some 0.1 cycles to an iteration
LEFT_OUT = """The figures rank orders and choices of instructions. They are not cycles of a chip, because the model leaves out:
  taken branches    one issue slot each; a core refills its pipeline or predicts
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
    with np.load(path.with_suffix(".npz")) as data:
        inputs = [data[f"case0_in{i}"] for i in range(len(module.inputs))]
        outputs = [data[f"case0_out{i}"] for i in range(len(module.outputs))]
    write_tree(folder / "project", project_files((module,), board, microc.__version__))
    run_make(folder / "project")
    elf, plugin, out = folder / "project/firmware.elf", folder / "count_executions.so", folder / "counts"
    run_compiler((host_compiler(), "-O2", "-shared", "-fPIC", "-o", str(plugin), str(PLUGIN)), folder)
    table = board.raw["emulator"]
    counting = {**table, "argv": [*table["argv"], "-plugin", f"{plugin},out={out}"]}
    with Emulator(replace(board, raw={**board.raw, "emulator": counting}), elf) as emulator:
        with Client(open_transport(emulator.url)) as client:
            ticks, exact = run(module, client, inputs, outputs, float_tolerance(path))
        # The plugin writes its counts when QEMU exits by itself: Emulator.close() would kill it.
        emulator.execute_qmp_command("quit")
        while emulator.running:
            time.sleep(0.01)
    counts = {int(address, 16): int(n) for address, n in (line.split() for line in out.read_text().splitlines())}
    return Execution(module, elf, counts, sum(ticks_to_instructions(board, t) for t in ticks), exact)


# ---- Blocks: the disassembly of the network's functions, cut where counts change and behind branches.


@dataclass(frozen=True)
class Instruction:
    """An instruction as llvm-objdump prints it, with one space behind the mnemonic and without comments."""

    address: int
    function: str
    text: str

    @property
    def mnemonic(self) -> str:
        return self.text.partition(" ")[0]


@dataclass(frozen=True)
class Block:
    """Consecutive instructions of a function that are executed equally often, none but the last a branch."""

    instructions: tuple[Instruction, ...]
    count: int


_FUNCTION = re.compile(r"^[0-9a-f]+ <(.+)>:$")
_INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\s+([a-z].*)$")
_CONDITIONS = "eq|ne|cs|cc|hs|lo|mi|pl|vs|vc|hi|ls|ge|lt|gt|le|al"
_BRANCH = re.compile(rf"^(b|bl|bx|blx|cbz|cbnz|tbb|tbh|b({_CONDITIONS}))(\.[nw])?$")
_LOOP_START = re.compile(r"^(wls|dls|wlstp|dlstp)(\.\d+)?$")
_LOOP_END = re.compile(r"^(le|letp)$")
_IT = re.compile(r"^it[te]{0,3}$")


def parse_disassembly(text: str) -> list[Instruction]:
    """Parse the output of ``llvm-objdump -d --no-show-raw-insn``; words of data are skipped."""
    instructions, function = [], ""
    for line in text.splitlines():
        if label := _FUNCTION.match(line):
            function = label[1]
        elif match := _INSTRUCTION.match(line):
            instructions.append(Instruction(int(match[1], 16), function, " ".join(match[2].partition("@")[0].split())))
    return instructions


def split_blocks(instructions: Iterable[Instruction], counts: Mapping[int, int]) -> list[Block]:
    """Cut executed instructions into blocks, in the order of their addresses."""
    blocks: list[Block] = []
    run: list[Instruction] = []

    def flush() -> None:
        if run:
            blocks.append(Block(tuple(run), counts[run[0].address]))
            run.clear()

    for instruction in instructions:
        count = counts.get(instruction.address, 0)
        if run and (count != counts[run[0].address] or instruction.function != run[0].function):
            flush()
        if count:
            run.append(instruction)
            if _ends_block(instruction.mnemonic):
                flush()
    flush()
    return blocks


def _ends_block(mnemonic: str) -> bool:
    return any(pattern.match(mnemonic) for pattern in (_BRANCH, _LOOP_START, _LOOP_END))


def translate_block(block: Block) -> list[str]:
    """Translate a block into assembly that llvm-mca schedules."""
    lines, conditional = [], 0
    for instruction in block.instructions:
        mnemonic, _, operands = instruction.text.partition(" ")
        if _IT.match(mnemonic):
            # Cortex-M folds IT into the instruction before it. The plugin counts an instruction that fails its condition,
            # too, and it takes its issue slot; its condition goes, because a block may begin or end within an IT block.
            conditional = len(mnemonic) - 1
            continue
        if conditional:
            conditional -= 1
            stem, dot, suffix = mnemonic.partition(".")
            mnemonic = re.sub(rf"({_CONDITIONS})$", "", stem) + dot + suffix
        if _LOOP_END.match(mnemonic):
            # From the second iteration on the loop's end comes from the loop cache and takes no cycle.
            continue
        if _BRANCH.match(mnemonic) or _LOOP_START.match(mnemonic):
            # The assembler cannot resolve the label, and the model has no schedule for loop starts: one issue slot.
            lines.append("nop")
            continue
        # VPST and VPT stay: their instructions are in the same block, because predication by lanes does not branch.
        lines.append(f"{mnemonic} {operands}".strip())
    return lines


# ---- Cycles of blocks, by llvm-mca.


def schedule_regions(
    cpu: str, regions: Sequence[Sequence[str]], *options: str
) -> tuple[dict[int, dict[str, Any]], set[str]]:
    """Run llvm-mca; return its report of each region by index, and the lines that it does not know. Empty regions have none.

    A line that the assembler refuses counts as NOP, an instruction without a schedule as nothing."""
    lines = ["\t.syntax unified", "\t.thumb"]
    for index, region in enumerate(regions):
        if region:
            lines += [f"# LLVM-MCA-BEGIN {index}", *region, f"# LLVM-MCA-END {index}"]
    command = (MCA, f"-mtriple={TRIPLES[cpu]}", f"-mcpu={cpu}", "-json", "-skip-unsupported-instructions=lack-sched")
    unknown: set[str] = set()
    while True:
        text = "\n".join(lines) + "\n"
        done = subprocess.run((*command, *options), input=text, capture_output=True, text=True, check=False)
        refused = {int(number) - 1 for number in re.findall(r"^<stdin>:(\d+):\d+: error:", done.stderr, re.MULTILINE)}
        if not refused:
            break
        for index in refused:
            unknown.add(lines[index])
            lines[index] = "nop"
    if done.returncode:
        sys.exit(f"benchmark: {MCA} failed: {done.stderr.strip()[:500]}")
    unknown |= set(re.findall(r"^note: instruction:\s*(.*)$", done.stderr, re.MULTILINE))
    return {int(region["Name"]): region for region in json.loads(done.stdout)["CodeRegions"]}, unknown


def model_cycles(cpu: str, regions: Sequence[Sequence[str]]) -> tuple[list[float], set[str]]:
    """Return the cycles of one iteration of each region in the steady state, and the lines that llvm-mca does not know."""
    reports, unknown = schedule_regions(cpu, regions, f"-iterations={ITERATIONS}")
    totals = [reports[i]["SummaryView"]["TotalCycles"] if i in reports else 0 for i in range(len(regions))]
    return [total / ITERATIONS for total in totals], unknown


# ---- Strict cycles: what a core may take beyond LLVM's model.

_DSP = re.compile(
    r"(smla(?!l$)|smls|smm|smul(?!l$)|smua|smus|umaal|pkh|[su]sat|sel|usad|qd?add|qd?sub|(s|u|sh|uh|uq|q)(add|sub|asx|sax)\d*$)"
)
_SHIFTED = re.compile(r"[su]xta?[bh]")
_NO_RESULT = re.compile(r"(str|vstr|stm|cmp|cmn|tst|teq|nop|push)")
_TWO_RESULTS = re.compile(r"(ldrd|[su]mull|[su]mlal|smlsld|umaal)")
_REGISTER = re.compile(r"\b(?:[rsd]\d+|lr|sp)\b")


def mnemonic_of(line: str) -> str:
    """Return the mnemonic of an assembly line without its width (``.w``)."""
    return line.partition(" ")[0].partition(".")[0]


def is_strict_pair(older: str, younger: str) -> bool:
    """Test whether the stricter rule of Cortex-M7 lets two instructions issue in one cycle."""
    mnemonics = mnemonic_of(older), mnemonic_of(younger)
    alone = any(name == "ldrd" or _SHIFTED.match(name) for name in mnemonics)
    return not alone and not _DSP.match(mnemonics[1])


def is_dependent(older: str, younger: str) -> bool:
    """Test whether the younger instruction names a register that the older one writes."""
    registers, name = _REGISTER.findall(older), mnemonic_of(older)
    count = 0 if _NO_RESULT.match(name) else 2 if _TWO_RESULTS.match(name) else 1
    written = set(registers[:count])
    if base := re.search(r"\[(\w+)[^]]*\](!|, #)", older):
        written.add(base[1])
    return not written.isdisjoint(_REGISTER.findall(younger))


def count_issues(region: Sequence[str], can_pair: Callable[[str, str], bool]) -> int:
    """Count the issue slots of a region: from the oldest on, two instructions share one if they can pair."""
    slots = index = 0
    while index < len(region):
        index += 2 if index + 1 < len(region) and can_pair(region[index], region[index + 1]) else 1
        slots += 1
    return slots


def strict_cycles(cpu: str, regions: Sequence[Sequence[str]], cycles: Sequence[float]) -> list[float]:
    """Return the cycles of each region by the stricter rules of a core: LDRD on Cortex-M4, pairs on Cortex-M7."""
    if cpu == "cortex-m4":
        return [
            c + 2 * sum(mnemonic_of(line) == "ldrd" for line in region)
            for c, region in zip(cycles, regions, strict=True)
        ]
    if cpu != "cortex-m7":
        return list(cycles)
    pairs = sorted({pair for region in regions for a, b in pairwise(region) for pair in ((a, b), (b, a))})
    reports, _ = schedule_regions(cpu, pairs, "-iterations=1", "-timeline", "-timeline-max-iterations=1")
    issues = {i: [t["CycleIssued"] for t in r["TimelineView"]["TimelineInfo"]] for i, r in reports.items()}
    paired = {pairs[i] for i, (older, younger) in issues.items() if older == younger}

    def can_pair(older: str, younger: str) -> bool:
        # llvm-mca also orders results: it delays a load behind a product, but not a product behind a load. A core that pairs
        # one order has the units for the other.
        return bool({(older, younger), (younger, older)} & paired) and not is_dependent(older, younger)

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
    instructions, modelled, strict = Counter[str](), Counter[str](), Counter[str]()
    for block, each, most in zip(blocks, cycles, strict_cycles(cpu, regions, cycles), strict=True):
        name = block.instructions[0].function.partition(".")[0]
        instructions[name] += block.count * len(block.instructions)
        modelled[name] += block.count * each
        strict[name] += block.count * most
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
    folder = corpus()
    rows = []
    for name in options.cores.split(","):
        core = CORES[name]
        if core.code_for not in TRIPLES:
            sys.exit(f"benchmark: --cores: LLVM has no scheduling model; got {name}, expected of m4,m7,m55")
        for model in options.models.split(","):
            if ("float" if model.endswith("_float") else "int8") not in core.formats:
                continue
            path = folder / "tflite" / f"mlperf_{model if model.endswith('_float') else f'{model}_int8'}.tflite"
            print(f"{model} for {core.code_for} on {core.board} ...", file=sys.stderr, flush=True)
            rows.append(measure(model, path, board_of(core), options.optimize))
            if options.layers:
                print(format_kernels(rows[-1]))
    print(format_table(rows))
    if options.json:
        options.json.write_text(json.dumps({"schema_version": 1, "rows": [asdict(r) for r in rows]}, indent=2) + "\n")
    return 0 if all(r.exact for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
