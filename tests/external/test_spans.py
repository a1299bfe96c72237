# SPDX-License-Identifier: Apache-2.0
"""Regions as large as they can be: where they are cut, that they are convex, and what a library leaves out of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from microc import GraphBuilder
from microc.external.backend import (
    MAX_SPAN_SEARCHES,
    Backend,
    Code,
    Entry,
    Region,
    Span,
    find_connected_regions,
    find_span_regions,
    is_convex,
    leave_out_no_layer,
    partition,
)
from microc.graph.ir import Graph, Node, verify
from microc.module import Sources
from microc.ops import registry
from microc.ops.control import EXTERNAL
from microc.ops.meaning import evaluate
from microc.target import target_for
from tests.external.networks import floats

TARGET = target_for("host")
KIND = frozenset({"relu", "add", "mul"})


def refuses(graph: Graph, node: Node) -> str:
    return "" if node.op in KIND else f"it is {node.op}"


def branches() -> Graph:
    """One branch of the kind alone, another with a layer of another kind in it, and what joins them."""
    b = GraphBuilder("net")
    x = b.input("x", (1, 4))
    first = b.op("relu", x)
    aside = b.op("tanh", b.op("mul", first, b.constant("c", floats(4))))
    straight = b.op("add", first, b.constant("d", floats(4, seed=1)))
    joined = b.op("add", straight, aside)
    return b.graph("net", {"y": b.op("relu", joined), "z": b.op("tanh", straight)})


def chance(seed: int, size: int) -> Graph:
    """Layers over what was made before, by chance."""
    rng, b = np.random.default_rng(seed), GraphBuilder("net")
    made = [b.input("x", (1, 4)), b.input("w", (1, 4))]
    for _ in range(size):
        op = ("relu", "tanh", "add", "mul", "exp")[rng.integers(5)]
        made.append(
            b.op(
                op, *(made[rng.integers(max(0, len(made) - 5), len(made))] for _ in range(1 + (op in KIND - {"relu"})))
            )
        )
    return b.graph("net", {"y": made[-1], "z": made[-2]})


def backend(leaves: object = leave_out_no_layer) -> Backend:
    def code(region: Region) -> Code:
        return Code(("call(out_0);",))

    entry = Entry("span", Span(refuses, leaves), code)  # type: ignore[arg-type]
    return Backend("acme", (entry,), open=lambda place, target, functions: Sources("acme", {}))


def test_a_region_ends_where_another_layer_stands_between() -> None:
    found = partition(branches(), [backend()], TARGET)
    verify(found.graph, registry.infer_node_types)
    assert [[node.op for node in each.region.graph.nodes] for each in found.taken] == [
        ["relu", "mul", "add"],
        ["add", "relu"],
    ]
    assert [node.op for node in found.graph.nodes if node.op != "reshape"].count(EXTERNAL) == 2
    assert found.taken[0].region.graph.outputs == tuple(n.outputs[0] for n in found.taken[0].region.graph.nodes[1:])
    assert [why for _, why in found.refused if "reshape" not in why] == ["acme span: it is tanh"] * 2
    x = {"x": floats(1, 4, seed=2)}
    for mine, theirs in zip(evaluate(branches(), x)[0], evaluate(found.graph, x)[0], strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("seed", range(12))
def test_all_regions_are_convex_and_have_an_order(seed: int) -> None:
    graph = chance(seed, 40)
    others = {node.outputs[0] for node in graph.nodes if refuses(graph, node)}
    regions = list(find_connected_regions(graph, others))
    inside = [node.outputs[0] for nodes in regions for node in nodes]
    assert sorted((*inside, *others)) == sorted(node.outputs[0] for node in graph.nodes)
    assert all(is_convex(graph, nodes) for nodes in regions)
    found = partition(graph, [backend()], TARGET)
    verify(found.graph, registry.infer_node_types)
    assert len(found.taken) == len(regions)
    assert [len(each.region.graph.nodes) for each in found.taken] == sorted(map(len, regions), reverse=True)
    x = {name: floats(1, 4, seed=k) for k, name in enumerate(graph.inputs)}
    np.testing.assert_array_equal(evaluate(graph, x)[0][0], evaluate(found.graph, x)[0][0])


def test_what_a_library_leaves_out_splits_a_region() -> None:
    def leaves(region: Region) -> Mapping[str, str]:
        return {node.outputs[0]: "it multiplies" for node in region.graph.nodes if node.op == "mul"}

    found = partition(branches(), [backend(leaves)], TARGET)
    assert [[node.op for node in each.region.graph.nodes] for each in found.taken] == [["relu", "add"], ["add", "relu"]]
    assert "acme span: it multiplies" in {why for _, why in found.refused}


def test_a_library_that_always_leaves_something_out_gets_nothing() -> None:
    b = GraphBuilder("net")
    h = b.input("x", (1, 4))
    for _ in range(3 * MAX_SPAN_SEARCHES):
        h = b.op("relu", h)
    graph = b.graph("net", {"y": h})

    def leaves(region: Region) -> Mapping[str, str]:
        return {region.graph.nodes[0].outputs[0]: "it is the first"}

    regions, left = find_span_regions(graph, Span(refuses, leaves), TARGET)
    assert not regions and len(left) >= MAX_SPAN_SEARCHES


def test_some_regions_are_left_out() -> None:
    graph = branches()
    last = partition(graph, [backend()], TARGET).taken[1].key
    assert [each.key for each in partition(graph, [backend()], TARGET, excluded_roots={last}).taken] != [last]
    assert len(partition(graph, [backend()], TARGET, excluded_roots={last}).taken) == 1
