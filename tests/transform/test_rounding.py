# SPDX-License-Identifier: Apache-2.0
"""Integers of TFLite files, rounded twice or once, as the option says."""

from __future__ import annotations

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.frontend.tflite import reader as tflite
from microc.graph.ir import Graph
from microc.numerics import NUMPY, multiply_double_rounding, quantize_multiplier
from microc.transform.pass_context import PassContext, run_passes
from microc.transform.quantised import legalize
from microc.transform.quantised import legalize as rounding_pass
from tests.frontend.tflite_model import Op, Tensor, constant, quantised
from tests.ops.harness import run_graph
from tests.ops.oracle import single, tflm

RNG = np.random.default_rng(8)
X_SCALE, Y_SCALE = np.float32(0.05), np.float32(0.3)
WEIGHTS = RNG.integers(-127, 128, (256, 32)).astype(np.int8)
BIAS = RNG.integers(-500, 500, 256)


def scales(channels: bool) -> Array:
    return RNG.uniform(0.005, 0.02, 256 if channels else 1).astype(np.float32)


def dense(scale: Array, dtype: str = "INT8") -> bytes:
    zero = (0,) * len(scale)
    tensors = (
        Tensor("x", (16, 32), dtype, scale=(float(X_SCALE),), zero_point=(0,)),
        constant("w", WEIGHTS, scale=tuple(map(float, scale)), zero_point=zero),
        constant(
            "b",
            BIAS.astype(np.int32 if dtype == "INT8" else np.int64),
            scale=tuple(map(float, scale * X_SCALE)),
            zero_point=zero,
        ),
        Tensor("y", (16, 256), dtype, scale=(float(Y_SCALE),), zero_point=(0,)),
    )
    return single(Op("FULLY_CONNECTED", ("x", "w", "b"), ("y",), "FullyConnectedOptions"), tensors)


def results(graph: Graph, x: Array, rounding: str) -> Array:
    whole = run_passes(
        graph, (rounding_pass.ROUNDING_PASS, legalize.LEGALIZE_PASS), PassContext(options={"rounding": rounding})
    )
    values = run_graph(whole.nodes, whole.types, {**whole.consts, "x": x})
    return values[whole.outputs[0]]


@pytest.mark.parametrize("channels", [False, True])
@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_dense_layers_round_once_as_in_litert(channels: bool, dtype: str) -> None:
    """LiteRT multiplies the sum by the scales in double, and rounds that."""
    scale, info = scales(channels), np.iinfo(dtype)
    data = dense(scale, dtype.upper())
    x = RNG.integers(info.min, info.max, (16, 32), dtype, endpoint=True)
    factor = np.float64(X_SCALE) * scale.astype(np.float64) / np.float64(Y_SCALE)
    real = (x.astype(np.int64) @ WEIGHTS.T.astype(np.int64) + BIAS) * factor
    wanted = np.clip(np.trunc(real + np.copysign(0.5, real)), info.min, info.max).astype(dtype)
    graph = tflite.read_tflite(data, "dense.tflite")
    np.testing.assert_array_equal(results(graph, x, "litert"), wanted)
    twice = results(graph, x, "tflm")
    np.testing.assert_array_equal(twice, tflm(data, x))
    assert 0 < np.count_nonzero(twice != wanted) < 0.2 * wanted.size


def test_all_operators_round_once_if_asked() -> None:
    tensors = (quantised("a", (4096,), 0.05, 3), quantised("b", (4096,), 0.02, -7), quantised("y", (4096,), 0.3, 9))
    graph = tflite.read_tflite(single(Op("MUL", ("a", "b"), ("y",), "MulOptions"), tensors), "mul.tflite")
    assert {node.attr("rounding") for node in rounding_pass.set_rounding_attributes(graph, PassContext()).nodes} == {
        "double"
    }
    context = PassContext(options={"rounding": "litert"})
    assert {node.attr("rounding") for node in rounding_pass.set_rounding_attributes(graph, context).nodes} == {"double"}
    context = PassContext(options={"rounding": "single"})
    assert {node.attr("rounding") for node in rounding_pass.set_rounding_attributes(graph, context).nodes} == {"single"}


