# SPDX-License-Identifier: Apache-2.0
"""Flash an image onto a board. As in Zephyr's west, a board lists runners, and the first that is installed is used.

The runner of an emulated board is gdb. The emulator holds the board at reset, gdb writes the image into its memory and
compares it, and the board then runs from reset. These are the steps of flashing with a debug probe.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from microc.codegen.output_files import replace_atomically
from microc.device.board_info import make_printable
from microc.device.emulators import Emulator, fill_placeholders
from microc.device.images import FORMATS, convert_image
from microc.device.runners import Runner, list_runners_of_board, select_runner
from microc.errors import DeviceError, ToolError, UsageError
from microc.target import Board

_SHOWN_LINES = 20
_MAX_OUTPUT = 1 << 18
"""Bytes of a program's output that are kept from its beginning and from its end."""


def flash_image(
    board: Board, elf: Path, *, runner: str = "", port: str = "", dry_run: bool = False, extra: Sequence[str] = ()
) -> tuple[tuple[str, ...], ...]:
    """Flash the image ``elf`` onto a board; return the commands of the flashing program.

    ``runner``: name of the runner; empty for the board's first that can work on this computer. ``port``: the serial
    port, for runners that use a boot loader. ``dry_run``: return the commands without running them. ``extra``:
    arguments added to the first command. On an emulated board the image is loaded and verified in a temporary emulator;
    to keep the emulator, use :func:`load_image_into_emulator`. Raises ToolError if the runner is missing or fails,
    DeviceError if it does not finish or finds no board."""
    selected = select_runner(board, runner)
    if dry_run:
        return _fill_runner_commands(selected, _compute_placeholder_values(selected, board, elf, port), extra)
    if not elf.is_file():
        raise UsageError("the image does not exist", where=str(elf), hint="build the project first")
    _require_runner_program(board, selected, only_selected=bool(runner))
    if not selected.emulated:
        return _flash_hardware(board, selected, elf, port, extra)
    with Emulator(board, None, debug=True) as emulator:
        return (load_image_into_emulator(emulator, elf),)


def _require_runner_program(board: Board, runner: Runner, *, only_selected: bool) -> None:
    """Raise ToolError, with installation hints, if a runner cannot work on this computer.

    ``only_selected``: name only this runner in the error, else all runners of the board."""
    if not runner.missing_requirement:
        return
    if only_selected:
        raise ToolError(runner.missing_requirement, where=f"runner {runner.name}", hint=runner.install)
    options = "\n".join(f"    {r.name}: {r.missing_requirement}; {r.install}" for r in list_runners_of_board(board))
    raise ToolError(
        f"no program that can flash {board.name} is installed:\n{options}", where=board.name, hint="install one of them"
    )


def _flash_hardware(
    board: Board, runner: Runner, elf: Path, port: str, extra_arguments: Sequence[str]
) -> tuple[tuple[str, ...], ...]:
    """Convert the image to the format that the runner needs, and run the runner's commands; return the commands.

    ``port``: the serial port, or empty. ``extra_arguments``: added to the first command."""
    if runner.has_placeholder("port") and not port:
        hint = "name it: --port /dev/ttyACM0; `microc ports` lists those of this machine"
        raise UsageError(f"port: got none, expected the board's serial port for runner {runner.name}", hint=hint)
    for suffix in FORMATS:
        if runner.has_placeholder(suffix):
            convert_image(elf, suffix, board)
    files = _compute_placeholder_values(runner, board, elf, port)
    if runner.commands:
        lines = (fill_placeholders(line, files) for line in runner.commands)
        with replace_atomically(Path(files["commands"])) as temporary:
            temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
    commands = _fill_runner_commands(runner, files, extra_arguments)
    for command in commands:
        _run_flashing_command(command, runner)
    return commands


