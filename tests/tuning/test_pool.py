# SPDX-License-Identifier: Apache-2.0
"""Several places that measure: what a place loses is measured elsewhere, and nothing is told twice."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event, Semaphore

import pytest

import microc
from microc.compiler.tuned.records import OK, Database, Task
from microc.device.boards import load_board
from microc.errors import DeviceError, UsageError
from microc.target import target_for
from microc.tuning.fleet import MeterPool, make_meter
from microc.tuning.meters import BoardRunner
from microc.tuning.runner import MeasuredResult
from microc.tuning.search_policies import AnalyticModel
from microc.tuning.search_space import Candidate, Space
from microc.tuning.tuner import SearchLimits, SearchPolicy, Tuner
from tests.tuning.networks import DIGITS, Estimating, product, space_of, tasks


@pytest.fixture(autouse=True)
def _spaces_are_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("microc.tuning.tuner.Space", space_of)


class Failing(Estimating):
    """Answers so many times, then never again: its check fails, too."""

    def __init__(self, answers: int) -> None:
        super().__init__()
        self.answers = answers

    def check(self) -> None:
        raise DeviceError("the port is gone")

    def _measure_image(self, task: Task, candidates: Sequence[Candidate]) -> list[MeasuredResult]:
        self.answers -= 1
        if self.answers < 0:
            raise DeviceError("no answer")
        return super()._measure_image(task, candidates)


def searched(*runners: Estimating, trials: int = 40) -> tuple[MeterPool, Database]:
    pool, database = MeterPool([(f"port {n}", runner) for n, runner in enumerate(runners)]), Database()
    Tuner(tasks(), pool, database, model=AnalyticModel(), search="random").run(SearchLimits(trials))
    return pool, database


def points(database: Database) -> Counter[object]:
    return Counter((r.key, r.algorithm, r.rule, r.decisions) for r in database)


def test_a_place_that_fails_loses_nothing_and_doubles_nothing() -> None:
    good = Estimating()
    pool, database = searched(Failing(2), good, Failing(0))
    assert len(database) == 40 and max(points(database).values()) == 1 and {r.status for r in database} == {OK}
    assert sorted(pool.lost) == ["port 0: the port is gone", "port 2: the port is gone"]
    assert good.measured


def test_places_measure_side_by_side() -> None:
    entered, both = Semaphore(0), Event()

    class Meeting(Estimating):
        def _measure_image(self, task: Task, candidates: Sequence[Candidate]) -> list[MeasuredResult]:
            if entered.acquire(blocking=False):
                both.set()
            elif candidates[0] is not space.default:
                entered.release()
                both.wait(60)
            return super()._measure_image(task, candidates)

    pool = MeterPool([("a", Meeting()), ("b", Meeting())])
    tuner = Tuner([product()], pool, Database(), model=AnalyticModel(), search="random")
    space = tuner.kernels[0].search.space
    tuner.run(SearchLimits(24))
    assert both.is_set()  # of one kernel alone, once its default is known


def test_a_batch_is_proposed_while_all_places_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another kernel: of the one that is being measured it would learn nothing."""
    running: list[str] = []
    proposed: list[tuple[str, tuple[str, ...]]] = []
    second = Event()

    class Waiting(Estimating):
        def _measure_image(self, task: Task, candidates: Sequence[Candidate]) -> list[MeasuredResult]:
            running.append(task.key)
            assert second.wait(60)
            results = super()._measure_image(task, candidates)
            running.remove(task.key)
            return results

    tuner = Tuner(tasks(), Waiting(), Database(), model=AnalyticModel(), search="random")

    def told(key: str, search: SearchPolicy) -> Callable[[int], list[Candidate]]:
        def propose(count: int) -> list[Candidate]:
            proposed.append((key, tuple(running)))
            if len(proposed) == 2:
                second.set()
            return whole(count)

        whole = search.propose
        return propose

    for each in tuner.kernels:
        monkeypatch.setattr(each.search, "propose", told(each.task.key, each.search))
    tuner.run(SearchLimits(40))
    assert len(proposed) > 2 and not any(key in measured for key, measured in proposed)


def test_the_search_ends_where_no_place_is_left() -> None:
    database = Database()
    pool = MeterPool([("A", Failing(2)), ("B", Failing(1))])
    tuner = Tuner(tasks(), pool, database, model=AnalyticModel(), search="random")
    with pytest.raises(DeviceError, match="all 2 boards or processes that measure have failed") as caught:
        tuner.run(SearchLimits(200))
    assert "A: the port is gone" in caught.value.hint and "B: the port is gone" in caught.value.hint
    assert len(database) and max(points(database).values()) == 1


def test_the_search_goes_on_with_a_program_after_one_that_hangs(tmp_path: Path) -> None:
    hanging, task = f"pipe:{sys.executable} -c 'import time; time.sleep(60)' {{elf}}", product("host")
    board, space = load_board("host"), Space(task)
    pool = MeterPool([(name, BoardRunner(board, name, patience=1.0)) for name in (hanging, "pipe:{elf}")])
    batch = [space.default, *filter(None, map(space.candidate, space.points[:3]))]
    for _ in range(2):
        assert [r.status for r in pool.measure(task, batch)] == [OK] * len(batch)
    assert len(pool.lost) == 1 and pool.lost[0].startswith("pipe:")


def test_lines_that_cannot_be_shared_are_refused() -> None:
    board, core = load_board("mps2-an386"), target_for("cortex-m4")
    for name, ports, jobs in (("twice", ["A", "A"], 1), ("got 2 for A, expected 1", ["A"], 2)):
        with pytest.raises(UsageError, match=name):
            make_meter(board, core, ports, jobs)
    with pytest.raises(UsageError, match="--port requires a board"):
        make_meter(None, core, ["A"], 1)
    assert make_meter(board, core, ["A", "B"], 1).places == 2
    assert make_meter(board, core, ["pipe:x {elf}"], 3).places == 3


def test_ports_that_are_not_there_end_the_search_with_their_names() -> None:
    with pytest.raises(DeviceError, match="all 2 boards or processes") as caught:
        microc.tune(DIGITS, board="nucleo-l476rg", port=["/dev/no-such-a", "/dev/no-such-b"], trials=20)
    assert "/dev/no-such-a" in caught.value.hint and "/dev/no-such-b" in caught.value.hint
