# SPDX-License-Identifier: Apache-2.0
"""Layers of floats with integer weights become what LiteRT computes, if that is asked for."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.compiler.options import Options
from microc.frontend.tflite import reader as tflite
from microc.graph.ir import Graph
from microc.ops import registry
from microc.ops.control import evaluate_graph
from microc.ops.meaning import expand_composed_operator
from microc.transform.pass_context import PassContext, run_passes
from microc.transform.quantised import legalize
from microc.transform.quantised.weight_types import DYNAMIC_RANGE_PASS as dynamic_range_pass
from microc.transform.quantised.weight_types import quantise_dynamically
from tests.frontend.run import library
from tests.frontend.tflite_model import Op, Tensor, constant
from tests.ops.harness import run_graph
from tests.ops.oracle import single

RNG = np.random.default_rng(2)


def layer(asymmetric: bool, weights: Array | None = None) -> Graph:
    """A dense layer of TFLite on float data (3, inputs); ``weights``: int8 (4, inputs), random ones if absent."""
    weights = RNG.integers(-127, 128, (4, 8)).astype(np.int8) if weights is None else weights
    tensors = (
        Tensor("x", (3, weights.shape[1])),
        constant("w", weights, scale=(0.02,), zero_point=(0,)),
        constant("b", RNG.normal(size=4).astype(np.float32)),
        Tensor("y", (3, 4)),
    )
    fields = {"FusedActivationFunction": 1, "AsymmetricQuantizeInputs": asymmetric}
    op = Op("FULLY_CONNECTED", ("x", "w", "b"), ("y",), "FullyConnectedOptions", fields)
    return tflite.read_tflite(single(op, tensors), "hybrid.tflite")


def test_weights_are_floats_unless_asked() -> None:
    graph = layer(False)
    assert quantise_dynamically(graph, PassContext()) is graph


@pytest.mark.parametrize(("depth", "expected"), [(66311, ""), (66312, "sums can overflow int32; got up to 2147514120")])
def test_sums_of_quantised_rows_fill_int32(depth: int, expected: str) -> None:
    """Ones become 255, the largest integer that a row can have: 66,311 products by 127 fit int32."""
    graph = layer(True, np.full((4, depth), 127, np.int8))
    graph = quantise_dynamically(graph, PassContext(options={"hybrid": "dynamic"}))
    quantise, dense = (node for node in graph.nodes if node.op in ("dynamic_quantize", "dense"))
    steps, _ = registry.get("dynamic_quantize").reference(quantise.attrs, [np.ones((3, depth), np.float32)])
    assert (steps == 255).all()
    assert registry.node_constant_error_message(dense, graph, graph.producer()).partition(", expected")[0] == expected


@pytest.mark.parametrize("asymmetric", [False, True])
def test_data_are_quantised_row_by_row(asymmetric: bool) -> None:
    """The result lies within the rounding of the data, half a step of each row, from that of floats; weights stay bytes."""
    graph = layer(asymmetric)
    made = quantise_dynamically(graph, PassContext(options={"hybrid": "dynamic"}))
    counts = Counter(node.op for node in made.nodes)
    assert counts["dynamic_quantize"] == counts["dense"] == counts["relu"] == 1 and "dequantize" not in counts
    assert {str(made.consts[name].dtype) for node in made.nodes if node.op == "dense" for name in node.inputs[1:2]} == {
        "int8"
    }
    x = RNG.normal(size=(3, 8)).astype(np.float32) * np.array([[1], [10], [100]], np.float32)
    weights = next(node for node in made.nodes if node.op == "dense").inputs[1]
    real = made.consts[weights].astype(np.float64) * 0.02
    exact = np.maximum(x.astype(np.float64) @ real.T + graph.consts["b"], 0)
    steps = np.ptp(np.pad(x, ((0, 0), (0, 1))), axis=1) / 255 if asymmetric else abs(x).max(axis=1) / 127
    bound = np.abs(real).sum(axis=1)[None] * steps[:, None] * 0.51
    assert np.all(np.abs(evaluate_graph(made, [x])[0] - exact) <= bound + 1e-4)


def weights(name: str, *shape: int, channels: int = -1) -> Tensor:
    """Bytes with one scale, or one for every index of an axis."""
    count = shape[channels] if channels >= 0 else 1
    scale = tuple(map(float, RNG.uniform(0.005, 0.02, count)))
    values = RNG.integers(-127, 128, shape).astype(np.int8)
    return constant(name, values, scale=scale, zero_point=(0,) * count, axis=max(channels, 0))


def recurrent(asymmetric: bool) -> tuple[Op, list[Tensor]]:
    tensors = [Tensor("x", (2, 5, 4)), Tensor("y", (2, 5, 3))]
    tensors += [weights(f"w{k}", 3, 4 if k < 5 else 3) for k in range(1, 9)]
    tensors += [constant(f"b{k}", RNG.normal(size=3).astype(np.float32)) for k in range(12, 16)]
    tensors += [Tensor(name, (2, 3), variable=True) for name in ("hidden", "cell")]
    names = {0: "x", 18: "hidden", 19: "cell"} | {k: f"w{k}" for k in range(1, 9)} | {k: f"b{k}" for k in range(12, 16)}
    fields = {"FusedActivationFunction": 4, "AsymmetricQuantizeInputs": asymmetric}
    inputs = tuple(names.get(k, "") for k in range(24))
    return Op("UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, ("y",), "UnidirectionalSequenceLSTMOptions", fields), tensors


def hybrid_models(asymmetric: bool) -> dict[str, tuple[Op, list[Tensor]]]:
    quantise = {"AsymmetricQuantizeInputs": asymmetric}
    b = constant("b", RNG.normal(size=4).astype(np.float32))
    memory = Tensor("s", (2, 40), variable=True)
    matrix = ("x", "w"), ("y",), "BatchMatMulOptions"
    return {
        "matrix": (
            Op("BATCH_MATMUL", *matrix, quantise),
            [Tensor("x", (2, 3, 8)), weights("w", 8, 4, channels=1), Tensor("y", (2, 3, 4))],
        ),
        "adjoint matrix": (
            Op("BATCH_MATMUL", *matrix, {"AdjY": True, **quantise}),
            [Tensor("x", (2, 3, 8)), weights("w", 4, 8, channels=0), Tensor("y", (2, 3, 4))],
        ),
        "features": (
            Op("SVDF", ("x", "w", "t", "b", "s"), ("y",), "SVDFOptions", {"Rank": 2, **quantise}),
            [Tensor("x", (2, 6)), weights("w", 8, 6), weights("t", 8, 5), b, memory, Tensor("y", (2, 4))],
        ),
        "larger image": (
            Op("TRANSPOSE_CONV", ("n", "w", "x", "b"), ("y",), "TransposeConvOptions", {"StrideH": 2, "StrideW": 2}),
            [
                constant("n", np.array([2, 6, 8, 4], np.int32)),
                weights("w", 4, 3, 3, 5, channels=0),
                Tensor("x", (2, 3, 4, 5)),
                b,
                Tensor("y", (2, 6, 8, 4)),
            ],
        ),
        "cell": recurrent(asymmetric),
    }


@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize("name", hybrid_models(False))
def test_layers_keep_their_bytes(name: str, asymmetric: bool) -> None:
    """Near to floats, not equal, over two calls; rows of data are integers, and weights are bytes where rows meet them."""
    op, tensors = hybrid_models(asymmetric)[name]
    graph = expand_composed_operator(tflite.read_tflite(single(op, tensors), "hybrid.tflite"))
    passes, option = (dynamic_range_pass, legalize.LEGALIZE_PASS), {"hybrid": "dynamic"}
    dynamic = run_passes(graph, passes, PassContext(options=option))
    found = list[list[Array]]()
    data = [RNG.normal(size=graph.types[graph.inputs[0]].shape).astype(np.float32) for _ in range(2)]
    for whole in (run_passes(graph, (legalize.LEGALIZE_PASS,), PassContext()), dynamic):
        state, results = dict(whole.state), list[Array]()
        for x in data:
            values = run_graph(whole.nodes, whole.types, {**whole.consts, **state, whole.inputs[0]: x})
            state = {name: values[value] for name, value in whole.updates.items()}
            results.append(values[whole.outputs[0]])
        found.append(results)
    for real, rounded in zip(*found, strict=True):
        assert 0 < np.abs(real - rounded).max() < 0.03 * np.abs(real).max()
    if asymmetric:
        made = library(graph, Options(hybrid="dynamic"))(data[0])
        np.testing.assert_allclose(made, found[1][0], rtol=0, atol=1e-5 * np.abs(found[1][0]).max())
    bodies = [node.attrs["body"] for node in dynamic.nodes if node.op == "loop"]
    inner = [dynamic, *(body for body in bodies if isinstance(body, Graph))]
    assert any(node.op == "dynamic_quantize" for part in inner for node in part.nodes)
