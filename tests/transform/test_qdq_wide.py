# SPDX-License-Identifier: Apache-2.0
"""QDQ networks with activations of 16 bits, and of 8 and 16 bits side by side: recognised, right, and the same in C."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.compiler.options import Options
from microc.compiler.pipeline import optimise_graph
from microc.graph.ir import Graph
from microc.graph.text import nested_graphs
from microc.ops import registry
from microc.ops.meaning import evaluate
from tests.frontend.onnx_model import expected, node, ops, read
from tests.frontend.run import library
from tests.support.campaign import in_turn
from tests.transform.test_qdq import Net, node_of, recognised

SCALES = {"int8": (0.05, 3), "uint8": (0.05, 130), "int16": (2e-4, 0), "uint16": (2e-4, 33000)}
RESULTS = {"int8": 0.07, "uint8": 0.07, "int16": 3e-4, "uint16": 3e-4}


class Wide(Net):
    """Values quantised as their dtype has it."""

    def into(self, value: str, dtype: str) -> str:
        scale, zero = SCALES[dtype]
        return self.qdq(value, scale, zero, dtype)

    def ends(self, value: str, dtype: str) -> Any:
        return self.model(self.qdq(value, RESULTS[dtype], SCALES[dtype][1], dtype), opset=21)


def _two(code: str, *shapes: tuple[int, ...], **attrs: Any) -> Callable[[str, str], tuple[Wide, str]]:
    """An operator of two quantised values, of both dtypes where these differ."""

    def made(first: str, second: str) -> tuple[Wide, str]:
        net = Wide(x=shapes[0], y=shapes[-1])
        return net, net.op(code, net.into("x", first), net.into("y", second), **attrs)

    return made


def _one(code: str, shape: tuple[int, ...], **attrs: Any) -> Callable[[str, str], tuple[Wide, str]]:
    def made(first: str, _: str) -> tuple[Wide, str]:
        net = Wide(x=shape)
        return net, net.op(code, net.into("x", first), **attrs)

    return made


def _layer(
    code: str, shape: tuple[int, ...], weights: tuple[int, ...], **attrs: Any
) -> Callable[..., tuple[Wide, str]]:
    def made(first: str, _: str) -> tuple[Wide, str]:
        net = Wide(x=shape)
        units = weights[1] if code == "ConvTranspose" else weights[0]
        bias = net.bias(units, np.float32(SCALES[first][0]) * np.float32(0.01))
        return net, net.op(code, net.into("x", first), net.weight(*weights), bias, **attrs)

    return made


OPERATORS: dict[str, Callable[[str, str], tuple[Wide, str]]] = {
    "conv": _layer("Conv", (1, 3, 6, 5), (4, 3, 3, 3), pads=[1, 1, 1, 1]),
    "depthwise": _layer("Conv", (1, 3, 6, 5), (3, 1, 3, 3), group=3, pads=[1, 1, 1, 1]),
    "transposed": _layer("ConvTranspose", (1, 3, 4, 4), (3, 2, 2, 2), strides=[2, 2]),
    "dense": _layer("Gemm", (3, 7), (5, 7), transB=1),
    "matmul": _two("MatMul", (2, 3, 5), (2, 5, 4)),
    "add": _two("Add", (2, 9), (1, 9)),
    "sub": _two("Sub", (2, 9), (2, 9)),
    "mul": _two("Mul", (2, 9), (2, 1)),
    "div": _two("Div", (2, 9), (2, 9)),
    "maximum": _two("Max", (2, 9), (1, 9)),
    "minimum": _two("Min", (2, 9), (2, 9)),
    "concat": _two("Concat", (2, 9), (2, 4), axis=1),
    "average": _one("AveragePool", (1, 2, 6, 6), kernel_shape=[3, 3], strides=[1, 1]),
    "largest": _one("MaxPool", (1, 2, 6, 6), kernel_shape=[2, 2], strides=[2, 2]),
    "mean": _one("GlobalAveragePool", (1, 2, 5, 5)),
    "relu": _one("Relu", (3, 7)),
    "clip": lambda first, _: _clip(first),
    "leaky": _one("LeakyRelu", (3, 7), alpha=0.1),
    "sigmoid": _one("Sigmoid", (3, 7)),
    "tanh": _one("Tanh", (3, 7)),
    "softmax": _one("Softmax", (3, 7), axis=-1),
    "transpose": _one("Transpose", (3, 7), perm=[1, 0]),
}


def _clip(first: str) -> tuple[Wide, str]:
    net = Wide(x=(3, 7))
    return net, net.op("Clip", net.into("x", first), *(net.constant(np.float32(end)) for end in (-1.0, 4.0)))


def data(graph: Graph) -> list[dict[str, Array]]:
    """Random numbers, the same whichever tests ran before, and the ends of the ranges."""
    rng = np.random.default_rng(38)
    sizes = [(0.3, 0.0), (3.0, 0.0), (40.0, 0.0), (0.0, 100.0), (0.0, -100.0)]
    return [
        {name: rng.normal(mean, size, graph.types[name].shape).astype(np.float32) for name in graph.inputs}
        for size, mean in sizes
    ]


WAYS = [
    (*kinds, how) for how in ("float", "fixed") for kinds in product(("int8", "int16"), repeat=3) if "int16" in kinds
]
"""Dtypes of two operands and of the result, and what requantises it."""


@pytest.mark.parametrize(("name", "way"), in_turn(list(OPERATORS), WAYS, 3))
def test_operators(name: str, way: tuple[str, str, str, str]) -> None:
    """On integers throughout; C does what the graph says, which is within a quantum what ONNX Runtime computes."""
    first, second, last, requantize = way
    if first != second and len(OPERATORS[name](first, second)[0].inputs) == 1:
        pytest.skip("it has one operand")
    net, result = OPERATORS[name](first, second)
    model = net.ends(result, last)
    written = read(model)
    found = recognised(written)
    inner = [each for each in found.nodes if each.op not in ("quantize", "dequantize")]
    assert all(dtypes.is_integer(found.types[each.outputs[0]].dtype) for each in inner), ops(found)
    options = Options(requantize=requantize)
    graph = optimise_graph(replace(written, name="wide"), options)
    made, quantum = library(written, options), RESULTS[last]
    for inputs in data(written):
        (wanted,) = expected(model, list(inputs.values()))
        (meant,), _ = evaluate(graph, inputs)
        given = made(*inputs.values())
        np.testing.assert_array_equal(given, meant)
        steps = np.rint((given - wanted) / quantum)
        assert abs(steps).max() <= (1 if requantize == "float" else 2), (steps, wanted)


def test_a_bias_of_more_than_32_bits_beside_16_bit_data() -> None:
    net = Wide(x=(2, 3))
    huge = net.constant(np.array([1e5, -3.0], np.float32))
    model = net.ends(net.op("Gemm", net.into("x", "int16"), net.weight(2, 3), huge, transB=1), "int16")
    graph = recognised(read(model))
    bias = graph.consts[node_of(graph, "dense").inputs[2]]
    assert bias.dtype == np.int64
    np.testing.assert_allclose(bias * 2e-4 * 0.01, [1e5, -3.0], rtol=1e-6)


@pytest.mark.parametrize("requantize", ["float", "fixed"])
@pytest.mark.parametrize("name", OPERATORS)
def test_zero_points_of_16_bits(name: str, requantize: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime's quantiser writes them unless it is told not to."""
    monkeypatch.setitem(SCALES, "int16", (2e-4, -20000))
    test_operators(name, ("int16", "int16", "int16", requantize))


