# SPDX-License-Identifier: Apache-2.0
"""``-`` is what comes on standard input: models and data."""

from __future__ import annotations

import io
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from microc.cli import argument_sources, main, project_context
from microc.cli.declared.board_commands import RunArguments
from microc.errors import UsageError
from tests.support import digits


def pipe(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_a_model(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pipe(monkeypatch, digits.INT8.read_bytes())
    assert main(["check", "-"]) == 0
    assert "stdin" in capsys.readouterr().out


@pytest.mark.parametrize(("data", "said"), [(b"", "no bytes"), (b"x" * 100, "no format that microc knows")])
def test_what_is_no_model(
    data: bytes, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe(monkeypatch, data)
    assert main(["check", "-"]) in (2, 3)
    assert said in capsys.readouterr().err


def test_no_more_is_read_than_a_model_has(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(argument_sources, "_MAX_PIPE_BYTES", 1000)
    pipe(monkeypatch, bytes(2000))
    assert main(["check", "-"]) == 2
    assert "more than 1,000 bytes" in capsys.readouterr().err


def test_it_is_read_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pipe(monkeypatch, b"1")
    assert main(["compile", "-", "-", "-o", "unused"]) == 2
    assert "read once" in capsys.readouterr().err


def given(data: bytes, monkeypatch: pytest.MonkeyPatch, dtype: str) -> Any:
    """What `run --input -` takes of standard input for an input of shape (1, 2, 3)."""
    pipe(monkeypatch, data)
    tensor = {"name": "x", "shape": [1, 2, 3], "dtype": dtype, "buffer": "input", "bytes": 24, "layout": ""}
    manifest = {"tensors": [tensor], "inputs": ["x"], "outputs": [], "options": {}, "sizes": []}
    with argument_sources.stdin_as_file(RunArguments(inputs=(Path("-"),))) as arguments:
        return project_context.load_inputs(arguments, manifest)[0]


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_inputs_as_an_array_or_a_table(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = np.arange(6).reshape(1, 2, 3).astype(dtype)
    data = io.BytesIO()
    np.save(data, wanted)
    for text in (data.getvalue(), b"0,1,2,3,4,5\n", b"a,b,c\n0,1,2\n3,4,5\n"):
        found = given(text, monkeypatch, dtype)
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("table", [b"0,1,2,3,4,300", b"0,1,2,3,4,0.5", b"0,1,2", b"a,b\nc,d"])
def test_tables_that_are_no_input(table: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError):
        given(table, monkeypatch, "int8")


def run_in_shell(words: str, redirection: str) -> tuple[int, str]:
    """Return the exit code and the standard error of a command whose standard streams the shell redirects."""
    line = f"{shlex.quote(sys.executable)} -m microc {words} {redirection}"
    done = subprocess.run(["sh", "-c", line], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    return done.returncode, done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("words", ["operators", "operators --json"])
def test_a_full_disk_is_no_defect(words: str) -> None:
    code, errors = run_in_shell(words, "> /dev/full")
    assert code == 2 and errors.count("standard output cannot be written: No space left on device") == 1


@pytest.mark.skipif(os.name == "nt", reason="the shell of Windows closes no stream")
@pytest.mark.parametrize(("words", "code"), [("--version", 0), ("operators --json", 0), ("check none.tflite", 2)])
def test_a_closed_output_is_none(words: str, code: int) -> None:
    exit_code, errors = run_in_shell(words, ">&-")
    assert exit_code == code and "Traceback" not in errors and "E7001" not in errors
