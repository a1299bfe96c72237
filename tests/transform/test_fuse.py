# SPDX-License-Identifier: Apache-2.0
"""Which nodes become one kernel, at which level; groups are whole, ordered, and compute the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from microc.compiler.lowering.kernel_selection import groups_of
from microc.frontend.detect import load_model_file
from microc.graph.ir import Graph, TensorType, verify
from microc.ops import registry
from microc.ops.quantised.int16_functions import signed_sigmoid_table
from microc.transform import PASSES
from microc.transform.fuse import MANDATORY, MAX_KERNEL_NODES, fuse
from microc.transform.pass_context import PassContext, run_passes
from tests.support.campaign import examples
from tests.support.corpus import models
from tests.transform.network import Network, check

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits"
INT8 = TensorType((1, 4, 4, 2), "int8")
SCALE: dict[str, Any] = {
    "multiplier": 1 << 30,
    "shift": -4,
    "shift_range": (-4, -4),
    "zero_point": 0,
    "out_dtype": "int8",
}
SCALE |= {"minimum": -128, "maximum": 127}


def kernels(net: Network, *outputs: str, level: int = 2, tolerance: float = 0.0, **options: bool) -> list[str]:
    """The kernels in order, each as its operators joined by +."""
    context = PassContext(opt_level=level, options=options)
    return spelled(check(fuse, net.graph(*outputs), tolerance, context))


def spelled(graph: Graph) -> list[str]:
    return ["+".join(node.op for node in nodes) for nodes in groups_of(graph)]


def accumulator(net: Network, data: str) -> str:
    weight = net.constant(net.rng.integers(-99, 99, (2, 1, 1, net.types[data].shape[3])).astype(np.int8))
    return net.op("conv2d", data, weight, out_dtype="int32")


# ---------------------------------------------------------------- chains


def test_an_anchor_takes_the_elementwise_chain_behind_it() -> None:
    net = Network(x=(1, 3, 3, 2))
    net.op("tanh", net.op("relu", net.op("mul", net.conv("x", 4, layout="NHWC"), net.random(4))))
    assert kernels(net) == ["conv2d+mul+relu+tanh"]
    assert kernels(net, level=0) == ["conv2d", "mul", "relu", "tanh"]


@pytest.mark.parametrize("level", [0, 1, 2])
def test_accumulators_are_always_requantised_in_their_kernel(level: int) -> None:
    net = Network(x=INT8)
    net.op("clip", net.op("requantize", accumulator(net, "x"), **SCALE), minimum=0, maximum=9, rounding="")
    assert kernels(net, level=level) == (["conv2d+requantize+clip"] if level else ["conv2d+requantize", "clip"])


def test_operators_that_read_an_operand_often_read_memory() -> None:
    net = Network(x=INT8)
    table = net.constant(signed_sigmoid_table())
    scaled = net.op("requantize", accumulator(net, "x"), **SCALE | {"out_dtype": "int16"})
    net.op("qsigmoid16", scaled, table, curve="sigmoid", multiplier=3, shift=0)
    assert kernels(net) == ["conv2d+requantize", "qsigmoid16"]


def test_views_part_kernels_and_have_no_group() -> None:
    net = Network(x=(2, 5))
    net.op("relu", net.op("reshape", net.dense("x", 6), shape=(12,)))
    graph = check(fuse, net.graph())
    assert [bool(node.group) for node in graph.nodes] == [True, False, True]


def test_elementwise_nodes_make_a_kernel_of_their_own() -> None:
    net = Network(x=(2, 3), y=(3,))
    net.op("exp", net.op("add", net.op("relu", "x"), "y"))
    assert kernels(net) == ["relu+add+exp"]


def test_what_is_read_elsewhere_is_stored() -> None:
    net = Network(x=(1, 3, 3, 2))
    value = net.conv("x", 4, layout="NHWC")
    outputs = [net.op("relu", value), net.dense(net.flatten(value), 2)]
    assert kernels(net, *outputs) == ["conv2d", "relu", "reshape", "dense"]
    other = Network(x=(1, 3, 3, 2))
    value = other.conv("x", 4, layout="NHWC")
    assert kernels(other, other.op("relu", value), value) == ["conv2d", "relu"]


def test_a_state_update_is_stored() -> None:
    net = Network(x=(3,), s=(3,))
    total = net.op("add", "x", "s")
    net.op("neg", total)
    graph = net.graph()
    graph = replace(graph, inputs=("x",), state={"s": np.zeros(3, np.float32)}, updates={"s": total})
    assert spelled(fuse(graph, PassContext())) == ["add", "neg"]


def test_broadcasting_is_not_computed_again_for_every_element() -> None:
    net = Network(x=(1, 4), y=(3, 4))
    net.op("add", net.op("exp", "x"), "y")
    assert kernels(net) == ["exp", "add"]


def test_operators_with_two_results_stand_alone() -> None:
    definition = registry.get("svdf")
    net = Network(x=(1, 4), s=(1, 12))
    operands = ["x", net.random(6, 4), net.random(6, 2), net.random(6), "s"]
    kinds = definition.infer({**definition.defaults, "rank": 1}, [net.types[name] for name in operands])
    net.op("relu", "x", output="y")
    net.types |= {"y": kinds[0], "t": kinds[1]}
    node = replace(net.nodes.pop(), op="svdf", inputs=tuple(operands), outputs=("y", "t"), attrs={"rank": 1})
    net.nodes.append(node)
    net.op("relu", "y", output="z")
    graph = replace(net.graph("z"), inputs=("x",), state={"s": np.zeros((1, 12), np.float32)}, updates={"s": "t"})
    assert spelled(fuse(graph, PassContext())) == ["svdf", "relu"]


# ---------------------------------------------------------------- several operands


def residual() -> Network:
    net = Network(x=(1, 3, 3, 2))
    first = net.conv("x", 2, layout="NHWC")
    net.op("relu", net.op("add", net.conv(first, 2, layout="NHWC"), first))
    return net


def test_a_residual_sum_joins_the_layer_before_it() -> None:
    assert kernels(residual()) == ["conv2d", "conv2d+add+relu"]


def test_sums_stay_apart_on_request() -> None:
    assert kernels(residual(), fuse_add=False) == ["conv2d", "conv2d", "add+relu"]


def test_of_two_layers_the_later_one_takes_the_sum() -> None:
    net = Network(x=(1, 3, 3, 2))
    net.op("add", net.op("relu", net.conv("x", 2, layout="NHWC")), net.op("tanh", net.conv("x", 2, layout="NHWC")))
    assert kernels(net) == ["conv2d+relu", "conv2d+tanh+add"]


def test_elementwise_work_on_the_other_operand_joins_too() -> None:
    """It may stand before the anchor in the graph; in the kernel the anchor comes first."""
    net = Network(x=(1, 3, 3, 2), y=(1, 3, 3, 2))
    side = net.op("exp", "y")
    net.op("add", net.conv("x", 2, layout="NHWC"), side)
    assert kernels(net) == ["conv2d+exp+add"]


def test_a_value_used_twice_in_one_kernel_stays_inside() -> None:
    net = Network(x=(1, 3, 3, 2))
    value = net.conv("x", 2, layout="NHWC")
    net.op("mul", value, net.op("sigmoid", net.op("add", value, net.random(2))))
    assert kernels(net) == ["conv2d+add+sigmoid+mul"]


def test_the_same_operand_twice() -> None:
    net = Network(x=(1, 3, 3, 2))
    value = net.conv("x", 2, layout="NHWC")
    net.op("mul", value, value)
    assert kernels(net) == ["conv2d+mul"]


def test_expressions_do_not_double_without_end() -> None:
    net = Network(x=(8,))
    value = net.op("tanh", "x")
    for _ in range(8):
        value = net.op("add", value, value)
    assert kernels(net) == ["tanh+add+add", "add+add+add", "add+add+add"]


def test_what_an_anchor_reads_stays_outside() -> None:
    """The sum reads the operand of softmax too, which must be whole before the anchor starts."""
    net = Network(x=(2, 4))
    value = net.op("relu", "x")
    total = net.op("add", value, net.op("softmax", value))
    assert kernels(net, total) == ["relu", "softmax+add"]


# ---------------------------------------------------------------- copies


def test_every_elementwise_reader_dequantises_for_itself() -> None:
    net = Network(x=TensorType((2, 3), "int8"), y=(2, 3))
    real = net.op("dequantize", "x", scale=(0.5,), zero_point=(1,))
    outputs = [net.op("add", real, "y"), net.op("exp", real), net.op("softmax", real)]
    assert sorted(kernels(net, *outputs)) == ["dequantize", "dequantize+add", "dequantize+exp", "softmax"]
    assert sorted(kernels(net, *outputs, level=0)) == ["add", "dequantize", "exp", "softmax"]


def test_an_original_without_readers_goes() -> None:
    net = Network(x=TensorType((2, 3), "int8"), y=(2, 3))
    real = net.op("dequantize", "x", scale=(0.5,), zero_point=(1,))
    outputs = [net.op("add", real, "y"), net.op("mul", real, real)]
    assert kernels(net, *outputs) == ["dequantize+add", "dequantize+mul"]


# ---------------------------------------------------------------- any graph


@st.composite
def networks(draw: st.DrawFn) -> Graph:
    """Random graphs of anchors, elementwise operators, views and outputs."""
    net = Network(x=(2, 4), y=(2, 4))
    values = ["x", "y"]
    for _ in range(draw(st.integers(1, 14))):
        op = draw(st.sampled_from(["relu", "neg", "add", "mul", "maximum", "softmax", "reshape", "transpose"]))
        operands = [draw(st.sampled_from(values)) for _ in range(2 if op in ("add", "mul", "maximum") else 1)]
        if op == "reshape":
            values.append(net.op("reshape", net.op("reshape", *operands, shape=(8,)), shape=(2, 4)))
        elif op == "transpose":
            values.append(net.op("transpose", net.op("transpose", *operands, axes=(1, 0)), axes=(1, 0)))
        else:
            values.append(net.op(op, *operands))
    outputs = draw(st.lists(st.sampled_from(values[2:]), min_size=1, max_size=3, unique=True))
    return net.graph(*outputs)


@settings(max_examples=examples(80), deadline=None)
@given(networks(), st.integers(0, 2))
def test_groups_of_any_graph(graph: Graph, level: int) -> None:
    fused = check(fuse, graph, context=PassContext(opt_level=level))
    for nodes in groups_of(fused):
        definitions = [registry.get(node.op) for node in nodes]
        assert all(definition.elementwise for definition in definitions[1:])
        assert len(nodes) == 1 or not any(definition.view for definition in definitions)
        made = {name for node in nodes for name in node.outputs}
        outside = {name for node in fused.nodes if node not in nodes for name in node.inputs} | set(fused.outputs)
        assert made & outside <= set(nodes[-1].outputs)


# ---------------------------------------------------------------- real models


def check_model(path: Path, level: int) -> None:
    graph = run_passes(load_model_file(path), PASSES, PassContext(opt_level=level))
    verify(graph)
    for node in graph.nodes:
        if node.op in MANDATORY and not registry.get(node.op).view:
            producer = next((n for n in graph.nodes if node.inputs[0] in n.outputs), None)
            anchored = producer is not None and not registry.get(producer.op).elementwise
            wide = graph.types[node.inputs[0]].dtype in ("int32", "int64")
            assert producer is None or not anchored or not wide or producer.group == node.group, str(node.loc)


@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize("name", ["digits_int8.tflite", "digits_qdq.onnx", "digits_float.onnx"])
def test_digits(name: str, level: int) -> None:
    check_model(DIGITS / name, level)


@pytest.mark.corpus
@pytest.mark.parametrize(
    "path", models("mlperf_*int8*", "ortq_resnet*", "gen_mobilenetv3*", "mww_*"), ids=lambda p: p.stem
)
def test_no_accumulator_of_a_real_model_goes_to_memory(path: Path) -> None:
    check_model(path, 0)
    check_model(path, 2)


@pytest.mark.parametrize(("op", "most"), [("relu", MAX_KERNEL_NODES), ("hard_swish", 10)])
def test_long_chains_become_several_kernels(op: str, most: int) -> None:
    """One expression for all would take for ever: an operator that writes its operand down twice doubles it."""
    net, value = Network(x=(1, 16)), "x"
    for _ in range(200):
        value = net.op(op, value)
    made = fuse(net.graph(value), PassContext(opt_level=2))
    sizes = [len(nodes) for nodes in groups_of(made)]
    assert sum(sizes) == 200 and max(sizes) <= most
