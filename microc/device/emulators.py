# SPDX-License-Identifier: Apache-2.0
"""Emulated boards (QEMU) and simulated boards (simulators whose standard input and output are the console)."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import tempfile
import time
import weakref
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import IO, Any, cast

from microc.base.operating_system import is_windows, join_arguments, system_name
from microc.device.board_info import make_printable
from microc.device.boards import emulated_board_hint
from microc.device.toolchain import NPM_FOLDER, host_compiler, install_hint, require_program, run_compiler
from microc.errors import DeviceError, ToolError, UsageError
from microc.target import Board

# ---- Emulated boards: a QEMU process with the console on a TCP port, and a control socket (QMP).
#
# QEMU chooses the ports, so that emulators can start in parallel without a race. With ``-icount`` in the board's arguments the
# emulated clock counts instructions, so that a program takes the same number of ticks on every computer.

_START_SECONDS = 20.0
_REPLY_SECONDS = 20.0
_END_SECONDS = 10.0
_SHOWN = 2000
_LONGEST = 1 << 20  # bytes of an answer on the control socket

_GUARD = """exec 3<&0
"$@" </dev/null 3<&- & emulator=$!
{ read -r _ <&3; kill -9 $emulator; } & guard=$!
wait $emulator
code=$?
kill $guard
exit $code"""
"""Shell script that runs a command and kills it when our end of its standard input closes, which happens however we
end."""


def _require_emulator_table(board: Board) -> dict[str, Any]:
    """Return the table ``emulator`` of a board file; raise UsageError if the board has none."""
    if "emulator" not in board.raw:
        hint = "; ".join(filter(None, ("use its serial port: --port", emulated_board_hint(board))))
        raise UsageError(f"board {board.name!r} has no emulator", hint=hint)
    return cast(dict[str, Any], board.raw["emulator"])


class Emulator:
    """An emulated board, which runs in a ``with`` block.

    ``elf``: the image to boot; None, with ``debug`` only, for a board without an image. ``debug``: hold the board at
    reset and serve gdb. Raises ToolError if the emulator is missing or does not start.
    """

    def __init__(self, board: Board, elf: Path | None, *, debug: bool = False) -> None:
        _require_emulator_table(board)
        if elf is None and not debug:
            raise UsageError("emulator: got no image, expected one", hint="pass an image, or debug=True")
        self.board = board
        self.argv: tuple[str, ...] = ()
        self._elf = elf
        self._debug = debug
        self._folder = Path()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: QmpSession | None = None
        self._ports_by_label: dict[str, int] = {}
        self._cleanup: weakref.finalize[[subprocess.Popen[bytes], Path], Emulator] | None = None

    def __enter__(self) -> Emulator:
        self._start_process(self._elf)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def restart(self, elf: Path) -> None:
        """Restart with another image. The ports change: read :attr:`url` again."""
        self.close()
        self._start_process(elf)

    def close(self) -> None:
        """End the emulator and wait for it; does nothing if it has ended."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._cleanup is not None:
            self._cleanup()

    def _start_process(self, elf: Path | None) -> None:
        """Start the emulator with an image, and connect to its control socket.

        Raises UsageError if the image is missing, ToolError if the emulator does not start."""
        if elf is not None and not elf.is_file():
            raise UsageError("the image does not exist", where=str(elf), hint="build the project first")
        if is_windows():
            raise ToolError(
                f"emulated boards need Linux or macOS; got {system_name()}",
                where=self.board.name,
                hint="run this command in WSL, or use a board on a serial port: --port COM3",
            )
        table = _require_emulator_table(self.board)
        program = require_program(table["argv"][0])
        self._folder = Path(tempfile.mkdtemp(prefix="microc-"))
        values = {"qmp": str(self._folder / "qmp"), "elf": str(elf)}
        arguments = [
            *table["argv"],
            *(table["image_argv"] if elf else ()),
            *(table["debug_argv"] if self._debug else ()),
        ]
        self.argv = tuple(fill_placeholders(argument, values) for argument in arguments)
        command = [require_program("sh"), "-c", _GUARD, "sh", program, *self.argv[1:]]
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)
        # finalize() also runs at the interpreter's exit
        self._cleanup = weakref.finalize(self, _end_emulator, self._process, self._folder)
        try:
            self._control = self._connect_control()
            self._ports_by_label = _parse_tcp_ports_by_label(self._control.execute("query-chardev"))
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        """Address of the console for :mod:`microc.device.transport`: ``socket://127.0.0.1:PORT``."""
        return f"socket://127.0.0.1:{self._ports_by_label['serial0']}"

    @property
    def gdb(self) -> str:
        """``host:port`` of the gdb server; raises UsageError if it was started without ``debug``."""
        if "gdb" not in self._ports_by_label:
            raise UsageError(
                "the emulator has no gdb server, because it was started without debug=True",
                hint="start it with debug=True",
            )
        return f"127.0.0.1:{self._ports_by_label['gdb']}"

    @property
    def running(self) -> bool:
        """True while the emulator's process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """Last :data:`_SHOWN` characters of the emulator's output, for errors."""
        file = self._folder / "log"
        return file.read_text(errors="replace").strip()[-_SHOWN:] if file.is_file() else ""

    def resume(self) -> None:
        """Continue a board that is held at reset."""
        self.execute_qmp_command("cont")

    def reset(self) -> None:
        """Reset the board; memory keeps what a debugger has loaded."""
        self.execute_qmp_command("system_reset")

    def execute_qmp_command(self, command: str) -> Any:
        """Execute a command of QEMU's machine protocol (QMP); return its result.

        Raises DeviceError if the emulator has ended or refuses the command."""
        if self._control is None or not self.running:
            raise DeviceError("the emulator has ended", where=self.argv[0], hint=self.log)
        return self._control.execute(command)

    def _connect_control(self) -> QmpSession:
        """Wait for the control socket and connect to it. Raises ToolError if the emulator ends or takes too long."""
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if not self.running:
                raise ToolError(f"{self.argv[0]} ended at once", where=" ".join(self.argv), hint=self.log)
            try:
                return QmpSession(self._folder / "qmp")
            except (FileNotFoundError, ConnectionRefusedError):
                time.sleep(0.01)
        raise ToolError(
            f"{self.argv[0]} did not start within {_START_SECONDS:.0f} s", where=" ".join(self.argv), hint=self.log
        )


