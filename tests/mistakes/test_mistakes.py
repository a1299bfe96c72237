# SPDX-License-Identifier: Apache-2.0
"""Each mistake of ``mistakes.toml`` is answered soon, with what, where, and a cure; the cure is taken from the answer, and works.

Fields of a mistake: ``wrong``, the words of a command; ``exit``, its exit code; ``answer``, what the first line says; ``where``,
the place or argument that is named; ``calls``, another bound than :data:`CALLS`; ``cure``, a pattern that the hint has, whose
groups are what a user takes from it. They stand in the steps ``then`` as {0} and {1}; the last is the command that succeeds. A
step is

- ``set FILE NAME EXPRESSION``: an array of a file (``-``: its only one) becomes what an expression of Python says of it;
- ``fetch FILE``: the file is got again, this time the right one;
- ``cd FOLDER``; ``close``: the program that has the port ends;
- ``python CODE``; a command of the system that stands in :data:`SYSTEM`; or else a command of microc, with or without its name.

What a hint writes in capitals is for the user to fill in; :data:`FILLED` does.
"""

from __future__ import annotations

import contextlib
import cProfile
import fcntl
import importlib.util
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from microc.cli import main
from microc.errors import UsageError
from tests.mistakes import workshop

CALLS = 1_000_000
"""Calls of Python that an answer may take after the start-up: half a second of a core that makes 2 million a second."""
FILLED = {"MODEL": "digits.tflite", "BOARD": "host", "SAMPLES": "samples.npz", "DIR": "project"}
SYSTEM = ("cp", "mv", "git", "apt-get")
"""Commands that hints have; git and apt-get are stood in for, as they need the network."""
STARTED: list[str] = []
"""Programs that were started."""
_LIST: dict[str, list[dict[str, Any]]] = tomllib.loads(
    (Path(__file__).parent / "mistakes.toml").read_text(encoding="utf-8")
)


@dataclass(frozen=True)
class Mistake:
    """The fields of the list."""

    name: str
    wrong: str
    exit: int
    answer: str
    where: str
    cure: str
    then: list[str]
    calls: int = CALLS


MISTAKES = [Mistake(**fields) for group in _LIST.values() for fields in group]


@contextlib.contextmanager
def _recorded_starts() -> Iterator[None]:
    """Record in :data:`STARTED` the programs that are started. (An audit hook would also see every other event of the whole
    test run, which took 45 s.)"""
    start = subprocess.Popen.__init__

    def record(process: subprocess.Popen[Any], args: Any, *others: Any, **options: Any) -> None:
        STARTED.append(str(args))
        start(process, args, *others, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess.Popen, "__init__", record)
        yield


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    with contextlib.chdir(folder):
        workshop.prepare(folder)
    return folder


@pytest.fixture
def folder(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workshop of one's own. Nothing that was compiled before is known until the mistake is answered."""
    monkeypatch.setenv("MICROC_CACHE", "")
    found = shutil.copytree(prepared, tmp_path / "work")
    monkeypatch.chdir(found)
    return found


@pytest.fixture
def busy(folder: Path) -> Iterator[int]:
    """A port that another program has open: the handle of its lock."""
    controller, line = pty.openpty()
    (folder / "busy").symlink_to(os.ttyname(line))
    other = os.open(os.ttyname(line), os.O_RDWR | os.O_NOCTTY)
    fcntl.flock(other, fcntl.LOCK_EX)
    yield other
    for handle in (controller, line):
        os.close(handle)
    with contextlib.suppress(OSError):
        os.close(other)


def test_the_list_is_long_enough() -> None:
    assert len(MISTAKES) >= 40 and len({mistake.name for mistake in MISTAKES}) == len(MISTAKES)


@pytest.mark.parametrize("mistake", MISTAKES, ids=[mistake.name for mistake in MISTAKES])
def test_a_mistake(
    mistake: Mistake,
    prepared: Path,
    folder: Path,
    busy: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Cures share a cache, for many of them compile the same network."""
    if "import torch" in mistake.then[0] and importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch")
    if "without-tools" in mistake.wrong:
        monkeypatch.setenv("PATH", str(folder))
    before = sorted(folder.rglob("*"))
    code, said, calls = _answered(mistake.wrong, capsys)
    first, *more = said.splitlines()
    assert code == mistake.exit and first.startswith("error[E") and mistake.answer in first, said
    assert mistake.where in first + "".join(line for line in more if line.startswith("  --> ")), said
    hint = next((line.removeprefix("  help: ") for line in more if line.startswith("  help: ")), "")
    found = re.search(mistake.cure, hint)
    assert found is not None, f"{mistake.cure} is not in: {hint}"
    assert calls < mistake.calls and not STARTED, f"{calls:,} calls, {STARTED}"
    assert sorted(folder.rglob("*")) == before, "something was written"
    monkeypatch.undo() if "without-tools" in mistake.wrong else None
    monkeypatch.setenv("MICROC_CACHE", str(prepared.with_name("cache")))
    with contextlib.chdir(folder):
        for step in mistake.then:
            _take(step.format(*found.groups()), busy)


def _answered(words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, int]:
    """Exit code, what stands on stderr, and how many calls that took."""
    capsys.readouterr()
    STARTED.clear()
    counter = cProfile.Profile()
    with _recorded_starts():
        code = counter.runcall(main, shlex.split(words))
    return code, capsys.readouterr().err, sum(entry.callcount for entry in counter.getstats())


def _take(step: str, busy: int) -> None:
    """One step of the cure."""
    words = [FILLED.get(word, word) for word in shlex.split(step)]
    kind, *rest = words
    if kind == "set":
        _set(Path(rest[0]), rest[1], step.split(" ", 3)[3])
    elif kind == "fetch":
        shutil.copyfile(workshop.RIGHT[rest[0]], rest[0])
    elif kind == "cd":
        os.chdir(rest[0])
    elif kind == "close":
        os.close(busy)
    elif step.startswith("python -m "):
        subprocess.run([sys.executable, *rest], check=True)
    elif kind == "python":
        exec(step.removeprefix("python "), {})
    elif kind == "git":
        assert rest[:3] == ["lfs", "pull", "--include"]
        shutil.copyfile(workshop.RIGHT[rest[3]], rest[3])
    elif kind == "apt-get":
        _provides([word for word in rest if not word.startswith("-")][1:])
    elif kind in SYSTEM:
        subprocess.run(words, check=True)
    else:
        given = words[kind == "microc" :]
        try:
            assert main(given) == 0, given
        except UsageError as error:
            raise AssertionError(given) from error


def _set(path: Path, name: str, expression: str) -> None:
    """An array of a .npy file, or of an archive by its name, becomes what an expression says, where ``labels`` is it, too."""
    if name == "-":
        array = np.load(path)
        np.save(path, eval(expression, {"numpy": np, "array": array}))
        return
    with np.load(path) as data:
        arrays = {key: data[key] for key in data.files}
    known = arrays.get(name)
    arrays[name] = eval(expression, {"numpy": np, "array": known, "labels": known, "arrays": arrays})
    np.savez(path, **arrays)


def _provides(packages: list[str]) -> None:
    """The packages that a hint names are those that the program is from."""
    if shutil.which("dpkg") is None or shutil.which("arm-none-eabi-gcc") is None:
        pytest.skip("needs dpkg and arm-none-eabi-gcc")
    owners = subprocess.run(
        ["dpkg", "-S", "/usr/bin/arm-none-eabi-gcc"], capture_output=True, text=True, check=True
    ).stdout
    assert owners.split(":")[0] in packages
