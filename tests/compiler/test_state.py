# SPDX-License-Identifier: Apache-2.0
"""State of networks: updated where it lies or copied, from any initial contents, for any number of instances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import microc
from microc.base.dtypes import Array
from microc.compiler.api import Program
from microc.graph import ir
from microc.graph.ir import Graph, Node, TensorType
from microc.ops import registry

_EXACT: dict[str, Any] = {"activation": "", "rounding": ""}


def graph_of(
    state: Mapping[str, Array],
    updates: Mapping[str, str],
    nodes: Sequence[tuple[str, tuple[str, ...], dict[str, Any]]],
    x: TensorType,
    consts: Mapping[str, Array] | None = None,
) -> Graph:
    """A network of one input ``x``: node k makes ``n<k>``, and the last one the output."""
    consts = consts or {}
    types = {"x": x, **{n: TensorType(a.shape, str(a.dtype)) for n, a in {**state, **consts}.items()}}
    made = []
    for k, (op, inputs, attrs) in enumerate(nodes):
        attrs = {**registry.get(op).defaults, **attrs}
        (types[f"n{k}"],) = registry.infer(op, attrs, [types[name] for name in inputs])
        made.append(Node(op, inputs, (f"n{k}",), attrs))
    return Graph("net", ("x",), (f"n{len(nodes) - 1}",), tuple(made), types, consts, dict(state), dict(updates))


def expected(graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    """The output of every run from the initial state on, by the operators' references."""

    def apply(node: Node, arrays: Sequence[Array]) -> Sequence[Array]:
        definition = registry.get(node.op)
        return definition.reference({**definition.defaults, **node.attrs}, arrays)

    state, found = dict(graph.state), []
    for x in inputs:
        values = ir.run(graph, {"x": x}, apply, state)
        found.append(values[graph.outputs[0]])
        state = {name: values[value] for name, value in graph.updates.items()}
    return found


def numbers(kind: TensorType, count: int, seed: int = 1) -> list[Array]:
    generator = np.random.default_rng(seed)
    return [generator.integers(-90, 90, kind.shape).astype(kind.dtype) for _ in range(count)]


X = TensorType((1, 4), "int32")
ZERO = np.zeros((1, 4), np.int32)


def swapped() -> Graph:
    """Two states that change places, one of them with the input added: a' = b + x, b' = a, c' = b."""
    nodes = [("add", ("b", "x"), _EXACT), ("sub", ("a", "b"), _EXACT), ("add", ("n1", "c"), _EXACT)]
    return graph_of({"a": ZERO + 3, "b": ZERO, "c": ZERO}, {"a": "n0", "b": "a", "c": "b"}, nodes, X)


def circle() -> Graph:
    """States that take each other's contents in a circle, and never the input's."""
    nodes = [("add", ("a", "x"), _EXACT)]
    return graph_of({"a": ZERO + 1, "b": ZERO + 2, "c": ZERO + 3}, {"a": "b", "b": "c", "c": "a"}, nodes, X)


def delayed() -> Graph:
    """A chain of delays, some through a view."""
    nodes: list[tuple[str, tuple[str, ...], dict[str, Any]]] = [
        ("reshape", ("a",), {"shape": (4,)}),
        ("reshape", ("n0",), {"shape": (1, 4)}),
        ("add", ("b", "x"), _EXACT),
    ]
    return graph_of({"a": ZERO, "b": ZERO}, {"a": "x", "b": "n1"}, nodes, X)


def written() -> Graph:
    """A row of a table is replaced in each run, at a place that is state, too."""
    nodes: list[tuple[str, tuple[str, ...], dict[str, Any]]] = [
        ("reshape", ("at",), {"shape": (1,)}),
        ("concat", ("n0", "column"), {"axis": 0}),
        ("sum", ("table",), {"axes": (0,), "keepdims": True}),
        ("dynamic_update_slice", ("table", "x", "n1"), {}),
        ("add", ("at", "one"), _EXACT),
        ("add", ("n2", "x"), _EXACT),
    ]
    consts = {"column": np.zeros(1, np.int32), "one": np.ones(1, np.int32)}
    state = {"table": np.zeros((3, 4), np.int32), "at": np.zeros(1, np.int32)}
    return graph_of(state, {"table": "n3", "at": "n4"}, nodes, X, consts)


