# SPDX-License-Identifier: Apache-2.0
"""The session with a board, as a notebook has it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import microc
from microc.errors import DeviceError, UsageError
from tests.support import digits


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = microc.compile(digits.INT8, board="host").write(tmp_path_factory.mktemp("session") / "digits")
    microc.build(microc.open_project(path))
    return path


@pytest.fixture
def line(folder: Path) -> str:
    return f"pipe:{folder / 'firmware.elf'}"


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    yield tmp_path


def test_a_session_reads_well(folder: Path) -> None:
    image = digits.images(1)[0]
    with microc.Device(folder) as dev:
        y = dev.run(image)
        assert repr(dev) == (
            "<Device host: digits_int8(image: int8[1, 8, 8, 1] -> probabilities: int8[1, 10]), "
            f"{len(dev.kernels)} kernels>"
        )
        assert dev._repr_html_().startswith("<table>") and "This computer" in dev._repr_html_()
        profile = dev.profile()
    assert np.array_equal(np.asarray(y), np.asarray(microc.compile(digits.INT8)(image)))
    text = str(profile).splitlines()
    assert len(text) == len(profile.kernels) + 3 and text[-1].startswith("total")
    assert profile._repr_html_().count("<tr>") == len(text) - 1


def test_profile_shortens_layers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keras names nest a dozen levels; the numbers stay on the page of a terminal of 60 columns, and of a notebook."""
    with microc.Device(folder) as dev:
        profile = dev.profile()
    long = replace(profile, kernels=tuple(replace(k, layer="model/" * 50) for k in profile.kernels))
    monkeypatch.setenv("COLUMNS", "60")
    assert max(map(len, str(long).splitlines())) <= 60
    assert "model/" * 9 not in long._repr_html_()


def test_a_closed_session_says_so(folder: Path) -> None:
    dev = microc.Device(folder)
    dev.close()
    dev.close()
    with pytest.raises(DeviceError, match="closed"):
        dev.run(digits.images(1)[0])


@pytest.mark.parametrize("depth", ["digits", "."])
def test_a_line_finds_its_project_here(folder: Path, line: str, depth: str, inside: Path) -> None:
    os.chdir(folder.parent if depth == "digits" else folder)
    with microc.Device(line) as dev:
        assert dev.project.manifest["model"] == "digits_int8"
        dev.run(digits.images(1)[0])


def test_a_line_without_its_project_is_refused(line: str, inside: Path) -> None:
    (inside / "other").mkdir()
    (inside / "other" / "manifest.json").write_text("{}")
    with pytest.raises(UsageError, match="the board runs digits_int8, and no project in this folder"):
        microc.Device(line)
