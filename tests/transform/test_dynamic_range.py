"""Layers of floats with integer weights become what LiteRT computes, if that is asked for."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from microc.frontend import tflite
from microc.graph.ir import Graph
from microc.ops.control import run
from microc.transform.context import PassContext
from microc.transform.dynamic_range import dynamic_range
from tests.frontend.tflite_model import Op, Tensor, constant
from tests.ops.oracle import single

RNG = np.random.default_rng(2)


def layer(asymmetric: bool) -> Graph:
    tensors = (
        Tensor("x", (3, 8)),
        constant("w", RNG.integers(-127, 128, (4, 8)).astype(np.int8), scale=(0.02,), zero_point=(0,)),
        constant("b", RNG.normal(size=4).astype(np.float32)),
        Tensor("y", (3, 4)),
    )
    fields = {"FusedActivationFunction": 1, "AsymmetricQuantizeInputs": asymmetric}
    op = Op("FULLY_CONNECTED", ("x", "w", "b"), ("y",), "FullyConnectedOptions", fields)
    return tflite.read(single(op, tensors), "hybrid.tflite")


def test_weights_are_floats_unless_asked() -> None:
    graph = layer(False)
    assert dynamic_range(graph, PassContext()) is graph


@pytest.mark.parametrize("asymmetric", [False, True])
def test_data_are_quantised_row_by_row(asymmetric: bool) -> None:
    """The result lies within the rounding of the data, half a step of each row, from that of floats; weights stay bytes."""
    graph = layer(asymmetric)
    made = dynamic_range(graph, PassContext(options={"hybrid": "dynamic"}))
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
    assert np.all(np.abs(run(made, [x])[0] - exact) <= bound + 1e-4)
