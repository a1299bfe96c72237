"""Measuring on a board: an emulator, hardware on a serial line, or any program that acts as one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from microc.device.simulator import ELF, simulated
from microc.device.toolchain import Sizes, find_compiler
from microc.driver.api import Program
from microc.driver.measure import firmware
from microc.driver.measure.clock import Clock
from microc.driver.measure.firmware import Project, open_project
from microc.driver.measure.flashing import flash_project
from microc.driver.measure.session import PATIENCE, Device
from microc.driver.tuned.records import OK, WRONG
from microc.driver.tuned.task import Task
from microc.dtypes import Array
from microc.errors import UsageError
from microc.target import Board
from microc.tuning.digest import digest_of
from microc.tuning.image import DIGESTS, image_module
from microc.tuning.kept import Kept
from microc.tuning.known import check_device
from microc.tuning.runner import Result, Runner, bound_of, disagreement, sample
from microc.tuning.space import Candidate

HELD = 4
"""Times that a board's flash must be as large as the inputs for an image to bring them along; else they come over the line."""


class BoardRunner(Runner):
    """A board, or its emulator or simulator where ``port`` is empty. A board on a port is flashed for every image; a ``pipe:``
    that names ``{elf}`` is a program that is started with it, and speaks for the board. ``patience`` as in :class:`Device`."""

    def __init__(self, board: Board, port: str = "", *, patience: float = PATIENCE) -> None:
        emulated = "emulator" in board.raw
        if not (port or emulated or simulated(board)):
            raise UsageError(
                f"board {board.name} has no emulator to measure on",
                hint="name its serial port (--port auto finds it), or take an emulated board of the same core",
            )
        self._board, self._port, self._patience = board, port, patience
        self.board = board.name
        self.unit = Clock(board, 1, emulated=emulated and not port).unit
        self.toolchain = find_compiler(board).version
        self._kept = Kept()
        self._read = set[str]()
        """Kernels of which an output that is digested as the right one was read, and is right."""

    def check(self) -> None:
        find_compiler(self._board)
        check_device(self._board, self._running)

    def _measured(self, task: Task, candidates: Sequence[Candidate]) -> list[Result]:
        arrays, wanted = sample(task)
        held = HELD * sum(array.nbytes for array in arrays) <= self._board.flash_bytes
        module = image_module(task, candidates, digested=True, given=arrays if held else ())
        with self._running(Program(module, self._board)) as (device, sizes):
            if not held:
                device.set_inputs(*arrays)
            return self._run(device, sizes, task, candidates, wanted)

    @contextmanager
    def _running(self, program: Program) -> Iterator[tuple[Device, Sizes]]:
        """A program, built, and brought onto the board; what is in it."""
        with tempfile.TemporaryDirectory(prefix="microc-tune-") as folder:
            program.write(folder)
            project = open_project(folder)
            self._kept.give(project.folder)
            sizes = firmware.build(project).sizes
            self._kept.take(project.folder)
            if self._port and ELF not in self._port:
                flash_project(project, port=self._port)
            with Device(project, self._line(project), patience=self._patience) as device:
                yield device, sizes

    def _line(self, project: Project) -> str:
        return self._port.replace(ELF, str(Path(project.elf).resolve()))

    def _run(
        self, device: Device, sizes: Sizes, task: Task, candidates: Sequence[Candidate], wanted: Sequence[Array]
    ) -> list[Result]:
        """All candidates in one run. Of what is digested alike one output is read; of what is digested as the right one, one in
        all images of a kernel."""
        code = {symbol.name.partition(".")[0]: symbol.size for symbol in sizes.symbols}  # of clones, too: f.constprop.0
        ends, right = len(wanted), tuple(map(digest_of, wanted))
        numbers = range(ends, len(device.kernels), 2 * ends + 1)
        ticks = device.kernel_ticks()
        digests = device.read(DIGESTS).reshape(-1, ends).tolist()
        verdicts: dict[tuple[float, ...], str] = {}
        found = []
        for candidate, number, digest in zip(candidates, numbers, map(tuple, digests), strict=True):
            kernel, bound = device.kernels[number], bound_of(candidate)
            alike = (bound, *digest)
            known = alike in verdicts or (digest == right and task.key in self._read)
            if not known:
                device.client.run(number - ends, number)
                verdicts[alike] = disagreement(wanted, kernel["outputs"], device.read, bound)
            if digest == right and not verdicts.get(alike):
                self._read.add(task.key)
            wrong, amount = verdicts.get(alike, ""), float(device.clock.amount(ticks[number]))
            size = code.get(kernel["function"], 0)
            found.append(Result(candidate, WRONG, detail=wrong) if wrong else Result(candidate, OK, amount, size))
        return found
