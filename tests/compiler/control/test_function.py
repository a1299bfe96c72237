# SPDX-License-Identifier: Apache-2.0
"""Control flow, compiled: loops, guarded loops and branches give what running their graphs gives."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.codegen.c.source import shared_files
from microc.compiler.lowering import control_flow
from microc.compiler.lowering.control_flow import WorkspaceReuseCheck
from microc.compiler.lowering.graph_to_module import build_module
from microc.compiler.lowering.kernel_builder import Configuration, KernelBuilder
from microc.compiler.options import Options
from microc.compiler.pipeline import optimise_graph
from microc.errors import InternalError
from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.ops import registry
from microc.ops.control import evaluate_graph, one_operator_graph
from microc.ops.registry import Case
from microc.plan.plan import plan_module
from microc.run.desktop.library import Library
from microc.run.desktop.load import build_library
from microc.target import SPEED, target_for
from microc.tir import ir
from microc.tir.striped_layers import BufferLocation
from tests.ops.edges import case_arrays


def compiled(graph: Graph) -> Library:
    module = plan_module(
        build_module(KernelBuilder(Configuration(optimise_graph(graph, Options()), SPEED), target_for("host")), "test")
    )
    return build_library(shared_files(replace(module, fingerprint="0" * 32), "test"))


def single(op: str, case: Case) -> Graph:
    """A network of one application."""
    definition = registry.get(op)
    attrs = {**definition.defaults, **case.attrs}
    names = tuple(f"x{k}" for k in range(len(case.types)))
    made = definition.infer(attrs, case.types)
    outputs = tuple(f"y{k}" for k in range(len(made)))
    types = dict(zip((*names, *outputs), (*case.types, *made), strict=True))
    return Graph("net", names, outputs, (Node(op, names, outputs, attrs),), types)


def results(graph: Graph, arrays: list[Array]) -> list[Array]:
    made = compiled(graph)(*arrays)
    return list(made) if isinstance(made, tuple) else [made]


@pytest.mark.parametrize("op", ["loop", "branch"])
def test_cases(op: str) -> None:
    for case in registry.get(op).cases():
        graph, arrays = single(op, case), case_arrays(case)
        for got, want in zip(results(graph, arrays), evaluate_graph(graph, arrays), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6)


def fibonacci() -> Graph:
    """Carried values that change places: (a, b) becomes (b, a + b), and a is stacked."""
    kind = TensorType((2,), "int32")
    nodes = (
        Node("add", ("a", "b"), ("sum",), {"activation": "", "rounding": "double"}),
        Node("reshape", ("b",), ("second",), {"shape": (2,)}),
        Node("reshape", ("a",), ("row",), {"shape": (1, 2)}),
    )
    types = {"i": TensorType((), "int32"), **dict.fromkeys(("a", "b", "sum", "second"), kind)}
    types["row"] = TensorType((1, 2), "int32")
    return Graph("body", ("i", "a", "b"), ("second", "sum", "row"), nodes, types)


def test_carried_values_may_change_places() -> None:
    kind = TensorType((2,), "int32")
    case = Case({"body": fibonacci(), "count": 9, "carried": 2}, (kind, kind))
    graph = single("loop", case)
    a, b, rows = results(graph, [np.array([0, 2], np.int32), np.array([1, 1], np.int32)])
    assert rows[:, 0, 0].tolist() == [0, 1, 1, 2, 3, 5, 8, 13, 21]
    assert (a.tolist(), b.tolist()) == ([34, 76], [55, 123])


def test_loops_and_branches_nest() -> None:
    """Every turn runs a loop, and a branch that depends on the turn's number."""
    kind, turn = TensorType((2,), "int32"), TensorType((), "int32")
    branches = {
        name: replace(one_operator_graph("neg" if name == "then" else "relu", kind), name=name)
        for name in ("then", "otherwise")
    }
    nodes = (
        Node("loop", ("x", "x"), ("p", "q", "all"), {"body": fibonacci(), "count": 3, "carried": 2, "guarded": False}),
        Node("cast", ("i",), ("odd",), {"dtype": "bool"}),
        Node("branch", ("odd", "p"), ("next",), branches),
        Node("reshape", ("all",), ("row",), {"shape": (6,)}),
    )
    types = {"i": turn, "odd": TensorType((), "bool"), **dict.fromkeys(("x", "p", "q", "next"), kind)}
    types |= {"all": TensorType((3, 1, 2), "int32"), "row": TensorType((6,), "int32")}
    body = Graph("outer", ("i", "x"), ("next", "row"), nodes, types)
    case = Case({"body": body, "count": 4, "carried": 1}, (kind,))
    graph, arrays = single("loop", case), [np.array([3, -5], np.int32)]
    for got, want in zip(results(graph, arrays), evaluate_graph(graph, arrays), strict=True):
        np.testing.assert_array_equal(got, want)


