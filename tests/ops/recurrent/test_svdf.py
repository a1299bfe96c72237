# SPDX-License-Identifier: Apache-2.0
"""SVDF: a sequence of steps against TFLite Micro, in integers and floats; the activation; refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.errors import ModelError, UnsupportedError
from microc.frontend.tflite import reader as tflite
from microc.graph.ir import Graph, Node, TensorType
from microc.ops import registry
from tests.frontend.tflite_model import Op, Tensor, constant, model, quantised
from tests.ops.harness import legalized, run_legalized
from tests.ops.oracle import run

STEPS, DEPTH, FILTERS, MEMORY = 12, 7, 6, 4


def model_of(tensors: list[Tensor], rank: int, activation: int) -> bytes:
    fields = {"Rank": rank, "FusedActivationFunction": activation}
    op = Op("SVDF", ("x", "w", "t", "b", "s"), ("y",), "SVDFOptions", fields)
    return model(tensors, (op,), ("x",), ("y",))


def steps(data: bytes, inputs: list[Array]) -> list[tuple[Array, Array]]:
    """(ours, TFLite Micro's) after every step."""
    runtime = pytest.importorskip("tflite_micro").runtime
    interpreter = runtime.Interpreter.from_bytes(data, arena_size=1 << 20)
    graph = tflite.read_tflite(data, "svdf.tflite")
    state, pairs = dict(graph.state), []
    for x in inputs:
        interpreter.set_input(x, 0)
        interpreter.invoke()
        (ours,) = run(graph, [x], state)
        pairs.append((ours, np.array(interpreter.get_output(0))))
    return pairs


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize(("state_dtype", "state_zero"), [("INT16", 0), ("INT8", 0), ("INT8", 4)])
def test_integer_sequence_equals_tflite_micro(rank: int, state_dtype: str, state_zero: int) -> None:
    rng = np.random.default_rng(rank)
    limit = 2000 if state_dtype == "INT16" else 127

    def weights(name: str, shape: tuple[int, ...], dtype: str, largest: int, scale: float) -> Tensor:
        data = rng.integers(-largest, largest, shape, endpoint=True).astype(dtype)
        return constant(name, data, scale=(scale,), zero_point=(0,))

    state_scale, time_scale = (0.0021, 0.00031) if state_dtype == "INT16" else (0.31, 0.011)
    state = Tensor(
        "s", (1, FILTERS * MEMORY), state_dtype, scale=(state_scale,), zero_point=(state_zero,), variable=True
    )
    data = model_of(
        [
            quantised("x", (1, DEPTH), 0.037, 5),
            weights("w", (FILTERS, DEPTH), "int8", 127, 0.0173),
            weights("t", (FILTERS, MEMORY), state_dtype.lower(), limit, time_scale),
            weights("b", (FILTERS // rank,), "int32", 9000, state_scale * time_scale),
            state,
            quantised("y", (1, FILTERS // rank), 0.083 if state_dtype == "INT16" else 0.29, -17),
        ],
        rank,
        1,
    )
    inputs = [rng.integers(-128, 127, (1, DEPTH), endpoint=True).astype(np.int8) for _ in range(STEPS)]
    pairs = steps(data, inputs)
    for ours, theirs in pairs:
        np.testing.assert_array_equal(ours, theirs)
    assert len({tuple(ours.reshape(-1).tolist()) for ours, _ in pairs}) == STEPS, "the steps should differ"


def test_float_sequence_equals_tflite_micro() -> None:
    rng = np.random.default_rng(4)

    def weights(name: str, shape: tuple[int, ...]) -> Tensor:
        return constant(name, rng.standard_normal(shape).astype(np.float32))

    state = Tensor("s", (1, FILTERS * MEMORY), "FLOAT32", variable=True)
    tensors = [
        Tensor("x", (1, DEPTH)),
        weights("w", (FILTERS, DEPTH)),
        weights("t", (FILTERS, MEMORY)),
        weights("b", (3,)),
    ]
    data = model_of([*tensors, state, Tensor("y", (1, 3))], 2, 1)
    for ours, theirs in steps(data, [rng.standard_normal((1, DEPTH)).astype(np.float32) for _ in range(STEPS)]):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def float_application(**attrs: Any) -> tuple[Node, Graph]:
    shapes = {"x": (1, 3), "w": (4, 3), "t": (4, 2), "b": (2,), "s": (1, 8), "y": (1, 2), "n": (1, 8)}
    types = {name: TensorType(shape, "float32") for name, shape in shapes.items()}
    node = Node(
        "svdf", ("x", "w", "t", "b", "s"), ("y", "n"), {"rank": 2, "activation": "", "rounding": "double", **attrs}
    )
    return node, Graph("g", ("x", "w", "t", "b", "s"), ("y", "n"), (node,), types)


def test_a_float_activation_becomes_an_operator() -> None:
    node, graph = float_application(activation="relu")
    assert [n.op for n in legalized(node, graph)[0]] == ["svdf", "relu"]
    rng = np.random.default_rng(0)
    inputs = {name: rng.standard_normal(graph.types[name].shape).astype(np.float32) for name in graph.inputs}
    result, following = run_legalized(node, graph, inputs)
    assert (result >= 0).all() and following.shape == (1, 8)
    np.testing.assert_array_equal(following.reshape(4, 2)[:, 0], inputs["s"].reshape(4, 2)[:, 1])


def test_refusals() -> None:
    definition = registry.get("svdf")
    node, graph = float_application()
    kinds = [graph.types[name] for name in node.inputs]
    for position, shape in ((0, (3,)), (1, (4, 2)), (3, (3,)), (4, (1, 7))):
        broken = [TensorType(shape, "float32") if k == position else kind for k, kind in enumerate(kinds)]
        with pytest.raises(ModelError):
            definition.infer(node.attrs, broken)
    with pytest.raises(ModelError):
        definition.infer({**node.attrs, "rank": 3}, kinds)
    with pytest.raises(ModelError):
        definition.infer(node.attrs, [TensorType(kind.shape, "int8") for kind in kinds])


def test_computed_weights_of_a_quantised_svdf_are_refused() -> None:
    data = model_of(
        [
            quantised("x", (1, 1), 0.1, 0),
            constant("w", np.ones((1, 1), np.int8), scale=(0.1,), zero_point=(0,)),
            constant("t", np.ones((1, 1), np.int16), scale=(0.1,), zero_point=(0,)),
            constant("b", np.zeros(1, np.int32), scale=(0.01,), zero_point=(0,)),
            Tensor("s", (1, 1), "INT16", scale=(0.1,), zero_point=(0,), variable=True),
            quantised("y", (1, 1), 0.1, 0),
        ],
        1,
        0,
    )
    graph = tflite.read_tflite(data, "svdf.tflite")
    node = next(n for n in graph.nodes if n.op == "svdf")
    bare = Graph("g", graph.inputs, graph.outputs, graph.nodes, graph.types)
    with pytest.raises(UnsupportedError, match="weights or bias are not constant"):
        legalized(node, bare)
