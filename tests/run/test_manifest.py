# SPDX-License-Identifier: Apache-2.0
"""A damaged manifest.json of a generated project is refused by one message, whatever is damaged in it."""

from __future__ import annotations

import copy
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import microc
from microc.codegen.project.manifest import find_manifest_error
from microc.errors import MicrocError, OutputError
from microc.reports.saved_reports import report_project
from microc.run.board_project import open_project
from tests.support.campaign import everything

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits" / "digits_int8.tflite"
MUTANTS = 20_000 if everything() else 300
DELETED = object()
STRANGE: tuple[object, ...] = (None, {}, [], "x", "", "../up", -1, 0, 1.5, 1e300, True, [[]], DELETED)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damaged") / "digits"
    microc.compile(DIGITS, board="mps2-an386").write(folder)
    return folder


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[key], (*at, key))


def damaged(data: Any, at: tuple[Any, ...], new: Any) -> Any:
    if not at:
        return [] if new is DELETED else new
    found = copy.deepcopy(data)
    inner = found
    for key in at[:-1]:
        inner = inner[key]
    if new is DELETED:
        del inner[at[-1]]
    else:
        inner[at[-1]] = new
    return found


def read(folder: Path) -> None:
    """Open a project as every command does first, and report it."""
    report_project(open_project(folder))


def test_no_damage_ends_in_a_traceback(project: Path) -> None:
    manifest = project / "manifest.json"
    text = manifest.read_text()
    data, dice, refused = json.loads(text), random.Random(33), 0
    every = list(places(data))
    try:
        for _ in range(MUTANTS):
            manifest.write_text(json.dumps(damaged(data, dice.choice(every), dice.choice(STRANGE))))
            try:
                read(project)
            except MicrocError as error:
                refused += 1
                assert "manifest.json" in str(error) or "board" in str(error)
        assert refused > MUTANTS // 3
        for key in data:  # nothing of the first level is missed
            manifest.write_text(json.dumps({name: value for name, value in data.items() if name != key}))
            with pytest.raises(OutputError, match="damaged"):
                read(project)
    finally:
        manifest.write_text(text)
    read(project)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "1", '"x"', "\0", "[" * 100_000, '{"a": NaN}', "{}"])
def test_no_json_or_another(project: Path, tmp_path: Path, text: str) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(project, folder)
    (folder / "manifest.json").write_text(text)
    with pytest.raises(OutputError, match="damaged"):
        read(folder)
    manifest = (project / "manifest.json").read_bytes()
    (folder / "manifest.json").write_bytes(manifest[: len(manifest) // 2])
    with pytest.raises(OutputError, match="damaged"):
        open_project(folder)


def test_a_network_is_no_path(project: Path, tmp_path: Path) -> None:
    table = {"schema_version": 2, "microc": "1", "board": "mps2-an386", "models": ["../../etc"]}
    assert "models/0" in find_manifest_error(table)
    assert "models" in find_manifest_error({**table, "models": []})
    assert not find_manifest_error({**table, "models": ["digits"]})


def test_names_of_tensors_that_are_not_there(project: Path) -> None:
    data = json.loads((project / "manifest.json").read_text())
    assert not find_manifest_error(data)
    assert find_manifest_error({**data, "inputs": ["nothing"]}) == "inputs: there is no tensor 'nothing'"
    kernels = copy.deepcopy(data["kernels"])
    kernels[1]["inputs"] = ["nothing"]
    assert find_manifest_error({**data, "kernels": kernels}) == "kernels/1: there is no tensor 'nothing'"
    tensors = copy.deepcopy(data["tensors"])
    tensors[0]["dtype"] = "int9"
    assert "got dtype 'int9'" in find_manifest_error({**data, "tensors": tensors})
