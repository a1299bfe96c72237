# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers: the loops that they name compute what their references say; what makes no sense is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.errors import ModelError, UnsupportedError
from microc.graph import ir
from microc.graph.ir import Graph, Node, Quant, TensorType
from microc.ops import registry
from microc.ops.meaning import reference_node_function
from microc.ops.recurrent.layers import OPERATORS, expand_layer
from microc.ops.registry import Case, OpDef
from tests.ops.edges import case_arrays
from tests.ops.harness import assert_same, attributes

CASES = [(definition, case) for definition in OPERATORS for case in definition.cases()]


def name_of(value: Any) -> str:
    return value.name if isinstance(value, OpDef) else f"{value.types[0].shape} {value.name}"


def layer(definition: OpDef, case: Case, arrays: list[Array]) -> Graph:
    """A graph of this layer alone."""
    attrs = {**attributes(definition, case), "rounding": ""}
    names = [f"operand_{k}" for k in range(len(arrays))]
    types = definition.infer(attrs, case.types)
    outputs = tuple(f"result_{k}" for k in range(len(types)))
    consts = {names[k]: arrays[k] for k in case.consts}
    return Graph(
        "g",
        tuple(name for name in names if name not in consts),
        outputs,
        (Node(definition.name, tuple(names), outputs, attrs),),
        dict(zip((*names, *outputs), (*case.types, *types), strict=True)),
        consts,
    )


@pytest.mark.parametrize(("definition", "case"), CASES, ids=name_of)
def test_the_loop_is_the_reference(definition: OpDef, case: Case) -> None:
    arrays = [*case_arrays(case)]
    graph = layer(definition, case, arrays)
    names = graph.nodes[0].inputs
    inputs = {n: a for n, a in zip(names, arrays, strict=True) if n not in graph.consts}
    values = ir.run(graph, inputs, reference_node_function(graph))
    wanted = definition.reference(attributes(definition, case), arrays)
    for name, result in zip(graph.outputs, wanted, strict=True):
        assert_same(values[name], result, case.tolerance)


def test_products_of_all_steps_come_first_if_they_are_small() -> None:
    """They are then computed by one dense layer in front of the loop."""
    for definition, case in CASES:
        nodes, _, _ = expand_layer((graph := layer(definition, case, [*case_arrays(case)])).nodes[0], graph)
        rows, depth = case.types[1].shape
        assert ("dense" in [node.op for node in nodes]) == (rows <= depth), (definition.name, case)


@pytest.mark.parametrize(
    "changed", [{0: (2, 3)}, {1: (12, 5)}, {2: (12, 4)}, {3: (2, 3)}, {5: (3,)}, {1: (16, 4)}], ids=str
)
def test_operands_that_do_not_fit_are_refused(changed: dict[int, tuple[int, ...]]) -> None:
    shapes: dict[int, Any] = {0: (1, 5, 4), 1: (12, 4), 2: (12, 3), 3: (1, 3), 4: (1, 3), 5: (12,)}
    kinds = [TensorType({**shapes, **changed}[k], "float32") for k in range(6)]
    with pytest.raises(ModelError, match=r"lstm: .* float32"):
        registry.infer("lstm", {}, kinds)


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"activations": ("sin", "tanh", "tanh")}, "activations sin, tanh, tanh"),
        ({"activations": ("tanh",)}, "expected 3 of"),
        ({"activations": ("affine", "tanh", "tanh"), "activation_parameters": (1.0,)}, "got 1 parameters"),
        ({"activation_parameters": (1.0,)}, "got 1 parameters"),
        ({"optional": ("lengths", "peephole_z")}, "peephole_z"),
        ({"optional": ()}, "got 6 operands"),
        ({"gates": "fogi"}, "gates"),
    ],
    ids=str,
)
def test_attributes_that_make_no_sense_are_refused(attrs: Mapping[str, Any], message: str) -> None:
    shapes = ((1, 5, 4), (12, 4), (12, 3), (1, 3), (1, 3), (12,))
    with pytest.raises(ModelError, match=message):
        registry.infer("lstm", attrs, [TensorType(shape, "float32") for shape in shapes])


def quantised(computed: bool, **attrs: Any) -> Graph:
    """A graph of one LSTM on int8 data."""
    quant, rows = Quant((0.1,), (0,)), Quant((0.1,) * 8, (0,) * 8, 0)
    kinds = {
        "x": TensorType((1, 2, 3), "int8", quant),
        "w": TensorType((8, 3), "int8", rows),
        "r": TensorType((8, 2), "int8", rows),
        "h": TensorType((1, 2), "int8", quant),
        "c": TensorType((1, 2), "int16", Quant((2.0**-11,), (0,))),
    }
    whole = {**OPERATORS[0].defaults, **attrs}
    node = Node("lstm", tuple(kinds), ("y", "h1", "c1"), whole)
    consts = {"w": np.ones((8, 3), np.int8), **({} if computed else {"r": np.ones((8, 2), np.int8)})}
    inputs = tuple(name for name in kinds if name not in consts)
    results = dict(zip(node.outputs, registry.infer("lstm", whole, [*kinds.values()]), strict=True))
    return Graph("g", inputs, ("y",), (node,), {**kinds, **results}, consts)


def test_integer_weights_have_to_be_known() -> None:
    with pytest.raises(UnsupportedError, match="'r' is computed when"):
        expand_layer((graph := quantised(computed=True)).nodes[0], graph)


def test_only_plain_cells_are_quantised() -> None:
    quantised(computed=False)
    for attrs in ({"gates": "iofg"}, {"clip": 1.0}, {"activations": ("sigmoid", "relu", "tanh")}):
        with pytest.raises(ModelError, match="options of cells with int8 data"):
            quantised(computed=False, **attrs)
