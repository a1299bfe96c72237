# SPDX-License-Identifier: Apache-2.0
"""Loops over time in blocks: the same numbers, whole blocks only, and only what does not wait for the turn before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from microc.compiler.options import make_options
from microc.compiler.pipeline import compile_graph
from microc.frontend.graph_builder import GraphBuilder
from microc.graph.ir import Graph, run
from microc.ops import registry
from microc.target import target_for
from microc.transform.canonicalise import expand_composites
from microc.transform.loop_blocking import LOOP_BLOCKING_PASS, block_loops
from microc.transform.pass_context import PassContext

CONTEXT = PassContext()
DICE = np.random.default_rng(3)


def recurrent(steps: int, depth: int = 24, units: int = 7, batch: int = 1) -> Graph:
    """The loop of an LSTM of floats."""
    net = GraphBuilder()
    shapes = ((4 * units, depth), (4 * units, units))
    weights = [net.constant("w", DICE.normal(size=shape).astype(np.float32)) for shape in shapes]
    states = [net.state(name, DICE.normal(size=(batch, units)).astype(np.float32)) for name in ("hidden", "cell")]
    attrs: dict[str, Any] = {"cell_clip": 0.0, "rounding": ""}
    y, *after = net.emit_all("lstm", (net.input("x", (batch, steps, depth)), *weights, *states), attrs)
    for state, value in zip(states, after, strict=True):
        net.update(state, value)
    return expand_composites(net.graph("net", {"y": y}), CONTEXT)


def counts(graph: Graph) -> list[int]:
    """Turns of the loop, and of the loop in its turns."""
    found = [node for node in graph.nodes if node.op == "loop"]
    return [count for node in found for count in (node.attr("count"), *counts(node.attr("body")))]


@pytest.mark.parametrize(
    ("steps", "wanted"), [(12, [4, 3]), (49, [17, 3]), (15, [5, 3]), (16, [4, 4]), (47, [16, 3]), (3, [3])]
)
def test_blocks_leave_the_fewest_turns_over(steps: int, wanted: list[int]) -> None:
    assert counts(block_loops(recurrent(steps), CONTEXT)) == wanted


@pytest.mark.parametrize("steps", [12, 13])
def test_numbers_are_the_same(steps: int) -> None:
    """Of whole blocks, and where the last one ends before its time."""
    graph = recurrent(steps)
    blocked = block_loops(graph, CONTEXT)
    data = {graph.inputs[0]: DICE.normal(size=graph.types[graph.inputs[0]].shape).astype(np.float32)}
    before, after = (
        run(each, data, lambda node, arrays: registry.get(node.op).reference(node.attrs, arrays))
        for each in (graph, blocked)
    )
    for name in (*graph.outputs, *graph.updates.values()):
        np.testing.assert_allclose(after[name], before[name], atol=1e-6)


def test_several_rows_share_their_weights_anyway() -> None:
    graph = recurrent(12, batch=2)
    assert block_loops(graph, CONTEXT) is graph


def test_it_runs_where_it_is_required_and_once() -> None:
    graph, target = recurrent(12), target_for("cortex-m4")
    plain = compile_graph(graph, "net", target, make_options(disabled={LOOP_BLOCKING_PASS.name}))
    blocked = compile_graph(graph, "net", target, make_options(required={LOOP_BLOCKING_PASS.name}))
    assert blocked.instructions < plain.instructions
    once = block_loops(graph, CONTEXT)
    assert counts(block_loops(once, CONTEXT)) == counts(once)
