# SPDX-License-Identifier: Apache-2.0
"""Meters of candidates: on a board, and on this computer."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np

from microc import __version__, te
from microc.base.dtypes import Array
from microc.codegen.c.source import shared_files
from microc.codegen.project.firmware import list_runtime_sources
from microc.compiler.api import Program
from microc.compiler.lowering.module_builder import firmware_fingerprint
from microc.compiler.single_function import compile_function
from microc.compiler.tuned.records import FAILED, FROM_RAM, OK, WRONG, Task
from microc.device.boards import emulated_board_hint, load_board
from microc.device.client import Client
from microc.device.emulators import ELF
from microc.device.toolchain import (
    LinkedSizes,
    find_compiler,
    flags_if_machine_available,
    host_compiler,
    strip_clone_suffix,
)
from microc.device.transport import RemoteTransport, is_remote, open_transport
from microc.errors import DeviceError, FitError, UsageError
from microc.module import Module
from microc.run import board_project
from microc.run.arm_cycles import make_port_error, require_cycle_source
from microc.run.board_project import Project, is_remotely_emulated, open_project
from microc.run.desktop.load import compile_sources
from microc.run.profile import CYCLES, Clock
from microc.run.session import PATIENCE, CodeLoader, Device, LoadedKernels, client_timeout, flash_project
from microc.schedule.schedule import Schedule
from microc.target import Board, Target
from microc.tuning.candidate_image import DIGESTS, RuntimeObjectCache, digest_of_array, make_candidates_module
from microc.tuning.runner import (
    MeasuredResult,
    Runner,
    check_board_health,
    describe_disagreement,
    draw_inputs_and_expected_outputs,
    float_tolerance_of_candidate,
    invert_first_bytes,
)
from microc.tuning.search_space import Candidate

# ---- Measuring with a firmware for every batch. The board is an emulator, hardware on a serial line, or a program that behaves
# like a board.

MIN_FLASH_PER_INPUT_BYTE = 4
"""Minimum ratio of a board's flash to the size of the inputs for which an image contains the inputs. If the flash is
smaller, the inputs are sent over the line."""


class BoardRunner(Runner):
    """Runner that measures on a board. If ``port`` is empty, it uses the board's emulator or simulator.

    A board on a port is flashed for every image. If the port starts with ``pipe:`` and contains ``{elf}``, it is a
    command that runs the ELF file of the firmware and behaves like a board. ``patience``: as in :class:`Device`.
    ``cycles``: measure cycles (:mod:`microc.run.arm_cycles`) instead of the board's time.
    """

    def __init__(self, board: Board, port: str = "", *, patience: float = PATIENCE, cycles: bool = False) -> None:
        emulated = "emulator" in board.raw
        if not (port or emulated or board.simulated):
            raise UsageError(
                f"board {board.name} has no emulator; got no port, expected one",
                hint="; ".join(
                    filter(None, ("name its serial port (--port auto finds it)", emulated_board_hint(board)))
                ),
            )
        if cycles and port:
            raise make_port_error(port)
        if cycles:
            require_cycle_source(board)
        self._board, self._port, self._patience, self._cycles = board, port, patience, cycles
        self.board = board.name
        self.unit = CYCLES if cycles else Clock(board, 1, emulated=emulated and not port).unit
        self.toolchain = find_compiler(board).version
        self._objects = RuntimeObjectCache()
        self._read = set[str]()
        """Keys of the kernels for which an output with the digest of the correct result was read and was correct."""

    def check(self) -> None:
        find_compiler(self._board)
        check_board_health(self._board, self._open_device_with_program)

    def _measure_image(self, task: Task, candidates: Sequence[Candidate]) -> list[MeasuredResult]:
        """Measure all candidates in one image."""
        arrays, wanted = draw_inputs_and_expected_outputs(task)
        fits_flash = MIN_FLASH_PER_INPUT_BYTE * sum(array.nbytes for array in arrays) <= self._board.flash_bytes
        module = make_candidates_module(task, candidates, with_digests=True, input_data=arrays if fits_flash else ())
        with self._open_device_with_program(Program(module, self._board)) as (device, sizes):
            if not fits_flash:
                device.set_inputs(*arrays)
            return self._measure_on_device(device, sizes, task, candidates, wanted)

    @contextmanager
    def _open_device_with_program(self, program: Program) -> Iterator[tuple[Device, LinkedSizes]]:
        """Build a program and start it on the board; yield the device, and the sizes that the linker reports."""
        with tempfile.TemporaryDirectory(prefix="microc-tune-") as folder:
            program.write(folder)
            project = open_project(folder)
            self._objects.copy_into_project(project.folder)
            sizes = board_project.build_project(project).sizes
            self._objects.copy_from_project(project.folder)
            if self._port and ELF not in self._port:
                flash_project(project, port=self._port)
            port = self._port_with_elf(project)
            with Device(project, port, patience=self._patience, cycles=self._cycles) as device:
                yield device, sizes

    def _port_with_elf(self, project: Project) -> str:
        """Return the port with ``{elf}`` replaced by the path of the project's ELF file."""
        return self._port.replace(ELF, str(Path(project.elf).resolve()))

    def _measure_on_device(
        self,
        device: Device,
        sizes: LinkedSizes,
        task: Task,
        candidates: Sequence[Candidate],
        expected_outputs: Sequence[Array],
    ) -> list[MeasuredResult]:
        """Measure all candidates of an image in one run on the device. ``expected_outputs``: the correct outputs.

        Of outputs with equal digests, only one is read and compared with the correct output. An output with the digest
        of the correct result is read only once for each kernel, even over several images.
        """
        code = {strip_clone_suffix(symbol.name): symbol.size for symbol in sizes.symbols}
        ends, right = len(expected_outputs), tuple(map(digest_of_array, expected_outputs))
        numbers = range(ends, len(device.kernels), 2 * ends + 1)
        ticks, cycles = device.measure_kernels()
        amounts = cycles.cycles if cycles else [device.clock.convert_ticks(each) for each in ticks]
        digests = device.read(DIGESTS).reshape(-1, ends).tolist()
        verdicts: dict[tuple[float, ...], str] = {}
        results = []
        for candidate, number, digest in zip(candidates, numbers, map(tuple, digests), strict=True):
            kernel, bound = device.kernels[number], float_tolerance_of_candidate(candidate)
            verdict_key = (bound, *digest)
            is_known = verdict_key in verdicts or (digest == right and task.key in self._read)
            if not is_known:
                device.client.run(number - ends, number)
                verdicts[verdict_key] = describe_disagreement(expected_outputs, kernel["outputs"], device.read, bound)
            if digest == right and not verdicts.get(verdict_key):
                self._read.add(task.key)
            mismatch, amount = verdicts.get(verdict_key, ""), float(amounts[number])
            size = code.get(kernel["function"], 0)
            results.append(
                MeasuredResult(candidate, WRONG, detail=mismatch)
                if mismatch
                else MeasuredResult(candidate, OK, amount, size)
            )
        return results


