# SPDX-License-Identifier: Apache-2.0
"""The smoke firmware of the port tests: building it for a board, and talking to it."""

from __future__ import annotations

import select
import shutil
import socket
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from microc.base import file_access
from microc.codegen.project.board_files import linker_script, render_board_header
from microc.device.boards import list_boards, load_board
from microc.device.emulators import find_program_or_simulator
from microc.target import Board

SMOKE = Path(__file__).with_name("smoke_firmware.c")

EMULATED = tuple(name for name in list_boards() if "ticks_per_instruction" in load_board(name).raw.get("emulator", {}))
"""All boards whose emulator counts instructions."""
FAMILIES = (
    "mps2-an386",
    "netduinoplus2",
    "microbit",
    "lm3s6965evb",
    "emcraft-sf2",
    "mps3-an547",
    "hifive1",
    "qemu-riscv64",
)
"""One of each family of UARTs, and the cores that differ most."""

WARNINGS = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Wconversion", "-Wsign-conversion", "-Wshadow", "-Werror")


def needs(*programs: str) -> pytest.MarkDecorator:
    """Skip, saying why, unless all programs are there."""
    missing = [program for program in programs if shutil.which(program) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not on PATH")


def skip_without(board: Board) -> None:
    """Skip, saying why, unless a board's compiler and emulator are there."""
    tools = [
        board.raw["framework"]["tool"] if "framework" in board.raw else board.raw["build"]["prefix"] + "gcc",
        "make",
    ]
    tools += [board.raw[kind]["argv"][0] for kind in ("emulator", "simulator") if kind in board.raw and board.virtual]
    missing = [tool for tool in tools if not find_program_or_simulator(tool)]
    if missing:
        pytest.skip("needs " + ", ".join(missing) + ": run microc doctor")


def build(board: Board, folder: Path, *flags: str, program: Sequence[Path] = (SMOKE,)) -> Path:
    """Compile and link the smoke firmware, or another program, with the board's port, as a project does."""
    skip_without(board)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "microc_board.h").write_text(render_board_header(board))
    (folder / "linker.ld").write_text(linker_script(board))
    options = board.raw["build"]
    runtime = file_access.runtime_c_folder()
    elf = folder / "smoke.elf"
    argv = [options["prefix"] + "gcc", *options["c_flags"], "-Os", "-ffunction-sections", "-fdata-sections", *WARNINGS]
    argv += [
        "-include",
        "microc_board.h",
        "-I",
        str(folder),
        "-I",
        str(runtime / "include"),
        "-I",
        str(runtime / "ports"),
    ]
    argv += [str(runtime / source) for source in options["sources"]]
    argv += [*map(str, program), *options["ld_flags"], "-Wl,--fatal-warnings"]
    script = [] if board.target.isa == "avr" else ["-T", str(folder / "linker.ld")]  # avr-libc brings its own
    argv += [*script, *flags, "-lm", "-o", str(elf)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return elf


class Line:
    """A connection to the smoke firmware."""

    def __init__(self, url: str) -> None:
        host, port = url.removeprefix("socket://").split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=20)

    def __enter__(self) -> Line:
        self.greet()
        return self

    def __exit__(self, *unused: object) -> None:
        self._socket.close()

    def greet(self) -> None:
        """Wait until the firmware answers: what arrives before its UART is set up is lost, as on real hardware."""
        for number in range(1, 32):
            self.send(bytes([number]))
            if select.select([self._socket], [], [], 0.5)[0]:
                while self.receive(1) != bytes([number]):
                    pass
                return
        raise AssertionError("the firmware does not answer")

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def command(self, letter: str, argument: int, data: bytes = b"") -> None:
        self.send(letter.encode() + struct.pack("<I", argument) + data)

    def receive(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self._socket.recv(count - len(data))
            assert more, "the emulator closed the line"
            data += more
        return data

    def words(self, count: int) -> tuple[int, ...]:
        return struct.unpack(f"<{count}I", self.receive(4 * count))
