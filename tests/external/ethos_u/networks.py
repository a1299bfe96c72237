# SPDX-License-Identifier: Apache-2.0
"""Small quantised networks for an accelerator, with layers that are none for it."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

from microc import GraphBuilder
from microc.graph.ir import Graph, Quant

installed = pytest.mark.skipif(
    importlib.util.find_spec("ethosu") is None, reason="ethos-u-vela is not installed: pip install 'microc[ethos-u]'"
)
DATA, OUT, SHARE = (Quant((float(np.float32(s)),), (z,)) for s, z in ((0.05, 3), (0.4, -4), (1 / 256, -128)))


def integers(shape: tuple[int, ...], seed: int, most: int = 127, dtype: str = "int8") -> Any:
    return np.random.default_rng(seed).integers(-most, most, shape, endpoint=True).astype(dtype)


def convolution(b: GraphBuilder, x: str, weight: tuple[int, ...], seed: int, result: Quant = DATA, **attrs: Any) -> str:
    scales = tuple(float(np.float32(0.002 + 0.0003 * k)) for k in range(weight[0]))
    zeros = (0,) * weight[0]
    w = b.set_quant(b.constant(f"w{seed}", integers(weight, seed)), Quant(scales, zeros, 0))
    terms = b.constant(f"b{seed}", integers(weight[:1], seed, 9000, "int32"))
    c = b.set_quant(terms, Quant(tuple(s * DATA.scale[0] for s in scales), zeros, 0))
    op = "dense" if len(weight) == 2 else "conv2d"
    return b.set_quant(b.op(op, x, w, c, **attrs), result, "int8")


def network() -> Graph:
    """A convolution whose result two read; an exponential, which is no layer of the accelerator; a sum of both, a pool, a dense
    layer, shares."""
    b = GraphBuilder("net")
    x = b.input("x", (1, 8, 8, 4), "int8", DATA)
    h = convolution(b, x, (8, 3, 3, 4), 1, padding=(1, 1, 1, 1), activation="relu")
    d = convolution(b, h, (8, 3, 3, 1), 2, groups=8, padding=(1, 1, 1, 1))
    e = b.set_quant(b.op("exp", d), OUT, "int8")
    s = b.set_quant(b.op("add", h, e), DATA, "int8")
    p = b.set_quant(b.op("max_pool2d", s, kernel=(2, 2), strides=(2, 2)), DATA, "int8")
    flat = b.set_quant(b.reshape(p, (1, 128)), DATA)
    y = convolution(b, flat, (10, 128), 3, OUT)
    return b.graph("net", {"y": b.set_quant(b.op("softmax", y, axis=1), SHARE, "int8")})
