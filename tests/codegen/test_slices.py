# SPDX-License-Identifier: Apache-2.0
"""A network in slices, and in two threads at once, under the thread sanitizer."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import microc
from tests.support import digits

SOURCE = Path(__file__).with_name("slices.c")
WARNINGS = ("-Wall", "-Wextra", "-Wconversion", "-Wsign-conversion", "-Wshadow", "-Werror")


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_two_threads_in_slices(sanitizer: str, tmp_path: Path) -> None:
    program = microc.compile(digits.INT8, board="host", name="digits")
    folder = program.write(tmp_path / "digits")
    sources = [str(SOURCE), str(folder / "model.c"), str(folder / "model_data.c")]
    flags = [
        "-std=gnu99",
        "-O1",
        "-g",
        f"-fsanitize={sanitizer}",
        "-fno-sanitize-recover=all",
        *WARNINGS,
        "-I",
        str(folder),
    ]
    subprocess.run(["gcc", *flags, *sources, "-o", str(tmp_path / "slices"), "-lm", "-pthread"], check=True)
    done = subprocess.run([tmp_path / "slices"], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    kernels = program.report()["kernels"]
    assert done.stdout.split() == [str(200 * -(-kernels // 3)), "slices"] * 2
