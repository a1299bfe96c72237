# SPDX-License-Identifier: Apache-2.0
"""Sums that are doubled by their weights: scales above one shift what is doubled once more."""

from __future__ import annotations

import numpy as np
import pytest

import microc
from microc import GraphBuilder
from microc.graph.ir import Graph, Quant
from microc.ops.meaning import evaluate


def scaled(factor: float) -> Graph:
    """A dense layer of bytes whose sums become int16, ``factor`` times as large."""
    b, rng = GraphBuilder("net"), np.random.default_rng(1)
    x = b.input("x", (1, 6), "int8", Quant((2.0**-6,), (3,)))
    weights = rng.integers(-127, 128, (8, 6)).astype(np.int8)
    w = b.set_quant(b.constant("w", weights), Quant((factor * 2.0**-6,) * 8, (0,) * 8, 0))
    made = b.op("dense", x, w, b.constant("b", rng.integers(-900, 900, 8).astype(np.int32)))
    return b.graph("net", {"y": b.set_quant(made, Quant((2.0**-12,), (0,)), "int16")})


@pytest.mark.parametrize("factor", [0.4, 0.9, 1.1, 1.9, 2.2])
def test_scales_around_one(factor: float) -> None:
    graph, x = scaled(factor), np.random.default_rng(2).integers(-128, 128, (1, 6)).astype(np.int8)
    np.testing.assert_array_equal(microc.compile(graph, "cortex-m4")(x), evaluate(graph, {"x": x})[0][0])
