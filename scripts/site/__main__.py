"""Writes the pages of docs/ that are made from the code: ``python -m scripts.site`` (``make docs``)."""

from __future__ import annotations

from pathlib import Path

from scripts.site import boards, commands, errors

PAGES = {"boards.md": boards.page, "commands.md": commands.page, "errors.md": errors.page}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (Path(__file__).resolve().parents[2] / "docs" / name).write_text(page(), encoding="utf-8")
