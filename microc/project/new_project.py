"""A folder to start in, and the demonstration."""

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
from microc.codegen.output_files import replacing_folder
from microc.codegen.render import Code, Text, render
from microc.compiler import api
from microc.compiler.interaction import Progress
from microc.compiler.options import make_options
from microc.device.board_info import Stats
from microc.device.boards import load_board
from microc.device.toolchain import Sizes, board_tools
from microc.frontend.detect import contents
from microc.project.config import FOLDER, NAME, config_text
from microc.run import board_project
from microc.run.profile import Clock
from microc.run.session import Device

# ---- A folder to start in: ``microc.toml``, the model, a README and what git ignores.

DIGITS = "digits/digits_int8.tflite"
"""The model of a project that names none: the demonstration's."""


@frozen
class Start:
    """What the templates are filled with."""

    name: Text
    model: Text
    board: Text
    folder: Code


def new_project(folder: Path, model: Path | None, board: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Write a project into a folder that is new or empty; the names of its files.

    ``model``: a file, which is read to see that it is a model, and copied; None: that of the demonstration. ``options`` are
    keywords of :func:`~microc.compiler.options.make_options`. Raises what reading a model or a board
    raises, and has written nothing then.
    """
    from microc.compiler.pipeline import read_at_largest

    source = file_access.examples() / DIGITS if model is None else model
    load_board(board)
    read_at_largest(source, make_options(**options))
    suffix = source.suffix if source.suffix[1:].isalnum() else ""
    copy = network_name(source.stem) + suffix.lower()
    named = board if not board.endswith(".toml") else str(Path(board).resolve())
    start = Start(Text(folder.resolve().name), Text(copy), Text(named), Code(FOLDER))
    files: dict[str, bytes] = {
        NAME: config_text(copy, named, {name: _there(value) for name, value in options.items()}).encode(),
        copy: contents(source),
        "README.md": render("new/README.md.j2", start).encode(),
        ".gitignore": render("new/gitignore.j2", start).encode(),
    }
    with replacing_folder(folder, marker=None, option="microc new") as temporary:
        for name, content in files.items():
            (temporary / name).write_bytes(content)
    return tuple(files)


def _there(value: Any) -> Any:
    """A path of the command line, which means another file from within the project."""
    if isinstance(value, Path):
        return value.resolve()
    return tuple(map(_there, value)) if isinstance(value, tuple) else value


# ---- The demonstration: a real network from its file to answers over an emulated board's serial line.
#
# Handwritten digits, 360 images that training never saw; the reference is TFLite Micro on a computer (examples/digits).

MODEL = "digits_int8.tflite"
BOARD = "netduinoplus2"
_SEED = 3


@frozen
class Demonstration:
    """What was done, and found.

    ``images`` and ``scores`` are int8, (n, 1, 8, 8, 1) and (n, 10); ``labels`` the true digits. ``report`` is
    :meth:`microc.compiler.api.Program.report`. ``ram``: bytes needed,
    stack included. ``ticks`` of one run are by kernel, on ``clock``. Times are in seconds.
    """

    report: dict[str, Any]
    title: str
    sizes: Sizes
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
        """The digit that the board sees in every image."""
        found: Array = self.scores.argmax(axis=1)
        return found

    @property
    def right(self) -> int:
        return int(np.sum(self.answers == self.labels))

    @property
    def passed(self) -> bool:
        """Whether it is right as often as the reference."""
        return self.right / len(self.labels) >= self.reference


def choose_board() -> tuple[str, tuple[str, ...]]:
    """The emulated board, or this computer, and the tools that the board lacks here."""
    missing = tuple(tool for tool in board_tools(load_board(BOARD)) if shutil.which(tool) is None)
    return ("host" if missing else BOARD), missing


def demonstrate(board: str, progress: Progress | None = None) -> Demonstration:
    """Compile the network, build its firmware, boot it, and send it all images. Raises what compiling, building and a board's
    line raise."""
    folder = file_access.examples() / "digits"
    images, labels = _test_set()
    reference = json.loads((folder / "reference.json").read_text(encoding="utf-8"))[MODEL]
    with tempfile.TemporaryDirectory(prefix="microc-demo-") as place:
        begin = time.monotonic()
        program = api.compile(folder / MODEL, board=board, progress=progress)
        project = board_project.open_project(program.write(place))
        compiled = time.monotonic()
        sizes = board_project.build(project).sizes
        ram = sizes.static_ram + project.peak_stack
        built = time.monotonic()
        with Device(project) as device:
            scores = _classified(device, images, progress)
            line = time.monotonic() - built
            device.set_inputs(images[0])
            ticks, stats = device.kernel_ticks(), device.stats()
            return Demonstration(
                program.report(), program.board.title, sizes, ram, compiled - begin, built - compiled, line,
                images, labels, scores, tuple(device.kernels), ticks, device.clock, stats, reference,
            )  # fmt: skip


def _test_set() -> tuple[Array, Array]:
    """Shuffled images, quantised as the network's input is, and their labels."""
    with np.load(file_access.examples() / "digits" / "digits_test.npz") as data:
        order = np.random.default_rng(_SEED).permutation(len(data["labels"]))
        pixels, labels = data["images"][order], data["labels"][order]
    return (np.round(pixels / 16 * 255) - 128).astype(np.int8)[:, None], labels


def _classified(device: Device, images: Array, progress: Progress | None) -> Array:
    """The board's answer to every image."""
    scores = []
    for k, image in enumerate(images):
        found = device.run(image)
        assert isinstance(found, np.ndarray)
        scores.append(found.reshape(-1))
        if progress is not None:
            progress("image", k, len(images))
    return np.stack(scores)