@pytest.mark.parametrize("name", OPERATORS)
def test_uint16_is_computed_as_int16(name: str) -> None:
    """Also beside uint8; integers throughout, within a quantum of ONNX Runtime."""
    net, result = OPERATORS[name]("uint16", "uint8")
    model = net.ends(result, "uint16")
    found = recognised(read(model))
    assert all(kind.dtype in ("int16", "uint8", "int8", "int32") for kind in found.types.values() if kind.quant), found
    inner = [each for each in found.nodes if each.op not in ("quantize", "dequantize")]
    assert all(dtypes.is_integer(found.types[each.outputs[0]].dtype) for each in inner), ops(found)
    graph = optimise_graph(read(model), Options())
    for inputs in data(graph):
        (meant,), _ = evaluate(graph, inputs)
        assert abs(np.rint((meant - expected(model, list(inputs.values()))[0]) / RESULTS["uint16"])).max() <= 1


def test_uint16_at_inputs_and_outputs_stays() -> None:
    """They are converted exactly, and what is between them is integers."""
    net = Wide(x=(2, 3), y=(2, 3))
    left, right = (net.dq(name, 2e-4, 33000, "uint16") for name in ("x", "y"))
    out = net.q(net.op("Mul", left, right), 3e-4, 500, "uint16")
    model = net.model(out, opset=21)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.UINT16
    graph = read(model)
    low_high = [np.array([[0, 1, 65535], [33000, 40000, 2]], np.uint16), np.full((2, 3), 50000, np.uint16)]
    (meant,), _ = evaluate(optimise_graph(graph, Options()), dict(zip(graph.inputs, low_high, strict=True)))
    assert meant.dtype == np.uint16
    np.testing.assert_array_equal(meant, expected(model, low_high)[0])
    product = node_of(recognised(graph), "mul")
    assert {recognised(graph).types[name].dtype for name in (*product.inputs, *product.outputs)} == {"int16"}


