# SPDX-License-Identifier: Apache-2.0
"""Passes, instruments, patterns, builders and schedule rules of a user's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.errors import MicrocError, ModelError, ProgramError, UsageError
from microc.graph.ir import Graph
from microc.transform.pass_context import PassContext

WEIGHT = np.random.default_rng(0).normal(size=(10, 64)).astype(np.float32)
P = microc.P


def network() -> Graph:
    """relu(weight x + 1), the bias as an operator of its own."""
    net = microc.GraphBuilder()
    x = net.input("x", (1, 64))
    product = net.op("dense", x, net.constant("weight", WEIGHT))
    y = net.op("relu", net.op("add", product, net.constant("bias", np.ones(10, np.float32))), name="end")
    return net.graph("mine", {"y": y})


def right(x: Any) -> Any:
    return np.maximum(x @ WEIGHT.T + 1, 0)


def with_bias(match: microc.Match) -> microc.Replacement:
    match.emit("dense", (match["x"], match["w"], match["b"]), match.nodes["dense"].attrs)
    return match.replacement()


DENSE_ADD = (
    P.op("add", P.op("dense", P.any("x"), P.const("w"), name="dense"), P.const("b"), commutative=True),
    with_bias,
)


def dense_add(graph: Graph, context: PassContext) -> Graph:
    return microc.rewrite(graph, [DENSE_ADD])


class Watch:
    def __init__(self) -> None:
        self.ops: dict[str, list[str]] = {}

    def before(self, name: str, graph: Graph) -> None:
        self.ops[f"before {name}"] = [node.op for node in graph.nodes]

    def after(self, name: str, graph: Graph) -> None:
        self.ops[name] = [node.op for node in graph.nodes]


@pytest.mark.parametrize("before", ["legalize", "rounding", "fuse"])
def test_a_pass_runs_where_it_says(before: str) -> None:
    watch = Watch()
    own = microc.Pass("dense_add", dense_add, before=before)
    library = microc.compile(network(), passes=own, instruments=[watch])
    order = [name for name in watch.ops if not name.startswith("before")]
    assert order[order.index("dense_add") + 1] == before
    assert "add" not in watch.ops["dense_add"]
    assert before != "rounding" or "add" in watch.ops["before dense_add"]  # later our own passes have found it
    x = np.random.default_rng(1).normal(size=(1, 64)).astype(np.float32)
    np.testing.assert_allclose(library(x), right(x), rtol=1e-5)


def test_a_pass_can_be_left_out_by_name() -> None:
    watch = Watch()
    own = microc.Pass("dense_add", dense_add)
    microc.compile(network(), passes=[own], instruments=[watch], disabled={"dense_add"})
    assert "dense_add" not in watch.ops


def test_a_schedule_rule_competes_or_is_taken() -> None:
    seen: list[str] = []

    def function(schedule: microc.Schedule, op: str, target: Any) -> Any:
        seen.append(op)
        return schedule.unroll("k") if op == "dense" else None

    x = np.random.default_rng(1).normal(size=(1, 64)).astype(np.float32)
    for alone in (False, True):
        rule = microc.ScheduleRule("mine", function, alone=alone)
        program = microc.compile(network(), board="mps2-an386", schedules=[rule])
        assert (program.report()["layers"][0]["rule"] == "mine") >= alone
        assert program.report()["layers"][0]["op"].startswith("dense") and "dense" in seen
        np.testing.assert_allclose(program.library()(x), right(x), rtol=1e-5)
        assert program.module.options["schedules"] == "mine"


def test_stages_of_bound_loops_are_written(tmp_path: Path) -> None:
    """A rule may bind loops as for OpenCL; on a processor they are plain loops, at every stage that is written."""

    def function(schedule: microc.Schedule, op: str, target: Any) -> Any:
        if op != "dense":
            return None
        return schedule.cache_read("acc", "weight", "shared").bind("p", "threadIdx.x")

    x = np.random.default_rng(1).normal(size=(1, 64)).astype(np.float32)
    rule = microc.ScheduleRule("mine", function, alone=True)
    program = microc.compile(network(), board="mps2-an386", schedules=[rule], dump=tmp_path / "stages")
    assert program.report()["layers"][0]["rule"] == "mine"
    np.testing.assert_allclose(program.library()(x), right(x), rtol=1e-5)
    assert "threadIdx.x" in "".join(path.read_text() for path in (tmp_path / "stages").rglob("*.txt"))


def test_a_graph_prints_without_its_weights() -> None:
    assert str(network()).splitlines() == [
        "graph mine(x: float32[1, 64])",
        "  dense: float32[1, 10] = dense(x, weight)",
        "  add: float32[1, 10] = add(dense, bias)",
        "  end: float32[1, 10] = relu(add)",
        "  y: float32[1, 10] = reshape(end)",
        "  return y",
    ]
    assert repr(network()) == "<Graph mine(x: float32[1, 64] -> y: float32[1, 10]), 4 operators>"


def _compile(**options: Any) -> Callable[[], Any]:
    return lambda: microc.compile(network(), **options)


def _misspelt(graph: Graph, context: PassContext) -> Graph:
    return graph.with_nodes([replace(node, attrs={**node.attrs, "rouding": "double"}) for node in graph.nodes])


def _lost(graph: Graph, context: PassContext) -> Graph:
    return replace(graph, outputs=graph.nodes[0].outputs)


def _builder(*words: str, **attrs: Any) -> Callable[[], Any]:
    def build() -> str:
        net = microc.GraphBuilder()
        return net.op(words[0], *(net.input(word, (1, 4)) if word == "x" else word for word in words[1:]), **attrs)

    return build


@pytest.mark.parametrize(
    ("wrong", "kind", "said"),
    [
        (
            _compile(passes=[microc.Pass("mine", lambda graph, _: None)]),  # type: ignore
            ProgramError,
            "pass mine: the result is no graph; got NoneType",
        ),
        (_compile(passes=[microc.Pass("mine", _misspelt)]), ProgramError, "did you mean rounding?"),
        (_compile(passes=[microc.Pass("mine", _lost)]), ProgramError, "inputs or outputs have changed"),
        (_compile(passes=[microc.Pass("fuse", dense_add)]), UsageError, "pass 'fuse': another pass has this name"),
        (
            _compile(passes=[microc.Pass("mine", dense_add, before="fusion")]),
            UsageError,
            "got before='fusion', expected",
        ),
        (_compile(passes=dense_add), UsageError, "microc.Pass(name, function)"),
        (_compile(instruments=[3]), UsageError, "before(name, graph)"),
        (_compile(schedules=[dense_add]), UsageError, "microc.ScheduleRule"),
        (
            _compile(schedules=[microc.ScheduleRule("a", lambda *_: None)] * 2),
            UsageError,
            "2 schedule rules are called 'a'",
        ),
        (_compile(schedules=[microc.ScheduleRule("a", lambda *_: [3])]), ProgramError, "no schedule of function"),
        (_builder("dens", "x"), UsageError, "did you mean dense"),
        (_builder("relu", "y"), UsageError, "no value of the graph"),
        (_builder("relu", "x", kernel_size=3), ModelError, "no attribute 'kernel_size'"),
        (_builder("dense", "x", "x", activation="gelu"), ModelError, "has an unknown value"),
    ],
)
def test_what_is_refused(wrong: Callable[[], Any], kind: type[MicrocError], said: str) -> None:
    with pytest.raises(kind) as caught:
        wrong()
    assert said in str(caught.value) and caught.value.exit_code in (2, 3)
