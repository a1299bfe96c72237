# SPDX-License-Identifier: Apache-2.0
"""Every example runs as its README says, on emulated boards."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from tests.device.smoke import needs
from tests.site.running import run_script
from tests.support.corpus import ABSENT, CORPUS

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOK = EXAMPLES / "notebook" / "first_network.ipynb"
KERNEL = ("nbclient", "nbformat")
PACKAGES = {
    "wake_word": ("pymicro_wakeword",),
    "vibration": ("sklearn",),
    "forest_on_avr": ("sklearn",),
    "language_model": ("onnx",),
}
WORDS = {
    "wake_word": r"1\.9\d s .* heard!\n(.*\n)*the word is there",
    "vibration": r"24 of 24 right",
    "forest_on_avr": r"20 of 20 right; scikit-learn says the same of 20",
    "custom_instruction": r"(1\.[5-9]|[2-9]\.\d)\d times fewer\nthe same numbers",
    "language_model": r"the fisher rows across the bay,\n(.*\n)+the same letters as on this computer",
    "loadable": r"slot A: (\[.*\]), right are \1\n.*slot B: \1, right.*\nwithout .* does not accept .*\ndigits_qdq still runs",
    "tensor_unit": r"total +[\d,]+ .* 1\d\.\d\n.*\nthe same numbers",
    "two_networks": r"small: (\[.*\]), right are \1\nlarge: \1, right",
}

SHORTER = {"language_model": ("--letters", "24")}
"""Arguments with which an example takes less time, and prints what :data:`WORDS` has."""

pytestmark = [pytest.mark.cross, pytest.mark.emulator]


@needs("arm-none-eabi-gcc", "qemu-system-arm", "avr-gcc", "qemu-system-avr")
@pytest.mark.parametrize("name", WORDS)
def test_it_runs(name: str) -> None:
    for package in PACKAGES.get(name, ()):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    said = run_example(name, *SHORTER.get(name, ()))
    assert re.search(WORDS[name], said), said


@needs("make", "arm-none-eabi-gcc", "qemu-system-arm")
@pytest.mark.parametrize("cross", ["", "arm-none-eabi-"], ids=["host", "board"])
def test_an_existing_firmware(cross: str, tmp_path: Path) -> None:
    microc = f"MICROC={sys.executable} -m microc"
    words = ["make", "run", f"CROSS={cross}", f"BUILD={tmp_path}", microc]
    folder = EXAMPLES / "existing_firmware"
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout
    assert re.findall(r"image \d: (-?\d)", said) == ["2", "6", "7", "1"], said


@needs("arm-none-eabi-gcc", "qemu-system-arm")
def test_a_network_learns_on_the_board() -> None:
    """Two rounds of few images: the board's losses are this computer's, and fall."""
    said = run_example("learning", "--epochs", "2", "--images", "30")
    losses = [tuple(map(float, pair)) for pair in re.findall(r"mean loss (\S+), on this computer (\S+)", said)]
    assert len(losses) == 2 and losses[1][0] < losses[0][0], said
    assert all(abs(board - here) <= 2e-3 for board, here in losses), said


def test_a_search_finds_networks_that_fit() -> None:
    said = run_example("architecture_search", "--candidates", "3", "--flash", "128")
    assert re.search(r"[1-3] of 3 candidates fit", said) and said.count("% estimated") == 3, said


@needs("gcc")
def test_an_anomaly_detector_adapts() -> None:
    said = run_example("adapting_detector", "--board", "host")
    known, before, after = map(float, re.findall(r"^AUC .*: (\S+)$", said, re.MULTILINE))
    assert known > 0.95 and before < 0.75 and after > 0.95, said


@pytest.mark.corpus
@needs("gcc", "espeak-ng")
def test_a_keyword_spotter_learns_new_words() -> None:
    """The features of a recording are those that MLPerf's own code makes, and two epochs suffice for most of the new words."""
    if CORPUS is None:
        pytest.skip(ABSENT)
    loader = importlib.util.spec_from_file_location("new_words", EXAMPLES / "new_words" / "run.py")
    assert loader is not None and loader.loader is not None
    loader.loader.exec_module(example := importlib.util.module_from_spec(loader))
    model = CORPUS / "tflite" / "mlperf_kws_int8.tflite"
    quant = microc.load(model).types["input_1"].quant
    assert quant is not None
    with np.load(CORPUS / "datasets" / "speech_features.npz") as data:
        for word in ("yes", "no", "noise"):
            ours = example.features(data[f"wav_{word}"].astype(np.float64), quant.scale[0], quant.zero_point[0])
            np.testing.assert_array_equal(ours, data[f"kws_{word}"])
    said = run_example("new_words", str(model), "--board", "host", "--epochs", "2")
    before, after = map(float, re.findall(r": (\S+) % of the new words", said))
    assert before < 10 and after > 80, said


def test_the_page_of_examples_lists_them_all() -> None:
    listed = re.findall(r"^\| \[(\w+)\]\(\1\)", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    there = [path.name for path in EXAMPLES.iterdir() if path.is_dir()]
    assert sorted(listed) == sorted(there)
    assert all((EXAMPLES / name / "README.md").is_file() for name in there)


def run_example(name: str, *words: str) -> str:
    """What an example prints. It runs in this process, which has scheduled the digits already."""
    done = run_script(EXAMPLES / name / "run.py", EXAMPLES / name, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cells in order: the C answers as scikit-learn does."""
    pytest.importorskip("sklearn", reason="needs scikit-learn: pip install microc[test]")
    monkeypatch.chdir(tmp_path)
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    names: dict[str, Any] = {}
    for cell in cells:
        exec("".join(cell["source"]), names)
    assert names["agreement"] == 1.0 and "advice" in names["report"].data
    assert names["instructions"] is None or 1_000 < names["instructions"] < 100_000
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells)


def test_the_notebook_in_a_kernel() -> None:
    client, form = (pytest.importorskip(name, reason="needs pip install nbclient ipykernel") for name in KERNEL)
    pytest.importorskip("ipykernel", reason="needs pip install nbclient ipykernel")
    client.NotebookClient(form.read(NOTEBOOK, 4), timeout=300, kernel_name="python3").execute()
