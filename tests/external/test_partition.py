# SPDX-License-Identifier: Apache-2.0
"""Regions: the largest first, convex, in an order; what is refused says why."""

from __future__ import annotations

import numpy as np
import pytest

from microc import GraphBuilder
from microc.errors import ProgramError
from microc.external.backend import Backend, Code, Entry, Region, build_region_function, is_convex, partition
from microc.graph.ir import Graph, verify
from microc.graph.match import Op, P
from microc.module import Sources
from microc.ops import registry
from microc.ops.control import EXTERNAL
from microc.ops.meaning import evaluate
from microc.target import target_for
from tests.external.networks import floats, network

TARGET = target_for("host")


def code(region: Region) -> Code:
    return Code((f"call({', '.join(f'in_{k}' for k in range(len(region.graph.inputs)))}, out_0);",))


def backend(*patterns: Op, check: str = "") -> Backend:
    entries = tuple(Entry(f"p{k}", each, code, lambda region: check) for k, each in enumerate(patterns))
    return Backend("acme", entries, open=lambda place, target, functions: Sources("acme", {}))


def kinds(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes if node.op != "reshape"]  # which give outputs their names


def test_the_largest_pattern_wins_and_the_meaning_stays() -> None:
    graph = network()
    both = P.op("add", P.op("mul", P.any(), P.const("s")), P.const("t"))
    found = partition(graph, [backend(P.op("mul"), P.op("add"), both, P.op("dense"))], TARGET)
    verify(found.graph, registry.infer_node_types)
    assert kinds(found.graph) == [EXTERNAL, EXTERNAL, "tanh"]
    assert [[node.op for node in each.region.graph.nodes] for each in found.taken] == [["mul", "add"], ["dense"]]
    assert set(found.taken[0].region.graph.consts) == {"s", "t"} and not found.graph.consts
    x = {"x": floats(1, 8, seed=3)}
    np.testing.assert_array_equal(evaluate(graph, x)[0][0], evaluate(found.graph, x)[0][0])


def test_some_are_left_out_and_others_refused_with_the_reason() -> None:
    graph = network()
    dense, mul = graph.nodes[0].outputs[0], graph.nodes[1].outputs[0]
    found = partition(graph, [backend(P.op("dense"), P.op("mul"))], TARGET, excluded_roots={dense})
    assert [each.key for each in found.taken] == [mul]
    refused = partition(graph, [backend(P.op("dense"), check="it has 12 units")], TARGET)
    assert not refused.taken and refused.graph is graph and "p0: it has 12 units" in refused.refused[0][1]


def diamond() -> Graph:
    """x -> exp -> (relu, tanh) -> add, and what reads the relu too."""
    b = GraphBuilder("net")
    e = b.op("exp", b.input("x", (4,)))
    r, t = b.op("relu", e), b.op("tanh", e)
    return b.graph("net", {"y": b.op("add", r, t), "z": b.op("neg", r)})


def test_a_region_that_a_path_leaves_and_enters_is_not_convex() -> None:
    graph = diamond()
    exp, relu, tanh, add, neg = graph.nodes[:5]
    assert (
        not is_convex(graph, (exp, relu, add))
        and is_convex(graph, (exp, relu, tanh, add))
        and is_convex(graph, (relu, neg))
    )
    pattern = P.op("add", P.op("relu", P.op("exp", shared=True), shared=True), P.any())
    found = partition(graph, [backend(pattern)], TARGET)
    assert not found.taken


def test_what_reads_a_region_comes_behind_it() -> None:
    graph = diamond()
    found = partition(graph, [backend(P.op("add", P.op("relu", shared=True), P.any()))], TARGET)
    verify(found.graph, registry.infer_node_types)
    (taken,) = found.taken
    assert len(taken.region.graph.outputs) == 2 and kinds(found.graph) == ["exp", "tanh", EXTERNAL, "neg"]
    x = {"x": floats(4)}
    for mine, other in zip(evaluate(graph, x)[0], evaluate(found.graph, x)[0], strict=True):
        np.testing.assert_array_equal(mine, other)


def test_regions_never_make_a_circle() -> None:
    """Each of two regions is convex, but taken together each would wait for the other: the second is left."""
    b = GraphBuilder("net")
    a, c = b.op("exp", b.input("x", (4,))), b.op("tanh", b.input("y", (4,)))
    graph = b.graph("net", {"p": b.op("add", a, b.op("relu", c)), "q": b.op("sub", c, b.op("neg", a))})
    first = P.op("add", P.op("exp", shared=True), P.any())
    second = P.op("sub", P.op("tanh", shared=True), P.any())
    for pattern in (first, second):
        assert len(partition(graph, [backend(pattern)], TARGET).taken) == 1
    found = partition(graph, [backend(first, second)], TARGET)
    verify(found.graph, registry.infer_node_types)
    assert len(found.taken) == 1


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (Code(("x;",), {"In": floats(1)}), "got 'In'"),
        (Code(("x;",), {"scratch": floats(1)}), "got 'scratch'"),
        (Code(("x;",), {"in_0": floats(1)}), "got 'in_0'"),
        (Code(()), "needs lines of C"),
        (Code(("x;",), workspace=-4), "needs lines of C"),
    ],
)
def test_code_that_is_not_whole_is_refused(made: Code, said: str) -> None:
    entry = Entry("relu", P.op("dense"), lambda region: made)
    found = partition(network(), [Backend("acme", (entry,), open=lambda *_: Sources("acme", {}))], TARGET)
    with pytest.raises(ProgramError, match=said):
        build_region_function(found.taken[0])


def test_the_function_says_what_is_read_and_written() -> None:
    made = Code(("vendor(in_0, w, out_0, scratch);",), {"w": floats(3, 4)}, workspace=64, instructions=10.4)
    found = partition(
        network(),
        [
            Backend(
                "a", (Entry("d", P.op("dense"), lambda r: made),), open=lambda *_: Sources("a", {}), headers=("v.h",)
            )
        ],
        TARGET,
    )
    func, external = build_region_function(found.taken[0])
    assert [(p.name, p.scope, p.size) for p in func.params] == [
        *(("in_0", "global", 8), ("w", "const", 12), ("out_0", "global", 12), ("scratch", "workspace", 64)),
    ]
    assert external.instructions == 10 and external.includes == ("v.h",) and external.lines == made.lines
