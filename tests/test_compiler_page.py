# SPDX-License-Identifier: Apache-2.0
"""``docs/compiler.md``: its code runs, block by block, in order."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[1] / "docs" / "compiler.md"
BLOCK = re.compile(r"^```python(?: needs=(\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    blocks = list(BLOCK.finditer(text))
    assert len(blocks) >= 10
    for block in blocks:
        if all(shutil.which(tool) for tool in (block[1] or "").split(",") if tool):
            line = text[: block.start()].count("\n") + 1
            exec(compile("\n" * line + block[2], str(PAGE), "exec"), names)
