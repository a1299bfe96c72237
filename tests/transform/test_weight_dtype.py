# SPDX-License-Identifier: Apache-2.0
"""Weights are rounded where the user asks for halves; what is no weight, or does not fit, stays."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from microc.graph.ir import Graph
from microc.transform.pass_context import PassContext
from microc.transform.quantised.weight_types import find_overflowing_weights, round_weights
from tests.transform.network import Network

TYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def rounded(graph: Graph, dtype: str) -> Graph:
    return round_weights(graph, PassContext(options={"weight_dtype": dtype}))


def changed(graph: Graph, dtype: str) -> set[str]:
    after = rounded(graph, dtype)
    return {name for name, data in graph.consts.items() if not np.array_equal(data, after.consts[name])}


@pytest.mark.parametrize("dtype", TYPES)
def test_weights_are_rounded_to_the_nearest(dtype: str) -> None:
    net = Network(x=(1, 8, 8, 4))
    y = net.flatten(net.conv("x", 16, layout="NHWC"))
    graph = net.graph(net.op("add", net.dense(y, 9), net.random(4, 9)))
    conv, conv_bias, dense, dense_bias, added = graph.consts
    assert changed(graph, dtype) == {conv, dense}
    for name in (conv, dense):
        want = graph.consts[name].astype(TYPES[dtype]).astype(np.float32)
        np.testing.assert_array_equal(rounded(graph, dtype).consts[name], want)
    assert rounded(graph, "model") is graph and {conv_bias, dense_bias, added} <= set(graph.consts)


def test_ties_go_to_even_and_small_numbers_become_subnormals() -> None:
    net = Network(x=(1, 8))
    tie, step = 1 + 2.0**-11, 2.0**-10
    given = np.tile(np.array([tie, tie + step, -tie, 3e-8, 2.98e-8, 1e-7, 0.0, -0.0], np.float32), (8, 1))
    graph = net.graph(net.op("dense", "x", net.constant(given)))
    (found,) = rounded(graph, "float16").consts.values()
    unit = 2.0**-24
    want = [1, 1 + 2 * step, -1, unit, 0, 2 * unit, 0.0, -0.0]
    np.testing.assert_array_equal(found[0].view(np.uint32), np.array(want, np.float32).view(np.uint32))


def test_what_is_no_weight_stays() -> None:
    net = Network(x=(16, 16), i=(1, 16))
    weight = net.random(16, 16)
    both = net.op("add", net.op("dense", "x", weight), net.op("mul", "x", weight))
    levels = net.constant((net.rng.integers(-127, 128, (16, 16)) * np.float32(0.013)).astype(np.float32))
    few = net.constant(np.full((1, 16), 0.1, np.float32))
    graph = net.graph(both, net.op("dense", "i", levels), net.op("dense", "i", few))
    assert not changed(graph, "float16") and not changed(graph, "bfloat16")


def test_what_float16_has_no_number_for_stays_and_is_told() -> None:
    net = Network(x=(1, 16))
    far, near = (np.full((8, 16), 0.1, np.float32) for _ in range(2))
    far[3, 4], near[3, 4] = 65520, -65519
    names = [net.constant(far), net.constant(near)]
    graph = net.graph(*(net.op("dense", "x", name) for name in names))
    assert changed(graph, "float16") == {names[1]} and changed(graph, "bfloat16") == set(names)
    assert find_overflowing_weights(graph, "float16") == (names[0],) and not find_overflowing_weights(graph, "bfloat16")
    assert rounded(graph, "float16").consts[names[1]][3, 4] == -65504


def test_tables_are_rounded_and_indices_are_not_asked() -> None:
    net = Network(x=(1, 16))
    picked = net.op("gather", net.random(40, 16), net.constant(np.array([3, 1], np.int32)), axis=0)
    graph = net.graph(net.op("add", picked, "x"))
    assert len(changed(graph, "bfloat16")) == 1
