# SPDX-License-Identifier: Apache-2.0
"""``microc doctor``: find the programs and Python packages that microc uses, and install those that are missing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence

from microc.base.immutable import frozen
from microc.device.boards import load_board
from microc.device.emulators import find_program_or_simulator
from microc.device.runners import list_runners_of_board
from microc.device.toolchain import install_commands, list_tools_of_board
from microc.errors import ToolError
from microc.target import Board

LIBRARIES = ("numpy", "jinja2", "onnx", "tflite", "flatbuffers", "pyserial", "cobs", "pyelftools", "jsonschema")
READERS = (
    ("h5py", "Keras models: microc[keras]"),
    ("skl2onnx", "scikit-learn's estimators: microc[sklearn]"),
    ("torch", "PyTorch programs: microc[torch]"),
    ("onnxruntime", "verify --against onnxruntime: microc[reference]"),
    ("tflite-micro", "verify --against tflm: microc[reference]"),
    ("ai-edge-litert", "verify --against litert: microc[reference]"),
    ("ethos-u-vela", "regions on an Ethos-U: microc[ethos-u]"),
)
"""Optional Python packages, each with what needs it: a model format, a comparison or a backend."""
PROGRAMS = (
    ("cc", "host libraries and the host board", True),
    ("make", "building projects", True),
    ("arm-none-eabi-gcc", "building for Arm boards", False),
    ("qemu-system-arm", "emulated boards", False),
    ("riscv64-unknown-elf-gcc", "building for RISC-V boards", False),
    ("qemu-system-riscv32", "emulated RISC-V boards", False),
    ("xtensa-lx106-elf-gcc", "building for the ESP8266", False),
    ("qemu-system-xtensa", "an emulated board with the ESP8266's core", False),
    ("avr-gcc", "building for AVR boards", False),
    ("simavr", "simulated AVR boards: a library, libsimavr, and its headers", False),
    ("rp2040js", "the emulated Raspberry Pi Pico: a package of npm, for Node.js", False),
    ("hazard3-sim", "the simulated board hazard3-sim: scripts/hazard3/build.sh makes it", False),
    ("verilator", "making hazard3-sim", False),
    ("gdb-multiarch", "flashing emulated boards", False),
    ("openocd", "flashing over a debug probe", False),
)
"""Programs: name, purpose, and True if microc cannot be used without the program."""
_SECONDS = 20
"""Time limit in seconds for a program that prints its version."""


@frozen
class Finding:
    """A program or Python package that :func:`find_tools` looked for.

    ``essential``: True if microc requires it. ``version``: its version, empty if it is missing. ``path``: the path of a
    program, empty for a package."""

    name: str
    purpose: str
    essential: bool
    version: str
    path: str

    @property
    def missing(self) -> bool:
        return not self.version


def find_tools(board: str = "") -> tuple[Finding, ...]:
    """Look for Python, its packages and the programs that microc uses.

    If ``board`` is not empty, look only for the required packages and for the programs that build, boot and flash this
    board. Raises UsageError if there is no such board."""
    findings = [Finding("python", "microc itself", True, platform.python_version(), "")]
    for name in LIBRARIES:
        findings.append(Finding(name, "Python package", True, _package_version(name), ""))
    if not board:
        findings += [Finding(name, purpose, False, _package_version(name), "") for name, purpose in READERS]
    for name, purpose, essential in _list_programs_for_board(load_board(board)) if board else PROGRAMS:
        command = find_program_or_simulator(name)
        version = _program_version(command) if command else ""
        findings.append(Finding(name, purpose, essential, version, command[-1] if command else ""))
    return tuple(findings)


def _list_programs_for_board(board: Board) -> list[tuple[str, str, bool]]:
    """List the programs for a board as (name, purpose, True if essential).

    Essential are the programs that build its firmware, and those that emulate it if there is no such board. Of the
    programs that can flash the board only the first usable one is listed."""
    purposes = {name: purpose for name, purpose, _ in PROGRAMS}
    programs = dict.fromkeys(list_tools_of_board(board), True)
    if board.simulated and board.raw["flash"]["runner"]:
        programs[board.raw["simulator"]["argv"][0]] = False  # the board itself may be plugged in
    flashers = list_runners_of_board(board)
    if flashers:
        best = next((flasher for flasher in flashers if not flasher.missing_requirement), flashers[0])
        programs.setdefault(best.argv[0], False)
    return [(name, purposes.get(name, board.name), essential) for name, essential in programs.items()]


def list_install_commands(findings: Iterable[Finding]) -> tuple[tuple[str, ...], ...]:
    """List the commands that install missing tools, each as a program with its arguments.

    The list is empty if nothing is missing, or if it is not known which packages contain the missing tools."""
    missing = [f.name for f in findings if f.missing]
    packages = [name for name in missing if name in LIBRARIES]
    python = ((sys.executable, "-m", "pip", "install", *packages),) if packages else ()
    return (*python, *install_commands(name for name in missing if name not in LIBRARIES))


def run_install_commands(commands: Iterable[Sequence[str]]) -> None:
    """Run the commands that :func:`list_install_commands` lists; their output goes to standard error.

    Raises ToolError if a command cannot be run or fails."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in commands:
        line = shlex.join(command)
        try:
            result = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=2, env=environment, check=False)
        except OSError as error:
            raise ToolError(
                f"cannot run {command[0]}: {error.strerror or error}", hint=f"run the command by hand: {line}"
            ) from error
        if result.returncode:
            raise ToolError(
                f"{line}: the command failed; got exit code {result.returncode}, expected 0",
                hint="read the messages above, and run the command by hand",
            )


def _package_version(name: str) -> str:
    """Return the version of an installed Python package; empty if the package is missing."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _program_version(command: Sequence[str]) -> str:
    """Return the first line that a program prints for ``--version``; empty if the program fails."""
    try:
        result = subprocess.run(
            [*command, "--version"], capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    lines = (result.stdout or result.stderr).strip().splitlines()
    return lines[0] if lines else ""
