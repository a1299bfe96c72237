# SPDX-License-Identifier: Apache-2.0
"""The graph interpreter: every value, state, and refusals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.errors import InternalError, UsageError
from microc.graph.ir import Node, run
from tests.graph.graphs import diamond

X = np.full((2, 3), -2, np.float32)


def apply(node: Node, arrays: Sequence[Array]) -> tuple[Array, ...]:
    match node.op:
        case "relu":
            return (np.maximum(arrays[0], 0),)
        case "mul":
            return (arrays[0] * arrays[1],)
        case _:
            return (arrays[0] + arrays[1] + 1,)


def test_every_value() -> None:
    values = run(diamond(), {"x": X}, apply)
    assert set(values) == {"x", "w", "s", "a", "b", "c"}
    assert not values["a"].any() and np.array_equal(values["c"], np.ones((2, 3)))


def test_state_goes_round() -> None:
    graph, state = diamond(), {"s": np.zeros((2, 3), np.float32)}
    for call in range(3):
        values = run(graph, {"x": X}, apply, state)
        state = {name: values[value] for name, value in graph.updates.items()}
        assert np.all(state["s"] == call + 1)


@pytest.mark.parametrize(
    "inputs", [{}, {"x": X, "y": X}, {"x": X.astype(np.int8)}, {"x": X[:1]}], ids=["none", "more", "dtype", "shape"]
)
def test_wrong_inputs_are_refused(inputs: dict[str, Array]) -> None:
    with pytest.raises(UsageError):
        run(diamond(), inputs, apply)


def test_wrong_state_is_refused() -> None:
    with pytest.raises(UsageError):
        run(diamond(), {"x": X}, apply, {})


def test_wrong_results_are_caught() -> None:
    with pytest.raises(InternalError, match="relu gave"):
        run(diamond(), {"x": X}, lambda node, arrays: (arrays[0][:1],))
    with pytest.raises(InternalError, match="got 0, expected 1"):
        run(diamond(), {"x": X}, lambda node, arrays: ())
