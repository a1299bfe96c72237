# SPDX-License-Identifier: Apache-2.0
"""Constants, common subexpressions and dead code."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from microc.graph.ir import Graph, Node, Quant, TensorType
from microc.transform.canonicalise import (
    _SubexpressionMerger,
    eliminate_dead_code,
    fold_constants,
    merge_common_subexpressions,
)
from microc.transform.pass_context import PassContext
from tests.transform.network import Network, check, ops

QUANT = Quant((0.5,), (3,))
REQUANTIZE: dict[str, Any] = {"multiplier": 1 << 30, "shift": -4, "shift_range": (-4, -4), "out_dtype": "int8"}
REQUANTIZE |= {"minimum": -128, "maximum": 127, "zero_point": 0}


# ---------------------------------------------------------------- constants


def test_nodes_over_constants_are_computed() -> None:
    net = Network(x=(3, 2))
    weight = net.op("transpose", net.op("add", net.random(2, 3), net.random(3)), axes=(1, 0))
    net.op("add", "x", weight)
    graph = check(fold_constants, net.graph())
    assert ops(graph) == ["add"] and list(graph.consts) == [weight]
    assert graph.consts[weight].flags.c_contiguous and not graph.consts[weight].flags.writeable


def test_a_constant_output_is_data() -> None:
    net = Network(x=(3,))
    value = net.op("exp", net.random(3), output="y")
    graph = fold_constants(net.graph(value), PassContext())
    assert not graph.nodes and graph.outputs == ("y",) and "y" in graph.consts


def test_a_scalar_stays_a_scalar() -> None:
    net = Network(x=(3,))
    net.op("mul", "x", net.op("neg", net.constant(np.float32(2))))
    graph = check(fold_constants, net.graph())
    assert graph.consts[graph.nodes[0].inputs[1]].shape == ()


def test_state_updates_stay_computed() -> None:
    net = Network(x=(3,), s=(3,))
    update = net.op("neg", net.random(3))
    net.op("add", "x", "s")
    graph = replace(net.graph(), inputs=("x",), state={"s": np.zeros(3, np.float32)}, updates={"s": update})
    assert fold_constants(graph, PassContext()) is graph


@pytest.mark.parametrize(("extent", "folded"), [(64, True), (2048, False)])
def test_small_constants_do_not_become_large_ones(extent: int, folded: bool) -> None:
    net = Network(x=(extent, extent))
    net.op("add", "x", net.op("mul", net.random(extent, 1), net.random(1, extent)))
    assert ops(fold_constants(net.graph(), PassContext())) == (["add"] if folded else ["mul", "add"])


def test_quantised_operators_are_not_computed_before_they_are_legalized() -> None:
    net = Network(x=TensorType((3,), "int8", QUANT))
    a, b = (net.constant(np.arange(3, dtype=np.int8), QUANT) for _ in "ab")
    net.op("add", "x", net.op("add", a, b, quant=QUANT), quant=QUANT)
    assert ops(fold_constants(net.graph(), PassContext())) == ["add", "add"]


# ---------------------------------------------------------------- common subexpressions


def test_equal_nodes_and_constants_become_one() -> None:
    net = Network(x=(4,))
    same = [net.op("mul", net.op("relu", "x"), net.constant(np.ones(4, np.float32))) for _ in "ab"]
    net.op("add", *same)
    graph = check(merge_common_subexpressions, net.graph())
    assert ops(graph) == ["relu", "mul", "add"] and len(graph.consts) == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [({"minimum": 0.0}, {"minimum": 1.0}), ({"minimum": 0.0}, {"minimum": -0.0}), ({"minimum": 0.0}, {"minimum": 0})],
)
def test_other_attributes_are_other_nodes(first: dict[str, Any], second: dict[str, Any]) -> None:
    net = Network(x=(4,))
    net.op("add", *(net.op("clip", "x", maximum=6.0, **attrs) for attrs in (first, second)))
    assert ops(check(merge_common_subexpressions, net.graph())) == ["clip", "clip", "add"]


def test_graphs_inside_of_nodes_are_never_equal() -> None:
    """Those of control flow: what is the same in a line of text may have other constants."""
    inner = [Network(x=(1, 4)) for _ in range(2)]
    first, second = (Node("call", ("x",), ("y",), {"body": net.graph("x")}) for net in inner)
    pass_ = _SubexpressionMerger(inner[0].graph("x"))
    assert pass_.equality_key_of(first) != pass_.equality_key_of(second) and pass_.equality_key_of(
        first
    ) == pass_.equality_key_of(first)


def test_other_quantisation_is_another_value() -> None:
    net = Network(x=TensorType((4,), "int8", QUANT))
    a, b = (net.op("reshape", "x", shape=(2, 2), quant=quant) for quant in (QUANT, Quant((0.25,), (3,))))
    net.op("maximum", a, b)
    assert ops(check(merge_common_subexpressions, net.graph())) == ["reshape", "reshape", "maximum"]


def test_constants_of_equal_bytes_and_another_type_differ() -> None:
    net = Network(x=(4,))
    net.op("mul", net.op("add", "x", net.constant(np.zeros(4, np.float32))), net.constant(-np.zeros(4, np.float32)))
    net.op("add", "v1", net.constant(np.zeros((1, 4), np.float32)))
    assert len(merge_common_subexpressions(net.graph(), PassContext()).consts) == 3


def test_outputs_keep_their_nodes() -> None:
    net = Network(x=(4,))
    outputs = [net.op("relu", "x"), net.op("relu", "x"), net.op("neg", "v1")]
    graph = check(merge_common_subexpressions, net.graph(*outputs))
    assert ops(graph) == ["relu", "relu", "neg"]


def test_accumulators_are_not_shared_but_equal_results_are() -> None:
    """A sum of 32 bits read by two kernels would go to memory."""
    net = Network(x=TensorType((2, 4), "int8"))
    weight = net.constant(np.ones((3, 4), np.int8))
    sums = [net.op("dense", "x", weight, out_dtype="int32") for _ in range(3)]
    scaled = [net.op("requantize", s, **{**REQUANTIZE, "zero_point": z}) for s, z in zip(sums, (0, 0, 5), strict=True)]
    net.op("maximum", net.op("maximum", scaled[0], scaled[1]), scaled[2])
    graph = eliminate_dead_code(check(merge_common_subexpressions, net.graph()), PassContext())
    assert ops(graph) == ["dense", "dense", "requantize", "requantize", "maximum", "maximum"]
    readers = graph.consumers()
    assert all(len(readers[node.outputs[0]]) == 1 for node in graph.nodes if node.op == "dense")


# ---------------------------------------------------------------- dead code


def test_what_nobody_reads_goes() -> None:
    net = Network(x=(4,))
    net.op("mul", net.op("exp", "x"), net.random(4))
    net.op("relu", "x", output="y")
    graph = check(eliminate_dead_code, net.graph("y"))
    assert ops(graph) == ["relu"] and not graph.consts and set(graph.types) == {"x", "y"}


def test_state_updates_are_wanted() -> None:
    net = Network(x=(4,), s=(4,))
    update = net.op("add", "x", "s")
    net.op("relu", "x", output="y")
    graph = replace(net.graph("y"), inputs=("x",), state={"s": np.zeros(4, np.float32)}, updates={"s": update})
    assert ops(eliminate_dead_code(graph, PassContext())) == ["add", "relu"]


def test_inputs_stay_though_nobody_reads_them() -> None:
    net = Network(x=(4,), unused=(2,))
    net.op("relu", "x", output="y")
    graph: Graph = check(eliminate_dead_code, net.graph("y"))
    assert graph.inputs == ("x", "unused")
