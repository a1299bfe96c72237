# SPDX-License-Identifier: Apache-2.0
"""Elementwise operators: quantised ones against TFLite Micro over all inputs, ONNX's rounding, float activations, refusals."""

from __future__ import annotations

import operator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from microc.errors import ModelError, UnsupportedError
from microc.graph.ir import Graph, Node, Quant, TensorType
from microc.ops import registry
from microc.ops.elementwise.scalar_functions import UNARY, apply_unary
from microc.ops.quantised.int16_functions import sigmoid_table, table_index_multiplier_and_shift
from tests.frontend.tflite_model import Op, quantised
from tests.ops.harness import legalized, run_legalized
from tests.ops.oracle import check, every, quantised_graph, scale, single

UNARY_8 = ("RELU", "RELU6", "LOGISTIC", "TANH", "HARD_SWISH", "LEAKY_RELU", "ELU")


def options(code: str, rng: np.random.Generator) -> dict[str, Any]:
    if code != "LEAKY_RELU":
        return {}
    return {"options": "LeakyReluOptions", "fields": {"Alpha": float(np.float32(rng.uniform(-1, 1.5)))}}


@pytest.mark.parametrize("code", UNARY_8)
def test_tables_equal_tflite_micro(code: str) -> None:
    rng = np.random.default_rng(len(code))
    for _ in range(12):
        scales, zeros = [scale(rng), scale(rng)], rng.integers(-128, 128, 2).tolist()
        if code == "RELU6":
            scales, zeros = [0.1 + scales[0]] * 2, [zeros[0]] * 2
        if code == "HARD_SWISH":
            scales[1] = max(scales[1], scales[0] * 0.6)
        if code in ("LOGISTIC", "TANH"):
            scales[1], zeros[1] = (1 / 256, -128) if code == "LOGISTIC" else (1 / 128, 0)
        tensors = [quantised(n, (256,), s, z) for n, s, z in zip("xy", scales, zeros, strict=True)]
        check(single(Op(code, ("x",), ("y",), **options(code, rng)), tensors), every("int8"))


@pytest.mark.parametrize("code", ["RELU", "LEAKY_RELU", "LOGISTIC", "TANH"])
def test_int16_equals_tflite_micro(code: str) -> None:
    rng = np.random.default_rng(len(code))
    for given in (1 / 4096, 1 / 2048, scale(rng, -14, -5), scale(rng, -14, -5)):
        out = 1 / 32768 if code in ("LOGISTIC", "TANH") else scale(rng, -14, -5)
        tensors = [quantised("x", (65536,), given, 0, "INT16"), quantised("y", (65536,), out, 0, "INT16")]
        check(single(Op(code, ("x",), ("y",), **options(code, rng)), tensors), every("int16"))


def test_sigmoid_table_ends_and_rises() -> None:
    table = sigmoid_table().astype(int)
    assert (table[0], table[1], table[-1]) == (32768, 33451, 65535)
    assert (np.diff(table) >= 0).all()
    assert table_index_multiplier_and_shift("tanh", 1e-9 / 4096) == (6, 31)
    assert table_index_multiplier_and_shift("tanh", 1e-15) is table_index_multiplier_and_shift("tanh", 3.0) is None


@pytest.mark.parametrize(
    "op", ["relu", "clip", "leaky_relu", "sigmoid", "tanh", "exp", "log", "sqrt", "hard_swish", "erf"]
)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_rounding_even_is_dequantise_apply_quantise(op: str, dtype: str) -> None:
    quants = (Quant((0.043,), (7,)), Quant((0.0191,), (3,)))
    node, graph = quantised_graph(op, [(256,)], (256,), quants, dtype, rounding="even")
    x = every(dtype)[:: 1 if dtype != "int16" else 256]
    (got,) = run_legalized(node, graph, {"a": x})
    function = next(f for f in UNARY if f.name == op)
    real = apply_unary(function, node.attrs, (x.astype(np.float32) - np.float32(7)) * np.float32(0.043))
    info = np.iinfo(dtype)
    with np.errstate(over="ignore"):
        steps = np.clip(np.rint(real / np.float32(0.0191)) + 3, info.min, info.max)
    defined = ~np.isnan(steps)
    np.testing.assert_array_equal(got[defined], steps[defined].astype(dtype))


@pytest.mark.parametrize("rounding", ["double", "even"])
def test_relu_without_rescaling_clips_the_stored_integers(rounding: str) -> None:
    node, graph = quantised_graph("relu", [(4,)], (4,), [Quant((0.5,), (3,))] * 2, "int8", rounding=rounding)
    nodes, _, _ = legalized(node, graph)
    assert [(n.op, n.attrs["minimum"], n.attrs["maximum"]) for n in nodes] == [("clip", 3, 127)]
    settled = registry.get("clip").legalize
    assert settled is not None and settled(nodes[0], graph) is None
    (got,) = run_legalized(node, graph, {"a": np.array([-128, 2, 3, 127], np.int8)})
    assert got.tolist() == [3, 3, 3, 127]


