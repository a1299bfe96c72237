"""Simulated boards: a program that runs the firmware cycle by cycle, with the board's console as its standard input and output.

Such a program needs no control socket; it is reached as any board on a line is. ``simavr`` in a board's file is
``simavr_console.c`` beside this file, a small program around libsimavr, since simavr's own program does not connect a USART to
standard input: it is compiled when it is first needed.
"""

from __future__ import annotations

import shlex
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path

from microc.device.packages import install_hint
from microc.device.toolchain import host_compiler, require, run_compiler
from microc.errors import ToolError, UsageError
from microc.target import Board

ELF = "{elf}"
"""What stands for the image in a command."""
SIMAVR = "simavr"


def simulated(board: Board) -> bool:
    """Whether the board's file names a program that simulates it."""
    return "simulator" in board.raw


def simulator_line(board: Board, elf: Path) -> str:
    """The address of a simulated board with this image, ``pipe:PROGRAM ARGUMENTS``. ToolError where the program is missing."""
    table = board.raw["simulator"]
    if not elf.is_file():
        raise UsageError("there is no such image", where=str(elf), hint="build the project first")
    name = table["argv"][0]
    program = simavr_console() if name == SIMAVR else require(name, table.get("install", ""))
    arguments = [argument.replace(ELF, str(elf.resolve())) for argument in table["argv"][1:]]
    return "pipe:" + shlex.join([program, *arguments])


def find_program(name: str) -> str:
    """Find a program of this computer, simulators included; empty where it is missing."""
    if name != SIMAVR:
        return shutil.which(name) or ""
    try:
        return simavr_console()
    except ToolError:
        return ""


def simavr_console() -> str:
    """Compile the console of libsimavr, once a process; ToolError where the library or its headers are missing."""
    return str(Path(_compiled_console().name) / "console")


@lru_cache(maxsize=1)
def _compiled_console() -> tempfile.TemporaryDirectory[str]:
    """The folder of the program, which is removed when the process ends."""
    folder = tempfile.TemporaryDirectory(prefix="microc-simavr-")
    source = Path(__file__).with_name("simavr_console.c")
    try:
        command = (host_compiler(), "-O2", "-o", f"{folder.name}/console", str(source), "-lsimavr")
        run_compiler(command, Path(folder.name))
    except ToolError as error:
        folder.cleanup()
        raise ToolError(
            "libsimavr is missing: it simulates AVR boards", where=SIMAVR, hint=install_hint(SIMAVR)
        ) from error
    return folder
