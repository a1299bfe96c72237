# SPDX-License-Identifier: Apache-2.0
"""A concatenation of many parts: told apart by halves, so that its loop is split in time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import microc
from tests.frontend import onnx_model


@pytest.mark.parametrize("count", [3, 17, 24])
def test_parts_stand_one_behind_the_other(count: int, tmp_path: Path) -> None:
    shapes = {f"x{k}": (2, 1 + k % 3) for k in range(count)}
    path = tmp_path / "joined.onnx"
    node = onnx_model.node("Concat", list(shapes), axis=1)
    path.write_bytes(onnx_model.proto([node], shapes).SerializeToString())
    rng = np.random.default_rng(count)
    parts = [rng.standard_normal(shape).astype(np.float32) for shape in shapes.values()]
    np.testing.assert_array_equal(microc.compile(path)(*parts), np.concatenate(parts, axis=1))
