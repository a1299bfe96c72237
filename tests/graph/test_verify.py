# SPDX-License-Identifier: Apache-2.0
"""Every rule of graph verification holds for a good graph and catches a broken one, naming node and pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from microc.errors import InternalError, ModelError
from microc.graph.ir import Graph, Node, Quant, TensorType, verify
from microc.ops import registry
from tests.graph.graphs import SMALL, diamond


def same(
    op: str, attrs: Mapping[str, Any], types: Sequence[TensorType], declared: Sequence[TensorType | None]
) -> Sequence[TensorType]:
    return types[:1] if op != "nonsense" else (TensorType((9,), "int8"),)


def with_node(position: int, **changes: Any) -> Graph:
    graph = diamond()
    nodes = list(graph.nodes)
    nodes[position] = replace(nodes[position], **changes)
    return replace(graph, nodes=tuple(nodes))


def with_type(name: str, kind: TensorType) -> Graph:
    return diamond(types={**diamond().types, name: kind})


def without_type(name: str) -> Graph:
    return diamond(types={k: v for k, v in diamond().types.items() if k != name})


def test_good_graphs_pass() -> None:
    verify(diamond(), same)
    verify(with_node(1, inputs=("a", "", "w")), same)
    verify(Graph("identity", ("x",), ("x",), (), {"x": SMALL}))


BROKEN: dict[str, tuple[Graph, str]] = {
    "use before definition": (with_node(0, inputs=("b",)), "'b' is not defined before"),
    "cycle": (with_node(0, inputs=("c",)), "'c' is not defined before"),
    "unknown operand": (with_node(1, inputs=("a", "nowhere")), "'nowhere' is not defined"),
    "assigned twice": (with_node(1, outputs=("a",)), "'a' is defined twice"),
    "input computed": (with_node(1, outputs=("x",)), "'x' is defined twice"),
    "constant computed": (with_node(1, outputs=("w",)), "'w' is defined twice"),
    "input is a constant": (diamond(inputs=("x", "w")), "'w' is defined twice"),
    "result without type": (without_type("b"), "'b' has no type"),
    "input without type": (without_type("x"), "'x' has no type"),
    "input without name": (diamond(inputs=("",)), "empty name"),
    "constant of another shape": (diamond(consts={"w": np.ones((3, 2), np.float32)}), "its data are float32[3, 2]"),
    "constant of another dtype": (diamond(consts={"w": np.ones((2, 3), np.int8)}), "its data are int8[2, 3]"),
    "state of another shape": (diamond(state={"s": np.ones((3,), np.float32)}), "its data are float32[3]"),
    "impossible dtype": (with_type("a", TensorType((2, 3), "string")), "invalid type string[2, 3]"),
    "negative extent": (with_type("a", TensorType((-1, 3), "int8")), "invalid type"),
    "scales along no axis": (with_type("a", TensorType((2, 3), "int8", Quant((1.0,), (0,), 5))), "along axis 5"),
    "too few scales": (with_type("a", TensorType((2, 3), "int8", Quant((1.0,), (0,), 1))), "1 scales along axis 1"),
    "a scale of zero": (with_type("a", TensorType((2, 3), "int8", Quant((0.0,), (0,)))), "not a positive float32"),
    "a scale below float32": (
        with_type("a", TensorType((2, 3), "int8", Quant((1e-60,), (0,)))),
        "not a positive float32",
    ),
    "an infinite scale": (with_type("a", TensorType((2, 3), "int8", Quant((float("inf"),), (0,)))), "not a positive"),
    "output nowhere": (diamond(outputs=("y",)), "output 'y' is not defined"),
    "output twice": (diamond(outputs=("c", "c")), "listed twice"),
    "state without update": (diamond(updates={}), "every state needs one update"),
    "update without state": (diamond(updates={"s": "c", "x": "a"}), "every state needs one update"),
    "update nowhere": (diamond(updates={"s": "z"}), "'z', the update of state 's', is not defined"),
    "other results": (with_node(0, op="nonsense"), "got float32[2, 3], expected int8[9]"),
    "more results": (with_node(0, outputs=("a", "")), "got 2, expected 1"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_graphs_are_caught(name: str) -> None:
    graph, message = BROKEN[name]
    with pytest.raises(InternalError) as caught:
        verify(graph, same, "pass shuffle")
    assert message in caught.value.what
    assert "after pass shuffle" in caught.value.where


def test_what_is_verified_is_checked_where_it_changes() -> None:
    """Only nodes, types and data that both graphs have are taken as valid, and a node only with its types."""
    old = diamond()
    verify(old, same)
    verify(old, same, verified=old)
    wrong = TensorType((7,), "float32")
    for name in (node.outputs[0] for node in old.nodes):
        with pytest.raises(InternalError, match="wrong type"):
            verify(replace(old, types={**old.types, name: wrong}), same, verified=old)
    with pytest.raises(InternalError, match="its data are"):
        name = next(iter(old.consts))
        verify(replace(old, types={**old.types, name: wrong}), same, verified=old)


@pytest.mark.parametrize(("op", "is_free"), [("add", True), ("concat", True), ("reshape", False), ("maximum", True)])
def test_only_legalised_operators_requantise(op: str, is_free: bool) -> None:
    """A quantised result has the dtype of the model where legalisation requantises, and the inferred dtype elsewhere."""
    byte, halves = (TensorType((2, 3), dtype, Quant((0.5,), (0,))) for dtype in ("int8", "int16"))
    operands = ("x",) if op == "reshape" else ("x", "x")
    own: Mapping[str, Mapping[str, Any]] = {"reshape": {"shape": (2, 3)}, "concat": {"axis": 0}}
    result = replace(halves, shape=(4, 3)) if op == "concat" else halves
    node = Node(op, operands, ("y",), {**registry.get(op).defaults, **own.get(op, {})})
    graph = Graph("one", ("x",), ("y",), (node,), {"x": byte, "y": result})
    if is_free:
        verify(graph, registry.infer_node_types)
        graph = replace(graph, types={**graph.types, "y": replace(result, quant=None)})
    with pytest.raises(InternalError, match=r"wrong type; got int16.*, expected int8"):
        verify(graph, registry.infer_node_types)


def test_updates_keep_their_type() -> None:
    kinds = {**diamond().types, "s": TensorType((1,), "float32")}
    with pytest.raises(InternalError, match="update of state"):
        verify(diamond(types=kinds, state={"s": np.zeros(1, np.float32)}))


def test_the_node_is_named() -> None:
    with pytest.raises(InternalError) as caught:
        verify(with_node(1, inputs=("a", "nowhere")))
    assert caught.value.where == "mul at net.tflite #1 second"


def test_refused_inference_is_reported() -> None:
    def refuse(
        op: str, attrs: Mapping[str, Any], types: Sequence[TensorType], declared: Sequence[TensorType | None]
    ) -> tuple[TensorType, ...]:
        raise ModelError("shapes disagree")

    with pytest.raises(InternalError, match="type inference fails: shapes disagree"):
        verify(diamond(), refuse)


def chain(groups: Sequence[str], inputs: Sequence[Sequence[str]]) -> Graph:
    """Nodes n0, n1 ... over values v0, v1 ..., in these groups."""
    nodes = tuple(
        Node("op", tuple(names), (f"v{k}",), group=group)
        for k, (group, names) in enumerate(zip(groups, inputs, strict=True))
    )
    types = dict.fromkeys(["x", *(f"v{k}" for k in range(len(nodes)))], SMALL)
    return Graph("chain", ("x",), (f"v{len(nodes) - 1}",), nodes, types)


def test_convex_groups_pass() -> None:
    verify(chain(["g", "g", ""], [["x"], ["v0"], ["v1"]]))
    verify(chain(["g", "", "g"], [["x"], ["x"], ["v0", "v1"]]))  # the other operand comes in between
    verify(chain(["g", "h", "g", "h"], [["x"], ["x"], ["v0"], ["v1", "v2"]]))


@pytest.mark.parametrize(
    ("groups", "inputs"),
    [
        (["g", "", "g"], [["x"], ["v0"], ["v1"]]),  # out of the group and back into it
        (["g", "h", "h", "g"], [["x"], ["v0"], ["v1"], ["x"]]),  # h ends before g, which it reads
        (["g", "h", "g", "h"], [["x"], ["x"], ["v1"], ["v0"]]),  # two groups wait for each other
    ],
)
def test_groups_that_cannot_run_are_caught(groups: Sequence[str], inputs: Sequence[Sequence[str]]) -> None:
    with pytest.raises(InternalError, match="not convex"):
        verify(chain(groups, inputs))
