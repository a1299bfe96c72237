# SPDX-License-Identifier: Apache-2.0
"""Wherever an arena is declared, in pages, templates, examples and tests, it is as aligned and as large as the header asks."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

import microc
from tests.device.smoke import WARNINGS, needs
from tests.test_readme import DIGITS, ROOT, blocks

FOLDERS = ("docs", "examples", "boards", "runtime_c", "templates", "benchmarks", "scripts", "tests")
ENDINGS = (".md", ".j2", ".c", ".h", ".cpp", ".ino", ".rs", ".py")
DECLARED = re.compile(
    r"^[ \t]*(?:static |extern |const )*(\w+) (\w*arena)\[(?![^\]\n]*:)(.*?)\](?:;| MICROC)", re.MULTILINE
)
WHOLE = re.compile(r"\(.*ARENA_SIZE \+ 7\) / 8 \+ 1|\{\{ \(shared_arena \+ 7\) // 8 \+ 1 \}\}|")


def declarations() -> list[tuple[str, str, str]]:
    """Where, the type of an element, and how many there are."""
    files = [*ROOT.glob("*.md"), *(p for f in FOLDERS for p in sorted((ROOT / f).rglob("*")) if p.suffix in ENDINGS)]
    return [
        (f"{path.relative_to(ROOT)}: {found[0]}", found[1], found[3])
        for path in files
        for found in DECLARED.finditer(path.read_text(encoding="utf-8"))
    ]


def test_arenas_are_of_eight_bytes() -> None:
    found = declarations()
    assert len(found) >= 8
    for where, kind, count in found:
        assert kind == "uint64_t" and WHOLE.fullmatch(count), where


MAIN = """
#include <stdio.h>
#include "model.h"
static int8_t image[DIGITS_INT8_IMAGE_SIZE], probabilities[DIGITS_INT8_PROBABILITIES_SIZE];
BEFORE
int main(void)
{
    INSIDE
    for (int k = 0; k < DIGITS_INT8_PROBABILITIES_SIZE; ++k) {
        printf("%d ", probabilities[k]);
    }
    return (uintptr_t)arena % DIGITS_INT8_ARENA_ALIGN != 0;
}
"""


@needs("gcc")
@pytest.mark.parametrize("page", ["the README", "a project's README"])
def test_the_c_of_a_page_runs(tmp_path: Path, page: str) -> None:
    """As it is written, under the sanitizers; the library says what it must print."""
    program = microc.compile(DIGITS / "digits_int8.tflite", board="host", io_in_arena=page == "the README")
    folder = program.write(tmp_path / "net")
    if page == "the README":
        (block,) = (block for block in blocks("c") if "arena[" in block)
        text = MAIN.replace("BEFORE", "").replace("INSIDE", block)
    else:
        (block,) = re.findall(r"```c\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
        text = MAIN.replace("BEFORE", "int infer(void);\n" + block.replace("your_", "")).replace("INSIDE", "infer();")
    (folder / "page.c").write_text(text)
    command = ["gcc", *WARNINGS, "-fsanitize=address,undefined", "page.c", "model.c", "model_data.c"]
    subprocess.run([*command, "-lm", "-o", "page"], cwd=folder, check=True, timeout=120)
    said = subprocess.run([folder / "page"], capture_output=True, text=True, check=True, timeout=60).stdout
    expected = program.library()(np.zeros((1, 8, 8, 1), np.int8))
    assert isinstance(expected, np.ndarray) and said.split() == [str(n) for n in expected.reshape(-1)]
