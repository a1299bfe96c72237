"""Runners: the programs that bring an image onto a board, each a file ``boards/runners/<name>.toml``. Data only.

A board lists runners by name, best first, with its own part of the command; :func:`select_runner` takes the first that can work
on this machine.
"""

from __future__ import annotations

import os
import shutil
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from microc.base import file_access
from microc.base.immutable import frozen
from microc.device.toolchain import install_hint
from microc.errors import UsageError, suggestion
from microc.target import Board

SECONDS = 300.0
"""How long a runner may take, unless its file says otherwise."""
_OPTIONS = "{options}"


@frozen
class Failure:
    """What a runner prints when something usual is wrong, what that means, and what to do."""

    says: str
    means: str
    hint: str


@frozen
class Runner:
    """A way to flash a board: its name, and a command whose ``{placeholders}`` are still to be filled.

    ``then`` is a second command, or empty. ``commands`` are the lines of the file ``{commands}``. ``install`` says how to get the
    program. ``options`` is the board's part, which stands in the command already.
    """

    name: str
    argv: tuple[str, ...]
    then: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    seconds: float = SECONDS
    install: str = ""
    failures: tuple[Failure, ...] = ()

    def mentions(self, placeholder: str) -> bool:
        """Whether the command needs ``{placeholder}``."""
        return any("{" + placeholder + "}" in part for part in (*self.argv, *self.then, *self.commands))

    @property
    def emulated(self) -> bool:
        """Whether it talks to the gdb server of an emulator."""
        return self.mentions("gdb")

    @property
    def lack(self) -> str:
        """What it needs and this machine has not; empty when it can work."""
        if shutil.which(self.argv[0]) is None:
            return f"{self.argv[0]} is not on PATH"
        if self.mentions("drive") and self.drive is None:
            return f"no drive {self._drive_name} is mounted"
        return ""

    @property
    def drive(self) -> Path | None:
        """Where the drive is mounted that the options name."""
        return next((folder for folder in _drives(self._drive_name) if folder.is_dir()), None)

    @property
    def _drive_name(self) -> str:
        return " ".join(self.options)


def _drives(name: str) -> list[Path]:
    """Where desktop systems mount a drive of this name."""
    user = os.environ.get("USER", "")
    roots = ["/Volumes"] if sys.platform == "darwin" else [f"/media/{user}", f"/run/media/{user}", "/media", "/mnt"]
    named = os.environ.get("MICROC_DRIVES")
    return [Path(root) / name for root in ([named] if named else roots)]


def list_runners() -> tuple[str, ...]:
    """Names of the runners that come with microc, sorted."""
    return tuple(sorted(path.stem for path in _folder().glob("*.toml")))


def _folder() -> Path:
    return file_access.boards() / "runners"


def runners(board: Board) -> tuple[Runner, ...]:
    """The runners of a board, best first; none where there is nothing to flash (the host)."""
    return tuple(_runner(entry) for entry in board.raw["flash"]["runner"])


def _runner(entry: Mapping[str, Any]) -> Runner:
    """A board's entry: one of ours with the board's options, or a command of its own."""
    name, options = entry["name"], tuple(entry.get("options", ()))
    if "argv" in entry:
        return Runner(name, tuple(entry["argv"]), options=options)
    data = tomllib.loads((_folder() / f"{name}.toml").read_text(encoding="utf-8"))
    return Runner(
        name,
        _with_options(data["argv"], options),
        then=_with_options(data.get("then", ()), options),
        commands=tuple(data.get("commands", ())),
        options=options,
        seconds=float(data.get("seconds", SECONDS)),
        install=data.get("install") or install_hint(data["argv"][0]),
        failures=tuple(Failure(f["says"], f["means"], f["hint"]) for f in data.get("failures", ())),
    )


def _with_options(argv: Sequence[str], options: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(part for argument in argv for part in (options if argument == _OPTIONS else (argument,)))


def select_runner(board: Board, name: str = "") -> Runner:
    """The named runner; without a name the first that can work here, or the first of all when none can.

    Raises :class:`UsageError` for a board without runners and for an unknown name.
    """
    known = runners(board)
    if not known:
        raise UsageError(
            f"board {board.name!r} has nothing to flash", hint="it is this computer: microc run DIR runs it"
        )
    if not name:
        return next((runner for runner in known if not runner.lack), known[0])
    for runner in known:
        if runner.name == name:
            return runner
    raise UsageError(
        f"board {board.name!r} has no runner {name!r}", hint=suggestion(name, [r.name for r in known], "known")
    )
