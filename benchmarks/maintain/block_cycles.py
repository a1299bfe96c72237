# SPDX-License-Identifier: Apache-2.0
"""Model cycles of a program's straight-line blocks on Cortex-M, by llvm-mca.

In the order of calls: :func:`parse_disassembly`, :func:`split_blocks` at the counts of executions, :func:`translate_block`
for llvm-mca, :func:`model_cycles` of each block in its steady state, :func:`strict_cycles` by stricter rules of a core.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

MCA, OBJDUMP = "llvm-mca-19", "llvm-objdump-19"
TRIPLES = {
    "cortex-m4": "thumbv7em-none-eabi",
    "cortex-m7": "thumbv7em-none-eabi",
    "cortex-m55": "thumbv8.1m.main-none-eabi",
}
"""LLVM's triples by core; LLVM 19 has a scheduling model of each."""
ITERATIONS = 60  # of each block in llvm-mca: to fill and drain the pipeline adds some 0.1 cycles to an iteration


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
_BRANCH = re.compile(rf"(b|bl|bx|blx|cbz|cbnz|tbb|tbh|b({_CONDITIONS})|wls|dls|wlstp|dlstp)(\.\w+)?$")
_LOOP_END = re.compile(r"letp$|le$")
_BLOCK_END = re.compile(f"{_BRANCH.pattern}|{_LOOP_END.pattern}")
_IT = re.compile(r"it[te]{0,3}$")


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
        done = subprocess.run((*command, *options), input=text, capture_output=True, text=True, check=False)
        refused = {int(number) - 1 for number in re.findall(r"^<stdin>:(\d+):\d+: error:", done.stderr, re.MULTILINE)}
        if all(lines[index] == "nop" for index in refused):
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
    """Return the cycles of each region by the stricter rules of a core: LDRD on Cortex-M4, pairs on Cortex-M7.

    On Cortex-M7 a region takes as many cycles more as it has issue slots more by the stricter rule than by LLVM's."""
    if cpu == "cortex-m4":
        loads = [sum(mnemonic_of(line) == "ldrd" for line in region) for region in regions]
        return [c + 2 * n for c, n in zip(cycles, loads, strict=True)]
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
