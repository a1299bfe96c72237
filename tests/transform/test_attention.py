# SPDX-License-Identifier: Apache-2.0
"""Quantised attention of ONNX: products, softmax and moves on integers, and what ONNX Runtime computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import microc
from microc.base.dtypes import int_range
from microc.compiler.options import Options
from microc.compiler.pipeline import optimise_graph
from microc.ops.normalisation.softmax import (
    compute_scaled_exponentials,
    exponential_fraction_bits,
    scaled_softmax_attrs,
)
from microc.ops.registry import get
from tests.frontend.onnx_model import expected, read
from tests.transform.network import evaluate
from tests.transform.test_qdq import Net

TOKENS, HEADS, DEPTH = 6, 2, 5


def attention(dtype: str, mask: bool) -> Any:
    """softmax(q k^T / sqrt(d) + mask) v of heads, everything quantised as ONNX Runtime's tools do."""
    shift = 0 if dtype == "int8" else 128
    net = Net(**dict.fromkeys("qkv", (1, TOKENS, HEADS * DEPTH)))

    def head(name: str, axes: list[int], zero: int) -> str:
        data = net.qdq(name, 0.02, zero + shift, dtype)
        split = net.op("Reshape", data, net.constant(np.array([1, TOKENS, HEADS, DEPTH])))
        return net.qdq(net.op("Transpose", split, perm=axes), 0.02, zero + shift, dtype)

    product = net.op("MatMul", head("q", [0, 2, 1, 3], 3), head("k", [0, 2, 3, 1], -7))
    scores = net.qdq(product, 0.05, 2 + shift, dtype)
    scaled = net.qdq(net.op("Mul", scores, net.constant(np.float32(DEPTH**-0.5))), 0.02, shift, dtype)
    if mask:
        hidden = np.triu(np.full((TOKENS, TOKENS), -2.5, np.float32), 1)
        scaled = net.qdq(net.op("Add", scaled, net.constant(hidden)), 0.03, shift + 60, dtype)
    weights = net.qdq(net.op("Softmax", scaled, axis=-1), 1 / 255, shift - 128, dtype)
    out = net.op("MatMul", weights, net.qdq(head("v", [0, 2, 1, 3], 0), 0.02, shift, dtype))
    return net.model(net.qdq(out, 0.01, shift - 1, dtype))


@pytest.mark.parametrize(("dtype", "mask"), [("int8", True), ("uint8", False)])
def test_attention_stays_on_integers(dtype: str, mask: bool) -> None:
    model = attention(dtype, mask)
    graph = optimise_graph(read(model), Options())
    inner = [n for n in graph.nodes if n.op in ("matmul", "qsoftmax_scaled", "softmax", "transpose")]
    assert [n.op for n in inner] == ["matmul", "qsoftmax_scaled", "matmul"]
    assert inner[0].attrs["axes_a"] == (0, 2, 1, 3) and inner[0].attrs["axes_b"] == (0, 2, 3, 1)
    assert all(graph.types[node.inputs[0]].dtype == dtype for node in inner)
    library = microc.compile(read(model), "cortex-m4")
    rng = np.random.default_rng(5)
    for _ in range(4):
        inputs = {name: rng.normal(size=(1, TOKENS, HEADS * DEPTH)).astype(np.float32) for name in "qkv"}
        found = library(*inputs.values())
        np.testing.assert_array_equal(found, evaluate(graph, inputs)[0])
        np.testing.assert_allclose(found, expected(model, list(inputs.values()))[0], rtol=0, atol=0.0101)


@pytest.mark.parametrize("classes", [1, 2, 17, 300, 1024])
def test_softmax_by_table_is_within_its_bound(classes: int) -> None:
    """Half a step of rounding, and what the table and the sum are off."""
    rng = np.random.default_rng(classes)
    scale, out_scale = 0.04, 1 / 256
    x = rng.integers(-128, 128, (20, classes)).astype(np.int8)
    attrs = scaled_softmax_attrs(out_scale, -128, "uint8" if classes == 1 else "int8")
    (found,) = get("qsoftmax_scaled").reference(attrs, [x, compute_scaled_exponentials(scale, classes)])
    powers = np.exp((x - x.max(axis=-1, keepdims=True).astype(np.float64)) * np.float32(scale))
    steps = np.clip(powers / powers.sum(axis=-1, keepdims=True) / out_scale - 128, *int_range(str(found.dtype)))
    bound = 0.5 + (classes + 1) / 2 ** (exponential_fraction_bits(classes) + 1) / out_scale + 1e-6
    assert np.abs(found.astype(np.float64) - steps).max() <= bound < 1
