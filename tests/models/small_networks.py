# SPDX-License-Identifier: Apache-2.0
"""Small networks of all kinds of layers, built in place: what a firmware's size is compared on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.frontend.onnx_model import node, proto
from tests.frontend.qdq_networks import Network
from tests.quantization.networks import Net, classifier

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def _elementwise(*codes: str, dtype: str = "float32") -> Any:
    """Unary operators one after the other, on 8 numbers."""
    names = ["x", *(f"y{k}" for k in range(len(codes)))]
    nodes = [node(code, (names[k],), (names[k + 1],)) for k, code in enumerate(codes)]
    return proto(nodes, {"x": (8,)}, outputs=(names[-1],), dtypes={"x": dtype, names[-1]: dtype})


def _dense() -> Any:
    net = Network(1)
    hidden = net.apply("Relu", net.apply("Gemm", "x", net.weights(6, 8, fan=6), net.weights(8)))
    return net.model((1, 6), net.apply("Gemm", hidden, net.weights(8, 3, fan=8), net.weights(3)))


def _convolutions() -> Any:
    net = Network(2)
    x = net.apply("MaxPool", net.apply("Relu", net.conv("x", 1, 4)), kernel_shape=[2, 2], strides=[2, 2])
    x = net.apply("GlobalAveragePool", net.apply("Relu", net.conv(x, 4, 4, groups=4)))
    return net.model((1, 1, 8, 8), net.apply("Softmax", net.apply("Flatten", x), axis=1))


def _recurrent(code: str, gates: int, units: int = 4, depth: int = 3) -> Any:
    net = Network(3)
    weights = net.weights(1, gates * units, depth, fan=depth), net.weights(1, gates * units, units, fan=units)
    return net.model((5, 1, depth), net.apply(code, "x", *weights, hidden_size=units))


def _attention(length: int = 6, depth: int = 8) -> Any:
    """One head with a layer of normalised sums before, and a GELU behind."""
    net = Network(4)
    normal = net.apply("LayerNormalization", "x", net.weights(depth), net.weights(depth), axis=-1)
    query, key, value = (net.apply("MatMul", normal, net.weights(depth, depth, fan=depth)) for _ in range(3))
    scores = net.apply("MatMul", query, net.apply("Transpose", key, perm=[0, 2, 1]))
    mixed = net.apply("MatMul", net.apply("Softmax", scores, axis=-1), value)
    half = net.apply("Mul", mixed, net.constant(np.float32(0.5)))
    error = net.apply("Erf", net.apply("Mul", mixed, net.constant(np.float32(0.5**0.5))))
    gelu = net.apply("Mul", half, net.apply("Add", error, net.constant(np.float32(1))))
    return net.model((1, length, depth), net.apply("Add", gelu, "x"))


def _argmax() -> Any:
    net = Network(5)
    best = net.apply("ArgMax", net.apply("Gemm", "x", net.weights(6, 4, fan=6)), axis=1)
    nodes, constants = [*net.nodes, node("Div", (best, "three"), ("y",))], {**net.constants, "three": np.array([3])}
    return proto(nodes, {"x": (1, 6)}, constants, ("y",), dtypes={"y": "int64"})


def _unet() -> Any:
    net = Network(6)
    first = net.apply("Relu", net.conv("x", 2, 4))
    second = net.apply("Relu", net.conv(net.apply("MaxPool", first, kernel_shape=[2, 2], strides=[2, 2]), 4, 4))
    joined = net.apply("Concat", net.upsampled(second, 4, 4, "linear"), first, axis=1)
    return net.model((1, 2, 8, 8), net.apply("Sigmoid", net.conv(joined, 8, 1, 1)))


def _quantised(source: Callable[[], Any], shape: tuple[int, ...]) -> Any:
    from microc import quantize

    data = np.random.default_rng(7).normal(size=(16, *shape)).astype(np.float32)
    return quantize(source(), data).graph


def _fit(module: str, name: str, **parameters: Any) -> Any:
    """An estimator of scikit-learn for three kinds of flowers."""
    data = pytest.importorskip("sklearn.datasets").load_iris()
    estimator = getattr(pytest.importorskip(f"sklearn.{module}"), name)(**parameters)
    return estimator.fit(data.data[::3], data.target[::3])


def _pool() -> Any:
    net = Net((1, 8, 8, 2))
    return net.graph(net.op("max_pool2d", net.x, kernel=(2, 2), strides=(2, 2), padding=(0, 0, 0, 0), layout="NHWC"))


NETWORKS: Mapping[str, Callable[[], Any]] = {
    "digits int8": lambda: EXAMPLES / "digits" / "digits_int8.tflite",
    "digits float": lambda: EXAMPLES / "digits" / "digits_float.onnx",
    "digits QDQ": lambda: EXAMPLES / "digits" / "digits_qdq.onnx",
    "relu": partial(_elementwise, "Relu"),
    "dense": _dense,
    "dense int8": partial(_quantised, _dense, (1, 6)),
    "convolutions": _convolutions,
    "convolutions int8": partial(_quantised, _convolutions, (1, 1, 8, 8)),
    "classifier": classifier,
    "pool": _pool,
    "U-Net": _unet,
    "LSTM": partial(_recurrent, "LSTM", 4),
    "GRU": partial(_recurrent, "GRU", 3),
    "attention": _attention,
    "argmax": _argmax,
    "exponentials": partial(_elementwise, "Exp", "Log", "Sqrt", "Reciprocal"),
    "angles": partial(_elementwise, "Sin", "Cos", "Tan", "Atan"),
    "rounded": partial(_elementwise, "Floor", "Ceil", "Round", "Abs"),
    "double": partial(_elementwise, "Exp", "Neg", dtype="float64"),
    "forest": partial(_fit, "ensemble", "RandomForestClassifier", n_estimators=8, max_depth=4, random_state=0),
    "SVC": partial(_fit, "svm", "SVC"),
    "naive Bayes": partial(_fit, "naive_bayes", "GaussianNB"),
    "neighbours": partial(_fit, "neighbors", "KNeighborsClassifier"),
    "perceptron": partial(
        _fit, "neural_network", "MLPClassifier", hidden_layer_sizes=(8,), max_iter=300, random_state=0
    ),
}
"""Functions that make a network for :func:`microc.compile`, by name."""
