# SPDX-License-Identifier: Apache-2.0
"""The programs, files and commands of docs/features.md do what the page says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import microc
from microc.features import read
from microc.frontend.graph_builder import GraphBuilder
from tests.test_readme import ROOT, run

PAGE = (ROOT / "docs" / "features.md").read_text(encoding="utf-8")
FILES = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A network over 49 frames of 40 bands, and the page's first file."""
    net = GraphBuilder("kws")
    x = net.reshape(net.input("x", (1, 49, 40)), (1, 49 * 40))
    weight = np.random.default_rng(1).normal(size=(4, 49 * 40)).astype(np.float32) / 100
    y = net.op("softmax", net.op("dense", x, net.constant("weight", weight)))
    microc.save(net.graph("kws", {"y": y}), tmp_path / "kws.mcg")
    (tmp_path / "features.toml").write_text(FILES[0])
    return tmp_path


def test_the_programs_print_what_their_comments_say(folder: Path) -> None:
    program = "\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
    done = run(folder, "-c", program)
    assert done.returncode == 0, done.stderr
    said = re.findall(r"print\(.*\)\s+# (\([^)]*\))", program)
    assert len(said) == 3 and done.stdout.splitlines() == said
    assert (folder / "listener.mcg").is_file()


def test_the_commands(folder: Path) -> None:
    commands = re.findall(r"^\$ microc (.*)$", PAGE, re.MULTILINE)
    assert len(commands) == 2
    for words in commands:
        done = run(folder, "-m", "microc", *shlex.split(words))
        assert done.returncode == 0, done.stderr
    assert (folder / "firmware").is_dir()


def test_the_files(tmp_path: Path) -> None:
    for text in FILES:
        (tmp_path / "features.toml").write_text(text)
        front = read(tmp_path / "features.toml").pipeline
        assert front(np.zeros(1600, np.int16)).shape == (4, 40)
