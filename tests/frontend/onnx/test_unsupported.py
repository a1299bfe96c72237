# SPDX-License-Identifier: Apache-2.0
"""Models that are whole and beyond us are called unsupported (E0302), never broken (E0301)."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, checker, helper, shape_inference

from microc.errors import ModelError, UnsupportedError
from microc.frontend.model_limits import MAX_STORED
from microc.frontend.onnx import builder, reader
from tests.frontend.onnx_model import node, proto
from tests.support.campaign import everything
from tests.support.corpus import models

DTYPES = (
    *(TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16, TensorProto.BOOL),
    *(TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64, TensorProto.UINT64),
)
MIXED = "CenterCropPad"
"""ONNX's own expansion compares its int32 extents with int64 ones."""


def node_tests() -> list[onnx.ModelProto]:
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return [case.model for case in collect_testcases(None)]


def read(model: onnx.ModelProto) -> str:
    """The code of the error, or nothing."""
    try:
        reader.read_onnx(model.SerializeToString(), "m.onnx", {})
    except ModelError as error:
        return error.code
    return ""


def test_none_of_onnx_s_node_tests_is_broken() -> None:
    """A third of them by default, and each dtype that the operator's definition takes in MICROC_TESTS=all."""
    models = node_tests()
    found = [model.graph.name for model in models[:: 1 if everything() else 3] if read(model) == "E0301"]
    assert not found
    for model in models if everything() else ():
        if len(model.graph.node) == 1 and model.graph.node[0].op_type != MIXED:
            assert all(read(other) != "E0301" for other in variants(model)), model.graph.name


def variants(model: onnx.ModelProto) -> list[onnx.ModelProto]:
    """The model with each other dtype for one of its inputs', where ONNX's checker takes it."""
    found = []
    for old in {value.type.tensor_type.elem_type for value in model.graph.input}:
        for new in DTYPES:
            other = onnx.ModelProto()
            other.CopyFrom(model)
            for value in (*other.graph.input, *other.graph.output):
                if value.type.tensor_type.elem_type == old:
                    value.type.tensor_type.elem_type = new
            try:
                checker.check_model(other)
                shape_inference.infer_shapes(other, check_type=True, strict_mode=True)
            except Exception:  # noqa: BLE001 - of many classes
                continue
            found.append(other)
    return found


@pytest.mark.parametrize("dtype", [TensorProto.UINT8, TensorProto.UINT64])
@pytest.mark.parametrize(("code", "error"), [("Abs", ""), ("Shrink", "E0302")])
def test_unsigned_numbers(code: str, error: str, dtype: int) -> None:
    x, y = (helper.make_tensor_value_info(name, dtype, (4,)) for name in "xy")
    graph = helper.make_graph([helper.make_node(code, ["x"], ["y"])], "g", [x], [y])
    assert read(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)) == error


def test_shapes_that_are_not_known_and_results_without_elements() -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, "n"))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, "n"))
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(UnsupportedError, match="not fully known"):
        reader.read_onnx(model.SerializeToString(), "m.onnx", {})
    none = proto([node("Pad", ["x", "p"])], {"x": (2, 3)}, {"p": np.array([-1, 0, -1, 0])}, opset=17)
    with pytest.raises(UnsupportedError, match="expected a result with elements"):
        reader.read_onnx(none.SerializeToString(), "m.onnx", {})
    less = proto([node("Pad", ["x", "p"])], {"x": (2, 3)}, {"p": np.array([-2, 0, -1, 0])}, opset=17)
    with pytest.raises(ModelError, match="expected to remove at most") as caught:
        reader.read_onnx(less.SerializeToString(), "m.onnx", {})
    assert caught.value.code == "E0301"


def test_a_model_of_another_domain_alone() -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, (4,)) for name in "xy")
    graph = helper.make_graph([helper.make_node("Odd", ["x"], ["y"], domain="other")], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("other", 1)], ir_version=8)
    with pytest.raises(UnsupportedError, match="Odd"):
        reader.read_onnx(model.SerializeToString(), "m.onnx", {})
    del model.opset_import[:]
    with pytest.raises(ModelError, match="no version") as caught:
        reader.read_onnx(model.SerializeToString(), "m.onnx", {})
    assert caught.value.code == "E0301"


@pytest.mark.parametrize("path", models("*.onnx"), ids=lambda path: path.stem)
def test_real_files_store_a_tenth_of_what_they_may(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "MAX_STORED", MAX_STORED // 10)
    monkeypatch.setattr(builder, "_TIMES_STORED", builder._TIMES_STORED // 10)
    try:
        reader.read_onnx(path.read_bytes(), path.name, {"*": (1, 64, 21)} if "pulsevad" in path.stem else {})
    except ModelError as error:
        assert "after folding" not in error.what


def test_what_may_be_stored_grows_with_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight that is stored transposed eight times, where a small file may unfold two of them."""
    weight = np.ones((32, 64), np.float32)
    monkeypatch.setattr(builder, "MAX_STORED", 2 * weight.nbytes)
    names = [f"y{k}" for k in range(8)]
    model = proto([node("MatMul", ["x", "w"], [name]) for name in names], {"x": (1, 32)}, {"w": weight}, outputs=names)
    assert len(reader.read_onnx(model.SerializeToString(), "m.onnx", {}).outputs) == 8
    monkeypatch.setattr(builder, "_TIMES_STORED", 0)
    with pytest.raises(UnsupportedError, match="bytes after folding"):
        reader.read_onnx(model.SerializeToString(), "m.onnx", {})
