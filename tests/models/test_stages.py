# SPDX-License-Identifier: Apache-2.0
"""Every corpus network, interpreted after every pass: what is read means the reference's numbers, and no pass changes them.

Small networks by default; with MICROC_STAGES=all all of them.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from microc.base.dtypes import Array
from microc.compiler.model import read_model
from microc.compiler.options import Options
from microc.graph.ir import Attr, Graph, Node, Quant, TensorType
from microc.ops.meaning import evaluate
from microc.transform import PASSES
from microc.transform.pass_context import PassContext, run_passes
from tests.models.test_corpus import EXACT, FLOAT, QDQ
from tests.support.corpus import cases, models

SMALL = 64_000
"""Bytes of a model file, when not all are asked for."""
EVERY = models("*")
CHOSEN = EVERY if os.environ.get("MICROC_STAGES") == "all" else [p for p in EVERY if p.stat().st_size < SMALL]


class Stages:
    """An instrument that keeps the graph that was read, and that of every pass that changed it."""

    def __init__(self) -> None:
        self.graphs: list[tuple[str, Graph]] = []

    def before(self, name: str, graph: Graph) -> None:
        if not self.graphs:
            self.graphs.append(("reading", graph))

    def after(self, name: str, graph: Graph) -> None:
        if graph is not self.graphs[-1][1]:
            self.graphs.append((name, graph))


def stages(graph: Graph) -> list[tuple[str, Graph]]:
    options, seen = Options(), Stages()
    chosen = {"requantize": options.requantize, "hybrid": options.hybrid, "rounding": options.rounding}
    run_passes(graph, PASSES, PassContext(instruments=(seen,), options=chosen), PASSES)
    return seen.graphs


def outputs(graph: Graph, arrays: list[Array]) -> list[Array]:
    with np.errstate(all="ignore"):
        return evaluate(graph, dict(zip(graph.inputs, arrays, strict=True)))[0]


@pytest.mark.corpus
@pytest.mark.parametrize("path", CHOSEN, ids=lambda p: p.stem)
def test_every_stage_computes_the_reference(path: Path) -> None:
    """Integers exactly. Passes take sums and scalings of floats in another order, which is worth 1e-5 of the largest magnitude:
    some hundred roundings of 2**-24."""
    inputs, wanted = cases(path)[0]
    (_, read), *later = stages(read_model(path, Options()))
    first = outputs(read, inputs)
    for got, expected in zip(first, wanted, strict=True):
        check_read(path, got, expected)
    for name, graph in later:
        for got, meant in zip(outputs(graph, inputs), first, strict=True):
            bar = 0.0 if meant.dtype.kind != "f" else 1e-5 * float(np.max(np.abs(meant), initial=0.0))
            np.testing.assert_allclose(got, meant, rtol=0, atol=bar, err_msg=f"after {name}")


def check_read(path: Path, got: Array, expected: Array) -> None:
    """Against the runtime that made the references, as the compiled networks are (``test_corpus.py``)."""
    if path in EXACT:
        assert np.array_equal(got, expected)
    elif path in FLOAT:
        assert np.max(np.abs(got - expected)) <= 1e-5 * np.max(np.abs(expected))
    elif path in QDQ:
        quantum = np.min(np.diff(np.unique(expected)), initial=np.inf)
        assert np.max(np.abs(got - expected)) <= 2 * quantum


@pytest.mark.parametrize("rounding", ["double", "single", "even"])
def test_an_activation_and_quantisation_count_from_the_start(rounding: str) -> None:
    """A convolution of bytes with relu6, and one of floats, interpreted as they were read."""
    dice = np.random.default_rng(1)
    weight = dice.integers(-127, 128, (4, 3, 3, 2)).astype(np.int8)
    kinds = {
        "x": TensorType((1, 5, 5, 2), "int8", Quant((0.05,), (-3,))),
        "w": TensorType(weight.shape, "int8", Quant((0.02,), (0,))),
        "y": TensorType((1, 5, 5, 4), "int8", Quant((0.04,), (-100,))),
    }
    attrs: dict[str, Attr] = {
        "strides": (1, 1),
        "padding": (1, 1, 1, 1),
        "dilation": (1, 1),
        "groups": 1,
        "layout": "NHWC",
        "activation": "relu6",
        "rounding": rounding,
    }
    data = dice.integers(-128, 128, (1, 5, 5, 2)).astype(np.int8)
    node = Node("conv2d", ("x", "w"), ("y",), attrs)
    graph = Graph("net", ("x",), ("y",), (node,), kinds, {"w": weight})
    (made,) = outputs(graph, [data])
    reals = {name: TensorType(kind.shape, "float32") for name, kind in kinds.items()}
    floats = Graph("net", ("x",), ("y",), (node,), reals, {"w": weight.astype(np.float32) * np.float32(0.02)})
    (real,) = outputs(floats, [(data.astype(np.float32) + 3) * np.float32(0.05)])
    assert 0 == real.min() < real.max() == 6
    steps = np.clip(real / 0.04 - 100, -128, 127)
    assert np.max(np.abs(made - steps)) <= 0.5 + 1e-3 and made.min() == -100
