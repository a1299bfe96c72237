"""Chains of layers that work row by row compute what the layers compute one after another."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from microc.errors import ModelError
from tests.driver.chains import Step, module, network, run, steps, whole_chain
from tests.transform.network import evaluate, random_inputs


@settings(max_examples=40, deadline=None)
@given(
    layers=steps(), height=st.integers(3, 12), width=st.integers(3, 6), block=st.integers(1, 6), seed=st.integers(0, 9)
)
def test_random_chains(layers: tuple[Step, ...], height: int, width: int, block: int, seed: int) -> None:
    try:
        graph = network(layers, (1, height, width, 3), seed)
    except ModelError:
        assume(False)
    chain = whole_chain(graph, block)
    inputs = random_inputs(graph, seed)
    (wanted,) = evaluate(graph, inputs)
    (got,) = run(module(graph, [chain]), inputs)
    np.testing.assert_array_equal(got, wanted)
