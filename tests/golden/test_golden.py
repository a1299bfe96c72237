# SPDX-License-Identifier: Apache-2.0
"""Golden texts hold: what is made now is what the files say. Rewrite them with ``python -m tests.golden --write``."""

from __future__ import annotations

import pytest

from microc.tir.text import from_text, to_text
from tests.golden.all_texts import FOLDER, TEXTS, files

LONGEST = 100
"""Lines; what is longer is not read in a review."""
LONG = {"kernels/windows_vnni.c": 103, "kernels/winograd_m4.c": 216}


@pytest.mark.parametrize("path", TEXTS)
def test_text(path: str) -> None:
    assert TEXTS[path]() == (FOLDER / path).read_text(encoding="utf-8"), "python -m tests.golden --write; git diff"


def test_every_file_is_checked() -> None:
    assert files() == set(TEXTS)


@pytest.mark.parametrize("path", TEXTS)
def test_texts_are_short(path: str) -> None:
    assert (FOLDER / path).read_text(encoding="utf-8").count("\n") <= LONG.get(path, LONGEST)


@pytest.mark.parametrize("path", [path for path in TEXTS if not path.startswith("kernels/")])
def test_before_and_after_differ(path: str) -> None:
    before, after = (part.split("\n", 1)[1].strip() for part in _halves(path))
    assert before != after


@pytest.mark.parametrize("path", [path for path in TEXTS if path.endswith(".tir")])
def test_both_parse_back(path: str) -> None:
    for half in _halves(path):
        text = half.split("\n", 1)[1].strip() + "\n"
        assert to_text(from_text(text)) == text


def _halves(path: str) -> list[str]:
    before, after = (FOLDER / path).read_text(encoding="utf-8").split("\n# after\n")
    return [before, f"# after\n{after}"]
