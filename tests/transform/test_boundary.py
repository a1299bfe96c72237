# SPDX-License-Identifier: Apache-2.0
"""Inputs and outputs in other dtypes and layouts: the same network, converted at its ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import microc
from microc.base.dtypes import Array
from microc.errors import UsageError
from microc.graph.ir import Graph, Node, TensorType
from microc.transform.boundary import Boundary, adapt_inputs_and_outputs
from tests.support import digits

QUANT = {"scale": (0.5,), "zero_point": (-3,), "axis": None}
KIND = TensorType((1, 6), "float32")


def run(options: dict[str, Any], image: Array, model: Any = digits.INT8) -> Array:
    result = microc.compile(model, **options)(image)
    assert isinstance(result, np.ndarray)
    return result


def scale_of(what: str) -> tuple[float, int]:
    graph = microc.load(digits.INT8)
    quant = graph.types[getattr(graph, what)[0]].quant
    assert quant is not None
    return quant.scale[0], quant.zero_point[0]


def test_a_quantised_network_takes_and_gives_floats() -> None:
    image = digits.images(1)[0]
    wanted = run({}, image)
    scale, zero = scale_of("inputs")
    real = ((image.astype(np.int32) - zero) * np.float32(scale)).astype(np.float32)
    np.testing.assert_array_equal(run({"input_dtype": "float32"}, real), wanted)
    scale, zero = scale_of("outputs")
    got = run({"output_dtype": "float32"}, image)
    np.testing.assert_array_equal(got, (wanted.astype(np.float32) - zero) * np.float32(scale))


def test_quantising_rounds_as_the_format_does() -> None:
    """TFLite rounds half away from zero: 0.5 of a step beyond a level goes up."""
    graph = adapt_inputs_and_outputs(microc.load(digits.INT8), Boundary(input_dtypes={"*": "float32"}))
    assert graph.nodes[0].op == "quantize" and graph.nodes[0].attrs["rounding"] == "away"
    assert graph.inputs == ("image",) and graph.types["image"].quant is None


def test_the_other_sign() -> None:
    image = digits.images(1)[0]
    wanted = run({}, image)
    shifted = (image.astype(np.int32) + 128).astype(np.uint8)
    library = microc.compile(digits.INT8, input_dtype="uint8", output_dtype={"probabilities": "uint8"})
    np.testing.assert_array_equal(library(shifted), (wanted.astype(np.int32) + 128).astype(np.uint8))
    assert library.inputs[0]["zero_point"] == scale_of("inputs")[1] + 128


def test_layouts() -> None:
    image = np.random.default_rng(0).integers(-128, 128, (1, 4, 4, 24)).astype(np.int8)
    options = {"inputs": "pointwise3", "outputs": "conv4"}
    wanted = run(options, image)
    got = run({**options, "input_layout": "NCHW", "output_layout": "NCHW"}, image.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(got.transpose(0, 2, 3, 1), wanted)
    np.testing.assert_array_equal(run({**options, "input_layout": "NHWC"}, image), wanted)


def test_an_onnx_image_in_channels_last_needs_no_transposition() -> None:
    graph = microc.load(digits.FLOAT)
    name = graph.inputs[0]
    changed = adapt_inputs_and_outputs(graph, Boundary(input_layouts={name: "NHWC"}))
    shape = graph.types[name].shape
    assert changed.types[name].shape == (shape[0], *shape[2:], shape[1])
    x = np.random.default_rng(1).random(shape, np.float32)
    got = run({"input_layout": {name: "NHWC"}}, x.transpose(0, 2, 3, 1), digits.FLOAT)
    np.testing.assert_array_equal(got, run({}, x, digits.FLOAT))


def test_layout_and_dtype_together_move_the_smaller_numbers() -> None:
    part = microc.load(digits.INT8, inputs="pointwise3", outputs="conv4", input_layout="NCHW", input_dtype="float32")
    assert [node.op for node in part.nodes[:2]] == ["quantize", "transpose"]


def qdq(**changes: Any) -> Graph:
    """x is quantised, dequantised, clipped; y is dequantised again."""
    nodes = (
        Node("quantize", ("x",), ("q",), {**QUANT, "out_dtype": "int8", "rounding": "even"}),
        Node("dequantize", ("q",), ("r",), QUANT),
        Node("relu", ("r",), ("s",)),
        Node("quantize", ("s",), ("t",), {**QUANT, "out_dtype": "int8", "rounding": "even"}),
        Node("dequantize", ("t",), ("y",), QUANT),
    )
    kinds = {**dict.fromkeys("xrsy", KIND), **dict.fromkeys("qt", TensorType((1, 6), "int8"))}
    return Graph(**{"name": "net", "inputs": ("x",), "outputs": ("y",), "nodes": nodes, "types": kinds, **changes})


def test_a_float_network_that_quantises_takes_the_integers() -> None:
    x = np.array([[-128, -3, -1, 0, 7, 127]], np.int8)
    graph = adapt_inputs_and_outputs(qdq(), Boundary({"x": "int8"}, {"y": "int8"}))
    assert [node.op for node in graph.nodes] == ["dequantize", "relu", "quantize"]
    assert (graph.inputs, graph.outputs) == (("x",), ("y",))
    np.testing.assert_array_equal(run({}, x, graph), np.maximum(x, -3))
    unsigned = run({"input_dtype": "uint8"}, (x.astype(np.int32) + 128).astype(np.uint8), qdq())
    np.testing.assert_array_equal(unsigned, (np.maximum(x, -3).astype(np.float32) + 3) * 0.5)


def test_real_qdq_model_in_integers() -> None:
    graph = microc.load(digits.QDQ)
    (name,), (result,) = graph.inputs, graph.outputs
    kind = graph.types[name]
    whole = adapt_inputs_and_outputs(graph, Boundary(input_dtypes={"*": "uint8"}))
    quant = whole.types[name].quant
    assert quant is not None and whole.types[name].dtype == "uint8"
    x = np.random.default_rng(2).integers(0, 256, kind.shape).astype(np.uint8)
    real = ((x.astype(np.int32) - quant.zero_point[0]) * np.float32(quant.scale[0])).astype(np.float32)
    np.testing.assert_array_equal(run({}, x, whole), run({}, real, digits.QDQ))
    assert result in whole.outputs


@pytest.mark.parametrize(
    ("inner", "outer"), [("int64", "int32"), ("float32", "float64"), ("float32", "float16"), ("int32", "uint8")]
)
def test_plain_numbers_are_cast(inner: str, outer: str) -> None:
    kind = TensorType((2, 3), inner)
    graph = Graph(
        "net",
        ("x",),
        ("y",),
        (Node("reshape", ("x",), ("y",), {"shape": (6,)}),),
        {"x": kind, "y": TensorType((6,), inner)},
    )
    x = np.arange(6).reshape(2, 3).astype(outer)
    got = run({"input_dtype": {"x": outer}, "output_dtype": {"y": outer}}, x, graph)
    np.testing.assert_array_equal(got, x.reshape(6), strict=True)


@pytest.mark.parametrize(
    ("wishes", "what"),
    [
        ({"input_dtypes": {"z": "int8"}}, "no input 'z'"),
        ({"output_layouts": {"z": "NCHW"}}, "no output 'z'"),
        ({"input_dtypes": {"x": "int9"}}, "cannot have dtype 'int9'"),
        ({"input_layouts": {"x": "CHW"}}, "cannot have layout"),
        ({"input_layouts": {"x": "NCHW"}}, "no layout"),
    ],
)
def test_refusals(wishes: dict[str, Any], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        adapt_inputs_and_outputs(qdq(), Boundary(**wishes))


def test_integers_without_a_scale_are_refused() -> None:
    with pytest.raises(UsageError, match="cannot become an integer"):
        adapt_inputs_and_outputs(microc.load(digits.FLOAT), Boundary(input_dtypes={"*": "int8"}))
    with pytest.raises(UsageError, match="cannot become an integer"):
        adapt_inputs_and_outputs(qdq(outputs=("y", "q")), Boundary(input_dtypes={"x": "int8"}))
    with pytest.raises(UsageError, match="quantised int8 and cannot become int16"):
        adapt_inputs_and_outputs(microc.load(digits.INT8), Boundary(input_dtypes={"*": "int16"}))


def test_every_speaks_of_real_numbers_and_images_only() -> None:
    kinds = {"ids": TensorType((3,), "int32"), "y": TensorType((3,), "int32")}
    graph = Graph("net", ("ids",), ("y",), (Node("abs", ("ids",), ("y",)),), kinds)
    assert adapt_inputs_and_outputs(graph, Boundary({"*": "float32"}, {}, {"*": "NCHW"})).types == kinds
