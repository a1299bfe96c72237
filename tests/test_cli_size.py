# SPDX-License-Identifier: Apache-2.0
"""``microc size`` on the command line."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from microc.cli import main
from tests.test_cli import MODEL, Command, microc, project

__all__ = ("microc", "project")


def test_size(microc: Command, project: Path, tmp_path: Path) -> None:
    table = tmp_path / "symbols.csv"
    said = microc("size", project, "--csv", table)
    assert said.code == 0 and "size(1): text" in said.out and "#6 conv4" in said.out
    assert "digits_int8_conv4_weight" in said.out
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    data = microc("size", project / "firmware.elf", "--json").data
    totals = data["totals"]
    assert sum(int(row["bytes"]) for row in rows) == totals["text"] + totals["data"] + totals["bss"]
    assert {row["part"] for row in rows} == set(data["parts"])
    assert microc("size", project, "--project", project).code == 2


def test_size_of_a_model_and_what_changed(microc: Command, project: Path, tmp_path: Path) -> None:
    before = tmp_path / "before.json"
    before.write_text(json.dumps(microc("size", project, "--json").data))
    said = microc("size", MODEL, "--board", "host", "--optimize", "size", "--compare", before)
    assert said.code == 0 and "change" in said.out and "kernels" in said.out
    data = microc("size", project, "--compare", before, "--json").data
    assert data["changes"]["symbols"] == [] and all(row["change"] == 0 for row in data["changes"]["totals"])
    for text, words in (("", "no JSON"), ("[1]", "expected the output of")):
        before.write_text(text)
        said = microc("size", project, "--compare", before)
        assert said.code == 2 and words in said.err
    assert microc("size", project, "--compare", tmp_path / "absent").code == 2


def test_size_refuses_strangers(microc: Command, project: Path, tmp_path: Path) -> None:
    elf = tmp_path / "other.elf"
    elf.write_bytes((project / "firmware.elf").read_bytes())
    said = microc("size", elf)
    assert said.code == 2 and "--project DIR" in said.err
    assert microc("size", elf, "--project", project).code == 0
    elf.write_bytes(b"\x7fELF and then nothing")
    said = microc("size", elf, "--project", project)
    assert said.code == 5 and "not an ELF" in said.err
    assert main(["size", str(tmp_path / "absent"), "-q"]) == 2
