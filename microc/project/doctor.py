"""Which tools are here, and how to get those that are not."""

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
from microc.device.emulators import find_program
from microc.device.runners import runners
from microc.device.toolchain import board_tools, install_commands
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
"""Python packages that some formats, comparisons and backends need."""
PROGRAMS = (
    ("cc", "host libraries and the host board", True),
    ("make", "building projects", True),
    ("arm-none-eabi-gcc", "building for Arm boards", False),
    ("qemu-system-arm", "emulated boards", False),
    ("riscv64-unknown-elf-gcc", "building for RISC-V boards", False),
    ("qemu-system-riscv32", "emulated RISC-V boards", False),
    ("avr-gcc", "building for AVR boards", False),
    ("simavr", "simulated AVR boards: a library, libsimavr, and its headers", False),
    ("hazard3-sim", "the simulated board hazard3-sim: scripts/hazard3/build.sh makes it", False),
    ("verilator", "making hazard3-sim", False),
    ("gdb-multiarch", "flashing emulated boards", False),
    ("openocd", "flashing over a debug probe", False),
)
"""Programs, what they serve, and whether microc is of no use without them."""
_SECONDS = 20


@frozen
class Finding:
    """One tool; ``version`` is empty when it is missing."""

    name: str
    purpose: str
    essential: bool
    version: str
    path: str

    @property
    def missing(self) -> bool:
        return not self.version


def examine(board: str = "") -> tuple[Finding, ...]:
    """Python, its packages and all programs; with ``board`` those alone that building for it, booting and flashing it take.

    UsageError where there is no such board.
    """
    found = [Finding("python", "microc itself", True, platform.python_version(), "")]
    for name in LIBRARIES:
        found.append(Finding(name, "Python package", True, _package_version(name), ""))
    if not board:
        found += [Finding(name, purpose, False, _package_version(name), "") for name, purpose in READERS]
    for name, purpose, essential in _programs_of(load_board(board)) if board else PROGRAMS:
        path = find_program(name)
        found.append(Finding(name, purpose, essential, _program_version(path) if path else "", path))
    return tuple(found)


def _programs_of(board: Board) -> list[tuple[str, str, bool]]:
    purposes = {name: purpose for name, purpose, _ in PROGRAMS}
    programs = dict.fromkeys(board_tools(board), True)
    ways = runners(board)
    if ways:
        best = next((way for way in ways if not way.lack), ways[0])
        programs.setdefault(best.argv[0], False)
    return [(name, purposes.get(name, board.name), essential) for name, essential in programs.items()]


def remedy(findings: Iterable[Finding]) -> tuple[tuple[str, ...], ...]:
    """Commands that install what is missing, each a program and its arguments; none when nothing is, or nothing is known to."""
    missing = [f.name for f in findings if f.missing]
    packages = [name for name in missing if name in LIBRARIES]
    python = ((sys.executable, "-m", "pip", "install", *packages),) if packages else ()
    return (*python, *install_commands(name for name in missing if name not in LIBRARIES))


def install(commands: Iterable[Sequence[str]]) -> None:
    """Run such commands, whose output goes to standard error. ToolError for one that fails."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in commands:
        line = shlex.join(command)
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=2, env=environment, check=False)
        except OSError as error:
            raise ToolError(f"cannot run {command[0]}: {error.strerror or error}", hint=f"by hand: {line}") from error
        if done.returncode:
            raise ToolError(f"{line} ended with {done.returncode}", hint="what it said stands above")


def _package_version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _program_version(path: str) -> str:
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    lines = (done.stdout or done.stderr).strip().splitlines()
    return lines[0] if lines else ""
