# SPDX-License-Identifier: Apache-2.0
"""First steps with microc: ``microc new``, ``microc demo`` and ``microc doctor``."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from microc.base import file_access
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.base.operating_system import join_arguments
from microc.codegen.c.identifiers import network_name
from microc.codegen.output_files import replace_folder_atomically
from microc.codegen.render import Code, Text, render
from microc.compiler import api
from microc.compiler.interaction import Progress
from microc.compiler.options import make_options
from microc.device.board_info import Stats
from microc.device.boards import list_runners_of_board, load_board
from microc.device.emulators import find_program_or_simulator
from microc.device.toolchain import LinkedSizes, install_commands, list_tools_of_board
from microc.errors import ToolError
from microc.frontend.detect import read_model_bytes
from microc.project.config import FOLDER, NAME, format_config
from microc.run import board_project
from microc.run.profile import Clock
from microc.run.session import Device
from microc.target import Board

# ---- A new project: ``microc.toml``, the model, a README and .gitignore.

DIGITS = "digits/digits_int8.tflite"
"""Default model of a new project, the model of the demonstration: path in the folder of examples."""


@frozen
class ProjectTemplateValues:
    """Values that the templates of a new project's README and .gitignore use: ``name`` of the project, its ``model``
    and ``board``, and the ``folder`` of the C project."""

    name: Text
    model: Text
    board: Text
    folder: Code


def write_new_project(folder: Path, model: Path | None, board: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Write the files of a project into a new or empty folder; return the names of the files.

    ``model``: the model file to copy into the folder; None: the model of the demonstration. ``options``: keywords of
    :func:`~microc.compiler.options.make_options`. Model and board are read first; if either is invalid, the error is
    raised before anything is written."""
    from microc.compiler.pipeline import read_and_optimise_at_maximum

    source = file_access.examples_folder() / DIGITS if model is None else model
    load_board(board)
    read_and_optimise_at_maximum(source, make_options(**options))
    suffix = source.suffix if source.suffix[1:].isalnum() else ""
    copy = network_name(source.stem) + suffix.lower()
    board_name = board if not board.endswith(".toml") else str(Path(board).resolve())
    start = ProjectTemplateValues(Text(folder.resolve().name), Text(copy), Text(board_name), Code(FOLDER))
    files: dict[str, bytes] = {
        NAME: format_config(
            copy, board_name, {name: _make_paths_absolute(value) for name, value in options.items()}
        ).encode(),
        copy: read_model_bytes(source),
        "README.md": render("new/README.md.j2", start).encode(),
        ".gitignore": render("new/gitignore.j2", start).encode(),
    }
    with replace_folder_atomically(folder, marker=None, option="microc new") as temporary:
        for name, content in files.items():
            (temporary / name).write_bytes(content)
    return tuple(files)


def _make_paths_absolute(value: Any) -> Any:
    """Make the paths in an option's value absolute, because the project resolves relative paths against its own
    folder."""
    if isinstance(value, Path):
        return value.resolve()
    return tuple(map(_make_paths_absolute, value)) if isinstance(value, tuple) else value


# ---- The demonstration: it compiles a model, boots the firmware on an emulated board, and reads results over the serial line.
#
# The network classifies 360 images of handwritten digits that were not used for training. The reference accuracy was reached by
# TFLite Micro on a PC (examples/digits).

MODEL = "digits_int8.tflite"
BOARD = "netduinoplus2"
_SEED = 3
"""Seed of the generator that shuffles the images."""


