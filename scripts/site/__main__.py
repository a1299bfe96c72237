# SPDX-License-Identifier: Apache-2.0
"""Write the pages of docs/ that are made from the code: ``python -m scripts.site`` (``make docs``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

from scripts.site import boards, commands, errors, recorded

PAGES: Mapping[str, Callable[[], str]] = MappingProxyType(
    {
        "boards.md": boards.page,
        "commands.md": commands.page,
        "errors.md": errors.page,
        **{name: partial(recorded.page, name) for name in ("index.md", "benchmarks.md", "comparison.md")},
    }
)

if __name__ == "__main__":
    for name, page in PAGES.items():
        (Path(__file__).resolve().parents[2] / "docs" / name).write_text(page(), encoding="utf-8")
