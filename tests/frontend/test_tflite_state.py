"""State of TFLite models in compiled C: resource variables and recurrent layers, several instances of them, and resets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import microc
from microc.dtypes import Array
from microc.errors import UnsupportedError
from microc.frontend import tflite
from tests.frontend.test_tflite_recurrent import data as recurrent_data
from tests.frontend.test_tflite_recurrent import lstm
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
    one = microc.compile(tflite.read(data, "state.tflite"))
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


def bodies(*, handed: bool) -> bytes:
    """A branch that changes a variable: it finds the variable itself, or is handed it."""
    tensors = (Tensor("c", (1,), "BOOL"), Tensor("x", (3,)), Tensor("h", (), "RESOURCE"), Tensor("y", (3,)))
    find = Op("VAR_HANDLE", (), ("h",), "VarHandleOptions", HANDLE)
    inner = (Tensor("h", (), "RESOURCE"), Tensor("a", (3,)), Tensor("held", (3,)), Tensor("b", (3,)))
    steps = (
        Op("READ_VARIABLE", ("h",), ("held",)),
        Op("ADD", ("held", "a"), ("b",), "AddOptions"),
        Op("ASSIGN_VARIABLE", ("h", "b"), ()),
    )
    given: dict[str, Any] = {"inputs": ("h", "a") if handed else ("a",), "outputs": ("b",)}
    side = Subgraph(inner, steps if handed else (find, *steps), **given)
    fields = {"ThenSubgraphIndex": 1, "ElseSubgraphIndex": 2}
    op = Op("IF", ("c", "h", "x") if handed else ("c", "x"), ("y",), "IfOptions", fields)
    return model(tensors, (find, op), ("c", "x"), ("y",), (side, side))


@pytest.mark.parametrize("handed", [True, False])
def test_variables_inside_of_control_flow_are_refused(handed: bool) -> None:
    with pytest.raises(UnsupportedError) as refusal:
        tflite.read(bodies(handed=handed), "state.tflite")
    assert "IF" in str(refusal.value) and "variable" in str(refusal.value) and "carry" in str(refusal.value)
