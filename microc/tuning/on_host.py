"""Measuring on this computer: wall clock, in a process of its own, so that a candidate that faults or hangs ends that alone.

A computer is slower for milliseconds or for minutes, at a lower clock or beside other programs. What is compared must not depend
on when it was measured: the first candidate of a kernel that is right is a yardstick in all later images of that kernel, and what
is told of the others is by how much they take longer or shorter, the middle one of several rounds, by what the yardstick took
the first time.
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
from microc.device.toolchain import find_compiler, host_compiler, machine_flags
from microc.errors import DeviceError
from microc.run.desktop.load import compile_sources
from microc.target import Target
from microc.tuning.candidate_image import image_module
from microc.tuning.runner import Result, Runner, bound_of, disagreement, sample
from microc.tuning.search_space import Candidate

PATIENCE = 120.0
"""Seconds for an image."""
LIBRARY, GIVEN, MADE, TAKEN = "model.so", "given.npz", "made.npz", "taken.json"
"""Files that the two processes share: the kernels, their inputs, their outputs, the nanoseconds of each."""
Rounds = list[list[float]]
"""Nanoseconds by round and kernel."""
Yardsticks = dict[str, tuple[Candidate, float]]
"""By the key of a kernel: a candidate, and the nanoseconds that it takes."""


class HostRunner(Runner):
    """This computer as ``target``, in nanoseconds. ``yardsticks``: what kernels are measured by, which runners may share;
    ``place``: which of them this one is, from 0 on: each has a core of its own as long as there are any."""

    unit = "ns"
    board = "host"

    def __init__(self, target: Target, yardsticks: Yardsticks | None = None, place: int = 0) -> None:
        self._yardsticks = {} if yardsticks is None else yardsticks
        self._place = place
        self._flags = machine_flags(target.core.machine)
        self.toolchain = find_compiler(load_board("host")).version

    def check(self) -> None:
        host_compiler()

    def _measured(self, task: Task, candidates: Sequence[Candidate]) -> list[Result]:
        known = self._yardsticks.get(task.key)
        if known is not None:
            yardstick, ticks = known
            return self._timed(task, (yardstick, *candidates), lambda rounds: _by_first(rounds, ticks))[1:]
        results = self._timed(task, candidates, _least)
        right = next((each for each in results if each.status == OK), None)
        if right is not None:
            self._yardsticks.setdefault(task.key, (right.candidate, right.ticks))
        return results

    def _timed(
        self, task: Task, candidates: Sequence[Candidate], ticks_of: Callable[[Rounds], list[float]]
    ) -> list[Result]:
        module = image_module(task, candidates)
        arrays, wanted = sample(task)
        with tempfile.TemporaryDirectory(prefix="microc-tune-") as name:
            folder = Path(name)
            compile_sources(shared_files(module, __version__), folder, LIBRARY, *self._flags)
            np.savez(folder / GIVEN, *arrays)
            taken = ticks_of(_run(folder, self._place))
            made = np.load(folder / MADE, allow_pickle=False)
            return [
                _result(candidate, ticks, disagreement(wanted, call.writes, made.__getitem__, bound_of(candidate)))
                for candidate, call, ticks in zip(candidates, module.calls, taken, strict=True)
            ]


def _least(rounds: Rounds) -> list[float]:
    """Nanoseconds of every kernel where nothing else was in its way."""
    return [min(times) for times in zip(*rounds, strict=True)]


def _by_first(rounds: Rounds, ticks: float) -> list[float]:
    """The same by what the first kernel took in each round, which takes ``ticks``."""
    return [
        ticks * median(each / times[0] for each, times in zip(column, rounds, strict=True))
        for column in zip(*rounds, strict=True)
    ]


def _result(candidate: Candidate, ticks: float, wrong: str) -> Result:
    return Result(candidate, WRONG, detail=wrong) if wrong else Result(candidate, OK, ticks, candidate.code)


def _run(folder: Path, place: int) -> Rounds:
    """Nanoseconds of every kernel of the library in a folder, by rounds; DeviceError as in :func:`run_timed`."""
    run_timed("microc.tuning.timed", place, folder)
    return [[float(each) for each in times] for times in json.loads((folder / TAKEN).read_text())]


def run_timed(module: str, place: int, *folders: Path) -> None:
    """A process that times what is in some folders, on the core of a place; DeviceError where it does not end well."""
    command = [sys.executable, "-m", module, str(place), *map(str, folders)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired as error:
        raise DeviceError(f"no end within {PATIENCE:.0f} s", where="this computer") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise DeviceError(f"the program ended: {last}", where="this computer")
