# SPDX-License-Identifier: Apache-2.0
"""Images of a firmware, and flashing them onto a board."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

from microc.base.file_access import open_regular_file, write_text
from microc.base.operating_system import example_serial_port
from microc.codegen.output_files import replace_atomically
from microc.device.board_info import make_printable
from microc.device.boards import Runner, list_runners_of_board, select_runner
from microc.device.emulators import Emulator, fill_placeholders
from microc.device.toolchain import DAMAGED_ELF
from microc.errors import DeviceError, ToolError, UsageError
from microc.target import Board

# ---- Formats of loaders: plain binary, Intel HEX, UF2 and the image of the ESP8266's boot ROM.

Segment = tuple[int, bytes]
"""Load address and content."""

_HEX_BYTES = 16
_MAX_GAP = 16 << 20
"""Most bytes between two segments of a plain image: an external flash has another address, hundreds of MiB away."""
_UF2_BYTES = 256
_UF2_MAGIC = (0x0A324655, 0x9E5D5157)
_UF2_END = 0x0AB16F30
_UF2_HAS_FAMILY = 0x2000


def read_segments(elf: Path) -> tuple[Segment, ...]:
    """Read the loadable segments with content from an ELF file, sorted by load address.

    These are the bytes that a loader writes into flash. Raises ToolError if the file is missing or no ELF file."""
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    try:
        with open_regular_file(elf) as stream:
            contents = [
                (int(s["p_paddr"]), bytes(s.data())) for s in ELFFile(stream).iter_segments("PT_LOAD") if s["p_filesz"]
            ]
    except OSError as error:
        raise ToolError(
            f"cannot read the program: {error.strerror or error}",
            where=str(elf),
            hint="build the project: microc build DIR",
        ) from error
    except (ELFError, *DAMAGED_ELF) as error:
        raise ToolError(f"not an ELF file: {error}", where=str(elf), hint="name firmware.elf") from error
    return tuple(sorted(contents))


def join_segments(segments: Sequence[Segment]) -> bytes:
    """Join segments to one image from the lowest address; gaps are filled with FF like erased flash.

    Raises UsageError for segments in flash regions that are far apart."""
    base = segments[0][0]
    for (start, data), (following, _) in pairwise(segments):
        if following - start - len(data) > _MAX_GAP:
            raise UsageError(
                f"the image cannot be one file; got content at {start:#x} and at {following:#x}, expected no gap of "
                f"more than {_MAX_GAP >> 20} MiB",
                hint="choose a runner that takes ELF or Intel HEX files: --runner openocd",
            )
    image = bytearray(b"\xff" * (max(start + len(data) for start, data in segments) - base))
    for start, data in segments:
        image[start - base : start - base + len(data)] = data
    return bytes(image)


def encode_intel_hex(segments: Sequence[Segment]) -> str:
    """Encode segments as the text of an Intel HEX file with 32-bit addresses."""
    lines, upper = [], -1
    for start, data in segments:
        at = start
        while at < start + len(data):
            if at >> 16 != upper:
                upper = at >> 16
                lines.append(_encode_intel_hex_record(4, 0, upper.to_bytes(2, "big")))
            count = min(_HEX_BYTES, start + len(data) - at, 0x10000 - (at & 0xFFFF))
            lines.append(_encode_intel_hex_record(0, at & 0xFFFF, data[at - start : at - start + count]))
            at += count
    return "\n".join([*lines, _encode_intel_hex_record(1, 0, b""), ""])


def _encode_intel_hex_record(record_type: int, address: int, data: bytes) -> str:
    """Encode a record of Intel HEX.

    ``record_type``: 0 for data, 1 for the end of the file, 4 for the upper half of addresses."""
    body = bytes([len(data), *address.to_bytes(2, "big"), record_type]) + data
    return f":{body.hex().upper()}{-sum(body) & 0xFF:02X}"


def encode_uf2(segments: Sequence[Segment], family: int) -> bytes:
    """Encode segments as UF2 blocks of 256 bytes for a family of chips (https://github.com/microsoft/uf2)."""
    base = segments[0][0] // _UF2_BYTES * _UF2_BYTES
    image = join_segments([(base, b""), *segments])
    image += b"\xff" * (-len(image) % _UF2_BYTES)
    count = len(image) // _UF2_BYTES
    blocks = []
    for k in range(count):
        data = image[k * _UF2_BYTES : (k + 1) * _UF2_BYTES]
        head = struct.pack("<8I", *_UF2_MAGIC, _UF2_HAS_FAMILY, base + k * _UF2_BYTES, _UF2_BYTES, k, count, family)
        blocks.append(head + data.ljust(476, b"\0") + struct.pack("<I", _UF2_END))
    return b"".join(blocks)


def _encode_uf2_for_board(segments: Sequence[Segment], board: Board) -> bytes:
    """Encode segments as UF2 for a board. Raises UsageError if the board file names no ``uf2_family``."""
    family = board.raw["flash"].get("uf2_family")
    if family is None:
        raise UsageError(f"board {board.name!r} names no UF2 family", hint="set uf2_family in its table [flash]")
    return encode_uf2(segments, family)


_ESP8266_MAGIC, _ESP8266_CHECKSUM, _ESP8266_ALIGN = 0xE9, 0xEF, 16


def encode_esp8266(segments: Sequence[Segment], flash: int, entry: int) -> bytes:
    """Encode segments as an image that the ESP8266's boot ROM loads into RAM, from address 0 of its flash.

    ``flash``: bytes 2 and 3 of the image, mode and size with rate. ``entry``: address at which the program begins. The
    form is in Espressif's documentation of esptool, "Firmware Image Format": a header of 8 bytes, for each segment its
    address, size and content in whole words, and a checksum in the last byte of a multiple of 16."""
    image = struct.pack("<BBHI", _ESP8266_MAGIC, len(segments), flash, entry)
    checksum = _ESP8266_CHECKSUM
    for start, data in segments:
        words = data + bytes(-len(data) % 4)
        image += struct.pack("<II", start, len(words)) + words
        for byte in words:
            checksum ^= byte
    return image + bytes(-(len(image) + 1) % _ESP8266_ALIGN) + bytes([checksum])


def _encode_esp8266_for_board(segments: Sequence[Segment], board: Board) -> bytes:
    """Encode segments for an ESP8266. Raises UsageError if the board file does not describe its flash and code."""
    flash, code = board.raw["flash"].get("esp8266_flash"), board.raw.get("link", {}).get("code")
    if flash is None or code is None:
        raise UsageError(
            f"board {board.name!r} is no ESP8266; got no esp8266_flash or no code, expected both",
            hint="set esp8266_flash in its table [flash], and code in [link]",
        )
    return encode_esp8266(segments, flash, next(region.origin for region in board.regions if region.name == code))


FORMATS: Mapping[str, Callable[[Sequence[Segment], Board], bytes]] = MappingProxyType(
    {
        "bin": lambda parts, board: join_segments(parts),
        "hex": lambda parts, board: encode_intel_hex(parts).encode("ascii"),
        "uf2": _encode_uf2_for_board,
        "esp": _encode_esp8266_for_board,
    }
)
"""Converters by the suffix of the file."""


def convert_image(elf: Path, suffix: str, board: Board) -> Path:
    """Convert an ELF file to the format ``suffix`` of :data:`FORMATS`; return the path of the new file beside it.

    Raises ToolError if the ELF file has no segment to load."""
    parts = read_segments(elf)
    if not parts:
        raise ToolError(
            "the program has no segment to load", where=str(elf), hint="build the project again: microc build DIR"
        )
    target = elf.with_suffix(f".{suffix}")
    with replace_atomically(target) as temporary:
        temporary.write_bytes(FORMATS[suffix](parts, board))
    return target


# ---- Flash an image onto a board. As in Zephyr's west, a board lists runners, and the first that is installed is
# used.
#
# The runner of an emulated board is gdb. The emulator holds the board at reset, gdb writes the image into its
# memory and compares it, and the board then runs from reset. These are the steps of flashing with a debug
# probe.


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
        hint = f"name it: --port {example_serial_port()}; `microc ports` lists those of this machine"
        raise UsageError(f"port: got none, expected the board's serial port for runner {runner.name}", hint=hint)
    for suffix in FORMATS:
        if runner.has_placeholder(suffix):
            convert_image(elf, suffix, board)
    files = _compute_placeholder_values(runner, board, elf, port)
    if runner.commands:
        lines = (fill_placeholders(line, files) for line in runner.commands)
        with replace_atomically(Path(files["commands"])) as temporary:
            write_text(temporary, "\n".join(lines) + "\n")
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
