# SPDX-License-Identifier: Apache-2.0
"""Saved reports: damaged ones are refused, whatever they are; results of verify are read; two reports are compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import microc
from microc.document.blocks import format_dequantization_formula, format_milliseconds, format_percent_change
from microc.errors import UsageError
from microc.reports.evidence import accuracy_sentences, read_accuracy
from microc.reports.saved_reports import compare_reports, is_report, read_report, report
from tests.support import digits


@pytest.fixture(scope="module")
def made() -> microc.Report:
    return report(digits.INT8, board="netduinoplus2")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("report_version",), 2),
        (("report_version",), None),
        (("totals", "cycles"), -1),
        (("totals", "arena"), "1632"),
        (("totals", "flash"), 1e400),
        (("layers", 0, "c"), "text"),
        (("layers", 0, "share"), 2),
        (("layers", 0, "share"), float("nan")),
        (("layers", 0, "operators"), None),
        (("memory", 0, "offset"), 0.5),
        (("tensors", 0, "scale"), "x"),
        (("board",), []),
        (("options",), {"optimize": {}}),
        (("accuracy",), {}),
        (("advice",), ["x"]),
    ],
)
def test_damaged_reports_are_refused(made: microc.Report, tmp_path: Path, place: tuple[Any, ...], value: Any) -> None:
    data = json.loads(made.json())
    inner = data
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    path = tmp_path / "report.json"
    path.write_text(json.dumps(data))
    with pytest.raises(
        UsageError, match=r"report\.json(: got a report of version 2|: invalid report|: expected a report)"
    ):
        read_report(path)


def test_other_files_are_no_reports(tmp_path: Path) -> None:
    for content in (
        b"",
        b"{",
        b"[" * 100_000,
        b"\xff\xfe",
        b"<!DOCTYPE html><p>",
        b"[]",
        b"null",
        b'{"report_version": 1}',
    ):
        path = tmp_path / "file.json"
        path.write_bytes(content)
        with pytest.raises(UsageError, match=r"expected a report|invalid report"):
            read_report(path)
    with pytest.raises(UsageError, match="cannot read"):
        read_report(tmp_path / "absent.json")
    assert not is_report(digits.INT8) and not is_report(digits.FLOAT) and not is_report(tmp_path)


def verified(**more: Any) -> dict[str, Any]:
    classes = {"output": "y", "correct": 3, "total": 4, "accuracy": 0.75, "confusion": [[2, 1], [0, 1]]}
    near = [{"output": "y", "rmse": 0.1, "largest": 0.5, "cosine": None}]
    return {
        "schema_version": 1,
        "command": "verify",
        "board": "host",
        "fingerprint": "ab",
        "samples": 3,
        "identical": True,
        "evaluation": {"samples": 4, "classification": classes, "outputs": near},
        **more,
    }


def test_accuracy_of_verify(made: microc.Report, tmp_path: Path) -> None:
    path = tmp_path / "verify.json"
    path.write_text(json.dumps(verified()))
    found = read_accuracy(path)
    words = list(accuracy_sentences(found, "ab"))
    assert words[0] == "3 of 4 samples are right, 75.00 % (y)." and "every bit" in words[1] and "RMSE 0.1" in words[2]
    assert "another build" in next(accuracy_sentences(found, "cd"))
    text = report(digits.INT8, board="netduinoplus2", accuracy=found).html()
    assert "75.00 %" in text and text.count("<g><title>") >= 4 and "1 of class 0 answered 1" in text


@pytest.mark.parametrize(
    "changed",
    [
        {"evaluation": {"samples": -1}},
        {"evaluation": []},
        {"evaluation": {"samples": 1, "classification": {"output": 3, "correct": 1, "total": 1, "confusion": []}}},
        {
            "evaluation": {
                "samples": 1,
                "classification": {"output": "y", "correct": 1, "total": 1, "confusion": [[1], [2]]},
            }
        },
        {"identical": "yes"},
    ],
)
def test_damaged_results_are_refused(tmp_path: Path, changed: dict[str, Any]) -> None:
    path = tmp_path / "verify.json"
    path.write_text(json.dumps(verified(**changed)))
    with pytest.raises(UsageError, match="invalid result of microc verify"):
        read_accuracy(path)
    for text in ("{}", "", "[]", '{"error": {}}'):
        path.write_text(text)
        with pytest.raises(UsageError, match=r"invalid result|no JSON"):
            read_accuracy(path)


def test_what_has_changed(made: microc.Report) -> None:
    small = report(digits.INT8, board="netduinoplus2", optimize="size")
    found = compare_reports(made, small)
    totals = {row["name"]: (row["before"], row["after"]) for row in found["totals"]}
    assert totals["estimated cycles"] == (made.data["totals"]["cycles"], small.data["totals"]["cycles"])
    assert totals["flash, bytes"][1] < totals["flash, bytes"][0] and "accuracy, %" not in totals
    assert [row["layer"] for row in found["layers"]] == [
        "conv1",
        "depthwise2",
        "pointwise3",
        "conv4",
        "dense5",
        "probabilities",
    ]
    other = compare_reports(report(digits.FLOAT, board="netduinoplus2"), made)
    gone = [row for row in other["layers"] if row["cycles"]["after"] is None]
    assert gone and gone == other["layers"][-len(gone) :]
    same = compare_reports(made, made)
    assert all(row["before"] == row["after"] for row in same["totals"])


def test_words() -> None:
    assert [format_milliseconds(ms) for ms in (1234.5, 12.345, 0.361, 0.0000123)] == [
        "1,234 ms",
        "12.3 ms",
        "0.361 ms",
        "0.0123 \u00b5s",
    ]
    assert [format_percent_change(*pair) for pair in ((2, 3), (4, 3), (3, 3), (0, 2), (None, 1))] == [
        "+50.0 %",
        "\u221225.0 %",
        "same",
        "new",
        "",
    ]
    assert (
        format_dequantization_formula({"scale": None}) == ""
        and format_dequantization_formula({"scale": 0.5, "zero_point": 3}) == "0.5 (q \u2212 3)"
    )
    assert format_dequantization_formula({"scale": 0.5, "zero_point": 0}) == "0.5 q"
