# SPDX-License-Identifier: Apache-2.0
"""Networks with badly scaled channels are the same functions as those they are made of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import microc
from benchmarks.rescaled import rescaled

DIGITS = Path(__file__).parent / "data" / "quantize"


@pytest.mark.parametrize(("name", "pairs"), [("cnn", 1), ("dscnn", 4)])
def test_same_function_of_channels_far_apart(name: str, pairs: int, tmp_path: Path) -> None:
    model = onnx.load(DIGITS / f"{name}.onnx")
    twin = rescaled(model)
    onnx.save(twin, tmp_path / "twin.onnx")
    biases = [
        (numpy_helper.to_array(before), numpy_helper.to_array(after))
        for before, after in zip(model.graph.initializer, twin.graph.initializer, strict=True)
        if len(before.dims) == 1 and before.raw_data != after.raw_data
    ]
    assert len(biases) == pairs
    assert all(np.ptp(np.log(after / before)) > np.log(10) for before, after in biases)
    network, changed = microc.compile(DIGITS / f"{name}.onnx"), microc.compile(tmp_path / "twin.onnx")
    x = np.random.default_rng(0).uniform(size=(8, 1, 1, 8, 8)).astype(np.float32)
    for row in x:
        want, got = np.asarray(network(row)), np.asarray(changed(row))
        # Every factor rounds its weights once more, 2**-24 each; sums of some hundred products stay far below 1e-4.
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-4 * float(np.abs(want).max()))
