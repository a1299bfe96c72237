# SPDX-License-Identifier: Apache-2.0
"""Measuring for real: an emulated board, a program that acts as one, this computer; what is wrong or hangs costs itself alone."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import microc
from microc.base.operating_system import bind_process_to_core
from microc.compiler.tuned.records import OK, WRONG, Task
from microc.device.boards import load_board
from microc.device.toolchain import native_core
from microc.errors import UsageError
from microc.target import target_for
from microc.tir import ir
from microc.tir.rewrite import map_stmt
from microc.tuning.fleet import make_meter
from microc.tuning.meters import BoardRunner, HostRunner, Rounds, Yardsticks
from microc.tuning.meters import _time_rounds_in_process as real
from microc.tuning.runner import Runner
from microc.tuning.search_space import Candidate, Space
from tests.device.smoke import needs
from tests.support import digits
from tests.tuning.networks import tasks

emulated = pytest.mark.skipif(
    not shutil.which("qemu-system-arm") or not shutil.which("arm-none-eabi-gcc"),
    reason="needs qemu-system-arm and its compiler",
)


def candidates(task: Task, count: int) -> list[Candidate]:
    space = Space(task)
    built = (space.candidate(point) for point in space.points[:: max(1, len(space.points) // (2 * count))])
    return [space.default, *[c for c in built if c][:count]]


def dense(cpu: str) -> Task:
    return next(task for task in tasks(cpu) if task.op.startswith("dense"))


def wrong(candidate: Candidate) -> Candidate:
    """The same kernel, which stores ones."""
    func = candidate.choice.func

    def ones(stmt: ir.Stmt) -> ir.Stmt:
        if isinstance(stmt, ir.Store) and stmt.buffer in func.params:
            return replace(stmt, value=ir.const(1, stmt.buffer.dtype))
        return stmt

    choice = replace(candidate.choice, func=replace(func, body=map_stmt(func.body, ones)))
    return candidate._replace(choice=choice)


def idle(candidate: Candidate) -> Candidate:
    """The same kernel, which stores nothing."""
    func = candidate.choice.func
    choice = replace(candidate.choice, func=replace(func, body=ir.seq()))
    return candidate._replace(choice=choice)


def checked(runner: Runner, task: Task) -> None:
    found = candidates(task, 3)
    results = runner.measure(task, found)
    assert [r.status for r in results] == [OK] * len(found) and all(r.ticks > 0 for r in results)
    assert [r.candidate for r in results] == found


@emulated
def test_instructions_of_an_emulated_board_repeat() -> None:
    runner, task = BoardRunner(load_board("mps2-an386")), dense("cortex-m4")
    checked(runner, task)
    one, other = (runner.measure(task, candidates(task, 1)) for _ in range(2))
    assert runner.unit == "instructions" and [r.ticks for r in one] == [r.ticks for r in other]


@emulated
@needs("llvm-mca-19")
def test_cycles_of_an_emulated_board_repeat() -> None:
    runner, task = BoardRunner(load_board("mps2-an386"), cycles=True), dense("cortex-m4")
    assert runner.unit == "cycles"
    one, other = (runner.measure(task, candidates(task, 2)) for _ in range(2))
    assert [r.status for r in one] == [OK] * 3 and [r.ticks for r in one] == [r.ticks for r in other]


def test_cycles_are_counted_in_emulators() -> None:
    board = load_board("mps2-an386")
    for place, from_ram in ((None, False), (board, True)):
        with pytest.raises(UsageError, match="--measure cycles counts in the emulator of a board"):
            make_meter(place, board.target, (), 1, load_into_ram=from_ram, cycles=True)
    with pytest.raises(UsageError, match="got port pipe:x"):
        BoardRunner(board, "pipe:x", cycles=True)
    with pytest.raises(UsageError, match="no model of cycles"):
        BoardRunner(load_board("microbit"), cycles=True)
    assert BoardRunner(load_board("raspberry-pi-pico"), cycles=True).unit == "cycles"
    for fleet, runner in (("tcp://127.0.0.1:1", None), ("", BoardRunner(board))):
        with pytest.raises(UsageError, match="measures in its own unit"):
            microc.tune(digits.INT8, board=board, measure="cycles", fleet=fleet, runner=runner)


def test_this_computer() -> None:
    checked(HostRunner(target_for("host")), dense("host"))
    core = native_core()
    checked(HostRunner(target_for(core)), dense(core))


def test_a_computer_that_is_slower_for_a_while_tells_the_same_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first right candidate is a yardstick of later images, for all runners that share it."""
    task, yardsticks = dense("host"), Yardsticks()
    first, second = candidates(task, 1)
    rounds = [[[100.0, 50.0], [110.0, 52.0]], [[300.0, 300.0, 150.0]] * 3]
    monkeypatch.setattr("microc.tuning.meters._time_rounds_in_process", lambda *where: real(*where) and rounds.pop(0))
    measured = HostRunner(task.target, yardsticks).measure(task, [first, second])
    assert [each.ticks for each in measured] == [100.0, 50.0]
    later = HostRunner(task.target, yardsticks).measure(task, [first, second])
    assert [each.ticks for each in later] == [100.0, 50.0] and [each.candidate for each in later] == [first, second]


def test_every_place_has_a_core_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are more places than cores, these are shared in turn; an image is timed on the core of its place."""
    bound: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 5, 7}, raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: bound.append(cores), raising=False)
    for place in range(4):
        bind_process_to_core(place)
    assert bound == [{7}, {5}, {2}, {7}]
    places: list[int] = []

    def ran(folder: Path, place: int) -> Rounds:
        places.append(place)
        return real(folder, place)

    monkeypatch.setattr("microc.tuning.meters._time_rounds_in_process", ran)
    pool, task = make_meter(None, target_for("host"), (), 2), dense("host")
    for _ in range(2):  # a place that is done waits behind the other
        assert pool.measure(task, [Space(task).default])[0].status == OK
    assert places == [0, 1]


def test_a_wrong_candidate_is_no_yardstick() -> None:
    task, yardsticks = dense("host"), Yardsticks()
    first, second = candidates(task, 1)
    HostRunner(task.target, yardsticks).measure(task, [wrong(first), second])
    assert [candidate for candidate, _ in yardsticks.values()] == [second]


def test_a_wrong_output_is_no_time() -> None:
    task = dense("host")
    first, second = candidates(task, 1)
    one, other = HostRunner(task.target).measure(task, [first, wrong(second)])
    assert (one.status, other.status) == (OK, WRONG) and "of its output are wrong" in other.detail


def test_a_right_output_of_another_is_no_result() -> None:
    """Outputs share their memory: what the candidate before has left there is right."""
    task = dense("host")
    one, other = HostRunner(task.target).measure(task, [candidates(task, 1)[0], idle(candidates(task, 1)[1])])
    assert (one.status, other.status) == (OK, WRONG)


@emulated
def test_a_right_output_of_another_is_no_result_on_a_board() -> None:
    task = dense("cortex-m4")
    first, second = candidates(task, 1)
    found = BoardRunner(load_board("mps2-an386")).measure(task, [first, idle(second)])
    assert [each.status for each in found] == [OK, WRONG]


def test_a_board_without_an_emulator_wants_a_port() -> None:
    with pytest.raises(UsageError, match="no emulator"):
        BoardRunner(load_board("nucleo-l476rg"))
