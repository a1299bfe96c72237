# SPDX-License-Identifier: Apache-2.0
"""The code of a page of docs/, run in the order in which it stands there.

A block with a title is a file: it is written. Lines of a ``console`` block, behind ``$``, and of a ``shell`` block are commands,
``python`` blocks without a title are run in one namespace. What a ``text`` block shows after them must have been said: line by
line, without regard to spaces, each number within :data:`TOLERANCE`. ``sh`` blocks need what is not here. ``needs=A,B``
behind a language names programs or packages of Python, without which a block is left out, and what it shows.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import io
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from microc.cli import main

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?(?: needs=(\S+))?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
PROMPTS = {"console": "$ ", "shell": ""}
"""What a command begins with in a block of a language."""
TOOLS = ("cc", "make", "cmake", "ctest", "cp", "ls", "python")
"""Programs that pages may call beside microc and what they built."""
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
TOLERANCE = 0.1
"""Relative difference of a number that a page shows from the one that is said: compilers and emulators of other versions."""


def run_microc(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of microc in this process, which has imported and scheduled already what many commands need."""
    return _run_here(folder, lambda: main(list(words)), ["microc", *words])


def run_script(script: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a program of Python in this process, as ``python script words`` does in another."""

    def run() -> int:
        threshold = gc.get_threshold()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", [str(script), *words])
            patch.setattr(sys, "path", [str(script.parent), *sys.path])
            try:
                runpy.run_path(str(script), run_name="__main__")
            except SystemExit as end:
                return end.code if isinstance(end.code, int) else int(end.code is not None)
            finally:
                gc.set_threshold(*threshold)
        return 0

    return _run_here(folder, run, [str(script), *words])


def _run_here(folder: Path, run: Callable[[], int], words: list[str]) -> subprocess.CompletedProcess[str]:
    """The exit code that a function returns, and what it writes."""
    out, err = io.BytesIO(), io.BytesIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(io.TextIOWrapper(out, encoding="utf-8", write_through=True)),
        contextlib.redirect_stderr(io.TextIOWrapper(err, encoding="utf-8", write_through=True)),
    ):
        code = run()
        texts = [stream.getvalue().decode() for stream in (out, err)]
    return subprocess.CompletedProcess(words, code, *texts)


class Runner:
    """One page in one folder. ``python``: the interpreter whose microc is used; ``replaced``: other words for a command;
    ``compared``: whether what is shown must be said."""

    def __init__(
        self,
        page: Path,
        folder: Path,
        python: str = sys.executable,
        replaced: dict[str, str] | None = None,
        compared: bool = True,
    ) -> None:
        self.page, self.folder, self.python, self.replaced = page, folder, python, replaced or {}
        self.compared = compared
        self.said, self.left_out, self.names = "", False, dict[str, Any]()
        self.commands: list[str] = []

    def run(self) -> None:
        """All blocks; AssertionError where one fails or says something else than is shown."""
        text = self.page.read_text(encoding="utf-8")
        for block in BLOCK.finditer(text):
            language, title, needed, content = block.groups()
            place = f"{self.page.name}:{text[: block.start()].count(chr(10)) + 1}"
            if language == "text":
                if self.compared and not self.left_out:
                    self._compare(content, place)
                continue
            self.left_out = not all(_there(each) for each in (needed or "").split(",") if each)
            if self.left_out:
                continue
            if title:
                (self.folder / title).write_text(content, encoding="utf-8")
            elif language in PROMPTS:
                for line in content.splitlines():
                    assert line.startswith(PROMPTS[language]), f"{place}: {line}"
                    self._command(line.removeprefix(PROMPTS[language]), place)
            elif language == "python":
                self._python(content, place)

    def _command(self, line: str, place: str) -> None:
        line = self.replaced.get(line, line)
        words = shlex.split(line)
        if not words:
            return
        if words[0] == "cd":
            self.folder = self.folder / words[1]
            return
        known = {"microc": [self.python, "-m", "microc"], "python": [self.python]}
        assert words[0] in (*known, *TOOLS) or words[0].startswith("./"), f"{place}: {line}"
        if words[0] == "microc" and self.python == sys.executable:
            done = run_microc(self.folder, *words[1:])
        else:
            done = subprocess.run(
                [*known.get(words[0], words[:1]), *words[1:]], cwd=self.folder, env=self._environment(),
                capture_output=True, text=True, check=False, timeout=300,
            )  # fmt: skip
        assert done.returncode == 0, f"{place}: {line}\n{done.stdout}{done.stderr}"
        self.commands.append(line)
        self.said += done.stdout

    def _environment(self) -> dict[str, str]:
        """Commands find this checkout, unless another interpreter brings its own microc."""
        return {**os.environ, **({"PYTHONPATH": str(ROOT)} if self.python == sys.executable else {})}

    def _python(self, content: str, place: str) -> None:
        with contextlib.chdir(self.folder), contextlib.redirect_stdout(io.StringIO()) as said:
            exec(compile(content, place, "exec"), self.names)
        self.said += said.getvalue()

    def _compare(self, shown: str, place: str) -> None:
        for line in filter(None, shown.splitlines()):
            similar = [said for said in self.said.splitlines() if _mask_numbers(said) == _mask_numbers(line)]
            assert similar, f"{place}: nothing says: {line}"
            assert any(_has_close_numbers(said, line) for said in similar), "\n".join((f"{place}: {line}", *similar))


def _there(name: str) -> bool:
    return shutil.which(name) is not None or importlib.util.find_spec(name) is not None


def _mask_numbers(line: str) -> str:
    """Replace the numbers of a line by 0 and its runs of spaces by one, since columns may be wider."""
    return NUMBER.sub("0", " ".join(line.split()))


def _has_close_numbers(line: str, other: str) -> bool:
    """Test whether the numbers of two lines that differ in numbers alone differ by at most :data:`TOLERANCE`."""
    numbers = ([float(n.replace(",", "")) for n in NUMBER.findall(text)] for text in (line, other))
    return all(abs(a - b) <= TOLERANCE * max(a, b) for a, b in zip(*numbers, strict=True))
