# SPDX-License-Identifier: Apache-2.0
"""Templates: compiled once, kept as Python keeps bytecode."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from unittest import mock

import jinja2
import pytest

from microc.codegen import render

TEMPLATE = "project/model.h.j2"


def compiled(monkeypatch: pytest.MonkeyPatch, *, html: bool = False, writing: bool = True) -> int:
    """How many templates Jinja compiles in a new process that takes one."""
    monkeypatch.setattr(sys, "dont_write_bytecode", not writing)
    render.template_environment.cache_clear()
    with mock.patch.object(
        jinja2.Environment, "_compile", autospec=True, side_effect=jinja2.Environment._compile
    ) as made:
        render.template_environment(html=html).get_template(TEMPLATE)
    render.template_environment.cache_clear()
    return made.call_count


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where Python would keep the bytecode of the module."""
    spec = ModuleSpec(render.__name__, None)
    spec.cached = str(tmp_path / "render.pyc")
    monkeypatch.setattr(render, "__spec__", spec)
    yield tmp_path
    render.template_environment.cache_clear()


def test_templates_are_compiled_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiled(monkeypatch, writing=False) == 1 and not list(folder.iterdir())
    assert compiled(monkeypatch) == 1
    assert compiled(monkeypatch) == 0
    assert compiled(monkeypatch, html=True) == 1, "escapes in a page are others than in C"
    assert compiled(monkeypatch, html=True) == 0


def test_what_is_damaged_is_made_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled(monkeypatch)
    (kept,) = folder.iterdir()
    whole = kept.read_bytes()
    for damaged in (b"", whole[:64], whole[: len(whole) // 2]):
        kept.write_bytes(damaged)
        assert compiled(monkeypatch) == 1
        assert kept.read_bytes() == whole


def test_a_folder_that_cannot_be_written_costs_time_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.rmdir()
    folder.touch()
    assert compiled(monkeypatch) == 1
    assert not folder.stat().st_size


def test_strangers_templates_are_not_kept(tmp_path: Path) -> None:
    assert render.template_environment(tmp_path).bytecode_cache is None
    assert render.template_environment().bytecode_cache is not None
