# SPDX-License-Identifier: Apache-2.0
"""Attributes are declared: whatever else an application has is refused, with the name of the pass that made it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from microc.errors import InternalError, ModelError
from microc.frontend.model_limits import infer_types
from microc.graph.ir import Attr, Graph, Node, TensorType
from microc.ops import registry
from microc.ops.attributes import (
    OPTIONAL,
    Absent,
    DocumentedEnum,
    Rounding,
    attribute_error_message,
    choice,
    element_type,
    int_rows,
    integer,
    integers,
    real,
)
from microc.transform.pass_context import Pass, PassContext, run_passes

KIND = TensorType((1, 4, 4, 2), "float32")


def _graph(op: str, attrs: dict[str, Attr]) -> Graph:
    return Graph("net", ("x",), ("y",), (Node(op, ("x",), ("y",), attrs),), {"x": KIND, "y": KIND}, {}, {}, {})


@pytest.mark.parametrize(
    ("attrs", "said"),
    [
        ({"rounding": "evn"}, "rounding='evn' has an unknown value; expected one of 'double', 'single', 'even', ''"),
        ({"rounding": "double", "kernel_size": 3}, "no attribute 'kernel_size'; it has rounding"),
        ({"rouding": "double"}, "no attribute 'rouding'; did you mean rounding?"),
        ({"rounding": 3}, "rounding=3 has a wrong type; expected str"),
    ],
)
def test_the_pass_that_made_it_is_named(attrs: dict[str, Attr], said: str) -> None:
    def spoil(graph: Graph, context: PassContext) -> Graph:
        return graph.with_nodes([replace(node, attrs=attrs) for node in graph.nodes])

    with pytest.raises(InternalError) as caught:
        run_passes(_graph("relu", {"rounding": "double"}), (Pass("spoil", spoil),), PassContext())
    assert said in caught.value.what and "pass spoil" in (caught.value.where or "")


@pytest.mark.parametrize("op", sorted(registry.registry()))
def test_cases_have_what_is_declared(op: str) -> None:
    definition = registry.get(op)
    assert attribute_error_message(definition.attrs, definition.defaults) in ("", *_missing(op))
    for case in definition.cases():
        assert not attribute_error_message(definition.attrs, {**definition.defaults, **case.attrs}), case.name


def _missing(op: str) -> list[str]:
    needed = [n for n, each in registry.get(op).attrs.items() if each.default is Absent.REQUIRED]
    return [f"attribute {name!r} is missing" for name in needed]


def test_what_a_declaration_refuses() -> None:
    declared = {
        "axes": integers("", length=2, least=0),
        "shift": integer("", None),
        "alpha": real("", 1.0),
        "mode": choice("", "a", "b", default="a"),
        "dtype": element_type("", ""),
        "pairs": int_rows(""),
        "open": integers("", OPTIONAL),
    }
    whole: dict[str, Any] = {
        "axes": (0, 1),
        "shift": None,
        "alpha": 0.5,
        "mode": "b",
        "dtype": "int8",
        "pairs": ((1, 2), ()),
    }
    assert not attribute_error_message(declared, whole) and not attribute_error_message(
        declared, {**whole, "open": (1,)}
    )
    wrong: tuple[tuple[str, Any, str], ...] = (
        ("axes", (0,), "has a wrong length; got 1 elements, expected 2"),
        ("axes", (0, -1), "is too small; expected at least 0"),
        ("axes", [0, 1], "has a wrong type; expected ints"),
        ("axes", (0, True), "has a wrong type; expected ints"),
        ("shift", 1.0, "has a wrong type; expected int"),
        ("alpha", 1, "has a wrong type; expected float"),
        ("alpha", None, "has a wrong type; expected float"),
        ("mode", "c", "has an unknown value; expected one of 'a', 'b'"),
        ("dtype", "int9", "has a wrong type; expected dtype"),
        ("pairs", (1, 2), "has a wrong type; expected rows of ints"),
    )
    for name, value, said in wrong:
        assert attribute_error_message(declared, {**whole, name: value}) == f"attribute {name}={value!r} {said}"
    assert attribute_error_message(declared, {"alpha": 1.0}) == "attribute 'axes' is missing"


def test_a_reader_refuses_with_the_place() -> None:
    with pytest.raises(ModelError) as caught:
        infer_types("max_pool2d", {"kernel": (2, 2), "strides": (0, 1)}, [KIND], "net.mcg #3")
    assert (
        "strides=(0, 1) is too small; expected at least 1" in caught.value.what and caught.value.where == "net.mcg #3"
    )


def test_the_table_of_sigmoid_has_a_dtype() -> None:
    attrs, x = {"curve": "sigmoid", "multiplier": 3, "shift": 0}, TensorType((4,), "int16")
    infer_types("qsigmoid16", attrs, [x, TensorType((513,), "uint16")], "net.mcg #3")
    with pytest.raises(ModelError, match=r"table int16 \(513,\), expected int16 and uint16 \(513,\)"):
        infer_types("qsigmoid16", attrs, [x, TensorType((513,), "int16")], "net.mcg #3")


def test_every_rounding_is_an_answer() -> None:
    """What may be written is a value of an enumeration; graphs compare and print it as the plain string."""
    for name, operator in registry.registry().items():
        declared = operator.attrs.get("rounding")
        for value in declared.choices if declared else ():
            assert isinstance(value, DocumentedEnum) and value.meaning, name
            assert f"{value!r}" == repr(str(value))
    graph = _graph("relu", {"rounding": Rounding.SINGLE})
    assert graph == _graph("relu", {"rounding": "single"}) and str(graph) == str(_graph("relu", {"rounding": "single"}))
