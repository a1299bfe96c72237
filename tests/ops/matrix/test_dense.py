# SPDX-License-Identifier: Apache-2.0
"""dense and matmul: quantised layers against the plain formula, forms, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.errors import ModelError
from microc.graph.ir import Graph, Node, Quant, TensorType
from microc.numerics import (
    NUMPY,
    multiply_by_reduced_factor,
    multiply_double_rounding,
    quantize_multiplier,
    reduce_multiplier,
)
from microc.ops.matrix.dense import DENSE
from microc.ops.registry import get
from tests.ops.edges import random_array
from tests.ops.harness import legalized, run_legalized

F = np.float32


def scaled(total: Array, real: float, wide: bool = False) -> Array:
    """An accumulator times ``real`` in TFLite's fixed point."""
    mantissa, shift = quantize_multiplier(real)
    mantissa = reduce_multiplier(mantissa) if wide else mantissa
    return np.asarray((multiply_by_reduced_factor if wide else multiply_double_rounding)(total, mantissa, shift, NUMPY))


def quant(scale: float, zero_point: int = 0) -> Quant:
    return Quant((float(F(scale)),), (zero_point,))


def layer(dtype: str, points: tuple[int, int, int], channels: bool = False, bias: str = "int32") -> tuple[Node, Graph]:
    """A quantised dense layer of 20 inputs and 6 units, 3 rows."""
    rng = np.random.default_rng(3)
    scales = tuple(float(F(0.004 + 0.001 * c)) for c in range(6))
    weight = Quant(scales, (0,) * 6, 0) if channels else quant(0.0047, points[1])
    kinds = {
        "x": TensorType((3, 20), dtype, quant(0.031, points[0])),
        "w": TensorType((6, 20), "uint8" if dtype == "uint8" else "int8", weight),
        "b": TensorType((6,), bias),
        "y": TensorType((3, 6), dtype, quant(0.017, points[2])),
    }
    consts = {"w": random_array(kinds["w"], rng), "b": random_array(kinds["b"], rng)}
    node = Node("dense", ("x", "w", "b"), ("y",), {**DENSE, "activation": "relu"})
    return node, Graph("g", ("x",), ("y",), (node,), kinds, consts)


@pytest.mark.parametrize(
    ("dtype", "points", "channels", "bias"),
    [
        ("int8", (-5, 0, 9), False, "int32"),
        ("int8", (-5, 0, 9), True, "int32"),
        ("int8", (-5, 17, 9), False, "int32"),
        ("uint8", (99, 131, 128), False, "int32"),
        ("int16", (0, 0, 0), False, "int64"),
        ("int16", (0, 0, 0), False, "int32"),
    ],
)
def test_quantised_dense_equals_the_plain_formula(
    dtype: str, points: tuple[int, int, int], channels: bool, bias: str
) -> None:
    node, graph = layer(dtype, points, channels, bias)
    x = random_array(graph.types["x"], np.random.default_rng(4))
    w = graph.types["w"].quant
    assert w is not None
    total = (x.astype(np.int64) - points[0]) @ (graph.consts["w"].astype(np.int64) - w.zero_point[0]).T + graph.consts[
        "b"
    ]
    if channels:
        reals = [float(F(0.031)) * s / float(F(0.017)) for s in w.scale]
    else:
        reals = [float(F(0.031) * F(0.0047)) / float(F(0.017))] * 6
    columns = [scaled(total[:, c], real, bias == "int64") for c, real in enumerate(reals)]
    low = max(points[2], np.iinfo(dtype).min)
    wanted = np.clip(np.stack(columns, 1) + points[2], low, np.iinfo(dtype).max).astype(dtype)
    (made,) = run_legalized(node, graph, {"x": x})
    np.testing.assert_array_equal(made, wanted)


def test_one_multiplier_is_an_attribute_and_many_are_operands() -> None:
    for channels in (False, True):
        node, graph = layer("int8", (0, 0, 0), channels)
        requantize = legalized(node, graph)[0][-1]
        assert (requantize.attr("multiplier") is None) == channels
        assert len(requantize.inputs) == (3 if channels else 1)


@pytest.mark.parametrize("known", [False, True])
def test_quantised_matmul(known: bool) -> None:
    rng = np.random.default_rng(5)
    kinds = {
        "a": TensorType((2, 3, 8), "int8", quant(0.02, -4)),
        "b": TensorType((8, 5), "int8", quant(0.03, 6)),
        "y": TensorType((2, 3, 5), "int8", quant(0.04, 1)),
    }
    a, b = random_array(kinds["a"], rng), random_array(kinds["b"], rng)
    node = Node("matmul", ("a", "b"), ("y",), DENSE)
    graph = Graph("g", ("a", "b"), ("y",), (node,), kinds, {"b": b} if known else {})
    total = (a.astype(np.int64) + 4) @ (b.astype(np.int64) - 6)
    wanted = np.clip(scaled(total, float(F(0.02) * F(0.03)) / float(F(0.04))) + 1, -128, 127)
    np.testing.assert_array_equal(run_legalized(node, graph, {"a": a, "b": b})[0], wanted)


def test_onnx_matmul_rounds_the_exact_sum_of_products_once() -> None:
    kinds = {
        "a": TensorType((2, 3, 8), "uint8", quant(0.02, 4)),
        "b": TensorType((2, 8, 5), "int8", quant(0.03, 6)),
        "y": TensorType((2, 3, 5), "int8", quant(0.04, 1)),
    }
    node = Node("matmul", ("a", "b"), ("y",), {**DENSE, "rounding": "even"})
    graph = Graph("g", ("a", "b"), ("y",), (node,), kinds)
    nodes, _, _ = legalized(node, graph)
    assert [n.op for n in nodes] == ["matmul", "requantize_float"]
    rng = np.random.default_rng(6)
    a, b = random_array(kinds["a"], rng), random_array(kinds["b"], rng)
    total = (a.astype(np.int64) - 4) @ (b.astype(np.int64) - 6)
    wanted = np.clip(np.rint(total.astype(F) * (F(0.02) * F(0.03) / F(0.04))) + 1, -128, 127)
    np.testing.assert_array_equal(run_legalized(node, graph, {"a": a, "b": b})[0], wanted)


def test_contradicting_shapes_are_refused() -> None:
    dense, matmul = get("dense"), get("matmul")
    with pytest.raises(ModelError):
        dense.infer(DENSE, (TensorType((1, 3), "int8"), TensorType((2, 4), "int8")))
    with pytest.raises(ModelError):
        dense.infer(DENSE, (TensorType((1, 3), "int8"), TensorType((2, 3), "int8"), TensorType((3,), "int32")))
    for shapes in (((2, 3), (4, 2)), ((2, 2, 3), (3, 3, 2)), ((3,), (3, 2))):
        with pytest.raises(ModelError):
            matmul.infer(DENSE, tuple(TensorType(shape, "float32") for shape in shapes))


def test_macs() -> None:
    kinds = (TensorType((3, 20), "int8"), TensorType((6, 20), "int8"))
    macs = get("dense").macs
    assert macs is not None and macs(DENSE, kinds, get("dense").infer(DENSE, kinds)) == 360
