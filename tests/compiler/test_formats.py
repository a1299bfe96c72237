# SPDX-License-Identifier: Apache-2.0
"""Every format through the front door: files by their content, objects by their class, and what is said without a package."""

from __future__ import annotations

import io
import pickle
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.errors import ModelError, ToolError, UsageError
from microc.frontend import detect
from microc.frontend.trees import sklearn
from tests.frontend import torch_file
from tests.frontend.mutate import survey

TOOLS = ("arm-none-eabi-gcc", "qemu-system-arm")
LIGHTGBM = """tree
version=v4
num_class=1
num_tree_per_iteration=1
max_feature_idx=1
objective=regression
feature_names=a b
feature_infos=[0:1] [0:1]

Tree=0
num_leaves=3
num_cat=0
split_feature=0 1
threshold=0.5 0.25
decision_type=2 0
left_child=1 -1
right_child=-3 -2
leaf_value=1.5 -2 4
is_linear=0
shrinkage=1


end of trees
"""


def test_a_lightgbm_file_under_any_name(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_text(LIGHTGBM)
    network = microc.compile(path, input_shapes={"input": (4, 2)})
    x = np.array([[0.5, 0.25], [0.5, 0.3], [0.6, 0], [np.nan, 1]], np.float32)
    np.testing.assert_array_equal(network(x), np.array([1.5, -2, 4, -2], np.float32))


@pytest.mark.parametrize(
    ("old", "new"),
    [("num_leaves=3", "num_leaves=30"), ("left_child=1 -1", "left_child=7 -1"), ("left_child=1 -1", "left_child=0 -1")],
)
def test_a_broken_lightgbm_file(old: str, new: str, tmp_path: Path) -> None:
    path = tmp_path / "model.txt"
    path.write_text(LIGHTGBM.replace(old, new))
    with pytest.raises(ModelError):
        detect.load_model_file(path)


def test_damaged_lightgbm_files() -> None:
    outcomes = survey(lambda data: sklearn.read_booster_file(data, "model.txt", {}), LIGHTGBM.encode(), 300, seed=3)
    assert outcomes["ModelError"] > 30


def test_an_estimator() -> None:
    tree = pytest.importorskip("sklearn.tree", reason="needs scikit-learn (pip install microc[sklearn])")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50, 3)).astype(np.float32), rng.integers(0, 2, 50)
    estimator = tree.DecisionTreeClassifier(random_state=0).fit(x, y)
    label, _ = microc.compile(estimator, input_shapes={"input": (50, 3)})(x)
    np.testing.assert_array_equal(label, y)
    graph = microc.import_sklearn(estimator, input_dtype="int16", input_scale=0.01, leaf_dtype="int8")
    program = microc.compile(graph, board="microbit")
    assert program.report()["inputs"][0]["dtype"] == "int16"
    assert "float " not in str(program.files()["model.c"]) + str(program.files()["model_data.c"])


@pytest.mark.emulator
@pytest.mark.cross
@pytest.mark.skipif(any(shutil.which(tool) is None for tool in TOOLS), reason="needs " + ", ".join(TOOLS))
@pytest.mark.parametrize("board", ["microbit", "mps2-an386"])
def test_a_forest_on_boards(board: str, tmp_path: Path) -> None:
    """Integers on a core without floats, floats with missing values on one that has them: the bits of the host."""
    ensemble = pytest.importorskip("sklearn.ensemble", reason="needs scikit-learn (pip install microc[sklearn])")
    rng = np.random.default_rng(1)
    x = rng.integers(-100, 100, (80, 4)).astype(np.float32)
    x[::4, 0] = np.nan if board == "mps2-an386" else 0
    forest = ensemble.RandomForestClassifier(4, random_state=0).fit(x, np.nansum(x, axis=1) > 0)
    options: dict[str, Any] = {} if board == "mps2-an386" else {"input_dtype": "int8", "leaf_dtype": "int8"}
    graph = microc.import_sklearn(forest, **options)
    microc.compile(graph, board=board).write(tmp_path)
    microc.build(microc.open_project(tmp_path))
    library = microc.compile(graph)
    with microc.Device(tmp_path) as device:
        for row in x[:6].astype(options.get("input_dtype", "float32")):
            for got, want in zip(device.run(row[None]), library(row[None]), strict=True):
                np.testing.assert_array_equal(got, want)


def test_a_program_and_its_file(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="needs PyTorch (pip install microc[torch])")
    module, x = torch.nn.Linear(3, 2).eval(), torch.randn(1, 3)
    program = torch.export.export(module, (x,))
    path = tmp_path / "linear.bin"
    torch.export.save(program, path.with_suffix(".pt2"))
    path.write_bytes(path.with_suffix(".pt2").read_bytes())
    for source in (program, path):
        np.testing.assert_allclose(microc.compile(source)(x.numpy()), module(x).detach().numpy(), rtol=1e-5, atol=1e-6)
    with pytest.raises(UsageError) as caught:
        microc.compile(module)
    assert caught.value.where == "Linear" and "example_inputs=(" in caught.value.hint


def test_what_is_no_model() -> None:
    with pytest.raises(UsageError, match="got a model of type dict"):
        microc.compile({})


def keras_archive() -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name in ("config.json", "metadata.json", "model.weights.h5"):
            archive.writestr(name, "{}")
    return data.getvalue()


ARCHIVES = {"h5py": (keras_archive, "keras"), "torch": (torch_file.archive, "torch")}


@pytest.mark.parametrize("package", ARCHIVES)
def test_a_package_that_is_absent(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, extra = ARCHIVES[package]
    path = tmp_path / "model.zip"
    path.write_bytes(made())
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ToolError) as caught:
        detect.load_model_file(path)
    assert caught.value.hint == f'pip install "microc[{extra}]"'


def test_a_pickle_is_not_run(tmp_path: Path) -> None:
    touched = tmp_path / "touched"

    class Trap:
        def __reduce__(self) -> Any:
            return (Path.touch, (touched,))

    path = tmp_path / "model.pkl"
    path.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ModelError, match="pickle"):
        detect.load_model_file(path)
    assert not touched.exists()
