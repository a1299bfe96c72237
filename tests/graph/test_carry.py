# SPDX-License-Identifier: Apache-2.0
"""Inputs that become state: they start as zero and are what an output was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import microc
from microc.base.dtypes import Array
from microc.errors import UsageError
from microc.graph.cut import convert_inputs_to_state
from microc.graph.ir import Graph
from tests.frontend.onnx_model import node, onnx, proto, read

RNG = np.random.default_rng(5)
STATE = {"past": "present", "count": "counted"}


def model() -> onnx.ModelProto:
    """y = x + past, which becomes the present; counts its runs."""
    nodes = (
        node("Add", ("x", "past"), ("present",)),
        node("Mul", ("present", "two"), ("y",)),
        node("Add", ("count", "one"), ("counted",)),
    )
    constants = {"two": np.array([2], np.float32), "one": np.array([1], np.int32)}
    shapes = {"x": (1, 3), "past": (1, 3), "count": (1,)}
    kinds = {"count": "int32", "counted": "int32"}
    made = proto(nodes, shapes, constants, ("y", "present", "counted"), dtypes=kinds)
    made.graph.output[1].CopyFrom(onnx.helper.make_tensor_value_info("present", 1, (1, 3)))
    return made


def graph() -> Graph:
    return read(model())


def test_ends_become_state() -> None:
    made = convert_inputs_to_state(graph(), STATE)
    assert (made.inputs, made.outputs, made.updates) == (("x",), ("y",), STATE)
    assert {name: data.sum() for name, data in made.state.items()} == {"past": 0, "count": 0}


def test_what_was_comes_back_and_reset_forgets_it(tmp_path: Path) -> None:
    file = tmp_path / "sums.onnx"
    onnx.save_model(model(), file)
    lib = microc.compile(file, state=STATE)
    total: Array = np.zeros((1, 3), np.float32)
    for _ in range(3):
        x = RNG.integers(-9, 9, (1, 3)).astype(np.float32)
        total = total + x
        np.testing.assert_array_equal(lib(x), 2 * total)
    lib.reset()
    np.testing.assert_array_equal(lib(x), 2 * x)


def test_held_against_the_runtime_of_the_model(tmp_path: Path) -> None:
    """ONNX Runtime is fed with what it made."""
    pytest.importorskip("onnxruntime")
    file = tmp_path / "sums.onnx"
    onnx.save_model(model(), file)
    assert microc.verify(file, against="onnxruntime", state=STATE).agrees


@pytest.mark.parametrize(
    ("pairs", "what"),
    [
        ({"pas": "present"}, "no input 'pas'"),
        ({"past": "presents"}, "no output 'presents'"),
        ({"x": "present", "past": "present"}, "two states"),
        ({"count": "present"}, r"'count' changes its type; .* expected int32\[1\]"),
        ({"x": "y", "past": "present", "count": "counted"}, "no output would be left"),
    ],
)
def test_pairs_that_do_not_fit_are_refused(pairs: dict[str, str], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        convert_inputs_to_state(graph(), pairs)