# ---- Measuring on a board that is flashed only once. Candidates are loaded into its RAM over the serial line, and called
# there.
#
# The board runs a tuning firmware (SPEC.md of the runtime, "Loading code"). Code in RAM has neither the wait states nor the
# caches of flash. So such ticks are compared only with each other, and the board's name in records shows that code ran from
# RAM.

PROTOCOL = "tuning"


class LoadRunner(BoardRunner):
    """Runner that flashes a board once, at the start, and then loads candidates into the board's RAM.

    If a candidate faults or hangs, an emulator is restarted, and hardware is flashed again unless the board resets
    itself. A board behind ``microc serve`` is not flashed: its firmware can load code already. ``patience``: maximum
    number of seconds that a kernel may run.
    """

    def __init__(self, board: Board, port: str = "", *, patience: float = PATIENCE) -> None:
        super().__init__(board, port, patience=patience)
        list_runtime_sources(board, PROTOCOL)
        self.board = board.name + FROM_RAM
        self._stack = ExitStack()
        self._desk: TuningBoard | None = None
        self._busy = threading.RLock()  # `measure` calls itself for the halves of a batch that fails as a whole
        if is_remote(port):  # only the server knows whether ticks are those of an emulator
            self.unit = self._open_tuning_board().clock.unit

    def measure(self, task: Task, candidates: Sequence[Candidate]) -> list[MeasuredResult]:
        with self._busy:
            try:
                return super().measure(task, candidates)
            finally:
                if self._stopped:
                    self._stack.close()

    def stop(self) -> None:
        super().stop()
        if self._busy.acquire(blocking=False):  # otherwise the running ``measure`` closes the stack
            self._stack.close()
            self._busy.release()

    def check(self) -> None:
        find_compiler(self._board)
        self._open_tuning_board().restart()

    def _measure_image(self, task: Task, candidates: Sequence[Candidate]) -> list[MeasuredResult]:
        """Load candidates into RAM, and measure them one by one."""
        module = make_candidates_module(task, candidates)
        desk = self._open_tuning_board()
        loaded = desk.load(module)
        arrays, wanted = draw_inputs_and_expected_outputs(task)
        loaded.set_inputs(*arrays)
        results = []
        for number, candidate in enumerate(candidates):
            result = self._measure_loaded_candidate(desk, loaded, candidate, number, wanted)
            if (
                result.status != OK
            ):  # another candidate may have overwritten its data, or the board may have been restarted
                loaded = desk.load(module, resend_constants=True)
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
        """Measure one loaded candidate. ``candidate_index``: its index among the calls of the image.

        The first bytes of each output are inverted before the candidate runs, so that the result of another candidate
        does not count as its own. ``expected_outputs``: the correct outputs.
        """
        call = loaded.module.calls[candidate_index]
        try:
            for name, array in zip(call.writes, expected_outputs, strict=True):
                loaded.overwrite_first_bytes(name, invert_first_bytes(array))
            ticks = loaded.run(candidate_index, timeout=self._patience).min
            equal = all(
                loaded.value_equals(name, array) for name, array in zip(call.writes, expected_outputs, strict=True)
            )
            wrong = "" if equal else describe_disagreement(expected_outputs, call.writes, loaded.read)
        except DeviceError as error:
            tuning_board.restart()
            return MeasuredResult(candidate, FAILED, detail=str(error.what))
        if wrong:
            return MeasuredResult(candidate, WRONG, detail=wrong)
        return MeasuredResult(
            candidate,
            OK,
            float(tuning_board.clock.convert_ticks(ticks)),
            loaded.code_bytes_of_kernel(call.kernel),
        )

    def _open_tuning_board(self) -> TuningBoard:
        """Return the board. At the first call, the tuning firmware is built and started on it, or the server of a remote
        board is called."""
        if self._desk is None and is_remote(self._port):
            self._desk = RemoteTuningBoard(self._board, self._port, self._patience)
            self._stack.callback(self._desk.close)
        elif self._desk is None:
            folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="microc-tune-"))
            Program(make_tuning_firmware_module(self._board.target), self._board).write(folder)
            project = open_project(folder)
            board_project.build_project(project)
            hardware = bool(self._port) and ELF not in self._port
            self._desk = ProjectTuningBoard(project, self._port_with_elf(project), self._patience, hardware=hardware)
            self._stack.callback(self._desk.close)
        return self._desk


