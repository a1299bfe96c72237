"""A network with regions of the example's backend, and that backend."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from microc import GraphBuilder
from microc.dtypes import Array
from microc.graph.ir import Graph

BACKEND = Path(__file__).resolve().parents[2] / "examples" / "external_backend" / "backend.py"


def floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def network(units: int = 12) -> Graph:
    """A dense layer with ReLU, a factor and a term for each channel, a tanh."""
    b = GraphBuilder("net")
    x = b.input("x", (1, 8))
    h = b.op("dense", x, b.constant("w", floats(units, 8)), b.constant("b", floats(units)), activation="relu")
    h = b.op("mul", h, b.constant("s", floats(units, seed=1)))
    h = b.op("add", h, b.constant("t", floats(units, seed=2)))
    return b.graph("net", {"y": b.op("tanh", h)})