def test_quotients_are_scaled_as_the_runtime_is_built() -> None:
    """Where the ratio of the scales is almost a whole number, ties tell doubles (TFLite Micro) from floats (LiteRT)."""
    zero = -128
    tensors = (
        quantised("a", (256, 255), 0.2157369, zero),
        quantised("b", (256, 255), 0.21965846, zero),
        quantised("y", (256, 255), 0.0038515567, zero),
    )
    data = single(Op("DIV", ("a", "b"), ("y",), "DivOptions"), tensors)
    graph = tflite.read_tflite(data, "div.tflite")
    a, b = (array.astype(np.int8) for array in np.meshgrid(range(-128, 128), range(-127, 128), indexing="ij"))

    def quotients(rounding: str) -> Array:
        whole = run_passes(
            graph, (rounding_pass.ROUNDING_PASS, legalize.LEGALIZE_PASS), PassContext(options={"rounding": rounding})
        )
        values = run_graph(whole.nodes, whole.types, {**whole.consts, "a": a, "b": b})
        return values[whole.outputs[0]]

    found = quotients("tflm")
    np.testing.assert_array_equal(found, tflm(data, a, b))
    assert np.count_nonzero(found != quotients("litert"))


def test_integers_between_scales_round_as_often_as_asked() -> None:
    """QUANTIZE of an integer is a multiplier, which the option speaks of as of any other."""
    ratio, count = 0.3125, 1 << 16  # ties are many
    tensors = (
        Tensor("x", (count,), "INT16", scale=(0.001 * ratio,), zero_point=(0,)),
        Tensor("y", (count,), "INT16", scale=(0.001,), zero_point=(0,)),
    )
    data = single(Op("QUANTIZE", ("x",), ("y",)), tensors)
    graph, x = tflite.read_tflite(data, "quantize.tflite"), np.arange(-count // 2, count // 2, dtype=np.int16)
    np.testing.assert_array_equal(results(graph, x, "tflm"), tflm(data, x))
    real = float(np.float32(0.001 * ratio)) / float(np.float32(0.001))
    mantissa, shift = quantize_multiplier(real)
    wanted = [(int(value) * mantissa + (1 << (30 - shift))) >> (31 - shift) for value in x]
    np.testing.assert_array_equal(results(graph, x, "single"), wanted)
    assert np.count_nonzero(results(graph, x, "tflm") != wanted)


def int16_model(code: str, scale: float, options: str = "", **fields: float) -> bytes:
    tensors = (quantised("x", (1, 65536), X16, 0, "INT16"), quantised("y", (1, 65536), scale, 0, "INT16"))
    return single(Op(code, ("x",), ("y",), options, fields), tensors)


X16 = float(np.float32(1.5e-4))


@pytest.mark.parametrize("scale", [3.7e-5, 1.1e-4, 2.9e-4])
def test_litert_divides_the_scales_of_int16_in_float32(scale: float) -> None:
    x = np.arange(-32768, 32768).astype(np.int16)[None]
    y, wide = np.float32(scale), x.astype(np.int64)
    above = multiply_double_rounding(wide, *quantize_multiplier(float(np.float32(X16) / y)), NUMPY)
    slope = float(np.float32(X16) * np.float32(0.2) / y)
    below = multiply_double_rounding(wide, *quantize_multiplier(slope), NUMPY)
    relu, leaky = (np.clip(np.where(x >= 0, above, low), -32768, 32767).astype(np.int16) for low in (0 * wide, below))
    for data, wanted in (
        (int16_model("RELU", float(y)), relu),
        (int16_model("LEAKY_RELU", float(y), "LeakyReluOptions", Alpha=0.2), leaky),
    ):
        np.testing.assert_array_equal(results(tflite.read_tflite(data, "one.tflite"), x, "litert"), wanted)


def test_litert_quantises_to_int16_by_the_reciprocal() -> None:
    """Ties to even; dividing by the scale rounds one in a thousand to another number."""
    tensors = (Tensor("x", (1, 65536)), quantised("y", (1, 65536), 3.7e-5, 0, "INT16"))
    graph = tflite.read_tflite(single(Op("QUANTIZE", ("x",), ("y",)), tensors), "one.tflite")
    scale = np.float32(3.7e-5)
    x = (np.arange(-32768, 32768).astype(np.float32)[None] + np.float32(0.5)) * scale
    wanted = np.clip(np.rint(x * (np.float32(1) / scale)), -32768, 32767).astype(np.int16)
    np.testing.assert_array_equal(results(graph, x, "litert"), wanted)
    assert (results(graph, x, "tflm") != wanted).any()
