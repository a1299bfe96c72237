# SPDX-License-Identifier: Apache-2.0
"""``requantize_floor``, ``requantize_split`` and ``requantize_split_away``: constants that make products and shifts equal to a
requantisation, for all operands."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.graph.ir import Graph, Node, TensorType
from microc.ops import registry
from microc.ops.quantised.requantize import REQUANTIZE
from microc.ops.quantised.requantize_floor import (
    FloorScale,
    Thresholds,
    find_floor_scale,
    find_thresholds,
    use_floor_requantisation,
)
from microc.ops.quantised.requantize_split import SplitScale, find_split_scale, use_split_requantisation

BOUND = 40_000


def random_factors(generator: np.random.Generator, channels: int) -> tuple[Array, Array]:
    """Return mantissas and shifts of channels whose scales differ by up to 2**6."""
    mantissas = generator.integers(1 << 30, (1 << 31) - 1, channels)
    return mantissas, -generator.integers(3, 9, channels)


def requantise(attrs: dict[str, Any], x: Array, *parameters: Array) -> Array:
    """Evaluate ``requantize`` by its reference."""
    (result,) = registry.get("requantize").reference({**REQUANTIZE, **attrs}, (x, *parameters))
    return np.asarray(result, np.int64)


def find_all_thresholds(attrs: dict[str, Any], mantissas: Array, shifts: Array) -> Thresholds:
    """Return the thresholds of a requantisation with these attributes, for operands within the bound."""
    thresholds = find_thresholds(
        lambda x: requantise(attrs, x, mantissas.astype(np.int32), shifts.astype(np.int8)),
        np.ldexp(mantissas, shifts - 31),
        attrs["zero_point"],
        attrs["minimum"],
        attrs["maximum"],
        BOUND,
    )
    assert thresholds is not None
    return thresholds


def apply_scale(scale: FloorScale, x: Array, minimum: int, maximum: int) -> Array:
    """Evaluate the formula of ``requantize_floor`` with int32 operands of the product."""
    operands = (x << scale.fraction_bits) + scale.addends
    assert np.abs(operands).max() < 1 << 31
    half = 1 << (scale.shift - 1) if scale.rounds else 0
    results = ((((operands * scale.multipliers) >> 32) + half) >> scale.shift) + scale.zero_point
    clipped: Array = np.clip(results, minimum, maximum)
    return clipped


@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize("rounding", ["double", "single"])
@pytest.mark.parametrize("zero_point", [-128, -100, 90])
@pytest.mark.parametrize("seed", range(4))
def test_equals_the_requantisation_of_every_operand(rounds: bool, rounding: str, zero_point: int, seed: int) -> None:
    """Every operand within the bound is compared, for channels with random factors."""
    mantissas, shifts = random_factors(np.random.default_rng(seed), 16)
    attrs = {"zero_point": zero_point, "minimum": zero_point, "maximum": 127, "out_dtype": "int8", "rounding": rounding}
    parameters = mantissas.astype(np.int32), shifts.astype(np.int8)
    thresholds = find_all_thresholds(attrs, mantissas, shifts)
    scale = find_floor_scale(thresholds, rounds=rounds)
    assert scale is not None
    x = np.arange(-BOUND, BOUND + 1)[:, None]
    expected = requantise(attrs, np.broadcast_to(x, (len(x), 16)), *parameters)
    np.testing.assert_array_equal(apply_scale(scale, x, zero_point, 127), expected)


def apply_split_scale(scale: SplitScale, x: Array, attrs: dict[str, Any], is_possible: Array) -> Array:
    """Evaluate the formula of ``requantize_split`` or ``requantize_split_away``. Products and sums that ``is_possible`` fit
    int32."""
    products = x * scale.high, (x >> scale.dropped_bits) * scale.low
    total = products[0] + (products[1] >> scale.low_shift)
    for numbers in (*products, total, total + scale.addends):
        assert np.abs(np.where(is_possible, numbers, 0)).max() < 1 << 31
    total += scale.addends
    if scale.steps is None:
        results = total >> scale.shift
    else:
        total -= np.where(total < 0, scale.steps, 0)
        results = ((total >> (scale.shift - 1)) + 2 * attrs["zero_point"] + 1) >> 1
    clipped: Array = np.clip(results, attrs["minimum"], attrs["maximum"])
    return clipped


@pytest.mark.parametrize("rounding", ["double", "single"])
@pytest.mark.parametrize(
    ("zero_point", "minimum", "maximum"),
    [
        (-128, -128, 127),
        (-100, -100, 127),
        (90, 90, 127),
        (0, -128, 127),
        (-17, -128, 127),
        (126, -128, 127),
        (5, -60, 77),
    ],
)
@pytest.mark.parametrize("channels", [1, 16])
def test_two_products_equal_the_requantisation_of_every_operand(
    rounding: str, zero_point: int, minimum: int, maximum: int, channels: int
) -> None:
    """Every sum within the bound is compared, for channels with random factors, biases and ranges."""
    generator = np.random.default_rng(zero_point + 128 + channels)
    mantissas, shifts = random_factors(generator, channels)
    bias = generator.integers(-5000, 5000, 16)
    attrs = {
        "zero_point": zero_point,
        "minimum": minimum,
        "maximum": maximum,
        "rounding": rounding,
        "out_dtype": "int8",
    }
    parameters = mantissas.astype(np.int32), shifts.astype(np.int8)
    thresholds = find_all_thresholds(attrs, mantissas, shifts)
    largest_sums = generator.integers(BOUND // 4, BOUND + 5000, 16)
    scale = find_split_scale(thresholds, bias, largest_sums)
    assert scale is not None
    assert (scale.steps is not None) == (rounding == "double" and minimum < zero_point)
    assert len(scale.high) == len(scale.low) == channels
    x = np.broadcast_to(np.arange(-BOUND, BOUND + 1)[:, None], (2 * BOUND + 1, 16))
    is_possible = np.abs(x - bias) <= largest_sums
    expected = requantise(attrs, x, *parameters)
    computed = apply_split_scale(scale, x - bias, attrs, is_possible)
    np.testing.assert_array_equal(np.where(is_possible, computed, expected), expected)


@pytest.mark.parametrize("zero_point", [-128, 4])
def test_large_sums_lose_bits_before_the_product_with_the_low_part(zero_point: int) -> None:
    """Products with all bits of the sums would overflow int32."""
    bound, generator = 2_000_000, np.random.default_rng(7)
    mantissas, shifts = generator.integers(1 << 30, (1 << 31) - 1, 32), np.full(32, -9)
    attrs = {"zero_point": zero_point, "minimum": -128, "maximum": 127, "out_dtype": "int8"}
    parameters = mantissas.astype(np.int32), shifts.astype(np.int8)
    thresholds = find_thresholds(
        lambda x: requantise(attrs, x, *parameters), np.ldexp(mantissas, shifts - 31), zero_point, -128, 127, bound
    )
    assert thresholds is not None
    scale = find_split_scale(thresholds, np.zeros(1, np.int64), np.array([bound]))
    assert scale is not None
    assert scale.dropped_bits > 0
    x = np.concatenate((np.arange(-200_000, 200_000, 7), np.linspace(-bound, bound, 9999).astype(np.int64)))
    x = np.concatenate(
        (np.broadcast_to(x[:, None], (len(x), 32)), thresholds.least_operands, thresholds.least_operands - 1)
    )
    x = np.clip(x, -bound, bound)
    computed = apply_split_scale(scale, x, attrs, np.ones(x.shape, bool))
    np.testing.assert_array_equal(computed, requantise(attrs, x, *parameters))


def test_sums_that_do_not_occur_need_no_constants() -> None:
    """A channel of small weights has fewer thresholds than the bound of the layer gives: none here."""
    mantissas, shifts = np.array([1 << 30, 1 << 30]), np.array([-6, -20])
    attrs = {"zero_point": 0, "minimum": -128, "maximum": 127, "out_dtype": "int8"}
    thresholds = find_all_thresholds(attrs, mantissas, shifts)
    scale = find_split_scale(thresholds, np.zeros(2, np.int64), np.array([BOUND, 3]))
    assert scale is not None
    x = np.broadcast_to(np.arange(-3, 4)[:, None], (7, 2))
    np.testing.assert_array_equal(apply_split_scale(scale, x, attrs, np.ones(x.shape, bool))[:, 1], 0)


def test_one_product_is_refused_where_steps_are_irregular() -> None:
    """Rounding half away from zero moves the thresholds of negative results."""
    mantissas, shifts = random_factors(np.random.default_rng(1), 4)
    attrs = {"zero_point": 0, "minimum": -128, "maximum": 127, "out_dtype": "int8"}
    thresholds = find_thresholds(
        lambda x: requantise(attrs, x, mantissas, shifts), np.ldexp(mantissas, shifts - 31), 0, -128, 127, BOUND
    )
    assert thresholds is not None
    assert find_floor_scale(thresholds) is None


@pytest.mark.parametrize("moved", [0, -1, 1], ids=["steps as they are", "an early step", "a late step"])
@pytest.mark.parametrize("rows", [slice(40, 41), slice(200, 201)], ids=["below zero", "above zero"])
def test_two_products_are_refused_where_steps_are_irregular(moved: int, rows: slice) -> None:
    """One threshold that moves by the distance of two leaves no constants, on either side of the zero point."""
    mantissas, shifts = random_factors(np.random.default_rng(1), 4)
    attrs = {"zero_point": 0, "minimum": -128, "maximum": 127, "out_dtype": "int8"}
    thresholds = find_all_thresholds(attrs, mantissas, shifts)
    least = thresholds.least_operands.copy()
    least[rows] += moved * np.rint(1 / thresholds.factors).astype(np.int64)
    scale = find_split_scale(replace(thresholds, least_operands=least), np.zeros(4, np.int64), np.array([BOUND]))
    assert (scale is not None) == (moved == 0)


def test_operands_of_the_product_fit_int32() -> None:
    """A large bias leaves fewer bits for fractions, and a larger one leaves none."""
    attrs = {"zero_point": -128, "minimum": -128, "maximum": 127, "out_dtype": "int8"}
    one = np.array([1 << 30]), np.array([-6])
    thresholds = find_thresholds(lambda x: requantise(attrs, x, *one), np.ldexp(0.5, [-6]), -128, -128, 127, BOUND)
    assert thresholds is not None
    scale = find_floor_scale(thresholds, 1 << 26)
    assert scale is not None
    assert scale.fraction_bits < 8
    assert find_floor_scale(thresholds, 1 << 31) is None
    assert find_split_scale(thresholds, np.array([1 << 31]), np.array([BOUND + (1 << 31)])) is None


def layer(attrs: dict[str, Any], bias: bool) -> Graph:
    """Return a dense layer of 4 units with its requantisation."""
    types = {
        "x": TensorType((3, 8), "int8"),
        "w": TensorType((4, 8), "int8"),
        "b": TensorType((4,), "int32"),
        "m": TensorType((4,), "int32"),
        "s": TensorType((4,), "int8"),
        "acc": TensorType((3, 4), "int32"),
        "y": TensorType((3, 4), attrs["out_dtype"]),
    }
    generator = np.random.default_rng(3)
    consts: dict[str, Array] = {
        "w": generator.integers(-127, 128, (4, 8)).astype(np.int8),
        "b": np.array([5, -700, 20000, 0], np.int32),
        "m": generator.integers(1 << 30, (1 << 31) - 1, 4).astype(np.int32),
        "s": np.array([-6, -7, -8, -6], np.int8),
    }
    inputs = ("x", "w", "b") if bias else ("x", "w")
    dense = Node("dense", inputs, ("acc",), {**registry.get("dense").defaults, "out_dtype": "int32"})
    scale = Node("requantize", ("acc", "m", "s"), ("y",), {**REQUANTIZE, **attrs, "shift_range": (-8, -6)})
    return Graph("layer", ("x",), ("y",), (dense, scale), types, consts)


RELU = {"zero_point": -128, "minimum": -128, "maximum": 127, "out_dtype": "int8", "bound": 200_000}


@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_computes_the_same(bias: bool, rounds: bool) -> None:
    graph = layer(RELU, bias)
    changed, nodes = use_floor_requantisation(graph, graph.nodes, rounds=rounds)
    assert [node.op for node in nodes] == ["dense", "requantize_floor"]
    assert nodes[0].inputs == ("x", "w")
    x = np.random.default_rng(0).integers(-128, 128, (3, 8)).astype(np.int8)
    np.testing.assert_array_equal(run_nodes(changed, nodes, x), run_nodes(graph, graph.nodes, x))


@pytest.mark.parametrize("zero_point", [-128, 9])
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_of_two_products_computes_the_same(bias: bool, zero_point: int) -> None:
    graph = layer({**RELU, "zero_point": zero_point}, bias)
    changed, nodes = use_split_requantisation(graph, graph.nodes)
    assert [node.op for node in nodes] == [
        "dense",
        "requantize_split" if zero_point == -128 else "requantize_split_away",
    ]
    assert nodes[0].inputs == ("x", "w")
    x = np.random.default_rng(0).integers(-128, 128, (3, 8)).astype(np.int8)
    np.testing.assert_array_equal(run_nodes(changed, nodes, x), run_nodes(graph, graph.nodes, x))


def run_nodes(graph: Graph, nodes: tuple[Node, ...], x: Array) -> Array:
    """Evaluate nodes by their references; return the last result."""
    values = {**graph.consts, "x": x}
    for node in nodes:
        operands = [values[name] for name in node.inputs]
        (values[node.outputs[0]],) = registry.get(node.op).reference(node.attrs, operands)
    return np.asarray(values["y"])


@pytest.mark.parametrize(
    "attrs",
    [
        {**RELU, "bound": -1},
        {**RELU, "input_zero_point": 3},
        {**RELU, "out_dtype": "int16", "maximum": 32767},
    ],
    ids=["no bound", "zero point of the sums", "16 bits"],
)
def test_a_layer_is_left_alone(attrs: dict[str, Any]) -> None:
    graph = layer(attrs, True)
    assert use_floor_requantisation(graph, graph.nodes) == (graph, graph.nodes)
    assert use_split_requantisation(graph, graph.nodes) == (graph, graph.nodes)


def test_one_product_leaves_negative_results_alone() -> None:
    graph = layer({**RELU, "zero_point": 0}, True)
    assert use_floor_requantisation(graph, graph.nodes) == (graph, graph.nodes)