def read_later() -> Graph:
    """The old contents of a table are read after the new ones were made, and these are read, too."""
    nodes: list[tuple[str, tuple[str, ...], dict[str, Any]]] = [
        ("dynamic_update_slice", ("table", "x", "at"), {}),
        ("sum", ("n0",), {"axes": (0,), "keepdims": True}),
        ("mul", ("n1", "x"), _EXACT),
        ("sum", ("table",), {"axes": (0,), "keepdims": True}),
        ("add", ("n2", "n3"), _EXACT),
    ]
    state = {"table": np.arange(12, dtype=np.int32).reshape(3, 4)}
    return graph_of(state, {"table": "n0"}, nodes, X, {"at": np.array([1, 0], np.int32)})


def started(dtype: str, start: Sequence[float]) -> Graph:
    """A running sum that begins somewhere."""
    kind = TensorType((1, 4), dtype)
    return graph_of(
        {"s": np.array([start], dtype)}, {"s": "n0"}, [("add", ("s", "x"), _EXACT), ("add", ("n0", "x"), _EXACT)], kind
    )


GRAPHS = {
    "swapped": swapped(),
    "circle": circle(),
    "delayed": delayed(),
    "written": written(),
    "read later": read_later(),
    "one number": started("int32", (7, 7, 7, 7)),
    "numbers": started("int32", (1, -2, 3, 4)),
    "real number": started("float32", (0.5, 0.5, 0.5, 0.5)),
    "infinity": started("float32", (-np.inf,) * 4),
    "real numbers": started("float32", (0.5, 1, 2, -4)),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_runs_resets_and_instances(name: str) -> None:
    """Every run gives what the references give, again after a reset, and for two instances that run by turns."""
    graph = GRAPHS[name]
    one = microc.compile(graph)
    two = one.instance()
    inputs = [numbers(graph.types["x"], 5, seed) for seed in (1, 2)]
    wanted = [expected(graph, arrays) for arrays in inputs]
    for _ in range(2):
        for k in range(5):
            np.testing.assert_array_equal(one(inputs[0][k]), wanted[0][k])
            np.testing.assert_array_equal(two(inputs[1][k]), wanted[1][k])
        one.reset()
        two.reset()
    np.testing.assert_array_equal(one.batch(inputs[0]), np.stack(wanted[0]))


def steps(graph: Graph) -> list[str]:
    program = microc.compile(graph, board="mps2-an386")
    assert isinstance(program, Program)
    return [layer["op"] for layer in program.report()["layers"]]


def test_state_is_written_in_place() -> None:
    """Neither a table of which a row changes, nor what a kernel can write over its operand, is copied."""
    assert "state" not in steps(written())
    assert "state" not in steps(started("int32", (7, 7, 7, 7)))


@pytest.mark.parametrize("board", ["mps2-an386", "mps3-an547", "qemu-riscv32", "microbit"])
def test_a_history_stays_where_it_is(board: str) -> None:
    """However a core copies, moving frames up is seen to be safe in place; and what is copied is copied by words."""
    kept = np.zeros((1, 40, 12), np.int8)
    nodes = [("shift_in", ("a", "x"), {"axis": 1}), ("abs", ("n0",), {})]
    program = microc.compile(graph_of({"a": kept}, {"a": "n0"}, nodes, TensorType((1, 2, 12), "int8")), board=board)
    assert isinstance(program, Program)
    layers = program.report()["layers"]
    assert [layer["op"] for layer in layers] == ["shift_in", "abs"]
    assert layers[0]["estimated_instructions"] < 1.2 * kept.nbytes


def test_what_is_still_needed_is_copied() -> None:
    assert steps(swapped()).count("state") == 3
    assert steps(read_later()).count("state") == 1
    assert steps(circle()).count("state") == 4  # one is put aside


def test_instances_in_c() -> None:
    """No state but in the arena: the generated C has no variable that changes."""
    program = microc.compile(written(), board="mps2-an386")
    assert isinstance(program, Program)
    text = str(program.files()["model.c"])
    assert not [
        line for line in text.splitlines() if line.startswith("static ") and "(" not in line and "const" not in line
    ]
