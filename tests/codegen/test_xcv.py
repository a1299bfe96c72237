# SPDX-License-Identifier: Apache-2.0
"""CORE-V's instructions: bodies assemble to what the specification says, and schedules take them by meaning."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from microc.compiler.options import make_options
from microc.compiler.pipeline import compile_model
from microc.isa import CORES, SCALAR, find_four_product_intrinsic
from microc.isa.riscv import CLIPPED, ENCODINGS, XCV
from microc.target import target_for
from tests.codegen.test_intrinsics import function
from tests.device.smoke import needs
from tests.support.corpus import CORPUS
from tests.support.native import kernels_source

WORDS = {
    "cv.sdotsp.b a0, a1, a2": 0xA8C5957B,
    "cv.sdotusp.b a0, a1, a2": 0xA0C5957B,
    "cv.sdotsp.h a0, a1, a2": 0xA8C5857B,
    "cv.add.h a0, a1, a2": 0x00C5857B,
    "cv.sub.h a0, a1, a2": 0x08C5857B,
    "cv.min.b a0, a1, a2": 0x20C5957B,
    "cv.minu.b a0, a1, a2": 0x28C5957B,
    "cv.min.h a0, a1, a2": 0x20C5857B,
    "cv.max.b a0, a1, a2": 0x30C5957B,
    "cv.maxu.b a0, a1, a2": 0x38C5957B,
    "cv.max.h a0, a1, a2": 0x30C5857B,
    "cv.clip a0, a1, 8": 0x7085B52B,
    "cv.clipu a0, a1, 9": 0x7295B52B,
    "cv.clip a0, a1, 16": 0x7105B52B,
    "cv.clipu a0, a1, 16": 0x7305B52B,
}
"""What LLVM 19 assembles."""
OPCODES = (0x7B, 0x2B)
"""Custom-3 and custom-1."""


def spelled(name: str) -> str:
    """The instruction of an intrinsic over a0, a1 and a2 or a number."""
    if name in ENCODINGS:
        return f"{ENCODINGS[name][0]} a0, a1, a2"
    return f"{CLIPPED[name][0]} a0, a1, {CLIPPED[name][2]}"


def apart(word: int, *, immediate: bool) -> tuple[int, ...]:
    """Opcode, funct3, funct7 and a number in the place of the second register: what no choice of registers changes."""
    return word & 127, word >> 12 & 7, word >> 25, word >> 20 & 31 if immediate else 0


def assembled(name: str, folder: Path) -> set[tuple[int, ...]]:
    """The custom instructions that a compiler without the extension makes of an intrinsic."""
    source, built = folder / "body.c", folder / "body.o"
    text = kernels_source([function(name)], "cv32e40p").replace(f"static void test_{name}", f"void test_{name}")
    source.write_text(re.sub(r"#include <(math|string)\.h>", "", text))  # there may be no C library
    tool = "riscv64-unknown-elf-"
    machine = ("-march=rv32imc", "-mabi=ilp32", "-DMICROC_XCV", "-O2", "-ffreestanding")
    subprocess.run([f"{tool}gcc", *machine, "-c", source, "-o", built], check=True)
    text = subprocess.run([f"{tool}objdump", "-d", built], check=True, capture_output=True, text=True).stdout
    words = [int(m, 16) for m in re.findall(r"^\s+[0-9a-f]+:\s+([0-9a-f]{8})\s", text, re.MULTILINE)]
    return {apart(w, immediate=name in CLIPPED) for w in words if w & 127 in OPCODES}


@pytest.mark.cross
@needs("riscv64-unknown-elf-gcc", "riscv64-unknown-elf-objdump")
@pytest.mark.parametrize("name", [*ENCODINGS, *CLIPPED])
def test_bodies_are_the_instructions(name: str, tmp_path: Path) -> None:
    assert assembled(name, tmp_path) == {apart(WORDS[spelled(name)], immediate=name in CLIPPED)}


@pytest.mark.parametrize("line", WORDS)
def test_words_are_what_an_assembler_says(line: str) -> None:
    tool = next((t for t in ("llvm-mc", "llvm-mc-19", "llvm-mc-18", "llvm-mc-22") if _knows(t)), None)
    if tool is None:
        pytest.skip("no llvm-mc here knows xcvsimd (LLVM 18 or later does)")
    assert _encoded(tool, line) == WORDS[line]


def _knows(tool: str) -> bool:
    return shutil.which(tool) is not None and _encoded(tool, "cv.add.h a0, a1, a2") is not None


def _encoded(tool: str, line: str) -> int | None:
    command = [tool, "-triple=riscv32", "-mattr=+xcvsimd,+xcvalu", "--show-encoding"]
    said = subprocess.run(command, input=line, capture_output=True, text=True, check=False).stdout
    found = re.search(r"\[(0x..),(0x..),(0x..),(0x..)\]", said)
    return sum(int(part, 16) << (8 * k) for k, part in enumerate(found.groups())) if found else None


def test_the_meaning_chooses() -> None:
    """Whatever core has a product of four bytes takes it; others take pairs, or nothing."""
    found = {cpu: find_four_product_intrinsic("int8", "int8", cpu) for cpu in CORES}
    assert {cpu: t.name for cpu, t in found.items() if t} == {
        "cv32e40p": "dot4_int8_int8_word",
        **dict.fromkeys(
            (
                *("arm1176", "cortex-m4", "cortex-m4+tensor16", "cortex-m7"),
                *("cortex-m33", "cortex-m35p", "cortex-m52", "cortex-m55", "cortex-m85"),
            ),
            "dot4_int8_int8",
        ),
    }
    assert set(XCV.bodies) <= set(SCALAR)


@pytest.mark.corpus
def test_keyword_spotting_takes_half_of_the_instructions() -> None:
    assert CORPUS is not None
    path = CORPUS / "tflite" / "mlperf_kws_int8.tflite"
    counts = {}
    for cpu in ("rv32imc", "cv32e40p"):
        calls = compile_model(path, target_for(cpu), make_options()).calls
        counts[cpu] = sum(c.instructions for c in calls), sum(c.cycles for c in calls)
    assert all(plain >= 2 * fast for plain, fast in zip(counts["rv32imc"], counts["cv32e40p"], strict=True))
