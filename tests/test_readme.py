# SPDX-License-Identifier: Apache-2.0
"""The commands and the Python of README, overview and the page of formats run as written."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import microc
from tests.site.running import run_microc

ROOT = Path(__file__).resolve().parents[1]
README, OVERVIEW, FORMATS = (
    (ROOT / path).read_text(encoding="utf-8") for path in ("README.md", "docs/overview.md", "docs/formats.md")
)
DIGITS = ROOT / "examples" / "digits"
TOOLS = ("arm-none-eabi-gcc", "qemu-system-arm", "gdb-multiarch")


def blocks(language: str, page: str = README) -> list[str]:
    """Return the contents of all code blocks of a language."""
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def commands(page: str) -> list[str]:
    """Return the ``microc`` commands of the console blocks, without prompt and comment."""
    lines = [line for block in blocks("console", page) for line in block.splitlines()]
    return [line.split("#")[0].removeprefix("$ ").strip() for line in lines if line.startswith("$ microc")]


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python; a command of microc in this process."""
    if arguments[:2] == ("-m", "microc"):
        return run_microc(folder, *arguments[2:])
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.emulator
@pytest.mark.cross
@pytest.mark.skipif(
    any(shutil.which(t) is None for t in TOOLS), reason="needs " + ", ".join(TOOLS) + ": run microc doctor"
)
@pytest.mark.parametrize(("page", "least"), [(README, 5), (OVERVIEW, 14)], ids=["README", "overview"])
def test_the_commands_run_in_order(tmp_path: Path, page: str, least: int) -> None:
    shutil.copyfile(DIGITS / "digits_int8.tflite", tmp_path / "model.tflite")
    np.save(tmp_path / "x.npy", np.zeros((1, 8, 8, 1), np.int8))
    found = commands(page)
    assert len(found) >= least
    for command in found:
        done = run(tmp_path, "-m", *shlex.split(command))
        assert done.returncode == 0, f"{command}: {done.stderr}"


def test_the_c_is_printed_as_shown() -> None:
    """The block of README that begins with a comment is an excerpt of the digits for a Cortex-M4."""
    (block,) = (block for block in blocks("c") if block.startswith("/*"))
    source = microc.compile(DIGITS / "digits_int8.tflite", board="netduinoplus2").files()["model.c"]
    printed = iter(str(source).splitlines())
    for line in block.splitlines():
        assert line in printed, line  # behind the line before


def test_the_python_runs(tmp_path: Path) -> None:
    (block,) = blocks("python", OVERVIEW)
    shutil.copytree(DIGITS, tmp_path / "examples" / "digits")
    made = run(
        tmp_path, "-m", "microc", "compile", "examples/digits/digits_int8.tflite", "--board", "host", "-o", "firmware"
    )
    assert made.returncode == 0, made.stderr
    assert run(tmp_path, "-m", "microc", "build", "firmware").returncode == 0
    prologue = "import numpy as np\nx = np.zeros((1, 8, 8, 1), np.int8)\nxs = x[None]\n"
    (tmp_path / "snippet.py").write_text(prologue + block)
    done = run(tmp_path, "snippet.py")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "digits.so").is_file()


def test_a_forest_as_written(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="needs scikit-learn (pip install microc[sklearn])")
    (block,) = blocks("python", FORMATS)
    prologue = (
        "import microc\nimport numpy as np\nfrom sklearn.ensemble import RandomForestClassifier\n"
        "x = np.random.default_rng(0).normal(size=(60, 4))\ny = (x[:, 0] > x[:, 1]).astype(int)\n"
    )
    (tmp_path / "snippet.py").write_text(prologue + block)
    done = run(tmp_path, "snippet.py")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "firmware" / "model.c").is_file()
