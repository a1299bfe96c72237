"""Measuring on a board: an emulator, hardware on a serial line, or any program that acts as one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from microc.device.simulator import ELF, simulated
from microc.device.toolchain import find_compiler
from microc.driver.api import Program
from microc.driver.measure import firmware
from microc.driver.measure.clock import Clock
from microc.driver.measure.firmware import Project, open_project
from microc.driver.measure.flashing import flash_project
from microc.driver.measure.session import PATIENCE, Device
from microc.driver.report.size import measure as sizes_of
from microc.driver.tuned.records import OK, WRONG
from microc.driver.tuned.task import Task
from microc.errors import UsageError
from microc.target import Board
from microc.tuning.image import image_module
from microc.tuning.known import check_device
from microc.tuning.runner import Result, Runner, disagreement, sample, spoilt
from microc.tuning.space import Candidate


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

    def check(self) -> None:
        find_compiler(self._board)
        check_device(self._board, self._running)

    def _measured(self, task: Task, candidates: Sequence[Candidate]) -> list[Result]:
        with self._running(Program(image_module(task, candidates), self._board)) as device:
            code = [layer.code for layer in sizes_of(device.project).layers]
            return self._run(device, task, candidates, code)

    @contextmanager
    def _running(self, program: Program) -> Iterator[Device]:
        """A program, built, and brought onto the board."""
        with tempfile.TemporaryDirectory(prefix="microc-tune-") as folder:
            program.write(folder)
            project = open_project(folder)
            firmware.build(project)
            if self._port and ELF not in self._port:
                flash_project(project, port=self._port)
            with Device(project, self._line(project), patience=self._patience) as device:
                yield device

    def _line(self, project: Project) -> str:
        return self._port.replace(ELF, str(Path(project.elf).resolve()))

    def _run(self, device: Device, task: Task, candidates: Sequence[Candidate], code: Sequence[int]) -> list[Result]:
        arrays, wanted = sample(task, device.inputs)
        device.set_inputs(*arrays)
        found = []
        for number, (candidate, kernel) in enumerate(zip(candidates, device.kernels, strict=True)):
            for array, name in zip(wanted, kernel["outputs"], strict=True):
                device.spoil(name, spoilt(array))
            ticks = device.run_kernel(number).min
            wrong = disagreement(wanted, kernel["outputs"], device.read)
            if wrong:
                found.append(Result(candidate, WRONG, detail=wrong))
            else:
                found.append(Result(candidate, OK, float(device.clock.amount(ticks)), code[number]))
        return found
