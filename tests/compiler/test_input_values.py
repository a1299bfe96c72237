# SPDX-License-Identifier: Apache-2.0
"""Inputs that are bound to values: they become constants, and what depends on them alone is computed at compile time."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import microc
from microc.cli import main
from microc.errors import ModelError, UsageError
from microc.graph.ir import Graph, Node, TensorType
from microc.ops.control import one_operator_graph
from microc.project.config import read_config

onnx = pytest.importorskip("onnx")


def half(name: str, window: int) -> Any:
    """A branch that reads ``input`` as one of ``window`` samples."""
    weight = onnx.numpy_helper.from_array(np.arange(window * 2, dtype=np.float32).reshape(window, 2), f"{name}_w")
    node = onnx.helper.make_node("MatMul", ["input", f"{name}_w"], [f"{name}_y"])
    output = onnx.helper.make_tensor_value_info(f"{name}_y", onnx.TensorProto.FLOAT, None)
    return onnx.helper.make_graph([node], name, [], [output], [weight])


def detector(sr_shape: tuple[int, ...] = (), samples: int = 4) -> Any:
    """A network whose input ``sr`` chooses one of two branches; the other one has no shapes."""
    h, kinds = onnx.helper, onnx.TensorProto
    nodes = [
        h.make_node("Constant", [], ["fast"], value=onnx.numpy_helper.from_array(np.array(16000, np.int64))),
        h.make_node("Equal", ["sr", "fast"], ["is_fast"]),
        h.make_node("If", ["is_fast"], ["y"], then_branch=half("wide", 4), else_branch=half("narrow", 2)),
    ]
    graph = h.make_graph(
        nodes,
        "detector",
        [
            h.make_tensor_value_info("input", kinds.FLOAT, [1, samples]),
            h.make_tensor_value_info("sr", kinds.INT64, list(sr_shape)),
        ],
        [h.make_tensor_value_info("y", kinds.FLOAT, [1, 2])],
    )
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize(("samples", "rate"), [(4, 16000), (2, 8000)])
def test_only_the_branch_that_runs_is_read(samples: int, rate: int) -> None:
    model = detector(samples=samples)
    with pytest.raises(ModelError):
        microc.load(model)
    graph = microc.load(model, input_values={"sr": rate})
    assert graph.inputs == ("input",) and [node.op for node in graph.nodes] == ["dense", "reshape"]


def add(name: str = "s", dtype: str = "float32", shape: tuple[int, ...] = (2,)) -> Graph:
    kind = TensorType(shape, dtype)
    attrs = {"activation": "", "rounding": "double"}
    return Graph(
        "net", ("x", name), ("y",), (Node("add", ("x", name), ("y",), attrs),), dict.fromkeys(("x", name, "y"), kind)
    )


@pytest.mark.parametrize("value", [3, 3.0, [1, 2], np.array([1, 2], np.int8), "FILE"])
def test_a_value_is_a_number_lists_an_array_or_a_file(value: Any, tmp_path: Path) -> None:
    expected = np.broadcast_to(np.array([1, 2] if isinstance(value, str) else value, np.float32), (2,))
    if isinstance(value, str):
        value = tmp_path / "s.npy"
        np.save(value, np.array([1, 2], np.int64))
    graph = microc.load(add(), input_values={"s": value})
    assert graph.inputs == ("x",) and graph.consts["s"].tolist() == expected.tolist()


WRONG = [
    ({"t": 1}, "no input 't'"),
    ({"s": 1, "x": 1}, "all 2 inputs"),
    ({"s": [1, 2, 3]}, r"shape \(3,\)"),
    ({"s": 300}, "got 300, expected int8"),
    ({"s": 1.5}, r"got 1\.5"),
    ({"s": float("inf")}, "got inf"),
    ({"s": float("nan")}, "cannot be nan"),
    ({"s": [[1], [1, 2]]}, "cannot be"),
    ({"s": []}, "cannot be"),
    ({"s": 1j}, "cannot be"),
    ({"s": "no.npy"}, "no.npy"),
    ({"s": np.zeros(1 << 17)}, "cannot be"),
]


@pytest.mark.parametrize(("values", "words"), WRONG, ids=[words for _, words in WRONG])
def test_other_values_are_refused(values: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        microc.load(add(dtype="int8"), input_values=values)


def test_integers_stay_exact() -> None:
    most = (1 << 63) - 1
    assert microc.load(add(dtype="int64"), input_values={"s": [most, -most]}).consts["s"].tolist() == [most, -most]
    with pytest.raises(UsageError, match=str(most + 1)):
        microc.load(add(dtype="int64"), input_values={"s": [most + 1, 0]})


@pytest.mark.parametrize("condition", [True, False])
@pytest.mark.parametrize("level", [0, 2])
def test_a_decided_branch_of_a_graph_becomes_its_nodes(condition: bool, level: Literal[0, 2]) -> None:
    kind, x = TensorType((2, 3), "float32"), np.arange(-3, 3, dtype=np.float32).reshape(2, 3)
    attrs = {"then": one_operator_graph("relu", kind), "otherwise": one_operator_graph("neg", kind)}
    node = Node("branch", ("go", "x"), ("y",), attrs)
    graph = Graph("net", ("go", "x"), ("y",), (node,), {"go": TensorType((1,), "bool"), "x": kind, "y": kind})
    library = microc.compile(graph, input_values={"go": condition}, opt_level=level)
    assert np.array_equal(library(x), np.maximum(x, 0) if condition else -x)


def test_an_output_may_be_a_bound_input() -> None:
    kind = TensorType((2,), "float32")
    graph = Graph(
        "net",
        ("x", "s"),
        ("y", "s"),
        (Node("neg", ("x",), ("y",), {"rounding": "double"}),),
        dict.fromkeys("xys", kind),
    )
    outputs = microc.compile(graph, input_values={"s": [1, 2]})(np.ones(2, np.float32))
    assert [array.tolist() for array in outputs] == [[-1, -1], [1, 2]]


def test_commands_and_projects_take_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "net.onnx"
    onnx.save(detector(), model)
    assert main(["check", str(model), "--input-value", "sr=16000", "--json"]) == 0
    assert main(["check", str(model), "--input-value", "sr=fast"]) == 2
    assert "write NAME=16000" in capsys.readouterr().err
    np.save(tmp_path / "rate.npy", np.array(16000))
    for text in ("{ sr = 16000 }", '["sr=16000"]', '{ sr = "rate.npy" }', '["sr=rate.npy"]'):
        (tmp_path / "microc.toml").write_text(f"[options]\ninput-value = {text}\n")
        assert read_config(tmp_path / "microc.toml").options == {"input_values": {"sr": 16000}}


def test_frameworks_are_given_the_values(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    h, kinds = onnx.helper, onnx.TensorProto
    graph = h.make_graph(
        [h.make_node("Add", ["x", "s"], ["y"])],
        "sum",
        [h.make_tensor_value_info(name, kinds.FLOAT, [1, "n"]) for name in ("s", "x")],
        [h.make_tensor_value_info("y", kinds.FLOAT, [1, "n"])],
    )
    path = tmp_path / "sum.onnx"
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=9), path)
    assert microc.verify(path, input_values={"s": [[1, 2, 3]]}).agrees
    assert microc.verify(path, input_values={"s": 2.5}, input_shapes={"*": (1, 2)}).agrees
