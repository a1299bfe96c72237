# SPDX-License-Identifier: Apache-2.0
"""SVDF as layers: the same numbers step after step, and what stays as it is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from microc.graph.ir import Graph
from microc.ops.meaning import evaluate
from microc.transform.pass_context import PassContext
from microc.transform.quantised.legalize import decompose_svdf
from tests.quantization.states import memories


@pytest.mark.parametrize(("batch", "rank", "memory"), [(1, 1, 4), (1, 2, 5), (2, 4, 3), (1, 2, 1)])
@pytest.mark.parametrize("activation", ["", "relu"])
def test_steps_are_the_same(batch: int, rank: int, memory: int, activation: str) -> None:
    """Within the rounding of sums of at most 6 + 20 products of numbers near one, from a start that is not zero."""
    graph = memories(batch, rank, memory, activation)
    made = decompose_svdf(graph, PassContext())
    assert "svdf" not in {node.op for node in made.nodes} and len(made.state) == (memory > 1)
    before, after = graph.state, made.state
    for x in np.random.default_rng(3).normal(size=(9, batch, 6)).astype(np.float32):
        expected, before = evaluate(graph, {"x": x}, before)
        found, after = evaluate(made, {"x": x}, after)
        assert np.abs(expected[0] - found[0]).max() < 26 * 2**-22


def shared(graph: Graph) -> Graph:
    """Its memory is an output, too."""
    return replace(graph, outputs=(*graph.outputs, *graph.updates.values()))


def computed(graph: Graph) -> Graph:
    """Its weights of time come from outside."""
    time = next(node.inputs[2] for node in graph.nodes if node.op == "svdf")
    consts = {name: data for name, data in graph.consts.items() if name != time}
    return replace(graph, inputs=(*graph.inputs, time), consts=consts)


@pytest.mark.parametrize("change", [shared, computed])
def test_what_stays(change: object) -> None:
    assert callable(change)
    graph = change(memories())
    assert [node.op for node in decompose_svdf(graph, PassContext()).nodes].count("svdf") == 1
