"""Measuring on this computer: wall clock, in a process of its own, so that a candidate that faults or hangs ends that alone."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from microc import __version__
from microc.codegen.network import shared_files
from microc.device.boards import load_board
from microc.device.machine import machine_flags
from microc.device.toolchain import find_compiler, host_compiler
from microc.driver.desktop.load import compile_sources
from microc.driver.tuned.records import OK, WRONG
from microc.driver.tuned.task import Task
from microc.errors import DeviceError
from microc.target import Target
from microc.tuning.image import image_module
from microc.tuning.runner import Result, Runner, bound_of, disagreement, sample
from microc.tuning.space import Candidate

PATIENCE = 120.0
"""Seconds for an image."""
LIBRARY, GIVEN, MADE, TAKEN = "model.so", "given.npz", "made.npz", "taken.json"
"""Files that the two processes share: the kernels, their inputs, their outputs, the nanoseconds of each."""


class HostRunner(Runner):
    """This computer as ``target``, in nanoseconds."""

    unit = "ns"
    board = "host"

    def __init__(self, target: Target) -> None:
        self._flags = machine_flags(target.core.machine)
        self.toolchain = find_compiler(load_board("host")).version

    def check(self) -> None:
        host_compiler()

    def _measured(self, task: Task, candidates: Sequence[Candidate]) -> list[Result]:
        module = image_module(task, candidates)
        arrays, wanted = sample(task)
        with tempfile.TemporaryDirectory(prefix="microc-tune-") as name:
            folder = Path(name)
            compile_sources(shared_files(module, __version__), folder, LIBRARY, *self._flags)
            np.savez(folder / GIVEN, *arrays)
            taken = _run(folder)
            made = np.load(folder / MADE, allow_pickle=False)
            return [
                _result(candidate, ticks, disagreement(wanted, call.writes, made.__getitem__, bound_of(candidate)))
                for candidate, call, ticks in zip(candidates, module.calls, taken, strict=True)
            ]


def _result(candidate: Candidate, ticks: float, wrong: str) -> Result:
    return Result(candidate, WRONG, detail=wrong) if wrong else Result(candidate, OK, ticks, candidate.code)


def _run(folder: Path) -> list[float]:
    """Nanoseconds of every kernel of the library in a folder; DeviceError where the process that runs it does not end well."""
    command = [sys.executable, "-m", "microc.tuning.timed", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired as error:
        raise DeviceError(f"no end within {PATIENCE:.0f} s", where="this computer") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise DeviceError(f"the program ended: {last}", where="this computer")
    return [float(each) for each in json.loads((folder / TAKEN).read_text())]
