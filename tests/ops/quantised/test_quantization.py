# SPDX-License-Identifier: Apache-2.0
"""Between scales, and quantised sums and products: legalisation against plain formulas, and against TFLite Micro's results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from microc.base.dtypes import Array, int_range
from microc.errors import UnsupportedError
from microc.graph.ir import Attr, Graph, Node, Quant, TensorType
from microc.numerics import NUMPY, multiply_double_rounding, quantize_multiplier
from microc.ops.arithmetic import activation_range
from microc.ops.registry import get
from tests.ops.edges import random_array
from tests.ops.harness import legalized, run_graph, run_legalized
from tests.support.corpus import cases, models

F = np.float32


def quant(scale: float, zero_point: int = 0) -> Quant:
    return Quant((float(F(scale)),), (zero_point,))


def graph_of(op: str, kinds: Mapping[str, TensorType], attrs: Mapping[str, Attr]) -> tuple[Node, Graph]:
    """A graph of one node that reads everything but ``y``."""
    inputs = tuple(name for name in kinds if name != "y")
    node = Node(op, inputs, ("y",), {**get(op).defaults, **attrs})
    return node, Graph("g", inputs, ("y",), (node,), kinds)


def every(dtype: str) -> Array:
    low, high = int_range(dtype)
    return np.arange(low, high + 1).astype(dtype)


# ---------------------------------------------------------------- activation ranges


def test_activation_ranges() -> None:
    q = quant(0.05, 10)
    assert activation_range("", q, "int8") == (-128, 127)
    assert activation_range("relu", q, "int8") == (10, 127)
    assert activation_range("relu6", q, "int8") == (10, 127)
    assert activation_range("relu6", quant(0.1, -20), "int8") == (-20, 40)
    assert activation_range("relu_n1_to_1", q, "uint8") == (0, 30)
    assert activation_range("relu", quant(0.05, -200), "int8") == (-128, 127)
    assert activation_range("relu6", quant(4.0, 0), "int8") == (0, 2)
    assert activation_range("relu6", quant(4.0, 0), "int8", "even") == (0, 2)
    assert activation_range("relu_n1_to_1", quant(2.0, 0), "int8") == (-1, 1)
    assert activation_range("relu_n1_to_1", quant(2.0, 0), "int8", "even") == (0, 0)
    with pytest.raises(UnsupportedError):
        activation_range("tanh", q, "int8")


# ---------------------------------------------------------------- quantize, dequantize


@pytest.mark.parametrize(
    ("source", "result"), [("int8", "int8"), ("uint8", "int8"), ("int8", "int16"), ("int16", "int8"), ("int8", "int32")]
)
@pytest.mark.parametrize(("a", "b"), [(0.05, 0.0313), (0.01, 0.25), (0.5, 0.5)])
def test_integers_are_requantised_as_tflite_does(source: str, result: str, a: float, b: float) -> None:
    zero = 0 if source == "int16" else 3
    kinds = {
        "x": TensorType(every(source).shape, source, quant(a, zero)),
        "y": TensorType(every(source).shape, result, quant(b, -2)),
    }
    attrs: dict[str, Attr] = {
        "scale": (b,),
        "zero_point": (-2,),
        "axis": None,
        "out_dtype": result,
        "rounding": "double",
    }
    node, graph = graph_of("quantize", kinds, attrs)
    x = every(source)
    mantissa, shift = quantize_multiplier(float(F(a)) / float(F(b)))
    low, high = int_range(result)
    wanted = np.clip(multiply_double_rounding(x.astype(np.int64) - zero, mantissa, shift, NUMPY) - 2, low, high)
    np.testing.assert_array_equal(run_legalized(node, graph, {"x": x})[0], wanted)


@pytest.mark.parametrize(("source", "op"), [("uint8", "lookup"), ("int16", "quantize")])
def test_integers_are_requantised_as_onnx_does(source: str, op: str) -> None:
    kinds = {
        "x": TensorType(every(source).shape, source, quant(0.07, 5)),
        "y": TensorType(every(source).shape, "int8", quant(0.1, 2)),
    }
    attrs: dict[str, Attr] = {
        "scale": (0.1,),
        "zero_point": (2,),
        "axis": None,
        "out_dtype": "int8",
        "rounding": "even",
    }
    node, graph = graph_of("quantize", kinds, attrs)
    real = (every(source).astype(np.int64) - 5).astype(F) * F(0.07)
    wanted = np.clip(np.rint(real / F(0.1)) + 2, -128, 127)
    np.testing.assert_array_equal(run_legalized(node, graph, {"x": every(source)})[0], wanted)
    assert legalized(node, graph)[0][-1].op == op


def test_scales_per_channel_become_operands() -> None:
    scale, points = (0.1, 0.2, 0.4), (1, -2, 0)
    attrs: dict[str, Attr] = {"scale": scale, "zero_point": points, "axis": 1}
    kinds = {"x": TensorType((4, 3, 2), "int8"), "y": TensorType((4, 3, 2), "float32")}
    x = random_array(kinds["x"], np.random.default_rng(0))
    node, graph = graph_of("dequantize", kinds, attrs)
    (plain,) = get("dequantize").reference(attrs, (x,))
    np.testing.assert_array_equal(run_legalized(node, graph, {"x": x})[0], plain)

    attrs |= {"out_dtype": "int8", "rounding": "even"}
    node, graph = graph_of("quantize", {"x": kinds["y"], "y": kinds["x"]}, attrs)
    real = np.linspace(-60, 60, 24, dtype=F).reshape(4, 3, 2)
    (plain,) = get("quantize").reference(attrs, (real,))
    np.testing.assert_array_equal(run_legalized(node, graph, {"x": real})[0], plain)


def test_one_scale_stays_as_it_is() -> None:
    kinds = {"x": TensorType((4,), "float32"), "y": TensorType((4,), "int8", quant(0.1))}
    attrs: dict[str, Attr] = {"scale": (0.1,), "zero_point": (0,), "out_dtype": "int8"}
    node, graph = graph_of("quantize", kinds, attrs)
    legalize = get("quantize").legalize
    assert legalize is not None and legalize(node, graph) is None


# ---------------------------------------------------------------- add, sub, mul


@pytest.mark.parametrize("op", ["add", "sub", "mul"])
@pytest.mark.parametrize(
    ("dtype", "points", "scales"),
    [
        ("int8", (3, -128, 7), (0.02, 0.05, 0.06)),
        ("int8", (0, 0, 0), (0.05, 0.05, 0.1)),
        ("uint8", (128, 3, 99), (0.3, 0.001, 0.4)),
        ("int16", (0, 0, 0), (0.0003, 0.0005, 0.0006)),
    ],
)
@pytest.mark.parametrize("activation", ["", "relu6"])
def test_sums_and_products(
    op: str, dtype: str, points: tuple[int, int, int], scales: tuple[float, float, float], activation: str
) -> None:
    shapes = ((256, 1), (1, 256), (256, 256))
    kinds = {
        name: TensorType(shape, dtype, quant(scale, zero))
        for name, shape, scale, zero in zip("aby", shapes, scales, points, strict=True)
    }
    node, graph = graph_of(op, kinds, {"activation": activation, "rounding": "double"})
    grid = np.linspace(*int_range(dtype), 256).round().astype(dtype)
    a, b = grid[:, None], grid[None, :]
    wanted = formula(op, dtype, points, [float(F(s)) for s in scales], (a.astype(np.int64), b.astype(np.int64)))
    assert kinds["y"].quant is not None
    wanted = np.clip(wanted, *activation_range(activation, kinds["y"].quant, dtype))
    np.testing.assert_array_equal(run_legalized(node, graph, {"a": a, "b": b})[0], wanted)


def formula(
    op: str, dtype: str, points: tuple[int, int, int], scales: list[float], values: tuple[Array, Array]
) -> Array:
    """TFLite's arithmetic, step by step."""

    def times(x: Array, real: float) -> Array:
        return np.asarray(multiply_double_rounding(x, *quantize_multiplier(real), NUMPY))

    a, b = values[0] - points[0], values[1] - points[1]
    if op == "mul":
        return times(a * b, scales[0] * scales[1] / scales[2]) + points[2]
    left, twice = 15 if dtype == "int16" else 20, 2 * max(scales[:2])
    terms = times(a << left, scales[0] / twice), times(b << left, scales[1] / twice)
    total = terms[0] - terms[1] if op == "sub" else terms[0] + terms[1]
    return times(total, twice / ((1 << left) * scales[2])) + points[2]


