# SPDX-License-Identifier: Apache-2.0
"""Patterns find what they describe; rewriting keeps names that others know, and ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from microc.errors import InternalError
from microc.graph.ir import Graph, Loc, Node, TensorType, verify
from microc.graph.match import Match, P, Replacement, Rule, rewrite, without_dead_nodes

KIND = TensorType((3,), "float32")


def graph(*nodes: tuple[str, str, str], outputs: tuple[str, ...] = (), **fields: Any) -> Graph:
    """Nodes as (output, op, operands); names in capitals are constants, x and y inputs."""
    made = [
        Node(op, tuple(operands.split()), (output,), loc=Loc("net", k))
        for k, (output, op, operands) in enumerate(nodes)
    ]
    names = {name for node in made for name in (*node.inputs, *node.outputs)} | {"x", "y"}
    consts = {name: np.full(3, ord(name[0]), np.float32) for name in names if name.isupper()}
    types = dict.fromkeys(names, KIND)
    given: dict[str, Any] = {"consts": consts, **fields}
    return Graph("net", ("x", "y"), outputs or (nodes[-1][0],), tuple(made), types, **given)


def found(pattern: Any, what: Graph) -> list[Mapping[str, str]]:
    """Captured values at every node where the pattern matches first."""
    matches: list[Mapping[str, str]] = []

    def note(match: Match) -> None:
        matches.append({**match.values, "root": match.output})

    assert rewrite(what, [(pattern, note)]) is what
    return matches


def spelled(what: Graph) -> list[str]:
    return [f"{node.outputs[0]} = {node.op} {' '.join(node.inputs)}" for node in what.nodes]


def as_x(match: Match) -> Replacement:
    return match.same("x")


# ---------------------------------------------------------------- patterns


def test_operands_are_captured_by_name() -> None:
    what = graph(("a", "add", "x C"), ("b", "sub", "a y"))
    assert found(P.op("add", P.any("l"), P.const("r")), what) == [{"l": "x", "r": "C", "root": "a"}]
    assert found(P.op("add", P.const("l"), P.any("r")), what) == []


def test_commutative_patterns_try_both_orders() -> None:
    what = graph(("a", "add", "C x"), ("b", "sub", "C x"))
    pattern = P.op(("add", "sub"), P.any("x"), P.const("c"), commutative=True)
    assert {"x": "x", "c": "C", "root": "a"} in found(pattern, what)
    assert found(P.op("sub", P.any("x"), P.const("c")), what) == []


def test_a_rule_that_declines_one_order_is_asked_about_the_other() -> None:
    what = graph(("a", "add", "C D"))
    rule: Rule = (
        P.op("add", P.const("l"), P.const("r"), commutative=True),
        lambda match: match.same_as(match["l"]) if match["l"] == "D" else None,
    )
    assert rewrite(graph(("a", "add", "C D"), ("b", "relu", "a")), [rule]).nodes[0].inputs == ("D",)
    assert rewrite(what, [rule]) is what, "a constant cannot take the name of an output"


def test_equal_names_ask_for_equal_values() -> None:
    what = graph(("a", "mul", "x x"), ("b", "mul", "x y"), outputs=("a", "b"))
    assert found(P.op("mul", P.any("s"), P.any("s")), what) == [{"s": "x", "root": "a"}]


def test_nested_patterns_want_one_reader() -> None:
    inner = P.op("relu", P.any("x"))
    alone = graph(("a", "relu", "x"), ("b", "neg", "a"))
    shared = graph(("a", "relu", "x"), ("b", "neg", "a"), ("c", "add", "a b"))
    kept = graph(("a", "relu", "x"), ("b", "neg", "a"), outputs=("a", "b"))
    assert len(found(P.op("neg", inner), alone)) == 1
    assert found(P.op("neg", inner), shared) == found(P.op("neg", inner), kept) == []
    assert len(found(P.op("neg", replace(inner, shared=True)), shared)) == 1


def test_attributes_count_where_a_node_has_them() -> None:
    what = graph(("a", "clip", "x"))
    nodes = (replace(what.nodes[0], attrs={"minimum": 0.0}),)
    what = replace(what, nodes=nodes)
    assert found(P.op("clip", attrs={"minimum": 0.0, "maximum": 9.0}), what)
    assert not found(P.op("clip", attrs={"minimum": 1.0}), what)


def test_absent_operands_and_other_numbers_of_operands_do_not_match() -> None:
    what = graph(("a", "dense", "x C"))
    what = replace(what, nodes=(replace(what.nodes[0], inputs=("x", "C", "")),))
    assert not found(P.op("dense", P.any("x"), P.any("w")), what)
    assert not found(P.op("dense", P.any("x"), P.any("w"), P.any("b")), what)


# ---------------------------------------------------------------- rewriting


def double_negation() -> Rule:
    return P.op("neg", P.op("neg", P.any("x"), shared=True)), as_x


def test_rewriting_reaches_a_fixed_point_in_the_middle_of_a_graph() -> None:
    what = graph(*((f"n{k}", "neg", f"n{k - 1}" if k else "x") for k in range(8)), ("out", "relu", "n7"))
    assert spelled(rewrite(what, [double_negation()])) == ["out = relu x"]


def test_a_graph_output_keeps_its_name() -> None:
    what = graph(("a", "relu", "x"), ("b", "neg", "a"), ("c", "neg", "b"), ("d", "abs", "a"), outputs=("c", "d"))
    assert spelled(rewrite(what, [double_negation()])) == ["c = relu x", "d = abs c"]


def test_an_output_that_is_an_input_or_another_output_stays_computed() -> None:
    what = graph(("b", "neg", "x"), ("c", "neg", "b"))
    assert rewrite(what, [double_negation()]) is what
    two = graph(("a", "relu", "x"), ("b", "neg", "a"), ("c", "neg", "b"), outputs=("a", "c"))
    assert rewrite(two, [double_negation()]) is two


def test_two_outputs_that_are_one_value_keep_both_names() -> None:
    what = graph(
        ("a", "relu", "x"),
        ("b", "neg", "a"),
        ("c", "neg", "b"),
        ("d", "neg", "a"),
        ("e", "neg", "d"),
        outputs=("c", "e"),
    )
    result = rewrite(what, [double_negation()])
    verify(result)
    assert result.outputs == ("c", "e") and spelled(result)[0] == "c = relu x"


def test_state_updates_keep_their_names() -> None:
    state = {"s": np.zeros(3, np.float32)}
    what = graph(("b", "neg", "s"), ("c", "neg", "b"), ("d", "add", "x c"), state=state, updates={"s": "c"})
    assert rewrite(what, [double_negation()]) is what


def test_new_names_are_fresh_and_locations_stay() -> None:
    what = graph(("a", "relu", "x"), ("a.half", "neg", "y"), ("b", "add", "a a.half"))

    def halves(match: Match) -> Replacement:
        part = match.emit("half", (match["x"],), {}, KIND, "a.half")
        weight = match.constant("a.half", np.zeros(3, np.float32))
        match.emit("double", (part, weight), {"by": 2})
        return match.replacement()

    result = rewrite(what, [(P.op("relu", P.any("x")), halves)])
    verify(result)
    assert spelled(result)[:2] == ["a.half_1 = half x", "a = double a.half_1 a.half_2"]
    assert result.nodes[1].loc == what.nodes[0].loc and result.types["a.half_2"] == KIND


def test_later_nodes_see_what_earlier_ones_became() -> None:
    """One walk carries a node all the way down."""
    what = graph(*((f"n{k}", "relu", f"n{k - 1}" if k else "m") for k in range(20)), outputs=("n19",))
    what = replace(what, nodes=(Node("move", ("x",), ("m",)), *what.nodes), types={**what.types, "m": KIND})

    def down(match: Match) -> Replacement:
        match.emit("move", (match.emit("relu", (match["x"],), {}, KIND),), {})
        return match.replacement()

    result = rewrite(what, [(P.op("relu", P.op("move", P.any("x"))), down)], sweeps=2)
    assert [node.op for node in result.nodes] == ["relu"] * 20 + ["move"]


def test_rules_that_undo_each_other_are_a_defect() -> None:
    def turn(op: str) -> Any:
        def rule(match: Match) -> Replacement:
            match.emit(op, (match["x"],), {})
            return match.replacement()

        return rule

    rules: list[Rule] = [(P.op("relu", P.any("x")), turn("abs")), (P.op("abs", P.any("x")), turn("relu"))]
    with pytest.raises(InternalError, match="do not terminate"):
        rewrite(graph(("a", "relu", "x")), rules)


def test_a_replacement_must_make_the_output() -> None:
    with pytest.raises(InternalError, match="a replacement of relu"):
        rewrite(graph(("a", "relu", "x")), [(P.op("relu"), lambda match: Replacement())])


def test_dead_nodes_go_and_live_graphs_stay() -> None:
    what = graph(("a", "relu", "x"), ("b", "mul", "a C"), ("c", "neg", "a"), outputs=("c",))
    alive = without_dead_nodes(what)
    assert spelled(alive) == ["a = relu x", "c = neg a"] and not alive.consts
    assert without_dead_nodes(alive) is alive
