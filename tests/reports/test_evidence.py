# SPDX-License-Identifier: Apache-2.0
"""Bundles of evidence: what is in them, that they check themselves, that they are whole or absent."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from microc.cli import main
from microc.errors import OutputError
from microc.reports import evidence

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "digits"
MODEL = str(FOLDER / "digits_float.onnx")


def facts(folder: Path) -> dict[str, Any]:
    """What a bundle says, which fits its own schema."""
    found = evidence.read_evidence_bundle(folder)
    jsonschema.validate(found, json.loads((folder / "evidence.schema.json").read_text()))
    return found


def test_a_framework(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    folder = tmp_path / "evidence"
    words = ["verify", MODEL, "--against", "reference", "--samples", "2", "-q", "--evidence"]
    assert main([*words, str(folder)]) == 0
    found = facts(folder)
    assert found["verdict"] == "agrees" and found["created"].startswith("2023") and found["board"] is None
    assert found["model"]["sha256"] == hashlib.sha256(Path(MODEL).read_bytes()).hexdigest()
    (comparison,) = found["comparisons"]
    assert comparison["what"].startswith("compiled network against onnxruntime") and len(comparison["layers"]) == 6
    assert len(comparison["data_sha256"]) == 64 and comparison["outputs"][0]["agrees"]
    assert "agrees" in (folder / "evidence.md").read_text().splitlines()[0]
    if shutil.which("sha256sum"):
        assert subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=folder, check=False).returncode == 0
    assert main([*words, str(folder)]) == 2, "evidence is never written over"
    (folder / "evidence.md").write_text("all is well")
    with pytest.raises(OutputError, match=r"evidence\.md was changed"):
        evidence.read_evidence_bundle(folder)


def test_a_difference_is_evidence_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    folder = tmp_path / "evidence"
    words = ["verify", MODEL, "--against", "reference", "--samples", "1", "--tolerance", "0", "-q"]
    assert main([*words, "--evidence", str(folder)]) == 1
    found = facts(folder)
    assert found["verdict"] == "differs" and "differs from onnxruntime" in found["failure"]

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "write_bytes", full)
    other = tmp_path / "other"
    with pytest.raises(OutputError):
        evidence.write_evidence_bundle(other, found)
    assert not other.exists() and len(list(tmp_path.iterdir())) == 1, "nothing is half written"


def test_a_board(tmp_path: Path) -> None:
    """The host's own: board, compiler, firmware and bill of materials are named."""
    folder = tmp_path / "evidence"
    model = str(FOLDER / "digits_int8.tflite")
    assert main(["verify", model, "--board", "host", "--samples", "1", "-q", "--evidence", str(folder)]) == 0
    found = facts(folder)
    assert found["board"]["name"] == "host" and len(found["board"]["firmware_sha256"]) == 64
    assert found["tools"]["compiler"] and len(found["project"]["sha256"]) == 64
    (comparison,) = found["comparisons"]
    assert comparison["what"] == "board host against host, kernel by kernel" and comparison["identical"]


def test_a_project_and_its_model(tmp_path: Path) -> None:
    """The model is named, and known by its hash."""
    pytest.importorskip("tflite_micro")
    project, model = str(tmp_path / "project"), FOLDER / "digits_int8.tflite"
    assert main(["compile", str(model), "-o", project, "-q"]) == 0
    words = ["verify", project, "--against", "tflm", "--samples", "1", "-q"]
    assert main(words) == 2, "a project does not contain its model"
    (tmp_path / "other.tflite").write_bytes(model.read_bytes() + b"\0")
    assert main([*words, "--model", str(tmp_path / "other.tflite")]) == 2
    assert main([*words, "--model", str(model), "--evidence", str(tmp_path / "evidence")]) == 0
    assert len(facts(tmp_path / "evidence")["comparisons"]) == 2


def test_texts_are_inert_on_the_page(tmp_path: Path) -> None:
    evil = "| a |\n\n<script>alert(1)</script> [x](javascript:y) `#`"
    said = {
        "verdict": "agrees",
        "created": "",
        "microc": "0",
        "model": {"source": evil, "sha256": ""},
        "project": {"network": evil, "fingerprint": "", "options": {evil: evil}, "deviations": [evil], "sha256": ""},
        "board": {"name": evil, "title": evil, "line": evil},
        "tools": {},
        "comparisons": [{"what": evil, "agrees": True, "data_sha256": evil, "samples": 1}],
        "evaluation": None,
        "failure": evil,
    }
    evidence.write_evidence_bundle(tmp_path / "evidence", said)
    text = (tmp_path / "evidence" / "evidence.md").read_text()
    assert "<" not in text and "](" not in text and "javascript:y) `" not in text
