# SPDX-License-Identifier: Apache-2.0
"""Every canonical form: what it does away with, what it must leave alone, and that nothing changes in value."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import pytest

from microc.graph.ir import Graph, Quant, TensorType
from microc.transform.canonicalise import canonicalise
from microc.transform.pass_context import PassContext
from tests.transform.network import Network, check, ops

QUANT = Quant((0.5,), (3,))
PASS_CONTEXT = PassContext()
INT8 = TensorType((1, 4, 4, 2), "int8", QUANT)


def run(net: Network, *outputs: str, tolerance: float = 0.0) -> list[str]:
    return ops(check(canonicalise, net.graph(*outputs), tolerance))


# ---------------------------------------------------------------- what does nothing

NOTHING: list[tuple[str, dict[str, Any]]] = [
    ("reshape", {"shape": (2, 3)}),
    ("transpose", {"axes": (0, 1)}),
    ("cast", {"dtype": "float32"}),
    ("slice", {"begin": (0, 0), "end": (2, 3), "strides": (1, 1)}),
    ("pad", {"padding": ((0, 0), (0, 0))}),
    ("concat", {"axis": 0}),
    ("clip", {"minimum": -inf, "maximum": inf}),
]


@pytest.mark.parametrize(("op", "attrs"), NOTHING, ids=[op for op, _ in NOTHING])
def test_operators_without_effect_go(op: str, attrs: dict[str, Any]) -> None:
    net = Network(x=(2, 3))
    net.op("neg", net.op(op, net.op("relu", "x"), **attrs))
    assert run(net) == ["relu", "neg"]


@pytest.mark.parametrize(
    ("op", "number", "shape"),
    [("add", 0, (3,)), ("sub", 0, ()), ("mul", 1, (2, 3)), ("div", 1, (1,)), ("pow", 1, (1, 1))],
)
def test_neutral_elements_go(op: str, number: int, shape: tuple[int, ...]) -> None:
    net = Network(x=(2, 3))
    net.op("neg", net.op(op, "x", net.constant(np.full(shape, number, np.float32))))
    assert run(net) == ["neg"]


def test_neutral_elements_on_the_left_go_where_order_does_not_count() -> None:
    zero = np.zeros(3, np.float32)
    left = Network(x=(2, 3))
    left.op("neg", left.op("add", left.constant(zero), "x"))
    assert run(left) == ["neg"]
    minus = Network(x=(2, 3))
    minus.op("neg", minus.op("sub", minus.constant(zero), "x"))
    assert run(minus) == ["sub", "neg"]


def test_a_neutral_element_that_broadcasts_or_activates_stays() -> None:
    wide = Network(x=(3,))
    wide.op("neg", wide.op("add", "x", wide.constant(np.zeros((2, 3), np.float32))))
    assert run(wide) == ["add", "neg"]
    active = Network(x=(3,))
    active.op("neg", active.op("add", "x", active.constant(np.zeros(3, np.float32)), activation="relu"))
    assert ops(canonicalise(active.graph(), PASS_CONTEXT)) == ["add", "neg"]


def test_stored_zeros_of_quantised_constants_say_nothing() -> None:
    net = Network(x=TensorType((3,), "int8", QUANT))
    net.op("neg", net.op("add", "x", net.constant(np.zeros(3, np.int8), QUANT), quant=QUANT), quant=QUANT)
    assert ops(canonicalise(net.graph(), PASS_CONTEXT)) == ["add", "neg"]


def test_a_change_of_quantisation_stays() -> None:
    net = Network(x=TensorType((2, 3), "int8", QUANT))
    net.op("reshape", "x", shape=(2, 3), quant=Quant((0.25,), (3,)), output="y")
    net.op("max", "y", axes=(0,), quant=Quant((0.25,), (3,)))
    assert run(net) == ["reshape", "max"]


def test_reductions_of_one_element_are_reshapes() -> None:
    net = Network(x=(2, 1, 3))
    net.op("neg", net.op("mean", "x", axes=(1,)))
    assert run(net) == ["neg", "reshape"]


# ---------------------------------------------------------------- neighbours


def test_reshapes_and_transposes_merge() -> None:
    net = Network(x=(2, 3, 4))
    flat = net.op("reshape", net.op("reshape", "x", shape=(6, 4)), shape=(24,))
    square = net.op("reshape", flat, shape=(4, 3, 2))
    net.op("transpose", net.op("transpose", square, axes=(1, 0, 2)), axes=(2, 1, 0))
    assert run(net) == ["reshape", "transpose"]


def test_transposes_that_undo_each_other_go() -> None:
    net = Network(x=(2, 3, 4))
    net.op("neg", net.op("transpose", net.op("transpose", "x", axes=(1, 2, 0)), axes=(2, 0, 1)))
    assert run(net) == ["neg"]


@pytest.mark.parametrize(
    ("first", "second", "left"),
    [
        ((), (), "relu"),
        ((), (-1.0, 2.0), "clip"),
        ((-1.0, 2.0), (), "clip"),
        ((-1.0, 1.0), (2.0, 3.0), "clip"),
        ((-1.0, inf), (), "relu"),
    ],
)
def test_clamps_merge(first: tuple[float, ...], second: tuple[float, ...], left: str) -> None:
    def clamp(net: Network, value: str, bounds: tuple[float, ...]) -> str:
        return net.op("clip", value, minimum=bounds[0], maximum=bounds[1]) if bounds else net.op("relu", value)

    net = Network(x=(50,))
    clamp(net, clamp(net, "x", first), second)
    assert run(net) == [left]


def test_quantised_clamps_stay_unless_their_bounds_are_stored() -> None:
    kind = TensorType((50,), "int8", QUANT)
    surface = Network(x=kind)
    surface.op("relu", surface.op("clip", "x", minimum=-1.0, maximum=2.0, quant=QUANT), quant=QUANT)
    assert ops(canonicalise(surface.graph(), PASS_CONTEXT)) == ["clip", "relu"]
    core = Network(x=kind)
    core.op("clip", core.op("clip", "x", minimum=-5, maximum=9, rounding=""), minimum=0, maximum=20, rounding="")
    graph = check(canonicalise, core.graph())
    assert [dict(n.attrs) for n in graph.nodes] == [{"maximum": 9, "minimum": 0, "rounding": ""}]


def test_pads_of_one_value_merge() -> None:
    net = Network(x=(2, 3))
    net.op("pad", net.op("pad", "x", padding=((1, 0), (0, 2)), value=1), padding=((0, 1), (1, 1)), value=1)
    other = Network(x=(2, 3))
    other.op("pad", other.op("pad", "x", padding=((1, 0), (0, 2)), value=1), padding=((0, 1), (1, 1)), value=2)
    assert (run(net), run(other)) == (["pad"], ["pad", "pad"])


# ---------------------------------------------------------------- reshapes behind elementwise work


def test_a_reshape_between_a_layer_and_elementwise_work_moves_behind_it() -> None:
    net = Network(x=(2, 5))
    shaped = net.op("reshape", net.dense("x", 6), shape=(1, 2, 6))
    net.op("tanh", net.op("mul", net.op("sub", shaped, net.random(6)), net.constant(np.array([[2.0]], np.float32))))
    assert run(net, tolerance=1e-6) == ["dense", "tanh", "reshape"]


def test_operands_reshaped_alike_move_together() -> None:
    net = Network(x=(2, 6), y=(2, 6), z=(2, 2, 3))
    shaped = [net.op("reshape", name, shape=(2, 2, 3)) for name in "xy"]
    net.op("add", *shaped)
    assert run(net) == ["add", "reshape"]
    other = Network(x=(2, 6), z=(2, 2, 3))
    other.op("add", other.op("reshape", "x", shape=(2, 2, 3)), "z")
    assert run(other) == ["reshape", "add"]


def test_constants_of_full_size_are_viewed_anew() -> None:
    net = Network(x=(2, 6))
    net.op("add", net.op("reshape", "x", shape=(2, 2, 3)), net.random(2, 2, 3))
    graph = check(canonicalise, net.graph())
    assert ops(graph) == ["add", "reshape"] and graph.types[graph.nodes[0].inputs[1]].shape == (2, 6)
    partly = Network(x=(2, 6))
    partly.op("add", partly.op("reshape", "x", shape=(2, 2, 3)), partly.random(2, 1, 3))
    assert run(partly) == ["reshape", "add"]


def test_scales_along_an_axis_hold_a_reshape_back() -> None:
    per_axis = Quant((0.5, 0.25), (0, 0), 1)
    net = Network(x=TensorType((1, 2, 3), "int8", per_axis))
    shaped = net.op("reshape", "x", shape=(1, 2, 3, 1), quant=per_axis)
    net.op("dequantize", shaped, scale=(0.5, 0.25), zero_point=(0, 0), axis=1)
    assert run(net) == ["reshape", "dequantize"]


# ---------------------------------------------------------------- padding


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_zero_padding_joins_a_float_convolution(layout: str) -> None:
    spatial = ((0, 0), (1, 2), (0, 1), (0, 0)) if layout == "NHWC" else ((0, 0), (0, 0), (1, 2), (0, 1))
    net = Network(x=(1, 5, 6, 5) if layout == "NHWC" else (1, 5, 5, 6))
    net.conv(net.op("pad", "x", padding=spatial), 3, layout=layout)
    graph = check(canonicalise, net.graph(), 1e-6)
    assert ops(graph) == ["conv2d"] and graph.nodes[0].attr("padding") == (2, 1, 3, 2)


@pytest.mark.parametrize(("value", "own", "absorbed"), [(0.0, 1, True), (2.0, 1, False), (2.0, 0, True)])
def test_a_convolution_pads_with_one_value(value: float, own: int, absorbed: bool) -> None:
    net = Network(x=(1, 4, 4, 2))
    net.conv(net.op("pad", "x", padding=((0, 0), (1, 1), (1, 1), (0, 0)), value=value), 3, padding=own, layout="NHWC")
    assert run(net, tolerance=1e-6) == (["conv2d"] if absorbed else ["pad", "conv2d"])


@pytest.mark.parametrize(("value", "absorbed"), [(3, True), (0, False)])
def test_a_quantised_convolution_pads_with_the_zero_point(value: int, absorbed: bool) -> None:
    net = Network(x=INT8)
    padded = net.op("pad", "x", padding=((0, 0), (1, 1), (1, 1), (0, 0)), value=value, quant=QUANT)
    weight = net.constant(np.ones((3, 3, 3, 2), np.int8), Quant((0.1,), (0,)))
    net.op("conv2d", padded, weight, quant=QUANT)
    graph = canonicalise(net.graph(), PASS_CONTEXT)
    assert ops(graph) == (["conv2d"] if absorbed else ["pad", "conv2d"])
    assert graph.types[graph.outputs[0]].shape == (1, 4, 4, 3)


def test_padded_channels_stay() -> None:
    net = Network(x=(1, 4, 4, 2))
    net.conv(net.op("pad", "x", padding=((0, 0), (1, 1), (1, 1), (0, 1))), 3, layout="NHWC")
    assert run(net, tolerance=1e-6) == ["pad", "conv2d"]


@pytest.mark.parametrize(
    ("op", "value", "padding", "absorbed"),
    [
        ("max_pool2d", -inf, 1, True),
        ("max_pool2d", 0.0, 1, False),
        ("max_pool2d", -inf, 2, False),
        ("avg_pool2d", 0.0, 1, True),
        ("avg_pool2d", 1.0, 1, False),
    ],
    ids=["lowest", "zero", "windows without data", "mean", "mean of ones"],
)
def test_padding_joins_a_pool_that_means_the_same(op: str, value: float, padding: int, absorbed: bool) -> None:
    net = Network(x=(1, 4, 4, 2))
    pairs = ((0, 0), (padding, padding), (padding, padding), (0, 0))
    net.op(op, net.op("pad", "x", padding=pairs, value=value), kernel=(2, 2), strides=(1, 1))
    assert run(net) == ([op] if absorbed else ["pad", op])


# ---------------------------------------------------------------- scales and terms per channel


def normalised(net: Network, value: str, channels: int, rank: int) -> str:
    """mul and add as batch normalisation is spelled: along axis 1."""
    shape = (channels, *[1] * (rank - 2))
    return net.op("add", net.op("mul", value, net.random(*shape)), net.random(*shape))


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_batch_normalisation_joins_a_convolution(groups: int) -> None:
    net = Network(x=(2, 4, 5, 5))
    net.op("relu", normalised(net, net.conv("x", 8, groups=groups), 8, 4))
    assert run(net, tolerance=1e-5) == ["conv2d", "relu"]


def test_scales_are_folded_from_level_3_on() -> None:
    net = Network(x=(3, 4))
    normalised(net, net.dense("x", 6), 6, 2)
    plain = canonicalise(net.graph(), PassContext(opt_level=2))
    assert ops(plain)[0] == "dense" and len(plain.nodes) > 1
    assert ops(canonicalise(net.graph(), PassContext(opt_level=3))) == ["dense"]


def test_batch_normalisation_joins_a_dense_layer_without_bias() -> None:
    net = Network(x=(3, 4))
    normalised(net, net.op("dense", "x", net.random(6, 4)), 6, 2)
    graph = check(canonicalise, net.graph(), 1e-5)
    assert ops(graph) == ["dense"] and len(graph.nodes[0].inputs) == 3


@pytest.mark.parametrize("op", ["sub", "div"])
def test_sub_and_div_join_too_and_their_activation_stays(op: str) -> None:
    net = Network(x=(2, 4))
    net.op(op, net.dense("x", 3), net.constant(np.array([0.5, -2.0, 4.0], np.float32)), activation="relu")
    graph = canonicalise(net.graph(), PASS_CONTEXT)
    assert ops(graph) == ["dense"] and graph.nodes[0].attr("activation") == "relu"


@pytest.mark.parametrize("case", ["shared", "output", "spatial", "activated", "zero", "wider"])
def test_layers_that_cannot_take_it(case: str) -> None:
    net = Network(x=(1, 2, 3, 3))
    layer = net.conv("x", 2, activation="relu" if case == "activated" else "")
    shape = {"spatial": (3,), "wider": (2, 2, 1, 1)}.get(case, (2, 1, 1))
    constant = net.constant(np.full(shape, 0.0 if case == "zero" else 1.5, np.float32))
    last = net.op("div" if case == "zero" else "mul", layer, constant)
    outputs = [last, *([net.op("neg", layer)] if case == "shared" else []), *([layer] if case == "output" else [])]
    graph: Graph = canonicalise(net.graph(*outputs), PASS_CONTEXT)
    assert "conv2d" in ops(graph) and ops(graph)[1] in ("mul", "div")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("op", "number"), [("div", 0.0), ("div", 1e-40), ("mul", 3e38), ("add", inf)], ids=lambda value: str(value)
)
@pytest.mark.parametrize("weight", [0.0, 4.0], ids=["weights of zero", "weights"])
def test_factors_beyond_the_range_of_floats_stay_outside(op: str, number: float, weight: float) -> None:
    """Folding would make infinities of numbers that x keeps finite."""
    net = Network(x=(2, 4))
    layer = net.op(
        "dense", "x", net.constant(np.full((3, 4), weight, np.float32)), net.constant(np.array([4, 1, 0], np.float32))
    )
    net.op(op, layer, net.constant(np.array([number, 1, 2], np.float32)))
    assert ops(canonicalise(net.graph(), PASS_CONTEXT)) == ["dense", op]


def test_shared_weights_are_not_stored_twice() -> None:
    net = Network(x=(1, 4), y=(1, 4))
    weight = net.random(3, 4)
    layers = [net.op("dense", name, weight) for name in "xy"]
    net.op("add", net.op("mul", layers[0], net.random(3)), net.op("add", layers[1], net.random(3)))
    assert run(net, tolerance=1e-6) == ["dense", "mul", "dense", "add"]


def test_integer_layers_are_left_alone() -> None:
    net = Network(x=TensorType((1, 4), "int8"))
    layer = net.op("dense", "x", net.constant(np.ones((3, 4), np.int8)), out_dtype="int32")
    net.op("mul", layer, net.constant(np.full(3, 2, np.int32)))
    assert run(net) == ["dense", "mul"]


def test_names_of_inputs_and_outputs_survive() -> None:
    net = Network(x=(2, 3))
    net.op("reshape", net.op("reshape", "x", shape=(6,), output="hidden"), shape=(2, 3), output="y")
    graph = check(canonicalise, net.graph("y"))
    assert ops(graph) == ["reshape"] and graph.outputs == ("y",)
