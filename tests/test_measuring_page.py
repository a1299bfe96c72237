# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/measuring.md, in order; what it shows of their output is what they say."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import microc
from tests.site.running import NUMBER, TOLERANCE
from tests.support import digits
from tests.support.campaign import in_campaign
from tests.test_readme import ROOT, TOOLS, run

PAGE = (ROOT / "docs" / "measuring.md").read_text(encoding="utf-8")


def prepare(folder: Path) -> None:
    shutil.copyfile(digits.INT8, folder / "digits_int8.tflite")
    with np.load(digits.FOLDER / "digits_test.npz") as data:
        images, labels = (data["images"] / 16).astype(np.float32), data["labels"]
    np.savez(folder / "test.npz", image=images, labels=labels)
    network = microc.compile(digits.FLOAT)
    shape = network.inputs[0]["shape"]
    np.save(folder / "float.npy", np.concatenate([np.asarray(network(image.reshape(shape))) for image in images]))


def execute(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    words, arrow, target = command.partition(" > ")
    done = run(folder, "-m", *shlex.split(words))
    if arrow:
        (folder / target).write_text(done.stdout)
    return done


@in_campaign
@pytest.mark.emulator
@pytest.mark.cross
@pytest.mark.skipif(
    any(shutil.which(t) is None for t in TOOLS), reason="needs " + ", ".join(TOOLS) + ": run microc doctor"
)
def test_the_commands_run_and_say_what_is_shown(tmp_path: Path) -> None:
    prepare(tmp_path)
    blocks = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    commands = [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]
    assert len(commands) >= 10 and all(command.startswith("microc ") for command in commands)
    said = ""
    for command in commands:
        done = execute(tmp_path, command)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        said += done.stdout
    for name in ("report.html", "trace.json", "layers.csv", "before.json"):
        assert (tmp_path / name).stat().st_size > 500
    for line in (line for block in re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()):
        start = NUMBER.sub("0", line.split("  ")[0].strip("- ."))
        similar = [each for each in said.splitlines() if NUMBER.sub("0", each.strip("- ")).startswith(start)]
        assert any(has_numbers_of(each, line) for each in similar), "\n".join((line, *similar))


def has_numbers_of(said: str, shown: str) -> bool:
    """Test whether a line has the numbers of a shown one in order, each within :data:`TOLERANCE`; the page leaves columns out."""
    values = iter([float(number.replace(",", "")) for number in NUMBER.findall(said)])
    wanted = [float(number.replace(",", "")) for number in NUMBER.findall(shown)]
    return all(any(abs(value - number) <= TOLERANCE * number for value in values) for number in wanted)


def test_the_picture_is_there() -> None:
    assert (ROOT / "docs" / "report.png").read_bytes().startswith(b"\x89PNG")
