# SPDX-License-Identifier: Apache-2.0
"""The demonstration runs, is right as often as it must be, and does without cross tools."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.device.smoke import needs


def demo(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "microc", "demo", *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "utf-8", **environment},
    )


def check(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    assert "of 360" in done.stdout and "passed" in done.stdout and "30,528" in done.stdout


@needs("arm-none-eabi-gcc", "qemu-system-arm")
@pytest.mark.cross
@pytest.mark.emulator
def test_on_the_emulated_board() -> None:
    done = demo()
    check(done)
    assert "STM32F405" in done.stdout and "instructions" in done.stdout and "██" in done.stdout


def test_without_cross_tools(tmp_path: Path) -> None:
    for tool in ("cc", "gcc", "make", "sh", "as", "ld", "mkdir"):
        found = shutil.which(tool)
        if found is not None:
            (tmp_path / tool).symlink_to(found)
    done = demo(PATH=str(tmp_path), PYTHONIOENCODING="ascii")
    check(done)
    assert "arm-none-eabi-gcc and qemu-system-arm not found" in done.stdout and "@@" in done.stdout
    data = json.loads(demo("--json", PATH=str(tmp_path)).stdout)
    assert data["board"] == "host" and data["missing"] == ["arm-none-eabi-gcc", "qemu-system-arm"]
    assert data["accuracy"] >= data["reference_accuracy"] > 0.98 and data["samples"] == 360


def test_unknown_board() -> None:
    done = demo("--board", "nucleo")
    assert done.returncode == 2 and done.stderr.startswith("error[") and "Traceback" not in done.stderr