class TuningBoard(ABC):
    """A board whose firmware can load code, and the candidates that are loaded into its RAM.

    ``client``, ``clock``: the connection, and the unit of its ticks; set by :meth:`_connect`. ``may_reset_itself``:
    False for an emulator that only a new start brings back."""

    client: Client
    clock: Clock

    def __init__(self, board: Board, *, may_reset_itself: bool) -> None:
        self._board, self._may_reset_itself = board, may_reset_itself
        self._loaded: LoadedKernels | None = None
        self._stack = ExitStack()
        self._start()

    @abstractmethod
    def _connect(self) -> None:
        """Start the firmware if that is possible from here, and connect to it."""

    def _start(self) -> None:
        """Connect to the board, and find its memory for code."""
        self._connect()
        try:
            self._loader = CodeLoader(self.client, self._board)
        except BaseException:
            self.close()
            raise

    def load(self, module: Module, *, resend_constants: bool = False) -> LoadedKernels:
        """Load the kernels of a module in place of those loaded before.

        Constants that the board already contains are not sent again. ``resend_constants``: send all constants again.
        """
        if resend_constants:
            self._loader.clear()
        elif self._loaded is not None:
            self._loader.release(self._loaded)
        try:
            self._loaded = self._loader.load(module)
        except FitError:  # it may fit after the constants of other kernels are removed
            self._loader.clear()
            self._loaded = self._loader.load(module)
        return self._loaded

    def restart(self) -> None:
        """Restart the board. A board that has reset itself and answers is left as it is; otherwise the firmware is
        started again."""
        try:
            if not self._may_reset_itself:
                raise DeviceError(
                    "an emulated board cannot reset itself; expected a restart of the emulator"
                )  # caught in this function
            self.client.hello()
            self._loader = CodeLoader(self.client, self._board)
        except DeviceError:
            self.close()
            self._start()

    def close(self) -> None:
        self._stack.close()


