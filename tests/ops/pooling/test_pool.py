# SPDX-License-Identifier: Apache-2.0
"""Pools: against TFLite Micro, against plain numpy, ONNX's rounding, layouts, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from microc.errors import ModelError, UnsupportedError
from microc.graph.ir import Attr, Quant, TensorType
from microc.ops import registry
from microc.ops.registry import Case
from tests.frontend.tflite_model import Op, quantised
from tests.ops.harness import check_expression, legalized, run_legalized
from tests.ops.oracle import check, every, quantised_graph, scale, single


@pytest.mark.parametrize("code", ["AVERAGE_POOL_2D", "MAX_POOL_2D"])
@pytest.mark.parametrize("dtype", ["INT8", "INT16"])
def test_integers_equal_tflite_micro(code: str, dtype: str) -> None:
    rng = np.random.default_rng(5)
    info = np.iinfo(dtype.lower())
    for _ in range(25):
        size = rng.integers(1, 8, 2)
        kernel, strides = rng.integers(1, size + 1), rng.integers(1, 4, 2)
        same = bool(rng.integers(2))
        made = -(-size // strides) if same else (size - kernel) // strides + 1
        quant = (scale(rng), int(rng.integers(-128, 128)) if dtype == "INT8" else 0)
        fields = {"FilterHeight": kernel[0], "FilterWidth": kernel[1], "StrideH": strides[0], "StrideW": strides[1]}
        fields |= {"Padding": 0 if same else 1, "FusedActivationFunction": int(rng.choice([0, 1, 2, 3]))}
        tensors = [quantised(n, (2, *hw, 3), *quant, dtype) for n, hw in (("x", size), ("y", made))]
        data = single(Op(code, ("x",), ("y",), "Pool2DOptions", {k: int(v) for k, v in fields.items()}), tensors)
        check(data, rng.integers(info.min, info.max, (2, *size, 3), endpoint=True).astype(dtype.lower()))


@pytest.mark.parametrize("op", ["max_pool2d", "avg_pool2d"])
def test_layouts_agree(op: str) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((2, 5, 6, 3)).astype(np.float32)
    definition = registry.get(op)
    attrs = {**definition.defaults, "kernel": (2, 3), "strides": (2, 1), "padding": (1, 0, 0, 2)}
    (rows,) = definition.reference(attrs, [x])
    planes = {**attrs, "layout": "NCHW"}
    (columns,) = definition.reference(planes, [x.transpose(0, 3, 1, 2).copy()])
    np.testing.assert_array_equal(columns.transpose(0, 2, 3, 1), rows)
    (kind,) = definition.infer(planes, [TensorType((2, 3, 5, 6), "float32")])
    assert kind.shape == columns.shape


@pytest.mark.parametrize("dtype", ["int64", "uint64", "float32"])
@pytest.mark.parametrize("op", ["window_max", "window_argmax"])
def test_windows_compare_in_the_dtype_of_their_data(op: str, dtype: str) -> None:
    """Neighbours among wide integers are one number in float64; what is largest may be as small as what padding holds."""
    low, high = (-np.inf, np.inf) if dtype == "float32" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    near = high if dtype == "float32" else high - 1
    x = np.array([[[low, low, near, high, high, near, low, 3]]], dtype)
    attrs: dict[str, Attr] = {"kernel": (2,), "strides": (1,), "padding": (1, 1), "dilation": (1,)}
    case = Case(attrs, (TensorType(x.shape, dtype),), arrays=(x,))
    definition = registry.get(op)
    check_expression(definition, case)
    value, *place = definition.reference({**definition.defaults, **attrs}, [x])
    assert value.reshape(-1).tolist() == np.array([low, low, near, high, high, high, near, 3, 3], dtype).tolist()
    if place:
        assert place[0].reshape(-1).tolist() == [0, 0, 2, 2 if dtype == "float32" else 3, 3, 4, 5, 7, 7]


def test_padding_counts_only_when_asked() -> None:
    definition = registry.get("avg_pool2d")
    x = np.full((1, 2, 2, 1), 8.0, np.float32)
    attrs = {**definition.defaults, "kernel": (2, 2), "strides": (2, 2), "padding": (1, 1, 1, 1)}
    assert definition.reference(attrs, [x])[0].reshape(-1).tolist() == [8, 8, 8, 8]
    included = {**attrs, "count_include_pad": True}
    assert definition.reference(included, [x])[0].reshape(-1).tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(("padding", "include"), [((0, 0, 0, 0), False), ((1, 0, 0, 1), True), ((1, 0, 0, 1), False)])
def test_average_rounding_even(dtype: str, padding: tuple[int, ...], include: bool) -> None:
    quants = (Quant((0.05,), (9,)), Quant((0.03,), (5,)))
    attrs: dict[str, Attr] = {
        "kernel": (2, 2),
        "strides": (2, 2),
        "padding": padding,
        "count_include_pad": include,
        "rounding": "even",
    }
    definition = registry.get("avg_pool2d")
    shape = definition.infer({**definition.defaults, **attrs}, [TensorType((1, 16, 16, 1), dtype)])[0].shape
    node, graph = quantised_graph("avg_pool2d", [(1, 16, 16, 1)], shape, quants, dtype, **attrs)
    x = np.random.default_rng(3).permutation(every(dtype)).reshape(1, 16, 16, 1)
    (got,) = run_legalized(node, graph, {"a": x})
    real = definition.reference(node.attrs, [(x.astype(np.float64) - 9) * np.float32(0.05)])[0]
    info = np.iinfo(dtype)
    wanted = np.clip(np.rint(real / np.float32(0.03)) + 5, info.min, info.max)
    away_from_ties = abs(real / 0.03 % 1 - 0.5) > 1e-3
    np.testing.assert_array_equal(got[away_from_ties], wanted.astype(dtype)[away_from_ties])
    assert abs(got.astype(int) - wanted).max() <= 1


def test_a_rescaled_maximum_is_a_table_after_the_pool() -> None:
    quants = (Quant((0.05,), (9,)), Quant((0.03,), (5,)))
    attrs: dict[str, Attr] = {"kernel": (1, 2), "strides": (1, 2), "rounding": "even", "activation": "relu"}
    node, graph = quantised_graph("max_pool2d", [(1, 1, 256, 1)], (1, 1, 128, 1), quants, "int8", **attrs)
    assert [n.op for n in legalized(node, graph)[0]] == ["max_pool2d", "lookup"]
    (got,) = run_legalized(node, graph, {"a": every("int8").reshape(1, 1, 256, 1)})
    larger = (every("int8")[1::2].astype(np.float32) - np.float32(9)) * np.float32(0.05)
    wanted = np.clip(np.rint(np.maximum(larger, 0) / np.float32(0.03)) + 5, -128, 127)
    np.testing.assert_array_equal(got.reshape(-1), wanted.astype(np.int8))


def test_a_quantised_pool_with_tanh_is_refused() -> None:
    attrs: dict[str, Attr] = {"kernel": (2, 2), "strides": (2, 2), "activation": "tanh"}
    quants = [Quant((0.1,), (0,))] * 2
    node, graph = quantised_graph("max_pool2d", [(1, 2, 2, 1)], (1, 1, 1, 1), quants, "int8", **attrs)
    with pytest.raises(UnsupportedError, match="tanh"):
        legalized(node, graph)


@pytest.mark.parametrize(
    ("shape", "attrs"),
    [
        ((4, 4, 3), {}),
        ((1, 1, 4, 3), {}),
        ((1, 4, 4, 3), {"padding": (2, 0, 0, 0)}),
        ((1, 4, 4, 3), {"padding": (0, 0, 3, 0), "strides": (1, 1)}),
        ((1, 4, 4, 3), {"strides": (0, 1)}),
        ((1, 4, 4, 3), {"layout": "CHWN"}),
    ],
)
def test_inference_refuses(shape: tuple[int, ...], attrs: dict[str, object]) -> None:
    with pytest.raises(ModelError):
        registry.infer("max_pool2d", {"kernel": (2, 2), "strides": (2, 2), **attrs}, [TensorType(shape, "float32")])
