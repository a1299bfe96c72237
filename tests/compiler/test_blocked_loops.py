# SPDX-License-Identifier: Apache-2.0
"""The choice of blocks of turns: fewer instructions where memory is worth it, the same numbers, nothing compiled in vain."""

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
from microc.transform.loop_blocking import LOOP_BLOCKING_PASS
from tests.compiler.test_attention import arena
from tests.transform.network import random_inputs
from tests.transform.test_blocked_loops import recurrent

M4 = target_for("cortex-m4")
PLAIN = frozenset({LOOP_BLOCKING_PASS.name})
GRAPH = recurrent(17, depth=64, units=18)
"""A loop whose products of all steps are larger than its data, so that they are not computed before it."""


def compiled(graph: Graph = GRAPH, **options: Any) -> Module:
    return compile_model(graph, M4, Options(**options))


def test_speed_takes_what_is_faster_and_says_so(tmp_path: Path) -> None:
    plain, fast = compiled(optimize="speed", disabled=PLAIN), compiled(optimize="speed", dump=tmp_path)
    assert fast.instructions < plain.instructions and arena(fast) > arena(plain)
    assert (tmp_path / "blocked_loops.txt").read_text().count("loop(") == 2


def test_numbers_are_those_of_the_operators() -> None:
    library = microc.compile(GRAPH, "cortex-m4", optimize="speed")
    inputs = random_inputs(GRAPH)
    expected = evaluate(optimise_graph(GRAPH, Options()), inputs)[0][0]
    np.testing.assert_allclose(library(*inputs.values()), expected, rtol=2e-5, atol=4e-6)


def test_memory_that_is_not_there_is_worth_any_time() -> None:
    plain = compiled(optimize="speed", disabled=PLAIN)
    tight = compiled(optimize="speed", ram=arena(plain))
    assert (arena(tight), tight.instructions) == (arena(plain), plain.instructions)


@pytest.mark.parametrize(("steps", "options"), [(3, {}), (13, {"disabled": PLAIN}), (13, {"required": PLAIN})])
def test_nothing_is_compiled_twice_where_there_is_no_choice(steps: int, options: dict[str, Any]) -> None:
    assert len(compiled(recurrent(steps), **options).trials) == 1
