"""Simulated boards: a program that runs the firmware cycle by cycle, with the board's console as its standard input and output.

Such a program needs no control socket and no arguments beside the image; it is reached as any board on a line is.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from microc.device.toolchain import require
from microc.errors import UsageError
from microc.target import Board

ELF = "{elf}"
"""What stands for the image in a command."""


def simulated(board: Board) -> bool:
    """Whether the board's file names a program that simulates it."""
    return "simulator" in board.raw


def simulator_line(board: Board, elf: Path) -> str:
    """The address of a simulated board with this image, ``pipe:PROGRAM ARGUMENTS``. ToolError where the program is missing."""
    table = board.raw["simulator"]
    if not elf.is_file():
        raise UsageError("there is no such image", where=str(elf), hint="build the project first")
    program = require(table["argv"][0], table.get("install", ""))
    arguments = [argument.replace(ELF, str(elf.resolve())) for argument in table["argv"][1:]]
    return "pipe:" + shlex.join([program, *arguments])
