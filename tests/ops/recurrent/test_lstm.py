"""LSTM: the loop that it names computes what its reference says; what makes no sense is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from microc.errors import ModelError, UnsupportedError
from microc.graph import interp
from microc.graph.ir import Graph, Node, TensorType
from microc.ops import registry
from microc.ops.meaning import reference_node_function
from microc.ops.recurrent.lstm import OPERATORS, expand_lstm
from microc.ops.registry import Case
from tests.ops.edges import case_arrays
from tests.ops.harness import assert_same, attributes


@pytest.mark.parametrize("case", list(OPERATORS[0].cases()), ids=lambda case: f"{case.types[0].shape} {case.name}")
def test_the_loop_is_the_reference(case: Case) -> None:
    definition = OPERATORS[0]
    arrays = case_arrays(case)
    names = definition.operand_names[: len(arrays)]
    attrs = {**attributes(definition, case), "rounding": ""}
    outputs = ("rows", "last", "state")
    kinds = dict(zip((*names, *outputs), (*case.types, *definition.infer(attrs, case.types)), strict=True))
    consts = {names[k]: arrays[k] for k in case.consts}
    inputs = tuple(name for name in names if name not in consts)
    graph = Graph("g", inputs, outputs, (Node("lstm", names, outputs, attrs),), kinds, consts)
    values = interp.run(
        graph, {n: a for n, a in zip(names, arrays, strict=True) if n not in consts}, reference_node_function(graph)
    )
    for name, wanted in zip(outputs, definition.reference(attrs, arrays), strict=True):
        assert_same(values[name], wanted, case.tolerance)


@pytest.mark.parametrize(
    "changed", [{0: (2, 3)}, {1: (12, 5)}, {2: (12, 4)}, {3: (2, 3)}, {5: (3,)}, {1: (16, 4)}], ids=str
)
def test_operands_that_do_not_fit_are_refused(changed: dict[int, tuple[int, ...]]) -> None:
    shapes: dict[int, Any] = {0: (1, 5, 4), 1: (12, 4), 2: (12, 3), 3: (1, 3), 4: (1, 3), 5: (12,)}
    kinds = [TensorType({**shapes, **changed}[k], "float32") for k in range(6)]
    with pytest.raises(ModelError, match=r"lstm: .* float32"):
        registry.infer("lstm", {}, kinds)


def test_weights_have_to_be_known() -> None:
    case = next(iter(OPERATORS[0].cases()))
    names = OPERATORS[0].operand_names
    node = Node("lstm", names, ("y", "h", "c"), attributes(OPERATORS[0], case))
    graph = Graph("g", names, ("y",), (node,), dict(zip(names, case.types, strict=True)), {names[1]: np.ones((12, 4))})
    with pytest.raises(UnsupportedError, match="'recurrent' is computed when"):
        expand_lstm(node, graph)
