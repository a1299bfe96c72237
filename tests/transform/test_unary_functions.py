# SPDX-License-Identifier: Apache-2.0
"""Functions of one 8-bit value become nothing, a clamp or a table, and give the same numbers for all 256 of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from microc.graph.ir import Graph, TensorType
from microc.ops.elementwise.scalar_functions import UNARY
from microc.ops.quantised.quantised_arithmetic import compute_reciprocal_tables
from microc.transform.quantised.unary_functions import simplify_unary_functions
from tests.support.campaign import examples
from tests.transform.network import Network, check, ops

EVERY = TensorType((4, 256), "int8")
RESULT: dict[str, Any] = {"minimum": -128, "maximum": 127, "out_dtype": "int8", "rounding": "double"}
REQUANTIZE: dict[str, Any] = {**RESULT, "zero_point": 0, "input_zero_point": 0, "bound": 128}


def run(net: Network, *outputs: str) -> Graph:
    return check(simplify_unary_functions, net.graph(*outputs))


def scaled(net: Network, x: str, multiplier: int = 1 << 30, shift: int = 1, **attrs: Any) -> str:
    """requantize; without arguments, a multiplication by one."""
    parameters: dict[str, Any] = {"multiplier": multiplier, "shift": shift, "shift_range": (shift, shift)}
    return net.op("requantize", x, **{**REQUANTIZE, **parameters, **attrs})


def times(net: Network, a: str, b: str, multiplier: int, shift: int, **attrs: Any) -> str:
    points = {"zero_point": -128, "zero_point_a": -128, "zero_point_b": -128}
    return net.op("qmul", a, b, multiplier=multiplier, shift=shift, **{**RESULT, **points, **attrs})


def plus_three(net: Network, x: str) -> str:
    """The first node of hard swish as it is spelled out: a sum with a constant, clamped."""
    half = {"multiplier_a": 1 << 30, "shift_a": 0, "multiplier_b": 1 << 30, "shift_b": 0, "multiplier": 1 << 30}
    points = {"zero_point_a": -3, "zero_point_b": 0, "zero_point": -128, "left_shift": 20, "shift": -18}
    attrs: dict[str, Any] = {**RESULT, **half, **points, "maximum": 40}
    return net.op("qadd", x, net.constant(np.int8(48)), negate_b=False, **attrs)


def test_multiplications_by_one_go() -> None:
    net = Network(x=EVERY)
    one = net.constant(np.array([-127], np.int8))
    net.op("neg", times(net, scaled(net, "x"), one, 1 << 30, 1))
    assert ops(run(net)) == ["neg"]


@pytest.mark.parametrize("shape", [(), (1,), (4, 1)])
def test_what_is_no_number_is_a_constant_as_others(shape: tuple[int, ...]) -> None:
    """Of a network of floats, and of one whose bytes become floats."""
    for kind in (TensorType((4, 4), "float32"), TensorType((4, 4), "int8")):
        net = Network(x=kind)
        x = net.op("cast", "x", dtype="float32")
        net.op("maximum", net.op("add", x, net.constant(np.full(shape, np.nan, np.float32))), x)
        assert len(run(net).nodes) > 1


def test_zeros_of_both_signs_are_two_numbers() -> None:
    net = Network(x=TensorType((2, 2), "int8"))
    zeros = net.constant(np.array([0.0, -0.0], np.float32))
    clamped = net.op("clip", net.op("div", net.op("cast", "x", dtype="float32"), zeros), minimum=-9.0, maximum=9.0)
    run(net, net.op("cast", clamped, dtype="int8"))


def test_an_output_keeps_its_node() -> None:
    net = Network(x=EVERY)
    net.op("neg", scaled(net, "x"))
    assert ops(run(net, "v0", "v1")) == ["clip", "neg"]


def test_hard_swish_in_parts_is_one_table() -> None:
    net = Network(x=EVERY)
    gate = times(net, plus_three(net, "x"), net.constant(np.int8(44)), 1 << 30, -6)
    times(net, "x", gate, 1518500250, -6, zero_point=-10, zero_point_a=-3)
    assert ops(run(net)) == ["lookup"]


def test_tables_that_follow_each_other_are_one() -> None:
    net = Network(x=TensorType((3,), "uint8"))
    for _ in range(3):
        table = net.rng.integers(0, 256, 256).astype(np.uint8)
        last = net.op("lookup", net.nodes[-1].outputs[0] if net.nodes else "x", net.constant(table))
    assert ops(run(net, last)) == ["lookup"]


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_pixels_that_are_normalised_by_channel_and_quantised_are_a_table_for_each(dtype: str) -> None:
    net = Network(x=TensorType((1, 16, 16, 3), dtype))
    real = net.op("cast", "x", dtype="float32")
    for op in ("sub", "mul"):
        real = net.op(op, real, net.random(3))
    net.op("quantize", real, scale=(0.7,), zero_point=(3,), axis=None, out_dtype="int8", rounding="even")
    graph = run(net)
    assert ops(graph) == ["lookup"] and [graph.types[name].shape for name in graph.nodes[0].inputs[1:]] == [
        (768,),
        (3,),
    ]


def test_a_table_for_each_channel_has_to_earn_its_bytes() -> None:
    net = Network(x=TensorType((1, 16, 15, 3), "uint8"))
    real = net.op("mul", net.op("cast", "x", dtype="float32"), net.random(3))
    net.op("quantize", real, scale=(0.7,), zero_point=(3,), axis=None, out_dtype="int8", rounding="even")
    assert ops(run(net)) == ["cast", "mul", "quantize"]


def test_a_quotient_by_a_number_is_a_table() -> None:
    net = Network(x=EVERY)
    tables = [net.constant(table) for table in compute_reciprocal_tables()]
    points: dict[str, Any] = {"zero_point_a": 3, "zero_point_b": 0, "zero_point": -5, "minimum": -128, "maximum": 127}
    net.op("qdiv", "x", net.constant(np.array([64], np.int8)), *tables, multiplier=1 << 30, shift=6, **points)
    assert ops(run(net)) == ["lookup"]


@pytest.mark.parametrize(("shape", "left"), [((16, 16), ["lookup"]), ((16, 15), ["qadd"])])
def test_a_new_table_needs_enough_elements(shape: tuple[int, ...], left: list[str]) -> None:
    net = Network(x=TensorType(shape, "int8"))
    plus_three(net, "x")
    assert ops(run(net)) == left


def test_values_that_others_read_are_not_computed_twice() -> None:
    net = Network(x=EVERY)
    shared = plus_three(net, "x")
    twice = scaled(net, scaled(net, shared, shift=0), multiplier=1900000000)
    graph = run(net, net.op("maximum", shared, "x"), twice)
    assert [n.inputs[0] for n in graph.nodes if n.op == "lookup"] == ["x", shared]


def test_operands_that_differ_along_an_axis_are_no_numbers() -> None:
    net = Network(x=EVERY)
    multiplier = net.constant(net.rng.integers(1 << 30, 1 << 31, 256).astype(np.int32))
    attrs: dict[str, Any] = {**REQUANTIZE, "multiplier": None, "shift": 0, "shift_range": (0, 0)}
    scaled(net, net.op("requantize", "x", multiplier, **attrs), shift=0)
    assert ops(run(net)) == ["requantize", "requantize"]


def test_integers_may_become_floats_in_between() -> None:
    net = Network(x=EVERY)
    real = net.op("dequantize", "x", scale=(0.05,), zero_point=(3,))
    real = net.op("mul", net.op("tanh", real), net.constant(np.float32(1.5)))
    net.op("quantize", real, scale=(0.02,), zero_point=(-4,), out_dtype="int8", rounding="even")
    assert ops(run(net)) == ["lookup"]


# ---------------------------------------------------------------- clamps


@pytest.mark.parametrize("function", [f.name for f in UNARY if "float32" in f.dtypes])
def test_a_function_of_floats_is_a_table_however_few_its_elements(function: str) -> None:
    net = Network(x=TensorType((1, 5), "int8"))
    real = net.op("dequantize", "x", scale=(0.02,), zero_point=(3,), axis=None)
    bent = net.op("mul", net.op(function, real), real)
    net.op("quantize", bent, scale=(0.03,), zero_point=(-4,), axis=None, out_dtype="int8", rounding="even")
    assert ops(run(net)) == ["lookup"]


def test_clamps_join_the_rescaling_before_them() -> None:
    net = Network(x=TensorType((4, 256), "int32"))
    first = scaled(net, "x", shift=-10, minimum=-100)
    second = net.op("clip", first, minimum=-110, maximum=50, rounding="")
    net.op("relu", second, rounding="")
    graph = run(net)
    assert ops(graph) == ["requantize"]
    assert (graph.nodes[0].attr("minimum"), graph.nodes[0].attr("maximum")) == (0, 50)


def test_a_table_that_clamps_what_is_left_of_the_range_is_a_clamp() -> None:
    """Where the table differs from a clamp, no value comes."""
    table = np.arange(-128, 128).clip(-20, 30)
    table[:28] = 77
    net = Network(x=TensorType((4, 256), "int32"))
    net.op("lookup", scaled(net, "x", shift=-10, minimum=-100), net.constant(table.astype(np.int8)))
    graph = run(net)
    assert ops(graph) == ["requantize"] and graph.nodes[0].attr("minimum") == -20


def test_a_clamp_of_a_shared_value_stays() -> None:
    net = Network(x=TensorType((4, 256), "int32"))
    first = scaled(net, "x", shift=-10)
    second = net.op("clip", first, minimum=-10, maximum=50, rounding="")
    assert ops(run(net, first, second)) == ["requantize", "clip"]


# ---------------------------------------------------------------- anything


@settings(max_examples=examples(80), deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_random_functions_keep_their_values(seed: int) -> None:
    net = Network(seed, x=EVERY)
    made = ["x"]
    for _ in range(int(net.rng.integers(1, 7))):
        a, b = (str(net.rng.choice(made)) for _ in range(2))
        number = net.constant(net.rng.integers(-128, 128, ()).astype(np.int8))
        low = int(net.rng.integers(-128, 128))
        high = int(net.rng.integers(low, 128))
        match net.rng.choice(["add", "mul", "requantize", "clip", "lookup", "square"]):
            case "add":
                made.append(plus_three(net, a))
            case "mul":
                made.append(times(net, a, number, 1518500250, int(net.rng.integers(-9, 1)), minimum=low, maximum=high))
            case "requantize":
                made.append(scaled(net, a, shift=int(net.rng.integers(-3, 2)), minimum=low, maximum=high))
            case "clip":
                made.append(net.op("clip", a, minimum=low, maximum=high, rounding=""))
            case "lookup":
                made.append(net.op("lookup", a, net.constant(net.rng.integers(-128, 128, 256).astype(np.int8))))
            case _:
                made.append(times(net, a, b, 1518500250, -7))
    outputs = {made[-1], str(net.rng.choice(made[1:]))}
    graph = run(net, *sorted(outputs))
    assert len(graph.nodes) <= len(net.nodes)
