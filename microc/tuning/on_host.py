# SPDX-License-Identifier: Apache-2.0
"""Measure candidates on this computer by wall-clock time. A separate process runs them, so that a candidate that faults
or hangs ends only that process.

A computer may become slower for milliseconds or for minutes, for example at a lower clock rate or under load. The
ranking of candidates must not depend on when they were measured. Therefore the first correct candidate of a kernel
becomes the yardstick, which all later images of the kernel contain too. The ticks of another candidate are its median
time relative to the yardstick, over several rounds, multiplied by the yardstick's time in its first image.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import numpy as np

from microc import __version__
from microc.codegen.c.source import shared_files
from microc.compiler.tuned.records import OK, WRONG, Task
from microc.device.boards import load_board
from microc.device.toolchain import find_compiler, flags_if_machine_available, host_compiler
from microc.errors import DeviceError
from microc.run.desktop.load import compile_sources
from microc.target import Target
from microc.tuning.candidate_image import make_candidates_module
from microc.tuning.runner import (
    MeasuredResult,
    Runner,
    describe_disagreement,
    draw_inputs_and_expected_outputs,
    float_tolerance_of_candidate,
)
from microc.tuning.search_space import Candidate

PATIENCE = 120.0
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
    return [[float(each) for each in times] for times in json.loads((folder / TIMES_FILE).read_text())]


def run_timing_process(timed_code: str, place_index: int, *folders: Path) -> None:
    """Time kernels or networks in a separate process (:mod:`microc.tuning.timing_process`).

    ``timed_code``: ``kernels`` or ``networks``. ``place_index``: determines the core of the computer. ``folders``: contain
    the libraries. Raises DeviceError if the process fails or takes too long.
    """
    command = [sys.executable, "-m", TIMING_PROCESS, timed_code, str(place_index), *map(str, folders)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired as error:
        raise DeviceError(
            f"{TIMING_PROCESS}: the program did not end within {PATIENCE:.0f} s",
            where="this computer",
            hint="tune on an idle computer",
        ) from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise DeviceError(f"{TIMING_PROCESS}: the program failed: {last}", where="this computer")