@frozen
class Demonstration:
    """The results of the demonstration.

    ``report``: result of :meth:`microc.compiler.api.Program.report`. ``title``: the board's title. ``ram``: bytes of
    RAM, including the stack. ``compiled_seconds``, ``built_seconds`` and ``line_seconds``: duration of compiling, of
    building, and of all runs over the serial line. ``images``: int8, shape (n, 1, 8, 8, 1); ``scores``: the network's
    results, int8, shape (n, 10); ``labels``: the true digits. ``kernels``: their entries in the manifest; ``ticks``:
    time of each kernel in one run, in the unit of ``clock``. ``reference``: the accuracy that must be reached, 0 to
    1."""

    report: dict[str, Any]
    title: str
    sizes: LinkedSizes
    ram: int
    compiled_seconds: float
    built_seconds: float
    line_seconds: float
    images: Array
    labels: Array
    scores: Array
    kernels: tuple[dict[str, Any], ...]
    ticks: tuple[int, ...]
    clock: Clock
    stats: Stats
    reference: float

    @property
    def answers(self) -> Array:
        """The digit that the network on the board recognises, for every image."""
        answers: Array = self.scores.argmax(axis=1)
        return answers

    @property
    def correct_count(self) -> int:
        """Number of images whose digit the network on the board recognises correctly."""
        return int(np.sum(self.answers == self.labels))

    @property
    def passed(self) -> bool:
        """True if the accuracy on the board is at least the reference accuracy."""
        return self.correct_count / len(self.labels) >= self.reference


def choose_demo_board() -> tuple[str, tuple[str, ...]]:
    """Choose the board of the demonstration; return its name and the tools that are missing.

    The board is the emulated board :data:`BOARD`, or ``host`` (this computer) if tools for that board are missing."""
    missing = tuple(tool for tool in list_tools_of_board(load_board(BOARD)) if shutil.which(tool) is None)
    return ("host" if missing else BOARD), missing


def run_demonstration(board: str, progress: Progress | None = None) -> Demonstration:
    """Compile the digits network for a board, build and boot its firmware, and run it on all images.

    Raises the errors of compiling, of building and of the serial line."""
    folder = file_access.examples_folder() / "digits"
    images, labels = _load_digit_images_and_labels()
    reference = json.loads((folder / "reference.json").read_text(encoding="utf-8"))[MODEL]
    with tempfile.TemporaryDirectory(prefix="microc-demo-") as temporary:
        start = time.monotonic()
        program = api.compile(folder / MODEL, board=board, progress=progress)
        project = board_project.open_project(program.write(temporary))
        compile_end = time.monotonic()
        sizes = board_project.build_project(project).sizes
        ram = sizes.static_ram + project.peak_stack
        build_end = time.monotonic()
        with Device(project) as device:
            scores = _run_images_on_board(device, images, progress)
            line_seconds = time.monotonic() - build_end
            device.set_inputs(images[0])
            ticks, stats = device.kernel_ticks(), device.stats()
            return Demonstration(
                program.report(), program.board.title, sizes, ram, compile_end - start, build_end - compile_end, line_seconds,
                images, labels, scores, tuple(device.kernels), ticks, device.clock, stats, reference,
            )  # fmt: skip


def _load_digit_images_and_labels() -> tuple[Array, Array]:
    """Load the images of digits, shuffled and quantised to the network's input, and their labels in the same order."""
    with np.load(file_access.examples_folder() / "digits" / "digits_test.npz") as data:
        order = np.random.default_rng(_SEED).permutation(len(data["labels"]))
        pixels, labels = data["images"][order], data["labels"][order]
    return (np.round(pixels / 16 * 255) - 128).astype(np.int8)[:, None], labels


def _run_images_on_board(device: Device, images: Array, progress: Progress | None) -> Array:
    """Run the network on the board for every image; return the scores, shape (images, classes)."""
    scores = []
    for k, image in enumerate(images):
        answer = device.run(image)
        assert isinstance(answer, np.ndarray)
        scores.append(answer.reshape(-1))
        if progress is not None:
            progress("image", k, len(images))
    return np.stack(scores)


# ---- ``microc doctor``: find the programs and Python packages that microc uses, and install those that are missing.


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
    ("llvm-mca-19", "model cycles: profile --cycles, tune --measure cycles", False),
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
        line = join_arguments(command)
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
            [*command, "--version"],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    lines = (result.stdout or result.stderr).strip().splitlines()
    return lines[0] if lines else ""
