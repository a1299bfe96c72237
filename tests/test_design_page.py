# SPDX-License-Identifier: Apache-2.0
"""``microc/DESIGN.md``: the texts that it quotes are what a compilation of the digits network writes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import microc
from tests.support import digits

PAGE = Path(__file__).resolve().parents[1] / "microc" / "DESIGN.md"
QUOTE = re.compile(r"^<!-- (\S+) -->\n```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
QUOTES = [(quote[1], quote[2]) for quote in QUOTE.finditer(PAGE.read_text(encoding="utf-8"))]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every stage of the network for a Cortex-M4, and its project."""
    folder = tmp_path_factory.mktemp("digits")
    microc.compile(digits.INT8, board="mps2-an386", dump=folder).write(folder / "project")
    return folder


@pytest.mark.parametrize(("name", "text"), QUOTES, ids=[name for name, _ in QUOTES])
def test_a_quoted_text_is_what_is_written(name: str, text: str, written: Path) -> None:
    path = written / name if (written / name).is_file() else written / "project" / name
    assert text in path.read_text(encoding="utf-8"), f"{name} has changed: quote it again"


def test_the_page_follows_a_layer_through_all_stages() -> None:
    assert len(QUOTES) >= 7
