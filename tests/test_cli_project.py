# SPDX-License-Identifier: Apache-2.0
"""A project of ``microc new``: its commands need no arguments, the command line wins, and it is compiled when it is old."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from microc.base.file_access import TRUST
from microc.cli import main
from tests.support import digits

PLUGIN = "raise SystemExit('it ran')\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "digits"
    assert main(["new", str(folder), "--board", "host", "--model", str(digits.INT8), "--ram", "30K", "-q"]) == 0
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    def call(*words: str, code: int = 0) -> Any:
        capsys.readouterr()
        assert main([*words, "--json"]) == code
        return json.loads(capsys.readouterr().out)

    return call


def test_what_is_in_it(project: Path) -> None:
    assert sorted(os.listdir(project)) == [".gitignore", "README.md", "digits_int8.tflite", "microc.toml"]
    assert "ram = 30720\n" in (project / "microc.toml").read_text()
    assert (project / "digits_int8.tflite").read_bytes() == digits.INT8.read_bytes()


def test_no_arguments(project: Path, said: Any) -> None:
    """Every command that a project knows; each tells which file it went by."""
    assert said("build")["elf"] == str(project / "firmware" / "firmware.elf")
    for words in (
        "check", "compile", "explain", "size", "verify", "profile", "run", "report", "bench",
        "tune --space --only dense5", "export --format c -o out",
    ):  # fmt: skip
        assert said(*words.split())["config"] == str(project / "microc.toml"), words
    assert [row["board"] for row in said("bench")["boards"]] == ["host"]
    os.mkdir("below")
    os.chdir("below")
    assert said("check")["config"] == str(project / "microc.toml")


def test_the_framework_is_given_the_model(project: Path, said: Any) -> None:
    pytest.importorskip("tflite_micro")
    assert said("verify", "--against", "tflm", "--samples", "1")["against"]["agrees"]


def test_random_or_given_input(project: Path, said: Any) -> None:
    first, again = said("run"), said("run")
    assert first["outputs"] == again["outputs"] and first["seed"] == 20 and said("run", "--seed", "3")["seed"] == 3
    np.save("x.npy", digits.images(1)[0])
    data = said("run", "--input", "x.npy")
    assert data["seed"] is None and np.argmax(data["outputs"][0]["values"]) == digits.labels(1)[0]


def test_it_is_compiled_when_it_is_old(project: Path, said: Any) -> None:
    made = project / "firmware" / "manifest.json"
    said("build")
    first = made.stat().st_mtime_ns
    said("build")
    assert made.stat().st_mtime_ns == first
    for name in ("microc.toml", "digits_int8.tflite"):
        os.utime(made, ns=(1, 1))
        os.utime(project / name, ns=(2, 2))
        said("run")
        assert made.stat().st_mtime_ns != 1, name


def test_the_command_line_wins(project: Path, said: Any) -> None:
    text = (project / "microc.toml").read_text()
    (project / "microc.toml").write_text(text + 'optimize = "size"\n')
    for words, goal in (([], "size"), (["--optimize", "speed"], "speed")):
        said("compile", *words)
        assert json.loads((project / "firmware" / "manifest.json").read_text())["options"]["optimize"] == goal
    assert said("compile", "--board", "microbit", "-o", "other")["report"]["board"] == "microbit"
    assert said("check", "--board", "microbit")["board"] == "microbit"
    said("build")
    used = said("run", "--optimize", "speed")  # a model under options: not the project's folder
    assert used["config"] and said("run")["outputs"] == used["outputs"]


def test_a_word_that_is_no_file_is_a_layer(project: Path, said: Any) -> None:
    assert said("explain", "dense5")["kernel"]["layer"].endswith("dense5")


def test_mistakes(project: Path, said: Any) -> None:
    (project / "microc.toml").write_text('model = "absent.tflite"\n')
    assert "absent.tflite" in said("build", code=2)["error"]["what"]
    (project / "microc.toml").write_text('board = "host"\n')
    assert "names no model" in said("check", code=2)["error"]["what"]
    (project / "microc.toml").write_text('model = ["a", "b"]\n')
    assert "names 2 models" in said("check", code=2)["error"]["what"]
    (project / "microc.toml").write_text('[options]\noptimise = "size"\n')
    assert said("check", code=2)["error"]["hint"] == "did you mean optimize?"
    assert not (project / "firmware").exists()


def test_without_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("compile", "check", "explain", "build", "flash", "run", "profile", "size", "verify"):
        error = said(name, code=2)["error"]
        assert f"{name} needs " in error["what"] and "microc new" in error["hint"]


def test_a_plugin_of_a_strangers_file_does_not_run(project: Path, said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "evil.py").write_text(PLUGIN)
    text = (project / "microc.toml").read_text()
    (project / "microc.toml").write_text(text + 'plugins = ["evil.py"]\n')
    for name in ("check", "build", "run", "explain"):
        error = said(name, code=2)["error"]
        assert "evil.py" in error["what"] and TRUST in error["hint"]
    monkeypatch.setenv(TRUST, str(project))
    with pytest.raises(SystemExit, match="it ran"):
        main(["check"])


def test_a_library_of_a_strangers_file_is_not_built(project: Path, said: Any) -> None:
    text = (project / "microc.toml").read_text()
    (project / "microc.toml").write_text(text + 'external = ["cmsis-nn=evil"]\n')
    for name in ("check", "build"):
        error = said(name, code=2)["error"]
        assert "got a library" in error["what"] and TRUST in error["hint"] and "--external" in error["hint"]


def test_a_project_over_what_is_there(project: Path, said: Any) -> None:
    error = said("new", str(project), code=2)["error"]
    assert error["code"] == "E0202" and "contains files that microc did not write" in error["what"]
    assert "microbti" in said("new", "x", "--board", "microbti", code=2)["error"]["what"]
    (project / "broken.tflite").write_bytes(b"1234TFL3")
    assert said("new", "x", "--model", "broken.tflite", code=3)
    assert not (project / "x").exists()


def test_a_project_of_another_network_stays(project: Path, said: Any) -> None:
    model, second = "digits_int8.tflite", "second.tflite"
    shutil.copy(model, second)
    said("compile", model, "-o", "out")
    error = said("compile", second, "-o", "out", code=2)["error"]
    assert "the project of digits_int8, not the project of second" in error["what"] and "--force" in error["hint"]
    error = said("export", model, "--format", "c", "-o", "out", code=2)["error"]
    assert "the project of digits_int8, not the export (c) of digits_int8" in error["what"]
    assert said("compile", second, "-o", "out", "--force")["report"]["model"] == "second"
    said("compile", second, "--name", "other", "--board", "microbit", "-o", "out")  # the same model again
    os.mkdir("page")
    (project / "page" / "manifest.json").write_text('{"name": "a web page"}')
    assert (
        "contains files that microc did not write"
        in said("compile", model, "-o", "page", "--force", code=2)["error"]["what"]
    )
    assert os.listdir("page") == ["manifest.json"]
