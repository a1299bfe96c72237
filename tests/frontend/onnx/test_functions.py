# SPDX-License-Identifier: Apache-2.0
"""Functions that a model defines itself: inlined wherever they are called, within bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from microc.errors import ModelError, UnsupportedError
from tests.frontend.onnx_model import evaluate, expected, node, ops, proto, read

RNG = np.random.default_rng(8)


def function(
    name: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    nodes: Sequence[Any],
    attributes: Sequence[str] = (),
    defaults: Mapping[str, float] = {},
) -> Any:
    protos = [helper.make_attribute(word, number) for word, number in defaults.items()]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    return helper.make_function("local", name, inputs, outputs, nodes, opsets, attributes, protos)


def referring(code: str, inputs: Sequence[str], outputs: Sequence[str], **references: str) -> Any:
    """A node whose float attributes are those of the function around it."""
    made = node(code, inputs, outputs)
    for name, of_function in references.items():
        made.attribute.add(name=name, type=onnx.AttributeProto.FLOAT, ref_attr_name=of_function)
    return made


def with_functions(model: Any, *functions: Any) -> Any:
    model.functions.extend(functions)
    model.opset_import.append(helper.make_opsetid("local", 1))
    return model


def call(name: str, inputs: Sequence[str], outputs: Sequence[str] = ("y",), **attrs: Any) -> Any:
    return node(name, inputs, outputs, "local", **attrs)


SLOPE = function("Slope", ["x"], ["y"], [referring("LeakyRelu", ["x"], ["y"], alpha="slope")], ["slope"])
PLAIN = function("Plain", ["x"], ["y"], [referring("Elu", ["x"], ["y"], alpha="a")], defaults={"a": 0.5})
TWICE = function(
    "Twice",
    ["x"],
    ["y"],
    [call("Slope", ["x"], ["t"], slope=0.25), call("Plain", ["t"], ["u"]), node("Add", ["t", "u"])],
)
PASSING = function("Passing", ["x", "z"], ["s", "x", "s"], [node("Add", ["x", "z"], ["s"])])


def test_attributes_defaults_and_nested_calls() -> None:
    """The body's names are its own: the model calls a value ``t``, too."""
    model = with_functions(
        proto([call("Twice", ["x"], ["t"]), call("Twice", ["t"])], {"x": (3, 4)}), SLOPE, PLAIN, TWICE
    )
    graph, x = read(model), RNG.standard_normal((3, 4)).astype(np.float32)
    assert ops(graph) == ["leaky_relu", "elu", "add"] * 2
    np.testing.assert_allclose(evaluate(graph, [x])[0], expected(model, [x])[0], rtol=1e-6)


def test_outputs_that_are_inputs_or_equal() -> None:
    nodes = [call("Passing", ["x", "x"], ["a", "b", "c"]), node("Sum", ["a", "b", "c"])]
    x = RNG.standard_normal((2, 3)).astype(np.float32)
    np.testing.assert_allclose(evaluate(read(with_functions(proto(nodes, {"x": (2, 3)}), PASSING)), [x])[0], 5 * x)


def test_calls_in_subgraphs() -> None:
    branches = {
        name: helper.make_graph(
            [call("Slope", ["x"], [name], slope=slope)], name, [], [helper.make_tensor_value_info(name, 1, (2,))]
        )
        for name, slope in (("then_branch", 0.5), ("else_branch", 0.125))
    }
    model = with_functions(proto([node("If", ["c"], **branches)], {"x": (2,), "c": ()}, dtypes={"c": "bool"}), SLOPE)
    graph = read(model)
    for condition in (True, False):
        inputs = [np.array([-8, 8], np.float32), np.array(condition)]
        np.testing.assert_array_equal(evaluate(graph, inputs)[0], [-4 if condition else -1, 8])


def test_an_operator_of_the_body_is_unknown() -> None:
    body = function("Odd", ["x"], ["y"], [node("Unheard", ["x"])])
    with pytest.raises(UnsupportedError, match="unknown to microc") as caught:
        read(with_functions(proto([call("Odd", ["x"])], {"x": (2,)}), body))
    assert "Unheard" in caught.value.where


def test_operands_that_do_not_suit_the_function_of_an_operator() -> None:
    """ONNX builds the body of SequenceMap from the type of its operand, which must be a sequence."""
    vector = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in ("a", "b")]
    body = helper.make_graph([node("Identity", ["a"], ["b"])], "body", vector[:1], vector[1:])
    with pytest.raises(ModelError, match="do not suit the operator's function: Expected a sequence type"):
        read(proto([node("SequenceMap", ["x"], body=body)], {"x": [2]}))


def test_functions_that_call_themselves() -> None:
    a, b = (function(name, ["x"], ["y"], [call(other, ["x"])]) for name, other in (("A", "B"), ("B", "A")))
    with pytest.raises(ModelError, match="calls itself"):
        read(with_functions(proto([call("A", ["x"])], {"x": (2,)}), a, b))


@pytest.mark.parametrize("calls", [1, 2])
def test_bounds_of_depth_and_number(calls: int) -> None:
    """A hundred functions that call each other, or that double the number of nodes thirty times."""
    count = 100 if calls == 1 else 30
    functions = [function("F0", ["x"], ["y"], [node("Relu", ["x"])])]
    for k in range(1, count):
        names = ["x", *(f"t{m}" for m in range(calls - 1)), "y"]
        nodes = [call(f"F{k - 1}", [first], [second]) for first, second in pairwise(names)]
        functions.append(function(f"F{k}", ["x"], ["y"], nodes))
    with pytest.raises(UnsupportedError, match="expected at most"):
        read(with_functions(proto([call(f"F{count - 1}", ["x"])], {"x": (2,)}), *functions))
