# SPDX-License-Identifier: Apache-2.0
"""QONNX's Quant, BipolarQuant and Trunc, against their definition in numpy and against the package qonnx."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import microc
from microc.base.dtypes import Array
from microc.errors import MicrocError, UnsupportedError
from microc.frontend.onnx.reader import read_onnx
from microc.graph.ir import Graph
from microc.ops.meaning import evaluate
from tests.support.campaign import table_row

onnx = pytest.importorskip("onnx")
DOMAIN = "qonnx.custom_op.general"
ROUND: dict[str, Any] = {
    "ROUND": np.rint, "half_even": np.rint, "CEIL": np.ceil, "FLOOR": np.floor, "DOWN": np.trunc,
    "ROUND_TO_ZERO": np.trunc,
    "UP": lambda x: np.sign(x) * np.ceil(np.abs(x)),
    "HALF_UP": lambda x: np.sign(x) * np.floor(np.abs(x) + 0.5),
    "HALF_DOWN": lambda x: np.sign(x) * np.ceil(np.abs(x) - 0.5),
}  # fmt: skip
X = np.concatenate([np.linspace(-9, 9, 20), np.arange(-10, 10) / 8]).astype(np.float32).reshape(4, 10)
PER_ROW = np.linspace(0.1, 0.4, 4, dtype=np.float32).reshape(4, 1)


def model(op: str, operands: list[Any], is_constant: bool = False, **attributes: Any) -> Any:
    """A network of one operator of X, as an input or as a constant to which zeros are added."""
    h, kinds = onnx.helper, onnx.TensorProto
    constants = [onnx.numpy_helper.from_array(np.asarray(c, np.float32), f"c{k}") for k, c in enumerate(operands)]
    constants += [onnx.numpy_helper.from_array(X, "x")] if is_constant else []
    nodes = [h.make_node(op, ["x", *(f"c{k}" for k in range(len(operands)))], ["y"], domain=DOMAIN, **attributes)]
    nodes += [h.make_node("Add", ["y", "z"], ["sum"])] if is_constant else []
    inputs = [h.make_tensor_value_info("z" if is_constant else "x", kinds.FLOAT, X.shape)]
    outputs = [h.make_tensor_value_info("sum" if is_constant else "y", kinds.FLOAT, X.shape)]
    graph = h.make_graph(nodes, "net", inputs, outputs, constants)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 13), h.make_opsetid(DOMAIN, 1)])


def read(content: Any) -> Graph:
    return read_onnx(content.SerializeToString(), "net.onnx", {})


def quantize_by_definition(scale: Any, zero: float, bits: int, signed: bool, narrow: bool, mode: str) -> Array:
    """The definition: clip, then round; one signed bit is -1 or 1."""
    levels = X / np.float32(scale) + np.float32(zero)
    low, high = (-(1 << bits - 1) + narrow, (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1 - narrow)
    levels = np.where(levels >= 0, 1, -1) if bits == 1 and signed else ROUND[mode](np.clip(levels, low, high))
    return np.asarray((levels - zero) * scale)


@pytest.mark.parametrize("mode", ROUND)
@pytest.mark.parametrize("is_constant", [False, True])
def test_quant(mode: str, is_constant: bool) -> None:
    data = np.zeros_like(X) if is_constant else X
    types = [(1, 1, 0), (2, 1, 1), (4, 0, 0), (8, 1, 0), (8, 0, 1), (20, 1, 0)]
    for row in product(types, [(0.25, 0), (0.25, 1), (0.25, 2), (0.1, 0), (PER_ROW, 0)]):
        ((bits, signed, narrow), (scale, zero)) = row
        with table_row(row):
            content = model("Quant", [scale, zero, bits], is_constant, signed=signed, narrow=narrow, rounding_mode=mode)
            graph = read(content)
            (output,), _ = evaluate(graph, {graph.inputs[0]: data})
            wanted = quantize_by_definition(scale, zero, bits, bool(signed), bool(narrow), mode)
            np.testing.assert_allclose(output, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("is_constant", [False, True])
def test_bipolar_quant(is_constant: bool) -> None:
    graph = read(model("BipolarQuant", [0.5], is_constant))
    (output,), _ = evaluate(graph, {graph.inputs[0]: np.zeros_like(X) if is_constant else X})
    assert np.array_equal(output, np.where(X >= 0, np.float32(0.5), np.float32(-0.5)))


@pytest.mark.parametrize("mode", ["FLOOR", "ROUND"])
@pytest.mark.parametrize(("operands", "limit"), [([5], None), ([2.0, 4], (-8, 7))])
def test_trunc(mode: str, operands: list[float], limit: tuple[int, int] | None) -> None:
    """Version 1 keeps the scale of its input, version 2 has a scale of its own, and clips."""
    (output,), _ = evaluate(read(model("Trunc", [0.25, 0, 8, *operands], rounding_mode=mode)), {"x": X})
    levels = np.rint(X / 0.25) / 8
    expected = ROUND[mode](levels if limit is None else np.clip(levels, *limit)) * (0.25 if limit is None else 2)
    assert np.array_equal(output, expected.astype(np.float32))


@pytest.mark.parametrize(
    ("operands", "attributes", "words"),
    [
        ([0.25, 0, 2.5], {}, "bit width: got 2.5"),
        ([0.25, 0, 64], {}, "bit width: got 64"),
        ([0, 0, 8], {}, "scale: got 0.0"),
        ([0.25, 0, 8], {"rounding_mode": "STOCHASTIC"}, "STOCHASTIC"),
    ],
)
def test_other_quants_are_refused(operands: list[float], attributes: dict[str, Any], words: str) -> None:
    with pytest.raises(MicrocError, match=words):
        read(model("Quant", operands, **attributes))


def test_the_width_must_be_constant() -> None:
    content = model("Quant", [0.25, 0, 8])
    del content.graph.initializer[2]
    content.graph.input.append(onnx.helper.make_tensor_value_info("c2", onnx.TensorProto.FLOAT, []))
    with pytest.raises(UnsupportedError, match="c2"):
        read(content)


def test_layers_between_quants_are_computed_in_integers() -> None:
    """Weights of 4 bits by rows, activations of 8 and 4 bits, as Brevitas exports them."""
    h, rng = onnx.helper, np.random.default_rng(0)
    weight = rng.standard_normal((6, 10)).astype(np.float32)
    scale = (np.abs(weight).max(axis=1, keepdims=True) / 7).astype(np.float32)
    constants = {"w": weight, "ws": scale, "zero": 0, "four": 4, "eight": 8, "xs": 0.0625, "ys": 0.5}
    nodes = [
        h.make_node("Quant", ["x", "xs", "zero", "eight"], ["xq"], domain=DOMAIN, signed=1, narrow=0),
        h.make_node("Quant", ["w", "ws", "zero", "four"], ["wq"], domain=DOMAIN, signed=1, narrow=1),
        h.make_node("Gemm", ["xq", "wq"], ["sum"], transB=1),
        h.make_node("Relu", ["sum"], ["relu"]),
        h.make_node("Quant", ["relu", "ys", "zero", "four"], ["y"], domain=DOMAIN, signed=0, narrow=0),
    ]
    ends = [h.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, n]) for name, n in (("x", 10), ("y", 6))]
    initializers = [onnx.numpy_helper.from_array(np.asarray(c, np.float32), name) for name, c in constants.items()]
    graph = h.make_graph(nodes, "net", ends[:1], ends[1:], initializers)
    content = h.make_model(graph, opset_imports=[h.make_opsetid("", 13), h.make_opsetid(DOMAIN, 1)], ir_version=9)
    library = microc.compile(content)
    operators = [kernel["op"] for kernel in library.manifest["kernels"]]
    assert operators == ["quantize", "dense+requantize_float+dequantize"]
    x = np.rint(rng.standard_normal((1, 10)) * 20).astype(np.float32) / 16
    sums = x @ (np.clip(np.rint(weight / scale), -7, 7) * scale).T
    np.testing.assert_allclose(library(x), np.clip(np.rint(np.maximum(sums, 0) / 0.5), 0, 15) * 0.5, atol=1e-6)


def test_networks_compute_as_qonnx() -> None:
    general = pytest.importorskip("qonnx.custom_op.general.quant", reason="needs qonnx")
    for mode in ROUND:
        expected = general.quant(X, np.float32(0.1), np.float32(0), np.float32(4), 1, 0, mode)
        (output,), _ = evaluate(read(model("Quant", [0.1, 0, 4], narrow=0, rounding_mode=mode)), {"x": X})
        np.testing.assert_allclose(output, expected, rtol=1e-6)
