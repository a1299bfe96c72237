# SPDX-License-Identifier: Apache-2.0
"""Objects that images share: built once, newer than the sources of a project that gets them."""

from __future__ import annotations

from pathlib import Path

from microc.tuning.candidate_image import RUNTIME_OBJECTS, RuntimeObjectCache


def test_the_first_build_gives_to_others(tmp_path: Path) -> None:
    kept, first, second = RuntimeObjectCache(), tmp_path / "first", tmp_path / "second"
    kept.copy_into_project(first)
    assert not first.exists()
    (first / RUNTIME_OBJECTS / "src").mkdir(parents=True)
    (first / RUNTIME_OBJECTS / "src" / "rpc.o").write_bytes(b"built")
    kept.copy_from_project(first)
    (second / "runtime").mkdir(parents=True)
    source = second / "runtime" / "rpc.c"
    source.write_text("")
    kept.copy_into_project(second)
    made = second / RUNTIME_OBJECTS / "src" / "rpc.o"
    assert made.read_bytes() == b"built" and made.stat().st_mtime >= source.stat().st_mtime


def test_a_build_without_such_objects_keeps_none(tmp_path: Path) -> None:
    kept = RuntimeObjectCache()
    kept.copy_from_project(tmp_path)
    kept.copy_into_project(tmp_path / "other")
    assert not (tmp_path / "other").exists()
