# SPDX-License-Identifier: Apache-2.0
"""The choice of attention by blocks: a smaller arena for few instructions, and the same numbers."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import microc
from microc.compiler.options import Options
from microc.compiler.pipeline import compile_model, optimise_graph
from microc.errors import FitError
from microc.graph.ir import Graph
from microc.module import Module
from microc.ops.meaning import evaluate
from microc.target import target_for
from tests.transform.network import Network, random_inputs

LENGTH, HEADS, DEPTH = 33, 3, 4
M4 = target_for("cortex-m4")


def network(length: int = LENGTH) -> Graph:
    shape = (length, HEADS, DEPTH)
    net = Network(q=shape, k=shape, v=shape)
    query, data = (net.op("transpose", name, axes=(1, 0, 2)) for name in "qv")
    scores = net.op("matmul", query, net.op("transpose", "k", axes=(1, 2, 0)))
    mixed = net.op("matmul", net.op("softmax", scores, axis=-1), data)
    return net.graph(net.op("transpose", mixed, axes=(1, 0, 2)))


def arena(module: Module) -> int:
    assert module.plan is not None
    return module.plan.size


@cache
def compiled(**options: Any) -> Module:
    return compile_model(network(), M4, Options(**options))


@cache
def without_blocks() -> Module:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("microc.compiler.fit.moves.find_attention", lambda graph: [])
        return compile_model(network(), M4, Options())


@pytest.fixture(scope="module")
def balanced(tmp_path_factory: pytest.TempPathFactory) -> Module:
    """The network with its choice, which is written to a folder."""
    folder = tmp_path_factory.mktemp("dump")
    module = compile_model(network(), M4, Options(dump=folder))
    assert "loop(" in (folder / "attention.txt").read_text()
    return module


def test_blocks_make_the_arena_smaller(balanced: Module) -> None:
    plain = without_blocks()
    assert arena(balanced) < 0.65 * arena(plain)
    assert [call.op for call in balanced.calls] == ["loop", "transpose"]
    share = balanced.instructions / plain.instructions
    assert share < 1 + (1 - arena(balanced) / arena(plain)) / 4
    speed = compiled(optimize="speed")
    assert arena(speed) <= arena(plain) and arena(compiled(optimize="size")) <= arena(balanced)


def test_numbers_are_those_of_the_operators(balanced: Module) -> None:
    graph = network()
    library = microc.compile(graph, "cortex-m4")
    assert balanced.calls[0].op == "loop"
    inputs = random_inputs(graph)
    expected = evaluate(optimise_graph(graph, Options()), inputs)[0][0]
    np.testing.assert_allclose(library(*inputs.values()), expected, rtol=2e-6, atol=1e-6)


def test_what_must_fit_takes_the_smallest_blocks(balanced: Module) -> None:
    plain = without_blocks()
    least = compiled(ram=arena(balanced) + 256)
    assert arena(least) <= arena(balanced) + 256 < arena(plain)
    with pytest.raises(FitError):
        compiled(ram=4 * LENGTH * HEADS * DEPTH * 3)


def test_nothing_is_compiled_twice_where_the_peak_is_elsewhere() -> None:
    """Queries, keys and values of few rows outweigh their scores."""
    assert len(compile_model(network(2), M4, Options()).trials) == 1
