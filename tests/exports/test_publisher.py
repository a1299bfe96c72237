# SPDX-License-Identifier: Apache-2.0
"""Manifests of registries name who publishes a package, if the user does, and invent nothing."""

from __future__ import annotations

import json
import re
import tomllib
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import pytest

import microc
from microc.codegen.exports import Publisher, build_package, make_publisher
from microc.errors import UsageError
from tests.support import digits

yaml = pytest.importorskip("yaml", reason="needs pyyaml: pip install microc[test]")
ADA = make_publisher("Ada Lovelace <ada@lab.org>", "https://lab.org/digits", "Apache-2.0 OR MIT", "1.2.0")


def manifest(name: str, path: str, publisher: Publisher) -> str:
    program = microc.compile(digits.INT8, board="host", name="digits")
    return str(build_package(program.module, program.board, name, "test", None, publisher).files[path])


def test_arduino() -> None:
    """https://arduino.github.io/arduino-cli/latest/library-specification/: what the Library Manager requires is there."""
    fields = dict(line.split("=", 1) for line in manifest("arduino", "library.properties", ADA).splitlines())
    assert fields["author"] == fields["maintainer"] == "Ada Lovelace <ada@lab.org>"
    assert (fields["url"], fields["version"]) == ("https://lab.org/digits", "1.2.0")


def test_platformio() -> None:
    fields = json.loads(manifest("platformio", "lib/digits_model/library.json", ADA))
    assert fields["authors"] == [{"name": "Ada Lovelace", "email": "ada@lab.org"}]
    assert (fields["homepage"], fields["license"], fields["version"]) == (
        "https://lab.org/digits",
        "Apache-2.0 OR MIT",
        "1.2.0",
    )
    anonymous = json.loads(manifest("platformio", "lib/digits_model/library.json", make_publisher()))
    assert anonymous["authors"] == [{"name": "microc test"}] and not {"homepage", "license"} & set(anonymous)


def test_esp_idf() -> None:
    path = "components/digits_model/idf_component.yml"
    fields = yaml.safe_load(manifest("esp-idf", path, ADA))
    assert fields["maintainers"] == ["Ada Lovelace <ada@lab.org>"] and fields["license"] == "Apache-2.0 OR MIT"
    assert (fields["url"], fields["version"]) == ("https://lab.org/digits", "1.2.0") and fields["dependencies"]
    assert set(yaml.safe_load(manifest("esp-idf", path, make_publisher()))) == {
        "version",
        "description",
        "dependencies",
    }


def test_rust() -> None:
    fields = tomllib.loads(manifest("rust", "Cargo.toml", ADA))["package"]
    assert fields["authors"] == ["Ada Lovelace <ada@lab.org>"] and fields["repository"] == "https://lab.org/digits"
    assert fields["license"] == "Apache-2.0 OR MIT" and "license-file" not in fields
    anonymous = tomllib.loads(manifest("rust", "Cargo.toml", make_publisher()))["package"]
    assert anonymous["license-file"] == "LICENSE" and not {"license", "authors", "repository"} & set(anonymous)


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("author", 'Ada" <ada@lab.org>'),
        ("author", "Ada <ada>"),
        ("author", "Ada\nname=other"),
        ("url", "javascript:alert(1)"),
        ("url", 'https://lab.org/"x'),
        ("license", "MIT, and more"),
        ("version", "1.0"),
        ("version", "1.0.\N{ARABIC-INDIC DIGIT TWO}"),
        ("version", "1.0.0" + "0" * 300),
    ],
)
def test_what_a_manifest_cannot_hold_is_refused(field: str, text: str) -> None:
    with pytest.raises(UsageError, match=f"{field}: got .*, expected"):
        make_publisher(**{field: text})


@pytest.mark.parametrize("name", ["digits", 40 * "n"])
def test_cmsis_pack(tmp_path: Path, name: str) -> None:
    """https://open-cmsis-pack.github.io/Open-CMSIS-Pack-Spec/main/html/packFormat.html: name, letters and files of a pack."""
    program = microc.compile(digits.INT8, board="mps2-an386", name=name)
    words = {
        "author": "Ada Lovelace, Inc. <ada@lab.org>",
        "url": "https://lab.org/packs/",
        "license": "MIT",
        "version": "1.2.0",
    }
    package = program.export("cmsis-pack", tmp_path / "pack", **words)
    stem = f"Ada_Lovelace_Inc.{name}_model"
    with zipfile.ZipFile(tmp_path / "pack" / f"{stem}.1.2.0.pack") as archive:
        content = {entry: archive.read(entry) for entry in archive.namelist()}
    on_disk = {
        path.relative_to(tmp_path / "pack").as_posix(): path.read_bytes() for path in (tmp_path / "pack").rglob("*.*")
    }
    assert content.items() <= {**on_disk, "LICENSE": (tmp_path / "pack" / "LICENSE").read_bytes()}.items()
    root = ElementTree.fromstring(content[f"{stem}.pdsc"])
    texts = {field: root.findtext(field) for field in ("vendor", "name", "url", "supportContact")}
    assert texts == {
        "vendor": "Ada_Lovelace_Inc", "name": f"{name}_model", "url": "https://lab.org/packs/",
        "supportContact": "mailto:ada@lab.org",
    }  # fmt: skip
    files = {element.attrib["name"] for element in root.iter("file")}
    assert files == set(content) - {f"{stem}.pdsc", "LICENSE", "manifest.json"}
    (component,) = root.iter("component")
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_]{0,31}", component.attrib["Csub"])
    assert root.find("licenseSets/licenseSet/license").attrib["spdx"] == "MIT"  # type: ignore[union-attr]
    assert package.files == program.export("cmsis-pack", tmp_path / "pack", **words).files
    anonymous = manifest("cmsis-pack", "microc.digits_model.pdsc", make_publisher())
    assert "<url></url>" in anonymous and "<license>LICENSE</license>" in anonymous and "example.com" not in anonymous