class QmpSession:
    """A session on the emulator's control socket with QEMU's machine protocol (QMP): one JSON object in each line."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(_REPLY_SECONDS)
        try:
            self._socket.connect(str(path))
        except BaseException:
            self._socket.close()
            raise
        self._lines: IO[bytes] = self._socket.makefile("rb")
        self._read_reply()  # the greeting
        self.execute("qmp_capabilities")

    def close(self) -> None:
        self._lines.close()
        self._socket.close()

    def execute(self, command_name: str, arguments: Mapping[str, str] = MappingProxyType({})) -> Any:
        """Execute the QMP command ``command_name``; return its result. Events before the result are skipped.

        Raises DeviceError if the emulator refuses or does not answer."""
        command = {"execute": command_name, "arguments": dict(arguments)}
        try:
            self._socket.sendall(json.dumps(command).encode() + b"\n")
        except OSError as error:
            raise DeviceError(f"the emulator does not accept the command {command_name}: {error}") from error
        deadline = time.monotonic() + _REPLY_SECONDS
        while time.monotonic() < deadline:
            reply = self._read_reply()
            if "error" in reply:
                refusal = reply["error"]
                description = refusal.get("desc", "") if isinstance(refusal, dict) else refusal
                raise DeviceError(f"the emulator refuses {command_name}: {make_printable(str(description), 200)}")
            if "return" in reply:
                return reply["return"]
        raise DeviceError(f"the emulator does not answer {command_name} within {_REPLY_SECONDS:.0f} s")

    def _read_reply(self) -> dict[str, Any]:
        """Read the next JSON object from the control socket; raise DeviceError if none comes."""
        try:
            line = self._lines.readline(_LONGEST)
            reply = json.loads(line) if line else None
        except OSError as error:
            raise DeviceError(f"the emulator does not answer: {error}") from error
        except (ValueError, RecursionError) as error:
            raise DeviceError(f"the emulator's answer is malformed ({type(error).__name__})") from error
        if not line:
            raise DeviceError("the emulator has ended")
        if not isinstance(reply, dict):
            raise DeviceError("the emulator's answer is malformed: expected a JSON object")
        return cast(dict[str, Any], reply)


def fill_placeholders(argument: str, values: Mapping[str, str]) -> str:
    """Replace the placeholders ``{name}`` in an argument by ``values``; other braces stay."""
    for name, value in values.items():
        argument = argument.replace("{" + name + "}", value)
    return argument


def _parse_tcp_ports_by_label(devices: list[dict[str, Any]]) -> dict[str, int]:
    """Parse the TCP ports of QEMU's character devices; return them by the device's label.

    ``devices``: the answer to ``query-chardev``, with file names such as
    ``disconnected:tcp:127.0.0.1:33991,server=on``."""
    found = {}
    for device in devices:
        _, tcp, address = device["filename"].partition("tcp:")
        if tcp:
            found[device["label"]] = int(address.partition(",")[0].rpartition(":")[2])
    return found


def _end_emulator(process: subprocess.Popen[bytes], folder: Path) -> None:
    """End the emulator and delete its folder. Closing its standard input ends it; after a time-out it is killed."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    shutil.rmtree(folder, ignore_errors=True)


