"""Measuring on a board that is flashed once: candidates are loaded into its RAM over the line, and called there.

The firmware is one for tuning (SPEC.md of the runtime, "Loading code"). Code runs from RAM, without the wait states and caches of
flash: such ticks are compared with each other alone, and records name the board so.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from microc import te
from microc.codegen.project import sources_around
from microc.device.simulator import ELF
from microc.device.toolchain import find_compiler
from microc.driver.api import Program
from microc.driver.compile.fingerprint import fingerprint
from microc.driver.compile.function import function_module
from microc.driver.measure import firmware
from microc.driver.measure.firmware import Project, open_project
from microc.driver.measure.flashing import flash_project
from microc.driver.measure.loading import Loaded, Loader
from microc.driver.measure.session import PATIENCE, Device
from microc.driver.tuned.records import FAILED, FROM_RAM, OK, WRONG
from microc.driver.tuned.task import Task
from microc.dtypes import Array
from microc.errors import DeviceError, FitError
from microc.module import Module
from microc.schedule.schedule import Schedule
from microc.target import Board, Target
from microc.tuning.image import image_module
from microc.tuning.on_board import BoardRunner
from microc.tuning.runner import Result, disagreement, sample, spoilt
from microc.tuning.space import Candidate

PROTOCOL = "tuning"


class LoadRunner(BoardRunner):
    """A board as :class:`BoardRunner` takes it, flashed at the start alone. A candidate that faults or hangs costs a restart of
    the emulator; on a port it costs a flashing, unless the board resets itself. ``patience``: seconds that a kernel may take."""

    def __init__(self, board: Board, port: str = "", *, patience: float = PATIENCE) -> None:
        super().__init__(board, port, patience=patience)
        sources_around(board, PROTOCOL)
        self.board = board.name + FROM_RAM
        self._stack = ExitStack()
        self._desk: Desk | None = None
        self._busy = threading.Lock()

    def measure(self, task: Task, candidates: Sequence[Candidate]) -> list[Result]:
        with self._busy:
            try:
                return super().measure(task, candidates)
            finally:
                if self._stopped:
                    self._stack.close()

    def stop(self) -> None:
        super().stop()
        if self._busy.acquire(blocking=False):  # else whoever measures lets go
            self._stack.close()
            self._busy.release()

    def check(self) -> None:
        find_compiler(self._board)
        self._at_desk().restart()

    def _measured(self, task: Task, candidates: Sequence[Candidate]) -> list[Result]:
        module = image_module(task, candidates)
        desk = self._at_desk()
        loaded = desk.load(module)
        arrays, wanted = sample(task)
        loaded.set_inputs(*arrays)
        results = []
        for number, candidate in enumerate(candidates):
            result = self._one(desk, loaded, candidate, number, wanted)
            if result.status != OK:  # perhaps by what another one has overwritten; the board may be a new one
                loaded = desk.load(module, afresh=True)
                loaded.set_inputs(*arrays)
            if result.status == WRONG:
                result = self._one(desk, loaded, candidate, number, wanted)
            results.append(result)
        return results

    def _one(self, desk: Desk, loaded: Loaded, candidate: Candidate, number: int, wanted: Sequence[Array]) -> Result:
        call = loaded.module.calls[number]
        try:
            for name, array in zip(call.writes, wanted, strict=True):
                loaded.spoil(name, spoilt(array))
            ticks = loaded.run(number, timeout=self._patience).min
            equal = all(loaded.holds(name, array) for name, array in zip(call.writes, wanted, strict=True))
            wrong = "" if equal else disagreement(wanted, call.writes, loaded.read)
        except DeviceError as error:
            desk.restart()
            return Result(candidate, FAILED, detail=str(error.what))
        if wrong:
            return Result(candidate, WRONG, detail=wrong)
        return Result(candidate, OK, float(desk.device.clock.amount(ticks)), loaded.code_of(call.kernel))

    def _at_desk(self) -> Desk:
        """The board, once it runs the firmware for tuning."""
        if self._desk is None:
            folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="microc-tune-"))
            Program(firmware_module(self._board.target), self._board).write(folder)
            project = open_project(folder)
            firmware.build(project)
            hardware = bool(self._port) and ELF not in self._port
            self._desk = Desk(project, self._line(project), self._patience, hardware=hardware)
            self._stack.callback(self._desk.close)
        return self._desk


class Desk:
    """A board that runs the firmware for tuning, and what is in its memory. ``hardware``: it is flashed, and may reset itself."""

    def __init__(self, project: Project, port: str, patience: float, *, hardware: bool) -> None:
        self._project, self._port, self._patience, self._hardware = project, port, patience, hardware
        self._loaded: Loaded | None = None
        self._start()

    def _start(self) -> None:
        if self._hardware:
            flash_project(self._project, port=self._port)
        self.device = Device(self._project, self._port, patience=self._patience)
        self._loader = Loader(self.device.client, self._project.board)

    def load(self, module: Module, *, afresh: bool = False) -> Loaded:
        """Candidates in the place of those before; constants that are there stay, unless all is to be sent ``afresh``."""
        if afresh:
            self._loader.clear()
        elif self._loaded is not None:
            self._loader.release(self._loaded)
        try:
            self._loaded = self._loader.load(module)
        except FitError:  # beside the constants of other kernels
            self._loader.clear()
            self._loaded = self._loader.load(module)
        return self._loaded

    def restart(self) -> None:
        """The board as new: one that has reset itself answers, another one is started or flashed."""
        try:
            if not self._hardware:
                raise DeviceError("an emulator is started again")
            self.device.client.hello()
            self._loader = Loader(self.device.client, self._project.board)
        except DeviceError:
            self.close()
            self._start()

    def close(self) -> None:
        self.device.close()


def firmware_module(target: Target) -> Module:
    """What the firmware around the memory for code runs itself: a copy of one byte."""
    x = te.placeholder((1,), "int8", "x")
    y = te.compute((1,), lambda i: x[i], "y", ("i",))
    module = function_module(Schedule(te.create_prim_func("tuning", [x], [y])).named("as written"), target, {})
    module = replace(module, options={**module.options, "protocol": PROTOCOL})
    return replace(module, fingerprint=fingerprint(module, target))
