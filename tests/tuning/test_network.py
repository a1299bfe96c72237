# SPDX-License-Identifier: Apache-2.0
"""A network as a whole: what its kernels take beside each other decides, and is kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

import microc
from microc.cli import main
from microc.cli.tune import describe_whole_network
from microc.compiler.lowering.kernel_builder import CompiledNetwork
from microc.compiler.options import make_options
from microc.compiler.pipeline import compile_network
from microc.compiler.tuned.measured_choice import (
    compute_network_key,
    find_network_measurements,
    record_id_by_kernel_key,
)
from microc.compiler.tuned.optimisation_plan import choose_tuned_schedules
from microc.compiler.tuned.records import NETWORK, UNTUNED, Database, Record, Task, list_tuning_tasks, write_records
from microc.target import target_for
from microc.tuning import whole_network
from microc.tuning.search_policies import AnalyticModel
from microc.tuning.timing_process import NetworkTimes
from microc.tuning.tuner import SearchLimits, TunedNetwork, Tuner, parse_options_and_list_tasks
from microc.tuning.whole_network import Combination, NetworkSearch
from tests.tuning.networks import DIGITS, Estimating, space_of
from tests.tuning.test_records import RECORD

LATER = float("inf")


@cache
def plain(optimize: str = "speed") -> CompiledNetwork:
    return compile_network(DIGITS, target_for("host"), make_options(optimize=optimize))


@cache
def kernels() -> tuple[Task, ...]:
    """Two kernels of the network."""
    return tuple(task for task in list_tuning_tasks(plain()) if task.name.endswith(("pointwise3", "dense5")))


def key() -> str:
    return compute_network_key(list_tuning_tasks(plain()), 1, 1)


@pytest.fixture(scope="module")
def measured() -> list[Record]:
    """What a search on paper leaves of them: some schedules are faster than what rules choose."""
    database = Database()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("microc.tuning.tuner.Space", space_of)
        tuner = Tuner(kernels(), Sloped(), database, model=AnalyticModel(), search="random")
        tuner.run(SearchLimits(24))
    assert all(each.default is not None and each.best < each.default for each in tuner.kernels)
    return list(database)


class Sloped(Estimating):
    """What the compiler takes by itself is never the fastest."""

    def _measure_image(self, task: Task, candidates: Sequence[Any]) -> list[Any]:
        found = super()._measure_image(task, candidates)
        return [replace(r, ticks=2 * r.ticks) if UNTUNED in dict(r.candidate.point.decisions) else r for r in found]


def combination(ticks: float, *records: Record, **more: Any) -> Record:
    decisions = tuple((each.key, each.id) for each in records) or ((UNTUNED, "speed"),)
    known = {"key": key(), "op": NETWORK, "cpu": "host", "board": "paper", "unit": "instructions", "toolchain": "none"}
    return replace(RECORD, **{**known, "decisions": decisions, "trace": (), "ticks": ticks, **more})


def fastest(measured: Sequence[Record], task: Task, place: int = 0) -> Record:
    return sorted((r for r in measured if r.key == task.key), key=lambda r: r.ticks)[place]


def taken(path: Path, records: Sequence[Record], made: CompiledNetwork | None = None) -> dict[str, str]:
    """By key the rule of what kernels take of a file."""
    write_records(path, records)
    return {key: each.rule for key, each in choose_tuned_schedules(made or plain(), path).items()}


def test_times_of_one_core_say_nothing_of_two() -> None:
    tasks = list_tuning_tasks(plain())
    assert len({compute_network_key(tasks, threads, cores) for threads in (1, 2) for cores in (1, 2)}) == 4


def test_the_best_combination_is_taken(measured: list[Record], tmp_path: Path) -> None:
    one, other = kernels()
    first, last = fastest(measured, one), fastest(measured, other)
    apart = taken(tmp_path / "a", measured)
    assert apart.keys() == {one.key, other.key}
    known = [*measured, combination(100, first, last), combination(70, last), combination(90)]
    assert taken(tmp_path / "b", known).keys() == {other.key}
    assert taken(tmp_path / "c", [*known, combination(80, last), combination(60)]) == {}  # the newest of each counts
    assert taken(tmp_path / "d", [*measured, combination(70, last)]) == apart  # beside what is not known


def test_what_does_not_apply_is_passed_over(measured: list[Record], tmp_path: Path) -> None:
    one, other = kernels()
    first, last = fastest(measured, one), fastest(measured, other)
    known = [combination(90), combination(70, last), combination(80, first)]
    assert taken(tmp_path / "gone", [*(r for r in measured if r != last), *known]).keys() == {one.key}
    broken = replace(last, rule="none", algorithm="none")
    assert taken(tmp_path / "old", [*measured, broken, *known, combination(10, broken)]).keys() == {other.key}
    other_core = [replace(each, cpu="x86-64-v2") for each in known]
    assert taken(tmp_path / "core", [*measured, *other_core]).keys() == {one.key, other.key}
    small = plain("size")
    assert taken(tmp_path / "e", [*measured, *known], small) == taken(tmp_path / "f", measured, small)


def test_pruning_keeps_what_combinations_name(measured: list[Record]) -> None:
    task, database = kernels()[0], Database()
    database.add(measured)
    slow = next(record for record in measured if record.key == task.key and record not in database.pruned_records())
    more = [combination(90), combination(95, slow), combination(80, fastest(measured, task))]
    database.add(more)
    assert {slow, *more} <= set(database.pruned_records())


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch, measured: list[Record]) -> Callable[..., NetworkSearch]:
    """A search whose network runs on paper: a kernel with some record takes so many parts of what it did."""

    def made(slower: dict[str, float], whole: Callable[[Combination], float]) -> NetworkSearch:
        database = Database()
        database.add(measured)
        found = NetworkSearch(DIGITS, target_for("host"), make_options(optimize="speed"), database, Estimating())
        parts: list[Combination] = []
        combined = found._compile_combination

        def remembered(chosen: Any, path: Path) -> CompiledNetwork:
            parts.append(whole_network._make_combination(chosen))
            return combined(chosen, path)

        def turns(*_: Path) -> list[list[NetworkTimes]]:
            calls = found.untuned.module.calls
            by_layer = {layer: slower.get(r, 0.9) for k, r in parts[-1] for layer in tasks[k].layers}
            return [[(1000.0, [10.0] * len(calls)), (whole(parts[-1]), [10 * by_layer.get(c.layer, 1) for c in calls])]]

        tasks = {task.key: task for task in found.tasks}
        monkeypatch.setattr(whole_network, "_time_alternately", turns)
        monkeypatch.setattr(found, "_build_library", lambda made, folder: folder)
        monkeypatch.setattr(found, "_compile_combination", remembered)
        return found

    return made


def combinations(search: NetworkSearch) -> list[Record]:
    return [record for record in search.database if record.op == NETWORK]


def test_a_kernel_that_loses_in_place_gets_the_next_best_and_at_last_none(
    search: Callable[..., NetworkSearch], measured: list[Record]
) -> None:
    one, other = kernels()
    best, next_ = (fastest(measured, one, place).id for place in (0, 1))
    last = fastest(measured, other).id
    found = search({best: 1.1, next_: 1.05}, lambda parts: 1100.0 if len(parts) > 1 else 950.0)
    found.run(LATER)
    untuned, *tried = combinations(found)
    assert (untuned.ticks, untuned.untuned) == (1000.0, True)
    assert [record_id_by_kernel_key(r) for r in tried] == [
        {one.key: best, other.key: last},
        {one.key: next_, other.key: last},
        {other.key: last},
    ]
    together = find_network_measurements(found.key, "host", found.database, "paper")
    assert together is not None and together.best is tried[-1] and together.kernels_kept_at_default == {one.key}
    shown = TunedNetwork(found.key, together, found.tasks)
    assert describe_whole_network(shown, "ns") == "whole network: 1.0 -> 0.9 us (0.950); 1 kernel stays as it was"
    assert shown.to_data()["kept"] == [one.name]


def test_a_network_that_loses_stays_as_it_was(search: Callable[..., NetworkSearch]) -> None:
    """Every kernel wins in place, and the whole does not; a second search leaves out what the first one tried in vain."""
    found = search({}, lambda parts: 1060.0)
    found.run(LATER)
    assert len(combinations(found)) == 2
    found.run(LATER)
    untuned, first, second = combinations(found)
    assert (
        not set(record_id_by_kernel_key(first).values()) & set(record_id_by_kernel_key(second).values())
        and first.ticks == second.ticks == 1060.0
    )
    together = find_network_measurements(found.key, "host", found.database, "paper")
    assert (
        together is not None
        and together.best == untuned
        and together.kernels_kept_at_default == {each.key for each in kernels()}
    )


def test_time_that_is_over_ends_it(search: Callable[..., NetworkSearch], measured: list[Record]) -> None:
    best = fastest(measured, kernels()[0]).id
    found = search({best: 1.1}, lambda parts: 1100.0)
    found.run(monotonic())
    assert len(combinations(found)) == 2


def test_some_time_is_left_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is a limit; and where this computer measures, of which a runner of one's own says nothing."""
    seconds, ends = list[float](), list[float]()

    def searched(tuner: Tuner, limits: SearchLimits) -> None:
        seconds.append(limits.seconds)
        tuner.proposed_count = limits.trials

    monkeypatch.setattr(Tuner, "run", searched)
    monkeypatch.setattr(NetworkSearch, "run", lambda self, end: ends.append(end - monotonic()))
    microc.tune(DIGITS, "native", trials=1, time=60.0)
    assert 30 <= seconds[0] < 60 and 0 < ends[0] < 60
    microc.tune(DIGITS, "native", trials=1)
    assert seconds[1] == ends[1] == LATER
    microc.tune(DIGITS, "native", trials=0)
    microc.tune(DIGITS, "native", trials=1, time=60.0, runner=Estimating())
    assert len(ends) == 2 and seconds[3] == 60


