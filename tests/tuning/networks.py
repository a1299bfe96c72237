# SPDX-License-Identifier: Apache-2.0
"""A small network of integers, the kernels of it, and a runner that needs no board."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from microc.compiler.options import make_options
from microc.compiler.pipeline import compile_network
from microc.compiler.tuned.records import OK, Task, list_tuning_tasks
from microc.target import SIZE, SPEED, target_for
from microc.tuning.runner import MeasuredResult, Runner
from microc.tuning.search_space import Candidate, Space

DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits_qdq.onnx"
"""Convolutions, pools and a dense layer of bytes."""


space_of = cache(Space)
"""The space of a task; its candidates are built once for all tests."""


@cache
def tasks(cpu: str = "cortex-m4", optimize: str = "speed") -> tuple[Task, ...]:
    """The kernels of the network on a core."""
    return list_tuning_tasks(compile_network(DIGITS, target_for(cpu), make_options(optimize=optimize)), (SPEED, SIZE))


def product(cpu: str = "cortex-m4") -> Task:
    """The dense layer: hundreds of points, which are built in no time."""
    return next(task for task in tasks(cpu) if task.op.startswith("dense"))


class Estimating(Runner):
    """Measures by the cost model, with an error that the cost model does not know: bytes of code count, too."""

    board, unit, toolchain, batch = "paper", "instructions", "none", 8

    def __init__(self) -> None:
        self.measured: list[Candidate] = []

    def check(self) -> None:
        """Paper is always there."""

    def _measure_image(self, task: Task, candidates: Sequence[Candidate]) -> list[MeasuredResult]:
        self.measured += candidates
        return [MeasuredResult(c, OK, c.instructions + 20 * c.code, c.code) for c in candidates]
