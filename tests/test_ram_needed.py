# SPDX-License-Identifier: Apache-2.0
"""RAM needed is one figure: static RAM, the arena in it, and the deepest stack of a run, in every command that says it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import microc
from microc.cli import main
from tests.device.smoke import needs

DIGITS = Path(__file__).resolve().parents[1] / "examples" / "digits" / "digits_int8.tflite"
BOARD = "lm3s811evb"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ram") / "digits"
    assert main(["compile", str(DIGITS), "--board", BOARD, "-o", str(folder), "-q"]) == 0
    return folder


def said(words: list[str], capsys: pytest.CaptureFixture[str], as_json: bool = True) -> Any:
    capsys.readouterr()
    assert main([*words, *(["--json"] if as_json else [])]) == 0
    text = capsys.readouterr().out
    return json.loads(text) if as_json else text


@needs("arm-none-eabi-gcc", "qemu-system-arm")
@pytest.mark.cross
@pytest.mark.emulator
def test_commands_that_link_say_the_same_ram(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    built = said(["build", str(project)], capsys)
    ram = built["ram"]
    compiled = ["compile", str(DIGITS), "--board", BOARD, "-o", str(project), "--force"]
    assert said(compiled, capsys)["report"]["ram"] == ram
    assert main(["build", str(project), "-q"]) == 0
    stack = json.loads((project / "manifest.json").read_text(encoding="utf-8"))["stack_bound"]
    assert ram == built["sizes"]["static_ram"] + stack
    assert said(["size", str(project)], capsys)["totals"]["ram"] == ram
    reported = said(["report", str(project)], capsys)
    assert reported["totals"]["ram"] == ram and reported["stack"]["reserved"] == built["sizes"]["reserved_stack"]
    assert said(["profile", str(project)], capsys)["ram"] == ram
    assert said(["bench", str(DIGITS), "--boards", BOARD], capsys)["boards"][0]["ram"] == ram
    assert said(["check", str(DIGITS), "--board", BOARD, "--exact"], capsys)["ram"] == ram
    demo = said(["demo", "--board", BOARD], capsys)
    assert demo["ram"] == ram
    assert demo["stack"] <= stack, "a painted stack is within its bound"


@needs("arm-none-eabi-gcc")
@pytest.mark.cross
def test_texts_say_what_json_says(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["build", str(project)],
        ["report", str(project)],
        ["size", str(project)],
        ["check", str(DIGITS), "--board", BOARD, "--exact"],
    ):
        found = said(words, capsys)
        ram = found.get("ram") or found["totals"]["ram"]
        assert f"{ram:,}" in said(words, capsys, as_json=False)


def test_estimates_of_command_and_library_are_equal(capsys: pytest.CaptureFixture[str]) -> None:
    report = microc.compile(DIGITS, board=BOARD).report()
    reported = said(["report", str(DIGITS), "--board", BOARD], capsys)
    assert report["ram"] == reported["totals"]["ram"]
    assert report["ram"] <= report["ram_taken"] <= report["board_ram"]
