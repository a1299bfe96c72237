# SPDX-License-Identifier: Apache-2.0
"""Transposed convolutions whose strides or dilation spread few weights far."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

import microc
from microc.errors import UnsupportedError
from microc.graph.ir import Attr, Graph, Node, Quant, TensorType
from microc.ops.convolution.conv2d_transpose import DEFAULTS
from microc.ops.registry import get

SPREAD: dict[str, dict[str, Attr]] = {
    "strides": {"strides": (65536, 1)},
    "dilation": {"dilation": (65536, 1)},
    "both": {"strides": (300, 300), "dilation": (70000, 1)},
}


def _graph(attrs: Mapping[str, Attr], dtype: str, quant: Quant | None) -> Graph:
    attrs = {**DEFAULTS, **attrs}
    kinds = [TensorType((1, 2, 1, 1), dtype, quant)] * 2
    (result,) = get("conv2d_transpose").infer(attrs, kinds)
    types = {"x": kinds[0], "w": kinds[1], "y": TensorType(result.shape, dtype, quant)}
    weights = np.array([3, 5], dtype).reshape(1, 2, 1, 1)
    return Graph("far", ("x",), ("y",), (Node("conv2d_transpose", ("x", "w"), ("y",), attrs),), types, {"w": weights})


@pytest.mark.parametrize("name", SPREAD)
def test_weights_spread_far(name: str) -> None:
    graph = _graph(SPREAD[name], "float32", None)
    data = np.array([2, 7], np.float32).reshape(1, 2, 1, 1)
    (wanted,) = get("conv2d_transpose").reference(SPREAD[name], (data, graph.consts["w"]))
    np.testing.assert_array_equal(np.reshape(microc.compile(graph)(data), wanted.shape), wanted)


def test_quantised_weights_spread_too_far_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="too many weights; got 65,537 weights with"):
        microc.compile(_graph(SPREAD["dilation"], "int8", Quant((0.1,), (0,))))
