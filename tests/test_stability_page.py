# SPDX-License-Identifier: Apache-2.0
"""docs/stability.md says of every name, command and option whether it is promised."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

import microc
from microc.cli.parser import COMMANDS
from microc.compiler.options import OPTIONS

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "stability.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("title", "names"),
    [("Names of `microc`", microc.__all__), ("Commands", COMMANDS), ("Options of a compilation", OPTIONS)],
)
def test_each_is_in_one_list(title: str, names: Iterable[str]) -> None:
    section = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    promised, provisional = (re.findall(r"`(\w+)`", part) for part in section.split("provisional:"))
    assert sorted(promised) == promised and sorted(provisional) == provisional, "in order"
    assert sorted((*promised, *provisional)) == sorted(names)
