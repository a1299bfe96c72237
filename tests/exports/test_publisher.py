# SPDX-License-Identifier: Apache-2.0
"""Manifests of registries name who publishes a package, if the user does, and invent nothing."""

from __future__ import annotations

import json
import tomllib

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
