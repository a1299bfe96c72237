"""Bringing an image onto a board, in the manner of west: a board file lists runners (a name and a command), first found wins.

The runner of an emulated board is gdb: it writes the image into the memory of a board held at reset and compares it, after
which the board is reset and runs. That is a true load, and the same steps as with a probe.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from microc.device.emulator import Emulator, fill
from microc.device.toolchain import require
from microc.errors import DeviceError, ToolError, UsageError
from microc.target import Board

_SECONDS = 300
_SHOWN_LINES = 20
_GDB = "{gdb}"


@dataclass(frozen=True, slots=True)
class Runner:
    """A way to flash: its name and its command, with ``{elf}`` and ``{gdb}`` still to be filled."""

    name: str
    argv: tuple[str, ...]

    @property
    def emulated(self) -> bool:
        """Whether it talks to the gdb server of an emulator."""
        return any(_GDB in argument for argument in self.argv)

    def command(self, elf: Path, gdb: str = _GDB, extra: Sequence[str] = ()) -> tuple[str, ...]:
        """The command for an image; ``gdb`` is ``host:port``, ``extra`` arguments go to the end."""
        return (*(fill(argument, {"elf": str(elf), "gdb": gdb}) for argument in self.argv), *extra)


def runners(board: Board) -> tuple[Runner, ...]:
    """The runners of a board, best first; none where there is nothing to flash (the host)."""
    return tuple(Runner(r["name"], tuple(r["argv"])) for r in board.raw["flash"]["runner"])


def select_runner(board: Board, name: str = "") -> Runner:
    """The named runner; without a name the first whose program is on PATH, or the first of all when none is.

    Raises :class:`UsageError` for a board without runners and for an unknown name.
    """
    known = runners(board)
    if not known:
        raise UsageError(f"board {board.name!r} has nothing to flash", hint="run the program of the project instead")
    if not name:
        return next((runner for runner in known if shutil.which(runner.argv[0])), known[0])
    for runner in known:
        if runner.name == name:
            return runner
    raise UsageError(f"board {board.name!r} has no runner {name!r}", hint="known: " + ", ".join(r.name for r in known))


def flash(
    board: Board, elf: Path, *, runner: str = "", dry_run: bool = False, extra: Sequence[str] = ()
) -> tuple[str, ...]:
    """Flash ``elf`` and return the command; ``dry_run`` only returns it.

    On an emulated board this loads and checks the image in an emulator of its own, which then ends: to go on talking to it,
    use :func:`load`. Raises :class:`ToolError` when the runner is missing or fails, :class:`DeviceError` when it hangs.
    """
    chosen = select_runner(board, runner)
    if dry_run:
        return chosen.command(elf, extra=extra)
    if not elf.is_file():
        raise UsageError("there is no such image", where=str(elf), hint="build the project first")
    if not chosen.emulated:
        command = chosen.command(elf, extra=extra)
        _run(command)
        return command
    with Emulator(board, None, debug=True) as emulator:
        return load(emulator, elf)


def load(emulator: Emulator, elf: Path) -> tuple[str, ...]:
    """Bring a new image into an emulator that was started with ``debug``, and run it from reset. Returns the command.

    Without gdb the emulator is started again with the image, which gives it new ports: open its ``url`` afterwards.
    """
    usable = [r for r in runners(emulator.board) if r.emulated and shutil.which(r.argv[0])]
    if usable:
        command = usable[0].command(elf, emulator.gdb)
        output = _run(command)
        if "MIS-MATCHED" in output or "matched." not in output:
            raise ToolError("the image did not arrive whole:\n" + _tail(output), where=" ".join(command))
    else:
        emulator.restart(elf)
        command = emulator.argv
    emulator.resume()
    return command


def _run(command: Sequence[str]) -> str:
    """Run a flasher and return what it printed, both streams."""
    program = require(command[0])
    try:
        done = subprocess.run(
            [program, *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        hint = "check the probe and its cable"
        raise DeviceError(f"{command[0]} did not finish in {_SECONDS} s", where=" ".join(command), hint=hint) from error
    except OSError as error:
        raise ToolError(f"cannot run {program}: {error.strerror or error}", where=" ".join(command)) from error
    if done.returncode != 0:
        raise ToolError(
            f"{command[0]} failed with exit code {done.returncode}\n{_tail(done.stdout)}",
            where=" ".join(command),
            hint="check that the board is connected and powered",
        )
    return done.stdout


def _tail(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.strip().splitlines()[-_SHOWN_LINES:])