@pytest.mark.parametrize("op", ["add", "sub", "mul", "div", "maximum", "minimum"])
def test_binary_rounding_even(op: str) -> None:
    """Sums and products are exact, with ties to even (tests/ops/quantised/test_even.py); others go through floats."""
    quants = (Quant((0.05,), (-3,)), Quant((0.02,), (10,)), Quant((0.1,), (1,)))
    node, graph = quantised_graph(op, [(64, 4), (4,)], (64, 4), quants, "int8", rounding="even", activation="relu")
    a, b = every("int8").reshape(64, 4), np.array([-128, 11, 50, 127], np.int8)
    (got,) = run_legalized(node, graph, {"a": a, "b": b})
    scale_x, scale_y, scale_out = (Fraction(float(np.float32(v))) for v in (0.05, 0.02, 0.1))
    if op in ("add", "sub", "mul"):
        exact = [
            max(getattr(operator, op)((int(v) + 3) * scale_x, (int(w) - 10) * scale_y), Fraction(0)) / scale_out
            for v, w in zip(a.ravel(), np.broadcast_to(b, a.shape).ravel(), strict=True)
        ]
        wanted = np.array([min(127, max(-128, round(level) + 1)) for level in exact], np.int8).reshape(a.shape)
        np.testing.assert_array_equal(got, wanted)
        return
    x, y = (np.float32(v) for v in ((a + np.float32(3)) * np.float32(0.05), (b - np.float32(10)) * np.float32(0.02)))
    numpy_name = {"div": "divide"}.get(op, op)
    real = np.maximum(getattr(np, numpy_name)(x, y), 0)
    np.testing.assert_array_equal(got, np.clip(np.rint(real / np.float32(0.1)) + 1, -128, 127).astype(np.int8))


def test_maximum_of_one_quantisation_stays_and_of_several_is_refused() -> None:
    alike = [Quant((0.05,), (-3,))] * 3
    node, graph = quantised_graph("maximum", [(4,), (4,)], (4,), alike, "int8")
    legalize = registry.get("maximum").legalize
    assert legalize is not None and legalize(node, graph) is None
    node, graph = quantised_graph("maximum", [(4,), (4,)], (4,), (*alike[:2], Quant((0.1,), (0,))), "int8")
    with pytest.raises(UnsupportedError, match="quantised differently"):
        legalize(node, graph)


@pytest.mark.parametrize("activation", ["relu", "relu6", "relu_n1_to_1", "tanh", "sigmoid"])
def test_a_float_activation_becomes_an_operator(activation: str) -> None:
    kind = TensorType((5,), "float32")
    node = Node("add", ("a", "b"), ("y",), {"activation": activation, "rounding": "double"})
    graph = Graph("g", ("a", "b"), ("y",), (node,), {"a": kind, "b": kind, "y": kind})
    a, b = np.linspace(-4, 4, 5, dtype=np.float32), np.full(5, 1.5, np.float32)
    (got,) = run_legalized(node, graph, {"a": a, "b": b})
    x = a + b
    wanted = {
        "relu": np.maximum(x, 0),
        "relu6": np.clip(x, 0, 6),
        "relu_n1_to_1": np.clip(x, -1, 1),
        "tanh": np.tanh(x),
        "sigmoid": 1 / (1 + np.exp(-x)),
    }[activation]
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


@pytest.mark.parametrize(
    ("op", "types", "attrs"),
    [
        ("exp", [TensorType((2,), "int32")], {}),
        ("clip", [TensorType((2,), "float32")], {"minimum": 1.0, "maximum": 0.0}),
        ("add", [TensorType((2,), "float32"), TensorType((3,), "float32")], {}),
        ("add", [TensorType((2,), "float32"), TensorType((2,), "int32")], {}),
        ("pow", [TensorType((2,), "int32"), TensorType((2,), "int32")], {}),
        ("cast", [TensorType((2,), "int32")], {"dtype": "string"}),
        ("lookup", [TensorType((2,), "int16"), TensorType((256,), "int8")], {}),
        ("lookup", [TensorType((2,), "int8"), TensorType((255,), "int8")], {}),
    ],
)
def test_inference_refuses(op: str, types: list[TensorType], attrs: dict[str, Any]) -> None:
    definition = registry.get(op)
    with pytest.raises(ModelError):
        definition.infer({**definition.defaults, **attrs}, types)
