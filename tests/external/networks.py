# SPDX-License-Identifier: Apache-2.0
"""A network with regions of the example's backend, and that backend; a layer that backends know as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from microc import GraphBuilder
from microc.base.dtypes import Array
from microc.graph.ir import Attr, Graph, Quant

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


def lstms(*layers: Mapping[str, Any]) -> Graph:
    """Layers beside each other, each of its own input."""
    b = GraphBuilder("net")
    return b.graph("net", {f"y{k}": _lstm(b, str(k), **layer) for k, layer in enumerate(layers)})


def _lstm(
    b: GraphBuilder,
    name: str,
    dtype: str,
    batch: int = 1,
    *,
    time_major: bool = False,
    clip: float = 0.0,
    power: int = -11,
    units: int = 5,
    recurrent: float = 0.004,
) -> str:
    """A layer of integers over four steps of six numbers. ``power``: of two, the cell's scale; ``recurrent``: that of weights."""
    rng, short = np.random.default_rng(7), dtype == "int8"
    given = Quant((0.03,), (3,)) if short else Quant((0.0002,), (0,))
    kept = Quant((1 / 128,), (-2,)) if short else Quant((2.0**-15,), (0,))
    data = b.input(f"x{name}", (4, batch, 6) if time_major else (batch, 4, 6), dtype, given)
    scales = np.repeat([0.011, 0.009, 0.013, 0.01], units)
    matrices = []
    for depth, factor in ((6, 1.0), (units, recurrent / 0.01)):
        values = rng.integers(-127, 128, (4 * units, depth)).astype(np.int8)
        by_row = tuple(float(scale * factor) for scale in scales)
        matrices.append(b.set_quant(b.constant("w", values), Quant(by_row, (0,) * len(by_row), 0)))
    hidden = b.set_quant(b.state(f"hidden{name}", np.full((batch, units), kept.zero_point[0], dtype)), kept)
    cell = b.set_quant(b.state(f"cell{name}", np.zeros((batch, units), np.int16)), Quant((2.0**power,), (0,)))
    bias = b.constant("b", rng.integers(-900, 900, 4 * units).astype("int32" if short else "int64"))
    attrs: Mapping[str, Attr] = {"time_major": time_major, "cell_clip": clip}
    rows, last, state = b.emit_all("lstm", (data, *matrices, hidden, cell, bias), attrs)
    for value, like in ((rows, kept), (last, kept), (state, b.type(cell).quant)):
        b.set_quant(value, like)
    b.update(hidden, last)
    b.update(cell, state)
    return rows
