# SPDX-License-Identifier: Apache-2.0
"""Which records a compilation takes: the least time under what flash the goal allows, and only what still makes a schedule."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import microc
from microc.compiler.tuned.measured_choice import choose_records
from microc.compiler.tuned.records import OK, Database, Record, Task, write_records
from microc.errors import UsageError
from microc.schedule.primitives.tree import Step
from tests.tuning.networks import DIGITS, Estimating, tasks

BOARD = "mps2-an386"


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a search of a few candidates on paper leaves."""
    path = tmp_path_factory.mktemp("records") / "tuned.jsonl"
    found = microc.tune(
        DIGITS, board=BOARD, records=path, runner=Estimating(), trials=60, layers=["dense5", "pointwise3"]
    )
    assert found.best <= found.default and len(found.kernels) == 2
    return path


def report(records: Path | None, **options: Any) -> dict[str, Any]:
    return microc.compile(DIGITS, board=BOARD, tuned=records, cache=False, **options).report()


def test_balanced_is_no_larger_and_speed_no_slower(records: Path) -> None:
    database, found = Database(records), {}
    for goal, flash in (("balanced", 0), ("speed", None)):
        picked = choose_records(tasks(optimize=goal), database, flash_growth=flash)
        assert {chosen.task.op for chosen in picked} == {"conv2d+requantize_float", "dense+requantize_float"}
        taken = [(chosen.record or chosen.default, chosen.default) for chosen in picked]
        assert sum(r.ticks for r, _ in taken) <= sum(d.ticks for _, d in taken)
        found[goal] = sum(r.flash for r, _ in taken) - sum(d.flash for _, d in taken)
    assert found["balanced"] <= 0


def test_the_network_computes_what_it_did(records: Path) -> None:
    x = np.random.default_rng(0).standard_normal((1, 1, 8, 8)).astype(np.float32)
    plain, tuned = (microc.compile(DIGITS, board=BOARD, optimize="speed", tuned=t).library() for t in (None, records))
    assert np.array_equal(plain(x), tuned(x))
    rules = [layer["rule"] for layer in report(records, optimize="speed")["layers"]]
    assert any(rule.endswith(", tuned") for rule in rules)


def test_a_record_that_makes_no_schedule_any_more_is_left_out(records: Path, tmp_path: Path) -> None:
    found = [_broken(record) for record in Database(records) if not record.untuned]
    write_records(tmp_path / "old.jsonl", found)
    plain, tuned = report(None, optimize="speed"), report(tmp_path / "old.jsonl", optimize="speed")
    assert plain["estimated_instructions"] == tuned["estimated_instructions"]


def _broken(record: Record) -> Record:
    first = replace(record.trace[0], primitive="no such primitive")
    return replace(record, trace=(first, *record.trace[1:]), ticks=1.0)


def test_what_pruning_leaves_gives_the_same_network(records: Path, tmp_path: Path) -> None:
    kept = Database(records).pruned_records()
    write_records(tmp_path / "pruned.jsonl", kept)
    assert len(kept) < len(Database(records))
    for goal in ("balanced", "speed", "size"):
        whole, pruned = (
            [layer["schedule"] for layer in report(path, optimize=goal)["layers"]]
            for path in (records, tmp_path / "pruned.jsonl")
        )
        assert whole == pruned


def test_a_workspace_that_the_arena_has_no_room_for_is_no_choice(records: Path) -> None:
    database = Database()
    database.add(replace(r, workspace=r.workspace + 10**6) if not r.untuned else r for r in Database(records))
    assert all(chosen.record is None or chosen.record.untuned for chosen in choose_records(tasks(), database))


def kernel(key: str, *algorithms: str) -> Task:
    """A kernel of two ways, the function of the first of which others share: that is taken by itself, in one step."""
    functions = {name: "shared" if name == algorithms[0] else key for name in algorithms}
    schedule = SimpleNamespace(trace=(Step("plain", ()),))
    untuned = SimpleNamespace(number=0, choice=SimpleNamespace(schedule=schedule))
    fields = {"key": key, "layers": (key,), "op": "conv2d", "runs": 1, "functions": functions, "untuned": (untuned,)}
    return cast("Task", SimpleNamespace(**fields, target=SimpleNamespace(cpu="core"), algorithms=algorithms))


def measured(key: str, algorithm: str, step: str, ticks: float, code: int) -> Record:
    return Record(
        key=key,
        op="conv2d",
        layer=key,
        cpu="core",
        board=BOARD,
        toolchain="gcc",
        unit="instructions",
        status=OK,
        algorithm=algorithm,
        rule="matrix",
        decisions=(),
        trace=(Step(step, ()),),
        ticks=ticks,
        code=code,
        constants=0,
        workspace=0,
    )


def test_code_that_kernels_share_counts_once() -> None:
    """Three kernels in one function: each alone would find 40 % in no more flash, and lose what they share."""
    keys = ("a", "b", "c")
    kernels, database = [kernel(key, "direct", "pairs") for key in keys], Database(None)
    database.add(measured(key, "direct", "plain", 100, 500) for key in keys)
    database.add(measured(key, "pairs", "paired", 60, 400) for key in keys)
    assert all(chosen.record is None for chosen in choose_records(kernels, database, flash_growth=0))
    database.add(measured(key, "direct", "tall", 80, 450) for key in keys)
    tall = choose_records(kernels, database, flash_growth=0)
    assert [chosen.record and chosen.record.trace[0].primitive for chosen in tall] == 3 * ["tall"]
    grown = choose_records(kernels, database, flash_growth=350)
    assert sorted(chosen.record.algorithm for chosen in grown if chosen.record) == ["direct", "direct", "pairs"]


def test_many_ways_of_kernels_that_share_code_are_not_all_compared() -> None:
    kernels, database = [kernel(key, "direct") for key in "abc"], Database(None)
    for key in "abc":
        database.add([measured(key, "direct", "plain", 100, 500)])
        database.add(measured(key, "direct", f"tile {n}", 99 - n, 500 + n) for n in range(1, 20))
    assert all(chosen.record is None for chosen in choose_records(kernels, database, flash_growth=0))
    grown = choose_records(kernels, database, flash_growth=7)
    assert [chosen.record and chosen.record.trace[0].primitive for chosen in grown] == 3 * ["tile 7"]


def test_records_of_another_core_and_no_records_are_told_apart(records: Path, tmp_path: Path) -> None:
    assert choose_records(tasks("cortex-m0"), Database(records)) == []
    with pytest.raises(UsageError, match="lines that are not records"):
        report(DIGITS)
    with pytest.raises(UsageError, match="there is no file of records"):
        report(tmp_path / "missing.jsonl")
