# SPDX-License-Identifier: Apache-2.0
"""``microc new`` creates a project folder; ``microc demo`` runs a demonstration on an emulated board."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from microc.base import file_access
from microc.base.dtypes import Array
from microc.base.immutable import frozen
from microc.codegen.c.identifiers import network_name
from microc.codegen.output_files import replace_folder_atomically
from microc.codegen.render import Code, Text, render
from microc.compiler import api
from microc.compiler.interaction import Progress
from microc.compiler.options import make_options
from microc.device.board_info import Stats
from microc.device.boards import load_board
from microc.device.toolchain import LinkedSizes, list_tools_of_board
from microc.frontend.detect import read_model_bytes
from microc.project.config import FOLDER, NAME, format_config
from microc.run import board_project
from microc.run.profile import Clock
from microc.run.session import Device

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
