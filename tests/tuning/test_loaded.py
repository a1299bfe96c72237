# SPDX-License-Identifier: Apache-2.0
"""Measuring by LOAD and CALL on an emulated board: what the neighbours measure, and what faults or hangs costs itself alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from microc.compiler.tuned.records import FAILED, OK, WRONG, Database, Task
from microc.device.boards import load_board
from microc.errors import FitError, UsageError
from microc.target import target_for
from microc.tir import ir
from microc.tir.analysis.context import buffers_written
from microc.tuning.fleet import make_meter
from microc.tuning.meters import BoardRunner, LoadRunner
from microc.tuning.runner import MeasuredResult, Runner
from microc.tuning.search_policies import make_ranking_model
from microc.tuning.search_space import Candidate
from microc.tuning.tuner import SearchLimits, Tuner
from tests.tuning.test_runners import candidates, dense, emulated, wrong

BOARD = "mps2-an386"
pytestmark = [pytest.mark.cross, pytest.mark.emulator, emulated]


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    found = LoadRunner(load_board(BOARD), patience=2.0)
    yield found
    found.stop()


@pytest.fixture(scope="module")
def task() -> Task:
    return dense("cortex-m4")


def with_body(candidate: Candidate, body: ir.Stmt) -> Candidate:
    """The candidate, whose function does something else."""
    choice = replace(candidate.choice, func=replace(candidate.choice.func, body=body))
    return candidate._replace(choice=choice)


def output(candidate: Candidate) -> ir.Buffer:
    params = candidate.choice.func.params
    return next(p for p in params if p in buffers_written(candidate.choice.func.body))


def hanging(candidate: Candidate) -> Candidate:
    """One that computes for years."""
    out, long = output(candidate), ir.const(2**31 - 1, "int32")
    place = (ir.const(0, "int32"),) * len(out.shape)
    value = ir.Load(out, place).astype("int32") * 5 + 1
    store = ir.Store(out, place, (value & 127).astype(out.dtype))
    return with_body(candidate, ir.For(ir.Var("i"), long, ir.For(ir.Var("j"), long, store)))


def faulting(candidate: Candidate) -> Candidate:
    """One that stores where there is no memory."""
    out, data = output(candidate), candidate.choice.func.params[0]
    said = ir.Load(data, (ir.const(0, "int32"),) * len(data.shape)).astype("int32")  # where data say is trusted
    beyond = (*(ir.const(0, "int32"),) * (len(out.shape) - 1), (said | 1) * (1 << 24) + (1 << 30))
    return with_body(candidate, ir.Store(out, beyond, ir.const(1, out.dtype)))


def test_it_measures_what_a_flashed_board_does(runner: Runner, task: Task) -> None:
    found = candidates(task, 4)
    loaded, again, flashed = (r.measure(task, found) for r in (runner, runner, BoardRunner(load_board(BOARD))))
    assert [r.status for r in loaded] == [OK] * len(found) and [r.code for r in loaded] == [r.code for r in flashed]
    assert [r.ticks for r in loaded] == [r.ticks for r in again]
    apart = {b.ticks - a.ticks for a, b in zip(loaded, flashed, strict=True)}  # the way into a kernel is another one
    assert max(apart) - min(apart) <= 1 and max(map(abs, apart)) < 40  # a tick is 0.625 instructions
    assert (runner.board, runner.unit) == (BOARD + " (RAM)", "instructions")


def test_a_wrong_candidate_is_one(runner: Runner, task: Task) -> None:
    first, second, third = candidates(task, 2)
    results = runner.measure(task, [first, wrong(second), third])
    assert [r.status for r in results] == [OK, WRONG, OK] and "elements of its output are wrong" in results[1].detail


def test_a_hang_costs_itself_alone(runner: Runner, task: Task) -> None:
    first, second, third = candidates(task, 2)
    results = runner.measure(task, [first, hanging(second), third])
    assert [r.status for r in results] == [OK, FAILED, OK] and "no answer to CALL" in results[1].detail


def test_a_fault_costs_itself_alone(runner: Runner, task: Task) -> None:
    first, second, third = candidates(task, 2)
    results = runner.measure(task, [first, faulting(second), third])
    assert [r.status for r in results] == [OK, FAILED, OK] and "the board has restarted" in results[1].detail


def test_a_batch_that_fails_as_a_whole_is_halved(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure_one(_: Task, batch: list[Candidate]) -> list[MeasuredResult]:
        if len(batch) > 1:
            raise FitError("two candidates do not fit")
        return [MeasuredResult(batch[0], OK, 1.0)]

    runner = LoadRunner(load_board(BOARD))
    monkeypatch.setattr(runner, "_measure_image", measure_one)
    assert [result.status for result in runner.measure(task, candidates(task, 2))] == [OK] * 3


def test_a_search_writes_records_of_its_own(task: Task) -> None:
    database = Database()
    runner = make_meter(load_board(BOARD), task.target, (), 1, load_into_ram=True)
    Tuner([task], runner, database, model=make_ranking_model("analytic"), search="grid").run(SearchLimits(4))
    records = list(database)
    assert len(records) >= 4 and {(r.board, r.unit) for r in records} == {(BOARD + " (RAM)", "instructions")}


def test_what_takes_no_code_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot load code"):
        LoadRunner(load_board("arduino-uno"), "/dev/null")
    with pytest.raises(UsageError, match="--load requires a board"):
        make_meter(None, target_for("host"), (), 1, load_into_ram=True)
