# SPDX-License-Identifier: Apache-2.0
"""What spelled ONNX operators compute, by our operators' references, against onnxruntime."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.errors import UnsupportedError
from microc.transform.pass_context import PassContext
from microc.transform.quantised.qdq import recognise_quantised_layers
from tests.frontend.onnx_model import Shape, evaluate, expected, node, proto, read

RNG = np.random.default_rng(5)


def f(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def scalar(value: float) -> Array:
    return np.array(value, np.float32)


def one(
    code: str, x: Shape, *operands: Array | None, opset: int = 17, outputs: int = 1, kind: str = "float32", **attrs: Any
) -> Any:
    """A model of one operator whose first operand is the input ``x``; None leaves an operand out; ``kind`` is the result's."""
    names = [f"c{k}" for k in range(len(operands))]
    constants = {name: array for name, array in zip(names, operands, strict=True) if array is not None}
    inputs = ["x", *(name if name in constants else "" for name in names)]
    results = ["y", *(f"y{k}" for k in range(1, outputs))]
    return proto([node(code, inputs, results, **attrs)], {"x": x}, constants, results, opset, {"y": kind})


IMAGE = (2, 4, 7, 9)
LINE = (1, 4, 11)

MODELS = {
    "conv": one("Conv", IMAGE, f(6, 4, 3, 3), f(6), pads=[1, 0, 2, 1], strides=[2, 1]),
    "conv without bias, dilated": one("Conv", IMAGE, f(5, 4, 3, 2), dilations=[2, 3]),
    "conv, groups": one("Conv", IMAGE, f(8, 2, 3, 3), f(8), group=2, auto_pad="SAME_UPPER", strides=[2, 2]),
    "conv, depthwise": one("Conv", IMAGE, f(4, 1, 2, 2), group=4, auto_pad="SAME_LOWER"),
    "conv, valid": one("Conv", IMAGE, f(3, 4, 2, 2), auto_pad="VALID", kernel_shape=[2, 2], opset=9),
    "conv, one axis": one("Conv", LINE, f(6, 4, 3), f(6), pads=[2, 0], strides=[2]),
    "conv, one axis, dilated": one("Conv", LINE, f(6, 2, 3), f(6), dilations=[3], group=2, pads=[3, 3]),
    "gemm": one("Gemm", (3, 4), f(4, 5), f(5)),
    "gemm, scaled": one("Gemm", (4, 3), f(5, 4), f(1, 5), transA=1, transB=1, alpha=0.5, beta=2.0),
    "gemm, scalar C": one("Gemm", (3, 4), f(4, 5), scalar(2.0), beta=0.5),
    "gemm, C per row": one("Gemm", (3, 4), f(4, 5), f(3, 1)),
    "gemm without C": one("Gemm", (3, 4), f(5, 4), transB=1, opset=11),
    "matmul, vector": one("MatMul", (4,), f(4, 5)),
    "matmul, batch": one("MatMul", (2, 3, 4), f(4, 5)),
    "matmul, constant left": proto([node("MatMul", ["a", "x"])], {"x": (3, 4, 5)}, {"a": f(2, 4)}),
    "matmul, two inputs": proto([node("MatMul", ["x", "b"])], {"x": (2, 1, 3, 4), "b": (3, 4, 2)}),
    "matmul, right vector": proto([node("MatMul", ["x", "b"])], {"x": (2, 3, 4), "b": (4,)}),
    "batch normalisation": one("BatchNormalization", IMAGE, f(4), f(4), f(4), abs(f(4)) + 1, epsilon=1e-3),
    "layer normalisation": one("LayerNormalization", (2, 3, 8), f(8), f(8)),
    "layer normalisation, two axes": one("LayerNormalization", (2, 3, 8), f(3, 8), axis=-2),
    "instance normalisation": one("InstanceNormalization", IMAGE, f(4), f(4)),
    "transposed conv": one("ConvTranspose", IMAGE, f(4, 3, 3, 3), f(3), strides=[2, 3], pads=[1, 0, 1, 2]),
    "transposed conv, grown": one("ConvTranspose", IMAGE, f(4, 3, 3, 2), strides=[2, 2], output_padding=[1, 1]),
    "transposed conv, groups": one("ConvTranspose", IMAGE, f(4, 3, 2, 2), f(6), strides=[2, 2], group=2),
    "transposed conv, same": one("ConvTranspose", IMAGE, f(4, 3, 3, 4), strides=[2, 1], auto_pad="SAME_LOWER"),
    "transposed conv, output shape": one("ConvTranspose", IMAGE, f(4, 3, 3, 3), strides=[2, 2], output_shape=[14, 18]),
    "transposed conv, small kernel": one("ConvTranspose", IMAGE, f(4, 3, 1, 1), f(3), strides=[3, 2]),
    "transposed conv, dilated": one("ConvTranspose", IMAGE, f(4, 3, 3, 2), f(3), dilations=[2, 3], strides=[2, 1]),
    "transposed conv, one axis": one("ConvTranspose", LINE, f(4, 3, 5), f(3), strides=[2], pads=[2, 1]),
    "resize": one("Resize", IMAGE, None, np.array([1, 1, 2, 3], np.float32)),
    "resize to sizes": one(
        "Resize",
        (1, 2, 3, 4),
        None,
        None,
        ints(1, 2, 6, 12),
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    ),
    "resize, opset 10": one("Resize", IMAGE, np.array([1, 1, 3, 1], np.float32), opset=10),
    "resize linearly": one("Resize", IMAGE, None, np.array([1, 1, 2, 3], np.float32), mode="linear"),
    "resize linearly, asymmetric": one(
        "Resize",
        IMAGE,
        None,
        np.array([1, 1, 3, 2], np.float32),
        mode="linear",
        coordinate_transformation_mode="asymmetric",
    ),
    "upsample": one("Upsample", IMAGE, np.array([1, 1, 2, 2], np.float32), opset=9),
    "upsample, attribute": one("Upsample", IMAGE, opset=7, scales=[1.0, 1.0, 2.0, 2.0]),
    "max pool": one("MaxPool", IMAGE, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1]),
    "max pool, ceil": one("MaxPool", (1, 2, 8, 8), kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    "max pool, ceil, window outside": one("MaxPool", (1, 1, 5, 5), kernel_shape=[1, 2], strides=[3, 3], ceil_mode=1),
    "max pool, ceil, window larger than the axis": one(
        "MaxPool", (1, 2, 2, 3), kernel_shape=[3, 4], strides=[2, 2], ceil_mode=1
    ),
    "max pool, same": one("MaxPool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER"),
    "max pool, one axis": one("MaxPool", LINE, kernel_shape=[3], strides=[2]),
    "average pool": one("AveragePool", IMAGE, kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    "average pool, padding counts": one(
        "AveragePool", IMAGE, kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1
    ),
    "average pool, ceil": one("AveragePool", (1, 2, 8, 8), kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1, opset=19),
    "average pool, ceil, window larger than the axis": one(
        "AveragePool", (1, 2, 2, 3), kernel_shape=[3, 4], strides=[2, 2], ceil_mode=1, count_include_pad=1, opset=19
    ),
    "global average pool": one("GlobalAveragePool", IMAGE),
    "global max pool, one axis": one("GlobalMaxPool", LINE),
    "softmax": one("Softmax", (2, 3, 4), axis=1),
    "softmax, last": one("Softmax", (2, 3, 4)),
    "softmax, flattening": one("Softmax", (2, 3, 4), opset=11),
    "log softmax": one("LogSoftmax", (2, 5)),
    "log softmax, flattening": one("LogSoftmax", (2, 3, 4), axis=1, opset=9),
    "relu": one("Relu", (5, 5)),
    "leaky relu": one("LeakyRelu", (5, 5), alpha=0.2),
    "elu": one("Elu", (5, 5), alpha=0.7),
    "selu": one("Selu", (5, 5)),
    "sigmoid": one("Sigmoid", (5, 5)),
    "tanh": one("Tanh", (5, 5)),
    "softplus": one("Softplus", (5, 5)),
    "softsign": one("Softsign", (5, 5)),
    "mish": one("Mish", (5, 5), opset=18),
    "hard sigmoid": one("HardSigmoid", (5, 5), alpha=1 / 6),
    "hard swish": one("HardSwish", (5, 5)),
    "gelu": one("Gelu", (5, 5), opset=20),
    "gelu with tanh": one("Gelu", (5, 5), approximate="tanh", opset=20),
    "erf": one("Erf", (5, 5)),
    "exp": one("Exp", (5, 5)),
    "reciprocal": one("Reciprocal", (5, 5)),
    "abs": one("Abs", (5, 5)),
    "neg": one("Neg", (5, 5)),
    "floor": one("Floor", (5, 5)),
    "ceil": one("Ceil", (5, 5)),
    "round": one("Round", (5, 5)),
    "prelu": one("PRelu", IMAGE, f(4, 1, 1)),
    "clip": one("Clip", (5, 5), scalar(-0.5), scalar(0.25)),
    "clip above": one("Clip", (5, 5), None, scalar(0.25)),
    "clip, attributes": one("Clip", (5, 5), opset=6 + 1, min=-0.5, max=0.25),
    "clip without bounds": one("Clip", (5, 5)),
    "add": one("Add", (2, 3, 4), f(3, 1)),
    "sub": one("Sub", (3, 1), f(2, 3, 4)),
    "mul": one("Mul", (2, 3, 4), scalar(3.0)),
    "div": one("Div", (2, 3, 4), abs(f(4)) + 1),
    "square": one("Pow", (2, 3), scalar(2.0)),
    "cube, integer exponent": one("Pow", (2, 3), ints(3)),
    "max of three": one("Max", (2, 3), f(2, 3), f(3)),
    "min of one": one("Min", (2, 3)),
    "sum of three": one("Sum", (2, 3), f(2, 3), f(3)),
    "reduce mean": one("ReduceMean", IMAGE, axes=[-1, 1], keepdims=0),
    "reduce mean, axes as input": one("ReduceMean", IMAGE, ints(2, 3), opset=18),
    "reduce sum": one("ReduceSum", IMAGE, ints(1)),
    "reduce sum, old": one("ReduceSum", IMAGE, axes=[1], opset=11),
    "reduce max of all": one("ReduceMax", IMAGE, keepdims=0),
    "reduce min": one("ReduceMin", IMAGE, axes=[0]),
    "reduce prod": one("ReduceProd", (2, 3), axes=[1]),
    "reduce l1": one("ReduceL1", (2, 3), axes=[1]),
    "reduce l2": one("ReduceL2", (2, 3), axes=[1]),
    "reduce sum of squares": one("ReduceSumSquare", (2, 3), axes=[1]),
    "flatten": one("Flatten", IMAGE, axis=2),
    "reshape": one("Reshape", (2, 3, 4), ints(0, -1)),
    "squeeze": one("Squeeze", (2, 1, 4, 1), ints(-1)),
    "squeeze all, old": one("Squeeze", (2, 1, 4, 1), opset=11),
    "unsqueeze": one("Unsqueeze", (2, 4), ints(0, -1)),
    "unsqueeze, old": one("Unsqueeze", (2, 4), axes=[1, 3], opset=9),
    "transpose": one("Transpose", (2, 3, 4), perm=[2, 0, 1]),
    "transpose, reversed": one("Transpose", (2, 3, 4)),
    "concat": proto([node("Concat", ["x", "c", "x"], axis=-1)], {"x": (2, 3)}, {"c": f(2, 2)}),
    "slice": one("Slice", IMAGE, ints(1, -3), ints(99, -1), ints(2, 3), ints(2, 1)),
    "slice, attributes": one("Slice", IMAGE, starts=[1, 0], ends=[3, 2], axes=[3, 1], opset=9),
    "split": one("Split", (2, 7), ints(3, 4), axis=1, outputs=2),
    "split evenly": one("Split", (6, 2), outputs=3),
    "split unevenly": one("Split", (7, 2), outputs=3, num_outputs=3, opset=18),
    "pad": one("Pad", (2, 3), ints(1, 0, 0, 2), scalar(1.5)),
    "pad, old": one("Pad", (2, 3), pads=[1, 0, 0, 2], value=2.0, opset=9),
    "pad, some axes": one("Pad", (2, 3), ints(1, 2), None, ints(1), opset=18),
    "pad, cutting": one("Pad", (4, 5), ints(-1, 1, 2, -3)),
    "pad, reflected": one("Pad", (2, 5), ints(1, 3, 0, 2), mode="reflect"),
    "pad, edge": one("Pad", (2, 5), ints(1, 3, 0, 2), mode="edge"),
    "expand": one("Expand", (3, 1), ints(2, 1, 4)),
    "tile": one("Tile", (2, 3), ints(2, 3)),
    "tile of all axes": one("Tile", (2, 3, 2, 1, 2), ints(2, 3, 2, 2, 2)),
    "tile of many axes": one("Tile", (1, 2, 1, 3, 2, 2), ints(1, 1, 2, 1, 3, 1)),
    "gather one": one("Gather", (4, 3), np.array(-1), axis=0),
    "gather some": one("Gather", (4, 5), np.array([[0, 1], [4, 2]]), axis=1),
    "depth to space, DCR": one("DepthToSpace", (1, 8, 3, 2), blocksize=2),
    "depth to space, CRD": one("DepthToSpace", (1, 8, 3, 2), blocksize=2, mode="CRD"),
    "space to depth": one("SpaceToDepth", (1, 2, 4, 6), blocksize=2),
    "dropout": one("Dropout", (2, 3)),
    "cast": one("Cast", (2, 3), kind="int32", to=6),
    "quantize": one("QuantizeLinear", (4, 5), scalar(0.02), np.array(3, np.int8), kind="int8"),
    "quantize per channel": one("QuantizeLinear", (4, 5), abs(f(5)) * 0.1, np.arange(5, dtype=np.uint8), kind="uint8"),
    "quantize, default zero point": one("QuantizeLinear", (4, 5), scalar(0.02), kind="uint8"),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_spelling_computes_what_onnxruntime_computes(name: str) -> None:
    model = MODELS[name]
    shapes = [[d.dim_value for d in value.type.tensor_type.shape.dim] for value in model.graph.input]
    inputs = [f(*shape) for shape in shapes]
    graph = read(model)
    for found, wanted in zip(evaluate(graph, inputs), expected(model, inputs), strict=True):
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)


def test_a_dequantized_weight_may_be_moved_before_it_is_used() -> None:
    weight = RNG.integers(-128, 128, (4, 5)).astype(np.int8)
    constants = {"w": weight, "s": abs(f(5)) * 0.1, "z": np.zeros(5, np.int8)}
    model = proto(
        [node("DequantizeLinear", ["w", "s", "z"], ["r"], axis=1), node("MatMul", ["x", "r"])], {"x": (3, 4)}, constants
    )
    graph = read(model)
    (dense,) = [n for n in graph.nodes if n.op == "dense"]
    dequantize = graph.producer()[dense.inputs[1]]
    assert dequantize.attrs["axis"] == 0
    np.testing.assert_array_equal(graph.consts[dequantize.inputs[0]], weight.T)
    inputs = [f(3, 4)]
    np.testing.assert_allclose(evaluate(graph, inputs)[0], expected(model, inputs)[0], rtol=2e-5, atol=2e-6)


def bytes_(*shape: int, signed: bool = False) -> Array:
    return RNG.integers(0, 256, shape).astype(np.uint8).view(np.int8 if signed else np.uint8)


def test_operators_on_integers_are_spelled_as_dequantize_float_quantize() -> None:
    """QLinearConv, com.microsoft's QLinearAdd, QLinearGlobalAveragePool and QGemm, and MaxPool on bytes: within one step."""
    scales = {"sx": 0.02, "sw": 0.01, "s1": 0.05, "s2": 0.06, "s3": 0.03, "s4": 0.1}
    constants: dict[str, Array] = {name: scalar(value) for name, value in scales.items()}
    constants |= {
        "z": np.array(120, np.uint8),
        "w": bytes_(4, 4, 3, 3),
        "b": RNG.integers(-500, 500, 4).astype(np.int32),
    }
    constants |= {"m": bytes_(5, 4), "c": RNG.integers(-500, 500, 5).astype(np.int32)}
    micro = "com.microsoft"
    nodes = [
        node("QuantizeLinear", ["x", "sx", "z"], ["q"]),
        node("QLinearConv", ["q", "sx", "z", "w", "sw", "z", "s1", "z", "b"], ["c1"], pads=[1, 1, 1, 1]),
        node("QLinearAdd", ["c1", "s1", "z", "q", "sx", "z", "s2", "z"], ["a"], micro),
        node("MaxPool", ["a"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("QLinearGlobalAveragePool", ["p", "s2", "z", "s3", "z"], ["g"], micro),
        node("Flatten", ["g"], ["flat"]),
        node("QGemm", ["flat", "s3", "z", "m", "sw", "z", "c", "s4", "z"], ["e"], micro, transB=1),
        node("DequantizeLinear", ["e", "s4", "z"], ["y"]),
    ]
    model = proto(nodes, {"x": (1, 4, 8, 8)}, constants)
    inputs = [f(1, 4, 8, 8)]
    np.testing.assert_allclose(evaluate(read(model), inputs)[0], expected(model, inputs)[0], atol=0.1001)


def test_what_quantisers_of_operators_write_behind_layers() -> None:
    """com.microsoft's QLinearAveragePool, QLinearConcat and QLinearSoftmax: within one step of the result."""
    constants: dict[str, Array] = {
        name: scalar(value) for name, value in (("sx", 0.02), ("sp", 0.015), ("sy", 1 / 256))
    }
    constants |= {"z": np.array(120, np.uint8), "low": np.array(0, np.uint8)}
    micro, window = "com.microsoft", {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 0], "ceil_mode": 1}
    nodes = [
        node("QuantizeLinear", ["x", "sx", "z"], ["q"]),
        node("QLinearAveragePool", ["q", "sx", "z", "sp", "z"], ["p"], micro, **window),
        node("QLinearConcat", ["sp", "z", "p", "sp", "z", "p", "sx", "z"], ["c"], micro, axis=1),
        node("QLinearSoftmax", ["c", "sp", "z", "sy", "low"], ["s"], micro, axis=-1, opset=13),
        node("DequantizeLinear", ["s", "sy", "low"], ["y"]),
    ]
    model = proto(nodes, {"x": (1, 2, 7, 9)}, constants)
    inputs = [f(1, 2, 7, 9)]
    np.testing.assert_allclose(evaluate(read(model), inputs)[0], expected(model, inputs)[0], atol=1.001 / 256)


def test_dropout_in_training_is_refused() -> None:
    """It is random; with nothing to drop it is no change."""
    with pytest.raises(UnsupportedError, match="training_mode is true"):
        read(one("Dropout", (2, 3), scalar(0.5), np.array(True)))
    x = f(2, 3)
    np.testing.assert_array_equal(evaluate(read(one("Dropout", (2, 3), scalar(0.0), np.array(True))), [x])[0], x)


@pytest.mark.parametrize("groups", [1, 2])
def test_a_quantised_transposed_convolution_works_on_integers(groups: int) -> None:
    """Scales of the output channels, which are those of every group; within one step of ONNX Runtime, which sums floats."""
    scales = abs(f(4)) * 0.01 + 0.001
    constants = {
        "w": bytes_(8, 4, 3, 3, signed=True),
        "ws": scales,
        "wz": np.zeros(4, np.int8),
        "s": scalar(0.02),
        "z": np.array(3, np.int8),
        "t": scalar(0.5),
    }
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["r"]),
        node("DequantizeLinear", ["w", "ws", "wz"], ["v"], axis=1),
        node(
            "ConvTranspose", ["r", "v"], ["c"], strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1], group=groups
        ),
        node("QuantizeLinear", ["c", "t", "z"], ["d"]),
        node("DequantizeLinear", ["d", "t", "z"], ["y"]),
    ]
    model = proto(nodes, {"x": (1, 8, 5, 6)}, constants)
    graph = recognise_quantised_layers(read(model), PassContext())
    (layer,) = [each for each in graph.nodes if each.op == "conv2d_transpose"]
    assert [graph.types[name].dtype for name in (*layer.inputs, *layer.outputs)] == ["int8"] * 3
    inputs = [f(1, 8, 5, 6)]
    np.testing.assert_allclose(evaluate(read(model), inputs)[0], expected(model, inputs)[0], atol=0.501)


