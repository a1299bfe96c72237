"""Measuring on a board: flashed, or loaded over its line."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from microc import te
from microc.base.dtypes import Array
from microc.codegen.project.firmware import runtime_sources
from microc.compiler.api import Program
from microc.compiler.lowering.module_builder import firmware_fingerprint
from microc.compiler.single_function import compile_function
from microc.compiler.tuned.records import FAILED, FROM_RAM, OK, WRONG, Task
from microc.device.emulators import ELF
from microc.device.toolchain import LinkedSizes, find_compiler
from microc.errors import DeviceError, FitError, UsageError
from microc.module import Module
from microc.run import board_project
from microc.run.board_project import Project, open_project
from microc.run.profile import Clock
from microc.run.session import PATIENCE, CodeLoader, Device, LoadedKernels, flash_project
from microc.schedule.schedule import Schedule
from microc.target import Board, Target
from microc.tuning.candidate_image import DIGESTS, RuntimeObjectCache, digest_of_array, make_candidates_module
from microc.tuning.runner import (
    MeasuredResult,
    Runner,
    check_board_health,
    describe_disagreement,
    float_tolerance_of,
    inverted_first_bytes,
    sample_inputs_and_outputs,
)
from microc.tuning.search_space import Candidate

# ---- Measuring on a board: an emulator, hardware on a serial line, or any program that acts as one.

HELD = 4
"""Factor by which a board's flash must exceed the inputs for an image to contain them; otherwise they are sent over the line."""


class BoardRunner(Runner):
    """Runner that measures on a board; on its emulator or simulator if ``port`` is empty.
    A board on a port is flashed for every image. A ``pipe:`` port that contains ``{elf}`` is a program that is started
    with that file and speaks for the board. ``patience`` as in :class:`Device`."""

    def __init__(self, board: Board, port: str = "", *, patience: float = PATIENCE) -> None:
        emulated = "emulator" in board.raw
        if not (port or emulated or board.simulated):
            raise UsageError(
                f"board {board.name} has no emulator; got no port, expected one",
                hint="name its serial port (--port auto finds it), or choose an emulated board of the same core",
            )
        self._board, self._port, self._patience = board, port, patience
        self.board = board.name
        self.unit = Clock(board, 1, emulated=emulated and not port).unit
        self.toolchain = find_compiler(board).version
        self._objects = RuntimeObjectCache()
        self._read = set[str]()
        """Kernels of which an output that is digested as the right one was read, and is right."""

    def check(self) -> None:
        find_compiler(self._board)
        check_board_health(self._board, self._open_device_with_program)

    def _measure_image(self, task: Task, candidates: Sequence[Candidate]) -> list[MeasuredResult]:
        """Measure all candidates in one image."""
        arrays, wanted = sample_inputs_and_outputs(task)
        fits_flash = HELD * sum(array.nbytes for array in arrays) <= self._board.flash_bytes
        module = make_candidates_module(task, candidates, with_digests=True, input_data=arrays if fits_flash else ())
        with self._open_device_with_program(Program(module, self._board)) as (device, sizes):
            if not fits_flash:
                device.set_inputs(*arrays)
            return self._measure_on_device(device, sizes, task, candidates, wanted)

    @contextmanager
    def _open_device_with_program(self, program: Program) -> Iterator[tuple[Device, LinkedSizes]]:
        """Build a program and bring it onto the board; yield the device and the program's sizes."""
        with tempfile.TemporaryDirectory(prefix="microc-tune-") as folder:
            program.write(folder)
            project = open_project(folder)
            self._objects.give(project.folder)
            sizes = board_project.build_project(project).sizes
            self._objects.take(project.folder)
            if self._port and ELF not in self._port:
                flash_project(project, port=self._port)
            with Device(project, self._port_with_elf(project), patience=self._patience) as device:
                yield device, sizes

    def _port_with_elf(self, project: Project) -> str:
        """Return the port, with the project's ELF file in place of ``{elf}``."""
        return self._port.replace(ELF, str(Path(project.elf).resolve()))

    def _measure_on_device(
        self,
        device: Device,
        sizes: LinkedSizes,
        task: Task,
        candidates: Sequence[Candidate],
        expected_outputs: Sequence[Array],
    ) -> list[MeasuredResult]:
        """Measure all candidates of an image in one run on the device; ``expected_outputs``: the right outputs.

        Among outputs with equal digests one is read and compared. Outputs with the digest of the right result are read
        once per kernel over all images."""
        code = {symbol.name.partition(".")[0]: symbol.size for symbol in sizes.symbols}  # of clones, too: f.constprop.0
        ends, right = len(expected_outputs), tuple(map(digest_of_array, expected_outputs))
        numbers = range(ends, len(device.kernels), 2 * ends + 1)
        ticks = device.kernel_ticks()
        digests = device.read(DIGESTS).reshape(-1, ends).tolist()
        verdicts: dict[tuple[float, ...], str] = {}
        results = []
        for candidate, number, digest in zip(candidates, numbers, map(tuple, digests), strict=True):
            kernel, bound = device.kernels[number], float_tolerance_of(candidate)
            verdict_key = (bound, *digest)
            is_known = verdict_key in verdicts or (digest == right and task.key in self._read)
            if not is_known:
                device.client.run(number - ends, number)
                verdicts[verdict_key] = describe_disagreement(expected_outputs, kernel["outputs"], device.read, bound)
            if digest == right and not verdicts.get(verdict_key):
                self._read.add(task.key)
            mismatch, amount = verdicts.get(verdict_key, ""), float(device.clock.amount(ticks[number]))
            size = code.get(kernel["function"], 0)
            results.append(
                MeasuredResult(candidate, WRONG, detail=mismatch)
                if mismatch
                else MeasuredResult(candidate, OK, amount, size)
            )
        return results


