# SPDX-License-Identifier: Apache-2.0
"""Figures before and after, and what they may grow by."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from microc.cli import main
from microc.errors import GrowthError, UsageError
from microc.reports.firmware_size import Growth, compute_growth, make_growth_error, read_growth_figures

SIZE = {"totals": {"flash": 1000, "ram": 200, "text": 5}}
PROFILE = {"time": 50, "kernels": [], "flash": 1000, "ram": 200, "board": "b", "unit": "ticks"}


def test_reports_have_figures() -> None:
    assert read_growth_figures(SIZE, "") == {"flash": 1000, "ram": 200}
    assert read_growth_figures(PROFILE, "") == {"flash": 1000, "ram": 200, "time": 50, "unit": "b ticks"}
    assert "flash" not in read_growth_figures({**PROFILE, "flash": None}, "")
    strangers: list[Any] = [
        [],
        {},
        None,
        {"totals": {}},
        {"totals": {"flash": "1"}},
        {"totals": {"flash": -1}},
        {"time": True, "kernels": []},
    ]
    for data in strangers:
        with pytest.raises(UsageError, match="expected numbers of flash"):
            read_growth_figures(data, "file")


def test_bounds_are_shares_of_what_was() -> None:
    after = {"flash": 1020, "ram": 201}
    found = compute_growth({"flash": 1000, "ram": 200}, after, {"": 0.02, "ram": 0.0})
    assert [each.exceeds for each in found] == [False, True]
    error = make_growth_error(found, "here")
    assert isinstance(error, GrowthError) and error.exit_code == 7
    assert error.what == "ram grew from 200 to 201, by 0.50 %; allowed: 0.00 %"
    assert make_growth_error(compute_growth(after, {"flash": 1, "ram": 1}, {"": 0.0}), "") is None
    assert Growth("ram", 0, 1, 1e9).exceeds and not Growth("ram", 0, 0, 0.0).exceeds
    assert Growth("ram", 0, 1, None).to_data()["share"] is None


def test_only_what_both_have_is_compared() -> None:
    size, profile = read_growth_figures(SIZE, ""), read_growth_figures(PROFILE, "")
    assert [each.what for each in compute_growth(size, profile, {"": 0.0})] == ["flash", "ram"]
    with pytest.raises(UsageError, match="got time, expected a figure of both"):
        compute_growth(size, profile, {"time": 0.1})
    with pytest.raises(UsageError, match="cannot be compared"):
        compute_growth(profile, {**profile, "unit": "b instructions"}, {})


def test_reports_in_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    before.write_text(json.dumps(PROFILE))
    after.write_text(json.dumps({**PROFILE, "time": 60}))
    words = ["size", str(after), "--against", str(before), "--fail-over", "5%"]
    assert main(words) == 7
    told = capsys.readouterr()
    assert (
        "time" in told.out
        and "too much" in told.out
        and "error[E0701]: time grew from 50 to 60, by 20.00 %" in told.err
    )
    assert main([*words, "--fail-over", "time=20%", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [row["exceeds"] for row in data["growth"]] == [False] * 3 and data["growth"][2]["share"] == pytest.approx(
        0.2
    )


@pytest.mark.parametrize(
    "words",
    [
        ["--fail-over", "2%"],
        ["--against", "missing.json"],
        ["--against", "BASE", "--fail-over", "heap=2%"],
        ["--against", "BASE", "--fail-over", "much"],
        ["--against", "BASE", "--fail-over", "-1%"],
        ["--against", "BASE", "--compare", "BASE"],
        ["--against", "BROKEN"],
    ],
)
def test_words_that_mean_nothing_are_refused(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "BASE").write_text(json.dumps(SIZE))
    (tmp_path / "BROKEN").write_text("[" * 100_000)
    (tmp_path / "new.json").write_text(json.dumps(SIZE))
    named = [str(tmp_path / word) if word in ("BASE", "BROKEN") else word for word in words]
    assert main(["size", str(tmp_path / "new.json"), *named]) == 2
    capsys.readouterr()