@pytest.mark.parametrize("rows", [False, True])
def test_a_dynamically_quantised_lstm_is_one_on_its_weights(rows: bool) -> None:
    """Scales of a direction, or of its rows."""
    hidden, shape = 3, (1, 12) if rows else (1,)
    x, h = f(5, 1, 4), f(1, 1, hidden)
    whole = {"w": bytes_(1, 4, 4 * hidden), "r": bytes_(1, hidden, 4 * hidden)}
    scales = {name: (abs(f(*shape)) * 0.01 + 0.001) for name in ("ws", "rs")}
    zeros = {"wz": np.full(shape, 120, np.uint8), "rz": np.full(shape, 130, np.uint8)}
    state = {"b": f(1, 8 * hidden), "h": h, "c": f(1, 1, hidden)}
    names = ["x", "w", "r", "b", "", "h", "c", "", "ws", "wz", "rs", "rz"]
    layer = node("DynamicQuantizeLSTM", names, domain="com.microsoft", hidden_size=hidden)
    found = evaluate(read(proto([layer], {"x": x.shape}, {**whole, **scales, **zeros, **state})), [x])
    real = {
        name: (
            (whole[name] - zeros[f"{name}z"].reshape(1, 1, -1).astype(np.float32))
            * scales[f"{name}s"].reshape(1, 1, -1)
        )
        for name in whole
    }
    plain = node("LSTM", ["x", "w", "r", "b", "", "h", "c"], hidden_size=hidden)
    turned = {name: np.ascontiguousarray(array.transpose(0, 2, 1)) for name, array in real.items()}
    wanted = evaluate(read(proto([plain], {"x": x.shape}, {**turned, **state})), [x])
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-6, atol=1e-7)


