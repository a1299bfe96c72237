# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/tuning.md, in order; what it shows of their output is what they say."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.support import digits
from tests.support.campaign import in_campaign
from tests.test_readme import ROOT, TOOLS, run

PAGE = (ROOT / "docs" / "tuning.md").read_text(encoding="utf-8")


@in_campaign
@pytest.mark.emulator
@pytest.mark.cross
@pytest.mark.skipif(
    any(shutil.which(t) is None for t in TOOLS), reason="needs " + ", ".join(TOOLS) + ": run microc doctor"
)
def test_the_commands_run_and_say_what_is_shown(tmp_path: Path) -> None:
    shutil.copyfile(digits.INT8, tmp_path / "digits_int8.tflite")
    blocks = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    commands = [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]
    said = []
    for command in commands:
        done = run(tmp_path, "-m", *shlex.split(command))
        assert done.returncode == 0, f"{command}: {done.stderr}"
        said.append(done.stdout)
    for line in next(re.finditer(r"```text\n(.*?)```", PAGE, re.DOTALL))[1].splitlines():
        assert line.split() in [shown.split() for shown in said[0].splitlines()]
    assert (tmp_path / "firmware" / "manifest.json").is_file() and (tmp_path / "all.jsonl").stat().st_size
