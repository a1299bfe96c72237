# SPDX-License-Identifier: Apache-2.0
"""All golden texts, and the files that hold them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tests.golden import kernels, lowering, passes, steps

FOLDER = Path(__file__).parent / "texts"
TEXTS: Mapping[str, Callable[[], str]] = {**kernels.TEXTS, **steps.TEXTS, **lowering.TEXTS, **passes.TEXTS}
"""What makes a text, by its file's path in :data:`FOLDER`."""


def files() -> set[str]:
    """The files that there are."""
    return {path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.is_file()}


def write() -> list[str]:
    """Bring the files up to date: the paths of those that were written or removed."""
    changed = sorted(files() - set(TEXTS))
    for path in changed:
        (FOLDER / path).unlink()
    for path, make in TEXTS.items():
        file, text = FOLDER / path, make()
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            changed.append(path)
    return changed
