"""Bringing an image onto a board, in the manner of west: a board lists runners, the first found wins.

The runner of an emulated board is gdb: it writes the image into the memory of a board held at reset and compares it, after which
the board is reset and runs. That is a true load, and the same steps as with a probe.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from microc.codegen.output_files import replacing
from microc.device.board_info import readable
from microc.device.emulators import Emulator, fill
from microc.device.images import FORMATS, convert
from microc.device.runners import Runner, runners, select_runner
from microc.errors import DeviceError, ToolError, UsageError
from microc.target import Board

_SHOWN_LINES = 20
_KEPT = 1 << 18  # bytes of what a program says first, and last


def flash(
    board: Board, elf: Path, *, runner: str = "", port: str = "", dry_run: bool = False, extra: Sequence[str] = ()
) -> tuple[tuple[str, ...], ...]:
    """Flash ``elf`` and return the commands; ``dry_run`` only returns them. ``extra`` arguments go to the first one's end.

    ``port`` is the serial port, for runners that talk to a boot loader. On an emulated board this loads and checks the image
    in an emulator of its own, which then ends: to go on talking to it, use :func:`load`. Raises :class:`ToolError` when the
    runner is missing or fails, :class:`DeviceError` when it hangs or finds no board.
    """
    chosen = select_runner(board, runner)
    if dry_run:
        return _commands(chosen, _files(chosen, board, elf, port), extra)
    if not elf.is_file():
        raise UsageError("there is no such image", where=str(elf), hint="build the project first")
    _check_present(board, chosen, alone=bool(runner))
    if not chosen.emulated:
        return _flash_hardware(board, chosen, elf, port, extra)
    with Emulator(board, None, debug=True) as emulator:
        return (load(emulator, elf),)


def _check_present(board: Board, chosen: Runner, *, alone: bool) -> None:
    """ToolError with the ways to get a runner, when the chosen one cannot work here."""
    if not chosen.lack:
        return
    if alone:
        raise ToolError(chosen.lack, where=f"runner {chosen.name}", hint=chosen.install)
    ways = "\n".join(f"    {r.name}: {r.lack}; {r.install}" for r in runners(board))
    raise ToolError(f"nothing here can flash {board.name}:\n{ways}", where=board.name, hint="one of them is enough")


def _flash_hardware(
    board: Board, chosen: Runner, elf: Path, port: str, extra: Sequence[str]
) -> tuple[tuple[str, ...], ...]:
    if chosen.mentions("port") and not port:
        hint = "name it: --port /dev/ttyACM0; `microc ports` lists those of this machine"
        raise UsageError(f"runner {chosen.name} needs the board's serial port", hint=hint)
    for suffix in FORMATS:
        if chosen.mentions(suffix):
            convert(elf, suffix, board)
    files = _files(chosen, board, elf, port)
    if chosen.commands:
        lines = (fill(line, files) for line in chosen.commands)
        with replacing(Path(files["commands"])) as temporary:
            temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
    commands = _commands(chosen, files, extra)
    for command in commands:
        _run(command, chosen)
    return commands


def _files(chosen: Runner, board: Board, elf: Path, port: str) -> dict[str, str]:
    """What the placeholders stand for; those that only a run can know stay as they are."""
    values = {"elf": str(elf), "folder": str(elf.parent), "commands": str(elf.with_suffix(".jlink"))}
    values |= {suffix: str(elf.with_suffix(f".{suffix}")) for suffix in FORMATS}
    start = next((region.origin for region in board.regions if region.kind == "flash"), 0)
    values["base"] = f"{start:#x}"
    if port:
        values["port"] = port
    if chosen.mentions("drive") and chosen.drive is not None:
        values["drive"] = str(chosen.drive)
    return values


def _commands(chosen: Runner, values: Mapping[str, str], extra: Sequence[str] = ()) -> tuple[tuple[str, ...], ...]:
    first = (*(fill(argument, values) for argument in chosen.argv), *extra)
    return (first, tuple(fill(argument, values) for argument in chosen.then)) if chosen.then else (first,)


def load(emulator: Emulator, elf: Path) -> tuple[str, ...]:
    """Bring a new image into an emulator that was started with ``debug``, and run it from reset. Returns the command.

    Without gdb the emulator is started again with the image, which gives it new ports: open its ``url`` afterwards.
    """
    usable = [r for r in runners(emulator.board) if r.emulated and shutil.which(r.argv[0])]
    if usable:
        command = _commands(usable[0], {"elf": str(elf), "gdb": emulator.gdb})[0]
        output = _run(command, usable[0])
        if "MIS-MATCHED" in output or "matched." not in output:
            raise ToolError("the image did not arrive whole:\n" + _tail(output), where=" ".join(command))
    else:
        emulator.restart(elf)
        command = emulator.argv
    emulator.resume()
    return command


def _run(command: Sequence[str], chosen: Runner) -> str:
    """Run a flasher and return what it printed, both streams."""
    line = " ".join(command)
    program = shutil.which(command[0])
    if program is None:
        raise ToolError(f"{command[0]} is not on PATH", where=line, hint=chosen.install)
    try:
        code, said = _said([program, *command[1:]], chosen.seconds)
    except subprocess.TimeoutExpired as error:
        hint = "check the probe and its cable"
        raise DeviceError(f"{command[0]} did not finish in {chosen.seconds:g} s", where=line, hint=hint) from error
    except OSError as error:
        raise ToolError(f"cannot run {program}: {error.strerror or error}", where=line) from error
    for failure in chosen.failures:  # some programs report these with exit code 0
        if failure.says in said:
            raise DeviceError(f"{failure.means}\n{_tail(said)}", where=line, hint=failure.hint)
    if code != 0:
        raise ToolError(
            f"{command[0]} failed with exit code {code}\n{_tail(said)}",
            where=line,
            hint="check that the board is connected and powered",
        )
    return said


def _said(argv: Sequence[str], seconds: float) -> tuple[int, str]:
    """The exit code of a program and what it said: of much, the beginning and the end. A board may have it talk without end."""
    with tempfile.TemporaryFile() as output:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, timeout=seconds, check=False
        )
        size = output.seek(0, os.SEEK_END)
        output.seek(0)
        data = output.read(_KEPT)
        output.seek(max(len(data), size - _KEPT))
        return done.returncode, (data + output.read()).decode(errors="replace")


def _tail(text: str) -> str:
    return "\n".join(f"    {readable(line, 200)}" for line in text.strip().splitlines()[-_SHOWN_LINES:])