def test_onnx_sums_are_exact_in_integers() -> None:
    kinds = {name: TensorType((2, 2), "int8", quant(0.5)) for name in "aby"}
    node, graph = graph_of("add", kinds, {"rounding": "even"})
    assert [n.op for n in legalized(node, graph)[0]] == ["sum_even"]


# ---------------------------------------------------------------- against TFLite Micro

_MODELS = models(
    "seanet_add*", "seanet_sub*", "seanet_conv_*", "seanet_quantize*", "mlperf_kws_int8*", "tflm_hello_world_int8*"
)


@pytest.mark.corpus
@pytest.mark.parametrize("path", _MODELS, ids=lambda path: path.stem)
def test_models_give_the_bits_of_tflite_micro(path: Path) -> None:
    from microc.frontend.detect import load_model_file

    graph = load_model_file(path, {})
    nodes: list[Node] = []
    types, consts = dict(graph.types), dict(graph.consts)
    for node in graph.nodes:
        definition = get(node.op)
        node = replace(node, attrs={**definition.defaults, **node.attrs})
        found = definition.legalize(node, graph) if definition.legalize is not None else None
        made, more_types, more_consts = found if found is not None else ((node,), {}, {})
        nodes.extend(made)
        types.update(more_types)
        consts.update(more_consts)
    for inputs, outputs in cases(path)[:2]:
        given = {name: x.reshape(types[name].shape) for name, x in zip(graph.inputs, inputs, strict=True)}
        known = run_graph(nodes, types, {**consts, **given})
        for name, wanted in zip(graph.outputs, outputs, strict=True):
            np.testing.assert_array_equal(known[name], wanted.reshape(known[name].shape))
