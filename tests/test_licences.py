# SPDX-License-Identifier: Apache-2.0
"""Sources and generated files name their licence: an SPDX identifier in their first lines."""

from __future__ import annotations

import pytest

import microc
from microc.codegen.exports import build_package, list_formats
from microc.codegen.project.sbom import GENERATED_LICENSE
from tests.affected import ROOT
from tests.support import digits

FOLDERS = ("microc", "tests", "benchmarks", "scripts", "examples", "runtime_c", "templates")
TEXTS = (ROOT / "tests" / "golden" / "texts", ROOT / "tests" / "data")
"""Folders of generated texts and of data."""
SOURCES = (".py", ".c", ".h", ".j2", ".sh", ".js", ".css")
TAG = "SPDX-License-Identifier: "
TAGGED = (
    ".c",
    ".h",
    ".ld",
    ".ino",
    ".rs",
    ".js",
    ".css",
    ".cmake",
    ".mk",
    ".yml",
    "CMakeLists.txt",
    "Makefile",
    "Cargo.toml",
)
"""Generated files that name their licence; README, manifests in JSON, web pages and the like have no place for it."""


def test_sources_name_their_licence() -> None:
    paths = (
        path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in SOURCES and path.is_file()
    )
    lacking = [
        path.relative_to(ROOT).as_posix()
        for path in paths
        if not any(folder in path.parents for folder in TEXTS)
        and "build" not in path.relative_to(ROOT).parts
        and (text := path.read_text(encoding="utf-8")).strip()
        and f"{TAG}Apache-2.0" not in text[:200]
    ]
    assert not lacking, f"begin with the line '{TAG}Apache-2.0' in a comment: {lacking}"


@pytest.mark.parametrize("name", list_formats())
def test_generated_files_name_theirs(name: str) -> None:
    program = microc.compile(digits.INT8, board="host")
    for path, text in build_package(program.module, program.board, name, "test").files.items():
        if path.endswith(TAGGED) and str(text).strip() and not str(text).startswith("const NETWORK"):
            assert f"{TAG}{GENERATED_LICENSE}" in str(text)[:200], path