def _compute_placeholder_values(runner: Runner, board: Board, elf: Path, port: str) -> dict[str, str]:
    """Return the values of the placeholders in a runner's commands, by the placeholder's name. Values that are known
    only when a command runs are missing."""
    values = {"elf": str(elf), "folder": str(elf.parent), "commands": str(elf.with_suffix(".jlink"))}
    values |= {suffix: str(elf.with_suffix(f".{suffix}")) for suffix in FORMATS}
    start = next((region.origin for region in board.regions if region.kind == "flash"), 0)
    values["base"] = f"{start:#x}"
    if port:
        values["port"] = port
    if runner.has_placeholder("drive") and runner.drive is not None:
        values["drive"] = str(runner.drive)
    return values


def _fill_runner_commands(
    runner: Runner, placeholder_values: Mapping[str, str], extra_arguments: Sequence[str] = ()
) -> tuple[tuple[str, ...], ...]:
    """Return the commands of a runner with their placeholders filled in.

    ``extra_arguments``: arguments added to the first."""
    first = (*(fill_placeholders(argument, placeholder_values) for argument in runner.argv), *extra_arguments)
    return (
        (first, tuple(fill_placeholders(argument, placeholder_values) for argument in runner.then))
        if runner.then
        else (first,)
    )


def load_image_into_emulator(emulator: Emulator, elf: Path) -> tuple[str, ...]:
    """Load an image into an emulator that was started with ``debug``, and run it from reset; return the command that
    loaded it.

    Without gdb the emulator is restarted with the image, on new ports: read its ``url`` afterwards."""
    usable = [r for r in list_runners_of_board(emulator.board) if r.emulated and shutil.which(r.argv[0])]
    if usable:
        command = _fill_runner_commands(usable[0], {"elf": str(elf), "gdb": emulator.gdb})[0]
        output = _run_flashing_command(command, usable[0])
        if "MIS-MATCHED" in output or "matched." not in output:
            raise ToolError(
                "the image differs on the board:\n" + _format_last_output_lines(output),
                where=" ".join(command),
                hint="flash it again",
            )
    else:
        emulator.restart(elf)
        command = emulator.argv
    emulator.resume()
    return command


def _run_flashing_command(command: Sequence[str], runner: Runner) -> str:
    """Run a command of a flashing program; return its standard output and errors.

    ToolError or DeviceError if it fails."""
    line = " ".join(command)
    program = shutil.which(command[0])
    if program is None:
        raise ToolError(f"{command[0]} is not on PATH", where=line, hint=runner.install)
    try:
        code, output = _run_with_bounded_output([program, *command[1:]], runner.seconds)
    except subprocess.TimeoutExpired as error:
        hint = "check the probe and its cable"
        raise DeviceError(f"{command[0]} did not finish in {runner.seconds:g} s", where=line, hint=hint) from error
    except OSError as error:
        raise ToolError(f"cannot run {program}: {error.strerror or error}", where=line, hint=runner.install) from error
    for failure in runner.failures:  # checked first, since some programs report them with exit code 0
        if failure.says in output:
            raise DeviceError(f"{failure.means}\n{_format_last_output_lines(output)}", where=line, hint=failure.hint)
    if code != 0:
        raise ToolError(
            f"{command[0]} failed with exit code {code}\n{_format_last_output_lines(output)}",
            where=line,
            hint="check that the board is connected and powered",
        )
    return output


def _run_with_bounded_output(argv: Sequence[str], seconds: float) -> tuple[int, str]:
    """Run a program for ``seconds`` at most; return its exit code and its output.

    Only the first and last :data:`_MAX_OUTPUT` bytes of the output are kept, since a board may cause endless
    messages."""
    with tempfile.TemporaryFile() as output:
        result = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, timeout=seconds, check=False
        )
        size = output.seek(0, os.SEEK_END)
        output.seek(0)
        data = output.read(_MAX_OUTPUT)
        output.seek(max(len(data), size - _MAX_OUTPUT))
        return result.returncode, (data + output.read()).decode(errors="replace")


def _format_last_output_lines(text: str) -> str:
    """Return the last lines of a program's output, indented and safe to print."""
    return "\n".join(f"    {make_printable(line, 200)}" for line in text.strip().splitlines()[-_SHOWN_LINES:])
