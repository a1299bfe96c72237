# SPDX-License-Identifier: Apache-2.0
"""``microc doctor``: what is there, what a board takes, and the line that installs the rest, which runs when it may."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from microc.cli import main
from microc.device.boards import list_boards, load_board
from microc.device.toolchain import list_tools_of_board
from microc.errors import UsageError
from microc.project.first_steps import Finding, find_tools, list_install_commands

needs_apt = pytest.mark.skipif(shutil.which("apt-get") is None, reason="the line is apt's here")


def test_a_board_asks_for_its_own_tools() -> None:
    names = {f.name for f in find_tools("nucleo-f446re") if f.purpose != "Python package"}
    assert names >= {"python", "arm-none-eabi-gcc", "make"} and "avr-gcc" not in names
    with pytest.raises(UsageError, match="unknown board"):
        find_tools("nucleo")
    for name in list_boards():
        assert list_tools_of_board(load_board(name))


def test_pip_brings_packages_and_no_line_what_has_none() -> None:
    gone = [
        Finding(name, purpose, True, "", "") for name, purpose in (("numpy", "Python package"), ("hazard3-sim", ""))
    ]
    assert list_install_commands(gone) == ((sys.executable, "-m", "pip", "install", "numpy"),)


def bare(folder: Path, *programs: str) -> dict[str, str]:
    """An environment whose PATH has these alone, and an apt-get that makes what it is asked for."""
    for name in programs:
        (folder / name).symlink_to(shutil.which(name) or "")
    apt = folder / "apt-get"
    cc = shutil.which("cc")
    apt.write_text(
        f'#!/bin/sh\necho "got $@"\n[ -f "{folder}/fails" ] && exit 9\n[ "$1" = update ] || ln -s {cc} {folder}/cc\n'
    )
    apt.chmod(0o755)
    return {**os.environ, "PATH": str(folder), "MICROC_CACHE": ""}


def doctor(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "microc", "doctor", *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)


@needs_apt
def test_the_line_is_printed_and_runs_when_it_may(tmp_path: Path) -> None:
    environment = bare(tmp_path, "make", "sh", "ln")
    line = "apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev\n"
    said = doctor(environment, "--board", "host", "--fix")
    assert said.returncode == 5 and said.stdout.endswith(line) and not (tmp_path / "cc").exists()
    (tmp_path / "fails").touch()
    said = doctor(environment, "--board", "host", "--fix", "--yes", "--json")
    assert said.returncode == 5 and "got exit code 9" in json.loads(said.stdout)["error"]["what"]
    (tmp_path / "fails").unlink()
    said = doctor(environment, "--board", "host", "--fix", "--yes")
    assert said.returncode == 0 and said.stdout == "nothing is missing\n"
    shown, update, got = said.stderr.splitlines()
    assert shown.endswith(line.strip()) and update == "got update" and got.endswith("gcc libc6-dev")


def test_yes_alone_is_no_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--yes"]) == 2 and "--fix" in capsys.readouterr().err
