"""Bringing an image onto a board, in the manner of west: a board file lists runners (a name and a command), first found wins.

The runner of an emulated board is gdb: it writes the image into the memory of a board held at reset and compares it, after
which the board is reset and runs. That is a true load, and the same steps as with a probe.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from microc.device.emulator import Emulator, fill
from microc.device.toolchain import require
from microc.errors import DeviceError, ToolError, UsageError
from microc.target import Board

_SECONDS = 300
_SHOWN_LINES = 20
_GDB = "{gdb}"


def runner_names(board: Board) -> tuple[str, ...]:
    """Names of the runners of a board, best first; empty when there is nothing to flash (the host)."""
    return tuple(runner["name"] for runner in board.raw["flash"]["runner"])


def select_runner(board: Board, name: str = "") -> Mapping[str, Any]:
    """The named runner, or the first whose program is on PATH.

    :class:`UsageError` for a board without runners or an unknown name; :class:`ToolError` when no program is there.
    """
    runners = board.raw["flash"]["runner"]
    if not runners:
        raise UsageError(f"board {board.name!r} has nothing to flash", hint="run the program of the project instead")
    if name:
        for runner in runners:
            if runner["name"] == name:
                return runner
        raise UsageError(f"board {board.name!r} has no runner {name!r}", hint="known: " + ", ".join(runner_names(board)))
    for runner in runners:
        if shutil.which(runner["argv"][0]):
            return runner
    require(runners[0]["argv"][0])
    raise ToolError("no runner")


def flash_command(board: Board, elf: Path, runner: str = "", gdb: str = _GDB) -> tuple[str, ...]:
    """The command that flashes ``elf``: what ``--dry-run`` prints. ``gdb``: ``host:port`` of the emulator's gdb server."""
    if runner or not runner_names(board) or any(shutil.which(r["argv"][0]) for r in board.raw["flash"]["runner"]):
        chosen = select_runner(board, runner)
    else:
        chosen = board.raw["flash"]["runner"][0]  # nothing is installed: show the best
    return tuple(fill(argument, {"elf": str(elf), "gdb": gdb}) for argument in chosen["argv"])
