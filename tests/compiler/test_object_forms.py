# SPDX-License-Identifier: Apache-2.0
"""Objects behave as their files do; calls of libraries with several samples, and libraries that do not load, say what to do."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.errors import ModelError, UsageError

onnx = pytest.importorskip("onnx")


def model(extent: str | int) -> Any:
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [extent, 4]) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "kept", ends[:1], ends[1:])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("form", ["object", "bytes"])
def test_symbolic_sizes_of_objects(form: str) -> None:
    held = model("n")
    library = microc.compile(held if form == "object" else held.SerializeToString(), bounds={"n": 8})
    x = np.float32(-1) * np.ones((5, 4), np.float32)
    np.testing.assert_array_equal(library(x), np.zeros((5, 4)))


def test_several_samples() -> None:
    library = microc.compile(model(1))
    with pytest.raises(UsageError) as error:
        library(np.ones((4, 4), np.float32))
    assert "lib.batch(array.reshape(-1, 1, 4))" in error.value.hint
    with pytest.raises(UsageError) as error:
        library.batch(np.ones((5, 4), np.float32))
    assert error.value.hint == "reshape it: array.reshape(-1, 1, 4)"
    made = library.batch(np.ones((5, 4), np.float32).reshape(-1, 1, 4))
    assert isinstance(made, np.ndarray) and made.shape == (5, 1, 4)


def test_an_argument_that_is_mistyped() -> None:
    mistyped: dict[str, Any] = {"bord": "host"}
    with pytest.raises(UsageError) as error:
        microc.compile(model(1), **mistyped)
    assert error.value.hint.startswith("did you mean board")


def test_a_graph_file_keeps_the_name_of_its_graph(tmp_path: Path) -> None:
    graph = microc.load(model(1))
    assert microc.load(microc.save(graph, tmp_path / "elsewhere.mcg")).name == graph.name == "kept"


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a compiler")
def test_a_dependency_that_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "needed.c").write_text("int needed(void) { return 1; }\n")
    (tmp_path / "model.c").write_text("int needed(void);\nint model(void) { return needed(); }\n")
    needed, made = tmp_path / "libneeded.so", tmp_path / "model.so"
    build = ["cc", "-shared", "-fPIC"]
    subprocess.run([*build, tmp_path / "needed.c", "-o", needed], check=True)
    subprocess.run([*build, tmp_path / "model.c", f"-L{tmp_path}", "-lneeded", "-o", made], check=True)
    needed.unlink()
    with pytest.raises(ModelError, match=r"needs the shared library libneeded\.so"):
        microc.load_library(made)