# ---- Simulated boards: a program that runs the firmware cycle by cycle, with the console on standard input and output.
#
# Such a program needs no control socket and is used like any board on a line. Two names in board files stand for programs of
# this folder around emulators that are libraries: ``simavr`` for ``simavr_console.c``, which is compiled on first use (simavr's
# own program does not connect a USART to standard input), ``rp2040js`` for ``rp2040_console.cjs``, which Node.js runs.

ELF = "{elf}"
"""Placeholder of the image in a command."""
SIMAVR, RP2040JS = "simavr", "rp2040js"
_NPM_SECONDS = 30


def make_simulator_address(board: Board, elf: Path) -> str:
    """Return the transport address ``pipe:PROGRAM ARGUMENTS`` that starts a board's simulator with an image.

    Raises UsageError if the image is missing, ToolError if the simulator is missing."""
    table = board.raw["simulator"]
    if not elf.is_file():
        raise UsageError("the image does not exist", where=str(elf), hint="build the project first")
    command = _require_simulator(table["argv"][0], table.get("install", ""))
    arguments = [argument.replace(ELF, str(elf.resolve())) for argument in table["argv"][1:]]
    return "pipe:" + join_arguments([*command, *arguments])


def find_program_or_simulator(name: str) -> tuple[str, ...]:
    """Return the command that starts a program on PATH or one of microc's own simulators; empty if it is missing."""
    try:
        return _require_simulator(name)
    except ToolError:
        return ()


def _require_simulator(name: str, install: str = "") -> tuple[str, ...]:
    """Return the command that starts a simulator, to which its arguments are appended. Raises ToolError if the simulator
    is missing.

    ``install``: the error's hint for a program on PATH."""
    if name == SIMAVR:
        return (build_simavr_console(),)
    if name == RP2040JS:
        return _require_rp2040js()
    return (require_program(name, install),)


def _require_rp2040js() -> tuple[str, ...]:
    """Return the command that runs the console program around rp2040js. Raises ToolError if Node.js or the package is
    missing."""
    package = _find_npm_package(RP2040JS)
    node = shutil.which("node")
    if package is None or node is None:
        missing = "rp2040js, which emulates the RP2040," if node else "Node.js, which runs the emulator rp2040js,"
        raise ToolError(
            f"{missing} is not installed",
            where=RP2040JS,
            hint=f"{install_hint(RP2040JS if node else 'node')}; or, for a board that is plugged in, name its port: --port auto",
        )
    return node, str(Path(__file__).with_name("rp2040_console.cjs")), str(package)


def _find_npm_package(name: str) -> Path | None:
    """Return the folder of a package that npm has installed: beside this Python environment, or for all users."""
    own = NPM_FOLDER / "node_modules" / name
    if own.is_dir():
        return own
    root = _npm_root()
    return root / name if root is not None and (root / name).is_dir() else None


@lru_cache(maxsize=1)
def _npm_root() -> Path | None:
    """Return the folder of the packages that npm has installed for all users; None without npm."""
    npm = shutil.which("npm")
    if npm is None:
        return None
    try:
        result = subprocess.run(
            [npm, "root", "--global"],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_NPM_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return Path(result.stdout.strip())


def build_simavr_console() -> str:
    """Compile the console program around libsimavr, once in each process; return its path.

    Raises ToolError if the library or its headers are missing."""
    return str(Path(_compile_simavr_console().name) / "console")


@lru_cache(maxsize=1)
def _compile_simavr_console() -> tempfile.TemporaryDirectory[str]:
    """Compile the console program around libsimavr into a temporary folder, which is deleted at exit; return the
    folder."""
    folder = tempfile.TemporaryDirectory(prefix="microc-simavr-")
    source = Path(__file__).with_name("simavr_console.c")
    try:
        command = (host_compiler(), "-O2", "-o", f"{folder.name}/console", str(source), "-lsimavr")
        run_compiler(command, Path(folder.name))
    except ToolError as error:
        folder.cleanup()
        raise ToolError(
            "libsimavr, which simulates AVR boards, is not installed", where=SIMAVR, hint=install_hint(SIMAVR)
        ) from error
    return folder
