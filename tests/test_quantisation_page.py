# SPDX-License-Identifier: Apache-2.0
"""The programs and commands of docs/quantisation.md run as written; what the page shows of an answer is what is answered."""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

import microc
from microc.ops import registry
from microc.transform import NORMALISING
from microc.transform.pass_context import PassContext, run_passes
from tests.test_readme import ROOT, run

PAGE = (ROOT / "docs" / "quantisation.md").read_text(encoding="utf-8")
PROGRAMS = {
    re.findall(r'"([\w.]+\.(?:mcg|onnx|tflite|pt2))"', text)[-1]: text
    for text in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
}
"""By what each writes last."""

TWIN = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from benchmarks.quantisers import signature
from benchmarks.tflite_twin import tflite_twin
signature(tflite_twin(Path("model.onnx")), Path("model.tflite"))
"""
"""Writes the network as a float TFLite file."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The digits' network, and the samples of benchmarks/samples.py."""
    datasets = pytest.importorskip("sklearn.datasets", reason="needs scikit-learn's digits")
    x, y = datasets.load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    x, y = (x[order] / 16).astype(np.float32).reshape(-1, 1, 8, 8), y[order].astype(np.int64)
    np.savez(tmp_path / "calibration.npz", x=x[:200], label=y[:200])
    np.savez(tmp_path / "test.npz", x=x[1200:], label=y[1200:])
    shutil.copyfile(ROOT / "tests/data/quantize/cnn.onnx", tmp_path / "model.onnx")
    if all(importlib.util.find_spec(package) for package in ("onnx", "ai_edge_litert")):
        done = run(tmp_path, "-c", TWIN)
        assert done.returncode == 0, done.stderr
    return tmp_path


def test_commands(folder: Path) -> None:
    """Accuracy and costs may move a little with the compiler; rows may not."""
    said = ""
    for line in re.findall(r"^\$ (microc .*)$", PAGE, re.MULTILINE):
        done = run(folder, "-m", *shlex.split(line))
        assert done.returncode == 0, f"{line}: {done.stderr}"
        said += done.stdout
    (shown,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    for line in shown.splitlines():
        assert line.split("  ")[0] in said
    assert "98.16 % ->" in said


@pytest.mark.parametrize("written", PROGRAMS)
def test_programs(written: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each program writes a network whose layers are on integers."""
    for package in re.findall(r"^(?:from|import) (\w+)", PROGRAMS[written], re.MULTILINE):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}")
    if importlib.util.find_spec("tensorflow") is None:
        monkeypatch.setenv("KERAS_BACKEND", "torch")
    done = run(folder, "-c", PROGRAMS[written])
    assert done.returncode == 0, done.stderr
    graph = run_passes(microc.load(folder / written), NORMALISING, PassContext())
    layers = {graph.types[name].dtype for node in graph.nodes if registry.is_layer(node) for name in node.inputs[:2]}
    assert layers in ({"int8"}, {"int8", "int16"})