class ProjectTuningBoard(TuningBoard):
    """A board at this computer that runs the tuning firmware of ``project``.

    ``hardware``: the board is not emulated, so it must be flashed and may reset itself."""

    def __init__(self, project: Project, port: str, patience: float, *, hardware: bool) -> None:
        self._project, self._port, self._patience, self._hardware = project, port, patience, hardware
        super().__init__(project.board, may_reset_itself=hardware)

    def _connect(self) -> None:
        """Start the tuning firmware and connect to it. Hardware is flashed first."""
        if self._hardware:
            flash_project(self._project, port=self._port)
        device = self._stack.enter_context(Device(self._project, self._port, patience=self._patience))
        self.client, self.clock = device.client, device.clock


class RemoteTuningBoard(TuningBoard):
    """A board behind ``microc serve``, with any firmware that can load code.

    An emulated one that hangs is restarted by its server when the connection is opened again."""

    def __init__(self, board: Board, port: str, patience: float) -> None:
        self._port, self._patience = port, patience
        super().__init__(board, may_reset_itself=True)

    def _connect(self) -> None:
        """Connect to the server. Raises UsageError if it has another board."""
        transport = open_transport(self._port)
        client = Client(transport, client_timeout(self._patience), reconnect=self._patience)
        self._stack.enter_context(client)
        try:
            if isinstance(transport, RemoteTransport) and transport.board != self._board.name:
                raise UsageError(
                    f"--board: got {self._board.name!r}, but the server has {transport.board!r}",
                    where=self._port,
                    hint=f"tune for the board that is there: --board {transport.board}",
                )
            self.client = client
            self.clock = Clock(self._board, client.info.tick_hz, is_remotely_emulated(transport, self._board))
        except BaseException:
            self.close()
            raise


def make_tuning_firmware_module(target: Target) -> Module:
    """Create the module of the tuning firmware. Its only kernel copies one byte."""
    x = te.placeholder((1,), "int8", "x")
    y = te.compute((1,), lambda i: x[i], "y", ("i",))
    module = compile_function(Schedule(te.create_prim_func("tuning", [x], [y])).named("as written"), target, {})
    module = replace(module, options={**module.options, "protocol": PROTOCOL})
    return replace(module, fingerprint=firmware_fingerprint(module, target))


# ---- Measure candidates on this computer by wall-clock time. A separate process runs them, so that a candidate that
# faults or hangs ends only that process.
#
# A computer may become slower for milliseconds or for minutes, for example at a lower clock rate or under load.
# The ranking of candidates must not depend on when they were measured. Therefore the first correct candidate of
# a kernel becomes the yardstick, which all later images of the kernel contain too. The ticks of another
# candidate are its median time relative to the yardstick, over several rounds, multiplied by the yardstick's
# time in its first image.


PROCESS_PATIENCE = 120.0
"""Maximum number of seconds that the timing of an image may take."""
TIMING_PROCESS = "microc.tuning.timing_process"
LIBRARY_FILE, INPUTS_FILE, OUTPUTS_FILE, TIMES_FILE = "model.so", "given.npz", "made.npz", "taken.json"
"""Names of the files that the two processes exchange: the library of kernels (LIBRARY_FILE), their inputs
(INPUTS_FILE), their outputs (OUTPUTS_FILE), and the nanoseconds that each of them took (TIMES_FILE)."""
Rounds = list[list[float]]
"""Nanoseconds of each kernel in each round."""
Yardsticks = dict[str, tuple[Candidate, float]]
"""The yardstick of each kernel, by the kernel's key: a candidate and the nanoseconds that it took."""


