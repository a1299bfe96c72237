# SPDX-License-Identifier: Apache-2.0
"""Model cycles of kernels on Cortex-M: LLVM's scheduling models, over instructions whose executions an emulator counts.

In the order of calls: :func:`require_cycle_source` refuses what has no cycles; :func:`count_executions` makes the emulator of a
project count; :meth:`ExecutionCounter.model_kernels` cuts the disassembly into straight-line blocks of equal count, takes the
steady state of each block from llvm-mca, adds what LLVM's model leaves out, and sums cycles times executions.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby, zip_longest
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from microc.base.immutable import frozen
from microc.device.boards import list_boards, load_board
from microc.device.toolchain import host_compiler, read_linked_sizes, require_program, run_compiler
from microc.errors import DeviceError, ToolError, UsageError
from microc.target import Board

if TYPE_CHECKING:
    from microc.run.board_project import Project

MCA, OBJDUMP = "llvm-mca-19", "llvm-objdump-19"
"""Programs of one version of LLVM, because cycles by different versions cannot be compared."""
TRIPLES: Mapping[str, str] = MappingProxyType({
    "cortex-m4": "thumbv7em-none-eabi",
    "cortex-m7": "thumbv7em-none-eabi",
    "cortex-m33": "thumbv8m.main-none-eabi",
    "cortex-m55": "thumbv8.1m.main-none-eabi",
})  # fmt: skip
"""LLVM's triples of the cores with a scheduling model. LLVM schedules Cortex-M33 as Cortex-M4. Its model of Cortex-M85 lets no
load overlap a product, and is left out."""
MODEL_MEANING = (
    "by LLVM's scheduling model of {cpu}, without refills after branches, wait states, caches and bus conflicts"
)
SIMULATED_MEANING = "counted by the simulator {name}, whose flash has no wait states"
ITERATIONS = 60  # of each block in llvm-mca: to fill and drain the pipeline adds some 0.1 cycles to an iteration
_SECONDS = 300  # for llvm-mca or the disassembler; a large network takes some ten


@frozen
class KernelCycles:
    """Cycles of each kernel of one inference, in the order of execution.

    ``cycles``: by the model, or by a simulator. ``instructions``: executed instructions, empty if a simulator counts cycles.
    ``meaning``: source of the cycles, and what they leave out, as a phrase that follows the number."""

    cycles: tuple[int, ...]
    instructions: tuple[int, ...]
    meaning: str


def require_cycle_source(board: Board) -> None:
    """Raise UsageError if a board has neither model cycles nor a simulator's, ToolError if a program is missing."""
    if board.simulated:
        return
    if not _has_cycles(board):
        names = [name for name in list_boards() if _has_cycles(load_board(name))]
        raise UsageError(
            f"no model of cycles: got {board.name} with a {board.target.cpu}, expected an emulated board with a "
            f"{', '.join(TRIPLES)}, or a simulated one",
            hint=f"choose one of the boards {', '.join(names)}",
        )
    for program in (MCA, OBJDUMP):
        require_program(program)


def make_port_error(port: str) -> UsageError:
    """Return the error about cycles of a board at a port: they are counted in emulators only."""
    return UsageError(
        f"cycles are counted in the emulator of a board; got port {port}, expected none",
        hint="leave out the port, or measure the board's own ticks",
    )


def _has_cycles(board: Board) -> bool:
    """Test whether cycles of a board can be counted."""
    return board.simulated or ("emulator" in board.raw and board.target.cpu in TRIPLES)


