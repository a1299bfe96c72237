# SPDX-License-Identifier: Apache-2.0
"""Attention by heads and blocks of queries: the same numbers, and scores that are never whole."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from microc.compiler.options import Options
from microc.compiler.pipeline import optimise_graph
from microc.graph.ir import Graph, run, verify
from microc.ops.meaning import reference_node_function
from microc.ops.registry import infer_node_types
from microc.transform.attention import block_attention, find_attention
from tests.frontend.onnx_model import read
from tests.transform.network import Network, random_inputs
from tests.transform.test_attention import TOKENS, attention

LENGTH, HEADS, DEPTH = 11, 2, 4


def split() -> Graph:
    """Queries, keys and values are slices of one product; queries are scaled, scores masked."""
    net = Network(x=(LENGTH, 3 * HEADS * DEPTH))
    parts = net.op("reshape", net.op("relu", "x"), shape=(1, LENGTH, 3, HEADS, DEPTH))

    def part(number: int, axes: tuple[int, ...], factor: float | None = None) -> str:
        begin, end = (0, 0, number, 0, 0), (1, LENGTH, number + 1, HEADS, DEPTH)
        data = net.op("slice", parts, begin=begin, end=end, strides=(1,) * 5)
        data = net.op("mul", data, net.constant(np.float32(factor))) if factor else data
        return net.op("transpose", net.op("reshape", data, shape=(1, LENGTH, HEADS, DEPTH)), axes=axes)

    scores = net.op("matmul", part(0, (0, 2, 1, 3), 0.5), part(1, (0, 2, 3, 1)))
    scores = net.op("add", scores, net.random(LENGTH, LENGTH))
    return net.graph(net.op("matmul", net.op("softmax", scores, axis=-1), part(2, (0, 2, 1, 3))))


def grouped() -> Graph:
    """Three heads of queries read one of keys; the mask is of each batch, and comes from outside."""
    net = Network(q=(2, 3, LENGTH, DEPTH), k=(2, 1, DEPTH, 5), v=(2, 1, 5, 3), mask=(2, 1, 1, 5))
    scores = net.op("add", net.op("matmul", "q", "k"), "mask")
    return net.graph(net.op("relu", net.op("matmul", net.op("softmax", scores, axis=3), "v")))


def single() -> Graph:
    """One head, and a bias of each row."""
    net = Network(q=(LENGTH, DEPTH), k=(DEPTH, 7), v=(7, 1), bias=(LENGTH, 1))
    scores = net.op("add", net.op("matmul", "q", "k"), "bias")
    return net.graph(net.op("matmul", net.op("softmax", scores, axis=-1), "v"))


def one_query() -> Graph:
    """A step of a decoder: one row of queries for all that is kept."""
    net = Network(q=(HEADS, 1, DEPTH), k=(HEADS, DEPTH, LENGTH), v=(HEADS, LENGTH, DEPTH))
    return net.graph(net.op("matmul", net.op("softmax", net.op("matmul", "q", "k"), axis=-1), "v"))


def quantised(mask: bool) -> Graph:
    """Bytes, whose products take transposed operands."""
    return read(attention("int8" if mask else "uint8", mask))


MADE: dict[str, Callable[[], Graph]] = {
    "split": split,
    "grouped": grouped,
    "single": single,
    "one query": one_query,
    "int8": lambda: quantised(True),
    "uint8": lambda: quantised(False),
}


@pytest.mark.parametrize("rows", [LENGTH, 4, 1])
@pytest.mark.parametrize("name", MADE)
def test_blocks_compute_the_same(name: str, rows: int) -> None:
    graph = optimise_graph(MADE[name](), Options())
    found = find_attention(graph)
    assert len(found) == 1
    blocked = block_attention(graph, found, rows)
    verify(blocked, infer_node_types, "the test")
    heads = name != "single"
    loops = [node for node in blocked.nodes if node.op == "loop"]
    assert bool(loops) == (heads or rows < LENGTH)
    scores = found[0].score_nodes[-1].outputs[0]
    assert scores not in blocked.types or not loops
    for seed in range(2):
        inputs = random_inputs(graph, seed)
        before, after = (run(each, inputs, reference_node_function(each)) for each in (graph, blocked))
        for output in graph.outputs:
            np.testing.assert_allclose(after[output], before[output], rtol=1e-6, atol=1e-7)


def test_what_leads_to_operands_is_made_in_the_turns() -> None:
    graph = optimise_graph(split(), Options())
    blocked = block_attention(graph, find_attention(graph), LENGTH)
    assert [node.op for node in blocked.nodes if node.group] == ["relu", "loop"]
    body = next(node for node in blocked.nodes if node.op == "loop").attr("body")
    assert max(kind.size for name, kind in body.types.items() if name not in body.inputs) == LENGTH * LENGTH


def test_narrow_operands_are_not_made_of_wider_ones() -> None:
    """Bytes that are quantised from floats: the floats would have to wait."""
    graph = optimise_graph(quantised(False), Options())
    blocked = block_attention(graph, find_attention(graph), TOKENS)
    assert [node.op for node in blocked.nodes].count("quantize") == 3


def test_scores_that_others_read_are_whole() -> None:
    net = Network(q=(HEADS, LENGTH, DEPTH), k=(HEADS, DEPTH, 5), v=(HEADS, 5, 3))
    weights = net.op("softmax", net.op("matmul", "q", "k"), axis=-1)
    graph = optimise_graph(net.graph(net.op("matmul", weights, "v"), weights), Options())
    assert not find_attention(graph)
