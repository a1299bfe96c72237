# SPDX-License-Identifier: Apache-2.0
"""Reductions: against TFLite Micro, ONNX's rounding, merged axes, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from microc.errors import ModelError
from microc.graph.ir import Quant, TensorType
from microc.ops import registry
from microc.ops.quantised.computed_scales import mean_multiplier
from microc.ops.reduction.reduce import merge_adjacent_axes
from tests.frontend.tflite_model import Op, constant, quantised
from tests.ops.harness import legalized, run_legalized
from tests.ops.oracle import check, every, quantised_graph, scale, single


@pytest.mark.parametrize(
    ("code", "dtype"),
    [
        ("MEAN", "INT8"),
        ("MEAN", "INT16"),
        ("SUM", "INT8"),
        ("SUM", "INT16"),
        ("REDUCE_MAX", "INT8"),
        ("REDUCE_MIN", "INT8"),
    ],
)
def test_integers_equal_tflite_micro(code: str, dtype: str) -> None:
    rng = np.random.default_rng(9)
    info = np.iinfo(dtype.lower())
    for axes in ((1, 2), (1,), (3,), (1, 2, 3), (-1,), (1, 2), (2, 1)):
        shape = (1, int(rng.integers(1, 9)), int(rng.integers(1, 9)), 3)
        quants = [(scale(rng), int(rng.integers(-128, 128)) if dtype == "INT8" else 0) for _ in range(2)]
        if code.startswith("REDUCE"):
            quants[1] = quants[0]
        keepdims = bool(rng.integers(2))
        reduced = {axis % 4 for axis in axes}
        made = tuple(1 if k in reduced else e for k, e in enumerate(shape) if keepdims or k not in reduced)
        tensors = [quantised("x", shape, *quants[0], dtype), quantised("y", made, *quants[1], dtype)]
        op = Op(code, ("x", "axes"), ("y",), "ReducerOptions", {"KeepDims": keepdims})
        data = single(op, [*tensors, constant("axes", np.array(axes, np.int32))])
        check(data, rng.integers(info.min, info.max, shape, endpoint=True).astype(dtype.lower()))


@pytest.mark.parametrize("op", ["mean", "sum", "max", "min", "prod"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_rounding_even(op: str, dtype: str) -> None:
    quants = (Quant((0.05,), (9,)), Quant((0.031,), (5,)))
    node, graph = quantised_graph(op, [(64, 4)], (64,), quants, dtype, axes=(1,), keepdims=False, rounding="even")
    x = np.random.default_rng(2).permutation(every(dtype))[:256].reshape(64, 4)
    (got,) = run_legalized(node, graph, {"a": x})
    real = getattr(np, op)((x.astype(np.float64) - 9) * np.float32(0.05), axis=1)
    info = np.iinfo(dtype)
    wanted = np.clip(np.rint(real / np.float32(0.031)) + 5, info.min, info.max)
    away_from_ties = abs(real / 0.031 % 1 - 0.5) > 1e-3
    np.testing.assert_array_equal(got[away_from_ties], wanted.astype(dtype)[away_from_ties])


def test_mean_multiplier_keeps_the_bits_that_division_would_drop() -> None:
    mantissa, shift = mean_multiplier(1 << 30, 1, 49)
    assert shift == 1 - 5
    assert mantissa * 2.0 ** (shift - 31) == pytest.approx(1 / 49, rel=1e-8)
    assert mean_multiplier(1 << 30, -30, 1 << 20) == ((1 << 31) >> 20, -31)


def test_merged_extents() -> None:
    assert merge_adjacent_axes((1, 4, 5, 3), (1, 2)) == [(20, True), (3, False)]
    assert merge_adjacent_axes((2, 1, 3, 4), (0, 3)) == [(2, True), (3, False), (4, True)]
    assert merge_adjacent_axes((1, 1), (0,)) == []


def test_refusals() -> None:
    definition = registry.get("mean")
    for axes in ((2,), (), (0, 0)):
        with pytest.raises(ModelError):
            definition.infer({**definition.defaults, "axes": axes}, [TensorType((2, 3), "float32")])
    with pytest.raises(ModelError):
        definition.infer({**definition.defaults, "axes": (0,)}, [TensorType((2, 3), "bool")])


@pytest.mark.parametrize(("count", "first"), [(1 << 15, "sum"), (1 << 17, "dequantize")])
def test_sums_that_32_bits_may_not_hold_are_made_of_floats(count: int, first: str) -> None:
    node, graph = quantised_graph("mean", [(count,)], (), [Quant((0.1,), (0,))] * 2, "int16", axes=(0,))
    assert legalized(node, graph)[0][0].op == first
