# SPDX-License-Identifier: Apache-2.0
"""Progress in Python: nothing unless asked, a line over and over on a terminal, a line a stage elsewhere, or a function."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

import microc
from microc.compiler.interaction import as_callback
from microc.errors import UsageError
from tests.support import digits


def test_elsewhere_a_line_for_each_stage(capsys: pytest.CaptureFixture[str]) -> None:
    microc.compile(digits.INT8, cache=False, progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert lines and all("\r" not in line for line in lines) and len(lines) == len(set(lines))
    microc.compile(digits.INT8, cache=False, progress=False)
    assert capsys.readouterr().err == ""


def test_on_a_terminal_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    tell = as_callback(True)
    assert tell is not None
    for step in range(3):
        tell("layer", step, 3)
    said = capsys.readouterr().err
    assert said.startswith("\r[1/3] layer") and "\n" not in said and said.endswith(" \r")


def test_functions_hear_of_steps() -> None:
    heard: list[tuple[Any, ...]] = []
    microc.compile(digits.INT8, cache=False, progress=lambda *step: heard.append(step))
    assert heard and all(0 <= done < total for _, done, total in heard)
    with pytest.raises(UsageError, match="progress"):
        microc.compile(digits.INT8, progress=3)  # type: ignore[call-overload]


def test_line_of_a_narrow_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The line and what wipes it leave the last column free, so that no row is added."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "fileno", lambda: 2)
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((40, 20)))
    tell = as_callback(True)
    assert tell is not None
    for step in range(2):
        tell("a layer whose name is longer than the terminal is wide", step, 2)
    said = capsys.readouterr().err
    assert {len(part) for part in said.split("\r") if part} == {39}
