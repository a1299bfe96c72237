# SPDX-License-Identifier: Apache-2.0
"""The choice of weights that are opened first: faster where RAM is worth it, within limits, and nothing compiled in vain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import microc
from microc.compiler.options import Options
from microc.compiler.pipeline import compile_model, optimise_graph
from microc.graph.ir import Graph
from microc.module import Module
from microc.ops.meaning import evaluate
from microc.target import target_for
from microc.transform.loop_blocking import PREWIDENED_WEIGHTS_PASS
from tests.compiler.test_attention import arena
from tests.transform.network import random_inputs
from tests.transform.test_prewidened_weights import layers

M4 = target_for("cortex-m4")
PLAIN = frozenset({PREWIDENED_WEIGHTS_PASS.name})
GRAPH = layers(rows=200)


def compiled(graph: Graph = GRAPH, core: str = "cortex-m4", **options: Any) -> Module:
    return compile_model(graph, target_for(core), Options(**options))


def test_balanced_takes_what_is_faster_and_says_so(tmp_path: Path) -> None:
    plain, fast = compiled(disabled=PLAIN), compiled(dump=tmp_path)
    assert fast.instructions < plain.instructions and arena(fast) > arena(plain)
    assert "cast" in (tmp_path / "prewidened_weights.txt").read_text()


def test_numbers_are_those_of_the_operators() -> None:
    inputs = random_inputs(GRAPH)
    expected = evaluate(optimise_graph(GRAPH, Options()), inputs)[0]
    for found, wanted in zip(microc.compile(GRAPH, "cortex-m4")(*inputs.values()), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-4)


def test_memory_that_is_not_there_is_worth_any_time() -> None:
    plain = compiled(disabled=PLAIN)
    tight = compiled(ram=arena(plain))
    assert (arena(tight), tight.instructions) == (arena(plain), plain.instructions)


@pytest.mark.parametrize(
    ("core", "options"),
    [
        ("cortex-m4", {"disabled": PLAIN}),
        ("cortex-m4", {"required": PLAIN}),
        ("cortex-m4", {"optimize": "speed"}),
        ("cortex-m55", {}),
    ],
)
def test_nothing_is_compiled_twice_where_there_is_no_choice(core: str, options: dict[str, Any]) -> None:
    assert len(compiled(core=core, **options).trials) == 1