def test_this_computer(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A search ends with the whole network; what it tells is what a compilation takes."""
    monkeypatch.setattr(whole_network, "PROCESSES", 1)
    records, plan = tmp_path / "r.jsonl", tmp_path / "plan.json"
    command = ["tune", str(DIGITS), "--target", "native", "--only", "dense5", "--records", str(records)]
    assert main([*command, "--trials", "12", "--json", "--plan", str(plan), "--html", str(tmp_path / "p.html")]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])["network"]
    core = told and target_for(microc.compile(DIGITS, "native").core)
    key = compute_network_key(parse_options_and_list_tasks(DIGITS, core, None, {})[1], 1, 1)
    together = find_network_measurements(key, core.cpu, Database(records), "host")
    assert together is not None and told["key"] == key and told["best"] == together.best.ticks <= told["default"]
    choices = {each["key"]: each["choice"] for each in json.loads(plan.read_text())["kernels"]}
    assert {k: c for k, c in choices.items() if c != UNTUNED} == record_id_by_kernel_key(together.best)
    assert "Whole network" in (tmp_path / "p.html").read_text()
    assert main([*command, "--trials", "0"]) == 0
    assert "whole network: " in capsys.readouterr().out and len(Database(records)) == len(together.combinations) + sum(
        each.op != NETWORK for each in Database(records)
    )
