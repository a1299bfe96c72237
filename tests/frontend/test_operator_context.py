# SPDX-License-Identifier: Apache-2.0
"""The base of the contexts of all formats: operands, axes and nodes, and the errors that name the operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.errors import ModelError, UnsupportedError
from microc.frontend.graph_builder import GraphBuilder
from microc.frontend.operator_context import MAX_INTEGERS, OperatorContext
from microc.frontend.signature import AttributeReader, Value
from microc.graph.ir import Attr


class Context(OperatorContext):
    """An operator whose inputs are values of a graph, found by their index."""

    constant_hint: ClassVar[str] = "make it a constant"

    def __init__(self, *constants: Array) -> None:
        self.builder: GraphBuilder = GraphBuilder("small.file")
        self.x = self.look_up(self.builder.input("x", (2, 3)))
        self.inputs = [self.x, *(self.new_constant("c", data) for data in constants)]

    @property
    def attributes(self) -> AttributeReader:
        raise NotImplementedError

    @property
    def where(self) -> str:
        return "small.file #0"

    def has_input(self, input_key: int) -> bool:
        return input_key < len(self.inputs)

    def input_count(self) -> int:
        return len(self.inputs)

    def value(self, input_key: int) -> Value:
        return self.inputs[input_key]

    def new_constant(self, stem: str, data: Array) -> Value:
        return self.look_up(self.builder.new_constant(stem, data))

    def emit(self, op: str, inputs: Sequence[str], attrs: Mapping[str, Attr] = {}) -> Value:
        return self.look_up(self.builder.emit(op, inputs, attrs))


def test_constant_operands() -> None:
    context = Context(np.array([2, -1]), np.array([0.5, 2], np.float32), np.array([[7]], np.int32), np.array([3.0]))
    assert context.integers(1) == (2, -1)
    assert context.reals(2) == (0.5, 2.0)
    assert (context.constant_integer(3), context.constant_number(4)) == (7, 3.0)
    assert context.data(context.value(1)).tolist() == [2, -1]


@pytest.mark.parametrize(
    ("read", "error", "text"),
    [
        (lambda c: c.constant(0), UnsupportedError, "input 0: got a computed tensor, expected a constant"),
        (lambda c: c.data(c.x), UnsupportedError, "'x': got a computed tensor, expected a constant"),
        (lambda c: c.integers(1), ModelError, f"input 1: got 65 elements of int64, expected at most {MAX_INTEGERS}"),
        (lambda c: c.integers(2), ModelError, "input 2: got 1 elements of float32"),
        (lambda c: c.constant_integer(2), ModelError, "of float32, expected one integer"),
        (lambda c: c.constant_number(1), ModelError, "of int64, expected one float"),
        (lambda c: c.axis(2, 2), ModelError, r"axis 2 of a tensor of rank 2, expected -2..1"),
        (lambda c: c.axis(0, 0), ModelError, r"axis 0 of a tensor of rank 0"),
        (lambda c: c.normalize_axes((1, -1), 2), ModelError, "expected each axis once"),
    ],
)
def test_refusals(read: Callable[[Context], Any], error: type[ModelError], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        read(Context(np.arange(MAX_INTEGERS + 1), np.ones(1, np.float32)))
    assert caught.value.where == "small.file #0"


def test_values_that_are_as_wanted_need_no_node() -> None:
    context = Context()
    assert context.reshape(context.x, (2, 3)) == context.transpose(context.x, (0, 1)) == "x"
    assert context.reshape(context.x, (3, 2)).shape == (3, 2)
    assert context.transpose(context.x, (1, 0)).shape == (3, 2)
    assert context.normalize_axes((-1, 0), 2) == (1, 0)
