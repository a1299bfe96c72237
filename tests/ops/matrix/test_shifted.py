# SPDX-License-Identifier: Apache-2.0
"""Bytes with a zero point stay bytes: sums are what they were, in every bit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import microc
from microc.base.dtypes import Array
from microc.compiler.fit.budget import summarise_arithmetic
from microc.compiler.options import Options
from microc.compiler.pipeline import compile_graph, optimise_graph
from microc.frontend.graph_builder import GraphBuilder
from microc.graph.ir import Graph, Quant
from microc.ops.matrix.gemm import MIN_SHARING_CHANNELS
from microc.target import target_for
from tests.support.campaign import in_turn

ZEROS = (0, 97, 127, 128, 129, 160, 255)
PRODUCTS = tuple((op, dtype) for op in sorted(MIN_SHARING_CHANNELS) for dtype in ("uint8", "int8"))


def network(op: str, channels: int, zero: int, dtype: str = "uint8", *, bias: bool = True, groups: int = 1) -> Graph:
    """A product of bytes with weights over the whole range of uint8, padded where it can be."""
    rng, net = np.random.default_rng(zero + channels), GraphBuilder()
    depth = 6
    shape = (2, 9) if op == "dense" else (1, 5, 5, depth)
    data_zero = 11 if dtype == "uint8" else -11
    x = net.input("x", shape, dtype, Quant((0.02,), (data_zero,)))
    extents = (channels, 9) if op == "dense" else (channels, 3, 3, depth // groups)
    weights = rng.integers(0, 256, extents).astype(np.uint8)
    weights.reshape(-1)[:2] = 0, 255
    w = net.constant("w", weights)
    net.set_quant(w, Quant((0.01,), (zero,)))
    operands = [x, w]
    if bias:
        operands.append(net.constant("b", rng.integers(-5000, 5000, channels).astype(np.int32)))
        net.set_quant(operands[2], Quant((0.0002,), (0,)))
    attrs = {} if op == "dense" else {"padding": (1, 1, 1, 1), "layout": "NHWC", "groups": groups, "strides": (2, 1)}
    scale = 1.0 if op == "dense" else 6.0
    y = net.op(op, *operands, rounding="double", **attrs)  # type: ignore[arg-type]
    net.set_quant(y, Quant((scale,), (128,)))
    net.types[y] = net.types[y].__class__(net.types[y].shape, "uint8", Quant((scale,), (128,)))
    return net.graph("net", {"y": y})


def answers(graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    """What the generated C gives."""
    library = microc.compile(graph)
    return [np.asarray(library(x)) for x in inputs]


def exact(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> Graph:
    """The graph compiled as it was before: weights of nine bits take two bytes."""
    monkeypatch.setattr("microc.ops.matrix.products.find_weight_offset", lambda *_: 0)
    return graph


@pytest.mark.parametrize(("product", "zero"), in_turn(PRODUCTS, ZEROS, each=2))
def test_results_are_those_of_wide_weights(
    product: tuple[str, str], zero: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    op, dtype = product
    graph = network(op, 40, zero, dtype, bias=zero % 2 == 0)
    kind = graph.types["x"]
    low = 0 if dtype == "uint8" else -128
    rng = np.random.default_rng(zero)
    inputs = [
        rng.integers(low, low + 256, kind.shape).astype(dtype),
        np.full(kind.shape, low, dtype),
        np.full(kind.shape, low + 255, dtype),
    ]
    bytes_ = compile_graph(graph, "net", target_for("cortex-m4"), Options(optimize="size"))
    large = [v for v in bytes_.values.values() if v.storage == "const" and v.nbytes >= graph.consts["w"].size]
    assert [value.dtype for value in large] == ["int8"]
    mine = answers(graph, inputs)
    assert len(np.unique(mine[0])) > 3
    for found, wide in zip(mine, answers(exact(graph, monkeypatch), inputs), strict=True):
        assert np.array_equal(found, wide)


def test_few_channels_and_groups_keep_two_bytes_which_is_told() -> None:
    for graph, count in ((network("conv2d", 31, 97), 31 * 54), (network("conv2d", 48, 97, groups=6), 48 * 9)):
        found = summarise_arithmetic(optimise_graph(graph, Options()))
        assert found.double_weights == count
        (told,) = microc.compile(graph, board="microbit").report()["advice"]
        assert told.startswith(f"{count:,} 8-bit weights with a zero point take two bytes each")
    for graph in (network("conv2d", 48, 97), network("conv2d", 8, 128), network("dense", 8, 97)):
        assert summarise_arithmetic(optimise_graph(graph, Options())).double_weights == 0
