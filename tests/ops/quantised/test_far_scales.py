# SPDX-License-Identifier: Apache-2.0
"""Scales that are far apart: exact where 32 bits hold what is computed, saturated beyond, refused where nothing would be left."""

from __future__ import annotations

import math

import numpy as np
import pytest

from microc.errors import MicrocError, UnsupportedError
from microc.frontend.tflite import reader as tflite
from microc.graph.ir import Graph, Node, Quant, TensorType
from microc.numerics import (
    INT32_MAX,
    INT32_MIN,
    NUMPY,
    clamp_and_shift_left,
    multiply_by_reduced_factor,
    multiply_double_rounding,
    multiply_single_rounding,
    quantize_multiplier,
)
from microc.ops.quantised.requantize import product_multipliers
from microc.transform.pass_context import PassContext, run_passes
from microc.transform.quantised import legalize
from tests.frontend.tflite_model import Op, constant, quantised
from tests.ops.oracle import check, run, single

EDGES = np.array([INT32_MIN, INT32_MIN + 1, -(1 << 20), -3, -2, -1, 0, 1, 2, 3, 1 << 20, INT32_MAX - 1, INT32_MAX])


@pytest.mark.parametrize("left", range(31))
def test_a_shift_is_exact_or_saturates(left: int) -> None:
    found, exact = clamp_and_shift_left(EDGES, left, NUMPY), EDGES << left
    fits = (exact >= INT32_MIN) & (exact <= INT32_MAX)
    np.testing.assert_array_equal(found[fits], exact[fits])
    assert (np.abs(found[~fits]) >= 1 << 30).all()
    assert (np.sign(found) == np.sign(EDGES)).all()
    np.testing.assert_array_equal(found, clamp_and_shift_left(EDGES, np.full(EDGES.shape, left), NUMPY))


@pytest.mark.parametrize("shift", [-31, -1, 0, 1, 7, 30])
@pytest.mark.parametrize("multiply", [multiply_double_rounding, multiply_single_rounding])
def test_scaling_never_falls_and_stays_within_32_bits(multiply: object, shift: int) -> None:
    for mantissa in (1 << 30, 1518500250, INT32_MAX):
        found = multiply(EDGES, mantissa, shift, NUMPY)  # type: ignore[operator]
        assert (np.diff(found) >= 0).all()
        assert found.min() >= INT32_MIN
        assert found.max() <= INT32_MAX


def test_scaling_of_64_bits_loses_upper_bits() -> None:
    x = np.array([(1 << 47) - 1, -(1 << 47), 12345], np.int64)
    wanted = ((x * 20000 + (1 << 7)) >> 8).astype(np.int32)
    np.testing.assert_array_equal(multiply_by_reduced_factor(x, 20000, 7, NUMPY), wanted)


@pytest.mark.parametrize("real", [float("nan"), float("inf"), -1.0, 2.0**30, 1e300])
def test_no_multiplier_of_32_bits(real: float) -> None:
    with pytest.raises(UnsupportedError, match="multiplier"):
        quantize_multiplier(real)


def test_small_multipliers_are_zero() -> None:
    assert quantize_multiplier(2.0**-33) == quantize_multiplier(5e-324) == (0, 0)
    assert quantize_multiplier(2.0**-32) == (1 << 30, -31)


def test_a_refusal_names_operator_tensor_and_place() -> None:
    tensors = (quantised("x", (4,), 2.0**31, 0), quantised("gain", (4,), 1.0, 0), quantised("loud", (4,), 2.0**-9, 0))
    model = single(Op("MUL", ("x", "gain"), ("loud",), "MulOptions"), tensors)
    with pytest.raises(MicrocError) as refused:
        run(tflite.read_tflite(model, "far.tflite"), [np.zeros(4, np.int8)] * 2)
    assert "mul of 'loud'" in refused.value.what
    assert "far.tflite" in refused.value.where
    assert refused.value.hint


