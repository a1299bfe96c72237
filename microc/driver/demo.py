"""The demonstration: a real network from its file to answers over an emulated board's serial line.

Handwritten digits, 360 images that training never saw; the reference is TFLite Micro on a computer (examples/digits).
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from typing import Any

import numpy as np

from microc import paths
from microc.device.boards import load_board
from microc.device.info import Stats
from microc.device.toolchain import Sizes, board_tools
from microc.driver import api
from microc.driver.measure import firmware
from microc.driver.measure.clock import Clock
from microc.driver.measure.session import Device
from microc.driver.progress import Progress
from microc.dtypes import Array
from microc.frozen import frozen

MODEL = "digits_int8.tflite"
BOARD = "netduinoplus2"
_SEED = 3


@frozen
class Demonstration:
    """What was done, and found.

    ``images`` and ``scores`` are int8, (n, 1, 8, 8, 1) and (n, 10); ``labels`` the true digits. ``report`` is
    :meth:`microc.driver.api.Program.report`. ``ram``: bytes needed,
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
    folder = paths.examples() / "digits"
    images, labels = _test_set()
    reference = json.loads((folder / "reference.json").read_text(encoding="utf-8"))[MODEL]
    with tempfile.TemporaryDirectory(prefix="microc-demo-") as place:
        begin = time.monotonic()
        program = api.compile(folder / MODEL, board=board, progress=progress)
        project = firmware.open_project(program.write(place))
        compiled = time.monotonic()
        sizes = firmware.build(project).sizes
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
    with np.load(paths.examples() / "digits" / "digits_test.npz") as data:
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