# ---- Measuring on a board that is flashed once: candidates are loaded into its RAM over the line, and called there.
#
# The firmware is one for tuning (SPEC.md of the runtime, "Loading code"). Code runs from RAM, without the wait states and
# caches of flash: such ticks are compared with each other alone, and records name the board so.

PROTOCOL = "tuning"


class LoadRunner(BoardRunner):
    """Runner that flashes a board once, at the start, and loads candidates into its RAM.
    A candidate that faults or hangs costs a restart of the emulator; on a port it costs a flashing, unless the board
    resets itself. ``patience``: seconds that a kernel may take."""

    def __init__(self, board: Board, port: str = "", *, patience: float = PATIENCE) -> None:
        super().__init__(board, port, patience=patience)
        runtime_sources(board, PROTOCOL)
        self.board = board.name + FROM_RAM
        self._stack = ExitStack()
        self._desk: TuningBoard | None = None
        self._busy = threading.Lock()

    def measure(self, task: Task, candidates: Sequence[Candidate]) -> list[MeasuredResult]:
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
        self._open_tuning_board().restart()

    def _measure_image(self, task: Task, candidates: Sequence[Candidate]) -> list[MeasuredResult]:
        """Load candidates into RAM and measure them one by one."""
        module = make_candidates_module(task, candidates)
        desk = self._open_tuning_board()
        loaded = desk.load(module)
        arrays, wanted = sample_inputs_and_outputs(task)
        loaded.set_inputs(*arrays)
        results = []
        for number, candidate in enumerate(candidates):
            result = self._measure_loaded_candidate(desk, loaded, candidate, number, wanted)
            if result.status != OK:  # perhaps by what another one has overwritten; the board may be a new one
                loaded = desk.load(module, afresh=True)
                loaded.set_inputs(*arrays)
            if result.status == WRONG:
                result = self._measure_loaded_candidate(desk, loaded, candidate, number, wanted)
            results.append(result)
        return results

    def _measure_loaded_candidate(
        self,
        tuning_board: TuningBoard,
        loaded: LoadedKernels,
        candidate: Candidate,
        candidate_index: int,
        expected_outputs: Sequence[Array],
    ) -> MeasuredResult:
        """Measure one loaded candidate, by its index among the kernels of the image.

        Each output is made wrong before, so that a result left by another candidate is not taken for its own.
        ``expected_outputs``: the right ones."""
        call = loaded.module.calls[candidate_index]
        try:
            for name, array in zip(call.writes, expected_outputs, strict=True):
                loaded.spoil(name, inverted_first_bytes(array))
            ticks = loaded.run(candidate_index, timeout=self._patience).min
            equal = all(loaded.holds(name, array) for name, array in zip(call.writes, expected_outputs, strict=True))
            wrong = "" if equal else describe_disagreement(expected_outputs, call.writes, loaded.read)
        except DeviceError as error:
            tuning_board.restart()
            return MeasuredResult(candidate, FAILED, detail=str(error.what))
        if wrong:
            return MeasuredResult(candidate, WRONG, detail=wrong)
        return MeasuredResult(
            candidate, OK, float(tuning_board.device.clock.amount(ticks)), loaded.code_of(call.kernel)
        )

    def _open_tuning_board(self) -> TuningBoard:
        """Return the board, after building the tuning firmware and starting it there if necessary."""
        if self._desk is None:
            folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="microc-tune-"))
            Program(make_tuning_firmware_module(self._board.target), self._board).write(folder)
            project = open_project(folder)
            board_project.build_project(project)
            hardware = bool(self._port) and ELF not in self._port
            self._desk = TuningBoard(project, self._port_with_elf(project), self._patience, hardware=hardware)
            self._stack.callback(self._desk.close)
        return self._desk


class TuningBoard:
    """A board that runs the tuning firmware, and the candidates that are loaded into its memory.
    ``hardware``: it is flashed, and may reset itself."""

    def __init__(self, project: Project, port: str, patience: float, *, hardware: bool) -> None:
        self._project, self._port, self._patience, self._hardware = project, port, patience, hardware
        self._loaded: LoadedKernels | None = None
        self._start_firmware()

    def _start_firmware(self) -> None:
        """Start the tuning firmware, after flashing it onto hardware, and connect to it."""
        if self._hardware:
            flash_project(self._project, port=self._port)
        self.device = Device(self._project, self._port, patience=self._patience)
        self._loader = CodeLoader(self.device.client, self._project.board)

    def load(self, module: Module, *, afresh: bool = False) -> LoadedKernels:
        """Load candidates in place of the previous ones.

        Constants that are on the board already stay there and are not sent again, unless ``afresh``."""
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
        """Reset the board: one that has reset itself answers; others are started or flashed again."""
        try:
            if not self._hardware:
                raise DeviceError("an emulator is started again")  # caught below
            self.device.client.hello()
            self._loader = CodeLoader(self.device.client, self._project.board)
        except DeviceError:
            self.close()
            self._start_firmware()

    def close(self) -> None:
        self.device.close()


def make_tuning_firmware_module(target: Target) -> Module:
    """Make the module of the tuning firmware itself: it copies one byte."""
    x = te.placeholder((1,), "int8", "x")
    y = te.compute((1,), lambda i: x[i], "y", ("i",))
    module = compile_function(Schedule(te.create_prim_func("tuning", [x], [y])).named("as written"), target, {})
    module = replace(module, options={**module.options, "protocol": PROTOCOL})
    return replace(module, fingerprint=firmware_fingerprint(module, target))