def convert_simulated_ticks(board: Board, ticks: Sequence[int]) -> KernelCycles:
    """Convert ticks of a board that is simulated cycle by cycle to cycles of its core."""
    tick_hz = board.raw["timer"]["hz"]
    clock_hz = board.raw.get("clock_hz", tick_hz)
    meaning = SIMULATED_MEANING.format(name=board.raw["simulator"]["argv"][0])
    return KernelCycles(tuple(t * clock_hz // tick_hz for t in ticks), (), meaning)


# ---- Executions: the emulator runs with a plugin, which writes its counts whenever the firmware reads its timer.

TIMER = "microc_port_ticks"
"""Function of the firmware that reads the timer: the profile calls it before and after every kernel."""
PROFILE = frozenset({TIMER, "take_time"})
"""Functions of the profile itself, which are no part of a kernel."""
_PLUGIN = Path(__file__).with_name("count_executions.c")
_SECOND_INTERFACE = 9  # QEMU's first version with the second interface of plugins


@contextmanager
def count_executions(project: Project) -> Iterator[ExecutionCounter]:
    """Yield a counter of the executed instructions of a built project in its emulator.

    Raises UsageError if the network is loaded at run time, because its code is not part of the firmware."""
    if not project.elf.is_file():
        raise UsageError("the image does not exist", where=str(project.elf), hint="build the project first")
    if project.relocatable:
        raise UsageError(
            "model cycles: got a network that is loaded at run time, expected one that is linked into its firmware",
            where=str(project.folder),
            hint="compile it without --relocatable",
        )
    with tempfile.TemporaryDirectory(prefix="microc-cycles-") as folder:
        yield ExecutionCounter(project, Path(folder))


class ExecutionCounter:
    """Counter of the executed instructions of a project. ``project``: the project whose board counts; run this one."""

    def __init__(self, project: Project, folder: Path) -> None:
        timer = next((s.address for s in read_linked_sizes(project.elf).symbols if s.name == TIMER), None)
        if timer is None:
            raise ToolError(f"the firmware has no function {TIMER}", where=str(project.elf), hint="build it again")
        self._counts, self._elf, self._cpu = folder / "counts", project.elf, project.board.target.cpu
        plugin = folder / "count_executions.so"
        table = project.board.raw["emulator"]
        interface = 1 + (_read_major_version(table["argv"][0]) >= _SECOND_INTERFACE)
        command = (host_compiler(), "-O2", "-shared", "-fPIC", f"-DPLUGIN_INTERFACE={interface}")
        run_compiler((*command, "-o", str(plugin), str(_PLUGIN)), folder)
        # QEMU reads two commas as one of a name
        names = (str(path).replace(",", ",,") for path in (plugin, self._counts))
        option = "{},out={},mark={:x}".format(*names, timer & ~1)
        emulator = {**table, "argv": [*table["argv"], "-plugin", option]}
        board = replace(project.board, raw={**project.board.raw, "emulator": emulator})
        self.project = replace(project, board=board)
        self._offset = 0
        self._disassembly: list[Instruction] = []
        self._known: dict[tuple[str, ...], float] = {}
        """Cycles of the blocks that were modelled before, by their assembly."""
        self._unknown: set[str] = set()

    def skip(self) -> None:
        """Forget what was executed so far."""
        self._offset = self._counts.stat().st_size

    def read_kernels(self, kernel_count: int, kernels_per_request: int) -> list[Mapping[int, int]]:
        """Read the executions of each kernel since :meth:`skip`, by the address of the instruction.

        The firmware has profiled ``kernel_count`` kernels in order, ``kernels_per_request`` in a request. Raises DeviceError
        if it has read its timer at other times, too."""
        *sections, _ = self._counts.read_bytes()[self._offset :].decode("ascii").split("\n\n")
        kernels: list[str] = []
        start = 0
        while len(kernels) < kernel_count:
            count = min(kernels_per_request, kernel_count - len(kernels))
            # The timer is read before the first kernel, and twice behind each: for its end, and for the next one's start.
            kernels += sections[start + 1 : start + 1 + 2 * count : 2]
            start += 1 + 2 * count
            if start > len(sections):
                break
        if start != len(sections):
            raise DeviceError(
                f"the firmware read its timer {len(sections)} times, expected {start} for {kernel_count} kernels",
                where=self.project.board.name,
                hint="profile it again",
            )
        return [_parse_counts(section) for section in kernels]

    def model_kernels(self, kernels: Sequence[Mapping[int, int]]) -> KernelCycles:
        """Compute the model cycles of each kernel from the executions of its instructions."""
        self._disassembly = self._disassembly or disassemble(self._elf, self._cpu)
        profiling = {i.address for i in self._disassembly if i.function in PROFILE}
        kernels = [{at: n for at, n in counts.items() if at not in profiling} for counts in kernels]
        blocks = [
            [(block.count, tuple(translate_block(block))) for block in split_blocks(self._disassembly, counts)]
            for counts in kernels
        ]
        regions = sorted({region for pairs in blocks for _, region in pairs if region not in self._known})
        cycles, unknown = model_cycles(self._cpu, regions)
        self._known.update(zip(regions, cycles, strict=True))
        self._unknown |= unknown
        meaning = [MODEL_MEANING.format(cpu=self._cpu), *(f"not modelled: {line}" for line in sorted(self._unknown))]
        known_addresses = {instruction.address for instruction in self._disassembly}
        if foreign := sum(n for counts in kernels for address, n in counts.items() if address not in known_addresses):
            meaning.append(f"not modelled: {foreign:,} instructions outside of the program")
        return KernelCycles(
            tuple(round(sum(count * self._known[region] for count, region in pairs)) for pairs in blocks),
            tuple(sum(counts.values()) for counts in kernels),
            "; ".join(meaning),
        )


def _parse_counts(section: str) -> Mapping[int, int]:
    """Parse a section of the plugin's file: executions by address."""
    counts = Counter[int]()
    for line in section.splitlines():
        address, _, count = line.partition(" ")
        counts[int(address, 16)] += int(count)
    return counts


def _read_major_version(emulator: str) -> int:
    """Read the major version of QEMU, such as 7; 0 if it prints none."""
    match = re.search(r"version (\d+)\.", _run_tool((emulator, "--version"), "").stdout)
    return int(match[1]) if match else 0


# ---- Blocks: the disassembly of the firmware, cut where counts change and behind branches.


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
_BRANCH = re.compile(rf"(b|bl|bx|blx|cbz|cbnz|tbb|tbh|b({_CONDITIONS})|wls|dls|wlstp|dlstp)(\.\w+)?$")
_LOOP_END = re.compile(r"letp$|le$")
_BLOCK_END = re.compile(f"{_BRANCH.pattern}|{_LOOP_END.pattern}")
_IT = re.compile(r"it[te]{0,3}$")


def disassemble(elf: Path, cpu: str) -> list[Instruction]:
    """Disassemble a linked program for a core of :data:`TRIPLES`."""
    options = ("-d", "--no-show-raw-insn", f"--triple={TRIPLES[cpu]}", f"--mcpu={cpu}")
    done = _run_tool((OBJDUMP, *options, str(elf)), "")
    if done.returncode:
        raise ToolError(f"{OBJDUMP} failed", where=str(elf), hint=done.stderr.strip()[-500:])
    return parse_disassembly(done.stdout)


def _run_tool(command: Sequence[str], text: str) -> subprocess.CompletedProcess[str]:
    """Run a program on ``text`` as its input. Raises ToolError if it is missing or does not end."""
    program = require_program(command[0])
    try:
        return subprocess.run(
            [program, *command[1:]],
            input=text,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ToolError(f"{command[0]}: {error}", where=program, hint="run it by hand: see its messages") from error


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
    """Cut executed instructions into blocks; ``instructions`` come in the order of their addresses."""
    blocks: list[Block] = []
    for (_, count), group in groupby(instructions, key=lambda i: (i.function, counts.get(i.address, 0))):
        if not count:
            continue
        current: list[Instruction] = []
        for instruction in group:
            current.append(instruction)
            if _BLOCK_END.match(instruction.mnemonic):
                blocks.append(Block(tuple(current), count))
                current = []
        if current:
            blocks.append(Block(tuple(current), count))
    return blocks


def translate_block(block: Block) -> list[str]:
    """Translate a block into assembly for llvm-mca: one line for each instruction that takes an issue slot."""
    lines: list[str] = []
    conditional = 0
    for instruction in block.instructions:
        mnemonic, _, operands = instruction.text.partition(" ")
        if _IT.match(mnemonic):
            # IT takes no cycle: Cortex-M4 folds it into the 16-bit instruction before it. Without IT the assembler accepts no
            # conditions, so that these go, too. An instruction whose condition fails takes an issue slot like any other; the
            # plugin counts it.
            conditional = len(mnemonic) - 1
            continue
        if conditional:
            conditional -= 1
            stem, dot, suffix = mnemonic.partition(".")
            mnemonic = re.sub(rf"({_CONDITIONS})$", "", stem) + dot + suffix
        if _LOOP_END.match(mnemonic):
            # From the second iteration on the core knows where the loop ends: LE takes no cycle.
            continue
        if _BRANCH.match(mnemonic):
            # llvm-mca models no jumps, and has no schedule for the starts of low-overhead loops: each takes an issue slot.
            lines.append("nop")
            continue
        # VPST and VPT stay: the assembler needs them before predicated instructions. A block never separates the two, because
        # predication disables lanes and does not branch.
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
        done = _run_tool((*command, *options), text)
        refused = {int(number) - 1 for number in re.findall(r"^<stdin>:(\d+):\d+: error:", done.stderr, re.MULTILINE)}
        if all(lines[index] == "nop" for index in refused):
            break
        for index in refused:
            unknown.add(lines[index])
            lines[index] = "nop"
    if done.returncode:
        raise ToolError(f"{MCA} failed", where=cpu, hint=done.stderr.strip()[-500:])
    unknown |= set(re.findall(r"^note: instruction:\s*(.*)$", done.stderr, re.MULTILINE))
    return {int(region["Name"]): region for region in json.loads(done.stdout)["CodeRegions"]}, unknown


def model_cycles(cpu: str, regions: Sequence[Sequence[str]]) -> tuple[list[float], set[str]]:
    """Return the cycles of one iteration of each region in the steady state, and the lines that llvm-mca does not know."""
    if not any(regions):
        return [0.0] * len(regions), set()
    if cpu in _CORRECTED:
        regions = [fill_issue_slots(region) for region in regions]
    reports, unknown = schedule_regions(cpu, regions, f"-iterations={ITERATIONS}")
    totals = [reports[i]["SummaryView"]["TotalCycles"] if i in reports else 0 for i in range(len(regions))]
    return [total / ITERATIONS for total in totals], unknown


# ---- Cycles in which Cortex-M4 issues nothing, where LLVM's model issues the next instruction: NOPs stand for them.
#
# By Arm's Cortex-M4 Technical Reference Manual (Arm 100166). Table of processor instructions: LDRD, STRD, LDM, STM, PUSH
# and POP of N registers take 1 + N cycles. Load/store timings: a load takes two cycles, or one if a load or store
# follows. Table of FPU instructions: VLDM, VSTM, VPUSH and VPOP of N words take 1 + N, VLDR and VSTR of a double word 3,
# VMOV between two core registers and the FPU 2, multiply-accumulates 3, VDIV and VSQRT 14. LLVM knows the last three
# latencies, for which NOP waits as any instruction does, but lets these instructions overlap with each other.

_CORRECTED = frozenset({"cortex-m4", "cortex-m33"})  # LLVM schedules Cortex-M33 as Cortex-M4
_EXTRA_CYCLES: Sequence[tuple[re.Pattern[str], int]] = (
    (re.compile(r"ldrd|strd"), 2),
    (re.compile(r"v(div|sqrt|fn?m[as]|n?ml[as])\b"), 1),
    (re.compile(r"v(ldr|str)\S* d"), 1),
    (re.compile(r"vmov (r\d+, r\d+,|s\d+, s\d+, r|d\d+, r)"), 1),
)
"""Extra cycles of instructions without a list of registers, by the beginning of their line."""
_TRANSFER = re.compile(r"v?(ldm|stm|push|pop)")
_REGISTERS = re.compile(r"([rsd]\d+|lr|pc)(?:-[rsd]?(\d+))?")
_LOAD, _ACCESS = re.compile(r"v?ldr(?!d)"), re.compile(r"v?(ldr|str|ldm|stm|push|pop)")


def fill_issue_slots(region: Sequence[str]) -> list[str]:
    """Return a region with a NOP for each cycle that LLVM's model of Cortex-M4 leaves out."""
    lines: list[str] = []
    for line, following in zip_longest(region, region[1:], fillvalue=""):
        unpaired = _LOAD.match(line) is not None and not _ACCESS.match(following)
        lines += [line, *["nop"] * (count_extra_cycles(line) + unpaired)]
    return lines


def count_extra_cycles(line: str) -> int:
    """Count the cycles that an instruction takes on Cortex-M4 beyond LLVM's model, independent of the next one."""
    mnemonic, _, operands = line.partition(" ")
    if not _TRANSFER.match(mnemonic):
        return next((cycles for pattern, cycles in _EXTRA_CYCLES if pattern.match(line)), 0)
    words = 0
    for register, last in _REGISTERS.findall(operands.partition("{")[2]):
        count = int(last) - int(register[1:]) + 1 if last else 1
        words += 2 * count if register[0] == "d" else count
    return words
