# SPDX-License-Identifier: Apache-2.0
"""Control flow of TFLite: the same as TFLite Micro, and loops recognised for what they are."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.errors import ModelError
from microc.frontend.tflite import reader as tflite
from microc.graph.ir import Graph
from microc.ops.control import UNBOUNDED
from tests.compiler.control.test_function import compiled
from tests.frontend.tflite_model import Op, Subgraph, Tensor, constant, model
from tests.ops.oracle import tflm
from tests.support.corpus import models

REAL, INT, BOOL = "FLOAT32", "INT32", "BOOL"
WHILE = Op("WHILE", ("i", "x"), ("n", "y"), "WhileOptions", {"CondSubgraphIndex": 1, "BodySubgraphIndex": 2})


def check(data: bytes, *inputs: Array) -> Graph:
    """Compiled C gives what TFLite Micro gives."""
    graph = tflite.read_tflite(data, "control.tflite")
    np.testing.assert_allclose(compiled(graph)(*inputs), tflm(data, *inputs), rtol=1e-6)
    return graph


def condition(limit: int) -> Subgraph:
    tensors = (
        Tensor("i", (), INT),
        Tensor("x", (3,)),
        constant("limit", np.array(limit, np.int32)),
        Tensor("go", (), BOOL),
    )
    return Subgraph(tensors, (Op("LESS", ("i", "limit"), ("go",)),), ("i", "x"), ("go",))


def body(step: int) -> Subgraph:
    tensors = (
        Tensor("i", (), INT),
        Tensor("x", (3,)),
        constant("step", np.array(step, np.int32)),
        Tensor("next", (), INT),
        Tensor("real", (), REAL),
        Tensor("y", (3,)),
    )
    ops = (
        Op("ADD", ("i", "step"), ("next",), "AddOptions"),
        Op("CAST", ("i",), ("real",)),
        Op("ADD", ("x", "real"), ("y",), "AddOptions"),
    )
    return Subgraph(tensors, ops, ("i", "x"), ("next", "y"))


@pytest.mark.parametrize(("start", "step", "limit"), [(0, 1, 5), (3, 4, 20), (7, 1, 7)])
def test_loops_of_counters(start: int, step: int, limit: int) -> None:
    tensors = (constant("i", np.array(start, np.int32)), Tensor("x", (3,)), Tensor("n", (), INT), Tensor("y", (3,)))
    data = model(tensors, (WHILE,), ("x",), ("y",), (condition(limit), body(step)))
    graph = check(data, np.array([0.5, -1, 2], np.float32))
    (node,) = (node for node in graph.nodes if node.op == "loop")
    assert node.attr("count") == len(range(start, limit, step))
    assert node.attr("carried") == (1 if (start, step) == (0, 1) else 2)


@pytest.mark.parametrize("start", [-3, 4, 5, 9])
def test_a_loop_that_data_end_is_guarded(start: int) -> None:
    """The C looks at the guard before every turn, where no number of them is known."""
    tensors = (Tensor("i", (), INT), Tensor("x", (3,)), Tensor("n", (), INT), Tensor("y", (3,)))
    data = model(tensors, (WHILE,), ("i", "x"), ("y",), (condition(5), body(1)))
    graph = check(data, np.array(start, np.int32), np.array([0.5, -1, 2], np.float32))
    (node,) = (node for node in graph.nodes if node.op == "loop")
    assert (node.attr("count"), node.attr("carried"), node.attr("guarded")) == (UNBOUNDED, 3, True)


def test_subgraphs_inside_themselves_are_refused() -> None:
    tensors = (constant("i", np.array(0, np.int32)), Tensor("x", (3,)), Tensor("n", (), INT), Tensor("y", (3,)))
    inner = Subgraph(tensors, (WHILE,), ("i", "x"), ("n", "y"))
    with pytest.raises(ModelError, match="calls itself"):
        tflite.read_tflite(model(tensors, (WHILE,), ("x",), ("y",), (inner, inner)), "control.tflite")


@pytest.mark.parametrize("chosen", [True, False])
def test_branches(chosen: bool) -> None:
    def side(code: str) -> Subgraph:
        return Subgraph((Tensor("a", (3,)), Tensor("b", (3,))), (Op(code, ("a",), ("b",)),), ("a",), ("b",))

    fields = {"ThenSubgraphIndex": 1, "ElseSubgraphIndex": 2}
    tensors = (Tensor("c", (1,), BOOL), Tensor("x", (3,)), Tensor("y", (3,)))
    op = Op("IF", ("c", "x"), ("y",), "IfOptions", fields)
    data = model(tensors, (op,), ("c", "x"), ("y",), (side("ABS"), side("NEG")))
    check(data, np.array([chosen]), np.array([0.5, -1, 2], np.float32))


@pytest.mark.corpus
@pytest.mark.parametrize("path", models("gen_lstm2_float*"), ids=lambda path: path.stem)
def test_lists_that_a_loop_fills_are_stacked(path: Path) -> None:
    """Two recurrent layers: nothing is carried but their states, and no list is copied from turn to turn."""
    graph = tflite.read_tflite(path.read_bytes(), path.name)
    loops = [node for node in graph.nodes if node.op == "loop"]
    assert [(node.attr("count"), node.attr("carried"), len(node.outputs)) for node in loops] == [(32, 2, 3), (32, 3, 3)]
    assert Counter(n.op for node in loops for n in node.attr("body").nodes)["dynamic_update_slice"] == 0
