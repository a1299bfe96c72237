# SPDX-License-Identifier: Apache-2.0
"""State of TFLite models in compiled C: resource variables and recurrent layers, several instances of them, and resets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import microc
from microc.base.dtypes import Array
from microc.errors import UnsupportedError
from microc.frontend.tflite import reader as tflite
from tests.frontend.tflite.test_recurrent import data as recurrent_data
from tests.frontend.tflite.test_recurrent import lstm
from tests.frontend.tflite_model import Op, Subgraph, Tensor, constant, model

HANDLE = {"Container": "", "SharedName": "memory"}


def tflm_runs(data: bytes, inputs: Sequence[Array]) -> list[Array]:
    """What TFLite Micro gives call after call."""
    runtime = pytest.importorskip("tflite_micro").runtime
    interpreter = runtime.Interpreter.from_bytes(data, arena_size=1 << 20)
    found = []
    for x in inputs:
        interpreter.set_input(x, 0)
        interpreter.invoke()
        found.append(np.asarray(interpreter.get_output(0)).copy())
    return found


def check(data: bytes, inputs: Sequence[Array], tolerance: float = 0.0) -> None:
    """Two instances by turns, the second a call behind, then the first one again from a reset."""
    wanted = tflm_runs(data, inputs)
    one = microc.compile(tflite.read_tflite(data, "state.tflite"))
    two = one.instance()
    for k, x in enumerate(inputs):
        np.testing.assert_allclose(np.asarray(one(x)), wanted[k], rtol=tolerance, atol=tolerance)
        if k:
            np.testing.assert_allclose(np.asarray(two(inputs[k - 1])), wanted[k - 1], rtol=tolerance, atol=tolerance)
    one.reset()
    np.testing.assert_allclose(np.asarray(one(inputs[0])), wanted[0], rtol=tolerance, atol=tolerance)


def variables(initial: Array | None) -> bytes:
    """y = (memory + x) * x; memory = memory + x, which starts as ``initial`` by CALL_ONCE, or as nobody says."""
    tensors = [
        Tensor("x", (1, 3)),
        Tensor("handle", (), "RESOURCE"),
        *(Tensor(name, (1, 3)) for name in ("held", "sum", "y")),
    ]
    nodes = [
        Op("VAR_HANDLE", (), ("handle",), "VarHandleOptions", HANDLE),
        Op("READ_VARIABLE", ("handle",), ("held",)),
        Op("ADD", ("held", "x"), ("sum",), "AddOptions"),
        Op("ASSIGN_VARIABLE", ("handle", "sum"), ()),
        Op("MUL", ("sum", "x"), ("y",), "MulOptions"),
    ]
    if initial is None:
        return model(tensors, nodes, ["x"], ["y"])
    once = Subgraph(
        (Tensor("h", (), "RESOURCE"), constant("start", initial)),
        (Op("VAR_HANDLE", (), ("h",), "VarHandleOptions", HANDLE), Op("ASSIGN_VARIABLE", ("h", "start"), ())),
    )
    first = Op("CALL_ONCE", (), (), "CallOnceOptions", {"InitSubgraphIndex": 1})
    return model(tensors, [first, *nodes], ["x"], ["y"], [once])


@pytest.mark.parametrize("initial", [None, [0.0, 0.0, 0.0], [0.5, 0.5, 0.5], [1.0, -2.0, 3.0]])
def test_variables_start_as_call_once_says(initial: list[float] | None) -> None:
    rng = np.random.default_rng(1)
    start = None if initial is None else np.array([initial], np.float32)
    check(variables(start), [rng.standard_normal((1, 3)).astype(np.float32) for _ in range(4)], 1e-6)


@pytest.mark.parametrize("dtype", ["float32", "int8", "int16"])
def test_lstm_instances(dtype: str) -> None:
    tolerance = 1e-6 if dtype == "float32" else 0
    check(lstm(dtype, 1, 3, False, 0.0), [recurrent_data(dtype, (1, 3, 4)) for _ in range(3)], tolerance)


FIND = Op("VAR_HANDLE", (), ("h",), "VarHandleOptions", HANDLE)
READ, KEEP = Op("READ_VARIABLE", ("h",), ("held",)), Op("ASSIGN_VARIABLE", ("h", "sum"), ())
INNER = (Tensor("h", (), "RESOURCE"), Tensor("a", (3,)), Tensor("held", (3,)), Tensor("sum", (3,)), Tensor("b", (3,)))
START = np.array([0.5, -1.0, 2.0], np.float32)


def first(index: int) -> tuple[Op, Subgraph]:
    """What gives the variable its initial contents."""
    once = Subgraph((INNER[0], constant("start", START)), (FIND, Op("ASSIGN_VARIABLE", ("h", "start"), ())))
    return Op("CALL_ONCE", (), (), "CallOnceOptions", {"InitSubgraphIndex": index}), once


def chosen(*, handed: bool) -> bytes:
    """if c: memory += x, y = memory * x; else y = memory - x. Then z = y + memory. Sides find the variable, or are handed it."""
    find = () if handed else (FIND,)
    given: dict[str, Any] = {"inputs": ("h", "a") if handed else ("a",), "outputs": ("b",)}
    then = (READ, Op("ADD", ("held", "a"), ("sum",), "AddOptions"), KEEP, Op("MUL", ("sum", "a"), ("b",), "MulOptions"))
    otherwise = (READ, Op("SUB", ("held", "a"), ("b",), "SubOptions"))
    sides = [Subgraph(INNER, (*find, *steps), **given) for steps in (then, otherwise)]
    tensors = (
        *(Tensor("c", (1,), "BOOL"), Tensor("x", (3,)), Tensor("h", (), "RESOURCE")),
        *(Tensor(name, (3,)) for name in ("y", "now", "z")),
    )
    start, once = first(3)
    fields = {"ThenSubgraphIndex": 1, "ElseSubgraphIndex": 2}
    ops = (
        start,
        FIND,
        Op("IF", ("c", "h", "x") if handed else ("c", "x"), ("y",), "IfOptions", fields),
        Op("READ_VARIABLE", ("h",), ("now",)),
        Op("ADD", ("y", "now"), ("z",), "AddOptions"),
    )
    return model(tensors, ops, ("c", "x"), ("z",), (*sides, once))


def test_variables_in_branches() -> None:
    """Against numpy, and TFLite Micro where it is installed."""
    rng = np.random.default_rng(3)
    calls = [(np.array([rng.integers(2) > 0]), rng.standard_normal(3).astype(np.float32)) for _ in range(8)]
    for handed in (True, False):
        data, memory = chosen(handed=handed), START
        network = microc.compile(tflite.read_tflite(data, "state.tflite"))
        for c, x in calls:
            before = memory
            memory = memory + x if c[0] else memory
            y = memory * x if c[0] else before - x
            np.testing.assert_allclose(np.asarray(network(c, x)), y + memory, rtol=1e-6)
        network.reset()
        c, x = np.array([False]), np.ones(3, np.float32)
        np.testing.assert_allclose(np.asarray(network(c, x)), START - x + START, rtol=1e-6)


def test_branches_as_tflite_micro_runs_them() -> None:
    runtime = pytest.importorskip("tflite_micro").runtime
    data, rng = chosen(handed=False), np.random.default_rng(4)
    network = microc.compile(tflite.read_tflite(data, "state.tflite"))
    interpreter = runtime.Interpreter.from_bytes(data, arena_size=1 << 16)
    for k in range(6):
        c, x = np.array([k % 3 != 1]), rng.standard_normal(3).astype(np.float32)
        for position, array in enumerate((c, x)):
            interpreter.set_input(array, position)
        interpreter.invoke()
        np.testing.assert_allclose(np.asarray(network(c, x)), interpreter.get_output(0), rtol=1e-6)


def repeated(*, counted: bool) -> bytes:
    """While the number of the turn is below 3 (or the memory's first element below a limit): memory += x. y = memory."""
    count, limit = constant("most", np.array(3, np.int32)), constant("limit", np.array([4.0], np.float32))
    test = (
        (Op("LESS", ("t", "most"), ("go",), "LessOptions"),)
        if counted
        else (
            FIND,
            READ,
            Op("SLICE", ("held", "begin", "one"), ("head",), "SliceOptions"),
            Op("LESS", ("head", "limit"), ("go",), "LessOptions"),
        )
    )
    part = (constant("begin", np.array([0], np.int32)), constant("one", np.array([1], np.int32)), Tensor("head", (1,)))
    flag = Tensor("go", () if counted else (1,), "BOOL")
    turn = (Tensor("t", (), "INT32"), Tensor("next", (), "INT32"), constant("step", np.array(1, np.int32)))
    condition = Subgraph((*turn, *INNER, *part, count, limit, flag), test, ("t", "a"), ("go",))
    steps = (
        FIND,
        READ,
        Op("ADD", ("held", "a"), ("sum",), "AddOptions"),
        KEEP,
        Op("ADD", ("t", "step"), ("next",), "AddOptions"),
    )
    body = Subgraph((*turn, *INNER), steps, ("t", "a"), ("next", "a"))
    tensors = (
        *(constant("zero", np.array(0, np.int32)), Tensor("x", (3,)), Tensor("h", (), "RESOURCE")),
        *(Tensor("turns", (), "INT32"), Tensor("same", (3,)), Tensor("y", (3,))),
    )
    start, once = first(3)
    fields = {"CondSubgraphIndex": 1, "BodySubgraphIndex": 2}
    ops = (
        *(start, FIND, Op("WHILE", ("zero", "x"), ("turns", "same"), "WhileOptions", fields)),
        Op("READ_VARIABLE", ("h",), ("y",)),
    )
    return model(tensors, ops, ("x",), ("y",), (condition, body, once))


@pytest.mark.parametrize("counted", [True, False])
def test_variables_in_loops(counted: bool) -> None:
    network = microc.compile(tflite.read_tflite(repeated(counted=counted), "state.tflite"))
    memory = START
    for x in (np.array([0.7, 1.0, -2.0], np.float32), np.array([0.3, 0.1, 0.2], np.float32), np.ones(3, np.float32)):
        turns = 3
        while turns if counted else memory[0] < 4.0:
            memory, turns = memory + x, turns - 1
        np.testing.assert_allclose(np.asarray(network(x)), memory, rtol=1e-6)


def test_a_branch_in_a_loop() -> None:
    """Three times: if c: memory += x. What a branch inside of a body assigns goes out of both."""
    turn = (Tensor("t", (), "INT32"), Tensor("next", (), "INT32"), constant("step", np.array(1, np.int32)))
    most, flag = constant("most", np.array(3, np.int32)), Tensor("go", (), "BOOL")
    c = Tensor("c", (1,), "BOOL")
    condition = Subgraph(
        (*turn, c, *INNER, most, flag), (Op("LESS", ("t", "most"), ("go",), "LessOptions"),), ("t", "c", "a"), ("go",)
    )
    decide = Op("IF", ("c", "a"), ("b",), "IfOptions", {"ThenSubgraphIndex": 3, "ElseSubgraphIndex": 4})
    count = Op("ADD", ("t", "step"), ("next",), "AddOptions")
    body = Subgraph((*turn, c, *INNER), (decide, count), ("t", "c", "a"), ("next", "c", "a"))
    add = Op("ADD", ("held", "a"), ("sum",), "AddOptions")
    then, otherwise = Subgraph(INNER, (FIND, READ, add, KEEP), ("a",), ("sum",)), Subgraph(INNER, (), ("a",), ("a",))
    tensors = (
        *(constant("zero", np.array(0, np.int32)), c, Tensor("x", (3,)), Tensor("h", (), "RESOURCE")),
        *(Tensor("turns", (), "INT32"), Tensor("flag", (1,), "BOOL"), Tensor("same", (3,)), Tensor("y", (3,))),
    )
    fields = {"CondSubgraphIndex": 1, "BodySubgraphIndex": 2}
    loop = Op("WHILE", ("zero", "c", "x"), ("turns", "flag", "same"), "WhileOptions", fields)
    ops = (FIND, loop, Op("READ_VARIABLE", ("h",), ("y",)))
    data = model(tensors, ops, ("c", "x"), ("y",), (condition, body, then, otherwise))
    network, memory = microc.compile(tflite.read_tflite(data, "state.tflite")), np.zeros(3, np.float32)
    for go in (True, False, True):
        x = np.array([0.25, 1.0, -2.0], np.float32)
        memory = memory + 3 * x if go else memory
        np.testing.assert_allclose(np.asarray(network(np.array([go]), x)), memory, rtol=1e-6)


def test_what_is_refused_inside_of_control_flow() -> None:
    limit = (constant("limit", np.array([4.0, 4.0, 4.0], np.float32)), Tensor("go", (3,), "BOOL"))
    test = (FIND, Op("ASSIGN_VARIABLE", ("h", "a"), ()), Op("LESS", ("a", "limit"), ("go",), "LessOptions"))
    condition = Subgraph((*INNER, *limit), test, ("a",), ("go",))
    op = Op("WHILE", ("x",), ("y",), "WhileOptions", {"CondSubgraphIndex": 1, "BodySubgraphIndex": 2})
    tensors = (Tensor("x", (3,)), Tensor("y", (3,)))
    with pytest.raises(UnsupportedError, match="the condition assigns a variable"):
        tflite.read_tflite(
            model(tensors, (op,), ("x",), ("y",), (condition, Subgraph(INNER, (), ("a",), ("a",)))), "state.tflite"
        )
