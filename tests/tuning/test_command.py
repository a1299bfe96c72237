# SPDX-License-Identifier: Apache-2.0
"""``microc tune`` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import microc
from microc.cli import main
from tests.tuning.networks import DIGITS, Estimating

BOARD = "mps2-an386"


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("records") / "tuned.jsonl"
    microc.tune(DIGITS, board=BOARD, records=path, runner=Estimating(), trials=12, layers=["dense5"])
    return path


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main([str(a) for a in arguments]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main([str(a) for a in arguments]) == 2
    return capsys.readouterr().err


def test_spaces_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "tune", DIGITS, "--board", BOARD, "--space")
    assert "dense5 (dense+requantize_float): " in text and "tile.rows" in text
    data = json.loads(said(capsys, "tune", DIGITS, "--board", BOARD, "--space", "--json"))
    assert all(kernel["points"] > 0 and kernel["default"] for kernel in data["kernels"])


def test_files_of_records_are_shown_pruned_and_merged(
    capsys: pytest.CaptureFixture[str], records: Path, tmp_path: Path
) -> None:
    text = said(capsys, "tune", "--show", records)
    assert "dense5" in text and "paper" in text
    data = json.loads(said(capsys, "tune", "--show", records, "--json"))
    assert data["records"] == data["kernels"][0]["records"] <= 12
    (tmp_path / "one").write_bytes(records.read_bytes())
    assert "records" in said(capsys, "tune", "--merge", tmp_path / "one", records, "--records", tmp_path / "all")
    assert (tmp_path / "all").read_bytes() == records.read_bytes()
    said(capsys, "tune", "--prune", tmp_path / "all")
    assert 0 < len((tmp_path / "all").read_bytes().splitlines()) <= data["records"]


def test_mistakes_are_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "tune: got neither --board nor --target" in refused(capsys, "tune", DIGITS)
    assert "tune: got no model" in refused(capsys, "tune", "--board", BOARD)
    assert "no emulator" in refused(capsys, "tune", DIGITS, "--board", "nucleo-l476rg")
    assert "a board has its own core" in refused(capsys, "tune", DIGITS, "--board", BOARD, "--target", "native")
    assert "there is no file of records" in refused(capsys, "tune", "--show", tmp_path / "none")
    assert "there is no file of records" in refused(capsys, "tune", "--merge", tmp_path / "none")
    assert "name the file of tuning records" in refused(
        capsys, "tune", DIGITS, "--board", BOARD, "--tuned", tmp_path / "a"
    )
    assert "write 90s, 10m or 2h" in refused(capsys, "tune", DIGITS, "--board", BOARD, "--time", "soon")
    assert "layers: got transformer" in refused(capsys, "tune", DIGITS, "--board", BOARD, "--only", "transformer")
