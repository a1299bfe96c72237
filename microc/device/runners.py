# SPDX-License-Identifier: Apache-2.0
"""Runners: programs that flash an image, each described by a file ``boards/runners/<name>.toml``.

A board lists its runners by name, best first, with options for their commands. :func:`select_runner` selects the first
runner whose program is installed on this computer.
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
from microc.errors import UsageError, known_names_hint
from microc.target import Board

SECONDS = 300.0
"""Default time-out of a runner in seconds."""
_OPTIONS = "{options}"
"""Placeholder that is replaced by the board's options, as separate arguments."""


@frozen
class Failure:
    """A known failure of a runner (a flashing program). ``says``: text in the runner's output by which the failure is
    recognised; ``means``: error message for the user; ``hint``: hint of the error."""

    says: str
    means: str
    hint: str


@frozen
class Runner:
    """A program that flashes a board.

    ``argv``: command, with ``{placeholders}``. ``then``: second command, empty if there is none. ``commands``: lines of
    the command file whose path replaces ``{commands}``. ``options``: options of the board, which ``argv`` already
    contains. ``seconds``: time-out. ``install``: how to install the program.
    """

    name: str
    argv: tuple[str, ...]
    then: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    seconds: float = SECONDS
    install: str = ""
    failures: tuple[Failure, ...] = ()

    def has_placeholder(self, placeholder: str) -> bool:
        """Test whether one of the runner's commands contains ``{placeholder}``."""
        return any("{" + placeholder + "}" in part for part in (*self.argv, *self.then, *self.commands))

    @property
    def emulated(self) -> bool:
        """True if the runner uses the gdb server of an emulator."""
        return self.has_placeholder("gdb")

    @property
    def missing_requirement(self) -> str:
        """Message about the program or drive that is missing; empty if the runner can work."""
        if shutil.which(self.argv[0]) is None:
            return f"{self.argv[0]} is not on PATH"
        if self.has_placeholder("drive") and self.drive is None:
            return f"no drive {self._drive_name} is mounted"
        return ""

    @property
    def drive(self) -> Path | None:
        """Mount point of the drive that the options name; None if it is not mounted."""
        return next((folder for folder in _list_mount_point_candidates(self._drive_name) if folder.is_dir()), None)

    @property
    def _drive_name(self) -> str:
        return " ".join(self.options)


def _list_mount_point_candidates(name: str) -> list[Path]:
    """List the folders in which desktop systems mount a drive, by the drive's name."""
    user = os.environ.get("USER", "")
    roots = ["/Volumes"] if sys.platform == "darwin" else [f"/media/{user}", f"/run/media/{user}", "/media", "/mnt"]
    override = os.environ.get("MICROC_DRIVES")
    return [Path(root) / name for root in ([override] if override else roots)]


def list_runners() -> tuple[str, ...]:
    """List the names of the runners that come with microc, sorted."""
    return tuple(sorted(path.stem for path in _runners_folder().glob("*.toml")))


def _runners_folder() -> Path:
    """Return the folder of the runner files that come with microc."""
    return file_access.boards_folder() / "runners"


def list_runners_of_board(board: Board) -> tuple[Runner, ...]:
    """List the runners of a board, best first; empty for the host, which is not flashed."""
    return tuple(_make_runner(entry) for entry in board.raw["flash"]["runner"])


def _make_runner(entry: Mapping[str, Any]) -> Runner:
    """Make a runner from its entry in a board file.

    An entry with ``argv`` has a command of its own. Another entry names a runner of microc, which gets the entry's
    options."""
    name, options = entry["name"], tuple(entry.get("options", ()))
    if "argv" in entry:
        return Runner(name, tuple(entry["argv"]), options=options)
    data = tomllib.loads((_runners_folder() / f"{name}.toml").read_text(encoding="utf-8"))
    return Runner(
        name,
        _replace_options_placeholder(data["argv"], options),
        then=_replace_options_placeholder(data.get("then", ()), options),
        commands=tuple(data.get("commands", ())),
        options=options,
        seconds=float(data.get("seconds", SECONDS)),
        install=data.get("install") or install_hint(data["argv"][0]),
        failures=tuple(Failure(f["says"], f["means"], f["hint"]) for f in data.get("failures", ())),
    )


def _replace_options_placeholder(argv: Sequence[str], options: tuple[str, ...]) -> tuple[str, ...]:
    """Replace the placeholder ``{options}`` in a command by a board's options, as separate arguments."""
    return tuple(part for argument in argv for part in (options if argument == _OPTIONS else (argument,)))


def select_runner(board: Board, name: str = "") -> Runner:
    """Return the runner ``name`` of a board; without a name the first that can work on this computer.

    If none can work, it is the first of the board's runners. Raises UsageError for a board without runners and for an
    unknown name.
    """
    known = list_runners_of_board(board)
    if not known:
        raise UsageError(
            f"board {board.name!r} is not flashed: its programs run on this computer",
            hint="run the project: microc run DIR",
        )
    if not name:
        return next((runner for runner in known if not runner.missing_requirement), known[0])
    for runner in known:
        if runner.name == name:
            return runner
    raise UsageError(
        f"board {board.name!r} has no runner {name!r}",
        hint=known_names_hint(name, [r.name for r in known], "choose from"),
    )
