# SPDX-License-Identifier: Apache-2.0
"""What is told of a search while it goes on: events, lines, a live table; and how Ctrl-C ends it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import microc
from microc.cli import main, tune
from microc.compiler.tuned.records import Database
from microc.errors import DeviceError
from microc.tuning import tune as api
from microc.tuning.tune import Interrupted
from microc.tuning.tuner import TuningEvent
from tests.tuning.networks import DIGITS, Estimating

BOARD = "mps2-an386"


@pytest.fixture(autouse=True)
def paper(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command measures on paper."""
    monkeypatch.setattr(api, "make_meter", lambda *_, **__: Estimating())


def command(tmp_path: Path, *more: str) -> list[str]:
    records = str(tmp_path / "r.jsonl")
    return ["tune", str(DIGITS), "--board", BOARD, "--only", "dense5", "--trials", "12", "--records", records, *more]


def test_json_is_an_object_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(tmp_path, "--json")) == 0
    *batches, end = map(json.loads, capsys.readouterr().out.splitlines())
    assert batches and end["event"] == "end" and not end["interrupted"] and end["measured"] == batches[-1]["measured"]
    for batch in batches:
        assert (batch["schema_version"], batch["command"], batch["event"]) == (1, "tune", "batch")
        assert batch["trials"] == 12 and batch["lost"] == [] and batch["left"] >= 0 and batch["seconds"] >= 0
        assert set(batch["kernel"]) == set(end["kernels"][0])


def test_elsewhere_it_is_a_line_a_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(tmp_path)) == 0
    said = capsys.readouterr()
    assert said.err.count("tried, best") == len(said.err.splitlines()) >= 2 and "dense5: 8 tried" in said.err
    assert main(command(tmp_path, "--quiet")) == 0
    assert capsys.readouterr() == ("", "")


def test_python_gets_the_same_events() -> None:
    events: list[TuningEvent] = []
    found = microc.tune(DIGITS, board=BOARD, runner=Estimating(), trials=12, layers=["dense5"], callback=events.append)
    assert [e.measured for e in events] == [8, 12][: len(events)] and events[-1].kernel is found.kernels[0]
    assert json.loads(json.dumps(events[0].to_data()))["kernel"]["layers"]


def test_ctrl_c_keeps_what_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def pressed(event: TuningEvent) -> None:
        raise KeyboardInterrupt

    @contextmanager
    def watching(_: object) -> Iterator[Any]:
        yield pressed

    with pytest.raises(Interrupted) as caught:
        microc.tune(DIGITS, board=BOARD, runner=Estimating(), trials=12, layers=["dense5"], callback=pressed)
    assert len(caught.value.tuning.database) == 8 and caught.value.tuning.kernels[0].tried == 8
    monkeypatch.setattr("microc.cli.tune.progress_watcher", watching)
    assert main(command(tmp_path)) == 130
    said = capsys.readouterr()
    assert "ended by Ctrl-C" in said.out and "run the same command again" in said.out
    assert len(Database(tmp_path / "r.jsonl")) == 8
    monkeypatch.undo()
    monkeypatch.setattr(api, "make_meter", lambda *_, **__: Estimating())
    assert main(command(tmp_path, "--json")) == 0  # what is left of the space, and nothing twice
    records = list(Database(tmp_path / "r.jsonl"))
    assert len({(r.algorithm, r.rule, r.decisions) for r in records}) == len(records) > 8


def test_a_stopped_runner_measures_nothing_more() -> None:
    runner = Estimating()
    runner.stop()
    with pytest.raises(DeviceError, match="was stopped"):
        runner.measure(None, [None])  # type: ignore[arg-type, list-item]


def test_the_live_table_shows_names_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    with tune._live_table() as drawn:
        microc.tune(DIGITS, board=BOARD, runner=Estimating(), trials=8, layers=["dense5"], callback=drawn)
    said = capsys.readouterr().err
    assert "dense5" in said and "tried" in said and "8 of at most 8" in said
