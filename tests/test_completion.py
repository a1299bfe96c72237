# SPDX-License-Identifier: Apache-2.0
"""Shells complete commands, options and their words; the manual page is troff without a warning."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from microc.cli import main
from microc.cli.parser import COMMANDS
from microc.device.boards import list_boards


def text(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 0
    return capsys.readouterr().out


@pytest.fixture
def bash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    path = tmp_path / "completion.bash"
    path.write_text(text(capsys, "completion", "bash"))
    return path


def completed(script: Path, folder: Path, *words: str) -> list[str]:
    """What bash offers for the last word."""
    line = " ".join(map(shlex.quote, words))
    program = (
        f"source {shlex.quote(str(script))}; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _microc 2>/dev/null; "
    )
    program += 'printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", program], cwd=folder, capture_output=True, text=True, check=True, timeout=20)
    return sorted(filter(None, done.stdout.split("\n")))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_are_of_their_language(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = text(capsys, "completion", shell)
    assert all(name in found for name in COMMANDS) and "mps2-an386" in found
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(found)
    done = subprocess.run([shell, "-n", str(tmp_path / "script")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_bash_offers_what_may_stand_there(bash: Path, tmp_path: Path) -> None:
    here = tmp_path / "here"
    (here / "models").mkdir(parents=True)
    for name in ("a model.tflite", "b.onnx", "notes.md", "board.toml"):
        (here / name).write_text("")

    def offered(*words: str) -> list[str]:
        return completed(bash, here, "microc", *words)

    assert offered("com") == ["compare", "compile", "completion"]
    assert set(COMMANDS) == set(offered(""))
    assert offered("-q", "ver") == ["verify"]
    assert offered("compile", "") == ["a model.tflite", "b.onnx", "models"]
    assert offered("compile", "b.onnx", "--board", "mps2-an38") == ["mps2-an385", "mps2-an386"]
    assert offered("compile", "b.onnx", "--board", "=", "microb") == ["microbit"]
    assert offered("compile", "--board", "boa") == ["board.toml"]
    assert offered("compile", "--optimize", "s") == ["size", "speed"]
    assert offered("compile", "--self") == ["--self-test"]
    assert offered("compile", "--input-layout", "N") == ["NCHW", "NHWC"]
    assert offered("compile", "-o", "") == ["models"]
    assert offered("bench", "--boards", "host,microb") == ["host,microbit"]
    assert offered("export", "--format", "cm") == ["cmake", "cmsis", "cmsis-pack"]
    assert "stm32f746g-disco" in offered("boards", "show", "stm") and offered("completion", "f") == ["fish"]
    assert offered("compile", "--name", "x") == [] and offered("unknown", "x") == []


def test_names_of_boards_are_in_every_shell(capsys: pytest.CaptureFixture[str]) -> None:
    for shell in ("bash", "zsh", "fish"):
        found = text(capsys, "completion", shell)
        assert all(name in found for name in list_boards())


def test_the_manual_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = text(capsys, "man")
    assert page.startswith('.TH MICROC 1 ""') and all(f"microc {name}" in page for name in COMMANDS)
    assert "exit" in page.lower() and "\\-\\-self\\-test" in page
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    done = subprocess.run(
        ["groff", "-ww", "-man", "-Tutf8", "-Wbreak"], input=page, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and done.stderr == "" and "FAIL" not in done.stdout
    assert "firmware --against before.json --fail-over 2%" in done.stdout
