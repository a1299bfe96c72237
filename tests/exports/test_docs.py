# SPDX-License-Identifier: Apache-2.0
"""docs/export.md does what it says: its commands run in order, as far as their tools are here, and print what is shown."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from microc.cli import main
from microc.codegen.exports import load_format
from tests.exports.programs import FORMATS, run, said
from tests.support import digits

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
SECTIONS = {part.partition("\n")[0]: part for part in re.split(r"^## ", TEXT, flags=re.M)}


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def available(line: str) -> bool:
    """Whether a command's tool is here. MicroPython's sources are elsewhere, and one cannot tell where."""
    word = line.split()[0]
    return "$MICROPYTHON" not in line and ("/" in word or word == "cd" or shutil.which(word) is not None)


@pytest.mark.parametrize("section", [name for name, part in SECTIONS.items() if "```console" in part])
def test_the_commands_run(section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = SECTIONS[section]
    monkeypatch.chdir(tmp_path)
    shutil.copyfile(digits.INT8, tmp_path / "model.tflite")
    (tmp_path / "Middlewares").mkdir()
    for name, language in (("format.toml", "toml"), ("README.md.j2", "jinja")):
        for text in blocks(part, language):
            (tmp_path / "notes").mkdir(exist_ok=True)
            (tmp_path / "notes" / name).write_text(text)
    (block,) = blocks(part, "console")
    lines = block.splitlines()
    commands = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    for command in (line for line in commands if line.startswith("microc ")):
        assert main(shlex.split(command)[1:]) == 0
    rest = [line for line in commands if not line.startswith("microc ") and available(line)]
    output = run(tmp_path, "sh", "-e", "-c", "\n".join(rest), CARGO_NET_OFFLINE="true")
    assert all(line in output.splitlines() for line in lines if not line.startswith("$ "))
    if section.startswith("A format"):
        assert "bytes of model go to SRAM2" in (tmp_path / "digits" / "README.md").read_text()
    if "rust" in section.lower() and shutil.which("cargo"):
        (tmp_path / "digits" / "examples" / "docs.rs").write_text(blocks(part, "rust")[0])
        printed = run(tmp_path / "digits", "cargo", "run", "-q", "--example", "docs", CARGO_NET_OFFLINE="true")
        assert printed.replace(",", "").strip("[]\n") == said().strip().partition(": ")[2]


def test_the_python_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a module that the test plays."""
    calls: list[tuple[int, ...]] = []
    module = ModuleType("digits_model")
    module.__dict__["Network"] = lambda: SimpleNamespace(run=lambda *x: calls.append(tuple(map(len, x))))
    monkeypatch.setitem(sys.modules, "digits_model", module)
    (text,) = blocks(TEXT, "python")
    exec(text, {})
    assert calls == [(64, 10)]


def test_every_format_is_told() -> None:
    rows = dict(re.findall(r"^\| `([\w-]+)` \|.*\| (\w+) \|$", TEXT, re.M))
    assert rows == {name: load_format(name).status for name in FORMATS}
    for name in FORMATS:
        assert sum(f"--format {name} " in block for block in blocks(TEXT, "console")) >= 1
    (text,) = blocks(TEXT, "toml")
    assert set(tomllib.loads(text)) == {
        "title",
        "status",
        "checked",
        "sources",
        "headers",
        "commands",
        "files",
        "fixed",
        "target",
        "built",
    }
