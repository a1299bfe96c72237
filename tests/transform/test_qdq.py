# SPDX-License-Identifier: Apache-2.0
"""The qdq pass: what it recognises, and that recognising changes no bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from microc.base import dtypes
from microc.base.dtypes import Array
from microc.frontend.onnx import reader as onnx_reader
from microc.graph.ir import Graph, Node, Quant
from microc.ops import registry
from microc.transform import channels_last
from microc.transform.pass_context import PassContext
from microc.transform.quantised.qdq import PASS
from tests.frontend.onnx_model import evaluate, node, ops, proto, read
from tests.support.corpus import cases, models

RNG = np.random.default_rng(13)
MOVES = ("reshape", "transpose", "slice", "pad", "concat", "max_pool2d", "max", "min", "quantize", "dequantize")
BOUNDS = {"relu": (0.0, np.inf), "relu6": (0.0, 6.0), "relu_n1_to_1": (-1.0, 1.0)}


# ---------------------------------------------------------------- the meaning of quantised operators


def real(array: Array, quant: Quant) -> Array:
    shape = [1] * array.ndim
    if quant.axis is not None:
        shape[quant.axis] = -1
    levels = array.astype(np.int64) - np.array(quant.zero_point).reshape(shape)
    return np.asarray(levels.astype(np.float32) * np.array(quant.scale, np.float32).reshape(shape))


def levels(array: Array, quant: Quant, dtype: str) -> Array:
    low, high = dtypes.int_range(dtype)
    rounded = np.rint(array.astype(np.float32) / np.float32(quant.scale[0])).astype(np.float64)
    return np.asarray(np.clip(rounded + quant.zero_point[0], low, high), dtype)


def meaning(graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    """Run a graph whose quantised operators mean: dequantize, compute in floats, round half to even, saturate."""
    values = {**graph.consts, **dict(zip(graph.inputs, inputs, strict=True))}
    for each in graph.nodes:
        kind, operands = graph.types[each.outputs[0]], [values[name] for name in each.inputs]
        given = [graph.types[name].quant for name in each.inputs]
        requantise = each.op == "quantize" and dtypes.is_integer(operands[0].dtype.name)
        if kind.quant is None or (each.op in MOVES and not requantise):
            result = registry.get(each.op).reference(each.attrs, operands)[0]
        else:
            assert requantise or each.attrs["rounding"] == "even", each
            floats = [real(array, quant) for array, quant in zip(operands, given, strict=True) if quant is not None]
            assert len(floats) == len(operands), each
            result = floats[0] if requantise else registry.get(each.op).reference(each.attrs, floats)[0]
            if each.attrs.get("activation"):
                result = np.clip(result, *BOUNDS[str(each.attrs["activation"])])
            result = levels(result, kind.quant, kind.dtype)
        assert (result.shape, result.dtype.name) == (kind.shape, kind.dtype), each
        values[each.outputs[0]] = result
    return [values[name] for name in graph.outputs]


def recognised(graph: Graph) -> Graph:
    return PASS.function(graph, PassContext())


def check(model: Any, spread: float = 2.0, tolerance: float = 0.0) -> Graph:
    """The recognised graph of a model, which must compute what was written (all outputs, ten random inputs)."""
    written = read(model)
    graph = recognised(written)
    for _ in range(10):
        inputs = [
            (RNG.standard_normal(written.types[name].shape) * spread).astype(np.float32) for name in written.inputs
        ]
        for found, wanted in zip(meaning(graph, inputs), evaluate(written, inputs), strict=True):
            assert found.dtype == wanted.dtype
            np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance)
    return graph


# ---------------------------------------------------------------- small quantised models


class Net:
    """A model under construction; every method gives the name of a new value."""

    def __init__(self, **inputs: tuple[int, ...]) -> None:
        self.inputs = inputs
        self.nodes: list[Any] = []
        self.constants: dict[str, Array] = {}

    def constant(self, array: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(array)
        return name

    def op(self, code: str, *operands: str, output: str = "", **attrs: Any) -> str:
        name = output or f"v{len(self.nodes)}"
        self.nodes.append(node(code, operands, [name], **attrs))
        return name

    def quantization(self, scale: Any, zero: Any, dtype: str) -> tuple[str, str]:
        return self.constant(np.array(scale, np.float32)), self.constant(np.array(zero, dtype))

    def q(self, value: str, scale: float, zero: int, dtype: str = "int8", output: str = "") -> str:
        return self.op("QuantizeLinear", value, *self.quantization(scale, zero, dtype), output=output)

    def dq(self, value: str, scale: Any, zero: Any, dtype: str = "int8", axis: int = 0) -> str:
        return self.op("DequantizeLinear", value, *self.quantization(scale, zero, dtype), axis=axis)

    def qdq(self, value: str, scale: float = 0.05, zero: int = 3, dtype: str = "int8") -> str:
        return self.dq(self.q(value, scale, zero, dtype), scale, zero, dtype)

    def weight(self, *shape: int, dtype: str = "int8", scale: Any = 0.01, zero: Any = 0) -> str:
        low, high = dtypes.int_range(dtype)
        return self.dq(self.constant(RNG.integers(low, high + 1, shape).astype(dtype)), scale, zero, dtype)

    def bias(self, units: int, scale: Any) -> str:
        array = RNG.integers(-4000, 4000, units).astype(np.int32)
        return self.dq(self.constant(array), scale, np.zeros(np.shape(scale)), "int32")

    def model(self, *outputs: str, opset: int = 17) -> Any:
        return proto(self.nodes, self.inputs, self.constants, outputs, opset=opset)


def conv_net(*, bias: str = "exact", channelwise: bool = False, dtype: str = "int8") -> tuple[Net, str]:
    """A net and the float result of a convolution of quantised data and weights."""
    net = Net(x=(1, 3, 6, 5))
    data = net.qdq("x", 0.05, 3, dtype)
    scale = [0.01, 0.02, 0.005, 0.013] if channelwise else 0.01
    zero = [0] * 4 if channelwise else 0 if dtype == "int8" else 121
    operands = [data, net.weight(4, 3, 3, 3, scale=scale, zero=zero, dtype="int8" if channelwise else dtype)]
    exact = np.float32(0.05) * np.array(scale, np.float32)
    if bias == "exact":
        operands.append(net.bias(4, exact))
    elif bias == "other":
        operands.append(net.bias(4, exact * 3))
    elif bias == "float":
        operands.append(net.constant(RNG.standard_normal(4).astype(np.float32)))
    return net, net.op("Conv", *operands, pads=[1, 1, 1, 1])


def node_of(graph: Graph, op: str) -> Node:
    (found,) = [each for each in graph.nodes if each.op == op]
    return found


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("bias", ["exact", "none"])
def test_convolution(bias: str, dtype: str) -> None:
    net, result = conv_net(bias=bias, dtype=dtype)
    graph = check(net.model(net.qdq(result, 0.1, 5, dtype)))
    assert ops(graph) == ["quantize", "conv2d", "dequantize"]
    conv = node_of(graph, "conv2d")
    data, weight, *rest = (graph.types[name] for name in conv.inputs)
    assert data.quant == Quant((float(np.float32(0.05)),), (3,)) and data.dtype == dtype
    assert weight.quant == Quant((float(np.float32(0.01)),), (0 if dtype == "int8" else 121,))
    assert graph.types[conv.outputs[0]].quant == Quant((float(np.float32(0.1)),), (5,))
    assert [kind.dtype for kind in rest] == (["int32"] if bias == "exact" else [])
    assert conv.attrs["rounding"] == "even"


def test_weights_stay_the_integers_of_the_file() -> None:
    net, result = conv_net(channelwise=True)
    model = net.model(net.qdq(result, 0.1, 5))
    graph = check(model)
    conv = node_of(graph, "conv2d")
    stored = [array for array in net.constants.values() if array.shape == (4, 3, 3, 3)]
    assert graph.consts[conv.inputs[1]].tobytes() == stored[0].tobytes()
    quant = graph.types[conv.inputs[1]].quant
    assert quant is not None and (quant.axis, len(quant.scale)) == (0, 4)
    bias = graph.types[conv.inputs[2]].quant
    assert bias is not None and (bias.axis, bias.zero_point) == (0, (0,) * 4)


@pytest.mark.parametrize("kind", ["float", "other"])
def test_a_bias_of_another_scale_is_brought_to_the_accumulators(kind: str) -> None:
    net, result = conv_net(bias=kind)
    graph = check(net.model(net.qdq(result, 0.1, 5)), tolerance=0.1001)
    bias = node_of(graph, "conv2d").inputs[2]
    quant = graph.types[bias].quant
    assert quant is not None and graph.consts[bias].dtype == np.int32
    np.testing.assert_allclose(quant.scale, [0.05 * 0.01], rtol=1e-6)


def test_a_bias_beyond_int32_stays_float() -> None:
    net = Net(x=(2, 3))
    huge = net.constant(np.array([1e9, 0], np.float32))
    result = net.op("Gemm", net.qdq("x"), net.weight(2, 3), huge, transB=1)
    assert ops(check(net.model(net.qdq(result)))).count("dequantize") == 3


@pytest.mark.parametrize(
    ("code", "bounds", "zero", "expected"),
    [
        ("Relu", None, 5, ["relu"]),
        ("Relu", None, -128, [""]),
        ("Clip", (0.0, 6.0), 5, ["relu6"]),
        ("Clip", (0.0, 6.0), -128, ["relu6"]),
        ("Clip", (-1.0, 1.0), 5, ["relu_n1_to_1"]),
        ("Clip", (-100.0, 100.0), 5, [""]),
        ("Clip", (0.0, 4.0), 5, ["", "clip"]),
    ],
)
@pytest.mark.parametrize("between", [False, True])
def test_limits_behind_a_layer(
    code: str, bounds: tuple[float, float] | None, zero: int, expected: list[str], between: bool
) -> None:
    """Relu and Clip, with a quantize and dequantize in between or without, become the activation or vanish."""
    net, result = conv_net()
    if between:
        result = net.qdq(result, 0.1, zero)
    limits = [net.constant(np.array(bound, np.float32)) for bound in bounds or ()]
    graph = check(net.model(net.qdq(net.op(code, result, *limits), 0.1, zero)))
    assert ops(graph) == ["quantize", "conv2d", *expected[1:], "dequantize"]
    assert node_of(graph, "conv2d").attrs["activation"] == expected[0]


def test_relu_between_different_scales_is_an_operator_of_its_own() -> None:
    net, result = conv_net()
    graph = check(net.model(net.qdq(net.op("Relu", net.qdq(result, 0.1, 5)), 0.07, -128)))
    assert ops(graph) == ["quantize", "conv2d", "relu", "dequantize"]


def test_relu_of_a_value_that_others_read_stays() -> None:
    net, result = conv_net()
    result = net.qdq(result, 0.1, 5)
    graph = check(net.model(net.qdq(net.op("Relu", result), 0.1, 5), net.qdq(net.op("Tanh", result), 0.01, 0)))
    assert sorted(ops(graph)) == ["conv2d", "dequantize", "dequantize", "quantize", "relu", "tanh"]
    assert node_of(graph, "conv2d").attrs["activation"] == ""


def test_a_convolution_over_one_axis_takes_the_relu_behind_its_reshape() -> None:
    net = Net(x=(1, 3, 9))
    result = net.op("Conv", net.qdq("x"), net.weight(4, 3, 3))
    graph = check(net.model(net.qdq(net.op("Relu", net.qdq(result, 0.1, 5)), 0.1, 5)))
    assert ops(graph) == ["quantize", "reshape", "conv2d", "reshape", "dequantize"]
    assert node_of(graph, "conv2d").attrs["activation"] == "relu"


@pytest.mark.parametrize("code", ["Add", "Sub", "Mul"])
def test_arithmetic_of_different_scales(code: str) -> None:
    net = Net(x=(2, 3, 4), y=(3, 1))
    graph = check(net.model(net.qdq(net.op(code, net.qdq("x", 0.05, 3), net.qdq("y", 0.02, -7)), 0.06, 1)))
    assert ops(graph) == ["quantize", "quantize", code.lower(), "dequantize"]


def test_arithmetic_with_a_quantised_constant() -> None:
    net = Net(x=(2, 3))
    graph = check(net.model(net.qdq(net.op("Add", net.qdq("x"), net.weight(3)), 0.06, 1)))
    assert ops(graph) == ["quantize", "add", "dequantize"]


@pytest.mark.parametrize(
    ("code", "attrs"),
    [
        ("Sigmoid", {}),
        ("Tanh", {}),
        ("Elu", {"alpha": 0.5}),
        ("Softplus", {}),
        ("LeakyRelu", {"alpha": 0.1}),
        ("HardSwish", {}),
        ("Exp", {}),
        ("Softmax", {"axis": 1}),
        ("GlobalAveragePool", {}),
        ("AveragePool", {"kernel_shape": [2, 2], "pads": [1, 1, 0, 0]}),
        ("ReduceMean", {"axes": [1], "keepdims": 0}),
    ],
)
def test_operators_on_one_operand(code: str, attrs: dict[str, Any]) -> None:
    net = Net(x=(1, 4, 4, 4))
    graph = check(net.model(net.qdq(net.op(code, net.qdq("x"), **attrs), 0.02, -20)))
    assert len(graph.nodes) == 3
    assert graph.nodes[1].attrs["rounding"] == "even"


def movements(net: Net, value: str) -> list[str]:
    ints = {"shape": [1, 3, 16], "begin": [1], "end": [3], "pads": [0, 0, 1, 0, 0, 2]}
    names = {name: net.constant(np.array(array, np.int64)) for name, array in ints.items()}
    pooled = net.op("MaxPool", value, kernel_shape=[2, 2], strides=[2, 2], pads=[1, 1, 1, 1])
    reshaped = net.op("Reshape", value, names["shape"])
    turned = net.op("Transpose", reshaped, perm=[0, 2, 1])
    cut = net.op("Slice", turned, names["begin"], names["end"], names["begin"])
    padded = net.op("Pad", cut, names["pads"])
    return [net.op("Flatten", pooled), padded, net.op("ReduceMax", value, axes=[1])]


@pytest.mark.parametrize("requantised", [False, True])
def test_elements_are_moved_as_integers(requantised: bool) -> None:
    net = Net(x=(1, 3, 4, 4))
    results = movements(net, net.qdq("x"))
    if requantised:
        results = [net.qdq(result) for result in results]
    graph = check(net.model(*results))
    assert ops(graph).count("quantize") == 1
    moved = {name for each in graph.nodes if each.op not in ("quantize", "dequantize") for name in each.inputs}
    assert {graph.types[name].dtype for name in moved} == {"int8"}
    assert ops(graph)[-3:] == ["dequantize"] * 3


def test_elements_moved_between_two_scales_are_requantised() -> None:
    # Quantisers drop a relu whose zero point is the lowest number; what is left only moves elements, into another scale.
    net = Net(x=(1, 3, 4, 4))
    results = [net.qdq(result, 0.02, -128) for result in movements(net, net.qdq("x"))]
    assert ops(check(net.model(*results))).count("quantize") == 4


def test_padding_that_the_integers_cannot_hold_stays_float() -> None:
    net = Net(x=(2, 3))
    pads, value = net.constant(np.array([0, 1, 0, 1])), net.constant(np.array(0.123, np.float32))
    padded = net.op("Pad", net.qdq("x"), pads, value)
    assert ops(check(net.model(padded))) == ["quantize", "dequantize", "pad"]
    assert ops(check(net.model(net.qdq(padded)))) == ["quantize", "pad", "dequantize"]


def test_concat_of_one_and_of_several_scales() -> None:
    for scale, requantised in ((0.05, 0), (0.02, 1)):
        net = Net(x=(2, 3), y=(2, 2))
        both = net.op("Concat", net.qdq("x", 0.05, 3), net.qdq("y", scale, 3), axis=1)
        graph = check(net.model(net.qdq(both, 0.05, 3)))
        assert ops(graph) == ["quantize", "quantize", *["quantize"] * requantised, "concat", "dequantize"]


def test_layers_behind_concat_write_its_scale() -> None:
    net, result = conv_net()
    both = net.op("Concat", result, net.op("Relu", net.qdq("x", 0.05, 3)), axis=1)
    assert ops(check(net.model(net.qdq(both, 0.1, 5)))) == [
        "quantize",
        "conv2d",
        "quantize",
        "relu",
        "concat",
        "dequantize",
    ]


@pytest.mark.parametrize("shape", [(3, 8), (2, 3, 8)])
@pytest.mark.parametrize("quantised", [False, True])
def test_matmul_and_add_are_a_dense_layer_with_bias(shape: tuple[int, ...], quantised: bool) -> None:
    net = Net(x=shape)
    product = net.op("MatMul", net.qdq("x"), net.weight(8, 5))
    row = net.weight(5) if quantised else net.constant(RNG.standard_normal(5).astype(np.float32))
    graph = check(net.model(net.qdq(net.op("Add", row, product), 0.3, 0)), tolerance=0.3001)
    reshapes = ["reshape"] * (len(shape) - 2)
    assert ops(graph) == ["quantize", *reshapes, "dense", *reshapes, "dequantize"]
    assert len(node_of(graph, "dense").inputs) == 3


def test_a_quantisation_between_matmul_and_add_is_kept() -> None:
    net = Net(x=(3, 8))
    product = net.qdq(net.op("MatMul", net.qdq("x"), net.weight(8, 5)), 0.3, 0)
    assert ops(check(net.model(net.qdq(net.op("Add", product, net.weight(5)), 0.3, 0)))) == [
        "quantize",
        "dense",
        "add",
        "dequantize",
    ]


def test_one_dequantize_for_many_readers() -> None:
    net, result = conv_net()
    result = net.qdq(result, 0.1, 5)
    summed = net.qdq(net.op("Add", result, net.qdq(net.op("Sigmoid", result), 1 / 256, -128)), 0.1, 0)
    graph = check(net.model(summed, net.op("Floor", result)))
    assert ops(graph).count("dequantize") == 2
    assert ops(graph).count("quantize") == 1


def test_a_float_result_that_others_read_is_computed_in_floats() -> None:
    net, result = conv_net()
    graph = check(net.model(net.qdq(result, 0.1, 5), result))
    assert graph.types[node_of(graph, "conv2d").outputs[0]].dtype == "float32"


def test_a_layer_without_quantize_behind_stays_float() -> None:
    net, result = conv_net()
    graph = check(net.model(result))
    assert [graph.types[name].dtype for name in node_of(graph, "conv2d").inputs] == ["float32"] * 3


def test_two_equal_quantize_nodes_make_one_result() -> None:
    net, result = conv_net()
    graph = check(net.model(net.qdq(result, 0.1, 5), net.op("Relu", net.qdq(result, 0.1, 5))))
    assert ops(graph).count("conv2d") == 1 and graph.types[node_of(graph, "conv2d").outputs[0]].dtype == "int8"


def test_integers_that_are_only_moved_keep_their_quantisation() -> None:
    net = Net(x=(1, 2, 6))
    quantised = net.q("x", 0.05, 3)
    views = net.constant(np.array([1, 2, 3, 2], np.int64))
    moved = net.op("Transpose", net.op("Reshape", quantised, views), perm=[0, 1, 3, 2])
    graph = check(net.model(net.qdq(net.op("Sigmoid", net.dq(moved, 0.05, 3)), 1 / 256, -128)))
    assert {graph.types[n.inputs[0]].quant for n in graph.nodes if n.op in ("reshape", "transpose")} == {
        Quant((np.float32(0.05).item(),), (3,))
    }
    channels_last.LAYOUT_PASS.function(graph, PassContext())


def test_integers_dequantised_in_two_ways() -> None:
    net = Net(x=(2, 3))
    integers = net.q("x", 0.05, 3)
    result = net.op("Add", net.dq(integers, 0.05, 3), net.dq(integers, 0.1, 0))
    graph = check(net.model(net.qdq(result, 0.2, 0)))
    assert ops(graph) == ["quantize", "dequantize", "dequantize", "add", "quantize", "dequantize"]


def test_another_quantisation_requantises() -> None:
    net = Net(x=(2, 3))
    assert ops(check(net.model(net.qdq(net.qdq("x"), 0.03, 0)))) == ["quantize", "quantize", "dequantize"]


def test_integer_inputs_and_outputs_keep_their_names() -> None:
    net = Net(x=(2, 3))
    integers = net.q("x", 0.05, 3, output="first")
    again = net.q(net.op("Relu", net.dq(integers, 0.05, 3)), 0.05, 3, output="second")
    third = net.q(net.dq(again, 0.05, 3), 0.05, 3, output="third")
    kinds = dict.fromkeys(("first", "second", "third"), "int8")
    model = proto(net.nodes, net.inputs, net.constants, [integers, again, third], dtypes=kinds)
    graph = check(model)
    assert graph.outputs == ("first", "second", "third")
    assert ops(graph) == ["quantize", "relu", "reshape"]


def test_wide_integers_do_not_pretend() -> None:
    """int32 does not survive dequantize and quantize; int16 does."""
    for dtype, left in (("int16", 2), ("int32", 4)):
        net = Net(x=(2, 3))
        value = net.qdq(net.qdq("x", 1e-4, 0, dtype), 1e-4, 0, dtype)
        model = proto(net.nodes, net.inputs, net.constants, [value], opset=21)
        assert len(check(model).nodes) == left


def test_tflites_rounding_is_left_alone() -> None:
    net, result = conv_net()
    graph = read(net.model(net.qdq(result, 0.1, 5)))
    nodes = [
        replace(each, attrs={**each.attrs, "rounding": "away"}) if each.op == "quantize" else each
        for each in graph.nodes
    ]
    found = recognised(graph.with_nodes(nodes))
    assert found.types[node_of(found, "conv2d").outputs[0]].dtype == "float32"


def test_a_float_graph_is_returned_as_it_is() -> None:
    graph = read(proto([node("Relu", ["x"])], {"x": (2,)}))
    assert recognised(graph) is graph


QUANTISED = ("ortq_*qdq*.onnx", "ortq_*qop*.onnx", "pulsevad*.onnx")


@pytest.mark.corpus
@pytest.mark.parametrize("path", models(*QUANTISED), ids=lambda path: path.stem)
def test_real_models_are_recognised_entirely_and_keep_every_bit(path: Path) -> None:
    shapes: dict[str, tuple[int, ...]] = {"*": (1, 64, 21)} if path.stem.startswith("pulsevad") else {}
    graph = recognised(onnx_reader.read_onnx(path.read_bytes(), path.name, shapes))
    for each in graph.nodes:
        if each.op in ("conv2d", "dense", "add", "mean", "max_pool2d"):
            assert graph.types[each.outputs[0]].quant is not None, each
    assert ops(graph).count("quantize") == 1
    inputs, outputs = cases(path)[0]
    for found, wanted in zip(meaning(graph, inputs), outputs, strict=True):
        # A log softmax at the end of one of them is computed in floats.
        tolerance = 1e-6 if "tcn" in path.stem else 0.0
        np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance)