def _branches(net: Wide) -> str:
    """A uint16 value that one of two subgraphs quantises."""
    scale, zero = (net.constant(array) for array in (np.float32(2e-4), np.uint16(33000)))
    bodies = {}
    for branch, source in (("then_branch", "x"), ("else_branch", "y")):
        out = f"{branch}_out"
        info = helper.make_tensor_value_info(out, TensorProto.UINT16, None)
        bodies[branch] = helper.make_graph([node("QuantizeLinear", [source, scale, zero], [out])], branch, [], [info])
    return net.op("If", net.op("Cast", net.op("ReduceMax", "x", keepdims=0), to=TensorProto.BOOL), **bodies)


def _halvings(net: Wide) -> str:
    """A uint16 value that iterations carry."""
    scale, zero = (net.constant(array) for array in (np.float32(2e-4), np.uint16(33000)))
    infos = {
        name: helper.make_tensor_value_info(name, dtype, shape)
        for name, dtype, shape in (
            ("i", TensorProto.INT64, []),
            ("go", TensorProto.BOOL, []),
            ("old", TensorProto.UINT16, [4, 6]),
            ("goes", TensorProto.BOOL, []),
            ("new", TensorProto.UINT16, [4, 6]),
        )
    }
    nodes = [
        node("DequantizeLinear", ["old", scale, zero], ["real"]),
        node("Mul", ["real", net.constant(np.float32(0.5))], ["half"]),
        node("QuantizeLinear", ["half", scale, zero], ["new"]),
        node("Identity", ["go"], ["goes"]),
    ]
    body = helper.make_graph(nodes, "body", list(infos.values())[:3], list(infos.values())[3:])
    operands = net.constant(np.int64(3)), net.constant(np.array(True)), net.q("x", 2e-4, 33000, "uint16")
    return net.op("Loop", *operands, body=body)


def _move(code: str, *constants: Any, **attrs: Any) -> Callable[[Wide], str]:
    """A uint16 value that an operator moves."""
    return lambda net: net.op(code, net.q("x", 2e-4, 33000, "uint16"), *map(net.constant, constants), **attrs)


