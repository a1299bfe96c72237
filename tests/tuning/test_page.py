# SPDX-License-Identifier: Apache-2.0
"""The page of what was measured: well-formed, nothing fetched, what records say escaped; and one record measured again."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from microc.cli import main
from microc.cli.tune import _repeat_command
from microc.compiler.tuned.records import FAILED, OK, WRONG, Database, Record, write_records
from microc.tuning import fleet
from microc.tuning.tuning_page import MAX_DRAWN_SCHEDULES, to_html
from tests.tuning.networks import DIGITS, Estimating, product
from tests.tuning.test_records import RECORD


def database(*records: Record) -> Database:
    found = Database()
    found.add(records)
    return found


UNTUNED = replace(RECORD, decisions=(("untuned", "speed"),), ticks=200_000.0, code=40)


def page(*records: Record, **more: Any) -> tuple[str, list[ElementTree.Element]]:
    """The page, and its pictures, which are XML."""
    text = to_html(database(*records), "m <model>", **more)
    parts = [part.split("</svg>")[0] for part in text.split("<svg")[1:]]
    return text, [ElementTree.fromstring(f"<svg{part}</svg>") for part in parts]


def test_curve_and_space() -> None:
    slow, fast = replace(RECORD, ticks=300_000.0, code=10), replace(RECORD, ticks=150_000.0, code=60)
    text, (curve, plane) = page(UNTUNED, slow, fast, replace(RECORD, status=FAILED, ticks=0.0))
    assert "m &lt;model&gt;" in text and "-25.0 %" in text and '<td data-value="1">1</td>' in text
    assert [c.get("class") for c in curve.iter("circle")] == ["measured", "chosen", "measured"]
    assert sorted(str(c.get("class")) for c in plane.iter("circle")) == ["chosen", "measured", "measured"]
    assert "http:" not in text and "thousand instructions" in text and "fastest" in text


def test_what_is_taken_is_marked() -> None:
    fast = replace(RECORD, ticks=150_000.0)
    for choice, marked in ((UNTUNED.id, 200_000), ("untuned", 200_000), (fast.id, 150_000)):
        text, (_, plane) = page(UNTUNED, fast, chosen={RECORD.key: choice})
        (circle,) = [c for c in plane.iter("circle") if c.get("class") == "chosen"]
        assert f"{marked:,} instructions" in "".join(circle.itertext()) and "taken" in text


def test_text_is_escaped_and_points_are_bounded() -> None:
    bad = replace(UNTUNED, layer="<script>alert(1)</script>", rule='"><b>', board="&amp")
    text, _ = page(bad)
    assert "<script>alert" not in text and '"><b>' not in text and "&amp;amp" in text
    many = [replace(RECORD, ticks=1e3 + n % 7, code=n) for n in range(5 * MAX_DRAWN_SCHEDULES)]
    _, (_, plane) = page(*many)
    assert len(list(plane.iter("circle"))) <= MAX_DRAWN_SCHEDULES + 8
    assert "<svg" not in to_html(database(replace(RECORD, status=WRONG)), "m")


def test_failures_are_shown_with_the_command_that_repeats_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong, path = replace(RECORD, status=WRONG), tmp_path / "r.jsonl"
    write_records(path, [RECORD, wrong])
    assert main(["tune", "--show", str(path), "--html", str(tmp_path / "page.html")]) == 0
    command = f"microc tune MODEL --board paper --records {path} --repeat {wrong.id}"
    assert command in capsys.readouterr().out and "svg" in (tmp_path / "page.html").read_text()
    assert main(["tune", "--show", str(path), "--json"]) == 0
    (failure,) = json.loads(capsys.readouterr().out)["kernels"][0]["failures"]
    assert (failure["record"], failure["repeat"]) == (wrong.id, command)


@pytest.fixture(scope="module")
def record() -> Record:
    task = product()
    _, number, choice = task.untuned[0]
    return replace(
        RECORD, key=task.key, algorithm=task.algorithms[number], rule=choice.schedule.rule, trace=choice.schedule.trace,
        decisions=(("untuned", "speed"),),
    )  # fmt: skip


@pytest.mark.parametrize(("status", "code"), [(OK, 0), (WRONG, 1), (FAILED, 6)])
def test_a_record_is_measured_again(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    record: Record,
    status: str,
    code: int,
) -> None:
    class Paper(Estimating):
        def measure(self, task: Any, candidates: Any) -> Any:
            return [replace(r, status=status, detail="why") for r in super().measure(task, candidates)]

    write_records(tmp_path / "r.jsonl", [record])
    monkeypatch.setattr(fleet, "make_meter", lambda *_, **__: Paper())
    words = ["tune", str(DIGITS), "--board", "mps2-an386", "--records", str(tmp_path / "r.jsonl"), "--repeat"]
    assert main([*words, record.id]) == code
    assert f"{status}: why" in capsys.readouterr().out
    if status == OK:
        assert main([*words, "ffffff"]) == 2 and "there is no record whose id" in capsys.readouterr().err
        write_records(tmp_path / "r.jsonl", [RECORD])
        assert main([*words, RECORD.id]) == 2 and "no such kernel" in capsys.readouterr().err


def test_what_ran_from_ram_is_repeated_from_ram() -> None:
    """The board's name of such records is no board: the command names the board itself."""
    assert "--board paper --records" in _repeat_command(replace(RECORD, board="paper (RAM)"), Path("tuned.jsonl"))
