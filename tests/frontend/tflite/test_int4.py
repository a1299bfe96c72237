# SPDX-License-Identifier: Apache-2.0
"""Weights of four bits: the numbers of TFLite Micro, and two in a byte of flash where the code is made for size."""

from __future__ import annotations

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.compiler.fit.budget import list_goals_to_try
from microc.compiler.fit.search import build_network
from microc.compiler.lowering.kernel_builder import Configuration
from microc.compiler.options import Options
from microc.compiler.pipeline import optimise_graph
from microc.frontend.tflite import reader as tflite
from microc.target import target_for
from tests.frontend.run import library
from tests.frontend.tflite_model import Op, Tensor, constant, model, quantised
from tests.ops.oracle import tflm

RNG = np.random.default_rng(12)


def weights(name: str, *shape: int, channels: bool) -> Tensor:
    """Four-bit weights as the file packs them, along axis 0 or with one scale."""
    values = RNG.integers(-8, 8, shape).astype(np.int8).reshape(-1)
    flat = np.append(values, np.zeros(values.size % 2, np.int8)).astype(np.uint8) & 15
    count = shape[0] if channels else 1
    scale = tuple(map(float, RNG.uniform(0.05, 0.2, count).astype(np.float32)))
    return Tensor(name, shape, "INT4", (flat[::2] | flat[1::2] << 4).tobytes(), scale, (0,) * count)


def bias(name: str, weight: Tensor, units: int) -> Tensor:
    scale = tuple(float(np.float32(s) * np.float32(0.05)) for s in weight.scale)
    return constant(name, RNG.integers(-500, 500, units).astype(np.int32), scale=scale, zero_point=(0,) * len(scale))


def network(channels: bool) -> bytes:
    """A convolution of an odd number of terms, a pointwise one, a dense layer."""
    layers = (weights("a", 6, 3, 3, 3, channels=channels), weights("b", 8, 1, 1, 6, channels=channels))
    last = weights("c", 5, 8 * 36, channels=False)
    biases = [bias(f"{w.name}_bias", w, w.shape[0]) for w in (*layers, last)]
    values = [
        quantised("x", (1, 6, 6, 3), 0.05, 3),
        quantised("p", (1, 6, 6, 6), 0.05, -4),
        quantised("q", (1, 6, 6, 8), 0.05, 1),
    ]
    steps = {"Padding": 0, "StrideH": 1, "StrideW": 1}
    ops = [
        Op("CONV_2D", ("x", "a", "a_bias"), ("p",), "Conv2DOptions", {**steps, "FusedActivationFunction": 1}),
        Op("CONV_2D", ("p", "b", "b_bias"), ("q",), "Conv2DOptions", steps),
        Op("FULLY_CONNECTED", ("q", "c", "c_bias"), ("y",), "FullyConnectedOptions"),
    ]
    return model([*values, *layers, last, *biases, quantised("y", (1, 5), 0.7, 2)], ops, ["x"], ["y"])


def constants(data: bytes, optimize: str, cpu: str) -> int:
    """Bytes of constants that the kernels read."""
    options, target = Options(optimize=optimize), target_for(cpu)
    graph = optimise_graph(tflite.read_tflite(data, "int4.tflite"), options)
    made = build_network(Configuration(graph, list_goals_to_try(graph, options, target)[0]), target, "test", options)
    return sum(value.data.nbytes for value in made.module.values.values() if value.data is not None)


@pytest.mark.parametrize("channels", [False, True])
@pytest.mark.parametrize("optimize", ["speed", "size"])
def test_numbers_are_those_of_tflite_micro(channels: bool, optimize: str) -> None:
    data = network(channels)
    x: Array = RNG.integers(-128, 128, (1, 6, 6, 3)).astype(np.int8)
    made = library(tflite.read_tflite(data, "int4.tflite"), Options(optimize=optimize))(x)
    np.testing.assert_array_equal(made, tflm(data, x))


@pytest.mark.parametrize("cpu", ["cortex-m4", "cortex-m0"])
def test_two_weights_share_a_byte(cpu: str) -> None:
    data = network(False)
    whole = 6 * 27 + 8 * 6 + 5 * 288
    assert constants(data, "speed", cpu) >= whole
    assert constants(data, "size", cpu) < 0.65 * whole


@pytest.mark.parametrize("channels", [False, True])
def test_weights_beside_floats_stay_packed(channels: bool) -> None:
    """A layer of floats on four-bit weights: their real numbers, two in a byte unless the code is made for speed."""
    w = weights("w", 64, 48, channels=channels)
    op = Op("FULLY_CONNECTED", ("x", "w"), ("y",), "FullyConnectedOptions")
    data = model((Tensor("x", (1, 48)), w, Tensor("y", (1, 64))), (op,), ("x",), ("y",))
    graph = tflite.read_tflite(data, "float.tflite")
    x = RNG.normal(size=(1, 48)).astype(np.float32)
    scales = np.array(w.scale, np.float32).reshape(-1, 1)
    wanted = x @ (graph.consts["w"].astype(np.float32) * scales).T
    for optimize in ("speed", "size"):
        np.testing.assert_allclose(library(graph, Options(optimize=optimize))(x), wanted, rtol=1e-4, atol=1e-4)
    whole, floats = 64 * 48 // 2 + 4 * 64, 4 * 64 * 48
    assert constants(data, "size", "cortex-m4") <= whole and constants(data, "balanced", "cortex-m4") <= whole
    assert constants(data, "speed", "cortex-m4") >= floats
