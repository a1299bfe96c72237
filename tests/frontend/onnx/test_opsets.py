# SPDX-License-Identifier: Apache-2.0
"""Operators in the forms that they had in earlier operator sets, from 7 on, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from microc.base.dtypes import Array
from tests.frontend.onnx_model import Shape, evaluate, expected, node, proto, read

RNG = np.random.default_rng(17)
IMAGE = (2, 4, 5, 6)


def f(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def form(
    code: str, opset: int, x: Shape, *operands: Array, outputs: int = 1, kind: str = "float32", **attrs: Any
) -> Any:
    """A model of one operator with constant operands behind the input."""
    constants = {f"c{k}": array for k, array in enumerate(operands)}
    results = ["y", "z"][:outputs]
    each = node(code, ["x", *constants], results, **attrs)
    kinds = {"y": kind, "z": "int64" if code == "TopK" else kind}
    return proto([each], {"x": x}, constants, results, opset, kinds)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def floats(*values: float) -> Array:
    return np.array(values, np.float32)


NORMAL = (f(4), f(4), f(4), abs(f(4)) + 0.5)
FORMS: dict[str, Any] = {
    "ArgMax 1": form("ArgMax", 10, IMAGE, axis=2, keepdims=0, kind="int64"),
    "AveragePool 7": form("AveragePool", 9, IMAGE, kernel_shape=[3, 2], pads=[1, 0, 1, 1], count_include_pad=1),
    "BatchNormalization 7": form("BatchNormalization", 7, IMAGE, *NORMAL, epsilon=0.01, momentum=0.5),
    "BatchNormalization 7, spatial": form("BatchNormalization", 8, IMAGE, *NORMAL, spatial=1),
    "BatchNormalization 9": form("BatchNormalization", 13, IMAGE, *NORMAL),
    "Cast 6": form("Cast", 8, IMAGE, to=7, kind="int64"),
    "Clip 6": form("Clip", 10, IMAGE, min=-0.5, max=0.25),
    "Clip 6, one bound": form("Clip", 7, IMAGE, max=0.25),
    "Clip 11": form("Clip", 11, IMAGE, np.array(-0.5, np.float32)),
    "DepthToSpace 1": form("DepthToSpace", 10, IMAGE, blocksize=2),
    "Dropout 7": form("Dropout", 7, IMAGE, ratio=0.3),
    "Dropout 10": form("Dropout", 11, IMAGE, ratio=0.3),
    "Flatten 1": form("Flatten", 8, IMAGE, axis=2),
    "Gemm 7": form("Gemm", 8, (3, 4), f(4, 5), f(5), alpha=0.5),
    "Hardmax 1": form("Hardmax", 11, IMAGE, axis=2),
    "LogSoftmax 1": form("LogSoftmax", 10, IMAGE, axis=2),
    "LpPool 2": form("LpPool", 10, IMAGE, kernel_shape=[2, 2], p=2),
    "Max 6": form("Max", 7, IMAGE, f(*IMAGE)),
    "Max 8": form("Max", 8, IMAGE, f(6), f(5, 1)),
    "MaxPool 1": form("MaxPool", 7, IMAGE, kernel_shape=[2, 2], strides=[2, 2]),
    "MaxPool 8, indices": form("MaxPool", 8, IMAGE, kernel_shape=[2, 2]),
    "Pad 2": form("Pad", 10, IMAGE, pads=[0, 0, 1, 2, 0, 0, 0, 1], value=0.5),
    "Pad 2, edge": form("Pad", 8, IMAGE, pads=[0, 0, 1, 2, 0, 0, 0, 1], mode="edge"),
    "Pad 2, reflect": form("Pad", 9, IMAGE, pads=[0, 0, 1, 2, 0, 0, 3, 1], mode="reflect"),
    "Pad 11": form("Pad", 11, IMAGE, ints(0, 0, 1, 2, 0, 0, 0, 1), np.array(0.5, np.float32)),
    "Pad 18": form("Pad", 18, IMAGE, ints(1, 2, 0, 1), np.array(0.5, np.float32), ints(-2, 3)),
    "Pow 7": form("Pow", 7, (3, 4), floats(2.0)),
    "QuantizeLinear 10": form(
        "QuantizeLinear", 10, IMAGE, np.array(0.1, np.float32), np.array(3, np.int8), kind="int8"
    ),
    "ReduceL2 1": form("ReduceL2", 11, IMAGE, axes=[-1, 1]),
    "ReduceLogSumExp 1": form("ReduceLogSumExp", 8, IMAGE, axes=[2], keepdims=0),
    "ReduceMax 13": form("ReduceMax", 13, IMAGE, axes=[1, 2]),
    "ReduceMax 18": form("ReduceMax", 18, IMAGE, ints(1, 2), keepdims=0),
    "ReduceMean 1": form("ReduceMean", 7, IMAGE, axes=[2, 3], keepdims=0),
    "ReduceMean 1, all": form("ReduceMean", 7, IMAGE),
    "ReduceSum 1": form("ReduceSum", 11, IMAGE, axes=[0, 2]),
    "ReduceSum 13": form("ReduceSum", 13, IMAGE, ints(0, 2)),
    "ReduceSum 13, none": form("ReduceSum", 13, IMAGE, ints(), noop_with_empty_axes=1),
    "Reshape 5": form("Reshape", 7, IMAGE, ints(0, -1, 3)),
    "Resize 10": form("Resize", 10, IMAGE, floats(1, 1, 2, 1.5), mode="nearest"),
    "Resize 10, linear": form("Resize", 10, IMAGE, floats(1, 1, 2, 2), mode="linear"),
    "Resize 11": form("Resize", 11, IMAGE, floats(), floats(1, 1, 2, 3), mode="linear"),
    "Resize 13": form("Resize", 13, IMAGE, floats(), floats(), ints(2, 4, 7, 9), mode="linear"),
    "Scatter 9": form("Scatter", 9, (3, 4), np.array([[1, 0, 2, 1]]), f(1, 4), axis=0),
    "Slice 1": form("Slice", 9, IMAGE, starts=[1, -4], ends=[3, 1000], axes=[1, 3]),
    "Slice 1, no axes": form("Slice", 7, IMAGE, starts=[0, 1], ends=[1, -1]),
    "Slice 10": form("Slice", 10, IMAGE, ints(-1, 0), ints(-100, 5), ints(3, 2), ints(-2, 1)),
    "Softmax 1": form("Softmax", 7, IMAGE),
    "Softmax 11": form("Softmax", 12, IMAGE, axis=-2),
    "Softmax 13": form("Softmax", 13, IMAGE, axis=1),
    "Split 2": form("Split", 12, IMAGE, outputs=2, axis=1, split=[1, 3]),
    "Split 2, equal": form("Split", 7, IMAGE, outputs=2, axis=3),
    "Split 13": form("Split", 13, IMAGE, ints(1, 3), outputs=2, axis=1),
    "Split 18": form("Split", 18, IMAGE, outputs=2, axis=2, num_outputs=2),
    "Squeeze 1": form("Squeeze", 11, (1, 3, 1, 2), axes=[0, 2]),
    "Squeeze 1, all": form("Squeeze", 7, (1, 3, 1, 2)),
    "Squeeze 13": form("Squeeze", 13, (1, 3, 1, 2), ints(-2)),
    "Sum 6": form("Sum", 7, (2, 3), f(2, 3)),
    "Sum 8": form("Sum", 8, (2, 3), f(3), f(2, 1)),
    "ThresholdedRelu 10": form("ThresholdedRelu", 10, IMAGE, alpha=0.5),
    "TopK 1": form("TopK", 9, IMAGE, outputs=2, k=2, axis=-1),
    "TopK 10": form("TopK", 10, IMAGE, ints(3), outputs=2),
    "TopK 11": form("TopK", 11, IMAGE, ints(2), outputs=2, axis=1, largest=0),
    "Unsqueeze 1": form("Unsqueeze", 11, (2, 3), axes=[0, 3]),
    "Unsqueeze 13": form("Unsqueeze", 13, (2, 3), ints(0, -1)),
    "Upsample 7": form("Upsample", 7, IMAGE, scales=[1.0, 1.0, 2.0, 3.0]),
    "Upsample 7, linear": form("Upsample", 8, IMAGE, scales=[1.0, 1.0, 2.0, 2.0], mode="linear"),
    "Upsample 9": form("Upsample", 9, IMAGE, floats(1, 1, 2, 3)),
}


@pytest.mark.parametrize("name", FORMS)
def test_earlier_forms(name: str) -> None:
    model = FORMS[name]
    inputs = [f(*(d.dim_value for d in value.type.tensor_type.shape.dim)) for value in model.graph.input]
    for found, wanted in zip(evaluate(read(model), inputs), expected(model, inputs), strict=True):
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)


def test_normalisation_by_place() -> None:
    """BatchNormalization 7 with ``spatial`` 0 has parameters for every place, which no later one has."""
    scale, bias, mean, variance = (f(4, 3) for _ in range(4))
    variance = abs(variance) + 0.5
    model = form("BatchNormalization", 8, (2, 4, 3), scale, bias, mean, variance, spatial=0)
    x = f(2, 4, 3)
    wanted = (x - mean) / np.sqrt(variance + 1e-5) * scale + bias
    np.testing.assert_allclose(evaluate(read(model), [x])[0], wanted, rtol=2e-5, atol=2e-6)


def test_normalisation_keeps_doubles() -> None:
    parameters = {f"c{k}": array.astype(np.float64) for k, array in enumerate(NORMAL)}
    model = proto(
        [node("BatchNormalization", ["x", *parameters])], {"x": (2, 4, 3)}, parameters, dtypes={"x": "float64"}
    )
    assert read(model).types["y"].dtype == "float64"


def test_sums_of_exponentials_neither_overflow_nor_lose_infinities() -> None:
    model = form("ReduceLogSumExp", 13, (4, 2), axes=[1], keepdims=0)
    x = np.array([[1000, 1000], [-np.inf, -np.inf], [np.inf, 3], [np.nan, 1]], np.float32)
    wanted = np.array([1000 + np.log(2), -np.inf, np.inf, np.nan], np.float32)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(evaluate(read(model), [x])[0], wanted, rtol=1e-6)
