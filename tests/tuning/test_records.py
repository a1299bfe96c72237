# SPDX-License-Identifier: Apache-2.0
"""Records: whole lines only, whatever ended the program, and nothing in them runs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from microc.compiler.tuned.records import (
    FAILED,
    Database,
    Record,
    merge_records,
    pareto_records,
    record_from_json,
    write_records,
)
from microc.errors import UsageError
from microc.schedule.primitives.tree import Step

RECORD = Record(
    key="0" * 40, op="dense", layer="#1 dense", cpu="cortex-m4", board="paper", toolchain="none", unit="instructions",
    status="ok", algorithm="direct", rule="matrix", decisions=(("tile.rows", 2), ("tile.weights", "")),
    trace=(Step("split", ("k", (None, 4))),), ticks=100.0, code=50, constants=64, workspace=0,
)  # fmt: skip


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert record_from_json(RECORD.to_json()) == RECORD
    database = Database(tmp_path / "r.jsonl")
    database.add([RECORD, replace(RECORD, ticks=90.0)])
    again = Database(tmp_path / "r.jsonl")
    assert list(again) == list(database) and again.records_of(RECORD.key) == [*database] and not again.records_of("1")
    assert again.rows()[0]["decisions"] == {"tile.rows": 2, "tile.weights": ""}


@pytest.mark.parametrize(
    "change",
    [
        {"ticks": "many"}, {"ticks": -1}, {"ticks": float("nan")}, {"code": True}, {"trace": [["split", {"a": 1}]]},
        {"trace": [[]]}, {"trace": {}}, {"decisions": {"a": [1]}}, {"decisions": []}, {"key": 1}, {"more": 1},
        {"rule": "\x1b[2J"}, {"layer": "a\nb"}, {"decisions": {"a": "\x07"}},
    ],
)  # fmt: skip
def test_a_damaged_line_is_skipped_and_counted(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "r.jsonl"
    bad = json.dumps({**json.loads(RECORD.to_json()), **change})
    path.write_text(f"{RECORD.to_json()}\n{bad}\n" + RECORD.to_json()[:40])
    database = Database(path)
    assert (len(database), database.skipped) == (1, 2)
    database.add([RECORD])
    database.close()
    assert (len(Database(path)), Database(path).skipped) == (2, 2)


def test_a_file_that_is_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"\x08\x07" * 100)
    with pytest.raises(UsageError, match="lines that are not records"):
        Database(tmp_path / "model.onnx")


def test_what_was_added_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    text = (
        "import sys, pathlib; from microc.compiler.tuned.records import *; d = Database(sys.argv[1]);"
        "r = record_from_json(sys.argv[2]);\nwhile True:\n    d.add([r]); print(len(d), flush=True)"
    )
    with subprocess.Popen([sys.executable, "-c", text, path, RECORD.to_json()], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        told = [int(process.stdout.readline()) for _ in range(20)][-1]
        process.send_signal(signal.SIGKILL)
    database = Database(path)
    assert len(database) >= told and set(database) == {RECORD}


def test_pruned_and_merged(tmp_path: Path) -> None:
    slow, small, worse = (
        replace(RECORD, ticks=ticks, code=code, rule=rule)
        for ticks, code, rule in ((120.0, 40, "a"), (130.0, 10, "b"), (140.0, 60, "c"))
    )
    failed = replace(RECORD, status=FAILED, ticks=0.0)
    write_records(tmp_path / "a", [RECORD, slow, worse, failed])
    write_records(tmp_path / "b", [RECORD, small])
    assert merge_records([tmp_path / "a", tmp_path / "b"]) == [RECORD, slow, worse, failed, small]
    database = Database()
    database.add(merge_records([tmp_path / "a", tmp_path / "b"]))
    assert database.pruned_records() == pareto_records([RECORD, slow, small]) == [RECORD, slow, small]
    untuned = replace(worse, decisions=(("untuned", "size"),))
    database.add([untuned])
    assert database.pruned_records() == [untuned, RECORD, slow, small]
