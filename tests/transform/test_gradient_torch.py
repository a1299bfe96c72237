# SPDX-License-Identifier: Apache-2.0
"""Gradients of random networks beside PyTorch's autograd. ``make campaign`` takes 200 of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import microc
from microc.graph import ir
from microc.ops.meaning import reference_node_function
from tests.support.campaign import everything
from tests.transform.random_trainable import RandomNetwork


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch", reason="needs PyTorch (pip install microc[torch])")


@pytest.mark.parametrize("seed", range(200 if everything() else 12))
def test_gradients_are_those_of_autograd(seed: int, torch: Any) -> None:
    """Values are rounded to float32 after every operator, PyTorch computes in float64. Each of some ten layers adds
    roundings of 2**-24 relative to its gradients; sums cancel, so that the largest gradient of the network counts, too, or
    a twentieth of a loss near 1."""
    network = RandomNetwork(seed)
    expected = network.evaluate_in_torch(torch)
    names = [name for name in (*network.parameters, "x") if name in expected]
    trained = microc.gradient(network.graph, "loss", names)
    found = ir.run(trained, {"x": network.x, "labels": network.labels}, reference_node_function(trained))
    assert float(found["loss"]) == pytest.approx(float(expected["loss"]), rel=1e-5, abs=1e-6)
    sizes = {name: float(np.abs(expected[name]).max()) for name in names}
    for name in names:
        bound = 1e-4 * sizes[name] + 64 * 2.0**-24 * max(0.05, *sizes.values())
        assert np.abs(found[f"{name}.gradient"] - expected[name]).max() <= bound, (seed, name)
