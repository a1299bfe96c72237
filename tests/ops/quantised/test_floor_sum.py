# SPDX-License-Identifier: Apache-2.0
"""``sum_floor``: factors that make two products and a shift equal to a scaled sum of bytes, for all pairs of bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.compiler.lowering.kernel_selection import adapt_group_to_core
from microc.graph.ir import Graph, Node, TensorType
from microc.numerics import quantize_multiplier
from microc.ops import registry
from microc.ops.attributes import Multiplier
from microc.ops.quantised.exact_rounding import use_floor_sums
from microc.target import target_for


def scaled_sum(
    scales: tuple[float, float, float], zeros: tuple[int, int, int], minimum: int, **attrs: Any
) -> dict[str, Any]:
    """Return the attributes of a ``qadd`` of int8, as TFLite computes them. ``scales`` and ``zeros``: of a, b and the result."""
    a, b, out = scales
    twice = 2 * max(a, b)
    values: dict[str, Any] = {"left_shift": 20, "negate_b": False, "rounding": Multiplier.DOUBLE, **attrs}
    for name, value in (("_a", a / twice), ("_b", b / twice), ("", twice / ((1 << 20) * out))):
        values[f"multiplier{name}"], values[f"shift{name}"] = quantize_multiplier(value)
    values |= {"zero_point_a": zeros[0], "zero_point_b": zeros[1], "zero_point": zeros[2]}
    return values | {"minimum": minimum, "maximum": 127, "out_dtype": "int8"}


def sum_graph(op: str, attrs: dict[str, Any], dtype: str = "int8") -> Graph:
    """Return a graph of one sum of two operands."""
    types = {name: TensorType((256, 256), dtype) for name in "ab"} | {"y": TensorType((256, 256), attrs["out_dtype"])}
    return Graph("sum", ("a", "b"), ("y",), (Node(op, ("a", "b"), ("y",), attrs),), types, {})


def evaluate(node: Node, dtype: str = "int8") -> Array:
    """Evaluate a sum for all pairs of bytes."""
    low, high = dtypes.int_range(dtype)
    values = np.arange(low, high + 1).astype(dtypes.to_numpy(dtype))
    (result,) = registry.get(node.op).reference(node.attrs, (values[:, None], values[None, :]))
    return np.asarray(result)


@pytest.mark.parametrize("rounding", [Multiplier.DOUBLE, Multiplier.SINGLE])
@pytest.mark.parametrize("negate_b", [False, True])
def test_sums_of_random_scales_are_equal(negate_b: bool, rounding: Multiplier) -> None:
    generator = np.random.default_rng(0)
    replaced = 0
    for _ in range(20):
        scales, zeros = generator.uniform(0.01, 0.1, 3), generator.integers(-128, 128, 3)
        minimum = int(generator.choice([-128, zeros[2]]))
        attrs = scaled_sum(tuple(scales.tolist()), tuple(zeros.tolist()), minimum, negate_b=negate_b, rounding=rounding)
        graph = sum_graph("qadd", attrs)
        (node,) = use_floor_sums(graph, graph.nodes)
        replaced += node.op == "sum_floor"
        np.testing.assert_array_equal(evaluate(node), evaluate(graph.nodes[0]))
    assert replaced >= 18


def test_ties_to_even_are_equal_where_there_are_none() -> None:
    attrs = {
        "zero_point_a": 128,
        "zero_point_b": 3,
        "factor_a": 715827883,
        "factor_b": -1518500249,
        "distance": 31,
        "near": 0,
    }
    graph = sum_graph(
        "sum_even", attrs | {"zero_point": 9, "minimum": 0, "maximum": 255, "out_dtype": "uint8"}, "uint8"
    )
    (node,) = use_floor_sums(graph, graph.nodes)
    assert node.op == "sum_floor"
    np.testing.assert_array_equal(evaluate(node, "uint8"), evaluate(graph.nodes[0], "uint8"))


@pytest.mark.parametrize("minimum", [-128, 0])
def test_ties_away_from_zero_are_equal(minimum: int) -> None:
    graph = sum_graph("qadd", scaled_sum((0.1, 0.1, 0.2), (0, 0, 0), minimum))
    (node,) = use_floor_sums(graph, graph.nodes)
    assert node.op == "sum_floor"
    np.testing.assert_array_equal(evaluate(node), evaluate(graph.nodes[0]))


def test_ties_that_no_addend_meets_are_left_alone() -> None:
    graph = sum_graph("qadd", scaled_sum((0.05, 0.5, 0.4), (-59, 83, -63), -128))
    assert use_floor_sums(graph, graph.nodes) == graph.nodes


def test_sums_of_wider_operands_are_left_alone() -> None:
    attrs = scaled_sum((0.03, 0.07, 0.09), (0, 0, 0), -128)
    graph = sum_graph("qadd", {**attrs, "left_shift": 15}, "int16")
    assert use_floor_sums(graph, graph.nodes) == graph.nodes


@pytest.mark.parametrize("cpu", ["x86-64-v3", "cortex-m55", "cortex-m4", "cortex-m0", "rv64gcv", "avr"])
def test_all_cores_replace_sums(cpu: str) -> None:
    """Products of 32 bits exist everywhere; a ``sum_even`` of 64 bits has no lanes in vectors."""
    graph = sum_graph("qadd", scaled_sum((0.05, 0.03, 0.06), (3, -4, 5), -128))
    _, (node,) = adapt_group_to_core(graph, graph.nodes, target_for(cpu))
    assert node.op == "sum_floor"
