# SPDX-License-Identifier: Apache-2.0
"""The page of operators is the registries' content, and `microc operators` prints it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from microc.cli import main
from microc.ops.registry import registry
from microc.reports.reference_tables import operator_rows, operators_markdown

ROOT = Path(__file__).resolve().parents[1]


def test_the_page_is_current() -> None:
    page = (ROOT / "docs" / "operators.md").read_text(encoding="utf-8")
    assert page == operators_markdown(), "write it again: make docs"


def test_every_operator_has_its_row() -> None:
    rows = operator_rows()
    assert len({(row.format, row.name) for row in rows}) == len(rows)
    own = {row.name: row for row in rows if row.format == "microc"}
    assert set(own) == set(registry()) and all(row.dtypes for row in own.values())
    assert own["conv2d"].dtypes[:2] == ("float32", "int8") and own["relu"].note.startswith("elementwise, ")
    notes = {row.name: row.note for row in rows if row.format == "ONNX"}
    assert notes["Reshape"] == "constant shape" and notes["BatchNormalization"] == "training_mode = 0"
    found = {(row.format, row.name): row.dtypes for row in rows}
    assert found["TFLite", "CONV_2D"] == ("float32", "int8", "uint8", "int16")
    assert "float32" in found["ONNX", "Conv"] and ("ONNX", "com.microsoft.QGemm") in found


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["operators"]) == 0
    said = capsys.readouterr().out
    assert "CONV_2D" in said and "of ONNX" in said
    plugin = ROOT / "examples" / "custom_operator" / "operators.py"
    assert main(["operators", "--json", "--plugin", str(plugin)]) == 0
    names = {(row["format"], row["name"]) for row in json.loads(capsys.readouterr().out)["operators"]}
    assert {("microc", "snake"), ("TFLite", "CUSTOM:Snake"), ("ONNX", "com.example.Snake")} <= names
    assert main(["operators", "--markdown"]) == 0
    assert capsys.readouterr().out == operators_markdown()
