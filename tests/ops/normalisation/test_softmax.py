# SPDX-License-Identifier: Apache-2.0
"""Softmax: quantised forms against TFLite Micro, other quantisations through floats, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from microc import te
from microc.errors import ModelError, UnsupportedError
from microc.graph.ir import Quant, TensorType
from microc.ops import registry
from microc.ops.attributes import Multiplier, Rounding
from microc.ops.elementwise.scalar_functions import build_exp_of_negative
from microc.ops.normalisation.softmax import compute_exponential_table, qsoftmax16_tables
from microc.tir.interp import run
from tests.frontend.tflite_model import Op, quantised
from tests.ops.harness import legalized, run_legalized
from tests.ops.oracle import check, every, quantised_graph, scale, single


@pytest.mark.parametrize(
    ("source", "result", "out_scale", "out_zero"),
    [("INT8", "INT8", 1 / 256, -128), ("INT8", "INT16", 1 / 65536, -32768), ("INT16", "INT16", 1 / 32768, 0)],
)
def test_integers_equal_tflite_micro(source: str, result: str, out_scale: float, out_zero: int) -> None:
    rng = np.random.default_rng(11)
    info = np.iinfo(source.lower())
    for number in range(30):
        shape = (int(rng.integers(1, 4)), int(rng.integers(1, 40)))
        given = scale(rng, *((-16, -4) if source == "INT16" else (-10, 1)))
        zero = int(rng.integers(-128, 128)) if source == "INT8" else 0
        tensors = [quantised("x", shape, given, zero, source), quantised("y", shape, out_scale, out_zero, result)]
        op = Op("SOFTMAX", ("x",), ("y",), "SoftmaxOptions", {"Beta": 1.0 if number % 3 else 0.7})
        x = rng.integers(info.min, info.max, shape, endpoint=True).astype(source.lower())
        check(single(op, tensors), x // (number % 5 + 1))


def test_many_equal_classes_give_equal_small_probabilities() -> None:
    quants = (Quant((0.1,), (0,)), Quant((1 / 256,), (-128,)))
    node, graph = quantised_graph("softmax", [(1, 4000)], (1, 4000), quants, "int8")
    (got,) = run_legalized(node, graph, {"a": np.full((1, 4000), 3, np.int8)})
    assert set(got.reshape(-1).tolist()) == {-128}


@pytest.mark.parametrize("rounding", ["even", "double"])
def test_other_quantisations_go_through_floats(rounding: str) -> None:
    quants = (Quant((0.05,), (4,)), Quant((0.004,), (-120,)))
    node, graph = quantised_graph("softmax", [(32, 8)], (32, 8), quants, "int8", rounding=rounding)
    x = every("int8").reshape(32, 8)
    (got,) = run_legalized(node, graph, {"a": x})
    power = np.exp((x.astype(np.float64) - x.max(axis=1, keepdims=True)) * 0.05)
    wanted = np.clip(np.rint(power / power.sum(axis=1, keepdims=True) / 0.004) - 120, -128, 127)
    np.testing.assert_array_equal(got, wanted.astype(np.int8))


def test_exponentials_fall_from_one_to_skipped() -> None:
    table = compute_exponential_table(0.5, 1.0, Multiplier.DOUBLE)
    assert table[0] == (1 << 31) - 1
    assert table[255] == 0 and (np.diff(table.astype(np.int64)) <= 0).all()
    np.testing.assert_allclose(table / 2**31, np.exp(-0.5 * np.arange(256)), atol=3e-7)


def test_refusals() -> None:
    with pytest.raises(UnsupportedError, match="too small"):
        compute_exponential_table(1e-9, 1.0, Multiplier.DOUBLE)
    with pytest.raises(UnsupportedError, match="too large"):
        qsoftmax16_tables(100.0, 1.0, Rounding.DOUBLE)
    quants = (Quant((0.1,), (0,)), Quant((1 / 256,), (-128,)))
    node, graph = quantised_graph("softmax", [(1, 4096)], (1, 4096), quants, "int8")
    with pytest.raises(UnsupportedError, match="4096 classes"):
        legalized(node, graph)
    definition = registry.get("softmax")
    with pytest.raises(ModelError, match="axis 2"):
        definition.infer({**definition.defaults, "axis": 2}, [TensorType((2, 3), "float32")])
    with pytest.raises(ModelError):
        definition.infer(definition.defaults, [TensorType((2, 3), "int32")])


def test_exp_is_within_its_bound() -> None:
    """Absolute, against one at zero; far below zero nothing is left, and NaN stays."""
    dense = np.concatenate((np.linspace(-100, 0, 20001), -np.geomspace(1e-30, 1e30, 500), [-np.inf, np.nan, 0.0]))
    data = dense.astype(np.float32)
    x = te.placeholder((data.size,), "float32", "x")
    out = te.compute((data.size,), lambda i: build_exp_of_negative(x[i]), "out", ("i",))
    found = np.zeros(data.size, np.float32)
    run(te.create_prim_func("exp", [x], [out]), [data, found])
    np.testing.assert_allclose(found, np.exp(data.astype(np.float64)), rtol=0, atol=2e-7)
    assert found[-1] == 1.0 and np.isnan(found[-2]) and found[-3] == 0.0
