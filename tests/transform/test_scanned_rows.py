# SPDX-License-Identifier: Apache-2.0
"""Loops that take rows where they lie: the same numbers, and only of what nothing else reads."""

from __future__ import annotations

import numpy as np
import pytest

from microc.graph.ir import run
from microc.ops import registry
from microc.ops.control import scanned_operand_count
from microc.transform.loop_blocking import block_loops, scan_rows_in_place
from tests.transform.test_blocked_loops import CONTEXT, DICE, recurrent


@pytest.mark.parametrize(("batch", "rows"), [(1, 1), (2, 0)])
def test_rows_of_all_sequences_lie_apart(batch: int, rows: int) -> None:
    graph = scan_rows_in_place(recurrent(5, batch=batch), CONTEXT)
    (loop,) = (node for node in graph.nodes if node.op == "loop")
    assert scanned_operand_count(loop) == rows
    assert sum(node.op == "gather" for node in loop.attr("body").nodes) == 1 - rows


@pytest.mark.parametrize(("steps", "rows"), [(12, 1), (13, 0)])
def test_blocks_are_rows_where_they_are_whole(steps: int, rows: int) -> None:
    graph = scan_rows_in_place(block_loops(recurrent(steps), CONTEXT), CONTEXT)
    (loop,) = (node for node in graph.nodes if node.op == "loop")
    assert scanned_operand_count(loop) == rows


def test_numbers_are_the_same() -> None:
    graph = recurrent(5)
    data = {graph.inputs[0]: DICE.normal(size=graph.types[graph.inputs[0]].shape).astype(np.float32)}
    before, after = (
        run(each, data, lambda node, arrays: registry.get(node.op).reference(node.attrs, arrays))
        for each in (graph, scan_rows_in_place(graph, CONTEXT))
    )
    for name in (*graph.outputs, *graph.updates.values()):
        np.testing.assert_array_equal(after[name], before[name])
