# SPDX-License-Identifier: Apache-2.0
"""A project's bill of materials: every file with its hash, the model that it is from, nothing that varies."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

import microc
from microc.codegen.project.sbom import GENERATED_LICENSE, SBOM_FILE, reproducible_date
from microc.errors import UsageError

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits" / "digits_int8.tflite"


@pytest.fixture(scope="module")
def files() -> dict[str, str | bytes]:
    return microc.compile(DIGITS, board="mps2-an386", rounding="litert").files()


def document(files: dict[str, str | bytes]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(files[SBOM_FILE])
    return found


def test_every_file_with_its_hash(files: dict[str, str | bytes]) -> None:
    listed = {file["fileName"].removeprefix("./"): file for file in document(files)["files"]}
    assert set(listed) == set(files) - {SBOM_FILE}
    for name, file in listed.items():
        data = files[name] if isinstance(files[name], bytes) else str(files[name]).encode()
        assert isinstance(data, bytes)
        sums = {c["algorithm"]: c["checksumValue"] for c in file["checksums"]}
        assert sums["SHA256"] == hashlib.sha256(data).hexdigest() and len(sums["SHA1"]) == 40
        assert (file["licenseConcluded"] == "Apache-2.0") == name.startswith("runtime/")
        if name.endswith((".c", ".h", ".ld", "Makefile", "CMakeLists.txt")):
            named = "Apache-2.0" if name.startswith("runtime/") else GENERATED_LICENSE
            assert file["licenseInfoInFiles"] == [named], name
    (extracted,) = document(files)["hasExtractedLicensingInfos"]
    assert extracted["licenseId"] == GENERATED_LICENSE and "WITHOUT WARRANTY" in extracted["extractedText"]


def test_the_model_and_what_is_said_of_it(files: dict[str, str | bytes]) -> None:
    found, digest = document(files), hashlib.sha256(DIGITS.read_bytes()).hexdigest()
    packages = {package["SPDXID"]: package for package in found["packages"]}
    model = packages["SPDXRef-Model-0"]
    assert model["name"] == DIGITS.name and model["checksums"] == [{"algorithm": "SHA256", "checksumValue": digest}]
    kinds = {(r["spdxElementId"], r["relationshipType"], r["relatedSpdxElement"]) for r in found["relationships"]}
    assert ("SPDXRef-Project", "GENERATED_FROM", "SPDXRef-Model-0") in kinds
    assert ("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-Project") in kinds
    ids = {"SPDXRef-DOCUMENT", *packages, *(file["SPDXID"] for file in found["files"])}
    assert all({one, other} <= ids for one, _, other in kinds)
    assert packages["SPDXRef-Tool-numpy"]["versionInfo"][0].isdigit()
    said = json.loads(packages["SPDXRef-Project"]["comment"])
    assert said["options"]["digits_int8"]["rounding"] == "litert" and any(
        "LiteRT" in line for line in said["deviations"]
    )
    manifest = json.loads(files["manifest.json"])
    assert manifest["sha256"] == {"model": digest} and manifest["deviations"] == said["deviations"]


def test_the_code_that_spdx_verifies_a_package_by(files: dict[str, str | bytes]) -> None:
    """https://spdx.github.io/spdx-spec/v2.3/package-information/#79-package-verification-code-field"""
    found = document(files)
    sums = sorted(c["checksumValue"] for f in found["files"] for c in f["checksums"] if c["algorithm"] == "SHA1")
    code = hashlib.sha1("".join(sums).encode()).hexdigest()
    assert found["packages"][0]["packageVerificationCode"]["packageVerificationCodeValue"] == code


def test_the_date_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    assert reproducible_date() == "1970-01-01T00:00:00Z"
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert reproducible_date() == "2023-11-14T22:13:20Z"
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "today")
    with pytest.raises(UsageError, match="SOURCE_DATE_EPOCH"):
        reproducible_date()


def test_several_networks_have_one_bill() -> None:
    programs = [microc.compile(DIGITS, board="mps2-an386", name=name) for name in ("one", "two")]
    found = document(dict(microc.bundle(*programs).files()))
    assert [package["SPDXID"] for package in found["packages"]][1:3] == ["SPDXRef-Model-0", "SPDXRef-Model-1"]
