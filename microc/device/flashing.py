"""Flash an image, in the manner of west: a board lists runners, and the first one that is installed is used.

The runner of an emulated board is gdb. It writes the image into the memory of a board held at reset and compares it; then
the board runs from reset. So the image is really loaded, with the same steps as by a debug probe.
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
from microc.device.runners import Runner, board_runners, select_runner
from microc.errors import DeviceError, ToolError, UsageError
from microc.target import Board

_SHOWN_LINES = 20
_MAX_OUTPUT = 1 << 18
"""Bytes of a program's output that are kept from its beginning and from its end."""


def flash_image(
    board: Board, elf: Path, *, runner: str = "", port: str = "", dry_run: bool = False, extra: Sequence[str] = ()
) -> tuple[tuple[str, ...], ...]:
    """Flash the image ``elf`` onto a board and return the commands; ``dry_run``: only return them.

    ``runner``: name of the flashing program, empty for the board's first that can work here. ``port``: the serial port,
    for runners that use a boot loader. ``extra``: arguments added to the first command. On an emulated board this loads
    and verifies the image in a temporary emulator; to continue with it, use :func:`load_image_into_emulator`. ToolError
    if the runner is missing or fails, DeviceError if it hangs or finds no board."""
    selected = select_runner(board, runner)
    if dry_run:
        return _runner_commands(selected, _placeholder_values(selected, board, elf, port), extra)
    if not elf.is_file():
        raise UsageError("there is no such image", where=str(elf), hint="build the project first")
    _require_runner_program(board, selected, only_selected=bool(runner))
    if not selected.emulated:
        return _flash_hardware(board, selected, elf, port, extra)
    with Emulator(board, None, debug=True) as emulator:
        return (load_image_into_emulator(emulator, elf),)


def _require_runner_program(board: Board, selected: Runner, *, only_selected: bool) -> None:
    """Raise ToolError, with the ways to install it, if the selected runner cannot work here.

    Unless ``only_selected``, the error lists all runners of the board."""
    if not selected.lack:
        return
    if only_selected:
        raise ToolError(selected.lack, where=f"runner {selected.name}", hint=selected.install)
    options = "\n".join(f"    {r.name}: {r.lack}; {r.install}" for r in board_runners(board))
    raise ToolError(f"nothing here can flash {board.name}:\n{options}", where=board.name, hint="install one of them")


def _flash_hardware(
    board: Board, selected: Runner, elf: Path, port: str, extra_arguments: Sequence[str]
) -> tuple[tuple[str, ...], ...]:
    """Convert the image to the format that the runner needs, and run the runner's commands; return them."""
    if selected.mentions("port") and not port:
        hint = "name it: --port /dev/ttyACM0; `microc ports` lists those of this machine"
        raise UsageError(f"runner {selected.name} needs the board's serial port", hint=hint)
    for suffix in FORMATS:
        if selected.mentions(suffix):
            convert_image(elf, suffix, board)
    files = _placeholder_values(selected, board, elf, port)
    if selected.commands:
        lines = (fill_placeholders(line, files) for line in selected.commands)
        with replace_atomically(Path(files["commands"])) as temporary:
            temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
    commands = _runner_commands(selected, files, extra_arguments)
    for command in commands:
        _run_flashing_command(command, selected)
    return commands


def _placeholder_values(selected: Runner, board: Board, elf: Path, port: str) -> dict[str, str]:
    """Return the values of the placeholders in a runner's commands; those known only at run time are absent."""
    values = {"elf": str(elf), "folder": str(elf.parent), "commands": str(elf.with_suffix(".jlink"))}
    values |= {suffix: str(elf.with_suffix(f".{suffix}")) for suffix in FORMATS}
    start = next((region.origin for region in board.regions if region.kind == "flash"), 0)
    values["base"] = f"{start:#x}"
    if port:
        values["port"] = port
    if selected.mentions("drive") and selected.drive is not None:
        values["drive"] = str(selected.drive)
    return values


def _runner_commands(
    selected: Runner, placeholder_values: Mapping[str, str], extra_arguments: Sequence[str] = ()
) -> tuple[tuple[str, ...], ...]:
    """Return the commands of a runner with their placeholders filled in.

    ``extra_arguments``: arguments added to the first."""
    first = (*(fill_placeholders(argument, placeholder_values) for argument in selected.argv), *extra_arguments)
    return (
        (first, tuple(fill_placeholders(argument, placeholder_values) for argument in selected.then))
        if selected.then
        else (first,)
    )


def load_image_into_emulator(emulator: Emulator, elf: Path) -> tuple[str, ...]:
    """Load an image into an emulator that was started with ``debug``, and run it from reset; return the command that
    loaded it.

    Without gdb the emulator is restarted with the image, on new ports: read its ``url`` afterwards."""
    usable = [r for r in board_runners(emulator.board) if r.emulated and shutil.which(r.argv[0])]
    if usable:
        command = _runner_commands(usable[0], {"elf": str(elf), "gdb": emulator.gdb})[0]
        output = _run_flashing_command(command, usable[0])
        if "MIS-MATCHED" in output or "matched." not in output:
            raise ToolError(
                "the image differs on the board:\n" + _last_output_lines(output),
                where=" ".join(command),
                hint="flash it again",
            )
    else:
        emulator.restart(elf)
        command = emulator.argv
    emulator.resume()
    return command


def _run_flashing_command(command: Sequence[str], selected: Runner) -> str:
    """Run a command of a flashing program; return its output, both streams. ToolError or DeviceError if it fails."""
    line = " ".join(command)
    program = shutil.which(command[0])
    if program is None:
        raise ToolError(f"{command[0]} is not on PATH", where=line, hint=selected.install)
    try:
        code, output = _run_with_bounded_output([program, *command[1:]], selected.seconds)
    except subprocess.TimeoutExpired as error:
        hint = "check the probe and its cable"
        raise DeviceError(f"{command[0]} did not finish in {selected.seconds:g} s", where=line, hint=hint) from error
    except OSError as error:
        raise ToolError(
            f"cannot run {program}: {error.strerror or error}", where=line, hint=selected.install
        ) from error
    for failure in selected.failures:  # checked first, since some programs report them with exit code 0
        if failure.says in output:
            raise DeviceError(f"{failure.means}\n{_last_output_lines(output)}", where=line, hint=failure.hint)
    if code != 0:
        raise ToolError(
            f"{command[0]} failed with exit code {code}\n{_last_output_lines(output)}",
            where=line,
            hint="check that the board is connected and powered",
        )
    return output


def _run_with_bounded_output(argv: Sequence[str], seconds: float) -> tuple[int, str]:
    """Run a program; return its exit code and output. Of a long output only the beginning and the end are kept, since a
    board may cause endless messages."""
    with tempfile.TemporaryFile() as output:
        result = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, timeout=seconds, check=False
        )
        size = output.seek(0, os.SEEK_END)
        output.seek(0)
        data = output.read(_MAX_OUTPUT)
        output.seek(max(len(data), size - _MAX_OUTPUT))
        return result.returncode, (data + output.read()).decode(errors="replace")


def _last_output_lines(text: str) -> str:
    """Return the last lines of a program's output, indented and safe to print."""
    return "\n".join(f"    {make_printable(line, 200)}" for line in text.strip().splitlines()[-_SHOWN_LINES:])
