# SPDX-License-Identifier: Apache-2.0
"""Options of the C compiler for a kernel: a step of its schedule, which changes no loop and no result."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import microc
from microc.compiler.lowering.kernel_selection import replay_on_group
from microc.compiler.tuned.records import OK, Database, Record, Task
from microc.errors import ScheduleError
from microc.isa import FAMILIES
from microc.tir.names import FLAGS
from microc.tuning.search_policies import SEARCHES, AnalyticModel
from microc.tuning.search_space import Candidate, Point, Space
from tests.tuning.networks import DIGITS
from tests.tuning.networks import tasks as tasks_of_core

WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Wsign-conversion", "-Wshadow", "-pedantic", "-Werror"]


tasks = cache(tasks_of_core)


def product() -> Task:
    return next(task for task in tasks() if task.op.startswith("dense"))


def flagged(task: Task, flags: str) -> Candidate:
    space = Space(task)
    found = space.candidate(space.default.point.with_flags(flags))
    assert found is not None
    return found


def record(task: Task, candidate: Candidate, ticks: float) -> Record:
    return Record(
        task.key, task.op, task.name, task.target.cpu, "mps2-an386", "gcc", "instructions", OK, candidate.point.algorithm,
        candidate.point.rule, candidate.point.decisions, candidate.choice.schedule.trace, ticks, 1, 0, 0,
    )  # fmt: skip


def test_only_options_that_a_family_lists() -> None:
    start = product().lowered[0]
    trace = Space(product()).default.choice.schedule.compile_with("unroll-loops").trace
    assert dict(replay_on_group(start, trace, "mine").func.annotations)[FLAGS] == "unroll-loops"
    for bad in ("fast-math", "unroll-loops,fast-math", "", 'O2")) int x', "profile-generate", "Ofast"):
        with pytest.raises(ScheduleError, match="unknown compiler option for a kernel"):
            Space(product()).default.choice.schedule.compile_with(bad)


def test_points_with_options_are_of_the_space_but_none_of_its_points() -> None:
    space = Space(product())
    plain = next(point for point in space.points if space.candidate(point))
    point = plain.with_flags("no-gcse")
    assert point in space and point not in space.points and point.with_flags("") == plain
    assert plain.with_flags("fast-math") not in space
    one, other = space.candidate(plain), space.candidate(point)
    assert one is not None and other is not None
    assert (other.choice.func.body, other.instructions) == (one.choice.func.body, one.instructions)
    assert other.choice.schedule.trace == (*one.choice.schedule.trace, other.choice.schedule.trace[-1])


@pytest.mark.parametrize("search", ["grid", "evolutionary"])
def test_a_search_tries_them_on_what_is_fast(search: str) -> None:
    """A small space is spent, and its fastest points were measured with all options."""
    task = next(task for task in tasks() if task.op == "quantize")
    found = SEARCHES[search](Space(task), 0, AnalyticModel())
    measured: list[Candidate] = []
    while not found.is_exhausted:
        batch = found.propose(8)
        found.tell([(each, each.instructions) for each in batch])
        measured += batch
    tried = [each.point.flags for each in measured if each.point.flags]
    flags = FAMILIES["arm"].flags
    assert set(tried) == set(flags)
    assert len({(each.choice.func.body, each.point.flags) for each in measured}) == len(measured)


def test_records_print_them_and_results_stay(tmp_path: Path) -> None:
    """``--tuned`` with a record of options: an attribute that gcc takes and clang does not see, the same outputs."""
    path = tmp_path / "tuned.jsonl"
    database = Database(path)
    for task in tasks():
        default = Space(task).default
        database.add([record(task, default, 100.0), record(task, flagged(task, "no-gcse,unroll-loops"), 90.0)])
    database.close()
    plain = microc.compile(DIGITS, board="mps2-an386", optimize="speed")
    tuned = microc.compile(DIGITS, board="mps2-an386", optimize="speed", tuned=str(path))
    folder = tuned.write(tmp_path / "project")
    text = (Path(folder) / "model.c").read_text()
    assert re.search(r'^\w+_OPTIMIZE\("no-gcse,unroll-loops"\)\n\w+_KERNEL ', text, re.MULTILINE)
    assert "options of gcc for this kernel, by measurement: no-gcse,unroll-loops" in text
    assert "_OPTIMIZE" not in (Path(plain.write(tmp_path / "plain")) / "model.c").read_text()
    for compiler in ("gcc", "clang"):
        if shutil.which(compiler):
            command = [compiler, "-std=c99", "-O2", *WARNINGS, "-c", "model.c", "-o", "model.o"]
            subprocess.run(command, cwd=folder, check=True)
    one, other = plain.library(), tuned.library()
    image = np.random.default_rng(0).random(one.inputs[0]["shape"], np.float32).astype(one.inputs[0]["dtype"])
    assert np.array_equal(one(image), other(image))


def test_kernels_with_other_options_are_other_functions() -> None:
    """Equal loops are one C function only where they are compiled alike."""
    from microc.compiler.lowering.kernel_builder import Configuration, KernelBuilder
    from microc.compiler.lowering.module_builder import ModuleBuilder, register_kernel
    from microc.module import Kernel
    from microc.target import SPEED

    task = product()
    func = Space(task).default.choice.func
    builder = ModuleBuilder(task.graph, KernelBuilder(Configuration(task.graph, SPEED), task.target))
    other = replace(func, annotations=((FLAGS, "Os"),))
    assert len({register_kernel(builder, Kernel(each), "kernel") for each in (func, other, func)}) == 2


def test_names_of_points_say_them() -> None:
    assert "flags no-gcse" in str(Point("direct", "matrix", ()).with_flags("no-gcse"))