class HostRunner(Runner):
    """Runner that measures on this computer, compiled for ``target``, in nanoseconds.

    ``yardsticks``: shared by runners that work in parallel. ``place``: the index of this runner, from 0. Each runner
    uses a core of the computer of its own, as long as there are enough cores.
    """

    unit = "ns"
    board = "host"

    def __init__(self, target: Target, yardsticks: Yardsticks | None = None, place: int = 0) -> None:
        self._yardsticks = {} if yardsticks is None else yardsticks
        self._place = place
        self._flags = flags_if_machine_available(target.core.machine)
        self.toolchain = find_compiler(load_board("host")).version

    def check(self) -> None:
        host_compiler()

    def _measure_image(self, task: Task, candidates: Sequence[Candidate]) -> list[MeasuredResult]:
        """Measure candidates in one image, together with the kernel's yardstick if it has one."""
        entry = self._yardsticks.get(task.key)
        if entry is not None:
            yardstick, ticks = entry
            return self._time_image(
                task, (yardstick, *candidates), lambda rounds: _ticks_relative_to_first(rounds, ticks)
            )[1:]
        results = self._time_image(task, candidates, _minimum_times_of_kernels)
        correct = next((each for each in results if each.status == OK), None)
        if correct is not None:
            self._yardsticks.setdefault(task.key, (correct.candidate, correct.ticks))
        return results

    def _time_image(
        self, task: Task, candidates: Sequence[Candidate], compute_ticks: Callable[[Rounds], list[float]]
    ) -> list[MeasuredResult]:
        """Build an image of candidates, time it in another process, and check the outputs of the candidates.

        ``compute_ticks``: computes the ticks of each candidate from the nanoseconds of all rounds.
        """
        module = make_candidates_module(task, candidates)
        arrays, wanted = draw_inputs_and_expected_outputs(task)
        with tempfile.TemporaryDirectory(prefix="microc-tune-") as name:
            folder = Path(name)
            compile_sources(shared_files(module, __version__), folder, LIBRARY_FILE, *self._flags)
            np.savez(folder / INPUTS_FILE, *arrays)
            nanoseconds = compute_ticks(_time_rounds_in_process(folder, self._place))
            outputs = np.load(folder / OUTPUTS_FILE, allow_pickle=False)
            return [
                _make_result(
                    candidate,
                    ticks,
                    describe_disagreement(
                        wanted, call.writes, outputs.__getitem__, float_tolerance_of_candidate(candidate)
                    ),
                )
                for candidate, call, ticks in zip(candidates, module.calls, nanoseconds, strict=True)
            ]


def _minimum_times_of_kernels(rounds: Rounds) -> list[float]:
    """Return the minimum time of each kernel over all rounds, in nanoseconds. The minimum is least disturbed by other
    programs."""
    return [min(times) for times in zip(*rounds, strict=True)]


def _ticks_relative_to_first(rounds: Rounds, first_ticks: float) -> list[float]:
    """Return the ticks of each kernel: the median over all rounds of its time relative to the first kernel, multiplied
    by ``first_ticks``."""
    return [
        first_ticks * median(each / times[0] for each, times in zip(column, rounds, strict=True))
        for column in zip(*rounds, strict=True)
    ]


def _make_result(candidate: Candidate, ticks: float, disagreement: str) -> MeasuredResult:
    """Return the result of a timed candidate. ``disagreement``: describes how its outputs differ; empty if they are
    correct."""
    return (
        MeasuredResult(candidate, WRONG, detail=disagreement)
        if disagreement
        else MeasuredResult(candidate, OK, ticks, candidate.code)
    )


def _time_rounds_in_process(folder: Path, place_index: int) -> Rounds:
    """Time the kernels of the library in a folder in another process; return the nanoseconds of each kernel in each
    round.

    Raises DeviceError as :func:`run_timing_process` does.
    """
    run_timing_process("kernels", place_index, folder)
    return [[float(each) for each in times] for times in json.loads((folder / TIMES_FILE).read_text(encoding="utf-8"))]


def run_timing_process(timed_code: str, place_index: int, *folders: Path) -> None:
    """Time kernels or networks in a separate process (:mod:`microc.tuning.timing_process`).

    ``timed_code``: ``kernels`` or ``networks``. ``place_index``: determines the core of the computer. ``folders``: contain
    the libraries. Raises DeviceError if the process fails or takes too long.
    """
    command = [sys.executable, "-m", TIMING_PROCESS, timed_code, str(place_index), *map(str, folders)]
    try:
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=PROCESS_PATIENCE, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise DeviceError(
            f"{TIMING_PROCESS}: the program did not end within {PROCESS_PATIENCE:.0f} s",
            where="this computer",
            hint="tune on an idle computer",
        ) from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise DeviceError(f"{TIMING_PROCESS}: the program failed: {last}", where="this computer")