def test_the_norm_of_integers_is_rounded_down() -> None:
    """Roots of numbers around squares, up to the largest int32, as exact integers; onnxruntime computes the same.

    The sums of squares exceed int32. A root that exceeds int32 becomes the largest int32."""
    rng = np.random.default_rng(3)
    most = np.iinfo(np.int32).max
    x = np.concatenate([rng.integers(-limit, limit, (9000, 2)) for limit in (9, 1 << 15, 1 << 20, most >> 1)])
    roots = np.concatenate([np.arange(46341), most - np.arange(9000)])
    x = np.concatenate([x, np.stack([roots, roots * 0], 1), np.stack([roots, roots * 0 + 1], 1), [[-most - 1, 0]]])
    x = x.astype(np.int32)
    model = proto(
        [node("ReduceL2", ["x", "axes"], keepdims=0)],
        {"x": x.shape},
        {"axes": np.array([1])},
        opset=18,
        dtypes={"x": "int32", "y": "int32"},
    )
    (found,) = evaluate(read(model), [x])
    exact = [min(math.isqrt(int(total)), most) for total in (x.astype(np.int64) ** 2).sum(axis=1)]
    np.testing.assert_array_equal(found, exact)
    (wanted,) = expected(model, [x])
    np.testing.assert_array_equal(found[-9000:], wanted[-9000:])