UINT16_RESULTS: dict[str, Callable[[Wide], str]] = {
    "reshape": _move("Reshape", np.array([6, 4])),
    "transpose": _move("Transpose", perm=[1, 0]),
    "slice": _move("Slice", np.array([1]), np.array([3])),
    "gather": _move("Gather", np.array([2, 0])),
    "expand": _move("Expand", np.array([2, 4, 6])),
    "table": lambda net: net.op(
        "Gather",
        net.constant(np.arange(20000, 44000, 600, dtype=np.uint16).reshape(10, 4)),
        net.op("Cast", net.op("Clip", "x", *map(net.constant, (np.float32(0), np.float32(9)))), to=TensorProto.INT32),
    ),
    "cast": lambda net: net.op("Cast", net.op("Abs", "x"), to=TensorProto.UINT16),
    "branches": _branches,
    "loop": _halvings,
}
"""Values of uint16 that other operators than a quantisation of floats compute."""


@pytest.mark.parametrize("name", UINT16_RESULTS)
def test_uint16_that_an_operator_computes_stays(name: str) -> None:
    """It is computed as in the file and converted exactly, and every value has the dtype that inference says."""
    net = Wide(x=(4, 6), y=(4, 6))
    value = net.dq(UINT16_RESULTS[name](net), 2e-4, 33000, "uint16")
    model = net.model(net.qdq(net.op("Relu", value), 3e-4, 500, "uint16"), net.op("Neg", "y"), opset=21)
    graph = read(model)
    found = recognised(graph)
    for part in (found, *nested_graphs(found)):
        for each in part.nodes:
            inferred = registry.infer(each.op, each.attrs, [part.types[name] for name in each.inputs if name])
            assert [kind.dtype for kind in inferred] == [part.types[name].dtype for name in each.outputs], each
    graph = optimise_graph(graph, Options())
    for inputs in data(graph):
        meant, _ = evaluate(graph, inputs)
        np.testing.assert_array_equal(meant[0], expected(model, list(inputs.values()))[0])


def test_uint16_that_is_moved_is_computed_in_c() -> None:
    """Values beside the zero point, the ends of the range, and an input that is only reshaped."""
    net = Wide(x=(4, 6), y=(4, 6))
    moved = [net.dq(_move("Transpose", perm=[1, 0])(net), 2e-4, 33000, "uint16")]
    moved.append(net.dq(net.op("Reshape", "y", net.constant(np.array([6, 4]))), 2e-4, 33000, "uint16"))
    model = net.model(*moved, opset=21)
    model.graph.input[1].type.tensor_type.elem_type = TensorProto.UINT16
    y = np.array([0, 1, 2, 32767, 32768, 32999, 33000, 33001, 65534, 65535] * 3, np.uint16)[:24].reshape(4, 6)
    for x in (np.linspace(-7, 7, 24, dtype=np.float32).reshape(4, 6), np.full((4, 6), -100, np.float32)):
        for result, wanted in zip(library(read(model))(x, y), expected(model, [x, y]), strict=True):
            np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize(
    ("code", "tabled"),
    [("Sigmoid", True), ("Tanh", True), ("Elu", True), ("Softplus", True), ("HardSwish", False), ("Sqrt", False)],
)
@pytest.mark.parametrize("dtype", ["int16", "uint16"])
def test_functions_of_16_bits_are_interpolated_in_fixed_point(code: str, tabled: bool, dtype: str) -> None:
    """If that is within a step for all 65536 inputs; HardSwish has kinks, a square root is too steep at 0."""
    net, result = _one(code, (1 << 16,))(dtype, "")
    model = net.ends(result, dtype)
    graph = optimise_graph(read(model), Options(requantize="fixed"))
    assert (ops(graph).count("lookup16") == 1) == tabled, ops(graph)
    if not tabled:
        return
    low, high = dtypes.int_range(dtype)
    x = (np.arange(low, high + 1) - SCALES[dtype][1]).astype(np.float32) * np.float32(SCALES[dtype][0])
    (meant,), _ = evaluate(graph, {graph.inputs[0]: x})
    assert abs(np.rint((meant - expected(model, [x])[0]) / RESULTS[dtype])).max() <= 1
