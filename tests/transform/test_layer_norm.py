# SPDX-License-Identifier: Apache-2.0
"""Normalisation of rows, however it is spelled, as one operator; of bytes as the integers that they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import microc
from microc.compiler.options import Options
from microc.compiler.pipeline import optimise_graph
from microc.ops.meaning import evaluate
from tests.frontend.onnx_model import expected, ops, read
from tests.frontend.run import library
from tests.transform.test_qdq import Net

RNG = np.random.default_rng(8)
SHAPE = (2, 5, 12)


def spelled(form: str, x: str, net: Net) -> str:
    """The operators of a normalisation, as exporters write them."""
    if form == "whole":
        return net.op("LayerNormalization", x, net.constant(np.linspace(0.5, 2, 12).astype(np.float32)), axis=-1)
    mean = net.op("ReduceMean", x, axes=[0 if form == "other axis" else -1])
    centred = net.op("Sub", x, mean)
    square = net.op("Pow", centred, net.constant(np.float32(2))) if form == "pow" else net.op("Mul", centred, centred)
    variance = net.op("ReduceMean", square, axes=[-1])
    root = net.op("Sqrt", net.op("Add", variance, net.constant(np.float32(1e-5))))
    return net.op("Div", centred, root)


def model(form: str, quantised: bool) -> Any:
    net = Net(x=SHAPE)
    made = spelled(form, net.qdq("x", 0.03, -9) if quantised else "x", net)
    return net.model(net.qdq(made, 0.02, 4) if quantised else net.op("Identity", made))


@pytest.mark.parametrize("form", ["whole", "mul", "pow", "other axis"])
@pytest.mark.parametrize("quantised", [False, True])
def test_normalisation_is_one_operator(form: str, quantised: bool) -> None:
    written = read(model(form, quantised))
    graph = optimise_graph(written, Options())
    assert ("layer_norm" in ops(graph)) == (form != "other axis")
    if form != "other axis":
        (norm,) = [node for node in graph.nodes if node.op == "layer_norm"]
        assert graph.types[norm.inputs[0]].dtype == ("int8" if quantised else "float32")
    compiled = microc.compile(written)
    for spread in (1.0, 0.0, 40.0):
        x = (RNG.normal(size=SHAPE) * spread + 1).astype(np.float32)
        (wanted,) = expected(model(form, quantised), [x])
        np.testing.assert_allclose(compiled(x), wanted, rtol=0, atol=0.0201 if quantised else 2e-5)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
@pytest.mark.parametrize("terms", [False, True])
def test_in_fixed_point_it_is_an_operator_of_integers(terms: bool, dtype: str) -> None:
    """With the channels' factors and terms: within a quantum of ONNX Runtime, C as the reference has it."""
    scale, zero, out = (0.03, 9, 0.02) if dtype != "int16" else (2e-4, 0, 1e-4)
    net = Net(x=SHAPE)
    parts = [net.constant(RNG.normal(0, 1, 12).astype(np.float32)) for _ in range(2 if terms else 1)]
    made = net.op("LayerNormalization", net.qdq("x", scale, zero, dtype), *parts, axis=-1)
    network = net.model(net.qdq(made, out, zero, dtype), opset=21)
    written, options = read(network), Options(requantize="fixed")
    graph = optimise_graph(replace(written, name="norm"), options)
    assert [each for each in ops(graph) if each not in ("quantize", "dequantize")] == ["qlayer_norm"]
    made_c = library(written, options)
    for spread in (1.0, 0.0, 0.01, 40.0):
        x = (RNG.normal(size=SHAPE) * spread + 1).astype(np.float32)
        given = made_c(x)
        np.testing.assert_array_equal(given, evaluate(graph, {"x": x})[0][0])
        assert np.abs(np.rint((given - expected(network, [x])[0]) / out)).max() <= 1