def test_sums_beyond_32_bits_are_clamped_to_the_right_end() -> None:
    """A bias next to the end of int32, which the zero point of the data would carry beyond it."""
    weights, bias = np.array([[127], [-127]], np.int8), np.array([INT32_MAX, INT32_MIN], np.int32)
    tensors = (
        quantised("x", (1, 1), 0.1, -128),
        constant("w", weights, scale=(0.02,), zero_point=(0,)),
        constant("b", bias, scale=(0.002,), zero_point=(0,)),
        quantised("y", (1, 2), 0.4, 90),
    )
    model = single(Op("FULLY_CONNECTED", ("x", "w", "b"), ("y",), "FullyConnectedOptions"), tensors)
    (found,) = run(tflite.read_tflite(model, "sum.tflite"), [np.array([[127]], np.int8)])
    assert found.tolist() == [[127, -128]]


@pytest.mark.parametrize("code", ["LOGISTIC", "TANH"])
@pytest.mark.parametrize("scale", [2.0**-28, 2.0**-20, 16.0, 2.0**10, 2.0**31])
def test_curves_of_far_scales(code: str, scale: float) -> None:
    result = (1 / 256, -128) if code == "LOGISTIC" else (1 / 128, 0)
    tensors = (quantised("x", (256,), scale, 5), quantised("y", (256,), *result))
    check(single(Op(code, ("x",), ("y",)), tensors), np.arange(-128, 128).astype(np.int8))


@pytest.mark.parametrize(
    ("given", "out"), [(2.0**-30, 2.0**-10), (2.0**20, 2.0**19), (2.0**-36, 2.0**-37), (2.0**-145, 2.0**-125)]
)
def test_hard_swish_of_far_scales(given: float, out: float) -> None:
    tensors = (quantised("x", (256,), given, 5), quantised("y", (256,), out, -3))
    check(single(Op("HARD_SWISH", ("x",), ("y",), "HardSwishOptions"), tensors), np.arange(-128, 128).astype(np.int8))


@pytest.mark.parametrize(("given", "out"), [(1e-7, 4e-8), (3e-7, 2e-7), (1e-4, 1e-7), (0.05, 0.02)])
def test_elu_of_small_numbers(given: float, out: float) -> None:
    """TFLite's exp(x) - 1 has no bits below 2**-24."""
    tensors = (quantised("x", (256,), given, 5), quantised("y", (256,), out, -3))
    check(single(Op("ELU", ("x",), ("y",)), tensors), np.arange(-128, 128).astype(np.int8))


def test_products_of_scales_that_no_float32_holds() -> None:
    """As ONNX Runtime multiplies, in float32, where that is a normal number; else the product of the reals, as in ONNX."""

    def multiplier(data: float, weight: float, output: float) -> float:
        x, w, y = (Quant((scale,), (0,)) for scale in (data, weight, output))
        return product_multipliers(x, w, y, "even", False)[0]

    assert multiplier(0.1, 0.3, 0.7) == np.float32(0.1) * np.float32(0.3) / np.float32(0.7)
    assert multiplier(2.0**-100, 2.0**-100, 2.0**-120) == 2.0**-80
    assert multiplier(2.0**100, 2.0**100, 2.0**120) == 2.0**80


def test_a_mean_of_numbers_to_a_scale_that_is_next_to_nothing() -> None:
    """Zero is zero, everything else an end, though the ratio of the scales is infinite."""
    source, result = Quant((0.1,), (3,)), Quant((1e-44,), (-5,))
    types = {"x": TensorType((3, 2), "int8", source), "y": TensorType((3,), "int8", result)}
    node = Node("mean", ("x",), ("y",), {"axes": (1,), "keepdims": False, "rounding": "even"})
    graph = Graph("far", ("x",), ("y",), (node,), types)
    (found,) = run(graph, [np.array([[3, 3], [3, 4], [3, 2]], np.int8)])
    assert found.tolist() == [-5, 127, -128]
    scaled = run_passes(graph, (legalize.LEGALIZE_PASS,), PassContext()).nodes[-1]
    assert math.isfinite(scaled.attrs["scale"])  # type: ignore[arg-type]
