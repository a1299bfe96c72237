# SPDX-License-Identifier: Apache-2.0
"""``docs/accelerators.md``: its code runs, block by block, where there is a driver."""

from __future__ import annotations

import re
from typing import Any

from tests.codegen.accelerator import needs_driver
from tests.test_readme import ROOT

PAGE = (ROOT / "docs" / "accelerators.md").read_text(encoding="utf-8")


@needs_driver
def test_its_code_runs() -> None:
    known: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(block, known)
