# SPDX-License-Identifier: Apache-2.0
"""ONNX's node tests on emulated boards: a firmware for each, whose network is run over the serial protocol."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from microc.base.dtypes import Array
from microc.compiler.api import Program
from microc.device.boards import load_board
from microc.errors import MicrocError
from microc.run.board_project import build_project, open_project
from microc.run.session import Device
from tests.onnx_nodes.suite import NodeTest, Outcome, compare, compile_test, refusal, suite

BATCH = 10


def spread(tests: Iterable[NodeTest], count: int) -> tuple[NodeTest, ...]:
    """``count`` tests of as many operators, evenly spread over the operators by name."""
    families: dict[str, list[NodeTest]] = {}
    for test in sorted(tests, key=lambda test: (test.operator.lower(), test.name)):
        families.setdefault(test.operator, []).append(test)
    chosen = list(families.values())
    picked = [chosen[k * len(chosen) // count] for k in range(count)]
    return tuple(family[k % len(family)] for k, family in enumerate(picked))


def run_on(board: str, tests: Sequence[NodeTest], processes: int = 1) -> Iterator[Outcome]:
    """The outcomes, batch by batch."""
    suite()
    batches = [(board, tests[k : k + BATCH]) for k in range(0, len(tests), BATCH)]
    with ProcessPoolExecutor(processes, mp_context=get_context("fork")) as pool:
        for outcomes in pool.map(_run_batch, *zip(*batches, strict=True)):
            yield from outcomes


def _run_batch(board: str, tests: Sequence[NodeTest]) -> list[Outcome]:
    """One firmware after the other; what is not the network is compiled for the first."""
    with tempfile.TemporaryDirectory(prefix="microc-") as folder:
        return [_run(board, test, Path(folder)) for test in tests]


def _run(board: str, test: NodeTest, folder: Path) -> Outcome:
    machine, runtime = load_board(board), folder / "runtime"
    try:
        compiled = compile_test(test, machine.target.cpu)
        project = open_project(Program(compiled.module, machine).write(folder / "project"))
        if runtime.is_dir():
            shutil.copytree(runtime, project.folder / "build" / "runtime", copy_function=shutil.copyfile)
        build_project(project)
        shutil.copytree(project.folder / "build" / "runtime", runtime, dirs_exist_ok=True)
    except MicrocError as error:
        return refusal(test, error)
    with Device(project) as device:

        def network(*arrays: Array) -> tuple[Array, ...]:
            device.reset()
            made = device.run(*arrays)
            return made if isinstance(made, tuple) else (made,)

        return compare(test, compiled, network)
