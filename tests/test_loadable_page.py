# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/loadable.md, in order, on an emulated board."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.device.smoke import needs
from tests.support import digits
from tests.test_readme import ROOT, run

PAGE = (ROOT / "docs" / "loadable.md").read_text(encoding="utf-8")


@pytest.mark.emulator
@pytest.mark.cross
@needs("arm-none-eabi-gcc", "qemu-system-arm", "gdb-multiarch")
def test_the_commands_run(tmp_path: Path) -> None:
    shutil.copyfile(digits.INT8, tmp_path / "digits_int8.tflite")
    said = ""
    for line in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)[0].splitlines():
        done = run(tmp_path, "-m", *shlex.split(line.removeprefix("$ ")))
        assert done.returncode == 0, f"{line}: {done.stderr}"
        said += done.stdout
    assert "once for all networks" in said and "it takes networks" in said and "slot       A, commit 1" in said
    assert "every bit" in said
