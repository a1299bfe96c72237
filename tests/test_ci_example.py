# SPDX-License-Identifier: Apache-2.0
"""The script of examples/ci, and the action around it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

from microc import GraphBuilder, save

FOLDER = Path(__file__).parents[1] / "examples" / "ci"


def check(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the script for a layer, which takes five commands half of the time of the digits."""
    net, weight = GraphBuilder("layer"), np.random.default_rng(1).integers(-99, 99, (64, 64)).astype(np.int8)
    layer = net.op("dense", net.input("x", (1, 64), "int8"), net.constant("w", weight), out_dtype="int32")
    save(net.graph("layer", {"y": layer}), folder / "layer.mcg")
    model = str(folder / "layer.mcg")
    environment = {**os.environ, "MICROC": f"{sys.executable} -m microc", "MODEL": model, **variables}
    return subprocess.run(
        [FOLDER / "check_size.sh"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_a_build_fails_when_it_grows(tmp_path: Path) -> None:
    first = check(tmp_path)
    assert first.returncode == 0 and "commit build/microc/size.json" in first.stdout, first.stderr
    report = json.loads((tmp_path / "build/microc/size.json").read_text())
    base = tmp_path / "microc-size.json"
    base.write_text(json.dumps(report))
    summary = tmp_path / "summary.md"
    same = check(tmp_path, GITHUB_STEP_SUMMARY=str(summary))
    assert same.returncode == 0 and "flash" in same.stdout and summary.read_text().count("```") == 2
    report["totals"]["flash"] = int(report["totals"]["flash"] / 1.1)
    base.write_text(json.dumps(report))
    grown = check(tmp_path)
    assert grown.returncode == 7 and "flash grew from" in grown.stderr and "if that is meant" in grown.stderr
    assert check(tmp_path, FAIL_OVER="20%").returncode == 0
    assert check(tmp_path, FAIL_OVER="lots").returncode == 2
    assert check(tmp_path, MODEL="missing.tflite").returncode == 2
    assert check(tmp_path, MODEL="").returncode != 0


def test_a_time_may_be_bounded(tmp_path: Path) -> None:
    base = tmp_path / "base.json"
    made = check(tmp_path, PROFILE="1", BASE=str(base))
    assert made.returncode == 0, made.stderr
    report = json.loads((tmp_path / "build/microc/size.json").read_text())
    base.write_text(json.dumps({**report, "time": 1}))
    grown = check(tmp_path, PROFILE="1", BASE=str(base))
    assert grown.returncode == 7 and "time grew from 1 to" in grown.stderr


def test_the_action_sets_what_the_script_reads() -> None:
    script, action = (FOLDER / "check_size.sh").read_text(), (FOLDER / "action.yml").read_text()
    read = set(re.findall(r"\$\{([A-Z_]+):", script)) - {"OUT", "MICROC", "GITHUB_STEP_SUMMARY"}
    given = dict(re.findall(r"^        ([A-Z_]+): \$\{\{ ([^ ]+) \}\}$", action, re.MULTILINE))
    assert set(given) == {*read, "ACTION"}
    named = {value.removeprefix("inputs.") for value in given.values() if value.startswith("inputs.")}
    assert named == set(re.findall(r"^  ([a-z-]+):$", action.partition("runs:")[0], re.MULTILINE))
    assert "${{" not in "".join(line for line in action.splitlines() if "run:" in line)
