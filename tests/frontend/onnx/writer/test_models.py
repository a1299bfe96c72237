# SPDX-License-Identifier: Apache-2.0
"""What a written model says of the network: names, versions, state, layouts, quantisation."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import microc
from microc.errors import UnsupportedError
from microc.frontend.onnx import reader
from microc.frontend.onnx.writer.model_proto import STATE_KEY, to_onnx
from microc.graph.ir import Attr, Graph, Node, Quant, TensorType
from microc.ops import registry
from microc.ops.meaning import evaluate
from microc.transform.pass_context import PassContext
from microc.transform.quantised import qdq
from tests.frontend.onnx.writer.run import frames
from tests.support.onnx_session import session

RNG = np.random.default_rng(7)
BYTES = Quant((0.05,), (-3,))


def node(op: str, inputs: tuple[str, ...], output: str, **attrs: Attr) -> Node:
    return Node(op, inputs, (output,), {**registry.get(op).defaults, **attrs})


def network(nodes: list[Node], types: dict[str, TensorType], outputs: tuple[str, ...], **fields: Any) -> Graph:
    """A graph whose inputs are what nobody makes."""
    made = {*(name for each in nodes for name in each.outputs), *fields.get("consts", {}), *fields.get("state", {})}
    read = tuple(dict.fromkeys(name for each in nodes for name in each.inputs if name not in made))
    return Graph("net", read, outputs, tuple(nodes), types, **fields)


def agree(graph: Graph) -> onnx.ModelProto:
    """The written model, which ONNX Runtime must run to the same numbers."""
    data = to_onnx(graph, "1.2")
    kinds = [graph.types[name] for name in graph.inputs]
    given = [
        RNG.integers(-128, 128, kind.shape) if kind.dtype == "int8" else RNG.normal(size=kind.shape) for kind in kinds
    ]
    arrays = [array.astype(kind.dtype) for array, kind in zip(given, kinds, strict=True)]
    wanted, _ = evaluate(graph, dict(zip(graph.inputs, arrays, strict=True)))
    for got, want in zip(frames(data, graph, [arrays])[0], wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 if want.dtype.kind == "f" else 0)
    return onnx.load_from_string(data)


def codes(model: onnx.ModelProto) -> Counter[str]:
    return Counter(each.op_type for each in model.graph.node)


def quantised(shape: tuple[int, ...], scale: float = 0.05, zero_point: int = -3) -> TensorType:
    return TensorType(shape, "int8", Quant((scale,), (zero_point,)))


def test_names_pass_through_and_stay_apart() -> None:
    kind = TensorType((1, 4), "float32")
    names = ("a b/π\n", "relu", "relu_clip", "y")
    steps = [
        node("relu", names[:1], "relu"),
        node("add", ("relu", "relu"), "relu_clip", activation="relu6"),
        node("abs", ("relu_clip",), "y"),
    ]
    model = agree(network(steps, dict.fromkeys(names, kind), ("y", "relu")))
    assert [value.name for value in (*model.graph.input, *model.graph.output)] == ["a b/π\n", "y", "relu"]
    assert (model.producer_name, model.producer_version, model.opset_import[0].version) == ("microc", "1.2", 13)


def test_outputs_that_no_operator_makes_are_copied() -> None:
    kind = TensorType((2,), "float32")
    graph = Graph(
        "net",
        ("x",),
        ("x", "c", "y", "y"),
        (node("neg", ("x",), "y"),),
        dict.fromkeys("xcy", kind),
        {"c": np.ones(2, np.float32)},
    )
    model = agree(graph)
    assert [value.name for value in model.graph.output] == ["x_1", "c", "y", "y_1"]


def test_state_is_inputs_and_outputs_that_the_metadata_describe() -> None:
    kind = quantised((1, 3))
    step = [node("maximum", ("x", "memory"), "y", rounding="even")]
    graph = network(
        step, dict.fromkeys(("x", "memory", "y"), kind), ("y",), state={"memory": np.full((1, 3), -3, np.int8)}
    )
    graph = Graph(graph.name, ("x",), ("y",), graph.nodes, graph.types, {}, graph.state, {"memory": "y"})
    data = to_onnx(graph, "0")
    (entry,) = onnx.load_from_string(data).metadata_props
    assert (entry.key, json.loads(entry.value)) == (STATE_KEY, {"memory": {"output": "memory_next", "initial": -3}})
    rows = [[np.array([row], np.int8)] for row in ((1, -50, 7), (-9, 2, 3))]
    assert [made[0].tolist() for made in frames(data, graph, rows)] == [[[1, -3, 7]], [[1, 2, 7]]]


@pytest.mark.parametrize("activation", ["", "relu", "relu6", "relu_n1_to_1"])
@pytest.mark.parametrize("op", ["conv2d", "dense", "add", "max_pool2d"])
def test_activations_of_quantised_layers(op: str, activation: str) -> None:
    """Whether the range of the result is that of the activation or not."""
    attrs: dict[str, Attr] = {"activation": activation, "rounding": "even"}
    weight = Quant((0.02, 0.01, 0.04), (0, 0, 0), 0)
    types, consts = (
        {"x": quantised((1, 6))},
        {"w": RNG.integers(-127, 128, (3, 6), np.int8), "b": np.array([90, -40, 7], np.int32)},
    )
    if op == "add":
        types |= {"w": quantised((1, 6), 0.11, 5), "y": quantised((1, 6), 0.09, 20)}
        consts = {}
    elif op == "max_pool2d":
        types, consts = {"x": quantised((1, 4, 4, 2)), "y": quantised((1, 2, 2, 2))}, {}
        attrs |= {"kernel": (2, 2), "strides": (2, 2)}
    else:
        types |= {
            "w": TensorType((3, 6), "int8", weight),
            "b": TensorType((3,), "int32"),
            "y": quantised((1, 3), 0.08, 20),
        }
        if op == "conv2d":
            types |= {
                "x": quantised((1, 5, 4, 6)),
                "w": TensorType((3, 1, 1, 6), "int8", weight),
                "y": quantised((1, 5, 4, 3), 0.08, 20),
            }
            consts["w"] = consts["w"].reshape(3, 1, 1, 6)
    operands = tuple(name for name in types if name != "y")
    agree(network([node(op, operands, "y", **attrs)], types, ("y",), consts=consts))


def test_a_range_that_is_the_activation_needs_no_operator() -> None:
    kind = quantised((1, 6), 6 / 255, -128)
    model = agree(
        network([node("add", ("x", "x"), "y", activation="relu6", rounding="even")], {"x": kind, "y": kind}, ("y",))
    )
    assert codes(model) == {"DequantizeLinear": 1, "Add": 1, "QuantizeLinear": 1}


def test_quantised_numbers_are_compared_as_reals() -> None:
    types = {"x": quantised((2, 5)), "w": quantised((2, 5), 0.11, 5), "y": TensorType((2, 5), "bool")}
    agree(network([node("less", ("x", "w"), "y", rounding="even")], types, ("y",)))


def test_channels_are_turned_once_around_a_network() -> None:
    """Layers, functions, sums and joints behind a convolution stay with channels first."""
    image, wide = TensorType((1, 6, 6, 4), "float32"), TensorType((1, 6, 6, 8), "float32")
    weight = RNG.normal(size=(4, 3, 3, 4)).astype(np.float32)
    steps = [
        node("conv2d", ("x", "w"), "a", padding=(1, 1, 1, 1), activation="relu"),
        node("conv2d", ("a", "w"), "b", padding=(1, 1, 1, 1)),
        node("add", ("a", "b"), "c"),
        node("mul", ("c", "factor"), "d"),
        node("concat", ("c", "d"), "y", axis=3),
    ]
    types = {
        **dict.fromkeys("xabcd", image),
        "y": wide,
        "w": TensorType(weight.shape, "float32"),
        "factor": TensorType((4,), "float32"),
    }
    consts = {"w": weight, "factor": RNG.normal(size=4).astype(np.float32)}
    assert codes(agree(network(steps, types, ("y",), consts=consts)))["Transpose"] == 2


def test_layers_with_equal_biases_are_read_back_in_integers() -> None:
    """Equal integers at two scales are two initialisers; what is quantised behind a layer keeps its channels first."""
    types = {name: quantised((1, 4, 4, 2), scale) for name, scale in (("x", 0.05), ("a", 0.08), ("b", 0.2), ("y", 0.1))}
    types |= {
        "w": TensorType((2, 1, 1, 2), "int8", Quant((0.02,), (0,))),
        **dict.fromkeys(("n", "m"), TensorType((2,), "int32")),
    }
    consts = {
        "w": RNG.integers(-127, 128, (2, 1, 1, 2), np.int8),
        "n": np.zeros(2, np.int32),
        "m": np.zeros(2, np.int32),
    }
    steps = [
        node("conv2d", ("x", "w", "n"), "a", rounding="even"),
        node("conv2d", ("a", "w", "m"), "b", rounding="even"),
    ]
    requantised = node("quantize", ("b",), "y", scale=(0.1,), zero_point=(-3,), out_dtype="int8", rounding="even")
    model = agree(network([*steps, requantised], types, ("y",), consts=consts))
    assert codes(model)["Transpose"] == 2
    back = qdq.recognise_quantised_layers(reader.read_onnx(model.SerializeToString(), "net.onnx", {}), PassContext())
    assert [each.op for each in back.nodes if each.op != "transpose"] == ["conv2d", "conv2d", "quantize"]


@pytest.mark.parametrize("largest", [1 << 30, 1 << 33])
def test_biases_of_64_bits(largest: int) -> None:
    types = {
        "x": TensorType((1, 4), "int16", Quant((0.02,), (0,))),
        "w": TensorType((2, 4), "int8", Quant((0.02,), (0,))),
        "b": TensorType((2,), "int64", Quant((0.0004,), (0,))),
        "y": TensorType((1, 2), "int16", Quant((400.0,), (0,))),
    }
    consts = {"w": RNG.integers(-127, 128, (2, 4), np.int8), "b": np.array([largest, -5], np.int64)}
    graph = network([node("dense", ("x", "w", "b"), "y", rounding="even")], types, ("y",), consts=consts)
    if largest < 1 << 31:
        assert agree(graph).opset_import[0].version == 21
    else:
        with pytest.raises(UnsupportedError, match="expected -2147483648"):
            to_onnx(graph, "0")


def test_all_that_cannot_be_written_is_refused_at_once() -> None:
    kind = TensorType((1, 4), "float32")
    steps = [node("atan2", ("x", "x"), "a"), node("relu", ("a",), "b"), node("atan2", ("b", "x"), "y")]
    with pytest.raises(UnsupportedError) as refusal:
        to_onnx(network(steps, dict.fromkeys("xaby", kind), ("y",)), "0")
    assert refusal.value.what.startswith("2 operators") and "--outputs" in refusal.value.hint


def test_a_path_that_ends_in_onnx_makes_an_onnx_model(tmp_path: Path) -> None:
    kind = TensorType((1, 4), "float32")
    graph = network([node("relu", ("x",), "y")], dict.fromkeys("xy", kind), ("y",))
    first, second = (microc.save(graph, tmp_path / name) for name in ("a.onnx", "b.onnx"))
    assert first.read_bytes() == second.read_bytes()
    assert session(first.read_bytes()).get_inputs()[0].name == "x"
    assert [each.op for each in microc.load(first).nodes] == ["relu"]
