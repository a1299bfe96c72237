# SPDX-License-Identifier: Apache-2.0
"""Every command that a page shows is one that microc takes: its options exist, and its values are well formed.

Whether the commands of the long pages do what the pages say is tried by ``make campaign``.
"""

from __future__ import annotations

import re
import shlex

import pytest

from microc.cli.parser import parse_command_line
from tests.site.running import ROOT

PAGES = {path.relative_to(ROOT).as_posix(): path for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")))}
BLOCK = re.compile(r"^ *```(?:console|shell|sh|bash)\b[^\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"\s*(?:\$ )?(?:\S*/)?(?:python3? -m )?microc (.*)")


def commands(text: str) -> list[list[str]]:
    """The words behind ``microc`` of all commands in blocks for a terminal."""
    lines = (line for block in BLOCK.findall(text.replace("\\\n", " ")) for line in block.splitlines())
    parts = (part for line in lines for part in re.split(r"&&|[|;]| > ", line))
    return [shlex.split(found[1], comments=True) for part in parts if (found := COMMAND.match(part))]


def test_pages_have_commands() -> None:
    assert sum(len(commands(path.read_text(encoding="utf-8"))) for path in PAGES.values()) > 200


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_a_page_are_commands(page: str) -> None:
    for words in commands(PAGES[page].read_text(encoding="utf-8")):
        parse_command_line(words)