def test_layers_inside_a_loop_are_scheduled() -> None:
    """A recurrent dense layer; its weights are one constant, whatever the number of turns."""
    rng = np.random.default_rng(3)
    weight = rng.normal(size=(8, 8)).astype(np.float32) / 4
    state = TensorType((1, 8), "float32")
    nodes = (
        Node("dense", ("h", "w"), ("linear",), registry.get("dense").defaults),
        Node("tanh", ("linear",), ("z",), {"rounding": "double"}),
        Node("reshape", ("z",), ("row",), {"shape": (1, 8)}),
    )
    types = {
        "i": TensorType((), "int32"),
        "w": TensorType((8, 8), "float32"),
        **dict.fromkeys(("h", "linear", "z", "row"), state),
    }
    body = Graph("body", ("i", "h"), ("z", "row"), nodes, types, {"w": weight})
    graph = single("loop", Case({"body": body, "count": 50, "carried": 1}, (state,)))
    arrays = [rng.normal(size=(1, 8)).astype(np.float32)]
    for got, want in zip(results(graph, arrays), evaluate_graph(graph, arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    module = build_module(
        KernelBuilder(Configuration(optimise_graph(graph, Options()), SPEED), target_for("cortex-m4")), "test"
    )
    assert len(module.calls) == 1 and module.const_bytes == 8 * 8 * 4
    assert module.macs == 50 * 64


def chain(length: int) -> Graph:
    """A body of layers one after another, with a branch among them: two values live at a time."""
    kind = TensorType((64,), "float32")
    names = [f"v{k}" for k in range(length + 1)]
    layers = [Node("sum", (a,), (f"{a}_s",), _SUM) for a in names[:-1]]
    steps = [Node("mul", (a, f"{a}_s"), (b,), _PLAIN) for a, b in pairwise(names)]
    sides = {"then": one_operator_graph("neg", kind), "otherwise": one_operator_graph("relu", kind)}
    nodes = [node for pair in zip(layers, steps, strict=True) for node in pair]
    nodes += [
        Node("cast", ("i",), ("odd",), {"dtype": "bool"}),
        Node("branch", ("odd", names[-1]), ("chosen",), sides),
        Node("mul", ("chosen", f"{names[0]}_s"), ("next",), _PLAIN),
    ]
    types = {"i": TensorType((), "int32"), "odd": TensorType((), "bool"), **dict.fromkeys(names, kind)}
    types |= dict.fromkeys((f"{name}_s" for name in names[:-1]), TensorType((1,), "float32"))
    types |= {"chosen": kind, "next": kind}
    return Graph("body", ("i", "v0"), ("next",), tuple(nodes), types)


_PLAIN: dict[str, Attr] = {"activation": "", "rounding": "double"}
_SUM: dict[str, Attr] = {"axes": (0,), "keepdims": True, "offset": 0, "out_dtype": "", "rounding": "double"}


def test_values_inside_share_memory() -> None:
    """A body of eight layers takes as much as one of four, and computes what it should."""
    sizes = []
    for length in (4, 8):
        graph = single("loop", Case({"body": chain(length), "count": 3, "carried": 1}, (TensorType((64,), "float32"),)))
        arrays = [np.full(64, 1 / 64, np.float32) * np.linspace(0.9, 1.1, 64, dtype=np.float32)]
        for got, want in zip(results(graph, arrays), evaluate_graph(graph, arrays), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4)
        module = plan_module(
            build_module(
                KernelBuilder(Configuration(optimise_graph(graph, Options()), SPEED), target_for("cortex-m4")), "test"
            )
        )
        assert module.plan is not None
        sizes.append(module.plan.size)
    assert sizes[1] <= sizes[0] + 64


def recurrence() -> Graph:
    """A loop whose turns compute values that live on while others are made: y = (x + x) (x - 1) + (x + x) of what is carried."""
    kind, plain = TensorType((4,), "float32"), {"activation": "", "rounding": "double"}
    nodes = (
        Node("add", ("x", "x"), ("twice",), plain),
        Node("softmax", ("twice",), ("a",), {"axis": -1, "beta": 1.0, "rounding": "double"}),
        Node("softmax", ("x",), ("b",), {"axis": -1, "beta": 1.0, "rounding": "double"}),
        Node("softmax", ("b",), ("c",), {"axis": -1, "beta": 1.0, "rounding": "double"}),
        Node("mul", ("a", "c"), ("next",), plain),
    )
    types = {"turn": TensorType((), "int32"), **dict.fromkeys(("x", "twice", "a", "b", "c", "next"), kind)}
    body = Graph("body", ("turn", "x"), ("next",), nodes, types)
    return single("loop", Case({"body": body, "count": 3, "carried": 1}, (kind,)))


def test_workspaces_that_are_used_again_too_early_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever says that a value is not read any more, a check apart from it sees that it is."""
    graph, x = recurrence(), np.array([1, -2, 3, 0.5], np.float32)
    (got,) = results(graph, [x])
    np.testing.assert_allclose(got, evaluate_graph(graph, [x])[0], rtol=1e-5)
    monkeypatch.setattr(control_flow, "_find_last_reading_steps", lambda graph, steps: {})
    with pytest.raises(InternalError, match="contains another"):
        compiled(graph)


def test_what_a_loop_reads_must_survive_its_turns() -> None:
    """The second turn finds what lay there before the first."""
    workspaces = WorkspaceReuseCheck()
    slot = ir.Buffer("slot", (4,), "float32", "workspace")
    before, inside = (BufferLocation(slot, ir.const(0, "int32"), workspaces.new_value_number()) for _ in range(2))
    workspaces.record_write(before)
    with pytest.raises(InternalError, match="slot"), workspaces.check_loop_body():
        workspaces.check_and_record_read(before)
        workspaces.record_write(inside)


def test_sides_of_a_condition_that_leave_different_values() -> None:
    workspaces = WorkspaceReuseCheck()
    slot = ir.Buffer("slot", (4,), "float32", "workspace")
    one, other = (BufferLocation(slot, ir.const(0, "int32"), workspaces.new_value_number()) for _ in range(2))
    ends: list[dict[ir.Buffer, int]] = []
    for place in (one, other):
        with workspaces.check_branch(ends):
            workspaces.record_write(place)
            workspaces.check_and_record_read(place)
    workspaces.merge_branches(ends)
    with pytest.raises(InternalError, match="slot"):
        workspaces.check_and_record_read(one)
